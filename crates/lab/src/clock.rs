//! The lab's clock: CLOCK_MONOTONIC counted from an epoch that all processes of a run share.

use std::thread;
use std::time::Duration;

use fairweir_core::units::{Span, Time};
use nix::time::{ClockId, clock_gettime};

/// A clock that shows zero at its epoch and before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    epoch: Time,
}

impl Clock {
    /// A clock whose epoch is `span` in the future.
    pub(crate) fn starting_in(span: Span) -> Clock {
        Clock { epoch: monotonic() + span }
    }

    /// A clock with the epoch of another process's clock.
    pub(crate) fn with_epoch(nanos: u64) -> Clock {
        Clock { epoch: Time::from_nanos(nanos) }
    }

    /// The epoch in nanoseconds of CLOCK_MONOTONIC.
    pub(crate) fn epoch_nanos(self) -> u64 {
        self.epoch.as_nanos()
    }

    pub(crate) fn now(self) -> Time {
        Time::ZERO + monotonic().since(self.epoch)
    }

    /// Sleeps until the clock shows `t`.
    pub(crate) fn sleep_until(self, t: Time) {
        let due = self.epoch + t.since(Time::ZERO);
        thread::sleep(Duration::from(due.since(monotonic())));
    }
}

fn monotonic() -> Time {
    // The clock exists since Linux 2.6; nothing here could work without it.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("invariant: CLOCK_MONOTONIC exists");
    Time::from_nanos(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
