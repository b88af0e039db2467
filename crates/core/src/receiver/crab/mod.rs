//! CRAB's control loop: estimates capacity and demand from what arrives behind the bottleneck.
//!
//! The problem: a group that receives little may want little, or may be crowded out in the ISP's
//! queue; a total below the capacity may mean a lower capacity or a lower demand. The method: wait a
//! few RTTs after each act and judge by what changed. Windows of `n` ticks are judged by their
//! largest tick; then the first of these four acts that applies is taken:
//!
//! 1. **reclaim**: a group that had lent uses as much as its demand said: it gets its share back;
//! 2. **lend**: one group saturates while another does not use its share: the latter's demand is
//!    what it uses plus headroom, and the others divide the rest;
//! 3. **decrease**: less arrives than the link should carry and no group is held back;
//! 4. **raise**: a few saturating groups get more than their shares for one window; if more arrives
//!    in total, the capacity is higher than believed.
//!
//! Terms: `capacity` is what the link is believed to carry. A group's **demand** is one number:
//! `None` while it might want all, else its rate plus headroom. Its **share** is its max-min
//! fair share for these demands. Its **ceil**, which is enforced, is never below its share of the
//! capacity by weight alone, so that a group that lends can grow, be noticed, and take back. The paper's
//! lent and borrowed rates follow: lent is (weight share − demand), borrowed is
//! (share − weight share), each if positive. Source: CRAB §3; the numbers in comments refer to the
//! deviations that docs/research/papers/crab.md lists.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::{
    Act, Allocation, ClassRate, Command, Decision, Excess, GroupDecision, GroupState, Observation,
    TICK,
};
use crate::share::{Claims, Tree};
use crate::streak::Streak;
use crate::units::{Part, Rate, Span, Time};

mod group;

use group::{GroupLoop, HEADROOM_DIVISOR, HEADROOM_MIN, headroom};

/// The specification of CRAB's loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrabSpec {
    /// How the groups share, in the policy's order.
    pub weights: Tree,
    /// The remembered capacity of the link; the loop starts below it.
    pub remembered: Option<Rate>,
    /// How long the loop watches before it acts, and what lenders keep.
    pub tuning: CrabTuning,
}

/// The parameters that CRAB §5.6 varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrabTuning {
    /// How often the loop takes in what arrived, the paper's `t`.
    pub tick: Span,
    /// Ticks in a window, the paper's `n`.
    pub window_ticks: u32,
    /// The least that a lender keeps beyond what it uses.
    pub headroom: Rate,
    /// Failed raises until the turns begin again: the largest groups, all, the largest, all by twice as
    /// much.
    pub raise_turns: u32,
    /// Whether the capacity is estimated; otherwise the remembered capacity stays in force. Source:
    /// CRAB §5.4.
    pub estimates: bool,
}

impl CrabTuning {
    /// The loop of a receiving host: windows of 1 s. Source: CRAB §3.1, §3.3.
    pub const HOST: CrabTuning = CrabTuning {
        tick: TICK,
        window_ticks: 5,
        headroom: HEADROOM_MIN,
        raise_turns: 4,
        estimates: true,
    };

    /// The loop of a router: windows of 3 s, so that the hosts behind it settle before it judges,
    /// and no large raises, which change the capacity that they see. Source: CRAB §3.6.
    pub const ROUTER: CrabTuning = CrabTuning {
        window_ticks: 3 * CrabTuning::HOST.window_ticks,
        raise_turns: 2,
        ..CrabTuning::HOST
    };
}

/// The loop's state.
///
/// Invariants: the shares never sum to more than the capacity (the ceils may, by what is lent);
/// no ceil is below [`CEIL_MIN`]; while the capacity is unknown nothing is enforced.
#[derive(Clone, Debug)]
pub struct Crab {
    tuning: CrabTuning,
    capacity: Option<Rate>,
    /// The capacity as competing groups confirmed it, worth remembering. `capacity`
    /// itself also falls when no group wants more.
    learned: Option<Rate>,
    weights: Tree,
    groups: Vec<GroupLoop>,
    window: Window,
    /// The total before the last act, and the rate that the act added, if it was a raise.
    total_before_raise: Option<(Rate, Rate)>,
    /// Part of the capacity that the next raise adds, in thousandths: the paper's `inc`.
    raise_step: u64,
    /// Raises in a row that failed, modulo the number of turns.
    failed_raises: u32,
    /// Raises so far.
    raises: u64,
    /// The total of the previous window.
    total_last: Rate,
    /// Windows in a row in which the total stayed a little short of the capacity.
    short_windows: Streak,
    /// What arrived before the last act, if it was a loan.
    loan: Option<Loan>,
    command: Option<Command>,
    decision: Decision,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    ticks: u32,
    /// The largest sum over the groups in one tick, which is not the sum of the groups' maxima (4).
    total: Rate,
}

/// What arrived before a loan.
#[derive(Clone, Copy, Debug)]
struct Loan {
    /// In the largest tick of the window.
    total: Rate,
    /// In the last tick, for lenders and for the other groups: the rate that a loan moves shows at the end
    /// of a window, not in its largest tick.
    lenders: Rate,
    others: Rate,
}

impl Crab {
    /// Starts the loop: with nine tenths of the remembered capacity, or else unshaped until the first window
    /// in which enough arrives.
    ///
    /// # Panics
    /// If there are no groups or the window has no tick.
    pub fn new(spec: CrabSpec) -> Crab {
        assert!(!spec.weights.is_empty(), "there is at least the default group");
        assert!(spec.tuning.window_ticks > 0, "a window has at least one tick");
        assert!(spec.tuning.raise_turns > 0, "a group has a turn");
        let capacity = match spec.tuning.estimates {
            true => spec.remembered.map(|rate| rate * REMEMBERED_PART),
            false => spec.remembered,
        };
        let mut crab = Crab {
            tuning: spec.tuning,
            capacity,
            learned: None,
            groups: vec![GroupLoop::idle(); spec.weights.len()],
            window: Window::default(),
            total_before_raise: None,
            raise_step: RAISE_STEP_MIN,
            failed_raises: 0,
            raises: 0,
            total_last: Rate::ZERO,
            short_windows: Streak::default(),
            loan: None,
            command: None,
            decision: Decision::initial(spec.weights.len()),
            weights: spec.weights,
        };
        crab.divide();
        crab
    }

    pub(super) fn handle_observation(&mut self, observation: &Observation) {
        assert_eq!(observation.groups.len(), self.groups.len(), "one sample for each group");
        let tick = self.tuning.tick;
        let whole = observation.interval >= tick / 2 && observation.interval <= tick * 2;
        if !whole {
            // The daemon slept or was stopped: what was seen before says nothing about the present.
            self.restart_window();
            return self.conclude(observation.at, Act::Measure);
        }
        let mut total = Rate::ZERO;
        for (group, sample) in self.groups.iter_mut().zip(&observation.groups) {
            let rate = Rate::from_volume(sample.received, observation.interval);
            total += rate;
            group.take_in(rate, sample.drops > 0, sample.packets == 0, observation.interval);
        }
        self.window.total = self.window.total.max(total);
        self.window.ticks += 1;

        let growing = self.groups.iter().any(GroupLoop::is_growing);
        if self.capacity.is_some() && growing {
            let act = self.judge();
            return self.conclude(observation.at, act);
        }
        if self.window.ticks < self.tuning.window_ticks {
            return self.conclude(observation.at, Act::Measure);
        }
        let act = if self.capacity.is_some() { self.judge() } else { self.learn() };
        self.conclude(observation.at, act);
    }

    pub(super) fn poll_command(&mut self) -> Option<Command> {
        self.command.take()
    }

    pub(super) fn decision(&self) -> &Decision {
        &self.decision
    }

    pub(super) fn learned_capacity(&self) -> Option<Rate> {
        self.learned
    }

    pub(super) fn tuning(&self) -> CrabTuning {
        self.tuning
    }

    pub(super) fn handle_policy(&mut self, weights: Tree, kept: &[Option<usize>]) {
        let continued = |kept: &Option<usize>| match *kept {
            Some(old) => GroupLoop { raise_extra: Rate::ZERO, ..self.groups[old] },
            None => GroupLoop::idle(),
        };
        self.groups = kept.iter().map(continued).collect();
        self.weights = weights;
        self.total_before_raise = None;
        self.loan = None;
        self.restart_window();
        self.divide();
    }

    // --------------------------------------------------------------------------------------------
    // The window's end

    /// Takes the rate of the first busy window as the first capacity (10).
    fn learn(&mut self) -> Act {
        let total = self.window.total;
        if total <= LEARNED_MIN {
            self.restart_window();
            return Act::Bootstrap;
        }
        for group in self.groups.iter_mut().filter(|g| g.is_growing()) {
            group.demand = None;
        }
        self.restart_window();
        self.capacity = Some(total);
        self.divide();
        Act::Learn { to: total }
    }

    /// Ends the window: settles what the last act tried, then acts.
    fn judge(&mut self) -> Act {
        let total = self.window.total;
        for group in &mut self.groups {
            group.judge();
        }
        let raised = self.total_before_raise.is_some();
        let settled = self.settle_raise(total).or(self.settle_loan(total));
        let growing = self.groups.iter().any(|g| g.state == GroupState::Growing);
        let act = if raised && settled.is_none() && !growing {
            // A failed raise overfilled the link and crowded other groups out, so this window says nothing
            // about demand or capacity; the next window, without a raise, does.
            Act::Rest
        } else {
            self.act(total)
        };
        self.total_last = total;
        self.restart_window();
        self.divide();
        // What was learned about the capacity says more than the routine act that follows it.
        settled.unwrap_or(act)
    }

    /// A raise succeeded if at least half of what the smallest raise adds arrived (7). The paper requires
    /// a tenth of the total, which no raise can bring near the capacity or below 8 Mbit/s.
    /// The link carries in any case what arrived clearly beyond the estimate.
    fn settle_raise(&mut self, total: Rate) -> Option<Act> {
        let (before, extra) = self.total_before_raise.take()?;
        let from = self.capacity?;
        for group in &mut self.groups {
            group.raise_extra = Rate::ZERO;
        }
        let significant = extra.min(raise_extra(from, RAISE_STEP_MIN)) / 2;
        let beyond = total >= from + (from / BEYOND_DIVISOR).max(BEYOND_MIN);
        if beyond || (total >= before + significant && total > from) {
            self.raise_step = (self.raise_step * RAISE_STEP_FACTOR).min(1_000);
            self.capacity = Some(total);
            self.learned = Some(total);
            return Some(Act::Increase { from, to: total });
        }
        self.raise_step = RAISE_STEP_MIN;
        self.failed_raises = (self.failed_raises + 1) % self.tuning.raise_turns;
        // A single group may just want no more; several groups that all saturate fill the link.
        let several = self.groups.iter().filter(|g| g.state == GroupState::Saturating).count() > 1;
        if several && total >= from.scale(9, 10) {
            self.learned = Some(total.min(from));
        }
        None
    }

    /// A loan is undone if the borrowers won what the lenders lost (15): the lenders did not lack demand
    /// but were crowded out in the ISP's queue, because the capacity is lower than believed.
    fn settle_loan(&mut self, total: Rate) -> Option<Act> {
        let before = self.loan.take()?;
        let from = self.capacity?;
        let (lenders, others) = self.last_tick();
        let lost = before.lenders.saturating_sub(lenders);
        let won = others.saturating_sub(before.others);
        let moved = lost > before.lenders.scale(3, 100) && won >= lost / 2;
        if !moved || total >= before.total.scale(102, 100) || total >= from.scale(99, 100) {
            return None;
        }
        self.lower_capacity(total);
        self.learned = self.capacity;
        Some(Act::UndoLoan { from, to: total })
    }

    /// The rates of the last tick, for lenders and for the other groups.
    fn last_tick(&self) -> (Rate, Rate) {
        let lends = |g: &&GroupLoop| g.demand.is_some_and(|d| d > Rate::ZERO);
        let all: Rate = self.groups.iter().map(|g| g.rate).sum();
        let lenders: Rate = self.groups.iter().filter(lends).map(|g| g.rate).sum();
        (lenders, all.saturating_sub(lenders))
    }

    /// The four acts in the order of CRAB §3.2.
    fn act(&mut self, total: Rate) -> Act {
        let Some(capacity) = self.capacity else { return Act::Bootstrap };
        let is = |state: GroupState| move |g: &GroupLoop| g.state == state;
        if let Some(group) = self.groups.iter().position(is(GroupState::Growing)) {
            for growing in self.groups.iter_mut().filter(|g| g.state == GroupState::Growing) {
                growing.demand = None;
            }
            return Act::Reclaim { group };
        }
        let saturating = self.groups.iter().any(is(GroupState::Saturating));
        let lender = self.groups.iter().position(is(GroupState::NonSaturating));
        if let Some(group) = lender.filter(|_| saturating) {
            self.lend(capacity);
            let (lenders, others) = self.last_tick();
            self.loan = self.tuning.estimates.then_some(Loan { total, lenders, others });
            return Act::Lend { group };
        }
        // While a group is growing towards a share that it was just given, nothing can be concluded about
        // the capacity (9).
        if self.groups.iter().any(is(GroupState::Rising)) {
            return Act::Rest;
        }
        if !self.tuning.estimates {
            return Act::Rest;
        }
        // An idle link says nothing about its capacity, hence the lower bound (11, 15).
        let lacking = total >= capacity.scale(25, 100) && total < capacity.scale(90, 100);
        let settled = total < self.total_last.scale(102, 100);
        if !saturating && lacking && settled {
            self.lower_capacity(total);
            return Act::Decrease { from: capacity, to: total };
        }
        if let Some(to) = self.slightly_less(capacity, settled) {
            self.capacity = Some(to.max(super::CAPACITY_MIN));
            self.learned = self.capacity;
            return Act::Decrease { from: capacity, to };
        }
        self.start_raise(capacity, total).unwrap_or(Act::Rest)
    }

    /// A capacity a little below the believed one, if the sum of the saturating groups stays short of
    /// their shares twice: the link is then full (7). Demands are right and stay.
    fn slightly_less(&mut self, capacity: Rate, settled: bool) -> Option<Rate> {
        let saturating = || self.groups.iter().filter(|g| g.state == GroupState::Saturating);
        let arrived: Rate = saturating().map(|g| g.observed).sum();
        let shares: Rate = saturating().map(|g| g.share).sum();
        let short = settled && arrived < shares.scale(985, 1_000);
        self.short_windows.count(short);
        if self.short_windows.length() < SHORT_WINDOWS {
            return None;
        }
        self.short_windows.end();
        Some(capacity.saturating_sub(shares.saturating_sub(arrived)))
    }

    /// Sets the demand of each group that does not saturate to what it uses plus headroom. The
    /// headrooms together take at most a twentieth of the capacity (5).
    fn lend(&mut self, capacity: Rate) {
        let lenders = || self.groups.iter().filter(|g| g.state == GroupState::NonSaturating);
        let least = self.tuning.headroom;
        let wanted: Rate = lenders().map(|g| headroom(g.observed, least)).sum();
        let most = capacity / HEADROOM_DIVISOR;
        for group in self.groups.iter_mut().filter(|g| g.state == GroupState::NonSaturating) {
            let mut headroom = headroom(group.observed, least);
            if wanted > most {
                headroom = headroom.scale(most.as_bps(), wanted.as_bps());
            }
            group.demand = Some(group.observed + headroom);
        }
    }

    /// Believes in a lower capacity and forgets what was concluded under the higher one.
    fn lower_capacity(&mut self, to: Rate) {
        self.capacity = Some(to.max(super::CAPACITY_MIN));
        for group in self.groups.iter_mut().filter(|g| !g.is_idle()) {
            group.demand = None;
        }
    }

    /// Gives some saturating groups more for one window, in proportion to their shares (8): the
    /// largest groups, as many as needed that each grows by at most half. At a full link this does the least harm,
    /// since the smaller groups keep to their ceils, and the largest deserve what these leave.
    /// But the senders of the largest groups may be the limit: every second raise in a row of failures
    /// raises all groups, and every fourth raises all by twice as much.
    fn start_raise(&mut self, capacity: Rate, total: Rate) -> Option<Act> {
        let mut raised: Vec<usize> = (0..self.groups.len())
            .filter(|&i| self.groups[i].state == GroupState::Saturating)
            .collect();
        let mut extra = raise_extra(capacity, self.raise_step);
        // If some groups cannot use their part, more is needed to show what the others use.
        if self.failed_raises == LARGE_RAISE_TURN {
            extra = extra * 2;
        }
        if self.failed_raises.is_multiple_of(2) {
            // Equal shares differ by rounding; among equals the group that has waited longest comes first.
            let share_kbit = |g: &GroupLoop| g.share.as_bps() / 1_000;
            raised.sort_by_key(|&i| (Reverse(share_kbit(&self.groups[i])), self.groups[i].raised));
            let mut sum = Rate::ZERO;
            let enough = raised.iter().position(|&i| {
                sum += self.groups[i].share;
                sum >= extra * 2
            });
            raised.truncate(enough.map_or(raised.len(), |last| last + 1));
        }
        let first = *raised.first()?;
        let sum: Rate = raised.iter().map(|&i| self.groups[i].share).sum();
        self.raises += 1;
        for &i in &raised {
            let group = &mut self.groups[i];
            group.raise_extra = extra.scale(group.share.as_bps(), sum.as_bps().max(1));
            group.raised = self.raises;
        }
        self.total_before_raise = Some((total, extra));
        Some(Act::Raise { group: first, extra })
    }

    // --------------------------------------------------------------------------------------------
    // What follows from capacity and demands

    /// Divides the capacity and queues the command for the enforcer.
    fn divide(&mut self) {
        let Some(capacity) = self.capacity else { return };
        let demand = |g: &GroupLoop| if g.is_unresponsive() { Some(Rate::ZERO) } else { g.demand };
        let demands: Vec<Option<Rate>> = self.groups.iter().map(demand).collect();
        let capacity = capacity * DIVIDED_PART;
        let claims = Claims { demands: &demands, taken: &[] };
        let shares = self.weights.divide(self.divisible(capacity), claims);
        let endless = vec![None; self.groups.len()];
        let by_weight = self.weights.divide(capacity, Claims { demands: &endless, taken: &[] });
        for (i, group) in self.groups.iter_mut().enumerate() {
            group.share = shares[i];
            let base = if group.demand.is_none() && !group.is_unresponsive() {
                shares[i]
            } else {
                // A group that lends may grow up to its own share: that is how growth is noticed (3).
                shares[i].max(by_weight[i])
            };
            group.ceil = (base + group.raise_extra).max(CEIL_MIN);
        }
        let classes = self.groups.iter().zip(self.weights.weights());
        let classes = classes.map(|(g, weight)| ClassRate {
            rate: g.ceil,
            ceil: g.ceil,
            priority: 0,
            weight,
            excess: Excess::Drop,
        });
        self.command =
            Some(Command::SetRates(Allocation { total: None, classes: classes.collect() }));
    }

    /// The rate to divide: unresponsive groups keep their rates, and the other groups divide
    /// the rest, which is at least what they have now (12).
    fn divisible(&self, capacity: Rate) -> Rate {
        let rates = |unresponsive: bool| -> Rate {
            let some = self.groups.iter().filter(|g| g.is_unresponsive() == unresponsive);
            some.map(|g| g.rate).sum()
        };
        match rates(true) {
            Rate::ZERO => capacity,
            taken => capacity.saturating_sub(taken).max(rates(false)),
        }
    }

    fn restart_window(&mut self) {
        self.window = Window::default();
        for group in &mut self.groups {
            group.observed = Rate::ZERO;
            group.observed_min = Rate::MAX;
            group.dropped = false;
        }
    }

    fn conclude(&mut self, at: Time, act: Act) {
        let enforcing = self.capacity.is_some();
        let groups = self.groups.iter().map(|g| GroupDecision {
            rate: g.rate,
            demand: g.demand,
            share: g.share,
            ceil: enforcing.then_some(g.ceil),
            state: g.state,
        });
        let groups = groups.collect();
        let capacity = self.capacity;
        self.decision = Decision { at, act, capacity, enforcing, delay: None, groups };
    }
}

/// The rate that a raise adds in total.
fn raise_extra(capacity: Rate, step: u64) -> Rate {
    capacity.scale(step, 1_000).max(RAISE_MIN)
}

/// The first raise adds a sixteenth of the capacity, and each that succeeds makes the next four
/// times as large: docs/decisions/0001. The paper has an eighth, and doubles (§3.5).
const RAISE_STEP_MIN: u64 = 62;
const RAISE_STEP_FACTOR: u64 = 4;
/// A raise adds at least this rate; otherwise noise would decide.
const RAISE_MIN: Rate = Rate::kbit(500);
/// Windows without a raise after which a total short of the capacity is taken as the capacity.
const SHORT_WINDOWS: u32 = 2;
/// A rate above the estimate by a fiftieth, and by four packets in a tick, is not noise.
const BEYOND_DIVISOR: u64 = 50;
const BEYOND_MIN: Rate = Rate::kbit(250);
/// The turn in which all groups are raised by twice as much.
const LARGE_RAISE_TURN: u32 = 3;
/// The loop starts at nine tenths of the remembered capacity, since it rises more easily than it falls.
const REMEMBERED_PART: Part = Part::of(9, 10);
/// Part of the capacity that is divided: the rest lets the ISP's queue drain between two raises.
/// Otherwise that queue would again decide on the shares (docs/decisions/0001).
const DIVIDED_PART: Part = Part::percent(98);
/// A window with a lower total says nothing about the capacity.
const LEARNED_MIN: Rate = Rate::mbit(1);
/// No class is throttled below this.
const CEIL_MIN: Rate = Rate::kbit(100);
