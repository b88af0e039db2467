//! The signs of each device.

use std::collections::BTreeMap;

use super::{Claim, Identity, Kind, Os, Set, Source, Table, Verdict, What};
use crate::lease::Message;
use crate::packet::Mac;
use crate::relay::Syn;
use crate::units::{Span, Time};

/// The most devices.
pub const DEVICES_MAX: usize = 1_024;

/// The most claims of a device.
pub const CLAIMS_MAX: usize = 8;

/// How long first packets and requests count after they were last seen. A DHCP client may not ask again
/// for a month.
const CLAIM_SPAN: Span = Span::secs(24 * 3_600);

/// What is known of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portrait {
    /// Its address.
    pub mac: Mac,
    /// Its system.
    pub os: Verdict<Os>,
    /// Its kind.
    pub kind: Verdict<Kind>,
    /// The claims that led to this.
    pub claims: Vec<Claim>,
}

/// The devices, see the module.
#[derive(Clone, Debug)]
pub struct Devices {
    table: Table,
    /// What the user says about devices.
    said: BTreeMap<Mac, Claim>,
    known: BTreeMap<Mac, Device>,
}

#[derive(Clone, Debug)]
struct Device {
    claims: Vec<(Claim, Time)>,
    heard_at: Time,
}

impl Devices {
    /// Recognises devices by `table`.
    pub fn new(table: Table) -> Devices {
        Devices { table, said: BTreeMap::new(), known: BTreeMap::new() }
    }

    /// What the user says of devices, from now on; it precedes all signs.
    pub fn set_said(&mut self, said: impl IntoIterator<Item = (Mac, Identity)>) {
        let claim = |identity: Identity| Claim {
            source: Source::User,
            seen: String::new(),
            what: What {
                os: identity.os.map_or(Set::all(), |os| Set::of(&[os])),
                kinds: identity.kind.map_or(Set::all(), |kind| Set::of(&[kind])),
            },
        };
        self.said = said.into_iter().map(|(mac, identity)| (mac, claim(identity))).collect();
    }

    /// A DHCP message to a server, from a frame of `source`. Returns whether rules see the device as another one.
    pub fn handle_dhcp(&mut self, source: Mac, message: &[u8], now: Time) -> bool {
        let message = Message::parse(message);
        let Some(message) = message.filter(|m| m.is_question() && m.mac == source) else {
            return false;
        };
        if message.requests.is_empty() && message.vendor.is_empty() {
            return false;
        }
        let claim = self.table.of_dhcp(&message.requests, &message.vendor);
        self.change(source, now, |device| {
            let is_dhcp = |(old, _): &(Claim, Time)| old.source == Source::Dhcp;
            if device.claims.iter().any(|old| is_dhcp(old) && old.0.what != claim.what) {
                // The device now runs another system.
                device.claims.clear();
            }
            device.claims.retain(|old| !is_dhcp(old));
            device.claims.push((claim, now));
        })
    }

    /// The first packet of a connection. Returns whether rules see the device as another one.
    pub fn handle_syn(&mut self, source: Mac, syn: &Syn, now: Time) -> bool {
        let claim = self.table.of_syn(syn.hops(), &syn.layout());
        self.add(source, claim, now)
    }

    /// Takes the `User-Agent` of a request. Returns whether other rules match the device now.
    pub fn handle_agent(&mut self, source: Mac, agent: &[u8], now: Time) -> bool {
        let claim = self.table.of_agent(agent);
        // Many programs say nothing about their system.
        claim.what != What::anything() && self.add(source, claim, now)
    }

    /// What rules see of a device.
    pub fn identity(&self, mac: Mac) -> Identity {
        let (os, kind) = self.verdicts(mac);
        Identity { os: os.known(), kind: kind.known() }
    }

    /// All devices that were heard or named.
    pub fn portraits(&self) -> impl Iterator<Item = Portrait> {
        let unheard = self.said.keys().filter(|mac| !self.known.contains_key(mac));
        self.known.keys().chain(unheard).map(|&mac| {
            let (os, kind) = self.verdicts(mac);
            Portrait { mac, os, kind, claims: self.claims(mac).cloned().collect() }
        })
    }

    fn claims(&self, mac: Mac) -> impl Iterator<Item = &Claim> {
        let heard = self.known.get(&mac).into_iter().flat_map(|device| &device.claims);
        self.said.get(&mac).into_iter().chain(heard.map(|(claim, _)| claim))
    }

    fn verdicts(&self, mac: Mac) -> (Verdict<Os>, Verdict<Kind>) {
        (
            Verdict::of(self.claims(mac).map(|claim| (claim.source, &claim.what.os))),
            Verdict::of(self.claims(mac).map(|claim| (claim.source, &claim.what.kinds))),
        )
    }

    fn add(&mut self, source: Mac, claim: Claim, now: Time) -> bool {
        self.change(source, now, |device| {
            // If several programs make the same claim, one of them is enough.
            let is_same = |old: &Claim| old.source == claim.source && old.what == claim.what;
            if let Some((_, at)) = device.claims.iter_mut().find(|(old, _)| is_same(old)) {
                *at = now;
            } else {
                if device.claims.len() >= CLAIMS_MAX {
                    let oldest = (0..device.claims.len()).min_by_key(|&i| device.claims[i].1);
                    device.claims.remove(oldest.unwrap_or(0));
                }
                device.claims.push((claim, now));
            }
        })
    }

    fn change(&mut self, mac: Mac, now: Time, change: impl FnOnce(&mut Device)) -> bool {
        let before = self.identity(mac);
        if self.known.len() >= DEVICES_MAX && !self.known.contains_key(&mac) {
            let silent = self.known.iter().min_by_key(|(_, device)| device.heard_at);
            if let Some((&silent, _)) = silent {
                self.known.remove(&silent);
            }
        }
        let new = || Device { claims: Vec::new(), heard_at: now };
        let device = self.known.entry(mac).or_insert_with(new);
        device.heard_at = now;
        device
            .claims
            .retain(|(claim, at)| claim.source == Source::Dhcp || now.since(*at) <= CLAIM_SPAN);
        change(device);
        before != self.identity(mac)
    }
}

#[cfg(test)]
mod tests;
