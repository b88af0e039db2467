use fairweir_core::units::Time;
use nix::time::{ClockId, clock_gettime};

/// Now, by the clock that the kernel's programs also read: CLOCK_MONOTONIC, which starts with the
/// machine and is never set.
pub fn monotonic_now() -> Time {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)
        .expect("invariant: every Linux has CLOCK_MONOTONIC");
    Time::from_nanos(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
