//! The receiving end behind the access link: control loops with their enforcers.
//!
//! A [`Stage`] models one daemon on a real host: it counts what arrives, gives the counts to its
//! controller every tick and lets its enforcer carry out what the controller commands. A home has a
//! stage for each controlling host, and one at the router in front of them if that controls too. A
//! group's packets pass the stages on its *route*, one *hop* after the other.

use std::convert::Infallible;

use fairweir_core::receiver::{
    Allocation, AtLink, Beside, ConnectionSample, ControlLoop, Decider, Decision, Enforcer,
    GroupSample, Observation, ProbeSample, Windows,
};
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_scenario::link::Packet;

use crate::htb::{Htb, Verdict};

/// A stage on a group's route, and the class that the group has there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    pub(super) stage: usize,
    pub(super) class: usize,
}

/// All stages, and the route of each group.
#[derive(Debug)]
pub(super) struct Home<T> {
    pub(super) stages: Vec<Stage<T>>,
    /// Whether the first stage is a router's, which sees windows as receivers ask for them.
    pub(super) has_router: bool,
    routes: Vec<Vec<Hop>>,
}

impl<T> Home<T> {
    /// A home without stages, whatever the group.
    pub(super) fn new(groups: usize) -> Home<T> {
        Home { stages: Vec::new(), has_router: false, routes: vec![Vec::new(); groups] }
    }

    /// Adds a stage behind the others; `classes` are the groups that pass it, each with its class.
    pub(super) fn add(&mut self, stage: Stage<T>, classes: impl Iterator<Item = (usize, usize)>) {
        for (group, class) in classes {
            self.routes[group].push(Hop { stage: self.stages.len(), class });
        }
        self.stages.push(stage);
    }

    /// Number of packets that wait.
    pub(super) fn len(&self) -> usize {
        self.stages.iter().map(|stage| stage.htb.len()).sum()
    }

    /// The hop of a group after `after` other hops; `None` if there are no more.
    pub(super) fn hop(&self, group: usize, after: usize) -> Option<Hop> {
        self.routes[group].get(after).copied()
    }

    /// The hop at the host where packets of a group end, if that host controls.
    pub(super) fn host(&self, group: usize) -> Option<Hop> {
        self.routes[group].last().copied()
    }

    /// The hop at the router in front of a host that controls, if the router controls too.
    pub(super) fn router(&self, group: usize) -> Option<Hop> {
        self.routes[group].first().copied().filter(|_| self.routes[group].len() > 1)
    }

    /// Number of hops that a packet of a group has passed when it leaves a stage.
    pub(super) fn hops_done(&self, group: usize, stage: usize) -> usize {
        let hops = self.routes[group].iter();
        hops.take_while(|hop| hop.stage <= stage).count()
    }
}

/// Input of a controller in a tick in addition to the groups' volumes: see [`Observation`].
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) connections: Vec<ConnectionSample>,
    pub(super) probe: Option<ProbeSample>,
    pub(super) exact: Option<Rate>,
    pub(super) beside: Beside,
}

/// One control loop with its enforcer.
#[derive(Debug)]
pub(super) struct Stage<T> {
    control: ControlLoop<Box<dyn Decider>>,
    htb: Htb<T>,
    samples: Vec<GroupSample>,
    /// Packets that each class had dropped up to the last tick.
    drops: Vec<u64>,
    tick: Span,
    /// Bounds for the windows of its connections.
    pub(super) windows: Windows,
    /// Source of the deadline that announces its departures.
    pub(super) source: usize,
}

impl<T> Stage<T> {
    /// Makes a stage of `classes` groups, which does nothing until [`Stage::begin`].
    pub(super) fn new(
        decider: Box<dyn Decider>,
        classes: usize,
        packet_max: Bytes,
        tick: Span,
        source: usize,
    ) -> Stage<T> {
        Stage {
            control: ControlLoop::new(decider, classes, Time::ZERO),
            htb: Htb::new(classes, packet_max),
            samples: vec![GroupSample::default(); classes],
            drops: vec![0; classes],
            tick,
            windows: Windows::default(),
            source,
        }
    }

    /// Begins: the controller's first commands apply at once, and what arrived before is not
    /// counted.
    pub(super) fn begin(&mut self, now: Time) {
        self.samples.fill(GroupSample::default());
        self.control.skip_to(now);
        self.enforce(now);
    }

    /// A packet of `packet.class` arrives at the interface.
    pub(super) fn arrive(&mut self, now: Time, packet: Packet<T>) -> Verdict<T> {
        let sample = &mut self.samples[packet.class];
        sample.received += packet.size;
        sample.packets += 1;
        self.htb.enqueue(now, packet)
    }

    /// Moves waiting packets for which a condition holds to another class from now on.
    pub(super) fn reclassify(
        &mut self,
        now: Time,
        from: usize,
        to: usize,
        is_meant: impl Fn(&T) -> bool,
    ) {
        self.htb.reclassify(now, from, to, is_meant);
    }

    /// Rate that arrived in the last tick.
    pub(super) fn rate(&self) -> Rate {
        self.control.decision().groups.iter().map(|group| group.rate).sum()
    }

    /// The decision of the last tick.
    pub(super) fn decision(&self) -> &Decision {
        self.control.decision()
    }

    /// The same, and the state of the link's queue.
    pub(super) fn seen(&self) -> (&Decision, AtLink) {
        (self.control.decision(), self.control.at_link())
    }

    pub(super) fn next_departure(&self) -> Option<Time> {
        self.htb.next_departure()
    }

    pub(super) fn poll_departure(&mut self, now: Time) -> Option<Packet<T>> {
        self.htb.poll_departure(now)
    }

    /// Tells the controller what arrived since the last tick and carries out its commands; returns
    /// when it ticks next.
    pub(super) fn handle_tick(
        &mut self,
        now: Time,
        Seen { connections, probe, exact, beside }: Seen,
    ) -> Time {
        let mut groups = self.samples.clone();
        for (class, sample) in groups.iter_mut().enumerate() {
            let drops = self.htb.drops(class);
            sample.drops = drops - std::mem::replace(&mut self.drops[class], drops);
            sample.backlog = self.htb.backlog(class);
        }
        self.samples.fill(GroupSample::default());
        let interval = self.control.count(now, &groups);
        let observation =
            Observation { at: now, interval, groups, connections, probe, exact, beside };
        self.control.decide(&observation);
        self.enforce(now);
        now + self.tick
    }

    fn enforce(&mut self, now: Time) {
        let mut model = Model { now, htb: &mut self.htb, windows: &mut self.windows };
        let Ok(()) = self.control.enforce(&mut model);
    }
}

/// The enforcer of a stage: sets classes at once, windows when their connections are next visited.
struct Model<'s, T> {
    now: Time,
    htb: &'s mut Htb<T>,
    windows: &'s mut Windows,
}

impl<T> Enforcer for Model<'_, T> {
    type Error = Infallible;

    fn apply(&mut self, allocation: &Allocation) -> Result<(), Infallible> {
        self.htb.apply(self.now, allocation);
        Ok(())
    }

    fn release(&mut self) -> Result<(), Infallible> {
        self.htb.release(self.now);
        Ok(())
    }

    fn apply_windows(&mut self, windows: &Windows) -> Result<(), Infallible> {
        self.windows.clone_from(windows);
        Ok(())
    }

    fn release_windows(&mut self) -> Result<(), Infallible> {
        *self.windows = Windows::default();
        Ok(())
    }
}
