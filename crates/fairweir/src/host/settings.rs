//! What the daemon shall do: the configuration, and what the command line says instead.

use std::path::PathBuf;

use anyhow::bail;
use fairweir_core::policy::Policy;
use fairweir_core::receiver::{Control, Controller, ControllerError, ControllerSpec};
use fairweir_core::units::Rate;
use fairweir_linux::Mode;

use crate::cli::HostArgs;
use crate::config::Config;

/// The command line, and the configuration as it was last found good.
#[derive(Debug)]
pub(super) struct Settings {
    /// The interface.
    pub(super) dev: String,
    /// The main file.
    pub(super) path: PathBuf,
    /// What it said last.
    pub(super) config: Config,
    /// Touch nothing.
    pub(super) dry_run: bool,
    control_told: Option<Control>,
    dev_told: bool,
}

impl Settings {
    /// Reads the configuration that `args` names.
    ///
    /// # Errors
    /// If it is wrong, or configuration and command line together lack something.
    pub(super) fn load(args: &HostArgs) -> anyhow::Result<Settings> {
        let config = Config::load(&args.config)?;
        let Some(dev) = args.dev.clone().or_else(|| config.host.dev.clone()) else {
            bail!("which interface? say --dev eth0, or `dev = \"eth0\"` under [host]");
        };
        let settings = Settings {
            dev,
            path: args.config.clone(),
            config,
            dry_run: args.dry_run,
            control_told: args.control,
            dev_told: args.dev.is_some(),
        };
        settings.controller(None)?;
        Ok(settings)
    }

    /// Reads the configuration again; these settings stay as they are.
    ///
    /// # Errors
    /// If the configuration is wrong, or wants what needs a restart.
    pub(super) fn reload(&self) -> anyhow::Result<Settings> {
        let config = Config::load(&self.path)?;
        if let Some(dev) = config.host.dev.as_ref().filter(|d| !self.dev_told && **d != self.dev) {
            bail!("`dev` is `{dev}` now and was `{}`: that needs a restart", self.dev);
        }
        let settings = Settings {
            dev: self.dev.clone(),
            path: self.path.clone(),
            config,
            dry_run: self.dry_run,
            control_told: self.control_told,
            dev_told: self.dev_told,
        };
        settings.controller(None)?;
        Ok(settings)
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.config.policy
    }

    pub(super) fn control(&self) -> Control {
        self.control_told.or(self.config.host.control).unwrap_or(Control::Crab)
    }

    /// Whether the kernel only counts.
    pub(super) fn mode(&self) -> Mode {
        if self.dry_run || self.control() == Control::None { Mode::Count } else { Mode::Shape }
    }

    /// A controller from its beginning; `remembered` is for those that learn the capacity.
    pub(super) fn controller(
        &self,
        remembered: Option<Rate>,
    ) -> Result<Controller, ControllerError> {
        let control = self.control();
        let learns = !control.needs_capacity();
        Controller::new(&ControllerSpec {
            control,
            weights: self.policy().weights(),
            capacity: remembered.filter(|_| learns).or(self.config.host.capacity),
            strict_priority: self.config.host.strict_priority,
        })
    }

    /// Whether a controller made from `other` can go on with these settings.
    pub(super) fn controls_like(&self, other: &Settings) -> bool {
        let of =
            |s: &Settings| (s.control(), s.config.host.capacity, s.config.host.strict_priority);
        of(self) == of(other)
    }
}
