//! The real `fairweir sender` beside the servers of the lab.
//!
//! It runs in the servers' network namespace and identifies a flow by the port at which it is
//! served. A thread reads its status every 100 ms.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fairweir_core::delegate::{
    Algorithm, BundleSpec, Gain, Point, Reverse, Status, Tally, Target, Verdict,
};
use fairweir_core::units::{Rate, Span, Time};
use fairweir_linux::netns::Netns;
use fairweir_scenario::report::BundleSamples;
use fairweir_scenario::{Bundle, Scenario};
use serde_json::Value;

use crate::Error;
use crate::clock::Clock;
use crate::daemon::wait_until_ready;
use crate::layout::{INTERNET_PEERS, Layout, quoted, trace_points};
use crate::process::Process;
use crate::watch::{self, STATUS, ask};

/// Interval at which its status is read.
const READ_PERIOD: Span = Span::millis(100);

/// A running daemon.
pub(crate) struct Sender {
    pub(crate) process: Process,
    socket: PathBuf,
}

impl Sender {
    /// Starts the daemon in the servers' namespace, if a bundle of the scenario delegates signals,
    /// and waits until it is ready.
    pub(crate) fn start(
        executable: &Path,
        internet: &Netns,
        layout: &Layout<'_>,
        dir: &Path,
    ) -> Result<Option<Sender>, Error> {
        if delegated(layout).next().is_none() {
            return Ok(None);
        }
        let config = dir.join("sender.toml");
        fs::write(&config, configuration(layout))
            .map_err(|e| Error::io(format!("write {}", config.display()), e))?;
        let run = dir.join("sender-run");
        let mut command = Command::new(executable);
        command.args(["sender", "--until-stdin-closes"]);
        command.arg("--config").arg(&config);
        command.arg("--run-dir").arg(&run);
        let log = dir.join("sender.log");
        let process = Process::start("the sender's daemon", command, internet, log)?;
        let mut daemon = Sender { process, socket: run.join("sender.sock") };
        wait_until_ready(
            &mut daemon.process,
            || Ok(ask(&daemon.socket, STATUS)?["ready"] == true),
        )?;
        Ok(Some(daemon))
    }

    /// Starts to read its status.
    pub(crate) fn watch(&self, clock: Clock) -> Watch {
        Watch(watch::Watch::start(clock, READ_PERIOD, &self.socket, STATUS, |status| status))
    }
}

/// A thread that reads the daemon's status.
pub(crate) struct Watch(watch::Watch<Value>);

impl Watch {
    /// Ends the thread; returns what it read for each bundle of the scenario.
    pub(crate) fn finish(self, scenario: &Scenario) -> Result<Vec<BundleSamples>, Error> {
        let read = self.0.finish();
        let read = read.map_err(|e| Error::io("read the status of the sender's daemon", e))?;
        Ok(scenario.bundles.iter().map(|bundle| samples(scenario, bundle, &read)).collect())
    }
}

/// Samples with only the targets, for bundles without delegation.
pub(crate) fn undelegated(scenario: &Scenario) -> Vec<BundleSamples> {
    scenario.bundles.iter().map(|bundle| samples(scenario, bundle, &[])).collect()
}

fn samples(scenario: &Scenario, bundle: &Bundle, read: &[(Time, Value)]) -> BundleSamples {
    let mut samples = BundleSamples::new(scenario.duration, bundle.free.len());
    if bundle.delegation.is_none() {
        for (nth, free) in bundle.free.iter().enumerate() {
            let Target::Trace(trace) = &free.target else { continue };
            let ticks = scenario.duration.as_nanos() / READ_PERIOD.as_nanos();
            for at in (0..ticks).map(|n| Time::ZERO + READ_PERIOD * n) {
                samples.record_target(at, nth, trace.at(at));
            }
        }
        return samples;
    }
    let mut signals = vec![Tally::default(); bundle.free.len()];
    for (at, status) in read {
        let all = status["bundles"].as_array().into_iter().flatten();
        let Some(told) = all.into_iter().find(|told| told["name"] == *bundle.name) else {
            continue;
        };
        let free = || told["free"].as_array().into_iter().flatten();
        // The status no longer lists connections that have ended.
        if free().next().is_some() {
            signals.fill(Tally::default());
        }
        for free in free() {
            let Some(nth) = free["rule"].as_u64().map(|nth| nth as usize) else { continue };
            if nth >= bundle.free.len() {
                continue;
            }
            samples.record(*at, nth, &free_status(free));
            signals[nth] = signals[nth] + tally(&free["signals"]);
        }
        samples.stunts = tally(&told["stunts"]["signals"]);
    }
    signals.into_iter().enumerate().for_each(|(nth, all)| samples.record_signals(nth, all));
    samples
}

fn free_status(free: &Value) -> Status {
    let number = |key: &str| Rate::bps(free[key].as_u64().unwrap_or(0));
    let name = free["verdict"].as_str().unwrap_or_default();
    Status {
        target: number("target_bps"),
        rate: number("rate_bps"),
        gain: Gain::from_f64(free["gain"].as_f64().unwrap_or(0.0)),
        apart: free["apart"].as_u64().unwrap_or(0) as usize,
        verdict: Verdict::named(name, free["reason"].as_str()).unwrap_or_default(),
        tally: tally(&free["signals"]),
    }
}

fn tally(signals: &Value) -> Tally {
    let number = |key: &str| signals[key].as_u64().unwrap_or(0);
    Tally {
        signals: number("signals"),
        delegated: number("delegated"),
        taken: number("taken"),
        refused: number("refused"),
        cuts: number("cuts"),
    }
}

/// The bundles whose signals the daemon handles.
fn delegated<'p>(layout: &'p Layout<'_>) -> impl Iterator<Item = (&'p Bundle, BundleSpec)> {
    let of_tcp = layout.scenario.bundles.iter().filter(|bundle| !layout.is_of_quic(bundle));
    of_tcp.filter_map(|bundle| Some((bundle, bundle.delegation?)))
}

/// The daemon's configuration.
fn configuration(layout: &Layout<'_>) -> String {
    let scenario = layout.scenario;
    let mut text = "version = 1\n".to_owned();
    let rules = |group: usize| {
        let flows =
            scenario.flows.iter().zip(&layout.servers).filter(|(flow, _)| flow.group == group);
        let rules = flows.map(|(_, server)| format!("\"local-port:tcp/{}\"", server.port()));
        rules.collect::<Vec<_>>().join(", ")
    };
    for (bundle, spec) in delegated(layout) {
        let controller = Algorithm::ALL.iter().find(|(_, a)| *a == spec.algorithm);
        let controller = controller.map_or("track", |(name, _)| *name);
        let reverse = if spec.reverse == Reverse::Own { "own" } else { "exact" };
        let peers = INTERNET_PEERS.map(|net| format!("\"{}\"", net.trunc())).join(", ");
        let _ = writeln!(
            text,
            "[[bundle]]\nname = {}\npeers = [{peers}]\ncontroller = \"{controller}\"\n\
             reverse = \"{reverse}\"\nmin_rate = \"{}bit\"",
            quoted(&bundle.name),
            bundle.min_rate.as_bps()
        );
        for free in &bundle.free {
            let _ = writeln!(text, "[[bundle.free]]\nmatch = [{}]", rules(free.group));
            let _ = match &free.target {
                Target::Connections(count) => writeln!(text, "connections = {count}"),
                Target::Trace(trace) => {
                    let point = |Point { at, rate }: Point| {
                        let (s, bps) = (at.as_nanos() / 1_000_000_000, rate.as_bps());
                        format!("{{ at = \"{s}s\", rate = \"{bps}bit\" }}")
                    };
                    let points: Vec<String> = trace_points(scenario, trace).map(point).collect();
                    writeln!(text, "trace = [{}]", points.join(", "))
                }
            };
        }
        for (group, weight) in &bundle.stunts {
            let rules = rules(*group);
            let _ = writeln!(text, "[[bundle.stunts]]\nmatch = [{rules}]\nweight = {weight}");
        }
    }
    text
}
