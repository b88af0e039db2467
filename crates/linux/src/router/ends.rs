//! The interfaces of a router: those to its devices, that of its access link, and tunnels through the link.
//!
//! Problem: one access link is visible at several interfaces. With DS-Lite, IPv4 comes out of a tunnel whose
//! packets come by the interface of native IPv6. Method: that interface, the *carrier*, is where the total is
//! counted, the probe is sent, and uploads are shaped: all packets pass there. From a tunnel, only its
//! packets to the devices are distinguished. Of several interfaces that are not tunnels, the carrier is the
//! one by which the Internet is reached now; the others are backup links, whose packets are left alone.
//!
//! Named interfaces that would not see the Internet's packets, or only one family, are refused; the
//! error names the right ones.

use std::io;

use crate::Error;
use crate::net::link::{self, Link};
use crate::net::netlink::Netlink;
use crate::net::network::{default_routes, way_out};

/// The existing interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) lans: Vec<Link>,
    pub(super) carrier: Link,
    pub(super) tunnels: Vec<Link>,
    /// Backup links for the carrier.
    pub(super) others: Vec<Link>,
}

/// The interfaces by which packets to the Internet leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ways {
    /// For IPv4 and IPv6.
    out: [Option<u32>; 2],
    /// The devices of each default route, those for IPv4 first.
    defaults: Vec<Vec<u32>>,
}

impl Ends {
    /// Finds the interfaces.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no LAN or no WAN, [`Error::Elsewhere`] if the Internet is
    /// reached by other interfaces; or if the kernel does not answer.
    pub(super) fn find(
        netlink: &mut Netlink,
        lans: &[String],
        wans: &[String],
    ) -> Result<Ends, Error> {
        let ways = ways(netlink)?;
        let links = link::all_with(netlink)?;
        choose(&links, lans, wans, &ways)
    }

    /// Whether the same interfaces have the same roles.
    pub(super) fn are(&self, other: &Ends) -> bool {
        let indexes = |ends: &Ends| {
            let of = |links: &[Link]| links.iter().map(|link| link.index).collect::<Vec<_>>();
            (of(&ends.lans), ends.carrier.index, of(&ends.tunnels))
        };
        indexes(self) == indexes(other)
    }

    /// All interfaces to which programs are attached.
    pub(super) fn attached(&self) -> impl Iterator<Item = &Link> {
        self.lans.iter().chain([&self.carrier])
    }
}

fn ways(netlink: &mut Netlink) -> Result<Ways, Error> {
    let mut ways = Ways::default();
    for (family, out) in [libc::AF_INET, libc::AF_INET6].into_iter().zip(&mut ways.out) {
        *out = way_out(netlink, family as u8)?;
        let routes = default_routes(netlink, family as u8)?;
        let devices = |hops: Vec<(u32, _)>| hops.into_iter().map(|(device, _)| device).collect();
        ways.defaults.extend(routes.into_iter().map(|route| devices(route.hops)));
    }
    Ok(ways)
}

fn choose(links: &[Link], lans: &[String], wans: &[String], ways: &Ways) -> Result<Ends, Error> {
    let named = |names: &[String]| -> Result<Vec<Link>, Error> {
        let find = |name: &String| links.iter().find(|link| link.name == *name).cloned();
        let found: Vec<Link> = names.iter().filter_map(find).collect();
        match names.iter().find(|name| !found.iter().any(|link| link.name == **name)) {
            Some(missing) if found.is_empty() => Err(Error::NoDevice(missing.clone())),
            _ => Ok(found),
        }
    };
    let lans = named(lans)?;
    if let Some(other) = lans.iter().find(|l| l.header_bytes() != lans[0].header_bytes()) {
        let attempted = format!("control {} beside {}", other.name, lans[0].name);
        let why = "one has Ethernet headers and one has not";
        return Err(Error::refused(attempted, io::Error::new(io::ErrorKind::Unsupported, why)));
    }
    let present = named(wans)?;
    let is_alone = wans.len() == 1;
    let (tunnels, mut paths): (Vec<Link>, Vec<Link>) =
        present.into_iter().partition(|link| !is_alone && is_tunnel(link));
    if paths.is_empty() {
        let missing = wans.iter().find(|name| !tunnels.iter().any(|link| link.name == **name));
        return Err(match missing {
            Some(missing) => Error::NoDevice(missing.clone()),
            None => elsewhere("`wan` lists tunnels only".to_owned(), links, wans, ways),
        });
    }
    refuse_balanced(&paths, ways)?;
    let is_path = |device: &u32| paths.iter().position(|path| path.index == *device);
    let by_route = || ways.defaults.iter().flatten().find_map(is_path);
    let by_rules = ways.out.iter().flatten().find_map(is_path);
    let at = by_rules.or_else(by_route).unwrap_or(0);
    let carrier = paths.remove(at);
    let ends = Ends { lans, carrier, tunnels, others: paths };
    ends.refuse_unseen(links, wans, ways)?;
    Ok(ends)
}

impl Ends {
    /// Refuses if the carrier and the tunnels see no packets of the Internet, or of one family only.
    fn refuse_unseen(&self, links: &[Link], wans: &[String], ways: &Ways) -> Result<(), Error> {
        let known = [&self.carrier].into_iter().chain(&self.tunnels).chain(&self.others);
        let known: Vec<&Link> = known.collect();
        let is_known = |device: u32| known.iter().any(|link| link.index == device);
        let seen = ways.out.iter().flatten().any(|&device| is_known(device))
            || ways.defaults.iter().flatten().any(|&device| is_known(device));
        for (name, out) in ["IPv4", "IPv6"].into_iter().zip(ways.out) {
            let Some(out) = out.filter(|&out| !is_known(out)) else { continue };
            let Some(link) = links.iter().find(|link| link.index == out) else { continue };
            // Two links of different providers are not one link of which half is seen.
            let same = is_tunnel(link) || known.iter().all(|link| is_tunnel(link));
            if !seen || same {
                let found = format!("{name} leaves by {}, which `wan` does not list", link.name);
                return Err(elsewhere(found, links, wans, ways));
            }
        }
        Ok(())
    }
}

/// Whether backup links carry traffic beside the carrier.
#[derive(Debug, Default)]
pub(super) struct OtherLinks {
    looks: u32,
}

impl OtherLinks {
    /// Takes in the received bytes of the interfaces at two checks.
    pub(super) fn handle(&mut self, before: &Ends, now: &Ends) {
        let received = |old: &Link, new: &Link| new.received.saturating_sub(old.received);
        let others = before.others.iter().zip(&now.others).map(|(old, new)| received(old, new));
        let others = others.sum::<u64>();
        let is_used = others > (received(&before.carrier, &now.carrier) / 8).max(USED_MIN);
        self.looks =
            if is_used { (self.looks + 1).min(LOOKS) } else { self.looks.saturating_sub(1) };
    }

    /// The resulting limit, in words.
    pub(super) fn limit(&self, ends: &Ends) -> Option<String> {
        let names: Vec<&str> = ends.others.iter().map(|link| link.name.as_str()).collect();
        (self.looks == LOOKS).then(|| {
            let (others, carrier) = (names.join(" and "), &ends.carrier.name);
            format!("{others} is used beside {carrier}: it is another link, and is not controlled")
        })
    }
}

/// Checks with use of a backup link before it is reported, and bytes in one check that count as use.
const LOOKS: u32 = 5;
const USED_MIN: u64 = 250_000;

/// Refuses several links of which each carries a part: they cannot be divided like one.
fn refuse_balanced(paths: &[Link], ways: &Ways) -> Result<(), Error> {
    for route in &ways.defaults {
        let mut used = paths.iter().filter(|path| route.contains(&path.index));
        if let (Some(first), Some(second)) = (used.next(), used.next()) {
            let (first, second) = (&first.name, &second.name);
            return Err(Error::Elsewhere {
                found: format!(
                    "the default route uses {first} and {second} at once: they are two links, of which one \
                     can be controlled"
                ),
                right: format!("\"{first}\""),
            });
        }
    }
    Ok(())
}

/// An error that says what was `found`, and which interfaces to name.
fn elsewhere(found: String, links: &[Link], wans: &[String], ways: &Ways) -> Error {
    // The interface below a tunnel is known only if it was named, or if the other family uses it.
    let named = links.iter().filter(|link| wans.contains(&link.name) && !is_tunnel(link));
    let right: Vec<String> = match &right(links, ways)[..] {
        all if all.iter().all(|link| is_tunnel(link)) => named.chain(all.iter().copied()).collect(),
        all => all.to_vec(),
    }
    .iter()
    .map(|link| format!("\"{}\"", link.name))
    .collect();
    let right = match &right[..] {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    Error::Elsewhere { found, right }
}

/// The interfaces by which the Internet is reached now, the carrier first.
fn right<'l>(links: &'l [Link], ways: &Ways) -> Vec<&'l Link> {
    let of = |out: &u32| links.iter().find(|link| link.index == *out);
    let out: Vec<&Link> = ways.out.iter().flatten().filter_map(of).collect();
    let mut right: Vec<&Link> =
        out.iter().copied().filter(|link| !is_tunnel(link)).take(1).collect();
    for link in out.into_iter().filter(|link| is_tunnel(link)) {
        if !right.contains(&link) {
            right.push(link);
        }
    }
    right
}

/// The interfaces by which this machine reaches the Internet now, as values for `wan` of a router:
/// the link's, and tunnels through it. Empty without a default route.
///
/// # Errors
/// If the kernel does not answer.
pub fn link_devices() -> Result<Vec<String>, Error> {
    let mut netlink = Netlink::open()?;
    let ways = ways(&mut netlink)?;
    let links = link::all_with(&mut netlink)?;
    Ok(right(&links, &ways).into_iter().map(|link| link.name.clone()).collect())
}

/// Whether the interface's packets leave within those of another interface, judged by its kind.
/// This includes TUN devices, which VPNs and CLATs make.
fn is_tunnel(link: &Link) -> bool {
    const KINDS: [&str; 13] = [
        "ip6tnl",
        "sit",
        "ipip",
        "gre",
        "ip6gre",
        "gretap",
        "ip6gretap",
        "vti",
        "vti6",
        "xfrm",
        "wireguard",
        "tun",
        "nat46",
    ];
    KINDS.contains(&link.kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Links with these names and kinds, numbered from 1.
    fn links(of: &[(&str, &str)]) -> Vec<Link> {
        let link = |(i, (name, kind)): (usize, &(&str, &str))| Link {
            name: (*name).to_owned(),
            index: i as u32 + 1,
            flags: 0,
            hardware: libc::ARPHRD_ETHER,
            alias: String::new(),
            kind: (*kind).to_owned(),
            mtu: 1_500,
            master: 0,
            received: 0,
            sent: 0,
        };
        of.iter().enumerate().map(link).collect()
    }

    /// The carrier and the tunnels, or the error. `out` are the devices for IPv4 and IPv6; 0 is none.
    fn chosen(wans: &[&str], of: &[(&str, &str)], out: [u32; 2]) -> String {
        let links = links(&[&[("br-lan", "bridge")], of].concat());
        let ways = Ways { out: out.map(|out| (out > 0).then_some(out)), ..Ways::default() };
        let wans: Vec<String> = wans.iter().map(|wan| (*wan).to_owned()).collect();
        match choose(&links, &["br-lan".to_owned(), "br-guest".to_owned()], &wans, &ways) {
            Ok(ends) => {
                let all = [&ends.carrier].into_iter().chain(&ends.tunnels);
                all.map(|link| link.name.as_str()).collect::<Vec<_>>().join(" ")
            }
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn the_carrier_is_where_all_packets_pass_and_other_places_are_refused() {
        let pppoe: &[_] = &[("wan0", ""), ("wan0.7", "vlan"), ("pppoe-wan", "ppp")];
        let tunnel = |kind| [("wan0", ""), ("tunnel", kind)];
        assert_eq!(chosen(&["pppoe-wan"], pppoe, [4, 4]), "pppoe-wan");
        for below in ["wan0", "wan0.7"] {
            let said = chosen(&[below], pppoe, [4, 4]);
            assert!(said.ends_with("`wan` does not list; set `wan = \"pppoe-wan\"`"), "{said}");
        }
        for kind in ["ip6tnl", "sit", "wireguard", "nat46", "tun"] {
            let links = &tunnel(kind);
            for out in [[3, 2], [2, 3], [3, 3], [2, 2], [0, 0]] {
                assert_eq!(
                    chosen(&["wan0", "tunnel"], links, out),
                    "wan0 tunnel",
                    "{kind} {out:?}"
                );
                assert_eq!(
                    chosen(&["tunnel", "wan0"], links, out),
                    "wan0 tunnel",
                    "{kind} {out:?}"
                );
            }
            for (wan, out) in [("wan0", [3, 2]), ("wan0", [2, 3]), ("tunnel", [3, 2])] {
                let said = chosen(&[wan], links, out);
                assert!(said.ends_with("set `wan = [\"wan0\", \"tunnel\"]`"), "{kind}: {said}");
            }
            assert_eq!(chosen(&["tunnel"], links, [3, 0]), "tunnel", "all of it passes there");
            assert_eq!(chosen(&["wan0"], links, [2, 0]), "wan0", "another one is of no use");
        }
        assert_eq!(
            chosen(&["a", "b"], &[("a", "gre"), ("b", "sit"), ("c", "")], [2, 4]).split(';').next(),
            Some("`wan` lists tunnels only")
        );
        assert_eq!(chosen(&["wan0", "ds0"], &[("ds0", "ip6tnl")], [0, 0]), "no interface `wan0`");
    }

    #[test]
    fn of_several_links_that_of_the_route_is_the_carrier_and_both_at_once_are_refused() {
        let two: &[_] = &[("wan", ""), ("lte", "")];
        assert_eq!(chosen(&["wan", "lte"], two, [3, 2]), "lte");
        assert_eq!(chosen(&["wan", "lte"], two, [0, 2]), "wan");
        assert_eq!(chosen(&["wan", "lte"], &two[1..], [0, 0]), "lte", "the other one is gone");
        assert_eq!(chosen(&["wan"], two, [2, 3]), "wan", "IPv6 by another link");
        let links = links(&[("br-lan", "bridge"), ("wan", ""), ("lte", "")]);
        let ways = Ways { out: [Some(2); 2], defaults: vec![vec![2, 3]] };
        let [lan, wan, lte] = ["br-lan", "wan", "lte"].map(str::to_owned);
        let said = choose(&links, &[lan], &[wan, lte], &ways).unwrap_err().to_string();
        assert!(said.contains("two links") && said.ends_with("set `wan = \"wan\"`"), "{said}");
    }
}
