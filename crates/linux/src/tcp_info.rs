//! What the kernel knows of a TCP socket of this process.

use std::os::fd::{AsRawFd, BorrowedFd};

use fairweir_core::units::Span;

/// The round-trip time of a connection: by its acknowledgements and its opening, or by what it receives,
/// whichever is shorter. The opening alone may have waited for an address to be resolved.
pub fn round_trip(socket: BorrowedFd<'_>) -> Option<Span> {
    // SAFETY: a `tcp_info` is plain numbers, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, and the length; both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if done != 0 {
        return None;
    }
    let both = [info.tcpi_rtt, info.tcpi_rcv_rtt].into_iter().filter(|&us| us > 0);
    both.min().map(|us| Span::micros(us.into()))
}
