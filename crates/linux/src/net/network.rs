//! Identifies the network that a device is connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fairweir_core::packet::Mac;
use fairweir_core::units::Span;

use crate::Error;
use crate::net::link;
use crate::net::netlink::{
    NFGENMSG_BYTES, Netlink, Request, attribute, dump_nftables, text, u16_at, u32_at,
};

/// A name for the network behind `dev`, under which its capacity can be remembered: `gateway ` and
/// the hardware address of the default route's next hop. `None` if there is no such route, or that
/// address is not resolved yet.
pub fn identity(dev: &str) -> Option<String> {
    match find(dev) {
        Ok(identity) => identity,
        Err(e) => {
            tracing::debug!(error = %e, dev, "the network is not identified");
            None
        }
    }
}

/// The device of the default route with the smallest metric, IPv4 before IPv6.
///
/// # Errors
/// If the kernel refuses.
pub fn default_device() -> Result<Option<String>, Error> {
    Ok(default_devices()?.into_iter().next())
}

/// The devices of all default routes, once each: by metric, IPv4 before IPv6.
///
/// # Errors
/// If the kernel refuses.
pub fn default_devices() -> Result<Vec<String>, Error> {
    let mut netlink = Netlink::open()?;
    let mut all: Vec<u32> = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        for route in default_routes(&mut netlink, family as u8)? {
            for (device, _) in route.hops {
                if !all.contains(&device) {
                    all.push(device);
                }
            }
        }
    }
    let links = link::all_with(&mut netlink)?;
    let name = |device: u32| links.iter().find(|link| link.index == device);
    Ok(all.into_iter().filter_map(name).map(|link| link.name.clone()).collect())
}

/// Whether nftables, or iptables based on it, has a chain that translates source addresses. False
/// if the kernel has no nftables.
///
/// # Errors
/// If the kernel refuses.
pub fn has_nat() -> Result<bool, Error> {
    let mut found = false;
    dump_nftables("list the chains", GET_CHAIN, |payload| found |= is_source_nat(payload))?;
    Ok(found)
}

/// Whether a chain of nftables, as the kernel lists it, translates source addresses.
fn is_source_nat(payload: &[u8]) -> bool {
    let attributes = payload.get(NFGENMSG_BYTES..).unwrap_or_default();
    let kind = attribute(attributes, NFTA_CHAIN_TYPE).map(text);
    let hook = attribute(attributes, NFTA_CHAIN_HOOK);
    let hook = hook.and_then(|hook| u32_at(attribute(hook, NFTA_HOOK_HOOKNUM)?, 0));
    kind.as_deref() == Some("nat") && hook.map(u32::from_be) == Some(POSTROUTING)
}

/// The next hop of the default route over a device, IPv4 before IPv6.
///
/// # Errors
/// If the kernel refuses.
pub fn gateway(dev: &str) -> Result<Option<IpAddr>, Error> {
    let mut netlink = Netlink::open()?;
    let Some(device) = link::find_with(&mut netlink, dev)? else { return Ok(None) };
    if let Some(hop) = next_hop(&mut netlink, libc::AF_INET as u8, device.index)? {
        return Ok(<[u8; 4]>::try_from(hop).ok().map(IpAddr::from));
    }
    let hop = next_hop(&mut netlink, libc::AF_INET6 as u8, device.index)?;
    Ok(hop.and_then(|hop| <[u8; 16]>::try_from(hop).ok()).map(IpAddr::from))
}

fn find(dev: &str) -> Result<Option<String>, Error> {
    let mut netlink = Netlink::open()?;
    let Some(device) = link::find_with(&mut netlink, dev)? else {
        return Ok(None);
    };
    for family in [libc::AF_INET, libc::AF_INET6] {
        if let Some(hop) = next_hop(&mut netlink, family as u8, device.index)?
            && let Some(address) = hardware_address(&mut netlink, device.index, &hop)?
        {
            let octets: Vec<String> = address.iter().map(|octet| format!("{octet:02x}")).collect();
            return Ok(Some(format!("gateway {}", octets.join(":"))));
        }
    }
    Ok(None)
}

/// The next hop of the default route over the device with the smallest metric.
fn next_hop(netlink: &mut Netlink, family: u8, device: u32) -> Result<Option<Vec<u8>>, Error> {
    let routes = default_routes(netlink, family)?;
    let hops = routes.into_iter().flat_map(|route| route.hops);
    Ok(hops.filter(|(over, _)| *over == device).find_map(|(_, hop)| hop))
}

/// A default route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefaultRoute {
    metric: u32,
    /// Devices with their next hops; a route with several uses all at once.
    pub(crate) hops: Vec<(u32, Option<Vec<u8>>)>,
}

impl DefaultRoute {
    fn parse(payload: &[u8], family: u8) -> Option<DefaultRoute> {
        let all = payload.get(RTMSG_BYTES..).filter(|_| payload[..2] == [family, 0])?;
        let number = |kind| attribute(all, kind).and_then(|value| u32_at(value, 0));
        let gateway = |within| attribute(within, libc::RTA_GATEWAY).map(<[u8]>::to_vec);
        let mut hops: Vec<_> =
            number(libc::RTA_OIF).map(|device| (device, gateway(all))).into_iter().collect();
        // `struct rtnexthop`: its length, flags, weight, device; then attributes.
        let mut rest = attribute(all, libc::RTA_MULTIPATH).unwrap_or_default();
        while let (Some(length), Some(device)) = (u16_at(rest, 0), u32_at(rest, 4)) {
            let length = usize::from(length);
            let Some(within) = rest.get(RTNEXTHOP_BYTES..length) else { break };
            hops.push((device, gateway(within)));
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        let metric = number(libc::RTA_PRIORITY).unwrap_or(0);
        (!hops.is_empty()).then_some(DefaultRoute { metric, hops })
    }
}

/// All default routes, by metric.
pub(crate) fn default_routes(
    netlink: &mut Netlink,
    family: u8,
) -> Result<Vec<DefaultRoute>, Error> {
    let mut header = [0; RTMSG_BYTES];
    header[0] = family;
    let request = Request::new(libc::RTM_GETROUTE, 0, &header);
    let mut routes = Vec::new();
    netlink.dump("list the routes", request, |payload| {
        routes.extend(DefaultRoute::parse(payload, family));
    })?;
    routes.sort_by_key(|route| route.metric);
    Ok(routes)
}

/// The device by which a packet of this machine to the Internet leaves, by all rules and tables;
/// `None` if there is no route. Sends nothing.
///
/// # Errors
/// If the kernel does not answer.
pub(crate) fn way_out(netlink: &mut Netlink, family: u8) -> Result<Option<u32>, Error> {
    let to = match i32::from(family) {
        libc::AF_INET => SOMEWHERE4.octets().to_vec(),
        _ => SOMEWHERE6.octets().to_vec(),
    };
    let mut header = [0; RTMSG_BYTES];
    (header[0], header[1]) = (family, to.len() as u8 * 8);
    let request = Request::new(libc::RTM_GETROUTE, 0, &header).with(libc::RTA_DST, &to);
    let routes = default_routes(netlink, family)?;
    let found = match netlink.ask("look up the route to the Internet", request) {
        Ok(payload) => {
            let attributes = payload.get(RTMSG_BYTES..).unwrap_or_default();
            attribute(attributes, libc::RTA_OIF).and_then(|device| u32_at(device, 0))
        }
        // No route; or only routes for some sources, as OpenWrt has them for IPv6.
        Err(e) if e.errno().is_some() => None,
        Err(e) => return Err(e),
    };
    Ok(found.or_else(|| Some(routes.first()?.hops.first()?.0)))
}

/// Another host on the same link, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The number of the device behind which it is.
    pub device: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its link-layer address.
    pub mac: Mac,
    /// Time since the kernel last confirmed the neighbour.
    pub silent: Span,
}

/// All neighbours, of all devices, with known link-layer addresses.
///
/// # Errors
/// If the kernel does not answer.
pub fn neighbours() -> Result<Vec<Neighbour>, Error> {
    let mut found = Vec::new();
    let request = Request::new(libc::RTM_GETNEIGH, 0, &[0; NDMSG_BYTES]);
    Netlink::open()?.dump("list the neighbours", request, |payload| {
        let attributes = payload.get(NDMSG_BYTES..).unwrap_or_default();
        let address = match attribute(attributes, NDA_DST) {
            Some(v4 @ [_, _, _, _]) => <[u8; 4]>::try_from(v4).ok().map(IpAddr::from),
            Some(v6) => <[u8; 16]>::try_from(v6).ok().map(IpAddr::from),
            None => None,
        };
        let mac = attribute(attributes, NDA_LLADDR).and_then(|mac| mac.try_into().ok());
        let ticks = attribute(attributes, NDA_CACHEINFO).and_then(|times| u32_at(times, 0));
        let silent = Span::millis(u64::from(ticks.unwrap_or(0)) * TICK_MS);
        let known = u32_at(payload, 4).zip(address).zip(mac.map(Mac));
        found.extend(known.map(|((device, address), mac)| Neighbour {
            device,
            address,
            mac,
            silent,
        }));
    })?;
    Ok(found)
}

fn hardware_address(
    netlink: &mut Netlink,
    device: u32,
    hop: &[u8],
) -> Result<Option<Vec<u8>>, Error> {
    let mut found = None;
    let request = Request::new(libc::RTM_GETNEIGH, 0, &[0; NDMSG_BYTES]);
    netlink.dump("list the neighbours", request, |payload| {
        let attributes = payload.get(NDMSG_BYTES..).unwrap_or_default();
        let here = u32_at(payload, 4) == Some(device);
        if here && attribute(attributes, NDA_DST) == Some(hop) {
            found = attribute(attributes, NDA_LLADDR).map(<[u8]>::to_vec);
        }
    })?;
    Ok(found)
}

/// `NFT_MSG_GETCHAIN`. Source: linux/netfilter/nf_tables.h.
const GET_CHAIN: u16 = 4;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
/// `NF_INET_POST_ROUTING`.
const POSTROUTING: u32 = 4;
const RTMSG_BYTES: usize = 12;
const RTNEXTHOP_BYTES: usize = 8;
/// Addresses to which only a default route leads (RFC 5737, RFC 3849).
const SOMEWHERE4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const SOMEWHERE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1);
const NDMSG_BYTES: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// `struct nda_cacheinfo`, whose first field is the time since confirmation. Source: linux/neighbour.h.
const NDA_CACHEINFO: u16 = 3;
/// The kernel reports times in hundredths of a second, independent of its own clock (USER_HZ).
const TICK_MS: u64 = 10;
