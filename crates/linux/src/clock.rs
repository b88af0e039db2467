use fairweir_core::units::Time;
use nix::time::{ClockId, clock_gettime};

/// The current time of CLOCK_MONOTONIC, which the kernel's programs also read. It starts with the
/// machine and is never set.
pub fn monotonic_now() -> Time {
    now_of(ClockId::CLOCK_MONOTONIC)
}

/// The current time of CLOCK_BOOTTIME, which also counts the time that the machine was suspended.
pub fn boottime_now() -> Time {
    now_of(ClockId::CLOCK_BOOTTIME)
}

fn now_of(clock: ClockId) -> Time {
    let now = clock_gettime(clock).expect("invariant: every Linux has this clock");
    Time::from_nanos(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
