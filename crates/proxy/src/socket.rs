//! Sockets that are bound to other hosts' addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use nix::sys::socket::sockopt::TcpMaxSeg;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

/// Length of a listener's queue of connections; the kernel applies a limit of its own.
const BACKLOG: i32 = 4_096;

/// Maximum bytes in a socket that were never sent yet. This is what a client that does not read can
/// occupy, besides the bytes in flight.
const UNSENT_MAX: u32 = 64 << 10;

/// Idle time of a connection before the kernel probes whether the other end is still there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_PERIOD: Duration = Duration::from_secs(15);
const KEEPALIVE_TRIES: u32 = 4;

/// Listens on the loopback address of a family, for connections to any address.
///
/// # Errors
/// The kernel's error.
pub(crate) fn listen(is_v4: bool, port: u16, mark: u32) -> io::Result<TcpListener> {
    let address = match is_v4 {
        true => IpAddr::from(Ipv4Addr::LOCALHOST),
        false => IpAddr::from(Ipv6Addr::LOCALHOST),
    };
    let socket = transparent(address, mark)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::new(address, port).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Starts to connect to `server` from an address that may be another host's. The port is a new one:
/// with the client's own port, connection tracking could not tell the two connections apart.
///
/// # Errors
/// The kernel's error.
pub(crate) fn connect_as(client: IpAddr, server: SocketAddr, mark: u32) -> io::Result<TcpStream> {
    let socket = transparent(client, mark)?;
    socket.bind(&SocketAddr::new(client, 0).into())?;
    prepare(SockRef::from(&socket))?;
    match socket.connect(&server.into()) {
        Err(e) if e.raw_os_error() == Some(nix::libc::EINPROGRESS) => {}
        done => done?,
    }
    Ok(socket.into())
}

/// Whether the connection has opened; false while the server has not answered.
///
/// # Errors
/// Why the connection cannot open.
pub(crate) fn connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(e) = stream.take_error()? {
        return Err(e);
    }
    match stream.peer_addr() {
        Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(false),
        other => other.map(|_| true),
    }
}

fn transparent(address: IpAddr, mark: u32) -> io::Result<Socket> {
    let domain = if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match address {
        IpAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        IpAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    socket.set_mark(mark)?;
    Ok(socket)
}

/// Sets the options that the sockets of both sides have.
///
/// # Errors
/// The kernel's error.
pub(crate) fn prepare(socket: SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(UNSENT_MAX)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_PERIOD)
        .with_retries(KEEPALIVE_TRIES);
    socket.set_tcp_keepalive(&keepalive)
}

/// Closes with a reset.
pub(crate) fn reset(stream: &TcpStream) {
    // If the kernel refuses the option, the socket is closed without a reset.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Maximum payload of a segment, in bytes.
pub(crate) fn segment(stream: &TcpStream) -> u64 {
    let mss = nix::sys::socket::getsockopt(stream, TcpMaxSeg).unwrap_or(0);
    u64::from(mss).clamp(536, 9_000)
}
