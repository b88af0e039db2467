//! The queue of the uplink, as round trips show it, and for how long it has been too long.

use std::collections::{BTreeMap, VecDeque};

use super::noise::Noise;
use super::{ROUND_TRIPS_MAX, UploadObservation};
use crate::receiver::CAPACITY_MIN;
use crate::units::{Bytes, Rate, Span, Time};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// By source.
    pub(super) bases: BTreeMap<u64, Base>,
    noise: Noise,
    /// What the last samples were.
    lately: VecDeque<Span>,
    /// The last one, and when it was.
    pub(super) last: Option<Span>,
    pub(super) sampled_at: Time,
    /// What round trips vary by without a queue.
    pub(super) varies: Span,
    /// The most that was sent in a tick, less as time passes.
    fastest: Rate,
    /// How long a full packet takes on the uplink: by its capacity, otherwise by `fastest`.
    packet: Span,
    pub(super) busy: Busy,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    least: Span,
    at: Time,
}

/// Samples in a row that were too long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Busy {
    pub(super) ticks: u32,
    /// Since the first of them, and what was sent in it.
    pub(super) span: Span,
    sent: Bytes,
    /// The first and the last.
    queue: (Span, Span),
}

impl Queue {
    /// Takes in a tick; the queue in it if it was seen. A rest is when hardly anything is sent,
    /// relative to the `capacity`. What `becomes_empty` makes bases as a rest does.
    pub(super) fn handle_observation(
        &mut self,
        seen: &UploadObservation,
        capacity: Option<Rate>,
        becomes_empty: bool,
    ) -> Option<Span> {
        let rate = Rate::from_volume(seen.sent, seen.interval);
        // Not the rate of this tick alone: a sender that pauses makes no uplink slow.
        self.fastest = rate.max(self.fastest.saturating_sub(self.fastest / FASTEST_TICKS));
        let carries = capacity.unwrap_or(self.fastest).max(CAPACITY_MIN);
        self.packet = carries.time_to_send(PACKET);
        let rests = rate <= capacity.map_or(REST_MAX, |c| (c / 10).max(REST_MAX));
        let queue = self.measure(seen, rests, becomes_empty);
        if queue.is_some() || self.sampled_at == Time::ZERO {
            (self.last, self.sampled_at) = (queue, seen.at);
        }
        if let Some(queue) = queue {
            if rests {
                self.noise.handle_rest(queue);
            }
            if self.lately.len() == LATELY {
                self.lately.pop_front();
            }
            self.lately.push_back(queue);
        }
        self.varies = self.noise.span(seen.at);
        self.note_busy(seen, queue);
        queue
    }

    /// The median of the sources with a base. A rest makes bases, and so does what `becomes_empty`.
    fn measure(
        &mut self,
        seen: &UploadObservation,
        rests: bool,
        becomes_empty: bool,
    ) -> Option<Span> {
        let mut queues = Vec::new();
        for trip in seen.round_trips.iter().take(ROUND_TRIPS_MAX) {
            let base = match self.bases.get(&trip.source) {
                // A path may have become longer: what a rest shows is true after a while.
                Some(base) if rests && trip.least > base.least => {
                    base.least + trip.least.saturating_sub(base.least) / 4
                }
                Some(base) => base.least.min(trip.least),
                None if rests || becomes_empty => trip.least,
                None => continue,
            };
            self.bases.insert(trip.source, Base { least: base, at: seen.at });
            queues.push(trip.least.saturating_sub(base));
        }
        while self.bases.len() > ROUND_TRIPS_MAX {
            let oldest = self.bases.iter().min_by_key(|(_, base)| base.at).map(|(&id, _)| id);
            oldest.map(|id| self.bases.remove(&id));
        }
        queues.sort_unstable();
        queues.get(queues.len() / 2).copied()
    }

    fn note_busy(&mut self, seen: &UploadObservation, queue: Option<Span>) {
        let busy = &mut self.busy;
        let Some(queue) = queue else {
            // Rare samples: what is sent in between counts.
            if busy.ticks > 0 {
                busy.span += seen.interval;
                busy.sent += seen.sent;
            }
            return;
        };
        if queue <= QUEUE_MAX.max(self.varies + NOISE_MARGIN).max(self.packet * 5 / 4) {
            *busy = Busy::default();
            return;
        }
        if busy.ticks == 0 {
            // Only what is sent from here on: until now the queue may have been empty.
            busy.queue.0 = queue;
        } else {
            busy.span += seen.interval;
            busy.sent += seen.sent;
        }
        busy.ticks += 1;
        busy.queue.1 = queue;
    }

    /// The queue was too long for enough ticks for a verdict.
    pub(super) fn is_too_long(&self) -> bool {
        let ticks = if self.varies > NOISE_SMALL { BUSY_TICKS_NOISY } else { BUSY_TICKS };
        self.busy.ticks >= ticks && self.busy.span > Span::ZERO
    }

    /// A queue may have begun, though it is not too long.
    pub(super) fn may_have_begun(&self) -> bool {
        self.last > Some((QUEUE_MAX / 2).max(self.varies).max(self.packet))
    }

    /// Whether a queue of this length counts as empty.
    pub(super) fn is_empty(&self, queue: Span) -> bool {
        queue <= QUEUE_EMPTY.max(self.varies).max(self.packet / 2)
    }

    /// The mean of the last second.
    pub(super) fn mean(&self) -> Span {
        mean(&mut self.lately.iter())
    }

    /// What was taken for a queue, up to now and in `samples` before, was not a queue of this host.
    pub(super) fn refute(&mut self, at: Time, samples: &[Span]) {
        self.noise.handle_refuted(at, self.lately.iter().chain(samples).copied());
    }

    /// Forgets the bases.
    pub(super) fn forget(&mut self) {
        self.bases.clear();
        self.busy = Busy::default();
    }
}

impl Busy {
    /// What the uplink carried while its queue was never empty: what was sent, less what the queue
    /// grew by.
    pub(super) fn capacity(&self) -> Option<Rate> {
        let (first, last) = self.queue;
        let span = (self.span + last).saturating_sub(first);
        let rate = Rate::from_volume(self.sent, span);
        (rate >= CAPACITY_MIN && span * 4 >= self.span).then_some(rate)
    }

    /// The last queue.
    pub(super) fn last(&self) -> Span {
        self.queue.1
    }
}

/// Zero if there is no sample.
pub(super) fn mean(samples: &mut dyn ExactSizeIterator<Item = &Span>) -> Span {
    let count = samples.len() as u64;
    samples.fold(Span::ZERO, |sum, &span| sum + span) / count.max(1)
}

/// While no more is sent the uplink's queue is taken to be empty.
const REST_MAX: Rate = Rate::kbit(100);
/// A full Ethernet packet, in L2 bytes. On a slow uplink what goes first waits for the packet in
/// transmission; a wait of that length is not a queue.
const PACKET: Bytes = Bytes::new(1_514);
/// Ticks of rest after which about a third is left.
const FASTEST_TICKS: u64 = 32;
/// A longer queue is too long.
const QUEUE_MAX: Span = Span::millis(5);
/// A shorter queue is empty.
const QUEUE_EMPTY: Span = Span::millis(4);
/// A queue exceeds noise by this much.
const NOISE_MARGIN: Span = Span::millis(2);
/// Noise up to which [`BUSY_TICKS`] suffice for a verdict.
const NOISE_SMALL: Span = Span::millis(2);
/// Ticks with a queue for a verdict, with little noise.
const BUSY_TICKS: u32 = 2;
/// The same with more noise.
const BUSY_TICKS_NOISY: u32 = 4;
/// Samples that are looked back at, 1 s of them.
const LATELY: usize = 5;
