//! Derives the group of each connection from what was heard.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use browsed::CLAIMANT_SPAN;
use browsed::{Browsed, Claimant};
pub use kept::{Claimed, KEPT_MAX, Kept};

use super::claims::Votes;
use super::departure::Departures;
use super::division::Recent;
use super::http;
use super::names::Names;
use super::quic::Initials;
use super::site::Sites;
use super::tls::{self, Read};
use super::{Attribution, Command, Connection, Flow, Heard, Reason};
use crate::host_name::HostName;
use crate::sites::assemble::Assembler;
use crate::units::{Span, Time};

mod browsed;
mod kept;

/// The groups to which connections belong: see the [module](super).
///
/// Bounds: [`CONNECTIONS_MAX`] connections, of which [`PENDING_MAX`] keep at most 16 KiB of their
/// beginning; the oldest ones make room for new ones. DNS: 8,192 addresses with 16 names each.
#[derive(Debug, Default)]
pub struct Resolver {
    sites: Sites,
    /// By number, and so the oldest first.
    connections: BTreeMap<u64, Known>,
    numbers: BTreeMap<Flow, u64>,
    /// The numbers of connections whose first bytes are being assembled.
    pending: BTreeSet<u64>,
    names: Names,
    /// Users with an extension.
    claimants: BTreeMap<u32, Claimant>,
    /// The salt of the digests of names in claims.
    salt: String,
    commands: VecDeque<Command>,
    counts: Counts,
    number_last: u64,
}

/// What was heard and decided since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that opened.
    pub opened: u64,
    /// Decided by a browser's extension, perhaps after another source.
    pub by_extension: u64,
    /// Decided by `Host`.
    pub by_host: u64,
    /// Decided by SNI.
    pub by_sni: u64,
    /// Decided by DNS.
    pub by_dns: u64,
    /// Connections whose first bytes name no known host.
    pub unnamed: u64,
    /// Connections with names of different groups on one flow.
    pub mixed: u64,
    /// Connections with an encrypted ClientHello.
    pub ech: u64,
    /// Connections with DNS over TLS, whose answers cannot be read.
    pub encrypted_dns: u64,
    /// Current connections that are not decided yet.
    pub undecided: u64,
}

/// A connection.
#[derive(Debug)]
struct Known {
    connection: Connection,
    pending: Option<Box<Pending>>,
    /// The attribution by the wire.
    attribution: Option<Attribution>,
    is_final: bool,
    user: Option<u32>,
    /// What is known of the connection if its user has the extension.
    browsed: Option<Box<Browsed>>,
}

impl Known {
    fn attribution(&self) -> Option<&Attribution> {
        self.told().or(self.attribution.as_ref())
    }

    /// The attribution by the extension: by votes, or else by the request for which it was opened.
    fn told(&self) -> Option<&Attribution> {
        let browsed = self.browsed.as_ref()?;
        browsed.attribution.as_ref().or(browsed.guess.as_ref())
    }
}

/// The beginning of a connection.
#[derive(Debug)]
struct Pending {
    since: Time,
    beginning: Beginning,
}

#[derive(Debug)]
enum Beginning {
    Stream(Assembler),
    Quic(Initials),
}

impl Resolver {
    /// Begins with nothing known. `salt` is that of [`HostDigest`](super::HostDigest)s.
    pub fn new(sites: Sites, salt: String) -> Resolver {
        Resolver { sites, salt, ..Resolver::default() }
    }

    /// Takes in what was heard of a connection.
    pub fn handle_heard(&mut self, connection: Connection, heard: Heard<'_>, at: Time) {
        match heard {
            Heard::Dns(bytes) => self.names.handle_message(connection.flow, bytes, at),
            Heard::Opened { user } => {
                let number = self.number_of(connection, at);
                self.handle_owner(number, user, at);
            }
            Heard::Sent => {
                // A connection that is no longer known is not added again by this.
                let number = self.numbers.get(&connection.flow).copied();
                let is_known = |number: &u64| self.connections[number].connection == connection;
                if let Some(number) = number.filter(is_known) {
                    self.handle_sent(number, at);
                }
            }
            Heard::Stream { offset, bytes } => {
                let number = self.number_of(connection, at);
                self.note_handshake(number, at);
                if !self.connections[&number].is_final {
                    self.handle_stream(number, offset, bytes, at);
                    self.note_beginning(number, at);
                } else if bytes.len() >= SENT_MIN {
                    // The kernel does not know the decision yet.
                    self.handle_sent(number, at);
                }
            }
            Heard::Datagram(bytes) => {
                let number = self.number_of(connection, at);
                self.handle_datagram(number, bytes, at);
            }
        }
    }

    /// Takes over the patterns of another policy: every connection is bound again, by the wire
    /// alone until there are new claims.
    pub fn handle_sites(&mut self, sites: Sites, at: Time) {
        self.sites = sites;
        // The groups' numbers have changed.
        for claimant in self.claimants.values_mut() {
            (claimant.recent, claimant.departures) = (Recent::default(), Departures::default());
        }
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        for number in numbers {
            let known = self.connections.get_mut(&number).expect("invariant: it was just there");
            if let Some(browsed) = &mut known.browsed {
                (browsed.votes, browsed.attribution, browsed.guess) =
                    (Votes::default(), None, None);
            }
            let known = &self.connections[&number];
            let Some(attribution) = &known.attribution else { continue };
            let group = match (attribution.reason, &attribution.name) {
                (Reason::Host | Reason::Sni, Some(name)) => self.sites.group_of(name),
                (Reason::Dns, _) => self.by_dns(known.connection, at).and_then(|e| e.group),
                _ => None,
            };
            let known = self.connections.get_mut(&number).expect("invariant: it was just there");
            if let Some(attribution) = &mut known.attribution {
                attribution.group = group;
            }
            self.command_bind(number);
        }
    }

    /// Gives up connections whose beginning is not complete after [`PATIENCE`].
    pub fn handle_time(&mut self, at: Time) {
        while let Some(&number) = self.pending.first() {
            let pending = self.connections.get(&number).and_then(|known| known.pending.as_ref());
            if pending.is_some_and(|pending| at.since(pending.since) < PATIENCE) {
                break;
            }
            self.give_up(number, at);
        }
    }

    /// The next command.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// The attribution of the connection to which a command gave this number.
    pub fn attribution(&self, number: u64) -> Option<&Attribution> {
        self.connections.get(&number)?.attribution()
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        let undecided = self.connections.values().filter(|known| !known.is_final).count();
        Counts { undecided: undecided as u64, ..self.counts }
    }

    /// The number of a connection, which is added if it was unknown.
    fn number_of(&mut self, connection: Connection, at: Time) -> u64 {
        if let Some(&number) = self.numbers.get(&connection.flow) {
            if self.connections[&number].connection == connection {
                return number;
            }
            // Its ports are used again, and the kernel already knows the new connection.
            self.remove(number);
        }
        if self.connections.len() >= CONNECTIONS_MAX
            && let Some((&oldest, known)) = self.connections.first_key_value()
        {
            self.commands.push_back(Command::Forget(known.connection));
            self.remove(oldest);
        }
        let number = self.insert(Known {
            connection,
            pending: None,
            attribution: None,
            is_final: false,
            user: None,
            browsed: None,
        });
        self.counts.opened += 1;
        self.counts.encrypted_dns += u64::from(connection.flow.remote.port() == PORT_DNS_OVER_TLS);
        // Holds until the connection sends data; a server may be the first to send.
        if let Some(attribution) = self.by_dns(connection, at) {
            self.bind(number, attribution, false);
        }
        number
    }

    fn insert(&mut self, known: Known) -> u64 {
        self.number_last += 1;
        self.numbers.insert(known.connection.flow, self.number_last);
        self.connections.insert(self.number_last, known);
        self.number_last
    }

    fn remove(&mut self, number: u64) {
        self.pending.remove(&number);
        if let Some(known) = self.connections.remove(&number) {
            self.numbers.remove(&known.connection.flow);
        }
    }

    fn handle_stream(&mut self, number: u64, offset: u32, bytes: &[u8], at: Time) {
        let begin = || Beginning::Stream(Assembler::default());
        let Beginning::Stream(stream) = &mut self.pending(number, at, begin).beginning else {
            return;
        };
        stream.insert(offset.into(), bytes);
        let read = match stream.prefix() {
            [] => return,
            beginning @ [b'A'..=b'Z', ..] => match http::host(beginning) {
                Read::More => return,
                Read::Not => None,
                Read::Whole(name) => name.map(|name| (Reason::Host, name)),
            },
            beginning => match tls::hello_of_records(beginning) {
                Read::More => return,
                Read::Not => None,
                Read::Whole(hello) => self.inner_name(hello, at),
            },
        };
        self.decide(number, read, at);
    }

    /// Also after the decision: a client may open several connections from one port.
    fn handle_datagram(&mut self, number: u64, bytes: &[u8], at: Time) {
        let begin = || Beginning::Quic(Initials::default());
        let Beginning::Quic(initials) = &mut self.pending(number, at, begin).beginning else {
            return;
        };
        match initials.handle_datagram(bytes) {
            // A datagram without an Initial packet of the client may be followed by one.
            Read::More | Read::Not => {}
            Read::Whole(hello) => {
                let read = self.inner_name(hello, at);
                self.decide(number, read, at);
            }
        }
    }

    /// The beginning of a connection, for which older ones make room.
    fn pending(
        &mut self,
        number: u64,
        at: Time,
        begin: impl FnOnce() -> Beginning,
    ) -> &mut Pending {
        if self.pending.len() >= PENDING_MAX
            && !self.pending.contains(&number)
            && let Some(&oldest) = self.pending.first()
        {
            self.give_up(oldest, at);
        }
        self.pending.insert(number);
        let known = self.connections.get_mut(&number).expect("invariant: it is known");
        known.pending.get_or_insert_with(|| Box::new(Pending { since: at, beginning: begin() }))
    }

    /// The server's name, unless it is the outer name of an encrypted hello.
    fn inner_name(&mut self, hello: tls::Hello, at: Time) -> Option<(Reason, HostName)> {
        let name = hello.name?;
        if hello.has_ech && self.names.is_public(&name, at) {
            self.counts.ech += 1;
            return None;
        }
        Some((Reason::Sni, name))
    }

    fn give_up(&mut self, number: u64, at: Time) {
        let has_ended = self.connections.get(&number).is_none_or(|known| known.is_final);
        if !has_ended {
            return self.decide(number, None, at);
        }
        self.pending.remove(&number);
        if let Some(known) = self.connections.get_mut(&number) {
            known.pending = None;
        }
    }

    /// The beginning is decided: it names this host, or no host.
    fn decide(&mut self, number: u64, read: Option<(Reason, HostName)>, at: Time) {
        self.pending.remove(&number);
        let known = self.connections.get_mut(&number).expect("invariant: it is known");
        known.pending = None;
        let (connection, before) = (known.connection, known.attribution.clone());
        let attribution = match read {
            Some((reason, name)) => {
                let group = self.sites.group_of(&name);
                Attribution { reason, name: Some(name), group }
            }
            None => self.by_dns(connection, at).unwrap_or(Attribution {
                reason: Reason::Nothing,
                name: None,
                group: None,
            }),
        };
        let Some(before) = before.filter(|_| known_is_final(&self.connections, number)) else {
            return self.bind(number, attribution, true);
        };
        if before.reason != Reason::Mixed && before.group != attribution.group {
            let attribution = Attribution { reason: Reason::Mixed, name: None, group: None };
            self.bind(number, attribution, true);
        }
    }

    /// The attribution by DNS: all names of the connection's address must belong to one group.
    fn by_dns(&self, connection: Connection, at: Time) -> Option<Attribution> {
        let mut names = self.names.of(connection.flow.remote.ip(), at);
        let first = names.next()?;
        let group = self.sites.group_of(first)?;
        let mut is_only = true;
        for name in names {
            is_only = false;
            if self.sites.group_of(name) != Some(group) {
                return None;
            }
        }
        let name = is_only.then(|| first.clone());
        Some(Attribution { reason: Reason::Dns, name, group: Some(group) })
    }

    fn bind(&mut self, number: u64, attribution: Attribution, is_final: bool) {
        let known = self.connections.get_mut(&number).expect("invariant: it is known");
        if is_final {
            let counts = &mut self.counts;
            let count = match attribution.reason {
                Reason::Host => &mut counts.by_host,
                Reason::Sni => &mut counts.by_sni,
                Reason::Dns => &mut counts.by_dns,
                Reason::Mixed => &mut counts.mixed,
                Reason::Nothing => &mut counts.unnamed,
                Reason::Extension => unreachable!("the wire does not know the extension"),
            };
            *count += 1;
        }
        known.is_final = is_final;
        known.attribution = Some(attribution);
        self.note_host(number);
        let mut changed = self.guess_beside(number);
        changed.retain(|other| *other != number);
        changed.into_iter().chain([number]).for_each(|number| self.command_bind(number));
    }

    fn command_bind(&mut self, number: u64) {
        let known = &self.connections[&number];
        let group = known.attribution().and_then(|attribution| attribution.group);
        let (connection, is_final) = (known.connection, known.is_final);
        let is_watched = known.browsed.is_some();
        self.commands.push_back(Command::Bind { connection, group, number, is_final, is_watched });
    }
}

fn known_is_final(connections: &BTreeMap<u64, Known>, number: u64) -> bool {
    connections.get(&number).is_some_and(|known| known.is_final)
}

/// Most connections that are known, as in the kernel's table.
pub const CONNECTIONS_MAX: usize = 65_536;
/// Connections whose beginning is being assembled.
const PENDING_MAX: usize = 1_024;
/// Three retransmissions of a lost packet take less than this.
const PATIENCE: Span = Span::secs(10);
/// The kernel reports no shorter payload of a decided connection.
const SENT_MIN: usize = 64;
/// Source: RFC 7858, section 3.1.
const PORT_DNS_OVER_TLS: u16 = 853;

#[cfg(test)]
pub(super) mod tests;
