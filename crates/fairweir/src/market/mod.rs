//! `fairweir market`: the server of a market of credits between households, and the [`agent`] of one household.
//!
//! The server is a service of [`fairweir_daemon`]: the operator's requests, status and metrics arrive at its sockets,
//! and it closes slots at its deadlines. Gateways connect over the network, to threads of `fairweir_market::http`. Only
//! the keeper accesses the database; all threads pass their work to it.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use fairweir_config::text;
use fairweir_core::market::ledger::Credits;
use fairweir_core::market::rates::{Mode, Terms};
use fairweir_core::units::{Span, Time};
use fairweir_daemon::{Access, Answer, Error, Metrics, Peer, Service, StateDir, Watched};
use fairweir_linux::{boottime_now, monotonic_now};
use fairweir_market::api::{handle, now_ms, now_s};
use fairweir_market::book::{Book, Event, Rules};
use fairweir_market::clock::{Clock, Reading};
use fairweir_market::guarantees::{Guarantees, Known, Leases, Unenforced};
use fairweir_market::http::Server;
use fairweir_market::identity::Authority;
use fairweir_market::keeper::{Gone, Keeper};
use fairweir_market::store::{self, Database};
use serde_json::{Value, json};
use tracing::{info, warn};

mod agent;
pub(crate) mod cli;
mod enforce;
mod operator;
mod tell;

pub(crate) use agent::check;

use crate::daemon_args::{AskArgs, connect_patiently};
use crate::instance::MARKET as NAME;
use crate::words::{chained, count};
use cli::{Absent, AgentCommand, InitArgs, MarketCommand, ServeArgs, VerifyArgs};
use enforce::IspSegment;
use operator::{Request, summary};

/// How often the server checks at least whether a slot is due.
const TICK: Span = Span::secs(1);

/// How often the rates in force are set again.
const AGAIN_AFTER: Span = Span::secs(2);

/// The most slots that are closed in one tick, after an outage.
const CLOSES_MAX: usize = 100;

const PATIENCE: Duration = Duration::from_secs(30);

const FOUNDING: &str = "`fairweir market init` founds a market";

pub(crate) fn run(command: &MarketCommand) -> anyhow::Result<()> {
    match command {
        MarketCommand::Init(args) => init(args),
        MarketCommand::Serve(args) => serve(args),
        MarketCommand::Code(args) => operator::code(args),
        MarketCommand::Codes(args) => operator::codes(args),
        MarketCommand::Revoke(args) => operator::revoke(args),
        MarketCommand::Households(args) => operator::households(args),
        MarketCommand::Show(args) => operator::show(args),
        MarketCommand::Remove(args) => operator::remove(args),
        MarketCommand::Change(args) => operator::change(args),
        MarketCommand::Pause(args) => operator::pause(args),
        MarketCommand::Resume(args) => operator::resume(args),
        MarketCommand::Prune(args) => operator::prune(args),
        MarketCommand::Backup(args) => operator::backup(args),
        MarketCommand::Restore(args) => operator::restore(args),
        MarketCommand::Leave(args) => agent::leave(args),
        MarketCommand::Status(args) => status(args),
        MarketCommand::Off(args) => crate::off::one(args, NAME),
        MarketCommand::Verify(args) => verify(args),
        MarketCommand::Log(args) => log(args),
        MarketCommand::Enrol(args) => agent::enrol(args),
        MarketCommand::Agent(args) => match &args.command {
            None => agent::run(args),
            Some(AgentCommand::Status(args)) => agent::why(args),
            Some(AgentCommand::Off(args)) => crate::off::one(args, agent::NAME),
        },
        MarketCommand::Why(args) => agent::why(args),
        MarketCommand::Boost(args) => agent::boost(args),
        MarketCommand::Holiday(args) => agent::holiday(args),
    }
}

fn init(args: &InitArgs) -> anyhow::Result<()> {
    // Bids end this early so that all gateways have the lease of a slot before it begins.
    let usual = (args.slot / 4).clamp(1, 30);
    let rules = Rules {
        terms: Terms { mode: Mode::Float, capacity: args.capacity, floor_percent: args.floor },
        share: Credits::whole(args.share),
        cap: Credits::whole(args.cap),
        slot_s: args.slot,
        close_before_s: args.close_before.unwrap_or(usual),
        // Slots begin at round times, such as :00 and :30.
        epoch_s: (now_s() / args.slot.max(1) + 1) * args.slot,
    };
    rules.check()?;
    let dir = StateDir::new(&args.state.state_dir);
    let database = args.state.database()?;
    let (had_dir, had_database) = (args.state.state_dir.exists(), !database.is_missing());
    let had_authority = Authority::exists(&dir);
    let done = found(&dir, database.clone(), rules);
    if done.is_err() {
        // What existed before is not removed.
        if !had_database {
            database.remove()?;
        }
        if !had_authority {
            Authority::remove(&dir)?;
        }
        if !had_dir {
            let _ = std::fs::remove_dir(&args.state.state_dir);
        }
    }
    done?;
    let path = dir.path_of(fairweir_market::identity::CERTIFICATE_FILE);
    say(&format!("founded; gateways need {}", path.display()))
}

/// Founds a market: with the existing authority, or a new one.
fn found(dir: &StateDir, database: Database, rules: Rules) -> anyhow::Result<()> {
    match Authority::exists(dir) {
        true => Authority::open(dir)?,
        false => Authority::create(dir)?,
    };
    let (keeper, thread) = Keeper::start(database)?;
    let done = keeper.ask(move |session| session.apply(Event::Found(rules)));
    drop(keeper);
    // The database's files are closed before they may be removed.
    let _ = thread.join();
    Ok(done??)
}

fn verify(args: &VerifyArgs) -> anyhow::Result<()> {
    let book = store::verify(&args.state.founded()?)?;
    let rules = book.rules()?;
    let wanted = rules.share.as_micro() * book.gateways().len() as u64;
    if book.credits() != wanted {
        bail!("the balances sum to {} micro-credits, not {wanted}", book.credits());
    }
    say(&format!("valid: {}", summary(&book)))
}

fn log(args: &VerifyArgs) -> anyhow::Result<()> {
    let out = &mut text::stdout();
    let mut done = Ok(());
    store::events(&args.state.founded()?, |event| {
        if done.is_ok() {
            done = writeln!(out, "{event}");
        }
    })?;
    Ok(done?)
}

fn status(args: &AskArgs) -> anyhow::Result<()> {
    let mut client = connect_patiently(&args.run_dir.run_dir, NAME, Access::Read, PATIENCE)?;
    let status: Value = client.ask(&fairweir_daemon::Request::Status)?;
    if args.json {
        return say(&status.to_string());
    }
    let text = |key: &str| status[key].as_str().unwrap_or("-").to_owned();
    let gateways = count(status["gateways"].as_u64().unwrap_or_default() as usize, "gateway");
    let (slot, is_paused) = (&status["open_slot"], status["paused"] == true);
    let slot = match is_paused {
        true => format!("paused before slot {slot}; `fairweir market resume` goes on"),
        false => format!("slot {slot} is open"),
    };
    say(&format!("at {}  {gateways}  {slot}\nrates: {}", text("address"), text("enforcement")))
}

/// Runs the server until it ends.
fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    let spec = args.service.spec(NAME, 64 << 10)?;
    args.state.founded()?;
    fairweir_daemon::run(&spec, |_| -> anyhow::Result<Market> {
        let dir = StateDir::new(&args.state.state_dir);
        let (keeper, _) = Keeper::start(args.state.founded()?)?;
        let hold = args.segment.is_none();
        let founded = keeper.ask(move |session| {
            session.present.hold = hold;
            session.book().rules().map(drop)
        });
        founded?.context(FOUNDING)?;
        let authority = Authority::open(&dir)?;
        let tls = authority.server_config(&args.name)?;
        let mut market = Market {
            keeper: keeper.clone(),
            guarantees: match &args.segment {
                Some(segment) => Box::new(IspSegment {
                    run_dir: args.service.run_dir.run_dir.clone(),
                    segment: segment.clone(),
                    last: "no slot has begun".to_owned(),
                }),
                None => Box::new(Unenforced),
            },
            known: Known::default(),
            absent: args.absent,
            applied: None,
            refused: None,
            server: None,
            tick_at: Time::ZERO,
            clock: Clock::default(),
            doubt: None,
        };
        if args.accept_clock {
            market.clock.accept(reading());
        }
        // Slots that ended while the server was not running are closed before any bid is accepted.
        market.handle_tick(monotonic_now())?;
        let handler = move |request| handle(request, &keeper, &authority);
        let server = Server::start(args.listen, tls, Arc::new(handler));
        let server = server.with_context(|| format!("cannot listen at {}", args.listen))?;
        info!(address = %server.address(), "serving; {}", market.guarantees.describe());
        market.server = Some(server);
        Ok(market)
    })
}

/// The server, as a service.
struct Market {
    keeper: Keeper,
    guarantees: Box<dyn Guarantees>,
    known: Known,
    absent: Absent,
    /// The slot whose rates were set last, and when they were set.
    applied: Option<(u64, Time)>,
    /// The slot whose rates the policer has refused, as reported to gateways.
    refused: Option<u64>,
    server: Option<Server>,
    tick_at: Time,
    clock: Clock,
    /// The reason if the host's clock is not trusted.
    doubt: Option<String>,
}

/// The consequence of a doubt about the clock.
const IN_DOUBT: &str = "no slot is closed and no change is taken: set the clock, or if it is right start the \
                        server with --accept-clock";

/// The present readings of the clocks. The database's clock is read only where it matters.
fn reading() -> Reading {
    Reading { now_s: now_s(), passed: boottime_now(), database_s: None }
}

/// The result of closing the slots that are due.
struct Due {
    closed: usize,
    leases: Option<Leases>,
    /// When the next slot is to be closed, in seconds since 1970.
    next_s: u64,
    clock: Clock,
    doubt: Option<String>,
}

impl Market {
    fn ask<T: Send + 'static>(
        &self,
        of: impl FnOnce(&Book) -> T + Send + 'static,
    ) -> Result<T, Gone> {
        self.keeper.ask(move |session| of(session.book()))
    }

    fn close_due(&self) -> Result<Result<Due, String>, Gone> {
        let (mut clock, equal) = (self.clock, self.absent == Absent::Equal);
        self.keeper.ask(move |session| {
            let mut now = reading();
            if !clock.is_believed() {
                now.database_s = session.database_s().map_err(|e| e.to_string())?;
            }
            let book = session.book();
            let rules = book.rules().map_err(|e| e.to_string())?;
            let is_paused = book.is_paused();
            // While the market is paused, slots pass without being closed.
            let open = if is_paused { rules.open_at(now.now_s) } else { book.open_slot() };
            let doubt = clock.check(rules, open, now).err();
            session.present.clock.clone_from(&doubt);
            let mut closed = 0;
            loop {
                let book = session.book();
                let next_s = book.rules().map_err(|e| e.to_string())?.closes_s(book.open_slot());
                let next_s = if is_paused { u64::MAX } else { next_s };
                if next_s > now.now_s || closed == CLOSES_MAX || doubt.is_some() {
                    return Ok(Due { closed, leases: book.leases(), next_s, clock, doubt });
                }
                session.close(equal).map_err(|e| e.to_string())?;
                closed += 1;
            }
        })
    }
}

impl Market {
    /// Sets the rates of the running slot, and repeats this from time to time because the policer
    /// may have been restarted.
    fn enforce(&mut self, now: Time) {
        let Some(leases) = self.known.at(now_s()) else { return };
        let is_known =
            |(slot, at): (u64, Time)| slot == leases.generation && now.since(at) < AGAIN_AFTER;
        if self.applied.is_some_and(is_known) {
            return;
        }
        let slot = leases.generation;
        let is_new = self.applied.is_none_or(|(applied, _)| applied != slot);
        let done = self.guarantees.set(leases);
        let refused = done.is_err().then_some(slot);
        match done {
            Ok(()) if is_new => info!(slot, "the rates are in force"),
            Ok(()) => {}
            Err(e) => warn!(slot, "the rates are not in force: {e}"),
        }
        self.applied = Some((slot, now));
        if refused != self.refused {
            // If this fails, the next attempt reports it.
            let done = self.keeper.ask(move |session| session.present.leases = refused);
            self.refused = done.map_or(self.refused, |()| refused);
        }
    }
}

impl Service for Market {
    type Request = Request;

    fn access_for(request: &Request) -> Access {
        request.access()
    }

    fn deadline(&self) -> Time {
        self.tick_at
    }

    fn handle_tick(&mut self, now: Time) -> Result<(), Error> {
        let due = match self.close_due() {
            Ok(due) => due.map_err(Error::Refused)?,
            Err(gone @ Gone::Keeper) => return Err(Error::Refused(gone.to_string())),
            // Slots are closed once the database answers again.
            Err(gone @ Gone::Database) => {
                warn!("{gone}");
                self.enforce(now);
                self.tick_at = now + TICK;
                return Ok(());
            }
        };
        if let (1.., Some(leases)) = (due.closed, &due.leases) {
            info!(slot = leases.generation, gateways = leases.rates.len(), "closed");
        }
        (self.clock, self.tick_at) = (due.clock, now + TICK);
        if due.doubt != self.doubt {
            match &due.doubt {
                Some(doubt) if self.doubt.is_none() => warn!("{doubt}; {IN_DOUBT}"),
                None => info!("the host's clock is right again"),
                // Not logged: the text changes each second.
                Some(_) => {}
            }
            self.doubt = due.doubt;
        }
        let mut next_s = due.next_s;
        if let Some(leases) = due.leases {
            if leases.from > now_s() {
                next_s = next_s.min(leases.from);
            }
            self.known.learn(leases);
        }
        self.enforce(now);
        if self.doubt.is_none() {
            let left_ms = next_s.saturating_mul(1_000).saturating_sub(now_ms());
            self.tick_at = monotonic_now() + Span::millis(left_ms.max(1)).min(TICK);
        }
        Ok(())
    }

    fn handle_request(
        &mut self,
        request: Request,
        peer: Peer,
        _: Time,
        _: &mut fairweir_daemon::Progress<'_>,
    ) -> Answer {
        let done = operator::answer(&self.keeper, request, peer);
        done.map_or_else(|e| Answer::error(chained(&e)), |value| Answer::value(&value))
    }

    fn reload(
        &mut self,
        _: bool,
        _: bool,
        _: Time,
        _: &mut fairweir_daemon::Progress<'_>,
    ) -> Result<String, String> {
        Ok("a market has no configuration file; its rules are in its database".to_owned())
    }

    fn watched(&self) -> Watched {
        Watched { files: Vec::new(), dirs: Vec::new() }
    }

    fn status(&mut self, _: Time) -> Answer {
        let address = self.server.as_ref().map(|server| server.address().to_string());
        let enforcement = self.guarantees.describe();
        let doubt = self.doubt.as_ref().map(|doubt| format!("{doubt}; {IN_DOUBT}"));
        let value = self.ask(move |book| {
            json!({
                "address": address,
                "enforcement": enforcement,
                "doubt": doubt,
                "rules": book.rules().ok(),
                "open_slot": book.open_slot(),
                "paused": book.is_paused(),
                "gateways": book.gateways().len(),
                "credits_micro": book.credits(),
                "last": book.closed().last(),
            })
        });
        value.map_or_else(|gone| Answer::error(gone.to_string()), |value| Answer::value(&value))
    }

    fn metrics(&mut self, _: usize, _: Time) -> Result<String, String> {
        let of = |book: &Book| {
            let price = book.closed().last().map_or(0.0, |closed| closed.price.as_f64());
            (book.gateways().len(), book.open_slot(), book.credits(), price)
        };
        let (gateways, slots, credits, price) = self.ask(of).map_err(|gone| gone.to_string())?;
        let mut metrics = Metrics::default();
        metrics.gauge("fairweir_market_gateways", "Gateways of the market.");
        metrics.sample(&[], gateways);
        metrics.gauge("fairweir_market_credits_micro", "Sum of all balances in micro-credits.");
        metrics.sample(&[], credits);
        metrics.gauge("fairweir_market_price", "Credits for each Mbit/s in the last slot.");
        metrics.sample(&[], price);
        metrics.gauge("fairweir_market_clock_doubted", "1 if no slot is closed: see status.");
        metrics.sample(&[], u8::from(self.doubt.is_some()));
        metrics.counter("fairweir_market_slots", "Closed slots.");
        metrics.sample(&[], slots);
        Ok(metrics.finish())
    }

    fn end(&mut self) -> Result<(), String> {
        self.server = None;
        Ok(())
    }
}

/// Writes to stdout.
fn say(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(text::stdout(), "{text}")?)
}
