//! The rates that maximise the sum of all utilities if unspent credits are divided evenly
//! ([`Mode::Even`](fairweir_core::market::rates::Mode::Even)), with every future known.
//!
//! Model: the households of a link of n shares begin with one share of credits each. A rate is rᵢ = xᵢ + m, with
//! m = (n·share − Σx)/n. A balance then changes by −n/(n−1)·(rᵢ − share) whatever m is. So the unknowns are the
//! cumulative rates Rₜ of each household and the even part mₜ of each slot, and all constraints of a household
//! couple neighbouring slots: mₜ ≤ rₜ, rₜ − mₜ ≤ balance ≤ cap; and Σr = n·share in every slot.
//!
//! Method: a barrier. Newton's method is applied to the sum of the utilities plus `barrier` × the logarithms of
//! all slacks, with a tridiagonal system per household and one dense system of twice the slots, for ever smaller
//! barriers. At the end the value is within `barrier` × the number of constraints of the optimum.

use super::dense::Dense;
use super::optimum::{Row, factor, solve};
use fairweir_core::market::utility::Utility;

/// The best rates, by household and slot, if each household has `share` credits and the link
/// carries `share` Mbit/s for each. `None` if there are fewer than two households, their numbers of
/// slots differ, the cap is not above the share, or the steps do not converge.
pub fn best_rates(homes: &[Vec<Utility>], share: f64, cap: f64) -> Option<Vec<Vec<f64>>> {
    let slots = homes.first()?.len();
    let is_possible = homes.len() > 1 && slots > 0 && share > 0.0 && cap > share;
    if !is_possible || homes.iter().any(|home| home.len() != slots) {
        return None;
    }
    let loss = homes.len() as f64 / (homes.len() - 1) as f64;
    let market = Market { homes, slots, share, cap, loss };
    // Each household starts with its share, of which half is spent.
    let mut point =
        Point { rates: vec![share; homes.len() * slots], even: vec![share / 2.0; slots] };
    let constraints = (homes.len() * (3 * slots - 1)) as f64;
    let mut barrier = 0.1 * market.value(&point).abs().max(1.0) / constraints;
    loop {
        let mut steps = 0..STEPS_MAX;
        while market.improve(&mut point, barrier)? > DECREMENT {
            steps.next()?;
        }
        if barrier * constraints <= GAP * market.value(&point).abs().max(1.0) {
            return Some(point.rates.chunks_exact(slots).map(<[f64]>::to_vec).collect());
        }
        barrier *= 0.2;
    }
}

struct Market<'a> {
    homes: &'a [Vec<Utility>],
    slots: usize,
    share: f64,
    cap: f64,
    /// Credits that a household loses by one Mbit/s above the share.
    loss: f64,
}

/// The iterate, or a change of the iterate.
struct Point {
    /// The rates by household and slot.
    rates: Vec<f64>,
    /// The even part of each slot.
    even: Vec<f64>,
}

/// One constraint of a household's slot: its slack, and the derivatives of the slack by the
/// cumulative rate before the slot, the one after it, and the even part.
type Constraint = (f64, [f64; 3]);

impl Market<'_> {
    fn value(&self, point: &Point) -> f64 {
        let utilities = self.homes.iter().flatten();
        utilities.zip(&point.rates).map(|(utility, &rate)| utility.value(rate)).sum()
    }

    /// The constraints of a household, by slot; the first slot has no cap.
    fn constraints(&self, rates: &[f64], even: &[f64]) -> Vec<[Constraint; 3]> {
        let mut balance = self.share;
        let slot = |(&rate, &even): (&f64, &f64)| {
            let spend = rate - even;
            let found = [
                (spend, [-1.0, 1.0, -1.0]),
                (balance - spend, [1.0 - self.loss, -1.0, 1.0]),
                (self.cap - balance, [self.loss, 0.0, 0.0]),
            ];
            balance -= self.loss * (rate - self.share);
            found
        };
        let mut all: Vec<_> = rates.iter().zip(even).map(slot).collect();
        all[0][2] = (1.0, [0.0; 3]);
        all
    }

    /// The value with the barrier; `None` if a constraint does not hold.
    fn height(&self, point: &Point, barrier: f64) -> Option<f64> {
        let mut logs = 0.0;
        for rates in point.rates.chunks_exact(self.slots) {
            for (slack, _) in self.constraints(rates, &point.even).into_iter().flatten() {
                if slack <= 0.0 {
                    return None;
                }
                logs += slack.ln();
            }
        }
        Some(self.value(point) + barrier * logs)
    }

    /// Makes one Newton step; returns by how much it could have improved the height, in barriers.
    fn improve(&self, point: &mut Point, barrier: f64) -> Option<f64> {
        let (step, gain) = self.step(point, barrier)?;
        let start = self.height(point, barrier)?;
        let mut part = 1.0;
        while part > PART_MIN {
            let moved =
                |of: &[f64], by: &[f64]| of.iter().zip(by).map(|(x, d)| x + part * d).collect();
            let next = Point {
                rates: moved(&point.rates, &step.rates),
                even: moved(&point.even, &step.even),
            };
            let enough = start + 0.1 * part * gain - 1e-12 * start.abs();
            if self.height(&next, barrier).is_some_and(|height| height >= enough) {
                *point = next;
                break;
            }
            part /= 2.0;
        }
        Some(gain / barrier)
    }

    /// Newton's step, and the slope of the height along it.
    fn step(&self, point: &Point, barrier: f64) -> Option<(Point, f64)> {
        let slots = self.slots;
        // The even parts, followed by the constraints that tie the households together in each slot.
        let mut dense = vec![vec![0.0; 2 * slots]; 2 * slots];
        let mut right = vec![0.0; 2 * slots];
        let mut all = Vec::with_capacity(self.homes.len());
        for (home, rates) in self.homes.iter().zip(point.rates.chunks_exact(slots)) {
            let system = self.system(home, rates, &point.even, barrier);
            for t in 0..slots {
                right[t] += system.even[t].0;
                dense[t][t] += system.even[t].1;
            }
            for (j, row) in dense.iter_mut().enumerate() {
                let mut column = system.column(j);
                solve(&system.rows, &mut column);
                // The matrix is symmetric.
                let (by_even, by_tie) = row.split_at_mut(slots);
                for (k, entry) in by_even.iter_mut().enumerate() {
                    *entry -= system.coupled(k, &column);
                }
                by_tie.iter_mut().zip(&column).for_each(|(entry, column)| *entry -= column);
            }
            let mut push = system.push.clone();
            solve(&system.rows, &mut push);
            for k in 0..slots {
                right[k] -= system.coupled(k, &push);
                right[slots + k] -= push[k];
            }
            all.push(system);
        }
        Dense::factor(dense).solve(&mut right)?;
        let (even, ties) = right.split_at(slots);
        let mut step = Point { rates: Vec::new(), even: even.to_vec() };
        let mut gain = 0.0;
        for system in &all {
            let mut totals = system.push.clone();
            for t in 0..slots {
                totals[t] -= ties[t];
                let [before, same] = system.couplings[t];
                totals[t] -= same * even[t];
                if t > 0 {
                    totals[t - 1] -= before * even[t];
                }
            }
            solve(&system.rows, &mut totals);
            gain += totals.iter().zip(&system.push).map(|(d, push)| d * push).sum::<f64>();
            gain += even.iter().zip(&system.even).map(|(d, (push, _))| d * push).sum::<f64>();
            let before = std::iter::once(&0.0).chain(&totals);
            step.rates.extend(totals.iter().zip(before).map(|(now, before)| now - before));
        }
        Some((step, gain))
    }

    /// The part of a household in Newton's system.
    fn system(&self, home: &[Utility], rates: &[f64], even: &[f64], barrier: f64) -> System {
        let slots = self.slots;
        let mut system = System {
            rows: vec![Row::default(); slots],
            push: vec![0.0; slots],
            even: vec![(0.0, 0.0); slots],
            couplings: vec![[0.0; 2]; slots],
        };
        for (t, constraints) in self.constraints(rates, even).into_iter().enumerate() {
            let (_, slope, bend) = home[t].at(rates[t]);
            let (mut push, mut bends) = ([-slope, slope, 0.0], [[0.0; 3]; 3]);
            for (a, b, sign) in [(0, 0, 1.0), (1, 1, 1.0), (0, 1, -1.0)] {
                bends[a][b] = -bend * sign;
            }
            for (slack, changes) in constraints {
                for a in 0..3 {
                    push[a] += barrier * changes[a] / slack;
                    for b in a..3 {
                        bends[a][b] += barrier * changes[a] * changes[b] / (slack * slack);
                    }
                }
            }
            system.push[t] += push[1];
            system.rows[t].on += bends[1][1];
            system.even[t] = (push[2], bends[2][2]);
            system.couplings[t] = [bends[0][2], bends[1][2]];
            if t > 0 {
                system.push[t - 1] += push[0];
                system.rows[t - 1].on += bends[0][0];
                system.rows[t].below = bends[0][1];
            }
        }
        factor(&mut system.rows);
        system
    }
}

/// A household's part of Newton's system.
struct System {
    /// The matrix of the cumulative rates, factored.
    rows: Vec<Row>,
    /// The derivatives of the height by the cumulative rates.
    push: Vec<f64>,
    /// The derivative by the even part, and the entry on the diagonal, by slot.
    even: Vec<(f64, f64)>,
    /// The couplings of the even part with the cumulative rate before the slot, and after it.
    couplings: Vec<[f64; 2]>,
}

impl System {
    /// The column of an even part, or of a tie.
    fn column(&self, j: usize) -> Vec<f64> {
        let slots = self.rows.len();
        let mut column = vec![0.0; slots];
        match j.checked_sub(slots) {
            Some(tie) => column[tie] = 1.0,
            None => {
                let [before, same] = self.couplings[j];
                column[j] = same;
                if j > 0 {
                    column[j - 1] = before;
                }
            }
        }
        column
    }

    /// The effect of the cumulative rates `totals` on the even part of a slot.
    fn coupled(&self, t: usize, totals: &[f64]) -> f64 {
        let [before, same] = self.couplings[t];
        same * totals[t] + if t > 0 { before * totals[t - 1] } else { 0.0 }
    }
}

/// The most Newton steps with one barrier.
const STEPS_MAX: usize = 100;

/// A step that could improve less than this, in barriers, is the last one with its barrier.
const DECREMENT: f64 = 1e-3;

const PART_MIN: f64 = 1e-10;

/// Largest gap to the optimum, relative to the value.
const GAP: f64 = 1e-7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_optimum_is_refused() {
        let home = vec![Utility { weights: [1.0; 4] }; 2];
        assert_eq!(best_rates(&[], 10.0, 32.0), None);
        assert_eq!(best_rates(std::slice::from_ref(&home), 10.0, 32.0), None);
        assert_eq!(best_rates(&[home.clone(), home[1..].to_vec()], 10.0, 32.0), None);
        assert_eq!(best_rates(&[home.clone(), home], 10.0, 10.0), None);
    }
}
