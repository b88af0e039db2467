//! How a claim's vote is divided among the connections that may have carried its request.
//!
//! Problem: a browser opens the connections of several sites at once, so each of them has sent something soon
//! after each request, and over HTTP/1.1 the next request may come a minute later.
//! Method: a part is as large as the connection's likelihood
//! ([`Sends::carried`](super::claims::Sends::carried)) times the part of its votes that is for the same group ([`Votes::prior`]), since browsers do not use one connection
//! for two sites. What claims tell about each other's connections comes in any order, so with each claim the
//! last ones about that server are divided again.
//!
//! Requests of a page that leave at once say no more than where each connection may belong: a burst has
//! at most as many votes as there are connections that may have carried it.
//!
//! Over HTTP/1.1 a connection carries one request at a time. So claims whose requests were in flight at the same
//! time share the connections that may have carried both: the part that one claim has of a connection is not
//! available to the others.
//!
//! Properties: the parts of a claim sum to no more than its vote; a single candidate gets all of it, whatever its
//! earlier votes were; the work for one claim is bounded by [`AGAIN_MAX`]² × [`PARTS_MAX`] parts.

use std::collections::{BTreeSet, VecDeque};

use super::claims::{Claim, EARLY, VOTE, Votes};
use crate::units::{Span, Time};

/// The connections among which claims are divided.
pub(super) trait Connections {
    /// The votes for one connection; `None` if it is gone.
    fn votes(&mut self, number: u64) -> Option<&mut Votes>;
}

/// A connection that may have carried a claim's request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) number: u64,
    /// In thousandths.
    pub(super) likelihood: u64,
    /// When it last sent something that may have been the request.
    pub(super) sent: Time,
}

/// A claim that was divided.
#[derive(Debug)]
pub(super) struct Divided {
    claim: Claim,
    /// The claim's vote, in thousandths.
    vote: u64,
    /// Sorted by the connections' numbers.
    parts: Vec<Part>,
}

/// The part of a claim's vote that a connection has.
#[derive(Debug)]
struct Part {
    candidate: Candidate,
    vote: u64,
}

impl Divided {
    /// A vote that is not divided yet.
    pub(super) fn new(claim: &Claim, mut candidates: Vec<Candidate>) -> Divided {
        let vote = if claim.is_unsure { VOTE / 2 } else { VOTE };
        candidates.sort_unstable_by_key(|candidate| candidate.number);
        let parts = candidates.into_iter().map(|candidate| Part { candidate, vote: 0 }).collect();
        Divided { claim: *claim, vote, parts }
    }

    /// The numbers of the connections.
    fn numbers(&self) -> impl Iterator<Item = u64> {
        self.parts.iter().map(|part| part.candidate.number)
    }

    /// Takes the vote back from the connections and divides it again by their votes, and by how much of each is
    /// `free` for it, in thousandths. Nothing changes if one of the connections is gone.
    fn divide(&mut self, free: &[u64], connections: &mut impl Connections) {
        if self.numbers().any(|number| connections.votes(number).is_none()) {
            return;
        }
        let group = self.claim.group;
        let mut weights = Vec::with_capacity(self.parts.len());
        for (part, free) in self.parts.iter().zip(free) {
            let Some(votes) = connections.votes(part.candidate.number) else { continue };
            votes.take(group, part.vote);
            weights.push(part.candidate.likelihood * votes.prior(group) * free);
        }
        let all = weights.iter().sum::<u64>().max(1);
        for (part, weight) in self.parts.iter_mut().zip(weights) {
            part.vote = self.vote * weight / all;
            if let Some(votes) = connections.votes(part.candidate.number) {
                votes.add(group, part.vote);
            }
        }
    }

    /// Subtracts from `free` how much of each connection the request of `other` occupies: over HTTP/1.1 a
    /// connection sends no further request until the response to the last one has begun.
    fn take_busy(&self, other: &Divided, free: &mut [u64]) {
        let begun = self.claim.start.min(other.claim.start);
        let last_begin = self.claim.begin.max(other.claim.begin);
        if !(self.claim.is_http1 && other.claim.is_http1) || last_begin > begun + EARLY {
            return;
        }
        let is_first = self.claim.start == begun;
        let mut theirs = other.parts.iter().peekable();
        for (ours, free) in self.parts.iter().zip(free) {
            let number = ours.candidate.number;
            while theirs.next_if(|part| part.candidate.number < number).is_some() {}
            let its = theirs.next_if(|part| part.candidate.number == number);
            let Some(its) = its else { continue };
            let last = if is_first { its } else { ours };
            if last.candidate.sent <= begun {
                *free = free.saturating_sub(its.vote * VOTE / other.vote);
            }
        }
    }
}

/// The last claims of a user.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<Divided>);

impl Recent {
    /// Divides a claim, and divides the last ones about that server again, the oldest first. Returns the numbers of
    /// their connections.
    pub(super) fn divide(
        &mut self,
        mut divided: Divided,
        connections: &mut impl Connections,
    ) -> BTreeSet<u64> {
        if divided.parts.len() > PARTS_MAX {
            divided.divide(&vec![VOTE; divided.parts.len()], connections);
            return divided.numbers().collect();
        }
        let remote = divided.claim.remote;
        if self.0.len() == RECENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(divided);
        let about = (0..self.0.len()).rev().filter(|i| self.0[*i].claim.remote == remote);
        let mut order: Vec<usize> = about.take(1 + AGAIN_MAX).collect();
        order[1..].reverse();
        for &i in order.iter().cycle().take(ROUNDS * order.len()) {
            let mut free = vec![VOTE; self.0[i].parts.len()];
            for &other in order.iter().filter(|other| **other != i) {
                self.0[i].take_busy(&self.0[other], &mut free);
            }
            free.iter_mut().for_each(|free| *free = (*free).max(FREE_MIN));
            self.0[i].divide(&free, connections);
        }
        order.iter().flat_map(|i| self.0[*i].numbers()).collect()
    }

    /// Whether as many requests of the group left at about this time as may have used different connections: more
    /// such requests say nothing new about these connections.
    pub(super) fn is_told(&self, divided: &Divided) -> bool {
        let claim = &divided.claim;
        let same = self.0.iter().map(|earlier| &earlier.claim).filter(|earlier| {
            let apart = earlier.begin.since(claim.begin).max(claim.begin.since(earlier.begin));
            (earlier.remote, earlier.group) == (claim.remote, claim.group) && apart <= AT_ONCE
        });
        divided.parts.len() > 1 && same.count() >= divided.parts.len()
    }
}

/// Claims that are kept: about the requests of one page to a few servers.
const RECENT_MAX: usize = 64;
/// A browser sends the requests of a page within this time.
const AT_ONCE: Span = Span::millis(20);
/// Claims about one server that are divided again.
const AGAIN_MAX: usize = 24;
/// Rounds of division for each claim.
const ROUNDS: usize = 2;
/// Least part, in thousandths, that is free: the request may have used an unknown connection.
const FREE_MIN: u64 = 50;
/// Maximum candidates: two sites with six connections each and some more; with more, a claim says little.
const PARTS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::sites::claims::{HostDigest, Verdict};

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

    /// The votes as [`super::super::Resolver`] divides them. Candidates: numbers of connections with likelihoods; each
    /// sent something when the request began, and nothing since.
    fn votes_after(claims: &[(Claim, Vec<(u64, u64)>)]) -> BTreeMap<u64, Votes> {
        let (mut votes, mut recent) = (BTreeMap::<u64, Votes>::new(), Recent::default());
        for (claim, candidates) in claims {
            candidates.iter().for_each(|(number, _)| _ = votes.entry(*number).or_default());
            recent.divide(divided(claim, candidates), &mut votes);
        }
        votes
    }

    fn divided(claim: &Claim, candidates: &[(u64, u64)]) -> Divided {
        let candidate =
            |&(number, likelihood): &_| Candidate { number, likelihood, sent: claim.begin };
        Divided::new(claim, candidates.iter().map(candidate).collect())
    }

    /// A claim of this group; all of them at the same time.
    fn of(group: usize) -> Claim {
        claim(Some(group), 443, 0)
    }

    #[test]
    fn one_claim_for_each_of_four_connections_that_opened_at_once_is_enough() {
        // Recorded: two sites of Chromium that open two connections each over HTTP/1.1.
        let bulk = (of(1), vec![(1, 237), (2, 236), (3, 181), (4, 180)]);
        let video = (of(0), vec![(1, 71), (2, 71), (3, 532), (4, 527)]);
        let claims = [bulk.clone(), bulk, video.clone(), video];
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
    fn over_http_1_requests_that_are_under_way_together_use_different_connections() {
        let of = |group, ms, is_http1| Claim { is_http1, ..claim(Some(group), 443, ms) };
        let both = vec![(1, 900), (2, 450)];
        let parts = |[first, second]: [Claim; 2]| {
            let claims = [(first, both.clone()), (second, vec![(1, 500)])];
            let votes = [claims.clone(), [claims[1].clone(), claims[0].clone()]].map(|claims| {
                let votes = votes_after(&claims);
                [1, 2].map(|number| votes[&number].of(Some(0)))
            });
            assert_eq!(votes[0], votes[1], "in any order");
            votes[0]
        };
        // Responses begin 50 ms after requests.
        let [by_first, by_second] = parts([of(0, 0, true), of(1, 30, true)]);
        assert!(by_first < VOTE / 50 && by_second > VOTE * 9 / 10, "{by_first} {by_second}");
        let by_http2 = parts([of(0, 0, false), of(1, 30, false)]);
        assert!(by_http2[0] > VOTE / 10, "{by_http2:?}");
        let one_after_the_other = parts([of(0, 0, true), of(1, 60, true)]);
        assert_eq!(one_after_the_other, by_http2);
    }

    #[test]
    fn what_all_have_sent_for_all_decides_nothing() {
        let all = (1..=4).map(|number| (number, 500)).collect::<Vec<_>>();
        let votes = votes_after(&[0, 1, 1, 0].map(|group| (of(group), all.clone())));
        assert!(votes.values().all(|votes| votes.verdict().is_none()), "{votes:?}");
    }

    #[test]
    fn a_connection_that_is_gone_keeps_what_was_divided() {
        let mut votes = BTreeMap::from([(1, Votes::default()), (2, Votes::default())]);
        let mut claim = divided(&claim(None, 443, 0), &[(1, 900), (2, 300)]);
        claim.divide(&[VOTE; 2], &mut votes);
        votes.remove(&1);
        claim.divide(&[VOTE; 2], &mut votes);
        assert_eq!(votes[&2].of(None), VOTE / 4);
    }

    #[test]
    fn a_burst_tells_as_much_as_connections_may_have_carried_it() {
        let mut recent = Recent::default();
        let mut votes = BTreeMap::from([(1, Votes::default()), (2, Votes::default())]);
        let mut told = |group, port, ms| {
            let divided = divided(&claim(group, port, ms), &[(1, 500), (2, 500)]);
            let is_told = recent.is_told(&divided);
            recent.divide(divided, &mut votes);
            is_told
        };
        assert_eq!([0, 3, 9, 20].map(|ms| told(Some(0), 443, ms)), [false, false, true, true]);
        assert!(!told(Some(1), 443, 9) && !told(Some(0), 80, 9));
        assert!(!told(Some(0), 443, 60));
        assert!(!recent.is_told(&divided(&claim(Some(0), 443, 9), &[(1, 500)])));
    }

    #[test]
    fn only_the_last_claims_of_few_candidates_are_kept() {
        let mut recent = Recent::default();
        let mut votes: BTreeMap<_, _> = (0..40).map(|number| (number, Votes::default())).collect();
        for count in 1..=1_000 {
            let candidates: Vec<_> = (0..count % 40).map(|number| (number, VOTE)).collect();
            recent.divide(divided(&claim(None, 443, 0), &candidates), &mut votes);
        }
        assert_eq!(recent.0.len(), RECENT_MAX);
        assert!(recent.0.iter().all(|divided| divided.parts.len() <= PARTS_MAX));
    }

    proptest! {
        #[test]
        fn no_vote_is_made_or_lost(claims in prop::collection::vec(
            (0..3_usize, 0..200_u64, any::<bool>(), prop::collection::btree_map(0..6_u64, 1..=VOTE, 1..6)),
            1..20,
        )) {
            let claims: Vec<_> = claims
                .into_iter()
                .map(|(group, ms, is_http1, candidates)| {
                    let claim = Claim { is_http1, ..claim(Some(group), 443, ms) };
                    (claim, candidates.into_iter().collect::<Vec<_>>())
                })
                .collect();
            let votes = votes_after(&claims);
            for group in 0..3 {
                let of_group = claims.iter().filter(|(claim, _)| claim.group == Some(group));
                let told = of_group.count() as u64 * VOTE;
                let all: u64 = votes.values().map(|votes| votes.of(Some(group))).sum();
                // Each part is rounded down.
                let lost: u64 = claims.iter().map(|claim| claim.1.len() as u64).sum();
                prop_assert!(all <= told && all + lost >= told, "{all} of {told}");
            }
        }
    }
}
