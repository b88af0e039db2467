//! The names that belong to addresses, from DNS answers to queries that this host sent.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Flow;
use super::dns::message;
use crate::host_name::HostName;
use crate::units::{Span, Time};

/// What DNS answers said.
///
/// Invariant: only answers to queries are kept, and no table exceeds its constant. An off-path
/// attacker has to guess the port and the identifier of an open query, as with every resolver.
#[derive(Debug, Default)]
pub(super) struct Names {
    queries: BTreeMap<(Flow, u16), Query>,
    addresses: BTreeMap<IpAddr, Named>,
    /// Names that stand in for others in an encrypted ClientHello, and until when.
    public: BTreeMap<HostName, Time>,
}

#[derive(Debug)]
struct Query {
    name: HostName,
    kind: u16,
    until: Time,
}

/// The names of an address.
#[derive(Debug, Default)]
struct Named {
    names: Vec<(HostName, Time)>,
    /// Until this time the address has more names than are kept.
    crowded_until: Time,
}

impl Names {
    /// Takes in a DNS message of `flow`.
    pub(super) fn handle_message(&mut self, flow: Flow, bytes: &[u8], at: Time) {
        let Some(message) = message(bytes) else { return };
        let key = (flow, message.id);
        if !message.is_answer {
            if self.queries.len() >= QUERIES_MAX {
                self.queries.retain(|_, query| query.until > at);
            }
            if self.queries.len() < QUERIES_MAX {
                let until = at + QUERY_LIFE;
                self.queries.insert(key, Query { name: message.name, kind: message.kind, until });
            }
            return;
        }
        let asked = self.queries.get(&key).is_some_and(|query| {
            query.name == message.name && query.kind == message.kind && query.until > at
        });
        if !asked {
            return;
        }
        self.queries.remove(&key);
        for (address, ttl) in message.addresses {
            let life = Span::secs(ttl.into()).clamp(LIFE_MIN, LIFE_MAX);
            self.add(address, &message.name, at + life, at);
        }
        if self.public.len() >= PUBLIC_MAX {
            self.public.retain(|_, until| *until > at);
        }
        for name in message.public_names {
            if self.public.len() < PUBLIC_MAX {
                self.public.insert(name, at + LIFE_MAX);
            }
        }
    }

    fn add(&mut self, address: IpAddr, name: &HostName, until: Time, at: Time) {
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&address) {
            self.addresses.retain(|_, named| named.is_alive(at));
            if self.addresses.len() >= ADDRESSES_MAX {
                return;
            }
        }
        let named = self.addresses.entry(address).or_default();
        named.names.retain(|(known, until)| known != name && *until > at);
        if named.names.len() < NAMES_MAX {
            named.names.push((name.clone(), until));
        } else {
            named.crowded_until = named.crowded_until.max(until);
        }
    }

    /// The names of an address; none if there are more than are kept.
    pub(super) fn of(&self, address: IpAddr, at: Time) -> impl Iterator<Item = &HostName> {
        let named = self.addresses.get(&address).filter(|named| named.crowded_until <= at);
        let names = named.into_iter().flat_map(|named| &named.names);
        names.filter(move |(_, until)| *until > at).map(|(name, _)| name)
    }

    /// Whether a name stands in for others in an encrypted ClientHello.
    pub(super) fn is_public(&self, name: &HostName, at: Time) -> bool {
        self.public.get(name).is_some_and(|until| *until > at)
    }
}

impl Named {
    fn is_alive(&self, at: Time) -> bool {
        self.crowded_until > at || self.names.iter().any(|(_, until)| *until > at)
    }
}

/// Queries without an answer.
const QUERIES_MAX: usize = 1_024;
/// Resolvers wait less than this.
const QUERY_LIFE: Span = Span::secs(10);
const ADDRESSES_MAX: usize = 8_192;
/// Most names of one address.
const NAMES_MAX: usize = 16;
const PUBLIC_MAX: usize = 256;
/// Shortest time for which browsers keep answers.
const LIFE_MIN: Span = Span::secs(60);
const LIFE_MAX: Span = Span::secs(86_400);

#[cfg(test)]
mod tests {
    use super::super::dns::written::{OWNER, answer, query, record};
    use super::*;
    use crate::packet::Transport;

    fn flow(port: u16) -> Flow {
        let (local, remote) = (format!("192.0.2.1:{port}"), "192.0.2.53:53");
        Flow {
            transport: Transport::Udp,
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
        }
    }

    fn told(id: u16, name: &str, address: [u8; 4], ttl: u32) -> Vec<u8> {
        answer(id, name, 1, &[record(&OWNER, 1, ttl, &address)])
    }

    fn names_at(names: &Names, address: &str, at: Time) -> Vec<String> {
        names.of(address.parse().unwrap(), at).map(|n| n.to_string()).collect()
    }

    #[test]
    fn only_answers_to_open_queries_count_and_only_once() {
        let (mut names, at) = (Names::default(), Time::ZERO + Span::secs(9));
        names.handle_message(flow(1), &query(7, "x.com", 1), at);
        for (port, id, name) in [(2, 7, "x.com"), (1, 8, "x.com"), (1, 7, "y.com")] {
            names.handle_message(flow(port), &told(id, name, [192, 0, 2, 9], 300), at);
        }
        assert_eq!(names_at(&names, "192.0.2.9", at), [""; 0]);
        names.handle_message(flow(1), &told(7, "x.com", [192, 0, 2, 9], 300), at);
        assert_eq!(names_at(&names, "192.0.2.9", at), ["x.com"]);
        names.handle_message(flow(1), &told(7, "x.com", [192, 0, 2, 8], 300), at);
        assert_eq!(names_at(&names, "192.0.2.8", at), [""; 0], "a second answer");
        let late = at + Span::secs(300);
        assert_eq!(names_at(&names, "192.0.2.9", late), [""; 0]);
    }

    #[test]
    fn an_address_with_more_names_than_are_kept_has_none() {
        let (mut names, at) = (Names::default(), Time::ZERO + Span::secs(9));
        for i in 0..=NAMES_MAX as u16 {
            let name = format!("{i}a.x.com");
            names.handle_message(flow(1), &query(i, &name, 1), at);
            names.handle_message(flow(1), &told(i, &name, [192, 0, 2, 9], 0), at);
            let kept = if usize::from(i) < NAMES_MAX { usize::from(i) + 1 } else { 0 };
            assert_eq!(names_at(&names, "192.0.2.9", at).len(), kept);
        }
    }

    #[test]
    fn tables_are_bounded() {
        let (mut names, mut at) = (Names::default(), Time::ZERO + Span::secs(9));
        for i in 0..3_000_u16 {
            names.handle_message(flow(i), &query(i, "x.com", 1), at);
        }
        assert_eq!(names.queries.len(), QUERIES_MAX);
        at = at + Span::secs(11);
        for i in 0..2 * ADDRESSES_MAX as u32 {
            let address = (0x0a00_0000 + i).to_be_bytes();
            names.handle_message(flow(1), &query(1, "x.com", 1), at);
            names.handle_message(flow(1), &told(1, "x.com", address, 100_000), at);
        }
        assert_eq!(names.addresses.len(), ADDRESSES_MAX);
        at = at + LIFE_MAX;
        names.handle_message(flow(1), &query(1, "x.com", 1), at);
        names.handle_message(flow(1), &told(1, "x.com", [192, 0, 2, 9], 1), at);
        assert_eq!(names.addresses.len(), 1, "what has expired makes room");
    }
}
