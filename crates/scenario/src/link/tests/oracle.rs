//! Compares the link with what theory says about it.

use super::*;

/// Generalised processor sharing: every class with waiting packets is served at once, at rates by
/// weight. Source: Parekh and Gallager, IEEE/ACM ToN 1(3), 1993.
struct Fluid {
    weights: Vec<f64>,
    bytes_per_ns: f64,
    backlogs: Vec<f64>,
    served: Vec<f64>,
    clock_ns: f64,
}

impl Fluid {
    fn new(rate: Rate, weights: &[u32]) -> Fluid {
        let zeros = vec![0.0; weights.len()];
        Fluid {
            weights: weights.iter().map(|&w| f64::from(w)).collect(),
            bytes_per_ns: rate.as_bps() as f64 / 8e9,
            backlogs: zeros.clone(),
            served: zeros,
            clock_ns: 0.0,
        }
    }

    fn advance(&mut self, now: Time) {
        let now_ns = now.as_nanos() as f64;
        while self.clock_ns < now_ns {
            let is_busy = |i: &usize| self.backlogs[*i] > 1e-9;
            let busy: Vec<usize> = (0..self.weights.len()).filter(is_busy).collect();
            let weights: f64 = busy.iter().map(|&i| self.weights[i]).sum();
            let rate = |i: usize| self.bytes_per_ns * self.weights[i] / weights;
            let empty_ns = busy.iter().map(|&i| self.backlogs[i] / rate(i));
            let step_ns = empty_ns.fold(now_ns - self.clock_ns, f64::min);
            for &i in &busy {
                let volume = (rate(i) * step_ns).min(self.backlogs[i]);
                self.backlogs[i] -= volume;
                self.served[i] += volume;
            }
            self.clock_ns += step_ns.max(1e-3);
        }
    }
}

/// How far each class falls behind the fluid and how far it gets ahead at most, in bytes.
fn off_the_fluid(
    queue: Discipline,
    rate: Rate,
    weights: &[u32],
    arrivals: &[(u64, usize, u64)],
) -> Vec<(f64, f64)> {
    let buffer = Buffer::Packets(u32::MAX);
    let played = play(spec(rate, buffer, queue, weights), arrivals, 1);
    let mut fluid = Fluid::new(rate, weights);
    let (mut arrived, mut next) = (Time::ZERO, arrivals.iter());
    let mut coming = next.next();
    let mut served = vec![0.0; weights.len()];
    let mut off = vec![(0f64, 0f64); weights.len()];
    for d in &played.departures {
        while let Some(&(gap, class, size)) = coming {
            if arrived + Span::micros(gap) > d.at {
                break;
            }
            arrived = arrived + Span::micros(gap);
            fluid.advance(arrived);
            fluid.backlogs[class] += size as f64;
            coming = next.next();
        }
        fluid.advance(d.at);
        // A class is furthest behind just before a packet counts, and furthest ahead just after it.
        for (i, off) in off.iter_mut().enumerate() {
            off.0 = off.0.max(fluid.served[i] - served[i]);
        }
        let class = d.packet.class;
        served[class] += d.packet.size.as_u64() as f64;
        off[class].1 = off[class].1.max(served[class] - fluid.served[class]);
    }
    off
}

const FULL: f64 = 1_514.0;

/// Bytes that a class may send per round under DRR.
fn quantum(weights: &[u32], i: usize) -> f64 {
    let lightest = weights.iter().min().unwrap();
    FULL * f64::from(weights[i]) / f64::from(*lightest)
}

const CLASSES: usize = 5;

fn weights() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(1u32..20, CLASSES)
}

/// Bursts and rests, at about 8 Mbit/s.
fn load() -> impl Strategy<Value = Vec<(u64, usize, u64)>> {
    let gap = prop_oneof![3 => 0u64..50, 2 => 0u64..2_000, 1 => 0u64..5_000];
    let size = prop_oneof![Just(1_514u64), 60u64..1_515];
    proptest::collection::vec((gap, 0..CLASSES, size), 1..400)
}

proptest! {
    #[test]
    fn wfq_keeps_to_the_fluid_within_a_packet_of_each_class_and_one_more(
        arrivals in load(), weights in weights(), mbit in 2u64..16,
    ) {
        let bound = FULL * (CLASSES + 1) as f64;
        for (behind, ahead) in off_the_fluid(Discipline::Wfq, Rate::mbit(mbit), &weights, &arrivals)
        {
            prop_assert!(behind <= bound && ahead <= bound, "{behind} {ahead} {weights:?}");
        }
    }

    #[test]
    fn drr_keeps_to_the_fluid_within_a_round_and_a_packet_of_each_class(
        arrivals in load(), weights in weights(), mbit in 2u64..16,
    ) {
        let bound: f64 = (0..CLASSES).map(|i| quantum(&weights, i) + FULL).sum();
        for (behind, ahead) in off_the_fluid(Discipline::Drr, Rate::mbit(mbit), &weights, &arrivals)
        {
            prop_assert!(behind <= bound && ahead <= bound, "{behind} {ahead} {weights:?}");
        }
    }

    /// A class of weight w gets w / Σ weights of the rate, whatever others do, except for a delay.
    /// For start-time fair queueing this is a full packet of each other class and its own packet at
    /// the link's rate (Goyal, Vin and Cheng, theorem 4); for DRR it is (3 F - 2 φ) / rate with
    /// quanta φ that sum to F (Stiliadis and Varma, IEEE/ACM ToN 6(5), 1998).
    #[test]
    fn every_packet_leaves_when_its_share_of_the_rate_promises(
        arrivals in load(), weights in weights(), mbit in 2u64..16,
    ) {
        let rate = Rate::mbit(mbit);
        let weights_sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
        let ns_per_byte = 8e9 / rate.as_bps() as f64;
        let round: f64 = (0..CLASSES).map(|i| quantum(&weights, i)).sum();
        for queue in [Discipline::Wfq, Discipline::Drr] {
            let played = play(spec(rate, Buffer::Packets(u32::MAX), queue, &weights), &arrivals, 1);
            let mut left_ns = vec![0.0; arrivals.len()];
            for d in &played.departures {
                left_ns[d.packet.body] = d.at.as_nanos() as f64;
            }
            // When a link of the class's own would begin to send, and when it would be free again.
            let (mut now_ns, mut free_ns) = (0.0, vec![0f64; CLASSES]);
            for (&(gap, class, size), left_ns) in arrivals.iter().zip(left_ns) {
                now_ns += gap as f64 * 1e3;
                let begin_ns = free_ns[class].max(now_ns);
                let own_ns = size as f64 * ns_per_byte * weights_sum / f64::from(weights[class]);
                free_ns[class] = begin_ns + own_ns;
                let promised_ns = if queue == Discipline::Wfq {
                    begin_ns + (FULL * (CLASSES - 1) as f64 + size as f64) * ns_per_byte
                } else {
                    let delay = 3.0 * round - 2.0 * quantum(&weights, class);
                    begin_ns + own_ns + delay * ns_per_byte
                };
                prop_assert!(left_ns <= promised_ns + 1e3, "{queue:?} {left_ns} {promised_ns}");
            }
        }
    }

    #[test]
    fn a_shaper_lets_no_more_through_than_its_burst_and_its_rate(
        arrivals in arrivals(), mbit in 1u64..20, line in 1u64..20, burst in 1u64..30_000,
    ) {
        let (rate, line_rate) = (Rate::mbit(mbit), Rate::mbit(mbit * line));
        let steps = vec![RateStep { at: Time::ZERO, rate }];
        let capacity = Capacity::Shaped { steps, burst: Bytes::new(burst), line_rate };
        let mut spec = LinkSpec::fifo(capacity, Buffer::Packets(u32::MAX));
        spec.weights = vec![Weight::ONE; 3];
        let departures = play(spec, &arrivals, 1).departures;
        for (i, first) in departures.iter().enumerate() {
            let mut volume = 0;
            for last in &departures[i + 1..] {
                volume += last.packet.size.as_u64();
                let span = last.at.since(first.at);
                let allowed = burst + (rate * span).as_u64() + 1_514;
                prop_assert!(volume <= allowed, "{volume} {allowed}");
                // Never more than the line carries, and never less than the rate while it is busy.
                prop_assert!(volume <= (line_rate * span).as_u64() + 1_514);
            }
        }
        let mut free_at = Time::ZERO;
        for d in &departures {
            let gaps = arrivals[..=d.packet.body].iter().map(|a| a.0);
            let begin = free_at.max(Time::ZERO + Span::micros(gaps.sum()));
            prop_assert!(d.at <= begin + rate.time_to_send(d.packet.size) + Span::nanos(1));
            free_at = d.at;
        }
    }

    #[test]
    fn a_shaper_without_tokens_is_a_plain_link(
        arrivals in arrivals(), (first, second) in (1u64..30, 1u64..30), step_ms in 1u64..200,
    ) {
        let step = |(at, mbit): (u64, u64)| RateStep { at: ms(at), rate: Rate::mbit(mbit) };
        let steps = vec![step((0, first)), step((step_ms, second))];
        let line_rate = Rate::mbit(first.max(second) * 2);
        let shaped = Capacity::Shaped { steps: steps.clone(), burst: Bytes::ZERO, line_rate };
        let through = |capacity| {
            let spec = LinkSpec::fifo(capacity, Buffer::Bytes(Bytes::kb(20)));
            play(LinkSpec { weights: vec![Weight::ONE; 3], ..spec }, &arrivals, 1).departures
        };
        prop_assert_eq!(through(shaped), through(Capacity::Steps(steps)));
    }

    #[test]
    fn what_leaves_under_a_trace_in_a_window_are_its_opportunities(
        steps in proptest::collection::vec(0u32..30, 1..100),
        (from, to) in (0u64..5_000, 0u64..5_000),
    ) {
        let at_ms = steps.iter().scan(0, |at, step| { *at += step; Some(*at) });
        let text: String = at_ms.map(|at| format!("{at}\n")).chain(["3000\n".into()]).collect();
        let trace: Trace = text.parse().unwrap();
        let capacity = Capacity::Trace(trace.clone());
        let mut link = Link::new(LinkSpec::fifo(capacity, Buffer::Packets(u32::MAX)));
        (0..300).for_each(|i| link.enqueue(Time::ZERO, packet(0, 1_514, i)));
        let out: Vec<Time> =
            std::iter::from_fn(|| link.poll_departure(FOR_EVER)).map(|d| d.at).collect();
        prop_assert_eq!(out.len(), 300);
        let (from, to) = (ms(from.min(to)), ms(from.max(to)));
        let left = |t: Time| out.iter().filter(|at| **at < t).count() as u64;
        let expected = trace.before(to).min(300) - trace.before(from).min(300);
        prop_assert_eq!(left(to) - left(from), expected);
    }
}

#[test]
fn a_burst_leaves_at_the_rate_of_the_line_until_the_tokens_are_gone() {
    let steps = vec![
        RateStep { at: Time::ZERO, rate: Rate::mbit(8) },
        RateStep { at: ms(20), rate: Rate::mbit(4) },
    ];
    let (burst, line_rate) = (Bytes::kb(15), Rate::mbit(80));
    let capacity = Capacity::Shaped { steps, burst, line_rate };
    let mut link = Link::new(LinkSpec::fifo(capacity, Buffer::Packets(1_000)));
    let mut left_at = |at: Time, packets: u64| -> Vec<u64> {
        (0..packets).for_each(|i| link.enqueue(at, packet(0, 1_000, i)));
        let out = std::iter::from_fn(|| link.poll_departure(link.next_departure()?));
        out.map(|d| d.at.since(ms(0)).as_nanos() / 1_000).collect()
    };
    // 0.1 ms each while tokens last: 15 kB, and 1 kB more each ms. So 17 kB have left at 2 ms.
    let out = left_at(ms(0), 20);
    assert_eq!(out[..16], (1..=16).map(|i| i * 100).collect::<Vec<_>>());
    assert_eq!(out[16..], [2_000, 3_000, 4_000, 5_000]);
    // By 10 ms tokens for 5 kB have come in.
    let out = left_at(ms(10), 10);
    assert_eq!(
        out,
        [10_100, 10_200, 10_300, 10_400, 10_500, 11_000, 12_000, 13_000, 14_000, 15_000]
    );
    // From the step on tokens come in half as fast: 5 kB by 20 ms and 5 kB more by 30 ms.
    let out = left_at(ms(30), 12);
    assert_eq!(out[..10], (1..=10).map(|i| 30_000 + i * 100).collect::<Vec<_>>());
    assert_eq!(out[10..], [32_000, 34_000]);
}
