//! What a browser's extension says about requests of a site, and which connection carried them.
//!
//! Problem: a site fetches from servers that other sites use too, by names that are not its own. Only
//! the browser knows for which site a request is, but it does not tell an extension which connection
//! carries it.
//! Method: a request leaves just after the extension saw it, and before its response begins. Each
//! claim is one vote, divided among the user's connections to the claimed address and host name
//! ([`Divided`](super::division::Divided)) by how soon after the request each connection sent something
//! ([`Sends::carried`]). Over HTTP/2 one that sent only its handshake carried no request, unless no other can have.
//! A connection's group is decided when its votes agree ([`Votes::verdict`]).
//!
//! Terms: *user*, the owner of a socket as the kernel knows it; *vote*, counted in thousandths.
//!
//! Properties: a claim counts only for connections of the user who makes it, and only if it knows the
//! name that the connection itself sent, so it affects no other connections. Names are compared by
//! digest, so what an extension says about sites without a rule does not reveal their names.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use sha2::{Digest as _, Sha256};

use crate::host_name::HostName;
use crate::units::{Span, Time};

/// What an extension says about one request whose response has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The user whose browser it is.
    pub user: u32,
    /// The server.
    pub remote: SocketAddr,
    /// The digest of the name of the server's host.
    pub host: HostDigest,
    /// Index of the site's group in the policy; `None` if no pattern matches the site.
    pub group: Option<usize>,
    /// When the request was handed to the network.
    pub begin: Time,
    /// When the response began.
    pub start: Time,
    /// The extension is not sure for which site the request was: the claim counts half.
    pub is_unsure: bool,
    /// As of a [`Departure`](super::Departure).
    pub is_http1: bool,
}

/// A host's name, salted and hashed (SHA-256).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostDigest(pub [u8; 32]);

impl HostDigest {
    /// The digest of `salt` followed by `name`.
    pub fn new(salt: &str, name: &HostName) -> HostDigest {
        let digest = Sha256::new().chain_update(salt).chain_update(name.as_str());
        HostDigest(digest.finalize().into())
    }
}

/// When a connection last sent data that may be a request.
#[derive(Debug, Default)]
pub(super) struct Sends {
    last: VecDeque<Time>,
    /// When it last sent data of the TLS handshake.
    handshake: Option<Time>,
    /// Whether the next data that it sends ends the handshake.
    awaits_finished: bool,
    /// When it first sent data beyond the handshake.
    used: Option<Time>,
}

impl Sends {
    /// The connection sent data. Returns whether it is now in use for the first time: only its handshake came before.
    pub(super) fn push(&mut self, at: Time) -> bool {
        if self.last.len() == SENDS_MAX {
            self.last.pop_front();
        }
        self.last.push_back(at);
        if std::mem::take(&mut self.awaits_finished) {
            self.handshake = Some(at);
        }
        let shows_use = self.used.is_none() && self.handshake.is_none_or(|end| at > end);
        if shows_use {
            self.used = Some(at);
        }
        shows_use
    }

    /// When the connection first sent data beyond the TLS handshake.
    pub(super) fn used(&self) -> Option<Time> {
        self.used
    }

    /// When the connection last sent anything.
    pub(super) fn last(&self) -> Option<Time> {
        self.last.back().copied()
    }

    /// A TCP connection opens.
    pub(super) fn handle_opened(&mut self, at: Time) {
        self.handshake = Some(at);
        self.push(at);
    }

    /// The connection has sent a request in the clear.
    pub(super) fn handle_request(&mut self, at: Time) {
        (self.handshake, self.awaits_finished) = (None, false);
        self.push(at);
    }

    /// The connection has sent a ClientHello, or a part of one.
    pub(super) fn handle_hello(&mut self, at: Time) {
        (self.handshake, self.awaits_finished) = (self.handshake.max(Some(at)), true);
    }

    /// What the connection sent while the request may have left; `None` if it sent nothing. A response begins
    /// at least a `round_trip` after its request left.
    pub(super) fn carried(&self, claim: &Claim, round_trip: Span) -> Option<Carried> {
        let may_be =
            |at: &Time| *at + EARLY >= claim.begin && *at + round_trip <= claim.start + EARLY;
        let sent = || self.last.iter().copied().filter(may_be);
        let (first, last) = (sent().min()?, sent().max()?);
        let is_spare = self.handshake.is_some_and(|handshake| last <= handshake);
        Some(Carried { likelihood: nearness(first.since(claim.begin)), last, is_spare })
    }
}

/// What a connection sent while a request may have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carried {
    /// How likely it is that the request left by this connection, in thousandths.
    pub(super) likelihood: u64,
    /// When the connection last sent data that may have been the request.
    pub(super) last: Time,
    /// Whether it sent only its handshake.
    pub(super) is_spare: bool,
}

/// How likely it is that data sent `gap` after a request belongs to it, in thousandths.
pub(super) fn nearness(gap: Span) -> u64 {
    VOTE * FALLS_BY_HALF.as_nanos() / (FALLS_BY_HALF + gap).as_nanos()
}

/// The votes for one connection.
#[derive(Debug, Default)]
pub(super) struct Votes {
    by_group: BTreeMap<Option<usize>, u64>,
    /// The group for which the connection was opened, if that is clear.
    opener: Option<Option<usize>>,
    /// The weight of `opener`, in thousandths.
    opened: u64,
}

/// The verdict of the votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The connection belongs to this group, or to no group.
    Group(Option<usize>),
    /// Sites of different groups use it.
    Mixed,
}

impl Votes {
    pub(super) fn add(&mut self, group: Option<usize>, vote: u64) {
        *self.by_group.entry(group).or_default() += vote;
        // Older votes count less.
        if self.by_group.values().sum::<u64>() > VOTES_MAX {
            self.by_group.retain(|_, votes| {
                *votes /= 2;
                *votes > 0
            });
        }
    }

    /// Takes back a vote that was added. If votes were halved since, takes no more than there are.
    pub(super) fn take(&mut self, group: Option<usize>, vote: u64) {
        if let Some(votes) = self.by_group.get_mut(&group) {
            *votes = votes.saturating_sub(vote);
        }
    }

    /// The part of the votes for this group, in thousandths, at least one; near one half for each of two groups
    /// while there are few votes.
    pub(super) fn prior(&self, group: Option<usize>) -> u64 {
        let all: u64 = self.all().map(|(_, votes)| votes).sum();
        (VOTE * (self.of(group) + UNKNOWN) / (all + 2 * UNKNOWN)).max(1)
    }

    /// Takes over for which group the connection was opened; returns whether that has changed.
    pub(super) fn set_opener(&mut self, opener: Option<Option<usize>>, is_http1: bool) -> bool {
        self.opened = if is_http1 { OPENED_HTTP1 } else { OPENED };
        std::mem::replace(&mut self.opener, opener) != opener
    }

    pub(super) fn of(&self, group: Option<usize>) -> u64 {
        let opened = if self.opener == Some(group) { self.opened } else { 0 };
        self.by_group.get(&group).copied().unwrap_or(0) + opened
    }

    /// Every group with votes.
    fn all(&self) -> impl Iterator<Item = (Option<usize>, u64)> {
        let only_opener = self.opener.filter(|group| !self.by_group.contains_key(group));
        self.by_group.keys().copied().chain(only_opener).map(|group| (group, self.of(group)))
    }

    /// The group with enough votes, three times as many as any other group; mixed if another group has three
    /// whole votes and a third of all.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        let mut votes: Vec<(Option<usize>, u64)> = self.all().collect();
        votes.sort_unstable_by_key(|(_, votes)| std::cmp::Reverse(*votes));
        let (group, first) = *votes.first()?;
        let second = votes.get(1).map_or(0, |(_, votes)| *votes);
        let all: u64 = votes.iter().map(|(_, votes)| votes).sum();
        if second >= MIXED && second * 3 >= all {
            Some(Verdict::Mixed)
        } else if first >= ENOUGH && first >= 3 * second {
            Some(Verdict::Group(group))
        } else {
            None
        }
    }
}

/// One claim's vote.
pub(super) const VOTE: u64 = 1_000;
/// Less than a whole vote: a single candidate is decided by its first claim, unless that claim is unsure.
const ENOUGH: u64 = 600;
/// Votes of each group at the beginning. The smaller this is, the more a first vote says about the next one.
const UNKNOWN: u64 = 100;
/// Weight of the opener. A single request does not outvote it, since it may have used an unknown connection; two do.
const OPENED: u64 = VOTE / 2;
/// The same over HTTP/1.1. One request outvotes it, since another request often uses a connection than its opener.
const OPENED_HTTP1: u64 = VOTE / 4;
const MIXED: u64 = 3 * VOTE;
const VOTES_MAX: u64 = 64 * VOTE;
/// Times that are kept: a claim that arrives late still concerns one of the last requests.
const SENDS_MAX: usize = 32;
/// Browsers round their times to milliseconds.
pub(super) const EARLY: Span = Span::millis(2);
/// Data that leaves this much later is half as likely to be the request; about one tick of a busy browser.
const FALLS_BY_HALF: Span = Span::millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Time = Time::from_nanos(60_000_000_000);

    fn claim(begin_ms: u64, start_ms: u64) -> Claim {
        Claim {
            user: 1_000,
            remote: ([198, 51, 100, 1], 443).into(),
            host: HostDigest([0; 32]),
            group: Some(0),
            begin: AT + Span::millis(begin_ms),
            start: AT + Span::millis(start_ms),
            is_unsure: false,
            is_http1: false,
        }
    }

    fn sends(at_ms: &[u64]) -> Sends {
        let mut sends = Sends::default();
        at_ms.iter().for_each(|ms| _ = sends.push(AT + Span::millis(*ms)));
        sends
    }

    #[test]
    fn a_request_leaves_between_its_begin_and_its_response() {
        let claim = claim(100, 200);
        let likelihood = |all: &[u64], claim| {
            sends(all).carried(claim, Span::ZERO).map(|carried| carried.likelihood)
        };
        assert_eq!(likelihood(&[90, 203], &claim), None);
        assert_eq!(likelihood(&[], &claim), None);
        assert_eq!(likelihood(&[99], &claim), Some(VOTE), "times are rounded");
        assert_eq!(likelihood(&[150, 110], &claim), Some(VOTE / 2));
        let [near, far] = [101, 190].map(|ms| likelihood(&[ms], &claim).unwrap());
        assert!(near > 8 * far && far > 0, "{near} {far}");
        let ancient = Claim { begin: Time::ZERO, ..claim };
        assert!(likelihood(&[150], &ancient) <= Some(1));
    }

    #[test]
    fn a_request_leaves_a_round_trip_before_its_response() {
        let carried = |all: &[u64]| sends(all).carried(&claim(100, 200), Span::millis(40));
        assert_eq!(carried(&[163, 199]), None);
        let last = AT + Span::millis(162);
        let expected = Carried { likelihood: VOTE / 2, last, is_spare: false };
        assert_eq!(carried(&[110, 162, 190]), Some(expected));
    }

    #[test]
    fn a_connection_that_has_sent_its_handshake_is_spare_until_more_follows() {
        let at = |ms| AT + Span::millis(ms);
        let is_spare = |sends: &Sends, start| {
            sends.carried(&claim(100, start), Span::ZERO).map(|carried| carried.is_spare)
        };
        let mut sends = Sends::default();
        sends.handle_opened(at(101));
        // Two segments of a ClientHello, and the data that ends the handshake.
        sends.handle_hello(at(110));
        sends.handle_hello(at(111));
        assert!(!sends.push(at(120)) && sends.used().is_none());
        assert_eq!(is_spare(&sends, 200), Some(true));
        assert!(sends.push(at(125)) && sends.used() == Some(at(125)));
        assert_eq!(is_spare(&sends, 200), Some(false));
        assert_eq!(is_spare(&sends, 122), Some(true), "when that response began");
        assert!(!sends.push(at(130)), "it is no news");
        // A request in the clear is not part of a handshake.
        let mut sends = Sends::default();
        sends.handle_opened(at(101));
        // Its first segment does not name the host.
        sends.handle_hello(at(109));
        sends.handle_request(at(110));
        assert_eq!((sends.used(), is_spare(&sends, 200)), (Some(at(110)), Some(false)));
    }

    #[test]
    fn only_the_last_sends_are_kept() {
        let times: Vec<u64> = (0..1_000).collect();
        assert_eq!(sends(&times).last.len(), SENDS_MAX);
        assert!(sends(&times).carried(&claim(998, 1_000), Span::ZERO).is_some());
    }

    #[test]
    fn votes_decide_by_three_to_one_and_three_of_another_are_mixed() {
        let mut votes = Votes::default();
        assert_eq!(votes.verdict(), None);
        votes.add(Some(1), VOTE / 2);
        assert_eq!(votes.verdict(), None, "too few");
        votes.add(Some(1), 300);
        assert_eq!(votes.verdict(), Some(Verdict::Group(Some(1))));
        votes.add(None, 500);
        assert_eq!(votes.verdict(), None, "not three to one");
        votes.add(Some(1), 2_200);
        votes.add(None, 1_400);
        assert_eq!(votes.verdict(), None);
        votes.add(None, 1_100);
        assert_eq!(votes.verdict(), Some(Verdict::Mixed));
    }

    #[test]
    fn for_whom_a_connection_was_opened_decides_nothing_alone_and_can_be_outvoted() {
        let mut votes = Votes::default();
        assert!(votes.set_opener(Some(Some(0)), false) && !votes.set_opener(Some(Some(0)), false));
        assert_eq!(votes.verdict(), None);
        assert!(votes.prior(Some(0)) > 4 * votes.prior(Some(1)));
        votes.add(Some(1), VOTE);
        assert_eq!(votes.verdict(), None, "not three to one");
        votes.set_opener(Some(Some(0)), true);
        assert_eq!(votes.verdict(), Some(Verdict::Group(Some(1))), "by HTTP/1.1");
        votes.set_opener(Some(Some(0)), false);
        votes.add(Some(1), VOTE / 2);
        assert_eq!(votes.verdict(), Some(Verdict::Group(Some(1))));
        assert!(votes.set_opener(None, false));
        assert_eq!(votes.of(Some(0)), 0);
    }

    #[test]
    fn a_connection_follows_the_site_that_took_it_over() {
        let mut votes = Votes::default();
        (0..1_000).for_each(|_| votes.add(Some(0), VOTE));
        assert!(votes.of(Some(0)) <= VOTES_MAX);
        (0..200).for_each(|_| votes.add(Some(1), VOTE));
        assert_eq!(votes.verdict(), Some(Verdict::Group(Some(1))));
    }
}
