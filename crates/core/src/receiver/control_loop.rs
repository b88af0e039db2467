//! The control loop around a controller: from samples to enforced rates and windows.
//!
//! The problem: the daemon and the simulator both count what arrives, hand it to a [`Controller`] and
//! carry out its commands. Where they differ, the simulator validates nothing. The method: both use this
//! loop. The caller measures, and an [`Enforcer`] applies the desired state: in the kernel for the
//! daemon, in a model of the kernel for the simulator.
//!
//! ```text
//! every tick:  count(groups) → interval ─→ decide(observation) ─→ enforce(enforcer)
//! ```
//!
//! Terms: the *desired state* is the last allocation and the last windows that the controller
//! commanded. It is *stale* until the enforcer has applied it.

use std::fmt;

use super::class::RATE_UNBOUNDED;
use super::supervisor::{self, Supervisor, Verdict};
use super::{
    Act, Allocation, Beside, Command, Controller, ControllerSpec, Decision, GroupSample,
    GroupState, Observation, Windows,
};
use crate::market::guarantee::Step;
use crate::share::Tree;
use crate::units::{Rate, Span, Time};

/// What a [`ControlLoop`] drives: it takes in what was measured and says what to enforce, and why.
pub trait Decider: fmt::Debug {
    /// Takes in what was measured in one interval; drain [`Decider::poll_command`] after it.
    ///
    /// # Panics
    /// If the observation has another number of groups than the policy.
    fn handle_observation(&mut self, observation: &Observation);

    /// The next command for the enforcer.
    fn poll_command(&mut self) -> Option<Command>;

    /// What was decided in the last tick, and why.
    fn decision(&self) -> &Decision;

    /// Target of the queue at the ISP if the capacity is learned and can be wrong: the loop then compares
    /// with the rate that arrives without control.
    fn supervised_target(&self) -> Option<Span> {
        None
    }

    /// What stays enforced while everything else passes; `None` if nothing does.
    fn kept(&self) -> Option<(Allocation, Windows)> {
        None
    }

    /// Whether the queue is emptied now, to see delays without it.
    fn drains(&self) -> bool {
        false
    }
}

impl<D: Decider + ?Sized> Decider for Box<D> {
    fn handle_observation(&mut self, observation: &Observation) {
        (**self).handle_observation(observation);
    }

    fn poll_command(&mut self) -> Option<Command> {
        (**self).poll_command()
    }

    fn decision(&self) -> &Decision {
        (**self).decision()
    }

    fn supervised_target(&self) -> Option<Span> {
        (**self).supervised_target()
    }

    fn kept(&self) -> Option<(Allocation, Windows)> {
        (**self).kept()
    }

    fn drains(&self) -> bool {
        (**self).drains()
    }
}

impl Decider for Controller {
    fn handle_observation(&mut self, observation: &Observation) {
        self.handle_observation(observation);
    }

    fn poll_command(&mut self) -> Option<Command> {
        self.poll_command()
    }

    fn decision(&self) -> &Decision {
        self.decision()
    }

    fn supervised_target(&self) -> Option<Span> {
        match self {
            // A bound costs throughput on purpose, so it is not supervised.
            Controller::Fairweir(fairweir) => {
                fairweir.bound().is_none().then(|| fairweir.queue_target())
            }
            Controller::Fixed(_) | Controller::Crab(_) | Controller::Rbm(_) => None,
        }
    }

    fn kept(&self) -> Option<(Allocation, Windows)> {
        match self {
            Controller::Fairweir(fairweir) => fairweir.caps_alone(),
            Controller::Fixed(_) | Controller::Crab(_) | Controller::Rbm(_) => None,
        }
    }

    fn drains(&self) -> bool {
        match self {
            Controller::Fairweir(fairweir) => fairweir.drains(),
            Controller::Fixed(_) | Controller::Crab(_) | Controller::Rbm(_) => false,
        }
    }
}

/// Applies the desired state.
pub trait Enforcer {
    /// Why a state could not be applied.
    type Error;

    /// Sets the classes to these rates.
    ///
    /// # Errors
    /// If it cannot; the next [`ControlLoop::enforce`] tries again.
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Self::Error>;

    /// Lets everything pass unshaped.
    ///
    /// # Errors
    /// As [`Enforcer::apply`].
    fn release(&mut self) -> Result<(), Self::Error>;

    /// Sets the receive windows to these bounds.
    ///
    /// # Errors
    /// As [`Enforcer::apply`].
    fn apply_windows(&mut self, windows: &Windows) -> Result<(), Self::Error>;

    /// Lifts the bounds of all windows.
    ///
    /// # Errors
    /// As [`Enforcer::apply`].
    fn release_windows(&mut self) -> Result<(), Self::Error>;
}

/// What one group received since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupTotals {
    /// The rate in the last interval.
    pub rate: Rate,
    /// Sums since the start, except for the backlog, which is the latest value.
    pub sum: GroupSample,
}

/// What is known of the link's queue after a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtLink {
    /// Whether the queue was almost empty; `None` if unknown.
    pub is_idle: Option<bool>,
    /// Whether windows are narrowed now, so that the queue empties.
    pub drains: bool,
}

/// A controller, its desired state, and what the groups received.
///
/// Invariant: after a successful [`ControlLoop::enforce`] the enforcer has the desired state.
#[derive(Clone, Debug)]
pub struct ControlLoop<D = Controller> {
    controller: D,
    pub(super) supervisor: Supervisor,
    /// Whether everything passes, whatever the controller wants.
    pub(super) is_released: bool,
    /// Whether everything passes because another host divides.
    pub(super) is_delegated: bool,
    pub(super) decision: Decision,
    /// `None` means that nothing is shaped.
    allocation: Option<Allocation>,
    /// `None` means that windows have no bounds.
    windows: Option<Windows>,
    /// What stays enforced while everything else passes for a comparison.
    pub(super) kept: Option<(Allocation, Windows)>,
    are_rates_stale: bool,
    are_windows_stale: bool,
    pub(super) totals: Vec<GroupTotals>,
    observed_at: Time,
}

impl<D: Decider> ControlLoop<D> {
    /// A loop that begins at `now` with nothing enforced; the first desired state is what the controller
    /// commands at its start.
    pub fn new(controller: D, groups: usize, now: Time) -> ControlLoop<D> {
        let mut control = ControlLoop {
            supervisor: Supervisor::new(),
            is_released: false,
            is_delegated: false,
            decision: controller.decision().clone(),
            controller,
            allocation: None,
            windows: None,
            kept: None,
            are_rates_stale: false,
            are_windows_stale: false,
            totals: vec![GroupTotals::default(); groups],
            observed_at: now,
        };
        control.drain();
        control
    }

    /// The controller.
    pub fn controller(&self) -> &D {
        &self.controller
    }

    /// What was decided last.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What each group received since the start, in the policy's order.
    pub fn totals(&self) -> &[GroupTotals] {
        &self.totals
    }

    /// What the last tick says about the queue.
    pub fn at_link(&self) -> AtLink {
        let target = self.controller.supervised_target();
        let delay = self.decision.delay.zip(target);
        let is_idle = delay.map(|(delay, target)| delay.value < target / 4);
        AtLink { is_idle, drains: !self.is_released && self.controller.drains() }
    }

    /// Whether anything is to be enforced.
    pub fn is_enforcing(&self) -> bool {
        match self.is_released {
            true => self.kept.is_some(),
            false => self.allocation.is_some() || self.windows.is_some(),
        }
    }

    // --------------------------------------------------------------------------------------------
    // A tick

    /// Counts what the groups received until `now`; returns how long the interval was.
    ///
    /// # Panics
    /// If there is not one sample for each group.
    pub fn count(&mut self, now: Time, groups: &[GroupSample]) -> Span {
        assert_eq!(groups.len(), self.totals.len(), "one sample for each group");
        let interval = now.since(self.observed_at);
        self.observed_at = now;
        for (totals, sample) in self.totals.iter_mut().zip(groups) {
            totals.rate = Rate::from_volume(sample.received, interval);
            totals.sum.received += sample.received;
            totals.sum.packets += sample.packets;
            totals.sum.drops += sample.drops;
            totals.sum.backlog = sample.backlog;
        }
        interval
    }

    /// Leaves out the time until `now`, in which nothing could be counted.
    pub fn skip_to(&mut self, now: Time) {
        self.observed_at = now;
    }

    /// Lets the controller decide; [`ControlLoop::enforce`] makes it real.
    ///
    /// # Panics
    /// If the observation has another number of groups than the policy.
    pub fn decide(&mut self, observation: &Observation) {
        self.controller.handle_observation(observation);
        self.decision.clone_from(self.controller.decision());
        self.drain();
        if let Beside::Told(_) = observation.beside {
            // Another host decides what this host may take, so there is nothing to compare.
            self.end_comparison();
        } else if let Some(target) = self.controller.supervised_target() {
            self.supervise(observation, target);
        }
    }

    /// Supervises what control costs, and lets everything pass while it costs throughput.
    fn supervise(&mut self, observation: &Observation, target: Span) {
        let decision = &self.decision;
        let verdict = self.supervisor.handle_tick(&supervisor::Tick {
            at: observation.at,
            total: decision.groups.iter().map(|g| g.rate).sum::<Rate>()
                + observation.beside.others(),
            is_enforcing: decision.enforcing,
            is_wanted: decision.groups.iter().any(|g| g.state == GroupState::Saturating),
            has_room: decision.delay.map(|delay| delay.least < target / 4),
        });
        let is_released = verdict != Verdict::Enforce;
        if is_released != self.is_released {
            self.is_released = is_released;
            self.handle_lost_state();
        }
        let kept = is_released.then(|| self.controller.kept()).flatten();
        if kept != self.kept {
            self.kept = kept;
            self.handle_lost_state();
        }
        match verdict {
            Verdict::Enforce => return,
            Verdict::Compare => self.decision.act = Act::Compare,
            Verdict::LetGo => self.decision.act = Act::LetGo,
        }
        self.decision.enforcing = self.kept.is_some();
        let classes = self.kept.iter().flat_map(|(allocation, _)| &allocation.classes);
        let mut ceils = classes.map(|class| Some(class.ceil).filter(|&ceil| ceil < RATE_UNBOUNDED));
        self.decision.groups.iter_mut().for_each(|g| g.ceil = ceils.next().flatten());
    }

    /// Ends a comparison: the decision is enforced from now on.
    fn end_comparison(&mut self) {
        if self.is_released && !self.is_delegated {
            (self.supervisor, self.is_released, self.kept) = (Supervisor::new(), false, None);
            self.handle_lost_state();
        }
    }

    /// Passes to the enforcer what has changed since the last call.
    ///
    /// # Errors
    /// The enforcer's error; a state that it did not apply stays stale.
    pub fn enforce<E: Enforcer>(&mut self, enforcer: &mut E) -> Result<(), E::Error> {
        if self.are_rates_stale {
            let kept = self.kept.as_ref().map(|(allocation, _)| allocation);
            match if self.is_released { kept } else { self.allocation.as_ref() } {
                Some(allocation) => enforcer.apply(allocation)?,
                None => enforcer.release()?,
            }
            self.are_rates_stale = false;
        }
        if self.are_windows_stale {
            let kept = self.kept.as_ref().map(|(_, windows)| windows);
            match if self.is_released { kept } else { self.windows.as_ref() } {
                Some(windows) => enforcer.apply_windows(windows)?,
                None => enforcer.release_windows()?,
            }
            self.are_windows_stale = false;
        }
        Ok(())
    }

    /// The enforcer has lost its state: the next [`ControlLoop::enforce`] passes everything again.
    pub fn handle_lost_state(&mut self) {
        (self.are_rates_stale, self.are_windows_stale) = (true, true);
    }

    /// Takes over the controller's commands; of each kind the last one counts.
    fn drain(&mut self) {
        while let Some(command) = self.controller.poll_command() {
            match command {
                Command::SetRates(allocation) => {
                    self.allocation = Some(allocation);
                    self.are_rates_stale |= !self.is_released;
                }
                Command::SetWindows(windows) => {
                    let groups = self.totals.len();
                    debug_assert_eq!(windows.initial.len(), groups, "one for each group");
                    self.windows = Some(windows);
                    self.are_windows_stale |= !self.is_released;
                }
                Command::Release => {
                    (self.allocation, self.windows) = (None, None);
                    self.handle_lost_state();
                }
            }
        }
    }
}

impl ControlLoop {
    /// Continues with the same controller under another specification and policy: group `i` continues
    /// group `kept[i]` of the old policy; `None` means that the group is new.
    ///
    /// # Panics
    /// If the controller cannot take the specification over
    /// ([`Controller::can_take_over`]), or `kept` does not fit the policies.
    pub fn handle_policy(
        &mut self,
        spec: &ControllerSpec,
        weights: impl Into<Tree>,
        kept: &[Option<usize>],
    ) {
        self.forget(kept);
        self.controller.handle_spec(spec);
        self.controller.handle_policy(weights, kept);
        self.decision.clone_from(self.controller.decision());
        self.drain();
    }

    /// As [`Controller::handle_guarantee`].
    pub fn handle_guarantee(&mut self, step: &Step, now: Time) -> bool {
        let follows = self.controller.handle_guarantee(step, now);
        self.drain();
        follows
    }

    /// As [`Controller::hold`]; a bound ends a comparison with what passes without control.
    pub fn hold(&mut self, bound: Option<Rate>, now: Time) {
        if !self.controller.hold(bound, now) {
            return;
        }
        if bound.is_some() {
            self.end_comparison();
        }
        self.decision.clone_from(self.controller.decision());
        self.drain();
    }

    /// Continues with another controller; `kept` as in [`ControlLoop::handle_policy`].
    ///
    /// # Panics
    /// If `kept` does not fit the old policy.
    pub fn replace(&mut self, controller: Controller, kept: &[Option<usize>]) {
        self.forget(kept);
        self.controller = controller;
        self.supervisor = Supervisor::new();
        self.is_released = self.is_delegated;
        self.decision.clone_from(self.controller.decision());
        self.drain();
    }

    /// Forgets the desired state, which is for the old groups.
    fn forget(&mut self, kept: &[Option<usize>]) {
        let continued =
            |old: &Option<usize>| old.map_or_else(GroupTotals::default, |i| self.totals[i]);
        self.totals = kept.iter().map(continued).collect();
        (self.allocation, self.windows, self.kept) = (None, None, None);
        self.handle_lost_state();
        // Commands that were not drained are for the old groups too.
        while self.controller.poll_command().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Control, Enforce, TICK};
    use super::*;
    use crate::share::Weight;
    use crate::units::Bytes;

    /// An enforcer that records its calls, and refuses on demand.
    #[derive(Debug, Default, PartialEq)]
    struct Log {
        told: Vec<&'static str>,
        classes: Vec<Rate>,
        refuses: bool,
    }

    impl Log {
        fn tell(&mut self, what: &'static str) -> Result<(), ()> {
            self.told.push(what);
            if self.refuses { Err(()) } else { Ok(()) }
        }

        fn take(&mut self) -> Vec<&'static str> {
            std::mem::take(&mut self.told)
        }
    }

    impl Enforcer for Log {
        type Error = ();
        fn apply(&mut self, allocation: &Allocation) -> Result<(), ()> {
            self.classes = allocation.classes.iter().map(|c| c.rate).collect();
            self.tell("apply")
        }
        fn release(&mut self) -> Result<(), ()> {
            self.tell("release")
        }
        fn apply_windows(&mut self, _: &Windows) -> Result<(), ()> {
            self.tell("apply windows")
        }
        fn release_windows(&mut self) -> Result<(), ()> {
            self.tell("release windows")
        }
    }

    fn weights(of: &[u32]) -> Vec<Weight> {
        of.iter().map(|&w| Weight::new(w).unwrap()).collect()
    }

    fn spec(control: Control) -> ControllerSpec {
        ControllerSpec::new(control, Some(Rate::mbit(30))).unwrap()
    }

    fn controller(spec: &ControllerSpec, of: &[u32]) -> Controller {
        Controller::new(spec, weights(of), Some(Rate::mbit(30))).unwrap()
    }

    fn tick(control: &mut ControlLoop, now: Time, received: &[u64]) -> Span {
        let group = |&bytes: &u64| GroupSample {
            received: Bytes::new(bytes),
            packets: bytes.div_ceil(1_514),
            ..GroupSample::default()
        };
        let groups: Vec<GroupSample> = received.iter().map(group).collect();
        let interval = control.count(now, &groups);
        control.decide(&Observation { at: now, interval, groups, ..Observation::default() });
        interval
    }

    #[test]
    fn the_enforcer_is_told_once_and_again_after_it_refused_or_lost_its_state() {
        let mut control =
            ControlLoop::new(controller(&spec(Control::Static), &[5, 1]), 2, Time::ZERO);
        let mut log = Log { refuses: true, ..Log::default() };
        assert_eq!(control.enforce(&mut log), Err(()));
        log.refuses = false;
        assert_eq!(control.enforce(&mut log), Ok(()));
        assert_eq!(log.take(), ["apply", "apply"]);
        assert_eq!(log.classes, [Rate::mbit(25), Rate::mbit(5)]);
        tick(&mut control, Time::ZERO + TICK, &[1_000, 0]);
        control.enforce(&mut log).unwrap();
        assert_eq!(log.take(), [""; 0], "nothing has changed");
        control.handle_lost_state();
        control.enforce(&mut log).unwrap();
        assert_eq!(log.take(), ["apply", "release windows"]);
    }

    #[test]
    fn what_another_specification_does_not_enforce_is_released() {
        let fairweir = spec(Control::Fairweir);
        let mut control = ControlLoop::new(controller(&fairweir, &[5, 1]), 2, Time::ZERO);
        let mut log = Log::default();
        control.enforce(&mut log).unwrap();
        assert_eq!(log.take(), ["apply", "apply windows"]);
        let kept = [Some(0), Some(1)];
        for (enforce, told) in [
            (Enforce::Htb, ["apply", "release windows"]),
            (Enforce::Window, ["release", "apply windows"]),
            (Enforce::Auto, ["apply", "apply windows"]),
        ] {
            let spec = fairweir.with_enforce(enforce);
            control.handle_policy(&spec, weights(&[5, 1]), &kept);
            control.enforce(&mut log).unwrap();
            assert_eq!(log.take(), told, "{enforce:?}");
        }
        control.replace(controller(&spec(Control::None), &[5, 1]), &kept);
        control.enforce(&mut log).unwrap();
        assert_eq!(log.take(), ["release", "release windows"]);
        assert!(!control.is_enforcing());
    }

    #[test]
    fn groups_keep_their_totals_over_changes() {
        let none = spec(Control::None);
        let mut control = ControlLoop::new(controller(&none, &[1, 1]), 2, Time::ZERO);
        let interval = tick(&mut control, Time::ZERO + TICK, &[25_000, 0]);
        assert_eq!(interval, TICK);
        tick(&mut control, Time::ZERO + TICK * 2, &[50_000, 100]);
        assert_eq!(control.totals()[0].rate, Rate::mbit(2));
        assert_eq!(control.totals()[0].sum.received, Bytes::new(75_000));
        control.handle_policy(&none, weights(&[1, 2, 3]), &[None, Some(0), Some(1)]);
        let received: Vec<u64> = control.totals().iter().map(|t| t.sum.received.as_u64()).collect();
        assert_eq!(received, [0, 75_000, 100]);
        control.skip_to(Time::ZERO + TICK * 10);
        assert_eq!(tick(&mut control, Time::ZERO + TICK * 11, &[0, 0, 0]), TICK);
    }
}
