//! The real `fairweir isp` at the ISP's interface towards the home.
//!
//! It polices behind the link, so it belongs before a link that is no bottleneck. What passes is
//! read off its own counters over its socket, every 50 ms, by a thread.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fairweir_core::phantom::{BundleSpec, Class, Share};
use fairweir_core::units::{Bytes, Span, Time};
use fairweir_linux::netns::Netns;
use fairweir_scenario::Police;
use fairweir_scenario::report::Counted;
use serde_json::Value;

use crate::Error;
use crate::clock::Clock;
use crate::daemon::wait_until_ready;
use crate::home::ISP_DEVICE;
use crate::layout::{Layout, WAN, quoted};
use crate::process::Process;
use crate::watch::{self, STATUS, ask};

/// The one subscriber.
const SUBSCRIBER: &str = "home";
/// How often its counters are read.
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
        let Some(police) = layout.scenario.police.iter().find(|police| police.by_daemon) else {
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

    /// Reads its counters from now on.
    pub(crate) fn watch(&self, clock: Clock) -> Watch {
        let request = format!("{{\"request\":\"counters\",\"name\":\"{SUBSCRIBER}\"}}");
        Watch(watch::Watch::start(clock, READ_PERIOD, &self.socket, &request, |answer| {
            counted(&answer)
        }))
    }
}

/// A thread that reads the daemon's counters.
pub(crate) struct Watch(watch::Watch<Counted>);

impl Watch {
    /// Ends it; what it read, and when.
    pub(crate) fn finish(self) -> Result<Vec<(Time, Counted)>, Error> {
        self.0.finish().map_err(|e| Error::io("read the counters of the ISP's daemon", e))
    }
}

fn counted(answer: &Value) -> Counted {
    let number = |key: &str| answer["download"][key].as_u64().unwrap_or(0);
    Counted {
        passed: Bytes::new(number("passed_bytes")),
        dropped: number("dropped_packets"),
        marked: number("marked_packets"),
    }
}

/// What the daemon is told.
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
    write_share(&mut text, "plan", &spec.share, layout, police);
    let addresses = WAN.map(|(wan, _)| format!("\"{}\"", wan.addr())).join(", ");
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
        // In the scenario a class is known by a DSCP, here by the addresses of its servers.
        if !matches.is_empty() {
            let members = police.flows.iter().zip(&police.class_of).filter(|(_, c)| *c == name);
            let servers = members.map(|(flow, _)| format!("\"ip:{}\"", layout.servers[*flow].ip()));
            let _ = writeln!(text, "match = [{}]", servers.collect::<Vec<_>>().join(", "));
        }
        write_share(text, &format!("{table}.class"), share, layout, police);
    }
}
