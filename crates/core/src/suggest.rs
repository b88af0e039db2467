//! Suggests weights that would have helped, from observations.
//!
//! Problem: a person has to choose weights, and does not know what the groups of the link want. Method:
//! a group wants the rate that it took while the link was not full. If it got less while the link
//! was full, [`fair`] repeats the division with larger weights. The smallest weight with which the
//! group would have got nearly all that it wanted is suggested, with what the others would have lost.
//! A group that fills the link whenever it is active has no limit: no weight gives it what it wants,
//! so none is suggested.
//!
//! Terms: *moment*, a second; *in use*, something arrives; *full*, the groups together receive [`FULL`]
//! of the capacity; *short*, a group gets less than [`ENOUGH`] of what it wants in a full moment;
//! *episode*, moments in which a group is short, with gaps of at most [`GAP_S`].
//!
//! Properties, tested: a suggested weight is larger than the one in force, gives the group
//! [`ENOUGH`] of what it wants in the replay, and the next smaller one does not; the same moments give
//! the same suggestions; too little observation gives none.

use serde::{Deserialize, Serialize};

use crate::share::{Entry, Weight, fair};
use crate::units::{Part, Rate};

/// A group that receives less than this is not active.
const ACTIVE: Rate = Rate::kbit(50);

/// The link is full from this part of its capacity on. Receive windows keep it a little below 1.
const FULL: Part = Part::of(8, 10);

/// A group that gets this part of what it wants is satisfied.
const ENOUGH: Part = Part::of(9, 10);

/// A group wants the rate that it did not exceed in this part of the moments.
const WANTED: (usize, usize) = (9, 10);

/// The fewest moments in use from which anything is concluded: 5 minutes.
pub const MOMENTS_MIN: usize = 300;

/// The fewest moments without a full link from which a group's want is concluded.
const FREE_MIN: usize = 20;

/// The fewest episodes and moments that justify a suggestion.
const EPISODES_MIN: usize = 3;
const SHORT_MIN: usize = 10;

/// The longest gap within an episode, in seconds.
const GAP_S: u64 = 10;

/// The largest weight that is suggested; beyond it the others get next to nothing.
const WEIGHT_MAX: u32 = 100;

/// A second of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Seconds since an arbitrary time.
    pub at_s: u64,
    /// The capacity of the link.
    pub capacity: Rate,
    /// The groups that received something, by index.
    pub groups: Vec<(usize, Seen)>,
}

/// What was seen of a group in a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The rate that it received.
    pub rate: Rate,
    /// The demand that the control estimated; `None` if it knew no limit.
    pub demand: Option<Rate>,
}

/// The result of an observation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    /// Too little was seen.
    TooLittle {
        /// Moments in use.
        moments: usize,
        /// Moments that are needed.
        needed: usize,
    },
    /// Weights that would have helped, the most useful one first; if the list is empty, none would have.
    Seen {
        /// Moments in use.
        moments: usize,
        /// Those among them with a full link.
        full: usize,
        /// At most one for each group.
        suggestions: Vec<Suggestion>,
    },
}

/// A weight for a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suggestion {
    /// Its index.
    pub group: usize,
    /// How many episodes it had.
    pub episodes: usize,
    /// All moments in which it was short.
    pub moments: usize,
    /// The rate that it wanted.
    pub wanted_bps: Rate,
    /// The mean rate that it received when it was short.
    pub received_bps: Rate,
    /// The weight that is suggested.
    pub weight: Weight,
    /// The mean rate that it would have received in these moments with this weight.
    pub would_receive_bps: Rate,
    /// The group that would have lost most, with the mean rates that it received and would have received
    /// in these moments.
    pub loser: Option<(usize, Rate, Rate)>,
}

/// Suggests weights from these moments, for groups with these weights in force.
///
/// Groups without a weight are ignored. O(moments × groups × log groups).
pub fn suggest(weights: &[Weight], moments: &[Moment]) -> Outcome {
    let used: Vec<&Moment> = moments.iter().filter(|moment| total(moment) >= ACTIVE).collect();
    if used.len() < MOMENTS_MIN {
        return Outcome::TooLittle { moments: used.len(), needed: MOMENTS_MIN };
    }
    let (full, free): (Vec<&Moment>, Vec<&Moment>) =
        used.iter().partition(|moment| is_full(moment));
    let wanted: Vec<Option<Rate>> = (0..weights.len()).map(|group| wanted(&free, group)).collect();
    let mut suggestions: Vec<Suggestion> =
        (0..weights.len()).filter_map(|group| suggestion(weights, &wanted, &full, group)).collect();
    let missing = |s: &Suggestion| {
        u128::from(s.wanted_bps.saturating_sub(s.received_bps).as_bps()) * s.moments as u128
    };
    suggestions.sort_by_key(|s| (std::cmp::Reverse(missing(s)), s.group));
    Outcome::Seen { moments: used.len(), full: full.len(), suggestions }
}

fn total(moment: &Moment) -> Rate {
    moment.groups.iter().map(|(_, seen)| seen.rate).sum()
}

fn is_full(moment: &Moment) -> bool {
    total(moment) >= moment.capacity * FULL
}

fn rate_in(moment: &Moment, group: usize) -> Option<Rate> {
    let seen = moment.groups.iter().find(|(other, _)| *other == group);
    seen.map(|(_, seen)| seen.rate).filter(|&rate| rate >= ACTIVE)
}

/// What a group took while the link was not full; `None` if too little is known.
fn wanted(free: &[&Moment], group: usize) -> Option<Rate> {
    let mut rates: Vec<Rate> = free.iter().filter_map(|moment| rate_in(moment, group)).collect();
    rates.sort_unstable();
    let enough = rates.len() >= FREE_MIN;
    enough.then(|| rates[(rates.len() - 1) * WANTED.0 / WANTED.1])
}

fn suggestion(
    weights: &[Weight],
    wanted: &[Option<Rate>],
    full: &[&Moment],
    group: usize,
) -> Option<Suggestion> {
    let wanted_bps = wanted[group]?;
    let enough = wanted_bps * ENOUGH;
    let is_short = |moment: &&&Moment| rate_in(moment, group).is_some_and(|rate| rate < enough);
    let short: Vec<&Moment> = full.iter().filter(is_short).copied().collect();
    let begins = |pair: &[&Moment]| pair[1].at_s.saturating_sub(pair[0].at_s) > GAP_S;
    let episodes = short.windows(2).filter(|pair| begins(pair)).count() + 1;
    if short.len() < SHORT_MIN || episodes < EPISODES_MIN {
        return None;
    }
    let replayed = |weight: u32| replay(weights, wanted, &short, group, weight);
    let gives_enough = |weight: u32| replayed(weight)[group] >= enough;
    let present = weights[group].as_u32();
    // If the group's weight should have been enough, another weight does not help.
    if present >= WEIGHT_MAX || gives_enough(present) || !gives_enough(WEIGHT_MAX) {
        return None;
    }
    // A larger weight never gives less.
    let (mut low, mut high) = (present, WEIGHT_MAX);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if gives_enough(middle) { high = middle } else { low = middle }
    }
    let (before, after) = (means(weights.len(), &short), replayed(high));
    let loss = |i: usize| before[i].saturating_sub(after[i]);
    let loser = (0..weights.len()).filter(|&i| i != group).max_by_key(|&i| (loss(i), i));
    Some(Suggestion {
        group,
        episodes,
        moments: short.len(),
        wanted_bps,
        received_bps: before[group],
        weight: Weight::new(high)?,
        would_receive_bps: after[group],
        loser: loser.filter(|&i| loss(i) > Rate::ZERO).map(|i| (i, before[i], after[i])),
    })
}

/// The mean rate that each group would have received if `group` had had this weight.
fn replay(
    weights: &[Weight],
    wanted: &[Option<Rate>],
    moments: &[&Moment],
    group: usize,
    weight: u32,
) -> Vec<Rate> {
    let mut sums = vec![0_u64; weights.len()];
    for moment in moments {
        let active: Vec<&(usize, Seen)> =
            moment.groups.iter().filter(|(i, _)| *i < weights.len()).collect();
        let entries: Vec<Entry> = active
            .iter()
            .map(|&&(i, seen)| Entry {
                weight: if i == group {
                    Weight::new(weight).unwrap_or(weights[i])
                } else {
                    weights[i]
                },
                demand: demand(seen, wanted[i]),
            })
            .collect();
        for ((i, _), part) in active.iter().zip(fair(moment.capacity, &entries)) {
            sums[*i] = sums[*i].saturating_add(part.as_bps());
        }
    }
    averages(sums, moments.len())
}

/// What a group would have taken: what it wants, if known, else the control's estimate.
fn demand(seen: Seen, wanted: Option<Rate>) -> Option<Rate> {
    match (wanted, seen.demand) {
        (Some(wanted), _) if seen.rate >= ACTIVE => Some(wanted.max(seen.rate)),
        (_, Some(demand)) => Some(demand.max(seen.rate)),
        (_, None) if seen.rate >= ACTIVE => None,
        (_, None) => Some(seen.rate),
    }
}

/// The mean rate of each group.
fn means(groups: usize, moments: &[&Moment]) -> Vec<Rate> {
    let mut sums = vec![0_u64; groups];
    for (i, seen) in moments.iter().flat_map(|moment| &moment.groups) {
        if let Some(sum) = sums.get_mut(*i) {
            *sum = sum.saturating_add(seen.rate.as_bps());
        }
    }
    averages(sums, moments.len())
}

fn averages(sums: Vec<u64>, count: usize) -> Vec<Rate> {
    sums.into_iter().map(|sum| Rate::bps(sum / count.max(1) as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINK: Rate = Rate::mbit(24);

    fn weights(all: &[u32]) -> Vec<Weight> {
        all.iter().map(|&weight| Weight::new(weight).unwrap()).collect()
    }

    fn moment(at_s: u64, rates: &[(usize, u64)]) -> Moment {
        let seen = |&(i, kbit): &(usize, u64)| (i, Seen { rate: Rate::kbit(kbit), demand: None });
        Moment { at_s, capacity: LINK, groups: rates.iter().map(seen).collect() }
    }

    /// A call of 4 Mbit/s alone, then `episodes` times 20 s beside a backup, where the call gets `short_kbit`.
    fn evening(episodes: u64, short_kbit: u64) -> Vec<Moment> {
        let mut all: Vec<Moment> = (0..600).map(|s| moment(s, &[(0, 4_000)])).collect();
        for episode in 0..episodes {
            let begin = 1_000 + episode * 100;
            let rest = 23_000 - short_kbit;
            all.extend((begin..begin + 20).map(|s| moment(s, &[(0, short_kbit), (1, rest)])));
        }
        all
    }

    #[test]
    fn a_call_beside_a_backup_gets_the_smallest_weight_that_is_enough() {
        let weights = weights(&[1, 20]);
        let Outcome::Seen { moments, full, suggestions } = suggest(&weights, &evening(14, 1_100))
        else {
            panic!("it was seen for long enough");
        };
        assert_eq!((moments, full), (880, 280));
        let [call] = suggestions.as_slice() else { panic!("{suggestions:?}") };
        assert_eq!((call.group, call.episodes, call.moments), (0, 14, 280));
        assert_eq!((call.wanted_bps, call.received_bps), (Rate::mbit(4), Rate::kbit(1_100)));
        // 3.6 of 24 Mbit/s are w / (w + 20): 3.53, so 4.
        assert_eq!(call.weight.as_u32(), 4);
        assert_eq!(call.would_receive_bps, Rate::mbit(4));
        assert_eq!(call.loser, Some((1, Rate::kbit(21_900), Rate::mbit(20))));
    }

    #[test]
    fn nothing_is_concluded_from_too_little() {
        let weights = weights(&[1, 20]);
        let few = &evening(14, 1_100)[..MOMENTS_MIN - 1];
        assert_eq!(
            suggest(&weights, few),
            Outcome::TooLittle { moments: MOMENTS_MIN - 1, needed: MOMENTS_MIN }
        );
        assert_eq!(suggest(&weights, &[]), Outcome::TooLittle { moments: 0, needed: MOMENTS_MIN });
        let is_silent = |moments: &[Moment], weights: &[Weight]| matches!(suggest(weights, moments), Outcome::Seen { suggestions, .. } if suggestions.is_empty());
        assert!(is_silent(&evening(2, 1_100), &weights), "it was short too rarely");
        assert!(is_silent(&evening(14, 3_700), &weights), "it had nearly what it wanted");
        // With this weight the group should have had enough: something else was wrong.
        assert!(is_silent(&evening(14, 1_100), &self::weights(&[10, 20])));
        // Two groups without a limit share by the weights that a person chose.
        let bulk: Vec<Moment> = (0..600).map(|s| moment(s, &[(0, 1_100), (1, 22_000)])).collect();
        assert!(is_silent(&bulk, &weights));
    }

    proptest! {
        #[test]
        fn any_moments_give_suggestions_that_the_replay_confirms(
            given in prop::collection::vec(1..200_u32, 1..5),
            rates in prop::collection::vec(prop::collection::vec(0..30_000_u64, 1..7), 300..500),
        ) {
            let weights = weights(&given);
            let each = |(s, rates): (usize, &Vec<u64>)| {
                let rates: Vec<_> = rates.iter().copied().enumerate().collect();
                moment(s as u64 * 4, &rates)
            };
            let moments: Vec<Moment> = rates.iter().enumerate().map(each).collect();
            let outcome = suggest(&weights, &moments);
            prop_assert_eq!(&outcome, &suggest(&weights, &moments));
            if let Outcome::Seen { suggestions, .. } = outcome {
                for suggestion in suggestions {
                    let Suggestion { group, wanted_bps, received_bps, weight, .. } = suggestion;
                    let enough = wanted_bps * ENOUGH;
                    prop_assert!(weight > weights[group] && weight.as_u32() <= WEIGHT_MAX);
                    prop_assert!(suggestion.would_receive_bps >= enough && received_bps < enough);
                    prop_assert!(suggestion.moments >= SHORT_MIN);
                }
            }
        }
    }
}
