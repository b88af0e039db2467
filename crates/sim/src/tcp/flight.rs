//! The packets that are under way, and the fate of each.
//!
//! One ring of small records in the order of transmission numbers. An ACK decides about the numbers
//! that it covers for the first time ([`Flight::acknowledge`]), loss detection decides about holes
//! ([`Flight::detect_losses`]). Both only move forward, so the cost is O(packets decided). A
//! retransmission timeout gives up packets that no ACK has covered yet; their records stay until an
//! ACK covers them, since they may turn out to be delivered after all.
//!
//! Invariant: `base` ≤ `decided_end` ≤ `acked_end` ≤ `numbers_end`; below `decided_end` nothing is in
//! flight. Conservation: every number was delivered, is lost or is in flight.

use std::collections::VecDeque;

use fairweir_core::units::Time;

use super::Ack;

/// A packet that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) sent_at: Time,
    /// State of the connection's rate sampler when the packet was sent: see [`super::rate`].
    pub(super) first_sent_at: Time,
    pub(super) delivered_at: Time,
    pub(super) delivered: u32,
    payload: u16,
    fate: Fate,
    marks: u8,
}

/// The BDP of a thousand connections has to fit into memory.
const _: () = assert!(size_of::<Sent>() == 32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InFlight,
    Delivered,
    Lost,
}

impl Sent {
    /// The application had no data left when the packet was sent.
    pub(super) const APP_LIMITED: u8 = 1;
    /// It carries payload again that was sent before the recovery of that time began.
    pub(super) const REPAIR: u8 = 2;
    /// It carries the payload of the packet before it.
    pub(super) const COPY: u8 = 4;

    pub(super) fn new(sent_at: Time, payload: u16) -> Sent {
        Sent {
            sent_at,
            first_sent_at: sent_at,
            delivered_at: sent_at,
            delivered: 0,
            payload,
            fate: Fate::InFlight,
            marks: 0,
        }
    }

    pub(super) fn set(&mut self, mark: u8, on: bool) {
        if on {
            self.marks |= mark;
        } else {
            self.marks &= !mark;
        }
    }

    pub(super) fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }
}

/// The decision of an ACK about packets that no ACK covered before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivered {
    pub(super) count: u32,
    /// The number of these that were sent before the recovery point, or to repair such a packet.
    pub(super) repaired: u32,
    /// The number of these that a timeout gave up.
    pub(super) late: u32,
    /// When the first of these not given up was sent; one that was given up may have arrived long ago.
    pub(super) oldest_sent_at: Option<Time>,
    pub(super) newest: Option<Sent>,
}

/// Packets that were given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    pub(super) count: u32,
    /// The number of these that were sent before the recovery point, or to repair such a packet,
    /// and that have to be sent again.
    pub(super) before: u32,
    /// The number of these that were sent after the recovery point and have to be sent again.
    pub(super) after: u32,
    /// The number of these that were sent before the recovery point and need not be sent again: a
    /// copy, or a packet whose copy arrived.
    pub(super) settled: u32,
}

/// The packets that are under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Flight {
    ring: VecDeque<Sent>,
    /// Number of the ring's first record.
    base: u64,
    /// Below this, nothing is in flight.
    decided_end: u64,
    /// One more than the highest number acknowledged.
    acked_end: u64,
    /// Number of packets that the receiver has, according to its newest ACK.
    received: u64,
    /// Number of packets acknowledged above the first hole.
    above_holes: u64,
    in_flight: u32,
    payload: u64,
}

impl Flight {
    /// The number of the next packet.
    pub(super) fn numbers_end(&self) -> u64 {
        self.base + self.ring.len() as u64
    }

    /// One more than the highest number acknowledged.
    pub(super) fn acked_end(&self) -> u64 {
        self.acked_end
    }

    /// Number of packets in flight, holes included.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Payload in flight in bytes.
    pub(super) fn payload(&self) -> u64 {
        self.payload
    }

    pub(super) fn has_holes(&self) -> bool {
        self.decided_end < self.acked_end
    }

    /// The oldest packet in flight.
    pub(super) fn oldest(&self) -> Option<&Sent> {
        if self.in_flight == 0 {
            return None;
        }
        let from = (self.decided_end - self.base) as usize;
        self.ring.range(from..).find(|sent| sent.fate == Fate::InFlight)
    }

    /// Payload of the last packet, if it is in flight and the payload is its own.
    pub(super) fn last_payload(&self) -> Option<u16> {
        let last = self.ring.back().filter(|sent| sent.fate == Fate::InFlight)?;
        (!last.is(Sent::COPY)).then_some(last.payload)
    }

    pub(super) fn send(&mut self, sent: Sent) {
        self.in_flight += 1;
        self.payload += u64::from(sent.payload);
        self.ring.push_back(sent);
    }

    /// Processes an ACK; `point` is the recovery point.
    ///
    /// # Panics
    /// If the ACK covers packets that were not sent.
    pub(super) fn acknowledge(&mut self, ack: &Ack, point: u64) -> Delivered {
        let mut delivered = Delivered::default();
        if ack.last < self.acked_end {
            return delivered;
        }
        assert!(ack.last < self.numbers_end(), "only what was sent is acknowledged");
        let fresh = ack.received - self.received;
        assert!(fresh <= ack.last + 1 - self.acked_end, "no packet arrives twice");
        let from = ack.last + 1 - fresh;
        for number in from..=ack.last {
            let sent = &mut self.ring[(number - self.base) as usize];
            match sent.fate {
                Fate::InFlight => {
                    self.in_flight -= 1;
                    self.payload -= u64::from(sent.payload);
                    delivered.oldest_sent_at = delivered.oldest_sent_at.or(Some(sent.sent_at));
                }
                Fate::Lost => delivered.late += 1,
                Fate::Delivered => unreachable!("a number is acknowledged once"),
            }
            sent.fate = Fate::Delivered;
            delivered.repaired += u32::from(number < point || sent.is(Sent::REPAIR));
        }
        delivered.count = fresh as u32;
        if fresh > 0 {
            delivered.newest = Some(self.ring[(ack.last - self.base) as usize]);
        }
        self.received = ack.received;
        self.acked_end = ack.last + 1;
        // Holes are assumed to be below the delivered packets.
        self.above_holes += fresh;
        delivered
    }

    /// Gives up all holes if `at_once`, or if [`DUPLICATE_THRESHOLD`] packets are acknowledged
    /// above the first hole.
    pub(super) fn detect_losses(&mut self, at_once: bool, point: u64) -> Losses {
        let mut losses = Losses::default();
        let are_lost = at_once || self.above_holes >= DUPLICATE_THRESHOLD;
        while self.decided_end < self.acked_end {
            let number = self.decided_end;
            if self.ring[(number - self.base) as usize].fate == Fate::InFlight {
                if !are_lost {
                    break;
                }
                self.lose(number, point, &mut losses);
            }
            self.decided_end += 1;
        }
        while self.base < self.decided_end {
            self.ring.pop_front();
            self.base += 1;
        }
        if !self.has_holes() {
            self.above_holes = 0;
        }
        losses
    }

    /// Gives up the oldest packet and all packets that were sent by `sent_by`.
    pub(super) fn give_up(&mut self, sent_by: Time, point: u64) -> Losses {
        let mut losses = Losses::default();
        for number in self.decided_end..self.numbers_end() {
            let sent = &self.ring[(number - self.base) as usize];
            if sent.fate != Fate::InFlight {
                continue;
            }
            if losses.count > 0 && sent.sent_at > sent_by {
                break;
            }
            self.lose(number, point, &mut losses);
        }
        losses
    }

    /// Restores packets that [`Flight::give_up`] gave up and no ACK has covered; returns their number.
    pub(super) fn take_back(&mut self) -> u32 {
        let mut count = 0;
        for sent in self.ring.range_mut((self.acked_end - self.base) as usize..) {
            if sent.fate == Fate::Lost {
                sent.fate = Fate::InFlight;
                self.payload += u64::from(sent.payload);
                count += 1;
            }
        }
        self.in_flight += count;
        count
    }

    fn lose(&mut self, number: u64, point: u64, losses: &mut Losses) {
        let i = (number - self.base) as usize;
        let is_copied =
            self.ring.get(i + 1).is_some_and(|s| s.is(Sent::COPY) && s.fate == Fate::Delivered);
        let sent = &mut self.ring[i];
        sent.fate = Fate::Lost;
        self.in_flight -= 1;
        self.payload -= u64::from(sent.payload);
        let is_before = number < point || sent.is(Sent::REPAIR);
        let is_settled = is_copied || sent.is(Sent::COPY);
        losses.count += 1;
        losses.before += u32::from(is_before && !is_settled);
        losses.after += u32::from(!is_before && !is_settled);
        losses.settled += u32::from(is_before && is_settled);
    }
}

/// RFC 6675's DupThresh.
const DUPLICATE_THRESHOLD: u64 = 3;

#[cfg(test)]
mod tests {
    use fairweir_core::units::Bytes;
    use proptest::prelude::*;

    use super::*;

    /// An event on a connection.
    #[derive(Clone, Debug)]
    enum Event {
        Send(u32),
        /// The next packet reaches the receiver, or is lost.
        Pass(bool),
        /// The receiver's ACK reaches the sender.
        Acknowledge,
        DetectLosses(bool),
        GiveUp,
        TakeBack,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => (1u32..6).prop_map(Event::Send),
            8 => prop::bool::weighted(0.8).prop_map(Event::Pass),
            4 => Just(Event::Acknowledge),
            4 => any::<bool>().prop_map(Event::DetectLosses),
            1 => Just(Event::GiveUp),
            1 => Just(Event::TakeBack),
        ]
    }

    /// An ACK of the receiver.
    fn ack(last: u64, received: u64) -> Ack {
        Ack { last, received, marked: 0, payload: Bytes::ZERO, window: Bytes::ZERO }
    }

    proptest! {
        #[test]
        fn every_packet_is_delivered_lost_or_in_flight(
            events in prop::collection::vec(event(), 1..300),
        ) {
            let mut flight = Flight::default();
            let (mut passed, mut arrived, mut last) = (0u64, 0u64, None);
            let (mut delivered, mut lost) = (0i64, 0i64);
            for event in events.iter().chain([&Event::Acknowledge, &Event::DetectLosses(true)]) {
                match event {
                    Event::Send(count) => {
                        (0..*count).for_each(|_| flight.send(Sent::new(Time::ZERO, 100)));
                    }
                    Event::Pass(arrives) => {
                        if passed < flight.numbers_end() {
                            passed += 1;
                            if *arrives {
                                arrived += 1;
                                last = Some(passed - 1);
                            }
                        }
                    }
                    Event::Acknowledge => {
                        let Some(last) = last else { continue };
                        let news = flight.acknowledge(&ack(last, arrived), 0);
                        delivered += i64::from(news.count);
                        lost -= i64::from(news.late);
                        prop_assert_eq!(delivered, arrived as i64, "counts are exact");
                    }
                    Event::DetectLosses(at_once) => {
                        lost += i64::from(flight.detect_losses(*at_once, 0).count);
                    }
                    Event::GiveUp => lost += i64::from(flight.give_up(Time::ZERO, 0).count),
                    Event::TakeBack => lost -= i64::from(flight.take_back()),
                }
                let in_flight = i64::from(flight.in_flight());
                prop_assert_eq!(delivered + lost + in_flight, flight.numbers_end() as i64);
                prop_assert_eq!(flight.payload() as i64, in_flight * 100);
                let are_in_flight = |sent: &&Sent| sent.fate == Fate::InFlight;
                prop_assert_eq!(flight.ring.iter().filter(are_in_flight).count() as i64, in_flight);
            }
            // Only packets that no ACK covers are remembered.
            prop_assert_eq!(flight.base, last.map_or(0, |last| last + 1));
        }
    }

    #[test]
    fn three_packets_above_a_hole_make_it_a_loss() {
        let mut flight = Flight::default();
        (0..10).for_each(|_| flight.send(Sent::new(Time::ZERO, 100)));
        for (last, received, lost) in [(0, 1, 0), (2, 2, 0), (4, 3, 0), (5, 4, 2), (8, 5, 0)] {
            flight.acknowledge(&ack(last, received), 0);
            assert_eq!(flight.detect_losses(false, 0).count, lost, "{last}");
        }
        assert_eq!(flight.in_flight(), 3);
    }

    #[test]
    fn a_copy_that_arrives_settles_the_loss_of_the_original() {
        let mut flight = Flight::default();
        (0..3).for_each(|_| flight.send(Sent::new(Time::ZERO, 100)));
        let mut copy = Sent::new(Time::ZERO, 0);
        copy.set(Sent::COPY, true);
        flight.send(copy);
        flight.acknowledge(&ack(1, 2), 3);
        flight.acknowledge(&ack(3, 3), 3);
        let losses = flight.detect_losses(true, 3);
        assert_eq!(losses, Losses { count: 1, before: 0, after: 0, settled: 1 });
    }
}
