//! How long one division takes, for 3 to 10,000 groups, against filling in passes as CRAB's
//! appendix A does (repaired so that it ends). Prints a Markdown table: `cargo bench -p fairweir-core`.

// A bench reads the clock.
#![allow(clippy::disallowed_methods)]

use std::hint::black_box;
use std::time::Instant;

use fairweir_core::share::{Entry, Weight, fair};
use fairweir_core::units::Rate;

fn main() {
    println!("\n### `fair()`: one division\n");
    println!("| groups | fair() | in passes | ratio |");
    println!("|---:|---:|---:|---:|");
    for groups in [3, 24, 100, 256, 1_000, 10_000] {
        let entries = entries(groups);
        let capacity = Rate::mbit(30 * groups as u64 / 10);
        let ours = fastest_ns(|| {
            black_box(fair(black_box(capacity), black_box(&entries)));
        });
        let passes = fastest_ns(|| {
            black_box(in_passes(black_box(capacity), black_box(&entries)));
        });
        println!("| {groups} | {ours:.0} ns | {passes:.0} ns | {:.2} |", ours / passes);
    }
}

/// Weights 1 to 100; every third demand is endless, the others lie from 0 to 10 Mbit/s.
fn entries(groups: usize) -> Vec<Entry> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        // A step of Knuth's MMIX generator: any fixed sequence will do.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    (0..groups)
        .map(|i| Entry {
            weight: Weight::new(random() as u32 % 100 + 1).expect("invariant: from 1 to 100"),
            demand: (i % 3 > 0).then(|| Rate::bps(random() % 10_000_000)),
        })
        .collect()
}

/// Divides what is left by weight among those who still want more, until nothing is left over.
fn in_passes(capacity: Rate, entries: &[Entry]) -> Vec<f64> {
    let mut parts = vec![0.0; entries.len()];
    let mut left = capacity.as_bps() as f64;
    while left > 1.0 {
        let wants = |(part, e): (&f64, &Entry)| e.demand.is_none_or(|d| *part < d.as_bps() as f64);
        let weights: f64 = parts
            .iter()
            .zip(entries)
            .filter(|&(part, e)| wants((part, e)))
            .map(|(_, e)| f64::from(e.weight.as_u32()))
            .sum();
        if weights == 0.0 {
            break;
        }
        let mut over = 0.0;
        for (part, e) in parts.iter_mut().zip(entries) {
            if !wants((part, e)) {
                continue;
            }
            let wanted = e.demand.map_or(f64::INFINITY, |d| d.as_bps() as f64);
            let got = (*part + left * f64::from(e.weight.as_u32()) / weights).min(wanted);
            over += *part + left * f64::from(e.weight.as_u32()) / weights - got;
            *part = got;
        }
        left = over;
    }
    parts
}

/// The fastest of several batches: what the code takes undisturbed.
fn fastest_ns(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    work();
    let once_ns = start.elapsed().as_nanos().max(1);
    let batch = (2_000_000 / once_ns).clamp(1, 100_000) as u32;
    let batch_ns = (0..15).map(|_| {
        let start = Instant::now();
        (0..batch).for_each(|_| work());
        start.elapsed().as_nanos() as f64 / f64::from(batch)
    });
    batch_ns.fold(f64::INFINITY, f64::min)
}
