//! Weighted max-min fair division: the one allocation routine of fairweir.
//!
//! Problem: divide a capacity among entries with weights and demands so that no entry gets more than
//! its demand, and an entry that gets less has, per weight, no less than any other. Method: serve the
//! entries in the order of demand per weight. An entry that wants less than its share of the remaining
//! capacity takes its demand; from the first entry that wants more on, all take their shares. One pass
//! after one sort; CRAB's appendix A loops instead, and as printed never ends.
//!
//! Properties, all tested: the parts sum to min(capacity, Σ demands) exactly; permutation of the
//! input permutes the output; a larger capacity makes no part smaller; dividing the result again
//! changes nothing (both within one bit/s per entry). Source: CRAB §3.3 in closed form.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::units::Rate;

mod tree;

pub use tree::{Cap, Claims, DEPTH_MAX, Floor, Node, Tree};

/// How much of the capacity an entry deserves relative to the others: a whole number, 1 to
/// [`Weight::MAX`]. serde form: that number; others are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Weight(NonZeroU32);

/// A number that is not a valid weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("weight {0} is out of range (1 to {max})", max = Weight::MAX)]
pub struct WeightError(u32);

impl Weight {
    /// The smallest weight, which the default group has unless the user sets another.
    pub const ONE: Weight = Weight(NonZeroU32::MIN);
    /// The largest weight. Sums over the 256 possible groups of a policy do not overflow.
    pub const MAX: u32 = 10_000;

    /// A weight of `n`, if that is from 1 to [`Weight::MAX`].
    pub fn new(n: u32) -> Option<Weight> {
        NonZeroU32::new(n).filter(|n| n.get() <= Self::MAX).map(Weight)
    }

    /// The weight as a number.
    pub const fn as_u32(self) -> u32 {
        self.0.get()
    }
}

impl Default for Weight {
    fn default() -> Weight {
        Weight::ONE
    }
}

impl TryFrom<u32> for Weight {
    type Error = WeightError;
    fn try_from(n: u32) -> Result<Weight, WeightError> {
        Weight::new(n).ok_or(WeightError(n))
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> u32 {
        weight.as_u32()
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A participant in a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its weight relative to the others.
    pub weight: Weight,
    /// The rate that it would use; `None` means unlimited.
    pub demand: Option<Rate>,
}

/// Splits `capacity` among `entries` by weighted max-min fairness, in input order.
///
/// The parts sum to min(capacity, Σ demands) exactly; a part is below its demand only if no
/// other part has more per weight, within one bit/s per entry. O(n log n).
/// Source: CRAB §3.3, in closed form (docs/research/papers/crab.md).
pub fn fair(capacity: Rate, entries: &[Entry]) -> Vec<Rate> {
    let parts = divide(capacity.as_bps(), entries);
    parts.into_iter().map(Rate::bps).collect()
}

/// Splits `capacity` as [`fair`] does, but no part is below its floor or, if that is less, its demand.
///
/// The parts sum to min(capacity, Σ demands) exactly. Floors that together exceed `capacity` are
/// scaled in proportion, and nothing is left for the others. Each part is within one bit/s per entry
/// of max(floor, min(demand, level · weight)) for one level. At most n + 1 calls of [`fair`].
///
/// # Panics
/// If the numbers of floors and entries differ.
pub fn fair_above(capacity: Rate, entries: &[Entry], floors: &[Rate]) -> Vec<Rate> {
    assert_eq!(entries.len(), floors.len(), "each entry has a floor");
    let wanted = |(entry, &floor): (&Entry, &Rate)| entry.demand.map_or(floor, |d| d.min(floor));
    let floors: Vec<Rate> = entries.iter().zip(floors).map(wanted).collect();
    if floors.iter().copied().sum::<Rate>() > capacity {
        let scaled: Vec<Scaled> = floors.into_iter().map(Scaled).collect();
        return divide(capacity.as_bps(), &scaled).into_iter().map(Rate::bps).collect();
    }
    // Entries that the others' level does not reach get their floors, which lowers the level.
    let mut held = vec![false; entries.len()];
    loop {
        let of_held = floors.iter().zip(&held).filter(|(_, held)| **held).map(|(floor, _)| *floor);
        let left = capacity.saturating_sub(of_held.sum());
        let others = entries.iter().zip(&held);
        let others = others.map(|(&entry, &held)| match held {
            true => Entry { demand: Some(Rate::ZERO), ..entry },
            false => entry,
        });
        let mut parts = fair(left, &others.collect::<Vec<_>>());
        let mut is_lower = false;
        for (i, part) in parts.iter_mut().enumerate() {
            if held[i] {
                *part = floors[i];
            } else if *part < floors[i] {
                (held[i], is_lower) = (true, true);
            }
        }
        if !is_lower {
            return parts;
        }
    }
}

/// A floor that cannot be kept in full.
struct Scaled(Rate);

impl Claim for Scaled {
    fn weight(&self) -> u64 {
        self.0.as_bps()
    }

    fn demand(&self) -> Option<u64> {
        Some(self.0.as_bps())
    }
}

/// A participant in a division of arbitrary whole units.
pub(crate) trait Claim {
    /// Its weight relative to the others; the sum of all weights times the largest demand is below
    /// 2¹²⁸.
    fn weight(&self) -> u64;
    /// The amount that it would use; `None` means unlimited.
    fn demand(&self) -> Option<u64>;
}

impl Claim for Entry {
    fn weight(&self) -> u64 {
        u64::from(self.weight.as_u32())
    }

    fn demand(&self) -> Option<u64> {
        self.demand.map(Rate::as_bps)
    }
}

/// [`fair`] for claims on arbitrary whole units. Claims without weight get nothing.
pub(crate) fn divide(capacity: u64, claims: &[impl Claim]) -> Vec<u64> {
    let mut parts = vec![0; claims.len()];
    // Unlimited claims are served last and need no order among themselves.
    let weighs = |&i: &usize| claims[i].weight() > 0;
    let (mut order, endless): (Vec<usize>, Vec<usize>) =
        (0..claims.len()).filter(weighs).partition(|&i| claims[i].demand().is_some());
    order.sort_unstable_by(|&i, &j| by_demand_per_weight(&claims[i], &claims[j]));
    order.extend(endless);

    let mut left = capacity;
    let mut weights: u128 = order.iter().map(|&i| u128::from(claims[i].weight())).sum();
    for (served, &i) in order.iter().enumerate() {
        let weight = u128::from(claims[i].weight());
        match claims[i].demand() {
            Some(demand) if u128::from(demand) * weights <= u128::from(left) * weight => {
                parts[i] = demand;
                left -= demand;
                weights -= weight;
            }
            _ => {
                split_by_weight(left, weights, &order[served..], claims, &mut parts);
                break;
            }
        }
    }
    parts
}

/// Gives each of `unmet` its share of `left` by weight. The units left over by rounding go, one each, to
/// the entries whose share was cut most, the first in the input among equals. Every claim of `unmet`
/// wants at least its share, so none gets more than it wants: a claim that wants exactly its
/// whole share loses nothing to rounding and so never gets an extra unit.
fn split_by_weight(
    left: u64,
    weights: u128,
    unmet: &[usize],
    claims: &[impl Claim],
    parts: &mut [u64],
) {
    let mut cut: Vec<(u128, usize)> = Vec::with_capacity(unmet.len());
    let mut given = 0;
    for &i in unmet {
        let exact = u128::from(left) * u128::from(claims[i].weight());
        let part = exact / weights;
        parts[i] = part as u64;
        given += part as u64;
        cut.push((exact - part * weights, i));
    }
    let remainder = (left - given) as usize;
    let most_cut_first = |a: &(u128, usize), b: &(u128, usize)| b.0.cmp(&a.0).then(a.1.cmp(&b.1));
    if remainder > 0 {
        cut.select_nth_unstable_by(remainder - 1, most_cut_first);
    }
    for &(_, i) in &cut[..remainder] {
        parts[i] += 1;
    }
}

/// Orders by demand per weight without dividing; unlimited demands come last.
fn by_demand_per_weight(a: &impl Claim, b: &impl Claim) -> std::cmp::Ordering {
    match (a.demand(), b.demand()) {
        (None, None) => std::cmp::Ordering::Equal,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (Some(_), None) => std::cmp::Ordering::Less,
        (Some(p), Some(q)) => {
            let p = u128::from(p) * u128::from(b.weight());
            let q = u128::from(q) * u128::from(a.weight());
            p.cmp(&q)
        }
    }
}

#[cfg(test)]
mod tests;
