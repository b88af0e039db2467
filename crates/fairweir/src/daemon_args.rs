//! What the daemons have in common on the command line: their arguments, and how commands ask them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use fairweir_config::text;
use fairweir_daemon::{Access, Client, Error, Request, Spec};
use fairweir_linux::monotonic_now;
use nix::unistd::{Gid, Group};

use crate::exit::{Exit, Usage, reworded};
use crate::instance::{MARKET, MARKET_AGENT};

/// How long an answer is waited for. A daemon answers within a tick; a later answer means that it hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// The directory of the daemons' sockets.
#[derive(Debug, Args)]
pub(crate) struct RunDir {
    /// Directory of the daemons' sockets.
    #[arg(long, value_name = "DIR", default_value = "/run/fairweir")]
    pub(crate) run_dir: PathBuf,
}

/// What every daemon has.
#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
    /// Members of this group may read status and metrics.
    #[arg(long, value_name = "GROUP")]
    user_group: Option<String>,
    /// Members of this group may send every request, as `fairweir page` does.
    #[arg(long, value_name = "GROUP")]
    admin_group: Option<String>,
    /// Exit when stdin closes, for programs that start the daemon.
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

impl ServiceArgs {
    /// The frame's specification of the service `name`, whose requests have at most `request_max` bytes. Devices
    /// and metrics are left out: only some services have them.
    ///
    /// # Errors
    /// If the system has no such group.
    pub(crate) fn spec(&self, name: impl Into<String>, request_max: usize) -> anyhow::Result<Spec> {
        Ok(Spec {
            name: name.into(),
            devices: Vec::new(),
            run_dir: self.run_dir.run_dir.clone(),
            admin_group: group_id("--admin-group", self.admin_group.as_deref())?,
            user_group: group_id("--user-group", self.user_group.as_deref())?,
            request_max,
            metrics: None,
            until_stdin_closes: self.until_stdin_closes,
            clock: monotonic_now,
        })
    }
}

/// A command that prints what a daemon says.
#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// A command that stops a daemon.
#[derive(Debug, Args)]
pub(crate) struct OffArgs {
    /// Kill a daemon that does not answer.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// A command that makes a daemon read its configuration again.
#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    /// Check the configuration and say whether anything would change.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    run_dir: RunDir,
}

/// That the daemon of the instance `name` does not run, and how to start it.
pub(crate) fn not_running(name: &str, run_dir: &Path) -> anyhow::Error {
    let (command, unit) = match name {
        MARKET => ("market serve", MARKET),
        MARKET_AGENT => ("market agent", "agent"),
        name => (name, name),
    };
    let what = format!(
        "`fairweir {command}` does not run (no daemon answers in {}); start it with `sudo fairweir {command}` or \
         `sudo systemctl start fairweir-{unit}`",
        run_dir.display()
    );
    reworded(Exit::NotRunning, what)
}

/// Connects to the service whose instance, command and unit have this name.
///
/// # Errors
/// If it does not run or does not answer, with how to start it.
pub(crate) fn connect(run_dir: &Path, name: &str, access: Access) -> anyhow::Result<Client> {
    connect_patiently(run_dir, name, access, PATIENCE)
}

/// The same with another patience.
///
/// # Errors
/// As [`connect`].
pub(crate) fn connect_patiently(
    run_dir: &Path,
    name: &str,
    access: Access,
    patience: Duration,
) -> anyhow::Result<Client> {
    Client::connect(run_dir, name, access, patience).map_err(|e| match e {
        Error::NotRunning { .. } => not_running(name, run_dir),
        e => e.into(),
    })
}

/// Makes the service of that name read its configuration again, and prints what it says.
///
/// # Errors
/// If the configuration is wrong, and nothing changes.
pub(crate) fn reload(name: &str, args: &ReloadArgs) -> anyhow::Result<()> {
    let mut client = connect(&args.run_dir.run_dir, name, Access::Change)?;
    let request = Request::Reload { dry_run: args.dry_run, force: false };
    let message = client.tell(&request, &mut |_, _| ())?;
    Ok(writeln!(text::stdout(), "{message}")?)
}

/// The number of the group that the option `option` names.
///
/// # Errors
/// If the system has no such group.
fn group_id(option: &str, name: Option<&str>) -> anyhow::Result<Option<Gid>> {
    let Some(name) = name else { return Ok(None) };
    match Group::from_name(name)? {
        Some(group) => Ok(Some(group.gid)),
        None => Err(Usage(format!("{option}: no group `{name}` on this system")).into()),
    }
}

/// `fairweir off`.
#[derive(Debug, Args)]
pub(crate) struct OffDevArgs {
    /// The interface; by default all daemons of this machine except the page.
    #[arg(long, value_parser = crate::instance::parse)]
    pub(crate) dev: Option<String>,
    /// Kill a daemon that does not answer.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) run_dir: RunDir,
}

/// A whole number of the command line.
pub(crate) fn whole<const MIN: u64, const MAX: u64>(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (MIN..=MAX).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a whole number from {MIN} to {MAX}"))
}

/// The same, for what is counted in memory.
pub(crate) fn whole_usize<const MIN: u64, const MAX: u64>(text: &str) -> Result<usize, String> {
    whole::<MIN, MAX>(text).map(|number| number as usize)
}

/// A port; 0 takes a free one.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    let number = text.parse();
    number.map_err(|_| format!("`{text}` is not a port (1 to 65535, or 0 for a free one)"))
}

pub(crate) const OFF_EXAMPLES: &str = "Examples:
  sudo fairweir off
  sudo fairweir off --dev eth0

It waits for a daemon that is slow or just starting, and fails if one lives on. With --force a
daemon that does not answer is killed. Stop one that systemd started with
`systemctl stop fairweir@eth0`.";
