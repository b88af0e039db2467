//! Signals that a command handles itself, because it must first remove what it has attached.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Blocked signals that would otherwise end the process while something is attached.
pub(crate) struct Signals {
    held: SigSet,
    heard: SignalFd,
}

impl Signals {
    /// Blocks these signals until the value drops.
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

    /// Whether a signal has arrived since the last call.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn is_any(&self) -> nix::Result<bool> {
        Ok(self.heard.read_signal()?.is_some())
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // An error does not matter: the process ends soon in any case.
        let _ = self.held.thread_unblock();
    }
}
