//! The capacity of the access link, learned while the link is busy.
//!
//! The problem: a total below the estimate may be a lower capacity or a lower demand, and a loop
//! that guesses wrong starves a group for long. The method: a link whose queue did not empty for a
//! whole interval was busy throughout, so **the rate that it carried is its capacity**, and the estimate
//! follows at once, up or down. Silence and low demand say nothing. A rate above the estimate raises it.
//! While about the estimate arrives and nothing queues, the estimate creeps up until packets queue.
//!
//! A conclusion may be wrong: packets that come in clumps, or noise of the path, can look like a queue. So an estimate
//! that was lowered *expires*. Once nothing has queued for [`LOWERED_MIN`] although more is wanted, the earlier one is
//! tried again. If the link carries less, it is busy at once, and the next try comes later.
//!
//! A single source of delays, a connection or a probe, may lie. It lowers the estimate at most to half
//! of what was trusted before. The estimate falls further only if in [`HELD_CONCLUSIONS`] less arrives
//! than that half lets through, since the received rate then confirms it. Source: docs/control.md.

use super::super::{Act, DelaySample, DelaySource, TICK};
use super::steady::Steady;
use crate::backoff::Backoff;
use crate::streak::Streak;
use crate::units::{Bytes, Part, Rate, Span, Time};

/// The link as it is believed to be.
#[derive(Clone, Debug)]
pub(super) struct Link {
    capacity: Option<Rate>,
    /// The capacity as a busy link confirmed it.
    confirmed: Option<Rate>,
    /// What was seen since the last conclusion.
    seen: Seen,
    creep: u64,
    /// The highest capacity that was believed recently, and when.
    recent: (Rate, Time),
    /// The rate that arrives, smoothed over a round trip.
    arrived: Rate,
    /// The same over two seconds.
    arrived_long: Rate,
    busy_at: Time,
    fall: Option<Fall>,
    /// The capacity that several sources confirmed, or that arrived.
    trusted: Option<Rate>,
    /// Since when the queue is far above its target, and how long it was then.
    deep: Option<(Time, Span)>,
    /// The capacity of the first conclusion, and its time.
    learned: Option<(Rate, Time)>,
    /// Conclusions in a row in which a single source said that the capacity is less than half of `trusted`.
    held: Streak,
    /// For how long the same rate has arrived.
    same: Steady,
    lowered: Lowered,
}

/// How long a lowered estimate stands without a queue.
#[derive(Clone, Copy, Debug)]
struct Lowered {
    stands: Backoff,
    /// When the earlier estimate was tried again, until that try is judged.
    tried_at: Option<Time>,
}

impl Lowered {
    /// The link was busy; `is_less` says whether it carried less than before.
    fn handle_busy(&mut self, now: Time, is_less: bool) {
        let Some(tried_at) = self.tried_at else { return };
        if is_less {
            self.stands.double();
            self.tried_at = None;
        } else if now.since(tried_at) > LOWERED_MIN {
            self.stands.reset();
            self.tried_at = None;
        }
    }
}

/// What is seen until there are enough packets for a conclusion.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    volume: Bytes,
    span: Span,
    least: Option<Span>,
    samples: u32,
    /// The fewest sources in a tick.
    sources: Option<u32>,
}

/// Conclusions in a row each of which lowers the capacity.
#[derive(Clone, Copy, Debug)]
struct Fall {
    from: Rate,
    least: Span,
    conclusions: u32,
    /// Conclusions in a row in which much less arrived than in the one before, while the queue stayed as long.
    steep: Streak,
    least_last: Span,
    total_last: Rate,
}

/// One tick as the link sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) at: Time,
    pub(super) interval: Span,
    pub(super) volume: Bytes,
    pub(super) delay: Option<DelaySample>,
    /// Whether a group would take more than it gets.
    pub(super) is_wanted: bool,
    /// Target of the queue.
    pub(super) queue: Span,
    /// The longest round trip: a change takes effect after this time.
    pub(super) rtt: Span,
    /// The target that the user wants, plus the noise of the path.
    pub(super) latency: Span,
    /// The largest packet.
    pub(super) packet: Bytes,
    /// Whether the capacity is raised only if more than it arrives: see `squeeze`.
    pub(super) is_held: bool,
}

/// What a tick says of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not enough packets yet.
    Gather,
    /// Nothing new.
    Rest,
    /// The capacity has changed.
    Changed(Act),
    /// What was taken for a queue does not react: there is no queue.
    NoQueue,
    /// The queue grows although less and less arrives: other hosts fill it.
    Rivals,
    /// The link is full, although some packets find no queue: windows are wide enough.
    Full,
}

impl Link {
    pub(super) fn new(capacity: Option<Rate>) -> Link {
        Link {
            capacity,
            confirmed: None,
            seen: Seen::default(),
            creep: CREEP_MIN,
            recent: (Rate::ZERO, Time::ZERO),
            arrived: Rate::ZERO,
            arrived_long: Rate::ZERO,
            busy_at: Time::ZERO,
            fall: None,
            trusted: capacity,
            deep: None,
            learned: None,
            held: Streak::default(),
            same: Steady::default(),
            lowered: Lowered { stands: Backoff::new(LOWERED_MIN, LOWERED_MAX), tried_at: None },
        }
    }

    pub(super) fn capacity(&self) -> Option<Rate> {
        self.capacity
    }

    /// Whether about the believed capacity arrives, over a round trip.
    pub(super) fn is_used(&self) -> bool {
        self.capacity.is_some_and(|c| self.arrived >= c * USED)
    }

    /// Whether less than the believed capacity arrives, over a round trip.
    pub(super) fn is_underused(&self) -> bool {
        self.capacity.is_some_and(|c| self.arrived < c.scale(95, 100))
    }

    /// The same as [`Link::is_underused`], over two seconds at least.
    pub(super) fn is_long_underused(&self) -> bool {
        self.capacity.is_some_and(|c| self.arrived_long < c.scale(95, 100))
    }

    /// Thousandths of the capacity that are unused both over a round trip and over two seconds, less the rate that is
    /// `awaited` of groups that grow back; 0 if that is little.
    pub(super) fn unused(&self, awaited: Rate) -> u64 {
        let Some(capacity) = self.capacity.filter(|&c| c > Rate::ZERO) else { return 0 };
        let used = self.arrived.max(self.arrived_long) + awaited;
        let unused = u128::from(capacity.saturating_sub(used).as_bps());
        let part = (unused * 1_000 / u128::from(capacity.as_bps())) as u64;
        if part > UNUSED_LITTLE { part } else { 0 }
    }

    /// The rate that arrives, smoothed over a round trip.
    pub(super) fn arrived(&self) -> Rate {
        self.arrived
    }

    pub(super) fn confirmed(&self) -> Option<Rate> {
        self.confirmed
    }

    /// A source other than delays says what the link carries, or that this is unknown.
    pub(super) fn set_capacity(&mut self, capacity: Option<Rate>) {
        self.capacity = capacity;
        self.trusted = capacity;
        (self.fall, self.held, self.creep) = (None, Streak::default(), CREEP_MIN);
        self.restart();
    }

    /// The link carries no more than `capacity` from now on; what it carried before is forgotten.
    pub(super) fn accept(&mut self, capacity: Rate, now: Time) {
        self.set_capacity(Some(capacity));
        self.recent = (capacity, now);
        (self.deep, self.learned) = (None, None);
    }

    /// Forgets the capacity.
    pub(super) fn forget(&mut self) {
        self.set_capacity(None);
        (self.confirmed, self.learned) = (None, None);
    }

    /// The link is said to carry `capacity` from now on, which may be wrong. The trusted capacity stays, so
    /// that measurements can correct the new one at once.
    pub(super) fn suppose(&mut self, capacity: Rate) {
        let trusted = self.trusted;
        self.set_capacity(Some(capacity));
        self.trusted = trusted;
    }

    /// Discards what was seen since the last conclusion.
    pub(super) fn restart(&mut self) {
        self.seen = Seen::default();
    }

    /// Takes in a tick.
    pub(super) fn handle_tick(&mut self, tick: &Tick) -> Verdict {
        self.same.handle_total(Rate::from_volume(tick.volume, tick.interval));
        let seen = &mut self.seen;
        seen.volume += tick.volume;
        seen.span += tick.interval;
        if let Some(delay) = tick.delay {
            seen.least = Some(seen.least.map_or(delay.least, |l| l.min(delay.least)));
            seen.samples = seen.samples.saturating_add(delay.samples);
            seen.sources = Some(seen.sources.map_or(delay.sources, |s| s.min(delay.sources)));
        }
        let noise = tick.delay.map_or(Span::ZERO, |d| d.noise);
        // The more noise, the more packets are needed for one of them to arrive without it.
        let more = 1 + (noise.as_nanos() / NOISE_STEP.as_nanos()).min(NOISE_STEPS_MAX);
        if u64::from(seen.samples) < u64::from(SAMPLES_MIN) * more && seen.span < GATHER_MAX * more
        {
            return Verdict::Gather;
        }
        // Windows of long round trips arrive in clumps, and the link rests between them.
        if seen.span < tick.rtt.min(GATHER_MAX) {
            return Verdict::Gather;
        }
        let seen = std::mem::take(&mut self.seen);
        let total = Rate::from_volume(seen.volume, seen.span);
        // The ticks of about a round trip.
        let part = (tick.rtt.as_nanos() / TICK.as_nanos() + 1).min(8);
        self.arrived = self.arrived.smoothed(total, part);
        self.arrived_long = self.arrived_long.smoothed(total, part.max(LONG_TICKS));
        let believed = self.capacity.unwrap_or(Rate::ZERO);
        if believed >= self.recent.0 || tick.at.since(self.recent.1) > RECENT_FOR {
            self.recent = (believed, tick.at);
        }
        let is_enough = u64::from(seen.samples) >= u64::from(SAMPLES_FEW) * more;
        let is_probed = tick.delay.is_some_and(|d| d.source == DelaySource::Probe);
        let part = match is_enough {
            true => (tick.queue * BUSY_PART).max(BUSY_MIN),
            false => tick.queue * RARELY_BUSY_PART,
        };
        let threshold = part + noise * NOISE_HIDES;
        let least = seen.least.filter(|&least| least > threshold && (is_enough || is_probed));
        match least {
            Some(least) => self.handle_busy(tick, total, least, &seen),
            None => self.handle_idle(tick, total, &seen),
        }
    }

    /// The queue never emptied: the rate that arrived is the capacity.
    fn handle_busy(&mut self, tick: &Tick, total: Rate, least: Span, seen: &Seen) -> Verdict {
        self.creep = CREEP_MIN;
        self.busy_at = tick.at;
        self.lowered.handle_busy(tick.at, total < self.recent.0 * RECENT_LESS);
        // The time to send two packets at the earlier capacity.
        let packets = self.recent.0.max(LEARN_MIN).time_to_send(tick.packet * 2);
        let is_deep = least > tick.latency.max(packets) * DEEP;
        self.deep = self.deep.filter(|_| is_deep).or(is_deep.then_some((tick.at, least)));
        if let Some((since, at_first)) = self.deep
            && tick.at.since(since) > DEEP_FOR.max(tick.rtt * 8)
            && total < self.recent.0 / 2
        {
            (self.deep, self.fall) = (None, None);
            self.capacity = Some(self.recent.0);
            let is_steady = least < at_first + QUEUE_GROWN && at_first < least + QUEUE_GROWN;
            return if is_steady { Verdict::NoQueue } else { Verdict::Rivals };
        }
        let Some(from) = self.capacity else {
            if total < LEARN_MIN {
                return Verdict::Rest;
            }
            self.take_over(total);
            self.trusted = Some(total);
            self.learned = Some((total, tick.at));
            return Verdict::Changed(Act::Learn { to: total });
        };
        if total >= from.scale(99, 100) {
            self.fall = None;
            self.take_over(total);
            self.trusted = self.trusted.max(Some(total));
            return noted(from, total, Act::Measured { from, to: total });
        }
        // The receiver's RTTs are smoothed and lag, and a probe's last answer stays in force for long: both
        // still show a queue that is gone.
        let is_smoothed = tick.delay.is_some_and(|d| d.source == DelaySource::ReceiverRtt);
        let lags = is_smoothed || seen.samples < SAMPLES_FEW;
        let total = if lags { total.max(from * LAGGING) } else { total };
        // While no group would take more, a probe's delay may come from another host's queue, and with
        // little traffic, noise of the path may have delayed every packet.
        let by_probe = tick.delay.is_some_and(|d| d.source == DelaySource::Probe);
        if !tick.is_wanted && (by_probe || total < from / 4) {
            return Verdict::Rest;
        }
        if seen.sources.unwrap_or(0) >= SOURCES_ENOUGH {
            self.trusted = Some(total);
            self.held.end();
        } else if let Some(half) = self.hold(total) {
            // The confirmed capacity, which is remembered, stays as it is.
            self.capacity = Some(half.min(from));
            return noted(from, half.min(from), Act::Measured { from, to: half.min(from) });
        }
        let begun = Fall {
            from,
            least,
            conclusions: 0,
            steep: Streak::default(),
            least_last: least,
            total_last: from,
        };
        let fall = self.fall.get_or_insert(begun);
        fall.conclusions += 1;
        let is_steep = total < fall.total_last * STEEP && least * 10 >= fall.least_last * 8;
        let steep = fall.steep.count(is_steep);
        (fall.least_last, fall.total_last) = (least, total);
        let Fall { from: highest, least: before, conclusions, .. } = *fall;
        let has_grown = least > before + QUEUE_GROWN;
        // A real queue does not stay as long as it was while less arrives.
        let is_constant = least < before + CONSTANT && before < least + CONSTANT;
        // Another host with this control takes less than that, and gives the capacity back.
        let is_lost = has_grown && total < highest * FALL_LOST;
        if steep >= STEEP_CONCLUSIONS && (is_lost || is_constant) {
            self.fall = None;
            self.capacity = Some(highest);
            return if is_lost { Verdict::Rivals } else { Verdict::NoQueue };
        }
        if steep > 1 {
            // Other hosts may take the capacity; until that is clear it is better to yield little.
            let held = total.max(from * YIELDED);
            self.capacity = Some(held);
            return noted(from, held, Act::Measured { from, to: held });
        }
        let is_deep = total < highest * FALL_PART;
        if conclusions > FALL_CONCLUSIONS && is_deep && least > before * 7 / 10 {
            self.fall = None;
            self.capacity = Some(highest);
            return Verdict::NoQueue;
        }
        if let Some((learned, at)) = self.learned
            && tick.at.since(at) < FRESH_FOR + tick.rtt * 4
            && total < learned * FRESH_FALL
        {
            // A link carries the same when windows are narrowed, unless other hosts take the capacity.
            (self.fall, self.learned) = (None, None);
            self.capacity = Some(learned.max(from));
            return Verdict::Rivals;
        }
        self.take_over(total);
        noted(from, total, Act::Measured { from, to: total })
    }

    /// Half of the trusted capacity, if a single source says that the capacity is less and the received rate
    /// has not confirmed that.
    fn hold(&mut self, total: Rate) -> Option<Rate> {
        let half = self.trusted? / 2;
        if total >= half {
            self.held.end();
            return None;
        }
        if self.held.count(true) > HELD_CONCLUSIONS {
            self.held.end();
            self.trusted = Some(half);
            return (total < half / 2).then_some(half / 2);
        }
        Some(half)
    }

    /// The queue was empty at least once: the link may carry more than the rate that arrived.
    fn handle_idle(&mut self, tick: &Tick, total: Rate, seen: &Seen) -> Verdict {
        (self.fall, self.deep) = (None, None);
        self.held.end();
        let Some(from) = self.capacity else { return Verdict::Rest };
        if total > from {
            self.capacity = Some(total);
            self.trusted = self.trusted.max(Some(total));
            return noted(from, total, Act::Increase { from, to: total });
        }
        if self.is_full(tick, from) {
            self.set_capacity(Some(total));
            return Verdict::Full;
        }
        let since_busy = tick.at.since(self.busy_at);
        let is_lowered = from < self.recent.0 * RECENT_LESS;
        if is_lowered && tick.is_wanted && since_busy > self.lowered.stands.span().max(tick.rtt * 4)
        {
            let to = self.recent.0;
            self.capacity = Some(to);
            self.lowered.tried_at = Some(tick.at);
            self.busy_at = tick.at;
            return noted(from, to, Act::Increase { from, to });
        }
        let was_busy = since_busy < CREEP_AFTER;
        let queues = tick.delay.is_some_and(|d| d.value > tick.queue / 4);
        // If less arrives than the believed capacity, windows are opened first.
        if was_busy || queues || tick.is_held || !self.is_used() {
            return Verdict::Rest;
        }
        let ticks = (tick.rtt.as_nanos() / TICK.as_nanos()).max(1);
        let step = self.creep * seen.span.as_nanos() / Span::secs(1).as_nanos();
        self.capacity = Some(from + from.scale(step, 1_000 * ticks));
        self.creep = (self.creep + self.creep / (2 * ticks)).min(CREEP_MAX);
        Verdict::Rest
    }

    /// Whether the same rate arrives all the time, although more was let through. With few packets that is chance, and
    /// if much less arrives than the believed capacity, windows are too narrow.
    fn is_full(&self, tick: &Tick, believed: Rate) -> bool {
        let total = Rate::from_volume(tick.volume, tick.interval);
        self.same.ticks() >= SAME_TICKS
            && tick.volume >= tick.packet * SAME_PACKETS
            && believed > total * BEYOND
            && self.is_used()
            && tick.is_wanted
    }

    fn take_over(&mut self, total: Rate) {
        self.capacity = Some(total);
        self.confirmed = Some(total);
    }
}

/// Small changes are not reported.
fn noted(from: Rate, to: Rate, act: Act) -> Verdict {
    let is_large = to > from * NOTED || to < from * NOTED.inverse();
    if is_large { Verdict::Changed(act) } else { Verdict::Rest }
}

/// With noise of 5 ms one packet says nothing about the queue, but 20 packets do. Source: docs/control.md.
const SAMPLES_MIN: u32 = 20;
/// After this time fewer packets suffice, but at least [`SAMPLES_FEW`].
const GATHER_MAX: Span = Span::secs(1);
const SAMPLES_FEW: u32 = 5;
/// Shortest delay that counts as a queue: timestamps do not resolve less.
const BUSY_MIN: Span = Span::micros(900);
/// Each such step of noise adds the same number of packets and the same time again to a conclusion.
const NOISE_STEP: Span = Span::millis(2);
const NOISE_STEPS_MAX: u64 = 9;
/// Part of the queue's target above which few answers of a probe show a busy link; higher, since any of
/// them may have met a burst of a sender.
const RARELY_BUSY_PART: Part = Part::of(15, 10);
/// Part of the noise that is added to that threshold and to [`BUSY_PART`].
const NOISE_HIDES: Part = Part::of(4, 10);
/// The link is busy if its queue was never shorter than this part of its target.
const BUSY_PART: Part = Part::of(2, 10);
/// Lowest rate from which a capacity is learned: at lower rates the queue is elsewhere.
const LEARN_MIN: Rate = Rate::kbit(20);
/// Changes of the capacity within this factor are not reported.
const NOTED: Part = Part::percent(105);
/// If the source lags, a conclusion lowers the estimate at most to this part of itself.
const LAGGING: Part = Part::percent(95);
/// How fast the estimate creeps up, in thousandths a second; faster the longer it creeps.
const CREEP_MIN: u64 = 30;
const CREEP_MAX: u64 = 1_000;
/// An estimate is lowered if it is below this part of the highest within [`RECENT_FOR`].
const RECENT_LESS: Part = Part::percent(90);
const RECENT_FOR: Span = Span::secs(60);
/// How long a lowered estimate stands without a queue; doubled each time that the earlier estimate is refuted.
const LOWERED_MIN: Span = Span::secs(2);
const LOWERED_MAX: Span = Span::secs(16);
/// Up to this much, in thousandths, the unused part of the capacity counts as little.
const UNUSED_LITTLE: u64 = 30;
/// The estimate creeps up only while at least this part of it arrives.
const USED: Part = Part::percent(90);
/// Time after the link was busy in which the estimate does not creep up.
const CREEP_AFTER: Span = Span::millis(500);
/// Ticks with the same rate after which a link is full although it is believed to carry more.
const SAME_TICKS: u32 = 4;
/// Such a tick has at least this many packets.
const SAME_PACKETS: u64 = 100;
/// The believed capacity must exceed the rate by this factor.
const BEYOND: Part = Part::percent(104);
/// Least conclusions over which the long-term rate is smoothed.
const LONG_TICKS: u64 = 10;
/// With at least this many sources of delays, the received rate need not confirm a conclusion.
const SOURCES_ENOUGH: u32 = 2;
/// Conclusions in a row in which less than half of the trusted capacity arrives, although windows let
/// that half through, before the link is taken to carry less.
const HELD_CONCLUSIONS: u32 = 3;
/// There is no queue if the capacity falls below this part within [`FALL_CONCLUSIONS`] and the delay
/// stays the same.
const FALL_PART: Part = Part::of(7, 10);
const FALL_CONCLUSIONS: u32 = 5;
/// A conclusion is steep if less than this part of the one before arrives. Other hosts take the
/// capacity if [`STEEP_CONCLUSIONS`] in a row are steep, the queue has grown by [`QUEUE_GROWN`] and less
/// than [`FALL_LOST`] is left. A capacity that falls once makes two conclusions steep at most.
const STEEP: Part = Part::percent(93);
const STEEP_CONCLUSIONS: u32 = 3;
const FALL_LOST: Part = Part::percent(65);
const QUEUE_GROWN: Span = Span::millis(2);
/// A delay that changes by less than this is constant.
const CONSTANT: Span = Span::micros(500);
/// Time after the first conclusion in which a fall below [`FRESH_FALL`] of it is due to other hosts.
const FRESH_FOR: Span = Span::secs(1);
const FRESH_FALL: Part = Part::percent(65);
/// The queue is not this host's if it is longer than this many targets for [`DEEP_FOR`] although less
/// than half of what arrived before arrives.
const DEEP: u64 = 2;
const DEEP_FOR: Span = Span::millis(2_500);
/// Until it is clear that other hosts take the capacity, a conclusion keeps at least this part of it.
const YIELDED: Part = Part::of(7, 10);

#[cfg(test)]
mod tests;
