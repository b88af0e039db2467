//! The default control: capacity from a busy link, shares by receive windows.
//!
//! The problem: CRAB has to guess why little arrives in total, keeps the ISP's queue full and signals by
//! losses. The method, every tick:
//!
//! 1. **delay**: what the queue of the access link adds, from the timestamps of packets that arrive;
//! 2. **capacity**: a link that was busy throughout carries what arrived;
//! 3. **demand**: a connection that fills its window would take more; one that does not is limited
//!    by its sender, and its group leaves the rest of its share to the other groups;
//! 4. **share**: weighted max-min fair by demand;
//! 5. **enforcement**: a connection's window is its part of the share times (RTT without the queue +
//!    the queue's target), so all windows together keep the link busy and the queue at its target,
//!    whatever the RTTs. Classes a quarter above the shares delay what exceeds them; a group without windows
//!    has a class at its share, which drops the excess.
//!
//! Now and then the windows are narrowed for a moment and the queue drains. The delays seen then
//! are taken as the delays without the queue. While the capacity is unknown nothing is enforced: a link
//! that was never busy has nothing to share.
//!
//! This needs a bottleneck with a queue that follows the windows. Where packets are lost although none
//! waits in a queue, the capacity is the rate that is not lost (`loss`). Where other hosts keep the queue
//! full, what this host gets beside them is divided (`rivals`). In both cases classes hold the shares,
//! as they do where less may pass than the link carries (`held`).
//!
//! | module | contains |
//! |---|---|
//! | `link` | the capacity, learned from the queue |
//! | `loss` | the capacity, learned from losses |
//! | `assumption` | a link that may have been full when the control began |
//! | `rivals` | what this host gets while others fill the queue |
//! | `beside` | other hosts that divide the link with this one |
//! | `held` | a bound on the rate, set from outside |
//! | `caps` | caps of groups |
//! | `group` | demand of a group |
//! | `rhythm` | groups that pause and come back |
//! | `asked` | devices behind this router that divide their own share |
//! | `contest` | how long the queue may be while others fill it |
//! | `seen` | what an observation says of losses, connections and groups |
//! | `squeeze` | groups that queue management at the ISP keeps below their shares |
//! | `opening` | how wide all windows are together |
//! | `drain` | emptying the queue to see delays without it |
//! | `windows` | from shares to windows |
//!
//! Terms: *window law*, W = share · (base RTT + queue target) (Spring et al. §III, weighted);
//! *filled*: a window is filled if rate · RTT reaches it. Source: docs/control.md.

use super::delay::{DelayEstimator, Queue};
use super::{
    Act, Allocation, Beside, ClassRate, Command, Decision, Enforce, Excess, GroupDecision,
    GroupState, Observation, TICK,
};
use crate::market::guarantee::Step;
use crate::share::{Claims, Tree};
use crate::units::{Bytes, Part, Rate, Span, Time};

mod asked;
mod assumption;
mod beside;
mod caps;
mod contest;
mod drain;
mod group;
mod held;
mod link;
mod loss;
mod lost;
mod opening;
mod release;
mod rhythm;
mod rivals;
mod seen;
mod squeeze;
mod steady;
mod windows;

use assumption::Assumption;
use contest::Contest;
use drain::Drain;
use group::{Connections, Group, NO_CORRECTION};
use held::Held;
use link::{Link, Tick, Verdict};
use loss::Losses;
use rivals::{Course, Rivals};
use squeeze::Patience;

/// What the control is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairweirSpec {
    /// How the groups share, in the policy's order.
    pub weights: Tree,
    /// The capacity of the link that was remembered, if any.
    pub remembered: Option<Rate>,
    /// How shares are enforced.
    pub enforce: Enforce,
    /// Target of the queue at the ISP.
    pub latency: Span,
}

/// The control's state.
///
/// Invariants: the shares never sum to more than the capacity, and the capacity never exceeds a bound;
/// while neither is known nothing is enforced.
#[derive(Clone, Debug)]
pub struct Fairweir {
    enforce: Enforce,
    latency: Span,
    /// Random delay of the path.
    noise: Span,
    /// The longest queue that a short buffer allows; `None` if the buffer is long enough.
    short: Option<Span>,
    weights: Tree,
    groups: Vec<Group>,
    connections: Connections,
    delay: DelayEstimator,
    link: Link,
    held: Option<Held>,
    beside: Beside,
    assumption: Assumption,
    losses: Losses,
    contest: Contest,
    rivals: Rivals,
    course: Course,
    drain: Drain,
    /// Factor on all windows that brings the queue to its target, in thousandths.
    opening: u64,
    /// The largest packet that arrives, in L2 bytes.
    packet: Bytes,
    /// Whether the queue is far above its target: senders still use the earlier, wider windows.
    is_overfull: bool,
    total_last: Option<Rate>,
    /// The queue in the tick before.
    queue_last: Span,
    patience: Patience,
    commands: Vec<Command>,
    decision: Decision,
}

impl Fairweir {
    /// Starts the control: with nine tenths of the remembered capacity, or else unshaped until the link is
    /// busy.
    ///
    /// # Panics
    /// If there are no groups.
    pub fn new(spec: FairweirSpec) -> Fairweir {
        assert!(!spec.weights.is_empty(), "there is at least the default group");
        let capacity = spec.remembered.map(|rate| rate * REMEMBERED);
        let mut control = Fairweir {
            enforce: spec.enforce,
            latency: spec.latency,
            noise: Span::ZERO,
            short: None,
            groups: vec![Group::idle(); spec.weights.len()],
            connections: Connections::new(),
            delay: DelayEstimator::default(),
            link: Link::new(capacity),
            held: None,
            beside: Beside::Nobody,
            assumption: Assumption::new(),
            losses: Losses::new(),
            contest: Contest::new(),
            rivals: Rivals::new(),
            course: Course::Alone,
            drain: Drain::default(),
            opening: NO_CORRECTION,
            packet: PACKET_GUESS,
            is_overfull: false,
            total_last: None,
            queue_last: Span::ZERO,
            patience: Patience::new(),
            commands: Vec::new(),
            decision: Decision::initial(spec.weights.len()),
            weights: spec.weights,
        };
        control.divide();
        control
    }

    pub(super) fn handle_observation(&mut self, observation: &Observation) {
        assert_eq!(observation.groups.len(), self.groups.len(), "one sample for each group");
        let is_ordered = observation.connections.is_sorted_by_key(|sample| sample.id);
        assert!(is_ordered, "connections come in the order of their ids");
        let interval = observation.interval;
        if interval < TICK / 4 || interval > TICK * 2 {
            // The daemon slept or was stopped: what was seen before says nothing about the present.
            self.link.restart();
            self.total_last = None;
            return self.conclude(observation.at, Act::Measure, None);
        }
        self.follow_beside(observation);
        let own: Bytes = observation.groups.iter().map(|g| g.received).sum();
        let volume = own + self.others() * interval;
        let total = Rate::from_volume(volume, interval);
        let is_answered = observation.probe.is_some_and(|probe| probe.answered > 0);
        let drained = self.finish_drain(total, is_answered);
        let before = self.mean_base();
        let delay = self.delay.handle_observation(observation, drained, self.has_tight_classes());
        self.follow_bases(before, self.mean_base());
        self.noise = delay.map_or(self.noise, |d| d.noise);
        self.see_connections(observation, delay.map_or(Span::ZERO, |d| d.value));
        // While the queue is above its target, rates do not show what groups would take.
        let crowded = !self.rivals.are_there()
            && delay.is_some_and(|d| d.least * 2 > self.queue_target() * 3);
        self.see_groups(observation, crowded);
        self.is_overfull = delay.is_some_and(|d| d.least > self.queue_target() * OVERFULL);
        self.total_last = Some(total);
        self.course = self.rivals.handle_tick(&rivals::Tick {
            at: observation.at,
            total,
            is_wanted: self.is_wanted(),
            is_queue_short: delay.map(|d| d.value <= self.queue_target()),
        });
        if let Course::Try(capacity) | Course::Accept(capacity) = self.course {
            match self.course {
                Course::Accept(_) => self.link.accept(capacity, observation.at),
                _ => self.link.set_capacity(Some(capacity)),
            }
            self.drain = Drain { last_at: observation.at, ..Drain::default() };
        }
        let verdict = self.conclude_from(observation, volume, delay, drained);
        let verdict = match (self.told(), observation.exact) {
            (Some(told), _) => self.take_told(told),
            (None, Some(capacity)) => self.take_exact(capacity, verdict),
            (None, None) => verdict,
        };
        let is_ours = self.is_queue_ours() && self.told().is_none();
        let capacity = self.link.capacity().filter(|_| is_ours);
        let doubted = self.contest.handle_tick(&contest::Tick {
            at: observation.at,
            capacity,
            arrived: self.link.arrived(),
            queue: delay.map(|d| d.value),
            target: self.short_queue() + self.noise_part(),
            rtt: self.delay.rtt_base_max().unwrap_or(Span::ZERO),
            is_lossy: observation.connections.iter().any(|c| c.holes > 0),
        });
        let act = self.act_on(verdict, observation.at, total);
        self.keep_to_bound();
        if self.told().is_none() {
            self.assume(observation.at, total);
        }
        if act == Act::Rest {
            self.correct_groups(total);
        }
        // Each answer of a probe changes the opening once.
        if let Some(delay) = delay.filter(|delay| delay.samples > 0)
            && self.drain.ticks_left == 0
            && drained != Queue::Drained
            && !matches!(act, Act::Learn { .. })
            && self.is_queue_ours()
        {
            // Traffic with long round trips arrives in clumps, and traffic of short connections at random: a link
            // that rests in between has room.
            let has_stream = self.groups.iter().any(|g| g.is_stream);
            let is_clumped =
                self.link.is_underused() || (has_stream && self.link.is_long_underused());
            let queue = if is_clumped { delay.least } else { delay.value };
            match self.told() {
                Some(told) => self.open_as_told(told),
                None => self.open(queue, self.loses_many(observation)),
            }
        }
        self.start_drain(observation.at);
        self.divide();
        self.conclude(observation.at, act, delay);
        if let Some(got) = doubted.filter(|_| self.is_wanted())
            && self.rivals.handle_doubt(observation.at, got)
        {
            // From the next tick on everything passes.
            (self.drain.ticks_left, self.opening) = (0, NO_CORRECTION);
        }
    }

    /// What a tick says of the capacity.
    fn conclude_from(
        &mut self,
        observation: &Observation,
        volume: Bytes,
        delay: Option<super::DelaySample>,
        drained: Queue,
    ) -> Verdict {
        let total = Rate::from_volume(volume, observation.interval);
        if self.rivals.are_there() || self.told().is_some() {
            self.link.restart();
            Verdict::Rest
        } else if let Some(verdict) = self.see_losses(observation, total, delay) {
            verdict
        } else if self.drain.ticks_left > 0 || drained == Queue::Drained {
            // What arrives is only what the narrowed windows let through.
            self.link.restart();
            Verdict::Gather
        } else {
            let is_held = self.patience.handle_tick(self.squeezed());
            self.link.handle_tick(&Tick {
                at: observation.at,
                interval: observation.interval,
                volume,
                delay,
                is_wanted: self.is_wanted(),
                queue: self.queue_target(),
                rtt: self.delay.rtt_base_max().unwrap_or(Span::ZERO),
                latency: self.contest.stretched(self.latency) + self.noise,
                packet: self.packet,
                is_held,
            })
        }
    }

    /// Takes over a capacity that is known exactly.
    fn take_exact(&mut self, capacity: Rate, verdict: Verdict) -> Verdict {
        self.link.set_capacity(Some(capacity));
        match verdict {
            Verdict::Gather => Verdict::Gather,
            _ => Verdict::Rest,
        }
    }

    fn act_on(&mut self, verdict: Verdict, now: Time, total: Rate) -> Act {
        match verdict {
            Verdict::Gather if self.drain.ticks_left > 0 => Act::Drain,
            Verdict::Gather => Act::Measure,
            Verdict::Rest => Act::Rest,
            Verdict::Changed(act) => act,
            Verdict::Rivals => {
                self.rivals.handle_rivals(now, self.link.capacity().unwrap_or(total));
                self.course = Course::Release;
                self.drain.ticks_left = 0;
                self.opening = NO_CORRECTION;
                Act::Rest
            }
            Verdict::Full => {
                self.opening = self.opening.min(NO_CORRECTION);
                Act::Rest
            }
            Verdict::NoQueue => {
                self.delay.forget_transit();
                self.drain.is_urgent = true;
                Act::Rest
            }
        }
    }

    /// Corrects the windows of the groups that fill them, so that their rates are in proportion to their shares.
    fn correct_groups(&mut self, total: Rate) {
        if let Some(capacity) = self.link.capacity()
            && total >= capacity.scale(9, 10)
        {
            let steady = || self.groups.iter().filter(|g| g.is_steady());
            let shares: Rate = steady().map(|g| g.share).sum();
            let rates: Rate = steady().map(|g| g.rate).sum();
            for group in &mut self.groups {
                group.correct(shares, rates);
            }
            group::centre_corrections(&mut self.groups);
        }
    }

    pub(super) fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop()
    }

    pub(super) fn decision(&self) -> &Decision {
        &self.decision
    }

    pub(super) fn learned_capacity(&self) -> Option<Rate> {
        self.link.confirmed()
    }

    /// While the capacity is unknown nothing is enforced, so there is nothing to correct.
    pub(super) fn handle_guarantee(&mut self, step: &Step, now: Time) {
        let Some(before) = self.link.capacity() else { return };
        let believed = step.believed(before);
        if believed != before {
            self.link.suppose(believed);
            self.losses.suppose_another(now);
            self.opening = NO_CORRECTION;
            self.divide();
        }
    }

    pub(super) fn handle_policy(&mut self, weights: Tree, kept: &[Option<usize>]) {
        let continued = |kept: &Option<usize>| match *kept {
            Some(old) => self.groups[old].clone(),
            None => Group::idle(),
        };
        self.groups = kept.iter().map(continued).collect();
        self.weights = weights;
        let place = |old: usize| kept.iter().position(|&k| k == Some(old));
        self.connections.retain(|_, connection| match place(connection.group) {
            Some(new) => {
                connection.group = new;
                true
            }
            // The next observation says to which group it belongs now.
            None => false,
        });
        self.link.restart();
        self.divide();
    }

    /// Takes over how shares are enforced, and the target of the queue.
    pub(super) fn handle_spec(&mut self, enforce: Enforce, latency: Span) {
        (self.enforce, self.latency) = (enforce, latency);
        self.divide();
    }

    // --------------------------------------------------------------------------------------------
    // What is seen

    /// Target of the queue: what the user wants, but at least room for a few packets; longer while other
    /// hosts fill the queue.
    pub(super) fn queue_target(&self) -> Span {
        self.contest.stretched(self.short_queue()) + self.noise_part()
    }

    fn noise_part(&self) -> Span {
        self.noise * NOISE_PART
    }

    /// The target of the queue without other hosts, and without the path's noise.
    pub(super) fn short_queue(&self) -> Span {
        let packets = self
            .link
            .capacity()
            .map_or(Span::ZERO, |c| c.time_to_send(self.packet * QUEUE_PACKETS));
        self.short.unwrap_or(self.latency).min(self.latency).max(packets)
    }

    /// Whether the bottleneck has a queue that follows the windows; if not, classes hold the shares.
    fn is_queue_ours(&self) -> bool {
        !self.has_tight_classes() && !self.rivals.are_there()
    }

    /// Whether classes limit connections whose windows are bounded too.
    fn has_tight_classes(&self) -> bool {
        self.losses.is_limiting() || self.is_held()
    }

    /// Whether a group would take more than it gets.
    fn is_wanted(&self) -> bool {
        self.beside.wants_more() || self.groups.iter().any(|g| g.state == GroupState::Saturating)
    }

    /// Whether classes enforce too, once something is enforced.
    fn has_classes(&self) -> bool {
        self.enforce != Enforce::Window || self.bound().is_some() || self.weights.has_caps()
    }

    // --------------------------------------------------------------------------------------------
    // What follows

    /// Divides the capacity and queues the commands for the enforcer.
    fn divide(&mut self) {
        let bound = self.bound();
        let capacity = match self.course {
            Course::Release => bound,
            Course::Alone | Course::Try(_) | Course::Accept(_) => {
                self.link.capacity().map(|capacity| self.own_part(capacity))
            }
        };
        let Some(capacity) = capacity else {
            self.commands.clear();
            if self.link.capacity().is_none() {
                self.groups.iter_mut().for_each(|group| group.share = Rate::ZERO);
            }
            if !self.divide_by_caps() && self.decision.enforcing {
                self.commands.push(Command::Release);
            }
            return;
        };
        let taken = |g: &Group| if g.is_unresponsive() { g.rate } else { Rate::ZERO };
        let taken: Vec<Rate> = self.groups.iter().map(taken).collect();
        let demand = |g: &Group| if g.is_unresponsive() { Some(Rate::ZERO) } else { g.demand };
        let mut demands: Vec<Option<Rate>> = self.groups.iter().map(demand).collect();
        let shares = self.weights.divide(capacity, Claims { demands: &demands, taken: &taken });
        let capped = self.weights.capped(&demands, &shares);
        let is_testing = self.losses.is_testing() || self.assumption.is_made();
        // A group that lends may take its share back at any time.
        let lends = |i: usize| !is_testing && self.groups[i].demand.is_some();
        let bounds: Vec<Option<Rate>> = (0..self.groups.len())
            .map(|i| lends(i).then(|| Fairweir::bound_of(&self.weights, capacity, &mut demands, i)))
            .collect();
        let floors = self.floors();
        let is_queue_ours = self.is_queue_ours();
        let has_rivals = self.rivals.are_there();
        let sum_smoothed: Rate = self.groups.iter().map(|g| g.rate_smoothed).sum();
        let sum_smoothed = sum_smoothed.as_bps();
        for (i, group) in self.groups.iter_mut().enumerate() {
            let max = self.weights.max(i);
            let at_most = max.unwrap_or(Rate::MAX);
            group.see_cap(capped[i]);
            group.share = shares[i];
            if is_testing {
                // All groups keep their parts: the sum is tested, not the division.
                let wanted = group.rate_smoothed.scale(capacity.as_bps(), sum_smoothed.max(1));
                group.share = wanted.max(capacity / 50).min(at_most);
            }
            group.bound = bounds[i].unwrap_or(group.share);
            let is_free = self.enforce == Enforce::Htb || (has_rivals && max.is_none());
            let has_no_window = is_free || !group.has_windows();
            let is_tight =
                has_no_window || !is_queue_ours || group.is_capped || floors[i] > group.bound;
            // What arrives has crossed the link already: packets of connections with windows wait for their turn.
            group.excess = if has_no_window { Excess::Drop } else { Excess::Delay };
            let is_overfull = self.is_overfull && !has_rivals;
            let margin = match (is_overfull, is_tight) {
                (true, _) => DRAINING,
                (false, true) => TIGHT,
                (false, false) => LOOSE,
            };
            let ceil = (group.bound * margin).max(CEIL_MIN);
            // Packets that are in flight when windows are narrowed would otherwise wait in the class.
            let falling = match is_tight || is_overfull {
                true => Rate::ZERO,
                false => group.ceil * CEIL_FALL,
            };
            group.ceil = ceil.max(falling).min(at_most);
        }
        // Commands that were not drained are out of date.
        self.commands.clear();
        if self.has_classes() {
            let classes = self.groups.iter().zip(self.weights.weights());
            let classes = classes.map(|(g, weight)| ClassRate {
                rate: g.ceil,
                ceil: g.ceil,
                priority: 0,
                weight,
                excess: g.excess,
            });
            let classes = classes.collect();
            self.commands.push(Command::SetRates(Allocation { total: bound, classes }));
        }
        if self.enforce != Enforce::Htb {
            let windows = match has_rivals {
                true => {
                    let bound = |(i, g): (usize, &Group)| self.weights.max(i).map(|_| g.bound);
                    let bounds: Vec<_> = self.groups.iter().enumerate().map(bound).collect();
                    self.windows_beneath(&bounds)
                }
                false => self.windows(),
            };
            self.commands.push(Command::SetWindows(windows));
        }
    }

    fn conclude(&mut self, at: Time, act: Act, delay: Option<super::DelaySample>) {
        let bound = self.bound();
        let capacity = self.link.capacity();
        let is_released = self.course == Course::Release && bound.is_none();
        let divides = capacity.is_some() && !is_released;
        let enforcing = divides || self.weights.has_caps();
        let has_class = |i| self.has_classes() && (divides || self.weights.max(i).is_some());
        let groups = self.groups.iter().enumerate().map(|(i, g)| GroupDecision {
            rate: g.rate,
            demand: g.demand,
            share: g.share,
            ceil: has_class(i).then_some(g.ceil),
            state: g.state,
        });
        let groups = groups.collect();
        let act = match self.course {
            Course::Release if bound.is_none() => Act::Yield,
            _ if capacity.is_none() => Act::Bootstrap,
            _ if self.losses.is_limiting() => Act::Limit,
            _ if self.is_held() => Act::Hold,
            _ => act,
        };
        self.decision = Decision { at, act, capacity, enforcing, delay, groups };
    }
}

/// Part of a remembered capacity with which the control starts.
const REMEMBERED: Part = Part::of(9, 10);
/// Packets for which the queue has room at least; with less, bursts of the window law would empty it.
const QUEUE_PACKETS: u64 = 2;
/// Part of the noise that is added to the queue's target; without it an empty queue could not be recognised.
const NOISE_PART: Part = Part::of(1, 1);
/// Ceil of a class relative to its group's bound, while windows hold the share.
const LOOSE: Part = Part::percent(125);
/// The same while windows do not hold the share.
const TIGHT: Part = Part::percent(100);
/// The same while the queue is more than [`OVERFULL`] times its target.
const DRAINING: Part = Part::percent(90);
const OVERFULL: u64 = 3;
/// If windows hold the share, a class's ceil falls in one tick at most to this part of itself.
const CEIL_FALL: Part = Part::of(1, 2);
/// A full packet, in L2 bytes, until one was seen.
const PACKET_GUESS: Bytes = Bytes::new(1_514);
/// Lowest ceil of a class.
const CEIL_MIN: Rate = Rate::kbit(100);

#[cfg(test)]
mod tests;
