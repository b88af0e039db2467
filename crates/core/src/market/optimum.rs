//! The spends that maximise the sum of all utilities in the paper's rule (MYOB eq. (7)).
//!
//! Method: primal-dual interior point with Mehrotra's predictor and corrector. With cumulative spends
//! Xₜ of a household and their sum Zₜ over all, every constraint of a household couples neighbouring
//! slots and Z alone. So each Newton step solves a tridiagonal system per household and one dense
//! system of twice the slots: O(n·T² + T³). Terms: *slack*, by how much a constraint holds; *force*,
//! its multiplier.
//!
//! The optimum knows every future utility. It is what decisions are compared with, not one.

use super::utility::{RATE_MIN, Utility};

/// A household, or several alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Household {
    /// Credits before the first slot; positive.
    pub balance: f64,
    /// What rates are worth, by slot; each has a positive weight.
    pub utilities: Vec<Utility>,
    /// How many households are like it and do the same.
    pub copies: usize,
}

/// The best spends.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimum {
    /// By household and slot.
    pub spends: Vec<Vec<f64>>,
    /// The sum of all utilities.
    pub value: f64,
    /// At most by this part of the value the best is better.
    pub gap: f64,
    /// Newton steps.
    pub steps: usize,
}

/// The spends of the greatest sum of utilities; `None` if the households do not have equally many
/// slots, a balance is not positive or not below the cap, or the iteration does not converge.
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

/// What all households have in common.
struct Shape {
    slots: usize,
    /// A household's part of what another spends.
    gain: f64,
    cap: Option<f64>,
}

/// A constraint: its slack and its force.
#[derive(Clone, Copy, Debug, Default)]
struct Bound {
    slack: f64,
    force: f64,
    /// The product of the predicted changes of both.
    bend: f64,
}

/// The constraints of a slot: a spend is not negative, within the balance, and the balance is below
/// the cap.
const KINDS: usize = 3;

/// A household's iterate.
struct Home {
    /// By slot. The first slack is the spend. Slacks are updated, not computed from totals, whose
    /// differences would lose small ones.
    bounds: Vec<[Bound; KINDS]>,
}

/// The iterate.
struct Point {
    homes: Vec<Home>,
}

/// A change of the cumulative spends, by household, and of their sums.
struct Step {
    homes: Vec<Vec<f64>>,
    sums: Vec<f64>,
}

impl Shape {
    /// How the slacks of a slot change with the cumulative spends and their sums over all.
    fn slacks(&self, total: &[f64], sums: &[f64], t: usize) -> [f64; KINDS] {
        let (before, sum) = if t > 0 { (total[t - 1], sums[t - 1]) } else { (0.0, 0.0) };
        let spend = total[t] - before;
        let has = self.gain * sum - (1.0 + self.gain) * before;
        [spend, has - spend, -has]
    }

    /// Whether a constraint of a slot is there.
    fn binds(&self, kind: usize, t: usize) -> bool {
        kind < 2 || (self.cap.is_some() && t > 0)
    }
}

impl Point {
    /// Everybody spends half of the balance, which keeps all balances inside.
    fn start(households: &[Household], shape: &Shape) -> Point {
        let empty = || Home { bounds: vec![[Bound::default(); KINDS]; shape.slots] };
        let mut homes: Vec<Home> = households.iter().map(|_| empty()).collect();
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
                    homes[i].bounds[t][kind].slack = slacks[kind];
                }
                *balance += shape.gain * (all - spend) - spend;
            }
        }
        let product = 0.1 * worth / (households.len() * shape.slots) as f64;
        for bound in homes.iter_mut().flat_map(|home| home.bounds.iter_mut().flatten()) {
            bound.force = if bound.slack > 0.0 { product / bound.slack } else { 0.0 };
        }
        Point { homes }
    }

    fn solve(mut self, households: &[Household], shape: &Shape) -> Option<Optimum> {
        for steps in 0..STEPS_MAX {
            let mean = self.mean_product(households);
            let value = self.value(households);
            let gap = self.gap(households) / value.abs().max(1.0);
            if gap < GAP && steps > 0 && self.is_stationary(households, shape) {
                let spends = |home: &Home| (0..shape.slots).map(|t| home.spend(t)).collect();
                return Some(Optimum {
                    spends: self.homes.iter().map(spends).collect(),
                    value,
                    gap,
                    steps,
                });
            }
            // How far it would get without a barrier says how low the next barrier may be.
            let system = System::new(&self, households, shape);
            let step = system.step(&self, households, shape, 0.0)?;
            let reach = self.reach(shape, &step, 0.0);
            self.note_bends(shape, &step);
            let part = (1.0 - reach.0.min(reach.1)).powi(3).clamp(1e-4, 0.8);
            // Below the wanted gap only the slopes are left to agree.
            let enough = 0.2 * GAP * mean / gap.max(f64::MIN_POSITIVE);
            let barrier = (part * mean).max(enough);
            let step = system.step(&self, households, shape, barrier)?;
            let (slack, force) = self.reach(shape, &step, barrier);
            self.apply(shape, &step, barrier, (0.995 * slack).min(1.0), (0.995 * force).min(1.0));
        }
        None
    }

    fn mean_product(&self, households: &[Household]) -> f64 {
        let bounds: usize = self
            .homes
            .iter()
            .zip(households)
            .map(|(home, h)| {
                h.copies * home.bounds.iter().flatten().filter(|b| b.force > 0.0).count()
            })
            .sum();
        self.gap(households) / bounds.max(1) as f64
    }

    fn gap(&self, households: &[Household]) -> f64 {
        let of =
            |home: &Home| -> f64 { home.bounds.iter().flatten().map(|b| b.slack * b.force).sum() };
        self.homes.iter().zip(households).map(|(home, h)| h.copies as f64 * of(home)).sum()
    }

    fn value(&self, households: &[Household]) -> f64 {
        let of = |(home, h): (&Home, &Household)| {
            let sum: f64 =
                (0..h.utilities.len()).map(|t| h.utilities[t].value(home.spend(t))).sum();
            sum * h.copies as f64
        };
        self.homes.iter().zip(households).map(of).sum()
    }

    /// What the forces and the utilities push a household's totals by, without the ties: zero at the
    /// optimum except for a part that all have in common.
    fn push(&self, i: usize, household: &Household, shape: &Shape) -> Vec<f64> {
        let home = &self.homes[i];
        let mut push = vec![0.0; shape.slots];
        for t in 0..shape.slots {
            let [spend, balance, cap] = home.bounds[t].map(|b| b.force);
            let slope = household.utilities[t].slope(home.spend(t));
            push[t] += slope + spend - balance;
            if t > 0 {
                push[t - 1] += -slope - spend - shape.gain * balance + (1.0 + shape.gain) * cap;
            }
        }
        push
    }

    /// Whether all households agree on the ties, so that no change is better.
    fn is_stationary(&self, households: &[Household], shape: &Shape) -> bool {
        let pushes: Vec<Vec<f64>> =
            (0..households.len()).map(|i| self.push(i, &households[i], shape)).collect();
        let mut worst = 0.0_f64;
        for t in 0..shape.slots {
            // What the sums push: the force of all balances on Z.
            let by_sum = |home: &Home| match home.bounds.get(t + 1) {
                Some(next) => shape.gain * (next[1].force - next[2].force),
                None => 0.0,
            };
            let all: f64 = self
                .homes
                .iter()
                .zip(households)
                .map(|(home, h)| h.copies as f64 * by_sum(home))
                .sum();
            for (i, push) in pushes.iter().enumerate() {
                let scale = households[i].utilities[t].slope(self.homes[i].spend(t)).max(1.0);
                worst = worst.max((push[t] + all).abs() / scale);
            }
        }
        worst < RESIDUAL
    }

    /// The change of the force of a bound whose slack changes by `slack`.
    fn force_change(bound: &Bound, slack: f64, barrier: f64) -> f64 {
        (barrier - bound.bend - bound.force * slack) / bound.slack - bound.force
    }

    /// Which part of a step keeps slacks, and which keeps forces positive.
    fn reach(&self, shape: &Shape, step: &Step, barrier: f64) -> (f64, f64) {
        let mut reach = (1.0_f64 / 0.995, 1.0_f64 / 0.995);
        for (home, change) in self.homes.iter().zip(&step.homes) {
            for t in 0..shape.slots {
                let slacks = shape.slacks(change, &step.sums, t);
                for (kind, slack) in slacks.into_iter().enumerate() {
                    let bound = &home.bounds[t][kind];
                    if !shape.binds(kind, t) {
                        continue;
                    }
                    if slack < 0.0 {
                        reach.0 = reach.0.min(-bound.slack / slack);
                    }
                    let force = Point::force_change(bound, slack, barrier);
                    if force < 0.0 {
                        reach.1 = reach.1.min(-bound.force / force);
                    }
                }
            }
        }
        reach
    }

    fn note_bends(&mut self, shape: &Shape, step: &Step) {
        for (home, change) in self.homes.iter_mut().zip(&step.homes) {
            for t in 0..shape.slots {
                let slacks = shape.slacks(change, &step.sums, t);
                for (kind, slack) in slacks.into_iter().enumerate() {
                    let bound = &mut home.bounds[t][kind];
                    if shape.binds(kind, t) {
                        let force = Point::force_change(bound, slack, 0.0);
                        bound.bend = slack * force;
                    }
                }
            }
        }
    }

    fn apply(
        &mut self,
        shape: &Shape,
        step: &Step,
        barrier: f64,
        slack_part: f64,
        force_part: f64,
    ) {
        for (home, change) in self.homes.iter_mut().zip(&step.homes) {
            for t in 0..shape.slots {
                let slacks = shape.slacks(change, &step.sums, t);
                for (kind, slack) in slacks.into_iter().enumerate() {
                    let bound = &mut home.bounds[t][kind];
                    if shape.binds(kind, t) {
                        bound.force += force_part * Point::force_change(bound, slack, barrier);
                        bound.slack += slack_part * slack;
                        bound.bend = 0.0;
                    }
                }
            }
        }
    }
}

impl Home {
    fn spend(&self, t: usize) -> f64 {
        self.bounds[t][0].slack
    }
}

/// The matrices of a Newton step.
struct System {
    /// By household: the factors of its tridiagonal matrix.
    factors: Vec<Tridiagonal>,
    /// By household and slot: what couples a total, and the one before it, with the sum before it.
    couplings: Vec<Pairs>,
    /// By household: the inverse of its matrix times its couplings, by column.
    coupled: Vec<Vec<Vec<f64>>>,
    /// The dense matrix of the sums and the ties, factored.
    dense: Dense,
}

impl System {
    fn new(point: &Point, households: &[Household], shape: &Shape) -> System {
        let (slots, sums) = (shape.slots, shape.slots - 1);
        let mut dense = vec![vec![0.0; 2 * sums]; 2 * sums];
        let (mut factors, mut couplings, mut all_coupled) = (Vec::new(), Vec::new(), Vec::new());
        for (home, household) in point.homes.iter().zip(households) {
            let (matrix, coupling, own) = matrices(home, household, shape);
            let copies = household.copies as f64;
            let factor = Tridiagonal::factor(matrix);
            let mut coupled = Vec::with_capacity(sums);
            for j in 0..sums {
                // Columns of C and of the identity.
                let mut column = vec![0.0; slots];
                let (with_next, with_same) = coupling[j + 1];
                column[j + 1] = with_next;
                column[j] = with_same;
                factor.solve(&mut column);
                let mut unit = vec![0.0; slots];
                unit[j] = 1.0;
                factor.solve(&mut unit);
                for k in 0..sums {
                    let (next, same) = coupling[k + 1];
                    let dot = |column: &[f64]| next * column[k + 1] + same * column[k];
                    dense[k][j] -= copies * dot(&column);
                    dense[k][sums + j] -= copies * dot(&unit);
                    dense[sums + k][j] -= copies * column[k];
                    dense[sums + k][sums + j] -= copies * unit[k];
                }
                dense[j][j] += copies * own[j];
                coupled.push(column);
            }
            factors.push(factor);
            couplings.push(coupling);
            all_coupled.push(coupled);
        }
        for j in 0..sums {
            dense[j][sums + j] -= 1.0;
            dense[sums + j][j] -= 1.0;
        }
        System { factors, couplings, coupled: all_coupled, dense: Dense::factor(dense) }
    }

    /// The step towards products of slack and force of `barrier`.
    fn step(
        &self,
        point: &Point,
        households: &[Household],
        shape: &Shape,
        barrier: f64,
    ) -> Option<Step> {
        let (slots, sums) = (shape.slots, shape.slots - 1);
        let mut right = vec![0.0; 2 * sums];
        let mut solved = Vec::with_capacity(households.len());
        for (i, household) in households.iter().enumerate() {
            let home = &point.homes[i];
            let copies = household.copies as f64;
            let mut push = vec![0.0; slots];
            for t in 0..slots {
                let of = |kind: usize| {
                    let bound = &home.bounds[t][kind];
                    if shape.binds(kind, t) { (barrier - bound.bend) / bound.slack } else { 0.0 }
                };
                let (spend, balance, cap) = (of(0), of(1), of(2));
                let slope = household.utilities[t].slope(home.spend(t).max(RATE_MIN));
                push[t] += slope + spend - balance;
                if t > 0 {
                    push[t - 1] += -slope - spend - shape.gain * balance + (1.0 + shape.gain) * cap;
                    right[t - 1] += copies * shape.gain * (balance - cap);
                }
            }
            self.factors[i].solve(&mut push);
            for k in 0..sums {
                let (next, same) = self.couplings[i][k + 1];
                right[k] -= copies * (next * push[k + 1] + same * push[k]);
                right[sums + k] -= copies * push[k];
            }
            solved.push(push);
        }
        self.dense.solve(&mut right)?;
        let (change, ties) = right.split_at(sums);
        let mut homes = Vec::with_capacity(households.len());
        for (i, mut home) in solved.into_iter().enumerate() {
            let mut tied = vec![0.0; slots];
            tied[..sums].copy_from_slice(ties);
            self.factors[i].solve(&mut tied);
            for t in 0..slots {
                let by_sums: f64 = (0..sums).map(|j| self.coupled[i][j][t] * change[j]).sum();
                home[t] -= by_sums + tied[t];
            }
            homes.push(home);
        }
        let mut all = change.to_vec();
        let last = |home: &Vec<f64>| home[slots - 1];
        all.push(homes.iter().zip(households).map(|(home, h)| last(home) * h.copies as f64).sum());
        Some(Step { homes, sums: all })
    }
}

/// A household's tridiagonal matrix as (below, on) the diagonal, its couplings, and what it adds to
/// the diagonal of the sums.
fn matrices(home: &Home, household: &Household, shape: &Shape) -> (Pairs, Pairs, Vec<f64>) {
    let gain = shape.gain;
    let mut matrix = vec![(0.0, 0.0); shape.slots];
    let mut coupling = vec![(0.0, 0.0); shape.slots];
    let mut own = vec![0.0; shape.slots];
    for t in 0..shape.slots {
        let weight = |kind: usize| {
            let bound = &home.bounds[t][kind];
            if shape.binds(kind, t) { bound.force / bound.slack } else { 0.0 }
        };
        let (spend, balance, cap) = (weight(0), weight(1), weight(2));
        let (_, bend) = household.utilities[t].slopes(home.spend(t));
        let spend = spend - bend;
        matrix[t].1 += spend + balance;
        if t > 0 {
            let lost = 1.0 + gain;
            matrix[t].0 += gain * balance - spend;
            matrix[t - 1].1 += spend + gain * gain * balance + lost * lost * cap;
            coupling[t] = (-gain * balance, -gain * gain * balance - lost * gain * cap);
            own[t - 1] = gain * gain * (balance + cap);
        }
    }
    (matrix, coupling, own)
}

/// Two numbers for each slot.
type Pairs = Vec<(f64, f64)>;

/// A factored symmetric tridiagonal matrix: L·D·Lᵀ.
struct Tridiagonal {
    below: Vec<f64>,
    diagonal: Vec<f64>,
}

impl Tridiagonal {
    fn factor(matrix: Pairs) -> Tridiagonal {
        let mut below = Vec::with_capacity(matrix.len());
        let mut diagonal: Vec<f64> = Vec::with_capacity(matrix.len());
        for (beside, on) in matrix {
            match diagonal.last() {
                Some(&before) => {
                    let factor = beside / before;
                    below.push(factor);
                    diagonal.push(on - factor * beside);
                }
                None => {
                    below.push(0.0);
                    diagonal.push(on);
                }
            }
        }
        Tridiagonal { below, diagonal }
    }

    fn solve(&self, right: &mut [f64]) {
        for t in 1..right.len() {
            right[t] -= self.below[t] * right[t - 1];
        }
        right.iter_mut().zip(&self.diagonal).for_each(|(right, d)| *right /= d);
        for t in (1..right.len()).rev() {
            right[t - 1] -= self.below[t] * right[t];
        }
    }
}

/// A factored dense matrix, with the rows exchanged for the largest pivots.
struct Dense {
    rows: Vec<Vec<f64>>,
    order: Vec<usize>,
}

impl Dense {
    fn factor(mut rows: Vec<Vec<f64>>) -> Dense {
        let size = rows.len();
        let mut order: Vec<usize> = (0..size).collect();
        for k in 0..size {
            let pivot = (k..size).max_by(|&a, &b| rows[a][k].abs().total_cmp(&rows[b][k].abs()));
            let pivot = pivot.unwrap_or(k);
            rows.swap(k, pivot);
            order.swap(k, pivot);
            let (done, rest) = rows.split_at_mut(k + 1);
            let top = &done[k];
            for row in rest {
                let factor = row[k] / top[k];
                row[k] = factor;
                for j in k + 1..size {
                    row[j] -= factor * top[j];
                }
            }
        }
        Dense { rows, order }
    }

    /// `None` if the matrix is singular.
    fn solve(&self, right: &mut [f64]) -> Option<()> {
        let mut x: Vec<f64> = self.order.iter().map(|&i| right[i]).collect();
        let size = x.len();
        for i in 0..size {
            x[i] -= (0..i).map(|j| self.rows[i][j] * x[j]).sum::<f64>();
        }
        for i in (0..size).rev() {
            let known: f64 = (i + 1..size).map(|j| self.rows[i][j] * x[j]).sum();
            x[i] = (x[i] - known) / self.rows[i][i];
        }
        right.copy_from_slice(&x);
        x.iter().all(|x| x.is_finite()).then_some(())
    }
}

const STEPS_MAX: usize = 100;

/// Sum of all products of slack and force, by the value.
const GAP: f64 = 1e-8;

/// What the slopes may differ by at the end, by the largest.
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

    /// The value of spends that are the parts of each balance, and whether all balances are below
    /// the cap.
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
                // The balances that follow from the spends.
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
            utilities: vec![Utility::only(crate::market::utility::Kind::Social, 1.0)],
            copies: 1,
        };
        assert_eq!(optimum(&[], None), None);
        assert_eq!(optimum(std::slice::from_ref(&home), None), None);
        let poor = Household { balance: 0.0, ..home.clone() };
        assert_eq!(optimum(&[home, poor], None), None);
    }
}
