//! One daemon in a network namespace: two would take each other's connections, and give them back wrongly.
//!
//! Method: a listening socket with an abstract name, which a network namespace has once whatever the run directory
//! is, and which goes with its process. Another user may take the name; that is told, and keeps no daemon out.

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

/// The exclusive right to the connections of this network namespace; given back when it drops.
pub(super) struct NamespaceLock(OwnedFd);

/// In the namespace of abstract sockets.
const NAME: &[u8] = b"fairweir-sender";
/// A daemon answers at once, or within a tick if many have asked.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

impl NamespaceLock {
    /// Takes the right; `None` if a user other than this one has the name.
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
            // It has just ended, or its queue is full.
            sleep(PAUSE);
        }
        warn!("the lock of this network namespace does not answer; it is not used");
        Ok(None)
    }

    /// Takes those that have asked out of the queue, so that it has room for others.
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
