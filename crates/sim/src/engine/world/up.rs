//! Packets on their way from the home to the servers, and what is sent again in either direction.

use fairweir_core::units::{Bytes, Span, Time};

use super::super::packet::{Down, DownKind, Up, UpKind};
use super::{Flow, Lost, RESEND, UPLINK, World};
use crate::link::Packet;
use crate::scenario::PING_PAYLOAD;

/// A lost SYN, SYN-ACK or request is sent again after that. Source: RFC 6298 §2.1.
pub(super) const RESEND_AFTER: Span = Span::secs(1);

impl World<'_> {
    pub(super) fn send_up(&mut self, now: Time, group: usize, size: Bytes, body: Up) {
        self.uplink.enqueue(now, Packet { class: group, size, body });
        while let Some(dropped) = self.uplink.poll_drop() {
            let body = dropped.packet.body;
            match body.kind {
                UpKind::Open | UpKind::Request { .. } => self.resend_later(now, Lost::Up(body)),
                UpKind::Ack(_) => {
                    self.connections[body.from].under_way -= 1;
                    self.connections.bury(body.from);
                }
                UpKind::Ping { .. } => {}
            }
        }
        self.deadlines.set(UPLINK, self.uplink.next_departure());
    }

    pub(super) fn leave_uplink(&mut self, now: Time) {
        while let Some(departure) = self.uplink.poll_departure(now) {
            let body = departure.packet.body;
            let flow = match body.kind {
                UpKind::Ping { .. } => body.from as usize,
                UpKind::Open | UpKind::Request { .. } | UpKind::Ack(_) => {
                    self.connections[body.from].flow
                }
            };
            let path = &mut self.paths[self.flows[flow].path];
            path.up.send(now, body);
            if self.deadlines.of(path.up_source).is_none() {
                self.deadlines.set(path.up_source, path.up.next_arrival());
            }
        }
        self.deadlines.set(UPLINK, self.uplink.next_departure());
    }

    pub(super) fn arrive_at_servers(&mut self, now: Time, path: usize) {
        while let Some(body) = self.paths[path].up.poll_arrival(now) {
            self.arrive_at_server(now, body);
        }
        let path = &self.paths[path];
        self.deadlines.set(path.up_source, path.up.next_arrival());
    }

    fn arrive_at_server(&mut self, now: Time, body: Up) {
        if let UpKind::Ping { id } = body.kind {
            let flow = body.from as usize;
            let size = self.flows[flow].sizes.datagram(PING_PAYLOAD as u32);
            let pong = Down { to: body.from, kind: DownKind::Pong { id } };
            return self.send_down(now, flow, size, pong);
        }
        let index = body.from;
        let connection = &mut self.connections[index];
        connection.under_way -= 1;
        if connection.closed {
            return self.connections.bury(index);
        }
        match body.kind {
            UpKind::Ping { .. } => unreachable!("a ping has no connection"),
            UpKind::Open => {
                connection.asked_at = now;
                connection.under_way += 1;
                let flow = connection.flow;
                let size = self.flows[flow].sizes.syn();
                self.send_down(now, flow, size, Down { to: index, kind: DownKind::Opening });
            }
            UpKind::Request { volume } => {
                connection.establish(now);
                connection.sender.write(now, volume);
                self.transmit(now, index);
            }
            UpKind::Ack(ack) => {
                connection.sender.handle_ack(now, &ack);
                self.transmit(now, index);
            }
        }
    }

    pub(super) fn resend_later(&mut self, now: Time, lost: Lost) {
        self.resends.send(now, lost);
        self.deadlines.set(RESEND, self.resends.next_arrival());
    }

    pub(super) fn resend(&mut self, now: Time) {
        while let Some(lost) = self.resends.poll_arrival(now) {
            let index = match lost {
                Lost::Down(body) => body.to,
                Lost::Up(body) => body.from,
            };
            let connection = &mut self.connections[index];
            if connection.closed {
                connection.under_way -= 1;
                self.connections.bury(index);
                continue;
            }
            let Flow { group, sizes, .. } = self.flows[connection.flow];
            let flow = connection.flow;
            match lost {
                Lost::Down(body) => {
                    connection.asked_at = now;
                    self.send_down(now, flow, sizes.syn(), body);
                }
                Lost::Up(body) => {
                    let is_open = matches!(body.kind, UpKind::Open);
                    let size = if is_open { sizes.syn() } else { sizes.request() };
                    self.send_up(now, group, size, body);
                }
            }
        }
        self.deadlines.set(RESEND, self.resends.next_arrival());
    }
}
