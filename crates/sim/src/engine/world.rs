//! Everything that is there during a run, and what happens when.

use std::sync::atomic::{AtomicBool, Ordering};

use fairweir_core::receiver::{Control, Controller, ControllerSpec, CrabTuning};
use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Span, Time};

use super::connection::{Connection, Connections};
use super::deadlines::Deadlines;
use super::home::Stage;
use super::line::Line;
use super::packet::{Down, DownKind, Sizes, Up, UpKind};
use super::{Ended, PlayError};
use crate::app::{App, Want};
use crate::htb::Verdict;
use crate::link::{Capacity, Discipline, Link, LinkSpec, Packet};
use crate::random::SplitMix64;
use crate::report::Samples;
use crate::scenario::{ETHERNET_HEADER, PING_PAYLOAD, Scenario, Told};
use crate::tcp::Segment;

/// How often somebody is told how far the run is, and asked whether it shall end.
const PROGRESS_INTERVAL: Span = Span::secs(1);
/// A lost SYN, SYN-ACK or request is sent again after that. Source: RFC 6298 §2.1.
const RESEND_AFTER: Span = Span::secs(1);
/// Flows begin up to that much later than the scenario says, by chance, so that seeds differ in
/// what real processes differ in.
const START_JITTER: Span = Span::millis(5);

/// What a deadline is of.
#[derive(Clone, Copy, Debug)]
enum Source {
    Progress,
    Downlink,
    Uplink,
    /// What was lost and is sent again.
    Resend,
    /// Index into `down_lines`.
    DownLine(usize),
    UpLine(usize),
    /// The tick of a stage's controller.
    Tick(usize),
    /// A departure of a stage's enforcer.
    Enforcer(usize),
    FlowStart(usize),
    FlowStop(usize),
    /// The timer of a flow's application.
    App(usize),
    /// The timers of a connection's two ends.
    Timer(u32),
    /// The pacing of a connection's sender.
    Pacing(u32),
}

/// A flow of the scenario.
#[derive(Debug)]
struct Flow {
    app: App,
    group: usize,
    sizes: Sizes,
    segment: Bytes,
    /// Where its packets travel: indices into `down_lines` and `up_lines`.
    line: usize,
    /// Its connections by the application's slots.
    slots: Vec<Option<u32>>,
    timer: usize,
    seed: u64,
}

/// What is sent again, and in which direction.
#[derive(Clone, Copy, Debug)]
enum Lost {
    Down(Down),
    Up(Up),
}

/// A run: everything that happens before the first deadline has happened.
pub(super) struct World<'s> {
    scenario: &'s Scenario,
    deadlines: Deadlines,
    sources: Vec<Source>,
    downlink: Link<Down>,
    uplink: Link<Up>,
    /// From the servers to the link, and from the link to the servers; one of each for each delay.
    down_lines: Vec<Line<Packet<Down>>>,
    up_lines: Vec<Line<Up>>,
    line_sources: Vec<(usize, usize)>,
    resends: Line<Lost>,
    stages: Vec<Stage<Down>>,
    enforcer_sources: Vec<usize>,
    /// Which class each group is at each stage that it passes, in order.
    routes: Vec<Vec<(usize, usize)>>,
    flows: Vec<Flow>,
    connections: Connections,
    samples: Samples,
}

const PROGRESS: usize = 0;
const DOWNLINK: usize = 1;
const UPLINK: usize = 2;
const RESEND: usize = 3;

impl<'s> World<'s> {
    /// Sets everything up at time zero.
    ///
    /// # Errors
    /// [`PlayError::Control`] if the control cannot work with the scenario.
    pub(super) fn new(
        scenario: &'s Scenario,
        control: Control,
        seed: u64,
    ) -> Result<World<'s>, PlayError> {
        let mut random = SplitMix64::new(seed);
        let mut world = World {
            scenario,
            deadlines: Deadlines::default(),
            sources: Vec::new(),
            downlink: Link::new(downlink(scenario, control, random.draw())),
            uplink: Link::new(uplink(scenario, random.draw())),
            down_lines: Vec::new(),
            up_lines: Vec::new(),
            line_sources: Vec::new(),
            resends: Line::new(RESEND_AFTER),
            stages: Vec::new(),
            enforcer_sources: Vec::new(),
            routes: vec![Vec::new(); scenario.groups.len()],
            flows: Vec::new(),
            connections: Connections::default(),
            samples: Samples::new(scenario),
        };
        for source in [Source::Progress, Source::Downlink, Source::Uplink, Source::Resend] {
            world.add_source(source, None);
        }
        world.deadlines.set(PROGRESS, Some(Time::ZERO + PROGRESS_INTERVAL));
        world.add_stages(control, &mut random)?;
        for i in 0..scenario.flows.len() {
            world.add_flow(i, &mut random);
        }
        Ok(world)
    }

    /// Plays to the end of the scenario.
    ///
    /// # Errors
    /// [`PlayError::Cancelled`] if `cancel` was set.
    pub(super) fn play(
        mut self,
        progress: &dyn Fn(Time),
        cancel: &AtomicBool,
    ) -> Result<Ended, PlayError> {
        let end = self.scenario.end();
        while let Some((now, source)) = self.deadlines.first().filter(|(at, _)| *at <= end) {
            match self.sources[source] {
                Source::Progress => {
                    progress(now);
                    if cancel.load(Ordering::Relaxed) {
                        return Err(PlayError::Cancelled);
                    }
                    self.deadlines.set(PROGRESS, Some(now + PROGRESS_INTERVAL));
                }
                Source::Downlink => self.leave_downlink(now),
                Source::Uplink => self.leave_uplink(now),
                Source::Resend => self.resend(now),
                Source::DownLine(line) => self.arrive_at_downlink(now, line),
                Source::UpLine(line) => self.arrive_at_servers(now, line),
                Source::Tick(stage) => {
                    self.stages[stage].handle_tick(now);
                    self.deadlines.set(source, Some(now + self.stages[stage].tick()));
                    self.leave_enforcer(now, stage);
                }
                Source::Enforcer(stage) => self.leave_enforcer(now, stage),
                Source::FlowStart(flow) => {
                    self.deadlines.set(source, None);
                    self.flows[flow].app.handle_start(now);
                    self.serve(now, flow);
                }
                Source::FlowStop(flow) => {
                    self.deadlines.set(source, None);
                    self.stop(now, flow);
                }
                Source::App(flow) => {
                    self.deadlines.set(source, None);
                    self.flows[flow].app.handle_timeout(now);
                    self.serve(now, flow);
                }
                Source::Timer(connection) => self.handle_timer(now, connection),
                Source::Pacing(connection) => self.transmit(now, connection),
            }
        }
        progress(end);
        let outcomes = self.flows.into_iter().map(|flow| flow.app.outcome());
        Ok(Ended { samples: self.samples, outcomes: outcomes.collect() })
    }

    // --------------------------------------------------------------------------------------------
    // The set-up

    fn add_source(&mut self, source: Source, deadline: Option<Time>) -> usize {
        let index = self.deadlines.add();
        self.sources.push(source);
        self.deadlines.set(index, deadline);
        index
    }

    /// The router's stage, which has a class for each device, and those of the devices; without
    /// devices the one host's.
    fn add_stages(&mut self, control: Control, random: &mut SplitMix64) -> Result<(), PlayError> {
        let scenario = self.scenario;
        let groups = || scenario.groups.iter().map(|g| g.weight);
        if scenario.devices.is_empty() {
            let classes: Vec<usize> = (0..scenario.groups.len()).collect();
            return self.add_stage(control, groups().collect(), CrabTuning::HOST, &classes, random);
        }
        let devices = scenario.devices.iter().map(|d| d.weight).collect();
        self.add_stage(control, devices, CrabTuning::ROUTER, &scenario.device_of, random)?;
        for (index, device) in scenario.devices.iter().enumerate() {
            let of = |group: usize| scenario.device_of[group] == index;
            let weights: Vec<Weight> =
                groups().enumerate().filter(|(g, _)| of(*g)).map(|(_, weight)| weight).collect();
            let mut class = 0..;
            let elsewhere = usize::MAX;
            let classes: Vec<usize> = (0..scenario.groups.len())
                .map(|g| if of(g) { class.next().unwrap_or(elsewhere) } else { elsewhere })
                .collect();
            self.add_stage(device.control, weights, CrabTuning::HOST, &classes, random)?;
        }
        Ok(())
    }

    /// Adds a stage with a class for each of `weights`; `class_of` says which class each group is
    /// there, beyond the last one if it does not pass.
    fn add_stage(
        &mut self,
        control: Control,
        weights: Vec<Weight>,
        tuning: CrabTuning,
        class_of: &[usize],
        random: &mut SplitMix64,
    ) -> Result<(), PlayError> {
        if matches!(control, Control::None | Control::Wfq) || weights.is_empty() {
            return Ok(());
        }
        let Told { capacity, remembered, strict_priority, tuning: differing } =
            self.scenario.control;
        let capacity = capacity.unwrap_or_else(|| self.scenario.link.capacity.nominal());
        let tuning = differing.applied_to(tuning);
        let classes = weights.len();
        let controller = Controller::new(&ControllerSpec {
            control,
            weights,
            capacity: if control.needs_capacity() { Some(capacity) } else { remembered },
            strict_priority,
            tuning,
        })?;
        let stage = self.stages.len();
        let packet_max = Bytes::new(u64::from(self.scenario.link.mtu) + ETHERNET_HEADER);
        self.stages.push(Stage::new(controller, classes, packet_max, tuning.tick));
        for (group, &class) in class_of.iter().enumerate().filter(|(_, class)| **class < classes) {
            self.routes[group].push((stage, class));
        }
        // The daemon's clock knows nothing of the scenario's.
        let phase = Span::nanos(1 + random.below(tuning.tick.as_nanos()));
        self.add_source(Source::Tick(stage), Some(Time::ZERO + phase));
        let enforcer = self.add_source(Source::Enforcer(stage), None);
        self.enforcer_sources.push(enforcer);
        Ok(())
    }

    fn add_flow(&mut self, index: usize, random: &mut SplitMix64) {
        let flow = &self.scenario.flows[index];
        let segment = Sizes::segment(flow.ip, self.scenario.link.mtu);
        let line = self.line(flow.rtt / 2);
        let jitter = Span::nanos(random.below(START_JITTER.as_nanos()));
        self.add_source(Source::FlowStart(index), Some(flow.start + jitter));
        self.add_source(Source::FlowStop(index), Some(flow.stop));
        let timer = self.add_source(Source::App(index), None);
        self.flows.push(Flow {
            app: App::new(flow, random.draw(), segment),
            group: flow.group,
            sizes: Sizes::new(flow.ip),
            segment,
            line,
            slots: Vec::new(),
            timer,
            seed: random.draw(),
        });
    }

    /// The pair of paths with this delay in each direction.
    fn line(&mut self, delay: Span) -> usize {
        if let Some(line) = self.up_lines.iter().position(|line| line.delay() == delay) {
            return line;
        }
        let line = self.up_lines.len();
        self.down_lines.push(Line::new(delay));
        self.up_lines.push(Line::new(delay));
        let down = self.add_source(Source::DownLine(line), None);
        let up = self.add_source(Source::UpLine(line), None);
        self.line_sources.push((down, up));
        line
    }

    // --------------------------------------------------------------------------------------------
    // Towards the home

    fn send_down(&mut self, now: Time, flow: usize, size: Bytes, body: Down) {
        let Flow { group, line, .. } = self.flows[flow];
        self.down_lines[line].send(now, Packet { class: group, size, body });
        let source = self.line_sources[line].0;
        if self.deadlines.of(source).is_none() {
            self.deadlines.set(source, self.down_lines[line].next_arrival());
        }
    }

    fn arrive_at_downlink(&mut self, now: Time, line: usize) {
        while let Some(packet) = self.down_lines[line].poll_arrival(now) {
            self.downlink.enqueue(now, packet);
        }
        while let Some(dropped) = self.downlink.poll_drop() {
            if !dropped.random {
                self.samples.record_drop();
            }
            self.lose_down(now, dropped.packet.body);
        }
        self.deadlines.set(self.line_sources[line].0, self.down_lines[line].next_arrival());
        self.deadlines.set(DOWNLINK, self.downlink.next_departure());
    }

    fn leave_downlink(&mut self, now: Time) {
        while let Some(departure) = self.downlink.poll_departure(now) {
            let packet = departure.packet;
            self.samples.record_departure(
                departure.at,
                packet.class,
                packet.size,
                departure.sojourn,
            );
            self.pass(now, packet, 0);
        }
        self.deadlines.set(DOWNLINK, self.downlink.next_departure());
    }

    /// Takes a packet through the stages of its group, from the `from`-th one on, to its receiver.
    fn pass(&mut self, now: Time, mut packet: Packet<Down>, from: usize) {
        let group = self.flows[self.flow_of(packet.body)].group;
        let mut i = from;
        while let Some(&(stage, class)) = self.routes[group].get(i) {
            packet.class = class;
            match self.stages[stage].arrive(now, packet) {
                Verdict::Pass(passed) => packet = passed,
                Verdict::Waits => return self.wake_enforcer(stage),
                Verdict::Dropped(dropped) => return self.lose_down(now, dropped.body),
            }
            i += 1;
        }
        self.receive(now, packet.body);
    }

    fn wake_enforcer(&mut self, stage: usize) {
        let next = self.stages[stage].next_departure();
        self.deadlines.set(self.enforcer_sources[stage], next);
    }

    fn leave_enforcer(&mut self, now: Time, stage: usize) {
        while let Some(packet) = self.stages[stage].poll_departure(now) {
            let group = self.flows[self.flow_of(packet.body)].group;
            let passed = self.routes[group].iter().position(|&(s, _)| s == stage);
            self.pass(now, packet, passed.map_or(0, |i| i + 1));
        }
        self.wake_enforcer(stage);
    }

    fn flow_of(&self, body: Down) -> usize {
        match body.kind {
            DownKind::Opening | DownKind::Data(_) => self.connections[body.to].flow,
            DownKind::Datagram | DownKind::Pong { .. } => body.to as usize,
        }
    }

    /// A packet has reached its receiver.
    fn receive(&mut self, now: Time, body: Down) {
        match body.kind {
            DownKind::Data(segment) => self.receive_segment(now, body.to, &segment),
            DownKind::Opening => {
                let connection = &mut self.connections[body.to];
                connection.under_way -= 1;
                if connection.closed || connection.opened {
                    return self.connections.bury(body.to);
                }
                connection.opened = true;
                let (flow, slot) = (connection.flow, connection.slot);
                self.flows[flow].app.handle_opened(now, slot);
                self.serve(now, flow);
            }
            DownKind::Datagram => {}
            DownKind::Pong { id } => {
                self.flows[body.to as usize].app.handle_pong(now, id);
                self.serve(now, body.to as usize);
            }
        }
    }

    fn receive_segment(&mut self, now: Time, index: u32, segment: &Segment) {
        let connection = &mut self.connections[index];
        connection.under_way -= 1;
        if connection.closed {
            return self.connections.bury(index);
        }
        connection.receiver.handle_segment(now, segment);
        let (flow, slot) = (connection.flow, connection.slot);
        let total = connection.receiver.received();
        self.acknowledge(now, index);
        self.watch(index, self.connections[index].receiver.next_timeout());
        self.flows[flow].app.handle_received(now, slot, total);
        self.serve(now, flow);
    }

    fn lose_down(&mut self, now: Time, body: Down) {
        match body.kind {
            DownKind::Data(_) => {
                self.connections[body.to].under_way -= 1;
                self.connections.bury(body.to);
            }
            DownKind::Opening => self.resend_later(now, Lost::Down(body)),
            DownKind::Datagram | DownKind::Pong { .. } => {}
        }
    }

    // --------------------------------------------------------------------------------------------
    // Towards the servers

    fn send_up(&mut self, now: Time, group: usize, size: Bytes, body: Up) {
        self.uplink.enqueue(now, Packet { class: group, size, body });
        while let Some(dropped) = self.uplink.poll_drop() {
            let body = dropped.packet.body;
            match body.kind {
                UpKind::Open | UpKind::Request { .. } => self.resend_later(now, Lost::Up(body)),
                UpKind::Ack(_) => {
                    self.connections[body.from].under_way -= 1;
                    self.connections.bury(body.from);
                }
                UpKind::Ping { .. } => {}
            }
        }
        self.deadlines.set(UPLINK, self.uplink.next_departure());
    }

    fn leave_uplink(&mut self, now: Time) {
        while let Some(departure) = self.uplink.poll_departure(now) {
            let body = departure.packet.body;
            let flow = match body.kind {
                UpKind::Ping { .. } => body.from as usize,
                UpKind::Open | UpKind::Request { .. } | UpKind::Ack(_) => {
                    self.connections[body.from].flow
                }
            };
            let line = self.flows[flow].line;
            self.up_lines[line].send(now, body);
            let source = self.line_sources[line].1;
            if self.deadlines.of(source).is_none() {
                self.deadlines.set(source, self.up_lines[line].next_arrival());
            }
        }
        self.deadlines.set(UPLINK, self.uplink.next_departure());
    }

    fn arrive_at_servers(&mut self, now: Time, line: usize) {
        while let Some(body) = self.up_lines[line].poll_arrival(now) {
            self.arrive_at_server(now, body);
        }
        self.deadlines.set(self.line_sources[line].1, self.up_lines[line].next_arrival());
    }

    fn arrive_at_server(&mut self, now: Time, body: Up) {
        if let UpKind::Ping { id } = body.kind {
            let flow = body.from as usize;
            let size = self.flows[flow].sizes.datagram(PING_PAYLOAD as u32);
            let pong = Down { to: body.from, kind: DownKind::Pong { id } };
            return self.send_down(now, flow, size, pong);
        }
        let index = body.from;
        let connection = &mut self.connections[index];
        connection.under_way -= 1;
        if connection.closed {
            return self.connections.bury(index);
        }
        match body.kind {
            UpKind::Ping { .. } => unreachable!("a ping has no connection"),
            UpKind::Open => {
                connection.asked_at = now;
                connection.under_way += 1;
                let flow = connection.flow;
                let size = self.flows[flow].sizes.syn();
                self.send_down(now, flow, size, Down { to: index, kind: DownKind::Opening });
            }
            UpKind::Request { volume } => {
                connection.establish(now);
                connection.sender.write(now, volume);
                self.transmit(now, index);
            }
            UpKind::Ack(ack) => {
                connection.sender.handle_ack(now, &ack);
                self.transmit(now, index);
            }
        }
    }

    /// Sends what a sender may send now.
    fn transmit(&mut self, now: Time, index: u32) {
        let Connection { flow, .. } = self.connections[index];
        let sizes = self.flows[flow].sizes;
        while let Some(segment) = self.connections[index].sender.poll_transmit(now) {
            self.connections[index].under_way += 1;
            let size = sizes.data(segment.payload);
            self.send_down(now, flow, size, Down { to: index, kind: DownKind::Data(segment) });
        }
        let connection = &self.connections[index];
        self.deadlines.set(connection.pacing_source, connection.sender.next_transmit(now));
        self.watch(index, connection.sender.next_timeout());
    }

    /// Sends the acknowledgements that are due.
    fn acknowledge(&mut self, now: Time, index: u32) {
        while let Some(ack) = self.connections[index].receiver.poll_ack(now) {
            let connection = &mut self.connections[index];
            connection.under_way += 1;
            let Flow { group, sizes, .. } = self.flows[connection.flow];
            self.send_up(now, group, sizes.ack(), Up { from: index, kind: UpKind::Ack(ack) });
        }
    }

    // --------------------------------------------------------------------------------------------
    // Timers

    /// Makes sure that a timer of the connection that is `due` is heard. A deadline that moved to a
    /// later time is left where it is: it is put right when it fires, not with every packet.
    fn watch(&mut self, index: u32, due: Option<Time>) {
        let Some(due) = due else { return };
        let source = self.connections[index].timer_source;
        if self.deadlines.of(source).is_none_or(|heard| due < heard) {
            self.deadlines.set(source, Some(due));
        }
    }

    fn handle_timer(&mut self, now: Time, index: u32) {
        let connection = &mut self.connections[index];
        let due = connection.next_timeout();
        self.deadlines.set(connection.timer_source, due);
        if due.is_none_or(|due| due > now) {
            return;
        }
        if connection.sender.next_timeout().is_some_and(|due| due <= now) {
            connection.sender.handle_timeout(now);
        }
        self.acknowledge(now, index);
        self.transmit(now, index);
        let connection = &self.connections[index];
        self.deadlines.set(connection.timer_source, connection.next_timeout());
    }

    fn resend_later(&mut self, now: Time, lost: Lost) {
        self.resends.send(now, lost);
        self.deadlines.set(RESEND, self.resends.next_arrival());
    }

    fn resend(&mut self, now: Time) {
        while let Some(lost) = self.resends.poll_arrival(now) {
            let index = match lost {
                Lost::Down(body) => body.to,
                Lost::Up(body) => body.from,
            };
            let connection = &mut self.connections[index];
            if connection.closed {
                connection.under_way -= 1;
                self.connections.bury(index);
                continue;
            }
            let Flow { group, sizes, .. } = self.flows[connection.flow];
            let flow = connection.flow;
            match lost {
                Lost::Down(body) => {
                    connection.asked_at = now;
                    self.send_down(now, flow, sizes.syn(), body);
                }
                Lost::Up(body) => {
                    let is_open = matches!(body.kind, UpKind::Open);
                    let size = if is_open { sizes.syn() } else { sizes.request() };
                    self.send_up(now, group, size, body);
                }
            }
        }
        self.deadlines.set(RESEND, self.resends.next_arrival());
    }

    // --------------------------------------------------------------------------------------------
    // Applications

    /// Does what the application of a flow wants.
    fn serve(&mut self, now: Time, flow: usize) {
        while let Some(want) = self.flows[flow].app.poll_want() {
            self.satisfy(now, flow, want);
        }
        let timer = self.flows[flow].timer;
        self.deadlines.set(timer, self.flows[flow].app.next_timeout().map(|at| at.max(now)));
    }

    fn satisfy(&mut self, now: Time, flow: usize, want: Want) {
        let Flow { group, sizes, .. } = self.flows[flow];
        match want {
            Want::Open { slot } => self.open(now, flow, slot),
            Want::Fetch { slot, volume } => {
                let Some(index) = self.connection_at(flow, slot) else { return };
                self.connections[index].under_way += 1;
                let request = Up { from: index, kind: UpKind::Request { volume } };
                self.send_up(now, group, sizes.request(), request);
            }
            Want::Write { slot, volume, unsent_max } => {
                let Some(index) = self.connection_at(flow, slot) else { return };
                let connection = &mut self.connections[index];
                connection.establish(now);
                let fits = |unsent| unsent + volume <= unsent_max;
                if connection.sender.unsent().is_some_and(fits) {
                    connection.sender.write(now, Some(volume));
                    self.transmit(now, index);
                }
            }
            Want::Withdraw { slot, unsent_max } => {
                if let Some(index) = self.connection_at(flow, slot) {
                    self.connections[index].sender.withdraw(unsent_max);
                }
            }
            Want::Close { slot } => {
                if let Some(index) = self.connection_at(flow, slot) {
                    self.close(index);
                }
            }
            Want::Datagram { payload } => {
                let body = Down { to: flow as u32, kind: DownKind::Datagram };
                self.send_down(now, flow, sizes.datagram(payload), body);
            }
            Want::Ping { id } => {
                let size = sizes.datagram(PING_PAYLOAD as u32);
                self.send_up(now, group, size, Up { from: flow as u32, kind: UpKind::Ping { id } });
            }
        }
    }

    fn connection_at(&self, flow: usize, slot: u32) -> Option<u32> {
        self.flows[flow].slots.get(slot as usize).copied().flatten()
    }

    fn open(&mut self, now: Time, flow: usize, slot: u32) {
        let congestion_control = self.scenario.flows[flow].congestion_control;
        let (index, is_new) = self.connections.open(flow, slot, |serial| {
            let seed = self.flows[flow].seed.wrapping_add(serial);
            Connection::ends(congestion_control, self.flows[flow].segment, seed)
        });
        if is_new {
            let timer = self.add_source(Source::Timer(index), None);
            let pacing = self.add_source(Source::Pacing(index), None);
            self.connections[index].timer_source = timer;
            self.connections[index].pacing_source = pacing;
        }
        let slots = &mut self.flows[flow].slots;
        if slots.len() <= slot as usize {
            slots.resize(slot as usize + 1, None);
        }
        assert!(slots[slot as usize].is_none(), "an application opens a slot once at a time");
        slots[slot as usize] = Some(index);
        self.connections[index].under_way += 1;
        let Flow { group, sizes, .. } = self.flows[flow];
        self.send_up(now, group, sizes.syn(), Up { from: index, kind: UpKind::Open });
    }

    fn close(&mut self, index: u32) {
        let connection = &mut self.connections[index];
        connection.closed = true;
        let (flow, slot) = (connection.flow, connection.slot);
        self.deadlines.set(connection.timer_source, None);
        self.deadlines.set(connection.pacing_source, None);
        self.flows[flow].slots[slot as usize] = None;
        self.connections.bury(index);
    }

    /// Ends a flow, and closes what its application leaves open.
    fn stop(&mut self, now: Time, flow: usize) {
        self.flows[flow].app.handle_stop(now);
        self.serve(now, flow);
        let open: Vec<u32> = self.flows[flow].slots.iter().flatten().copied().collect();
        for index in open {
            self.close(index);
        }
        self.deadlines.set(self.flows[flow].timer, None);
    }
}

/// The downlink as a link; for the control `wfq` the ISP itself serves by weight.
fn downlink(scenario: &Scenario, control: Control, seed: u64) -> LinkSpec {
    let link = &scenario.link;
    LinkSpec {
        capacity: link.capacity.clone(),
        buffer: link.buffer,
        queue: if control == Control::Wfq { Discipline::Wfq } else { link.queue },
        weights: scenario.groups.iter().map(|g| g.weight).collect(),
        loss_ppm: link.loss_ppm,
        jitter: link.jitter,
        seed,
    }
}

fn uplink(scenario: &Scenario, seed: u64) -> LinkSpec {
    let link = &scenario.link;
    LinkSpec {
        weights: scenario.groups.iter().map(|g| g.weight).collect(),
        seed,
        ..LinkSpec::fifo(Capacity::constant(link.up_rate), link.up_buffer)
    }
}
