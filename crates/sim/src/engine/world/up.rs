//! Packets on their way from the home to the servers.

use fairweir_core::units::{Bytes, Time};
use fairweir_scenario::link::Packet;

use super::super::measure::stamp;
use super::super::packet::{Down, DownKind, Up, UpKind};
use super::{Lost, UPLINK, World};

impl World<'_> {
    /// The client of a connection sends a packet.
    pub(super) fn send_from_client(&mut self, now: Time, index: u32, kind: UpKind) {
        let connection = &mut self.connections[index];
        connection.under_way += 1;
        if matches!(kind, UpKind::Opened | UpKind::Request { .. }) {
            connection.asked = stamp(now);
        }
        let flow = connection.flow;
        let sizes = self.flows[flow].sizes;
        let size = match kind {
            UpKind::Open => {
                connection.syn_at = now;
                sizes.syn()
            }
            UpKind::Opened | UpKind::Ack { .. } => sizes.ack(),
            UpKind::Request { .. } => {
                connection.measure.handle_sent();
                connection.measure_router.handle_sent();
                sizes.request()
            }
            UpKind::Ping { .. } | UpKind::Echo { .. } => {
                unreachable!("a ping has no connection")
            }
        };
        self.send_up(now, flow, size, Up { from: index, kind });
    }

    pub(super) fn send_up(&mut self, now: Time, flow: usize, size: Bytes, body: Up) {
        let class = self.flows[flow].group;
        self.up.sent += 1;
        self.uplink.enqueue(now, Packet { class, size, body });
        self.account_for_lost_up(now);
        self.deadlines.set(UPLINK, self.uplink.next_departure());
    }

    /// Removes packets that the uplink dropped from the counts, and resends those that must arrive.
    pub(super) fn account_for_lost_up(&mut self, now: Time) {
        while let Some(dropped) = self.uplink.poll_drop() {
            self.up.dropped += 1;
            let body = dropped.packet.body;
            match body.kind {
                UpKind::Open | UpKind::Opened | UpKind::Request { .. } => {
                    self.resend_later(now, Lost::Up(body));
                }
                UpKind::Ack { .. } => {
                    self.connections[body.from].under_way -= 1;
                    self.connections.bury(body.from);
                }
                UpKind::Ping { .. } | UpKind::Echo { .. } => {}
            }
        }
    }

    pub(super) fn leave_uplink(&mut self, now: Time) {
        while let Some(departure) = self.uplink.poll_departure(now) {
            let body = departure.packet.body;
            let flow = match body.kind {
                UpKind::Echo { .. } => {
                    self.send_to_servers(now, self.probe_path(body.from as usize), body);
                    continue;
                }
                UpKind::Ping { .. } => body.from as usize,
                UpKind::Open | UpKind::Opened | UpKind::Request { .. } | UpKind::Ack { .. } => {
                    self.connections[body.from].flow
                }
            };
            self.send_to_servers(now, self.flows[flow].path, body);
        }
        self.deadlines.set(UPLINK, self.uplink.next_departure());
    }

    fn send_to_servers(&mut self, now: Time, path: usize, body: Up) {
        let path = &mut self.paths[path];
        path.up.send(now, body);
        if self.deadlines.of(path.up_source).is_none() {
            self.deadlines.set(path.up_source, path.up.next_arrival());
        }
    }

    pub(super) fn arrive_at_servers(&mut self, now: Time, path: usize) {
        while let Some(body) = self.paths[path].up.poll_arrival(now) {
            self.up.arrived += 1;
            self.arrive_at_server(now, body);
        }
        let path = &self.paths[path];
        self.deadlines.set(path.up_source, path.up.next_arrival());
    }

    fn arrive_at_server(&mut self, now: Time, body: Up) {
        if let UpKind::Echo { id } = body.kind {
            return self.reflect(now, body.from as usize, id);
        }
        if let UpKind::Ping { id } = body.kind {
            let flow = body.from as usize;
            let pong = Down { to: body.from, kind: DownKind::Pong { id } };
            return self.send_down(now, flow, self.flows[flow].sizes.ping(), pong);
        }
        let index = body.from;
        let connection = &mut self.connections[index];
        connection.under_way -= 1;
        if connection.closed {
            return self.connections.bury(index);
        }
        if connection.measure.as_kernel() {
            connection.echo = connection.echo.max(connection.asked);
        }
        match body.kind {
            UpKind::Ping { .. } | UpKind::Echo { .. } => {
                unreachable!("a ping has no connection")
            }
            UpKind::Open => self.send_syn_ack(now, index),
            UpKind::Opened => {
                connection.establish(now);
                self.transmit(now, index);
            }
            UpKind::Request { volume } => {
                connection.establish(now);
                connection.requests -= 1;
                if connection.withdrawn > 0 {
                    connection.withdrawn -= 1;
                } else {
                    connection.sender.write(now, volume);
                }
                self.transmit(now, index);
            }
            UpKind::Ack { ack, stamp } => {
                connection.echo = stamp;
                self.hear_ack(now, index, &ack);
                self.transmit(now, index);
            }
        }
    }

    pub(super) fn send_syn_ack(&mut self, now: Time, index: u32) {
        let connection = &mut self.connections[index];
        connection.syn_ack_at = now;
        connection.under_way += 1;
        let flow = connection.flow;
        let size = self.flows[flow].sizes.syn();
        self.send_down(now, flow, size, Down { to: index, kind: DownKind::SynAck });
    }
}
