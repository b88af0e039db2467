//! What a gateway learns from its own past, and what it bids, as a price-taker.
//!
//! Problem: a gateway knows its balance, what its household wants now, the price of earlier slots and what
//! it received in them, but not what the others want. Method: prices, receipts and its own wants repeat
//! daily, so it keeps an average of each by slot of the day, plans its best response over a horizon
//! ([`spending::best_spends`]) and bids the first spend. From the others it needs only the published
//! prices.

use serde::{Deserialize, Serialize};

use super::ledger::Credits;
use super::spending::{self, Slot};
use super::utility::Utility;

/// The parameters of an agent.
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
    /// The rate that it has without spending, in Mbit/s.
    pub floor: f64,
    /// The highest rate that it can use, in Mbit/s.
    pub peak: f64,
}

/// The most slots of a day, or of a plan: a day of minutes.
pub const SLOTS_MAX: usize = 1_440;

/// A gateway's side of a market.
#[derive(Clone, Debug)]
pub struct Agent {
    spec: AgentSpec,
    /// By slot of the day; `None` if the slot has not occurred yet.
    days: Vec<Option<Seen>>,
    wants: Vec<Option<Utility>>,
}

/// The average cost and receipt of a slot of the day.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// Credits for each Mbit/s beyond the floor.
    pub price: f64,
    /// Credits received.
    pub receives: f64,
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

    /// What it has learned, by slot of the day; `None` where it has seen nothing.
    pub fn learned(&self) -> &[Option<Seen>] {
        &self.days
    }

    /// Takes over what it had learned before a restart. A list of another length, and impossible numbers, are
    /// ignored.
    pub fn recall(&mut self, learned: &[Option<Seen>]) {
        let is_possible = |seen: &Seen| {
            is_price(seen.price) && (0.0..=Credits::MAX.as_f64()).contains(&seen.receives)
        };
        if learned.len() == self.days.len() {
            self.days = learned.iter().map(|seen| seen.filter(is_possible)).collect();
        }
    }

    /// The price that it expects of a slot.
    pub fn price(&self, slot: u64) -> f64 {
        self.expects(slot).price
    }

    fn expects(&self, slot: u64) -> Seen {
        let seen = self.days[(slot % self.spec.day as u64) as usize];
        let seen = seen.unwrap_or(Seen { price: 0.5, receives: 0.5 * self.spec.share });
        Seen { price: seen.price.max(PRICE_MIN), ..seen }
    }

    /// A slot was closed, with this published price and this receipt of the gateway. Impossible numbers
    /// are ignored.
    pub fn handle_closed(&mut self, slot: u64, price: f64, received: Credits) {
        if !is_price(price) {
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
        self.bid_for(slot, balance, &self.wants_from(slot, want))
    }

    /// The same if the household has these wants in the slot and the following ones.
    pub fn bid_for(&self, slot: u64, balance: Credits, wants: &[Utility]) -> Credits {
        let spend = spending::next(balance.as_f64(), self.spec.cap, &self.slots(slot, wants));
        Credits::nearest(spend).min(balance)
    }

    /// The spends from a slot on, in credits, if the household has these wants in the following slots.
    pub fn plan_for(&self, slot: u64, balance: Credits, wants: &[Utility]) -> Vec<f64> {
        spending::best_spends(balance.as_f64(), self.spec.cap, &self.slots(slot, wants))
    }

    /// The household's expected wants by its past, beginning with its current want.
    fn wants_from(&self, slot: u64, want: Utility) -> Vec<Utility> {
        let known = |ahead: u64| {
            let learned = self.wants[(slot.wrapping_add(ahead) % self.spec.day as u64) as usize];
            if ahead == 0 { want } else { learned.unwrap_or(want) }
        };
        (0..self.spec.horizon as u64).map(known).collect()
    }

    fn slots(&self, slot: u64, wants: &[Utility]) -> Vec<Slot> {
        let AgentSpec { floor, peak, .. } = self.spec;
        let slots = wants.iter().zip(0..).map(|(&utility, ahead)| {
            let Seen { price, receives } = self.expects(slot.wrapping_add(ahead));
            Slot { utility, price, floor, peak, receives, bonus: 0.0 }
        });
        slots.collect()
    }
}

fn is_price(price: f64) -> bool {
    (0.0..=PRICE_MAX).contains(&price)
}

/// The last day has a weight of one third.
fn average(old: f64, new: f64) -> f64 {
    old + (new - old) / 3.0
}

/// The price used in plans for a free slot, in which the peaks left room, in credits per Mbit/s.
const PRICE_MIN: f64 = 1e-3;

/// An upper bound of the credits for one Mbit/s in any market.
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
        // For an expensive slot saving is worth less.
        let mut expensive = agent.clone();
        agent.handle_closed(2, 1.0, Credits::whole(5));
        expensive.handle_closed(2, 4.0, Credits::whole(5));
        assert!(expensive.bid(4, balance, little) > agent.bid(4, balance, little));
    }

    #[test]
    fn what_was_learned_is_recalled_and_nonsense_is_not() {
        let mut agent = Agent::new(SPEC);
        agent.handle_closed(6, 3.0, Credits::whole(2));
        let mut other = Agent::new(SPEC);
        other.recall(agent.learned());
        assert_eq!((other.price(2), other.price(3)), (3.0, 0.5));
        let mut learned = agent.learned().to_vec();
        other.recall(&learned[1..]);
        learned[2] = Some(Seen { price: f64::NAN, receives: 1.0 });
        learned[3] = Some(Seen { price: 1.0, receives: -1.0 });
        assert_eq!(other.price(2), 3.0);
        other.recall(&learned);
        assert_eq!(other.learned(), [None; 4]);
    }

    #[test]
    fn odd_prices_change_nothing_and_no_bid_exceeds_the_balance() {
        let mut agent = Agent::new(SPEC);
        let want = Utility::only(Kind::Streaming, 1.0);
        let before = agent.bid(0, Credits::whole(7), want);
        for price in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            agent.handle_closed(1, price, Credits::MAX);
        }
        assert_eq!(agent.bid(0, Credits::whole(7), want), before);
        for micro in [0, 1, 999, 1_000_000, u64::MAX] {
            let balance = Credits::micro(micro);
            assert!(agent.bid(u64::MAX, balance, want) <= balance);
        }
    }
}
