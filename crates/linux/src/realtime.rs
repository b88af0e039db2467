//! Scheduling of the calling thread, for the lab's link element.

use std::io;

use nix::sys::prctl;

use crate::Error;

/// Gives the calling thread priority over all ordinary threads (SCHED_FIFO, at the lowest real-time
/// priority), and makes its timers fire without slack.
///
/// # Errors
/// Without CAP_SYS_NICE.
pub fn enter() -> Result<(), Error> {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads one `sched_param`, which outlives it; 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) } < 0 {
        return Err(Error::last_os("give a thread real-time priority"));
    }
    prctl::set_timerslack(1)
        .map_err(|e| Error::refused("take away a thread's timer slack", io::Error::from(e)))
}
