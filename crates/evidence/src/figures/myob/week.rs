//! Weeks of a market: synthetic loads, and the results of several rules.
//!
//! The paper does not give its loads: app usage by device and hour (its [6]), the noise of γ, and the second
//! tier's traffic. These are made up: each device has a profile of uses that changes over the evening; a
//! household has the mean of its devices (table I; gateway 4 is named twice there and 5 never, so every fourth
//! household is the same); and γ rises over the evening with log-normal noise.

use fairweir_core::market::ledger::{Credits, close};
use fairweir_core::market::spending::{Slot, best_spends};
use fairweir_core::market::utility::{Kind, Utility};
use fairweir_reference::market::equilibrium::{Player, equilibrium};
use fairweir_reference::market::even::best_rates;
use fairweir_reference::market::optimum::{Household, optimum};
use fairweir_reference::market::scenario::posterior;
use fairweir_scenario::random::SplitMix64;

use super::load::{CAP, DAY, Load, SHARE, devices_of, peak, terms, utility};
use super::street::Street;

/// Households of the link (§VI).
pub(super) const HOMES: usize = 16;
pub(super) const SLOTS: usize = 7 * DAY;
/// A week: the utilities of rates, by household and slot.
pub(super) struct Week {
    utilities: Vec<Vec<Utility>>,
}

/// The rates of a week in Mbit/s, by household and slot.
pub(super) type WeekRates = Vec<Vec<f64>>;

/// Rates for results that cannot be computed: all NaN.
fn unknown() -> WeekRates {
    vec![vec![f64::NAN; SLOTS]; HOMES]
}

/// Bids of a household that differ from its agent's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bids {
    /// The agent's bid times this factor.
    Times(f64),
    /// The whole balance.
    AllIn,
    /// The bid of an agent that knows the future utilities of the household.
    Foresees,
}

impl Week {
    pub(super) fn new(load: Load, seed: u64) -> Week {
        let mut random = SplitMix64::new(seed);
        let home = |i: usize| {
            let devices = devices_of(i);
            (0..SLOTS).map(|t| utility(load, &devices, t % DAY, &mut random)).collect()
        };
        Week { utilities: (0..HOMES).map(home).collect() }
    }

    /// The value of rates for each household, by slot.
    pub(super) fn values(&self, rates: &WeekRates) -> Vec<Vec<f64>> {
        let home = |(utilities, rates): (&Vec<Utility>, &Vec<f64>)| {
            utilities.iter().zip(rates).map(|(u, &rate)| u.value(rate)).collect()
        };
        self.utilities.iter().zip(rates).map(home).collect()
    }

    /// An equal share of the link in every slot.
    pub(super) fn equal(&self) -> WeekRates {
        vec![vec![SHARE; SLOTS]; HOMES]
    }

    /// The paper's optimum, for which every future is known.
    pub(super) fn optimum(&self) -> WeekRates {
        let home = |utilities: &Vec<Utility>| Household {
            balance: SHARE,
            utilities: utilities.clone(),
            copies: 1,
        };
        let homes: Vec<Household> = self.utilities.iter().map(home).collect();
        match optimum(&homes, Some(CAP.as_f64())) {
            Some(found) => found.spends,
            None => unknown(),
        }
    }

    /// The optimum of the rule that divides unspent credits evenly.
    pub(super) fn optimum_even(&self) -> WeekRates {
        let found = best_rates(&self.utilities, SHARE, CAP.as_f64());
        found.unwrap_or_else(unknown)
    }

    /// Algorithms 1 and 2: every gateway knows its own future for a day, and estimates the others'
    /// spends by four scenarios in each of which all others have the same use.
    pub(super) fn online(&self) -> WeekRates {
        let mut balances = vec![Credits::nearest(SHARE); HOMES];
        let mut beliefs = vec![vec![[0.25; 4]; DAY]; HOMES];
        let mut rates = vec![Vec::new(); HOMES];
        for t in 0..SLOTS {
            let mut spends = Vec::with_capacity(HOMES);
            let mut predicted = Vec::with_capacity(HOMES);
            for i in 0..HOMES {
                let own: Vec<Utility> =
                    (0..DAY).map(|ahead| self.utilities[i][(t + ahead).min(SLOTS - 1)]).collect();
                let receipts = Kind::ALL.map(|kind| receipts(&own, balances[i].as_f64(), kind));
                let slot = |ahead: usize| {
                    let belief = beliefs[i][(t + ahead) % DAY];
                    let expected = (0..4).map(|k| belief[k] * receipts[k][ahead]).sum();
                    Slot::plain(own[ahead], expected)
                };
                let slots: Vec<Slot> = (0..DAY).map(slot).collect();
                let spend = best_spends(balances[i].as_f64(), Some(CAP.as_f64()), &slots)[0];
                spends.push(Credits::nearest(spend).min(balances[i]));
                predicted.push(receipts.map(|of| of[0]));
            }
            for (rates, spend) in rates.iter_mut().zip(&spends) {
                rates.push(spend.as_f64());
            }
            let Ok(statements) = close(&balances, &spends, Some(CAP), t as u64) else {
                return unknown();
            };
            for (i, statement) in statements.iter().enumerate() {
                let observed = statement.received.as_f64();
                let known = &mut beliefs[i][t % DAY];
                let updated = posterior(&known[..], observed, &predicted[i], 0.01);
                known.copy_from_slice(&updated);
                balances[i] = statement.closing;
            }
        }
        rates
    }

    /// The paper's rule with a charge for holding a credit. For each slot two numbers of `best` are published:
    /// the mean value of one more Mbit/s, which is the charge, and the mean spend. A gateway that knows its own
    /// future plans with them; a credit that it spends avoids all later charges.
    pub(super) fn charged(&self, best: &WeekRates) -> WeekRates {
        let mean = |of: &dyn Fn(usize) -> f64| (0..HOMES).map(of).sum::<f64>() / HOMES as f64;
        let mut published = vec![(0.0, 0.0); SLOTS];
        let mut charges = 0.0;
        for t in (0..SLOTS).rev() {
            published[t] = (charges, mean(&|i| best[i][t]));
            charges += mean(&|i| self.utilities[i][t].slope(best[i][t]));
        }
        let home = |utilities: &Vec<Utility>| {
            let slot = |(&utility, &(bonus, receives)): (&Utility, &(f64, f64))| Slot {
                bonus,
                ..Slot::plain(utility, receives)
            };
            let slots: Vec<Slot> = utilities.iter().zip(&published).map(slot).collect();
            best_spends(SHARE, Some(CAP.as_f64()), &slots)
        };
        let plans: Vec<Vec<f64>> = self.utilities.iter().map(home).collect();
        let mut balances = vec![Credits::nearest(SHARE); HOMES];
        let mut rates = vec![Vec::new(); HOMES];
        for t in 0..SLOTS {
            let spend = |(plan, &all): (&Vec<f64>, &Credits)| Credits::nearest(plan[t]).min(all);
            let spends: Vec<Credits> = plans.iter().zip(&balances).map(spend).collect();
            rates.iter_mut().zip(&spends).for_each(|(rates, spend)| rates.push(spend.as_f64()));
            let Ok(statements) = close(&balances, &spends, Some(CAP), t as u64) else {
                return unknown();
            };
            balances = statements.iter().map(|statement| statement.closing).collect();
        }
        rates
    }

    /// Agents that take published prices and know only their own past, with the rule `float`; a
    /// household may bid otherwise than its agent.
    pub(super) fn agents(&self, liar: Option<(usize, Bids)>) -> WeekRates {
        let mut street = Street::new(HOMES);
        let mut rates = vec![Vec::new(); HOMES];
        for t in 0..SLOTS {
            let wants: Vec<Utility> = self.utilities.iter().map(|home| home[t]).collect();
            let mut spends = street.bids(&wants);
            if let Some((liar, bids)) = liar {
                let (own, all) = (spends[liar], street.balances[liar]);
                spends[liar] = match bids {
                    Bids::AllIn => all,
                    Bids::Times(factor) => Credits::nearest(own.as_f64() * factor).min(all),
                    Bids::Foresees => street.foreseen(liar, &self.utilities[liar][t..]),
                };
            }
            let Some(bought) = street.close(&spends, &wants) else {
                return unknown();
            };
            rates.iter_mut().zip(bought).for_each(|(rates, rate)| rates.push(rate.as_mbit_f64()));
        }
        rates
    }

    /// Best responses with the rule `float` when every household knows its future and all prices,
    /// and the remaining regret.
    pub(super) fn foresight(&self) -> (WeekRates, f64) {
        let player = |utilities: &Vec<Utility>| Player {
            balance: Credits::nearest(SHARE),
            utilities: utilities.clone(),
            peak: Some(peak()),
        };
        let players: Vec<Player> = self.utilities.iter().map(player).collect();
        match equilibrium(&players, &terms(HOMES), Some(CAP), ROUNDS_MAX, REGRET) {
            Ok(found) => {
                let home =
                    |i: usize| found.rates.iter().map(|slot| slot[i].as_mbit_f64()).collect();
                ((0..HOMES).map(home).collect(), found.regret)
            }
            Err(_) => (unknown(), f64::NAN),
        }
    }
}

/// The credits that a gateway would receive in each slot of a day if all others had one use and all
/// maximised the sum. The others are n − 1 equal households with a γ of 1 ("falsely").
fn receipts(own: &[Utility], balance: f64, kind: Kind) -> Vec<f64> {
    let others = (HOMES - 1) as f64;
    let all = SHARE * HOMES as f64;
    let floor = 1e-3;
    let balance = balance.clamp(floor, all - floor);
    let homes = [
        Household { balance, utilities: own.to_vec(), copies: 1 },
        Household {
            balance: (all - balance) / others,
            utilities: vec![Utility::only(kind, 1.0); own.len()],
            copies: HOMES - 1,
        },
    ];
    // All others spend the same, and the gateway receives 1 / (n − 1) of each one's spend.
    match optimum(&homes, None) {
        Some(found) => found.spends[1].clone(),
        None => vec![SHARE / 2.0; own.len()],
    }
}

/// Tests only check that it is computed.
const ROUNDS_MAX: usize = if cfg!(test) { 2 } else { 20 };
const REGRET: f64 = 0.02;
