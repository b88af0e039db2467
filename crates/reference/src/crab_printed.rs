//! CRAB's control loop as its paper prints it: the baseline that shows what the changes in
//! [`Crab`](fairweir_core::receiver::Crab) are worth.
//!
//! It keeps the paper's numbers for each flow group: `true_bw`, `lent_bw`, `borrowed_bw` and
//! `assigned_bw`, and its Algorithm 1 for the excess. Where the paper's text cannot run, the
//! smallest possible addition is made:
//!
//! - Algorithm 1 does not terminate, since each pass lends the same residue again: here it ends after as
//!   many passes as there are groups;
//! - a window in which nothing arrives does not count as a measurement, or the estimate would stay 0;
//! - groups beneath groups have their parts of the whole as weights;
//! - no class is throttled below 100 kbit/s, as in all controls here.
//!
//! Everything else is kept, including what does harm: raises that cannot succeed below 8 Mbit/s,
//! excess that is divided among groups that want no more, and an estimate that is never lowered by
//! less than a tenth. Source: CRAB §3.1-§3.5, Appendix A; docs/research/papers/crab.md.

use fairweir_core::receiver::{
    Act, Allocation, CAPACITY_MIN, ClassRate, Command, ControllerError, Decider, Decision, Excess,
    GroupDecision, GroupState, Observation, TICK,
};
use fairweir_core::share::Weight;
use fairweir_core::units::Rate;

/// The loop's state.
#[derive(Clone, Debug)]
pub struct CrabPrinted {
    estimated: Rate,
    /// The sum of all lent rates.
    excess: Rate,
    flows: Vec<Flow>,
    ticks: u32,
    /// The largest sum over the groups in one tick of this window.
    total: Rate,
    /// The paper's `inc`, in thousandths.
    inc: u64,
    /// The group that is raised, and the total rate before the raise.
    raise: Option<(usize, Rate)>,
    raised_last: usize,
    command: Option<Command>,
    decision: Decision,
}

/// A flow group with the paper's attributes (Table 1).
#[derive(Clone, Copy, Debug)]
struct Flow {
    weight: Weight,
    /// Rate in the last tick; below, in the largest tick of the window.
    rate: Rate,
    observed: Rate,
    true_bw: Rate,
    lent: Rate,
    borrowed: Rate,
    assigned: Rate,
    state: GroupState,
}

impl Flow {
    fn new(weight: Weight) -> Flow {
        let zero = Rate::ZERO;
        Flow {
            weight,
            rate: zero,
            observed: zero,
            true_bw: zero,
            lent: zero,
            borrowed: zero,
            assigned: zero,
            state: GroupState::Idle,
        }
    }

    fn is_growing(&self, observed: Rate) -> bool {
        self.lent > Rate::ZERO && observed >= self.assigned.saturating_sub(self.lent)
    }

    /// The paper's flags; it uses the first one that holds.
    fn judged(&self) -> GroupState {
        let reached = self.observed + (self.observed / 10).max(HEADROOM);
        if self.is_growing(self.observed) {
            GroupState::Growing
        } else if reached >= self.assigned {
            GroupState::Saturating
        } else if reached < self.assigned.saturating_sub(self.lent) {
            GroupState::NonSaturating
        } else {
            GroupState::Lending
        }
    }
}

impl CrabPrinted {
    /// Starts the loop with the remembered estimate, or else with a large one (§3.5).
    ///
    /// # Errors
    /// [`ControllerError`] if there are no groups, or the remembered estimate is too low.
    pub fn new(
        weights: &[Weight],
        remembered: Option<Rate>,
    ) -> Result<CrabPrinted, ControllerError> {
        if weights.is_empty() {
            return Err(ControllerError::NoGroups);
        }
        if let Some(low) = remembered.filter(|&remembered| remembered < CAPACITY_MIN) {
            return Err(ControllerError::CapacityTooLow(low, CAPACITY_MIN));
        }
        let mut control = CrabPrinted {
            estimated: Rate::ZERO,
            excess: Rate::ZERO,
            flows: weights.iter().map(|&weight| Flow::new(weight)).collect(),
            ticks: 0,
            total: Rate::ZERO,
            inc: INC_FIRST,
            raise: None,
            raised_last: 0,
            command: None,
            decision: Decision::initial(weights.len()),
        };
        control.estimate(remembered.unwrap_or(ESTIMATE_FIRST));
        control.tell();
        Ok(control)
    }

    // --------------------------------------------------------------------------------------------
    // The window's end

    /// Finishes a raise, then does the first of the four acts that applies (§3.2).
    fn act(&mut self) -> Act {
        for flow in &mut self.flows {
            flow.state = flow.judged();
        }
        let raised = self.settle_raise();
        let first = |state| self.flows.iter().position(|f| f.state == state);
        let growing = first(GroupState::Growing);
        let saturating = first(GroupState::Saturating);
        let lender = first(GroupState::NonSaturating);
        let act = if let Some(group) = growing {
            self.reclaim();
            Act::Reclaim { group }
        } else if let (Some(group), Some(_)) = (lender, saturating) {
            self.lend();
            Act::Lend { group }
        } else if saturating.is_none() && self.total < self.estimated.scale(9, 10) {
            let from = self.estimated;
            self.estimate(self.total);
            Act::Decrease { from, to: self.total }
        } else {
            self.start_raise().unwrap_or(Act::Rest)
        };
        raised.unwrap_or(act)
    }

    /// A raise was useful if the total grew by a tenth and by 1 Mbit/s (§3.5, footnote 7).
    fn settle_raise(&mut self) -> Option<Act> {
        let (_, before) = self.raise.take()?;
        for flow in &mut self.flows {
            flow.assigned = flow.true_bw + flow.borrowed;
        }
        let significant = (self.total / 10).max(SIGNIFICANT_MIN);
        if self.total <= before + significant {
            self.inc = INC_FIRST;
            return None;
        }
        self.inc = (self.inc * 2).min(1_000);
        let (from, to) = (self.estimated, self.total);
        let before: Vec<Rate> = self.flows.iter().map(|f| f.true_bw).collect();
        self.estimated = to;
        self.share();
        // A lender has more to lend, since its demand is unchanged.
        for (flow, before) in self.flows.iter_mut().zip(before) {
            if flow.lent > Rate::ZERO {
                flow.lent = (flow.lent + flow.true_bw).saturating_sub(before);
            }
        }
        self.excess = self.flows.iter().map(|f| f.lent).sum();
        self.redivide();
        Some(Act::Increase { from, to })
    }

    /// Reclaims lent rates (§3.4).
    fn reclaim(&mut self) {
        for flow in self.flows.iter_mut().filter(|f| f.state == GroupState::Growing) {
            if flow.lent > flow.borrowed {
                self.excess = self.excess.saturating_sub(flow.lent);
            }
            flow.lent = Rate::ZERO;
        }
        self.redivide();
    }

    /// Lends unused rates (§3.3).
    fn lend(&mut self) {
        for flow in self.flows.iter_mut().filter(|f| f.state == GroupState::NonSaturating) {
            flow.lent = flow.assigned.saturating_sub(flow.observed + HEADROOM);
            if flow.lent > flow.borrowed {
                flow.lent = flow.lent.saturating_sub(flow.borrowed);
                flow.borrowed = Rate::ZERO;
            }
        }
        self.excess = self.flows.iter().map(|f| f.lent).sum();
        self.redivide();
    }

    fn start_raise(&mut self) -> Option<Act> {
        let count = self.flows.len();
        let mut turns = (1..=count).map(|i| (self.raised_last + i) % count);
        let group = turns.find(|&i| self.flows[i].state == GroupState::Saturating)?;
        let extra = self.estimated.scale(self.inc, 1_000);
        self.flows[group].assigned += extra;
        self.raised_last = group;
        self.raise = Some((group, self.total));
        Some(Act::Raise { group, extra })
    }

    // --------------------------------------------------------------------------------------------
    // Division

    /// Sets the estimated capacity, with nothing lent.
    fn estimate(&mut self, estimated: Rate) {
        self.estimated = estimated;
        self.excess = Rate::ZERO;
        for flow in &mut self.flows {
            (flow.lent, flow.borrowed) = (Rate::ZERO, Rate::ZERO);
        }
        self.share();
    }

    /// Each group's part of the estimate by weight.
    fn share(&mut self) {
        let sum = self.weight_sum();
        for flow in &mut self.flows {
            flow.true_bw = self.estimated.scale(flow.weight.as_u32().into(), sum);
            flow.assigned = flow.true_bw;
        }
    }

    fn weight_sum(&self) -> u64 {
        self.flows.iter().map(|f| u64::from(f.weight.as_u32())).sum()
    }

    /// Algorithm 1, with an end added.
    fn redivide(&mut self) {
        let sum = self.weight_sum();
        let demand = |f: &Flow| match f.lent > Rate::ZERO {
            true => (f.true_bw + f.borrowed).saturating_sub(f.lent),
            false => Rate::MAX,
        };
        let demands: Vec<Rate> = self.flows.iter().map(demand).collect();
        for (flow, &demand) in self.flows.iter_mut().zip(&demands) {
            flow.assigned = flow.true_bw;
            if demand > flow.assigned {
                (flow.lent, flow.borrowed) = (Rate::ZERO, Rate::ZERO);
            }
        }
        let mut excess = self.excess;
        for _ in 0..self.flows.len() {
            let mut residual = Rate::ZERO;
            for (flow, &demand) in self.flows.iter_mut().zip(&demands) {
                if demand > flow.assigned {
                    let part = excess.scale(flow.weight.as_u32().into(), sum);
                    flow.assigned += part;
                    flow.borrowed += part;
                }
                residual += flow.assigned.saturating_sub(demand);
            }
            excess = residual.min(self.estimated);
        }
        // Algorithm 1 adds the following in every pass.
        for (flow, &demand) in self.flows.iter_mut().zip(&demands) {
            flow.lent = flow.assigned.saturating_sub(demand);
        }
    }

    fn restart_window(&mut self) {
        (self.ticks, self.total) = (0, Rate::ZERO);
        for flow in &mut self.flows {
            flow.observed = Rate::ZERO;
        }
    }

    fn tell(&mut self) {
        let class = |f: &Flow| {
            let rate = f.assigned.max(CAPACITY_MIN);
            ClassRate { rate, ceil: rate, priority: 0, weight: f.weight, excess: Excess::Drop }
        };
        let classes = self.flows.iter().map(class).collect();
        self.command = Some(Command::SetRates(Allocation { total: None, classes }));
    }

    fn conclude(&mut self, observation: &Observation, act: Act) {
        let group = |f: &Flow| GroupDecision {
            rate: f.rate,
            demand: (f.lent > Rate::ZERO).then(|| f.assigned.saturating_sub(f.lent)),
            share: f.assigned,
            ceil: Some(f.assigned.max(CAPACITY_MIN)),
            state: f.state,
        };
        self.decision = Decision {
            at: observation.at,
            act,
            capacity: Some(self.estimated),
            enforcing: true,
            delay: None,
            groups: self.flows.iter().map(group).collect(),
        };
    }
}

impl Decider for CrabPrinted {
    fn handle_observation(&mut self, observation: &Observation) {
        assert_eq!(observation.groups.len(), self.flows.len(), "one sample for each group");
        if observation.interval < TICK / 2 || observation.interval > TICK * 2 {
            self.restart_window();
            return self.conclude(observation, Act::Measure);
        }
        let mut total = Rate::ZERO;
        for (flow, sample) in self.flows.iter_mut().zip(&observation.groups) {
            flow.rate = Rate::from_volume(sample.received, observation.interval);
            flow.observed = flow.observed.max(flow.rate);
            total += flow.rate;
        }
        self.total = self.total.max(total);
        self.ticks += 1;
        let is_growing = self.flows.iter().any(|f| f.is_growing(f.rate));
        if self.ticks < WINDOW_TICKS && !is_growing {
            return self.conclude(observation, Act::Measure);
        }
        let act = if self.total == Rate::ZERO { Act::Rest } else { self.act() };
        self.restart_window();
        self.tell();
        self.conclude(observation, act);
    }

    fn poll_command(&mut self) -> Option<Command> {
        self.command.take()
    }

    fn decision(&self) -> &Decision {
        &self.decision
    }
}

/// The paper's `n`, its headroom and smallest δ, its first `inc`, and the threshold of an increase.
const WINDOW_TICKS: u32 = 5;
const HEADROOM: Rate = Rate::kbit(250);
const INC_FIRST: u64 = 125;
const SIGNIFICANT_MIN: Rate = Rate::mbit(1);
/// "By keeping this estimate large, we can avoid probing at startup."
const ESTIMATE_FIRST: Rate = Rate::mbit(1_000);

#[cfg(test)]
mod tests {
    use super::*;
    use fairweir_core::share::Weight;

    fn printed(weights: &[u32]) -> CrabPrinted {
        let weights: Vec<Weight> = weights.iter().map(|&w| Weight::new(w).unwrap()).collect();
        CrabPrinted::new(&weights, Some(Rate::mbit(30))).unwrap()
    }

    #[test]
    fn excess_is_divided_by_the_weights_of_groups_that_want_no_more() {
        // The example from the decision to divide in a closed form: a film of weight 5 uses 10 of
        // its 25 Mbit/s, and a bulk download of weight 1 could have the other 20.
        let mut control = printed(&[5, 1]);
        control.flows[0].observed = Rate::mbit(10);
        control.flows[0].state = GroupState::NonSaturating;
        control.flows[1].state = GroupState::Saturating;
        control.lend();
        assert_eq!(control.excess, Rate::kbit(14_750));
        // A sixth of the excess is added in each of two passes: 5 + 2.458 + 2.458, and not 19.75.
        assert_eq!(control.flows[1].assigned.as_bps() / 1_000, 9_916);
        assert_eq!(control.flows[0].assigned, Rate::mbit(25), "a lender is enforced at its share");
    }

    #[test]
    fn below_8_mbit_per_second_no_raise_is_of_use() {
        let mut control = printed(&[1, 1]);
        control.estimate(Rate::mbit(7));
        for flow in &mut control.flows {
            (flow.observed, flow.state) = (Rate::kbit(3_500), GroupState::Saturating);
        }
        control.total = Rate::mbit(7);
        assert!(matches!(control.start_raise(), Some(Act::Raise { .. })));
        // Everything that the raise let through arrives, and it is less than 1 Mbit/s more.
        control.total = Rate::kbit(7_875);
        assert_eq!(control.settle_raise(), None);
        assert_eq!(control.estimated, Rate::mbit(7));
    }
}
