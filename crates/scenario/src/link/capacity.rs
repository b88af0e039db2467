//! What a link carries, and when.

use fairweir_core::units::{Bytes, Rate, Span, Time};

use super::Trace;

/// What a link carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// A rate; the first entry holds from the start, later ones are steps in order of time. No
    /// rate is zero.
    Steps(Vec<RateStep>),
    /// An ISP's shaper: a token bucket that is filled at `steps` and full at the start. What
    /// there are tokens for leaves at the rate of the line.
    Shaped {
        /// As of [`Capacity::Steps`]: what the subscriber has bought.
        steps: Vec<RateStep>,
        /// What the bucket holds.
        burst: Bytes,
        /// At least the largest rate.
        line_rate: Rate,
    },
    /// Single opportunities to send, as recorded on a radio link.
    Trace(Trace),
}

/// From when on a link carries how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateStep {
    /// From then on; a packet in transmission is finished at the new rate.
    pub at: Time,
    /// What the link carries, in L2 bytes.
    pub rate: Rate,
}

impl Capacity {
    /// A rate for ever.
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

    /// The rate that holds at time `t`, without what a shaper's bucket adds; of a trace, the mean
    /// of the second that begins at `t`, which may be zero.
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

    /// What the link is said to have: the first rate, or the mean of a trace.
    pub fn nominal(&self) -> Rate {
        match self {
            Capacity::Steps(steps) | Capacity::Shaped { steps, .. } => steps[0].rate,
            Capacity::Trace(trace) => trace.mean(),
        }
    }

    /// The most of [`Capacity::at`] over the whole seconds from the start to `end`.
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

    /// What it carries from the start to `end`, without what a shaper's bucket adds.
    pub fn volume(&self, end: Time) -> Bytes {
        match self {
            Capacity::Steps(steps) | Capacity::Shaped { steps, .. } => {
                let ends = steps.iter().skip(1).map(|step| step.at).chain([end]);
                steps.iter().zip(ends).map(|(step, until)| step.rate * until.since(step.at)).sum()
            }
            Capacity::Trace(trace) => Trace::OPPORTUNITY * trace.before(end),
        }
    }

    /// Refuses what no link can be made from.
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
