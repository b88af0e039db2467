//! The queue of the uplink, as shown by round trips, and for how long it has been too long.

use std::collections::{BTreeMap, VecDeque};

use super::noise::Noise;
use super::{ROUND_TRIPS_MAX, UploadObservation};
use crate::receiver::CAPACITY_MIN;
use crate::units::{Bytes, Rate, Span, Time};

/// The queue, see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    /// By source.
    pub(super) bases: BTreeMap<u64, Base>,
    noise: Noise,
    /// The last samples.
    lately: VecDeque<Span>,
    /// The last sample, and its time.
    pub(super) last: Option<Span>,
    pub(super) sampled_at: Time,
    /// How much round trips vary without a queue.
    pub(super) varies: Span,
    /// The highest rate sent in a tick; decreases with time.
    fastest: Rate,
    /// The time that a full packet takes on the uplink: by its capacity, if known, otherwise by `fastest`.
    packet: Span,
    pub(super) busy: Busy,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    least: Span,
    at: Time,
}

/// What a tick showed of the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) queue: Span,
    /// By how much a base was too long until now: earlier samples showed the queue shorter by that.
    pub(super) lowered: Span,
}

/// Samples in a row that were too long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Busy {
    pub(super) ticks: u32,
    /// Time since the first of them, and the volume sent in it.
    pub(super) span: Span,
    sent: Bytes,
    /// The part of it that was more than acknowledgements.
    data: Bytes,
    /// The volume sent in the newest tick.
    newest: Bytes,
    /// The first and the last queue.
    queue: (Span, Span),
}

impl Queue {
    /// Takes in a tick and returns what it shows. In a rest almost nothing is sent relative to `capacity`.
    pub(super) fn handle_observation(
        &mut self,
        seen: &UploadObservation,
        capacity: Option<Rate>,
    ) -> Option<Sample> {
        let rate = Rate::from_volume(seen.sent, seen.interval);
        // Not only the rate of this tick: a sender that pauses does not make the uplink slow.
        self.fastest = rate.max(self.fastest.saturating_sub(self.fastest / FASTEST_TICKS));
        let carries = capacity.unwrap_or(self.fastest).max(CAPACITY_MIN);
        self.packet = carries.time_to_send(PACKET);
        let rests = rate <= capacity.map_or(REST_MAX, |c| (c / 10).max(REST_MAX));
        let sample = self.measure(seen, rests);
        let queue = sample.map(|sample| sample.queue);
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
        self.busy.queue.0 += sample.map_or(Span::ZERO, |sample| sample.lowered);
        self.note_busy(seen, queue);
        sample
    }

    /// The median of the sources. The packets of a new source have waited as long as the others'.
    fn measure(&mut self, seen: &UploadObservation, rests: bool) -> Option<Sample> {
        let trips = || seen.round_trips.iter().take(ROUND_TRIPS_MAX);
        let mut queues = Vec::new();
        let mut lowered = Span::ZERO;
        let noise = LOWERED.max(self.varies);
        for trip in trips() {
            let Some(Base { least, at }) = self.bases.get_mut(&trip.source) else { continue };
            if trip.most + noise < *least {
                lowered = lowered.max(least.saturating_sub(trip.most));
            }
            *least = match rests && trip.least > *least {
                // A path may have become longer: after a while, the round trips in rests are taken as the base.
                true => *least + trip.least.saturating_sub(*least) / 4,
                false => trip.most.min(*least),
            };
            *at = seen.at;
            queues.push(trip.least.saturating_sub(*least));
        }
        queues.sort_unstable();
        let known = queues.get(queues.len() / 2).copied();
        for trip in trips() {
            let waited = known.unwrap_or(Span::ZERO);
            let base = Base { least: trip.most.saturating_sub(waited), at: seen.at };
            self.bases.entry(trip.source).or_insert(base);
        }
        while self.bases.len() > ROUND_TRIPS_MAX {
            let oldest = self.bases.iter().min_by_key(|(_, base)| base.at).map(|(&id, _)| id);
            oldest.map(|id| self.bases.remove(&id));
        }
        let queue = known.or_else(|| seen.round_trips.first().map(|_| Span::ZERO))?;
        Some(Sample { queue, lowered })
    }

    fn note_busy(&mut self, seen: &UploadObservation, queue: Option<Span>) {
        let busy = &mut self.busy;
        let Some(queue) = queue else {
            // Samples are rare: the volume sent between them counts.
            if busy.ticks > 0 {
                busy.add(seen);
            }
            return;
        };
        if queue <= QUEUE_MAX.max(self.varies + NOISE_MARGIN).max(self.packet * 5 / 4) {
            *busy = Busy::default();
            return;
        }
        if busy.ticks == 0 {
            // Only the volume sent from now on counts: until now the queue may have been empty. If it is of a length
            // that matters, a round trip shows the queue of half a tick ago.
            busy.queue.0 = queue;
            busy.sent = seen.sent / 2;
            busy.newest = seen.sent;
        } else {
            busy.add(seen);
        }
        busy.ticks += 1;
        busy.queue.1 = queue;
    }

    /// The queue was too long for enough ticks for a verdict.
    pub(super) fn is_too_long(&self) -> bool {
        let ticks = if self.varies > NOISE_SMALL { BUSY_TICKS_NOISY } else { BUSY_TICKS };
        self.busy.ticks >= ticks && self.busy.span > Span::ZERO && self.busy.sends()
    }

    /// Whether a queue may have begun, although it is not too long.
    pub(super) fn may_have_begun(&self) -> bool {
        self.last > Some((QUEUE_MAX / 2).max(self.varies).max(self.packet))
    }

    /// Whether a queue of this length counts as empty.
    pub(super) fn is_empty(&self, queue: Span) -> bool {
        queue <= QUEUE_EMPTY.max(self.varies).max(self.packet / 2)
    }

    /// The mean of the samples of the last second.
    pub(super) fn mean(&self) -> Span {
        mean(&mut self.lately.iter())
    }

    /// The supposed queue, up to now and in the earlier `samples`, was not a queue of this host.
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
    fn add(&mut self, seen: &UploadObservation) {
        self.span += seen.interval;
        self.sent += seen.sent;
        self.newest = seen.sent;
        self.data += seen.data;
    }

    /// Whether data are sent: a limit would not shorten a queue of acknowledgements, but slow the download.
    pub(super) fn sends(&self) -> bool {
        self.data * DATA_DIVISOR >= self.sent.saturating_sub(self.newest)
    }

    /// The uplink's capacity while its queue was never empty: the volume sent, less the growth of the
    /// queue.
    pub(super) fn capacity(&self) -> Option<Rate> {
        let (first, last) = self.queue;
        let span = (self.span + last).saturating_sub(first);
        let rate = Rate::from_volume(self.sent.saturating_sub(self.newest / 2), span);
        (rate >= CAPACITY_MIN && span * 4 >= self.span).then_some(rate)
    }

    /// The last queue.
    pub(super) fn last(&self) -> Span {
        self.queue.1
    }
}

/// The mean; zero if there is no sample.
pub(super) fn mean(samples: &mut dyn ExactSizeIterator<Item = &Span>) -> Span {
    let count = samples.len() as u64;
    samples.fold(Span::ZERO, |sum, &span| sum + span) / count.max(1)
}

/// If there are uploads, at least one byte in this many that are sent belongs to them.
const DATA_DIVISOR: u64 = 8;
/// If a base falls by more than this, it was too long; a smaller fall is noise.
const LOWERED: Span = Span::millis(1);
/// While no more than this is sent, the uplink's queue is assumed to be empty.
const REST_MAX: Rate = Rate::kbit(100);
/// A full Ethernet packet, in L2 bytes. On a slow uplink a packet with priority waits for the packet in
/// transmission; a wait of that length is not a queue.
const PACKET: Bytes = Bytes::new(1_514);
/// Ticks of rest after which about a third of `fastest` is left.
const FASTEST_TICKS: u64 = 32;
/// A queue longer than this is too long.
const QUEUE_MAX: Span = Span::millis(5);
/// A queue shorter than this is empty.
const QUEUE_EMPTY: Span = Span::millis(4);
/// A queue must exceed the noise by this much.
const NOISE_MARGIN: Span = Span::millis(2);
/// Noise up to which [`BUSY_TICKS`] suffice for a verdict.
const NOISE_SMALL: Span = Span::millis(2);
/// Ticks with a queue for a verdict, with little noise.
const BUSY_TICKS: u32 = 2;
/// The same with more noise.
const BUSY_TICKS_NOISY: u32 = 4;
/// Samples that are kept: those of 1 s.
const LATELY: usize = 5;
