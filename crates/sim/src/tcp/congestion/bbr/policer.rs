//! Detects a policer, and measures the rate that it lets through.
//!
//! A policer drops what exceeds its rate once its bucket is empty; a sender that then probes for
//! more than that rate only loses packets. After a loss, the rate is measured over intervals of at
//! least four rounds that end with a loss. If a fifth or more was lost in two intervals in a row,
//! and their rates agree, that rate is taken for the policer's and used for 48 rounds. Source:
//! Flach et al., SIGCOMM 2016 §5, as in Linux.

use fairweir_core::units::Time;

use super::super::AckSample;

#[derive(Clone, Debug, Default)]
pub(super) struct PolicerDetector {
    /// The rate of the last interval in packets/s, if there is one.
    rate: Option<f64>,
    is_found: bool,
    interval: Option<Interval>,
    /// Rounds of the interval, or since a policer was found.
    rounds: u32,
}

#[derive(Clone, Copy, Debug)]
struct Interval {
    start: Time,
    delivered: u32,
    lost: u32,
}

/// The result of an ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Nothing,
    /// A policer was found: [`PolicerDetector::rate`] is its rate.
    Found,
    /// A found policer was used for long enough and is dropped.
    Over,
}

impl PolicerDetector {
    /// The policer's rate in packets/s, if there is one.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rate.filter(|_| self.is_found)
    }

    pub(super) fn handle_ack(
        &mut self,
        sample: &AckSample,
        is_new_round: bool,
        is_probing_rate: bool,
        segment: u64,
    ) -> Verdict {
        if self.is_found {
            self.rounds += u32::from(is_probing_rate && is_new_round);
            if self.rounds < USE_ROUNDS {
                return Verdict::Nothing;
            }
            *self = PolicerDetector::default();
            return Verdict::Over;
        }
        let Some(interval) = self.interval else {
            if sample.lost > 0 {
                self.begin(sample);
            }
            return Verdict::Nothing;
        };
        let is_dry = sample.rate.is_some_and(|rate| rate.is_app_limited);
        self.rounds += u32::from(is_new_round);
        if is_dry || self.rounds > INTERVAL_ROUNDS_MAX {
            *self = PolicerDetector::default();
            return Verdict::Nothing;
        }
        if self.rounds < INTERVAL_ROUNDS_MIN || sample.lost == 0 {
            return Verdict::Nothing;
        }
        let lost = f64::from(sample.lost_total.wrapping_sub(interval.lost));
        let delivered = f64::from(sample.delivered_total.wrapping_sub(interval.delivered));
        let span_s = sample.now.since(interval.start).as_secs_f64();
        if delivered == 0.0 || lost < LOSS_MIN * delivered || span_s < INTERVAL_MIN_S {
            return Verdict::Nothing;
        }
        self.handle_interval(delivered / span_s, sample, segment)
    }

    fn handle_interval(&mut self, rate: f64, sample: &AckSample, segment: u64) -> Verdict {
        if let Some(last) = self.rate {
            let off = (rate - last).abs();
            if off <= last * AGREE_WITHIN || off * segment as f64 <= AGREE_WITHIN_BYTES {
                self.rate = Some((rate + last) / 2.0);
                self.is_found = true;
                self.rounds = 0;
                return Verdict::Found;
            }
        }
        self.rate = Some(rate);
        self.begin(sample);
        Verdict::Nothing
    }

    fn begin(&mut self, sample: &AckSample) {
        self.interval = Some(Interval {
            start: sample.now,
            delivered: sample.delivered_total,
            lost: sample.lost_total,
        });
        self.rounds = 0;
    }
}

/// Linux's `bbr_lt_intvl_min_rtts`; below, four times that.
const INTERVAL_ROUNDS_MIN: u32 = 4;
const INTERVAL_ROUNDS_MAX: u32 = 16;
const INTERVAL_MIN_S: f64 = 0.001;
/// Linux's `bbr_lt_loss_thresh`: packets lost per packet delivered.
const LOSS_MIN: f64 = 50.0 / 256.0;
/// Linux's `bbr_lt_bw_ratio` and `bbr_lt_bw_diff`: an eighth, or 4 kbit/s.
const AGREE_WITHIN: f64 = 1.0 / 8.0;
const AGREE_WITHIN_BYTES: f64 = 500.0;
/// Linux's `bbr_lt_bw_max_rtts`.
const USE_ROUNDS: u32 = 48;
