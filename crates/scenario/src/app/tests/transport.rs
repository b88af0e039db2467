//! An idealised transport: connections that share a link without loss or start-up, packet by packet
//! in turn.

use std::collections::BTreeMap;

use super::*;
use crate::Scenario;
use fairweir_core::units::{Rate, Span};

pub(super) const SEGMENT: Bytes = Bytes::new(1448);

/// A flow that is being built: `keys` are those of the scenario file.
pub(super) fn flow(kind: &str, keys: &str) -> Flow {
    let text = format!(
        "version = 1\nname = \"x\"\nduration = \"2h\"\n[link]\nrate = \"1gbit\"\n\
         [[group]]\nname = \"a\"\nweight = 1\n[[flow]]\ngroup = \"a\"\nkind = \"{kind}\"\n{keys}"
    );
    Scenario::parse(&text, "x.toml").unwrap_or_else(|e| panic!("{e}")).flows.remove(0)
}

pub(super) fn s(seconds: u64) -> Time {
    Time::ZERO + Span::secs(seconds)
}

enum Event {
    Opened(u32),
    /// The request has arrived at the server.
    Asked(u32, Option<Bytes>),
    Received(u32, Bytes),
    Pong(u64),
    /// The link has become free.
    Free,
}

#[derive(Default)]
struct Connection {
    is_open: bool,
    /// Counts the connections that this slot has had.
    generation: u32,
    /// Bytes that the server has written and not sent.
    pending: u64,
    received: u64,
}

pub(super) struct World {
    app: App,
    rtt: Span,
    /// Rate of the link, in payload.
    rate: Rate,
    /// Period in which the link carries nothing.
    pub(super) held: std::ops::Range<Time>,
    now: Time,
    events: BTreeMap<(Time, u64), (u32, Event)>,
    /// Number of events so far; it keeps events of the same instant in order.
    scheduled: u64,
    connections: Vec<Connection>,
    turn: usize,
    link_is_busy: bool,
    pub(super) wants: Vec<(Time, Want)>,
    /// Payload that has arrived, in all and per slot over all its connections.
    pub(super) received: u64,
    pub(super) received_by_slot: Vec<u64>,
}

/// Large enough to count as without end.
const ENDLESS: u64 = 1 << 50;

impl World {
    pub(super) fn new(flow: &Flow, seed: u64, rate: Rate) -> World {
        let slots = crate::CONNECTIONS_MAX as usize;
        World {
            app: App::new(flow, seed, SEGMENT),
            rtt: flow.rtt,
            rate,
            held: Time::ZERO..Time::ZERO,
            now: Time::ZERO,
            events: BTreeMap::new(),
            scheduled: 0,
            connections: Vec::new(),
            turn: 0,
            link_is_busy: false,
            wants: Vec::new(),
            received: 0,
            received_by_slot: vec![0; slots],
        }
    }

    /// Plays from the start to the stop.
    pub(super) fn play(mut self, stop: Time) -> (World, Outcome) {
        self.start();
        self.run_until(stop);
        self.app.handle_stop(stop);
        self.drain();
        assert_eq!(self.app.next_timeout(), None, "nothing happens after the stop");
        let left: Vec<_> = self.connections.iter().filter(|c| c.is_open).collect();
        assert!(left.is_empty(), "everything is closed");
        let app = std::mem::replace(&mut self.app, App::new(&flow("bulk", ""), 0, SEGMENT));
        (self, app.outcome())
    }

    pub(super) fn start(&mut self) {
        self.app.handle_start(self.now);
        self.drain();
    }

    pub(super) fn run_until(&mut self, stop: Time) {
        loop {
            let event = self.events.keys().next().copied();
            let timeout = self.app.next_timeout().map(|at| at.max(self.now));
            match (event, timeout) {
                (Some((at, _)), due) if at <= stop && due.is_none_or(|due| at <= due) => {
                    self.now = at;
                    self.happen();
                }
                (_, Some(due)) if due <= stop => {
                    self.now = due;
                    self.app.handle_timeout(due);
                }
                _ => break,
            }
            self.drain();
        }
        self.now = stop;
    }

    fn happen(&mut self) {
        let Some((_, (generation, event))) = self.events.pop_first() else { return };
        let is_current = |connections: &[Connection], slot: u32| {
            let connection = &connections[slot as usize];
            connection.is_open && connection.generation == generation
        };
        match event {
            Event::Opened(slot) if is_current(&self.connections, slot) => {
                self.app.handle_opened(self.now, slot);
            }
            Event::Asked(slot, volume) if is_current(&self.connections, slot) => {
                let volume = volume.map_or(ENDLESS, Bytes::as_u64);
                self.connections[slot as usize].pending += volume;
                self.send();
            }
            Event::Received(slot, size) if is_current(&self.connections, slot) => {
                let connection = &mut self.connections[slot as usize];
                connection.received += size.as_u64();
                self.received += size.as_u64();
                self.received_by_slot[slot as usize] += size.as_u64();
                let total = Bytes::new(connection.received);
                self.app.handle_received(self.now, slot, total);
            }
            Event::Opened(_) | Event::Asked(..) | Event::Received(..) => {}
            Event::Pong(id) => self.app.handle_pong(self.now, id),
            Event::Free => {
                self.link_is_busy = false;
                self.send();
            }
        }
    }

    fn at(&mut self, at: Time, slot: u32, event: Event) {
        let generation = self.connections.get(slot as usize).map_or(0, |c| c.generation);
        self.scheduled += 1;
        let key = (at, self.scheduled);
        self.events.insert(key, (generation, event));
    }

    /// Sends the next packet if the link is free.
    fn send(&mut self) {
        if self.link_is_busy {
            return;
        }
        if self.held.contains(&self.now) {
            self.link_is_busy = true;
            self.at(self.held.end, 0, Event::Free);
            return;
        }
        let slots = self.connections.len();
        let waits = |i: &usize| self.connections[*i].is_open && self.connections[*i].pending > 0;
        let Some(i) = (1..=slots).map(|n| (self.turn + n) % slots).find(waits) else { return };
        self.turn = i;
        let connection = &mut self.connections[i];
        let size = Bytes::new(connection.pending.min(SEGMENT.as_u64()));
        connection.pending -= size.as_u64();
        let done = self.now + self.rate.time_to_send(size);
        self.link_is_busy = true;
        self.at(done, 0, Event::Free);
        self.at(done + self.rtt / 2, i as u32, Event::Received(i as u32, size));
    }

    fn drain(&mut self) {
        while let Some(want) = self.app.poll_want() {
            self.wants.push((self.now, want));
            match want {
                Want::Open { slot } => {
                    assert!(slot < crate::CONNECTIONS_MAX);
                    let count = self.connections.len().max(slot as usize + 1);
                    self.connections.resize_with(count, Connection::default);
                    let connection = &mut self.connections[slot as usize];
                    assert!(!connection.is_open, "slot {slot} is opened twice");
                    let generation = connection.generation + 1;
                    *connection = Connection { is_open: true, generation, ..Default::default() };
                    self.at(self.now + self.rtt, slot, Event::Opened(slot));
                }
                Want::Fetch { slot, volume } => {
                    self.assert_open(slot);
                    self.at(self.now + self.rtt / 2, slot, Event::Asked(slot, volume));
                }
                Want::Write { slot, volume, unsent_max } => {
                    self.assert_open(slot);
                    let pending = &mut self.connections[slot as usize].pending;
                    if *pending + volume.as_u64() <= unsent_max.as_u64() {
                        *pending += volume.as_u64();
                        self.send();
                    }
                }
                Want::Withdraw { slot, unsent_max } => {
                    self.assert_open(slot);
                    let pending = &mut self.connections[slot as usize].pending;
                    *pending = (*pending).min(unsent_max.as_u64());
                }
                Want::Close { slot } => {
                    self.assert_open(slot);
                    self.connections[slot as usize].is_open = false;
                }
                Want::Datagram { .. } => {}
                Want::Ping { id } => self.at(self.now + self.rtt, 0, Event::Pong(id)),
            }
        }
    }

    fn assert_open(&self, slot: u32) {
        assert!(self.connections[slot as usize].is_open, "slot {slot} is not open");
    }
}
