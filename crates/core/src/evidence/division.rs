//! How a claim's vote is divided among the connections that may have carried its request.
//!
//! Problem: a browser opens the connections of several sites at once, so each of them has sent something soon
//! after each request, and over HTTP/1.1 the next request may come a minute later.
//! Method: a part is as large as the connection's [`Sends::likelihood`](super::claims::Sends::likelihood) times
//! the part of its votes that is for the same group ([`Votes::prior`]), since browsers do not use one connection
//! for two sites. What claims tell about each other's connections comes in any order, so with each claim the
//! last ones about that server are divided anew.
//!
//! Requests of a page that leave at once tell no more than where each of the connections may belong: a burst has
//! at most as many votes as there are connections that may have carried it.
//!
//! Properties: the parts of a claim add up to no more than its vote; a sole candidate gets all of it, whatever its
//! earlier votes were; the work for one claim is bounded by [`AGAIN_MAX`] × [`PARTS_MAX`] parts.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::claims::{Claim, VOTE, Votes};
use crate::units::{Span, Time};

/// Those among which claims are divided.
pub(super) trait Connections {
    /// The votes for one; `None` if it is gone.
    fn votes(&mut self, number: u64) -> Option<&mut Votes>;
}

/// A claim that was divided.
#[derive(Debug)]
pub(super) struct Divided {
    remote: SocketAddr,
    group: Option<usize>,
    begin: Time,
    /// In thousandths.
    vote: u64,
    parts: Vec<Part>,
}

/// What a connection has of a claim's vote.
#[derive(Debug)]
struct Part {
    number: u64,
    likelihood: u64,
    vote: u64,
}

impl Divided {
    /// A vote of which no connection has a part yet. `candidates`: numbers of connections, each with its
    /// likelihood.
    pub(super) fn new(claim: &Claim, candidates: &[(u64, u64)]) -> Divided {
        let vote = if claim.is_unsure { VOTE / 2 } else { VOTE };
        let part = |&(number, likelihood): &_| Part { number, likelihood, vote: 0 };
        let parts = candidates.iter().map(part).collect();
        Divided { remote: claim.remote, group: claim.group, begin: claim.begin, vote, parts }
    }

    /// The numbers of the connections.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.parts.iter().map(|part| part.number)
    }

    /// Takes the vote back from the connections and divides it by what they have now. Nothing changes if one
    /// of them is gone.
    pub(super) fn divide(&mut self, connections: &mut impl Connections) {
        if self.numbers().any(|number| connections.votes(number).is_none()) {
            return;
        }
        let mut weights = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let Some(votes) = connections.votes(part.number) else { continue };
            votes.take(self.group, part.vote);
            weights.push(part.likelihood * votes.prior(self.group));
        }
        let all = weights.iter().sum::<u64>().max(1);
        for (part, weight) in self.parts.iter_mut().zip(weights) {
            part.vote = self.vote * weight / all;
            if let Some(votes) = connections.votes(part.number) {
                votes.add(self.group, part.vote);
            }
        }
    }
}

/// The last claims of a user that had several candidates.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<Divided>);

impl Recent {
    /// Keeps a claim that may have to be divided anew.
    pub(super) fn push(&mut self, divided: Divided) {
        if !(2..=PARTS_MAX).contains(&divided.parts.len()) {
            return;
        }
        if self.0.len() == RECENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(divided);
    }

    /// Whether as many requests of the group as may have gone by different connections have left at about this
    /// time: more of them tell nothing more about these.
    pub(super) fn is_told(&self, divided: &Divided) -> bool {
        let same = self.0.iter().filter(|earlier| {
            let apart = earlier.begin.since(divided.begin).max(divided.begin.since(earlier.begin));
            (earlier.remote, earlier.group) == (divided.remote, divided.group) && apart <= AT_ONCE
        });
        divided.parts.len() > 1 && same.count() >= divided.parts.len()
    }

    /// The last ones about that server, the oldest first.
    pub(super) fn about(&mut self, remote: SocketAddr) -> impl Iterator<Item = &mut Divided> {
        let count = self.0.iter().filter(|divided| divided.remote == remote).count();
        let all = self.0.iter_mut().filter(move |divided| divided.remote == remote);
        all.skip(count.saturating_sub(AGAIN_MAX))
    }
}

/// About the requests of one page to a few servers.
const RECENT_MAX: usize = 64;
/// A browser sends the requests of a page within some milliseconds.
const AT_ONCE: Span = Span::millis(20);
/// Of one server. Sixteen decided no better in recorded plays (docs/web.md).
const AGAIN_MAX: usize = 8;
/// Two sites with six connections each and some more; with so many candidates a claim tells little.
const PARTS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::evidence::claims::{HostDigest, Verdict};

    impl Connections for BTreeMap<u64, Votes> {
        fn votes(&mut self, number: u64) -> Option<&mut Votes> {
            self.get_mut(&number)
        }
    }

    fn claim(group: Option<usize>, port: u16, ms: u64) -> Claim {
        let begin = Time::from_nanos(1_000_000_000) + Span::millis(ms);
        let (user, host) = (0, HostDigest([0; 32]));
        let (remote, start) = (([198, 51, 100, 1], port).into(), begin + Span::millis(50));
        Claim { user, remote, host, group, begin, start, is_unsure: false, is_http1: false }
    }

    /// Claims of groups with their candidates, as [`super::super::Resolver`] divides them.
    fn votes_after(claims: &[(usize, Vec<(u64, u64)>)]) -> BTreeMap<u64, Votes> {
        let (mut votes, mut recent) = (BTreeMap::<u64, Votes>::new(), Recent::default());
        let remote = ([198, 51, 100, 1], 443).into();
        for (group, candidates) in claims {
            let mut claim = Divided::new(&claim(Some(*group), 443, 0), candidates);
            claim.numbers().for_each(|number| _ = votes.entry(number).or_default());
            claim.divide(&mut votes);
            recent.about(remote).for_each(|divided| divided.divide(&mut votes));
            recent.push(claim);
        }
        votes
    }

    #[test]
    fn one_claim_for_each_of_four_connections_that_opened_at_once_is_enough() {
        // Recorded: two sites of Chromium that open two connections each over HTTP/1.1.
        let bulk = vec![(1, 237), (2, 236), (3, 181), (4, 180)];
        let video = vec![(1, 71), (2, 71), (3, 532), (4, 527)];
        let claims = [(1, bulk.clone()), (1, bulk), (0, video.clone()), (0, video)];
        let mut orders = vec![claims.to_vec(), claims.to_vec(), claims.to_vec()];
        orders[1].reverse();
        orders[2].swap(1, 2);
        for order in orders {
            let votes = votes_after(&order);
            let verdicts: Vec<_> = votes.values().map(Votes::verdict).collect();
            let groups = [1, 1, 0, 0].map(|group| Some(Verdict::Group(Some(group))));
            assert_eq!(verdicts, groups, "{votes:?}");
        }
    }

    #[test]
    fn what_all_have_sent_for_all_decides_nothing() {
        let all = || (1..=4).map(|number| (number, 500)).collect::<Vec<_>>();
        let votes = votes_after(&[(0, all()), (1, all()), (1, all()), (0, all())]);
        assert!(votes.values().all(|votes| votes.verdict().is_none()), "{votes:?}");
    }

    #[test]
    fn a_connection_that_is_gone_keeps_what_was_divided() {
        let mut votes = BTreeMap::from([(1, Votes::default()), (2, Votes::default())]);
        let mut claim = Divided::new(&claim(None, 443, 0), &[(1, 900), (2, 300)]);
        claim.divide(&mut votes);
        votes.remove(&1);
        claim.divide(&mut votes);
        assert_eq!(votes[&2].of(None), VOTE / 4);
    }

    #[test]
    fn a_burst_tells_as_much_as_connections_may_have_carried_it() {
        let mut recent = Recent::default();
        let told = |recent: &mut Recent, group, port, ms| {
            let divided = Divided::new(&claim(group, port, ms), &[(1, 500), (2, 500)]);
            let is_told = recent.is_told(&divided);
            recent.push(divided);
            is_told
        };
        assert_eq!(
            [0, 3, 9, 20].map(|ms| told(&mut recent, Some(0), 443, ms)),
            [false, false, true, true]
        );
        assert!(!told(&mut recent, Some(1), 443, 9) && !told(&mut recent, Some(0), 80, 9));
        assert!(!told(&mut recent, Some(0), 443, 60));
        let sole = Divided::new(&claim(Some(0), 443, 9), &[(1, 500)]);
        assert!(!recent.is_told(&sole));
    }

    #[test]
    fn only_the_last_claims_of_few_candidates_are_kept() {
        let mut recent = Recent::default();
        let remote = |port| claim(None, port, 0).remote;
        for count in 1..=1_000 {
            let candidates: Vec<_> = (0..count % 40).map(|number| (number, VOTE)).collect();
            recent.push(Divided::new(&claim(None, 443, 0), &candidates));
        }
        assert_eq!(recent.0.len(), RECENT_MAX);
        assert!(recent.0.iter().all(|divided| (2..=PARTS_MAX).contains(&divided.parts.len())));
        assert_eq!(recent.about(remote(443)).count(), AGAIN_MAX);
        assert_eq!(recent.about(remote(80)).count(), 0);
    }

    proptest! {
        #[test]
        fn no_vote_is_made_or_lost(claims in prop::collection::vec(
            (0..3_usize, prop::collection::btree_map(0..6_u64, 1..=VOTE, 1..6)),
            1..20,
        )) {
            let claims: Vec<_> = claims
                .into_iter()
                .map(|(group, candidates)| (group, candidates.into_iter().collect::<Vec<_>>()))
                .collect();
            let votes = votes_after(&claims);
            for group in 0..3 {
                let told = claims.iter().filter(|claim| claim.0 == group).count() as u64 * VOTE;
                let all: u64 = votes.values().map(|votes| votes.of(Some(group))).sum();
                // Each part is rounded down.
                let lost: u64 = claims.iter().map(|claim| claim.1.len() as u64).sum();
                prop_assert!(all <= told && all + lost >= told, "{all} of {told}");
            }
        }
    }
}
