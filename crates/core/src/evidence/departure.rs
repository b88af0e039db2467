//! For which site a connection was opened, before its first response tells.
//!
//! Problem: a claim can be made when a response has begun, for only then the extension knows the server's
//! address; what arrives until then belongs to no site.
//! Method: the extension says of a request that it leaves, too. A browser that has no connection for it opens
//! one within milliseconds, so a connection was opened for the group whose request to that host left last
//! before. Where requests of two groups left nearly at once, this says nothing.
//!
//! Properties: many requests of one group that leave at once tell no more than one of them; what is guessed
//! gives way to every verdict by votes, and changes if a request shows up later that fits better.

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
    pub(super) fn push(&mut self, departure: Departure) {
        if self.0.len() == DEPARTURES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(departure);
    }

    /// For which group a connection to the host was opened at this time; `None` if that is unclear.
    pub(super) fn opener(
        &self,
        host: &HostDigest,
        port: u16,
        opened: Time,
    ) -> Option<Option<usize>> {
        let mut groups = BTreeMap::<Option<usize>, u64>::new();
        for departure in self.0.iter().filter(|d| d.host == *host && d.port == port) {
            let gap = opened.since(departure.begin);
            if opened + EARLY >= departure.begin && gap <= OPENS_WITHIN {
                let nearest = groups.entry(departure.group).or_default();
                *nearest = (*nearest).max(nearness(gap));
            }
        }
        let (group, nearest) = groups.iter().max_by_key(|(_, nearness)| **nearness)?;
        let others = groups.iter().filter(|(other, _)| *other != group);
        let second = others.map(|(_, nearness)| *nearness).max().unwrap_or(0);
        (*nearest >= 3 * second).then_some(*group)
    }
}

/// The requests of some pages that begin at once.
const DEPARTURES_MAX: usize = 64;
/// The extension tells of no second request of a site to a host within 100 ms.
const OPENS_WITHIN: Span = Span::millis(150);

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

    fn opener(departures: &Departures, ms: u64) -> Option<Option<usize>> {
        departures.opener(&HOST, 443, AT + Span::millis(ms))
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
        assert_eq!(all.opener(&HostDigest([2; 32]), 443, AT + Span::millis(303)), None);
        assert_eq!(all.opener(&HOST, 444, AT + Span::millis(303)), None);
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

    #[test]
    fn only_the_last_ones_are_kept() {
        let all: Vec<_> = (0..1_000).map(|ms| (Some(0), ms)).collect();
        assert_eq!(departures(&all).0.len(), DEPARTURES_MAX);
    }
}
