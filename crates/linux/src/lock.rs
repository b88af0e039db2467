use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::Error;

/// The right to control a device; it goes with the process that holds it, also after `kill -9`.
///
/// An abstract Unix socket, whose names are per network namespace as those of devices are.
#[derive(Debug)]
pub struct Lock {
    _listener: UnixListener,
}

impl Lock {
    /// Takes the right to control `dev`.
    ///
    /// # Errors
    /// [`Error::AlreadyRunning`] if another process has it.
    pub fn acquire(dev: &str) -> Result<Lock, Error> {
        let attempted = || format!("lock the device {dev}");
        let address = SocketAddr::from_abstract_name(format!("fairweir/host/{dev}"))
            .map_err(|e| Error::refused(attempted(), e))?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Lock { _listener: listener }),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {
                let holder = UnixStream::connect_addr(&address)
                    .ok()
                    .and_then(|stream| getsockopt(&stream, PeerCredentials).ok());
                let pid = holder.map_or(0, |holder| holder.pid());
                Err(Error::AlreadyRunning { dev: dev.to_owned(), pid })
            }
            Err(e) => Err(Error::refused(attempted(), e)),
        }
    }
}
