//! TCP sockets of this process: their round-trip times, and their receive buffers.

use std::os::fd::{AsRawFd, BorrowedFd};

use fairweir_core::units::{Bytes, Span};

/// The round-trip time of a connection: from its acknowledgements and its opening, or from the data
/// that it receives, whichever is shorter; `None` while it is unknown. A retransmitted opening, for
/// which the kernel waits a second, gives no information. Source: RFC 6298, section 2.
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
    let opening = Some(info.tcpi_rtt).filter(|&us| us < RTO_FIRST_US);
    let both = [opening.unwrap_or(0), info.tcpi_rcv_rtt].into_iter().filter(|&us| us > 0);
    both.min().map(|us| Span::micros(us.into()))
}

/// Sets a connection's receive buffer, beyond the limit of unprivileged users if the process may.
/// After that only the buffer bounds the window: without the second option, a kernel keeps the
/// bound that it chose when the connection opened.
pub fn set_receive_buffer(socket: BorrowedFd<'_>, size: Bytes) {
    let bytes = libc::c_int::try_from(size.as_u64()).unwrap_or(libc::c_int::MAX / 2);
    // The kernel doubles the first value, for its own overhead.
    let clamp = bytes.saturating_mul(2);
    if set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
        let _ = set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
    }
    let _ = set(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, clamp);
}

/// The retransmission timeout before the first measurement, in µs. Source: RFC 6298, section 2.1.
const RTO_FIRST_US: u32 = 1_000_000;

fn set(socket: BorrowedFd<'_>, level: i32, name: i32, value: libc::c_int) -> Result<(), ()> {
    // SAFETY: the kernel reads one number of the given size, which outlives the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(()) }
}
