//! The rates that the spends of a slot buy.
//!
//! Properties, all tested: the rates sum to at most the capacity, and to all of it unless every
//! gateway has its peak; no rate exceeds its peak; a gateway that spends nothing has the floor; with
//! [`Mode::Float`] a rate is at least the spend, within one bit/s, while the spends sum to at most
//! what is beyond the floor. [`Terms::admit`] keeps the sum and leaves each gateway its floor.

use serde::{Deserialize, Serialize};

use super::ledger::Credits;
use crate::share::{Claim, divide};
use crate::units::Rate;

/// How spends become rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The rate is the spend, as in the paper: the rest of the capacity is left to the second tier.
    Plain,
    /// The rate is the spend, plus an equal part of the rest.
    Even,
    /// Spends are the weights by which everything beyond the floor is divided.
    Float,
}

/// The terms of a market on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// How spends become rates.
    pub mode: Mode,
    /// The capacity of the link.
    pub capacity: Rate,
    /// The part of the capacity that is divided evenly, whatever is spent, in percent, 0 to 100.
    pub floor_percent: u64,
}

/// The result of a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// By seat.
    pub rates: Vec<Rate>,
    /// Credits for each Mbit/s beyond the floor; 0 if the peaks leave room.
    pub price: f64,
}

impl Terms {
    /// Each gateway's part of the floor.
    pub fn floor(&self, gateways: usize) -> Rate {
        match self.mode {
            Mode::Plain | Mode::Even => Rate::ZERO,
            Mode::Float => {
                self.capacity.scale(self.floor_percent.min(100), 100) / gateways.max(1) as u64
            }
        }
    }

    /// The rates of a slot that gateways have joined, by seat. The joined ones (`None`) get the floor, or their peak if
    /// that is less: from free capacity first, then in equal parts from what others have beyond the floor.
    pub fn admit(&self, rates: &[Option<Rate>], peaks: &[Option<Rate>]) -> Vec<Rate> {
        let floor = self.floor(rates.len());
        let least = |i: usize| floor.min(peaks.get(i).copied().flatten().unwrap_or(Rate::MAX));
        let mut all: Vec<Rate> =
            rates.iter().enumerate().map(|(i, rate)| rate.unwrap_or_else(|| least(i))).collect();
        let sum: u128 = all.iter().map(|rate| u128::from(rate.as_bps())).sum();
        let lacking = sum.saturating_sub(self.capacity.as_bps().into());
        if rates.iter().all(Option::is_some) || lacking == 0 {
            return all;
        }
        let room = |(i, rate): (usize, &Rate)| rate.saturating_sub(least(i)).as_bps();
        let rooms: Vec<Weighted> =
            all.iter().enumerate().map(|at| Weighted { weight: 1, room: room(at) }).collect();
        let taken = divide(u64::try_from(lacking).unwrap_or(u64::MAX), &rooms);
        all.iter_mut()
            .zip(taken)
            .for_each(|(rate, part)| *rate = rate.saturating_sub(Rate::bps(part)));
        all
    }

    /// The rates of a slot, by seat. `peaks` are the plans' rates; a missing one is unlimited.
    pub fn rates(&self, spends: &[Credits], peaks: &[Option<Rate>]) -> Rates {
        let peak = |i: usize| peaks.get(i).copied().flatten().unwrap_or(Rate::MAX);
        let first: Vec<Rate> = match self.mode {
            Mode::Plain | Mode::Even => {
                (0..spends.len()).map(|i| spends[i].as_rate().min(peak(i))).collect()
            }
            Mode::Float => {
                let floor = self.floor(spends.len());
                (0..spends.len()).map(|i| floor.min(peak(i))).collect()
            }
        };
        let left = self.capacity.saturating_sub(first.iter().copied().sum());
        let weight = |i: usize| match self.mode {
            Mode::Plain => 0,
            Mode::Even => 1,
            Mode::Float => spends[i].as_micro(),
        };
        let room = |i: usize| peak(i).saturating_sub(first[i]).as_bps();
        let claims: Vec<Weighted> =
            (0..spends.len()).map(|i| Weighted { weight: weight(i), room: room(i) }).collect();
        let mut parts = divide(left.as_bps(), &claims);
        let price = price(self.mode, &claims, &parts);
        if self.mode == Mode::Float {
            // Spenders at their peaks leave something to gateways that spend nothing.
            let rest = left.as_bps() - parts.iter().sum::<u64>();
            let idle = |c: &Weighted| Weighted { weight: u64::from(c.weight == 0), room: c.room };
            let idle: Vec<Weighted> = claims.iter().map(idle).collect();
            let given = divide(rest, &idle);
            parts.iter_mut().zip(given).for_each(|(part, more)| *part += more);
        }
        let rates = first.iter().zip(parts).map(|(first, part)| *first + Rate::bps(part)).collect();
        Rates { rates, price }
    }
}

/// The cost of one Mbit/s for gateways below their peaks.
fn price(mode: Mode, claims: &[Weighted], parts: &[u64]) -> f64 {
    match mode {
        Mode::Plain | Mode::Even => 1.0,
        Mode::Float => {
            let below = |(c, p): &(&Weighted, &u64)| c.weight > 0 && **p < c.room;
            let (mut weight, mut rate) = (0.0, 0.0);
            for (claim, &part) in claims.iter().zip(parts).filter(below) {
                weight += claim.weight as f64;
                rate += part as f64;
            }
            if rate > 0.0 { weight / rate } else { 0.0 }
        }
    }
}

/// A gateway in the division.
struct Weighted {
    weight: u64,
    room: u64,
}

impl Claim for Weighted {
    fn weight(&self) -> u64 {
        self.weight
    }

    fn demand(&self) -> Option<u64> {
        Some(self.room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_price_is_what_a_mbit_beyond_the_floor_costs() {
        let terms = Terms { mode: Mode::Float, capacity: Rate::mbit(40), floor_percent: 10 };
        let spends = [10, 4, 0, 2].map(Credits::whole);
        // 36 Mbit/s for 16 credits.
        let rates = terms.rates(&spends, &[]);
        assert!((rates.price - 16.0 / 36.0).abs() < 1e-6, "{}", rates.price);
        let peaks = [Some(Rate::mbit(2)); 4];
        assert_eq!(terms.rates(&spends, &peaks).price, 0.0);
    }

    #[test]
    fn what_is_free_is_given_to_who_joins_before_others_lose_any() {
        let terms = Terms { mode: Mode::Float, capacity: Rate::mbit(40), floor_percent: 10 };
        let mbit = |rates: &[u64]| rates.iter().map(|&rate| Rate::mbit(rate)).collect::<Vec<_>>();
        let admit = |rates: &[Option<u64>]| {
            let rates: Vec<_> = rates.iter().map(|rate| rate.map(Rate::mbit)).collect();
            terms.admit(&rates, &[])
        };
        assert_eq!(admit(&[Some(38), Some(2), None, None]), mbit(&[37, 1, 1, 1]));
        assert_eq!(admit(&[Some(30), Some(2), None, None]), mbit(&[30, 2, 1, 1]));
        assert_eq!(admit(&[Some(38), Some(2)]), mbit(&[38, 2]));
        assert_eq!(admit(&[]), []);
    }

    proptest! {
        #[test]
        fn who_joins_has_the_floor_and_the_link_carries_all(
            spends in prop::collection::vec(0..=40_000_000_u64, 1..30),
            peaks in prop::collection::vec(prop::option::of(0..=100_u64), 40),
            joined in 1..10_usize, capacity in 1..2_000_u64, floor_percent in 0..=100_u64,
        ) {
            let spends: Vec<Credits> = spends.into_iter().map(Credits::micro).collect();
            let peaks: Vec<Option<Rate>> = peaks.iter().map(|p| p.map(Rate::mbit)).collect();
            let terms = Terms { mode: Mode::Float, capacity: Rate::mbit(capacity), floor_percent };
            let before = terms.rates(&spends, &peaks).rates;
            let mut rates: Vec<Option<Rate>> = before.iter().copied().map(Some).collect();
            rates.extend(vec![None; joined]);
            let after = terms.admit(&rates, &peaks);
            prop_assert!(after.iter().copied().sum::<Rate>() <= terms.capacity);
            let floor = |i: usize| terms.floor(after.len()).min(peaks[i].unwrap_or(Rate::MAX));
            for (i, &rate) in after.iter().enumerate() {
                prop_assert!(rate >= floor(i));
                match before.get(i) {
                    Some(before) => prop_assert!(rate <= *before),
                    None => prop_assert_eq!(rate, floor(i)),
                }
            }
        }

        #[test]
        fn rates_fill_the_link_and_no_spend_is_cheated(
            spends in prop::collection::vec(0..=40_000_000_u64, 1..30),
            peaks in prop::collection::vec(prop::option::of(0..=100_u64), 30),
            capacity in 1..2_000_u64, floor_percent in 0..=100_u64,
        ) {
            let spends: Vec<Credits> = spends.into_iter().map(Credits::micro).collect();
            let peaks: Vec<Option<Rate>> =
                peaks[..spends.len()].iter().map(|p| p.map(Rate::mbit)).collect();
            let capacity = Rate::mbit(capacity);
            let all: Rate = spends.iter().map(|s| s.as_rate()).sum();
            for mode in [Mode::Plain, Mode::Even, Mode::Float] {
                // The paper's rule promises the spends themselves.
                if mode != Mode::Float && all > capacity {
                    continue;
                }
                let terms = Terms { mode, capacity, floor_percent };
                let rates = terms.rates(&spends, &peaks).rates;
                let total: Rate = rates.iter().copied().sum();
                prop_assert!(total <= capacity);
                let peak = |i: usize| peaks[i].unwrap_or(Rate::MAX);
                let at_peak = (0..rates.len()).all(|i| rates[i] == peak(i));
                prop_assert!(mode == Mode::Plain || total == capacity || at_peak);
                for i in 0..rates.len() {
                    prop_assert!(rates[i] <= peak(i));
                    let floor = terms.floor(rates.len()).min(peak(i));
                    prop_assert!(rates[i] >= floor);
                    let beyond = capacity.saturating_sub(terms.floor(rates.len()) * rates.len() as u64);
                    let promised = spends[i].as_rate().min(peak(i));
                    prop_assert!(all > beyond || rates[i] + Rate::bps(1) >= promised);
                }
            }
        }
    }
}
