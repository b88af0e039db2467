//! The real `fairweir host` or `fairweir router` in the lab's home, and `fairweir host` on its devices.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::receiver::Control;
use fairweir_linux::netns::Netns;
use fairweir_scenario::Device;
use nix::unistd::{SysconfVar, sysconf};

use crate::Error;
use crate::home::{DEVICE_INTERFACE, Home};
use crate::layout::{Layout, WAN_DEVICE};
use crate::process::Process;
use crate::watch::{STATUS, ask};

const READY_WITHIN: Duration = Duration::from_secs(10);
const READY_CHECK: Duration = Duration::from_millis(50);

/// Access to the daemon for watching and changing it.
#[derive(Clone, Debug)]
pub struct Watchers {
    /// The directory of its socket.
    pub run_dir: PathBuf,
    /// The name of the group that may send every request.
    pub admin_group: String,
}

/// A running daemon.
pub(crate) struct Daemon {
    pub(crate) process: Process,
    pub(crate) socket: PathBuf,
    pub(crate) run_dir: PathBuf,
}

/// Where a daemon runs, and in which role.
pub(crate) struct Place<'p> {
    pub(crate) netns: &'p Netns,
    /// `host` or `router`.
    pub(crate) role: &'static str,
    /// The interface that faces the Internet.
    pub(crate) dev: &'static str,
    pub(crate) control: Control,
    pub(crate) configuration: String,
    /// The daemon's private directory.
    pub(crate) dir: PathBuf,
}

impl<'p> Place<'p> {
    /// The home's daemon: that of a host, or that of the router in front of the devices.
    pub(crate) fn home(
        home: &'p Home,
        layout: &Layout<'_>,
        control: Control,
        dir: &Path,
    ) -> Place<'p> {
        Place {
            netns: &home.home,
            role: if home.devices.is_empty() { "host" } else { "router" },
            dev: WAN_DEVICE,
            control,
            configuration: layout.configuration(control),
            dir: dir.to_owned(),
        }
    }

    /// The daemons of the devices that have a control. A device divides the link itself where the router does
    /// not, or asks the router where the ISP divides by agreement; if no router asks the ISP, no device does either.
    pub(crate) fn devices(
        home: &'p Home,
        layout: &Layout<'_>,
        at_home: Control,
        dir: &Path,
    ) -> Vec<Place<'p>> {
        let is_agreed = layout.scenario.agreed().is_some();
        if is_agreed && at_home == Control::None {
            return Vec::new();
        }
        let divider = if is_agreed || at_home == Control::None { "auto" } else { "off" };
        let all = layout.scenario.devices.iter().zip(&home.devices).zip(layout.scenario.hosts());
        let place = |((device, netns), groups): ((&Device, _), Vec<usize>)| {
            let control = device.control.at_home().filter(|c| *c != Control::None)?;
            (!groups.is_empty()).then(|| Place {
                netns,
                role: "host",
                dev: DEVICE_INTERFACE,
                control,
                configuration: layout.host_configuration(control, &groups, divider),
                dir: dir.join(format!("device-{}", device.name)),
            })
        };
        all.filter_map(place).collect()
    }
}

impl Daemon {
    /// Starts the daemon of `place` and waits until it is ready.
    pub(crate) fn start(
        executable: &Path,
        place: &Place<'_>,
        layout: &Layout<'_>,
        watchers: Option<&Watchers>,
    ) -> Result<Daemon, Error> {
        let Place { netns, role, dev, control, configuration, dir } = place;
        let run_dir = watchers.map_or_else(|| dir.join("run"), |w| w.run_dir.clone());
        let config = dir.join("fairweir.toml");
        fs::create_dir_all(dir)
            .and_then(|()| fs::write(&config, configuration))
            .map_err(|e| Error::io(format!("write {}", config.display()), e))?;
        let mut command = Command::new(executable);
        command.args([role, "--until-stdin-closes", "--control", control.name()]);
        if *role == "host" {
            command.args(["--dev", dev]);
        }
        command.arg("--config").arg(&config);
        command.arg("--run-dir").arg(&run_dir);
        command.arg("--state-dir").arg(dir.join("state"));
        if let Some(Watchers { admin_group, .. }) = watchers {
            command.args(["--admin-group", admin_group]);
        }
        if let Some(remembered) = layout.scenario.control.remembered {
            let rate = format!("{}bit", remembered.as_bps());
            command.args(["--remembered-capacity", &rate]);
        }
        let log = dir.join("daemon.log");
        let process = Process::start("the daemon", command, netns, log)?;
        let socket = run_dir.join(format!("{role}-{dev}.sock"));
        let mut daemon = Daemon { process, socket: socket.clone(), run_dir };
        wait_until_ready(&mut daemon.process, || Ok(ask(&socket, STATUS)?["ready"] == true))?;
        Ok(daemon)
    }

    /// CPU time used by all its threads.
    pub(crate) fn cpu_time(&self) -> Result<Duration, Error> {
        let path = format!("/proc/{}/stat", self.process.id());
        let stat = fs::read_to_string(&path).map_err(|e| Error::io(format!("read {path}"), e))?;
        // The name in the second field may contain spaces; the other fields follow its closing bracket.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks = fields.split_whitespace().skip(UTIME - 3).take(2);
        let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
        let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }
}

/// Starts the proxy on the router of `place`, if a device is behind it, and waits until the router has sent the
/// list of devices to it.
pub(crate) fn start_proxy(
    executable: &Path,
    place: &Place<'_>,
    layout: &Layout<'_>,
    run_dir: &Path,
) -> Result<Option<Process>, Error> {
    let Some(configuration) = layout.proxy_configuration() else { return Ok(None) };
    let config = place.dir.join("proxy.toml");
    fs::write(&config, configuration)
        .map_err(|e| Error::io(format!("write {}", config.display()), e))?;
    let mut command = Command::new(executable);
    command.args(["proxy", "--until-stdin-closes", "--config"]).arg(&config);
    command.arg("--run-dir").arg(run_dir);
    let log = place.dir.join("proxy.log");
    let mut process = Process::start("the proxy", command, place.netns, log)?;
    let socket = run_dir.join("proxy.sock");
    // The class that follows those of the devices is the proxy's own.
    wait_until_ready(&mut process, || Ok(ask(&socket, STATUS)?["classes"][1].is_object()))?;
    Ok(Some(process))
}

/// Number of the field `utime` in `/proc/PID/stat`; `stime` follows. Source: proc_pid_stat(5).
const UTIME: usize = 14;

/// Waits until a daemon reports that it is ready.
pub(crate) fn wait_until_ready(
    process: &mut Process,
    is_ready: impl Fn() -> io::Result<bool>,
) -> Result<(), Error> {
    let begin = Instant::now();
    loop {
        if is_ready().unwrap_or(false) {
            return Ok(());
        }
        if process.has_ended() {
            return Err(process.ended());
        }
        if begin.elapsed() > READY_WITHIN {
            let why = process.last_words();
            return Err(Error::DaemonNotReady { after_s: READY_WITHIN.as_secs(), why });
        }
        thread::sleep(READY_CHECK);
    }
}
