//! What waits in the access link, as a probe measures it.
//!
//! Without a probe the daemon goes on as it would: one that cannot start is tried again later.

use fairweir_core::receiver::{GroupSample, ProbeSample};
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_linux::probe::{Probe, ProbeSpec};
use tracing::{info, warn};

use crate::wire::ProbeStatus;

/// With less the link is idle. Answers to the most eager probe are 65 kbit/s.
const IN_USE_MIN: Rate = Rate::kbit(100);

/// Users pause; the link is idle after so much silence.
const IDLE_AFTER: Span = Span::secs(2);

/// How long to wait when a probe cannot start.
const RETRY_PAUSE: Span = Span::secs(10);

/// The daemon's probe.
#[derive(Debug, Default)]
pub(super) struct Delay {
    running: Option<(ProbeSpec, Probe)>,
    error: Option<String>,
    retry_at: Time,
    used_at: Time,
}

impl Delay {
    /// Sees to it that what runs is what is `wanted`.
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

    /// What the probe decided in an `interval` that ends `now`, in which the groups received that.
    pub(super) fn take_sample(
        &mut self,
        groups: &[GroupSample],
        interval: Span,
        now: Time,
    ) -> Option<ProbeSample> {
        let (_, probe) = self.running.as_mut()?;
        let received: Bytes = groups.iter().map(|g| g.received).sum();
        if Rate::from_volume(received, interval) >= IN_USE_MIN {
            self.used_at = now;
        }
        probe.set_in_use(now.since(self.used_at) < IDLE_AFTER);
        Some(probe.take_sample())
    }

    /// What there is to say of it; `None` if none is wanted.
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
