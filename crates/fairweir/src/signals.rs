//! Signals that a command takes note of, because something is attached that it has to remove first.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Signals that would end the process while something is attached.
pub(crate) struct Signals {
    held: SigSet,
    heard: SignalFd,
}

impl Signals {
    /// Holds them until this drops.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn held() -> nix::Result<Signals> {
        let mut held = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            held.add(signal);
        }
        held.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Signals { held, heard: SignalFd::with_flags(&held, flags)? })
    }

    /// Whether one came since the last call.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn is_any(&self) -> nix::Result<bool> {
        Ok(self.heard.read_signal()?.is_some())
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // The process ends soon, at the latest with what it writes.
        let _ = self.held.thread_unblock();
    }
}
