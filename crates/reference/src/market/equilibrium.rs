//! Rounds of best responses until no household wants to change.
//!
//! Method: all households plan with the prices and receipts of the round before; their spends are
//! settled in the ledger, slot by slot; expectations move a part of the way to the results. The
//! rounds end by the *regret*: how much the household that could gain most would gain by another
//! plan with the same prices and receipts. Every household takes prices as given, so this is an
//! equilibrium of price-takers, which in a market of n differs from a Nash equilibrium by one
//! household's effect on prices. Convergence is not proven; the result says how far it came.

use fairweir_core::market::ledger::{Credits, LedgerError, close};
use fairweir_core::market::rates::{Mode, Terms};
use fairweir_core::market::spending::{self, Slot};
use fairweir_core::market::utility::Utility;
use fairweir_core::units::Rate;

/// A household whose future is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Player {
    /// Its balance before the first slot.
    pub balance: Credits,
    /// Its utility of rates, by slot.
    pub utilities: Vec<Utility>,
    /// Its plan's rate.
    pub peak: Option<Rate>,
}

/// The result of the rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Equilibrium {
    /// Rates, by slot and seat.
    pub rates: Vec<Vec<Rate>>,
    /// Spends, by slot and seat.
    pub spends: Vec<Vec<Credits>>,
    /// Prices by slot, in credits per Mbit/s.
    pub prices: Vec<f64>,
    /// Values that the households reach, by seat.
    pub values: Vec<f64>,
    /// Number of rounds.
    pub rounds: usize,
    /// The largest possible gain of a household by another plan, as a part of its value.
    pub regret: f64,
}

/// Plays rounds until the regret is at most `regret_max`, or `rounds_max` are played; the round with
/// the least regret is returned.
///
/// # Errors
/// If the ledger refuses the balances.
pub fn equilibrium(
    players: &[Player],
    terms: &Terms,
    cap: Option<Credits>,
    rounds_max: usize,
    regret_max: f64,
) -> Result<Equilibrium, LedgerError> {
    let slots = players.iter().map(|p| p.utilities.len()).min().unwrap_or(0);
    let share =
        players.iter().map(|p| p.balance.as_f64()).sum::<f64>() / players.len().max(1) as f64;
    let mut believed = Belief {
        prices: vec![0.5; slots],
        receives: vec![vec![0.5 * share; players.len()]; slots],
    };
    let mut best: Option<Equilibrium> = None;
    for round in 1..=rounds_max.max(1) {
        let plans: Vec<Vec<f64>> =
            (0..players.len()).map(|i| believed.plan(players, i, terms, cap, slots)).collect();
        let (mut played, seen) = play(players, &plans, terms, cap, slots)?;
        played.rounds = round;
        played.regret = regret(players, &played, &seen, terms, cap, slots);
        if best.as_ref().is_none_or(|best| played.regret < best.regret) {
            best = Some(played);
        }
        if best.as_ref().is_some_and(|best| best.regret <= regret_max) {
            break;
        }
        // Decreasing steps end cycles.
        believed.move_to(&seen, 1.0 / (2.0 + round as f64 / 8.0));
    }
    Ok(best.expect("invariant: at least one round is played"))
}

/// Expectations of the households.
struct Belief {
    prices: Vec<f64>,
    /// Receipts by slot and seat.
    receives: Vec<Vec<f64>>,
}

impl Belief {
    /// The slots as a household expects them.
    fn slots(&self, players: &[Player], i: usize, terms: &Terms, slots: usize) -> Vec<Slot> {
        let player = &players[i];
        let slot = |t: usize| Slot {
            utility: player.utilities[t],
            price: match terms.mode {
                Mode::Float => self.prices[t].max(PRICE_MIN),
                Mode::Plain | Mode::Even => 1.0,
            },
            floor: terms.floor(players.len()).as_mbit_f64(),
            peak: player.peak.map_or(f64::INFINITY, Rate::as_mbit_f64),
            receives: self.receives[t][i],
            bonus: 0.0,
        };
        (0..slots).map(slot).collect()
    }

    fn plan(
        &self,
        players: &[Player],
        i: usize,
        terms: &Terms,
        cap: Option<Credits>,
        slots: usize,
    ) -> Vec<f64> {
        let cap = cap.map(Credits::as_f64);
        spending::best_spends(
            players[i].balance.as_f64(),
            cap,
            &self.slots(players, i, terms, slots),
        )
    }

    fn move_to(&mut self, seen: &Belief, part: f64) {
        let step = |old: &mut f64, new: f64| *old += part * (new - *old);
        self.prices.iter_mut().zip(&seen.prices).for_each(|(old, new)| step(old, *new));
        for (old, new) in self.receives.iter_mut().zip(&seen.receives) {
            old.iter_mut().zip(new).for_each(|(old, new)| step(old, *new));
        }
    }
}

/// Settles the households' plans, as far as their balances allow.
fn play(
    players: &[Player],
    plans: &[Vec<f64>],
    terms: &Terms,
    cap: Option<Credits>,
    slots: usize,
) -> Result<(Equilibrium, Belief), LedgerError> {
    let peaks: Vec<Option<Rate>> = players.iter().map(|p| p.peak).collect();
    let mut balances: Vec<Credits> = players.iter().map(|p| p.balance).collect();
    let mut seen = Belief { prices: Vec::new(), receives: Vec::new() };
    let (mut all_rates, mut all_spends) = (Vec::new(), Vec::new());
    let mut values = vec![0.0; players.len()];
    for t in 0..slots {
        let spends: Vec<Credits> =
            balances.iter().zip(plans).map(|(b, plan)| Credits::nearest(plan[t]).min(*b)).collect();
        let rates = terms.rates(&spends, &peaks);
        let statements = close(&balances, &spends, cap, t as u64)?;
        balances = statements.iter().map(|s| s.closing).collect();
        // Credits that the cap gives or takes count as received, too.
        let received = statements.iter().map(|s| s.received.as_f64() + s.moved as f64 / 1e6);
        seen.receives.push(received.collect());
        seen.prices.push(rates.price);
        for (i, rate) in rates.rates.iter().enumerate() {
            values[i] += players[i].utilities[t].value(rate.as_mbit_f64());
        }
        all_rates.push(rates.rates);
        all_spends.push(spends);
    }
    let prices = seen.prices.clone();
    let played = Equilibrium {
        rates: all_rates,
        spends: all_spends,
        prices,
        values,
        rounds: 0,
        regret: 0.0,
    };
    Ok((played, seen))
}

/// The largest gain that a household could have by another plan.
fn regret(
    players: &[Player],
    played: &Equilibrium,
    seen: &Belief,
    terms: &Terms,
    cap: Option<Credits>,
    slots: usize,
) -> f64 {
    let one = |i: usize| {
        let plan = seen.plan(players, i, terms, cap, slots);
        let expected = seen.slots(players, i, terms, slots);
        let best: f64 = expected
            .iter()
            .zip(plan)
            .map(|(s, x)| s.utility.value((s.floor + x / s.price).min(s.peak)))
            .sum();
        if best > 0.0 { best / played.values[i].max(f64::MIN_POSITIVE) - 1.0 } else { 0.0 }
    };
    (0..players.len()).map(one).fold(0.0, f64::max)
}

/// The smallest price, as in [`fairweir_core::market::agent`].
const PRICE_MIN: f64 = 1e-3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn households_that_want_at_different_times_end_above_an_equal_share() {
        let slots = 6;
        let player = |i: usize| Player {
            balance: Credits::whole(10),
            utilities: (0..slots)
                .map(|t| Utility {
                    weights: [0.1, 0.1, if t % 3 == i % 3 { 2.0 } else { 0.1 }, 0.1],
                })
                .collect(),
            peak: None,
        };
        let players: Vec<Player> = (0..9).map(player).collect();
        let terms = Terms { mode: Mode::Float, capacity: Rate::mbit(90), floor_percent: 10 };
        let found = equilibrium(&players, &terms, Some(Credits::whole(32)), 200, 0.01).unwrap();
        assert!(found.regret <= 0.01, "{} after {}", found.regret, found.rounds);
        let equal: f64 = players[0].utilities.iter().map(|u| u.value(10.0)).sum();
        for value in &found.values {
            assert!(*value > 1.1 * equal, "{value} against {equal}");
        }
        // A household that wants a slot gets it.
        assert!(found.rates[4][1] > found.rates[4][0] && found.rates[4][1] > found.rates[4][2]);
    }

    #[test]
    fn no_households_and_no_slots_are_played_without_a_panic() {
        let terms = Terms { mode: Mode::Float, capacity: Rate::mbit(90), floor_percent: 10 };
        assert_eq!(equilibrium(&[], &terms, None, 3, 0.0).unwrap().values, [0.0; 0]);
        let idle = Player {
            balance: Credits::whole(1),
            utilities: vec![Utility::default(); 3],
            peak: None,
        };
        let found = equilibrium(&[idle.clone(), idle], &terms, None, 3, 0.0).unwrap();
        assert_eq!(found.values, [0.0, 0.0]);
    }
}
