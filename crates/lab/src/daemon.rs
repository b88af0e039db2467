//! The real `fairweir host` in the home of the lab.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::receiver::Control;
use fairweir_linux::netns::Netns;
use nix::unistd::{SysconfVar, sysconf};

use crate::Error;
use crate::home::WAN_DEVICE;
use crate::plan::Plan;
use crate::process::Process;
use crate::watch::{STATUS, ask};

const READY_WITHIN: Duration = Duration::from_secs(10);
const READY_CHECK: Duration = Duration::from_millis(50);

/// Who may watch and change the daemon.
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
}

impl Daemon {
    /// Starts the daemon in `home` and waits until it is ready.
    pub(crate) fn start(
        executable: &Path,
        home: &Netns,
        plan: &Plan<'_>,
        control: Control,
        dir: &Path,
        watchers: Option<&Watchers>,
    ) -> Result<Daemon, Error> {
        let run_dir = watchers.map_or_else(|| dir.join("run"), |w| w.run_dir.clone());
        let config = dir.join("fairweir.toml");
        fs::write(&config, plan.configuration(control))
            .map_err(|e| Error::io(format!("write {}", config.display()), e))?;
        let mut command = Command::new(executable);
        command.args(["host", "--dev", WAN_DEVICE, "--until-stdin-closes"]);
        command.args(["--control", control.name()]);
        command.arg("--config").arg(&config);
        command.arg("--run-dir").arg(&run_dir);
        command.arg("--state-dir").arg(dir.join("state"));
        if let Some(Watchers { admin_group, .. }) = watchers {
            command.args(["--admin-group", admin_group]);
        }
        if let Some(remembered) = plan.scenario.control.remembered {
            let rate = format!("{}bit", remembered.as_bps());
            command.args(["--remembered-capacity", &rate]);
        }
        let log = dir.join("daemon.log");
        let process = Process::start("the daemon", command, home, log)?;
        let mut daemon = Daemon { process };
        let socket = run_dir.join(format!("host-{WAN_DEVICE}.sock"));
        wait_until_ready(&mut daemon.process, || Ok(ask(&socket, STATUS)?["ready"] == true))?;
        Ok(daemon)
    }

    /// How much CPU time all its threads have used.
    pub(crate) fn cpu_time(&self) -> Result<Duration, Error> {
        let path = format!("/proc/{}/stat", self.process.id());
        let stat = fs::read_to_string(&path).map_err(|e| Error::io(format!("read {path}"), e))?;
        // The name in the second field may hold spaces; behind its bracket come the others.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks = fields.split_whitespace().skip(UTIME - 3).take(2);
        let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
        let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }
}

/// Number of the field `utime` in `/proc/PID/stat`; `stime` follows. Source: proc_pid_stat(5).
const UTIME: usize = 14;

/// Waits until a daemon says that it is ready.
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
