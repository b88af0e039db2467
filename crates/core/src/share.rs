//! Weighted max-min fair division: the one allocation routine of fairweir.
//!
//! Problem: divide a capacity among entries with weights and demands so that no entry gets more than
//! its demand, and an entry that gets less has, per weight, no less than any other. Method: serve the
//! entries in the order of demand per weight; an entry that wants less than its share of what is left
//! takes its demand, and from the first that wants more, all that remain take their shares. One pass
//! after one sort; CRAB's appendix A loops instead, and as printed never ends.
//!
//! Properties, all tested: the parts sum to min(capacity, Σ demands) exactly; permutation of the
//! input permutes the output, a larger capacity makes no part smaller and dividing the result again
//! changes nothing, each within one bit/s per entry. Source: CRAB §3.3 in closed form.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::units::Rate;

/// How much of the capacity an entry deserves relative to the others: a whole number, 1 to
/// [`Weight::MAX`]. serde form: that number; others are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Weight(NonZeroU32);

/// A number outside of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("weight {0} is out of range (1 to {max})", max = Weight::MAX)]
pub struct WeightError(u32);

impl Weight {
    /// The smallest weight, which the default group has if the user says nothing.
    pub const ONE: Weight = Weight(NonZeroU32::MIN);
    /// The largest weight. With it, and [`crate::policy::GROUPS_MAX`] groups, nothing overflows.
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

/// One who takes part in a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it deserves relative to the others.
    pub weight: Weight,
    /// What it would use; `None` is without end.
    pub demand: Option<Rate>,
}

/// Splits `capacity` among `entries` by weighted max-min fairness, in input order.
///
/// The parts sum to min(capacity, Σ demands) exactly; a part is below its demand only if no
/// other part has more per weight, within one bit/s per entry. O(n log n).
/// Source: CRAB §3.3, in closed form (docs/papers/crab.md).
pub fn fair(capacity: Rate, entries: &[Entry]) -> Vec<Rate> {
    let mut parts = vec![Rate::ZERO; entries.len()];
    // The endless, who are served last, need no order among themselves.
    let mut order: Vec<usize> =
        (0..entries.len()).filter(|&i| entries[i].demand.is_some()).collect();
    order.sort_unstable_by(|&i, &j| by_demand_per_weight(&entries[i], &entries[j]));
    order.extend((0..entries.len()).filter(|&i| entries[i].demand.is_none()));

    let mut left = capacity.as_bps();
    let mut weights: u128 = entries.iter().map(|e| u128::from(e.weight.as_u32())).sum();
    for (served, &i) in order.iter().enumerate() {
        let Entry { weight, demand } = entries[i];
        let weight = u128::from(weight.as_u32());
        match demand {
            Some(demand) if u128::from(demand.as_bps()) * weights <= u128::from(left) * weight => {
                parts[i] = demand;
                left -= demand.as_bps();
                weights -= weight;
            }
            _ => {
                split_by_weight(left, weights, &order[served..], entries, &mut parts);
                break;
            }
        }
    }
    parts
}

/// Gives each of `unmet` its share of `left` by weight; what rounding leaves over goes, one bit/s
/// each, to those whose share was cut most, the first in the input among equals. Every entry of
/// `unmet` wants at least its share, so none gets more than it wants: an entry that wants exactly its
/// whole share loses nothing to rounding and so is never handed an extra bit.
fn split_by_weight(
    left: u64,
    weights: u128,
    unmet: &[usize],
    entries: &[Entry],
    parts: &mut [Rate],
) {
    let mut cut: Vec<(u128, usize)> = Vec::with_capacity(unmet.len());
    let mut given = 0;
    for &i in unmet {
        let exact = u128::from(left) * u128::from(entries[i].weight.as_u32());
        let part = exact / weights;
        parts[i] = Rate::bps(part as u64);
        given += part as u64;
        cut.push((exact - part * weights, i));
    }
    let remainder = (left - given) as usize;
    let most_cut_first = |a: &(u128, usize), b: &(u128, usize)| b.0.cmp(&a.0).then(a.1.cmp(&b.1));
    if remainder > 0 {
        cut.select_nth_unstable_by(remainder - 1, most_cut_first);
    }
    for &(_, i) in &cut[..remainder] {
        parts[i] += Rate::bps(1);
    }
}

/// Orders by demand per weight, the endless last, without dividing.
fn by_demand_per_weight(a: &Entry, b: &Entry) -> std::cmp::Ordering {
    match (a.demand, b.demand) {
        (None, None) => std::cmp::Ordering::Equal,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (Some(_), None) => std::cmp::Ordering::Less,
        (Some(p), Some(q)) => {
            let p = u128::from(p.as_bps()) * u128::from(b.weight.as_u32());
            let q = u128::from(q.as_bps()) * u128::from(a.weight.as_u32());
            p.cmp(&q)
        }
    }
}

#[cfg(test)]
mod tests;
