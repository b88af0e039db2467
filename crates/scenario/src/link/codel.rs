//! Controlled delay: packets are dropped as they leave, while the queue stays longer than a target.
//!
//! A packet that waited less than [`TARGET`], or leaves no more than one packet behind it, proves
//! that the queue is good. After an [`INTERVAL`] without such a packet one is dropped, the next one
//! after `INTERVAL / √2`, then `INTERVAL / √3`, and so on, until a packet is good again. An episode
//! that follows soon after another begins near the drop rate at which that one ended.
//!
//! Source: RFC 8289 §5. Nothing is marked, since no flow here is ECN-capable.

use std::collections::VecDeque;

use fairweir_core::units::{Span, Time};

use super::Dropped;
use super::lane::{Lane, Waiting};

/// Sojourn time that a standing queue may have. Source: RFC 8289 §4.3.
const TARGET: Span = Span::millis(5);
/// How long the sojourn time may be above [`TARGET`]. Source: RFC 8289 §4.3.
const INTERVAL: Span = Span::millis(100);

/// The controller of one queue; the names are those of the RFC.
#[derive(Clone, Debug, Default)]
pub(super) struct Codel {
    first_above: Option<Time>,
    drop_next: Time,
    count: u32,
    last_count: u32,
    is_dropping: bool,
    /// The largest packet so far.
    packet_max: u64,
}

impl Codel {
    /// Takes the packet that is served next out of the lane, and drops packets before it.
    pub(super) fn pop<T>(
        &mut self,
        now: Time,
        lane: &mut Lane<T>,
        drops: &mut VecDeque<Dropped<T>>,
    ) -> Option<Waiting<T>> {
        let mut drop = |waiting: Option<Waiting<T>>| {
            let drop = |w: Waiting<T>| Dropped { packet: w.packet, at: now, random: false };
            drops.extend(waiting.map(drop));
        };
        let (mut head, mut is_bad) = self.next(now, lane);
        if self.is_dropping {
            self.is_dropping = is_bad;
            while self.is_dropping && now >= self.drop_next {
                drop(head);
                self.count += 1;
                (head, is_bad) = self.next(now, lane);
                self.is_dropping = is_bad;
                if is_bad {
                    self.drop_next = control_law(self.drop_next, self.count);
                }
            }
        } else if is_bad {
            drop(head);
            (head, _) = self.next(now, lane);
            self.is_dropping = true;
            let delta = self.count - self.last_count;
            let is_soon = now.since(self.drop_next) < INTERVAL * 16;
            self.count = if delta > 1 && is_soon { delta } else { 1 };
            self.drop_next = control_law(now, self.count);
            self.last_count = self.count;
        }
        head
    }

    /// The first packet of the lane, and whether it may be dropped: `dodequeue` in the RFC.
    fn next<T>(&mut self, now: Time, lane: &mut Lane<T>) -> (Option<Waiting<T>>, bool) {
        let Some(waiting) = lane.pop() else {
            self.first_above = None;
            return (None, false);
        };
        self.packet_max = self.packet_max.max(waiting.packet.size.as_u64());
        let is_good = now.since(waiting.since) < TARGET || lane.backlog() <= self.packet_max;
        if is_good {
            self.first_above = None;
            return (Some(waiting), false);
        }
        let may_drop = self.first_above.is_some_and(|at| now >= at);
        self.first_above = self.first_above.or(Some(now + INTERVAL));
        (Some(waiting), may_drop)
    }
}

/// Time of the next drop, where `count` is the RFC's count of drops in this episode.
fn control_law(t: Time, count: u32) -> Time {
    t + Span::nanos((INTERVAL.as_nanos() as f64 / f64::from(count).sqrt()) as u64)
}

#[cfg(test)]
mod tests {
    use fairweir_core::units::Bytes;

    use super::super::Packet;
    use super::*;

    const SIZE: u64 = 1_514;

    /// Looks every millisecond from 1 s on at a queue in which packets have waited `sojourn` and
    /// many are behind. Returns the milliseconds at which a packet is dropped.
    fn drops_of(codel: &mut Codel, range: std::ops::Range<u64>, sojourn: Span) -> Vec<u64> {
        range.filter(|&ms| drops_at(codel, ms, sojourn, 10) > 0).collect()
    }

    fn drops_at(codel: &mut Codel, ms: u64, sojourn: Span, behind: u64) -> usize {
        let now = Time::ZERO + Span::millis(1_000 + ms);
        let mut lane = Lane::default();
        for _ in 0..=behind {
            let packet = Packet { class: 0, size: Bytes::new(SIZE), body: () };
            lane.push(Waiting {
                packet,
                since: Time::from_nanos(now.as_nanos() - sojourn.as_nanos()),
            });
        }
        let mut drops = VecDeque::new();
        assert!(codel.pop(now, &mut lane, &mut drops).is_some());
        drops.len()
    }

    /// The times of the RFC's control law: t_0 = 100 ms, t_n = t_(n-1) + 100 ms / √n.
    fn law(count: u32) -> Vec<u64> {
        let at = |n: u32| 100.0 + (1..n).map(|m| 100.0 / f64::from(m).sqrt()).sum::<f64>();
        (1..=count).map(|n| at(n).ceil() as u64).collect()
    }

    #[test]
    fn drops_come_an_interval_after_the_queue_is_bad_and_then_by_the_inverse_square_root() {
        let mut codel = Codel::default();
        let drops = drops_of(&mut codel, 0..1_000, Span::millis(6));
        assert_eq!(drops, law(drops.len() as u32));
        assert!(drops.len() > 20, "{drops:?}");
    }

    #[test]
    fn a_packet_below_the_target_or_a_queue_of_one_packet_ends_the_drops() {
        for good in [(Span::millis(4), 10), (Span::millis(50), 1)] {
            let mut codel = Codel::default();
            assert_eq!(drops_of(&mut codel, 0..101, Span::millis(6)), [100]);
            assert_eq!(drops_at(&mut codel, 101, good.0, good.1), 0);
            // It takes a whole interval again until the first drop.
            assert_eq!(drops_of(&mut codel, 102..203, Span::millis(6)), [202]);
        }
    }

    #[test]
    fn an_episode_soon_after_another_goes_on_near_its_rate_and_a_late_one_begins_anew() {
        let gap_after = |pause_ms: u64| {
            let mut codel = Codel::default();
            let before = drops_of(&mut codel, 0..1_000, Span::millis(6)).len() as u64;
            drops_at(&mut codel, 1_000, Span::ZERO, 10);
            let from = 1_001 + pause_ms;
            let drops = drops_of(&mut codel, from..from + 400, Span::millis(6));
            assert_eq!(drops[0], from + 100);
            (before, drops[1] - drops[0])
        };
        // The first drop of an episode leaves the count at 1, so `before` drops make a delta of
        // `before` - 1.
        let (before, gap) = gap_after(0);
        let expected = 100.0 / ((before - 1) as f64).sqrt();
        assert!((gap as f64 - expected).abs() <= 1.0, "{gap} of {expected}");
        assert_eq!(gap_after(1_600).1, 100);
    }

    /// The pseudo code of RFC 8289 §5 in its own words: times in ns, packets as (id, size,
    /// time of arrival).
    #[derive(Default)]
    struct Printed {
        queue: VecDeque<(usize, u64, i64)>,
        first_above_time: i64,
        drop_next: i64,
        count: u32,
        lastcount: u32,
        dropping: bool,
        maxpacket: u64,
        dropped: Vec<usize>,
    }

    impl Printed {
        fn dodequeue(&mut self, now: i64) -> (Option<usize>, bool) {
            let Some((id, size, arrived)) = self.queue.pop_front() else {
                self.first_above_time = 0;
                return (None, false);
            };
            self.maxpacket = self.maxpacket.max(size);
            let mut ok_to_drop = false;
            let bytes: u64 = self.queue.iter().map(|packet| packet.1).sum();
            if now - arrived < 5_000_000 || bytes <= self.maxpacket {
                self.first_above_time = 0;
            } else if self.first_above_time == 0 {
                self.first_above_time = now + 100_000_000;
            } else if now >= self.first_above_time {
                ok_to_drop = true;
            }
            (Some(id), ok_to_drop)
        }

        fn deque(&mut self, now: i64) -> Option<usize> {
            let law = |t: i64, count: u32| t + (1e8 / f64::from(count).sqrt()) as i64;
            let mut r = self.dodequeue(now);
            if self.dropping {
                if !r.1 {
                    self.dropping = false;
                }
                while now >= self.drop_next && self.dropping {
                    self.dropped.extend(r.0);
                    self.count += 1;
                    r = self.dodequeue(now);
                    if !r.1 {
                        self.dropping = false;
                    } else {
                        self.drop_next = law(self.drop_next, self.count);
                    }
                }
            } else if r.1 {
                self.dropped.extend(r.0);
                r = self.dodequeue(now);
                self.dropping = true;
                let delta = self.count - self.lastcount;
                self.count = 1;
                if delta > 1 && now - self.drop_next < 16 * 100_000_000 {
                    self.count = delta;
                }
                self.drop_next = law(now, self.count);
                self.lastcount = self.count;
            }
            r.0
        }
    }

    proptest::proptest! {
        #[test]
        fn packets_go_as_the_printed_code_says(
            // Loads in packets per millisecond of service, each with its duration.
            loads in proptest::collection::vec((0u64..5, 1u64..600), 1..20), size in 100u64..1_515,
        ) {
            let (mut codel, mut printed) = (Codel::default(), Printed::default());
            let (mut lane, mut drops) = (Lane::default(), VecDeque::new());
            let (mut ms, mut id) = (0, 0);
            for (load, span) in loads {
                for _ in 0..span {
                    ms += 1;
                    let now = Time::ZERO + Span::micros(ms * 997);
                    let now_ns = now.as_nanos() as i64;
                    // Two packets leave for every zero to four that arrive.
                    for _ in 0..load {
                        let packet = Packet { class: 0, size: Bytes::new(size), body: id };
                        lane.push(Waiting { packet, since: now });
                        printed.queue.push_back((id, size, now_ns));
                        id += 1;
                    }
                    for _ in 0..2 {
                        let popped = codel.pop(now, &mut lane, &mut drops).map(|w| w.packet.body);
                        proptest::prop_assert_eq!(popped, printed.deque(now_ns));
                    }
                }
            }
            let dropped: Vec<usize> = drops.iter().map(|d| d.packet.body).collect();
            proptest::prop_assert_eq!(dropped, printed.dropped);
        }
    }
}
