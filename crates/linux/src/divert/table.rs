//! The nftables table: its rules, whether they are unchanged, and their counters.
//!
//! Connections are taken at priority `mangle`, before addresses are translated. Marks are written in the last
//! chains of their hooks, so that other programs, which may write whole marks, do not overwrite them. Packets
//! sent in again at `lo` are recognised by their priority, which other programs seldom change.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Child, Command, Stdio};

use fairweir_core::packet::Mac;
use fairweir_core::relay::SYN_MAX;
use ipnet::IpNet;

use super::firsts::{DHCP_MAX, GROUP, PRIORITY};
use super::{Clients, DivertSpec, OPENED_PER_SECOND, PASS_SECONDS, SOCKET_MARK};
use crate::Error;
use crate::net::netlink::{NFGENMSG_BYTES, Netlink, attribute, nftables, text};

/// The nft commands that create the table anew.
pub(super) fn table(spec: &DivertSpec, mark: u32) -> String {
    let DivertSpec { lan, clients, ports: [port4, port6] } = spec;
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
    // In nft's notation of classes.
    let sent_here = format!("meta priority {:x}:{:x}", PRIORITY >> 16, PRIORITY & 0xffff);
    let counters: String = COUNTERS.map(|name| format!("counter {name} {{\n}}\n")).concat();
    format!(
        "table inet {TABLE} {{\n}}\ndelete table inet {TABLE}\n\
         table inet {TABLE} {{\n\
         {counters}\
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
         chain prerouting {{\n\
         type filter hook prerouting priority mangle; policy accept;\n\
         iifname {{ {lan} }} meta nfproto ipv4 udp dport 67 goto asks\n\
         meta l4proto != tcp return\n\
         iifname != {{ {lan} }} return\n\
         tcp flags & (fin | syn | rst | ack) != syn return\n\
         socket transparent 1 return\n\
         fib daddr type {{ local, broadcast, multicast }} return\n\
         fib daddr . iif oif exists return\n\
         fib saddr . iif oif missing return\n\
         ip saddr . ip daddr . tcp dport @dead4 return\n\
         ip6 saddr . ip6 daddr . tcp dport @dead6 return\n\
         {take}\
         }}\n\
         chain deliver {{\n\
         counter name first meta mark set meta mark and {:#010x}\n\
         meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:{port4} accept\n\
         meta nfproto ipv6 meta l4proto tcp tproxy ip6 to [::1]:{port6} accept\n\
         drop\n\
         }}\n\
         chain divert {{\n\
         type filter hook prerouting priority {LAST}; policy accept;\n\
         iifname lo {sent_here} goto deliver\n\
         iifname != lo meta mark and {mark:#x} == {mark:#x} counter name foreign drop\n\
         meta l4proto != tcp return\n\
         socket transparent 1 counter name diverted meta mark set meta mark or {mark:#x} accept\n\
         }}\n\
         chain sent {{\n\
         type route hook output priority {LAST}; policy accept;\n\
         {sent_here} meta mark set {:#x}\n\
         }}\n\
         chain arrived {{\n\
         type filter hook input priority {LAST}; policy accept;\n\
         meta l4proto tcp socket transparent 1 counter name arrived\n\
         }}\n\
         }}\n",
        !mark,
        mark | SOCKET_MARK,
    )
}

/// The rules that send the clients' packets to the chain `take`.
fn taken(clients: &Clients) -> String {
    let Clients::Some { prefixes, macs } = clients else { return "goto take\n".to_owned() };
    let list = |items: Vec<String>| items.join(", ");
    let of = |v4: bool| prefixes.iter().filter(move |net| matches!(net, IpNet::V4(_)) == v4);
    let mut rules = String::new();
    for (matched, items) in [
        ("ether saddr", macs.iter().map(Mac::to_string).collect::<Vec<_>>()),
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

/// The counters since the table was created, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// Packets sent in again at `lo`.
    pub(super) first: u64,
    /// Packets marked for the proxy.
    pub(super) diverted: u64,
    /// Packets that reached transparent sockets.
    pub(super) arrived: u64,
    /// Packets that already had the mark, from another program.
    pub(super) foreign: u64,
}

/// Reads the counters.
///
/// # Errors
/// If the kernel does not answer.
pub(super) fn counters(netlink: &mut Netlink) -> Result<Counters, Error> {
    let mut counters = Counters::default();
    let request = nftables(GET_OBJECT, INET)
        .with_text(OBJECT_TABLE, TABLE)
        .with(OBJECT_KIND, &KIND_COUNTER.to_be_bytes());
    netlink.dump("read the diversion's counters", request, |payload| {
        let attributes = payload.get(NFGENMSG_BYTES..).unwrap_or_default();
        let packets = attribute(attributes, OBJECT_DATA)
            .and_then(|data| attribute(data, COUNTER_PACKETS))
            .and_then(|value| value.try_into().ok())
            .map_or(0, u64::from_be_bytes);
        match attribute(attributes, OBJECT_NAME).map(text).as_deref() {
            Some("first") => counters.first = packets,
            Some("diverted") => counters.diverted = packets,
            Some("arrived") => counters.arrived = packets,
            Some("foreign") => counters.foreign = packets,
            _ => {}
        }
    })?;
    Ok(counters)
}

/// The handle of the table, its flags, and the handles of its rules. The kernel never uses a handle
/// twice: that of a table among tables, that of a rule within its table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Made {
    table: [Option<Vec<u8>>; 2],
    rules: Vec<Vec<u8>>,
}

/// The existing table and rules.
///
/// # Errors
/// If the kernel does not answer.
pub(super) fn made(netlink: &mut Netlink) -> Result<Made, Error> {
    let attempted = "read the diversion's table";
    let request = nftables(GET_TABLE, INET).with_text(TABLE_NAME, TABLE);
    let table = match netlink.ask(attempted, request) {
        Ok(payload) => {
            let attributes = payload.get(NFGENMSG_BYTES..).unwrap_or_default();
            [TABLE_HANDLE, TABLE_FLAGS].map(|kind| attribute(attributes, kind).map(<[u8]>::to_vec))
        }
        Err(e) if e.errno() == Some(libc::ENOENT) => return Ok(Made::default()),
        Err(e) => return Err(e),
    };
    let mut rules = Vec::new();
    let request = nftables(GET_RULE, INET).with_text(RULE_TABLE, TABLE);
    netlink.dump(attempted, request, |payload| {
        let attributes = payload.get(NFGENMSG_BYTES..).unwrap_or_default();
        rules.extend(attribute(attributes, RULE_HANDLE).map(<[u8]>::to_vec));
    })?;
    Ok(Made { table, rules })
}

/// Removes the table, if it is there.
///
/// # Errors
/// If it cannot be removed.
pub(super) fn remove() -> Result<bool, Error> {
    let mut command = Command::new("nft");
    command.args(["list", "table", "inet", TABLE]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Without the program `nft` no daemon can have created the table.
    let is_there = command.status().is_ok_and(|status| status.success());
    if is_there {
        run_nft(&format!("delete table inet {TABLE}\n"))?;
    }
    Ok(is_there)
}

pub(super) fn spawn_nft(text: &str) -> io::Result<Child> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().expect("invariant: it was asked for");
    // If the program has ended, its exit status and output say why.
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

pub(super) const TABLE: &str = "fairweir_proxy";
const COUNTERS: [&str; 4] = ["first", "diverted", "arrived", "foreign"];
/// The priority of the chains that write marks; behind those that other programs use.
const LAST: i32 = 1_000_000;
/// New connections per second of all devices together.
const OPENED_ALL: u32 = 1_000;
/// Messages to a DHCP server after which a device is limited to one message per second.
const ASKED_BURST: u32 = 8;
/// Messages per second of all devices together.
const ASKED_ALL: u32 = 50;

// Source: linux/netfilter/nf_tables.h.
const INET: u8 = 1;
const GET_TABLE: u16 = 1;
const GET_RULE: u16 = 7;
const GET_OBJECT: u16 = 19;
const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const TABLE_HANDLE: u16 = 4;
const RULE_TABLE: u16 = 1;
const RULE_HANDLE: u16 = 3;
const OBJECT_TABLE: u16 = 1;
const OBJECT_NAME: u16 = 2;
const OBJECT_KIND: u16 = 3;
const OBJECT_DATA: u16 = 4;
const KIND_COUNTER: u32 = 1;
const COUNTER_PACKETS: u16 = 2;
