//! What a gateway learns from its own past, and what it bids: a price-taker.
//!
//! Problem: a gateway knows its balance, what its household wants now, and what slots cost and what
//! it received before; not what the others want. Method: prices, receipts and its own wants repeat by
//! the day, so it keeps an average of each by slot of day, plans its best response over a horizon
//! ([`spending::plan`]) and bids the first spend. It asks nothing of the others but the published
//! prices.

use super::ledger::Credits;
use super::spending::{self, Slot};
use super::utility::Utility;

/// What an agent decides by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AgentSpec {
    /// Slots after which a day repeats, 1 to [`SLOTS_MAX`].
    pub day: usize,
    /// Slots that are planned, 1 to [`SLOTS_MAX`].
    pub horizon: usize,
    /// The cap of balances, in credits.
    pub cap: Option<f64>,
    /// Credits per gateway.
    pub share: f64,
    /// What it has without spending, in Mbit/s.
    pub floor: f64,
    /// The most that it can use, in Mbit/s.
    pub peak: f64,
}

/// Slots of a day, or of a plan, at most: a day of minutes.
pub const SLOTS_MAX: usize = 1_440;

/// A gateway's side of a market.
#[derive(Clone, Debug)]
pub struct Agent {
    spec: AgentSpec,
    /// By slot of day; `None` if there was none yet.
    days: Vec<Option<Seen>>,
    wants: Vec<Option<Utility>>,
}

/// What a slot of day costs and gives, on average.
#[derive(Clone, Copy, Debug)]
struct Seen {
    price: f64,
    receives: f64,
}

impl Agent {
    /// An agent that has seen nothing.
    ///
    /// # Panics
    /// If day or horizon are out of range.
    pub fn new(spec: AgentSpec) -> Agent {
        let range = 1..=SLOTS_MAX;
        assert!(range.contains(&spec.day) && range.contains(&spec.horizon), "{spec:?}");
        Agent { spec, days: vec![None; spec.day], wants: vec![None; spec.day] }
    }

    /// A slot was closed: its published price, and what the gateway received. Numbers that no market
    /// has are ignored.
    pub fn handle_closed(&mut self, slot: u64, price: f64, received: Credits) {
        if !(0.0..=PRICE_MAX).contains(&price) {
            return;
        }
        let receives = received.as_f64();
        let seen = &mut self.days[(slot % self.spec.day as u64) as usize];
        *seen = Some(match *seen {
            None => Seen { price, receives },
            Some(old) => {
                Seen { price: average(old.price, price), receives: average(old.receives, receives) }
            }
        });
    }

    /// What the household wanted in a slot.
    pub fn handle_want(&mut self, slot: u64, want: Utility) {
        let known = &mut self.wants[(slot % self.spec.day as u64) as usize];
        *known = Some(match *known {
            None => want,
            Some(old) => {
                Utility { weights: [0, 1, 2, 3].map(|k| average(old.weights[k], want.weights[k])) }
            }
        });
    }

    /// The spend for a slot in which the household wants `want`; at most the balance.
    pub fn bid(&self, slot: u64, balance: Credits, want: Utility) -> Credits {
        let spends = self.plan(slot, balance, want);
        Credits::nearest(spends[0]).min(balance)
    }

    /// What it would spend from a slot on, in credits.
    pub fn plan(&self, slot: u64, balance: Credits, want: Utility) -> Vec<f64> {
        let AgentSpec { day, horizon, cap, share, floor, peak } = self.spec;
        let slots: Vec<Slot> = (0..horizon as u64)
            .map(|ahead| {
                let of_day = (slot.wrapping_add(ahead) % day as u64) as usize;
                let seen = self.days[of_day].unwrap_or(Seen { price: 0.5, receives: 0.5 * share });
                let learned = self.wants[of_day].unwrap_or(want);
                Slot {
                    utility: if ahead == 0 { want } else { learned },
                    price: seen.price.max(PRICE_MIN),
                    floor,
                    peak,
                    receives: seen.receives,
                }
            })
            .collect();
        spending::plan(balance.as_f64(), cap, &slots)
    }
}

/// The last day counts for a third.
fn average(old: f64, new: f64) -> f64 {
    old + (new - old) / 3.0
}

/// A slot in which the peaks left room costs nothing; planned with this, in credits per Mbit/s.
const PRICE_MIN: f64 = 1e-3;

/// More than any market's credits for one Mbit/s.
const PRICE_MAX: f64 = 1e12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::market::utility::Kind;

    const SPEC: AgentSpec =
        AgentSpec { day: 4, horizon: 4, cap: Some(32.0), share: 10.0, floor: 1.0, peak: 32.0 };

    #[test]
    fn it_saves_for_the_slot_that_its_past_says_matters() {
        let mut agent = Agent::new(SPEC);
        let (little, much) = (Utility::only(Kind::Social, 1.0), Utility::only(Kind::Social, 2.0));
        let balance = Credits::whole(10);
        let even = agent.bid(4, balance, little);
        agent.handle_want(2, much);
        assert!(agent.bid(4, balance, little) < even);
        // An expensive slot is not worth saving as much for.
        let mut expensive = agent.clone();
        agent.handle_closed(2, 1.0, Credits::whole(5));
        expensive.handle_closed(2, 4.0, Credits::whole(5));
        assert!(expensive.bid(4, balance, little) > agent.bid(4, balance, little));
    }

    #[test]
    fn odd_prices_change_nothing_and_no_bid_exceeds_the_balance() {
        let mut agent = Agent::new(SPEC);
        let want = Utility::only(Kind::Streaming, 1.0);
        let before = agent.plan(0, Credits::whole(7), want);
        for price in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            agent.handle_closed(1, price, Credits::MAX);
        }
        assert_eq!(agent.plan(0, Credits::whole(7), want), before);
        for micro in [0, 1, 999, 1_000_000, u64::MAX] {
            let balance = Credits::micro(micro);
            assert!(agent.bid(u64::MAX, balance, want) <= balance);
        }
    }
}
