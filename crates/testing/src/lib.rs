//! Helpers of the tests of several crates. No crate depends on this one outside of its tests.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "it serves tests")]

mod judge;
mod machine;
mod postgres;

use std::fs;

use fairweir_linux::netns::Netns;

pub use judge::{judged, note, once, one_of_four, record_lateness, two_of_three, valid, void};
pub use machine::{Alone, Share, alone, one_at_a_time, share};
pub use postgres::Postgres;

/// Whether a test that needs `what` can run: returns `found`. A skip prints a message.
///
/// # Panics
/// Under `FAIRWEIR_STRICT=1`, instead of a skip.
pub fn can_run(found: bool, what: &str) -> bool {
    if !found {
        note(&format!("SKIPPED: needs {what}"));
        assert!(!is_strict(), "a skip under FAIRWEIR_STRICT: needs {what}");
    }
    found
}

/// Whether a test that cannot run, or a claim that was not judged, is a failure.
pub fn is_strict() -> bool {
    std::env::var_os("FAIRWEIR_STRICT").is_some_and(|value| value != "0")
}

/// Whether the tests may touch the kernel: namespaces, devices, BPF. See [`can_run`].
pub fn privileged() -> bool {
    can_run(nix::unistd::geteuid().is_root(), "root for network namespaces")
}

/// L2 bytes that passed a device since it was made.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Received by the device.
    pub received: u64,
    /// Sent by the device.
    pub sent: u64,
}

/// The bytes that `device` of `netns` has received and sent.
///
/// # Panics
/// If there is no such device.
pub fn traffic(netns: &Netns, device: &str) -> Traffic {
    let table = netns.run(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let mut lines = table.lines().filter_map(|line| line.split_once(':'));
    let (_, numbers) = lines.find(|(name, _)| name.trim() == device).unwrap();
    let column = |n: usize| numbers.split_whitespace().nth(n).unwrap().parse().unwrap();
    Traffic { received: column(0), sent: column(8) }
}
