use super::*;
use crate::share::{Node, Tree, Weight};

const TICK: Span = Span::millis(200);
const BASE: Span = Span::millis(20);

/// An uplink as a fluid: a buffer in front of a rate, and senders that always want more.
struct Uplink {
    control: UploadControl,
    at: Time,
    capacity: Rate,
    buffer: Span,
    /// The queue at the modem.
    queue: Bytes,
    /// The rate that senders offer to this host, and the rate that others send into the same queue.
    offered: Rate,
    others: Rate,
    noise: u64,
    /// Each round trip is longer by up to `jitter`, and `bursts` in a hundred by another 40 ms.
    jitter: Span,
    bursts: u64,
    /// Whether packets with priority wait for the packet in transmission.
    has_packets: bool,
    only_watches: bool,
    carried: Bytes,
    longest: Span,
    /// The sum over the ticks.
    waited: Span,
}

impl Uplink {
    fn new(capacity: Rate) -> Uplink {
        Uplink {
            control: UploadControl::new(None, None),
            at: Time::ZERO,
            capacity,
            buffer: Span::millis(300),
            queue: Bytes::ZERO,
            offered: Rate::ZERO,
            others: Rate::ZERO,
            noise: 1,
            jitter: Span::millis(2),
            bursts: 0,
            has_packets: false,
            only_watches: false,
            carried: Bytes::ZERO,
            longest: Span::ZERO,
            waited: Span::ZERO,
        }
    }

    fn random(&mut self, end: u64) -> u64 {
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.noise >> 33) % end
    }

    fn jitter(&mut self) -> Span {
        let jitter = Span::nanos(self.random(self.jitter.as_nanos()));
        if self.random(100) < self.bursts { jitter + Span::millis(40) } else { jitter }
    }

    fn tick(&mut self) {
        let total = self.control.total().filter(|_| !self.only_watches).unwrap_or(Rate::MAX);
        let rate = self.offered.min(total);
        let room = self.capacity * TICK;
        let arrived = self.queue + rate * TICK + self.others * TICK;
        let left = arrived.saturating_sub(room);
        self.carried += Bytes::new(arrived.as_u64() - left.as_u64());
        self.queue = left.min(self.capacity * self.buffer);
        let waits = self.capacity.time_to_send(self.queue);
        self.longest = self.longest.max(waits);
        self.waited += waits;
        self.at = self.at + TICK;
        let mut least = BASE + waits + self.jitter();
        if self.has_packets && self.offered > Rate::ZERO {
            let packet = self.capacity.time_to_send(Bytes::new(1_514));
            least += Span::nanos(self.random(packet.as_nanos()));
        }
        self.control.handle_observation(&UploadObservation {
            at: self.at,
            interval: TICK,
            sent: rate * TICK,
            data: rate * TICK,
            backlog: if self.offered > total { Bytes::kb(50) } else { Bytes::ZERO },
            round_trips: vec![RoundTrip { source: 1, least, most: least }],
        });
    }

    /// Plays `seconds`; returns the volume carried, relative to the capacity.
    fn run(&mut self, seconds: u64) -> f64 {
        (self.carried, self.longest, self.waited) = (Bytes::ZERO, Span::ZERO, Span::ZERO);
        for _ in 0..seconds * 5 {
            self.tick();
        }
        self.carried.as_u64() as f64 / (self.capacity * Span::secs(seconds)).as_u64() as f64
    }
}

fn ratio(a: Option<Rate>, b: Rate) -> f64 {
    a.map_or(0.0, |a| a.as_mbit_f64() / b.as_mbit_f64())
}

#[test]
fn the_capacity_is_learned_and_the_queue_stays_short() {
    for mbit in [1, 10, 40, 500] {
        for over in [105, 130, 300] {
            let mut link = Uplink::new(Rate::mbit(mbit));
            link.run(2);
            assert_eq!(link.control.total(), None, "an idle uplink is not limited");
            link.offered = link.capacity.scale(over, 100);
            link.run(20);
            let found = ratio(link.control.capacity(), link.capacity);
            let used = link.run(60);
            let (longest, phase) = (link.longest, link.control.phase());
            assert!((0.97..1.03).contains(&found), "{mbit} Mbit/s, {over} %: {found} {phase:?}");
            assert!(used >= 0.97, "{mbit} Mbit/s, {over} %: {used} used, {phase:?}");
            let packets = link.capacity.time_to_send(Bytes::new(1_514)) * 2;
            assert!(longest < packets.max(Span::millis(16)), "{mbit} Mbit/s, {over} %: {longest}");
        }
    }
}

#[test]
fn a_capacity_that_changes_is_followed() {
    let mut link = Uplink::new(Rate::mbit(10));
    link.run(2);
    link.offered = Rate::mbit(40);
    link.run(20);
    link.capacity = Rate::mbit(4);
    link.run(20);
    let used = link.run(20);
    assert!(used >= 0.96, "{used} {:?}", link.control);
    assert!(link.longest < Span::millis(20), "{}", link.longest);
    link.capacity = Rate::mbit(20);
    link.run(40);
    let used = link.run(20);
    assert!(used >= 0.96, "{used} {:?}", link.control);
}

/// A daemon that restarts while uploads continue.
#[test]
fn a_queue_that_was_there_before_a_remembered_capacity_goes() {
    for mbit in [1, 10, 100] {
        for remembered in [980, 1_000, 1_020] {
            let mut link = Uplink::new(Rate::mbit(mbit));
            let capacity = link.capacity.scale(remembered, 1_000);
            link.control = UploadControl::new(None, Some(capacity));
            link.offered = link.capacity * 3;
            link.queue = link.capacity * Span::millis(250);
            let first = link.run(3);
            link.run(2);
            let used = link.run(20);
            let (longest, waited) = (link.longest, link.waited / 100);
            let packet = link.capacity.time_to_send(Bytes::new(1_514));
            let what = format!("{mbit} Mbit/s, {remembered}: {first} {used} {longest} {waited}");
            assert!(first >= 0.98 && used >= 0.96, "{what}");
            // At 1.02, a queue of 35 ms is left after 2 s and counts as propagation.
            assert!(longest < packet * 2 + Span::millis(60), "{what}");
            assert!(waited < packet + Span::millis(5), "{what}");
        }
    }
    let mut idle = Uplink::new(Rate::mbit(10));
    idle.control = UploadControl::new(None, Some(Rate::mbit(10)));
    idle.run(1);
    assert_eq!(idle.control.total(), Some(below(Rate::mbit(10))), "nothing has to go");
}

/// Connections that fill an uplink before the control begins, in steps of 10 ms: their windows grow by a packet
/// in each round trip and fall to seven tenths when the buffer is full.
struct Senders {
    control: UploadControl,
    at: Time,
    capacity: Rate,
    buffer: Span,
    queue: Bytes,
    /// The windows, in packets.
    windows: Vec<f64>,
    /// The volume that waits in the classes of this host.
    backlog: f64,
}

impl Senders {
    fn new(capacity: Rate, count: usize) -> Senders {
        let bdp = (capacity * (BASE + Span::millis(100))).as_u64() as f64 / 1_514.0;
        let windows = (0..count).map(|i| bdp / count as f64 * (1.0 + i as f64 / 10.0)).collect();
        let queue = capacity * Span::millis(100);
        Senders {
            control: UploadControl::new(None, None),
            at: Time::ZERO,
            capacity,
            buffer: Span::millis(150),
            queue,
            windows,
            backlog: 0.0,
        }
    }

    /// Plays a tick; returns the longest delay at the modem.
    fn tick(&mut self) -> Span {
        let step = Span::millis(10);
        let (mut sent, mut least, mut most) = (Bytes::ZERO, Span::MAX, Span::ZERO);
        let limit = self.control.total().unwrap_or(Rate::MAX);
        for _ in 0..20 {
            let waits = self.capacity.time_to_send(self.queue);
            let local = self.backlog / limit.min(self.capacity).as_bps() as f64 * 8.0;
            let rtt = (BASE + waits).as_secs_f64() + local;
            let window: f64 = self.windows.iter().sum();
            let offered = self.backlog + window * 1_514.0 / rtt * step.as_secs_f64();
            let out = offered.min((limit * step).as_u64() as f64);
            self.backlog = (offered - out).min(30.0 * 1_514.0);
            let is_lost = offered - out > self.backlog;
            let queue = self.queue.as_u64() as f64 + out - (self.capacity * step).as_u64() as f64;
            let room = (self.capacity * self.buffer).as_u64() as f64;
            sent += Bytes::new(out as u64);
            self.queue = Bytes::new(queue.clamp(0.0, room) as u64);
            let largest = self.windows.iter().copied().fold(0.0, f64::max);
            for w in &mut self.windows {
                *w += step.as_secs_f64() / rtt;
                if (queue > room || is_lost) && *w >= largest {
                    *w *= 0.7;
                }
            }
            least = least.min(BASE + waits);
            most = most.max(waits);
        }
        self.at = self.at + TICK;
        self.control.handle_observation(&UploadObservation {
            at: self.at,
            interval: TICK,
            sent,
            data: sent,
            backlog: Bytes::new(self.backlog as u64),
            round_trips: vec![RoundTrip { source: 1, least, most: least }],
        });
        most
    }
}

#[test]
fn the_capacity_is_learned_from_an_uplink_that_is_full_from_the_beginning() {
    for mbit in [1, 10, 40] {
        for count in [1, 2, 4, 8] {
            let mut link = Senders::new(Rate::mbit(mbit), count);
            let is_held = |link: &mut Senders| {
                link.tick();
                link.control.phase() == UploadPhase::Hold
            };
            let after = (1..=50).find(|_| is_held(&mut link));
            let found = ratio(link.control.capacity(), link.capacity);
            let what = format!("{mbit} Mbit/s, {count}: {found} after {after:?} ticks");
            assert!(after.is_some_and(|ticks| ticks <= 25), "{what}");
            assert!((0.97..1.03).contains(&found), "{what}");
            // The rest of the queue leaves first.
            for _ in 0..15 {
                link.tick();
            }
            let mut waits: Vec<Span> = (0..300).map(|_| link.tick()).collect();
            waits.sort_unstable();
            let what = format!("{what}: then {} to {}", waits[150], waits[294]);
            let packet = link.capacity.time_to_send(Bytes::new(1_514));
            assert!(waits[150] <= packet.max(Span::millis(10)), "{what}");
            // A raise past 1 Mbit/s is noticed late: a single packet takes 12 ms.
            let most = if mbit == 1 { packet * 8 } else { Span::millis(25) };
            assert!(waits[294] <= most, "{what}");
        }
    }
}

/// Wi-Fi, LTE and cable: 40 uplinks for each kind of noise.
#[test]
fn noise_is_not_taken_for_a_queue() {
    for (over, bursts) in [(110, 0), (110, 20), (300, 0), (300, 20)] {
        for jitter_ms in [4, 8, 15, 30, 50] {
            let play = |seed: u64| {
                let mut link = Uplink::new(Rate::mbit(10));
                (link.noise, link.bursts) = (seed, bursts);
                link.jitter = Span::millis(jitter_ms);
                link.run(2);
                link.offered = link.capacity.scale(over, 100);
                (link.run(20), link.run(120), (link.waited / 600).as_millis_f64())
            };
            let plays: Vec<_> = (1..=40).map(|i| play(i * 77_777_777)).collect();
            let sorted = |part: fn(&(f64, f64, f64)) -> f64| {
                let mut parts: Vec<f64> = plays.iter().map(part).collect();
                parts.sort_by(f64::total_cmp);
                parts
            };
            let (start, used, queue) = (sorted(|p| p.0), sorted(|p| p.1), sorted(|p| p.2));
            println!(
                "offered {over} %, bursts {bursts} %, jitter {jitter_ms} ms: used {:.2} {:.2} {:.2} \
                 (first 20 s {:.2}), queue {:.0} {:.0} ms",
                used[0], used[4], used[20], start[0], queue[20], queue[36]
            );
            assert!(used[0] >= 0.65 && used[4] >= 0.85 && used[20] >= 0.9, "{used:?}");
            assert!(start[0] >= 0.6 && start[4] >= 0.8, "{start:?}");
            assert!(queue[20] < 12.0 && queue[36] < 40.0, "of 300 ms: {queue:?}");
        }
    }
}

#[test]
fn an_uplink_with_noise_that_is_no_bottleneck_is_not_limited_for_long() {
    for jitter_ms in [8, 15, 30, 50] {
        let mut link = Uplink::new(Rate::mbit(100));
        (link.jitter, link.bursts) = (Span::millis(jitter_ms), 10);
        link.run(2);
        link.offered = Rate::mbit(90);
        let used = link.run(300);
        assert!(used >= 0.85, "{jitter_ms} ms: {used} of .90");
    }
}

/// Before the time of a packet was considered, some uplinks of 0.5 Mbit/s were not limited at all, and others to half.
#[test]
fn a_packet_on_its_way_is_not_taken_for_a_queue() {
    for kbit in [500, 1_000, 2_000] {
        let play = |seed: u64| {
            let mut link = Uplink::new(Rate::kbit(kbit));
            (link.noise, link.has_packets) = (seed * 77_777_777, true);
            link.run(2);
            link.offered = link.capacity.scale(150, 100);
            link.run(25);
            let found = ratio(link.control.capacity(), link.capacity);
            (found, link.run(60), (link.waited / 300).as_millis_f64())
        };
        let plays: Vec<_> = (1..=40).map(play).collect();
        let sorted = |part: fn(&(f64, f64, f64)) -> f64| {
            let mut parts: Vec<f64> = plays.iter().map(part).collect();
            parts.sort_by(f64::total_cmp);
            parts
        };
        let (found, used, queue) = (sorted(|p| p.0), sorted(|p| p.1), sorted(|p| p.2));
        let at = |all: &[f64]| format!("{:.2} {:.2} {:.2} {:.2}", all[0], all[4], all[20], all[39]);
        println!(
            "{kbit} kbit/s: found {}, used {}, queue {} ms",
            at(&found),
            at(&used),
            at(&queue)
        );
        assert!(found[0] >= 0.5 && found[4] >= 0.9 && found[39] <= 1.05, "{found:?}");
        assert!(used[0] >= 0.8 && used[4] >= 0.93, "{used:?}");
        assert!(queue[20] < 5.0 && queue[39] < 30.0, "of 300 ms: {queue:?}");
    }
}

#[test]
fn a_dry_run_says_what_the_limit_would_be_and_limits_nothing() {
    let mut link = Uplink::new(Rate::mbit(10));
    link.control = UploadControl::watching(None, None);
    link.only_watches = true;
    link.run(2);
    assert_eq!(link.control.total(), None);
    // TCP: the offered rate above the capacity is what the buffer drops.
    link.offered = Rate::kbit(10_300);
    link.run(30);
    let found = ratio(link.control.capacity(), link.capacity);
    assert!((0.97..1.05).contains(&found), "{found}");
    assert_eq!(link.control.phase(), UploadPhase::Open);
    let control = UploadControl::watching(Some(Rate::mbit(10)), None);
    assert_eq!(control.total(), Some(Rate::kbit(9_850)));
    let control = UploadControl::watching(None, Some(Rate::mbit(10)));
    assert_eq!((control.phase(), control.total()), (UploadPhase::Open, Some(Rate::kbit(9_850))));
}

#[test]
fn an_uplink_that_is_no_bottleneck_is_never_limited() {
    let mut link = Uplink::new(Rate::mbit(100));
    link.run(2);
    link.offered = Rate::mbit(90);
    for _ in 0..1_000 {
        link.tick();
        assert_eq!(link.control.total(), None, "{:?}", link.control);
    }
}

#[test]
fn a_queue_that_others_fill_does_not_limit_for_long() {
    let mut link = Uplink::new(Rate::mbit(100));
    link.run(2);
    (link.offered, link.others) = (Rate::mbit(2), Rate::mbit(120));
    let mut limited = 0;
    for _ in 0..1_500 {
        link.tick();
        limited += u32::from(link.control.total().is_some_and(|total| total < link.offered));
    }
    assert!(limited < 75, "{limited} of 1500 ticks");
}

#[test]
fn what_cannot_be_verified_is_not_enforced() {
    let mut control = UploadControl::new(None, Some(Rate::mbit(10)));
    assert_eq!(control.total(), Some(Rate::kbit(9_850)));
    let mut at = Time::ZERO;
    for _ in 0..40 * 5 {
        at = at + TICK;
        control.handle_observation(&UploadObservation {
            at,
            interval: TICK,
            sent: Rate::mbit(10) * TICK,
            data: Rate::mbit(10) * TICK,
            backlog: Bytes::kb(9),
            round_trips: Vec::new(),
        });
    }
    assert_eq!((control.phase(), control.total()), (UploadPhase::Open, None));
}

#[test]
fn a_configured_capacity_is_never_learned_anew() {
    let mut link = Uplink::new(Rate::mbit(10));
    link.control = UploadControl::new(Some(Rate::mbit(12)), None);
    link.offered = Rate::mbit(40);
    link.run(30);
    assert_eq!(link.control.capacity(), Some(Rate::mbit(12)));
    assert_eq!(link.control.phase(), UploadPhase::Fixed);
}

#[test]
fn any_observation_leaves_a_limit_that_htb_takes() {
    let mut control = UploadControl::new(None, None);
    let mut noise = 7_u64;
    let mut random = |end: u64| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        if (noise >> 60) == 0 { u64::MAX } else { (noise >> 20) % end }
    };
    for _ in 0..20_000 {
        let trips = random(80).min(80);
        let trip = |_| {
            let [least, most] = [(); 2].map(|()| Span::nanos(random(1 << 30)));
            RoundTrip { source: random(200), least, most }
        };
        let round_trips = (0..trips).map(trip).collect();
        control.handle_observation(&UploadObservation {
            at: Time::from_nanos(random(1 << 40)),
            interval: Span::nanos(random(1 << 29)),
            sent: Bytes::new(random(1 << 24)),
            backlog: Bytes::new(random(1 << 20)),
            data: Bytes::new(random(1 << 24)),
            round_trips,
        });
        assert!(control.total().is_none_or(|total| total >= CAPACITY_MIN.scale(98, 100)));
        assert!(control.queue.bases.len() <= ROUND_TRIPS_MAX && control.history.len() <= HISTORY);
    }
}

#[test]
fn rates_of_classes_sum_to_the_total_in_proportion_to_weights() {
    let packet = Bytes::new(1_514);
    let weights = [1, 3, 10_000].map(|w| Weight::new(w).unwrap());
    for (total, first) in [(10, 0), (10, 1), (10, 9), (300, 20)] {
        let (total, first) = (Rate::mbit(total), Rate::mbit(first));
        let classes = classes(total, first, (&Tree::from(weights.to_vec()), &[None; 3]), packet);
        let sum: Rate = classes.groups.iter().map(|class| class.spec.rate).sum();
        let minima = Rate::kbit(8 * 3);
        let sum = sum + classes.icmp.rate + classes.acks.rate;
        assert!(sum >= total && sum <= total + minima);
        assert!(classes.acks.ceil <= total / 2, "a flood of acknowledgements leaves half");
        assert!(
            classes.groups.iter().all(|class| class.spec.ceil == total && class.spec.priority == 1)
        );
        let [one, three, _] = [0, 1, 2].map(|i| classes.groups[i].spec.rate.as_bps());
        assert!(three.abs_diff(one * 3) <= 4 || one == 8_000, "{one} {three}");
        assert!(
            classes
                .groups
                .iter()
                .all(|c| c.spec.quantum <= packet * 20 && c.spec.quantum >= packet)
        );
    }
}

#[test]
fn classes_are_nested_as_the_groups_are() {
    let leaf = |n| Node::Leaf(Weight::new(n).unwrap());
    let video = Node::Branch(Weight::ONE, vec![leaf(1), leaf(1)]);
    let tv = Node::Branch(Weight::new(2).unwrap(), vec![leaf(3), video]);
    let tree = Tree::new(vec![tv, leaf(1)]);
    let divide = |demands| classes(Rate::mbit(60), Rate::ZERO, (&tree, demands), Bytes::new(1_514));
    let classes = divide(&[None; 4]);
    let parent: Vec<_> = classes.branches.iter().map(|class| class.within).collect();
    assert_eq!(parent, [None, Some(0)], "those above come first");
    let within: Vec<_> = classes.groups.iter().map(|class| class.within).collect();
    assert_eq!(within, [Some(0), Some(1), Some(1), None]);
    let rates: Vec<_> =
        classes.groups.iter().map(|class| class.spec.rate.as_bps() / 1_000).collect();
    assert_eq!(rates, [28_031, 4_671, 4_671, 18_687]);
    assert!(classes.branches.iter().all(|class| class.spec.queue.is_none()));
    assert_eq!(classes.branches[0].spec.rate, Rate::kbit(37_375));
    // An idle group leaves nothing to borrow; a branch would borrow too much of it.
    let some = |mbit| Some(Rate::mbit(mbit));
    let classes = divide(&[None, some(0), some(2), some(5)]);
    let rates: Vec<_> =
        classes.groups.iter().map(|class| class.spec.rate.as_bps() / 1_000).collect();
    assert_eq!(rates, [49_062, 8, 2_000, 5_000]);
    assert_eq!(classes.branches[0].spec.rate, Rate::bps(51_062_500));
}
