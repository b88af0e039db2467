//! The market that is simulated, and the utilities of its households.

use fairweir_core::market::ledger::Credits;
use fairweir_core::market::rates::{Mode, Terms};
use fairweir_core::market::utility::{Kind, Utility};
use fairweir_core::units::Rate;
use fairweir_scenario::random::SplitMix64;

/// Half hours from 18:00 to midnight.
pub(super) const DAY: usize = 12;
/// "After learning the scenario distribution for the simulation's first four days".
pub(super) const LEARNED: usize = 4 * DAY;
/// Credits of each household, and its equal share in Mbit/s: 160 credits in all.
pub(super) const SHARE: f64 = 10.0;
/// The cap of balances.
pub(super) const CAP: Credits = Credits::whole(32);
/// The highest rate of a plan in the market `float`, in Mbit/s.
pub(super) const PEAK: f64 = 32.0;
const FLOOR_PERCENT: u64 = 10;

/// The distribution of households' utilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    /// Whether a slot has one use, drawn by its probability, or all uses in proportion.
    pub(super) one_use: bool,
    /// The standard deviation of log γ.
    pub(super) noise: f64,
}

/// The loads that every rule is played with; a single one in tests, which only check that every
/// figure is computed.
pub(super) const LOADS: &[Load] = if cfg!(test) { &[ALL[4]] } else { &ALL };

const ALL: [Load; 6] = [
    Load { one_use: false, noise: 0.25 },
    Load { one_use: false, noise: 0.75 },
    Load { one_use: false, noise: 1.5 },
    Load { one_use: true, noise: 0.25 },
    Load { one_use: true, noise: 0.75 },
    Load { one_use: true, noise: 1.5 },
];

/// The terms of a link with this number of households.
pub(super) fn terms(homes: usize) -> Terms {
    let capacity = Rate::mbit((SHARE * homes as f64) as u64);
    Terms { mode: Mode::Float, capacity, floor_percent: FLOOR_PERCENT }
}

/// The rate of the plan of a household.
pub(super) fn peak() -> Rate {
    Rate::mbit(PEAK as u64)
}

/// A household's utility in a slot.
pub(super) fn utility(
    load: Load,
    devices: &[usize; 4],
    slot: usize,
    random: &mut SplitMix64,
) -> Utility {
    let evening = slot as f64 / (DAY - 1) as f64;
    let count: usize = devices.iter().sum();
    let mut parts = [0.0; 4];
    for (device, profile) in devices.iter().zip(&PROFILES) {
        for (k, part) in parts.iter_mut().enumerate() {
            let now = profile.0[k] + evening * (profile.1[k] - profile.0[k]);
            *part += now * *device as f64 / count as f64;
        }
    }
    let gamma = (0.8 + 0.4 * evening) * (load.noise * normal(random)).exp();
    if !load.one_use {
        return Utility { weights: parts.map(|part| gamma * part) };
    }
    let mut drawn = random.fraction() * parts.iter().sum::<f64>();
    let chosen = Kind::ALL.into_iter().find(|&kind| {
        drawn -= parts[kind as usize];
        drawn < 0.0
    });
    Utility::only(chosen.unwrap_or(Kind::Web), gamma)
}

/// Standard normal, by Box and Muller.
fn normal(random: &mut SplitMix64) -> f64 {
    let radius = (-2.0 * (1.0 - random.fraction()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.fraction()).cos()
}

/// Table I: iPhones, Androids, Windows and Mac laptops.
const DEVICES: [[usize; 4]; 4] = [[1, 1, 1, 1], [2, 0, 2, 1], [1, 1, 1, 2], [2, 0, 1, 1]];

/// The devices of a household.
pub(super) fn devices_of(home: usize) -> [usize; 4] {
    DEVICES[home % DEVICES.len()]
}

/// Parts of streaming, social, downloads and web at 18:00 and at midnight, by device.
const PROFILES: [([f64; 4], [f64; 4]); 4] = [
    ([0.2, 0.4, 0.1, 0.3], [0.4, 0.3, 0.1, 0.2]),
    ([0.25, 0.3, 0.15, 0.3], [0.4, 0.25, 0.15, 0.2]),
    ([0.2, 0.15, 0.25, 0.4], [0.35, 0.1, 0.35, 0.2]),
    ([0.25, 0.2, 0.2, 0.35], [0.45, 0.1, 0.25, 0.2]),
];
