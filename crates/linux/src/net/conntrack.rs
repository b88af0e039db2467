//! Connections whose source address this host translates (NAT), as the kernel tracks them. Source:
//! linux/netfilter/nfnetlink_conntrack.h.

use std::net::IpAddr;

use super::netlink::{Netlink, Request, attribute};
use crate::Error;

/// A connection, as described by its first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// The sender of the packet.
    pub from: IpAddr,
    /// The sender's address behind this host, to which answers are sent.
    pub shown: IpAddr,
}

/// The first `max` translated connections of the caller's network namespace. If there are fewer,
/// the kernel walks all connections that it tracks.
///
/// # Errors
/// If the kernel refuses, for example without CAP_NET_ADMIN or connection tracking.
pub fn translated(max: usize) -> Result<Vec<Translated>, Error> {
    let status = SRC_NAT.to_be_bytes();
    let header = [libc::AF_UNSPEC as u8, 0, 0, 0];
    let request = Request::new(GET, 0, &header).with(STATUS, &status).with(STATUS_MASK, &status);
    let mut found = Vec::new();
    Netlink::open_netfilter()?.dump_some("list translated connections", request, |payload| {
        // An older kernel ignores the filter and lists all connections.
        let attributes = payload.get(header.len()..).unwrap_or_default();
        let is_translated = attribute(attributes, STATUS)
            .and_then(|bytes| bytes.try_into().ok().map(u32::from_be_bytes))
            .is_some_and(|status| status & SRC_NAT != 0);
        let from = address(attributes, TUPLE_ORIG, [V4_SRC, V6_SRC]);
        let shown = address(attributes, TUPLE_REPLY, [V4_DST, V6_DST]);
        if let (true, Some((from, shown))) = (is_translated, from.zip(shown)) {
            found.push(Translated { from, shown });
        }
        found.len() < max
    })?;
    Ok(found)
}

fn address(attributes: &[u8], tuple: u16, [v4, v6]: [u16; 2]) -> Option<IpAddr> {
    let ip = attribute(attribute(attributes, tuple)?, TUPLE_IP)?;
    let v4 = attribute(ip, v4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    let v6 = attribute(ip, v6).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    v4.map(IpAddr::from).or(v6.map(IpAddr::from))
}

/// `IPCTNL_MSG_CT_GET` of `NFNL_SUBSYS_CTNETLINK`.
const GET: u16 = 1 << 8 | 1;
const SRC_NAT: u32 = 1 << 4;
const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const STATUS_MASK: u16 = 26;
const TUPLE_IP: u16 = 1;
const V4_SRC: u16 = 1;
const V4_DST: u16 = 2;
const V6_SRC: u16 = 3;
const V6_DST: u16 = 4;
