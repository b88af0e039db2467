//! For which site a connection was opened, before its first response tells.
//!
//! Problem: a claim can be made when a response has begun, for only then the extension knows the server's
//! address; what arrives until then belongs to no site. And where pages of two sites begin at once over HTTP/1.1,
//! connections of both have sent at the same times, so votes alone decide nothing until their next requests.
//! Method: the extension says of a request that it leaves, too, though not of each of a burst; a claim tells of
//! the others later. A browser that has no connection for a request opens one within milliseconds. So a
//! connection was opened for the group whose request to that host left last before, if those of others left much
//! earlier. Else, where each request opens its own connection, order decides, which a busy browser keeps however
//! late it is: the first connection is for the first request, and so on.
//!
//! Properties: many requests of one group that leave at once tell no more than one of them. Order tells something
//! only of many connections at once, which HTTP/2 and HTTP/3 do not open, and only if as many requests are known
//! and none of another group may have gone by a connection that was there before; it is no vote, so votes alone
//! overturn it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::claims::{EARLY, HostDigest, nearness};
use crate::units::{Span, Time};

/// What an extension says of one request that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The user whose browser it is.
    pub user: u32,
    /// Of the name of the server's host.
    pub host: HostDigest,
    /// The server's port.
    pub port: u16,
    /// As of a [`Claim`](super::Claim).
    pub group: Option<usize>,
    /// When the request was handed to the network.
    pub begin: Time,
}

/// For whom a connection was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opener {
    pub(super) group: Option<usize>,
    /// Not only the order tells it.
    pub(super) is_clear: bool,
}

/// The last ones of a user, and whether each was told of when it left.
#[derive(Debug, Default)]
pub(super) struct Departures(VecDeque<(Departure, bool)>);

impl Departures {
    /// Once, although a message that it leaves and a claim tell of it.
    pub(super) fn push(&mut self, departure: Departure, is_leaving: bool) {
        if let Some((_, is_told)) = self.0.iter_mut().find(|(known, _)| *known == departure) {
            *is_told |= is_leaving;
            return;
        }
        if self.0.len() == DEPARTURES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((departure, is_leaving));
    }

    /// For which groups connections to the host were opened at these times, of which the first is the earliest;
    /// `None` where that is unclear. `is_carried`: whether a request may have gone by a connection that was there
    /// before.
    pub(super) fn openers(
        &self,
        host: &HostDigest,
        port: u16,
        opened: &[Time],
        is_carried: impl Fn(&Departure) -> bool,
    ) -> Vec<Option<Opener>> {
        let of_host = self.0.iter().filter(|(d, _)| d.host == *host && d.port == port);
        let told = of_host.clone().filter(|(_, is_told)| *is_told).map(|(d, _)| d);
        let mut all: Vec<&Departure> = of_host.map(|(departure, _)| departure).collect();
        all.sort_by_key(|departure| departure.begin);
        let ordered = in_order(&all, opened, is_carried);
        let opener = |(at, ordered): (&Time, Option<Option<usize>>)| {
            let clear = clear(told.clone().filter(|departure| opens(departure, *at)), *at);
            let by_order = ordered.filter(|_| is_one_for_each(&all, opened, *at));
            let clear = clear.map(|group| Opener { group, is_clear: true });
            clear.or(by_order.map(|group| Opener { group, is_clear: false }))
        };
        opened.iter().zip(ordered).map(opener).collect()
    }
}

/// Each connection's group if each request opened its own; `None` if it may have gone by an older one.
fn in_order(
    all: &[&Departure],
    opened: &[Time],
    is_carried: impl Fn(&Departure) -> bool,
) -> Vec<Option<Option<usize>>> {
    let (carried, mut waiting): (Vec<&Departure>, Vec<&Departure>) =
        all.iter().copied().partition(|departure| is_carried(departure));
    let mut counts = BTreeMap::<Option<usize>, usize>::new();
    let mut group_of = |at: Time| {
        waiting.retain(|departure: &&Departure| {
            departure.begin + OPENS_WITHIN >= at
                && counts.get(&departure.group).is_none_or(|count| *count < OF_SITE_MAX)
        });
        let next = waiting.first().filter(|departure| opens(departure, at))?;
        let group = next.group;
        waiting.remove(0);
        *counts.entry(group).or_default() += 1;
        let mut others = carried.iter().filter(|d| d.group != group);
        (!others.any(|departure| opens(departure, at))).then_some(group)
    };
    opened.iter().map(|at| group_of(*at)).collect()
}

/// Whether so many connections opened at about this time that requests do not share them, and all requests that
/// they were opened for may be known.
fn is_one_for_each(all: &[&Departure], opened: &[Time], at: Time) -> bool {
    let is_near = |other: &&Time| other.since(at).max(at.since(**other)) <= OPENS_WITHIN;
    let near: Vec<Time> = opened.iter().filter(is_near).copied().collect();
    let requests = all.iter().filter(|departure| near.iter().any(|at| opens(departure, *at)));
    let groups: BTreeSet<Option<usize>> = requests.clone().map(|d| d.group).collect();
    near.len() >= OF_GROUP_MIN * groups.len() && requests.count() >= near.len()
}

/// Whether a connection may have been opened for the request.
fn opens(departure: &Departure, opened: Time) -> bool {
    opened + EARLY >= departure.begin && opened.since(departure.begin) <= OPENS_WITHIN
}

/// The group whose request left last before, if those of others left much earlier.
fn clear<'d>(
    departures: impl Iterator<Item = &'d Departure>,
    opened: Time,
) -> Option<Option<usize>> {
    let mut groups = BTreeMap::<Option<usize>, u64>::new();
    for departure in departures {
        let nearest = groups.entry(departure.group).or_default();
        *nearest = (*nearest).max(nearness(opened.since(departure.begin)));
    }
    let (group, nearest) = groups.iter().max_by_key(|(_, nearness)| **nearness)?;
    let others = groups.iter().filter(|(other, _)| *other != group);
    let second = others.map(|(_, nearness)| *nearness).max().unwrap_or(0);
    (*nearest >= 3 * second).then_some(*group)
}

/// The requests of some pages that begin at once.
const DEPARTURES_MAX: usize = 256;
/// The extension tells of no second request of a site to a host within 100 ms.
pub(super) const OPENS_WITHIN: Span = Span::millis(150);
/// Browsers open no more connections of a site to a host.
const OF_SITE_MAX: usize = 6;
/// Over HTTP/2 and HTTP/3 one connection of a site to a host carries all its requests.
const OF_GROUP_MIN: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Time = Time::from_nanos(60_000_000_000);
    const HOST: HostDigest = HostDigest([1; 32]);

    fn departures(all: &[(Option<usize>, u64)]) -> Departures {
        let mut departures = Departures::default();
        for &(group, ms) in all {
            let begin = AT + Span::millis(ms);
            let departure = Departure { user: 1, host: HOST, port: 443, group, begin };
            departures.push(departure, true);
        }
        departures
    }

    fn openers(departures: &Departures, ms: &[u64]) -> Vec<Option<Option<usize>>> {
        let opened: Vec<Time> = ms.iter().map(|ms| AT + Span::millis(*ms)).collect();
        groups(departures.openers(&HOST, 443, &opened, |_| false))
    }

    fn groups(openers: Vec<Option<Opener>>) -> Vec<Option<Option<usize>>> {
        openers.into_iter().map(|opener| opener.map(|opener| opener.group)).collect()
    }

    fn opener(departures: &Departures, ms: u64) -> Option<Option<usize>> {
        openers(departures, &[ms])[0]
    }

    #[test]
    fn a_connection_was_opened_for_the_request_that_left_just_before() {
        let all = departures(&[(Some(0), 100), (None, 200), (Some(1), 300)]);
        assert_eq!(opener(&all, 97), None);
        assert_eq!(opener(&all, 99), Some(Some(0)), "times are rounded");
        assert_eq!(opener(&all, 160), Some(Some(0)));
        assert_eq!(opener(&all, 205), Some(None), "a site without a rule");
        assert_eq!(opener(&all, 303), Some(Some(1)));
        assert_eq!(opener(&all, 451), None, "too late");
        let opened = [AT + Span::millis(303)];
        assert_eq!(all.openers(&HostDigest([2; 32]), 443, &opened, |_| false), [None]);
        assert_eq!(all.openers(&HOST, 444, &opened, |_| false), [None]);
    }

    #[test]
    fn of_requests_of_two_groups_at_once_connections_have_the_order() {
        // Recorded: two sites that open two connections each to a host, in Chromium over HTTP/1.1.
        let (a, b) = (Some(0), Some(1));
        let all = departures(&[(b, 402), (a, 400), (b, 403), (a, 404)]);
        assert_eq!(openers(&all, &[401, 405, 406, 407]), [Some(a), Some(b), Some(b), Some(a)]);
        // The network process was late, and later with each.
        let all = departures(&[(b, 400), (a, 401), (a, 407), (b, 410), (b, 411), (b, 412)]);
        let expected = [Some(b), Some(a), Some(a), Some(b), Some(b)];
        assert_eq!(openers(&all, &[405, 410, 418, 424, 427]), expected);
        let all = departures(&[(a, 100), (b, 130)]);
        assert_eq!(opener(&all, 132), Some(b), "much sooner");
        assert_eq!(openers(&all, &[132, 134]), [Some(b), Some(b)]);
    }

    #[test]
    fn a_site_that_has_all_its_connections_opens_no_more() {
        let (a, b) = (Some(0), Some(1));
        let mut all: Vec<_> = (400..416).map(|ms| (a, ms)).collect();
        all.extend([(b, 410), (b, 411)]);
        let opened = [416, 417, 418, 419, 420, 421, 422, 423];
        let expected = [a, a, a, a, a, a, b, b].map(Some);
        assert_eq!(openers(&departures(&all), &opened), expected);
    }

    #[test]
    fn order_tells_nothing_where_another_group_has_a_connection_already() {
        let (a, b) = (Some(0), Some(1));
        let all = departures(&[(a, 400), (a, 401), (b, 402), (a, 403)]);
        let opened = [404, 405, 406, 407].map(|ms| AT + Span::millis(ms));
        let is_of_a = |departure: &Departure| departure.group == a;
        assert_eq!(all.openers(&HOST, 443, &opened, is_of_a), [None; 4]);
        let ordered = all.openers(&HOST, 443, &opened, |_| false);
        assert!(ordered.iter().all(|opener| opener.is_some_and(|opener| !opener.is_clear)));
        assert_eq!(groups(ordered), [a, a, b, a].map(Some));
        let clear = departures(&[(b, 402)]).openers(&HOST, 443, &opened[..1], |_| true);
        assert_eq!(clear, [Some(Opener { group: b, is_clear: true })]);
    }

    #[test]
    fn order_tells_nothing_of_connections_that_requests_may_share() {
        // Over HTTP/2: pages of one group, a download of another.
        let (a, b) = (Some(0), Some(1));
        let all = departures(&[(a, 400), (a, 401), (a, 402), (b, 403), (a, 404), (a, 405)]);
        assert_eq!(openers(&all, &[404, 405]), [None, None]);
        assert_eq!(openers(&all, &[404, 405, 406]), [None, None, None]);
        // A request of four is not known.
        let all = departures(&[(a, 400), (a, 401), (b, 402)]);
        assert_eq!(openers(&all, &[403, 404, 405, 406]), [None; 4]);
    }

    #[test]
    fn requests_of_two_groups_at_once_say_nothing_however_many_one_of_them_has() {
        let mut all = vec![(Some(0), 100); 30];
        all.push((Some(1), 104));
        let all = departures(&all);
        assert_eq!(opener(&all, 105), None);
        assert_eq!(opener(&all, 101), Some(Some(0)));
    }

    #[test]
    fn a_request_that_is_told_of_twice_opens_one_connection() {
        let (a, b) = (Some(0), Some(1));
        let once = [(a, 400), (b, 401), (b, 402), (a, 403)];
        let all = departures(&[once, once].concat());
        assert_eq!(openers(&all, &[404, 405, 406, 407]), [a, b, b, a].map(Some));
        assert_eq!(openers(&all, &[404, 405, 406, 407, 408]), [None; 5], "one is not known");
    }

    #[test]
    fn a_request_that_only_a_claim_tells_of_makes_nothing_clear() {
        let (a, b) = (Some(0), Some(1));
        let mut all = departures(&[(b, 400)]);
        let late =
            Departure { user: 1, host: HOST, port: 443, group: a, begin: AT + Span::millis(424) };
        all.push(late, false);
        assert_eq!(opener(&all, 425), Some(b), "as before");
        all.push(late, true);
        assert_eq!(opener(&all, 425), Some(a));
    }

    #[test]
    fn only_the_last_ones_are_kept() {
        let all: Vec<_> = (0..1_000).map(|ms| (Some(0), ms)).collect();
        assert_eq!(departures(&all).0.len(), DEPARTURES_MAX);
    }
}
