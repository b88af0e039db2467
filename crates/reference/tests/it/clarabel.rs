//! The optimum of a market as found by a generic solver of convex programs: Clarabel, an
//! interior-point method for cones, which does not use the structure of the problem.
#![allow(unreachable_pub)]

use clarabel::algebra::CscMatrix;
use clarabel::solver::{
    DefaultSettings, DefaultSolver, IPSolver, NonnegativeConeT, PowerConeT, SolverStatus,
    SupportedConeT,
};
use fairweir_reference::market::optimum::Household;

/// The utilities are functions of y = 25 · rate (MYOB §VI).
const SCALE: f64 = 25.0;
/// The terms of a utility, by kind of use.
const TERMS: usize = 4;

/// Rows of A·v + s = b, stored by their non-zero entries.
#[derive(Default)]
struct Rows {
    at: Vec<usize>,
    of: Vec<usize>,
    entries: Vec<f64>,
    right: Vec<f64>,
}

impl Rows {
    /// Adds s = `constant` + Σ `terms`, where `terms` are variables with their factors.
    fn push(&mut self, constant: f64, terms: &[(usize, f64)]) {
        for &(variable, factor) in terms {
            self.at.push(self.right.len());
            self.of.push(variable);
            self.entries.push(-factor);
        }
        self.right.push(constant);
    }
}

/// The greatest sum of all utilities that Clarabel finds. A rate is what a household spends; with `evenly`, also
/// an equal part of all unspent credits. `None` if Clarabel does not reach its accuracy: one market in a thousand.
pub fn solved(homes: &[Household], cap: Option<f64>, evenly: bool) -> Option<f64> {
    let slots = homes[0].utilities.len();
    let spend = |home: usize, slot: usize| home * slots + slot;
    let term = |home: usize, slot: usize, kind: usize| {
        homes.len() * slots + spend(home, slot) * TERMS + kind
    };
    let gain = 1.0 / (homes.len() - 1) as f64;
    let balance = |home: usize, slot: usize| -> Vec<(usize, f64)> {
        let earlier = (0..slot).flat_map(|s| (0..homes.len()).map(move |of| (of, s)));
        earlier.map(|(of, s)| (spend(of, s), if of == home { -1.0 } else { gain })).collect()
    };
    let part = if evenly { 1.0 / homes.len() as f64 } else { 0.0 };
    // y as a function of the spends, without the part that all get of the credits.
    let scaled = |home: usize, slot: usize| -> Vec<(usize, f64)> {
        let factor = |of: usize| SCALE * (if of == home { 1.0 } else { 0.0 } - part);
        (0..homes.len()).map(|of| (spend(of, slot), factor(of))).collect()
    };
    let first = SCALE * part * homes.iter().map(|home| home.balance).sum::<f64>();
    let variables = homes.len() * slots * (1 + TERMS);
    let (mut rows, mut costs, mut constant) = (Rows::default(), vec![0.0; variables], 0.0);
    for (i, home) in homes.iter().enumerate() {
        for t in 0..slots {
            rows.push(0.0, &[(spend(i, t), 1.0)]);
            let mut left = balance(i, t);
            left.push((spend(i, t), -1.0));
            rows.push(home.balance, &left);
            if let Some(cap) = cap.filter(|_| t > 0) {
                let room: Vec<_> = balance(i, t).into_iter().map(|(v, f)| (v, -f)).collect();
                rows.push(cap - home.balance, &room);
            }
        }
    }
    let mut cones: Vec<SupportedConeT<f64>> = vec![NonnegativeConeT(rows.right.len())];
    for (i, home) in homes.iter().enumerate() {
        for t in 0..slots {
            let [streaming, social, downloads, web] = home.utilities[t].weights;
            let y = scaled(i, t);
            // A term is at most a power of y, plus one: y^α · 1^(1 - α) ≥ term.
            for (kind, alpha, shift) in [(0, 0.3, 0.0), (1, 0.5, 0.0), (2, 0.8, 1.0)] {
                rows.push(first + shift, &y);
                rows.push(1.0, &[]);
                rows.push(0.0, &[(term(i, t, kind), 1.0)]);
                cones.push(PowerConeT(alpha));
            }
            // The term is at least (y + 1)^-2: (y + 1)^(2/3) · term^(1/3) ≥ 1.
            rows.push(first + 1.0, &y);
            rows.push(0.0, &[(term(i, t, 3), 1.0)]);
            rows.push(1.0, &[]);
            cones.push(PowerConeT(2.0 / 3.0));
            costs[term(i, t, 0)] = -streaming * 2.0 / 0.3;
            costs[term(i, t, 1)] = -social * 2.0;
            costs[term(i, t, 2)] = -downloads * 1.25;
            costs[term(i, t, 3)] = web * 7.5;
            constant += web * 7.5 - downloads * 1.25;
        }
    }
    let quadratic = CscMatrix::zeros((variables, variables));
    let shape = (rows.right.len(), variables);
    let matrix = CscMatrix::new_from_triplets(shape.0, shape.1, rows.at, rows.of, rows.entries);
    let settings = DefaultSettings { verbose: false, ..DefaultSettings::default() };
    let solver = DefaultSolver::new(&quadratic, &costs, &matrix, &rows.right, &cones, settings);
    let mut solver = solver.expect("the program is well-formed");
    solver.solve();
    let is_solved = solver.solution.status == SolverStatus::Solved;
    is_solved.then_some(constant - solver.solution.obj_val)
}
