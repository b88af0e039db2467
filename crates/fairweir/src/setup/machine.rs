//! The kind of this machine: a computer, a router, an access network, or a server.
//!
//! [`look`] collects facts and changes nothing; [`Machine::suggestion`] is a pure function of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use fairweir_linux::link::{self, Link};
use fairweir_linux::network;
use nix::libc;

use crate::cli::SetupRole;

/// A machine with at least this many incoming connections is a server; a person's computer has few.
const SERVED_MIN: usize = 50;

/// A machine that terminates this many PPP sessions, besides its own Internet session, serves subscribers.
const SESSIONS_MIN: usize = 2;

/// The most bytes that are read from a kernel table of connections: 100,000 lines.
const TABLE_BYTES_MAX: u64 = 15_000_000;

/// `TCP_ESTABLISHED` and `TCP_LISTEN`, as written in `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
const LISTEN: &str = "0A";

/// Facts about the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    /// The devices of default routes; the preferred route is first.
    pub(super) uplinks: Vec<String>,
    pub(super) links: Vec<Link>,
    /// The number of neighbours of each device, by interface index.
    pub(super) neighbours: BTreeMap<u32, usize>,
    /// Whether the machine forwards IPv4 or IPv6.
    pub(super) forwards: bool,
    /// Whether the machine translates addresses (NAT) when it forwards.
    pub(super) translates: bool,
    pub(super) is_openwrt: bool,
    /// Incoming connections: the peers of each local port.
    pub(super) served: BTreeMap<u16, Vec<IpAddr>>,
}

/// The suggested role of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Suggestion {
    pub(super) role: SetupRole,
    /// The reason, for people.
    pub(super) reason: String,
}

/// # Errors
/// If the kernel does not answer.
pub(super) fn look() -> anyhow::Result<Machine> {
    let is_one = |path: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == "1");
    let mut neighbours = BTreeMap::new();
    for neighbour in network::neighbours()? {
        if neighbour.mac.is_of_device() {
            *neighbours.entry(neighbour.device).or_default() += 1;
        }
    }
    // Without nftables: the tables that iptables has loaded.
    let tables = fs::read_to_string("/proc/net/ip_tables_names").unwrap_or_default();
    Ok(Machine {
        uplinks: network::default_devices()?,
        links: link::all()?,
        neighbours,
        forwards: is_one("/proc/sys/net/ipv4/ip_forward")
            || is_one("/proc/sys/net/ipv6/conf/all/forwarding"),
        translates: network::has_nat()? || tables.lines().any(|table| table == "nat"),
        is_openwrt: Path::new("/etc/openwrt_release").exists(),
        served: served(&["/proc/self/net/tcp", "/proc/self/net/tcp6"]),
    })
}

impl Machine {
    pub(super) fn suggestion(&self) -> Suggestion {
        let wan = self.uplinks.first().map_or("the Internet", String::as_str);
        let (role, reason) = match self.inner() {
            _ if self.is_openwrt => (SetupRole::Router, "this is OpenWrt".to_owned()),
            _ if self.forwards && self.sessions() >= SESSIONS_MIN => {
                (SetupRole::Isp, format!("it ends {} PPP sessions of others", self.sessions()))
            }
            Some(lan) if self.forwards && self.translates => {
                let reason = format!("it forwards between {} and {wan}, with NAT", lan.name);
                (SetupRole::Router, reason)
            }
            Some(lan) if self.forwards => {
                let reason = format!("it forwards between {} and {wan}, without NAT", lan.name);
                (SetupRole::Isp, reason)
            }
            _ if self.connections() >= SERVED_MIN => {
                let reason = format!("others hold {} connections to it", self.connections());
                (SetupRole::Sender, reason)
            }
            _ if self.forwards => {
                let reason = "it forwards for containers or virtual machines only".to_owned();
                (SetupRole::Host, reason)
            }
            _ => (SetupRole::Host, "it does not forward, and few connect to it".to_owned()),
        };
        Suggestion { role, reason }
    }

    /// Remarks for people about what `fairweir setup` cannot detect or does not cover.
    pub(super) fn caveats(&self, role: SetupRole, dev: &str) -> Vec<String> {
        let mut all = Vec::new();
        let others: Vec<&str> =
            self.uplinks.iter().map(String::as_str).filter(|name| *name != dev).collect();
        if role == SetupRole::Host && !others.is_empty() {
            let others = others.join(", ");
            all.push(format!("{others} leads to the Internet too, and is not controlled; each interface has a daemon"));
        }
        if role == SetupRole::Host && self.forwards {
            let what =
                "containers and virtual machines can be matched by address or port only".to_owned();
            all.push(what);
        }
        match role {
            SetupRole::Isp => {
                all.push("plans and subscribers cannot be found out: edit them".to_owned());
            }
            SetupRole::Sender => {
                let what = "whether peers share a bottleneck, and which rate is wanted, cannot be found out: edit them";
                all.push(what.to_owned());
            }
            SetupRole::Host | SetupRole::Router => {}
        }
        all
    }

    /// The interface towards devices or subscribers: a bridge if there is one, else the one with the most neighbours.
    pub(super) fn inner(&self) -> Option<&Link> {
        let is_inner = |link: &&Link| {
            link.is_up()
                && link.hardware == libc::ARPHRD_ETHER
                && link.master == 0
                && !self.uplinks.contains(&link.name)
                && !self.is_below_uplink(link)
                && !is_of_containers(link)
                && (link.kind == "bridge" || self.neighbours.contains_key(&link.index))
        };
        let rank = |link: &&Link| {
            (link.kind == "bridge", self.neighbours.get(&link.index).copied().unwrap_or(0))
        };
        self.links.iter().filter(is_inner).max_by_key(rank)
    }

    /// Whether, by its name, an uplink is a VLAN of `link`, or `link` is only an ifb or dummy device.
    fn is_below_uplink(&self, link: &Link) -> bool {
        let is_vlan_of =
            |name: &String| name.strip_prefix(&link.name).is_some_and(|rest| rest.starts_with('.'));
        link.kind == "ifb" || link.kind == "dummy" || self.uplinks.iter().any(is_vlan_of)
    }

    /// The number of PPP sessions other than the Internet connection.
    fn sessions(&self) -> usize {
        let is_session =
            |l: &&Link| l.hardware == libc::ARPHRD_PPP && !self.uplinks.contains(&l.name);
        self.links.iter().filter(is_session).count()
    }

    fn connections(&self) -> usize {
        self.served.values().map(Vec::len).sum()
    }
}

/// Whether containers or virtual machines are behind `link`, by the names that their managers use.
fn is_of_containers(link: &Link) -> bool {
    const BEGINNINGS: [&str; 9] =
        ["docker", "virbr", "lxcbr", "lxdbr", "incusbr", "podman", "cni", "veth", "vmbr-int"];
    // Docker's networks: `br-` and twelve hexadecimal digits.
    let digits = link.name.strip_prefix("br-").unwrap_or_default();
    BEGINNINGS.iter().any(|beginning| link.name.starts_with(beginning))
        || (digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The peers of each listening port, from the kernel's tables; loopback is left out.
fn served(tables: &[&str]) -> BTreeMap<u16, Vec<IpAddr>> {
    let mut lines = Vec::new();
    for table in tables {
        let Ok(file) = File::open(table) else { continue };
        let text = BufReader::new(file.take(TABLE_BYTES_MAX)).lines().map_while(Result::ok);
        lines.extend(text.skip(1));
    }
    served_of(&lines)
}

fn served_of(lines: &[String]) -> BTreeMap<u16, Vec<IpAddr>> {
    let parsed: Vec<(u16, IpAddr, &str)> = lines.iter().filter_map(|line| parse(line)).collect();
    let mut ports: BTreeMap<u16, Vec<IpAddr>> = BTreeMap::new();
    for (port, _, _) in parsed.iter().filter(|(_, _, state)| *state == LISTEN) {
        ports.entry(*port).or_default();
    }
    for (port, peer, _) in parsed.iter().filter(|(_, _, state)| *state == ESTABLISHED) {
        if let Some(peers) = ports.get_mut(port)
            && !peer.is_loopback()
        {
            peers.push(*peer);
        }
    }
    ports.retain(|_, peers| !peers.is_empty());
    ports
}

/// Local port, remote address and state of a line of `/proc/net/tcp` or `tcp6`. Source: proc_net_tcp.rst.
fn parse(line: &str) -> Option<(u16, IpAddr, &str)> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    let address = remote.split_once(':')?.0;
    // 32-bit words in the machine's byte order.
    let word = |i: usize| u32::from_str_radix(address.get(8 * i..8 * i + 8)?, 16).ok();
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut octets = [0; 16];
            for i in 0..4 {
                octets[4 * i..4 * i + 4].copy_from_slice(&word(i)?.to_ne_bytes());
            }
            Ipv6Addr::from(octets).to_canonical()
        }
        _ => return None,
    };
    Some((port, address, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: &str, hardware: u16) -> Link {
        Link {
            name: name.to_owned(),
            index,
            flags: libc::IFF_UP as u32,
            hardware,
            alias: String::new(),
            kind: kind.to_owned(),
            mtu: 1_500,
            master: 0,
            received: 0,
            sent: 0,
        }
    }

    fn ether(index: u32, name: &str, kind: &str) -> Link {
        link(index, name, kind, libc::ARPHRD_ETHER)
    }

    fn machine(uplink: &str, links: Vec<Link>) -> Machine {
        let neighbours = links.iter().map(|link| (link.index, 3)).collect();
        Machine { uplinks: vec![uplink.to_owned()], links, neighbours, ..Machine::default() }
    }

    #[test]
    fn a_machine_looks_like_what_it_does() {
        use SetupRole::{Host, Isp, Router, Sender};
        let forwarding = |machine: Machine| Machine { forwards: true, ..machine };
        let nat = |machine: Machine| Machine { translates: true, ..forwarding(machine) };
        let wan = || ether(1, "eth0", "");
        let ppp = |index, name: &str| link(index, name, "ppp", libc::ARPHRD_PPP);
        let lan = || ether(2, "br-lan", "bridge");
        let docker = || ether(3, "docker0", "bridge");
        let quiet = |mut machine: Machine, index| {
            machine.neighbours.remove(&index);
            machine
        };
        let laptop = machine("eth0", vec![wan(), ether(4, "wlan0", "")]);
        let two_ways = Machine { uplinks: vec!["eth0".into(), "wlan0".into()], ..laptop.clone() };
        let peers = vec![IpAddr::from([192, 0, 2, 1]); SERVED_MIN];
        let server =
            Machine { served: BTreeMap::from([(443, peers)]), ..machine("eth0", vec![wan()]) };
        let rows = [
            ("a computer", machine("eth0", vec![wan()]), Host, "does not forward"),
            (
                "one with a bridge for virtual machines",
                machine("br0", vec![ether(2, "br0", "bridge")]),
                Host,
                "does not forward",
            ),
            (
                "one with containers",
                nat(machine("eth0", vec![wan(), docker()])),
                Host,
                "for containers",
            ),
            (
                "one with a network of Docker's",
                nat(machine("eth0", vec![wan(), ether(3, "br-0123456789ab", "bridge")])),
                Host,
                "for containers",
            ),
            ("a laptop with containers on two networks", nat(two_ways), Host, "for containers"),
            (
                "a router",
                nat(machine("eth0", vec![wan(), lan()])),
                Router,
                "between br-lan and eth0, with NAT",
            ),
            (
                "one with an empty bridge",
                nat(quiet(machine("eth0", vec![wan(), lan()]), 2)),
                Router,
                "br-lan",
            ),
            (
                "one without a bridge",
                nat(machine("eth0", vec![wan(), ether(5, "eth1", "")])),
                Router,
                "between eth1 and eth0",
            ),
            (
                "one with PPPoE",
                nat(quiet(machine("ppp0", vec![ppp(9, "ppp0"), wan(), lan()]), 1)),
                Router,
                "between br-lan and ppp0",
            ),
            (
                "one with VLANs",
                nat(machine(
                    "eth0.7",
                    vec![ether(6, "eth0.7", "vlan"), wan(), ether(7, "eth0.2", "vlan")],
                )),
                Router,
                "between eth0.2 and eth0.7",
            ),
            (
                "OpenWrt",
                Machine { is_openwrt: true, ..machine("eth0", vec![wan()]) },
                Router,
                "OpenWrt",
            ),
            (
                "an access network",
                forwarding(machine("eth0", vec![wan(), ether(5, "eth1", "")])),
                Isp,
                "between eth1 and eth0, without NAT",
            ),
            (
                "one with PPPoE sessions",
                forwarding(machine("eth0", vec![wan(), ppp(10, "ppp0"), ppp(11, "ppp1")])),
                Isp,
                "2 PPP sessions",
            ),
            ("a server", server.clone(), Sender, "50 connections"),
            (
                "a router with a server",
                nat(Machine { links: vec![wan(), lan()], ..server }),
                Router,
                "NAT",
            ),
        ];
        for (what, machine, role, says) in rows {
            let found = machine.suggestion();
            assert_eq!(found.role, role, "{what}: {}", found.reason);
            assert!(found.reason.contains(says), "{what}: {}", found.reason);
        }
        let down = Link { flags: 0, ..lan() };
        let found = nat(machine("eth0", vec![wan(), down])).suggestion();
        assert_eq!(found.role, Host, "a bridge that is down: {}", found.reason);
    }

    #[test]
    fn what_is_not_covered_is_said() {
        let machine = Machine {
            uplinks: vec!["eth0".into(), "wlan0".into()],
            forwards: true,
            ..Machine::default()
        };
        let said = machine.caveats(SetupRole::Host, "eth0").join("; ");
        assert!(said.contains("wlan0") && said.contains("containers"), "{said}");
        for role in [SetupRole::Isp, SetupRole::Sender] {
            assert!(machine.caveats(role, "eth0").join("; ").contains("cannot be found out"));
        }
        assert!(Machine::default().caveats(SetupRole::Host, "eth0").is_empty());
    }

    #[test]
    fn connections_count_for_the_ports_that_listen() {
        let word = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
        let line = |local: u16, remote: &str, state: &str| {
            format!(
                "  0: 00000000:{local:04X} {remote}:9C40 {state} 00000000:00000000 00:00 0 0 0 1"
            )
        };
        let (peer, own) = (word([192, 0, 2, 7]), word([127, 0, 0, 1]));
        let mapped = format!("{z}{z}{}{peer}", word([0, 0, 0xff, 0xff]), z = word([0; 4]));
        let lines = [
            line(443, &word([0; 4]), LISTEN),
            line(443, &peer, ESTABLISHED),
            line(443, &mapped, ESTABLISHED),
            line(443, &own, ESTABLISHED),
            line(443, &peer, "06"),
            line(50_000, &peer, ESTABLISHED),
            line(22, &word([0; 4]), LISTEN),
            "nonsense".to_owned(),
            line(443, "zz", ESTABLISHED),
            line(443, "0é000000", ESTABLISHED),
        ];
        let peer = IpAddr::from([192, 0, 2, 7]);
        assert_eq!(served_of(&lines), BTreeMap::from([(443, vec![peer, peer])]));
    }
}
