//! The fate of packets at the policing points before the downlink.

use fairweir_core::units::Time;
use fairweir_scenario::link::Packet;
use fairweir_scenario::police::Fate;

use super::super::packet::{Down, DownKind};
use super::{DOWNLINK, SHAPERS, World};

/// Distinguishes the flows of datagrams and probes from those of connections.
const DATAGRAMS: u64 = 1 << 62;
const PROBES: u64 = 1 << 63;

impl World<'_> {
    /// Takes a packet through its policing point, if it has one, to the downlink.
    pub(super) fn police(&mut self, now: Time, packet: Packet<Down>) {
        let is_probe = matches!(packet.body.kind, DownKind::Echoed { .. });
        if self.police.is_empty() || is_probe {
            return self.offer(now, packet);
        }
        let who = (self.flow_of(packet.body), self.unit_of(packet.body));
        let takes_marks = matches!(packet.body.kind, DownKind::Data(..)) && self.flows[who.0].ecn;
        match self.police.arrive(now, who, packet.size, takes_marks, packet) {
            Fate::Pass(packet) => self.offer(now, packet),
            Fate::Mark(mut packet) => {
                if let DownKind::Data(segment, _) = &mut packet.body.kind {
                    segment.marked = true;
                }
                self.offer(now, packet);
            }
            Fate::Drop(packet) => self.lose_down(now, packet.body),
            Fate::Waits => self.deadlines.set(SHAPERS, self.police.next_departure()),
        }
    }

    /// Takes packets that have left a shaper to the downlink.
    pub(super) fn leave_shapers(&mut self, now: Time) {
        while let Some((at, packet)) = self.police.poll_departure(now) {
            self.offer(at, packet);
        }
        self.deadlines.set(SHAPERS, self.police.next_departure());
        self.account_for_lost_down(now);
        self.deadlines.set(DOWNLINK, self.downlink.next_departure());
    }

    /// Hands a packet to the downlink, with the flow that its addresses and ports imply.
    fn offer(&mut self, now: Time, packet: Packet<Down>) {
        let Down { to, kind } = packet.body;
        let flow = match kind {
            DownKind::SynAck | DownKind::Data(..) => self.connections[to].serial,
            DownKind::Datagram | DownKind::Pong { .. } => DATAGRAMS | u64::from(to),
            DownKind::Echoed { .. } => PROBES | u64::from(to),
        };
        self.downlink.enqueue_of(now, flow, packet);
    }

    /// The number of a packet's connection within its flow.
    fn unit_of(&self, body: Down) -> u32 {
        match body.kind {
            DownKind::SynAck | DownKind::Data(..) => self.connections[body.to].slot,
            DownKind::Datagram | DownKind::Pong { .. } | DownKind::Echoed { .. } => 0,
        }
    }
}
