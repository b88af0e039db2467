//! Packets on their way from the servers to the home.

use fairweir_core::units::{Bytes, Time};
use fairweir_scenario::link::Packet;

use super::super::home::Hop;
use super::super::measure::Stamps;
use super::super::packet::{Down, DownKind, UpKind};
use super::{DOWNLINK, Flow, Lost, TOLD_WITHIN, World};
use crate::htb::Verdict;
use crate::tcp::Segment;

impl World<'_> {
    /// A server of a flow sends a packet.
    pub(super) fn send_down(&mut self, now: Time, flow: usize, size: Bytes, body: Down) {
        let Flow { group, path, .. } = self.flows[flow];
        let path = &mut self.paths[path];
        self.down.sent += 1;
        path.down.send(now, Packet { class: group, size, body });
        if self.deadlines.of(path.down_source).is_none() {
            self.deadlines.set(path.down_source, path.down.next_arrival());
        }
    }

    pub(super) fn arrive_at_downlink(&mut self, now: Time, path: usize) {
        while let Some(packet) = self.paths[path].down.poll_arrival(now) {
            match packet.body.kind {
                DownKind::Echoed { id } if self.evades(&packet.body) => {
                    self.handle_echo(now, packet.body.to as usize, id);
                }
                _ => self.police(now, packet),
            }
        }
        let path = &self.paths[path];
        self.deadlines.set(path.down_source, path.down.next_arrival());
        self.account_for_lost_down(now);
        self.deadlines.set(DOWNLINK, self.downlink.next_departure());
    }

    /// Removes packets that the downlink has dropped from the counts of packets under way.
    pub(super) fn account_for_lost_down(&mut self, now: Time) {
        while let Some(dropped) = self.downlink.poll_drop() {
            if !dropped.random {
                self.samples.record_drop();
            }
            self.lose_down(now, dropped.packet.body);
        }
    }

    pub(super) fn leave_downlink(&mut self, now: Time) {
        while let Some(departure) = self.downlink.poll_departure(now) {
            let packet = departure.packet;
            if let DownKind::Data(_, stamps) = packet.body.kind {
                let is_turn = self.take_turn();
                let group = self.flows[self.flow_of(packet.body)].group;
                let has_router = self.home.router(group).is_some();
                let connection = &mut self.connections[packet.body.to];
                let first = match has_router {
                    true => &mut connection.measure_router,
                    false => &mut connection.measure,
                };
                first.handle_arrival(now, stamps, is_turn);
            }
            self.samples.record_departure(
                departure.at,
                packet.class,
                packet.size,
                departure.sojourn,
            );
            match packet.body.kind {
                DownKind::Echoed { id } => self.handle_echo(now, packet.body.to as usize, id),
                _ => self.pass(now, packet, 0),
            }
        }
        self.account_for_lost_down(now);
        self.deadlines.set(DOWNLINK, self.downlink.next_departure());
    }

    pub(super) fn leave_enforcer(&mut self, now: Time, stage: usize) {
        while let Some(packet) = self.home.stages[stage].poll_departure(now) {
            let group = self.seen_as(now, packet.body);
            self.pass(now, packet, self.home.hops_done(group, stage));
        }
        self.wake_enforcer(stage);
    }

    fn wake_enforcer(&mut self, stage: usize) {
        let stage = &self.home.stages[stage];
        self.deadlines.set(stage.source, stage.next_departure());
    }

    /// Takes a packet that has passed `done` hops through the remaining ones, to its receiver.
    fn pass(&mut self, now: Time, mut packet: Packet<Down>, mut done: usize) {
        let group = self.seen_as(now, packet.body);
        self.move_waiting(now, packet.body, group);
        let has_router = self.home.router(group).is_some();
        // At the link the packet was counted in the class of its flow.
        let by = self.flows[self.flow_of(packet.body)].group;
        while let Some(Hop { stage, class }) = self.home.hop(group, done) {
            packet.class = class;
            if let (true, 1, DownKind::Data(_, stamps)) = (has_router, done, packet.body.kind) {
                let is_turn = self.take_turn();
                self.connections[packet.body.to].measure.handle_arrival(now, stamps, is_turn);
            }
            match self.home.stages[stage].arrive(now, packet) {
                Verdict::Pass(passed) => packet = passed,
                Verdict::Waits => return self.wake_enforcer(stage),
                Verdict::Dropped(dropped) => {
                    self.samples.record_own_drop(now, by, dropped.size);
                    return self.lose_down(now, dropped.body);
                }
            }
            done += 1;
        }
        self.receive(now, packet.body);
    }

    /// Called before the first packet of a connection that was decided meanwhile: moves its waiting
    /// packets to its group. A kernel leaves them where they are, so that they are overtaken; here
    /// paths keep the order. There is only one stage where connections are decided late.
    fn move_waiting(&mut self, now: Time, body: Down, group: usize) {
        let (DownKind::SynAck | DownKind::Data(..)) = body.kind else { return };
        let first = self.flows[self.flow_of(body)].seen_as.first;
        if group == first || std::mem::replace(&mut self.connections[body.to].is_moved, true) {
            return;
        }
        let hops = (self.home.hop(first, 0), self.home.hop(group, 0));
        let (Some(from), Some(to)) = hops else { return };
        let is_of_it = |down: &Down| down.is_of_connection(body.to);
        self.home.stages[from.stage].reclassify(now, from.class, to.class, is_of_it);
        self.wake_enforcer(from.stage);
    }

    /// The group in which the home counts a packet.
    fn seen_as(&self, now: Time, body: Down) -> usize {
        let flow = &self.flows[self.flow_of(body)];
        match body.kind {
            DownKind::SynAck | DownKind::Data(..) => flow.group_of(&self.connections[body.to], now),
            _ => flow.seen_as.decided,
        }
    }

    pub(super) fn flow_of(&self, body: Down) -> usize {
        match body.kind {
            DownKind::SynAck | DownKind::Data(..) => self.connections[body.to].flow,
            DownKind::Datagram | DownKind::Pong { .. } => body.to as usize,
            DownKind::Echoed { .. } => unreachable!("a probe is of no flow"),
        }
    }

    /// A packet has reached its receiver.
    fn receive(&mut self, now: Time, body: Down) {
        self.down.arrived += 1;
        match body.kind {
            DownKind::Data(segment, stamps) => {
                self.receive_segment(now, body.to, &segment, stamps);
            }
            DownKind::SynAck => {
                let connection = &mut self.connections[body.to];
                connection.under_way -= 1;
                if connection.closed {
                    return self.connections.bury(body.to);
                }
                connection.client_rtt = now.since(connection.syn_at);
                let (flow, slot) = (connection.flow, connection.slot);
                self.send_from_client(now, body.to, UpKind::Opened);
                self.flows[flow].app.handle_opened(now, slot);
                self.serve(now, flow);
            }
            DownKind::Datagram => {}
            DownKind::Echoed { .. } => unreachable!("a probe ends at the interface"),
            DownKind::Pong { id } => {
                self.flows[body.to as usize].app.handle_pong(now, id);
                self.serve(now, body.to as usize);
            }
        }
    }

    fn receive_segment(&mut self, now: Time, index: u32, segment: &Segment, stamps: Stamps) {
        let connection = &mut self.connections[index];
        connection.under_way -= 1;
        if connection.closed {
            return self.connections.bury(index);
        }
        let is_full = Bytes::new(segment.payload.into()) == self.flows[connection.flow].segment;
        connection.measure.handle_segment(now, stamps, is_full);
        connection.measure_router.handle_segment(now, stamps, is_full);
        connection.receiver.handle_segment(now, segment);
        if let Some(written) = connection.sender.written() {
            connection.receiver.handle_written(written);
        }
        connection.decided_at.get_or_insert(now + TOLD_WITHIN);
        connection.handle_read(now);
        let (flow, slot) = (connection.flow, connection.slot);
        let total = connection.receiver.received();
        self.acknowledge(now, index);
        self.watch(index, self.connections[index].receiver.next_timeout());
        self.flows[flow].app.handle_received(now, slot, total);
        self.serve(now, flow);
    }

    pub(super) fn lose_down(&mut self, now: Time, body: Down) {
        self.down.dropped += 1;
        match body.kind {
            DownKind::Data(..) => {
                self.connections[body.to].under_way -= 1;
                self.connections.bury(body.to);
            }
            DownKind::SynAck => self.resend_later(now, Lost::SynAck(body.to)),
            DownKind::Datagram | DownKind::Pong { .. } | DownKind::Echoed { .. } => {}
        }
    }
}
