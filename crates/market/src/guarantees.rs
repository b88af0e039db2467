//! The rates of a slot, and the interface of whatever enforces them.

use fairweir_core::market::rates::Terms;
use fairweir_core::units::Rate;

/// The rates of a slot, all of one generation: they apply together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// The slot; a later one replaces an earlier one.
    pub generation: u64,
    /// When they begin, in seconds of Unix time.
    pub from: u64,
    /// When they end, in seconds of Unix time.
    pub until: u64,
    /// The rates by seat.
    pub rates: Vec<Lease>,
    /// The terms of the link.
    pub terms: Terms,
}

impl Leases {
    /// Adds gateways that joined after this slot was closed, at the floor. They are the new ones in `next`.
    fn admit(&mut self, next: &Leases) {
        let last = self.rates.last().map(|lease| number_of(&lease.gateway));
        // New gateways have the highest numbers, so they come last.
        let is_new = |lease: &&Lease| Some(number_of(&lease.gateway)) > last;
        let joined: Vec<&Lease> = next.rates.iter().rev().take_while(is_new).collect();
        if joined.is_empty() {
            return;
        }
        // Drop the old lease of a household that left and came back.
        self.rates.retain(|had| joined.iter().all(|new| new.contract != had.contract));
        let known = self.rates.len();
        self.rates.extend(joined.into_iter().rev().cloned());
        let settled = |(i, lease): (usize, &Lease)| (i < known).then_some(lease.rate);
        let rates: Vec<_> = self.rates.iter().enumerate().map(settled).collect();
        // No rate exceeds that of the next slot, which may be limited by the plan.
        let peaks: Vec<_> = self.rates.iter().map(|lease| Some(lease.rate)).collect();
        let rates = self.terms.admit(&rates, &peaks);
        self.rates.iter_mut().zip(rates).for_each(|(lease, rate)| lease.rate = rate);
    }
}

/// A gateway's rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The gateway's pseudonym.
    pub gateway: String,
    /// The operator's name for its contract.
    pub contract: String,
    /// The rate that it may use.
    pub rate: Rate,
}

/// The rates known so far: those of the running slot, and those of the next slot, which become known some
/// time before it begins.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// At most two, the older first.
    slots: Vec<Leases>,
}

impl Known {
    /// Adds the rates of the slot that was closed last.
    pub fn learn(&mut self, leases: Leases) {
        self.slots.retain(|known| known.generation != leases.generation);
        self.slots.iter_mut().for_each(|running| running.admit(&leases));
        self.slots.push(leases);
        if self.slots.len() > 2 {
            self.slots.remove(0);
        }
    }

    /// The rates in force at `now_s`, in seconds of Unix time.
    pub fn at(&self, now_s: u64) -> Option<&Leases> {
        self.slots.iter().find(|leases| (leases.from..leases.until).contains(&now_s))
    }
}

/// The number in a pseudonym; later gateways have higher numbers.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("gw-")?.parse().ok()
}

/// Something that guarantees rates, such as the policer of the access network.
pub trait Guarantees: Send {
    /// Replaces all rates of the market; repeated calls with the same rates change nothing.
    ///
    /// # Errors
    /// The reason. The rates in force then end at the time set for them.
    fn set(&mut self, leases: &Leases) -> Result<(), String>;

    /// Description for the status.
    fn describe(&self) -> String;
}

/// No device enforces the rates: gateways are told to limit themselves to their leases.
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
        // The slot is learned a quarter before the running one ends, and again each time the book is read.
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
        // Learning the same rates again changes nothing.
        for _ in 0..2 {
            known.learn(next.clone());
            let running = [(1, "a", 37), (2, "b", 1), (9, "c", 1), (10, "d", 1)];
            assert_eq!(known.at(15), Some(&of(1, &running)));
            assert_eq!(known.at(25), Some(&next));
        }
        // A household that left and came back has one rate, not two.
        known.learn(of(2, &[(1, "a", 10), (9, "c", 1), (10, "d", 1), (11, "b", 1)]));
        let running = [(1, "a", 37), (9, "c", 1), (10, "d", 1), (11, "b", 1)];
        assert_eq!(known.at(15), Some(&of(1, &running)));
    }
}
