//! Upload: how much may leave, so that the queue of the uplink stays empty and groups share the uplink.
//!
//! Problem: a sender sees its packets before the bottleneck. If it shapes a little below the uplink's
//! capacity, the queue is its own, where groups have classes. If it shapes above, the queue is at the modem and
//! classes have no effect; if far below, capacity is lost. The uplink's capacity is not known.
//!
//! Signal: how long a packet with priority waits in the uplink, by round trips of a probe and of
//! acknowledgements, less their base and less the queue of the download. A base is the least round
//! trip less the least that the download's queue added, so that it is never below the path. If uploads
//! never rested, it may contain a queue. A drain then shows this, since round trips become shorter than
//! ever before, and lasts until they no longer do. Acknowledgements alone are never limited.
//!
//! Method, per tick:
//!
//! | phase | rate | ends |
//! |---|---|---|
//! | open | unlimited | the queue was longer than the threshold for 1 s: what was sent, less what the queue grew by, is the first guess |
//! | drain | 3/4 of the guess, after a raise 15/16 | the queue is short: the guess is corrected by how quickly it became shorter. If it does not become shorter, the guess is halved, twice at most; then the queue is not ours, and the upload is open for 10 s, doubled each time up to 10 min. Samples that are hardly shorter than before were noise: the capacity stays |
//! | hold | 98.5 % of the capacity | the queue is longer than the threshold in 2 ticks, with noise in 4: drain |
//! | raise | hold, after 3 s in which more was to be sent: by 0.1 % a tick, doubled every 2 s up to 5 % | the queue is longer than the threshold: drain, and the time in hold doubles up to 60 s. A capacity that is 5 % higher makes it 3 s again |
//!
//! The threshold is the largest of 5 ms, the variation of round trips without a queue of this host, and 5/4 of the
//! time of a full packet: 30 ms at 0.5 Mbit/s.
//!
//! A control that remembers the capacity begins in hold. If the uplink is full then, the limit is 7/8 of the capacity
//! for 2 s, so that a queue that was there before becomes shorter.
//!
//! A dry run ([`UploadControl::watching`]) stays open, and says what the limit would be.
//!
//! Without samples for 30 s while more is to be sent, and after a queue that was not this host's, the
//! upload is open: a limit that cannot be verified is not enforced.
//!
//! Properties, tested: an uplink whose queue never fills is never limited; a queue that others fill
//! does not limit for long; noise is not taken for a queue; the capacity is found within 2 % and
//! followed up and down.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::receiver::CAPACITY_MIN;
use crate::units::{Bytes, Part, Rate, Span, Time};

mod classes;
mod noise;
mod queue;
pub use classes::{ACK, UploadClass, UploadClasses, burst, classes};
use queue::{Queue, Sample, mean};

/// The round trips of one source in an interval: a probe, or acknowledgements of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// Unique among the sources that exist at one time.
    pub source: u64,
    /// The shortest round trip, less what the queue of the download added on average.
    pub least: Span,
    /// The shortest round trip, less the least that the download's queue added: the path is no longer than this.
    pub most: Span,
}

/// What was measured in one interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadObservation {
    /// End of the interval.
    pub at: Time,
    /// Its length.
    pub interval: Span,
    /// The volume that left by the device, behind the classes, in L2 bytes.
    pub sent: Bytes,
    /// The part of it that was neither acknowledgements nor small ICMP.
    pub data: Bytes,
    /// The volume that waits in the classes at the end.
    pub backlog: Bytes,
    /// Round trips; at most [`ROUND_TRIPS_MAX`] are examined.
    pub round_trips: Vec<RoundTrip>,
}

/// What is done, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum UploadPhase {
    /// The capacity was configured.
    Fixed,
    /// Not limited: the capacity is unknown, or the uplink is no bottleneck.
    #[default]
    Open,
    /// The queue of the uplink becomes shorter.
    Drain,
    /// Limited a little below the capacity.
    Hold,
    /// The limit rises until a queue shows the capacity.
    Raise,
}

/// The control, see the module.
#[derive(Clone, Debug)]
pub struct UploadControl {
    phase: UploadPhase,
    total: Option<Rate>,
    capacity: Option<Rate>,
    queue: Queue,
    drain: Drain,
    hold: Span,
    /// The rest of the time for which a remembered capacity is undercut further.
    first: Span,
    /// Time in which more was to be sent than the limit allowed, and no queue was seen.
    clean: Span,
    /// Ticks of the raise.
    raised: u32,
    /// Volume and length of the last ticks.
    history: VecDeque<(Bytes, Span)>,
    /// The capacity before the raise.
    held: Option<Rate>,
    pause: Backoff,
    open_until: Time,
    /// Whether nothing is limited, whatever the result.
    only_watches: bool,
}

#[derive(Clone, Debug, Default)]
struct Drain {
    guess: Rate,
    tries: u32,
    /// Time since the queue was first seen in this try.
    span: Span,
    sent: Bytes,
    begin: Option<Span>,
    /// The last tick with a queue: time and volume since the first one, and the queue.
    mark: Option<(Span, Bytes, Span)>,
    waited: Span,
    is_raise: bool,
    /// Time and volume when round trips last became shorter than ever before.
    lowest: Option<(Span, Bytes)>,
    /// The mean queue before this try, and its samples since then.
    before: Span,
    samples: Vec<Span>,
}

impl UploadControl {
    /// A control with the `fixed` capacity, or one that learns it. `start` is the capacity of an earlier run.
    pub fn new(fixed: Option<Rate>, start: Option<Rate>) -> UploadControl {
        let (phase, capacity) = match (fixed, start) {
            (Some(_), _) => (UploadPhase::Fixed, fixed),
            (None, Some(start)) => (UploadPhase::Hold, Some(start.max(CAPACITY_MIN))),
            (None, None) => (UploadPhase::Open, None),
        };
        let is_remembered = phase == UploadPhase::Hold;
        UploadControl {
            phase,
            total: capacity.map(below),
            capacity,
            queue: Queue::default(),
            drain: Drain::default(),
            hold: HOLD_MIN,
            first: if is_remembered { FIRST_SPAN } else { Span::ZERO },
            clean: Span::ZERO,
            raised: 0,
            history: VecDeque::new(),
            held: capacity,
            pause: Backoff::new(PAUSE_MIN, PAUSE_MAX),
            open_until: Time::ZERO,
            only_watches: false,
        }
    }

    /// A control whose [`UploadControl::total`] is never enforced: it is the limit that would be set first. The
    /// capacity is measured again each time that the queue was too long for 1 s.
    pub fn watching(fixed: Option<Rate>, start: Option<Rate>) -> UploadControl {
        let control = UploadControl::new(fixed, start);
        let phase = if fixed.is_some() { UploadPhase::Fixed } else { UploadPhase::Open };
        UploadControl { phase, only_watches: true, ..control }
    }

    /// The rate that all groups may send together; `None` means unlimited.
    pub fn total(&self) -> Option<Rate> {
        self.total
    }

    /// The capacity of the uplink, if known.
    pub fn capacity(&self) -> Option<Rate> {
        self.capacity
    }

    /// What the uplink's queue added to the delay in the last tick with a sample.
    pub fn queue(&self) -> Option<Span> {
        self.queue.last
    }

    /// The current phase.
    pub fn phase(&self) -> UploadPhase {
        self.phase
    }

    /// Takes in what was measured in one interval.
    pub fn handle_observation(&mut self, seen: &UploadObservation) {
        let sample = self.queue.handle_observation(seen, self.capacity);
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((seen.sent, seen.interval));
        match self.phase {
            UploadPhase::Fixed => {}
            UploadPhase::Open => self.watch(seen),
            UploadPhase::Drain => self.follow_drain(seen, sample),
            UploadPhase::Hold | UploadPhase::Raise => self.follow_hold(seen),
        }
    }

    fn watch(&mut self, seen: &UploadObservation) {
        let busy = &self.queue.busy;
        if seen.at < self.open_until || busy.span < BUSY_MIN || busy.ticks < 4 || !busy.sends() {
            return;
        }
        let Some(guess) = busy.capacity() else { return };
        if self.only_watches {
            (self.capacity, self.total) = (Some(guess), Some(below(guess)));
            self.queue.busy = Default::default();
            return;
        }
        self.begin_drain(guess, false);
    }

    fn begin_drain(&mut self, guess: Rate, is_raise: bool) {
        self.phase = UploadPhase::Drain;
        let before = self.queue.mean();
        self.drain = Drain { guess, is_raise, before, ..Drain::default() };
        // The queue that a raise caused waits only a few milliseconds.
        let part = if is_raise { DRAIN_RAISED } else { DRAIN };
        self.total = Some((guess * part).max(CAPACITY_MIN));
        self.queue.busy = Default::default();
    }

    fn follow_drain(&mut self, seen: &UploadObservation, sample: Option<Sample>) {
        let drain = &mut self.drain;
        drain.waited += seen.interval;
        // In the first tick, data sent before the limit is still in flight.
        if drain.begin.is_some() {
            drain.span += seen.interval;
            drain.sent += seen.sent;
        }
        let Some(Sample { queue, lowered }) = sample else {
            if drain.waited > DRAIN_UNSEEN_MAX {
                self.refute(seen.at);
            }
            return;
        };
        if drain.samples.len() < SAMPLES_MAX {
            drain.samples.push(queue);
        }
        if lowered > Span::ZERO {
            return drain.lower(lowered);
        }
        if self.queue.is_empty(queue) {
            return if drain.lowest.is_some() || drain.is_ours(self.queue.varies) {
                self.end_drain()
            } else {
                self.refute(seen.at)
            };
        }
        // Samples of this tick may have left before the limit took effect.
        if drain.begin.is_none() && drain.waited < queue + PATH_MAX {
            return;
        }
        let begin = *drain.begin.get_or_insert(queue);
        drain.mark = Some((drain.span, drain.sent, queue));
        let falls = queue + FALL_MIN < begin;
        if drain.span < DRAIN_MIN || (falls && drain.waited < begin * 8 + DRAIN_MIN) {
            return;
        }
        if begin < FELL_HALVED_MIN * 2 {
            // Half of this rate could not show more.
            return self.refute(seen.at);
        }
        if drain.tries == TRIES_MAX {
            // The delay stays whatever this host sends: others fill the queue, or the path has become longer.
            self.held = None;
            return self.refute(seen.at);
        }
        let guess = drain.guess * DRAIN_AGAIN;
        let (tries, is_raise) = (drain.tries + 1, drain.is_raise);
        self.begin_drain(guess, is_raise);
        self.drain.tries = tries;
    }

    /// The supposed queue did not become shorter: it was noise, and nothing is concluded except that a raise
    /// caused no queue.
    fn refute(&mut self, at: Time) {
        let samples = std::mem::take(&mut self.drain.samples);
        self.queue.refute(at, &samples);
        let Drain { is_raise, guess, .. } = self.drain;
        match self.held {
            Some(held) if is_raise => self.hold_at(held.max(below(guess))),
            Some(held) => self.hold_at(held),
            None => self.open(at),
        }
    }

    /// The queue is empty: the capacity follows from the volume sent and from how much shorter the queue became.
    fn end_drain(&mut self) {
        let Drain { guess, begin, mark, is_raise, tries, .. } = self.drain;
        let mut capacity = guess;
        if let (Some(begin), Some((span, sent, queue))) = (begin, mark) {
            let fell = begin.saturating_sub(queue);
            // A guess that was halved is far from the capacity, so shorter measurements are enough to correct it.
            let (least, fall) = if tries > 0 { EXACT_HALVED } else { EXACT };
            if span >= least.max(self.queue.varies * NOISE_EXACT) && fell >= fall {
                let exact = Rate::from_volume(sent, span.saturating_sub(fell));
                capacity = exact.clamp(guess / 2, guess * 2);
            }
        }
        // The guess was halved until the queue was short, and nothing shows how much too low it is.
        let is_rough = tries > 0 && capacity == guess;
        let capacity = capacity.max(CAPACITY_MIN);
        let is_higher = self.held.is_none_or(|old| capacity > old.scale(105, 100));
        let is_confirmed = is_raise && tries == 0 && !is_higher;
        self.hold = match is_rough {
            true => HOLD_ROUGH,
            false if is_confirmed => (self.hold * 2).min(HOLD_MAX),
            false => HOLD_MIN,
        };
        self.hold_at(capacity);
        self.raised = if is_rough { RAISE_TICKS * 6 } else { 0 };
        self.pause.reset();
    }

    fn hold_at(&mut self, capacity: Rate) {
        self.phase = UploadPhase::Hold;
        self.capacity = Some(capacity);
        self.held = self.capacity;
        self.total = Some(below(capacity));
        self.clean = Span::ZERO;
        self.raised = 0;
        self.queue.busy = Default::default();
    }

    fn follow_hold(&mut self, seen: &UploadObservation) {
        let Some(total) = self.total else { return self.open(seen.at) };
        let rate = Rate::from_volume(seen.sent, seen.interval);
        if self.first > Span::ZERO {
            let further = self.capacity.map(|capacity| capacity * REMEMBERED_FIRST);
            let is_full = further.is_some_and(|further| rate >= further.scale(9, 10));
            let left = self.first.saturating_sub(seen.interval);
            self.first = if is_full { left } else { Span::ZERO };
            self.total = match self.first {
                Span::ZERO => self.capacity.map(below),
                _ => further,
            };
            return;
        }
        if self.queue.is_too_long() {
            let is_raise = self.phase == UploadPhase::Raise;
            let carried = if is_raise { self.raised_to() } else { self.queue.busy.capacity() };
            let guess = carried.unwrap_or(total).min(total);
            return self.begin_drain(guess, is_raise);
        }
        let wants_more = seen.backlog > Bytes::ZERO && rate >= total.scale(9, 10);
        if !wants_more || self.queue.busy.ticks > 0 {
            return;
        }
        match seen.at.since(self.queue.sampled_at) {
            unseen if unseen > UNSEEN_MAX => return self.open(seen.at),
            unseen if unseen > SEEN_MIN => return,
            _ => {}
        }
        self.clean += seen.interval;
        if self.clean < self.hold {
            return;
        }
        // If a queue may have begun, the rate waits for the verdict.
        if self.queue.may_have_begun() {
            return;
        }
        self.phase = UploadPhase::Raise;
        let doublings = (self.raised / RAISE_TICKS).min(8);
        self.raised += 1;
        let step = (1 << doublings).min(RAISE_MAX);
        self.total = Some(total.scale(1_000 + step, 1_000));
        self.capacity = self.capacity.max(self.total);
    }

    /// What the uplink carried while the rate rose past its capacity and the queue began to grow.
    fn raised_to(&self) -> Option<Rate> {
        // While the rate rises quickly, the rate some ticks ago was far lower.
        let ticks = if self.raised > RAISE_TICKS * 3 { HISTORY_QUICK } else { HISTORY };
        let last = self.history.iter().rev().take(ticks);
        let (sent, span) = last.fold((Bytes::ZERO, Span::ZERO), |(a, b), &(x, y)| (a + x, b + y));
        let carried = Rate::from_volume(sent, span + self.queue.busy.last());
        // Below the held limit there was no queue.
        self.held.map(|held| carried.max(below(held)))
    }

    /// Lets everything pass, and measures again after a pause.
    fn open(&mut self, at: Time) {
        self.phase = UploadPhase::Open;
        self.total = None;
        self.capacity = None;
        self.held = None;
        self.queue.forget();
        self.open_until = at + self.pause.span();
        self.pause.double();
    }
}

impl Drain {
    /// The queue was longer than known, by `by`, when round trips last became the shortest ever.
    fn lower(&mut self, by: Span) {
        if let Some(begin) = &mut self.begin {
            *begin += by;
        } else if self.waited >= PATH_MAX {
            self.begin = Some(Span::ZERO);
        }
        self.mark = match (self.lowest, self.mark) {
            (Some((span, sent)), _) => Some((span, sent, by)),
            (None, mark) => mark.map(|(span, sent, queue)| (span, sent, queue + by)),
        };
        self.lowest = Some((self.span, self.sent));
    }

    /// Whether the queue became shorter since less is sent, by more than noise explains.
    fn is_ours(&self, noise: Span) -> bool {
        let after = mean(&mut self.samples.iter().rev().take(2));
        let fell = self.before.saturating_sub(after);
        match self.tries {
            0 => fell >= FELL_MIN.max(noise / 2),
            _ => fell >= FELL_HALVED_MIN.max(noise) && after * 2 <= self.before,
        }
    }
}

/// The limit at a capacity.
fn below(capacity: Rate) -> Rate {
    capacity * LIMIT
}

/// The most sources of round trips that are examined.
pub const ROUND_TRIPS_MAX: usize = 64;

/// Part of the capacity that is the limit while it is held.
const LIMIT: Part = Part::permille(985);
/// How long a remembered capacity is undercut, so that a queue of 250 ms drains.
const FIRST_SPAN: Span = Span::secs(2);
/// Part of a remembered capacity that is the first limit.
const REMEMBERED_FIRST: Part = Part::of(7, 8);
/// Limit of a drain, relative to the guess.
const DRAIN: Part = Part::of(3, 4);
/// The same after a raise.
const DRAIN_RAISED: Part = Part::of(15, 16);
/// Factor on the guess if the queue did not become shorter.
const DRAIN_AGAIN: Part = Part::of(1, 2);
/// How often a guess is reduced in this way.
const TRIES_MAX: u32 = 2;
/// A drain measures the capacity within 1/16 of itself if noise is this many times shorter than the drain.
const NOISE_EXACT: u64 = 16;
/// The most samples of the queue in a drain.
const SAMPLES_MAX: usize = 64;
/// Least reduction of a queue of this host in a drain; the second value applies after the guess was halved.
const FELL_MIN: Span = Span::millis(2);
const FELL_HALVED_MIN: Span = Span::millis(8);
/// If the queue falls by at least this, a drain is continued.
const FALL_MIN: Span = Span::millis(4);
/// Time with a queue before the first guess.
const BUSY_MIN: Span = Span::millis(900);
/// Least length of a drain.
const DRAIN_MIN: Span = Span::millis(900);
/// Least length, and least reduction of the queue, with which a drain measures the capacity.
const EXACT: (Span, Span) = (Span::millis(350), Span::millis(20));
const EXACT_HALVED: (Span, Span) = (Span::millis(150), Span::millis(40));
/// The longest round trip of the path for which a drain ignores its first samples.
const PATH_MAX: Span = Span::millis(200);
/// Ticks from which a raise computes the capacity.
const HISTORY: usize = 10;
/// The same while the limit rises quickly.
const HISTORY_QUICK: usize = 3;
/// How long a limit is held; doubled with each confirmation.
const HOLD_MIN: Span = Span::secs(3);
const HOLD_MAX: Span = Span::secs(60);
/// After a drain with a halved guess that shows no capacity, the limit rises at once, and quickly.
const HOLD_ROUGH: Span = Span::millis(600);
/// The raise doubles every 10 ticks, from 1/1000 to 50/1000 a tick.
const RAISE_TICKS: u32 = 10;
const RAISE_MAX: u64 = 50;
/// Time without samples after which the limit is lifted.
const UNSEEN_MAX: Span = Span::secs(30);
/// The same for a drain.
const DRAIN_UNSEEN_MAX: Span = Span::secs(3);
/// Greatest age of samples at which the limit may rise.
const SEEN_MIN: Span = Span::secs(2);
/// Pause after a guess that was wrong; doubled each time.
const PAUSE_MIN: Span = Span::secs(10);
const PAUSE_MAX: Span = Span::secs(600);

#[cfg(test)]
mod tests;
