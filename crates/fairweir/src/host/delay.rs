//! The queueing delay of the access link, as measured by a probe.
//!
//! The daemon works without a probe too: if the probe cannot start, that is tried again later.

use std::collections::VecDeque;

use fairweir_core::receiver::{DelaySample, GroupSample, ProbeSample};
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_linux::probe::{Probe, ProbeSpec};
use tracing::{info, warn};

use super::wire::ProbeStatus;

/// Below this rate the link counts as idle. Replies to the most frequent probe are 65 kbit/s.
const IN_USE_MIN: Rate = Rate::kbit(100);

/// 1 / this of the received bytes is attributed to acknowledgements; with one per two packets it is 1/36.
const ACKNOWLEDGED: u64 = 16;

/// An upload of at least this rate may fill an uplink.
const UPLOAD_MIN: Rate = Rate::kbit(300);

/// If there is no traffic for this time, the link counts as idle; users pause.
const IDLE_AFTER: Span = Span::secs(2);

/// How long to wait when a probe cannot start.
const RETRY_PAUSE: Span = Span::secs(10);

/// The number of ticks of use (5 s) after which it is judged whether the delay is known.
const SIGHT_TICKS: usize = 25;

/// The fewest samples in 5 s with which a control can detect that the link is busy: one reply per
/// second, one of which may be lost.
const SAMPLES_FEW: u32 = 4;

/// The daemon's probe, and how well the delay is known.
#[derive(Debug, Default)]
pub(super) struct Delay {
    running: Option<(ProbeSpec, Probe)>,
    error: Option<String>,
    retry_at: Time,
    used_at: Time,
    /// The device's counter of sent bytes at the end of the last tick.
    sent: Option<u64>,
    /// The rate of uploads in the last tick, without acknowledgements, and the rate that arrived.
    uploaded: Rate,
    received: Rate,
    /// The number of samples in each of the last consecutive ticks in which the link was in use; at
    /// most [`SIGHT_TICKS`] ticks.
    samples: VecDeque<u32>,
}

impl Delay {
    /// Starts, changes or stops the probe as `wanted`.
    pub(super) fn follow(&mut self, wanted: Option<ProbeSpec>, now: Time) {
        if self.running.as_ref().map(|(spec, _)| spec) == wanted.as_ref() {
            if wanted.is_none() {
                self.error = None;
            }
            return;
        }
        let was_running = self.running.take().is_some();
        let Some(spec) = wanted else { return };
        if now < self.retry_at && !was_running {
            return;
        }
        match Probe::start(&spec) {
            Ok(probe) => {
                info!(dev = spec.dev, reflector = %spec.reflector, "the access link is probed");
                self.error = None;
                self.retry_at = Time::ZERO;
                self.running = Some((spec, probe));
            }
            Err(e) => {
                let e = e.to_string();
                if self.error.as_ref() != Some(&e) {
                    warn!(dev = spec.dev, "the access link cannot be probed: {e}");
                }
                self.error = Some(e);
                self.retry_at = now + RETRY_PAUSE;
            }
        }
    }

    /// The probe's sample of an `interval` that ends `now`; `groups` is what the groups received in it.
    pub(super) fn take_sample(
        &mut self,
        groups: &[GroupSample],
        interval: Span,
        now: Time,
    ) -> Option<ProbeSample> {
        let received: Bytes = groups.iter().map(|g| g.received).sum();
        if Rate::from_volume(received, interval) >= IN_USE_MIN {
            self.used_at = now;
        }
        let in_use = self.is_in_use(now);
        let (_, probe) = self.running.as_mut()?;
        probe.set_in_use(in_use);
        Some(probe.take_sample())
    }

    /// Takes the rate `sent` in an interval that ends `now`.
    pub(super) fn handle_upload(&mut self, sent: Rate, now: Time) {
        if sent >= IN_USE_MIN {
            self.used_at = now;
        }
    }

    /// Takes the device's counter of `sent` bytes at the end of an interval in which it `received` some.
    pub(super) fn handle_sent(&mut self, sent: u64, received: Bytes, interval: Span) {
        let before = self.sent.replace(sent).unwrap_or(sent);
        let beyond =
            Bytes::new(sent.saturating_sub(before)).saturating_sub(received / ACKNOWLEDGED);
        self.uploaded = Rate::from_volume(beyond, interval);
        self.received = Rate::from_volume(received, interval);
    }

    /// Whether round trips show the download's queue: no upload can fill the uplink, or the
    /// uplink's queue `is_short` and more arrives than is sent.
    pub(super) fn shows_download(&self, is_short: bool) -> bool {
        !self.is_uploading() || (is_short && self.received > self.uploaded)
    }

    fn is_uploading(&self) -> bool {
        self.uploaded >= UPLOAD_MIN
    }

    fn is_in_use(&self, now: Time) -> bool {
        now.since(self.used_at) < IDLE_AFTER
    }

    /// Takes the delay that the control determined in a tick that ends `now`.
    pub(super) fn handle_decision(&mut self, delay: Option<DelaySample>, now: Time) {
        if !self.is_in_use(now) {
            self.samples.clear();
            return;
        }
        if self.samples.len() == SIGHT_TICKS {
            self.samples.pop_front();
        }
        self.samples.push_back(delay.map_or(0, |delay| delay.samples));
    }

    /// The reason if a control that learns from the delay may be unable to learn; `None` if it can.
    pub(super) fn limit(&self) -> Option<String> {
        if self.samples.len() < SIGHT_TICKS {
            return None;
        }
        match self.samples.iter().fold(0_u32, |sum, &samples| sum.saturating_add(samples)) {
            0 if self.is_uploading() => Some(
                "the delay of the link cannot be measured during this upload: servers send no TCP timestamps, \
                 and what a probe waits at the uplink is not the download's; `upload = true` keeps that short"
                    .to_owned(),
            ),
            0 => Some(
                "the delay of the link cannot be measured: servers send no TCP timestamps and no \
                 reflector answers the probe; nothing is enforced until the capacity is known"
                    .to_owned(),
            ),
            few if few < SAMPLES_FEW => Some(format!(
                "the delay of the link is rarely measured: {few} samples in 5 s; the capacity is \
                 learned late or not at all"
            )),
            _ => None,
        }
    }

    /// The status of the probe; `None` if it is off.
    pub(super) fn status(&self) -> Option<ProbeStatus> {
        let Some((_, probe)) = &self.running else {
            let error = self.error.clone()?;
            return Some(ProbeStatus { error: Some(error), ..ProbeStatus::default() });
        };
        let state = probe.state();
        Some(ProbeStatus {
            reflector: state.reflector.map(|address| address.to_string()),
            sent: state.sent,
            answered: state.answered,
            rtt_last_ms: state.rtt_last.map(Span::as_millis_f64),
            error: state.error,
        })
    }
}

#[cfg(test)]
mod tests {
    use fairweir_core::receiver::{DelaySource, TICK};

    use super::*;

    #[test]
    fn acknowledgements_are_no_upload() {
        let mut delay = Delay::default();
        let mut upload = |sent: u64, down_mbit: u64| {
            delay.handle_sent(sent, Rate::mbit(down_mbit) * TICK, TICK);
            delay.is_uploading()
        };
        assert!(!upload(1 << 40, 0), "what was before the start does not count");
        // 770 kbit/s of acknowledgements with a download of 28 Mbit/s.
        assert!(!upload((1 << 40) + 19_250, 28));
        assert!(upload((1 << 40) + 19_250 + 70_000, 28));
        assert!(upload((1 << 40) + 19_250 + 340_000, 1));
        assert!(!upload(0, 28), "a device that begins again");
    }

    #[test]
    fn a_link_in_use_whose_delay_is_not_measured_is_a_limit() {
        let sample = |samples| DelaySample {
            value: Span::ZERO,
            least: Span::ZERO,
            source: DelaySource::Probe,
            noise: Span::ZERO,
            samples,
            sources: 1,
        };
        let limit = |received: u64, every: usize, samples: u32| {
            let (mut delay, mut now) = (Delay::default(), Time::ZERO + Span::secs(10));
            for tick in 0..SIGHT_TICKS {
                assert_eq!(delay.limit(), None, "too early to say");
                now = now + TICK;
                let group =
                    GroupSample { received: Bytes::new(received), ..GroupSample::default() };
                delay.take_sample(&[group], TICK, now);
                delay.handle_decision((tick % every == 0).then(|| sample(samples)), now);
            }
            delay.limit()
        };
        assert!(limit(100_000, 1, 0).is_some_and(|text| text.contains("cannot be measured")));
        assert!(limit(100_000, 10, 1).is_some_and(|text| text.contains("3 samples in 5 s")));
        assert_eq!(limit(100_000, 5, 1), None, "an answer a second");
        assert_eq!(limit(100_000, 1, 1), None);
        assert_eq!(limit(0, 1, 0), None, "an idle link");
    }
}
