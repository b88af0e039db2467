//! `fairweir demo`: plays a video beside downloads with real TCP in network namespaces, and shows it on the page.
//!
//! Everything is in a temporary directory and in namespaces of its own. Nothing of this machine is changed, and the
//! page ends with the demo.

use std::env;
use std::fs::{Permissions, set_permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;
use fairweir_config::{Override, Text, text};
use fairweir_core::units::Span;
use fairweir_lab::{Error, Watchers};
use fairweir_scenario::{Control, Scenario, report};
use nix::unistd::{Group, Uid, User};
use tempfile::TempDir;

use crate::cli::DemoArgs;
use crate::exit::Usage;
use crate::page::ask::new_link;
use crate::{lab, play};

const SCENARIO: &str = include_str!("../../../scenarios/demo.toml");

/// Allowed durations. A shorter demo would end before there is much to see.
const DURATION: std::ops::RangeInclusive<Span> = Span::secs(10)..=Span::secs(3_600);

/// The user that runs the page: the package's user; if there is none, the unprivileged user of every system.
const USER: &str = "fairweir";
const UNPRIVILEGED: u32 = 65_534;

pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let scenario = scenario(args.duration)?;
    lab::check_root("use `fairweir sim run` with a file of scenarios/, which opens no page")?;
    let dir = TempDir::with_prefix("fairweir-demo-").context("cannot make a directory")?;
    // The page's user must be able to pass through the directory to reach the sockets.
    set_permissions(dir.path(), Permissions::from_mode(0o711))?;
    let (user, group) = page_user()?;
    let page = Page::start(dir.path(), args.port, &user)?;
    let out = &mut text::stdout();
    writeln!(
        out,
        "A video (weight 5) starts beside a download with four connections (weight 1), on a link of 30 \
         Mbit/s, for {}. Move the weights on the page:\n  {}",
        args.duration, page.link
    )?;
    if !args.no_browser && open_browser(&new_link(&page.dir(dir.path()))?) {
        writeln!(out, "A browser opens it.")?;
    }
    out.flush()?;
    let watchers = Watchers { run_dir: dir.path().join(RUN_DIR), admin_group: group };
    match lab::play_watched(&scenario, Control::Fairweir, watchers, play::cancelled_by_signal()?) {
        Ok(played) => Ok(write!(out, "{}", report::table(&[played]))?),
        Err(e) if matches!(e.downcast_ref(), Some(Error::Interrupted)) => {
            Ok(writeln!(out, "stopped")?)
        }
        Err(e) => Err(e),
    }
}

const RUN_DIR: &str = "run";
const PAGE_DIR: &str = "page";

fn scenario(duration: Span) -> anyhow::Result<Scenario> {
    if !DURATION.contains(&duration) {
        let (least, most) = (DURATION.start(), DURATION.end());
        let what = format!("--duration is {duration}; it must be {least} to {most}");
        return Err(Usage(what).into());
    }
    let set: Override = format!("duration={duration}").parse()?;
    let none = |path: &Path| unreachable!("invariant: the demo has no trace {}", path.display());
    Ok(Scenario::parse_with(&Text::new(SCENARIO, "scenarios/demo.toml"), &[set], &none)?)
}

/// The name of a user without privileges, and the name of its group.
fn page_user() -> anyhow::Result<(String, String)> {
    let users = [User::from_name(USER)?, User::from_uid(Uid::from_raw(UNPRIVILEGED))?];
    for user in users.into_iter().flatten().filter(|user| !user.uid.is_root()) {
        if let Some(group) = Group::from_gid(user.gid)? {
            return Ok((user.name, group.name));
        }
    }
    anyhow::bail!(
        "this system has neither the user `{USER}` nor one with the number {UNPRIVILEGED}"
    )
}

/// The page's process. It ends with this program.
struct Page {
    child: Child,
    _stdin: ChildStdin,
    link: String,
}

impl Page {
    fn start(dir: &Path, port: u16, user: &str) -> anyhow::Result<Page> {
        let program = env::current_exe().context("cannot determine the path of this program")?;
        let mut command = Command::new(program);
        command.args(["page", "--until-stdin-closes", "--user", user, "--port", &port.to_string()]);
        command.arg("--run-dir").arg(dir.join(RUN_DIR)).arg("--page-dir").arg(dir.join(PAGE_DIR));
        command.arg("--state-dir").arg(dir.join("history"));
        // In its own process group: Ctrl-C reaches only this program, which ends the page. Stderr shows a failure.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let mut child = command.env("RUST_LOG", "warn").spawn().context("cannot start the page")?;
        let stdin = child.stdin.take().context("invariant: its standard input is a pipe")?;
        let mut page = Page { child, _stdin: stdin, link: String::new() };
        page.link = page.first_link(dir)?;
        Ok(page)
    }

    fn dir(&self, dir: &Path) -> std::path::PathBuf {
        dir.join(PAGE_DIR)
    }

    fn first_link(&mut self, dir: &Path) -> anyhow::Result<String> {
        for _ in 0..TRIES {
            if let Ok(link) = new_link(&self.dir(dir)) {
                return Ok(link);
            }
            if self.child.try_wait()?.is_some() {
                break;
            }
            sleep(TRY_PAUSE);
        }
        anyhow::bail!("the page does not start")
    }
}

/// How often to check whether the page has started before giving up.
const TRIES: u32 = 100;
const TRY_PAUSE: Duration = Duration::from_millis(100);

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens the link in the browser of the person who started this, if there is a desktop. When root
/// runs this for another user, root's browser is not started.
fn open_browser(link: &str) -> bool {
    if env::var_os("DISPLAY").is_none() && env::var_os("WAYLAND_DISPLAY").is_none() {
        return false;
    }
    let mut command = match env::var_os("SUDO_USER") {
        Some(user) => {
            let mut command = Command::new("runuser");
            command.arg("-u").arg(user).args(["--", "xdg-open"]);
            command
        }
        None => Command::new("xdg-open"),
    };
    command.arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.spawn() {
        Ok(mut child) => {
            // The child ends when the browser has the link, or never; a thread waits for it.
            std::thread::spawn(move || child.wait());
            true
        }
        Err(e) => {
            let _ = writeln!(io::stderr(), "no browser was opened: cannot run xdg-open: {e}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_has_a_scenario_of_any_duration_within_bounds() {
        assert_eq!(scenario(Span::secs(90)).unwrap().duration, Span::secs(90));
        for wrong in [Span::ZERO, Span::secs(9), Span::secs(3_601)] {
            let error = scenario(wrong).unwrap_err().to_string();
            assert!(error.contains("10s to 3600s") || error.contains("must be"), "{error}");
        }
    }
}
