//! Which network a device is connected to.

use std::net::IpAddr;

use fairweir_core::packet::Mac;
use fairweir_core::units::Span;

use crate::Error;
use crate::net::link;
use crate::net::netlink::{
    NFGENMSG_BYTES, Netlink, Request, attribute, dump_nftables, text, u32_at,
};

/// A name for the network behind `dev`, by which its capacity can be remembered: `gateway ` and
/// the hardware address of the default route's next hop. `None` if there is no such route, or
/// its address was not resolved yet.
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
        let mut routes: Vec<(u32, u32)> = Vec::new();
        default_routes(&mut netlink, family as u8, |device, metric, _| {
            routes.push((metric, device));
        })?;
        routes.sort_by_key(|&(metric, _)| metric);
        for (_, device) in routes {
            if !all.contains(&device) {
                all.push(device);
            }
        }
    }
    let links = link::all_with(&mut netlink)?;
    let name = |device: u32| links.iter().find(|link| link.index == device);
    Ok(all.into_iter().filter_map(name).map(|link| link.name.clone()).collect())
}

/// Whether nftables, or iptables by way of it, has a chain that translates the addresses of what leaves.
/// None if the kernel has no nftables.
///
/// # Errors
/// If the kernel refuses.
pub fn has_nat() -> Result<bool, Error> {
    let mut found = false;
    dump_nftables("list the chains", GET_CHAIN, |payload| found |= is_source_nat(payload))?;
    Ok(found)
}

/// Whether a chain of nftables, as the kernel lists it, translates what leaves.
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
    let mut best: Option<(u32, Vec<u8>)> = None;
    default_routes(netlink, family, |over, metric, hop| {
        if over == device
            && let Some(hop) = hop
            && best.as_ref().is_none_or(|(least, _)| metric < *least)
        {
            best = Some((metric, hop.to_vec()));
        }
    })?;
    Ok(best.map(|(_, hop)| hop))
}

/// Shows each default route: its device, metric, and next hop if it has one.
fn default_routes(
    netlink: &mut Netlink,
    family: u8,
    mut show: impl FnMut(u32, u32, Option<&[u8]>),
) -> Result<(), Error> {
    let mut header = [0; RTMSG_BYTES];
    header[0] = family;
    let request = Request::new(libc::RTM_GETROUTE, 0, &header);
    netlink.dump("list the routes", request, |payload| {
        let attributes = payload.get(RTMSG_BYTES..).unwrap_or_default();
        let number = |kind| attribute(attributes, kind).and_then(|value| u32_at(value, 0));
        if payload.get(..2) == Some(&[family, 0])
            && let Some(device) = number(libc::RTA_OIF)
        {
            let metric = number(libc::RTA_PRIORITY).unwrap_or(0);
            show(device, metric, attribute(attributes, libc::RTA_GATEWAY));
        }
    })
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
    /// How long ago the kernel last knew that it is there.
    pub silent: Span,
}

/// The neighbours of all devices whose link-layer addresses are known.
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
const NDMSG_BYTES: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// `struct nda_cacheinfo`: the time since the neighbour was confirmed, first. Source: linux/neighbour.h.
const NDA_CACHEINFO: u16 = 3;
/// The kernel tells times in hundredths of a second, whatever its own clock (USER_HZ).
const TICK_MS: u64 = 10;
