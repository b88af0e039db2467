//! Random delay that a path adds behind a link, and random losses.
//!
//! No packet overtakes another: a delayed packet holds up those behind it. [`Jitter`] is noise;
//! *grants* are the instants of a schedule at which a shared medium (cable, PON, LTE) releases the
//! packets that came since the last one.
//!
//! Losses are single or in bursts. Under Gilbert's model (Bell System Technical Journal 39, 1960)
//! every packet of a burst is lost and no packet between bursts; the length of a burst is geometric.

use fairweir_core::units::{Span, Time};

use crate::random::SplitMix64;

/// Random delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    /// The largest delay it adds, not counting the wait behind a delayed packet.
    pub max: Span,
    /// How many of a million packets are delayed.
    pub part_ppm: u32,
    /// How the delays are distributed.
    pub model: JitterModel,
}

/// How random delays are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JitterModel {
    /// Uniform from zero to the maximum.
    Uniform,
    /// Exponential with a mean of a quarter of the maximum, and cut off at the maximum.
    Exponential,
    /// Packets are held and released together at random moments, as by the aggregation and the
    /// power saving of Wi-Fi; the time between two moments is at most the maximum. The part is the
    /// share of these times in which packets are held.
    Burst,
}

impl Jitter {
    /// No jitter.
    pub const NONE: Jitter = Jitter::uniform(Span::ZERO);

    /// Every packet is delayed by up to `max`.
    pub const fn uniform(max: Span) -> Jitter {
        Jitter { max, part_ppm: MILLION, model: JitterModel::Uniform }
    }
}

/// Arrival times, behind the noise, of packets that have left a link.
///
/// Invariant: arrivals are in order.
#[derive(Clone, Debug)]
pub(super) struct Delays {
    jitter: Jitter,
    /// Time from one grant to the next; zero without grants.
    grant: Span,
    /// Time of the first grant.
    phase: Option<Span>,
    /// The next moment at which held packets are released, and whether packets are held until then.
    moment: Time,
    is_held: bool,
    last: Time,
}

impl Delays {
    pub(super) fn new(jitter: Jitter, grant: Span) -> Delays {
        let (moment, last) = (Time::ZERO, Time::ZERO);
        Delays { jitter, grant, phase: None, moment, is_held: false, last }
    }

    /// Arrival of a packet whose last bit was sent at `end`; not before the last packet's arrival.
    pub(super) fn arrival(&mut self, end: Time, random: &mut SplitMix64) -> Time {
        let Jitter { max, part_ppm, model } = self.jitter;
        let delayed = match model {
            _ if max == Span::ZERO => end,
            JitterModel::Burst => self.let_go(end, random),
            _ if !happens(part_ppm, random) => end,
            JitterModel::Uniform => {
                end + Span::nanos(random.below(max.as_nanos().saturating_add(1)))
            }
            JitterModel::Exponential => {
                let mean = max.as_nanos() as f64 / 4.0;
                let delay = -mean * (1.0 - random.fraction()).ln();
                end + Span::nanos(delay as u64).min(max)
            }
        };
        self.last = self.granted(delayed.max(self.last), random);
        self.last
    }

    fn let_go(&mut self, end: Time, random: &mut SplitMix64) -> Time {
        let max = self.jitter.max;
        // Only the end of a long silence matters.
        let oldest = Time::from_nanos(end.as_nanos().saturating_sub(max.as_nanos()));
        self.moment = self.moment.max(oldest);
        while self.moment < end {
            self.moment = self.moment + Span::nanos(1 + random.below(max.as_nanos()));
            self.is_held = happens(self.jitter.part_ppm, random);
        }
        if self.is_held { self.moment } else { end }
    }

    /// The first grant at or after `at`.
    fn granted(&mut self, at: Time, random: &mut SplitMix64) -> Time {
        let period = self.grant.as_nanos();
        if period == 0 {
            return at;
        }
        let phase = *self.phase.get_or_insert_with(|| Span::nanos(random.below(period)));
        let since = at.since(Time::ZERO + phase).as_nanos();
        Time::ZERO + phase + Span::nanos(since.div_ceil(period).saturating_mul(period))
    }
}

/// Which packets are lost at random.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    /// The probabilities that a packet is lost after one that arrived, and after one that was lost,
    /// as parts of [`CERTAIN`].
    after_arrival: u64,
    after_loss: u64,
    is_lost: bool,
}

impl Losses {
    /// Losses of `ppm` packets in a million, in bursts of the mean length `burst`; 1 means no bursts.
    pub(super) fn new(ppm: u32, burst: u32) -> Losses {
        let (ppm, burst) = (u64::from(ppm), u64::from(burst));
        let all = u64::from(MILLION);
        if burst <= 1 {
            let independent = ppm * (CERTAIN / all);
            return Losses { after_arrival: independent, after_loss: independent, is_lost: false };
        }
        // A burst ends with probability 1 / length; bursts begin as often as the losses require.
        let begins = (u128::from(ppm) * u128::from(CERTAIN))
            .div_ceil((u128::from(burst) * u128::from(all.saturating_sub(ppm))).max(1));
        let after_arrival = begins.min(CERTAIN.into()) as u64;
        Losses { after_arrival, after_loss: CERTAIN - CERTAIN / burst, is_lost: false }
    }

    /// Whether the next packet is lost.
    pub(super) fn strikes(&mut self, random: &mut SplitMix64) -> bool {
        if self.after_arrival == 0 {
            return false;
        }
        let probability = if self.is_lost { self.after_loss } else { self.after_arrival };
        self.is_lost = random.below(CERTAIN) < probability;
        self.is_lost
    }
}

const MILLION: u32 = 1_000_000;
/// The value that stands for probability 1: a million times a million.
const CERTAIN: u64 = 1_000_000_000_000;

/// Whether an event of probability `ppm` happens. Draws no random number if it is certain.
fn happens(ppm: u32, random: &mut SplitMix64) -> bool {
    ppm >= MILLION || random.below(MILLION.into()) < ppm.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: Span = Span::millis(20);

    /// Delays of packets whose last bits are sent every `gap`.
    fn delays(jitter: Jitter, grant: Span, gap: Span, count: u64) -> Vec<Span> {
        let mut delays = Delays::new(jitter, grant);
        let mut random = SplitMix64::new(11);
        let end = |i: u64| Time::ZERO + gap * i;
        (0..count).map(|i| delays.arrival(end(i), &mut random).since(end(i))).collect()
    }

    fn mean_ms(delays: &[Span]) -> f64 {
        delays.iter().map(|d| d.as_millis_f64()).sum::<f64>() / delays.len() as f64
    }

    #[test]
    fn packets_far_apart_are_delayed_as_the_distribution_says() {
        let apart = Span::millis(500);
        for (model, part_ppm, expected) in [
            (JitterModel::Uniform, MILLION, 10.0),
            (JitterModel::Uniform, 250_000, 2.5),
            // Cut off at four means: 5 ms · (1 - e^-4).
            (JitterModel::Exponential, MILLION, 4.908),
            (JitterModel::Exponential, 500_000, 2.454),
        ] {
            let delays = delays(Jitter { max: MAX, part_ppm, model }, Span::ZERO, apart, 40_000);
            let delayed = delays.iter().filter(|&&d| d > Span::ZERO).count() as f64 / 40_000.0;
            assert!((delayed - f64::from(part_ppm) / 1e6).abs() < 0.01, "{model:?} {delayed}");
            let mean = mean_ms(&delays);
            assert!((mean / expected - 1.0).abs() < 0.03, "{model:?} {part_ppm}: {mean}");
            assert!(delays.iter().all(|&d| d <= MAX));
        }
    }

    #[test]
    fn held_packets_are_let_go_together() {
        let gap = Span::micros(100);
        for part_ppm in [MILLION, 500_000] {
            let jitter = Jitter { max: MAX, part_ppm, model: JitterModel::Burst };
            let delays = delays(jitter, Span::ZERO, gap, 500_000);
            let at = |i: usize| (Time::ZERO + gap * i as u64 + delays[i]).as_nanos();
            let together = (1..delays.len()).filter(|&i| at(i) == at(i - 1)).count();
            // The mean of the times between moments is 10 ms: 100 packets.
            let part = f64::from(part_ppm) / 1e6;
            let share = together as f64 / delays.len() as f64;
            assert!((share / (0.99 * part) - 1.0).abs() < 0.03, "{part_ppm}: {share}");
            // With uniform times between moments a packet waits E[X²] / 2 E[X] = 20 / 3 ms on average.
            let mean = mean_ms(&delays);
            assert!((mean / (part * 20.0 / 3.0) - 1.0).abs() < 0.05, "{part_ppm}: {mean}");
        }
    }

    #[test]
    fn packets_arrive_at_grants_and_wait_half_a_period_on_average() {
        let grant = Span::millis(6);
        let delays = delays(Jitter::NONE, grant, Span::micros(997), 60_000);
        assert!((mean_ms(&delays) - 3.0).abs() < 0.05, "{}", mean_ms(&delays));
        let phases = (0..60_000).map(|i| 997_000 * i as u64 + delays[i].as_nanos());
        let phases: std::collections::BTreeSet<u64> = phases.map(|at| at % 6_000_000).collect();
        assert_eq!(phases.len(), 1);
    }

    #[test]
    fn losses_are_as_many_and_in_bursts_as_long_as_was_asked_for() {
        for (ppm, burst) in [(10_000, 1), (10_000, 3), (200_000, 10), (600_000, 2)] {
            let mut losses = Losses::new(ppm, burst);
            let mut random = SplitMix64::new(5);
            let lost: Vec<bool> = (0..2_000_000).map(|_| losses.strikes(&mut random)).collect();
            let share = lost.iter().filter(|&&l| l).count() as f64 / 2e6;
            assert!((share / f64::from(ppm) * 1e6 - 1.0).abs() < 0.05, "{ppm} {burst}: {share}");
            let bursts = lost.windows(2).filter(|w| !w[0] && w[1]).count() as f64;
            let length = share * 2e6 / bursts;
            // Independent losses too follow each other by chance.
            let expected = if burst == 1 { 1.0 / (1.0 - share) } else { burst.into() };
            assert!((length / expected - 1.0).abs() < 0.05, "{ppm} {burst}: {length}");
        }
        let mut never = Losses::new(0, 5);
        assert!((0..1_000).all(|_| !never.strikes(&mut SplitMix64::new(1))));
    }

    proptest! {
        #[test]
        fn nothing_overtakes_and_nothing_arrives_early(
            gaps in prop::collection::vec(0u64..50_000_000, 1..200),
            (max, grant, part_ppm) in (0u64..40_000_000, 0u64..9_000_000, 0u32..=MILLION),
            model in prop::sample::select(vec![
                JitterModel::Uniform, JitterModel::Exponential, JitterModel::Burst,
            ]),
        ) {
            let (max, grant) = (Span::nanos(max), Span::nanos(grant));
            let mut delays = Delays::new(Jitter { max, part_ppm, model }, grant);
            let (mut random, mut end, mut last) = (SplitMix64::new(1), Time::ZERO, Time::ZERO);
            for gap in gaps {
                end = end + Span::nanos(gap);
                let at = delays.arrival(end, &mut random);
                prop_assert!(at >= end && at >= last);
                prop_assert!(at <= end.max(last) + max + grant);
                last = at;
            }
        }
    }
}
