//! Runs one scenario with one control, from the set-up to the report.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fairweir_core::policy::DEFAULT_GROUP;
use fairweir_core::receiver;
use fairweir_core::units::{Rate, Span, Time};
use fairweir_scenario::app;
use fairweir_scenario::report::{self, BundleSamples, Lateness, Report};
use fairweir_scenario::{Control, Kind, Scenario};
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::Error;
use crate::agent::{FETCH, SERVE};
use crate::clock::Clock;
use crate::daemon::{self, Daemon, Place, Watchers};
use crate::home::Home;
use crate::isp::Isp;
use crate::job::Ready;
use crate::layout::{self, Layout};
use crate::line::{Line, Outcome};
use crate::process::Process;
use crate::sender::{self, Sender};
#[cfg(feature = "tls")]
use crate::sites::Sites;

/// Time between the end of the set-up and the clock's zero.
const LEAD: Span = Span::millis(300);
/// Time after the end in which packets that left the link are still carried, so that no process ends early.
const TAIL: Span = Span::millis(300);
const CHECK: Duration = Duration::from_millis(100);
/// A run whose link is later than this (99th percentile) is void. Source: measured, a machine that keeps
/// up stays below a third of it.
const LATENESS_P99_MAX: Span = Span::millis(1);
/// Above this rate, parallel runs disturb each other on two cores.
const PARALLEL_RATE_MAX: Rate = Rate::mbit(30);

/// Options for playing scenarios.
#[derive(Clone, Debug)]
pub struct Options {
    /// The one binary, which is sender, receiver and daemon. It must answer the hidden subcommands
    /// with [`crate::agent_main`].
    pub executable: PathBuf,
    /// Whether the real daemon runs in the home; without it only `none` and `wfq` are meaningful.
    pub with_daemon: bool,
    /// Who may watch and change that daemon, in addition to root; `None` is only the lab.
    pub watchers: Option<Watchers>,
    /// Number of controls played in parallel; `None` is two if the link is slow enough, else one.
    pub parallel: Option<usize>,
    /// How often a void play is repeated, with no other play in parallel.
    pub repeats: u32,
    /// Set this to end all runs early and remove everything that they set up.
    pub cancel: Arc<AtomicBool>,
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The control of the run.
    pub control: Control,
    /// The current time on the scenario's clock.
    pub at: Time,
    /// The scenario's duration.
    pub of: Span,
}

/// Plays a scenario with several controls, in parallel if the machine is able to. Void plays are repeated one by
/// one. Returns the reports in the order of the controls.
///
/// # Errors
/// The [`Error`] of the first run that failed, in the order of the controls.
pub fn run_all(
    scenario: &Scenario,
    controls: &[Control],
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Report>, Error> {
    let rate_max = scenario.link.capacity.max(scenario.end());
    let has_browser = layout::sites(scenario).next().is_some();
    let fits = if rate_max <= PARALLEL_RATE_MAX && !has_browser { 2 } else { 1 };
    let parallel = options.parallel.unwrap_or(fits).clamp(1, controls.len().max(1));
    let next = AtomicUsize::new(0);
    let reports: Vec<_> = controls.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..parallel {
            scope.spawn(|| {
                while let Some(i) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < controls.len())
                {
                    let report = run_once(scenario, controls[i], options, progress);
                    if report.is_err() {
                        // The other runs would most likely fail too, and their reports are not used.
                        next.store(controls.len(), Ordering::Relaxed);
                    }
                    *reports[i].lock().unwrap_or_else(|e| e.into_inner()) = Some(report);
                }
            });
        }
    });
    let played = reports.into_iter().map(|r| r.into_inner().unwrap_or_else(|e| e.into_inner()));
    // Where a report is missing there is also an error, which `collect` finds when missing ones are skipped.
    let mut reports = played.flatten().collect::<Result<Vec<_>, _>>()?;
    for report in &mut reports {
        for _ in 0..options.repeats {
            if report.valid {
                break;
            }
            let (control, late) = (report.control, report.lateness.as_ref().map(|l| l.p99_ms));
            tracing::warn!(%control, late_p99_ms = late, "void, since the machine was too slow: playing it again");
            *report = run_once(scenario, control, options, progress)?;
        }
    }
    Ok(reports)
}

/// Plays a scenario with one control, even on a slow machine; the report says whether it is valid.
///
/// # Errors
/// [`Error`] says which step of the set-up failed or which process ended; everything has been removed.
pub fn run_once(
    scenario: &Scenario,
    control: Control,
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Report, Error> {
    if options.cancel.load(Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    layout::refuse_unplayable(scenario)?;
    if control == Control::Wfq && layout::sites(scenario).next().is_some() {
        return Err(Error::NotPlayed("sites with the control `wfq`"));
    }
    let at_home = control.at_home().ok_or(layout::NOT_EMULATED)?;
    let layout = Layout::new(scenario);
    let mut stage = Stage::set_up(&layout, at_home, options)?;
    let (mut outcome, bundled, daemon_cpu_cores) =
        stage.play(&layout, control, options, progress)?;
    let outcomes = stage.outcomes(scenario)?;
    let mut pages = Vec::new();
    #[cfg(feature = "tls")]
    if let Some(sites) = &stage.sites {
        pages = sites.settle(scenario, &outcome.shared, &mut outcome.samples)?;
    }
    let in_time = |h: &report::Histogram| h.quantile(0.99).is_none_or(|q| q <= LATENESS_P99_MAX);
    let mut run = report::Run {
        scenario,
        world: "lab",
        control,
        valid: outcome.refused == 0 && in_time(&outcome.lateness),
        samples: &outcome.samples,
        pings: Vec::new(),
        videos: Vec::new(),
        pages,
        shorts: Vec::new(),
        policed: std::mem::take(&mut outcome.policed),
        bundled,
        daemon_cpu_cores,
        lateness: lateness(&outcome),
    };
    for outcome in outcomes {
        outcome.add_to(&mut run);
    }
    Ok(run.score())
}

/// Everything that exists during a run. Fields are dropped in this order: receivers before senders, and
/// all of them before the directory.
struct Stage {
    #[cfg(feature = "tls")]
    sites: Option<Sites>,
    fetches: Vec<Process>,
    /// The home's daemon first, then those of the devices.
    daemons: Vec<Daemon>,
    /// The proxy beside the router, if a device is behind it.
    _proxy: Option<Process>,
    isp: Option<Isp>,
    sender: Option<Sender>,
    server: Process,
    home: Home,
    _dir: TempDir,
}

impl Stage {
    fn set_up(
        layout: &Layout<'_>,
        at_home: receiver::Control,
        options: &Options,
    ) -> Result<Stage, Error> {
        if !options.executable.is_file() {
            return Err(Error::NoExecutable(options.executable.clone()));
        }
        let dir = TempDir::with_prefix("fairweir-lab-")
            .map_err(|e| Error::io("make a temporary directory", e))?;
        let home = Home::new(layout)?;
        let mut jobs = layout.jobs();

        let mut command = Command::new(&options.executable);
        command.arg(SERVE);
        let log = dir.path().join("serve.log");
        let mut server = Process::start("the server", command, &home.internet, log)?;
        server.tell(&json(&jobs)?)?;
        let ready: Ready = parsed(&server.hear()?)?;
        jobs.iter_mut().for_each(|job| job.certificate.clone_from(&ready.certificate));
        // The ISP's daemon starts before the daemons that ask it.
        let mut isp = Isp::start(&options.executable, &home.isp, layout, dir.path())?;
        let (mut daemons, mut proxy) = (Vec::new(), None);
        if options.with_daemon {
            let executable = &options.executable;
            let place = Place::home(&home, layout, at_home, dir.path());
            daemons.push(Daemon::start(executable, &place, layout, options.watchers.as_ref())?);
            proxy = daemon::start_proxy(executable, &place, layout, &daemons[0].run_dir)?;
            for place in Place::devices(&home, layout, at_home, dir.path()) {
                daemons.push(Daemon::start(executable, &place, layout, None)?);
            }
            let asks = layout.scenario.agreed().is_some() && at_home == receiver::Control::Fairweir;
            if let Some(isp) = isp.as_mut().filter(|_| asks) {
                let named = layout.scenario.groups.iter().filter(|g| g.name != DEFAULT_GROUP);
                isp.wait_until_agreed(named.count())?;
            }
        }
        let sender = Sender::start(&options.executable, &home.internet, layout, dir.path())?;
        #[cfg(feature = "tls")]
        let sites = Sites::start(layout, &home, daemons.first(), &options.executable, dir.path())?;
        let mut fetches = Vec::new();
        for (i, job) in jobs.iter().enumerate() {
            let flow = &job.flow;
            let app = layout.app(flow);
            let file = executable_named(&app, &options.executable, dir.path())?;
            let mut command = Command::new(file);
            command.arg(FETCH);
            let log = dir.path().join(format!("fetch-{i}.log"));
            let netns = home.of_group(layout.scenario, flow.group);
            let mut fetch = Process::start(&app, command, netns, log)?;
            fetch.tell(&json(job)?)?;
            fetches.push(fetch);
        }
        Ok(Stage {
            #[cfg(feature = "tls")]
            sites,
            fetches,
            daemons,
            _proxy: proxy,
            isp,
            sender,
            server,
            home,
            _dir: dir,
        })
    }

    /// Plays from the clock's zero to its end; returns what happened on the link, the samples of bundles, and
    /// the number of cores that the daemon used.
    fn play(
        &mut self,
        layout: &Layout<'_>,
        control: Control,
        options: &Options,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<(Outcome, Vec<BundleSamples>, Option<f64>), Error> {
        let clock = Clock::starting_in(LEAD);
        let (net0, acc0) = self.home.tuns()?;
        let delivered = match &self.isp {
            Some(_) => self.home.arrivals()?,
            None => Vec::new(),
        };
        let line = Line::start(layout, control, clock, net0, acc0, delivered)?;
        let watch = self.isp.as_ref().map(|isp| isp.watch(clock));
        let bundles = self.sender.as_ref().map(|sender| sender.watch(clock));
        let epoch = clock.epoch_nanos().to_string();
        self.server.tell(&epoch)?;
        for fetch in &mut self.fetches {
            fetch.tell(&epoch)?;
        }
        clock.sleep_until(Time::ZERO);
        let cpu_before = self.cpu_time()?;
        let end = layout.scenario.end();
        while clock.now() < end {
            if options.cancel.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            if line.has_ended() {
                break;
            }
            self.check()?;
            #[cfg(feature = "tls")]
            if let Some(sites) = &mut self.sites {
                sites.handle_time(clock.now(), &self.home)?;
            }
            progress(Progress { control, at: clock.now(), of: layout.scenario.duration });
            thread::sleep(CHECK);
        }
        progress(Progress { control, at: end, of: layout.scenario.duration });
        let cpu_after = self.cpu_time()?;
        let seconds = clock.now().as_secs_f64().max(f64::MIN_POSITIVE);
        let cores = |(before, after): (Duration, Duration)| {
            after.saturating_sub(before).as_secs_f64() / seconds
        };
        let cores = cpu_before.zip(cpu_after).map(cores);
        #[cfg(feature = "tls")]
        if let Some(sites) = &mut self.sites {
            sites.close();
        }
        clock.sleep_until(end + TAIL);
        let mut outcome = line.finish()?;
        if let (Some(watch), [policed]) = (watch, &mut outcome.policed[..]) {
            policed.record_elsewhere(&watch.finish()?);
        }
        let mut bundled = match bundles {
            Some(watch) => watch.finish(layout.scenario)?,
            None => sender::undelegated(layout.scenario),
        };
        if layout.jobs().iter().any(|job| job.seat.is_some()) {
            let told: BTreeMap<usize, BundleSamples> = parsed(&self.server.hear()?)?;
            told.into_iter().for_each(|(nth, samples)| bundled[nth] = samples);
        }
        Ok((outcome, bundled, cores))
    }

    /// CPU time of all daemons together; `None` if there is no daemon.
    fn cpu_time(&self) -> Result<Option<Duration>, Error> {
        let times: Result<Vec<Duration>, Error> =
            self.daemons.iter().map(Daemon::cpu_time).collect();
        let times = times?;
        Ok((!times.is_empty()).then(|| times.into_iter().sum()))
    }

    /// Returns an error if a process has failed, or the daemon or the server has ended.
    fn check(&mut self) -> Result<(), Error> {
        self.fetches.iter_mut().try_for_each(Process::check)?;
        let daemons = self.daemons.iter_mut().map(|d| &mut d.process);
        let daemons = daemons.chain(self.isp.iter_mut().map(|isp| &mut isp.process));
        let daemons = daemons.chain(self.sender.iter_mut().map(|sender| &mut sender.process));
        let lasting = daemons.chain([&mut self.server]);
        for process in lasting {
            if process.has_ended() {
                return Err(process.ended());
            }
        }
        Ok(())
    }

    /// The results of those applications that measure something, in the order of the flows.
    fn outcomes(&mut self, scenario: &Scenario) -> Result<Vec<app::Outcome>, Error> {
        let of_agents = scenario.flows.iter().filter(|f| !matches!(f.kind, Kind::Browser(_)));
        let flows = of_agents.zip(&mut self.fetches);
        let measuring = flows.filter(|(flow, _)| measures(&flow.kind));
        measuring.map(|(_, fetch)| parsed(&fetch.hear()?)).collect()
    }
}

/// Whether the application of such a flow measures something that the link does not know better.
fn measures(kind: &Kind) -> bool {
    match kind {
        Kind::Ping { .. } | Kind::Video(_) | Kind::Web(_) | Kind::Short(_) => true,
        Kind::Bulk | Kind::Quic | Kind::OnOff(_) | Kind::Udp | Kind::Browser(_) => false,
    }
}

/// A file named `name` that is the executable: the kernel identifies a program by the name of its file.
fn executable_named(name: &str, executable: &Path, dir: &Path) -> Result<PathBuf, Error> {
    let dir = dir.join("bin");
    let path = dir.join(name);
    if path.exists() {
        return Ok(path);
    }
    let made = fs::create_dir_all(&dir).and_then(|()| {
        fs::hard_link(executable, &path).or_else(|_| fs::copy(executable, &path).map(drop))
    });
    made.map_err(|e| Error::io(format!("make {}", path.display()), e))?;
    Ok(path)
}

fn lateness(outcome: &Outcome) -> Option<Lateness> {
    let ms = |span: Span| (span.as_millis_f64() * 1e3).round() / 1e3;
    Some(Lateness {
        p50_ms: ms(outcome.lateness.quantile(0.5)?),
        p99_ms: ms(outcome.lateness.quantile(0.99)?),
        max_ms: ms(outcome.lateness.max()),
    })
}

fn json(job: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(job).map_err(|e| Error::io("write a job", e))
}

fn parsed<T: DeserializeOwned>(line: &str) -> Result<T, Error> {
    serde_json::from_str(line).map_err(|e| Error::io(format!("understand an agent's `{line}`"), e))
}
