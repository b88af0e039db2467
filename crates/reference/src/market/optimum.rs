//! The spends that maximise the sum of all utilities under the paper's rule (MYOB eq. (7)).
//!
//! Method: primal-dual interior point with Mehrotra's predictor and corrector. With cumulative
//! spends Xₜ of a household and their sum Zₜ over all, every constraint of a household couples only
//! neighbouring slots and Z. So each Newton step solves a tridiagonal system per household and one
//! dense system of twice the slots: O(n·T² + T³). Terms: *slack*, the margin by which a constraint
//! holds; *force*, its multiplier.
//!
//! The optimum knows every future utility. Decisions are compared with it; it is not a decision rule itself.

use super::dense::Dense;
use fairweir_core::market::utility::Utility;

/// A household, or several equal ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Household {
    /// Credits before the first slot; positive.
    pub balance: f64,
    /// Utilities of rates, by slot; each has a positive weight.
    pub utilities: Vec<Utility>,
    /// Number of equal households, which all do the same.
    pub copies: usize,
}

/// The best spends.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimum {
    /// Spends, by household and slot.
    pub spends: Vec<Vec<f64>>,
    /// The sum of all utilities.
    pub value: f64,
    /// The true optimum is better by at most this part of the value.
    pub gap: f64,
    /// Number of Newton steps.
    pub steps: usize,
}

/// The spends with the greatest sum of utilities; `None` if the households' numbers of slots
/// differ, a balance is not positive or not below the cap, or the iteration does not converge.
pub fn optimum(households: &[Household], cap: Option<f64>) -> Option<Optimum> {
    let slots = households.first()?.utilities.len();
    let count: usize = households.iter().map(|h| h.copies).sum();
    let is_possible = |h: &Household| {
        let below_cap = cap.is_none_or(|cap| h.balance < cap || slots < 2);
        h.utilities.len() == slots && h.balance > 0.0 && below_cap && h.copies > 0
    };
    if slots == 0 || count < 2 || !households.iter().all(is_possible) {
        return None;
    }
    let shape = Shape { slots, gain: 1.0 / (count - 1) as f64, cap };
    Point::start(households, &shape).solve(households, &shape)
}

/// Data that all households have in common.
struct Shape {
    slots: usize,
    /// The part of another household's spend that a household receives.
    gain: f64,
    cap: Option<f64>,
}

/// A constraint: its slack and its force.
#[derive(Clone, Copy, Debug, Default)]
struct Bound {
    slack: f64,
    force: f64,
    /// The product of the predicted changes of slack and force.
    bend: f64,
}

/// The constraints of a slot: the spend is not negative, the spend is within the balance, and the
/// balance is below the cap.
const KINDS: usize = 3;

/// The iterate, by household and slot.
struct Point {
    /// The first slack of a slot is the spend. Slacks are updated, not computed from totals:
    /// differences of totals would lose small slacks.
    bounds: Vec<[Bound; KINDS]>,
}

/// A change of the cumulative spends, by household and slot, and of their sums by slot.
struct Step {
    totals: Vec<f64>,
    sums: Vec<f64>,
}

/// The utilities at an iterate's spends.
struct Worth {
    /// Sum over all households and slots.
    value: f64,
    /// First and second derivatives, by household and slot.
    slopes: Vec<(f64, f64)>,
}

impl Shape {
    /// The change of the slacks of a slot for changes of the cumulative spends and their sums over all.
    fn slacks(&self, total: &[f64], sums: &[f64], t: usize) -> [f64; KINDS] {
        let (before, sum) = if t > 0 { (total[t - 1], sums[t - 1]) } else { (0.0, 0.0) };
        let spend = total[t] - before;
        let has = self.gain * sum - (1.0 + self.gain) * before;
        [spend, has - spend, -has]
    }

    /// Whether a slot has a constraint of this kind.
    fn binds(&self, kind: usize, t: usize) -> bool {
        kind < 2 || (self.cap.is_some() && t > 0)
    }

    /// Number of constraints of a household.
    fn constraints(&self) -> usize {
        let of_slot = |t| (0..KINDS).filter(|&kind| self.binds(kind, t)).count();
        (0..self.slots).map(of_slot).sum()
    }
}

impl Point {
    /// The start: all households spend half of their balances, which keeps all constraints slack.
    fn start(households: &[Household], shape: &Shape) -> Point {
        let mut bounds = vec![[Bound::default(); KINDS]; households.len() * shape.slots];
        let mut balances: Vec<f64> = households.iter().map(|h| h.balance).collect();
        let mut worth = 0.0;
        for t in 0..shape.slots {
            let half = |(balance, h): (&f64, &Household)| balance / 2.0 * h.copies as f64;
            let all: f64 = balances.iter().zip(households).map(half).sum();
            for (i, balance) in balances.iter_mut().enumerate() {
                let spend = *balance / 2.0;
                worth += spend * households[i].utilities[t].slope(spend);
                let slacks = [spend, spend, shape.cap.unwrap_or(0.0) - *balance];
                for kind in (0..KINDS).filter(|&kind| shape.binds(kind, t)) {
                    bounds[i * shape.slots + t][kind].slack = slacks[kind];
                }
                *balance += shape.gain * (all - spend) - spend;
            }
        }
        let product = 0.1 * worth / (households.len() * shape.slots) as f64;
        for bound in bounds.iter_mut().flatten() {
            bound.force = if bound.slack > 0.0 { product / bound.slack } else { 0.0 };
        }
        Point { bounds }
    }

    fn solve(mut self, households: &[Household], shape: &Shape) -> Option<Optimum> {
        let count: usize = households.iter().map(|h| h.copies).sum();
        let constraints = (count * shape.constraints()) as f64;
        for steps in 0..STEPS_MAX {
            let worth = self.worth(households, shape);
            let product = self.products(households, shape);
            let mean = product / constraints;
            let gap = product / worth.value.abs().max(1.0);
            if gap < GAP && steps > 0 && self.is_stationary(households, shape, &worth) {
                let spends = |home: &[[Bound; KINDS]]| home.iter().map(|b| b[0].slack).collect();
                let spends = self.bounds.chunks_exact(shape.slots).map(spends).collect();
                return Some(Optimum { spends, value: worth.value, gap, steps });
            }
            // The result of a step without a barrier determines how low the next barrier may be.
            let system = System::new(&self, households, shape, &worth);
            let step = system.step(&self, households, shape, &worth, 0.0)?;
            let reach = self.reach(shape, &step, 0.0);
            self.note_bends(shape, &step);
            let part = (1.0 - reach.0.min(reach.1)).powi(3).clamp(1e-4, 0.8);
            // Once the gap is small enough, only the slopes still have to agree.
            let enough = 0.2 * GAP * mean / gap.max(f64::MIN_POSITIVE);
            let barrier = (part * mean).max(enough);
            let step = system.step(&self, households, shape, &worth, barrier)?;
            let (slack, force) = self.reach(shape, &step, barrier);
            self.apply(shape, &step, barrier, (0.995 * slack).min(1.0), (0.995 * force).min(1.0));
        }
        None
    }

    /// The sum of all products of slack and force.
    fn products(&self, households: &[Household], shape: &Shape) -> f64 {
        let homes = self.bounds.chunks_exact(shape.slots).zip(households);
        homes
            .map(|(bounds, h)| {
                h.copies as f64 * bounds.iter().flatten().map(|b| b.slack * b.force).sum::<f64>()
            })
            .sum()
    }

    fn worth(&self, households: &[Household], shape: &Shape) -> Worth {
        let mut worth = Worth { value: 0.0, slopes: Vec::with_capacity(self.bounds.len()) };
        for (bounds, household) in self.bounds.chunks_exact(shape.slots).zip(households) {
            let mut sum = 0.0;
            for (bound, utility) in bounds.iter().zip(&household.utilities) {
                let (value, slope, bend) = utility.at(bound[0].slack);
                sum += value;
                worth.slopes.push((slope, bend));
            }
            worth.value += household.copies as f64 * sum;
        }
        worth
    }

    /// Whether all households agree on the ties, so that no change is better. The push of forces
    /// and utilities on a household's totals, without the ties, is then the same for all.
    fn is_stationary(&self, households: &[Household], shape: &Shape, worth: &Worth) -> bool {
        let slots = shape.slots;
        // The push on the sums: the force of all balances on Z.
        let mut all = vec![0.0; slots];
        for (bounds, household) in self.bounds.chunks_exact(slots).zip(households) {
            for (t, [_, balance, cap]) in bounds.iter().enumerate().skip(1) {
                all[t - 1] += household.copies as f64 * shape.gain * (balance.force - cap.force);
            }
        }
        let homes = self.bounds.chunks_exact(slots).zip(worth.slopes.chunks_exact(slots));
        homes.into_iter().all(|(bounds, slopes)| {
            (0..slots).all(|t| {
                let at = |t: usize| {
                    let [spend, balance, cap] = bounds[t].map(|b| b.force);
                    (slopes[t].0 + spend, balance, cap)
                };
                let (up, balance, _) = at(t);
                let mut push = up - balance;
                if t + 1 < slots {
                    let (up, balance, cap) = at(t + 1);
                    push += -up - shape.gain * balance + (1.0 + shape.gain) * cap;
                }
                (push + all[t]).abs() < RESIDUAL * slopes[t].0.max(1.0)
            })
        })
    }

    /// The change of the force of a bound whose slack changes by `slack`.
    fn force_change(bound: &Bound, slack: f64, barrier: f64) -> f64 {
        (barrier - bound.bend - bound.force * slack) / bound.slack - bound.force
    }

    /// Calls `each` for every constraint with the change of its slack in a step.
    fn each_change(&mut self, shape: &Shape, step: &Step, mut each: impl FnMut(&mut Bound, f64)) {
        let totals = step.totals.chunks_exact(shape.slots);
        for (bounds, totals) in self.bounds.chunks_exact_mut(shape.slots).zip(totals) {
            for (t, bounds) in bounds.iter_mut().enumerate() {
                let slacks = shape.slacks(totals, &step.sums, t);
                for (kind, (bound, slack)) in bounds.iter_mut().zip(slacks).enumerate() {
                    if shape.binds(kind, t) {
                        each(bound, slack);
                    }
                }
            }
        }
    }

    /// The parts of a step that keep slacks positive, and that keep forces positive.
    fn reach(&mut self, shape: &Shape, step: &Step, barrier: f64) -> (f64, f64) {
        let mut reach = (1.0_f64 / 0.995, 1.0_f64 / 0.995);
        // Few constraints are the first to become negative, so few divisions are needed.
        self.each_change(shape, step, |bound, slack| {
            if bound.slack + reach.0 * slack < 0.0 {
                reach.0 = -bound.slack / slack;
            }
            let force = Point::force_change(bound, slack, barrier);
            if bound.force + reach.1 * force < 0.0 {
                reach.1 = -bound.force / force;
            }
        });
        reach
    }

    fn note_bends(&mut self, shape: &Shape, step: &Step) {
        self.each_change(shape, step, |bound, slack| {
            bound.bend = slack * Point::force_change(bound, slack, 0.0);
        });
    }

    fn apply(
        &mut self,
        shape: &Shape,
        step: &Step,
        barrier: f64,
        slack_part: f64,
        force_part: f64,
    ) {
        self.each_change(shape, step, |bound, slack| {
            bound.force += force_part * Point::force_change(bound, slack, barrier);
            bound.slack += slack_part * slack;
            bound.bend = 0.0;
        });
    }
}

/// The matrices of a Newton step.
struct System {
    /// Rows, by household and slot.
    rows: Vec<Row>,
    /// The dense matrix of the sums and the ties, factored.
    dense: Dense,
}

/// A slot's row of a household's symmetric tridiagonal matrix, and its couplings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    /// Entry below the diagonal; once factored as L·D·Lᵀ, the entry of L.
    pub(super) below: f64,
    /// Entry on the diagonal; once factored, 1 divided by the entry of D.
    pub(super) on: f64,
    /// What couples the slot's total with the sum before it,
    with_next: f64,
    /// and what couples the total before it with that sum.
    with_same: f64,
}

impl System {
    fn new(point: &Point, households: &[Household], shape: &Shape, worth: &Worth) -> System {
        let (slots, sums) = (shape.slots, shape.slots - 1);
        let mut dense = vec![vec![0.0; 2 * sums]; 2 * sums];
        let mut all_rows = vec![Row::default(); households.len() * slots];
        let (mut inverse, mut coupled) = (vec![0.0; slots * slots], vec![0.0; slots * sums]);
        for (i, household) in households.iter().enumerate() {
            let copies = household.copies as f64;
            let (bounds, slopes) = (&point.bounds[i * slots..], &worth.slopes[i * slots..]);
            let rows = &mut all_rows[i * slots..][..slots];
            for t in 0..slots {
                let own = write_row(rows, &bounds[t], slopes[t].1, shape, t);
                if t > 0 {
                    dense[t - 1][t - 1] += copies * own;
                }
            }
            factor(rows);
            invert(rows, &mut inverse);
            solve_couplings(rows, &mut coupled);
            for k in 0..sums {
                let (same, next) = coupled[k * sums..][..2 * sums].split_at(sums);
                let Row { with_next, with_same, .. } = rows[k + 1];
                // Only the upper half of the symmetric part.
                let entries = dense[k][k..sums].iter_mut().zip(next[k..].iter().zip(&same[k..]));
                for (entry, (next, same)) in entries {
                    *entry -= copies * (with_next * next + with_same * same);
                }
                let (by_sum, by_tie) = dense[sums + k].split_at_mut(sums);
                by_sum.iter_mut().zip(same).for_each(|(entry, same)| *entry -= copies * same);
                let entries = by_tie[k..].iter_mut().zip(&inverse[k * slots + k..]);
                entries.for_each(|(entry, inverse)| *entry -= copies * inverse);
            }
        }
        for k in 0..sums {
            dense[sums + k][k] -= 1.0;
            for j in 0..sums {
                dense[k][sums + j] = dense[sums + j][k];
            }
            for j in 0..k {
                dense[k][j] = dense[j][k];
                dense[sums + k][sums + j] = dense[sums + j][sums + k];
            }
        }
        System { rows: all_rows, dense: Dense::factor(dense) }
    }

    /// The step that brings each product of slack and force to `barrier`.
    fn step(
        &self,
        point: &Point,
        households: &[Household],
        shape: &Shape,
        worth: &Worth,
        barrier: f64,
    ) -> Option<Step> {
        let (slots, sums) = (shape.slots, shape.slots - 1);
        let mut right = vec![0.0; 2 * sums];
        let mut totals = vec![0.0; point.bounds.len()];
        for (i, household) in households.iter().enumerate() {
            let copies = household.copies as f64;
            let rows = &self.rows[i * slots..][..slots];
            let push = &mut totals[i * slots..][..slots];
            for t in 0..slots {
                let at = i * slots + t;
                let of = |kind: usize| {
                    let bound = &point.bounds[at][kind];
                    if shape.binds(kind, t) { (barrier - bound.bend) / bound.slack } else { 0.0 }
                };
                let (spend, balance, cap) = (of(0), of(1), of(2));
                let slope = worth.slopes[at].0;
                push[t] += slope + spend - balance;
                if t > 0 {
                    push[t - 1] += -slope - spend - shape.gain * balance + (1.0 + shape.gain) * cap;
                    right[t - 1] += copies * shape.gain * (balance - cap);
                }
            }
            solve(rows, push);
            for k in 0..sums {
                let row = &rows[k + 1];
                right[k] -= copies * (row.with_next * push[k + 1] + row.with_same * push[k]);
                right[sums + k] -= copies * push[k];
            }
        }
        self.dense.solve(&mut right)?;
        let (change, ties) = right.split_at(sums);
        let mut all = change.to_vec();
        all.push(0.0);
        let mut tied = vec![0.0; slots];
        let homes = totals.chunks_exact_mut(slots).zip(self.rows.chunks_exact(slots));
        for ((totals, rows), household) in homes.zip(households) {
            tied[..sums].copy_from_slice(ties);
            tied[sums] = 0.0;
            for k in 0..sums {
                tied[k] += rows[k + 1].with_same * change[k];
                tied[k + 1] += rows[k + 1].with_next * change[k];
            }
            solve(rows, &mut tied);
            totals.iter_mut().zip(&tied).for_each(|(total, tied)| *total -= tied);
            all[sums] += totals[sums] * household.copies as f64;
        }
        Some(Step { totals, sums: all })
    }
}

/// Writes the part of a slot into a household's rows, from the first slot on. Returns its part of
/// the diagonal of the sums, at the sum before the slot.
fn write_row(rows: &mut [Row], bounds: &[Bound; KINDS], bend: f64, shape: &Shape, t: usize) -> f64 {
    let gain = shape.gain;
    let weight = |kind: usize| {
        let bound = &bounds[kind];
        if shape.binds(kind, t) { bound.force / bound.slack } else { 0.0 }
    };
    let (spend, balance, cap) = (weight(0) - bend, weight(1), weight(2));
    rows[t].on = spend + balance;
    if t == 0 {
        return 0.0;
    }
    let lost = 1.0 + gain;
    rows[t].below = gain * balance - spend;
    rows[t].with_next = -gain * balance;
    rows[t].with_same = -gain * gain * balance - lost * gain * cap;
    rows[t - 1].on += spend + gain * gain * balance + lost * lost * cap;
    gain * gain * (balance + cap)
}

/// Factors a symmetric tridiagonal matrix as L·D·Lᵀ.
pub(super) fn factor(rows: &mut [Row]) {
    let mut inverse = 0.0;
    for row in rows {
        let factor = row.below * inverse;
        inverse = 1.0 / (row.on - factor * row.below);
        (row.below, row.on) = (factor, inverse);
    }
}

/// Solves one system with the factors.
pub(super) fn solve(rows: &[Row], right: &mut [f64]) {
    for t in 1..right.len() {
        right[t] -= rows[t].below * right[t - 1];
    }
    right.iter_mut().zip(rows).for_each(|(right, row)| *right *= row.on);
    for t in (1..right.len()).rev() {
        right[t - 1] -= rows[t].below * right[t];
    }
}

/// Writes the inverse times the couplings, by slot and sum. (Computing both factors first and their
/// product then would lose small numbers as differences of large ones.)
fn solve_couplings(rows: &[Row], coupled: &mut [f64]) {
    let sums = rows.len() - 1;
    coupled.fill(0.0);
    for j in 0..sums {
        coupled[j * sums + j] = rows[j + 1].with_same;
        coupled[(j + 1) * sums + j] = rows[j + 1].with_next;
    }
    for t in 1..=sums {
        let (before, row) = coupled[(t - 1) * sums..][..2 * sums].split_at_mut(sums);
        let entries = row[..t].iter_mut().zip(before);
        entries.for_each(|(row, before)| *row -= rows[t].below * *before);
    }
    for (row, entries) in rows.iter().zip(coupled.chunks_exact_mut(sums.max(1))) {
        entries.iter_mut().for_each(|entry| *entry *= row.on);
    }
    for t in (1..=sums).rev() {
        let (before, row) = coupled[(t - 1) * sums..][..2 * sums].split_at_mut(sums);
        before.iter_mut().zip(row).for_each(|(before, row)| *before -= rows[t].below * *row);
    }
}

/// Writes the inverse on and above the diagonal. Each entry follows from the one below it, because Lᵀ times the
/// inverse is zero above the diagonal.
fn invert(rows: &[Row], inverse: &mut [f64]) {
    let slots = rows.len();
    inverse[slots * slots - 1] = rows[slots - 1].on;
    for t in (0..slots - 1).rev() {
        let below = rows[t + 1].below;
        let (row, next) = inverse[t * slots..][..2 * slots].split_at_mut(slots);
        let entries = row[t + 1..].iter_mut().zip(&next[t + 1..]);
        entries.for_each(|(entry, next)| *entry = -below * next);
        row[t] = rows[t].on - below * row[t + 1];
    }
}

const STEPS_MAX: usize = 100;

/// Sum of all products of slack and force, relative to the value.
const GAP: f64 = 1e-8;

/// The largest difference of the slopes at the end, relative to the largest slope.
const RESIDUAL: f64 = 1e-5;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn households(with: &[(f64, Vec<[f64; 4]>)], slots: usize) -> Vec<Household> {
        let utility = |&weights: &[f64; 4]| Utility { weights };
        let one = |(balance, weights): &(f64, Vec<[f64; 4]>)| Household {
            balance: *balance,
            utilities: weights[..slots].iter().map(utility).collect(),
            copies: 1,
        };
        with.iter().map(one).collect()
    }

    /// The value when each spend is a part of its balance, and whether all balances are below the
    /// cap.
    fn played(
        homes: &[Household],
        part: impl Fn(usize, usize) -> f64,
        cap: Option<f64>,
    ) -> (f64, bool) {
        let gain = 1.0 / (homes.len() - 1) as f64;
        let mut balances: Vec<f64> = homes.iter().map(|h| h.balance).collect();
        let (mut value, mut fits) = (0.0, true);
        for t in 0..homes[0].utilities.len() {
            fits &= cap.is_none_or(|cap| balances.iter().all(|b| *b <= cap));
            let spends: Vec<f64> =
                balances.iter().enumerate().map(|(i, b)| b * part(i, t)).collect();
            let all: f64 = spends.iter().sum();
            for (i, spend) in spends.iter().enumerate() {
                value += homes[i].utilities[t].value(*spend);
                balances[i] += gain * (all - spend) - spend;
            }
        }
        (value, fits)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn nothing_that_is_tried_is_better(
            with in prop::collection::vec((5.0..15.0_f64, prop::collection::vec(prop::array::uniform4(0.05..4.0_f64), 6)), 2..6),
            slots in 1..6_usize, cap in prop::option::of(20.0..30.0_f64),
            parts in prop::collection::vec(prop::array::uniform6(0.0..1.0_f64), 6),
        ) {
            let homes = households(&with, slots);
            let best = optimum(&homes, cap).expect("it converges");
            let found = played(&homes, |i, t| {
                let spent = &best.spends[i];
                // The balances that result from the spends.
                let gain = 1.0 / (homes.len() - 1) as f64;
                let mut balance = homes[i].balance;
                for s in 0..t {
                    let all: f64 = best.spends.iter().map(|x| x[s]).sum();
                    balance += gain * (all - spent[s]) - spent[s];
                }
                assert!(spent[t] >= 0.0 && spent[t] <= balance * (1.0 + 1e-9) + 1e-9);
                spent[t] / balance
            }, None).0;
            prop_assert!((found / best.value - 1.0).abs() < 1e-6);
            for everything in [0.5, 1.0, (homes.len() - 1) as f64 / homes.len() as f64] {
                let (value, fits) = played(&homes, |_, _| everything, cap);
                prop_assert!(!fits || value <= best.value * (1.0 + 1e-8));
            }
            let (value, fits) = played(&homes, |i, t| parts[i][t], cap);
            prop_assert!(!fits || value <= best.value * (1.0 + 1e-8));
        }

        #[test]
        fn copies_are_as_many_households(
            with in prop::collection::vec((10.0..10.1_f64, prop::collection::vec(prop::array::uniform4(0.05..4.0_f64), 4)), 2),
        ) {
            let homes = households(&with, 4);
            let apart = [homes[0].clone(), homes[0].clone(), homes[1].clone()];
            let together = [Household { copies: 2, ..homes[0].clone() }, homes[1].clone()];
            let (apart, together) = (optimum(&apart, None).unwrap(), optimum(&together, None).unwrap());
            prop_assert!((apart.value / together.value - 1.0).abs() < 1e-7);
        }
    }

    #[test]
    fn what_has_no_optimum_is_refused() {
        let home = Household {
            balance: 1.0,
            utilities: vec![Utility::only(fairweir_core::market::utility::Kind::Social, 1.0)],
            copies: 1,
        };
        assert_eq!(optimum(&[], None), None);
        assert_eq!(optimum(std::slice::from_ref(&home), None), None);
        let poor = Household { balance: 0.0, ..home.clone() };
        assert_eq!(optimum(&[home, poor], None), None);
    }
}
