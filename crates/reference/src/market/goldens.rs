//! Worked examples (`goldens.json`), computed independently of this code, in Python with exact
//! integers and generic solvers.

use serde::Deserialize;

use super::optimum::{Household, optimum};
use super::scenario::posterior;
use fairweir_core::market::division::parts;
use fairweir_core::market::ledger::{Credits, close, join, leave};
use fairweir_core::market::rates::{Mode, Terms};
use fairweir_core::market::spending::{Slot, best_spends};
use fairweir_core::market::utility::{Kind, Utility};
use fairweir_core::units::Rate;

#[derive(Deserialize)]
struct Goldens {
    settle: Settle,
    cap: Vec<Cap>,
    leave: Leave,
    utility: Vec<Values>,
    level2: Vec<Level2>,
    posterior: Vec<Posterior>,
    level1: Vec<Level1>,
    prop4: Prop4,
    float: Vec<Float>,
}

#[derive(Deserialize)]
struct Settle {
    budgets: Vec<u64>,
    spends: Vec<u64>,
    after_by_slot: Vec<After>,
}

#[derive(Deserialize)]
struct After {
    slot: u64,
    budgets: Vec<u64>,
}

#[derive(Deserialize)]
struct Cap {
    budgets: Vec<u64>,
    cap: u64,
    #[serde(default)]
    slot: u64,
    after: Vec<u64>,
}

#[derive(Deserialize)]
struct Leave {
    budgets: Vec<u64>,
    who: usize,
    burn: u64,
    slot: u64,
    after: Vec<u64>,
    poor: Vec<u64>,
    burn_poor: u64,
}

#[derive(Deserialize)]
struct Values {
    x: f64,
    u: [f64; 4],
    slope: [f64; 4],
}

#[derive(Deserialize)]
struct Level2 {
    x: f64,
    g: [f64; 4],
    mu: [f64; 4],
}

#[derive(Deserialize)]
struct Posterior {
    prior: Vec<f64>,
    observed: f64,
    predicted: Vec<f64>,
    floor: f64,
    posterior: Vec<f64>,
}

#[derive(Deserialize)]
struct Level1 {
    c: Vec<[f64; 4]>,
    budget: f64,
    receives: Vec<f64>,
    cap: Option<f64>,
    x: Vec<f64>,
    value: f64,
}

#[derive(Deserialize)]
struct Prop4 {
    w: Vec<[f64; 2]>,
    b: Vec<f64>,
    social: Vec<f64>,
    value: f64,
    best_response: Vec<f64>,
}

#[derive(Deserialize)]
struct Float {
    spends: Vec<u64>,
    capacity: f64,
    peak: Option<f64>,
    floor: f64,
    rates: Vec<f64>,
}

fn goldens() -> Goldens {
    serde_json::from_str(include_str!("goldens.json")).unwrap()
}

fn micro(amounts: &[u64]) -> Vec<Credits> {
    amounts.iter().map(|&amount| Credits::micro(amount)).collect()
}

#[track_caller]
fn assert_near(a: &[f64], b: &[f64], within: f64) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= within * b.abs().max(1.0), "{i}: {a} is not {b}");
    }
}

#[test]
fn settlements_agree_to_the_unit() {
    let golden = goldens().settle;
    for after in golden.after_by_slot {
        let closed = close(&micro(&golden.budgets), &micro(&golden.spends), None, after.slot);
        let closing: Vec<Credits> = closed.unwrap().iter().map(|s| s.closing).collect();
        assert_eq!(closing, micro(&after.budgets), "slot {}", after.slot);
    }
}

#[test]
fn caps_agree_to_the_unit() {
    for golden in goldens().cap {
        let budgets = micro(&golden.budgets);
        let nothing = vec![Credits::ZERO; budgets.len()];
        let cap = Some(Credits::micro(golden.cap));
        let closed = close(&budgets, &nothing, cap, golden.slot).unwrap();
        let closing: Vec<Credits> = closed.iter().map(|s| s.closing).collect();
        assert_eq!(closing, micro(&golden.after));
    }
}

#[test]
fn leaves_agree_to_the_unit() {
    let golden = goldens().leave;
    let budgets = micro(&golden.budgets);
    let share = Credits::micro(golden.burn);
    let after = leave(&budgets, golden.who, share, None, golden.slot).unwrap();
    assert_eq!(after, micro(&golden.after));
    // The last household has nothing; its debt is collected from the others.
    let share = Credits::micro(golden.burn_poor);
    assert_eq!(leave(&budgets, 3, share, None, golden.slot).unwrap(), micro(&golden.poor));
    assert_eq!(join(&[], share, None, None, 0).unwrap(), [share]);
}

#[test]
fn utilities_agree() {
    for golden in goldens().utility {
        let of = Kind::ALL.map(|kind| Utility::only(kind, 1.0));
        assert_near(&of.map(|u| u.value(golden.x)), &golden.u, 1e-9);
        assert_near(&of.map(|u| u.slope(golden.x)), &golden.slope, 1e-9);
    }
}

#[test]
fn divisions_agree() {
    for golden in goldens().level2 {
        assert_near(&parts(golden.x, golden.g), &golden.mu, 1e-9);
    }
}

#[test]
fn posteriors_agree() {
    for golden in goldens().posterior {
        let posterior = posterior(&golden.prior, golden.observed, &golden.predicted, golden.floor);
        assert_near(&posterior, &golden.posterior, 1e-12);
    }
}

#[test]
fn best_responses_agree() {
    for golden in goldens().level1 {
        let utility = |&weights: &[f64; 4]| Utility { weights };
        let slots: Vec<Slot> = golden
            .c
            .iter()
            .zip(&golden.receives)
            .map(|(c, &receives)| Slot::plain(utility(c), receives))
            .collect();
        let spends = best_spends(golden.budget, golden.cap, &slots);
        let value: f64 = slots.iter().zip(&spends).map(|(s, &x)| s.utility.value(x)).sum();
        assert_near(&[value], &[golden.value], 1e-9);
        assert_near(&spends, &golden.x, 1e-4);
    }
}

/// Proposition 4 holds only if every household respects the constraints of all: the social optimum
/// is not what each household would choose.
#[test]
fn the_social_optimum_is_no_nash_equilibrium() {
    let golden = goldens().prop4;
    // √x is a tenth of the social utility.
    let root = |w: f64| Utility::only(Kind::Social, w / 10.0);
    let households: Vec<Household> = golden
        .w
        .iter()
        .zip(&golden.b)
        .map(|(w, &balance)| Household { balance, utilities: w.map(root).to_vec(), copies: 1 })
        .collect();
    let best = optimum(&households, None).unwrap();
    assert_near(&[best.value], &[golden.value], 1e-7);
    assert_near(&best.spends.concat(), &golden.social, 1e-4);
    let slot = |w: f64, receives: f64| Slot::plain(root(w), receives);
    let [first, last] = golden.w[1];
    let response =
        best_spends(golden.b[1], None, &[slot(first, best.spends[0][0]), slot(last, 0.0)]);
    assert_near(&response, &golden.best_response, 1e-4);
}

#[test]
fn rates_agree() {
    for golden in goldens().float {
        let spends: Vec<Credits> = golden.spends.iter().map(|&n| Credits::whole(n)).collect();
        let terms = Terms {
            mode: Mode::Float,
            capacity: Rate::bps((golden.capacity * 1e6) as u64),
            floor_percent: (golden.floor * 100.0).round() as u64,
        };
        let peak = golden.peak.map(|peak| Rate::bps((peak * 1e6) as u64));
        let rates = terms.rates(&spends, &vec![peak; spends.len()]).rates;
        let rates: Vec<f64> = rates.iter().map(|rate| rate.as_mbit_f64()).collect();
        assert_near(&rates, &golden.rates, 1e-6);
    }
}
