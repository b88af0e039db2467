//! Makes a world at time zero from a scenario.

use fairweir_core::agreement::peers::Peers;
use fairweir_core::policy::tree_of;
use fairweir_core::receiver::{self, Controller, ControllerSpec, CrabTuning, Decider, LATENCY};
use fairweir_core::share::Tree;
use fairweir_core::units::{Bytes, Span, Time};
use fairweir_reference::CrabPrinted;
use fairweir_scenario::app::{App, Chance};
use fairweir_scenario::link::{Link, LinkSpec};
use fairweir_scenario::police::Points;
use fairweir_scenario::random::SplitMix64;
use fairweir_scenario::report::Samples;
use fairweir_scenario::{Control, ETHERNET_HEADER, Kind, Scenario, Told};

use super::super::PlayError;
use super::super::connection::Connections;
use super::super::deadlines::Deadlines;
use super::super::home::{Home, Stage};
use super::super::line::Line;
use super::super::packet::Sizes;
use super::super::transit::ServerClock;
use super::{Flow, HostProber, PROGRESS, PROGRESS_INTERVAL, Path, Resends, Source, Tally, World};

impl<'s> World<'s> {
    /// Sets everything up at time zero.
    ///
    /// # Errors
    /// [`PlayError::Control`] if the control cannot work with the scenario, [`PlayError::LabOnly`].
    pub(in super::super) fn new(
        scenario: &'s Scenario,
        control: Control,
        seed: u64,
    ) -> Result<World<'s>, PlayError> {
        if scenario.agreed().is_some()
            || scenario.devices.iter().any(|device| device.via_proxy || device.loss_ppm > 0)
        {
            return Err(PlayError::LabOnly);
        }
        let mut random = SplitMix64::new(seed);
        let mut world = World {
            scenario,
            deadlines: Deadlines::default(),
            sources: Vec::new(),
            paths: Vec::new(),
            police: Points::new(scenario, false),
            downlink: Link::new(LinkSpec { seed: random.draw(), ..scenario.downlink(control) }),
            uplink: Link::new(LinkSpec { seed: random.draw(), ..scenario.uplink() }),
            home: Home::new(scenario.groups.len()),
            probers: Vec::new(),
            peers: Vec::new(),
            flows: Vec::new(),
            connections: Connections::default(),
            bundles: Vec::new(),
            resends: Resends::default(),
            down: Tally::default(),
            up: Tally::default(),
            samples: Samples::new(scenario),
            turn: 0,
            watcher: None,
        };
        let always = [Source::Progress, Source::Downlink, Source::Uplink, Source::Resend];
        for source in always.into_iter().chain([Source::Shapers]) {
            world.add_source(source, None);
        }
        world.deadlines.set(PROGRESS, Some(Time::ZERO + PROGRESS_INTERVAL));
        world.add_stages(control, &mut random)?;
        for i in 0..scenario.flows.len() {
            world.add_flow(i, &mut random);
        }
        world.add_bundles();
        Ok(world)
    }

    pub(super) fn add_source(&mut self, source: Source, deadline: Option<Time>) -> usize {
        let index = self.deadlines.add();
        self.sources.push(source);
        self.deadlines.set(index, deadline);
        index
    }

    /// Adds the router's stage, which has a class for each device, and behind it the stages of the
    /// devices; without devices, only the stage of the one host.
    fn add_stages(&mut self, control: Control, random: &mut SplitMix64) -> Result<(), PlayError> {
        let Scenario { groups, devices, device_of, .. } = self.scenario;
        if devices.is_empty() {
            let weights = tree_of(groups.iter());
            let classes = (0..groups.len()).map(|group| (group, group));
            return self.add_stage(control, CrabTuning::HOST, weights, classes, random);
        }
        let weights = devices.iter().map(|d| d.weight).collect::<Vec<_>>().into();
        let classes = device_of.iter().copied().enumerate();
        self.add_stage(control, CrabTuning::ROUTER, weights, classes, random)?;
        self.home.has_router = !self.home.stages.is_empty();
        for (index, device) in devices.iter().enumerate() {
            let members = || (0..groups.len()).filter(|&g| device_of[g] == index);
            let weights = tree_of(members().map(|g| &groups[g]));
            self.add_stage(device.control, CrabTuning::HOST, weights, members().zip(0..), random)?;
        }
        Ok(())
    }

    /// Adds a stage with a class for each of `weights`, behind the existing stages; `classes` gives
    /// the groups that pass it, and the class of each.
    fn add_stage(
        &mut self,
        control: Control,
        tuning: CrabTuning,
        weights: Tree,
        classes: impl Iterator<Item = (usize, usize)>,
        random: &mut SplitMix64,
    ) -> Result<(), PlayError> {
        if control.at_home() == Some(receiver::Control::None) || weights.is_empty() {
            return Ok(());
        }
        let Told { capacity, remembered, strict_priority, enforce, latency, start, .. } =
            self.scenario.control;
        let differing = self.scenario.control.tuning;
        let capacity = capacity.unwrap_or_else(|| self.scenario.link.capacity.nominal());
        let tuning = differing.applied_to(tuning);
        let count = weights.len();
        let decider: Box<dyn Decider> = match control.at_home() {
            Some(control) => {
                let spec = ControllerSpec::new(control, Some(capacity))?
                    .with_strict_priority(strict_priority)
                    .with_tuning(tuning)
                    .with_enforce(enforce)
                    .with_latency(latency.unwrap_or(LATENCY));
                Box::new(Controller::new(&spec, weights, remembered)?)
            }
            None => Box::new(CrabPrinted::new(&weights.weights(), remembered)?),
        };
        let stage = self.home.stages.len();
        // The daemon's clock is not aligned with the scenario's.
        let phase = Span::nanos(1 + random.below(tuning.tick.as_nanos()));
        let first = start + phase;
        self.add_source(Source::Begin(stage), Some(start));
        self.add_source(Source::Tick(stage), Some(first));
        let source = self.add_source(Source::Enforcer(stage), None);
        let reflector = self.scenario.probe;
        let probes = reflector.is_there && control == Control::Fairweir;
        let prober = probes.then(|| {
            let path = self.path(reflector.rtt / 2);
            let source = self.add_source(Source::Probe(stage), Some(first));
            HostProber::new(reflector, random.draw(), first, path, source)
        });
        self.probers.push(prober);
        // Behind a router that divides the link there is nothing left to agree on.
        let is_peer = control == Control::Fairweir && !self.home.has_router;
        self.peers.push(is_peer.then(|| Peers::new(stage as u64 + 1)));
        let packet_max = Bytes::new(u64::from(self.scenario.link.mtu) + ETHERNET_HEADER);
        self.home.add(Stage::new(decider, count, packet_max, tuning.tick, source), classes);
        Ok(())
    }

    fn add_flow(&mut self, index: usize, random: &mut SplitMix64) {
        let flow = &self.scenario.flows[index];
        let segment = flow.segment(self.scenario.link.mtu);
        let path = self.path(flow.rtt / 2);
        let chance = Chance::draw(self.scenario, index, random);
        self.add_source(Source::FlowStart(index), Some(flow.start + chance.jitter));
        self.add_source(Source::FlowStop(index), Some(flow.stop));
        let app_source = self.add_source(Source::App(index), None);
        let phase = match (self.as_kernel(), flow.timestamps) {
            (true, Some(period)) => Span::nanos(chance.connections % period.as_nanos()),
            _ => Span::ZERO,
        };
        self.flows.push(Flow {
            app: App::new(flow, chance.app, segment),
            group: flow.group,
            seen_as: self.scenario.seen_as(flow),
            sizes: Sizes::new(flow),
            segment,
            path,
            slots: Vec::new(),
            app_source,
            has_window: flow.kind != Kind::Quic,
            ecn: flow.ecn,
            clock: flow.timestamps.map(|period| ServerClock { period, phase }),
            seed: chance.connections,
        });
    }

    /// The path with this delay in each direction.
    fn path(&mut self, delay: Span) -> usize {
        if let Some(path) = self.paths.iter().position(|path| path.up.delay() == delay) {
            return path;
        }
        let path = self.paths.len();
        let down_source = self.add_source(Source::DownLine(path), None);
        let up_source = self.add_source(Source::UpLine(path), None);
        let (down, up) = (Line::new(delay), Line::new(delay));
        self.paths.push(Path { down, up, down_source, up_source });
        path
    }
}
