//! Detects by two counters whether packets bypass the classifier.
//!
//! Problem: with a hardware offload, or another program in front, packets reach the devices without
//! passing the classifier, so that the control divides less than the link carries. The interface
//! still counts them. But some drivers read their counters from the hardware only now and then, and
//! the process may be delayed between two readings.
//!
//! Method: what the interface has counted beyond the classifier and 1/20 of its own count is added
//! up (a CUSUM). The verdict is an offload once the sum is larger than what the interface has
//! counted in any [`LAG_MAX`] since the sum began, and the sum began at least [`SPAN_MIN`] ago. A
//! counter that lags by at most [`LAG_MAX`] catches up by at most its count in the first of these
//! spans, so a lag never causes a verdict. The interface is read before and after the classifier,
//! and the shorter of the two spans counts, so a delayed process causes none either. Properties: a
//! bypass of a quarter of all packets or more is found within 10 s, of less later, of 1/20 never.

use fairweir_core::units::{Bytes, Span, Time};

/// The counts of an interface and the classifier at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) at: Time,
    /// The interface's count, before the classifier was read.
    pub(crate) before: Bytes,
    pub(crate) classifier: Bytes,
    /// The interface's count, after the classifier was read.
    pub(crate) after: Bytes,
}

/// Bytes that bypassed the classifier, and bytes that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) missed: Bytes,
    pub(crate) arrived: Bytes,
}

/// Compares the two counters of one interface.
#[derive(Clone, Debug, Default)]
pub(crate) struct OffloadWatch {
    last: Option<Reading>,
    /// Present while the sum is not zero.
    sum: Option<Sum>,
    verdict: Option<(Time, Excess)>,
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    begin: Time,
    arrived: u64,
    counted: u64,
    /// The beginning of, and the bytes in, the current [`LAG_MAX`].
    begin_lag: Time,
    arrived_lag: u64,
    /// The maximum of bytes in one [`LAG_MAX`].
    most: u64,
}

impl OffloadWatch {
    /// Takes in a reading.
    pub(crate) fn handle(&mut self, reading: Reading) {
        if self.verdict.is_some_and(|(at, _)| reading.at.since(at) > HELD) {
            self.verdict = None;
        }
        let Some(last) = self.last.replace(reading) else { return };
        let mut sum = self.sum.take().unwrap_or(Sum::new(last.at));
        sum.add(
            reading.at,
            reading.before.saturating_sub(last.after).as_u64(),
            reading.classifier.saturating_sub(last.classifier).as_u64(),
        );
        if let Some(excess) = sum.verdict(reading.at) {
            self.verdict = Some((reading.at, excess));
        } else if sum.excess() > 0 {
            self.sum = Some(sum);
        }
    }

    /// The bypassed bytes, if they were many lately.
    pub(crate) fn verdict(&self) -> Option<Excess> {
        self.verdict.map(|(_, excess)| excess)
    }
}

impl Sum {
    fn new(begin: Time) -> Sum {
        Sum { begin, arrived: 0, counted: 0, begin_lag: begin, arrived_lag: 0, most: 0 }
    }

    fn add(&mut self, at: Time, arrived: u64, counted: u64) {
        self.arrived += arrived;
        self.counted += counted;
        self.arrived_lag += arrived;
        self.most = self.most.max(self.arrived_lag);
        if at.since(self.begin_lag) >= LAG_MAX {
            (self.begin_lag, self.arrived_lag) = (at, 0);
        }
    }

    fn missed(&self) -> u64 {
        self.arrived.saturating_sub(self.counted)
    }

    /// Missed bytes beyond the tolerated part.
    fn excess(&self) -> u64 {
        self.missed().saturating_sub(self.arrived / EXCESS_DIVISOR)
    }

    fn verdict(&self, at: Time) -> Option<Excess> {
        let is_much = self.excess() > self.most && self.arrived >= ARRIVED_MIN;
        let (missed, arrived) = (Bytes::new(self.missed()), Bytes::new(self.arrived));
        (is_much && at.since(self.begin) >= SPAN_MIN).then_some(Excess { missed, arrived })
    }
}

/// More than 1/20 of what arrived must be missed.
const EXCESS_DIVISOR: u64 = 20;
/// The maximum lag of a driver's counters: drivers read their hardware every second or two.
const LAG_MAX: Span = Span::secs(2);
/// The shortest span of readings that is judged.
const SPAN_MIN: Span = Span::secs(5);
/// The time for which a verdict lasts if no other follows.
const HELD: Span = Span::secs(30);
/// Bytes that must arrive before a verdict: in fewer, some frames of other protocols are a large part.
const ARRIVED_MIN: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a reading every 200 ms for 30 s, with the counts of the interface and the classifier
    /// at a time in ms. Returns the time of the first verdict.
    fn first_verdict(
        interface: impl Fn(u64) -> u64,
        classifier: impl Fn(u64) -> u64,
    ) -> Option<u64> {
        let mut watch = OffloadWatch::default();
        (0..150).map(|tick| tick * 200).find(|&ms| {
            watch.handle(Reading {
                at: Time::ZERO + Span::millis(ms),
                before: Bytes::new(interface(ms)),
                classifier: Bytes::new(classifier(ms)),
                after: Bytes::new(interface(ms)),
            });
            watch.verdict().is_some()
        })
    }

    #[test]
    fn what_passes_by_is_told_within_10_s_if_it_is_much_and_never_if_it_is_little() {
        let all = |ms| ms * 1_000;
        for counted in [0, 300, 600, 700] {
            let at = first_verdict(all, |ms| ms * counted).expect("it is missed");
            assert!((5_000..=10_000).contains(&at), "{counted} of 1000 at {at} ms");
        }
        assert!(first_verdict(all, |ms| ms * 800).is_some(), "less takes longer");
        assert_eq!(first_verdict(all, |ms| ms * 960), None, "4 % are noise");
        assert_eq!(
            first_verdict(all, |ms| ms * 1_100),
            None,
            "framing that the interface leaves out"
        );
        let later = first_verdict(all, |ms| ms.min(12_000) * 1_000).unwrap();
        assert!((17_000..=22_000).contains(&later), "{later} ms");
    }

    #[test]
    fn a_verdict_ends_with_its_cause() {
        let mut watch = OffloadWatch::default();
        let mut last = None;
        for tick in 0..500u64 {
            let ms = tick * 200;
            let (interface, classifier) =
                (Bytes::new(ms * 1_000), Bytes::new(ms.saturating_sub(20_000) * 1_000));
            let at = Time::ZERO + Span::millis(ms);
            watch.handle(Reading { at, before: interface, classifier, after: interface });
            last = watch.verdict().map(|_| ms).or(last);
        }
        assert!(last.is_some_and(|ms| (20_000..=51_000).contains(&ms)), "{last:?}");
    }

    #[test]
    fn little_traffic_is_not_judged() {
        assert_eq!(first_verdict(|ms| ms * 3, |_| 0), None);
    }

    #[test]
    fn a_counter_that_the_driver_reads_now_and_then_is_not_taken_for_an_offload() {
        // Steady, in bursts, and with a flood before the window.
        let loads: [fn(u64) -> u64; 3] = [
            |ms| ms * 1_000,
            |ms| ms / 3_000 * 3_000_000 + (ms % 3_000).min(400) * 7_500,
            |ms| ms.min(9_000) * 20_000 + ms * 100,
        ];
        for period in [100, 250, 700, 1_000, 1_300, 2_000] {
            for phase in (0..period).step_by(50) {
                for load in loads {
                    let lagging = |ms: u64| load((ms + phase) / period * period);
                    assert_eq!(
                        first_verdict(lagging, |ms| load(ms + phase)),
                        None,
                        "{period} ms, {phase} ms"
                    );
                }
            }
        }
    }

    #[test]
    fn a_process_that_is_held_up_between_two_readings_finds_nothing() {
        let mut watch = OffloadWatch::default();
        for tick in 0..200u64 {
            // Each third reading is delayed by 2 s, before or after the classifier is read.
            let (ms, stall) = (tick * 2_500, if tick % 3 == 0 { 2_000 } else { 0 });
            let (first, second) = if tick % 2 == 0 { (stall, 0) } else { (0, stall) };
            let count = |ms: u64| Bytes::new(ms * 1_000);
            watch.handle(Reading {
                at: Time::ZERO + Span::millis(ms),
                before: count(ms),
                classifier: count(ms + first),
                after: count(ms + first + second),
            });
            assert_eq!(watch.verdict(), None, "tick {tick}");
        }
    }

    #[test]
    fn counters_that_begin_anew_say_nothing() {
        let restarted = |ms: u64| if ms < 10_000 { 5_000_000_000 + ms * 1_000 } else { ms };
        assert_eq!(first_verdict(restarted, |ms| ms * 1_000), None);
    }
}
