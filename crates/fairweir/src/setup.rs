//! `fairweir setup`: three questions or none, a minute of watching, a configuration, and the units.
//!
//! It watches and suggests as `fairweir init` does, writes over no configuration without being told
//! to, and starts nothing by itself but the two units.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use fairweir_config::text;
use fairweir_core::units::Span;
use fairweir_linux::network;

use crate::cli::SetupArgs;
use crate::device::check_named;
use crate::exit::Usage;
use crate::init::{Wishes, configuration, group_names, is_example, observe, write};
use crate::page::ask::new_link;
use crate::questions::Questions;

/// Where systemd runs, this directory exists. Source: sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";

/// How long the page may take to start.
const TRIES: u32 = 50;
const TRY_PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &SetupArgs) -> anyhow::Result<()> {
    if args.duration == Span::ZERO {
        return Err(Usage("--duration is 0s; it must be positive".to_owned()).into());
    }
    let mut questions = Questions { are_asked: !args.yes };
    let dev = device(args, &mut questions)?;
    let path = args.output.as_path();
    if path.is_dir() {
        let what = format!("--output: {} is a directory; name a file in it", path.display());
        return Err(Usage(what).into());
    }
    let is_kept = path.exists() && !is_example(path);
    if is_kept && !questions.confirm(&format!("{} exists. Replace it?", path.display()), false)? {
        let hint = "`fairweir check` shows how it is read; move it away, or answer yes";
        bail!("{} already exists; {hint}", path.display());
    }
    let may_probe = questions.confirm(
        "May fairweir measure the delay of the link, with a few small packets a second to a router \
         of the ISP?",
        true,
    )?;
    let seen = observe(&args.run_dir.run_dir, &dev, args.duration)?;
    let names = group_names(&seen);
    let first = questions.choose("What matters most to you?", &names)?;
    let text = configuration(&dev, &seen, &Wishes { first, may_probe });
    write(path, &text, path.exists())
        .with_context(|| format!("cannot write {}", path.display()))?;
    let out = &mut text::stdout();
    writeln!(out, "wrote {}: {}", path.display(), summary(&names))?;
    // The units read the default file.
    let is_default = path == Path::new(fairweir_config::host::DEFAULT_PATH);
    if Path::new(SYSTEMD).exists() && is_default {
        start(&dev)?;
        let link = wait_for_link(&args.page_dir)?;
        return Ok(writeln!(out, "started fairweir@{dev} and the page; open\n  {link}")?);
    }
    writeln!(out, "start the daemon, the page, and print its link:")?;
    writeln!(out, "  sudo fairweir host --dev {dev} --config {}", path.display())?;
    writeln!(out, "  sudo fairweir page")?;
    Ok(writeln!(out, "  sudo fairweir page --open")?)
}

fn device(args: &SetupArgs, questions: &mut Questions) -> anyhow::Result<String> {
    let dev = match (&args.dev, network::default_device()?) {
        (Some(dev), _) => dev.clone(),
        (None, found) => questions.name("Which interface faces the Internet?", found)?,
    };
    check_named(&dev)?;
    Ok(dev)
}

fn summary(names: &[String]) -> String {
    match names {
        [] => "no application received much yet, so there is one group".to_owned(),
        names => format!("groups {} and default", names.join(", ")),
    }
}

fn start(dev: &str) -> anyhow::Result<()> {
    let unit = format!("fairweir@{dev}.service");
    let mut systemctl = Command::new("systemctl");
    systemctl.args(["enable", "--now", &unit, "fairweir-page.service"]);
    let status = systemctl.status().context("cannot run systemctl")?;
    if !status.success() {
        bail!("`systemctl enable --now {unit} fairweir-page.service` failed");
    }
    Ok(())
}

fn wait_for_link(page_dir: &Path) -> anyhow::Result<String> {
    for _ in 1..TRIES {
        if let Ok(link) = new_link(page_dir) {
            return Ok(link);
        }
        sleep(TRY_PAUSE);
    }
    new_link(page_dir)
}
