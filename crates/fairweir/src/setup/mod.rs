//! `fairweir setup`: detects the kind of machine, shows a configuration, writes it, and starts the daemon.
//!
//! It writes one file, after showing the text and, unless `--yes` is given, asking. A person's file is kept, and new
//! parts are added to it. The previous state is recorded first ([`record`]). Only daemons that need no decision by a
//! person are started: those of a computer and of a router.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;
use fairweir_config::host::{self, Config, Role};
use fairweir_config::{FileKind, isp, sender, text};
use fairweir_core::policy::Match;
use fairweir_core::units::{Bytes, Rate, Span};
use fairweir_daemon::{Access, Client, Error, Request};
use fairweir_linux::{Router, Talker, Who, link_devices};

use crate::cli::{SetupArgs, SetupRole};
use crate::device::check_named;
use crate::exit::{Exit, Usage, reworded};
use crate::host::client::instance_of;
use crate::host::wire::Status;
use crate::init::{self, Seen, Wishes, group_names, is_example, observe};
use crate::page::ask::new_link;
use crate::questions::Questions;

mod machine;
mod propose;
mod record;
mod units;

use machine::Machine;
use record::Record;

/// How often to check whether the page has started.
const TRIES: u32 = 50;
const TRY_PAUSE: Duration = Duration::from_millis(100);

/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The systemd unit of the page.
const PAGE_UNIT: &str = "fairweir-page.service";

pub(crate) fn run(args: &SetupArgs) -> anyhow::Result<()> {
    if args.undo {
        return record::undo(&args.state);
    }
    if args.duration == Span::ZERO {
        return Err(Usage("--duration is 0s; it must be positive".to_owned()).into());
    }
    let mut questions = Questions { are_asked: !args.yes };
    let machine = machine::look()?;
    let place = place(args, &machine, &mut questions)?;
    let daemon = place.daemon(&args.run_dir.run_dir)?;
    let path = place.path(args)?;
    let Some(proposal) = propose(args, &machine, &place, daemon, &path, &mut questions)? else {
        return Ok(());
    };
    let out = &mut text::stdout();
    for caveat in machine.caveats(place.role, &place.dev) {
        writeln!(out, "note: {caveat}")?;
    }
    if proposal.is_new_text() {
        writeln!(out, "{}", proposal.shown)?;
        if !questions.confirm(&format!("Write this to {}?", path.display()), true)? {
            return Ok(writeln!(out, "nothing was written")?);
        }
        write(args, &place, &path, &proposal)?;
        writeln!(out, "wrote {}", path.display())?;
    } else {
        writeln!(out, "{} stays as it is: nothing is new", path.display())?;
    }
    start(args, &place, &path)
}

/// The role of the machine, and its interfaces.
struct Place {
    role: SetupRole,
    /// The interface towards the Internet.
    dev: String,
    /// The interface towards devices or subscribers; a computer and a server have none.
    lan: Option<String>,
}

/// The proposed text of the file, and the part of it that is new.
struct Proposal {
    text: String,
    shown: String,
}

impl Proposal {
    fn new(text: String) -> Proposal {
        Proposal { shown: text.clone(), text }
    }

    fn is_new_text(&self) -> bool {
        !self.shown.is_empty()
    }
}

fn place(args: &SetupArgs, machine: &Machine, questions: &mut Questions) -> anyhow::Result<Place> {
    let suggestion = machine.suggestion();
    let role = match args.role {
        Some(role) => role,
        None => {
            let daemon = daemon_of(suggestion.role);
            let what = suggestion.role.called();
            writeln!(
                text::stdout(),
                "This looks like {what}: {}. `fairweir {daemon}` is for that.",
                suggestion.reason
            )?;
            let names = SetupRole::ALL.map(|role| role.called().to_owned());
            let chosen = questions.choose("What is to be configured?", &names)?;
            chosen.map_or(suggestion.role, |i| SetupRole::ALL[i])
        }
    };
    if role == SetupRole::Router && machine.is_openwrt {
        let what = "this is OpenWrt: `fairweir router` is configured in /etc/config/fairweir (docs/home/openwrt.md)";
        return Err(Usage(what.to_owned()).into());
    }
    let no_route = "no interface has a default route; name one with --dev";
    let ask = |given: &Option<String>, questions: &mut Questions, what: &str, found, none: &str| {
        match given {
            Some(dev) => Ok(dev.clone()),
            None => questions.name(what, found, none),
        }
    };
    let found = match role {
        SetupRole::Router => link_devices()?.into_iter().next(),
        SetupRole::Host | SetupRole::Isp | SetupRole::Sender => machine.uplinks.first().cloned(),
    };
    let dev = ask(&args.dev, questions, "Which interface faces the Internet?", found, no_route)?;
    check_named(&dev)?;
    let behind = match role {
        SetupRole::Host | SetupRole::Sender => None,
        SetupRole::Router => Some("devices"),
        SetupRole::Isp => Some("subscribers"),
    };
    let lan = behind.map(|those| {
        let found = machine.inner().map(|link| link.name.clone());
        let none = format!("no interface of {those} was found; name it with --lan");
        let what = format!("Behind which interface are the {those}?");
        ask(&args.lan, questions, &what, found, &none)
    });
    let lan = lan.transpose()?;
    if let Some(lan) = &lan {
        check_named(lan)?;
        if *lan == dev {
            let what = format!("{dev} faces the Internet; --lan names the interface of the others");
            return Err(Usage(what).into());
        }
    }
    Ok(Place { role, dev, lan })
}

impl SetupRole {
    const ALL: [SetupRole; 4] =
        [SetupRole::Host, SetupRole::Router, SetupRole::Isp, SetupRole::Sender];

    fn called(self) -> &'static str {
        match self {
            SetupRole::Host => "a computer",
            SetupRole::Router => "a router",
            SetupRole::Isp => "an access network",
            SetupRole::Sender => "a server",
        }
    }
}

fn daemon_of(role: SetupRole) -> FileKind {
    match role {
        SetupRole::Host => FileKind::Host,
        SetupRole::Router => FileKind::Router,
        SetupRole::Isp => FileKind::Isp,
        SetupRole::Sender => FileKind::Sender,
    }
}

impl Place {
    fn instance(&self) -> String {
        match self.role {
            SetupRole::Host => format!("{}{}", Role::Host.prefix(), self.dev),
            SetupRole::Router => format!("{}{}", Role::Router.prefix(), self.dev),
            SetupRole::Isp => "isp".to_owned(),
            SetupRole::Sender => "sender".to_owned(),
        }
    }

    /// A connection to the daemon, if it is running.
    ///
    /// # Errors
    /// If a daemon of another kind has the interface.
    fn daemon(&self, run_dir: &Path) -> anyhow::Result<Option<Client>> {
        let instance = self.instance();
        let other = match self.role {
            SetupRole::Host | SetupRole::Router => instance_of(run_dir, &self.dev)?,
            SetupRole::Isp | SetupRole::Sender => instance.clone(),
        };
        let client = match Client::connect(run_dir, &other, Access::Change, PATIENCE) {
            Ok(client) => client,
            Err(Error::NotRunning { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        if other != instance {
            let what = format!(
                "{} has a daemon of another kind ({other}); `fairweir setup --undo` or `fairweir off` stops it",
                self.dev
            );
            return Err(reworded(Exit::Occupied, what));
        }
        Ok(Some(client))
    }

    fn default_path(&self) -> &'static str {
        match self.role {
            SetupRole::Host => host::DEFAULT_PATH,
            SetupRole::Router => host::ROUTER_PATH,
            SetupRole::Isp => isp::DEFAULT_PATH,
            SetupRole::Sender => sender::DEFAULT_PATH,
        }
    }

    fn path(&self, args: &SetupArgs) -> anyhow::Result<PathBuf> {
        let path = args.output.clone().unwrap_or_else(|| self.default_path().into());
        if path.is_dir() {
            let what = format!("--output: {} is a directory; name a file in it", path.display());
            return Err(Usage(what).into());
        }
        Ok(path)
    }

    /// The systemd units to start: those that need no decision by a person.
    fn units(&self) -> Vec<String> {
        match self.role {
            SetupRole::Host => {
                vec![format!("fairweir@{}.service", self.dev), PAGE_UNIT.to_owned()]
            }
            SetupRole::Router => vec!["fairweir-router.service".to_owned(), PAGE_UNIT.to_owned()],
            SetupRole::Isp | SetupRole::Sender => Vec::new(),
        }
    }
}

/// The text to write; `None` if there is nothing to do.
fn propose(
    args: &SetupArgs,
    machine: &Machine,
    place: &Place,
    daemon: Option<Client>,
    path: &Path,
    questions: &mut Questions,
) -> anyhow::Result<Option<Proposal>> {
    let question =
        format!("{} exists. Keep it, and add what is new? `no` replaces it", path.display());
    let is_kept = path.exists() && !is_example(path) && questions.confirm(&question, true)?;
    let kept = if is_kept { Some(std::fs::read_to_string(path)?) } else { None };
    let proposal = match (place.role, &place.lan) {
        (SetupRole::Host, _) => {
            let policy = kept.is_some().then(|| Config::load(path)).transpose()?;
            let may_probe = kept.is_some()
                || questions.confirm(
                    "May fairweir measure the delay of the link, with a few small packets a second to a \
                     router of the ISP?",
                    true,
                )?;
            let seen = match daemon {
                Some(mut daemon) => seen_by(&daemon.ask(&Request::Status)?),
                None => observe(&args.run_dir.run_dir, &place.dev, args.duration)?,
            };
            match (kept, policy) {
                (Some(kept), Some(config)) => added(kept, init::additions(&seen, &config.policy)),
                _ => {
                    let first =
                        questions.choose("What matters most to you?", &group_names(&seen))?;
                    let wishes = Wishes { first, may_probe };
                    Proposal::new(init::configuration(&place.dev, &seen, &wishes))
                }
            }
        }
        (SetupRole::Router, Some(lan)) => {
            let found = init::router::look(Some(&place.dev), Some(lan))?;
            if daemon.is_none() {
                Router::refuse_if_occupied(&found.lans, &found.wans)?;
            }
            match kept {
                Some(kept) => {
                    let config = Config::load_as(Role::Router, path)?;
                    added(kept, found.additions(&config.policy))
                }
                None => Proposal::new(found.configuration()),
            }
        }
        (SetupRole::Isp, Some(lan)) => match kept {
            Some(kept) => {
                isp::IspFile::load(path)?;
                added(kept, String::new())
            }
            None => Proposal::new(propose::isp(lan, &place.dev)),
        },
        (SetupRole::Sender, _) => match kept {
            Some(kept) => {
                sender::SenderFile::load(path)?;
                added(kept, String::new())
            }
            None => Proposal::new(propose::sender(&machine.served)),
        },
        (SetupRole::Router | SetupRole::Isp, None) => return Ok(None),
    };
    Ok(Some(proposal))
}

fn added(kept: String, new: String) -> Proposal {
    Proposal { text: kept + &new, shown: new }
}

/// The traffic that a running daemon has counted. The daemon is not stopped to watch the interface.
fn seen_by(status: &Status) -> Seen {
    let apps = status.groups.iter().flat_map(|group| {
        let app = |rule: &Match| match rule {
            Match::App(name) => Some(Talker {
                who: Who::App(name.clone()),
                received: group.received_bytes,
                packets: 0,
            }),
            _ => None,
        };
        group.matches.iter().filter_map(app)
    });
    Seen {
        talkers: apps.collect(),
        received: status.groups.iter().map(|group| group.received_bytes).sum::<Bytes>(),
        busiest: status.capacity_bps.unwrap_or(Rate::ZERO),
        span: Span::secs(status.since_s as u64),
    }
}

/// Writes the file. If the daemon would refuse it, the file is not left there.
fn write(args: &SetupArgs, place: &Place, path: &Path, proposal: &Proposal) -> anyhow::Result<()> {
    let before = std::fs::read(path).ok();
    let mut record = Record::load(&args.state)?;
    record.note_file(&args.state, path, Some(&proposal.text))?;
    let set_by_commands = match place.role {
        SetupRole::Host => Some(Role::Host.conf_d(path)),
        SetupRole::Router => Some(Role::Router.conf_d(path)),
        SetupRole::Isp | SetupRole::Sender => None,
    };
    if let Some(conf_d) = set_by_commands {
        record.note_file(&args.state, &conf_d.join(host::set::FILE), None)?;
    }
    init::write(path, &proposal.text, true)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let checked = match place.role {
        SetupRole::Host => Config::load(path).map(drop),
        SetupRole::Router => Config::load_as(Role::Router, path).map(drop),
        SetupRole::Isp => isp::IspFile::load(path).map(drop),
        SetupRole::Sender => sender::SenderFile::load(path).map(drop),
    };
    if let Err(e) = checked {
        match before {
            Some(before) => fairweir_config::output::write(path, before)?,
            None => std::fs::remove_file(path)?,
        }
        return Err(e.into());
    }
    Ok(())
}

/// Starts the daemon, tells a running one to reload its file, or prints how to start it.
fn start(args: &SetupArgs, place: &Place, path: &Path) -> anyhow::Result<()> {
    let out = &mut text::stdout();
    // The systemd units read the file at the default path.
    let is_default = path == Path::new(place.default_path());
    let units: Vec<_> = place.units().iter().map(|name| units::look(name)).collect();
    let daemon = place.daemon(&args.run_dir.run_dir)?;
    let by_hand = daemon.is_some() && units.first().is_none_or(|unit| !unit.was_active);
    if let (Some(mut daemon), true) = (daemon, by_hand || !units::are_here()) {
        let request = Request::Reload { dry_run: false, force: false };
        let said = daemon.tell(&request, &mut |_, _| ())?;
        return Ok(writeln!(out, "the daemon that runs has read it: {said}")?);
    }
    if units::are_here() && is_default && !units.is_empty() {
        let mut record = Record::load(&args.state)?;
        for unit in &units {
            record.note_unit(&args.state, unit.clone())?;
        }
        units::start(&units)?;
        let link = wait_for_link(&args.page_dir)?;
        let unit = &units[0].name;
        return Ok(writeln!(out, "started {unit} and the page; open\n  {link}")?);
    }
    let (daemon, path) = (daemon_of(place.role), path.display());
    match place.role {
        SetupRole::Host => {
            writeln!(out, "start the daemon, the page, and print its link:")?;
            writeln!(out, "  sudo fairweir host --dev {} --config {path}", place.dev)?;
        }
        SetupRole::Router => {
            writeln!(out, "start the daemon, the page, and print its link:")?;
            writeln!(out, "  sudo fairweir router --config {path}")?;
        }
        SetupRole::Isp | SetupRole::Sender => {
            writeln!(out, "edit it, check it, and start the daemon:")?;
            writeln!(out, "  sudoedit {path}")?;
            writeln!(out, "  fairweir check {path}")?;
            let start = match units::are_here() && is_default {
                true => format!("sudo systemctl enable --now fairweir-{daemon}"),
                false => format!("sudo fairweir {daemon} --config {path}"),
            };
            return Ok(writeln!(out, "  {start}")?);
        }
    }
    writeln!(out, "  sudo fairweir page")?;
    Ok(writeln!(out, "  sudo fairweir page --open")?)
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
