//! TCP that spreads its packets over the round trip, for the lab's servers.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// 100 Gbit/s in bytes per second: more than any rate in a lab. The largest number would turn pacing off.
const RATE_MAX: u64 = 100_000_000_000 / 8;

/// Makes the kernel pace a TCP socket, and those that it accepts from now on, as the fq qdisc
/// would: at twice the window per round trip in slow start, 1.2 times later. A socket with a
/// maximum pacing rate paces itself where there is no fq (tcp(7), `net.ipv4.tcp_pacing_ss_ratio`).
///
/// # Errors
/// If the descriptor is not a socket.
pub fn pace(socket: &impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    let rate = RATE_MAX;
    let length = std::mem::size_of::<u64>() as libc::socklen_t;
    // SAFETY: the value outlives the call, and the length is the value's.
    let done = unsafe {
        libc::setsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const rate).cast(),
            length,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
