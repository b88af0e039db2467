//! For which site a connection was opened, before its first response tells.
//!
//! Problem: a claim can be made when a response has begun, for only then the extension knows the server's
//! address; what arrives until then belongs to no site. And where pages of two sites begin at once, connections
//! of both have sent at the same times, so votes alone decide nothing until their next requests.
//! Method: the extension says of a request that it leaves, too, though not of each of a burst; a claim tells of
//! the others later. A browser that has no connection for a request opens one within milliseconds. So a
//! connection was opened for the group whose request to that host left last before. Where requests of two groups
//! left nearly at once, order decides, which a busy browser keeps however late it is: the first connection is for
//! the first request that no earlier connection was opened for, and so on.
//!
//! Properties: many requests of one group that leave at once tell no more than one of them, unless connections
//! opened for them; order tells nothing where a request of another group may have gone by a connection that was
//! there before; what is guessed gives way to votes, and changes if a request shows up later that fits better.

use std::collections::{BTreeMap, VecDeque};

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

/// The last ones of a user.
#[derive(Debug, Default)]
pub(super) struct Departures(VecDeque<Departure>);

impl Departures {
    /// Once, although a departure and a claim tell of it.
    pub(super) fn push(&mut self, departure: Departure) {
        if self.0.contains(&departure) {
            return;
        }
        if self.0.len() == DEPARTURES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(departure);
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
    ) -> Vec<Option<Option<usize>>> {
        let Some(first) = opened.first() else { return Vec::new() };
        let of_host = |d: &&Departure| d.host == *host && d.port == port;
        let mut all: Vec<&Departure> = self.0.iter().filter(of_host).collect();
        all.retain(|departure| departure.begin + OPENS_WITHIN >= *first);
        all.sort_by_key(|departure| departure.begin);
        let (carried, mut waiting): (Vec<&Departure>, Vec<&Departure>) =
            all.iter().copied().partition(|departure| is_carried(departure));
        let mut counts = BTreeMap::<Option<usize>, usize>::new();
        let mut opener = |at: Time| {
            let may_open = |departure: &&Departure| opens(departure, at);
            let (nearest, is_clear) = nearest(all.iter().copied().filter(may_open), at)?;
            waiting.retain(|departure: &&Departure| {
                departure.begin + OPENS_WITHIN >= at
                    && counts.get(&departure.group).is_none_or(|count| *count < OF_SITE_MAX)
            });
            let mut next = waiting.iter().enumerate().filter(|(_, d)| opens(d, at));
            let next = next.find(|(_, d)| !is_clear || d.group == nearest);
            let Some((place, group)) = next.map(|(place, departure)| (place, departure.group))
            else {
                return is_clear.then_some(nearest);
            };
            // What left before has gone by another one.
            waiting.drain(..=place);
            *counts.entry(group).or_default() += 1;
            let mut others = carried.iter().filter(|d| d.group != group);
            (is_clear || !others.any(|departure| opens(departure, at))).then_some(group)
        };
        opened.iter().map(|at| opener(*at)).collect()
    }
}

/// Whether a connection may have been opened for the request.
fn opens(departure: &Departure, opened: Time) -> bool {
    opened + EARLY >= departure.begin && opened.since(departure.begin) <= OPENS_WITHIN
}

/// The group whose request left last before, and whether those of others left much earlier.
fn nearest<'d>(
    departures: impl Iterator<Item = &'d Departure>,
    opened: Time,
) -> Option<(Option<usize>, bool)> {
    let mut groups = BTreeMap::<Option<usize>, u64>::new();
    for departure in departures {
        let nearest = groups.entry(departure.group).or_default();
        *nearest = (*nearest).max(nearness(opened.since(departure.begin)));
    }
    let (group, nearest) = groups.iter().max_by_key(|(_, nearness)| **nearness)?;
    let others = groups.iter().filter(|(other, _)| *other != group);
    let second = others.map(|(_, nearness)| *nearness).max().unwrap_or(0);
    Some((*group, *nearest >= 3 * second))
}

/// The requests of some pages that begin at once.
const DEPARTURES_MAX: usize = 256;
/// The extension tells of no second request of a site to a host within 100 ms.
pub(super) const OPENS_WITHIN: Span = Span::millis(150);
/// Browsers open no more connections of a site to a host.
const OF_SITE_MAX: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Time = Time::from_nanos(60_000_000_000);
    const HOST: HostDigest = HostDigest([1; 32]);

    fn departures(all: &[(Option<usize>, u64)]) -> Departures {
        let mut departures = Departures::default();
        for &(group, ms) in all {
            let begin = AT + Span::millis(ms);
            departures.push(Departure { user: 1, host: HOST, port: 443, group, begin });
        }
        departures
    }

    fn openers(departures: &Departures, ms: &[u64]) -> Vec<Option<Option<usize>>> {
        let opened: Vec<Time> = ms.iter().map(|ms| AT + Span::millis(*ms)).collect();
        departures.openers(&HOST, 443, &opened, |_| false)
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
        let opener = |ms| {
            let opened = [AT + Span::millis(ms)];
            all.openers(&HOST, 443, &opened, |departure| departure.group == a)[0]
        };
        assert_eq!(opener(404), None);
        assert_eq!(
            departures(&[(b, 402)]).openers(&HOST, 443, &[AT + Span::millis(404)], |_| true),
            [Some(b)]
        );
    }

    #[test]
    fn a_request_that_is_told_of_twice_opens_one_connection() {
        let (a, b) = (Some(0), Some(1));
        let all = departures(&[(a, 400), (b, 401), (a, 400), (b, 401)]);
        assert_eq!(openers(&all, &[402, 403, 404]), [Some(a), Some(b), None]);
    }

    #[test]
    fn only_the_last_ones_are_kept() {
        let all: Vec<_> = (0..1_000).map(|ms| (Some(0), ms)).collect();
        assert_eq!(departures(&all).0.len(), DEPARTURES_MAX);
    }
}
