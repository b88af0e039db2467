//! The timers of a sender.

use fairweir_core::units::Time;

/// When each timer is due.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    /// When holes count as lost.
    pub(super) reorder: Option<Time>,
    /// When a tail loss probe goes.
    pub(super) probe: Option<Time>,
    /// When packets in flight are given up.
    pub(super) rto: Option<Time>,
}

/// The timer that is due; of those due at the same instant, the mildest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    Reorder,
    Probe,
    Retransmission,
}

impl Timers {
    pub(super) fn next(&self) -> Option<Time> {
        // Called with every packet, so it compares numbers; `never` is later than any time.
        let never = Time::from_nanos(u64::MAX);
        let of = |timer: Option<Time>| timer.unwrap_or(never);
        Some(of(self.reorder).min(of(self.probe)).min(of(self.rto))).filter(|&at| at < never)
    }

    pub(super) fn due(&self, now: Time) -> Option<Timer> {
        let is_due = |timer: Option<Time>| timer.is_some_and(|at| at <= now);
        match () {
            () if is_due(self.reorder) => Some(Timer::Reorder),
            () if is_due(self.probe) => Some(Timer::Probe),
            () if is_due(self.rto) => Some(Timer::Retransmission),
            () => None,
        }
    }
}
