//! The state of a run, and the dispatch of its events.
//!
//! | file | its job |
//! |---|---|
//! | `setup` | makes a world at time zero from a scenario |
//! | `down` | packets on their way from the servers to the home |
//! | `police` | the fate of these packets at policing points on that way |
//! | `up` | packets on their way from the home to the servers |
//! | `resends` | handshakes and requests that were lost and are sent again |
//! | `ends` | both ends of the connections: their packets, their timers, how they begin and end |
//! | `bundles` | connections that answer each other's congestion signals |
//! | `apps` | flows: carries out what their applications want |
//! | `probes` | the probe of the access link |
//! | `windows` | the receiving hosts' measurements of connections, and the windows that they open |

use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use fairweir_core::agreement::peers::Peers;
use fairweir_core::receiver::{Beside, Decision};
use fairweir_core::units::{Bytes, Span, Time};
use fairweir_scenario::app::App;
use fairweir_scenario::link::{Link, Packet};
use fairweir_scenario::police::Points;
use fairweir_scenario::report::Samples;
use fairweir_scenario::{Measurement, Scenario, SeenAs};

use super::connection::{Connection, Connections};
use super::deadlines::Deadlines;
use super::home::{Home, Seen};
use super::line::Line;
use super::packet::{Down, Sizes, Up};
use super::transit::{ServerClock, TIMED_EVERY};
use super::{Ended, PlayError};

mod apps;
mod bundles;
mod down;
mod ends;
mod police;
mod probes;
mod resends;
mod setup;
mod up;
mod windows;

use bundles::PlayedBundle;
use probes::HostProber;
use resends::{Lost, Resends};

/// How often progress is reported and cancellation is checked.
const PROGRESS_INTERVAL: Span = Span::secs(1);

/// The event that a deadline stands for.
#[derive(Clone, Copy, Debug)]
enum Source {
    Progress,
    Downlink,
    Uplink,
    /// The tick of a bundle.
    Bundle(usize),
    /// A departure of a shaper among the policing points.
    Shapers,
    /// A lost packet that is sent again.
    Resend,
    /// Arrivals at the link, from the servers of a path.
    DownLine(usize),
    /// Arrivals at the servers of a path.
    UpLine(usize),
    /// A stage's controller starts.
    Begin(usize),
    /// The tick of a stage's controller.
    Tick(usize),
    /// The next probe of a stage.
    Probe(usize),
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

/// Sources that every run has.
const PROGRESS: usize = 0;
const DOWNLINK: usize = 1;
const UPLINK: usize = 2;
const RESEND: usize = 3;
const SHAPERS: usize = 4;

/// A flow of the scenario.
#[derive(Debug)]
struct Flow {
    app: App,
    group: usize,
    /// The groups in which the home counts its connections.
    seen_as: SeenAs,
    sizes: Sizes,
    /// Payload of a full packet.
    segment: Bytes,
    /// Index of the path that its packets take.
    path: usize,
    /// Its connections by the application's slots.
    slots: Vec<Option<u32>>,
    app_source: usize,
    /// Whether the host can bound the receive windows of its connections: not those of QUIC.
    has_window: bool,
    /// Whether its packets may be marked.
    ecn: bool,
    /// The clock of its servers' timestamps, if they use them.
    clock: Option<ServerClock>,
    seed: u64,
}

/// Time from the first byte of a response until the daemon knows to which site it belongs: the
/// extension waits no longer for further reports.
const TOLD_WITHIN: Span = Span::millis(20);

impl Flow {
    /// The group in which the home counts a connection.
    fn group_of(&self, connection: &Connection, now: Time) -> usize {
        match connection.decided_at {
            Some(at) if at <= now => self.seen_as.decided,
            _ => self.seen_as.first,
        }
    }

    /// The payload of a full packet, and its L2 size.
    fn full_packet(&self) -> (u64, Bytes) {
        let segment = self.segment.as_u64();
        (segment, self.sizes.data(segment as u32))
    }
}

/// The way between servers and link, for all flows with one RTT.
#[derive(Debug)]
struct Path {
    down: Line<Packet<Down>>,
    up: Line<Up>,
    down_source: usize,
    up_source: usize,
}

/// Counts of the packets of one direction, by fate; a packet that is sent again counts again.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    sent: u64,
    arrived: u64,
    dropped: u64,
}

impl Tally {
    fn under_way(&self) -> u64 {
        self.sent - self.arrived - self.dropped
    }
}

/// A run: all events before the first deadline have been processed.
pub(super) struct World<'s> {
    scenario: &'s Scenario,
    deadlines: Deadlines,
    sources: Vec<Source>,
    paths: Vec<Path>,
    police: Points<Packet<Down>>,
    downlink: Link<Down>,
    uplink: Link<Up>,
    home: Home<Down>,
    /// The prober of each stage; `None` if the stage does not probe.
    probers: Vec<Option<HostProber>>,
    /// The peers of each stage; `None` if it does not divide the link with others.
    peers: Vec<Option<Peers>>,
    flows: Vec<Flow>,
    connections: Connections,
    bundles: Vec<PlayedBundle>,
    resends: Resends,
    down: Tally,
    up: Tally,
    samples: Samples,
    /// Counts TCP packets at the interface, of which the classifier times every fourth.
    turn: u32,
    watcher: Watcher<'s>,
}

/// Called with each decision of the control loop that packets meet first.
pub(super) type Watcher<'s> = Option<Box<dyn FnMut(&Decision) + 's>>;

impl<'s> World<'s> {
    /// Plays to the end of the scenario.
    ///
    /// # Errors
    /// [`PlayError::Cancelled`] if `cancel` was set.
    pub(super) fn play(
        &mut self,
        progress: &dyn Fn(Time),
        cancel: &AtomicBool,
    ) -> Result<(), PlayError> {
        let end = self.scenario.end();
        let mut clock = Time::ZERO;
        while let Some((due, source)) = self.deadlines.first().filter(|(at, _)| *at <= end) {
            // A timer set for an instant in the past fires at once: time does not go back, as
            // otherwise packets would be sent before their causes.
            let now = due.max(clock);
            clock = now;
            match self.sources[source] {
                Source::Progress => {
                    progress(now);
                    if cancel.load(Ordering::Relaxed) {
                        return Err(PlayError::Cancelled);
                    }
                    self.deadlines.set(PROGRESS, Some(now + PROGRESS_INTERVAL));
                }
                Source::Downlink => self.leave_downlink(now),
                Source::Shapers => self.leave_shapers(now),
                Source::Uplink => self.leave_uplink(now),
                Source::Resend => self.resend(now),
                Source::Bundle(bundle) => self.tick_bundle(now, bundle),
                Source::DownLine(path) => self.arrive_at_downlink(now, path),
                Source::UpLine(path) => self.arrive_at_servers(now, path),
                Source::Begin(stage) => {
                    self.deadlines.set(source, None);
                    self.begin(now, stage);
                }
                Source::Tick(stage) => {
                    let connections = self.connections_at(now, stage);
                    let probe = self.probe_sample(now, stage);
                    let exact = self.is_exact().then(|| self.scenario.link.capacity.at(now));
                    let beside = self.beside(now, stage);
                    let seen = Seen { connections, probe, exact, beside };
                    let next = self.home.stages[stage].handle_tick(now, seen);
                    self.say(now, stage);
                    self.open_windows(stage);
                    self.show_decision(stage);
                    self.deadlines.set(source, Some(next));
                    self.leave_enforcer(now, stage);
                }
                Source::Probe(stage) => self.probe(now, stage),
                Source::Enforcer(stage) => self.leave_enforcer(now, stage),
                Source::FlowStart(flow) => {
                    self.deadlines.set(source, None);
                    self.start(now, flow);
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
        self.check_conservation();
        Ok(())
    }

    /// The records of the run, after its end.
    pub(super) fn ended(mut self) -> Ended {
        self.end_bundles();
        let bundled = self.bundles.into_iter().map(|bundle| bundle.samples).collect();
        let outcomes = self.flows.into_iter().map(|flow| flow.app.outcome());
        let policed = self.police.into_samples();
        Ended { samples: self.samples, outcomes: outcomes.collect(), policed, bundled }
    }

    /// Whether hosts see their connections as the kernel does.
    fn as_kernel(&self) -> bool {
        self.scenario.control.measurement == Measurement::Kernel
    }

    /// Whether controls get exact values, which no host can measure.
    fn is_exact(&self) -> bool {
        self.scenario.control.measurement == Measurement::Exact
    }

    fn take_turn(&mut self) -> bool {
        self.turn = self.turn.wrapping_add(1);
        self.turn.is_multiple_of(TIMED_EVERY)
    }

    /// Shows every decision of the first loop from now on.
    pub(super) fn set_watcher(&mut self, watcher: Watcher<'s>) {
        self.watcher = watcher;
    }

    /// The reports of other hosts to the host of a stage.
    fn beside(&mut self, now: Time, stage: usize) -> Beside {
        self.peers[stage].as_mut().map_or(Beside::Nobody, |peers| peers.handle_tick(now).clone())
    }

    /// The host of a stage reports its decision; the other hosts receive it at once.
    fn say(&mut self, now: Time, stage: usize) {
        let (decision, link) = self.home.stages[stage].seen();
        let said = self.peers[stage].as_mut().and_then(|peers| peers.say(decision, link, now));
        let Some(said) = said.cloned() else { return };
        let from = Ipv6Addr::from(u128::from(said.id));
        for peers in self.peers.iter_mut().flatten() {
            peers.handle_said(said.clone(), from, now);
        }
    }

    fn show_decision(&mut self, stage: usize) {
        if let Some(watcher) = self.watcher.as_mut().filter(|_| stage == 0) {
            watcher(self.home.stages[stage].decision());
        }
    }

    fn check_conservation(&self) {
        let on_paths: usize = self.paths.iter().map(|path| path.down.len()).sum();
        let down = on_paths + self.police.waiting() + self.downlink.len() + self.home.len();
        assert_eq!(self.down.under_way(), down as u64, "a packet down is lost or there twice");
        let on_paths: usize = self.paths.iter().map(|path| path.up.len()).sum();
        let up = on_paths + self.uplink.len();
        assert_eq!(self.up.under_way(), up as u64, "a packet up is lost or there twice");
    }
}

#[cfg(test)]
mod seen;
