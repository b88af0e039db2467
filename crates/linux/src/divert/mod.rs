//! TCP connections of a LAN handed to a proxy on this gateway, with their addresses (TPROXY).
//!
//! Two parts: an nftables table, which marks what belongs to the proxy, and for each family a rule and
//! a route by which what is marked is delivered here. Marked are packets of sockets that have foreign
//! addresses, which only the proxy makes. The first packet of a connection from the LAN is dropped, and
//! the proxy gets a copy ([`Divert::poll_taken`]). If the server answers the proxy, the copy comes in
//! at `lo` and reaches the listener ([`Divert::deliver`]); so a client hears of a server only what it
//! would hear without the proxy. If the proxy does not listen, `tproxy` finds no socket and the packet is
//! routed as always.
//!
//! Never taken: connections to an address of the gateway; sources that are not routed back to the
//! interface they came from; destinations to which this client's last connection failed
//! ([`Divert::pass`]). A device that opens more than [`OPENED_PER_SECOND`] is slowed down, so that
//! half-open connections cannot fill the proxy.
//!
//! nftables is configured by its program `nft`, whose language is stable; its netlink messages are not
//! documented.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::process::{Child, Command, Stdio};

use fairweir_core::packet::Mac;
use fairweir_core::relay::{SYN_MAX, Syn};
use ipnet::IpNet;

use crate::Error;
use crate::bpf::header;
use crate::net::link;
use crate::net::netlink::{Netlink, Request};

mod firsts;

pub use firsts::Taken;
use firsts::{DHCP_MAX, Firsts, GROUP};

/// The mark of sockets of the proxy.
pub const SOCKET_MARK: u32 = header::RELAYED_MARK;

/// New connections of a device in a second that reach the proxy, after a burst of ten seconds' worth.
pub const OPENED_PER_SECOND: u32 = 100;

/// The time for which connections to a failed destination are not taken.
pub const PASS_SECONDS: u32 = 60;

/// The devices whose connections are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Those of all devices.
    All,
    /// Those of devices with one of these addresses.
    Some {
        /// Prefixes.
        prefixes: Vec<IpNet>,
        /// Link-layer addresses.
        macs: Vec<Mac>,
    },
}

/// What is taken, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DivertSpec {
    /// Interfaces of the LAN.
    pub lan: Vec<String>,
    /// Whose connections.
    pub clients: Clients,
    /// Ports at 127.0.0.1 and at ::1 on which transparent sockets listen.
    pub ports: [u16; 2],
}

/// The diversion in force; it ends when this drops.
#[derive(Debug)]
pub struct Divert {
    spec: DivertSpec,
    firsts: Firsts,
    /// Connections that are not to be taken, by the client's address, and that are not in the table yet.
    passed: VecDeque<(IpAddr, SocketAddr)>,
    /// The `nft` that runs.
    nft: Option<Child>,
}

impl Divert {
    /// Takes connections from now on; replaces what a killed daemon left.
    ///
    /// # Errors
    /// If an interface is missing, `nft` is, or the kernel refuses; then nothing is taken.
    pub fn attach(spec: DivertSpec) -> Result<Divert, Error> {
        check(&spec.lan)?;
        remove_routes()?;
        let firsts = Firsts::open()?;
        let divert = Divert { spec, firsts, passed: VecDeque::new(), nft: None };
        add_routes()?;
        run_nft(&divert.table())?;
        Ok(divert)
    }

    /// What is in force.
    pub fn spec(&self) -> &DivertSpec {
        &self.spec
    }

    /// Takes others from now on. Open connections stay as they are.
    ///
    /// # Errors
    /// As [`Divert::attach`]; then the old ones stay in force.
    pub fn replace(&mut self, spec: DivertSpec) -> Result<(), Error> {
        if spec == self.spec {
            return Ok(());
        }
        check(&spec.lan)?;
        let old = std::mem::replace(&mut self.spec, spec);
        run_nft(&self.table()).inspect_err(|_| self.spec = old)
    }

    /// Readable when [`Divert::poll_taken`] has something.
    pub fn waits_for(&self) -> BorrowedFd<'_> {
        self.firsts.as_fd()
    }

    /// The first packet of a connection, which waits for [`Divert::deliver`] or [`Divert::refuse`], without
    /// which the client sends it again; or a copy of what a DHCP client asks, a few in a second.
    pub fn poll_taken(&self) -> Option<Taken> {
        self.firsts.poll()
    }

    /// The packet arrives at the proxy's listener.
    pub fn deliver(&self, syn: &Syn) {
        self.firsts.deliver(syn);
    }

    /// The client hears that the server refuses the connection.
    pub fn refuse(&self, syn: &Syn) {
        self.firsts.refuse(syn);
    }

    /// Does not take connections of `client` to `server` for the next [`PASS_SECONDS`].
    pub fn pass(&mut self, client: IpAddr, server: SocketAddr) {
        if self.passed.len() < PASSED_MAX {
            self.passed.push_back((client, server));
        }
    }

    /// Writes to the table which connections are not taken; never waits.
    pub fn handle_tick(&mut self) {
        match self.nft.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => return,
            Some(Ok(Some(status))) if !status.success() => {
                tracing::debug!(%status, "nft did not take all destinations to pass by");
            }
            _ => {}
        }
        self.nft = None;
        if self.passed.is_empty() {
            return;
        }
        let mut text = String::new();
        for (client, server) in self.passed.drain(..) {
            let set = if client.is_ipv4() { "dead4" } else { "dead6" };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "add element inet {TABLE} {set} {{ {client} . {} . {} }}",
                server.ip(),
                server.port()
            );
        }
        // Less than a pipe holds, so that writing it does not wait.
        assert!(text.len() < 60_000, "{} bytes for nft", text.len());
        match spawn_nft(&text) {
            Ok(child) => self.nft = Some(child),
            Err(e) => tracing::warn!("cannot run nft: {e}"),
        }
    }

    fn table(&self) -> String {
        let DivertSpec { lan, clients, ports: [port4, port6] } = &self.spec;
        let lan: Vec<String> = lan.iter().map(|dev| format!("\"{dev}\"")).collect();
        let lan = lan.join(", ");
        let set = |family: &str| {
            format!(
                "type {family} . {family} . inet_service; flags timeout; timeout {PASS_SECONDS}s; \
                 size 16384;"
            )
        };
        let (dead4, dead6) = (set("ipv4_addr"), set("ipv6_addr"));
        let take = taken(clients);
        let burst = OPENED_PER_SECOND * 10;
        let hold = format!("log group {GROUP} snaplen {SYN_MAX} queue-threshold 1 drop");
        let deliver = format!("meta mark set meta mark or {DIVERTED:#x} accept");
        format!(
            "table inet {TABLE} {{\n}}\ndelete table inet {TABLE}\n\
             table inet {TABLE} {{\n\
             set dead4 {{ {dead4} }}\n\
             set dead6 {{ {dead6} }}\n\
             set opening {{ type ether_addr; size 4096; flags dynamic,timeout; timeout 60s; }}\n\
             set asking {{ type ether_addr; size 1024; flags dynamic,timeout; timeout 60s; }}\n\
             chain asks {{\n\
             update @asking {{ ether saddr limit rate over 1/second burst {ASKED_BURST} packets }} \
             return\n\
             limit rate over {ASKED_ALL}/second burst {ASKED_ALL} packets return\n\
             log group {GROUP} snaplen {DHCP_MAX} queue-threshold 1\n\
             }}\n\
             chain take {{\n\
             update @opening {{ ether saddr limit rate over {OPENED_PER_SECOND}/second \
             burst {burst} packets }} drop\n\
             limit rate over {OPENED_ALL}/second burst {burst} packets drop\n\
             meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:{port4} {hold}\n\
             ip6 nexthdr tcp tproxy ip6 to [::1]:{port6} {hold}\n\
             }}\n\
             chain deliver {{\n\
             meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:{port4} accept\n\
             meta nfproto ipv6 meta l4proto tcp tproxy ip6 to [::1]:{port6} accept\n\
             drop\n\
             }}\n\
             chain prerouting {{\n\
             type filter hook prerouting priority mangle; policy accept;\n\
             iifname {{ {lan} }} meta nfproto ipv4 udp dport 67 goto asks\n\
             meta l4proto != tcp return\n\
             socket transparent 1 {deliver}\n\
             iifname lo meta mark and {DIVERTED:#x} == {DIVERTED:#x} goto deliver\n\
             iifname != {{ {lan} }} return\n\
             tcp flags & (fin | syn | rst | ack) != syn return\n\
             fib daddr type {{ local, broadcast, multicast }} return\n\
             fib saddr . iif oif missing return\n\
             ip saddr . ip daddr . tcp dport @dead4 return\n\
             ip6 saddr . ip6 daddr . tcp dport @dead6 return\n\
             {take}\
             }}\n\
             }}\n"
        )
    }
}

impl Drop for Divert {
    fn drop(&mut self) {
        if let Some(mut nft) = self.nft.take() {
            let _ = nft.wait();
        }
        if let Err(e) = Divert::sweep() {
            tracing::warn!("the diversion of connections was not removed: {e}");
        }
    }
}

impl Divert {
    /// Removes what a proxy left, killed or not, and returns what it was.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn sweep() -> Result<Vec<String>, Error> {
        let mut removed = Vec::new();
        // Without the program no daemon can have made the table.
        if has_table().unwrap_or(false) {
            run_nft(&format!("delete table inet {TABLE}\n"))?;
            removed.push(format!("nftables table inet {TABLE}"));
        }
        removed.extend(remove_routes()?);
        Ok(removed)
    }
}

/// The rules that send the clients' packets to the chain `take`.
fn taken(clients: &Clients) -> String {
    let Clients::Some { prefixes, macs } = clients else { return "goto take\n".to_owned() };
    let list = |items: Vec<String>| items.join(", ");
    let of = |v4: bool| prefixes.iter().filter(move |net| matches!(net, IpNet::V4(_)) == v4);
    let mut rules = String::new();
    for (matched, items) in [
        ("ether saddr", macs.iter().map(ToString::to_string).collect::<Vec<_>>()),
        ("ip saddr", of(true).map(ToString::to_string).collect()),
        ("ip6 saddr", of(false).map(ToString::to_string).collect()),
    ] {
        // One rule each: prefixes of a set must not overlap.
        for item in items.chunks(if matched == "ether saddr" { 64 } else { 1 }) {
            let _ = writeln!(rules, "{matched} {{ {} }} goto take", list(item.to_vec()));
        }
    }
    rules
}

/// Whether the proxy can work behind these interfaces.
///
/// # Errors
/// If an interface is missing, or a bridge hands its packets to netfilter by itself.
pub fn check(lan: &[String]) -> Result<(), Error> {
    for dev in lan {
        if link::find(dev)?.is_none() {
            return Err(Error::NoDevice(dev.clone()));
        }
        if !fs::exists(format!("/sys/class/net/{dev}/bridge")).unwrap_or(false) {
            continue;
        }
        for family in ["iptables", "ip6tables"] {
            let path = format!("/proc/sys/net/bridge/bridge-nf-call-{family}");
            // The bridge then calls netfilter itself, and no connection gets through.
            if fs::read_to_string(path).is_ok_and(|value| value.trim() == "1") {
                return Err(Error::Occupied {
                    dev: dev.clone(),
                    found: format!("the bridge passes packets to {family}, which breaks TPROXY"),
                    remedy: format!("sysctl net.bridge.bridge-nf-call-{family}=0"),
                });
            }
        }
    }
    Ok(())
}

fn add_routes() -> Result<(), Error> {
    let mut netlink = Netlink::open()?;
    let lo = link::find("lo")?.ok_or_else(|| Error::NoDevice("lo".to_owned()))?;
    for family in FAMILIES {
        let route = route(libc::RTM_NEWROUTE, CREATE, family).with_u32(libc::RTA_OIF, lo.index);
        netlink.change("deliver diverted packets to this host (is lo up?)", route)?;
        netlink.change("add the rule for diverted packets", rule(libc::RTM_NEWRULE, family))?;
    }
    Ok(())
}

/// What was there.
fn remove_routes() -> Result<Vec<String>, Error> {
    let mut netlink = Netlink::open()?;
    let mut removed = Vec::new();
    for family in FAMILIES {
        let name = if family == libc::AF_INET { "IPv4" } else { "IPv6" };
        for (what, request) in [
            ("rule for diverted packets", rule(libc::RTM_DELRULE, family)),
            ("route of diverted packets", route(libc::RTM_DELROUTE, 0, family)),
        ] {
            match netlink.change(&format!("remove the {what}"), request) {
                Ok(()) => removed.push(format!("{name} {what}")),
                Err(e) if matches!(e.errno(), Some(libc::ENOENT | libc::ESRCH)) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(removed)
}

/// `struct fib_rule_hdr` and its attributes. Source: linux/fib_rules.h.
fn rule(kind: u16, family: i32) -> Request {
    let mut header = [0; 12];
    header[0] = family as u8;
    header[7] = FR_ACT_TO_TBL;
    let flags = if kind == libc::RTM_NEWRULE { CREATE } else { 0 };
    Request::new(kind, flags, &header)
        .with_u32(FRA_PRIORITY, TABLE_NUMBER)
        .with_u32(FRA_FWMARK, DIVERTED)
        .with_u32(FRA_FWMASK, DIVERTED)
        .with_u32(FRA_TABLE, TABLE_NUMBER)
}

/// `local default` in the table of the rule.
fn route(kind: u16, flags: u16, family: i32) -> Request {
    let mut header = [0; 12];
    header[0] = family as u8;
    header[5] = libc::RTPROT_STATIC;
    header[6] = libc::RT_SCOPE_HOST;
    header[7] = libc::RTN_LOCAL;
    Request::new(kind, flags, &header).with_u32(libc::RTA_TABLE, TABLE_NUMBER)
}

fn has_table() -> io::Result<bool> {
    let mut command = Command::new("nft");
    command.args(["list", "table", "inet", TABLE]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.status()?.success())
}

fn spawn_nft(text: &str) -> io::Result<Child> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().expect("invariant: it was asked for");
    // A program that has ended says why.
    let _ = stdin.write_all(text.as_bytes());
    Ok(child)
}

/// Runs commands of nftables as one transaction, in the calling thread's namespace.
///
/// # Errors
/// If `nft` is not there or refuses, with the first line of what it says.
pub fn run_nft(text: &str) -> Result<(), Error> {
    let attempted = "configure nftables by `nft`";
    let output = spawn_nft(text).and_then(Child::wait_with_output);
    let output = output.map_err(|e| Error::refused(attempted, e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().next().unwrap_or("it failed without a word").to_owned();
    Err(Error::refused(attempted, io::Error::other(first)))
}

const TABLE: &str = "fairweir_proxy";
/// Of the routing table and of the rule: `fw` in hexadecimal is 0x6677.
const TABLE_NUMBER: u32 = 0x6677;
/// The mark of packets for the proxy; one bit, beside those of other policies and of
/// `fairweir router`.
const DIVERTED: u32 = 0x0040_0000;
/// New connections of all devices in a second.
const OPENED_ALL: u32 = 1_000;
/// Messages of a device to a DHCP server that are looked at before it is slowed down to one in a second.
const ASKED_BURST: u32 = 8;
/// The same of all devices in a second.
const ASKED_ALL: u32 = 50;
/// The most failed destinations that wait for `nft`, so that a batch fits into a pipe.
const PASSED_MAX: usize = 400;
const FAMILIES: [i32; 2] = [libc::AF_INET, libc::AF_INET6];
const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const FR_ACT_TO_TBL: u8 = 1;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::netns::Netns;

    fn spec(clients: Clients) -> DivertSpec {
        DivertSpec { lan: vec!["lo".to_owned()], clients, ports: [4_000, 4_001] }
    }

    #[test]
    fn what_is_attached_is_gone_after_a_sweep() {
        let has_nft = Command::new("nft").arg("--version").output().is_ok();
        if !nix::unistd::geteuid().is_root() || !has_nft {
            assert!(std::env::var_os("FAIRWEIR_STRICT").is_none(), "needs root and nft");
            return;
        }
        Netns::new().unwrap().run(|| {
            link::set_up("lo").unwrap();
            assert!(Divert::sweep().unwrap().is_empty());
            let mut divert = Divert::attach(spec(Clients::All)).unwrap();
            let prefixes = ["192.0.2.0/24", "192.0.2.7/32", "2001:db8::/64"];
            let prefixes = prefixes.iter().map(|net| net.parse().unwrap()).collect();
            let clients = Clients::Some { prefixes, macs: vec![Mac([2, 0, 0x5e, 0, 0, 1])] };
            divert.replace(spec(clients)).unwrap();
            for server in ["203.0.113.1:80", "[2001:db8::5]:443"] {
                let server: SocketAddr = server.parse().unwrap();
                divert.pass(server.ip(), server);
            }
            assert!(divert.poll_taken().is_none());
            divert.handle_tick();
            assert!(divert.nft.take().unwrap().wait().unwrap().success());
            // A killed daemon leaves this.
            let table = divert.table();
            drop(divert);
            add_routes().unwrap();
            run_nft(&table).unwrap();
            assert_eq!(Divert::sweep().unwrap().len(), 5);
            drop(Divert::attach(spec(Clients::All)).unwrap());
            assert!(Divert::sweep().unwrap().is_empty());
            let missing = DivertSpec { lan: vec!["none0".to_owned()], ..spec(Clients::All) };
            assert!(matches!(Divert::attach(missing), Err(Error::NoDevice(_))));
        });
    }
}
