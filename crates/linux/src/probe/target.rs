//! Hosts that can be reflectors if none is configured.
//!
//! The reflector must be behind the access link, and hosts of third parties must not be disturbed.
//! So requests go towards the hosts from which most is received, but with a hop limit of two: the
//! router behind the gateway, where they expire, reports it. Before anything has arrived, requests
//! go towards a root name server, and never reach it. Where the second hop is still at home (a
//! router behind a router, recognised by its address), the third is tried. If no router answers,
//! the gateway itself is asked, unless it is a home's router: it is then the ISP's, and its answers
//! wait in the queue of the access link too.
//!
//! Routers limit how often they report an expired hop limit: Linux to once per second and host. Most of
//! them answer all echo requests to themselves. So a router that reports too rarely is asked itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Error;
use crate::net::link;
use crate::net::netlink::{Netlink, Request, attribute};

/// A host that could be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) to: IpAddr,
    /// The hop limit of requests; `None` is no limit.
    pub(super) hops: Option<u8>,
    /// The next hop towards `to`.
    pub(super) gateway: IpAddr,
}

impl Candidate {
    /// The router at `address`, where the requests of this candidate expire, as the host that is asked.
    pub(super) fn router(&self, address: IpAddr) -> Candidate {
        Candidate { to: address, hops: None, gateway: self.gateway }
    }

    /// Whether the answers come from a router that may limit their rate.
    pub(super) fn is_router(&self) -> bool {
        self.hops.is_some() || self.to != self.gateway
    }

    /// Whether an answer from this address comes from behind the access link, as far as is known.
    pub(super) fn accepts(&self, from: IpAddr) -> bool {
        match self.hops {
            None => from == self.to,
            Some(_) => from != self.gateway && !is_at_home(from),
        }
    }
}

/// The bytes of sampled packets, by sender.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// At most [`SOURCES_MAX`] entries.
    volumes: Vec<(IpAddr, u64)>,
    packets: u32,
}

impl Sources {
    /// Takes in an IP packet, or its beginning.
    pub(super) fn handle_packet(&mut self, packet: &[u8]) {
        let Some((from, bytes)) = source(packet).filter(|(from, _)| is_far(*from)) else { return };
        self.packets += 1;
        let has_room = self.volumes.len() < SOURCES_MAX;
        match self.volumes.iter_mut().find(|(address, _)| *address == from) {
            Some((_, volume)) => *volume += bytes,
            None if has_room => self.volumes.push((from, bytes)),
            None => {}
        }
    }

    /// Whether more packets would hardly change the result.
    pub(super) fn are_enough(&self) -> bool {
        self.packets >= PACKETS_ENOUGH
    }

    /// The busiest senders, at most [`TRIED_MAX`].
    pub(super) fn busiest(mut self) -> Vec<IpAddr> {
        self.volumes.sort_by_key(|(_, volume)| std::cmp::Reverse(*volume));
        self.volumes.into_iter().take(TRIED_MAX).map(|(address, _)| address).collect()
    }
}

/// The candidates, best first, from the `busiest` senders with the next hop to each; `None` is a neighbour.
pub(super) fn candidates(busiest: &[(IpAddr, Option<IpAddr>)]) -> Vec<Candidate> {
    let behind = busiest.iter().filter_map(|&(to, gateway)| Some((to, gateway?)));
    let towards = |hops: u8| {
        behind.clone().map(move |(to, gateway)| Candidate { to, hops: Some(hops), gateway })
    };
    let mut all: Vec<Candidate> = HOPS.into_iter().flat_map(towards).collect();
    let mut gateways: Vec<IpAddr> = behind.map(|(_, gateway)| gateway).collect();
    gateways.dedup();
    let of_isp = gateways.into_iter().filter(|g| is_far(*g));
    all.extend(of_isp.map(|gateway| Candidate { to: gateway, hops: None, gateway }));
    all
}

/// The next hop from `dev` to `address`; `None` if `address` is a neighbour, or cannot be reached.
///
/// # Errors
/// If the kernel does not answer.
pub(super) fn gateway(dev: &str, address: IpAddr) -> Result<Option<IpAddr>, Error> {
    let mut netlink = Netlink::open()?;
    let device = link::find_with(&mut netlink, dev)?;
    let device = device.ok_or_else(|| Error::NoDevice(dev.to_owned()))?;
    let (family, octets) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    let mut header = [0; RTMSG_BYTES];
    header[0] = family as u8;
    header[1] = (octets.len() * 8) as u8;
    let request = Request::new(libc::RTM_GETROUTE, 0, &header)
        .with(libc::RTA_DST, &octets)
        .with_u32(libc::RTA_OIF, device.index);
    let route = match netlink.ask(&format!("look for the route to {address}"), request) {
        Ok(route) => route,
        Err(e) if matches!(e.errno(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
            return Ok(None);
        }
        Err(e) => return Err(e),
    };
    let hop = attribute(route.get(RTMSG_BYTES..).unwrap_or_default(), libc::RTA_GATEWAY);
    Ok(hop.and_then(|hop| match (address, hop.len()) {
        (IpAddr::V4(_), 4) => Some(IpAddr::from(<[u8; 4]>::try_from(hop).ok()?)),
        (IpAddr::V6(_), 16) => Some(IpAddr::from(<[u8; 16]>::try_from(hop).ok()?)),
        _ => None,
    }))
}

/// The sender of an IP packet, and the packet's length.
fn source(packet: &[u8]) -> Option<(IpAddr, u64)> {
    let length =
        |at: usize| Some(u64::from(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?])));
    match packet.first()? >> 4 {
        4 => {
            let octets: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            Some((octets.into(), length(2)?))
        }
        6 => {
            let octets: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            Some((octets.into(), length(4)? + 40))
        }
        _ => None,
    }
}

/// Whether the address is a public one, not of a private network or of no host.
fn is_far(address: IpAddr) -> bool {
    let is_near = match address {
        IpAddr::V4(v4) => v4.is_private() || v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    };
    !(is_near || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

/// Whether homes use such an address; 10.0.0.0/8 is used by both homes and ISPs.
fn is_at_home(address: IpAddr) -> bool {
    !is_far(address) && !matches!(address, IpAddr::V4(v4) if v4.octets()[0] == 10)
}

/// a.root-servers.net: every ISP has a route to these addresses.
pub(super) const FAR: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 41, 0, 4)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30)),
];
/// Hop limits of requests, in the order in which they are tried; the gateway is hop 1.
const HOPS: [u8; 2] = [2, 3];
/// The most senders that are counted.
const SOURCES_MAX: usize = 256;
/// Packets after which more would hardly change which senders are the busiest.
const PACKETS_ENOUGH: u32 = 200;
/// The number of busiest senders towards which requests go.
const TRIED_MAX: usize = 2;
const RTMSG_BYTES: usize = 12;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::probe::packet::tests::{packet, request};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn those_who_send_most_from_far_away_are_the_busiest() {
        let mut sources = Sources::default();
        let mut send = |from: &str, times: u32| {
            let to = if from.contains(':') { "2001:db8::1" } else { "192.0.2.1" };
            for _ in 0..times {
                sources.handle_packet(&packet(from, to, request(from).message()));
            }
        };
        send("192.168.1.1", 50);
        send("fe80::1", 50);
        send("224.0.0.1", 50);
        send("198.51.100.1", 3);
        send("2001:db8:7::1", 9);
        send("198.51.100.2", 5);
        sources.handle_packet(&[]);
        sources.handle_packet(&[0x45, 0, 0]);
        assert_eq!(sources.busiest(), [ip("2001:db8:7::1"), ip("198.51.100.2")]);
    }

    #[test]
    fn sources_are_bounded() {
        let mut sources = Sources::default();
        for i in 0..1_000_u16 {
            let [a, b] = i.to_be_bytes();
            let from = format!("198.51.{}.{b}", 100 + a);
            sources.handle_packet(&packet(&from, "192.0.2.1", request(&from).message()));
        }
        assert_eq!(sources.volumes.len(), SOURCES_MAX);
        assert!(sources.are_enough());
    }

    #[test]
    fn the_second_hop_is_tried_first_and_a_home_s_gateway_never() {
        let (far, other) = (ip("198.51.100.1"), ip("198.51.100.2"));
        let home = ip("192.168.1.1");
        let tried =
            candidates(&[(far, Some(home)), (other, Some(home)), (ip("203.0.113.9"), None)]);
        let expected = [(far, 2), (other, 2), (far, 3), (other, 3)];
        let expected = expected.map(|(to, hops)| Candidate { to, hops: Some(hops), gateway: home });
        assert_eq!(tried, expected);
        let isp = ip("203.0.113.1");
        let last = *candidates(&[(far, Some(isp)), (other, Some(isp))]).last().unwrap();
        assert_eq!(last, Candidate { to: isp, hops: None, gateway: isp });
        assert_eq!(candidates(&[(far, None)]), []);
    }

    #[test]
    fn a_router_at_home_is_not_behind_the_link() {
        let gateway = ip("192.168.1.1");
        let second = Candidate { to: ip("198.51.100.1"), hops: Some(2), gateway };
        for (from, accepted) in [
            ("192.168.1.1", false),
            ("192.168.0.1", false),
            ("172.16.0.1", false),
            ("10.20.0.1", true),
            ("100.64.0.1", true),
            ("203.0.113.1", true),
        ] {
            assert_eq!(second.accepts(ip(from)), accepted, "{from}");
        }
        let isp = ip("203.0.113.1");
        assert!(Candidate { to: isp, hops: None, gateway: isp }.accepts(isp));
        assert!(!Candidate { gateway: isp, ..second }.accepts(isp), "the first hop");
    }
}
