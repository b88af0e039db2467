//! The capacity of a link over time.

use fairweir_core::units::{Bytes, Rate, Span, Time};

use super::Trace;

/// The capacity of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// A rate: the first entry applies from the start; later entries are steps in order of time. No
    /// rate is zero.
    Steps(Vec<RateStep>),
    /// An ISP's shaper: a token bucket that is filled at `steps` and full at the start. Packets for
    /// which there are tokens leave at the rate of the line.
    Shaped {
        /// The rate the subscriber has bought, as in [`Capacity::Steps`].
        steps: Vec<RateStep>,
        /// Size of the bucket.
        burst: Bytes,
        /// Rate of the line, at least the largest rate.
        line_rate: Rate,
    },
    /// Single opportunities to send, as recorded on a radio link.
    Trace(Trace),
}

/// A rate of a link and when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateStep {
    /// When it begins; a packet in transmission is finished at the new rate.
    pub at: Time,
    /// The rate of the link, in L2 bytes.
    pub rate: Rate,
}

impl Capacity {
    /// A rate that never changes.
    pub fn constant(rate: Rate) -> Capacity {
        Capacity::Steps(vec![RateStep { at: Time::ZERO, rate }])
    }

    /// The rates and when they begin; none for a trace, which changes all the time.
    pub fn steps(&self) -> &[RateStep] {
        match self {
            Capacity::Steps(steps) | Capacity::Shaped { steps, .. } => steps,
            Capacity::Trace(_) => &[],
        }
    }

    /// The rate at time `t`, without what a shaper's bucket adds; for a trace, the mean of the
    /// second that begins at `t`, which may be zero.
    pub fn at(&self, t: Time) -> Rate {
        match self {
            Capacity::Steps(steps) | Capacity::Shaped { steps, .. } => {
                let holds = steps.iter().rev().find(|step| step.at <= t);
                holds.unwrap_or(&steps[0]).rate
            }
            Capacity::Trace(trace) => {
                let second = Span::secs(1);
                let opportunities = trace.before(t + second) - trace.before(t);
                Rate::from_volume(Trace::OPPORTUNITY * opportunities, second)
            }
        }
    }

    /// The advertised rate of the link: the first rate, or the mean of a trace.
    pub fn nominal(&self) -> Rate {
        match self {
            Capacity::Steps(steps) | Capacity::Shaped { steps, .. } => steps[0].rate,
            Capacity::Trace(trace) => trace.mean(),
        }
    }

    /// The largest [`Capacity::at`] over the whole seconds from the start to `end`.
    pub fn max(&self, end: Time) -> Rate {
        let most = match self {
            Capacity::Steps(steps) | Capacity::Shaped { steps, .. } => {
                steps.iter().map(|step| step.rate).max()
            }
            Capacity::Trace(_) => {
                let seconds = end.as_nanos() / Span::secs(1).as_nanos();
                (0..=seconds).map(|s| self.at(Time::ZERO + Span::secs(s))).max()
            }
        };
        most.unwrap_or(Rate::ZERO)
    }

    /// The volume that it carries from the start to `end`, without what a shaper's bucket adds.
    pub fn volume(&self, end: Time) -> Bytes {
        match self {
            Capacity::Steps(steps) | Capacity::Shaped { steps, .. } => {
                let ends = steps.iter().skip(1).map(|step| step.at).chain([end]);
                steps.iter().zip(ends).map(|(step, until)| step.rate * until.since(step.at)).sum()
            }
            Capacity::Trace(trace) => Trace::OPPORTUNITY * trace.before(end),
        }
    }

    /// Panics if no link can be made from the capacity.
    pub(super) fn check(&self) {
        let steps = match self {
            Capacity::Trace(_) => return,
            Capacity::Steps(steps) => steps,
            Capacity::Shaped { steps, line_rate, .. } => {
                let fits = steps.iter().all(|step| step.rate <= *line_rate);
                assert!(fits, "a line is at least as fast as its shaper");
                steps
            }
        };
        assert!(!steps.is_empty(), "a link has a rate");
        assert!(steps.iter().all(|s| s.rate > Rate::ZERO), "a link carries something");
        assert!(steps.is_sorted_by(|a, b| a.at < b.at), "the steps are in order of time");
    }
}
