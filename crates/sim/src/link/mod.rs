//! A bottleneck: packets come in at one end, wait, and leave at the rate of the link.
//!
//! The link is a state machine in virtual time. The caller hands in packets with the time of their
//! arrival ([`Link::enqueue`]), asks when something leaves next ([`Link::next_departure`]) and
//! takes out what has left ([`Link::poll_departure`]) and what was dropped ([`Link::poll_drop`]).
//! A departure carries the exact instant at which the packet left, however late it is taken out,
//! so that a driver in real time makes no error in the rate. Calls in the past count as now.
//!
//! Properties, all tested: what comes in leaves once, is dropped once or waits; the link never
//! rests while something waits; over a busy period of any length the volume is rate · time within
//! one packet (transmission is counted in nano-bits, and what rounding to nanoseconds gives away
//! is credited to the next packet); packets of a class keep their order; classes that always have
//! something waiting share by weight within one packet each (start-time fair queueing: Goyal, Vin
//! and Cheng, SIGCOMM 1996).

use std::collections::VecDeque;

use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Rate, Span, Time};

use crate::random::SplitMix64;

mod queue;

use queue::{Queue, Waiting};

/// What a link is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// The first entry's rate holds from the start; in order of time, no rate is zero.
    pub rates: Vec<RateStep>,
    /// How much may wait, without the packet in transmission.
    pub buffer: Buffer,
    /// Who is served next.
    pub queue: Discipline,
    /// One for each class that packets may have.
    pub weights: Vec<Weight>,
    /// How many of a million packets are lost before they reach the queue.
    pub loss_ppm: u32,
    /// The most random delay behind the link, without reordering.
    pub jitter: Span,
    /// Where loss and jitter come from.
    pub seed: u64,
}

/// From when on a link carries how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateStep {
    /// From then on; a packet in transmission is finished at the new rate.
    pub at: Time,
    /// What the link carries, in L2 bytes.
    pub rate: Rate,
}

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// What the link carries in this time, at its rate of the moment.
    Time(Span),
    /// So many bytes.
    Bytes(Bytes),
    /// So many packets.
    Packets(u32),
}

/// Who is served next, and who goes when the buffer is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// First in, first out; what does not fit is dropped.
    Fifo,
    /// By weight; when it is full the last packet of the class with the most backlog per weight
    /// goes.
    Wfq,
}

/// A packet on its way; `T` is what the caller wants to get back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<T> {
    /// Index of its class.
    pub class: usize,
    /// In L2 bytes.
    pub size: Bytes,
    /// The caller's own.
    pub body: T,
}

/// A packet that left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure<T> {
    /// What left.
    pub packet: Packet<T>,
    /// When its last bit was out.
    pub at: Time,
    /// How long it waited for its first bit to go out.
    pub sojourn: Span,
}

/// A packet that went no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped<T> {
    /// What went.
    pub packet: Packet<T>,
    /// When.
    pub at: Time,
    /// Whether it was random loss, else the buffer was full.
    pub random: bool,
}

/// A bottleneck with its queue.
///
/// Invariant: everything that happens before `clock` has happened; if something waits, something
/// is in transmission.
#[derive(Clone, Debug)]
pub struct Link<T> {
    spec: LinkSpec,
    /// Index into `spec.rates` of the rate that holds.
    step: usize,
    clock: Time,
    queue: Queue<T>,
    transmission: Option<Transmission<T>>,
    departed: VecDeque<Departure<T>>,
    departed_last: Time,
    drops: VecDeque<Dropped<T>>,
    random: SplitMix64,
}

#[derive(Clone, Debug)]
struct Transmission<T> {
    packet: Packet<T>,
    sojourn: Span,
    /// What is not out yet at the link's clock, in bits · 10⁻⁹ (rate × nanoseconds).
    left_nanobits: i128,
}

impl<T> Link<T> {
    /// Makes an empty link at time zero.
    ///
    /// # Panics
    /// If the spec has no rate, a rate of zero, or steps out of order.
    pub fn new(spec: LinkSpec) -> Link<T> {
        assert!(!spec.rates.is_empty(), "a link has a rate");
        assert!(spec.rates.iter().all(|s| s.rate > Rate::ZERO), "a link carries something");
        assert!(spec.rates.is_sorted_by(|a, b| a.at < b.at), "the steps are in order of time");
        Link {
            step: 0,
            clock: Time::ZERO,
            queue: Queue::new(spec.queue, &spec.weights),
            transmission: None,
            departed: VecDeque::new(),
            departed_last: Time::ZERO,
            drops: VecDeque::new(),
            random: SplitMix64::new(spec.seed),
            spec,
        }
    }

    /// Takes in a packet that arrives at `now`.
    ///
    /// # Panics
    /// If its class has no weight.
    pub fn enqueue(&mut self, now: Time, packet: Packet<T>) {
        self.advance(now);
        if self.spec.loss_ppm > 0 && self.random.below(1_000_000) < self.spec.loss_ppm.into() {
            self.drops.push_back(Dropped { packet, at: self.clock, random: true });
            return;
        }
        // What already waits is not dropped when the rate falls, and the buffer in time with it: a
        // packet that comes in costs others no more than its own size.
        let mut to_free = packet.size;
        self.queue.push(Waiting { packet, since: self.clock });
        if self.transmission.is_none() {
            self.transmit_next(0);
        }
        while to_free > Bytes::ZERO && self.is_over_buffer() {
            let Some(packet) = self.queue.drop_one() else { break };
            to_free = to_free.saturating_sub(packet.size);
            self.drops.push_back(Dropped { packet, at: self.clock, random: false });
        }
    }

    /// When the next packet will have left if nothing else comes in; also in the past, if it was
    /// not taken out.
    pub fn next_departure(&self) -> Option<Time> {
        if let Some(departure) = self.departed.front() {
            return Some(departure.at);
        }
        // The packet may leave later, by jitter: then there is just nothing to take out yet.
        self.transmission.as_ref().map(|t| self.end_of(t))
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

    /// What waits, without the packet in transmission.
    pub fn backlog(&self) -> Bytes {
        self.queue.backlog()
    }

    /// The rate of the moment.
    fn rate(&self) -> Rate {
        self.spec.rates[self.step].rate
    }

    fn is_over_buffer(&self) -> bool {
        match self.spec.buffer {
            Buffer::Time(span) => self.queue.backlog() > self.rate() * span,
            Buffer::Bytes(bytes) => self.queue.backlog() > bytes,
            Buffer::Packets(packets) => self.queue.len() > packets as usize,
        }
    }

    /// Lets everything happen that happens until `now`.
    fn advance(&mut self, now: Time) {
        loop {
            let step = self.spec.rates.get(self.step + 1).map(|s| s.at).filter(|&at| at <= now);
            let end = self.transmission.as_ref().map(|t| self.end_of(t)).filter(|&at| at <= now);
            match (step, end) {
                (_, Some(end)) if step.is_none_or(|step| end <= step) => self.finish(end),
                (Some(step), _) => {
                    self.transmit_until(step);
                    self.step += 1;
                }
                (None, None) => break,
                (None, Some(_)) => unreachable!("an end without a step is taken above"),
            }
        }
        self.transmit_until(now);
    }

    fn transmit_until(&mut self, now: Time) {
        let sent = nanobits(self.rate(), now.since(self.clock));
        if let Some(transmission) = &mut self.transmission {
            transmission.left_nanobits -= sent;
        }
        self.clock = self.clock.max(now);
    }

    /// The first whole nanosecond at which all of it is out.
    fn end_of(&self, transmission: &Transmission<T>) -> Time {
        let left = transmission.left_nanobits.max(0) as u128;
        let ns = left.div_ceil(u128::from(self.rate().as_bps()));
        self.clock + Span::nanos(ns.min(u64::MAX as u128) as u64)
    }

    fn finish(&mut self, end: Time) {
        self.transmit_until(end);
        let Some(Transmission { packet, sojourn, left_nanobits }) = self.transmission.take() else {
            return;
        };
        let jitter = match self.spec.jitter.as_nanos() {
            0 => Span::ZERO,
            most => Span::nanos(self.random.below(most.saturating_add(1))),
        };
        let at = (end + jitter).max(self.departed_last);
        self.departed_last = at;
        self.departed.push_back(Departure { packet, at, sojourn });
        // What was sent beyond the packet's last bit, less than a nanosecond's worth, is of the
        // next packet.
        self.transmit_next(left_nanobits);
    }

    fn transmit_next(&mut self, credit_nanobits: i128) {
        let Some(Waiting { packet, since }) = self.queue.pop() else { return };
        let bits = i128::from(packet.size.as_u64()) * 8;
        self.transmission = Some(Transmission {
            sojourn: self.clock.since(since),
            left_nanobits: bits * 1_000_000_000 + credit_nanobits,
            packet,
        });
    }
}

/// What passes in a span, exactly.
fn nanobits(rate: Rate, span: Span) -> i128 {
    i128::from(rate.as_bps()) * i128::from(span.as_nanos())
}

#[cfg(test)]
mod tests;
