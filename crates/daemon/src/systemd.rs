//! The protocol between systemd and a service of `Type=notify`. Source: sd_notify(3),
//! sd_watchdog_enabled(3).

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use fairweir_core::units::{Span, Time};

/// Sends `state` (`READY=1`, `STOPPING=1`) to the service manager, if there is one.
pub(crate) fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let send = || -> io::Result<usize> {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)
    };
    if let Err(e) = send() {
        tracing::warn!("cannot notify systemd of `{state}`: {e}");
    }
}

/// Tells the service manager that the process is alive, if its unit has `WatchdogSec=`.
#[derive(Debug)]
pub(crate) struct Watchdog {
    period: Option<Span>,
    next_at: Time,
}

impl Watchdog {
    /// Reads the period from the environment.
    pub(crate) fn from_environment() -> Watchdog {
        let number = |key: &str| env::var(key).ok().and_then(|text| text.parse::<u64>().ok());
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let period = number("WATCHDOG_USEC").filter(|_| is_ours);
        // A third of the time after which the service manager gives up.
        let period = period.map(|us| Span::nanos(us.saturating_mul(1_000) / 3));
        Watchdog { period, next_at: Time::ZERO }
    }

    /// Notifies the service manager if it is time.
    pub(crate) fn beat(&mut self, now: Time) {
        let Some(period) = self.period else { return };
        if now >= self.next_at {
            self.next_at = now + period;
            notify("WATCHDOG=1");
        }
    }
}
