//! The receiving end behind the access link: control loops with their enforcers.
//!
//! A [`Stage`] is what one daemon is on a real host: it counts what arrives, hands the counts to its
//! controller every tick and lets its enforcer carry out what the controller commands. A home has
//! a stage per controlling host, and one at the router before them if that controls too. A group's
//! packets pass the stages on its *route*, one *hop* after the other.

use fairweir_core::receiver::{
    Command, ConnectionSample, Controller, Decision, GroupSample, Observation, ProbeSample, Windows,
};
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_scenario::link::Packet;

use crate::htb::{Htb, Verdict};

/// Where a group's packets meet a stage, and as which of its classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    pub(super) stage: usize,
    pub(super) class: usize,
}

/// All stages, and the route of each group.
#[derive(Debug)]
pub(super) struct Home<T> {
    pub(super) stages: Vec<Stage<T>>,
    routes: Vec<Vec<Hop>>,
}

impl<T> Home<T> {
    /// A home without stages, whatever the group.
    pub(super) fn new(groups: usize) -> Home<T> {
        Home { stages: Vec::new(), routes: vec![Vec::new(); groups] }
    }

    /// Adds a stage behind the others; `classes` are the groups that pass it, and as which class.
    pub(super) fn add(&mut self, stage: Stage<T>, classes: impl Iterator<Item = (usize, usize)>) {
        for (group, class) in classes {
            self.routes[group].push(Hop { stage: self.stages.len(), class });
        }
        self.stages.push(stage);
    }

    /// How many packets wait.
    pub(super) fn len(&self) -> usize {
        self.stages.iter().map(|stage| stage.htb.len()).sum()
    }

    /// The hop of a group after so many others; `None` if there is no more.
    pub(super) fn hop(&self, group: usize, after: usize) -> Option<Hop> {
        self.routes[group].get(after).copied()
    }

    /// The host at which packets of a group end, if it controls.
    pub(super) fn host(&self, group: usize) -> Option<Hop> {
        self.routes[group].last().copied()
    }

    /// How many hops a packet of a group has behind it when it leaves a stage.
    pub(super) fn hops_done(&self, group: usize, stage: usize) -> usize {
        let hops = self.routes[group].iter();
        hops.take_while(|hop| hop.stage <= stage).count()
    }
}

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
    /// How far the windows of its connections may open.
    pub(super) windows: Windows,
    /// What its departures are announced by.
    pub(super) source: usize,
}

impl<T> Stage<T> {
    /// Makes a stage of `classes` groups; what the controller commands at its start holds at once.
    pub(super) fn new(
        controller: Controller,
        classes: usize,
        packet_max: Bytes,
        tick: Span,
        source: usize,
    ) -> Stage<T> {
        let mut stage = Stage {
            controller,
            htb: Htb::new(classes, packet_max),
            samples: vec![GroupSample::default(); classes],
            drops: vec![0; classes],
            tick,
            last_tick: Time::ZERO,
            windows: Windows::default(),
            source,
        };
        stage.carry_out(Time::ZERO);
        stage
    }

    /// A packet of `packet.class` arrives at the interface.
    pub(super) fn arrive(&mut self, now: Time, packet: Packet<T>) -> Verdict<T> {
        let sample = &mut self.samples[packet.class];
        sample.received += packet.size;
        sample.packets += 1;
        self.htb.enqueue(now, packet)
    }

    /// What arrived in the last tick.
    pub(super) fn rate(&self) -> Rate {
        self.controller.decision().groups.iter().map(|group| group.rate).sum()
    }

    /// What was decided in the last tick.
    pub(super) fn decision(&self) -> &Decision {
        self.controller.decision()
    }

    pub(super) fn next_departure(&self) -> Option<Time> {
        self.htb.next_departure()
    }

    pub(super) fn poll_departure(&mut self, now: Time) -> Option<Packet<T>> {
        self.htb.poll_departure(now)
    }

    /// Tells the controller what arrived since the last tick and does what it says; returns when it
    /// ticks next.
    pub(super) fn handle_tick(
        &mut self,
        now: Time,
        connections: Vec<ConnectionSample>,
        probe: Option<ProbeSample>,
    ) -> Time {
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
            connections,
            probe,
        });
        self.carry_out(now);
        now + self.tick
    }

    fn carry_out(&mut self, now: Time) {
        while let Some(command) = self.controller.poll_command() {
            match command {
                Command::SetWindows(windows) => self.windows = windows,
                command => self.htb.apply(now, &command),
            }
        }
    }
}
