//! What systemd wants to hear from a service of `Type=notify`. Source: sd_notify(3).

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells `state` (`READY=1`, `STOPPING=1`) to whoever started this process, if they asked for it.
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
        tracing::warn!("systemd cannot be told `{state}`: {e}");
    }
}
