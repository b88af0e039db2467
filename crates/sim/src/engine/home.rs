//! The receiving end behind the access link: control loops with their enforcers.
//!
//! A [`Stage`] is what one daemon is on a real host: it counts what arrives, hands the counts to its
//! controller every tick and lets its enforcer carry out what the controller commands. A home has
//! a stage per controlling host, and one at the router before them if that controls too.

use fairweir_core::receiver::{Command, Controller, GroupSample, Observation};
use fairweir_core::units::{Bytes, Span, Time};

use crate::htb::{Htb, Verdict};
use crate::link::Packet;

/// One control loop with its enforcer.
#[derive(Debug)]
pub(super) struct Stage<T> {
    controller: Controller,
    htb: Htb<T>,
    samples: Vec<GroupSample>,
    /// What each class had dropped at the last tick.
    drops: Vec<u64>,
    tick: Span,
    last_tick: Time,
}

impl<T> Stage<T> {
    /// Makes a stage of `classes` groups; what the controller commands at its start holds at once.
    pub(super) fn new(
        controller: Controller,
        classes: usize,
        packet_max: Bytes,
        tick: Span,
    ) -> Stage<T> {
        let mut stage = Stage {
            controller,
            htb: Htb::new(classes, packet_max),
            samples: vec![GroupSample::default(); classes],
            drops: vec![0; classes],
            tick,
            last_tick: Time::ZERO,
        };
        stage.carry_out(Time::ZERO);
        stage
    }

    pub(super) fn tick(&self) -> Span {
        self.tick
    }

    /// A packet of `packet.class` arrives at the interface.
    pub(super) fn arrive(&mut self, now: Time, packet: Packet<T>) -> Verdict<T> {
        let sample = &mut self.samples[packet.class];
        sample.received += packet.size;
        sample.packets += 1;
        self.htb.enqueue(now, packet)
    }

    pub(super) fn next_departure(&self) -> Option<Time> {
        self.htb.next_departure()
    }

    pub(super) fn poll_departure(&mut self, now: Time) -> Option<Packet<T>> {
        self.htb.poll_departure(now)
    }

    /// Tells the controller what arrived since the last tick and does what it says.
    pub(super) fn handle_tick(&mut self, now: Time) {
        let mut groups = self.samples.clone();
        for (class, sample) in groups.iter_mut().enumerate() {
            let drops = self.htb.drops(class);
            sample.drops = drops - std::mem::replace(&mut self.drops[class], drops);
            sample.backlog = self.htb.backlog(class);
        }
        self.samples.fill(GroupSample::default());
        let interval = now.since(self.last_tick);
        self.last_tick = now;
        self.controller.handle_observation(&Observation {
            at: now,
            interval,
            groups,
            connections: Vec::new(),
            delay: None,
        });
        self.carry_out(now);
    }

    fn carry_out(&mut self, now: Time) {
        let mut last: Option<Command> = None;
        while let Some(command) = self.controller.poll_command() {
            last = Some(command);
        }
        if let Some(command) = last {
            self.htb.apply(now, &command);
        }
    }
}
