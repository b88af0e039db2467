//! Allows one daemon in a network namespace: two would take over each other's connections and restore them wrongly.
//!
//! Method: a listening socket with an abstract name. The name is unique in a network namespace, independent of the run
//! directory, and disappears with the process. If another user holds the name, a warning is logged and the daemon runs.

use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

use fairweir_daemon::Error;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, connect, getsockopt,
    listen, socket, sockopt::PeerCredentials,
};
use nix::unistd::{close, geteuid};
use tracing::warn;

/// The exclusive right to the connections of this network namespace; released on drop.
pub(super) struct NamespaceLock(OwnedFd);

/// A name in the namespace of abstract sockets.
const NAME: &[u8] = b"fairweir-sender";
/// A daemon answers at once, or within a tick if its queue is full.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

impl NamespaceLock {
    /// Acquires the lock; `None` if another user has the name or its holder does not answer.
    ///
    /// # Errors
    /// [`Error::AlreadyRunning`] if another daemon has it.
    pub(super) fn acquire() -> Result<Option<NamespaceLock>, Error> {
        let failed = |e: Errno| Error::io("take the lock of the network namespace", e.into());
        for _ in 0..TRIES {
            let own = unix_socket().map_err(failed)?;
            let address = UnixAddr::new_abstract(NAME).map_err(failed)?;
            match bind(own.as_raw_fd(), &address) {
                Ok(()) => {
                    listen(&own, Backlog::MAXCONN).map_err(failed)?;
                    return Ok(Some(NamespaceLock(own)));
                }
                Err(Errno::EADDRINUSE) => {}
                Err(e) => return Err(failed(e)),
            }
            let other = unix_socket().map_err(failed)?;
            if connect(other.as_raw_fd(), &address).is_ok() {
                let holder = getsockopt(&other, PeerCredentials).map_err(failed)?;
                if holder.uid() == geteuid().as_raw() {
                    let name = super::NAME.to_owned();
                    return Err(Error::AlreadyRunning { name, pid: holder.pid() });
                }
                warn!(
                    uid = holder.uid(),
                    "another user has the lock of this network namespace; it is not used"
                );
                return Ok(None);
            }
            // The holder has just ended, or its queue is full.
            sleep(PAUSE);
        }
        warn!("the lock of this network namespace does not answer; it is not used");
        Ok(None)
    }

    /// Accepts and closes waiting connections, so that the queue has room for others.
    pub(super) fn handle_tick(&self) {
        while let Ok(asked) = accept(self.0.as_raw_fd()) {
            let _ = close(asked);
        }
    }
}

fn unix_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}
