//! Servers that send all they can, at a rate, or nothing: bulk downloads and on-off sources.
//!
//! Method: a server without end is asked once for everything. A server with a rate writes a full
//! packet whenever one is due, to its connections by turns, so that each has an equal part and
//! never gets two packets at a time. A packet for which a connection has no room is skipped and not
//! made up for. There is room for what the kernel takes and for as far as the server may be behind,
//! as with the servers of the emulated home.

use fairweir_core::units::{Bytes, Rate, Span, Time};

use super::random::Random;
use super::{Play, Want, Wants, full_packet};
use crate::{DemandStep, ETHERNET_HEADER, Flow, OnOff};

/// How far a server with a rate may be behind, in time.
const BEHIND_MAX: Span = Span::millis(20);
/// How far it may be behind at least, in packets, however low the rate.
const BEHIND_PACKETS_MIN: u64 = 4;
/// Unsent bytes that the kernel takes from a server that could send more; less if a flow's demand
/// allows the server to be less behind, so that it can stop at once.
const UNSENT_MAX: Bytes = Bytes::new(128 * 1024);

/// A clock that ticks once for each packet of a rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pacer {
    due: Time,
    interval: Span,
}

impl Pacer {
    /// A pacer whose first packet is due at once. `size` is the size of a packet in L2 bytes.
    pub(super) fn new(now: Time, rate: Rate, size: Bytes) -> Pacer {
        Pacer { due: now, interval: rate.time_to_send(size) }
    }

    /// Changes the rate from now on. The first packet is due after an interval of the new rate,
    /// unless a packet is due earlier anyway.
    pub(super) fn set_rate(&mut self, now: Time, rate: Rate, size: Bytes) {
        self.interval = rate.time_to_send(size);
        self.due = self.due.min(now + self.interval);
    }

    /// Whether a packet is due; it then counts as sent. Long backlogs are not made up for.
    pub(super) fn poll(&mut self, now: Time) -> bool {
        if now < self.due {
            return false;
        }
        self.due = self.due.max(now - BEHIND_MAX) + self.interval;
        true
    }

    pub(super) fn due(&self) -> Time {
        self.due
    }
}

/// Demands that follow each other; the first one applies from the start.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    steps: Vec<DemandStep>,
    next: usize,
}

impl Steps {
    pub(super) fn new(flow: &Flow) -> Steps {
        Steps { steps: flow.demands.clone(), next: 0 }
    }

    /// The demand that applies from now on, if it begins now.
    pub(super) fn poll(&mut self, now: Time) -> Option<Option<Rate>> {
        let mut begins = None;
        while let Some(step) = self.steps.get(self.next).filter(|step| step.at <= now) {
            begins = Some(step.demand);
            self.next += 1;
        }
        begins
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.steps.get(self.next).map(|step| step.at)
    }
}

/// How much a source sends.
#[derive(Clone, Copy, Debug)]
enum Level {
    Nothing,
    Paced { pacer: Pacer, unsent_max: Bytes },
    Endless,
}

/// A server with some connections.
#[derive(Debug)]
struct Source {
    segment: Bytes,
    /// L2 size of a full packet.
    wire: Bytes,
    /// Unsent bytes that the kernel takes of each connection.
    unsent_max: Bytes,
    level: Level,
    /// Which of its connections are open.
    open: Vec<bool>,
    /// The connection whose turn it is.
    turn: usize,
}

impl Source {
    fn new(flow: &Flow, connections: u32, segment: Bytes) -> Source {
        let lowest = flow.demands.iter().filter_map(|step| step.demand).min();
        let behind = lowest.map(|rate| behind_max(rate / u64::from(connections), segment));
        Source {
            segment,
            wire: full_packet(flow, segment) + Bytes::new(ETHERNET_HEADER),
            unsent_max: behind.map_or(UNSENT_MAX, |behind| behind.min(UNSENT_MAX)),
            level: Level::Nothing,
            open: vec![false; connections as usize],
            turn: 0,
        }
    }

    fn handle_start(&self, wants: &mut Wants) {
        wants.extend((0..self.open.len()).map(|slot| Want::Open { slot: slot as u32 }));
    }

    fn handle_stop(&mut self, wants: &mut Wants) {
        self.level = Level::Nothing;
        wants.extend((0..self.open.len()).map(|slot| Want::Close { slot: slot as u32 }));
    }

    fn handle_opened(&mut self, slot: u32, wants: &mut Wants) {
        self.open[slot as usize] = true;
        if let Level::Endless = self.level {
            wants.push_back(Want::Fetch { slot, volume: None });
        }
    }

    fn slots_open(&self) -> impl Iterator<Item = u32> {
        let slots = self.open.iter().enumerate().filter(|(_, open)| **open);
        slots.map(|(slot, _)| slot as u32)
    }

    fn send_nothing(&mut self, wants: &mut Wants) {
        if let Level::Endless = self.level {
            let unsent_max = self.unsent_max;
            let withdraw = |slot| Want::Withdraw { slot, unsent_max };
            wants.extend(self.slots_open().map(withdraw));
        }
        self.level = Level::Nothing;
    }

    /// From now on all connections together want `demand`.
    fn send(&mut self, now: Time, demand: Option<Rate>, wants: &mut Wants) {
        let Some(rate) = demand else {
            if !matches!(self.level, Level::Endless) {
                wants.extend(self.slots_open().map(|slot| Want::Fetch { slot, volume: None }));
            }
            self.level = Level::Endless;
            return;
        };
        let behind = behind_max(rate / self.open.len() as u64, self.segment);
        let unsent_max = self.unsent_max + behind;
        let pacer = match self.level {
            Level::Paced { mut pacer, .. } => {
                pacer.set_rate(now, rate, self.wire);
                pacer
            }
            Level::Nothing | Level::Endless => Pacer::new(now, rate, self.wire),
        };
        self.send_nothing(wants);
        self.level = Level::Paced { pacer, unsent_max };
    }

    fn handle_timeout(&mut self, now: Time, wants: &mut Wants) {
        let Level::Paced { pacer, unsent_max } = &mut self.level else { return };
        while pacer.poll(now) {
            // A connection that is not open yet misses its turn.
            if self.open[self.turn] {
                let (slot, volume) = (self.turn as u32, self.segment);
                wants.push_back(Want::Write { slot, volume, unsent_max: *unsent_max });
            }
            self.turn = (self.turn + 1) % self.open.len();
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        match self.level {
            Level::Paced { pacer, .. } => Some(pacer.due()),
            Level::Nothing | Level::Endless => None,
        }
    }
}

/// How far a connection with a rate may be behind.
fn behind_max(rate: Rate, segment: Bytes) -> Bytes {
    (rate * BEHIND_MAX).max(segment * BEHIND_PACKETS_MIN)
}

/// A download without end, or with a demand that changes in steps.
#[derive(Debug)]
pub(super) struct Bulk {
    source: Source,
    steps: Steps,
    active: bool,
}

impl Bulk {
    pub(super) fn new(flow: &Flow, segment: Bytes) -> Bulk {
        let source = Source::new(flow, flow.connections, segment);
        Bulk { source, steps: Steps::new(flow), active: false }
    }
}

impl Play for Bulk {
    fn handle_start(&mut self, now: Time, wants: &mut Wants) {
        self.active = true;
        self.source.handle_start(wants);
        self.handle_timeout(now, wants);
    }

    fn handle_stop(&mut self, _: Time, wants: &mut Wants) {
        self.active = false;
        self.source.handle_stop(wants);
    }

    fn handle_timeout(&mut self, now: Time, wants: &mut Wants) {
        if !self.active {
            return;
        }
        if let Some(demand) = self.steps.poll(now) {
            self.source.send(now, demand, wants);
        }
        self.source.handle_timeout(now, wants);
    }

    fn handle_opened(&mut self, _: Time, slot: u32, wants: &mut Wants) {
        self.source.handle_opened(slot, wants);
    }

    fn next_timeout(&self) -> Option<Time> {
        let timeouts = [self.steps.next_timeout(), self.source.next_timeout()];
        timeouts.into_iter().flatten().min().filter(|_| self.active)
    }
}

/// A download on one connection that is on and off by turns; it begins with on.
#[derive(Debug)]
pub(super) struct OnOffBulk {
    source: Source,
    steps: Steps,
    /// Rate that it demands while it is on.
    demand: Option<Rate>,
    means: OnOff,
    random: Random,
    is_on: bool,
    /// When the period ends; `None` before the start and after the stop.
    turns_at: Option<Time>,
}

impl OnOffBulk {
    pub(super) fn new(flow: &Flow, means: OnOff, seed: u64, segment: Bytes) -> OnOffBulk {
        OnOffBulk {
            source: Source::new(flow, 1, segment),
            steps: Steps::new(flow),
            demand: None,
            means,
            random: Random::new(seed),
            is_on: false,
            turns_at: None,
        }
    }
}

impl Play for OnOffBulk {
    fn handle_start(&mut self, now: Time, wants: &mut Wants) {
        self.turns_at = Some(now);
        self.source.handle_start(wants);
        self.handle_timeout(now, wants);
    }

    fn handle_stop(&mut self, _: Time, wants: &mut Wants) {
        self.turns_at = None;
        self.source.handle_stop(wants);
    }

    fn handle_timeout(&mut self, now: Time, wants: &mut Wants) {
        let Some(turns_at) = self.turns_at else { return };
        let step = self.steps.poll(now);
        self.demand = step.unwrap_or(self.demand);
        if turns_at <= now {
            self.is_on = !self.is_on;
            let mean = if self.is_on { self.means.on } else { self.means.off };
            self.turns_at = Some(turns_at + self.random.pareto(mean));
            if self.is_on {
                self.source.send(now, self.demand, wants);
            } else {
                self.source.send_nothing(wants);
            }
        } else if self.is_on && step.is_some() {
            self.source.send(now, self.demand, wants);
        }
        self.source.handle_timeout(now, wants);
    }

    fn handle_opened(&mut self, _: Time, slot: u32, wants: &mut Wants) {
        self.source.handle_opened(slot, wants);
    }

    fn next_timeout(&self) -> Option<Time> {
        let timeouts = [self.turns_at, self.steps.next_timeout(), self.source.next_timeout()];
        timeouts.into_iter().flatten().min().filter(|_| self.turns_at.is_some())
    }
}
