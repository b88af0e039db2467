//! Both ends of the connections: their packets, their timers, how they begin and end.

use fairweir_core::units::Time;
use fairweir_scenario::Flow;

use super::super::connection::Connection;
use super::super::measure::{Sight, Stamps, stamp};
use super::super::packet::{Down, DownKind, UpKind};
use super::{Source, World};

impl World<'_> {
    pub(super) fn open(&mut self, now: Time, flow: usize, slot: u32) {
        let Flow { congestion_control, paced, .. } = self.scenario.flows[flow];
        let sight = Sight { as_kernel: self.as_kernel(), clock: self.flows[flow].clock };
        let (index, is_new) = self.connections.open(flow, slot, sight, |serial| {
            let seed = self.flows[flow].seed.wrapping_add(serial);
            Connection::ends(congestion_control, paced, self.flows[flow].segment, seed)
        });
        if is_new {
            let timer = self.add_source(Source::Timer(index), None);
            let pacing = self.add_source(Source::Pacing(index), None);
            self.connections[index].timer_source = timer;
            self.connections[index].pacing_source = pacing;
        }
        self.connections[index].membership = self.join_bundle(flow);
        self.open_first_window(index);
        let slots = &mut self.flows[flow].slots;
        if slots.len() <= slot as usize {
            slots.resize(slot as usize + 1, None);
        }
        assert!(slots[slot as usize].is_none(), "an application opens a slot once at a time");
        slots[slot as usize] = Some(index);
        self.send_from_client(now, index, UpKind::Open);
    }

    pub(super) fn close(&mut self, index: u32) {
        self.leave_bundle(index);
        let connection = &mut self.connections[index];
        connection.closed = true;
        let (flow, slot) = (connection.flow, connection.slot);
        self.deadlines.set(connection.timer_source, None);
        self.deadlines.set(connection.pacing_source, None);
        self.flows[flow].slots[slot as usize] = None;
        self.connections.bury(index);
    }

    pub(super) fn connection_at(&self, flow: usize, slot: u32) -> Option<u32> {
        self.flows[flow].slots.get(slot as usize).copied().flatten()
    }

    /// Sends all packets that a sender may send now.
    pub(super) fn transmit(&mut self, now: Time, index: u32) {
        let Connection { flow, .. } = self.connections[index];
        let sizes = self.flows[flow].sizes;
        while let Some(segment) = self.connections[index].sender.poll_transmit(now) {
            self.connections[index].under_way += 1;
            let size = sizes.data(segment.payload);
            let sent = self.flows[flow].clock.map_or(0, |clock| clock.stamp(now));
            let stamps = Stamps { sent, echo: self.connections[index].echo };
            let kind = DownKind::Data(segment, stamps);
            self.send_down(now, flow, size, Down { to: index, kind });
        }
        let connection = &self.connections[index];
        self.deadlines.set(connection.pacing_source, connection.sender.next_transmit(now));
        self.watch(index, connection.sender.next_timeout());
    }

    /// Sends the acknowledgements that are due.
    pub(super) fn acknowledge(&mut self, now: Time, index: u32) {
        while let Some(ack) = self.connections[index].receiver.poll_ack(now) {
            self.send_from_client(now, index, UpKind::Ack { ack, stamp: stamp(now) });
        }
    }

    /// Makes sure that a timer of the connection fires when it is `due`. A deadline that moved to a
    /// later time is left unchanged: it is corrected when it fires, not with every packet.
    pub(super) fn watch(&mut self, index: u32, due: Option<Time>) {
        let Some(due) = due else { return };
        let source = self.connections[index].timer_source;
        if self.deadlines.of(source).is_none_or(|heard| due < heard) {
            self.deadlines.set(source, Some(due));
        }
    }

    pub(super) fn handle_timer(&mut self, now: Time, index: u32) {
        let connection = &mut self.connections[index];
        let due = connection.next_timeout();
        self.deadlines.set(connection.timer_source, due);
        if due.is_none_or(|due| due > now) {
            return;
        }
        if connection.sender.next_timeout().is_some_and(|due| due <= now) {
            self.hear_timeout(now, index);
        }
        self.acknowledge(now, index);
        self.transmit(now, index);
        let connection = &self.connections[index];
        self.deadlines.set(connection.timer_source, connection.next_timeout());
    }
}
