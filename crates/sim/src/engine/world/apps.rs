//! Flows: carries out what their applications want.

use fairweir_core::units::Time;
use fairweir_scenario::app::Want;

use super::super::packet::{Down, DownKind, Up, UpKind};
use super::{Flow, World};

impl World<'_> {
    /// Begins a flow.
    pub(super) fn start(&mut self, now: Time, flow: usize) {
        self.flows[flow].app.handle_start(now);
        self.serve(now, flow);
    }

    /// Carries out what the application of a flow wants.
    pub(super) fn serve(&mut self, now: Time, flow: usize) {
        while let Some(want) = self.flows[flow].app.poll_want() {
            self.satisfy(now, flow, want);
        }
        let Flow { app, app_source, .. } = &self.flows[flow];
        self.deadlines.set(*app_source, app.next_timeout().map(|at| at.max(now)));
    }

    fn satisfy(&mut self, now: Time, flow: usize, want: Want) {
        let sizes = self.flows[flow].sizes;
        match want {
            Want::Open { slot } => self.open(now, flow, slot),
            Want::Fetch { slot, volume } => {
                let Some(index) = self.connection_at(flow, slot) else { return };
                self.connections[index].requests += 1;
                self.send_from_client(now, index, UpKind::Request { volume });
            }
            Want::Write { slot, volume, unsent_max } => {
                let Some(index) = self.connection_at(flow, slot) else { return };
                let connection = &mut self.connections[index];
                // Before the handshake is done the server cannot write.
                if !connection.established {
                    return;
                }
                let fits = |unsent| unsent + volume <= unsent_max;
                if connection.sender.unsent().is_some_and(fits) {
                    connection.sender.write(now, Some(volume));
                    self.transmit(now, index);
                }
            }
            Want::Withdraw { slot, unsent_max } => {
                if let Some(index) = self.connection_at(flow, slot) {
                    let connection = &mut self.connections[index];
                    connection.sender.withdraw(unsent_max);
                    connection.withdrawn = connection.requests;
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
                let ping = Up { from: flow as u32, kind: UpKind::Ping { id } };
                self.send_up(now, flow, sizes.ping(), ping);
            }
        }
    }

    /// Ends a flow.
    pub(super) fn stop(&mut self, now: Time, flow: usize) {
        self.flows[flow].app.handle_stop(now);
        self.serve(now, flow);
        let Flow { slots, app_source, .. } = &self.flows[flow];
        assert!(slots.iter().all(Option::is_none), "an application that is stopped closes all");
        assert_eq!(self.deadlines.of(*app_source), None, "and waits for nothing");
    }
}
