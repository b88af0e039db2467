//! Controls that learn nothing: what others do today, and the ideal, as baselines.

use super::{
    Act, Allocation, ClassRate, Command, Control, ControllerSpec, Decision, GroupDecision,
    GroupState, Observation,
};
use crate::share::{Entry, Weight, fair};
use crate::units::Rate;

/// `none`, `wfq`, `static`, `borrow` and `chokepoint`: the same rates for good.
#[derive(Clone, Debug)]
pub struct Fixed {
    control: Control,
    weights: Vec<Weight>,
    capacity: Option<Rate>,
    strict_priority: bool,
    command: Option<Command>,
    decision: Decision,
}

impl Fixed {
    pub(super) fn new(spec: &ControllerSpec) -> Fixed {
        let mut fixed = Fixed {
            control: spec.control,
            weights: spec.weights.clone(),
            capacity: spec.capacity,
            strict_priority: spec.strict_priority,
            command: None,
            decision: Decision::initial(spec.weights.len()),
        };
        fixed.command = fixed.allocation().map(Command::SetRates);
        fixed
    }

    pub(super) fn handle_policy(&mut self, weights: Vec<Weight>, kept: &[Option<usize>]) {
        assert_eq!(weights.len(), kept.len(), "every new group says which old one it continues");
        self.weights = weights;
        self.command = self.allocation().map(Command::SetRates);
    }

    pub(super) fn handle_observation(&mut self, observation: &Observation) {
        assert_eq!(observation.groups.len(), self.weights.len(), "one sample for each group");
        let allocation = self.allocation();
        let groups = observation.groups.iter().enumerate().map(|(i, sample)| {
            let class = allocation.as_ref().map(|a| a.classes[i]);
            GroupDecision {
                rate: Rate::from_volume(sample.received, observation.interval),
                demand: None,
                share: class.map_or(Rate::ZERO, |c| c.rate),
                ceil: class.map(|c| c.ceil),
                state: if sample.packets == 0 { GroupState::Idle } else { GroupState::Unknown },
            }
        });
        self.decision = Decision {
            at: observation.at,
            act: if allocation.is_some() { Act::Hold } else { Act::Observe },
            capacity: self.capacity,
            enforcing: allocation.is_some(),
            delay: None,
            groups: groups.collect(),
        };
    }

    pub(super) fn poll_command(&mut self) -> Option<Command> {
        self.command.take()
    }

    pub(super) fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What the classes may carry; `None` for the controls that touch nothing.
    fn allocation(&self) -> Option<Allocation> {
        let capacity = self.capacity?;
        let (total, borrowing) = match self.control {
            Control::Static => (None, false),
            Control::Borrow => (Some(capacity), true),
            Control::Chokepoint => (Some(capacity.scale(CHOKE.0, CHOKE.1)), true),
            Control::None | Control::Wfq | Control::Rbm | Control::Crab | Control::Fairweir => {
                return None;
            }
        };
        let divided = total.unwrap_or(capacity);
        let by_priority = self.control == Control::Chokepoint && self.strict_priority;
        let entries: Vec<Entry> =
            self.weights.iter().map(|&weight| Entry { weight, demand: None }).collect();
        let shares = fair(divided, &entries);
        let classes = shares.into_iter().enumerate().map(|(i, share)| ClassRate {
            rate: if by_priority { divided / STRICT_RATE_DIVISOR } else { share },
            ceil: if borrowing { divided } else { share },
            priority: if by_priority { i.min(PRIORITY_LOWEST) as u8 } else { 0 },
            weight: self.weights[i],
        });
        Some(Allocation { total, classes: classes.collect() })
    }
}

/// Part of the capacity that a choke point lets through: 25 of 30 Mbit/s. Source: CRAB §5.4.
const CHOKE: (u64, u64) = (25, 30);

/// Under strict priority a class owns next to nothing and lives on what it borrows.
const STRICT_RATE_DIVISOR: u64 = 1_000;

/// HTB knows the priorities 0 to 7.
const PRIORITY_LOWEST: usize = 7;
