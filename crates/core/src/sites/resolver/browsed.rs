//! Connections of users with an extension: their groups by claims and by departing requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{Known, Resolver};
use crate::packet::Transport;
use crate::sites::claims::{Carried, Claim, HostDigest, Sends, Verdict, Votes};
use crate::sites::departure::{Departure, Departures, OPENS_WITHIN, Opened};
use crate::sites::division::{Candidate, Connections, Divided, Recent};
use crate::sites::{Attribution, Flow, Reason};
use crate::units::{Span, Time};

/// A user with an extension.
#[derive(Debug)]
pub(super) struct Claimant {
    /// When it was last heard of.
    pub(super) heard: Time,
    pub(super) recent: Recent,
    pub(super) departures: Departures,
}

/// What an extension's claims are compared with, and the result.
#[derive(Debug, Default)]
pub(super) struct Browsed {
    /// When the connection opened; `None` if no claimant was known then.
    pub(super) opened: Option<Time>,
    /// Time from the opening to its first payload: a round trip, plus the time that the client needed.
    pub(super) handshake: Option<Span>,
    pub(super) sends: Sends,
    pub(super) votes: Votes,
    /// The digest of the name that the connection has sent.
    pub(super) host: Option<HostDigest>,
    /// The attribution by votes.
    pub(super) attribution: Option<Attribution>,
    /// The attribution by the requests that left when the connection opened.
    pub(super) guess: Option<Attribution>,
}

impl Connections for BTreeMap<u64, Known> {
    fn votes(&mut self, number: u64) -> Option<&mut Votes> {
        self.get_mut(&number)?.browsed.as_mut().map(|browsed| &mut browsed.votes)
    }
}

impl Resolver {
    /// The user has an extension that will make claims; the extension has to repeat this within
    /// [`CLAIMANT_SPAN`]. The user's connections are watched: those that open from now on, and the last
    /// [`CANDIDATES_MAX`] of those that are open.
    pub fn handle_claimant(&mut self, user: u32, at: Time) {
        let was_known = self.is_claimant(user, at);
        if self.claimants.len() >= CLAIMANTS_MAX && !self.claimants.contains_key(&user) {
            let oldest = self.claimants.iter().min_by_key(|(_, claimant)| claimant.heard);
            let oldest = oldest.map(|(user, _)| *user);
            oldest.and_then(|user| self.claimants.remove(&user));
        }
        let new =
            || Claimant { heard: at, recent: Recent::default(), departures: Departures::default() };
        self.claimants.entry(user).or_insert_with(new).heard = at;
        if was_known {
            return;
        }
        let last = self.connections.iter().rev().filter(|(_, known)| known.user == Some(user));
        let last: Vec<u64> = last.map(|(number, _)| *number).take(CANDIDATES_MAX).collect();
        for number in last {
            let known = self.connections.get_mut(&number).expect("invariant: it was just there");
            known.browsed.get_or_insert_default();
            // A connection that is not bound yet will be bound later.
            if known.attribution.is_some() {
                self.note_host(number);
                self.command_bind(number);
            }
        }
    }

    fn is_claimant(&self, user: u32, at: Time) -> bool {
        self.claimants.get(&user).is_some_and(|claimant| at.since(claimant.heard) < CLAIMANT_SPAN)
    }

    /// Takes in a claim; returns whether it concerns a known connection.
    pub fn handle_claim(&mut self, claim: &Claim, at: Time) -> bool {
        let candidates = self.candidates(claim, at);
        if candidates.is_empty() {
            return false;
        }
        if claim.is_http1 {
            // If a host was not known to have claims, only one of the requests that left at once was reported.
            let &Claim { user, remote, host, group, begin, is_http1, .. } = claim;
            let port = remote.port();
            self.handle_departure(&Departure { user, host, port, group, begin, is_http1 });
        }
        let divided = Divided::new(claim, candidates);
        let Some(claimant) = self.claimants.get_mut(&claim.user) else { return true };
        if claimant.recent.is_told(&divided) {
            return true;
        }
        for number in claimant.recent.divide(divided, &mut self.connections) {
            let verdict = self.connections.votes(number).and_then(|votes| votes.verdict());
            if let Some(verdict) = verdict {
                self.bind_claimed(number, verdict);
            }
        }
        true
    }

    /// Takes in that a request leaves: until there are claims, connections that opened for it belong to its group.
    pub fn handle_departure(&mut self, departure: &Departure) {
        let Some(claimant) = self.claimants.get_mut(&departure.user) else { return };
        claimant.departures.push(*departure);
        let Departure { user, host, port, begin, .. } = *departure;
        self.guess(user, host, port, begin)
            .into_iter()
            .for_each(|number| self.command_bind(number));
    }

    /// Guesses the groups for which the user's connections to a host were opened, as long as votes do not decide:
    /// only of connections that `time` may affect. Returns the numbers of connections whose guess changed.
    fn guess(&mut self, user: u32, host: HostDigest, port: u16, time: Time) -> Vec<u64> {
        let Some(claimant) = self.claimants.get(&user) else { return Vec::new() };
        let known = self.connections.iter().rev().take(CANDIDATES_MAX);
        let browsed = known.filter_map(|(number, known)| {
            let browsed = known.browsed.as_ref().filter(|_| known.user == Some(user))?;
            let Flow { transport, remote, .. } = known.connection.flow;
            let is_to_host = browsed.host == Some(host) && remote.port() == port;
            let is_tcp = transport == Transport::Tcp;
            Some((*number, browsed.as_ref(), is_to_host, is_tcp))
        });
        let (mut recent, mut settled, mut earlier) = (Vec::new(), BTreeSet::new(), 0);
        for (number, browsed, is_to_host, is_tcp) in browsed {
            let attribution = browsed.attribution.as_ref().filter(|e| e.reason != Reason::Mixed);
            let group = attribution.map(|attribution| attribution.group);
            match browsed.opened {
                Some(at) if at + GUESSED_SPAN >= time => {
                    let used = browsed.sends.used().filter(|used| *used <= at + USED_WITHIN);
                    let is_used = is_tcp && used.is_some();
                    if is_to_host && at <= time + GUESSED_SPAN {
                        recent.push((Opened { at, is_used, group }, number));
                    }
                }
                _ if earlier == EARLIER_MAX => break,
                _ => {
                    earlier += 1;
                    let last = browsed.sends.last().filter(|_| is_to_host && is_tcp);
                    if last.is_some_and(|last| last + IN_USE_SPAN >= time) {
                        settled.extend(group.flatten());
                    }
                }
            }
        }
        recent.sort_unstable_by_key(|(opened, number)| (opened.at, *number));
        let (connections, numbers): (Vec<Opened>, Vec<u64>) = recent.into_iter().unzip();
        let openers = claimant.departures.openers(&host, port, &connections, &settled);
        let is_http1 = claimant.departures.is_http1(&host, port);
        let mut changed = Vec::new();
        for ((opened, number), opener) in connections.iter().zip(numbers).zip(openers) {
            if opened.at + OPENS_WITHIN >= time && self.set_opener(number, opener, is_http1) {
                changed.push(number);
            }
        }
        changed
    }

    /// Takes over for which group a connection was opened; returns whether this changes its group.
    fn set_opener(&mut self, number: u64, opener: Option<Option<usize>>, is_http1: bool) -> bool {
        let known = self.connections.get_mut(&number).expect("invariant: it is known");
        let browsed = known.browsed.as_mut().expect("invariant: it is browsed");
        if !browsed.votes.set_opener(opener, is_http1) {
            return false;
        }
        let name = known.attribution.as_ref().and_then(|attribution| attribution.name.clone());
        browsed.guess = opener.map(|group| Attribution { reason: Reason::Extension, name, group });
        browsed.attribution.is_none()
    }

    /// The connections that may have carried the request.
    fn candidates(&self, claim: &Claim, at: Time) -> Vec<Candidate> {
        let mut to_host = Vec::new();
        for transport in [Transport::Tcp, Transport::Udp] {
            let from = Flow { transport, remote: claim.remote, local: LOCAL_FIRST };
            let flows = self.numbers.range(from..).take(CANDIDATES_MAX);
            let flows = flows
                .take_while(|(flow, _)| flow.transport == transport && flow.remote == claim.remote);
            for (_, number) in flows {
                let known = &self.connections[number];
                let Some(browsed) = &known.browsed else { continue };
                if known.user == Some(claim.user) && self.is_host_of(claim, known, browsed, at) {
                    to_host.push((*number, browsed));
                }
            }
        }
        let round_trip = to_host.iter().filter_map(|(_, browsed)| browsed.handshake).min();
        let carried = |round_trip, may_be_spare: bool| {
            let carried = to_host.iter().filter_map(move |(number, browsed)| {
                let carried = browsed.sends.carried(claim, round_trip)?;
                let Carried { likelihood, last: sent, is_spare } = carried;
                let candidate = Candidate { number: *number, likelihood, sent };
                (may_be_spare || !is_spare).then_some(candidate)
            });
            Some(carried.collect::<Vec<_>>()).filter(|candidates| !candidates.is_empty())
        };
        let round_trip = round_trip.unwrap_or(Span::ZERO);
        // A client that was busy answered the handshake late, and may have sent a request together with that.
        let ways = [claim.is_http1, true].map(|spare| [(round_trip, spare), (Span::ZERO, spare)]);
        ways.into_iter()
            .flatten()
            .find_map(|(trip, spare)| carried(trip, spare))
            .unwrap_or_default()
    }

    /// Whether the claim knows the host name of the connection: the name that it sent, or, if that is
    /// unknown, a name that DNS gave for its address.
    fn is_host_of(&self, claim: &Claim, known: &Known, browsed: &Browsed, at: Time) -> bool {
        if let Some(host) = &browsed.host {
            return *host == claim.host;
        }
        let mut names = self.names.of(known.connection.flow.remote.ip(), at);
        names.any(|name| HostDigest::new(&self.salt, name) == claim.host)
    }

    /// The owner of a connection that opens has become known.
    pub(super) fn handle_owner(&mut self, number: u64, user: Option<u32>, at: Time) {
        let is_watched = user.is_some_and(|user| self.is_claimant(user, at));
        let known = self.connections.get_mut(&number).expect("invariant: it is known");
        known.user = user;
        if is_watched {
            let mut sends = Sends::default();
            // The first request follows the handshake, whose first packet may be all that is seen.
            match known.connection.flow.transport {
                Transport::Tcp => sends.handle_opened(at),
                Transport::Udp => _ = sends.push(at),
            }
            known.browsed =
                Some(Box::new(Browsed { opened: Some(at), sends, ..Browsed::default() }));
        }
    }

    /// A connection sends payload.
    pub(super) fn note_handshake(&mut self, number: u64, at: Time) {
        let known = self.connections.get_mut(&number).expect("invariant: it is known");
        if let Some(browsed) = &mut known.browsed
            && let (Some(opened), None) = (browsed.opened, browsed.handshake)
        {
            browsed.handshake = Some(at.since(opened));
        }
    }

    /// A connection sent data of which only the time is known.
    pub(super) fn handle_sent(&mut self, number: u64, at: Time) {
        let known = self.connections.get_mut(&number).expect("invariant: it is known");
        let Some(browsed) = &mut known.browsed else { return };
        let is_soon = browsed.opened.is_some_and(|opened| at <= opened + USED_WITHIN);
        if browsed.sends.push(at) && is_soon {
            self.guess_beside(number).into_iter().for_each(|number| self.command_bind(number));
        }
    }

    /// A connection sent the beginning of its TCP stream: a request, if it names a host in the clear.
    pub(super) fn note_beginning(&mut self, number: u64, at: Time) {
        let known = self.connections.get_mut(&number).expect("invariant: it is known");
        let is_request = known.attribution.as_ref().is_some_and(|e| e.reason == Reason::Host);
        match &mut known.browsed {
            Some(browsed) if is_request => browsed.sends.handle_request(at),
            Some(browsed) => browsed.sends.handle_hello(at),
            None => {}
        }
    }

    fn bind_claimed(&mut self, number: u64, verdict: Verdict) {
        let known = self.connections.get_mut(&number).expect("invariant: it is known");
        let browsed = known.browsed.as_mut().expect("invariant: it is browsed");
        let name = known.attribution.as_ref().and_then(|attribution| attribution.name.clone());
        let attribution = match verdict {
            Verdict::Group(group) => Attribution { reason: Reason::Extension, name, group },
            Verdict::Mixed => Attribution { reason: Reason::Mixed, name: None, group: None },
        };
        let before = browsed.attribution.as_ref();
        if before.is_some_and(|b| (b.reason, b.group) == (attribution.reason, attribution.group)) {
            return;
        }
        match verdict {
            Verdict::Mixed => self.counts.mixed += 1,
            Verdict::Group(_) if before.is_none() => self.counts.by_extension += 1,
            Verdict::Group(_) => {}
        }
        browsed.attribution = Some(attribution);
        self.command_bind(number);
    }

    /// Notes which name claims about the connection have to know.
    pub(super) fn note_host(&mut self, number: u64) {
        let known = self.connections.get_mut(&number).expect("invariant: it is known");
        if let (Some(browsed), Some(attribution)) = (&mut known.browsed, &known.attribution) {
            let name = attribution.name.as_ref().filter(|_| attribution.reason != Reason::Dns);
            browsed.host = name.map(|name| HostDigest::new(&self.salt, name));
        }
    }

    /// Guesses for which request a connection and its neighbours were opened, now that its host is known.
    pub(super) fn guess_beside(&mut self, number: u64) -> Vec<u64> {
        let known = &self.connections[&number];
        let (user, port) = (known.user, known.connection.flow.remote.port());
        let browsed =
            known.browsed.as_ref().and_then(|browsed| Some((browsed.host?, browsed.opened?)));
        match (user, browsed) {
            (Some(user), Some((host, opened))) => self.guess(user, host, port, opened),
            _ => Vec::new(),
        }
    }
}

/// An extension asks for the patterns more often than this.
pub const CLAIMANT_SPAN: Span = Span::secs(60);
/// Users with an extension.
pub(super) const CLAIMANTS_MAX: usize = 64;
/// Flows to one server that are considered at most.
const CANDIDATES_MAX: usize = 1_024;
/// Connections of a page open within less than this.
const GUESSED_SPAN: Span = Span::secs(1);
/// Connections opened earlier that are considered at most.
const EARLIER_MAX: usize = 64;
/// A connection first used later than this was spare, and does not serve the request that opened it.
const USED_WITHIN: Span = Span::secs(2);
/// A connection that has sent nothing for this time may be closed.
const IN_USE_SPAN: Span = Span::secs(30);
/// Sorts before every other address.
const LOCAL_FIRST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
