//! What the kernel knows of a TCP socket of this process.

use std::os::fd::{AsRawFd, BorrowedFd};

use fairweir_core::units::Span;

/// The smoothed round-trip time of a connection, by its acknowledgements and its opening.
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
    (done == 0 && info.tcpi_rtt > 0).then(|| Span::micros(info.tcpi_rtt.into()))
}
