//! The rates of a slot, and what enforces them.

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

/// Nothing guarantees rates: gateways read their leases and limit themselves.
#[derive(Clone, Copy, Debug)]
pub struct Unenforced;

impl Guarantees for Unenforced {
    fn set(&mut self, _: &Leases) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self) -> String {
        "not enforced: the gateways limit themselves".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leases(generation: u64) -> Leases {
        let from = generation * 10;
        Leases { generation, from, until: from + 10, rates: Vec::new() }
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
}
