//! Another host before the queue divides by the same weights. Meanwhile nothing is enforced or learned here, since the
//! rate that arrives does not show what the classes would let through. What was learned before is kept.

use super::control_loop::{ControlLoop, Decider};
use super::supervisor::Supervisor;
use super::{Act, Observation};
use crate::share::{Claims, Tree};
use crate::units::Rate;

impl<D: Decider> ControlLoop<D> {
    /// Lets everything pass while another host divides; afterwards the controller continues from what it knew.
    pub fn set_delegated(&mut self, is_delegated: bool) {
        if self.is_delegated != is_delegated {
            (self.is_delegated, self.is_released) = (is_delegated, is_delegated);
            self.kept = None;
            self.supervisor = Supervisor::new();
            self.handle_lost_state();
        }
    }

    /// Takes in what arrived while another host divides among groups of these weights.
    pub fn observe_delegated(&mut self, observation: &Observation, weights: &Tree) {
        let rates: Vec<Rate> = self.totals.iter().map(|totals| totals.rate).collect();
        let total: Rate = rates.iter().copied().sum();
        let demand = |rate: &Rate| (*rate < total / SMALL).then_some(*rate);
        let demands: Vec<_> = rates.iter().map(demand).collect();
        let shares = weights.divide(total, Claims { demands: &demands, taken: &[] });
        let decision = &mut self.decision;
        (decision.at, decision.act) = (observation.at, Act::Delegate);
        (decision.enforcing, decision.delay) = (false, None);
        for ((group, rate), share) in decision.groups.iter_mut().zip(rates).zip(shares) {
            (group.rate, group.share, group.demand, group.ceil) = (rate, share, None, None);
        }
    }
}

/// A group that has less than this part of the total is shown with a limited demand.
const SMALL: u64 = 100;
