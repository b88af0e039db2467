//! Controls that learn nothing: fixed rates, with or without borrowing, or none.

use super::{
    Act, Allocation, ClassRate, Command, ControllerSpec, Decision, Excess, GroupDecision,
    GroupState, Observation,
};
use crate::share::{Claims, Tree};
use crate::units::{Part, Rate};

/// `none`, `static`, `borrow` and `chokepoint`: rates that never change.
#[derive(Clone, Debug)]
pub struct Fixed {
    spec: ControllerSpec,
    weights: Tree,
    /// The remembered capacity of the link, which only the status shows.
    remembered: Option<Rate>,
    command: Option<Command>,
    decision: Decision,
}

impl Fixed {
    pub(super) fn new(spec: ControllerSpec, weights: Tree, remembered: Option<Rate>) -> Fixed {
        let decision = Decision::initial(weights.len());
        let mut fixed = Fixed { spec, weights, remembered, command: None, decision };
        fixed.command = fixed.allocation().map(Command::SetRates);
        fixed
    }

    pub(super) fn handle_spec(&mut self, spec: ControllerSpec) {
        self.spec = spec;
        self.command = self.allocation().map(Command::SetRates);
    }

    pub(super) fn handle_policy(&mut self, weights: Tree) {
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
            capacity: self.spec.capacity().or(self.remembered),
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

    /// The rates of the classes; `None` for the controls that touch nothing.
    fn allocation(&self) -> Option<Allocation> {
        let (divided, total, borrowing, by_priority) = match self.spec {
            ControllerSpec::Static { capacity } => (capacity, None, false, false),
            ControllerSpec::Borrow { capacity } => (capacity, Some(capacity), true, false),
            ControllerSpec::Chokepoint { capacity, strict_priority } => {
                let choked = capacity * CHOKE;
                (choked, Some(choked), true, strict_priority)
            }
            ControllerSpec::None
            | ControllerSpec::Rbm { .. }
            | ControllerSpec::Crab { .. }
            | ControllerSpec::Fairweir { .. } => return None,
        };
        let endless = vec![None; self.weights.len()];
        let shares = self.weights.divide(divided, Claims { demands: &endless, taken: &[] });
        let classes = shares.into_iter().zip(self.weights.weights()).enumerate();
        let classes = classes.map(|(i, (share, weight))| ClassRate {
            rate: if by_priority { divided / STRICT_RATE_DIVISOR } else { share },
            ceil: if borrowing { divided } else { share },
            priority: if by_priority { i.min(PRIORITY_LOWEST) as u8 } else { 0 },
            weight,
            excess: Excess::Drop,
        });
        Some(Allocation { total, classes: classes.collect() })
    }
}

/// Part of the capacity that a choke point lets through: 25 of 30 Mbit/s. Source: CRAB §5.4.
const CHOKE: Part = Part::of(25, 30);

/// Under strict priority a class has almost no rate of its own and borrows nearly all it uses.
const STRICT_RATE_DIVISOR: u64 = 1_000;

/// HTB knows the priorities 0 to 7.
const PRIORITY_LOWEST: usize = 7;
