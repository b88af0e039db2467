//! While another host before the queue divides by the same weights: nothing is enforced here, and nothing learned,
//! since what arrives says nothing about what the classes would let arrive. What was learned is kept.

use super::control_loop::{ControlLoop, Decider};
use super::supervisor::Supervisor;
use super::{Act, Observation};
use crate::share::{Entry, Weight, fair};
use crate::units::Rate;

impl<D: Decider> ControlLoop<D> {
    /// Lets everything pass while another divides; then the controller goes on from what it knew.
    pub fn set_delegated(&mut self, is_delegated: bool) {
        if self.is_delegated != is_delegated {
            (self.is_delegated, self.is_released) = (is_delegated, is_delegated);
            self.kept = None;
            self.supervisor = Supervisor::new();
            self.handle_lost_state();
        }
    }

    /// Takes in what arrived while another divides among groups of these weights.
    pub fn observe_delegated(&mut self, observation: &Observation, weights: &[Weight]) {
        let rates: Vec<Rate> = self.totals.iter().map(|totals| totals.rate).collect();
        let total: Rate = rates.iter().copied().sum();
        let entry = |(weight, rate): (&Weight, &Rate)| {
            let is_small = *rate < total / SMALL;
            Entry { weight: *weight, demand: is_small.then_some(*rate) }
        };
        let entries: Vec<Entry> = weights.iter().zip(&rates).map(entry).collect();
        let shares = fair(total, &entries);
        let decision = &mut self.decision;
        (decision.at, decision.act) = (observation.at, Act::Delegate);
        (decision.enforcing, decision.delay) = (false, None);
        for ((group, rate), share) in decision.groups.iter_mut().zip(rates).zip(shares) {
            (group.rate, group.share, group.demand, group.ceil) = (rate, share, None, None);
        }
    }
}

/// A group that has less than this part of the total is shown as one that wants no more.
const SMALL: u64 = 100;
