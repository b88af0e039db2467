//! Datagram sockets: receive buffers, dropped packets, and answers from the address that was asked.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

use fairweir_core::packet::as_ip6;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn6, getsockopt, recvmsg, sendmsg,
    setsockopt, sockopt,
};

use crate::net::link;

/// A datagram that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Number of bytes; at most the length of the buffer.
    pub length: usize,
    /// The sender; an IPv4 address is not mapped.
    pub from: SocketAddr,
    /// The destination address; IPv4 as an IPv6 address.
    to: Ipv6Addr,
}

/// Listens at a port for datagrams that arrive at a device, by IPv4 and IPv6, without blocking.
///
/// # Errors
/// If the port is in use, or there is no such device.
pub fn listen_at(device: &str, port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))?;
    socket.set_nonblocking(true)?;
    setsockopt(&socket, sockopt::BindToDevice, &OsString::from(device))?;
    setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    Ok(socket)
}

/// A socket for datagrams to and from one peer over a device, without blocking. The peer may have a link-local address,
/// or be a link-local group.
///
/// # Errors
/// If there is no such device, or no route over it.
pub fn connect_over(device: &str, to: SocketAddr) -> io::Result<UdpSocket> {
    let any = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        IpAddr::from(Ipv6Addr::UNSPECIFIED)
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    setsockopt(&socket, sockopt::BindToDevice, &OsString::from(device))?;
    socket.connect(match to {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() || v6.ip().is_multicast() => {
            setsockopt(&socket, sockopt::Ipv6MulticastHops, &ON_LINK)?;
            let scope = link::index(device).ok_or(io::ErrorKind::NotFound)?;
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into()
        }
        other => other,
    })?;
    Ok(socket)
}

/// A non-blocking socket that receives at a port of a link-local group at a device, and the address to send to there.
///
/// # Errors
/// If the port is in use, there is no such device, or it has no IPv6.
pub fn join_at(device: &str, group: Ipv6Addr, port: u16) -> io::Result<(UdpSocket, SocketAddrV6)> {
    let socket = listen_at(device, port)?;
    let scope = link::index(device).ok_or(io::ErrorKind::NotFound)?;
    socket.join_multicast_v6(&group, scope)?;
    socket.set_multicast_loop_v6(false)?;
    setsockopt(&socket, sockopt::Ipv6RecvHopLimit, &true)?;
    setsockopt(&socket, sockopt::Ipv6MulticastHops, &ON_LINK)?;
    setsockopt(&socket, sockopt::Ipv6Ttl, &ON_LINK)?;
    Ok((socket, SocketAddrV6::new(group, port, 0, scope)))
}

/// The hop limit of packets that no router has forwarded (RFC 5082).
const ON_LINK: i32 = 255;

/// The next datagram of a socket of [`join_at`]: its length, and the address of this link that sent
/// it; `None` if it is from elsewhere.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if no datagram waits.
pub fn receive_on_link(
    socket: &UdpSocket,
    bytes: &mut [u8],
) -> io::Result<Option<(usize, Ipv6Addr)>> {
    let mut parts = [IoSliceMut::new(bytes)];
    let mut control = nix::cmsg_space!(libc::in6_pktinfo, libc::c_int);
    let fd = socket.as_raw_fd();
    let message = recvmsg::<SockaddrIn6>(fd, &mut parts, Some(&mut control), MsgFlags::empty())?;
    let is_near =
        message.cmsgs()?.any(|one| matches!(one, ControlMessageOwned::Ipv6HopLimit(ON_LINK)));
    let from = message.address.map(|from| from.ip());
    Ok(from
        .filter(|from| is_near && from.is_unicast_link_local())
        .map(|from| (message.bytes, from)))
}

/// The next datagram of a socket of [`listen_at`].
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if no datagram waits.
pub fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> io::Result<Asked> {
    let mut parts = [IoSliceMut::new(bytes)];
    let mut control = nix::cmsg_space!(libc::in6_pktinfo);
    let fd = socket.as_raw_fd();
    let message = recvmsg::<SockaddrIn6>(fd, &mut parts, Some(&mut control), MsgFlags::empty())?;
    let to = message.cmsgs()?.find_map(|one| match one {
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(info.ipi6_addr.s6_addr.into()),
        _ => None,
    });
    let (Some(from), Some(to)) = (message.address, to) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
    Ok(Asked { length: message.bytes, from, to })
}

/// Answers a datagram from the address to which it was sent.
///
/// # Errors
/// If the kernel refuses.
pub fn answer(socket: &UdpSocket, asked: &Asked, bytes: &[u8]) -> io::Result<()> {
    let to = SocketAddrV6::new(as_ip6(asked.from.ip()), asked.from.port(), 0, 0);
    let to = SockaddrIn6::from(to);
    let info = libc::in6_pktinfo {
        ipi6_addr: libc::in6_addr { s6_addr: asked.to.octets() },
        ipi6_ifindex: 0,
    };
    let control = [ControlMessage::Ipv6PacketInfo(&info)];
    let fd = socket.as_raw_fd();
    sendmsg(fd, &[IoSlice::new(bytes)], &control, MsgFlags::empty(), Some(&to)).map(drop)?;
    Ok(())
}

/// Sets the receive buffer to about `bytes`, as the kernel counts: for each packet more than its length. Returns
/// the size in force, which is smaller if neither CAP_NET_ADMIN nor `net.core.rmem_max` allow the whole.
///
/// # Errors
/// If the kernel refuses any size.
pub fn set_receive_buffer(socket: &impl AsFd, bytes: usize) -> io::Result<usize> {
    // The kernel doubles the value (socket(7)).
    let half = bytes / 2;
    if setsockopt(socket, sockopt::RcvBufForce, &half).is_err() {
        setsockopt(socket, sockopt::RcvBuf, &half)?;
    }
    Ok(getsockopt(socket, sockopt::RcvBuf)?)
}

/// Number of packets that the kernel has dropped at a socket, mostly because too many waited.
///
/// # Errors
/// If the kernel does not answer.
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
