//! Network devices, their addresses and routes, in the calling thread's network namespace.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use ipnet::IpNet;

use crate::Error;
use crate::net::netlink::{Nest, Netlink, Request, attributes, text, u16_at, u32_at};

/// A network device as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its number in the namespace.
    pub index: u32,
    /// `IFF_…`.
    pub flags: u32,
    /// `ARPHRD_…`: the kind of link-layer header.
    pub hardware: u16,
    /// Its alias, which is empty for most.
    pub alias: String,
    /// The kind of driver that created it, such as `veth` or `ifb`; empty for physical devices.
    pub kind: String,
    /// The most payload per packet, in bytes.
    pub mtu: u32,
    /// The number of the bridge or bond that it is a port of; 0 is none.
    pub master: u32,
    /// L2 bytes that it has received, as its driver counts them.
    pub received: u64,
    /// L2 bytes that it has sent, as its driver counts them.
    pub sent: u64,
}

impl Link {
    /// Whether it is administratively up.
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// Bytes in front of the IP header: 14, or 0 on tun and the like.
    pub(crate) fn header_bytes(&self) -> u32 {
        if self.hardware == libc::ARPHRD_ETHER { ETHERNET_HEADER } else { 0 }
    }

    fn parse(payload: &[u8]) -> Option<Link> {
        let mut link = Link {
            name: String::new(),
            index: u32_at(payload, 4)?,
            flags: u32_at(payload, 8)?,
            hardware: u16_at(payload, 2)?,
            alias: String::new(),
            kind: String::new(),
            mtu: 0,
            master: 0,
            received: 0,
            sent: 0,
        };
        for (kind, value) in attributes(payload.get(IFINFO_BYTES..)?) {
            match kind {
                libc::IFLA_IFNAME => link.name = text(value),
                libc::IFLA_IFALIAS => link.alias = text(value),
                libc::IFLA_MTU => link.mtu = u32_at(value, 0)?,
                libc::IFLA_MASTER => link.master = u32_at(value, 0)?,
                // struct rtnl_link_stats64: rx_packets, tx_packets, rx_bytes, tx_bytes.
                libc::IFLA_STATS64 => {
                    let bytes = |at| value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
                    link.received = bytes(16).map_or(0, u64::from_ne_bytes);
                    link.sent = bytes(24).map_or(0, u64::from_ne_bytes);
                }
                libc::IFLA_LINKINFO => {
                    let kind = attributes(value).find(|&(k, _)| k == IFLA_INFO_KIND);
                    link.kind = kind.map_or(String::new(), |(_, value)| text(value));
                }
                _ => {}
            }
        }
        Some(link)
    }
}

/// The device `name`, or `None` if there is none.
///
/// # Errors
/// If the kernel does not answer.
pub fn find(name: &str) -> Result<Option<Link>, Error> {
    find_with(&mut Netlink::open()?, name)
}

pub(crate) fn find_with(netlink: &mut Netlink, name: &str) -> Result<Option<Link>, Error> {
    let request = Request::new(libc::RTM_GETLINK, 0, &ifinfo(0, 0, 0));
    match netlink
        .ask(&format!("look for the link {name}"), request.with_text(libc::IFLA_IFNAME, name))
    {
        Ok(payload) => Ok(Link::parse(&payload)),
        // A device cannot have a name that is too long.
        Err(e) if matches!(e.errno(), Some(libc::ENODEV | libc::ERANGE | libc::EINVAL)) => Ok(None),
        Err(e) => Err(e),
    }
}

pub(crate) fn find_index_with(netlink: &mut Netlink, index: u32) -> Result<Option<Link>, Error> {
    let request = Request::new(libc::RTM_GETLINK, 0, &ifinfo(index, 0, 0));
    match netlink.ask(&format!("look for the link number {index}"), request) {
        Ok(payload) => Ok(Link::parse(&payload)),
        Err(e) if e.errno() == Some(libc::ENODEV) => Ok(None),
        Err(e) => Err(e),
    }
}

/// All devices.
///
/// # Errors
/// If the kernel does not answer.
pub fn all() -> Result<Vec<Link>, Error> {
    all_with(&mut Netlink::open()?)
}

pub(crate) fn all_with(netlink: &mut Netlink) -> Result<Vec<Link>, Error> {
    let mut links = Vec::new();
    let request = Request::new(libc::RTM_GETLINK, 0, &ifinfo(0, 0, 0));
    netlink.dump("list the links", request, |payload| links.extend(Link::parse(payload)))?;
    Ok(links)
}

/// The number of the device `name`, or `None` if there is none.
pub fn index(name: &str) -> Option<u32> {
    find(name).ok().flatten().map(|link| link.index)
}

/// The alias of the device `name`, or `None` if there is no such device.
pub fn alias(name: &str) -> Option<String> {
    find(name).ok().flatten().map(|link| link.alias)
}

/// The flags (`IFF_…`) of the device `name`, or `None` if there is no such device.
pub fn flags(name: &str) -> Option<u32> {
    find(name).ok().flatten().map(|link| link.flags)
}

/// Makes a pair of virtual Ethernet devices, `name` here and `peer_name` in `peer_ns`.
///
/// # Errors
/// If a device of that name exists, or without CAP_NET_ADMIN in both namespaces.
pub fn create_veth(name: &str, peer_ns: &impl AsFd, peer_name: &str) -> Result<(), Error> {
    let peer = Nest::with_header(&ifinfo(0, 0, 0))
        .with_text(libc::IFLA_IFNAME, peer_name)
        .with_u32(libc::IFLA_NET_NS_FD, peer_ns.as_fd().as_raw_fd() as u32);
    let kind = Nest::default()
        .with_text(IFLA_INFO_KIND, "veth")
        .with_nest(IFLA_INFO_DATA, Nest::default().with_nest(VETH_INFO_PEER, peer));
    Netlink::open()?
        .change(&format!("make the veth pair {name}, {peer_name}"), creation(name, kind))
}

/// Makes a bridge without ports.
///
/// # Errors
/// If a device of that name exists, or without CAP_NET_ADMIN.
pub fn create_bridge(name: &str) -> Result<(), Error> {
    let kind = Nest::default().with_text(IFLA_INFO_KIND, "bridge");
    Netlink::open()?.change(&format!("make the bridge {name}"), creation(name, kind))
}

/// Makes a device a port of a bridge.
///
/// # Errors
/// If there is no such device or bridge, or the kernel refuses.
pub fn set_bridge(name: &str, bridge: &str) -> Result<(), Error> {
    let master = index(bridge).ok_or_else(|| Error::NoDevice(bridge.to_owned()))?;
    change(name, &format!("make {name} a port of {bridge}"), |index| {
        Request::new(libc::RTM_NEWLINK, 0, &ifinfo(index, 0, 0)).with_u32(libc::IFLA_MASTER, master)
    })
}

/// Makes an intermediate functional block device with an alias. It gets no address of its own:
/// browsers abort loads when an address appears (`ERR_NETWORK_CHANGED` of Chromium).
///
/// # Errors
/// If a device of that name exists, or without CAP_NET_ADMIN.
pub fn create_ifb(name: &str, alias: &str) -> Result<(), Error> {
    create_ifb_with(&mut Netlink::open()?, name, alias)
}

pub(crate) fn create_ifb_with(netlink: &mut Netlink, name: &str, alias: &str) -> Result<(), Error> {
    let kind = Nest::default().with_text(IFLA_INFO_KIND, "ifb");
    // The kernel accepts no alias at creation; in one datagram the device is hardly ever visible without it.
    let request = Request::new(libc::RTM_SETLINK, 0, &ifinfo(0, 0, 0))
        .with_text(libc::IFLA_IFNAME, name)
        .with(libc::IFLA_IFALIAS, alias.as_bytes());
    netlink.change_all(&format!("make the ifb {name}"), &[creation(name, kind), request])?;
    let mode = Nest::default().with(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
    let request = Request::new(libc::RTM_SETLINK, 0, &ifinfo(0, 0, 0))
        .with_text(libc::IFLA_IFNAME, name)
        .with_nest(libc::IFLA_AF_SPEC, Nest::default().with_nest(libc::AF_INET6 as u16, mode));
    match netlink.change(&format!("leave {name} without an address"), request) {
        // The kernel has no IPv6.
        Err(e) if e.errno() == Some(libc::EAFNOSUPPORT) => Ok(()),
        result => result,
    }
}

/// Makes the TUN device `name` (no L2 header, no packet information); it lives as long as the file
/// descriptor, which gives and takes one IP packet per read and write.
///
/// # Errors
/// If `/dev/net/tun` is missing, a device of that name exists, or without CAP_NET_ADMIN.
pub fn tun(name: &str) -> Result<OwnedFd, Error> {
    let attempted = || format!("make the TUN device {name}");
    let file = File::options().read(true).write(true).open("/dev/net/tun");
    let file = file.map_err(|e| Error::refused(attempted(), e))?;
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL) as i16;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which outlives the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) } < 0 {
        return Err(Error::last_os(attempted()));
    }
    Ok(file.into())
}

/// Deletes a device; of a veth pair, both ends are deleted.
///
/// # Errors
/// If there is none, or the kernel keeps it.
pub fn delete(name: &str) -> Result<(), Error> {
    change(name, &format!("delete the link {name}"), deletion)
}

pub(crate) fn deletion(index: u32) -> Request {
    Request::new(libc::RTM_DELLINK, 0, &ifinfo(index, 0, 0))
}

/// Sets a device up.
///
/// # Errors
/// If there is none, or the kernel refuses.
pub fn set_up(name: &str) -> Result<(), Error> {
    change(name, &format!("set the link {name} up"), raising)
}

pub(crate) fn raising(index: u32) -> Request {
    let up = libc::IFF_UP as u32;
    Request::new(libc::RTM_NEWLINK, 0, &ifinfo(index, up, up))
}

/// Sets a device down.
///
/// # Errors
/// If there is none, or the kernel refuses.
pub fn set_down(name: &str) -> Result<(), Error> {
    let up = libc::IFF_UP as u32;
    change(name, &format!("set the link {name} down"), |index| {
        Request::new(libc::RTM_NEWLINK, 0, &ifinfo(index, 0, up))
    })
}

/// Sets the most payload per packet, in bytes.
///
/// # Errors
/// If there is no such device, or the kernel refuses.
pub fn set_mtu(name: &str, bytes: u32) -> Result<(), Error> {
    change(name, &format!("set the MTU of {name} to {bytes}"), |index| {
        Request::new(libc::RTM_NEWLINK, 0, &ifinfo(index, 0, 0)).with_u32(libc::IFLA_MTU, bytes)
    })
}

/// Sets the length of the device's own queue, in packets.
///
/// # Errors
/// If there is no such device, or the kernel refuses.
pub fn set_txqueuelen(name: &str, packets: u32) -> Result<(), Error> {
    change(name, &format!("set the txqueuelen of {name} to {packets}"), |index| {
        queue_length(index, packets)
    })
}

pub(crate) fn queue_length(index: u32, packets: u32) -> Request {
    Request::new(libc::RTM_NEWLINK, 0, &ifinfo(index, 0, 0)).with_u32(libc::IFLA_TXQLEN, packets)
}

/// Gives a device an address and the route to its prefix; IPv6 addresses are usable at once.
///
/// # Errors
/// If there is no such device, or it has the address.
pub fn add_address(name: &str, address: IpNet) -> Result<(), Error> {
    let (family, octets) = octets(address.addr());
    change(name, &format!("give {name} the address {address}"), |index| {
        let mut header = [family, address.prefix_len(), IFA_F_NODAD, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&index.to_ne_bytes());
        Request::new(libc::RTM_NEWADDR, CREATE, &header)
            .with(libc::IFA_LOCAL, &octets)
            .with(libc::IFA_ADDRESS, &octets)
    })
}

/// Routes `destination` to `device`, through the next hop `via` if there is one.
///
/// # Errors
/// If there is no such device, the next hop cannot be reached, or the route exists.
pub fn add_route(destination: IpNet, via: Option<IpAddr>, device: &str) -> Result<(), Error> {
    let (family, octets_to) = octets(destination.network());
    let scope = if via.is_some() || family == libc::AF_INET6 as u8 {
        libc::RT_SCOPE_UNIVERSE
    } else {
        libc::RT_SCOPE_LINK
    };
    let mut header = [0u8; 12];
    header[..8].copy_from_slice(&[
        family,
        destination.prefix_len(),
        0,
        0,
        libc::RT_TABLE_MAIN,
        libc::RTPROT_STATIC,
        scope,
        libc::RTN_UNICAST,
    ]);
    change(device, &format!("route {destination} to {device}"), |index| {
        let request = Request::new(libc::RTM_NEWROUTE, CREATE, &header)
            .with(libc::RTA_DST, &octets_to)
            .with_u32(libc::RTA_OIF, index);
        match via {
            Some(hop) => request.with(libc::RTA_GATEWAY, &octets(hop).1),
            None => request,
        }
    })
}

/// Switches the offloads that make packets larger than the wire carries: GRO, GSO and TSO.
///
/// # Errors
/// If there is no such device, or its driver refuses.
pub fn offloads(name: &str, on: bool) -> Result<(), Error> {
    for (command, what) in [(ETHTOOL_SGRO, "GRO"), (ETHTOOL_SGSO, "GSO"), (ETHTOOL_STSO, "TSO")] {
        switch(name, command, what, on)?;
    }
    Ok(())
}

/// Switches the checksum offload for sent packets: without it the stack computes checksums, so that
/// a program that captures the packets can forward them.
///
/// # Errors
/// If there is no such device, or its driver refuses.
pub fn checksum_offload(name: &str, on: bool) -> Result<(), Error> {
    switch(name, ETHTOOL_STXCSUM, "the checksum offload", on)
}

fn switch(name: &str, command: u32, what: &str, on: bool) -> Result<(), Error> {
    let attempted = format!("switch {what} of {name} {}", if on { "on" } else { "off" });
    let mut value = EthtoolValue { command, value: on.into() };
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: a fresh descriptor that nothing else owns.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(Error::last_os(attempted));
    }
    // SAFETY: as above; it is closed at the end.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: SIOCETHTOOL reads one `ifreq` and the `ethtool_value` behind its pointer; both
    // outlive the call.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) } < 0 {
        return Err(Error::last_os(attempted));
    }
    Ok(())
}

fn change(name: &str, attempted: &str, request: impl FnOnce(u32) -> Request) -> Result<(), Error> {
    let mut netlink = Netlink::open()?;
    let link = find_with(&mut netlink, name)?.ok_or_else(|| Error::NoDevice(name.to_owned()))?;
    netlink.change(attempted, request(link.index))
}

fn creation(name: &str, kind: Nest) -> Request {
    Request::new(libc::RTM_NEWLINK, CREATE, &ifinfo(0, 0, 0))
        .with_text(libc::IFLA_IFNAME, name)
        .with_nest(libc::IFLA_LINKINFO, kind)
}

/// `struct ifinfomsg`: the device, its flags, and the mask of flags to change.
fn ifinfo(index: u32, flags: u32, change: u32) -> [u8; IFINFO_BYTES] {
    let mut header = [0; IFINFO_BYTES];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

fn octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    }
}

fn interface_request(name: &str) -> Result<libc::ifreq, Error> {
    // SAFETY: an `ifreq` is plain numbers, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        let source = io::Error::from_raw_os_error(libc::ENAMETOOLONG);
        return Err(Error::refused(format!("use the device name {name}"), source));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    value: u32,
}

const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const IFINFO_BYTES: usize = 16;
const ETHERNET_HEADER: u32 = 14;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_F_NODAD: u8 = 0x02;
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_SGRO: u32 = 0x2c;
const ETHTOOL_SGSO: u32 = 0x24;
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_STXCSUM: u32 = 0x17;
