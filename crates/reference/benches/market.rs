//! Cost of the market's arithmetic on one core: the optimum of a day compared with a generic solver, and
//! closing a slot compared with the paper's equation in floating point. Prints Markdown tables:
//! `cargo bench -p fairweir-reference --bench market`.

// A bench reads the clock.
#![allow(clippy::disallowed_methods)]

use std::hint::black_box;
use std::time::Instant;

use fairweir_core::market::agent::{Agent, AgentSpec};
use fairweir_core::market::ledger::{Credits, close};
use fairweir_core::market::utility::Utility;
use fairweir_reference::market::optimum::{Household, optimum};

#[path = "../tests/it/clarabel.rs"]
mod clarabel;

/// Number of slots in a day.
const SLOTS: usize = 24;
/// The most credits that a household may have.
const CAP: f64 = 32.0;
/// The most households of a market that the generic solver solves within a minute.
const GENERIC_MAX: usize = 16;

fn main() {
    println!("\n### `optimum()`: {SLOTS} slots\n");
    println!("| markets | households of each | optimum() | gap at most | Clarabel | ratio |");
    println!("|---:|---:|---:|---:|---:|---:|");
    for (markets, size) in [(1, 4), (1, 16), (1_000, 100), (1, 100_000)] {
        let days: Vec<Vec<Household>> =
            (0..markets).map(|market| households(size, market)).collect();
        let mut gap = 0.0_f64;
        let ours_s = seconds(|| {
            for day in &days {
                let best = optimum(black_box(day), Some(CAP)).expect("it converges");
                gap = gap.max(best.gap);
            }
        });
        let generic = (size <= GENERIC_MAX).then(|| {
            let generic_s = seconds(|| {
                black_box(clarabel::solved(black_box(&days[0]), Some(CAP), false));
            });
            (format!("{generic_s:.3} s"), format!("1 / {:.0}", generic_s / ours_s))
        });
        let (generic, ratio) = generic.unwrap_or_default();
        println!("| {markets} | {size} | {ours_s:.4} s | {gap:.0e} | {generic} | {ratio} |");
    }

    println!("\n### `Agent::bid`: {SLOTS} slots ahead\n");
    println!("| agents | a bid | of 100,000 gateways |");
    println!("|---:|---:|---:|");
    let agents = agents(1_000);
    let all_s = fastest_s(|| {
        for (agent, want) in &agents {
            black_box(agent.bid(0, Credits::whole(10), black_box(*want)));
        }
    });
    let bid_s = all_s / agents.len() as f64;
    println!("| {} | {:.1} µs | {:.2} s |", agents.len(), bid_s * 1e6, bid_s * 1e5);

    println!("\n### `close()`: one slot\n");
    println!("| gateways | balances | close() | in floating point | ratio |");
    println!("|---:|---|---:|---:|---:|");
    for gateways in [1_000, 100_000, 1_000_000] {
        for (what, share) in [("far below the cap", 10), ("some above the cap", 31)] {
            let balances = vec![Credits::whole(share); gateways];
            let mut random = random();
            let spends: Vec<Credits> =
                (0..gateways).map(|_| Credits::micro(random() % 10_000_000)).collect();
            let cap = Some(Credits::nearest(CAP));
            let ours_s = fastest_s(|| {
                black_box(close(black_box(&balances), &spends, cap, 7).expect("it holds"));
            });
            let floats = |of: &[Credits]| of.iter().map(|c| c.as_f64()).collect::<Vec<_>>();
            let (balances, spends) = (floats(&balances), floats(&spends));
            let paper_s = fastest_s(|| {
                black_box(floating(black_box(&balances), &spends));
            });
            println!(
                "| {gateways} | {what} | {:.3} ms | {:.3} ms | {:.1} |",
                ours_s * 1e3,
                paper_s * 1e3,
                ours_s / paper_s
            );
        }
    }
}

/// Households whose utilities differ by slot.
fn households(count: usize, seed: usize) -> Vec<Household> {
    let mut random = random();
    (0..seed * count).for_each(|_| _ = random());
    let mut weight = || 0.05 + (random() % 1_000) as f64 / 250.0;
    let mut utilities = |_| Utility { weights: std::array::from_fn(|_| weight()) };
    (0..count)
        .map(|_| Household {
            balance: 10.0,
            utilities: (0..SLOTS).map(&mut utilities).collect(),
            copies: 1,
        })
        .collect()
}

/// Agents that have seen a day, and their present utilities.
fn agents(count: usize) -> Vec<(Agent, Utility)> {
    let (floor, share, peak) = (1.0, 10.0, 32.0);
    let spec = AgentSpec { day: SLOTS, horizon: SLOTS, cap: Some(CAP), share, floor, peak };
    let mut random = random();
    let mut part = || (random() % 1_000) as f64 / 1e3;
    let learned = |household: Household| {
        let mut agent = Agent::new(spec);
        for (slot, want) in household.utilities.iter().enumerate() {
            let slot = slot as u64;
            agent.handle_want(slot, *want);
            agent.handle_closed(slot, 0.5 + part(), Credits::nearest(5.0 + 10.0 * part()));
        }
        (agent, household.utilities[0])
    };
    households(count, 1).into_iter().map(learned).collect()
}

/// The paper's equation (3): without a cap, and losses by rounding are not made up for.
fn floating(balances: &[f64], spends: &[f64]) -> Vec<f64> {
    let total: f64 = spends.iter().sum();
    let others = (spends.len() - 1) as f64;
    balances.iter().zip(spends).map(|(b, x)| b - x + (total - x) / others).collect()
}

/// A step of Knuth's MMIX generator: any fixed sequence will do.
fn random() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Seconds of the fastest of several runs.
fn fastest_s(mut work: impl FnMut()) -> f64 {
    (0..15).map(|_| seconds(&mut work)).fold(f64::INFINITY, f64::min)
}
