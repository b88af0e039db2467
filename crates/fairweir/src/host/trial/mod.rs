//! `try` and `test` of `fairweir host` and `fairweir router`: run the control for a time and compare.
//!
//! Nothing may remain whatever happens to this command. The daemon that it starts ends when its standard input closes;
//! the kernel closes it when the command dies. In case the command is only stopped, the daemon also ends by itself some
//! seconds after its time. A daemon that is already running lets everything pass for the comparison, for a time that it
//! limits itself.

mod compare;

use std::env;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{sleep, spawn};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use fairweir_config::host::{Config, Role};
#[cfg(feature = "lab")]
use fairweir_config::output;
use fairweir_config::{host, text};
use fairweir_core::receiver::Control;
use fairweir_core::units::{Rate, Span, Time};
use fairweir_daemon::{Access, Client, Request};
use fairweir_linux::boottime_now;

pub(crate) use self::compare::Comparison;
use self::compare::{Reading, Stretch};
use super::cli::{TestArgs, TrialArgs, TryArgs};
use super::client::find;
use super::wire::{HostRequest, Status};
use crate::exit::{Exit, Usage, reworded};
use crate::signals::Signals;
use crate::words::lasting;

/// The time without control, both before and after.
const WITHOUT: Span = Span::secs(15);
/// The beginnings that are left out, in seconds: without control, while the queue fills; and with control.
const FILLS_S: f64 = 3.0;
const SETTLES_S: f64 = 10.0;
/// The time with control in a test; the whole test takes a minute.
const TEST: Span = Span::secs(30);
const STEP: Duration = Duration::from_millis(500);
/// How long a daemon may take to start, or to end.
const PATIENCE: Span = Span::secs(10);
/// How long the daemon may live beyond its time.
const GRACE: Span = Span::secs(15);

pub(super) fn run(role: Role, args: &TryArgs) -> anyhow::Result<()> {
    let (comparison, after) = compare(role, &args.at, args.span, true)?;
    let out = &mut text::stdout();
    writeln!(out, "{after}\n")?;
    Ok(comparison.print(out)?)
}

/// `fairweir host test` and `fairweir router test`: a comparison in a minute, as a report.
pub(super) fn test(role: Role, args: &TestArgs) -> anyhow::Result<()> {
    let (comparison, _) = compare(role, &args.at, TEST, false)?;
    let out = &mut text::stdout();
    match args.json {
        true => out.write_all(fairweir_daemon::as_line(&comparison).as_bytes())?,
        false => comparison.print(out)?,
    }
    #[cfg(feature = "lab")]
    if let Some(path) = &args.picture {
        output::write(path, comparison.picture())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Controls for `span`; returns the comparison and what is in force afterwards. Prints progress if `is_told`.
fn compare(
    role: Role,
    at: &TrialArgs,
    span: Span,
    is_told: bool,
) -> anyhow::Result<(Comparison, &'static str)> {
    let signals = Signals::held()?;
    let found = find(&at.run_dir.run_dir, Some(role), at.dev.as_deref(), Access::Change);
    let (mut client, mut own) = match found {
        Ok(client) => (client, None),
        Err(e) if Exit::of(&e) == Exit::NotRunning => {
            let (own, client) = Own::start(role, at, span)?;
            (client, Some(own))
        }
        Err(e) => return Err(e),
    };
    let mut trial = Trial { client: &mut client, signals: &signals, is_told, is_over: false };
    let played = trial.play(span, own.is_none());
    let ended = own.as_mut().map_or(Ok(()), Own::end);
    // If the daemon ended, that is often what broke the trial, so its error is reported.
    let played = match (played, ended) {
        (played, Ok(())) => played?,
        (_, Err(e)) => return Err(e),
    };
    let after = if own.is_some() { "The control is off." } else { "The daemon goes on as before." };
    Ok((played, after))
}

struct Trial<'t> {
    client: &'t mut Client,
    signals: &'t Signals,
    is_told: bool,
    /// Whether a signal asked to end the trial.
    is_over: bool,
}

impl Trial<'_> {
    fn play(&mut self, span: Span, runs_already: bool) -> anyhow::Result<Comparison> {
        let status: Status = self.client.ask(&Request::Status)?;
        if let Some(why) = refusal(&status) {
            return Err(Usage(why).into());
        }
        let without = WITHOUT.min(Span::nanos(span.as_nanos() / 2));
        let after = match runs_already {
            true => "the daemon runs already and goes on afterwards",
            false => "then control is off; Ctrl-C ends it at once",
        };
        if self.is_told {
            let in_words = |span: Span| lasting(span.as_secs_f64() as u64);
            let (dev, length, pause) = (&status.dev, in_words(span), in_words(without));
            writeln!(
                text::stdout(),
                "{dev}: {pause} without control, {length} with it, {pause} without: {after}."
            )?;
        }
        let (mut capacity, mut open) = (None, Vec::new());
        self.open(without)?;
        open.push(self.read("without control", without, FILLS_S, &mut capacity)?);
        if runs_already || !self.is_over {
            self.open(Span::ZERO)?;
        }
        let with = self.read("with control", span, SETTLES_S, &mut capacity)?;
        if !self.is_over {
            self.open(without)?;
            open.push(self.read("without control", without, FILLS_S, &mut capacity)?);
            self.open(Span::ZERO)?;
        }
        if io::stderr().is_terminal() {
            let _ = writeln!(io::stderr());
        }
        Ok(Comparison::new(
            status.dev.clone(),
            &compare::weights(&status),
            capacity,
            [&open, &[with]],
        ))
    }

    /// Makes the daemon let everything pass for `span`.
    fn open(&mut self, span: Span) -> anyhow::Result<()> {
        let for_s = span.as_secs_f64().ceil() as u64;
        self.client.tell(&HostRequest::Open { for_s }, &mut |_, _| ())?;
        Ok(())
    }

    /// Takes readings for `span`, unless the trial is over.
    fn read(
        &mut self,
        what: &str,
        span: Span,
        settles_s: f64,
        capacity: &mut Option<Rate>,
    ) -> anyhow::Result<Stretch> {
        let mut stretch = Stretch { settles_s, readings: Vec::new() };
        let ends_at = boottime_now() + span;
        let is_shown = io::stderr().is_terminal();
        if !is_shown && !self.is_over {
            let _ = writeln!(io::stderr(), "{what} for {span}");
        }
        while !self.is_over {
            let now = boottime_now();
            if now >= ends_at {
                break;
            }
            let status: Status = self.client.ask(&Request::Status)?;
            stretch.readings.push(Reading::of(&status));
            *capacity = status.capacity_bps.or(*capacity);
            if is_shown {
                show(what, ends_at, now, &status);
            }
            sleep(STEP.min(Duration::from(ends_at.since(now))));
            self.is_over = self.signals.is_any()?;
        }
        Ok(stretch)
    }
}

fn show(what: &str, ends_at: Time, now: Time, status: &Status) {
    let left = lasting(ends_at.since(now).as_secs_f64().ceil() as u64);
    let rate: Rate = status.groups.iter().map(|group| group.decision.rate).sum();
    let probe = status.probe.as_ref().and_then(|probe| probe.rtt_last_ms);
    let probe = probe.map_or(String::new(), |ms| format!(", round trip {ms:.0} ms"));
    let line = format!("{what}: {left} left, {:.1} Mbit/s{probe}", rate.as_mbit_f64());
    let _ = write!(io::stderr(), "\r{line:<78}");
}

/// The reason if the daemon cannot be tried.
fn refusal(status: &Status) -> Option<String> {
    let dev = &status.dev;
    if let Some(reason) = &status.open_reason {
        return Some(format!("all traffic of {dev} passes unshaped: {reason}"));
    }
    if status.dry_run {
        return Some(format!("a dry run has {dev}; end it first: `fairweir off --dev {dev}`"));
    }
    if status.paused {
        let resume = format!("`fairweir set paused= --dev {dev}`");
        return Some(format!("the control of {dev} is paused; {resume} resumes it"));
    }
    (status.control == Control::None)
        .then(|| format!("the control `none` of {dev} enforces nothing; choose another one"))
}

/// A daemon that ends with this command.
struct Own {
    child: Child,
    said: Receiver<String>,
}

impl Own {
    /// Starts the daemon, and waits until it answers.
    fn start(role: Role, args: &TrialArgs, span: Span) -> anyhow::Result<(Own, Client)> {
        let (command, default) = match role {
            Role::Host => ("host", host::DEFAULT_PATH),
            Role::Router => ("router", host::ROUTER_PATH),
        };
        let config = args.config.clone().unwrap_or_else(|| PathBuf::from(default));
        let in_file = Config::load_as(role, &config)?.host.dev;
        let (told, file) = (args.dev.clone(), config.display());
        let dev = match (role, told, in_file) {
            (Role::Router, Some(told), Some(wan)) if told != wan => {
                return Err(
                    Usage(format!("--dev is `{told}`, but `wan` in {file} is `{wan}`")).into()
                );
            }
            (_, Some(dev), _) | (_, None, Some(dev)) => dev,
            (_, None, None) => {
                let what = "no interface given; use --dev eth0, or `dev = \"eth0\"` in [host]";
                return Err(Usage(what.to_owned()).into());
            }
        };
        let program = env::current_exe().context("cannot determine the path of this program")?;
        let mut daemon = Command::new(program);
        let life = span + WITHOUT + WITHOUT + GRACE;
        daemon.args([command, "--until-stdin-closes", "--exit-after"]);
        daemon.arg(format!("{}s", life.as_secs_f64().ceil())).arg("--config").arg(&config);
        daemon.arg("--run-dir").arg(&args.run_dir.run_dir);
        if let Some(dir) = &args.state_dir {
            daemon.arg("--state-dir").arg(dir);
        }
        if role == Role::Host {
            daemon.args(["--dev", &dev]);
        }
        // In a process group of its own: Ctrl-C reaches only this program, which then ends the daemon.
        daemon.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let mut child =
            daemon.env("RUST_LOG", "warn").spawn().context("cannot start the daemon")?;
        let (say, said) = channel();
        if let Some(stderr) = child.stderr.take() {
            spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    match line.strip_prefix("fairweir: ") {
                        Some(error) => drop(say.send(error.to_owned())),
                        None => drop(writeln!(io::stderr(), "{line}")),
                    }
                }
            });
        }
        let mut own = Own { child, said };
        let client = own.wait(role, &args.run_dir.run_dir, &dev)?;
        Ok((own, client))
    }

    fn wait(&mut self, role: Role, run_dir: &Path, dev: &str) -> anyhow::Result<Client> {
        let deadline = boottime_now() + PATIENCE;
        loop {
            self.check()?;
            if let Ok(mut client) = find(run_dir, Some(role), Some(dev), Access::Change)
                && let Ok(Status { ready: true, .. }) = client.ask::<Status>(&Request::Status)
            {
                return Ok(client);
            }
            if boottime_now() > deadline {
                bail!("the daemon does not answer");
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// # Errors
    /// If the daemon has ended; the error has its last output.
    fn check(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let exit = match status.code() {
            Some(2) => Exit::Usage,
            Some(4) => Exit::NotPermitted,
            Some(5) => Exit::Occupied,
            _ => Exit::Failed,
        };
        let said = self.said.recv_timeout(Duration::from_secs(1));
        let said =
            said.unwrap_or_else(|_| "the daemon has ended; all traffic passes unshaped".to_owned());
        Err(reworded(exit, said))
    }

    /// Ends the daemon, and waits for that.
    ///
    /// # Errors
    /// If the daemon has ended by itself, or does not end.
    fn end(&mut self) -> anyhow::Result<()> {
        self.check()?;
        drop(self.child.stdin.take());
        let deadline = boottime_now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            if boottime_now() > deadline {
                return Err(anyhow!("the daemon does not end; `fairweir off --force` ends it"));
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}
