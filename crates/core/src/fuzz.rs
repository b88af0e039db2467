//! Fuzz targets: properties of the parsers of outside bytes that hold for any bytes.
//!
//! `make fuzz` searches for inputs that break them, guided by coverage; a test replays the inputs that it kept.

use std::collections::BTreeSet;

use ipnet::IpNet;

use crate::agreement::fuzz::agreement;
use crate::lease::{Heard, LEASE_MAX, Leases};
use crate::lease_file::{self, FileLease};
use crate::packet::Mac;
use crate::policy::host_label;
use crate::radius::fuzz::radius;
use crate::recognition::Devices;
use crate::relay::{SYN_MAX, Syn};
use crate::sites::fuzz::{dns, http, quic, tls};
use crate::units::{Span, Time};

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

/// A name, and a function that takes an input and panics if a property does not hold.
pub type Target = (&'static str, fn(&[u8]));

/// The parsers of this crate.
pub const TARGETS: &[Target] = &[
    ("agreement", agreement),
    ("dhcp", dhcp),
    ("dns", dns),
    ("dnsmasq", dnsmasq),
    ("http", http),
    ("kea", kea),
    ("quic", quic),
    ("radius", radius),
    ("syn", syn),
    ("tls", tls),
];

const NOW_S: u64 = 1_000;

fn dnsmasq(data: &[u8]) {
    // Only the header of Kea's file distinguishes the two formats.
    lease_file(&String::from_utf8_lossy(data).replacen("address,", "address;", 1));
}

fn kea(data: &[u8]) {
    lease_file(&["address,", &String::from_utf8_lossy(data)].concat());
}

/// Each line is a lease or is counted; the result stays the same if it is written and read again in either format; a
/// line that is cut off changes only its own address.
fn lease_file(text: &str) {
    let read = lease_file::read(text, NOW_S);
    assert!(read.leases.len() + read.skipped <= text.lines().count());
    assert!(read.leases.is_sorted_by(|a, b| a.address < b.address), "each address once");
    for lease in &read.leases {
        let name = lease.name.as_deref();
        assert!(name.is_none_or(|name| host_label(name).as_deref() == Some(name)));
        assert_eq!(lease.address.trunc(), lease.address);
    }
    let mut kea = "address,duid,expire,lease_type,prefix_len,hostname,hwaddr\n".to_owned();
    let mut dnsmasq = String::new();
    for FileLease { mac, address, name, until_s } in &read.leases {
        let (whole, length) = (address.addr(), address.prefix_len());
        let is_prefix = length < address.max_prefix_len();
        let name = name.as_deref().unwrap_or_default();
        let kind = if is_prefix { 2 } else { 0 };
        kea += &format!("{whole},00:03:00:01:{mac},{until_s},{kind},{length},{name},\n");
        let star = if name.is_empty() { "*" } else { name };
        dnsmasq += &match address {
            _ if is_prefix => continue,
            IpNet::V4(_) => format!("{until_s} {mac} {whole} {star} *\n"),
            IpNet::V6(_) => format!("{until_s} 7 {whole} {star} 00:01:00:01:2c:aa:bb:cc:{mac}\n"),
        };
    }
    assert_eq!(lease_file::read(&kea, NOW_S).leases, read.leases, "written as Kea does");
    let whole = read.leases.iter().filter(|l| l.address.prefix_len() == l.address.max_prefix_len());
    let again = lease_file::read(&dnsmasq, NOW_S).leases;
    assert!(whole.eq(&again), "written as dnsmasq does");

    let half = (0..=text.len() / 2).rev().find(|&at| text.is_char_boundary(at));
    let cut = half.unwrap_or_default();
    let Some(line) = text[..cut].rfind('\n') else { return };
    let known = |text| -> BTreeSet<String> {
        lease_file::read(text, NOW_S).leases.iter().map(|lease| format!("{lease:?}")).collect()
    };
    let (with, without) = (known(&text[..cut]), known(&text[..=line]));
    assert!(with.difference(&without).count() <= 1 && without.difference(&with).count() <= 1);
}

/// The input is a list of messages: a byte for the sender, a byte for the seconds that pass, two for the length. A
/// binding of a name comes from the device or the router; a lease has a name and ends.
fn dhcp(data: &[u8]) {
    let (mut leases, mut now, mut rest) = (Leases::default(), Time::ZERO, data);
    let mut devices = Devices::new(Default::default());
    while let [who, seconds, high, low, behind @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (bytes, behind) = behind.split_at(length);
        rest = behind;
        now = now + Span::secs((*seconds).into());
        let is_own = who & 1 != 0;
        let said: [u8; 6] = bytes.get(28..34).and_then(|mac| mac.try_into().ok()).unwrap_or([2; 6]);
        let source = if who & 2 == 0 { Mac(said) } else { Mac([2, 0, 0, 0, 0, 9]) };
        let before: Vec<_> = leases.live(now).map(|(mac, lease)| (mac, lease.clone())).collect();
        leases.handle_heard(Heard { is_own, source, bytes }, &BTreeSet::from(["tv"]), now);
        devices.handle_dhcp(source, bytes, now);
        let after: Vec<_> = leases.live(now).map(|(mac, lease)| (mac, lease.clone())).collect();
        if !is_own {
            let others = |all: &[(Mac, _)]| all.iter().filter(|(m, _)| *m != source).count();
            assert_eq!(others(&before), others(&after), "another device's lease");
            assert!(after.iter().all(|lease| before.contains(lease)), "only the router gives one");
        }
        for (mac, lease) in &after {
            assert!(mac.0[0] & 1 == 0 && host_label(&lease.name).as_ref() == Some(&lease.name));
            assert!(lease.since <= now && lease.until <= now + LEASE_MAX);
            assert!(!lease.address.is_unspecified());
        }
    }
}

/// A packet that opens a connection stays the same if the packet to deliver is read again, and its length is right.
fn syn(data: &[u8]) {
    let Some(syn) = Syn::parse(&data[..data.len().min(SYN_MAX)], None) else { return };
    assert_eq!(Syn::parse(syn.packet(), None).as_ref(), Some(&syn));
    assert_eq!(Syn::parse(&syn.refusal(), None), None);
    let [packet, refusal] = [syn.packet().len(), syn.refusal().len()];
    let header = if syn.client().is_ipv4() { 20 } else { 40 };
    assert!((header + 20..=header + 60).contains(&packet) && refusal == header + 20);
    assert!(syn.layout().len() <= 40);
    if let Some(mac) = syn.mac() {
        unreachable!("no frame had the address {mac}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_were_found_are_replayed() {
        corpus::replay("core", TARGETS);
    }
}
