//! Agents that take published prices and know only their own past, with the rule `float`, slot by
//! slot; and the results of many agents over two weeks.

use std::thread;

use fairweir_core::market::agent::{Agent, AgentSpec};
use fairweir_core::market::ledger::{Credits, close};
use fairweir_core::market::utility::Utility;
use fairweir_core::units::Rate;
use fairweir_scenario::play::cores;
use fairweir_scenario::random::SplitMix64;

use super::load::{CAP, DAY, LEARNED, Load, PEAK, SHARE, devices_of, peak, terms, utility};
use crate::figures::read::jain;

/// The least number of households for which a thread is worthwhile.
const OF_THREAD_MIN: usize = 256;

/// Number of slots that an agent plans.
const HORIZON: usize = 2 * DAY;

/// Number of half hours in two weeks.
const SLOTS: usize = 14 * DAY;

/// A market and its agents.
pub(super) struct Street {
    agents: Vec<Agent>,
    pub(super) balances: Vec<Credits>,
    slot: u64,
}

impl Street {
    pub(super) fn new(homes: usize) -> Street {
        let spec = AgentSpec {
            day: DAY,
            horizon: HORIZON,
            cap: Some(CAP.as_f64()),
            share: SHARE,
            floor: terms(homes).floor(homes).as_mbit_f64(),
            peak: PEAK,
        };
        let agents = vec![Agent::new(spec); homes];
        Street { agents, balances: vec![Credits::nearest(SHARE); homes], slot: 0 }
    }

    /// The bids of all agents for these utilities, computed over all cores.
    pub(super) fn bids(&self, wants: &[Utility]) -> Vec<Credits> {
        let mut bids = vec![Credits::ZERO; self.agents.len()];
        let size = self.agents.len().div_ceil(cores()).max(OF_THREAD_MIN);
        let homes =
            self.agents.chunks(size).zip(self.balances.chunks(size)).zip(wants.chunks(size));
        thread::scope(|scope| {
            for (((agents, balances), wants), bids) in homes.zip(bids.chunks_mut(size)) {
                scope.spawn(move || {
                    for (i, bid) in bids.iter_mut().enumerate() {
                        *bid = agents[i].bid(self.slot, balances[i], wants[i]);
                    }
                });
            }
        });
        bids
    }

    /// The bid of an agent that knows the future utilities of its household.
    pub(super) fn foreseen(&self, home: usize, wants: &[Utility]) -> Credits {
        let known = &wants[..wants.len().min(HORIZON)];
        self.agents[home].bid_for(self.slot, self.balances[home], known)
    }

    /// Ends the slot. Returns its rates, or `None` if the ledger refuses the spends.
    pub(super) fn close(&mut self, spends: &[Credits], wants: &[Utility]) -> Option<Vec<Rate>> {
        let homes = self.agents.len();
        let bought = terms(homes).rates(spends, &vec![Some(peak()); homes]);
        let statements = close(&self.balances, spends, Some(CAP), self.slot).ok()?;
        for (i, statement) in statements.iter().enumerate() {
            self.agents[i].handle_closed(self.slot, bought.price, statement.received);
            self.agents[i].handle_want(self.slot, wants[i]);
            self.balances[i] = statement.closing;
        }
        self.slot += 1;
        Some(bought.rates)
    }
}

/// Results of two weeks.
pub(super) struct Weeks {
    /// Value of the rates divided by that of an equal share, after the learning: of all households;
    /// below, of each in rising order.
    pub(super) gain: f64,
    pub(super) each: Vec<f64>,
    /// The least part of the link that was leased in a slot.
    pub(super) used: f64,
    /// Jain's index of the total that each household had.
    pub(super) jain: f64,
    /// Micro-credits that were lost or created.
    pub(super) lost: f64,
}

/// Two weeks of a market of `households`; `None` if the ledger refuses.
pub(super) fn weeks(homes: usize, load: Load, seed: u64) -> Option<Weeks> {
    let mut street = Street::new(homes);
    let mut random: Vec<SplitMix64> =
        (0..homes as u64).map(|i| SplitMix64::new(seed << 32 | i)).collect();
    let (mut own, mut equal, mut totals) = (vec![0.0; homes], vec![0.0; homes], vec![0.0; homes]);
    let mut used = 1.0_f64;
    for t in 0..SLOTS {
        if t % DAY == 0 {
            eprintln!("{homes} gateways: day {} of {}", t / DAY + 1, SLOTS / DAY);
        }
        let want =
            |(i, random): (usize, &mut SplitMix64)| utility(load, &devices_of(i), t % DAY, random);
        let wants: Vec<Utility> = random.iter_mut().enumerate().map(want).collect();
        let spends = street.bids(&wants);
        let rates = street.close(&spends, &wants)?;
        let all: f64 = rates.iter().map(|rate| rate.as_mbit_f64()).sum();
        used = used.min(all / (SHARE * homes as f64));
        for (i, rate) in rates.iter().map(|rate| rate.as_mbit_f64()).enumerate() {
            totals[i] += rate;
            if t >= LEARNED {
                own[i] += wants[i].value(rate);
                equal[i] += wants[i].value(SHARE);
            }
        }
    }
    let mut each: Vec<f64> = own.iter().zip(&equal).map(|(own, equal)| own / equal).collect();
    each.sort_by(f64::total_cmp);
    let sum = |values: &[f64]| values.iter().sum::<f64>();
    let credits: u64 = street.balances.iter().map(|balance| balance.as_micro()).sum();
    let founded = Credits::nearest(SHARE).as_micro() * homes as u64;
    Some(Weeks {
        gain: sum(&own) / sum(&equal),
        each,
        used,
        jain: jain(&totals),
        lost: credits.abs_diff(founded) as f64,
    })
}
