//! The daemon's settings: the configuration, overridden by the command line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::bail;
use fairweir_config::host::{Config, DividerChoice, ProbeChoice, Role, UploadChoice};
use fairweir_config::value::CAPACITY_MAX;
use fairweir_core::calendar::{Moment, Plan};
use fairweir_core::policy::{Branch, Policy};
use fairweir_core::probe::{INTERVAL_IDLE, Intervals};
use fairweir_core::receiver::{
    CAPACITY_MIN, Control, Controller, ControllerError, ControllerSpec, CrabTuning, Enforce, Limit,
};
use fairweir_core::share::Weight;
use fairweir_core::units::Rate;
use fairweir_linux::probe::{ProbeSpec, Reflector};
use fairweir_linux::{Mode, link};
use tracing::warn;

use super::calendar;
use super::cli::LoopArgs;
use super::divided::DeviceClasses;
use super::timed::{TimedChanges, TimedFile};
use crate::exit::Usage;

/// The command line, and the last valid configuration.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) role: Role,
    /// The interface that faces the Internet.
    pub(super) dev: String,
    /// The main file.
    pub(super) path: PathBuf,
    /// The configuration that is in force: as read, with the temporary changes and the calendar.
    pub(super) config: Config,
    /// The configuration as it was read.
    pub(super) configured: Config,
    /// The temporary changes of groups.
    pub(super) timed: TimedChanges,
    /// The minute of the week that schedules use, once it is known.
    moment: Option<Moment>,
    /// The groups whose quotas are used up.
    pub(super) used_up: BTreeSet<String>,
    /// How devices ask their shares to be divided.
    pub(super) divided: DeviceClasses,
    /// Whether nothing may be changed in the kernel.
    pub(super) dry_run: bool,
    /// Whether to probe the access link in a dry run too.
    probes_in_dry_run: bool,
    /// Whether the kernel cannot bound windows, so that classes must enforce the shares.
    pub(super) lacks_windows: bool,
    control_told: Option<Control>,
    dev_told: bool,
}

impl Settings {
    /// Reads the configuration `path`; `told` is the interface that the command line names.
    ///
    /// # Errors
    /// If it has mistakes, or if configuration and command line together lack something.
    pub(super) fn load(
        role: Role,
        path: &Path,
        told: Option<&str>,
        args: &LoopArgs,
    ) -> anyhow::Result<Settings> {
        let config = Config::load_as(role, path)?;
        let Some(dev) = told.map(str::to_owned).or_else(|| config.host.dev.clone()) else {
            let message = "no interface given; use --dev eth0, or `dev = \"eth0\"` in [host]";
            return Err(Usage(message.to_owned()).into());
        };
        let settings = Settings {
            role,
            dev,
            path: path.to_owned(),
            configured: config.clone(),
            config,
            timed: TimedChanges::default(),
            moment: None,
            used_up: BTreeSet::new(),
            divided: DeviceClasses::default(),
            dry_run: args.dry_run,
            probes_in_dry_run: args.probe,
            lacks_windows: false,
            control_told: args.control,
            dev_told: told.is_some(),
        };
        settings.controller(None)?;
        Ok(settings)
    }

    /// Reads the configuration again; these settings are not changed.
    ///
    /// # Errors
    /// If the configuration has mistakes, or requires a restart.
    pub(super) fn reload(&self) -> anyhow::Result<Settings> {
        let config = Config::load_as(self.role, &self.path)?;
        if let Some(dev) = config.host.dev.as_ref().filter(|d| !self.dev_told && **d != self.dev) {
            let key = match self.role {
                Role::Host => "dev",
                Role::Router => "wan",
            };
            bail!("`{key}` is `{dev}` now and was `{}`: that needs a restart", self.dev);
        }
        if config.host.lan != self.config.host.lan {
            bail!("`lan` changed: that needs a restart");
        }
        if config.host.beside != self.config.host.beside {
            bail!("`wan` changed: that needs a restart");
        }
        if config.host.upload != self.config.host.upload {
            bail!("`upload` changed: that needs a restart");
        }
        let is_off = |config: &Config| config.host.divider == DividerChoice::Off;
        if is_off(&config) != is_off(&self.config) {
            bail!("`divider` changed from or to \"off\": that needs a restart");
        }
        if config.host.metrics != self.config.host.metrics {
            bail!("`metrics` changed: that needs a restart");
        }
        Settings { configured: config, ..self.clone() }.with_timed(self.timed.clone())
    }

    /// These settings with other temporary changes.
    ///
    /// # Errors
    /// If the control cannot satisfy them.
    pub(super) fn with_timed(&self, timed: TimedChanges) -> anyhow::Result<Settings> {
        Settings { timed, ..self.clone() }.changed()
    }

    /// These settings with other classes of devices.
    ///
    /// # Errors
    /// If the control cannot satisfy them.
    pub(super) fn with_divided(&self, divided: DeviceClasses) -> anyhow::Result<Settings> {
        Settings { divided, ..self.clone() }.changed()
    }

    /// These settings at another minute, or with other used-up quotas; `None` if nothing differs.
    ///
    /// # Errors
    /// If the control cannot satisfy what is then in force.
    pub(super) fn with_calendar(
        &self,
        moment: Moment,
        used_up: &BTreeSet<String>,
    ) -> Option<anyhow::Result<Settings>> {
        if self.configured.plans.is_empty() && self.used_up.is_empty()
            || (Some(moment), used_up) == (self.moment, &self.used_up)
        {
            return None;
        }
        Some(Settings { moment: Some(moment), used_up: used_up.clone(), ..self.clone() }.changed())
    }

    fn changed(mut self) -> anyhow::Result<Settings> {
        let mut config = self.configured.clone();
        if let Some(moment) = self.moment {
            config.policy = calendar::applied(&config, moment, &self.used_up);
        }
        self.config = self.timed.applied_to(&config);
        self.config.policy = self.divided.applied(&self.config.policy);
        self.controller(None)?;
        Ok(self)
    }

    /// These settings with the temporary changes of an earlier daemon, as far as the control can satisfy them.
    pub(super) fn continued(self, file: &TimedFile) -> Settings {
        let timed = file.read();
        match self.with_timed(timed.clone()) {
            Ok(settings) => {
                if let Err(e) = file.write(&timed) {
                    warn!("boosts and pauses do not outlast this daemon: {e}");
                }
                settings
            }
            Err(e) => {
                warn!("boosts and pauses are ignored: {e:#}");
                self
            }
        }
    }

    /// The configured weight of the group or device with this path.
    pub(super) fn weight_of(&self, path: &str) -> Option<Weight> {
        let mut branches = self.configured.policy.branches().to_vec();
        Branch::find_mut(&mut branches, path).map(|branch| branch.group.weight)
    }

    /// All interfaces to which the daemon may attach.
    pub(super) fn devices(&self) -> impl Iterator<Item = &str> {
        self.wans().chain(self.lans().iter().map(String::as_str))
    }

    /// The interfaces that face the Internet.
    pub(super) fn wans(&self) -> impl Iterator<Item = &str> {
        [&self.dev].into_iter().chain(&self.config.host.beside).map(String::as_str)
    }

    /// A required interface that is missing, if there is one. Of several on one side of a router,
    /// one is enough to attach.
    pub(super) fn missing(&self) -> Option<&str> {
        let is_missing = |dev: &&str| link::index(dev).is_none();
        let mut lans = self.lans().iter().map(String::as_str);
        let lan = lans.clone().all(|lan| is_missing(&lan)).then(|| lans.next()).flatten();
        let wan = self.wans().all(|wan| is_missing(&wan)).then_some(self.dev.as_str());
        wan.or(lan)
    }

    /// Whether the upload is to be shared.
    pub(super) fn shares_upload(&self) -> bool {
        self.config.host.upload != UploadChoice::Off
    }

    /// The interfaces whose root qdisc may belong to the daemon.
    pub(super) fn with_classes(&self) -> impl Iterator<Item = &str> {
        let wans = self.wans().filter(|_| self.shares_upload());
        wans.chain(self.lans().iter().map(String::as_str))
    }

    /// The interfaces towards the devices, on a router.
    pub(super) fn lans(&self) -> &[String] {
        &self.config.host.lan
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.config.policy
    }

    pub(super) fn control(&self) -> Control {
        self.control_told.or(self.config.host.control).unwrap_or_default()
    }

    /// Whether the kernel shapes or only counts.
    pub(super) fn mode(&self) -> Mode {
        let counts = self.dry_run || self.config.host.paused || self.control() == Control::None;
        if counts { Mode::Count } else { Mode::Shape }
    }

    /// Whether another may divide, so that flows are marked.
    pub(super) fn marks(&self) -> bool {
        self.config.host.divider != DividerChoice::Off
            && self.control() == Control::Fairweir
            && self.mode() == Mode::Shape
    }

    /// The interfaces behind which hosts leave the division to this router.
    pub(super) fn tells(&self) -> &[String] {
        let tells = self.mode() == Mode::Shape && self.control() != Control::None;
        if tells { self.lans() } else { &[] }
    }

    /// Whether this host divides the link with other hosts of its network.
    pub(super) fn has_peers(&self) -> bool {
        let is_asked = self.marks() && self.config.host.divider == DividerChoice::Auto;
        self.role == Role::Host && is_asked && !self.lacks_windows
    }

    /// How shares are enforced, as far as the kernel supports it.
    pub(super) fn enforce(&self) -> Enforce {
        if self.lacks_windows { Enforce::Htb } else { self.config.host.enforce }
    }

    /// Whether the control needs to know what each connection receives.
    pub(super) fn watches_connections(&self) -> bool {
        matches!(self.control(), Control::Fairweir | Control::Rbm)
    }

    /// The probe of the access link, if one is wanted. By default it runs only if the control uses
    /// it; never if nothing is controlled; and in a dry run only if requested.
    pub(super) fn probe(&self) -> Option<ProbeSpec> {
        if self.dry_run && !self.probes_in_dry_run {
            return None;
        }
        let control = self.control();
        let reflector = match self.config.host.probe {
            ProbeChoice::Auto if control == Control::Fairweir => Reflector::Auto,
            ProbeChoice::Address(address) if control != Control::None => {
                Reflector::Address(address)
            }
            ProbeChoice::Auto | ProbeChoice::Address(_) | ProbeChoice::Off => return None,
        };
        let in_use = self.config.host.probe_interval;
        let intervals = Intervals { in_use, idle: in_use.max(INTERVAL_IDLE) };
        Some(ProbeSpec { dev: self.dev.clone(), reflector, intervals })
    }

    /// The parameters of the controller.
    ///
    /// # Errors
    /// If the control needs a capacity and there is none.
    pub(super) fn spec(&self) -> Result<ControllerSpec, ControllerError> {
        let host = &self.config.host;
        Ok(ControllerSpec::new(self.control(), host.capacity)?
            .with_strict_priority(host.strict_priority)
            .with_enforce(self.enforce())
            .with_latency(host.latency)
            .with_tuning(match self.role {
                Role::Host => CrabTuning::HOST,
                Role::Router => CrabTuning::ROUTER,
            }))
    }

    /// A new controller; `remembered` is the initial capacity for controls that learn it, if it is
    /// a possible capacity of a link.
    pub(super) fn controller(
        &self,
        remembered: Option<Rate>,
    ) -> Result<Controller, ControllerError> {
        let is_planned = self.configured.plans.values().any(Plan::has_limits);
        if is_planned && !self.control().holds_limits() {
            return Err(ControllerError::NoLimit(self.control(), Limit::Max));
        }
        let usable = |c: &Rate| (CAPACITY_MIN..=CAPACITY_MAX).contains(c);
        let start = remembered.filter(usable).or(self.config.host.capacity);
        Controller::new(&self.spec()?, self.policy().weights(), start)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Subcommand};

    fn load(file: &Path, text: &str, more: &[&str]) -> anyhow::Result<Settings> {
        fs::write(file, text).unwrap();
        let args = ["fairweir", "host", "--config", file.to_str().unwrap()];
        let cli = Cli::try_parse_from(args.iter().chain(more)).unwrap();
        let Subcommand::Host(args) = cli.command else { panic!("it is `host`") };
        Settings::load(Role::Host, &args.config, args.dev.as_deref(), &args.run)
    }

    const FILE: &str = "version = 1\n[host]\ndev = \"eth0\"\ncontrol = \"none\"\n";

    #[test]
    fn the_command_line_overrides_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fairweir.toml");
        let settings = load(&file, FILE, &[]).unwrap();
        assert_eq!((settings.dev.as_str(), settings.control()), ("eth0", Control::None));
        assert_eq!(settings.mode(), Mode::Count);
        let settings = load(&file, FILE, &["--dev", "eth1", "--control", "crab"]).unwrap();
        assert_eq!((settings.dev.as_str(), settings.control()), ("eth1", Control::Crab));
        assert_eq!(settings.mode(), Mode::Shape);
        let settings = load(&file, FILE, &["--control", "crab", "--dry-run"]).unwrap();
        assert_eq!(settings.mode(), Mode::Count);
        let error = load(&file, FILE, &["--control", "static"]).unwrap_err().to_string();
        assert!(error.contains("does not learn the capacity"), "{error}");
    }

    #[test]
    fn limits_follow_the_minute_and_what_is_used_up() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fairweir.toml");
        let text = FILE.replace("none", "fairweir")
            + "[[group]]\nname = \"a\"\nweight = 1\nmatch = [\"app:x\"]\n\
               quota = \"1 GB per day, then 1mbit\"\n\
               [[group.schedule]]\nwhen = \"mon 08:00-18:00\"\nweight = 7\nmax = \"2mbit\"\n";
        let settings = load(&file, &text, &[]).unwrap();
        let at = |settings: &Settings, hour: u16, used_up: &[&str]| {
            let used_up = used_up.iter().map(|path| (*path).to_owned()).collect();
            settings.with_calendar(Moment { weekday: 0, minute: hour * 60 }, &used_up)
        };
        let limits = |settings: &Settings| {
            let group = &settings.policy().groups()[0];
            (group.weight.as_u32(), group.max)
        };
        assert_eq!(limits(&settings), (1, None));
        let morning = at(&settings, 8, &[]).unwrap().unwrap();
        assert_eq!(limits(&morning), (7, Some(Rate::mbit(2))));
        assert!(at(&morning, 8, &[]).is_none(), "nothing has changed");
        let used_up = at(&morning, 8, &["a"]).unwrap().unwrap();
        assert_eq!(limits(&used_up), (7, Some(Rate::mbit(1))));
        assert_eq!(limits(&used_up.reload().unwrap()), limits(&used_up));
        let evening = at(&used_up, 18, &["a"]).unwrap().unwrap();
        assert_eq!(limits(&evening), (1, Some(Rate::mbit(1))));
        assert_eq!(limits(&at(&evening, 18, &[]).unwrap().unwrap()), (1, None));
        let error = load(&file, &text, &["--control", "crab"]).unwrap_err().to_string();
        assert!(error.contains("`crab` does not hold `max`"), "{error}");
    }

    #[test]
    fn a_remembered_capacity_that_no_link_has_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fairweir.toml");
        let settings = load(&file, FILE, &["--control", "crab"]).unwrap();
        for absurd in [Rate::ZERO, Rate::kbit(99), Rate::bps(u64::MAX)] {
            assert!(settings.controller(Some(absurd)).is_ok(), "{absurd}");
        }
    }

    #[test]
    fn another_device_needs_a_restart_unless_the_command_line_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fairweir.toml");
        let from_file = load(&file, FILE, &[]).unwrap();
        let told = load(&file, FILE, &["--dev", "eth0"]).unwrap();
        fs::write(&file, FILE.replace("eth0", "eth1")).unwrap();
        let error = from_file.reload().unwrap_err().to_string();
        assert!(error.contains("needs a restart"), "{error}");
        assert_eq!(told.reload().unwrap().dev, "eth0");
    }
}
