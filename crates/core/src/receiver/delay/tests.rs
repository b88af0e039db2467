use proptest::prelude::*;

use super::base::STAMP_ROUNDING;
use super::noise::{BURSTS_NS, NOISE_MAX, NOISE_TICKS};
use super::*;
use crate::receiver::{GroupSample, TICK, TransitSample};

const MS: i64 = 1_000_000;

/// What the estimator sees: connections and the delay of their packets beyond a constant.
struct Link {
    delay: DelayEstimator,
    now: Time,
}

impl Link {
    fn new() -> Link {
        Link { delay: DelayEstimator::default(), now: Time::ZERO }
    }

    /// A tick in which the packets of each connection took `(id, least, mean)` ns.
    fn tick(&mut self, seen: &[(u64, i64, i64)], queue: Queue) -> Option<DelaySample> {
        let connections = seen.iter().map(|&(id, min_ns, mean_ns)| connection(id, min_ns, mean_ns));
        self.observe(connections.collect(), None, queue)
    }

    /// The same for connections whose packets all took the same time, in ms.
    fn steady(&mut self, seen: &[(u64, i64)], queue: Queue) -> Option<i64> {
        let seen: Vec<_> = seen.iter().map(|&(id, ms)| (id, ms * MS, ms * MS)).collect();
        self.tick(&seen, queue).map(|delay| delay.least.as_nanos() as i64 / MS)
    }

    fn probe(&mut self, answered: u32, rtt: Span) -> Option<DelaySample> {
        let probe = ProbeSample { sent: 4, answered, rtt_min: rtt, rtt_mean: rtt, reflector: 0 };
        self.observe(Vec::new(), Some(probe), Queue::Unknown)
    }

    fn observe(
        &mut self,
        connections: Vec<ConnectionSample>,
        probe: Option<ProbeSample>,
        queue: Queue,
    ) -> Option<DelaySample> {
        self.now = self.now + TICK;
        let (at, interval) = (self.now, TICK);
        let observation = Observation {
            at,
            interval,
            groups: Vec::new(),
            connections,
            probe,
            exact: None,
            beside: Default::default(),
        };
        self.delay.handle_observation(&observation, queue, false)
    }
}

fn connection(id: u64, min_ns: i64, mean_ns: i64) -> ConnectionSample {
    let transit = Some(TransitSample { min_ns, mean_ns, samples: SAMPLES });
    ConnectionSample { id, segments: SAMPLES.into(), transit, ..ConnectionSample::default() }
}

const SAMPLES: u32 = 60;

#[test]
fn a_connection_that_begins_while_a_queue_stands_gets_its_base_from_the_others() {
    let mut link = Link::new();
    assert_eq!(link.steady(&[(1, 100)], Queue::WasEmpty), None);
    assert_eq!(link.steady(&[(1, 120), (2, -480)], Queue::Unknown), Some(20));
    assert_eq!(link.steady(&[(1, 105), (2, -495)], Queue::Unknown), Some(5));
    // The second connection's base is known without the first connection, too.
    assert_eq!(link.steady(&[(2, -492)], Queue::Unknown), Some(8));
}

#[test]
fn of_two_that_begin_while_a_queue_stands_none_knows_it_until_a_drain() {
    let mut link = Link::new();
    assert_eq!(link.steady(&[(1, 120), (2, 620)], Queue::Unknown), None);
    assert_eq!(link.steady(&[(1, 120), (2, 620)], Queue::Unknown), Some(0));
    assert_eq!(link.steady(&[(1, 100), (2, 600)], Queue::Drained), Some(0));
    assert_eq!(link.steady(&[(1, 120), (2, 620)], Queue::Unknown), Some(20));
}

#[test]
fn a_base_that_is_renewed_at_a_drain_follows_drift_but_not_a_queue_that_stays() {
    let mut link = Link::new();
    link.steady(&[(1, 100)], Queue::WasEmpty);
    assert_eq!(link.steady(&[(1, 102)], Queue::Unknown), Some(2));
    link.steady(&[(1, 102)], Queue::Drained);
    assert_eq!(link.steady(&[(1, 102)], Queue::Unknown), Some(0));
    // A queue that other hosts keep full does not empty.
    link.steady(&[(1, 132)], Queue::Drained);
    assert_eq!(link.steady(&[(1, 132)], Queue::Unknown), Some(27));
}

#[test]
fn a_shorter_path_is_followed_at_once() {
    let mut link = Link::new();
    link.steady(&[(1, 100)], Queue::WasEmpty);
    assert_eq!(link.steady(&[(1, 70)], Queue::Unknown), Some(0));
    assert_eq!(link.steady(&[(1, 79)], Queue::Unknown), Some(9));
}

/// Two downloads of 20 and 120 ms, whose packets wait `queue` ms at the ISP, while their acknowledgements wait
/// `uplink` ms: the kernel's RTTs contain both, timestamps the first.
fn round_trips(link: &mut Link, queue: i64, uplink: i64) -> [u64; 2] {
    let paths = [(1, 20), (2, 120)];
    let seen = paths.map(|(id, path)| ConnectionSample {
        rtt: Some(Span::millis((path + queue + uplink) as u64)),
        ..connection(id, queue * MS, queue * MS)
    });
    link.observe(seen.to_vec(), None, Queue::Unknown);
    [1, 2].map(|id| link.delay.rtt_base(id).unwrap().as_nanos() / MS as u64)
}

#[test]
fn what_waits_at_the_uplink_is_added_to_every_base_once_it_lasts_and_taken_off_at_once() {
    let mut link = Link::new();
    link.steady(&[(1, 0), (2, 0)], Queue::WasEmpty);
    for _ in 0..10 {
        assert_eq!(round_trips(&mut link, 0, 0), [20, 120]);
    }
    let doubt = STEADY_NS as u64 / MS as u64;
    for (uplink, queue) in [(150, 5), (150, 0), (80, 6), (150, 5), (0, 5)] {
        for _ in 1..SHIFT_TICKS {
            round_trips(&mut link, queue, uplink);
        }
        for (now, path) in round_trips(&mut link, queue, uplink).into_iter().zip([20, 120]) {
            let exact = (path + uplink) as u64;
            assert!((exact - doubt - 1..=exact + doubt).contains(&now), "{now} of {exact} ms");
        }
    }
}

#[test]
fn what_may_be_the_queue_of_the_download_is_not_added() {
    let mut link = Link::new();
    link.steady(&[(1, 0), (2, 0)], Queue::WasEmpty);
    round_trips(&mut link, 0, 0);
    // A pause ends sooner; if a delay seems steady, the base takes over an eighth of it.
    let [near, far] = round_trips(&mut link, 0, 150);
    assert!((20..=40).contains(&near) && (120..=140).contains(&far), "{near} {far}");
    assert_eq!(round_trips(&mut link, 0, 0), [20, 120]);
    // A queue grows to 60 ms and falls; RTTs differ from path and queue by under half of it.
    for (queue, beyond) in [(20, 8), (40, 15), (60, 25), (60, 0), (20, -8)] {
        let [near, far] = round_trips(&mut link, queue, beyond);
        assert!((20..=25).contains(&near) && (120..=125).contains(&far), "{queue}: {near} {far}");
    }
}

#[test]
fn what_was_no_queue_is_forgotten() {
    let mut link = Link::new();
    link.steady(&[(1, 100)], Queue::WasEmpty);
    assert_eq!(link.steady(&[(1, 130)], Queue::Unknown), Some(30));
    link.delay.forget_transit();
    assert!(link.tick(&[(1, 130 * MS, 130 * MS)], Queue::Unknown).is_none());
    assert_eq!(link.steady(&[(1, 130)], Queue::Unknown), Some(0));
}

#[test]
fn clocks_that_differ_by_100_ppm_make_no_queue() {
    for ppm in [-100, 100] {
        let mut link = Link::new();
        link.steady(&[(1, 100)], Queue::WasEmpty);
        // Ten minutes with a drain every ten seconds.
        for tick in 1..=3_000 {
            let transit = 100 * MS + tick * TICK.as_nanos() as i64 * ppm / 1_000_000;
            let queue = if tick % 50 == 0 { Queue::Drained } else { Queue::Unknown };
            let delay = link.tick(&[(1, transit, transit)], queue).unwrap();
            assert!(delay.least <= Span::millis(1), "{ppm} ppm, tick {tick}: {delay:?}");
        }
    }
}

#[test]
fn clocks_that_run_slow_do_not_hide_a_queue_for_longer_than_to_the_next_drain() {
    let mut link = Link::new();
    link.steady(&[(1, 100)], Queue::WasEmpty);
    let transit = |tick: i64| 100 * MS - tick * TICK.as_nanos() as i64 / 10_000;
    for tick in 1..50 {
        let with_queue = transit(tick) + 6 * MS;
        let delay = link.tick(&[(1, with_queue, with_queue)], Queue::Unknown).unwrap();
        assert!(delay.least >= Span::millis(5), "tick {tick}: {delay:?}");
    }
}

#[test]
fn a_connection_with_a_queue_of_its_own_does_not_decide() {
    let mut link = Link::new();
    link.steady(&[(1, 100), (2, 200), (3, 300)], Queue::WasEmpty);
    let seen = [(1, 102 * MS, 103 * MS), (2, 203 * MS, 204 * MS), (3, 380 * MS, 390 * MS)];
    let delay = link.tick(&seen, Queue::Unknown).unwrap();
    assert_eq!(delay.least, Span::millis(2));
    assert!(delay.value < Span::millis(5), "{delay:?}");
    let own = |id| link.delay.own_queue(id);
    assert!(own(1) == Span::ZERO && own(3) > Span::millis(80), "{} {}", own(1), own(3));
    // The own queue of a connection without a base is unknown.
    assert_eq!(link.delay.own_queue(4), Span::ZERO);
}

#[test]
fn a_probe_that_is_not_answered_says_nothing_and_is_no_base() {
    let mut link = Link::new();
    assert_eq!(link.probe(0, Span::ZERO), None);
    assert_eq!(link.probe(4, Span::millis(20)).unwrap().least, Span::ZERO);
    assert_eq!(
        link.probe(0, Span::ZERO).map(|delay| delay.samples),
        Some(0),
        "the last one stands"
    );
    let delay = link.probe(2, Span::millis(35)).unwrap();
    assert_eq!((delay.least, delay.source), (Span::millis(15), DelaySource::Probe));
}

#[test]
fn another_reflector_has_a_base_of_its_own() {
    let mut link = Link::new();
    link.probe(4, Span::millis(20));
    let rtt = Span::millis(50);
    let another = ProbeSample { sent: 4, answered: 4, rtt_min: rtt, rtt_mean: rtt, reflector: 1 };
    let delay = link.observe(Vec::new(), Some(another), Queue::Unknown);
    assert_eq!(delay.map(|delay| delay.least), Some(Span::ZERO));
}

#[test]
fn a_longer_path_of_the_probe_is_its_base_in_the_end() {
    let mut link = Link::new();
    link.probe(4, Span::millis(20));
    let age = PROBE_BASE_AGE_MAX.as_nanos() / TICK.as_nanos();
    let mut last = None;
    for _ in 0..2 * age + 10 {
        last = link.probe(4, Span::millis(50));
    }
    assert_eq!(last.unwrap().least, Span::ZERO);
}

#[test]
fn a_connection_that_was_away_for_a_minute_is_new() {
    let mut link = Link::new();
    link.steady(&[(1, 100), (2, 100)], Queue::WasEmpty);
    for _ in 0..310 {
        link.steady(&[(1, 100)], Queue::Unknown);
    }
    assert!(!link.delay.connections.contains_key(&2));
}

#[test]
fn the_rtt_without_the_queue_is_found_below_a_steady_queue() {
    let mut link = Link::new();
    let rtt = |ms| Some(Span::millis(ms));
    let sample = |ms, transit_ms: i64| ConnectionSample {
        rtt: rtt(ms),
        ..connection(1, transit_ms * MS, transit_ms * MS + STAMP_ROUNDING)
    };
    link.observe(vec![sample(40, 100)], None, Queue::WasEmpty);
    for _ in 0..600 {
        link.observe(vec![sample(45, 105)], None, Queue::Unknown);
    }
    let base = link.delay.rtt_base(1).unwrap();
    assert!((39..=41).contains(&(base.as_millis_f64().round() as i64)), "{base}");
}

/// A link with one connection whose base is known.
fn settled() -> Link {
    let mut link = Link::new();
    link.steady(&[(1, 100)], Queue::WasEmpty);
    link.steady(&[(1, 100)], Queue::WasEmpty);
    link
}

#[test]
fn a_spread_that_lasts_is_noise_and_not_part_of_the_queue() {
    let mut link = settled();
    // The least is the base, the mean 10 ms beyond.
    let seen = [(1, 100 * MS, 110 * MS + STAMP_ROUNDING)];
    let first = link.tick(&seen, Queue::Unknown).unwrap();
    assert_eq!((first.noise, first.value), (Span::ZERO, Span::millis(10)));
    let mut last = first;
    for _ in 0..NOISE_TICKS {
        last = link.tick(&seen, Queue::Unknown).unwrap();
    }
    // Except for the part that bursts of senders explain.
    let bursts = Span::nanos(BURSTS_NS as u64);
    assert_eq!((last.noise, last.value), (Span::nanos((10 * MS - BURSTS_NS) as u64), bursts));
    assert_eq!(last.least, Span::ZERO);
    // A queue beneath it shows in full.
    let queued = [(1, 120 * MS, 130 * MS + STAMP_ROUNDING)];
    let queued = link.tick(&queued, Queue::Unknown).unwrap();
    assert_eq!((queued.least, queued.value), (Span::millis(20), Span::millis(20) + bursts));
    // The path has become quiet.
    for _ in 0..NOISE_TICKS {
        last = link.tick(&[(1, 100 * MS, 100 * MS)], Queue::Unknown).unwrap();
    }
    assert_eq!(last.noise, Span::ZERO);
}

#[test]
fn a_queue_that_changes_within_some_intervals_is_no_noise() {
    let mut link = settled();
    // In every third interval the queue grows from nothing, otherwise it stays constant.
    for tick in 0..60 {
        let grows = tick % 3 == 0;
        let least = if grows { 100 * MS } else { 120 * MS };
        let mean = if grows { 110 * MS } else { 120 * MS };
        let delay = link.tick(&[(1, least, mean + STAMP_ROUNDING)], Queue::Unknown).unwrap();
        assert_eq!(delay.noise, Span::ZERO, "tick {tick}");
    }
    // One interval in which the queue grows to half a second.
    let mut link = settled();
    link.tick(&[(1, 100 * MS, 350 * MS)], Queue::Unknown);
    for tick in 0..NOISE_TICKS {
        let delay = link.tick(&[(1, 100 * MS, 100 * MS)], Queue::Unknown).unwrap();
        assert_eq!(delay.noise, Span::ZERO, "tick {tick}");
    }
}

#[test]
fn no_spread_makes_more_noise_than_a_queue_that_changes() {
    let mut link = settled();
    for _ in 0..2 * NOISE_TICKS {
        let delay = link.tick(&[(1, 100 * MS, 3_000 * MS)], Queue::Unknown).unwrap();
        assert!(delay.noise <= Span::nanos(NOISE_MAX as u64), "{delay:?}");
    }
}

#[test]
fn one_answer_of_a_probe_settles_no_base() {
    let begun_beside = |answered| {
        let mut link = Link::new();
        link.probe(4, Span::millis(20));
        // No queue by the probe, but the connection's packets waited for 15 ms.
        let rtt = Span::millis(20);
        let probe = ProbeSample { sent: 4, answered, rtt_min: rtt, rtt_mean: rtt, reflector: 0 };
        for _ in 0..2 {
            link.observe(vec![connection(1, 115 * MS, 115 * MS)], Some(probe), Queue::Unknown);
        }
        link.delay.is_unsettled(link.now)
    };
    assert!(begun_beside(1), "one answer says nothing of the least of an interval");
    assert!(!begun_beside(BASE_SAMPLES_MIN));
}

#[test]
fn the_last_answer_of_a_probe_stands_for_a_second_where_no_timestamps_tell_more() {
    let mut link = Link::new();
    link.probe(1, Span::millis(20));
    link.probe(1, Span::millis(29));
    for _ in 0..6 {
        let stands = link.observe(Vec::new(), None, Queue::Unknown).unwrap();
        assert_eq!((stands.source, stands.samples), (DelaySource::Probe, 0));
        assert_eq!((stands.least, stands.value), (Span::millis(9), Span::millis(9)));
    }
    assert_eq!(link.observe(Vec::new(), None, Queue::Unknown), None, "it is too old");
    link.steady(&[(1, 100)], Queue::WasEmpty);
    link.steady(&[(1, 100)], Queue::WasEmpty);
    link.probe(1, Span::millis(29));
    assert_eq!(link.observe(Vec::new(), None, Queue::Unknown), None, "there are timestamps");
}

#[test]
fn without_timestamps_the_rtt_without_the_queue_is_the_least_of_what_was_sent() {
    let mut link = Link::new();
    // If a window was narrowed, the receiver takes the rest of the window for a whole one.
    let rtt = |ms| Some(Span::millis(ms));
    let sample = |id, transit| ConnectionSample {
        rtt: rtt(1),
        rtt_sent: rtt(40),
        transit,
        ..connection(id, 0, 0)
    };
    let transit = Some(TransitSample { min_ns: 0, mean_ns: 0, samples: SAMPLES });
    link.observe(vec![sample(1, None), sample(2, transit)], None, Queue::Unknown);
    assert_eq!(link.delay.rtt_base(1), rtt(40));
    assert_eq!(link.delay.rtt_base(2), rtt(1), "its RTT is measured by timestamps");
}

#[test]
fn a_server_that_opens_late_has_a_wide_window_for_some_seconds_only() {
    let mut link = Link::new();
    link.probe(1, Span::millis(20));
    // 250 kB arrive in 200 ms, so a window takes 45 ms, of which 5 ms are the queue.
    let (received, advertised) = (Bytes::new(250_000), Bytes::new(56_250));
    let (segments, rtt_sent) = (170, Some(Span::millis(400)));
    let late = ConnectionSample { segments, received, advertised, rtt_sent, ..Default::default() };
    let rtt = Span::millis(25);
    let answer = ProbeSample { sent: 1, answered: 1, rtt_min: rtt, rtt_mean: rtt, reflector: 0 };
    let mut bases = (0..150).map(|tick| {
        let probe = (tick % 5 == 0).then_some(answer);
        link.observe(vec![late], probe, Queue::Unknown);
        link.delay.rtt_base(0).unwrap()
    });
    assert_eq!(bases.next(), Some(Span::millis(400)));
    let after_10_s = bases.nth(48).unwrap();
    assert!(after_10_s < Span::millis(80), "{after_10_s}");
    let last = bases.last().unwrap();
    assert!(Span::millis(39) < last && last < Span::millis(42), "{last}");
}

#[test]
fn rtts_of_groups_that_wait_in_their_class_are_left_out() {
    // Two connections without timestamps; the class of the second delays it by 80 ms.
    let tick = |link: &mut Link, second_ms: u64, backlog: u64, drops: u64| {
        link.now = link.now + TICK;
        let sample = |group: usize, ms| ConnectionSample {
            id: group as u64,
            group,
            segments: SAMPLES.into(),
            rtt: Some(Span::millis(ms)),
            ..ConnectionSample::default()
        };
        let held = GroupSample { backlog: Bytes::new(backlog), drops, ..GroupSample::default() };
        let observation = Observation {
            at: link.now,
            interval: TICK,
            groups: vec![GroupSample::default(), held],
            connections: vec![sample(0, 40), sample(1, second_ms)],
            probe: None,
            exact: None,
            beside: Default::default(),
        };
        link.delay.handle_observation(&observation, Queue::Unknown, false)
    };
    for (backlog, drops, samples) in [(0, 0, 2), (9_000, 0, 1), (0, 3, 1)] {
        let mut link = Link::new();
        for _ in 0..3 {
            tick(&mut link, 40, 0, 0);
        }
        let delay = tick(&mut link, 120, backlog, drops).unwrap();
        assert_eq!((delay.source, delay.samples), (DelaySource::ReceiverRtt, samples));
        let shows_class = delay.value > Span::millis(40);
        assert_eq!(shows_class, samples == 2, "{delay:?}");
    }
}

proptest! {
    #[test]
    fn no_delays_however_wild_make_it_fail(
        ticks in prop::collection::vec(
            (
                prop::collection::btree_map(
                    0u64..4,
                    (-1_000_000_000_000_000i64..1_000_000_000_000_000, 0i64..10_000_000_000, 1u32..100),
                    0..4,
                ),
                prop::option::of((0u32..9, 0u64..5_000)),
                prop::option::of(0u64..100_000),
                0u8..3,
            ),
            1..40,
        )
    ) {
        let mut link = Link::new();
        for (connections, probe, rtt, queue) in ticks {
            let connections = connections.into_iter().map(|(id, (min_ns, more, samples))| {
                let transit = TransitSample { min_ns, mean_ns: min_ns + more, samples };
                // Every second connection has no timestamps.
                let transit = (id % 2 == 0).then_some(transit);
                let rtt = rtt.map(Span::millis);
                let rtt_sent = rtt.map(|rtt| rtt * (min_ns.unsigned_abs() % 1_000));
                let (received, advertised) = (Bytes::new(samples.into()), Bytes::new(more as u64));
                ConnectionSample {
                    transit, rtt, rtt_sent, received, advertised, ..connection(id, 0, 0)
                }
            });
            let probe = probe.map(|(answered, ms)| {
                let rtt = Span::millis(if answered == 0 { 0 } else { ms });
                ProbeSample { sent: 8, answered, rtt_min: rtt, rtt_mean: rtt, reflector: 0 }
            });
            let queue = [Queue::Unknown, Queue::WasEmpty, Queue::Drained][usize::from(queue)];
            if let Some(delay) = link.observe(connections.collect(), probe, queue) {
                let is_measured = delay.samples > 0 || delay.source == DelaySource::Probe;
                prop_assert!(delay.least <= delay.value && is_measured, "{delay:?}");
            }
        }
    }
}

#[test]
fn one_liar_among_three_neither_hides_a_queue_nor_makes_one() {
    // The liar says that the queue is `told`; the honest ones see 20 ms, then 1 ms.
    for told in [-3_000, -50, 0, 200, 3_000, 3_000_000] {
        let mut link = Link::new();
        link.steady(&[(1, 100), (2, -500), (3, 700)], Queue::WasEmpty);
        link.steady(&[(1, 100), (2, -500), (3, 700)], Queue::WasEmpty);
        let seen = |honest: i64| [(1, 100 + honest), (2, -500 + honest), (3, 700 + told)];
        for honest in [20, 1] {
            for _ in 0..5 {
                let seen = seen(honest).map(|(id, ms)| (id, ms * MS, ms * MS));
                let delay = link.tick(&seen, Queue::Unknown).unwrap();
                let least = delay.least.as_nanos() as i64 / MS;
                // One millisecond is too little to tell a liar from noise.
                let is_right = least == honest || (honest == 1 && least == 0);
                assert!(is_right, "told {told}, {honest}: {delay:?}");
                let mean = delay.value.as_nanos() as i64 / MS;
                assert!((mean - honest).abs() <= 1, "told {told}, {honest}: {delay:?}");
            }
        }
    }
}

#[test]
fn the_weight_of_a_liar_with_most_of_the_packets_does_not_make_it_a_majority() {
    let mut link = Link::new();
    let base = [(1, 100 * MS, 100 * MS), (2, 100 * MS, 100 * MS), (3, 100 * MS, 100 * MS)];
    for _ in 0..2 {
        link.tick(&base, Queue::WasEmpty);
    }
    let mut seen: Vec<_> =
        base.iter().map(|&(id, ..)| connection(id, 110 * MS, 110 * MS)).collect();
    let told = TransitSample { min_ns: 400 * MS, mean_ns: 400 * MS, samples: 20 * SAMPLES };
    seen[2].transit = Some(told);
    let delay = link.observe(seen, None, Queue::Unknown).unwrap();
    assert_eq!(delay.least, Span::millis(10));
    assert!(delay.value < Span::millis(11), "{delay:?}");
    assert_eq!(delay.sources, 3);
}

#[test]
fn a_clock_that_jumps_is_no_queue() {
    let day = 24 * 3_600 * 1_000;
    for jump in [5_000, day, -5_000, -day] {
        let mut link = Link::new();
        for _ in 0..2 {
            link.steady(&[(1, 100)], Queue::WasEmpty);
        }
        assert_eq!(link.steady(&[(1, 110)], Queue::Unknown), Some(10));
        // A single stamp within an interval.
        let (min, mean) = (jump.min(110) * MS, (jump + 59 * 110) / 60 * MS);
        let delay = link.tick(&[(1, min, mean)], Queue::Unknown);
        assert!(delay.is_none_or(|d| d.value <= Span::secs(4)), "{jump}: {delay:?}");
        // A jump that lasts.
        for _ in 0..3 {
            let delay = link.steady(&[(1, 110 + jump)], Queue::Unknown);
            assert!(delay.is_none_or(|least| least <= 4_000), "{jump}: {delay:?}");
        }
    }
}

#[test]
fn a_reflector_that_delays_its_answers_does_not_count_beside_connections() {
    let mut link = Link::new();
    let answers = |ms| {
        let rtt = Span::millis(ms);
        Some(ProbeSample { sent: 4, answered: 4, rtt_min: rtt, rtt_mean: rtt, reflector: 0 })
    };
    for _ in 0..2 {
        link.observe(vec![connection(1, 0, 0)], answers(10), Queue::WasEmpty);
    }
    let delay = link.observe(vec![connection(1, 0, 0)], answers(500), Queue::Unknown).unwrap();
    assert_eq!((delay.source, delay.least), (DelaySource::Timestamps, Span::ZERO));
    // A single source still counts, as one source.
    let delay = link.probe(4, Span::millis(500)).unwrap();
    assert_eq!((delay.least, delay.sources), (Span::millis(490), 1));
}

#[test]
fn a_flood_of_connections_does_not_fill_the_memory() {
    let mut link = Link::new();
    for tick in 0..20_u64 {
        let many = CONNECTIONS_MAX as u64;
        let seen = (0..many).map(|i| connection(tick * many + i + 1, 0, 0));
        link.observe(seen.collect(), None, Queue::Unknown);
        assert!(link.delay.connections.len() <= BASES_MAX, "{tick}");
    }
}
