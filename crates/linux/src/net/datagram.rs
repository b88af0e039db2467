//! What waits at a datagram socket, and what was dropped there.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::socket::{getsockopt, setsockopt, sockopt};

/// Lets about `bytes` bytes wait, as the kernel counts them: of each packet more than its length. Returns how many it
/// lets wait, which is less if neither CAP_NET_ADMIN nor `net.core.rmem_max` allow more.
///
/// # Errors
/// If the kernel refuses any size.
pub fn set_receive_buffer(socket: &impl AsFd, bytes: usize) -> io::Result<usize> {
    // The kernel doubles what it is told (socket(7)).
    let half = bytes / 2;
    if setsockopt(socket, sockopt::RcvBufForce, &half).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &half)?;
    }
    Ok(getsockopt(socket, sockopt::RcvBuf)?)
}

/// How many packets the kernel has dropped at a socket, most of all because too many waited.
///
/// # Errors
/// If the kernel does not say.
pub fn drops(socket: &impl AsFd) -> io::Result<u64> {
    // Source: include/uapi/linux/sock_diag.h.
    const SK_MEMINFO_DROPS: usize = 8;
    let mut counts = [0_u32; SK_MEMINFO_DROPS + 1];
    let mut length = std::mem::size_of_val(&counts) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of the array.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            counts.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(counts[SK_MEMINFO_DROPS].into())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn what_does_not_fit_into_the_receive_buffer_is_counted() {
        let [receiver, sender] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        receiver.set_nonblocking(true).unwrap();
        let to = receiver.local_addr().unwrap();
        let size = set_receive_buffer(&receiver, 65_536).unwrap();
        assert!((4_096..=65_536).contains(&size), "{size}");
        assert_eq!(drops(&receiver).unwrap(), 0);
        for _ in 0..1_000 {
            sender.send_to(&[0; 200], to).unwrap();
        }
        let mut received = 0;
        while receiver.recv(&mut [0; 200]).is_ok() {
            received += 1;
        }
        assert!(received < 1_000);
        assert_eq!(received + drops(&receiver).unwrap(), 1_000);
        assert!(set_receive_buffer(&receiver, 1 << 20).unwrap() > size);
    }
}
