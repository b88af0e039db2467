//! The default control: capacity from a busy link, shares by receive windows.
//!
//! The problem: CRAB guesses what a small total means, keeps the ISP's queue full and signals by
//! losses. The method, every tick:
//!
//! 1. **delay**: what the queue of the access link adds, from the timestamps of what arrives;
//! 2. **capacity**: a link that was busy throughout carries what arrived;
//! 3. **demand**: a connection that fills its window would take more, one that does not is limited
//!    by its sender, and its group leaves the rest to the others;
//! 4. **share**: weighted max-min fair by demand;
//! 5. **enforcement**: a connection's window is its part of the share times (RTT without the queue +
//!    the queue's target), so all windows together keep the link busy and the queue at its target,
//!    whatever the RTTs. Classes a quarter above the shares catch what has no window to bound.
//!
//! Now and then the windows are narrowed for a moment, the queue drains, and the delays seen then
//! are taken as those without the queue. While the capacity is unknown nothing is enforced: a link
//! that never was busy has nothing to share.
//!
//! This needs a bottleneck that queues, and a queue that follows the windows. Where packets are lost
//! although none waits, the capacity is what is not lost (`loss`); where others keep the queue full,
//! what this host gets beside them is divided (`rivals`). In both, classes hold the shares.
//!
//! | module | contains |
//! |---|---|
//! | `link` | the capacity, by a queue |
//! | `loss` | the capacity, by losses |
//! | `rivals` | what this host gets beside others that fill the queue |
//! | `group` | demand of a group |
//! | `windows` | from shares to windows |
//!
//! Terms: *window law*, W = share · (base RTT + queue target) (Spring et al. §III, weighted);
//! *filled*, of a window: rate · RTT reaches it. Source: docs/control.md.

use super::delay::{DelayEstimator, Queue, RTT_GUESS};
use super::{
    Act, Allocation, ClassRate, Command, ConnectionSample, Decision, Enforce, GroupDecision,
    GroupState, Observation, TICK, Windows,
};
use crate::share::{Entry, Weight, fair};
use crate::units::{Bytes, Rate, Span, Time};
use crate::window::Behaviour;

mod group;
mod link;
mod loss;
mod rivals;
mod windows;

use group::{Connection, Connections, Group, NO_CORRECTION, SeenConnections};
use link::{Link, Tick, Verdict};
use loss::{Interval, LossVerdict, Losses};
use rivals::{Course, Rivals};

/// What the control is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairweirSpec {
    /// Weights of the groups, in the policy's order.
    pub weights: Vec<Weight>,
    /// What the link is remembered to carry.
    pub remembered: Option<Rate>,
    /// How shares are enforced.
    pub enforce: Enforce,
    /// How long the queue at the ISP shall be.
    pub latency: Span,
}

/// The control's state.
///
/// Invariants: the shares never sum to more than the capacity; while the capacity is unknown
/// nothing is enforced.
#[derive(Clone, Debug)]
pub struct Fairweir {
    enforce: Enforce,
    latency: Span,
    /// Random delay of the path.
    noise: Span,
    /// How long the queue may be at a buffer that is short; `None` if it is long enough.
    short: Option<Span>,
    groups: Vec<Group>,
    connections: Connections,
    delay: DelayEstimator,
    link: Link,
    losses: Losses,
    rivals: Rivals,
    course: Course,
    drain: Drain,
    /// By how much all windows are wider than the law says, in thousandths, so that the queue is
    /// what it shall be.
    opening: u64,
    /// The largest packet that arrives, in L2 bytes.
    packet: Bytes,
    /// Whether far more queues than shall: senders still have larger windows than they shall have.
    is_overfull: bool,
    total_last: Option<Rate>,
    commands: Vec<Command>,
    decision: Decision,
}

/// When the queue is emptied on purpose.
#[derive(Clone, Copy, Debug, Default)]
struct Drain {
    /// Ticks left of the one that runs.
    ticks_left: u32,
    /// When the last one was.
    last_at: Time,
    /// Whether it is to be repeated soon.
    is_urgent: bool,
    /// How many in a row were urgent.
    urgent: u32,
}

impl Fairweir {
    /// Starts the control: at nine tenths of what is remembered, else unshaped until the link is
    /// busy.
    ///
    /// # Panics
    /// If there are no groups.
    pub fn new(spec: FairweirSpec) -> Fairweir {
        assert!(!spec.weights.is_empty(), "there is at least the default group");
        let capacity = spec.remembered.map(|rate| rate.scale(REMEMBERED.0, REMEMBERED.1));
        let mut control = Fairweir {
            enforce: spec.enforce,
            latency: spec.latency,
            noise: Span::ZERO,
            short: None,
            groups: spec.weights.iter().map(|&weight| Group::idle(weight)).collect(),
            connections: Connections::new(),
            delay: DelayEstimator::default(),
            link: Link::new(capacity),
            losses: Losses::new(),
            rivals: Rivals::new(),
            course: Course::Alone,
            drain: Drain::default(),
            opening: NO_CORRECTION,
            packet: PACKET_GUESS,
            is_overfull: false,
            total_last: None,
            commands: Vec::new(),
            decision: Decision::initial(spec.weights.len()),
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
            // The daemon slept or was stopped: what was seen until then says nothing about now.
            self.link.restart();
            self.total_last = None;
            return self.conclude(observation.at, Act::Measure, None);
        }
        let volume: Bytes = observation.groups.iter().map(|g| g.received).sum();
        let total = Rate::from_volume(volume, interval);
        let drained = self.finish_drain(total);
        let delay = self.delay.handle_observation(observation, drained, self.losses.is_limiting());
        self.noise = delay.map_or(self.noise, |d| d.noise);
        self.see_connections(observation, delay.map_or(Span::ZERO, |d| d.value));
        // With more queue than is wanted, nobody says how much it would take.
        let crowded = !self.rivals.are_there()
            && delay.is_some_and(|d| d.least * 2 > self.queue_target() * 3);
        self.see_groups(observation, crowded);
        self.is_overfull = delay.is_some_and(|d| d.least > self.queue_target() * OVERFULL);
        self.total_last = Some(total);
        self.course = self.rivals.handle_tick(observation.at, total);
        if let Course::Try(capacity) = self.course {
            self.link.set_capacity(Some(capacity));
            self.drain = Drain { last_at: observation.at, ..Drain::default() };
        }
        let verdict = if self.rivals.are_there() {
            self.link.restart();
            Verdict::Rest
        } else if let Some(verdict) = self.see_losses(observation, total, delay) {
            verdict
        } else if self.drain.ticks_left > 0 || drained == Queue::Drained {
            // What arrives is what the windows were narrowed to.
            self.link.restart();
            Verdict::Gather
        } else {
            self.link.handle_tick(&Tick {
                at: observation.at,
                interval,
                volume,
                delay,
                is_wanted: self.is_wanted(),
                queue: self.queue_target(),
                rtt: self.delay.rtt_base_max().unwrap_or(Span::ZERO),
                latency: self.latency + self.noise,
                packet: self.packet,
            })
        };
        let act = match verdict {
            Verdict::Gather if self.drain.ticks_left > 0 => Act::Drain,
            Verdict::Gather => Act::Measure,
            Verdict::Rest => Act::Rest,
            Verdict::Changed(act) => act,
            Verdict::Rivals => {
                self.rivals.handle_rivals(observation.at, self.link.capacity().unwrap_or(total));
                self.course = Course::Release;
                self.drain.ticks_left = 0;
                self.opening = NO_CORRECTION;
                Act::Rest
            }
            Verdict::NoQueue => {
                self.delay.forget_transit();
                self.drain.is_urgent = true;
                Act::Rest
            }
        };
        if let Some(capacity) = self.link.capacity()
            && act == Act::Rest
            && total >= capacity.scale(9, 10)
        {
            // Among those who take all they may, each shall get its part of what they all get.
            let steady = || self.groups.iter().filter(|g| g.is_steady());
            let shares: Rate = steady().map(|g| g.share).sum();
            let rates: Rate = steady().map(|g| g.rate).sum();
            for group in &mut self.groups {
                group.correct(shares, rates);
            }
            group::centre_corrections(&mut self.groups);
        }
        if let Some(delay) = delay
            && self.drain.ticks_left == 0
            && drained != Queue::Drained
            && !matches!(act, Act::Learn { .. })
            && self.is_queue_ours()
        {
            // Long round trips arrive in clumps: a link that rests in between has room.
            let is_clumped = self.link.is_underused();
            self.open(if is_clumped { delay.least } else { delay.value });
        }
        self.start_drain(observation.at);
        self.divide();
        self.conclude(observation.at, act, delay);
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

    pub(super) fn handle_policy(&mut self, weights: Vec<Weight>, kept: &[Option<usize>]) {
        assert_eq!(weights.len(), kept.len(), "every new group says which old one it continues");
        let continued = |(&weight, kept): (&Weight, &Option<usize>)| match *kept {
            Some(old) => self.groups[old].clone().with_weight(weight),
            None => Group::idle(weight),
        };
        self.groups = weights.iter().zip(kept).map(continued).collect();
        let place = |old: usize| kept.iter().position(|&k| k == Some(old));
        self.connections.retain(|_, connection| match place(connection.group) {
            Some(new) => {
                connection.group = new;
                true
            }
            // Whose it is now is told with the next observation.
            None => false,
        });
        self.link.restart();
        self.divide();
    }

    /// Takes over how shares are enforced and how long the queue shall be.
    pub(super) fn handle_spec(&mut self, enforce: Enforce, latency: Span) {
        (self.enforce, self.latency) = (enforce, latency);
        self.divide();
    }

    // --------------------------------------------------------------------------------------------
    // What is seen

    /// How long the queue shall be: what the user wants, but room for a few packets.
    pub(super) fn queue_target(&self) -> Span {
        let packets = self
            .link
            .capacity()
            .map_or(Span::ZERO, |c| c.time_to_send(self.packet * QUEUE_PACKETS));
        self.short.unwrap_or(self.latency).min(self.latency).max(packets)
            + self.noise * NOISE_PART.0 / NOISE_PART.1
    }

    /// Whether the bottleneck has a queue that follows the windows; if not, classes hold the shares.
    fn is_queue_ours(&self) -> bool {
        !self.losses.is_limiting() && !self.rivals.are_there()
    }

    /// Whether somebody would take more.
    fn is_wanted(&self) -> bool {
        self.groups.iter().any(|g| g.state == GroupState::Saturating)
    }

    /// What losses say of the capacity; `None` if they say nothing.
    fn see_losses(
        &mut self,
        observation: &Observation,
        total: Rate,
        delay: Option<super::DelaySample>,
    ) -> Option<Verdict> {
        let is_clean = |c: &&ConnectionSample| c.segments > 0 && self.groups[c.group].is_clean();
        let active = || observation.connections.iter().filter(is_clean);
        // Where there is a queue to lose them in, a connection that loses packets all the time loses
        // them to noise.
        let shown = self.link.confirmed();
        let lossiness = |id| self.connections.get(&id).map_or(0, |c| c.lossiness);
        let is_noisy = |c: &ConnectionSample| shown.is_some() && lossiness(c.id) > NOISY;
        let interval = Interval {
            at: observation.at,
            rate: total,
            active: active().count() as u32,
            lossy: active().filter(|c| c.holes > 0 && !is_noisy(c)).count() as u32,
            queue: delay.map(|d| d.value),
            queue_target: self.queue_target(),
            is_wanted: self.is_wanted(),
            shown,
        };
        let before = self.link.capacity();
        self.see_short_buffer(&interval, before);
        let capacity = match self.losses.handle_interval(interval, before) {
            LossVerdict::None => return None,
            LossVerdict::Limit(rate) => Some(rate),
            LossVerdict::Back(capacity) => capacity,
        };
        self.link.set_capacity(capacity);
        self.opening = NO_CORRECTION;
        self.drain.ticks_left = 0;
        Some(Verdict::Rest)
    }

    /// A buffer that drops although hardly more waits than shall is too short for that.
    fn see_short_buffer(&mut self, interval: &Interval, capacity: Option<Rate>) {
        self.short = self.short.map(|s| s + s / SHORT_FORGOTTEN).filter(|&s| s < self.latency);
        let Some(queue) = interval.queue.filter(|_| interval.lossy > 0) else { return };
        let is_full = capacity.is_some_and(|c| interval.rate > c.scale(9, 10));
        if is_full && queue > interval.queue_target / 2 && queue < self.latency * 3 {
            let half = (queue / 2).max(SHORT_MIN);
            self.short = Some(self.short.map_or(half, |short| short.min(half)));
        }
    }

    fn see_connections(&mut self, observation: &Observation, queue: Span) {
        let now = observation.at;
        let mut seen = Connections::new();
        for sample in &observation.connections {
            let before = self.connections.get(&sample.id);
            let received = sample.framing().wire(sample.received);
            let rtt = self.delay.rtt_base(sample.id).map(|base| base + queue).or(sample.rtt);
            // What waits in classes is part of the round trip.
            let rtt = if self.losses.is_limiting() { rtt.max(sample.rtt) } else { rtt };
            // What the window was at the beginning of the interval is what it could fill.
            let window = before.map_or(sample.window, |c| c.sample.window.min(sample.window));
            let arrived = Rate::from_volume(sample.received, observation.interval);
            // A round trip longer than a tick comes in bursts.
            let ticks = rtt.map_or(1, |rtt| rtt.as_nanos() / TICK.as_nanos() + 1).min(8);
            let arrived = before.map_or(arrived, |c| c.goodput.smoothed(arrived, ticks));
            let in_flight = rtt.map(|rtt| arrived * rtt + sample.segment);
            let is_filled = in_flight
                .is_some_and(|flying| flying.as_u64() * FILLED.1 >= window.as_u64() * FILLED.0);
            let active_at = match before {
                Some(known) if sample.segments == 0 => known.active_at,
                _ => now,
            };
            let begun = || Behaviour::new(now, sample.port);
            let mut behaviour = before.map_or_else(begun, |known| known.behaviour);
            behaviour.handle_tick(now, sample);
            let connection = Connection {
                group: sample.group,
                begun_at: before.map_or(now, |known| known.begun_at),
                rate: Rate::from_volume(received, observation.interval),
                goodput: arrived,
                is_filled,
                active_at,
                lossiness: {
                    let before = before.map_or(0, |known| known.lossiness);
                    before - before / 16 + if sample.holes > 0 { 1_000 / 16 } else { 0 }
                },
                lossy_at: match sample.holes {
                    0 => before.and_then(|known| known.lossy_at),
                    _ => Some(now),
                },
                behaviour,
                sample: *sample,
            };
            seen.insert(sample.id, connection);
        }
        self.connections = seen;
        let full =
            self.connections.values().map(|c| c.sample.framing().wire(c.sample.segment)).max();
        self.packet = full.unwrap_or(PACKET_GUESS);
    }

    fn see_groups(&mut self, observation: &Observation, is_crowded: bool) {
        let packet = self.packet;
        let mut seen = vec![
            SeenConnections {
                filled: Rate::ZERO,
                is_crowded,
                is_recovering: false,
                old: Rate::ZERO,
                bounded: Rate::ZERO,
                packet,
            };
            self.groups.len()
        ];
        for connection in self.connections.values() {
            let seen = &mut seen[connection.group];
            seen.bounded += connection.rate;
            let lossy = |at: Time| observation.at.since(at) < RECOVERS_FOR;
            let is_lossy = connection.lossy_at.is_some_and(lossy);
            seen.is_recovering |= is_lossy && !self.losses.is_testing();
            if observation.at.since(connection.begun_at) >= YOUNG {
                seen.old += connection.rate;
            }
            if connection.is_filled {
                seen.filled += connection.rate;
            }
        }
        for ((group, sample), seen) in self.groups.iter_mut().zip(&observation.groups).zip(seen) {
            group.handle_tick(sample, observation.interval, seen);
        }
    }

    /// Opens all windows a little further if the queue is shorter than it shall be, while somebody
    /// would take more, and less far if it is longer.
    fn open(&mut self, queue: Span) {
        if !self.is_wanted() && !self.link.is_used() {
            return;
        }
        let target = self.queue_target().as_nanos() as i64;
        let base = self.delay.rtt_base_max().unwrap_or(RTT_GUESS).as_nanos() as i64;
        // What is missing of the queue, as a part of what is under way; half of it each tick.
        let ticks = (base / TICK.as_nanos() as i64).max(1);
        let lacking = (target - queue.as_nanos() as i64) * 1_000 / (base + target) / 2 / ticks;
        let step = (1_000 + lacking.clamp(-OPENING_STEP_MAX, OPENING_STEP_MAX)) as u64;
        self.opening = (self.opening * step / 1_000).clamp(OPENING_MIN, OPENING_MAX);
    }

    // --------------------------------------------------------------------------------------------
    // Drains

    /// What the delays of an interval can be taken for in which `total` arrived.
    fn finish_drain(&mut self, total: Rate) -> Queue {
        let was_quiet = self.total_last.is_some_and(|total| {
            let little = self.link.capacity().map_or(QUIET_MAX, |c| c / 10);
            total <= little
        });
        if self.drain.ticks_left == 0 {
            return if was_quiet { Queue::WasEmpty } else { Queue::Unknown };
        }
        self.drain.ticks_left -= 1;
        if self.drain.ticks_left > 0 {
            return Queue::Unknown;
        }
        // It has worked if less arrives than the link carries.
        let worked = self.link.capacity().is_some_and(|c| total < c.scale(95, 100));
        if worked { Queue::Drained } else { Queue::Unknown }
    }

    fn start_drain(&mut self, now: Time) {
        let is_urgent = self.drain.is_urgent || self.delay.is_unsettled(now);
        // What does not help is repeated less and less often.
        let soon = DRAIN_SOON * (1 << self.drain.urgent.min(4));
        let interval = if is_urgent { soon.min(DRAIN_INTERVAL) } else { DRAIN_INTERVAL };
        let bounds =
            self.link.capacity().is_some() && self.enforce != Enforce::Htb && self.is_queue_ours();
        if self.drain.ticks_left > 0 || !self.is_wanted() || !bounds {
            return;
        }
        if now.since(self.drain.last_at) < interval {
            return;
        }
        let rtt = self.delay.rtt_base_max().unwrap_or(Span::ZERO);
        let ticks = rtt.as_nanos() / TICK.as_nanos() + 1;
        self.drain = Drain {
            ticks_left: ticks.min(DRAIN_TICKS_MAX) as u32,
            last_at: now,
            is_urgent: false,
            urgent: if is_urgent { self.drain.urgent + 1 } else { 0 },
        };
    }

    // --------------------------------------------------------------------------------------------
    // What follows

    /// Divides the capacity anew and says so to the enforcers.
    fn divide(&mut self) {
        let capacity = match self.course {
            Course::Release => None,
            Course::Divide(due) => Some(due),
            Course::Alone | Course::Try(_) => self.link.capacity(),
        };
        let Some(capacity) = capacity else {
            self.commands.clear();
            if self.decision.enforcing {
                self.commands.push(Command::Release);
            }
            return;
        };
        let taken: Rate = self.groups.iter().filter(|g| g.is_unresponsive()).map(|g| g.rate).sum();
        let entries: Vec<Entry> = self
            .groups
            .iter()
            .map(|g| Entry {
                weight: g.weight,
                demand: if g.is_unresponsive() { Some(Rate::ZERO) } else { g.demand },
            })
            .collect();
        let shares = fair(capacity.saturating_sub(taken), &entries);
        let floors = self.floors();
        let is_queue_ours = self.is_queue_ours();
        let sum_smoothed: Rate = self.groups.iter().map(|g| g.rate_smoothed).sum();
        let sum_smoothed = sum_smoothed.as_bps();
        for (i, group) in self.groups.iter_mut().enumerate() {
            group.share = shares[i];
            if self.losses.is_testing() {
                // Everybody a little less: what is tested is the sum, not the division.
                let wanted = group.rate_smoothed.scale(capacity.as_bps(), sum_smoothed.max(1));
                group.share = wanted.max(capacity / 50);
            }
            group.bound = if group.demand.is_none() || self.losses.is_testing() {
                group.share
            } else {
                // What leaves something to others may take it back at any time.
                let mut entries = entries.clone();
                entries[i].demand = None;
                fair(capacity, &entries)[i]
            };
            let is_tight = self.enforce == Enforce::Htb
                || !is_queue_ours
                || floors[i] > group.bound
                || group.unbounded > group.rate / 5;
            let is_overfull = self.is_overfull && !self.rivals.are_there();
            let margin = match (is_overfull, is_tight) {
                (true, _) => DRAINING,
                (false, true) => TIGHT,
                (false, false) => LOOSE,
            };
            group.ceil = group.bound.scale(margin.0, margin.1).max(CEIL_MIN);
        }
        // What nobody drained is out of date: the last one that is drained shall be the newest.
        self.commands.clear();
        if self.enforce != Enforce::Window {
            let classes = self.groups.iter().map(|g| ClassRate {
                rate: g.ceil,
                ceil: g.ceil,
                priority: 0,
                weight: g.weight,
            });
            let classes = classes.collect();
            self.commands.push(Command::SetRates(Allocation { total: None, classes }));
        }
        if self.enforce != Enforce::Htb {
            let windows = if self.rivals.are_there() { Windows::default() } else { self.windows() };
            self.commands.push(Command::SetWindows(windows));
        }
    }

    fn conclude(&mut self, at: Time, act: Act, delay: Option<super::DelaySample>) {
        let capacity = self.link.capacity();
        let enforcing = capacity.is_some() && self.course != Course::Release;
        let groups = self.groups.iter().map(|g| GroupDecision {
            rate: g.rate,
            demand: g.demand,
            share: g.share,
            ceil: (enforcing && self.enforce != Enforce::Window).then_some(g.ceil),
            state: g.state,
        });
        let groups = groups.collect();
        let act = match self.course {
            Course::Release => Act::Yield,
            Course::Divide(_) => Act::Divide,
            _ if capacity.is_none() => Act::Bootstrap,
            _ if self.losses.is_limiting() => Act::Limit,
            _ => act,
        };
        self.decision = Decision { at, act, capacity, enforcing, delay, groups };
    }
}

/// The loop starts at nine tenths of what is remembered.
const REMEMBERED: (u64, u64) = (9, 10);
/// The queue has room for so much at least, or bursts of the window law would empty it.
const QUEUE_PACKETS: u64 = 2;
/// The queue is longer by this part of the noise, or nothing could tell whether it is empty.
const NOISE_PART: (u64, u64) = (1, 1);
/// A window counts as filled from this part on.
const FILLED: (u64, u64) = (90, 100);
/// Below this a link whose capacity is unknown rests.
const QUIET_MAX: Rate = Rate::kbit(250);
/// The queue that a short buffer is given is never less, and grows by this part each tick.
const SHORT_MIN: Span = Span::millis(2);
const SHORT_FORGOTTEN: u64 = 400;
/// Losses in more than so many of a thousand ticks are noise.
const NOISY: u32 = 200;
/// Connections are young until then.
const YOUNG: Span = Span::millis(1_500);
/// For so long a sender grows back after a loss, as cubic does.
const RECOVERS_FOR: Span = Span::secs(8);
/// How often the queue is emptied, and how often while bases are not known.
const DRAIN_INTERVAL: Span = Span::secs(10);
const DRAIN_SOON: Span = Span::secs(1);
const DRAIN_TICKS_MAX: u64 = 5;
/// Classes above the shares, where windows bound what arrives, and where they do not.
const LOOSE: (u64, u64) = (125, 100);
const TIGHT: (u64, u64) = (100, 100);
/// And while the queue is this many times as long as it shall be.
const DRAINING: (u64, u64) = (90, 100);
const OVERFULL: u64 = 3;
const OPENING_STEP_MAX: i64 = 100;
const OPENING_MIN: u64 = 700;
const OPENING_MAX: u64 = 3_000;
const PACKET_GUESS: Bytes = Bytes::new(1_514);
const CEIL_MIN: Rate = Rate::kbit(100);

#[cfg(test)]
mod tests;
