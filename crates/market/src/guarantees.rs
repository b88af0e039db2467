//! The rates of a slot, and what enforces them.

use fairweir_core::market::rates::Terms;
use fairweir_core::units::Rate;

/// The rates of a slot, all of one generation: they apply together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// The slot; a later one replaces an earlier one.
    pub generation: u64,
    /// When they begin, in seconds of Unix time.
    pub from: u64,
    /// When they end, as above.
    pub until: u64,
    /// By seat.
    pub rates: Vec<Lease>,
    /// The link's.
    pub terms: Terms,
}

impl Leases {
    /// Gives the floor to gateways that joined after this slot was closed, as those of the next slot show.
    fn admit(&mut self, next: &Leases) {
        let last = self.rates.last().map(|lease| number_of(&lease.gateway));
        // Their names are the last ones.
        let is_new = |lease: &&Lease| Some(number_of(&lease.gateway)) > last;
        let joined: Vec<&Lease> = next.rates.iter().rev().take_while(is_new).collect();
        if joined.is_empty() {
            return;
        }
        // A household that left and came back.
        self.rates.retain(|had| joined.iter().all(|new| new.contract != had.contract));
        let known = self.rates.len();
        self.rates.extend(joined.into_iter().rev().cloned());
        let settled = |(i, lease): (usize, &Lease)| (i < known).then_some(lease.rate);
        let rates: Vec<_> = self.rates.iter().enumerate().map(settled).collect();
        // No more than in the next slot, which may be its peak.
        let peaks: Vec<_> = self.rates.iter().map(|lease| Some(lease.rate)).collect();
        let rates = self.terms.admit(&rates, &peaks);
        self.rates.iter_mut().zip(rates).for_each(|(lease, rate)| lease.rate = rate);
    }
}

/// A gateway's rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its pseudonym.
    pub gateway: String,
    /// The operator's word for its contract.
    pub contract: String,
    /// What it may use.
    pub rate: Rate,
}

/// What is known of the rates: those of the slot that runs, and those of the next one, which are known a
/// while before it begins.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// At most two, the older first.
    slots: Vec<Leases>,
}

impl Known {
    /// Takes in the rates of the slot that was closed last.
    pub fn learn(&mut self, leases: Leases) {
        self.slots.retain(|known| known.generation != leases.generation);
        self.slots.iter_mut().for_each(|running| running.admit(&leases));
        self.slots.push(leases);
        if self.slots.len() > 2 {
            self.slots.remove(0);
        }
    }

    /// The rates that hold at a second of Unix time.
    pub fn at(&self, now_s: u64) -> Option<&Leases> {
        self.slots.iter().find(|leases| (leases.from..leases.until).contains(&now_s))
    }
}

/// The number in a pseudonym; a later gateway has a higher one.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("gw-")?.parse().ok()
}

/// Something that guarantees rates, such as the policer of the access network.
pub trait Guarantees: Send {
    /// Replaces all rates of the market; the same ones once more change nothing.
    ///
    /// # Errors
    /// What failed; the rates in force then end when they were to end.
    fn set(&mut self, leases: &Leases) -> Result<(), String>;

    /// What status says of it.
    fn describe(&self) -> String;
}

/// Nothing guarantees rates: gateways are told to hold themselves to their leases.
#[derive(Clone, Copy, Debug)]
pub struct Unenforced;

impl Guarantees for Unenforced {
    fn set(&mut self, _: &Leases) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self) -> String {
        "by no policer: gateways hold themselves to their rates where their agents tell a daemon"
            .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairweir_core::market::rates::Mode;

    fn leases(generation: u64) -> Leases {
        let from = generation * 10;
        let terms = Terms { mode: Mode::Float, capacity: Rate::mbit(40), floor_percent: 10 };
        Leases { generation, from, until: from + 10, rates: Vec::new(), terms }
    }

    #[test]
    fn a_slot_keeps_its_rates_when_those_of_the_next_are_known() {
        let mut known = Known::default();
        let at = |known: &Known, now_s| known.at(now_s).map(|leases| leases.generation);
        assert_eq!(at(&known, 15), None);
        known.learn(leases(1));
        // A quarter before the slot ends, and again with every look at the book.
        for _ in 0..3 {
            known.learn(leases(2));
            assert_eq!(
                [9, 10, 19, 20, 30].map(|s| at(&known, s)),
                [None, Some(1), Some(1), Some(2), None]
            );
        }
        known.learn(leases(3));
        assert_eq!([19, 20, 30].map(|s| at(&known, s)), [None, Some(2), Some(3)]);
    }

    #[test]
    fn who_joins_while_the_next_slot_is_settled_has_the_floor_at_once() {
        let of = |generation, rates: &[(u64, &str, u64)]| {
            let lease = |&(n, contract, rate): &(u64, &str, u64)| Lease {
                gateway: format!("gw-{n}"),
                contract: contract.to_owned(),
                rate: Rate::mbit(rate),
            };
            Leases { rates: rates.iter().map(lease).collect(), ..leases(generation) }
        };
        let mut known = Known::default();
        known.learn(of(1, &[(1, "a", 38), (2, "b", 2)]));
        let next = of(2, &[(1, "a", 10), (2, "b", 28), (9, "c", 1), (10, "d", 1)]);
        // With every look the same.
        for _ in 0..2 {
            known.learn(next.clone());
            let running = [(1, "a", 37), (2, "b", 1), (9, "c", 1), (10, "d", 1)];
            assert_eq!(known.at(15), Some(&of(1, &running)));
            assert_eq!(known.at(25), Some(&next));
        }
        // Who left and came back has one rate, not two.
        known.learn(of(2, &[(1, "a", 10), (9, "c", 1), (10, "d", 1), (11, "b", 1)]));
        let running = [(1, "a", 37), (9, "c", 1), (10, "d", 1), (11, "b", 1)];
        assert_eq!(known.at(15), Some(&of(1, &running)));
    }
}
