//! A bottleneck: packets come in at one end, wait, and leave as the capacity of the link allows.
//!
//! The link is a state machine in virtual time. The caller hands in packets with the time of their
//! arrival ([`Link::enqueue`]), asks when a packet leaves next ([`Link::next_departure`]) and takes
//! out those that left ([`Link::poll_departure`]) or were dropped ([`Link::poll_drop`]). A
//! departure carries the exact instant at which the packet left, however late it is taken out, so
//! that a driver in real time makes no error in the rate. A call with a past time counts as now.
//!
//! Its [`Capacity`] is a rate with steps, an ISP's shaper that lets bursts through at the rate of
//! the line, or a [`Trace`] of a radio link. The order of service is a [`Discipline`].
//!
//! Properties, all tested: each packet that comes in leaves once, is dropped once or waits; the
//! link never rests while a packet waits; over a busy period of any length the volume is rate ·
//! time within one packet; a shaper lets no more through than burst + rate · time within one
//! packet; at each opportunity of a trace the packets that it carries leave; packets of a class
//! keep their order; classes that always have a packet waiting share by weight, within one packet
//! each under WFQ and within their quanta and one packet each under DRR. A packet costs O(1), under
//! WFQ O(log classes); only a drop under WFQ and DRR looks at every class.

use std::collections::VecDeque;

use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Span, Time};

use crate::random::SplitMix64;

mod capacity;
mod codel;
mod lane;
mod noise;
mod pie;
mod queue;
mod red;
mod service;
mod trace;

pub use capacity::{Capacity, RateStep};
pub use noise::{Jitter, JitterModel};
pub use red::Red;
pub use trace::{Trace, TraceError};

use lane::Waiting;
use noise::{Delays, Losses};
use pie::Pie;
use queue::Queue;
use red::{Detector, Seen};
use service::Service;

/// Parameters of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// Its capacity over time.
    pub capacity: Capacity,
    /// How much may wait, not counting the packet in transmission.
    pub buffer: Buffer,
    /// Order of service.
    pub queue: Discipline,
    /// One weight for each class that packets may have.
    pub weights: Vec<Weight>,
    /// How many of a million packets are lost before they reach the queue.
    pub loss_ppm: u32,
    /// Mean number of packets in a burst of these losses; 1 means no bursts. With a mean of n, at
    /// most n of n + 1 packets may be lost.
    pub loss_burst: u32,
    /// Random delay behind the link, without reordering.
    pub jitter: Jitter,
    /// Time from one grant to the next: behind the jitter, packets arrive only at grants. Zero
    /// means no grants.
    pub grant: Span,
    /// Seed for loss, jitter and early drops.
    pub seed: u64,
}

impl LinkSpec {
    /// A plain link: first in, first out, one class, no loss and no jitter.
    pub fn fifo(capacity: Capacity, buffer: Buffer) -> LinkSpec {
        LinkSpec {
            capacity,
            buffer,
            queue: Discipline::Fifo,
            weights: vec![Weight::ONE],
            loss_ppm: 0,
            loss_burst: 1,
            jitter: Jitter::NONE,
            grant: Span::ZERO,
            seed: 1,
        }
    }
}

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// Bytes that the link carries in this time, at its present rate: without what a shaper's
    /// bucket adds, and at the mean for a trace.
    Time(Span),
    /// This number of bytes.
    Bytes(Bytes),
    /// This number of packets.
    Packets(u32),
}

/// Which packet is served next, and which is dropped when the buffer is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// First in, first out; a packet that does not fit is dropped.
    Fifo,
    /// By weight, packet by packet (start-time fair queueing). When the buffer is full, the last
    /// packet of the class with the most backlog per weight is dropped.
    Wfq,
    /// By weight, in rounds (deficit round robin). A full buffer drops as in [`Discipline::Wfq`].
    Drr,
    /// First in, first out; packets are dropped early, at random.
    Red(Red),
    /// First in, first out; packets are dropped as they leave while the queue stays long (CoDel).
    Codel,
    /// Flows in rounds, each controlled by a CoDel of its own (FQ-CoDel); a full buffer drops from
    /// the flow with the most bytes.
    FqCodel,
    /// First in, first out; packets are dropped early, at random, by their delay (PIE).
    Pie,
}

/// A packet on its way; `T` is data that the caller gets back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<T> {
    /// Index of its class.
    pub class: usize,
    /// In L2 bytes.
    pub size: Bytes,
    /// The caller's own data.
    pub body: T,
}

/// A packet that left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure<T> {
    /// The packet.
    pub packet: Packet<T>,
    /// When its last bit was sent.
    pub at: Time,
    /// How long it waited for its first bit to go out.
    pub sojourn: Span,
}

/// A packet that was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped<T> {
    /// The packet.
    pub packet: Packet<T>,
    /// When it was dropped.
    pub at: Time,
    /// Whether it was lost at random; otherwise the queue dropped it.
    pub random: bool,
}

/// A bottleneck with its queue.
///
/// Invariant: all events before `clock` have been processed; if a packet waits, another one is in
/// transmission.
#[derive(Clone, Debug)]
pub struct Link<T> {
    buffer: Buffer,
    /// Room for waiting packets at the present rate.
    room: Room,
    losses: Losses,
    delays: Delays,
    clock: Time,
    /// Time of the next event; the end of time if there will be none.
    due: Time,
    queue: Queue<T>,
    detector: Option<Detector>,
    pie: Option<Pie>,
    service: Service,
    transmission: Option<Transmission<T>>,
    departed: VecDeque<Departure<T>>,
    drops: VecDeque<Dropped<T>>,
    random: SplitMix64,
}

#[derive(Clone, Debug)]
struct Transmission<T> {
    packet: Packet<T>,
    sojourn: Span,
}

/// A buffer's size as numbers that can be compared.
#[derive(Clone, Copy, Debug)]
struct Room {
    bytes: u64,
    packets: usize,
}

const NEVER: Time = Time::from_nanos(u64::MAX);

impl<T> Link<T> {
    /// Makes an empty link at time zero.
    ///
    /// # Panics
    /// If there is no rate, a rate of zero or above that of the line, or steps out of order.
    pub fn new(spec: LinkSpec) -> Link<T> {
        let mut link = Link {
            buffer: spec.buffer,
            room: Room { bytes: 0, packets: 0 },
            losses: Losses::new(spec.loss_ppm, spec.loss_burst),
            delays: Delays::new(spec.jitter, spec.grant),
            clock: Time::ZERO,
            due: NEVER,
            queue: Queue::new(spec.queue, &spec.weights, spec.seed),
            detector: match spec.queue {
                Discipline::Red(red) => Some(Detector::new(red)),
                _ => None,
            },
            pie: (spec.queue == Discipline::Pie).then(Pie::new),
            service: Service::new(&spec.capacity),
            transmission: None,
            departed: VecDeque::new(),
            drops: VecDeque::new(),
            random: SplitMix64::new(spec.seed),
        };
        link.measure_room();
        link.look_ahead();
        link
    }

    /// Takes in a packet that arrives at `now`. Each class counts as one flow.
    ///
    /// # Panics
    /// If its class has no weight, or it is larger than 16 MB.
    pub fn enqueue(&mut self, now: Time, packet: Packet<T>) {
        self.enqueue_of(now, packet.class as u64, packet);
    }

    /// Takes in a packet of `flow` that arrives at `now`; only [`Discipline::FqCodel`] looks at the
    /// flow.
    ///
    /// # Panics
    /// If its class has no weight, or it is larger than 16 MB.
    pub fn enqueue_of(&mut self, now: Time, flow: u64, packet: Packet<T>) {
        self.advance(now);
        if self.losses.strikes(&mut self.random) {
            self.drops.push_back(Dropped { packet, at: self.clock, random: true });
            return;
        }
        if self.drops_early() {
            self.drops.push_back(Dropped { packet, at: self.clock, random: false });
            return;
        }
        // When the rate falls and the buffer's bytes with it, waiting packets are not dropped for
        // that: a packet that comes in costs others no more than its own size.
        let mut to_free = packet.size;
        self.queue.push(flow, Waiting { packet, since: self.clock });
        if self.transmission.is_none() {
            self.transmit_next();
            self.look_ahead();
        }
        while to_free > Bytes::ZERO && self.is_over_buffer() {
            let (at, drops) = (self.clock, &mut self.drops);
            self.queue.drop_some(|packet| {
                to_free = to_free.saturating_sub(packet.size);
                drops.push_back(Dropped { packet, at, random: false });
            });
        }
    }

    /// When to look for a packet that has left if no other comes in; a past time if it was not
    /// taken out yet. No packet leaves earlier, but there may be none even then.
    pub fn next_departure(&self) -> Option<Time> {
        if let Some(departure) = self.departed.front() {
            return Some(departure.at);
        }
        // A step of the rate moves the end of the transmission, and jitter moves the departure:
        // then there is simply nothing to take out yet.
        self.transmission.as_ref().map(|_| self.due)
    }

    /// The next packet that has left by `now`.
    pub fn poll_departure(&mut self, now: Time) -> Option<Departure<T>> {
        self.advance(now);
        let has_left = self.departed.front().is_some_and(|d| d.at <= now);
        if has_left { self.departed.pop_front() } else { None }
    }

    /// The next packet that was dropped.
    pub fn poll_drop(&mut self) -> Option<Dropped<T>> {
        self.drops.pop_front()
    }

    /// Number of packets that came in and were not taken out, without those that were dropped.
    #[expect(clippy::len_without_is_empty, reason = "not asked")]
    pub fn len(&self) -> usize {
        self.queue.len() + usize::from(self.transmission.is_some()) + self.departed.len()
    }

    /// Bytes that wait, not counting the packet in transmission.
    pub fn backlog(&self) -> Bytes {
        self.queue.backlog()
    }

    fn is_over_buffer(&self) -> bool {
        self.queue.backlog().as_u64() > self.room.bytes || self.queue.len() > self.room.packets
    }

    fn measure_room(&mut self) {
        let (bytes, packets) = match self.buffer {
            Buffer::Time(span) => ((self.service.rate() * span).as_u64(), usize::MAX),
            Buffer::Bytes(bytes) => (bytes.as_u64(), usize::MAX),
            Buffer::Packets(packets) => (u64::MAX, packets as usize),
        };
        self.room = Room { bytes, packets };
    }

    /// Whether an arriving packet is dropped although there may be room for it.
    fn drops_early(&mut self) -> bool {
        if let Some(pie) = &mut self.pie {
            let drops = pie.drops(self.clock, self.queue.backlog(), &mut self.random);
            self.look_ahead();
            return drops;
        }
        let Some(detector) = &mut self.detector else { return false };
        let (queued, room) = match self.buffer {
            Buffer::Time(_) | Buffer::Bytes(_) => (self.queue.backlog().as_u64(), self.room.bytes),
            Buffer::Packets(packets) => (self.queue.len() as u64, packets.into()),
        };
        let seen = Seen { queued, room, rate: self.service.rate() };
        detector.drops(self.clock, seen, &mut self.random)
    }

    /// Processes all events up to `now`.
    fn advance(&mut self, now: Time) {
        while self.due <= now && self.happen() {
            self.look_ahead();
        }
        self.clock = self.clock.max(now);
    }

    fn look_ahead(&mut self) {
        let end = self.transmission.as_ref().map(|_| self.service.end());
        let others = self.service.step_next().into_iter().chain(self.update_next());
        self.due = end.into_iter().chain(others).min().unwrap_or(NEVER);
    }

    /// Processes the next event, if there is one: an update of PIE comes before an end of
    /// transmission, which comes before a step of the rate.
    fn happen(&mut self) -> bool {
        if let Some(pie) = self.pie.as_mut().filter(|pie| pie.next_update() == Some(self.due)) {
            self.clock = self.due;
            pie.handle_update(self.due, self.queue.backlog());
            return true;
        }
        let end = self.transmission.as_ref().map(|_| self.service.end());
        match (end, self.service.step_next()) {
            (Some(end), step) if step.is_none_or(|step| end <= step) => self.finish(end),
            (_, Some(step)) => {
                self.clock = step;
                self.service.step(self.transmission.is_some());
                self.measure_room();
            }
            (_, None) => return false,
        }
        true
    }

    fn update_next(&self) -> Option<Time> {
        self.pie.as_ref().and_then(Pie::next_update)
    }

    fn finish(&mut self, end: Time) {
        let Some(Transmission { packet, sojourn }) = self.transmission.take() else { return };
        self.clock = end;
        self.service.finish();
        let at = self.delays.arrival(end, &mut self.random);
        self.departed.push_back(Departure { packet, at, sojourn });
        self.transmit_next();
    }

    fn transmit_next(&mut self) {
        let Some(Waiting { packet, since }) = self.queue.pop(self.clock, &mut self.drops) else {
            if let Some(detector) = &mut self.detector {
                detector.handle_idle(self.clock);
            }
            return;
        };
        if let Some(pie) = &mut self.pie {
            pie.handle_departure(self.clock.since(since), self.queue.backlog());
        }
        let first_bit = self.service.begin(self.clock, packet.size);
        self.transmission = Some(Transmission { sojourn: first_bit.since(since), packet });
    }
}

#[cfg(test)]
mod tests;
