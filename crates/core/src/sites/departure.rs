//! The site for which a connection was opened, before its first response shows this.
//!
//! Problem: a claim can be made only when a response has begun, since the extension learns the server's
//! address then; data that arrives before belongs to no site. And if pages of two sites begin at once over HTTP/1.1,
//! connections of both sent at the same times, so votes alone decide nothing until their next requests.
//! Method: the extension also reports that a request leaves. A browser without a connection for it opens
//! one within milliseconds, so the group of a connection is that of the last request to its host before it
//! opened. If requests of two groups left almost at once, this says nothing.
//!
//! Over HTTP/2 a browser opens a connection for each of the first requests, and uses one for all requests of a site.
//! The others send nothing after their handshake. So if as many connections are used as groups have asked, and the
//! times say nothing, the first to open is for the group that asked first, and so on ([`in_turn`]). A group may have
//! several sites that ask at once, as sites without a rule often do; if one of them asks, the order says nothing.
//!
//! Over HTTP/1.1 a request opens one connection at most, so a connection that opens later is for another request
//! ([`one_each`]). And connections open in the order of requests: if the first rule leaves some unclear, and there
//! were as many requests as connections, the first is for the first request, and so on ([`in_order`]).
//!
//! Properties: many requests of one group that leave at once say no more than one of them, or over HTTP/1.1 than the
//! connections that they opened; a guess gives way to every verdict by votes, and changes
//! if a request that fits better is reported later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::claims::{EARLY, HostDigest, nearness};
use crate::units::{Span, Time};

/// What an extension says about one request that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The user whose browser it is.
    pub user: u32,
    /// The digest of the name of the server's host.
    pub host: HostDigest,
    /// The server's port.
    pub port: u16,
    /// As of a [`Claim`](super::Claim).
    pub group: Option<usize>,
    /// When the request was handed to the network.
    pub begin: Time,
    /// Whether the host answers by HTTP/1.1, so that a connection carries one request at a time.
    pub is_http1: bool,
}

/// A connection that was opened for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) at: Time,
    /// Whether it sent more than the TLS handshake over TCP soon after that.
    pub(super) is_used: bool,
    /// Its group by votes.
    pub(super) group: Option<Option<usize>>,
}

/// The last departures of a user.
#[derive(Debug, Default)]
pub(super) struct Departures(VecDeque<Departure>);

impl Departures {
    /// Adds a departure. A request is counted once, although it is reported when it leaves and when it is answered.
    pub(super) fn push(&mut self, departure: Departure) {
        let same = |known: &&mut Departure| {
            Departure { is_http1: departure.is_http1, ..**known } == departure
        };
        if let Some(known) = self.0.iter_mut().find(same) {
            known.is_http1 |= departure.is_http1;
            return;
        }
        if self.0.len() == DEPARTURES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(departure);
    }

    /// Whether the host is known to answer by HTTP/1.1.
    pub(super) fn is_http1(&self, host: &HostDigest, port: u16) -> bool {
        self.0.iter().any(|d| d.host == *host && d.port == port && d.is_http1)
    }

    /// The groups for which connections to the host were opened, the earliest first; `None` where that is
    /// unclear. The groups in `settled` already had a connection in use before.
    pub(super) fn openers(
        &self,
        host: &HostDigest,
        port: u16,
        connections: &[Opened],
        settled: &BTreeSet<usize>,
    ) -> Vec<Option<Option<usize>>> {
        let requests = self.0.iter().filter(|d| d.host == *host && d.port == port);
        let mut requests: Vec<&Departure> = requests.collect();
        requests.sort_by_key(|departure| departure.begin);
        if !self.is_http1(host, port) {
            return in_turn(&requests, connections, settled.clone());
        }
        let opened: &[Time] = &connections.iter().map(|c| c.at).collect::<Vec<_>>();
        let mut openers = one_each(&requests, opened);
        let (mut earlier, mut first) = (Time::ZERO, 0);
        for burst in opened.chunk_by(|one, next| next.since(*one) <= AT_ONCE) {
            let last = burst[burst.len() - 1] + EARLY;
            let asked = asked(&requests, earlier, burst[0], last);
            let known = &mut openers[first..first + burst.len()];
            let agrees = |ordered: &Vec<Option<Option<usize>>>| {
                known
                    .iter()
                    .zip(ordered)
                    .all(|(known, ordered)| known.is_none() || known == ordered)
            };
            if let Some(ordered) = in_order(asked, burst).filter(agrees) {
                known.copy_from_slice(&ordered);
            }
            (earlier, first) = (last, first + burst.len());
        }
        openers
    }
}

/// The groups of connections over HTTP/2: that of the last request before, if requests of other groups left much
/// earlier. If this leaves some unclear: among connections that open at about the same time, one per group is used,
/// in the order of the groups' first requests; a group that has a connection in use needs no other.
fn in_turn(
    requests: &[&Departure],
    connections: &[Opened],
    mut settled: BTreeSet<usize>,
) -> Vec<Option<Option<usize>>> {
    let mut openers = Vec::with_capacity(connections.len());
    let mut earlier = Time::ZERO;
    for burst in connections.chunk_by(|one, next| next.at.since(one.at) <= AT_ONCE) {
        let last = burst[burst.len() - 1].at + EARLY;
        let mut asking: Vec<&Departure> = Vec::new();
        for request in asked(requests, earlier, burst[0].at, last) {
            let has_asked = asking.iter().any(|other| other.group == request.group);
            let has_one = request.group.is_some_and(|group| settled.contains(&group));
            if !has_asked && !has_one {
                asking.push(request);
            }
        }
        let near = |c: &Opened| Some(requests[nearest(requests, c.at, OPENS_WITHIN, 3)?].group);
        let first = openers.len();
        openers.extend(burst.iter().map(near));
        let used: Vec<usize> = (0..burst.len()).filter(|i| burst[*i].is_used).collect();
        let is_one_each = used.len() == asking.len()
            && used.iter().zip(&asking).all(|(i, request)| {
                let opener = openers[first + i];
                request.group.is_some()
                    && opens(request, burst[*i].at, OPENS_WITHIN)
                    && (opener.is_none() || opener == Some(request.group))
            });
        if is_one_each {
            used.iter().zip(&asking).for_each(|(i, d)| openers[first + i] = Some(d.group));
        }
        settled.extend(burst.iter().filter(|c| c.is_used).filter_map(|c| c.group.flatten()));
        earlier = last;
    }
    openers
}

/// The groups of connections over HTTP/1.1: that of the last request before that has not opened one yet, if requests of
/// other groups left earlier.
fn one_each(requests: &[&Departure], opened: &[Time]) -> Vec<Option<Option<usize>>> {
    let mut unused = requests.to_vec();
    let mut opener = |at: &Time| {
        let request = nearest(&unused, *at, QUEUED_MAX, 2)?;
        Some(unused.remove(request).group)
    };
    opened.iter().map(&mut opener).collect()
}

/// The groups of connections that were opened one for each request, in their order; `None` if that may not be so,
/// since their numbers differ.
fn in_order<'d>(
    requests: impl Iterator<Item = &'d Departure>,
    opened: &[Time],
) -> Option<Vec<Option<Option<usize>>>> {
    let mut counts = BTreeMap::<Option<usize>, usize>::new();
    let opens_one = |departure: &&Departure| {
        let count = counts.entry(departure.group).or_default();
        *count += 1;
        *count <= OF_SITE_MAX
    };
    let openers: Vec<&Departure> = requests.filter(opens_one).collect();
    let fits = openers.len() == opened.len()
        && openers.iter().zip(opened).all(|(departure, at)| opens(departure, *at, OPENS_WITHIN));
    fits.then(|| openers.iter().map(|departure| Some(departure.group)).collect())
}

/// The index of the last request before, at most `within`, if it is `times` as near as the requests of
/// other groups.
fn nearest(requests: &[&Departure], opened: Time, within: Span, times: u64) -> Option<usize> {
    let mut groups = BTreeMap::<Option<usize>, (u64, usize)>::new();
    for (i, departure) in requests.iter().enumerate() {
        if opens(departure, opened, within) {
            let nearness = nearness(opened.since(departure.begin));
            let nearest = groups.entry(departure.group).or_default();
            if nearness > nearest.0 {
                *nearest = (nearness, i);
            }
        }
    }
    let (group, &(nearest, request)) = groups.iter().max_by_key(|(_, (nearness, _))| *nearness)?;
    let others = groups.iter().filter(|(other, _)| *other != group);
    let second = others.map(|(_, (nearness, _))| *nearness).max().unwrap_or(0);
    (nearest >= times * second).then_some(request)
}

/// The requests that left after `earlier` and may have opened connections between `first` and `last`.
fn asked<'d>(
    requests: &[&'d Departure],
    earlier: Time,
    first: Time,
    last: Time,
) -> impl Iterator<Item = &'d Departure> {
    let asked = requests.iter().copied().filter(move |d| d.begin > earlier && d.begin <= last);
    asked.filter(move |d| d.begin + OPENS_WITHIN >= first)
}

/// Whether a connection may have been opened for the request.
fn opens(departure: &Departure, opened: Time, within: Span) -> bool {
    opened + EARLY >= departure.begin && opened.since(departure.begin) <= within
}

/// Requests of several pages that begin at once.
const DEPARTURES_MAX: usize = 256;
/// Within 100 ms the extension reports no second request of a site to a host, unless by HTTP/1.1.
pub(super) const OPENS_WITHIN: Span = Span::millis(150);
/// Over HTTP/1.1 a browser delays requests while it has many open to the host.
const QUEUED_MAX: Span = Span::millis(250);
/// Connections that open within this time are attributed together.
const AT_ONCE: Span = Span::millis(100);
/// Browsers open at most this many connections of a site to a host over HTTP/1.1.
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
            let is_http1 = false;
            departures.push(Departure { user: 1, host: HOST, port: 443, group, begin, is_http1 });
        }
        departures
    }

    /// Connections that opened at `ms`; those with these indices are used.
    fn opened(ms: &[u64], used: &[usize]) -> Vec<Opened> {
        let opened = |(i, ms): (usize, &u64)| Opened {
            at: AT + Span::millis(*ms),
            is_used: used.contains(&i),
            group: None,
        };
        ms.iter().enumerate().map(opened).collect()
    }

    fn opener(departures: &Departures, ms: u64) -> Option<Option<usize>> {
        departures.openers(&HOST, 443, &opened(&[ms], &[]), &BTreeSet::new())[0]
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
        let opened = opened(&[303], &[]);
        assert_eq!(all.openers(&HostDigest([2; 32]), 443, &opened, &BTreeSet::new()), [None]);
        assert_eq!(all.openers(&HOST, 444, &opened, &BTreeSet::new()), [None]);
    }

    #[test]
    fn requests_of_two_groups_at_once_say_nothing_however_many_one_of_them_has() {
        let mut all = vec![(Some(0), 100); 30];
        all.push((Some(1), 104));
        let all = departures(&all);
        assert_eq!(opener(&all, 105), None);
        let all = departures(&[(Some(0), 100), (Some(1), 130)]);
        assert_eq!(opener(&all, 132), Some(Some(1)));
    }

    /// The same over HTTP/1.1.
    fn by_http1(all: &[(usize, u64)]) -> Departures {
        let groups: Vec<_> = all.iter().map(|&(group, ms)| (Some(group), ms)).collect();
        let mut departures = departures(&groups);
        departures.0.iter_mut().for_each(|departure| departure.is_http1 = true);
        departures
    }

    fn openers(departures: &Departures, ms: &[u64]) -> Vec<Option<usize>> {
        let openers = departures.openers(&HOST, 443, &opened(ms, &[]), &BTreeSet::new());
        openers.into_iter().map(Option::flatten).collect()
    }

    #[test]
    fn over_http_1_the_order_of_requests_is_that_of_connections() {
        // Recorded.
        let all = [(1, 219), (0, 221), (1, 223), (0, 224)];
        assert_eq!(openers(&by_http1(&all), &[220, 230, 232, 232]), [1, 0, 1, 0].map(Some));
        let all = [(1, 100), (1, 101), (0, 129), (0, 130)];
        // Over HTTP/2 two requests may share a connection.
        let all = all.map(|(group, ms)| (Some(group), ms));
        assert_eq!(openers(&departures(&all), &[131, 132, 133, 134]), [Some(0); 4]);
    }

    /// Recorded: the second and the third connection were opened for requests that had left long before.
    #[test]
    fn over_http_1_a_request_opens_one_connection_at_most() {
        let all = by_http1(&[(0, 98)]);
        assert_eq!(openers(&all, &[100, 110, 122]), [Some(0), None, None]);
        let all = by_http1(&[(1, 20), (1, 28), (0, 207)]);
        assert_eq!(openers(&all, &[210, 232, 265]), [0, 1, 1].map(Some));
        assert_eq!(openers(&all, &[210, 290]), [Some(0), None], "too late");
    }

    #[test]
    fn order_tells_nothing_unless_each_request_has_opened_a_connection() {
        // One request is not known, or a connection was opened in advance.
        let all = by_http1(&[(1, 100), (0, 101), (0, 102)]);
        assert_eq!(openers(&all, &[103, 104, 105, 106]), [None; 4]);
        // One request used an existing connection, perhaps the first of these.
        let all = by_http1(&[(1, 100), (1, 170), (0, 171)]);
        assert_eq!(openers(&all, &[101, 172]), [Some(1), None]);
        // A connection that was opened too late for the request in its place.
        let all = by_http1(&[(1, 100), (0, 103), (1, 104)]);
        assert_eq!(openers(&all, &[105, 200, 255]), [None; 3]);
        // Requests of an earlier burst do not count.
        let all = by_http1(&[(0, 100), (0, 101), (1, 230), (0, 231)]);
        assert_eq!(openers(&all, &[102, 103, 232, 233]), [0, 0, 1, 0].map(Some));
    }

    #[test]
    fn a_site_has_six_connections_to_a_host() {
        let mut all: Vec<_> = (93..100).map(|ms| (0, ms)).collect();
        all.push((1, 101));
        let groups = [[Some(0); 6].as_slice(), &[Some(1)]].concat();
        assert_eq!(openers(&by_http1(&all), &[102; 7]), groups);
        assert_eq!(openers(&by_http1(&all), &[102; 8]), [None; 8], "two sites of one group");
    }

    /// Recorded: two pages that open at once, and the connections to one of their hosts.
    #[test]
    fn over_http_2_one_connection_of_each_group_is_used_in_the_order_of_requests() {
        let all = departures(&[(Some(0), 72), (Some(1), 91)]);
        let ms = [93, 94, 94, 116, 147, 148, 154];
        let openers = |used: &[usize], settled: &[usize]| {
            let settled = settled.iter().copied().collect();
            all.openers(&HOST, 443, &opened(&ms, used), &settled)
        };
        let among = |first, second| {
            let mut expected = vec![None; ms.len()];
            (expected[first], expected[second]) = (Some(Some(0)), Some(Some(1)));
            expected
        };
        // Requests of both groups left shortly before the first connections, and the last connection opened too late.
        assert_eq!(openers(&[0, 4], &[]), among(0, 4));
        assert_eq!(openers(&[1, 2], &[]), among(1, 2));
        for used in [&[][..], &[0], &[0, 1, 4]] {
            assert_eq!(openers(used, &[]), [None; 7], "{used:?}");
        }
        // A group that has a connection in use needs no other.
        let mut expected = [None; 7];
        expected[4] = Some(Some(1));
        assert_eq!(openers(&[4], &[0]), expected);
        assert_eq!(openers(&[0, 4], &[0]), [None; 7]);
        assert_eq!(openers(&[4], &[0, 1]), [None; 7]);
        // The same if votes decided about a connection a moment before.
        let mut connections = opened(&[20, 147], &[0, 1]);
        connections[0].group = Some(Some(0));
        let openers = all.openers(&HOST, 443, &connections, &BTreeSet::new());
        assert_eq!(openers, [None, Some(Some(1))]);
        // Sites without a rule may be several, and the times count more.
        let none = BTreeSet::new();
        let all = departures(&[(None, 72), (Some(1), 91)]);
        assert_eq!(all.openers(&HOST, 443, &opened(&ms, &[0, 4]), &none), [None; 7]);
        let all = departures(&[(Some(0), 72), (Some(1), 91), (Some(0), 144)]);
        let openers = all.openers(&HOST, 443, &opened(&ms, &[0, 4]), &none);
        assert_eq!((openers[0], openers[4]), (None, Some(Some(0))));
    }

    #[test]
    fn a_request_that_is_told_of_twice_counts_once() {
        let (mut all, again) = (departures(&[(Some(0), 100)]), by_http1(&[(0, 100), (1, 100)]));
        again.0.into_iter().for_each(|departure| all.push(departure));
        assert_eq!(openers(&all, &[101, 102]), [Some(0), Some(1)]);
    }

    #[test]
    fn only_the_last_ones_are_kept() {
        let all: Vec<_> = (0..1_000).map(|ms| (Some(0), ms)).collect();
        assert_eq!(departures(&all).0.len(), DEPARTURES_MAX);
    }
}
