//! The daemon's state: the proxy, the diversion to it, and the guard.

use std::iter;
use std::os::fd::BorrowedFd;

use anyhow::bail;
use fairweir_config::applications::{Application, applications};
use fairweir_config::devices::devices;
use fairweir_config::proxy::{AppConfig, ClassConfig, ProxyFile};
use fairweir_core::market::guarantee::{Guarantee, Term};
use fairweir_core::policy::PATH_SEPARATOR;
use fairweir_core::relay::{Alpha, Told, ToldDevice};
use fairweir_core::units::{Rate, Span, Time};
use fairweir_daemon::StandingGuard;
use fairweir_linux::divert::{Clients, Divert, DivertSpec, LOOK_PERIOD, SOCKET_MARK, Taken};
use fairweir_linux::{Health, round_trip, set_receive_buffer};
use fairweir_proxy::{Answer, App, Class, Kernel, Known, Proxy, Rules};
use tracing::{info, warn};

use super::guard::guard;
use crate::words::chained;

/// How often the guard gets a heartbeat, and the kernel's list of unreachable servers is updated.
const TICK: Span = Span::millis(200);
/// The shortest time between two polls of the sockets. Without it each segment would wake the daemon under load.
const REST: Span = Span::micros(500);
/// How long after a failure the diversion is tried again.
const RETRY: Span = Span::secs(1);

/// The shortest time between two checks of the diversion: another program may change rules constantly.
const LOOK_REST: Span = Span::millis(50);
/// After this many repairs within [`REPAIRS_SPAN`], other programs are left alone for [`LET_GO`].
const REPAIRS_MAX: u32 = 5;
const REPAIRS_SPAN: Span = Span::secs(10);
const LET_GO: Span = Span::secs(30);

/// The lowest rate of a device of a router, the same as for a class of the file.
const TOLD_MIN: Rate = Rate::kbit(100);

/// The most SYNs and DHCP messages that are handled before other events.
const TURN_MAX: usize = 256;

/// The daemon; see the module.
pub(super) struct Daemon {
    pub(super) file: ProxyFile,
    pub(super) proxy: Proxy,
    /// `None` if nothing is diverted.
    pub(super) divert: Option<Divert>,
    /// The rate that is bought for the current slot of the credit market.
    pub(super) guarantee: Term,
    /// The devices that the router beside the proxy has told, and until when they are valid.
    told: Option<(Told, Time)>,
    guard: StandingGuard,
    pub(super) started: Time,
    pub(super) run: String,
    tick_at: Time,
    proxy_at: Time,
    /// The proxy's sockets are not polled before this time.
    rests_until: Option<Time>,
    /// When to try the diversion again after it ended or could not be made.
    renew_at: Option<Time>,
    look_at: Time,
    looked_at: Time,
    /// The time of the first of the recent repairs, and their number.
    repairs: (Time, u32),
    /// How often another program changed the diversion and it was restored, and the last cause.
    pub(super) restored: (u64, Option<String>),
    pub(super) config_error: Option<String>,
    /// The reason if nothing is diverted.
    pub(super) error: Option<String>,
}

impl Daemon {
    /// Starts to listen, and then to divert connections.
    ///
    /// # Errors
    /// If the kernel lacks a feature; nothing is diverted then.
    pub(super) fn start(file: &ProxyFile, now: Time) -> anyhow::Result<Daemon> {
        let kernel = Kernel { round_trip, set_receive_buffer, mark: SOCKET_MARK };
        let rules = rules(file, &Term::default(), &[]);
        let mut proxy = Proxy::new(rules, devices(), kernel, now)?;
        proxy.set_said(file.devices.iter().copied(), now);
        // The guard must exist before the diversion does.
        let mut guard = guard();
        guard.stand_by(now, |_| ());
        let divert = attach(file, &proxy)?;
        Ok(Daemon {
            file: file.clone(),
            proxy,
            divert: Some(divert),
            guarantee: Term::default(),
            told: None,
            guard,
            started: now,
            run: crate::instance::new_run(),
            tick_at: now + TICK,
            proxy_at: now,
            rests_until: None,
            renew_at: None,
            look_at: now + LOOK_PERIOD,
            looked_at: now,
            repairs: (now, 0),
            restored: (0, None),
            config_error: None,
            error: None,
        })
    }

    pub(super) fn deadline(&self) -> Time {
        self.tick_at.min(self.look_at).min(self.rests_until.unwrap_or(self.proxy_at))
    }

    pub(super) fn waits_for(&self) -> Option<BorrowedFd<'_>> {
        self.rests_until.is_none().then(|| self.proxy.waits_for())
    }

    /// Handles events for the proxy: readiness of a socket, or a deadline of the proxy.
    pub(super) fn handle_ready(&mut self, now: Time) -> Result<(), fairweir_proxy::Error> {
        if self.divert.as_ref().is_some_and(Divert::take_notice) {
            self.look_at = self.look_at.min(now.max(self.looked_at + LOOK_REST));
        }
        let taken = self.divert.iter().flat_map(|divert| iter::from_fn(|| divert.poll_taken()));
        for taken in taken.take(TURN_MAX) {
            match taken {
                Taken::Syn(syn) => self.proxy.handle_syn(syn, now),
                Taken::Dhcp(source, message) => self.proxy.handle_dhcp(source, &message, now),
            }
        }
        let has_done = self.proxy.handle(now)?;
        while let Some((syn, answer)) = self.proxy.poll_answer() {
            let Some(divert) = &mut self.divert else { continue };
            match answer {
                Answer::Deliver => divert.deliver(&syn),
                Answer::Refuse => divert.refuse(&syn),
                Answer::Pass | Answer::Skip => divert.pass(syn.client().ip(), syn.server()),
            }
        }
        self.proxy_at = self.proxy.deadline(now);
        // After work, more is likely soon: rest first. If nothing came, the next event is handled at once.
        self.rests_until = has_done.then_some(now + REST);
        Ok(())
    }

    /// Handles the end of a rest, a check of the diversion, or a [`TICK`].
    ///
    /// # Errors
    /// See [`Daemon::handle_ready`].
    pub(super) fn handle_deadline(&mut self, now: Time) -> Result<(), fairweir_proxy::Error> {
        if self.rests_until.is_some_and(|until| until <= now) {
            self.handle_ready(now)?;
        }
        if now >= self.look_at {
            self.look(now);
        }
        if now >= self.tick_at {
            self.handle_tick(now);
        }
        Ok(())
    }

    fn handle_tick(&mut self, now: Time) {
        self.tick_at = now + TICK;
        if self.error.is_none() && self.divert.is_none() {
            return;
        }
        self.guard.stand_by(now, |_| ());
        if self.guarantee.handle_tick(now).is_some() {
            self.follow_guarantee(now);
        }
        if self.told.take_if(|(_, until)| now >= *until).is_some() {
            info!("the router has told nothing for a while: its devices pass directly");
            if let Err(e) = self.follow_told(now) {
                warn!("{}", chained(&e));
            }
        }
        if self.renew_at.take_if(|at| now >= *at).is_some() {
            match attach(&self.file, &self.proxy) {
                Ok(divert) => {
                    info!("connections are diverted again");
                    (self.divert, self.error) = (Some(divert), None);
                }
                Err(e) => self.let_go(chained(&e), now + RETRY),
            }
        }
        let Some(divert) = &mut self.divert else { return };
        divert.handle_tick();
    }

    /// Checks whether another program, or the guard after a pause, has changed the diversion.
    /// Restores it, or gives it up for a while.
    fn look(&mut self, now: Time) {
        (self.looked_at, self.look_at) = (now, now + LOOK_PERIOD);
        let Some(divert) = &mut self.divert else { return };
        let Health::Broken { what } = divert.health(self.proxy.is_opening(), now) else { return };
        let (since, number) = &mut self.repairs;
        if now.since(*since) > REPAIRS_SPAN {
            (*since, *number) = (now, 0);
        }
        *number += 1;
        if *number > REPAIRS_MAX {
            let why = format!("{what}, {REPAIRS_MAX} times in {} s", REPAIRS_SPAN.as_secs_f64());
            return self.let_go(why, now + LET_GO);
        }
        match divert.repair() {
            Ok(()) => {
                warn!("{what}; made anew");
                self.restored.0 += 1;
                self.restored.1 = Some(what);
            }
            Err(e) => self.let_go(format!("{what}: {e}"), now + LET_GO),
        }
    }

    /// Stops diverting: until `until`, new connections pass directly. Open ones get no more packets and end.
    fn let_go(&mut self, why: String, until: Time) {
        warn!("connections pass directly: {why}");
        self.divert = None;
        self.proxy.let_go();
        (self.error, self.renew_at) = (Some(why), Some(until));
    }

    /// Applies the rate that is bought for a slot of the credit market.
    ///
    /// # Errors
    /// The reason why it is refused; nothing has changed then.
    pub(super) fn handle_guarantee(
        &mut self,
        told: Guarantee,
        now: Time,
    ) -> Result<String, String> {
        let class = self.file.classes.iter().find(|class| class.takes_guarantee);
        let said = match class {
            Some(class) => {
                let bound = if told.hold { "most" } else { "least" };
                format!("class `{}` has at {bound} {}", class.name, told.rate_bps)
            }
            None if self.file.follows_household => "priorities follow the household".to_owned(),
            None => {
                return Err(
                    "the proxy's file has neither a class with `lease = true` nor `household \
                            = true` in [priority]"
                        .to_owned(),
                );
            }
        };
        let wanted = self.guarantee.wanted();
        let step = self.guarantee.handle(told, now)?;
        if step.is_some() || self.guarantee.wanted() != wanted {
            self.follow_guarantee(now);
        }
        Ok(format!("{said} for {} ms", told.for_ms))
    }

    fn follow_guarantee(&mut self, now: Time) {
        info!(rate = ?self.guarantee.rate(), wanted = ?self.guarantee.wanted(), "told by the agent");
        self.proxy.set_rules(self.rules(&self.file), now);
    }

    /// Applies the list of devices whose connections the router beside the proxy wants relayed.
    ///
    /// # Errors
    /// The reason why it is refused; nothing has changed then.
    pub(super) fn handle_told(&mut self, told: Told, now: Time) -> Result<String, String> {
        if !self.file.takes_routers {
            return Err("the proxy's file has no `router = true`".to_owned());
        }
        told.check()?;
        let until = now + Span::millis(told.for_ms);
        let said = format!("{} devices for {} ms", told.devices.len(), told.for_ms);
        let old = self.told.replace((told, until));
        let devices = |told: &Option<(Told, Time)>| told.as_ref().map(|(t, _)| t.devices.clone());
        if devices(&old) != devices(&self.told)
            && let Err(e) = self.follow_told(now)
        {
            self.told = old;
            return Err(chained(&e));
        }
        Ok(said)
    }

    fn follow_told(&mut self, now: Time) -> anyhow::Result<()> {
        let rules = self.rules(&self.file);
        if rules.clients() != self.proxy.rules().clients()
            && let Some(divert) = &mut self.divert
        {
            let (lan, ports) = (self.file.lan.clone(), self.proxy.ports());
            divert.replace(DivertSpec { lan, clients: clients(&rules), ports })?;
        }
        self.proxy.set_rules(rules, now);
        Ok(())
    }

    /// The rules of a file, with the current guarantee and the current devices of the router.
    fn rules(&self, file: &ProxyFile) -> Rules {
        let told = self.told.as_ref().filter(|_| file.takes_routers);
        rules(file, &self.guarantee, told.map_or(&[][..], |(told, _)| &told.devices[..]))
    }

    /// Reads the file again and applies the differences; a file with mistakes changes nothing.
    ///
    /// # Errors
    /// The reason why the old file stays in force.
    pub(super) fn reload(&mut self, dry_run: bool, now: Time) -> anyhow::Result<String> {
        let done = self.take_over(dry_run, now);
        if !dry_run {
            self.config_error = done.as_ref().err().map(chained);
        }
        done
    }

    fn take_over(&mut self, dry_run: bool, now: Time) -> anyhow::Result<String> {
        let file = ProxyFile::load(&self.file.path)?;
        if file.metrics != self.file.metrics {
            bail!("proxy.metrics differs from what runs; that needs a restart");
        }
        let rules = self.rules(&file);
        let said = match file == self.file {
            true => "nothing changed",
            false => "classes and applications replaced; open connections go on",
        };
        if dry_run {
            return Ok(format!("dry run, nothing was changed: {said}"));
        }
        if file != self.file {
            let ports = self.proxy.ports();
            let clients = clients(&rules);
            if let Some(divert) = &mut self.divert {
                divert.replace(DivertSpec { lan: file.lan.clone(), clients, ports })?;
            }
            self.proxy.set_rules(rules, now);
            self.proxy.set_said(file.devices.iter().copied(), now);
            self.file = file;
        }
        Ok(said.to_owned())
    }

    /// Ends the diversion. Idempotent. Open connections end with the process.
    pub(super) fn end(&mut self) {
        (self.divert, self.error, self.renew_at) = (None, None, None);
        self.guard.stand_down();
    }
}

fn attach(file: &ProxyFile, proxy: &Proxy) -> anyhow::Result<Divert> {
    let divert = Divert::attach(spec(file, proxy))?;
    iter::once(divert.waits_for()).chain(divert.notices()).try_for_each(|fd| proxy.watch(fd))?;
    Ok(divert)
}

/// What to divert for a file.
pub(super) fn spec(file: &ProxyFile, proxy: &Proxy) -> DivertSpec {
    DivertSpec { lan: file.lan.clone(), clients: clients(proxy.rules()), ports: proxy.ports() }
}

fn clients(rules: &Rules) -> Clients {
    match rules.clients() {
        None => Clients::All,
        Some((prefixes, macs)) => Clients::Some { prefixes, macs },
    }
}

/// The rules of a file, after a class for each device that the router told. A class with a lease
/// has the guaranteed rate, but at least its own rate unless the guarantee is also a bound.
pub(super) fn rules(file: &ProxyFile, guarantee: &Term, told: &[ToldDevice]) -> Rules {
    let guaranteed = guarantee.rate();
    let rate_of = |class: &ClassConfig| {
        let own = class.rate?;
        let leased = guaranteed.filter(|_| class.takes_guarantee);
        Some(leased.map_or(own, |leased| guarantee.bound().unwrap_or(leased.max(own))))
    };
    let of_router = told.iter().map(|device| Class {
        // No class of a file can have such a name.
        name: format!("router{PATH_SEPARATOR}{}", device.name),
        rate: device.rate_bps.map(|rate| rate.max(TOLD_MIN)),
        matches: device.matches.clone(),
        devices: Vec::new(),
    });
    let of_file = file.classes.iter().map(|class| Class {
        name: class.name.clone(),
        rate: rate_of(class),
        matches: class.matches.clone(),
        devices: class.devices.clone(),
    });
    let classes = of_router.chain(of_file);
    let alpha = |app: &AppConfig| Alpha::new(app.alpha).expect("invariant: the range was checked");
    let apps = file.apps.iter().map(|app| App {
        name: app.name.clone(),
        alpha: alpha(app),
        sites: app.sites().cloned().collect(),
    });
    let unnamed = |known: &Application| !file.apps.iter().any(|app| app.name == known.name);
    let known = applications().into_iter().filter(unnamed).map(|known| Known {
        alpha: file.apps.iter().find(|app| app.has_kind(known.kind)).map(alpha),
        name: known.name,
        kind: known.kind,
        sites: known.sites,
    });
    let household = guarantee.wanted().filter(|_| file.follows_household);
    let weights = household.map(|wanted| wanted.utility().weights).or(file.weights);
    Rules::new(classes.collect(), apps.collect(), known.collect(), weights)
}
