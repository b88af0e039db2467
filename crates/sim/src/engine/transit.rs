//! The clock of a server's TCP timestamps, and how the daemon reads it.
//!
//! A classifier times one packet in [`TIMED_EVERY`]. It does not know the period of the server's clock,
//! and compares it with its own clock for a second; until then it measures nothing. If a queue builds up
//! meanwhile, the clocks differ by more than it tolerates, and it begins again. The daemon's classifier
//! (`crates/linux/bpf/transit.h`) did so until it was changed to find a clock of 1 ms after a quarter of
//! a second and to time more packets on slow links: a control that works here works there too.

use fairweir_core::units::{Span, Time};

/// A server's clock: when it ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerClock {
    pub(super) period: Span,
    pub(super) phase: Span,
}

impl ServerClock {
    /// The timestamp it shows.
    pub(super) fn stamp(self, now: Time) -> u32 {
        ((now + self.phase).as_nanos() / self.period.as_nanos()) as u32
    }
}

/// State of the classifier for the clock of one connection's server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    anchor: Option<Time>,
    ticks: i64,
    stamp: u32,
    period_ns: i64,
}

/// Result for a packet that was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timed {
    /// Nothing is known of the clock yet.
    Nothing,
    /// Earlier measurements are void, and it begins again.
    Anew,
    /// Transit time of the packet in ns, up to a constant of the connection.
    Took(i64),
}

impl Timing {
    /// A packet with this stamp has arrived.
    pub(super) fn time(&mut self, now: Time, stamp: u32) -> Timed {
        let Some(anchor) = self.anchor else { return self.begin(now, stamp) };
        let elapsed = now.since(anchor);
        self.ticks += i64::from(stamp.wrapping_sub(self.stamp) as i32);
        self.stamp = stamp;
        let elapsed_ns = elapsed.as_nanos() as i64;
        let fits = |&period: &i64| (self.ticks * period - elapsed_ns).abs() * 50 <= elapsed_ns;
        if self.period_ns == 0 {
            if elapsed < FOUND_AFTER {
                return Timed::Nothing;
            }
            let Some(period) = PERIODS_NS.into_iter().find(fits) else {
                return self.begin(now, stamp);
            };
            self.period_ns = period;
            return Timed::Nothing;
        }
        if elapsed > CHECKED_AFTER && !fits(&self.period_ns) {
            return self.begin(now, stamp);
        }
        Timed::Took(elapsed_ns - self.ticks * self.period_ns)
    }

    fn begin(&mut self, now: Time, stamp: u32) -> Timed {
        *self = Timing { anchor: Some(now), stamp, ticks: 0, period_ns: 0 };
        Timed::Anew
    }
}

/// One packet in this number is timed.
pub(super) const TIMED_EVERY: u32 = 4;
/// The clock periods that TCP stacks use.
const PERIODS_NS: [i64; 4] = [1_000_000, 4_000_000, 10_000_000, 100_000_000];
const FOUND_AFTER: Span = Span::secs(1);
const CHECKED_AFTER: Span = Span::secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const CLOCK: ServerClock = ServerClock { period: Span::millis(1), phase: Span::micros(300) };

    /// Results for packets that are sent every 5 ms and meet this queue.
    fn timed(clock: ServerClock, queue: impl Fn(Span) -> Span) -> Vec<(Span, Timed)> {
        let mut timing = Timing::default();
        let mut timed = |i: u64| {
            let sent = Span::millis(5) * i;
            let stamp = clock.stamp(Time::ZERO + sent);
            let arrived = Time::ZERO + sent + Span::millis(20) + queue(sent);
            (sent, timing.time(arrived, stamp))
        };
        (0..1_000).map(&mut timed).collect()
    }

    fn first_ms(timed: &[(Span, Timed)]) -> u64 {
        let first = timed.iter().find(|(_, timed)| matches!(timed, Timed::Took(_)));
        first.unwrap().0.as_nanos() / 1_000_000
    }

    #[test]
    fn nothing_is_told_for_a_second_and_then_how_the_queue_differs_from_the_first_packets() {
        let step = |sent| if sent < Span::secs(2) { Span::ZERO } else { Span::millis(30) };
        for period in [1, 4, 10] {
            let clock = ServerClock { period: Span::millis(period), ..CLOCK };
            let timed = timed(clock, step);
            assert_eq!(first_ms(&timed), 1_005);
            for (sent, timed) in timed.into_iter().filter(|(sent, _)| *sent > Span::millis(1_010)) {
                let Timed::Took(ns) = timed else { panic!("{sent} {timed:?}") };
                let off = (ns - step(sent).as_nanos() as i64).abs();
                assert!(off <= period as i64 * 1_000_000, "{sent} {ns}");
            }
        }
    }

    #[test]
    fn a_queue_that_builds_up_in_the_first_second_costs_another_one() {
        // A delay of 30 ms within a second is 3 % of it, which is too much.
        let ramp = |sent: Span| (sent / 33).min(Span::millis(30));
        assert_eq!(first_ms(&timed(CLOCK, ramp)), 1_980);
        // A delay of 15 ms is not too much.
        let ramp = |sent: Span| (sent / 66).min(Span::millis(15));
        assert!((985..=1_005).contains(&first_ms(&timed(CLOCK, ramp))));
    }
}
