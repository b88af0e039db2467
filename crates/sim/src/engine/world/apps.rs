//! Flows: what their applications want.

use fairweir_core::units::Time;

use super::super::packet::{Down, DownKind, Up, UpKind};
use super::{Flow, World};
use crate::app::Want;
use crate::scenario::PING_PAYLOAD;

impl World<'_> {
    /// Begins a flow.
    pub(super) fn start(&mut self, now: Time, flow: usize) {
        self.flows[flow].app.handle_start(now);
        self.serve(now, flow);
    }

    /// Does what the application of a flow wants.
    pub(super) fn serve(&mut self, now: Time, flow: usize) {
        while let Some(want) = self.flows[flow].app.poll_want() {
            self.satisfy(now, flow, want);
        }
        let Flow { app, app_source, .. } = &self.flows[flow];
        self.deadlines.set(*app_source, app.next_timeout().map(|at| at.max(now)));
    }

    fn satisfy(&mut self, now: Time, flow: usize, want: Want) {
        let Flow { group, sizes, .. } = self.flows[flow];
        match want {
            Want::Open { slot } => self.open(now, flow, slot),
            Want::Fetch { slot, volume } => {
                let Some(index) = self.connection_at(flow, slot) else { return };
                self.connections[index].under_way += 1;
                let request = Up { from: index, kind: UpKind::Request { volume } };
                self.send_up(now, group, sizes.request(), request);
            }
            Want::Write { slot, volume, unsent_max } => {
                let Some(index) = self.connection_at(flow, slot) else { return };
                let connection = &mut self.connections[index];
                connection.establish(now);
                let fits = |unsent| unsent + volume <= unsent_max;
                if connection.sender.unsent().is_some_and(fits) {
                    connection.sender.write(now, Some(volume));
                    self.transmit(now, index);
                }
            }
            Want::Withdraw { slot, unsent_max } => {
                if let Some(index) = self.connection_at(flow, slot) {
                    self.connections[index].sender.withdraw(unsent_max);
                }
            }
            Want::Close { slot } => {
                if let Some(index) = self.connection_at(flow, slot) {
                    self.close(index);
                }
            }
            Want::Datagram { payload } => {
                let body = Down { to: flow as u32, kind: DownKind::Datagram };
                self.send_down(now, flow, sizes.datagram(payload), body);
            }
            Want::Ping { id } => {
                let size = sizes.datagram(PING_PAYLOAD as u32);
                self.send_up(now, group, size, Up { from: flow as u32, kind: UpKind::Ping { id } });
            }
        }
    }

    /// Ends a flow, and closes what its application leaves open.
    pub(super) fn stop(&mut self, now: Time, flow: usize) {
        self.flows[flow].app.handle_stop(now);
        self.serve(now, flow);
        let open: Vec<u32> = self.flows[flow].slots.iter().flatten().copied().collect();
        for index in open {
            self.close(index);
        }
        self.deadlines.set(self.flows[flow].app_source, None);
    }
}
