//! The state machine on a path in virtual time: a FIFO with a rate, whose ACKs arrive after an RTT.

use std::collections::{BTreeMap, VecDeque};

use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_scenario::random::SplitMix64;

use super::model::Model;

const PACKET: Bytes = Bytes::new(1_250);
const SEED: u64 = 1;

struct Path {
    rate: Rate,
    rtt: Span,
    buffer: Span,
    /// ACKs arrive in batches at multiples of this span.
    lump: Span,
}

impl Default for Path {
    fn default() -> Path {
        let (rtt, buffer) = (Span::millis(40), Span::millis(100));
        Path { rate: Rate::mbit(30), rtt, buffer, lump: Span::nanos(1) }
    }
}

/// A sender on a path.
struct World {
    path: Path,
    model: Model,
    now: Time,
    /// Rate of the data that the application offers; `None` is unlimited.
    demand: Option<Rate>,
    offered_until: Time,
    number: u64,
    /// Packets that were sent and neither acknowledged nor given up.
    flight: BTreeMap<u64, Time>,
    /// When the ACK of each packet arrives.
    acks: VecDeque<(Time, u64)>,
    link_free_at: Time,
}

#[derive(Debug, Default)]
struct Seen {
    delivered: Bytes,
    dropped: u64,
    queue_ms_sum: f64,
    sent: u64,
    window_min: Option<Bytes>,
    in_flight_max: Bytes,
}

impl World {
    fn new(path: Path) -> World {
        World {
            path,
            model: Model::new(PACKET, SEED),
            now: Time::ZERO,
            demand: None,
            offered_until: Time::ZERO,
            number: 0,
            flight: BTreeMap::new(),
            acks: VecDeque::new(),
            link_free_at: Time::ZERO,
        }
    }

    fn in_flight(&self) -> Bytes {
        PACKET * self.flight.len() as u64
    }

    fn play(&mut self, span: Span) -> Seen {
        let (end, mut seen) = (self.now + span, Seen::default());
        self.offered_until = self.now;
        while self.now < end {
            let is_dry = self.send(&mut seen);
            let offer = self.demand.filter(|_| is_dry).map(|_| self.offered_until);
            let ack = self.acks.front().map(|ack| ack.0);
            // Without either, all packets were lost, and a timeout has to detect that.
            let next = ack.into_iter().chain(offer).min();
            self.now = next.unwrap_or(self.now + Span::secs(1)).max(self.now);
            if self.acks.is_empty() && offer.is_none() {
                self.lose(u64::MAX, true);
            }
            self.acknowledge(is_dry, &mut seen);
        }
        seen
    }

    /// Sends what the window allows; returns whether the application has run out of data.
    fn send(&mut self, seen: &mut Seen) -> bool {
        loop {
            if self.demand.is_some() && self.offered_until > self.now {
                return true;
            }
            let window = self.model.window();
            seen.window_min = Some(seen.window_min.map_or(window, |min| min.min(window)));
            if self.in_flight() + PACKET > window {
                return false;
            }
            if let Some(demand) = self.demand {
                self.offered_until = self.offered_until + demand.time_to_send(PACKET);
            }
            self.model.handle_sent(self.now, PACKET);
            self.flight.insert(self.number, self.now);
            let queue = self.link_free_at.since(self.now);
            seen.sent += 1;
            seen.in_flight_max = seen.in_flight_max.max(self.in_flight());
            if queue > self.path.buffer {
                seen.dropped += 1;
            } else {
                seen.queue_ms_sum += queue.as_millis_f64();
                let sending = self.path.rate.time_to_send(PACKET);
                self.link_free_at = self.link_free_at.max(self.now) + sending;
                let back = (self.link_free_at + self.path.rtt).as_nanos();
                let lump = self.path.lump.as_nanos();
                let at = Time::from_nanos(back.div_ceil(lump) * lump);
                self.acks.push_back((at, self.number));
            }
            self.number += 1;
        }
    }

    fn acknowledge(&mut self, is_dry: bool, seen: &mut Seen) {
        let mut largest = None;
        while let Some((_, number)) = self.acks.pop_front_if(|ack| ack.0 <= self.now) {
            // A packet that was given up too early may still arrive.
            if let Some(sent_at) = self.flight.remove(&number) {
                self.model.handle_packet_acked(sent_at, PACKET);
            }
            seen.delivered += PACKET;
            largest = Some(number);
        }
        if let Some(largest) = largest {
            self.model.handle_acks_end(self.now, self.in_flight(), is_dry);
            self.lose(largest.saturating_sub(3), false);
        }
    }

    /// Gives up the packets that were sent before `number`.
    fn lose(&mut self, number: u64, is_persistent: bool) {
        let lost: Vec<_> = self.flight.range(..number).map(|(&n, &at)| (n, at)).collect();
        for (n, _) in &lost {
            self.flight.remove(n);
        }
        if let Some(&(_, sent_at)) = lost.last() {
            let volume = PACKET * lost.len() as u64;
            self.model.handle_lost(self.now, sent_at, volume, is_persistent);
        }
    }
}

impl Seen {
    fn mbit(&self, span: Span) -> f64 {
        Rate::from_volume(self.delivered, span).as_mbit_f64()
    }

    fn queue_ms(&self) -> f64 {
        self.queue_ms_sum / (self.sent - self.dropped) as f64
    }
}

const START: Span = Span::secs(5);
const LONG: Span = Span::secs(20);

#[test]
fn a_link_is_filled_with_a_small_queue_and_no_drop() {
    let mut world = World::new(Path::default());
    world.play(START);
    let seen = world.play(LONG);
    assert!(seen.mbit(LONG) > 0.95 * 30.0, "{seen:?}");
    assert!(seen.dropped == 0 && seen.queue_ms() < 10.0, "{seen:?} {}", seen.queue_ms());
}

#[test]
fn packets_acknowledged_at_one_instant_are_no_higher_rate() {
    let mut world = World::new(Path { lump: Span::millis(10), ..Path::default() });
    world.play(START);
    let seen = world.play(LONG);
    assert!(seen.mbit(LONG) > 0.95 * 30.0, "{seen:?}");
    assert!(seen.dropped == 0 && seen.queue_ms() < 40.0, "{seen:?} {}", seen.queue_ms());
}

#[test]
fn at_most_two_bdps_and_six_packets_are_in_flight() {
    let mut world = World::new(Path::default());
    world.play(START);
    let seen = world.play(LONG);
    let bdp = 30e6 / 8.0 * 0.0405;
    // One ACK in a hundred measures up to a packet more than actually passed.
    let allowed = 2.0 * bdp * 1.02 + 3.0 * 3_750.0;
    assert!((seen.in_flight_max.as_u64() as f64) < allowed, "{seen:?} {allowed}");
}

#[test]
fn a_link_that_slows_down_is_followed_within_two_seconds() {
    let mut world = World::new(Path::default());
    world.play(Span::secs(8));
    world.path.rate = Rate::mbit(5);
    world.play(Span::secs(3));
    let seen = world.play(LONG);
    assert!(seen.mbit(LONG) > 0.95 * 5.0, "{seen:?}");
    assert!(seen.dropped == 0 && seen.queue_ms() < 20.0, "{seen:?} {}", seen.queue_ms());
    world.path.rate = Rate::mbit(30);
    world.play(Span::secs(5));
    let seen = world.play(START);
    assert!(seen.mbit(START) > 0.9 * 30.0, "it follows upwards too: {seen:?}");
}

#[test]
fn a_shallow_buffer_loses_a_part_but_not_the_rate() {
    let mut world = World::new(Path { buffer: Span::millis(4), ..Path::default() });
    world.play(START);
    let seen = world.play(LONG);
    assert!(seen.mbit(LONG) > 0.9 * 30.0, "{seen:?}");
    let lost = seen.dropped as f64 / seen.sent as f64;
    assert!(lost < 0.05, "{lost}");
}

#[test]
fn an_application_that_offers_less_does_not_lower_the_estimate() {
    let mut world = World::new(Path::default());
    world.play(START);
    world.demand = Some(Rate::mbit(3));
    world.play(Span::secs(1));
    let seen = world.play(Span::secs(4));
    assert!((seen.mbit(Span::secs(4)) - 3.0).abs() < 0.2, "{seen:?}");
    world.demand = None;
    let seen = world.play(Span::secs(1));
    assert!(seen.mbit(Span::secs(1)) > 0.85 * 30.0, "{seen:?}");
}

#[test]
fn a_longer_path_is_believed_after_its_rtt_was_probed() {
    let mut world = World::new(Path::default());
    world.play(START);
    world.path.rtt = Span::millis(120);
    let seen = world.play(Span::secs(13));
    assert_eq!(seen.window_min, Some(PACKET * 4), "in PROBE_RTT");
    let seen = world.play(LONG);
    assert!(seen.mbit(LONG) > 0.9 * 30.0, "{seen:?}");
}

#[test]
fn the_window_never_falls_below_four_packets() {
    for seed in 0..200 {
        let mut random = SplitMix64::new(seed);
        let mut world = World::new(Path {
            rate: Rate::kbit(100 + random.below(100_000)),
            rtt: Span::millis(random.below(300)),
            buffer: Span::micros(random.below(200_000)),
            lump: Span::nanos(1 + random.below(20_000_000)),
        });
        world.demand = (random.below(2) == 0).then(|| Rate::mbit(1 + random.below(50)));
        for _ in 0..5 {
            let seen = world.play(Span::millis(600));
            assert!(seen.window_min.is_none_or(|min| min >= PACKET * 4), "seed {seed}");
            world.path.rate = Rate::kbit(100 + random.below(100_000));
        }
    }
}
