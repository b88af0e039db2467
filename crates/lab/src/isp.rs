//! The real `fairweir isp` at the ISP's interface towards the home.
//!
//! It polices after the emulated link, so that link must not be the bottleneck. A thread reads the
//! daemon's counters over its socket every 50 ms, to record what passes.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fairweir_core::phantom::{BundleSpec, Class, Share};
use fairweir_core::units::{Bytes, Span, Time};
use fairweir_linux::netns::Netns;
use fairweir_scenario::report::Counted;
use fairweir_scenario::{By, Police};
use serde_json::Value;

use crate::Error;
use crate::clock::Clock;
use crate::daemon::wait_until_ready;
use crate::home::ISP_DEVICE;
use crate::layout::{LAN, Layout, WAN, quoted};
use crate::process::Process;
use crate::watch::{self, STATUS, ask};

/// The one subscriber.
const SUBSCRIBER: &str = "home";
/// Interval at which its counters are read.
const READ_PERIOD: Span = Span::millis(50);

/// A running daemon.
pub(crate) struct Isp {
    pub(crate) process: Process,
    socket: PathBuf,
}

impl Isp {
    /// Starts the daemon in the ISP's namespace, if the scenario leaves a policing point to it, and
    /// waits until it is ready.
    pub(crate) fn start(
        executable: &Path,
        isp: &Netns,
        layout: &Layout<'_>,
        dir: &Path,
    ) -> Result<Option<Isp>, Error> {
        let Some(police) = layout.scenario.police.iter().find(|police| police.by != By::Model)
        else {
            return Ok(None);
        };
        let config = dir.join("isp.toml");
        fs::write(&config, configuration(layout, police))
            .map_err(|e| Error::io(format!("write {}", config.display()), e))?;
        let run = dir.join("isp-run");
        let mut command = Command::new(executable);
        command.args(["isp", "--until-stdin-closes"]);
        command.arg("--config").arg(&config);
        command.arg("--run-dir").arg(&run);
        command.arg("--state-dir").arg(dir.join("isp-state"));
        let process = Process::start("the ISP's daemon", command, isp, dir.join("isp.log"))?;
        let mut daemon = Isp { process, socket: run.join("isp.sock") };
        wait_until_ready(&mut daemon.process, || {
            Ok(ask(&daemon.socket, STATUS)?["enforcing"] == true)
        })?;
        Ok(Some(daemon))
    }

    /// Waits until the daemon divides by one class for each of these groups, and one for the rest.
    pub(crate) fn wait_until_agreed(&mut self, groups: usize) -> Result<(), Error> {
        let request = counters();
        wait_until_ready(&mut self.process, || {
            let known = ask(&self.socket, &request)?["client"]["classes"].as_array().map(Vec::len);
            Ok(known.is_some_and(|known| known > groups))
        })
    }

    /// Starts to read its counters.
    pub(crate) fn watch(&self, clock: Clock) -> Watch {
        let read = |answer| counted(&answer);
        Watch(watch::Watch::start(clock, READ_PERIOD, &self.socket, &counters(), read))
    }
}

/// A thread that reads the daemon's counters.
pub(crate) struct Watch(watch::Watch<Counted>);

impl Watch {
    /// Ends the thread; returns the counters that it read, with times.
    pub(crate) fn finish(self) -> Result<Vec<(Time, Counted)>, Error> {
        self.0.finish().map_err(|e| Error::io("read the counters of the ISP's daemon", e))
    }
}

/// The request for its counters and for the subscribers that asked it to divide.
fn counters() -> String {
    format!("{{\"request\":\"counters\",\"name\":\"{SUBSCRIBER}\"}}")
}

fn counted(answer: &Value) -> Counted {
    let number = |key: &str| answer["download"][key].as_u64().unwrap_or(0);
    Counted {
        passed: Bytes::new(number("passed_bytes")),
        dropped: number("dropped_packets"),
        marked: number("marked_packets"),
    }
}

/// The daemon's configuration.
fn configuration(layout: &Layout<'_>, police: &Police) -> String {
    let spec = &police.spec;
    let mut text = format!(
        "version = 1\n[isp]\ndevice = \"{ISP_DEVICE}\"\nwhen_gone = \"open\"\n[[plan]]\nname = \"{SUBSCRIBER}\"\n\
         download = \"{}bit\"\nrtt_max = \"{}us\"\nsignal = \"{}\"\n",
        spec.rate.as_bps(),
        spec.rtt_max.as_nanos() / 1_000,
        spec.signal
    );
    if let Some(BundleSpec { free, target, stunts }) = &police.bundle {
        let (free, stunts, target) = (quoted(free), quoted(stunts), target.as_bps());
        let _ = writeln!(
            text,
            "bundle = {{ free = {free}, stunts = {stunts}, download = \"{target}bit\" }}"
        );
    }
    let mut addresses = WAN.map(|(wan, _)| format!("\"{}\"", wan.addr())).to_vec();
    if police.by == By::Agreement {
        let _ = writeln!(text, "upload = \"{}bit\"\nshare = \"client\"", spec.rate.as_bps());
        addresses.extend(LAN.map(|(lan, _)| format!("\"{lan}\"")));
    } else {
        write_share(&mut text, "plan", &spec.share, layout, police);
    }
    let addresses = addresses.join(", ");
    let _ = writeln!(
        text,
        "[[subscriber]]\nname = \"{SUBSCRIBER}\"\naddresses = [{addresses}]\nplan = \"{SUBSCRIBER}\""
    );
    text
}

fn write_share(
    text: &mut String,
    table: &str,
    share: &Share,
    layout: &Layout<'_>,
    police: &Police,
) {
    let (word, classes) = match share {
        Share::Flows(queues) => {
            let _ = writeln!(text, "queues = {queues}");
            return;
        }
        Share::Weighted(classes) => ("weighted", classes),
        Share::Priority(classes) => ("priority", classes),
    };
    let _ = writeln!(text, "share = \"{word}\"");
    for Class { name, weight, matches, share } in classes {
        let _ = writeln!(text, "[[{table}.class]]\nname = {}", quoted(name));
        if word == "weighted" {
            let _ = writeln!(text, "weight = {weight}");
        }
        // The scenario identifies a class by DSCP; here it is its servers' addresses.
        if !matches.is_empty() {
            let members = police.flows.iter().zip(&police.class_of).filter(|(_, c)| *c == name);
            let servers = members.map(|(flow, _)| format!("\"ip:{}\"", layout.servers[*flow].ip()));
            let _ = writeln!(text, "match = [{}]", servers.collect::<Vec<_>>().join(", "));
        }
        write_share(text, &format!("{table}.class"), share, layout, police);
    }
}
