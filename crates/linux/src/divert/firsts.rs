//! First packets of connections, which the kernel drops and hands over, and which are sent on
//! later; and copies of the requests of DHCP clients.
//!
//! Packets come through the netfilter log. A packet is delivered by a raw socket whose mark routes it to
//! this host, so that it comes in again at `lo`. Source: linux/netfilter/nfnetlink_log.h, raw(7).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use fairweir_core::packet::Mac;
use fairweir_core::relay::Syn;
use nix::sys::socket::sockopt::{Mark, Priority};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, setsockopt,
    socket,
};

use super::{SOCKET_MARK, TABLE_NUMBER};
use crate::Error;
use crate::net::netlink::{Netlink, Request, attribute, u16_at, u32_at};

/// The group of the netfilter log, which the table's rule names.
pub(super) const GROUP: u32 = TABLE_NUMBER;

/// The priority of packets that are sent in again; the table's rules recognise them by it.
pub(super) const PRIORITY: u32 = TABLE_NUMBER << 16 | 1;

/// A packet that the kernel hands over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The first packet of a connection.
    Syn(Syn),
    /// A message to a DHCP server, from a frame of this device.
    Dhcp(Mac, Box<[u8]>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Firsts {
    log: netlink_sys::Socket,
    /// Raw sockets by family, IPv4 first: to this host, to clients.
    to_host: [OwnedFd; 2],
    to_client: [OwnedFd; 2],
}

impl Firsts {
    /// Opens the log and the sockets. Packets for this host will have the bit `mark`.
    ///
    /// # Errors
    /// If the kernel has no netfilter log, another program has the group, or raw sockets are refused.
    pub(super) fn open(mark: u32) -> Result<Firsts, Error> {
        let mut netlink = Netlink::open_netfilter()?;
        let [high, low] = (GROUP as u16).to_be_bytes();
        let bind = Request::new(CONFIG, 0, &[libc::AF_UNSPEC as u8, 0, high, low])
            .with(CFG_CMD, &[CMD_BIND]);
        netlink.change("read the netfilter log", bind)?;
        // The table's rule hands over fewer bytes of first packets.
        let [a, b, c, d] = (DHCP_MAX as u32).to_be_bytes();
        let mode = Request::new(CONFIG, 0, &[libc::AF_UNSPEC as u8, 0, high, low])
            .with(CFG_MODE, &[a, b, c, d, COPY_PACKET, 0])
            .with(CFG_THRESHOLD, &1_u32.to_be_bytes());
        netlink.change("read packets of the netfilter log", mode)?;
        let log = netlink.into_socket();
        let refused = |e: io::Error| Error::refused("open a raw socket", e);
        log.set_non_blocking(true).map_err(refused)?;
        let pair = || Ok([raw(AddressFamily::Inet)?, raw(AddressFamily::Inet6)?]);
        let (to_host, to_client) = (pair().map_err(refused)?, pair().map_err(refused)?);
        for socket in &to_host {
            setsockopt(socket, Priority, &(PRIORITY as i32)).map_err(|e| refused(e.into()))?;
        }
        let firsts = Firsts { log, to_host, to_client };
        firsts.set_mark(mark)?;
        Ok(firsts)
    }

    /// Changes the mark of packets for this host.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn set_mark(&self, mark: u32) -> Result<(), Error> {
        self.to_host
            .iter()
            .try_for_each(|socket| setsockopt(socket, Mark, &(mark | SOCKET_MARK)))
            .map_err(|e| Error::refused("mark packets", e))
    }

    /// Readable when [`Firsts::poll`] has a packet.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the socket that is borrowed with it.
        unsafe { BorrowedFd::borrow_raw(self.log.as_raw_fd()) }
    }

    /// The next packet, if the kernel has one.
    pub(super) fn poll(&self) -> Option<Taken> {
        let mut datagram = Vec::with_capacity(DATAGRAM_BYTES);
        loop {
            datagram.clear();
            match self.log.recv(&mut datagram, libc::MSG_DONTWAIT) {
                Ok(_) => {}
                // Packets were lost; their clients send them again.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => continue,
                Err(_) => return None,
            }
            if let Some(taken) = parse(&datagram) {
                return Some(taken);
            }
        }
    }

    /// Sends the packet to the proxy's listener.
    pub(super) fn deliver(&self, syn: &Syn) {
        send(&self.to_host, syn.packet(), syn.server().ip());
    }

    /// Tells the client that the server refuses.
    pub(super) fn refuse(&self, syn: &Syn) {
        send(&self.to_client, &syn.refusal(), syn.client().ip());
    }
}

/// A packet that cannot be sent is lost, as on a wire; the client tries again.
fn send(sockets: &[OwnedFd; 2], packet: &[u8], to: IpAddr) {
    let to_address = SockaddrStorage::from(SocketAddr::new(to, 0));
    let socket = &sockets[usize::from(to.is_ipv6())];
    if let Err(e) = sendto(socket.as_raw_fd(), packet, &to_address, MsgFlags::MSG_DONTWAIT) {
        tracing::debug!(%to, "a packet was not sent: {e}");
    }
}

fn raw(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    // The packets contain their own headers.
    let socket = socket(family, SockType::Raw, flags, SockProtocol::Raw)?;
    setsockopt(&socket, Mark, &SOCKET_MARK)?;
    Ok(socket)
}

/// The packet in a message of the log. With a threshold of one, a datagram has one packet.
fn parse(datagram: &[u8]) -> Option<Taken> {
    let length = u32_at(datagram, 0)? as usize;
    if u16_at(datagram, 4)? != PACKET {
        return None;
    }
    let attributes = datagram.get(MESSAGE_BYTES..length)?;
    // Length in network order, padding, address.
    let mac = attribute(attributes, PACKET_HWADDR)
        .filter(|hw| hw.get(..2) == Some(&[0, 6]))
        .and_then(|hw| Some(Mac(hw.get(4..10)?.try_into().ok()?)));
    let packet = attribute(attributes, PACKET_PAYLOAD)?;
    match dhcp(packet) {
        Some(message) => Some(Taken::Dhcp(mac?, message.into())),
        None => Syn::parse(packet, mac).map(Taken::Syn),
    }
}

/// The message of an IPv4 packet to a DHCP server; the table takes no other UDP.
fn dhcp(packet: &[u8]) -> Option<&[u8]> {
    let length = usize::from(packet.first()? & 15) * 4;
    let is_udp = packet[0] >> 4 == 4 && *packet.get(9)? == libc::IPPROTO_UDP as u8;
    (is_udp && length >= 20).then(|| packet.get(length + UDP_BYTES..)).flatten()
}

/// Maximum bytes of a message to a DHCP server that are handed over, with its headers.
pub(super) const DHCP_MAX: usize = 1_024;
const UDP_BYTES: usize = 8;
/// Bytes of the headers of a netlink message and of a netfilter message.
const MESSAGE_BYTES: usize = 16 + 4;
/// Room for a packet's headers and the kernel's metadata.
const DATAGRAM_BYTES: usize = 8_192;
const SUBSYSTEM: u16 = 4 << 8;
const PACKET: u16 = SUBSYSTEM;
const CONFIG: u16 = SUBSYSTEM | 1;
const CFG_CMD: u16 = 1;
const CFG_MODE: u16 = 2;
const CFG_THRESHOLD: u16 = 5;
const CMD_BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
const PACKET_HWADDR: u16 = 8;
const PACKET_PAYLOAD: u16 = 9;
