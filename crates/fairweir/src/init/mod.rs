//! `fairweir init`: watches the traffic of an interface and writes a first configuration.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use fairweir_config::output;
use fairweir_core::policy::{Match, Policy};
use fairweir_core::units::{Bytes, Rate, Span};
use fairweir_daemon::Lock;
use fairweir_linux::{Attached, Host, HostSpec, Mode, Talker, Who, monotonic_now, sweep};

use crate::cli::InitArgs;
use crate::device::check_named;
use crate::exit::Usage;
use crate::signals::Signals;
use fairweir_config::{host, text};

pub(crate) mod router;

/// The interval at which the progress bar is updated.
const STEP: Span = Span::millis(500);

/// The maximum number of suggested groups; further applications are listed in comments.
const GROUPS_MAX: usize = 8;

/// The maximum number of comments of one kind.
const COMMENTS_MAX: usize = 10;

/// An application that received less than this percentage gets no group.
const BUSY_PERCENT: u64 = 2;

/// The application with the most traffic is probably a download that can wait; the user may be
/// waiting for the others.
const WEIGHT_HEAVIEST: u32 = 1;
const WEIGHT_OTHERS: u32 = 5;

/// The weight of the application that the user names.
const WEIGHT_FIRST: u32 = 10;

/// The example configuration that an installation puts at the default path.
const EXAMPLE: &str = include_str!("../../../../dist/fairweir.toml");

pub(crate) fn run(args: &InitArgs) -> anyhow::Result<()> {
    let default = if args.router { host::ROUTER_PATH } else { host::DEFAULT_PATH };
    let output = args.output.as_deref().unwrap_or(Path::new(default));
    let to_stdout = output == Path::new("-");
    if !to_stdout && !may_write(output, args.force) {
        bail!("{} already exists; --force overwrites it", output.display());
    }
    let (text, daemon) = match &args.dev {
        _ if args.router => {
            let found = router::look(args.dev.as_deref(), args.lan.as_deref())?;
            (found.configuration(), "router".to_owned())
        }
        None => {
            let what = "--dev is missing: the interface that faces the Internet";
            return Err(Usage(what.to_owned()).into());
        }
        Some(_) if args.duration == Span::ZERO => {
            let what = "--duration is 0s; it must be positive (default: 60s)";
            return Err(Usage(what.to_owned()).into());
        }
        Some(dev) => {
            let seen = observe(&args.run_dir.run_dir, dev, args.duration)?;
            (configuration(dev, &seen, &Wishes::default()), format!("host --dev {dev}"))
        }
    };
    if to_stdout {
        text::stdout().write_all(text.as_bytes())?;
        return Ok(());
    }
    write(output, &text, args.force || is_example(output))
        .with_context(|| format!("cannot write {}", output.display()))?;
    let (out, output) = (&mut text::stdout(), output.display());
    writeln!(out, "wrote {output}; review the weights, then run")?;
    writeln!(out, "  fairweir check {output}")?;
    writeln!(out, "  sudo fairweir {daemon} --config {output}")?;
    Ok(())
}

/// Whether the file can be written without losing what someone wrote there.
fn may_write(output: &Path, force: bool) -> bool {
    force || !output.exists() || is_example(output)
}

/// Whether the file is the example of the installation, unedited.
pub(crate) fn is_example(path: &Path) -> bool {
    fs::read(path).is_ok_and(|text| text == EXAMPLE.as_bytes())
}

/// The observed traffic.
pub(crate) struct Seen {
    pub(crate) talkers: Vec<Talker>,
    pub(crate) received: Bytes,
    /// The highest rate in any [`STEP`].
    pub(crate) busiest: Rate,
    pub(crate) span: Span,
}

/// Watches which applications receive traffic on an interface. A signal ends this and detaches all.
///
/// # Errors
/// If it was interrupted, another daemon has the interface, or the kernel refuses.
pub(crate) fn observe(run_dir: &Path, dev: &str, duration: Span) -> anyhow::Result<Seen> {
    check_named(dev)?;
    let _lock = Lock::device(run_dir, dev)?;
    let signals = Signals::held()?;
    sweep(dev)?;
    let policy = Policy::new(Vec::new())?;
    let mut host = Host::attach(&HostSpec {
        dev: dev.to_owned(),
        policy,
        mode: Mode::Count,
        census: true,
        marks: false,
    })?;
    if !io::stderr().is_terminal() {
        let _ = writeln!(io::stderr(), "watching {dev} for {duration}");
    }
    let start = monotonic_now();
    let (mut received, mut busiest, mut last) = (Bytes::ZERO, Rate::ZERO, start);
    loop {
        let left = duration.as_nanos().saturating_sub(last.since(start).as_nanos());
        if left == 0 {
            break;
        }
        thread::sleep(Duration::from(Span::nanos(left).min(STEP)));
        if signals.is_any()? {
            host.detach()?;
            bail!("interrupted; nothing was written");
        }
        let now = monotonic_now();
        let step: Bytes = host.take_samples()?.iter().map(|s| s.received).sum();
        received += step;
        let rate = Rate::from_volume(step, now.since(last));
        busiest = busiest.max(rate);
        last = now;
        show_progress(now.since(start), duration, rate);
    }
    if io::stderr().is_terminal() {
        let _ = writeln!(io::stderr());
    }
    let talkers = host.census()?;
    host.detach()?;
    Ok(Seen { talkers, received, busiest, span: duration })
}

/// Draws a progress bar if stderr is a terminal.
fn show_progress(done: Span, all: Span, rate: Rate) {
    if !io::stderr().is_terminal() {
        return;
    }
    const WIDTH: usize = 30;
    let part = (done.as_secs_f64() / all.as_secs_f64()).min(1.0);
    let full = (part * WIDTH as f64) as usize;
    let _ = write!(
        io::stderr(),
        "\rwatching [{}{}] {:3.0} of {:.0} s, {:.1} Mbit/s   ",
        "#".repeat(full),
        " ".repeat(WIDTH - full),
        done.as_secs_f64(),
        all.as_secs_f64(),
        rate.as_mbit_f64(),
    );
}

/// A person's answers about the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// The group that matters most, by its index among the suggested ones.
    pub(crate) first: Option<usize>,
    /// Whether the access link may be probed.
    pub(crate) may_probe: bool,
}

impl Default for Wishes {
    fn default() -> Wishes {
        Wishes { first: None, may_probe: true }
    }
}

/// Names of the suggested groups, busiest first.
pub(crate) fn group_names(seen: &Seen) -> Vec<String> {
    suggested(seen).0.into_iter().map(|(name, ..)| name).collect()
}

/// The suggested configuration; valid for any input.
pub(crate) fn configuration(dev: &str, seen: &Seen, wishes: &Wishes) -> String {
    let mut text = format!(
        "# Written by `fairweir init --dev {dev}`: {} observed, {} received, peak\n\
         # {:.1} Mbit/s. Review the weights, then run: fairweir check\n\
         version = 1\n\n\
         [host]\n\
         dev = \"{dev}\"\n\
         control = \"fairweir\"   # learns the capacity of the link\n",
        seen.span,
        seen.received,
        seen.busiest.as_mbit_f64(),
    );
    if !wishes.may_probe {
        text.push_str("probe = \"off\"\n");
    }
    let (groups, quiet) = suggested(seen);
    if groups.is_empty() {
        text.push_str(
            "\n# No application received much. Example of a group:\n\
             # [[group]]\n# name = \"video\"\n# weight = 5\n# match = [\"app:mpv\"]\n",
        );
    }
    for i in 0..groups.len() {
        text.push_str(&group(seen, &groups, i, wishes.first));
    }
    text.push_str(
        "\n[[group]]\nname = \"default\"   # all traffic that matches no other group\nweight = 2\n",
    );
    push_comments(&mut text, "Applications that received little", &quiet);
    let of = |is: fn(&Who) -> bool| -> Vec<&Talker> {
        let mut some: Vec<_> = seen.talkers.iter().filter(|t| is(&t.who)).collect();
        some.sort_by_key(|t| std::cmp::Reverse(t.received));
        some.truncate(COMMENTS_MAX);
        some
    };
    push_comments(&mut text, "Users", &of(|who| matches!(who, Who::User(_))));
    push_comments(&mut text, "Control groups", &of(|who| matches!(who, Who::Cgroup(_))));
    push_comments(&mut text, "Senders", &of(|who| matches!(who, Who::Address(_))));
    text
}

/// One of the suggested groups.
fn group(seen: &Seen, groups: &[(String, Match, Bytes)], i: usize, first: Option<usize>) -> String {
    let (name, app, received) = &groups[i];
    let weight = match (first, i) {
        (Some(first), _) if first == i => WEIGHT_FIRST,
        (_, 0) => WEIGHT_HEAVIEST,
        _ => WEIGHT_OTHERS,
    };
    let part = percent(*received, seen.received);
    let app = toml::Value::from(app.to_string());
    format!(
        "\n[[group]]\nname = \"{name}\"   # received {received}, {part} % of the total\n\
         weight = {weight}\nmatch = [{app}]\n"
    )
}

/// What a configuration lacks: groups for busy applications that have no group there.
pub(crate) fn additions(seen: &Seen, policy: &Policy) -> String {
    let known: Vec<&Match> = policy.groups().iter().flat_map(|group| &group.matches).collect();
    let groups = suggested(seen).0;
    let is_new = |(name, app, _): &(String, Match, Bytes)| {
        !known.contains(&app) && policy.groups().iter().all(|group| group.name != *name)
    };
    let new = (0..groups.len()).filter(|&i| is_new(&groups[i]));
    new.map(|i| group(seen, &groups, i, None)).collect()
}

/// The busy applications as groups (name, match, volume), busiest first, and the others.
fn suggested(seen: &Seen) -> (Vec<(String, Match, Bytes)>, Vec<&Talker>) {
    let mut apps: Vec<_> = seen.talkers.iter().filter(|t| matches!(t.who, Who::App(_))).collect();
    apps.sort_by_key(|t| std::cmp::Reverse(t.received));
    let mut groups: Vec<(String, Match, Bytes)> = Vec::new();
    let mut quiet = Vec::new();
    for talker in apps {
        let busy = percent(talker.received, seen.received) >= BUSY_PERCENT;
        match written(&talker.who).parse::<Match>() {
            Ok(app) if busy && groups.len() < GROUPS_MAX => {
                let name = unique_name(&talker.who, &groups);
                groups.push((name, app, talker.received));
            }
            _ => quiet.push(talker),
        }
    }
    quiet.truncate(COMMENTS_MAX);
    (groups, quiet)
}

/// A valid and unique group name for an application.
fn unique_name(who: &Who, taken: &[(String, Match, Bytes)]) -> String {
    let Who::App(app) = who else { return "group".to_owned() };
    let plain: String = app
        .chars()
        .map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' })
        .collect();
    let is_free = |name: &str| name != "default" && taken.iter().all(|(t, ..)| t != name);
    if !plain.is_empty() && plain.len() <= 40 && is_free(&plain) {
        return plain;
    }
    let numbered = (1..).map(|n| format!("app-{n}")).find(|name| is_free(name));
    numbered.expect("invariant: finitely many names are taken")
}

fn push_comments(text: &mut String, title: &str, talkers: &[&Talker]) {
    if talkers.is_empty() {
        return;
    }
    text.push_str(&format!("\n# {title}:\n"));
    for talker in talkers {
        let written = toml::Value::from(written(&talker.who)).to_string();
        text.push_str(&format!("#   {:<40} {}\n", written.replace('\n', " "), talker.received));
    }
}

/// The application as a rule for `match`.
fn written(who: &Who) -> String {
    match who {
        Who::App(name) => format!("app:{name}"),
        Who::User(uid) => format!("user:{}", user_name(*uid)),
        Who::Cgroup(path) => format!("cgroup:{path}"),
        Who::Address(net) => format!("ip:{net}"),
    }
}

fn user_name(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid));
    user.ok().flatten().map_or_else(|| uid.to_string(), |u| u.name)
}

fn percent(part: Bytes, all: Bytes) -> u64 {
    if all == Bytes::ZERO { 0 } else { part.as_u64().saturating_mul(100) / all.as_u64() }
}

pub(crate) fn write(path: &Path, text: &str, force: bool) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        output::make_dir(dir)?;
    }
    // The file may have been created while the traffic was observed.
    if force { output::write(path, text) } else { output::write_new(path, text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairweir_config::host::Config;

    fn talker(who: Who, kb: u64) -> Talker {
        Talker { who, received: Bytes::kb(kb), packets: kb }
    }

    #[test]
    fn whatever_was_seen_becomes_a_valid_configuration() {
        let odd = "we\"ird\n [app]".to_owned();
        let seen = Seen {
            talkers: vec![
                talker(Who::App("firefox".into()), 600),
                talker(Who::App("curl".into()), 9_000),
                talker(Who::App("default".into()), 500),
                talker(Who::App(odd), 400),
                talker(Who::App("quiet".into()), 1),
                talker(Who::User(0), 10_000),
                talker(Who::Cgroup("/a\nb".into()), 5),
                talker(Who::Address("203.0.113.0/24".parse().unwrap()), 9_000),
            ],
            received: Bytes::kb(10_501),
            busiest: Rate::mbit(30),
            span: Span::secs(60),
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fairweir.toml");
        write(&path, &configuration("eth0", &seen, &Wishes::default()), false).unwrap();
        let config = Config::load(&path).unwrap();
        let names: Vec<_> = config.policy.groups().iter().map(|g| g.name.as_str()).collect();
        assert_eq!(names, ["curl", "firefox", "app-1", "we-ird---app-", "default"]);
        assert_eq!(config.policy.groups()[0].weight.as_u32(), WEIGHT_HEAVIEST);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("user:root") && text.contains("ip:203.0.113.0/24"), "{text}");
        assert!(write(&path, "", false).is_err(), "an existing file is not overwritten");
        let wishes = Wishes { first: Some(0), may_probe: false };
        write(&path, &configuration("eth0", &seen, &wishes), true).unwrap();
        let config = Config::load(&path).unwrap();
        assert_eq!(config.policy.groups()[0].weight.as_u32(), WEIGHT_FIRST);
        assert!(fs::read_to_string(&path).unwrap().contains("probe = \"off\""));
        assert!(!may_write(&path, false), "nor is it by the command");
        fs::write(&path, EXAMPLE).unwrap();
        assert!(may_write(&path, false), "the unedited example is");
        fs::write(&path, EXAMPLE.replace("weight = 5", "weight = 6")).unwrap();
        assert!(!may_write(&path, false));
        assert!(may_write(&path, true));
    }

    #[test]
    fn nothing_seen_is_a_valid_configuration_too() {
        let seen = Seen {
            talkers: Vec::new(),
            received: Bytes::ZERO,
            busiest: Rate::ZERO,
            span: Span::secs(1),
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fairweir.toml");
        write(&path, &configuration("eth0", &seen, &Wishes::default()), false).unwrap();
        assert_eq!(Config::load(&path).unwrap().policy.groups().len(), 1);
    }
}
