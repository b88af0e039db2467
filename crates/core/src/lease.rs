//! Which device has which name, from DHCP messages in the LAN.
//!
//! Problem: `host:tv` names a device by the name that it tells the DHCP server, but frames have MAC
//! addresses, and some devices change theirs now and then. Method: a device asks for an address
//! (REQUEST) and states its name; the server's ACK assigns the address for a time. From then until the
//! lease ends, the name belongs to the MAC address of the ACK. If two devices with live leases have
//! the same name, the one that the policy lists by `mac:` in the same group wins, else the older lease.
//!
//! A REQUEST counts only from the MAC address for which it asks, and an ACK only from this router. A
//! device may still state any name: to keep a device apart from others, use `mac:`. A MAC address that
//! any group lists is never bound by a name.
//!
//! Bounds: names of 63 letters, digits and hyphens, [`LEASES_MAX`] leases, [`REQUESTS_MAX`] open
//! requests of 10 s. Source: RFC 2131, 2132.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use crate::packet::Mac;
use crate::policy::{Match, Policy, host_label};
use crate::units::{Span, Time};

/// The most leases that are kept; if there are more, a lease whose name no group has makes room, or the
/// new one is not kept.
pub const LEASES_MAX: usize = 1_024;

/// The most devices with an unanswered request; the oldest makes room.
pub const REQUESTS_MAX: usize = 256;

/// A DHCP message as it passed the LAN interface.
#[derive(Clone, Copy, Debug)]
pub struct Heard<'b> {
    /// Whether this router sent it.
    pub is_own: bool,
    /// The frame's sender.
    pub source: Mac,
    /// The bytes behind the UDP header, as many as were heard.
    pub bytes: &'b [u8],
}

/// A device's lease with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The name, in lower case.
    pub name: String,
    /// The address that the device was given.
    pub address: Ipv4Addr,
    /// Since when the device has the name.
    pub since: Time,
    /// When the lease ends.
    pub until: Time,
}

/// A `host:` match of a policy, and the device that has the name now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The name.
    pub name: String,
    /// Index of the group that has the match.
    pub group: usize,
    /// The device; `None` if no device has a lease with this name, or only devices that are listed by `mac:`.
    pub mac: Option<Mac>,
    /// How many other devices claim the name.
    pub rivals: usize,
}

/// Devices and their names.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    /// By device, in the order of time.
    requests: Vec<(Mac, Request)>,
    live: BTreeMap<Mac, Lease>,
}

#[derive(Clone, Debug)]
struct Request {
    transaction: u32,
    name: Option<String>,
    at: Time,
}

impl Leases {
    /// Takes in a message. If there is no room, leases with names in `wanted`, those of the policy, are kept.
    /// Returns whether a lease changed.
    pub fn handle_heard(&mut self, heard: Heard<'_>, wanted: &BTreeSet<&str>, now: Time) -> bool {
        self.requests.retain(|(_, request)| now.since(request.at) <= REQUEST_SPAN);
        let Some(message) = Message::parse(heard.bytes) else { return false };
        match (heard.is_own, message.kind) {
            (false, REQUEST) if message.mac == heard.source => {
                self.handle_request(&message, now);
                false
            }
            (false, RELEASE) if message.mac == heard.source => {
                let is_its = |lease: &&Lease| lease.address == message.client;
                self.live.get(&message.mac).filter(is_its).is_some()
                    && self.live.remove(&message.mac).is_some()
            }
            (true, ACK) => self.handle_ack(&message, wanted, now),
            _ => false,
        }
    }

    /// Takes in a lease that was remembered.
    pub fn restore(&mut self, mac: Mac, lease: Lease) {
        if self.live.len() < LEASES_MAX {
            self.live.insert(mac, lease);
        }
    }

    /// The leases that have not ended.
    pub fn live(&self, now: Time) -> impl Iterator<Item = (Mac, &Lease)> {
        self.live.iter().filter(move |(_, l)| l.until > now).map(|(&mac, lease)| (mac, lease))
    }

    /// Forgets leases that have ended. Returns whether there were any.
    pub fn handle_time(&mut self, now: Time) -> bool {
        let before = self.live.len();
        self.live.retain(|_, lease| lease.until > now);
        before != self.live.len()
    }

    /// The device that has each name of `policy` now.
    pub fn bindings(&self, policy: &Policy, now: Time) -> Vec<Binding> {
        let groups = policy.groups().iter().enumerate();
        let matches = || groups.clone().flat_map(|(i, g)| g.matches.iter().map(move |m| (i, m)));
        let listed: BTreeMap<Mac, usize> = matches()
            .filter_map(|(group, m)| match m {
                Match::Mac(mac) => Some((*mac, group)),
                _ => None,
            })
            .collect();
        let binding = |(group, m): (usize, &Match)| {
            let Match::Host(name) = m else { return None };
            let claimants: Vec<_> = self.live(now).filter(|(_, l)| l.name == *name).collect();
            let is_listed = |mac: &Mac| listed.get(mac) == Some(&group);
            let has_listed = claimants.iter().any(|(mac, _)| is_listed(mac));
            let free = claimants.iter().filter(|(mac, _)| !listed.contains_key(mac));
            let oldest = free.min_by_key(|(mac, lease)| (lease.since, *mac)).map(|&(mac, _)| mac);
            let mac = oldest.filter(|_| !has_listed);
            let served = usize::from(has_listed || mac.is_some());
            let rivals = claimants.len() - served;
            Some(Binding { name: name.clone(), group, mac, rivals })
        };
        matches().filter_map(binding).collect()
    }

    fn handle_request(&mut self, message: &Message, now: Time) {
        self.requests.retain(|(mac, _)| *mac != message.mac);
        if self.requests.len() == REQUESTS_MAX {
            self.requests.remove(0);
        }
        let request =
            Request { transaction: message.transaction, name: message.name.clone(), at: now };
        self.requests.push((message.mac, request));
    }

    fn handle_ack(&mut self, message: &Message, wanted: &BTreeSet<&str>, now: Time) -> bool {
        // The answer to an INFORM gives no address.
        if message.given.is_unspecified() {
            return false;
        }
        let asked = self.requests.iter().position(|(mac, request)| {
            *mac == message.mac && request.transaction == message.transaction
        });
        let asked = asked.map(|i| self.requests.remove(i).1);
        let old = self.live.get(&message.mac).filter(|lease| lease.until > now);
        // The server's name takes precedence over the device's.
        let said = message.name.clone().or(asked.and_then(|asked| asked.name));
        let Some(name) = said.or_else(|| old.map(|lease| lease.name.clone())) else {
            return self.live.remove(&message.mac).is_some();
        };
        let since = old.filter(|lease| lease.name == name).map_or(now, |lease| lease.since);
        let until = now + message.lease.min(LEASE_MAX);
        if self.live.len() >= LEASES_MAX && !self.live.contains_key(&message.mac) {
            let unwanted = self.live.iter().filter(|(_, l)| !wanted.contains(l.name.as_str()));
            let Some((&newest, _)) = unwanted.max_by_key(|(_, lease)| lease.since) else {
                return false;
            };
            self.live.remove(&newest);
        }
        let lease = Lease { name, address: message.given, since, until };
        self.live.insert(message.mac, lease);
        true
    }
}

/// What a DHCP message of IPv4 over Ethernet says.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    kind: u8,
    transaction: u32,
    pub(crate) mac: Mac,
    client: Ipv4Addr,
    given: Ipv4Addr,
    name: Option<String>,
    lease: Span,
    /// The options that a client asks for, in its order.
    pub(crate) requests: Vec<u8>,
    /// The kind of client, as the client describes itself.
    pub(crate) vendor: Vec<u8>,
}

impl Message {
    /// Whether a client asks for an address.
    pub(crate) fn is_question(&self) -> bool {
        matches!(self.kind, DISCOVER | REQUEST)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Message> {
        let (fixed, options) = bytes.split_at_checked(FIXED_BYTES)?;
        let address = |at: usize| {
            let octets: [u8; 4] = fixed[at..at + 4].try_into().expect("invariant: it is fixed");
            Ipv4Addr::from(octets)
        };
        let is_ethernet = fixed[1..3] == [1, 6];
        // Messages from a relay concern devices of another network.
        let is_relayed = !address(24).is_unspecified();
        let mac: [u8; 6] = fixed[28..34].try_into().expect("invariant: it is fixed");
        let is_group = mac[0] & 1 != 0;
        if !is_ethernet || is_group || is_relayed || fixed[FIXED_BYTES - 4..] != MAGIC {
            return None;
        }
        let (mut kind, mut name, mut lease) = (0, Vec::new(), LEASE_DEFAULT);
        let (mut requests, mut vendor) = (Vec::new(), Vec::new());
        for (code, value) in Options(options) {
            match (code, value) {
                (OPTION_KIND, &[value]) => kind = value,
                // An option of more than 255 bytes comes in parts (RFC 3396).
                (OPTION_NAME, part) if name.len() <= usize::from(u8::MAX) => name.extend(part),
                (OPTION_REQUESTS, part) if requests.is_empty() => requests.extend(part),
                (OPTION_VENDOR, part) if vendor.is_empty() => vendor.extend(part),
                (OPTION_LEASE, &[a, b, c, d]) => {
                    lease = Span::secs(u32::from_be_bytes([a, b, c, d]).into());
                }
                _ => {}
            }
        }
        Some(Message {
            kind,
            transaction: u32::from_be_bytes(fixed[4..8].try_into().ok()?),
            mac: Mac(mac),
            client: address(12),
            given: address(16),
            name: std::str::from_utf8(&name).ok().and_then(|name| {
                // Some clients end the name with a zero; some add their domain.
                host_label(name.trim_end_matches('\0').split('.').next()?)
            }),
            lease,
            requests,
            vendor,
        })
    }
}

/// Options, each with a code, a length and that number of bytes; the sequence ends where they do not fit.
struct Options<'b>(&'b [u8]);

impl<'b> Iterator for Options<'b> {
    type Item = (u8, &'b [u8]);

    fn next(&mut self) -> Option<(u8, &'b [u8])> {
        loop {
            let (&code, rest) = self.0.split_first()?;
            match code {
                OPTION_PAD => self.0 = rest,
                OPTION_END => return None,
                _ => {
                    let (&length, rest) = rest.split_first()?;
                    let (value, rest) = rest.split_at_checked(length.into())?;
                    self.0 = rest;
                    return Some((code, value));
                }
            }
        }
    }
}

const REQUEST_SPAN: Span = Span::secs(10);
/// The lease time if a server states none; an hour is a common default of servers.
const LEASE_DEFAULT: Span = Span::secs(3_600);
/// The longest lease time that is accepted, also for a lease that never ends.
pub const LEASE_MAX: Span = Span::secs(30 * 24 * 3_600);
/// The fixed part with the magic number behind it.
const FIXED_BYTES: usize = 240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
const OPTION_PAD: u8 = 0;
const OPTION_NAME: u8 = 12;
const OPTION_LEASE: u8 = 51;
const OPTION_KIND: u8 = 53;
const OPTION_REQUESTS: u8 = 55;
const OPTION_VENDOR: u8 = 60;
const OPTION_END: u8 = 255;
const DISCOVER: u8 = 1;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const RELEASE: u8 = 7;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Group;
    use crate::share::Weight;

    fn mac(last: u8) -> Mac {
        Mac([2, 0, 0x5e, 0, 0x53, last])
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::secs(seconds)
    }

    /// A message with these options behind its kind.
    fn message(kind: u8, device: u8, address: u8, options: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; FIXED_BYTES];
        bytes[1..3].copy_from_slice(&[1, 6]);
        bytes[4..8].copy_from_slice(&[7, 7, 7, device]);
        let place = if kind == RELEASE { 12 } else { 16 };
        bytes[place..place + 4].copy_from_slice(&[192, 168, 7, address]);
        bytes[28..34].copy_from_slice(&mac(device).0);
        bytes[236..].copy_from_slice(&MAGIC);
        for (code, value) in [(OPTION_KIND, &[kind][..])].iter().chain(options) {
            bytes.extend([*code, value.len() as u8]);
            bytes.extend(*value);
        }
        bytes.push(OPTION_END);
        bytes
    }

    fn hear(leases: &mut Leases, is_own: bool, source: u8, bytes: &[u8], now: Time) -> bool {
        let heard = Heard { is_own, source: mac(source), bytes };
        leases.handle_heard(heard, &BTreeSet::from(["tv"]), now)
    }

    /// A device asks by this name and is given an address for a minute.
    fn lease(leases: &mut Leases, device: u8, name: &[u8], address: u8, now: Time) {
        hear(leases, false, device, &message(REQUEST, device, 0, &[(12, name)]), now);
        let ack = message(ACK, device, address, &[(51, &60u32.to_be_bytes())]);
        assert!(hear(leases, true, 99, &ack, now));
    }

    fn policy(groups: &[&[&str]]) -> Policy {
        let group = |(i, matches): (usize, &&[&str])| {
            Group::new(
                format!("g{i}"),
                Weight::ONE,
                matches.iter().map(|m| m.parse().unwrap()).collect(),
            )
        };
        Policy::new(groups.iter().enumerate().map(group).collect()).unwrap()
    }

    fn tv(leases: &Leases, groups: &[&[&str]], now: Time) -> (Option<Mac>, usize) {
        let bindings = leases.bindings(&policy(groups), now);
        let binding = bindings.iter().find(|b| b.name == "tv").unwrap();
        (binding.mac, binding.rivals)
    }

    #[test]
    fn a_name_belongs_to_the_device_with_the_lease_until_that_ends() {
        let mut leases = Leases::default();
        assert_eq!(tv(&leases, &[&["host:tv"]], at(0)), (None, 0));
        lease(&mut leases, 1, b"TV.home.arpa\0", 1, at(0));
        assert_eq!(tv(&leases, &[&["host:tv"]], at(59)), (Some(mac(1)), 0));
        // It is renewed with another address, by a device that does not say its name again.
        hear(&mut leases, false, 1, &message(REQUEST, 1, 0, &[]), at(30));
        hear(&mut leases, true, 99, &message(ACK, 1, 9, &[(51, &60u32.to_be_bytes())]), at(30));
        assert_eq!(tv(&leases, &[&["host:tv"]], at(89)), (Some(mac(1)), 0));
        assert!(leases.handle_time(at(90)));
        assert_eq!(tv(&leases, &[&["host:tv"]], at(90)), (None, 0));
    }

    #[test]
    fn of_two_that_claim_a_name_the_configured_one_wins_else_the_older_lease() {
        let mut leases = Leases::default();
        lease(&mut leases, 2, b"tv", 2, at(0));
        lease(&mut leases, 1, b"tv", 1, at(1));
        lease(&mut leases, 2, b"tv", 2, at(20));
        assert_eq!(tv(&leases, &[&["host:tv"]], at(21)), (Some(mac(2)), 1), "renewed, not younger");
        let listed = "mac:02:00:5e:00:53:01";
        assert_eq!(tv(&leases, &[&["host:tv", listed]], at(21)), (None, 1), "it has the class");
        let other = "mac:02:00:5e:00:53:02";
        assert_eq!(tv(&leases, &[&["host:tv"], &[other]], at(21)), (Some(mac(1)), 1));
        let release = message(RELEASE, 2, 2, &[]);
        assert!(!hear(&mut leases, false, 1, &release, at(22)), "another device says so");
        assert!(!hear(&mut leases, false, 2, &message(RELEASE, 2, 3, &[]), at(22)));
        assert!(hear(&mut leases, false, 2, &release, at(22)));
        assert_eq!(tv(&leases, &[&["host:tv"]], at(22)), (Some(mac(1)), 0));
    }

    #[test]
    fn who_is_not_the_device_or_the_router_binds_nothing() {
        let mut leases = Leases::default();
        let ack = message(ACK, 1, 1, &[(12, b"tv")]);
        assert!(!hear(&mut leases, false, 99, &ack, at(0)), "a server that is not this router");
        hear(&mut leases, false, 2, &message(REQUEST, 1, 0, &[(12, b"tv")]), at(0));
        hear(&mut leases, true, 99, &message(ACK, 1, 1, &[]), at(0));
        assert_eq!(leases.live(at(0)).count(), 0, "another device asked in its name");
        let mut relayed = message(ACK, 1, 1, &[(12, b"tv")]);
        relayed[24] = 10;
        assert!(!hear(&mut leases, true, 99, &relayed, at(0)));
        let mut inform = ack.clone();
        inform[16..20].fill(0);
        assert!(!hear(&mut leases, true, 99, &inform, at(0)), "it gives no address");
        assert!(!hear(&mut leases, true, 99, &ack[..FIXED_BYTES - 1], at(0)));
        assert!(hear(&mut leases, true, 99, &ack, at(0)));
    }

    #[test]
    fn names_with_escapes_and_long_ones_are_no_names() {
        let mut leases = Leases::default();
        for name in
            [&b"\x1b[31mtv"[..], b"tv\n", b"", b"-tv", b"t v", "t\u{e9}".as_bytes(), &[b'a'; 64]]
        {
            lease(&mut leases, 3, b"old", 3, at(0));
            hear(&mut leases, false, 1, &message(REQUEST, 1, 0, &[(12, name)]), at(0));
            hear(&mut leases, true, 99, &message(ACK, 1, 1, &[]), at(0));
            assert_eq!(leases.live(at(0)).count(), 1, "{name:?}");
        }
        let part = [b'a'; 255];
        let huge: Vec<(u8, &[u8])> = vec![(OPTION_NAME, &part[..]); 40];
        hear(&mut leases, false, 1, &message(REQUEST, 1, 0, &huge), at(0));
        hear(&mut leases, true, 99, &message(ACK, 1, 1, &huge), at(0));
        assert_eq!(leases.live(at(0)).count(), 1);
    }

    #[test]
    fn tables_are_bounded_and_names_of_the_policy_stay() {
        let mut leases = Leases::default();
        lease(&mut leases, 1, b"tv", 1, at(0));
        for i in 0..3_000u32 {
            let [_, _, high, low] = i.to_be_bytes();
            let mut request = message(REQUEST, 1, 0, &[(12, b"x")]);
            let flooder = [2, 1, 1, 1, high, low];
            request[28..34].copy_from_slice(&flooder);
            let wanted = BTreeSet::from(["tv"]);
            let heard = Heard { is_own: false, source: Mac(flooder), bytes: &request };
            leases.handle_heard(heard, &wanted, at(1));
            let mut ack = message(ACK, 1, 1, &[]);
            ack[28..34].copy_from_slice(&flooder);
            if i % 2 == 0 {
                leases.handle_heard(
                    Heard { is_own: true, source: mac(99), bytes: &ack },
                    &wanted,
                    at(1),
                );
            }
            assert!(leases.live.len() <= LEASES_MAX && leases.requests.len() <= REQUESTS_MAX);
        }
        assert_eq!(leases.live.len(), LEASES_MAX);
        assert_eq!(tv(&leases, &[&["host:tv"]], at(2)).0, Some(mac(1)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..600), is_own: bool) {
            let mut whole = message(ACK, 1, 1, &[]);
            whole.pop();
            whole.extend(&bytes);
            for bytes in [&bytes, &whole] {
                let mut leases = Leases::default();
                hear(&mut leases, is_own, 1, bytes, at(1));
                for (_, lease) in leases.live(at(1)) {
                    prop_assert!(host_label(&lease.name) == Some(lease.name.clone()));
                }
            }
        }
    }
}
