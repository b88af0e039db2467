//! Whether two connections share a bottleneck, judged by delays and losses that coincide.
//!
//! Problem: a stunt that reduces its window at another bottleneck gives up its rate for nothing. Method:
//! for each interval the mean round-trip time of a connection is kept, and whether it had a signal. After
//! [`BLOCK`], the correlation of the round-trip times of a free connection and of a stunt is compared with
//! the correlation expected if both passed the same queue, given the noise of each. Noise changes from one
//! interval to the next and a queue does not, so the part that one interval has in common with the next
//! shows how much is noise. Signals in the same intervals, beyond chance, count too. The differences are
//! summed within bounds on both sides (a CUSUM): at one bound the two are *apart*, and they are together
//! again when the sum is back at its middle. Without usable intervals nothing changes.
//!
//! Measurements: `docs/research/papers/free-and-stunts.md`, *apart*.

use super::sample::Sample;
use super::{MemberId, Tally};
use crate::units::{Span, Time};

/// The time that is judged at once. In less time the correlation of two unrelated queues is often high
/// by chance.
const BLOCK: Span = Span::secs(10);
/// The most intervals that are kept.
const TICKS_MAX: usize = 128;
/// The fewest intervals that are judged.
const TICKS_MIN: usize = 20;
/// With a smaller window a receiver delays ACKs, and round-trip times show that rather than queues.
const WINDOW_LEAST: u32 = 4;
/// Round-trip times with a smaller standard deviation, in milliseconds, say nothing about a queue.
const SPREAD_LEAST_MS: f64 = 1.0;
/// Least correlation of connections that share a bottleneck.
const SHARED_LEAST: f64 = 0.15;
/// Part of the correlation that noise permits which connections at one bottleneck must reach.
const SHARED_PART: f64 = 0.5;
/// Weight of signals at the same time, in standard deviations of chance, and the range of these.
const SIGNALS_PART: f64 = 0.1;
const SIGNALS_FEWER: f64 = -2.0;
const SIGNALS_MORE: f64 = 4.0;
/// Bound of a sum. Shared bottlenecks came to -0.1 in 200 pairs of 400 s, others to this bound in 25 to 90 s.
const SUM_END: f64 = 0.6;

/// What a connection saw in one interval.
#[derive(Clone, Copy, Debug, Default)]
struct Tick {
    /// The mean round-trip time in milliseconds, if it can be used.
    delay_ms: Option<f32>,
    had_signal: bool,
}

/// What a connection has seen since the block began.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    ticks: Vec<Tick>,
    rtts: Option<(Span, u64)>,
    signals: u64,
}

/// The current block, and its intervals so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    since: Option<Time>,
    ticks: usize,
}

/// Whether a stunt shares the bottleneck of a free connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) free: MemberId,
    sum: f64,
    pub(super) is_apart: bool,
}

impl Block {
    /// An interval is over; returns its number in the block, and whether the block is over.
    pub(super) fn handle_tick(&mut self, now: Time) -> (usize, bool) {
        let since = *self.since.get_or_insert(now);
        let nth = self.ticks;
        let is_over = now.since(since) >= BLOCK || nth + 1 == TICKS_MAX;
        *self = match is_over {
            true => Block { since: Some(now), ticks: 0 },
            false => Block { since: Some(since), ticks: nth + 1 },
        };
        (nth, is_over)
    }
}

impl Seen {
    /// The `nth` interval of the block is over.
    pub(super) fn handle_tick(&mut self, nth: usize, sample: &Sample, tally: Tally) {
        let now = (sample.rtts, sample.rtt_count);
        let before = self.rtts.replace(now).unwrap_or(now);
        let count = now.1.saturating_sub(before.1);
        let is_telling = count > 0 && sample.cwnd >= WINDOW_LEAST;
        let sum = Span::nanos(now.0.as_nanos().saturating_sub(before.0.as_nanos()));
        let delay_ms = is_telling.then(|| (sum / count).as_millis_f64() as f32);
        let had_signal = tally.signals > self.signals;
        self.signals = tally.signals;
        // A connection that joined later, or had no ACK for some time, has no data for the intervals before.
        self.ticks.resize(nth, Tick::default());
        self.ticks.push(Tick { delay_ms, had_signal });
    }

    /// The next block begins.
    pub(super) fn clear(&mut self) {
        self.ticks.clear();
    }
}

impl Pair {
    /// A pair about which nothing is known.
    pub(super) fn new(free: MemberId) -> Pair {
        Pair { free, sum: 0.0, is_apart: false }
    }

    /// A block is over.
    pub(super) fn handle_block(&mut self, free: &Seen, stunt: &Seen) {
        let Some(more) = more_than_expected(free, stunt) else { return };
        self.sum = (self.sum + more).clamp(-SUM_END, SUM_END);
        self.is_apart = self.sum <= -SUM_END || (self.is_apart && self.sum < 0.0);
    }
}

/// By how much what the two have in common exceeds half of what they would have at one queue; `None` if
/// that cannot be judged.
fn more_than_expected(free: &Seen, stunt: &Seen) -> Option<f64> {
    let ticks = || free.ticks.iter().zip(&stunt.ticks);
    let delays =
        ticks().filter_map(|(f, s)| Some((f64::from(f.delay_ms?), f64::from(s.delay_ms?))));
    let (of_free, of_stunt): (Vec<f64>, Vec<f64>) = delays.unzip();
    if of_free.len() < TICKS_MIN.max(free.ticks.len() / 2) {
        return None;
    }
    let (of_free, of_stunt) = (centred(of_free), centred(of_stunt));
    let [spread_free, spread_stunt] = [&of_free, &of_stunt].map(|x| spread(x));
    if spread_free < SPREAD_LEAST_MS {
        return None;
    }
    let (likeness, lasting) = match spread_stunt < SPREAD_LEAST_MS {
        // The stunt sees nothing of the free connection's queue.
        true => (0.0, 0.0),
        false => {
            let covariance = product(&of_free, &of_stunt) / of_free.len() as f64;
            let lasting =
                [(&of_free, spread_free), (&of_stunt, spread_stunt)].map(|(x, spread)| {
                    let with_next = product(x, &x[1..]) / x.len() as f64;
                    (with_next / (spread * spread)).max(0.0)
                });
            (covariance / (spread_free * spread_stunt), (lasting[0] * lasting[1]).sqrt())
        }
    };
    let expected = (SHARED_PART * lasting).max(SHARED_LEAST);
    Some(likeness - expected + SIGNALS_PART * common_signals(free, stunt))
}

/// By how many standard deviations more signals of the free connection than by chance coincide with a
/// signal of the stunt in the same or an adjacent interval.
fn common_signals(free: &Seen, stunt: &Seen) -> f64 {
    let length = free.ticks.len().min(stunt.ticks.len());
    let is_near = |at: usize| {
        let from = at.saturating_sub(1);
        stunt.ticks[from..(at + 2).min(length)].iter().any(|tick| tick.had_signal)
    };
    let near = (0..length).filter(|at| is_near(*at)).count() as f64 / length.max(1) as f64;
    let signals = || (0..length).filter(|at| free.ticks[*at].had_signal);
    let both = signals().filter(|at| is_near(*at)).count() as f64;
    let by_chance = signals().count() as f64 * near;
    // One is added so that a few signals have little weight.
    let deviation = (by_chance * (1.0 - near) + 1.0).sqrt();
    ((both - by_chance) / deviation).clamp(SIGNALS_FEWER, SIGNALS_MORE)
}

fn centred(mut values: Vec<f64>) -> Vec<f64> {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    values.iter_mut().for_each(|value| *value -= mean);
    values
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn spread(centred: &[f64]) -> f64 {
    (product(centred, centred) / centred.len().max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::Bytes;

    fn random(state: &mut u64) -> f64 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A queue in milliseconds: it fills, and is halved when it is full.
    struct Queue {
        ms: f64,
        full_ms: f64,
        rise_ms: f64,
    }

    impl Queue {
        fn new(state: &mut u64) -> Queue {
            let full_ms = 20.0 + 80.0 * random(state);
            Queue {
                ms: full_ms * random(state),
                full_ms,
                rise_ms: full_ms / (10.0 + 30.0 * random(state)),
            }
        }

        /// Advances the queue by one step; returns whether a packet is lost.
        fn step(&mut self, state: &mut u64) -> bool {
            self.ms += self.rise_ms * 2.0 * random(state);
            let is_full = self.ms > self.full_ms;
            if is_full {
                self.ms *= 0.3 + 0.4 * random(state);
            }
            is_full
        }
    }

    /// Plays blocks of a connection at one queue and of another one at the same or at its own.
    fn play(seed: u64, blocks: usize, noise: f64, is_shared: bool) -> Vec<Pair> {
        let mut state = seed;
        let mut queues = [Queue::new(&mut state), Queue::new(&mut state)];
        let mut pair = Pair::new(MemberId(0));
        let (mut free, mut stunt) = (Seen::default(), Seen::default());
        let mut pairs = Vec::new();
        for _ in 0..blocks {
            for _ in 0..100 {
                let lost = queues.each_mut().map(|queue| queue.step(&mut state));
                for (seen, nth) in [(&mut free, 0), (&mut stunt, usize::from(!is_shared))] {
                    let noise_ms = noise * queues[nth].full_ms * (random(&mut state) - 0.5);
                    let delay_ms = Some((20.0 + queues[nth].ms + noise_ms) as f32);
                    seen.ticks
                        .push(Tick { delay_ms, had_signal: lost[nth] && random(&mut state) < 0.5 });
                }
            }
            pair.handle_block(&free, &stunt);
            free.clear();
            stunt.clear();
            pairs.push(pair);
        }
        pairs
    }

    proptest! {
        #[test]
        fn those_at_one_queue_are_never_apart(seed: u64, noise in 0.0..1.0) {
            prop_assert!(play(seed, 30, noise, true).iter().all(|pair| !pair.is_apart));
        }

        #[test]
        fn those_at_two_queues_are_apart_in_time(seed: u64, noise in 0.0..1.0) {
            let pairs = play(seed, 60, noise, false);
            prop_assert!(pairs.iter().any(|pair| pair.is_apart));
        }
    }

    #[test]
    fn a_connection_that_sees_nothing_of_the_queue_is_apart_and_one_without_intervals_is_not() {
        let mut state = 1;
        let mut queue = Queue::new(&mut state);
        let mut seen = |is_flat: bool, is_silent: bool| {
            let mut seen = Seen::default();
            for _ in 0..100 {
                queue.step(&mut state);
                let delay_ms = if is_flat { 20.0 } else { 20.0 + queue.ms as f32 };
                let delay_ms = (!is_silent).then_some(delay_ms);
                seen.ticks.push(Tick { delay_ms, had_signal: false });
            }
            seen
        };
        let (free, flat, silent) = (seen(false, false), seen(true, false), seen(false, true));
        let judge = |free: &Seen, stunt: &Seen| {
            let mut pair = Pair::new(MemberId(0));
            (0..60).for_each(|_| pair.handle_block(free, stunt));
            pair
        };
        assert!(judge(&free, &flat).is_apart, "a stunt without any queue");
        assert!(!judge(&free, &silent).is_apart, "a stunt that sends nothing");
        assert!(!judge(&flat, &free).is_apart, "a free connection whose losses come without delay");
        let mut pair = judge(&free, &flat);
        pair.handle_block(&free, &free);
        assert!(!pair.is_apart, "the path has changed: together again");
    }

    #[test]
    fn small_windows_and_late_ones_say_nothing() {
        let sample = |cwnd: u32, n: u64| Sample {
            cwnd,
            cwnd_cut: cwnd / 2,
            packet: Bytes::new(1_500),
            rtt: Span::millis(50),
            rtts: Span::millis(50) * n,
            rtt_count: n,
            delivered: Bytes::ZERO,
            phase: super::super::Phase::Avoidance,
        };
        let mut seen = Seen::default();
        let tally = |signals: u64| Tally { signals, ..Tally::default() };
        seen.handle_tick(3, &sample(10, 5), tally(0));
        seen.handle_tick(4, &sample(10, 9), tally(1));
        seen.handle_tick(5, &sample(3, 12), tally(1));
        seen.handle_tick(6, &sample(10, 12), tally(1));
        let delays: Vec<_> = seen.ticks.iter().map(|tick| tick.delay_ms).collect();
        assert_eq!(delays, [None, None, None, None, Some(50.0), None, None]);
        assert!(seen.ticks[4].had_signal && !seen.ticks[5].had_signal);
    }
}
