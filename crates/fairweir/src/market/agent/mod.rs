//! `fairweir market agent`: bids for a household, in its gateway.
//!
//! A service of [`fairweir_daemon`]. `fairweir_market::household` makes its decisions. One thread
//! talks to the server, so that the daemon can answer its own clients meanwhile. After each slot is
//! closed, the agent reads the market's state, learns, decides, and bids for several slots ahead.
//! So nothing is lost if the server or the agent is down for some slots.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use anyhow::bail;
use fairweir_config::agent::{self, AgentFile, KINDS};
use fairweir_config::host::set::{Changes, Setting};
use fairweir_core::calendar::Moment;
use fairweir_core::market::preferences::Preferences;
use fairweir_core::units::{Span, Time};
use fairweir_daemon::{
    Access, Answer, Error, Metrics, Peer, Progress, Service, Spec, StateDir, Watched,
};
use fairweir_market::api::now_ms;
use fairweir_market::household::{Answers, Calendar, Household, Memory};
use fairweir_market::identity::Enrolment;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::cli::AgentArgs;
use super::tell::Teller;
use crate::local_time;
use crate::words::mbit;

mod asking;
mod check;
mod commands;
mod wishes;
use asking::{Question, Reply};
pub(crate) use check::check;
use check::time_in_json;
pub(super) use commands::{boost, enrol, holiday, leave, why};
use wishes::{BOOST, HOLIDAY};

/// The name of the instance.
pub(crate) const NAME: &str = crate::instance::MARKET_AGENT;

/// The file name in the state directory.
const MEMORY_FILE: &str = "agent.json";
const MEMORY_SIZE_MAX: u64 = 1 << 20;

/// How often to check whether the thread has a reply.
const TICK_ASKED: Span = Span::millis(20);
/// The longest time between two ticks.
const TICK: Span = Span::secs(1);
/// The longest time between two requests to the server, in milliseconds; they show that it is reachable.
const LOOK_AGAIN_MS: u64 = 300_000;
const LOOK_AGAIN: Span = Span::millis(LOOK_AGAIN_MS);
/// By this time after a slot begins, in milliseconds, the policer has set or refused its rates.
const ENFORCED_MS: u64 = 1_000;
/// How soon to check again whether refused rates are in force, in milliseconds.
const REFUSED_MS: u64 = 10_000;
/// If bids end when their slot begins, all gateways have learned their leases this long after.
const SPREAD_MAX: Span = Span::millis(300);
/// How often to check whether a slot has begun, if other daemons are to be told.
const TICK_TELLING: Span = Span::millis(100);
/// The pause after a failure; it doubles each time, up to [`RETRY_MAX`].
const RETRY_MIN: Span = Span::millis(200);
const RETRY_MAX: Span = Span::secs(30);

/// Requests other than status, reload, metrics and off.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Puts a kind of use above all others for some minutes; 0 minutes ends that.
    Boost { kind: String, minutes: u32 },
    /// Spends nothing for some days; 0 days ends that.
    Holiday { days: u32 },
    /// Changes importances (`always.KIND`, `time.NAME.KIND`), which are stored in `agent.d`,
    /// `boost.KIND` in minutes, or `holiday` in days. The reply has the changes that undo it.
    Set { changes: Changes },
}

/// Runs the agent until it ends.
pub(super) fn run(args: &AgentArgs) -> anyhow::Result<()> {
    let config = AgentFile::load(&args.config)?;
    let spec = Spec { metrics: config.metrics, ..args.service.spec(NAME, 4_096)? };
    fairweir_daemon::run(&spec, |_| -> anyhow::Result<Agent> {
        let dir = StateDir::new(&args.state_dir);
        let lock = dir.lock()?;
        let Some(enrolment) = Enrolment::load(&dir)? else {
            bail!("this gateway has not enrolled; `fairweir market enrol` does it");
        };
        let memory = remember(&dir)?;
        let calendar = match args.day {
            Some(day_s) => Calendar::Compressed { day_s },
            None => Calendar::Local(local),
        };
        let household = Household::new(config.preferences.clone(), calendar, memory);
        info!(gateway = enrolment.gateway, server = enrolment.server, "bidding");
        let (asks, said) = asking::start(enrolment.clone())?;
        let teller = Teller::start(&args.service.run_dir.run_dir)?;
        Ok(Agent {
            teller,
            _lock: lock,
            stored: household.memory().clone(),
            dir,
            config,
            enrolment,
            household,
            asks,
            said,
            is_asking: false,
            is_fresh: false,
            heard: None,
            retry: RETRY_MIN,
            error: None,
            placed: 0,
            look_at: Time::ZERO,
            tick_at: Time::ZERO,
        })
    })
}

/// The stored memory. Empty if the file is not in this version's format: all of it can be learned
/// or set again.
fn remember(dir: &StateDir) -> Result<Memory, Error> {
    let bytes = dir.read(MEMORY_FILE, MEMORY_SIZE_MAX)?;
    let read = bytes.map(|bytes| serde_json::from_slice(&bytes));
    let read = read.transpose().unwrap_or_else(|e| {
        warn!("{} is forgotten: {e}", dir.path_of(MEMORY_FILE).display());
        None
    });
    Ok(read.unwrap_or_default())
}

fn local(at_s: u64) -> Moment {
    local_time::local(at_s, &local_time::zone()).moment()
}

/// The agent, as a service.
struct Agent {
    teller: Teller,
    _lock: fairweir_daemon::StateLock,
    dir: StateDir,
    config: AgentFile,
    enrolment: Enrolment,
    household: Household,
    /// The household's memory as last written to disk.
    stored: Memory,
    asks: Sender<Question>,
    said: Receiver<Reply>,
    /// Whether the thread is handling a request.
    is_asking: bool,
    /// Whether the server's present state is known.
    is_fresh: bool,
    /// When the server's clock was last read, and its time in milliseconds.
    heard: Option<(Time, u64)>,
    retry: Span,
    error: Option<String>,
    /// The number of bids that the server accepted.
    placed: u64,
    look_at: Time,
    tick_at: Time,
}

impl Agent {
    /// The server's time, in milliseconds; this host's time until the server's is known.
    fn market_ms(&self, now: Time) -> u64 {
        let since = |(at, said_ms): (Time, u64)| {
            said_ms.saturating_add(now.since(at).as_nanos() / NANOS_PER_MS)
        };
        self.heard.map_or_else(now_ms, since)
    }

    /// The same time in seconds.
    fn market_s(&self, now: Time) -> u64 {
        self.market_ms(now) / 1_000
    }

    fn handle_reply(&mut self, reply: Reply, now: Time) {
        self.is_asking = false;
        match reply {
            Reply::Looked(Ok(answers)) => {
                let wait = self.wait(&answers);
                let said_ms = answers.clock.now_ms;
                match self.household.handle_answers(answers) {
                    Ok(()) => {
                        self.heard = Some((now, said_ms));
                        self.is_fresh = true;
                        // The pause is kept while bids remain: refused bids must not be repeated ever faster.
                        if self.household.bids().is_empty() {
                            self.retry = RETRY_MIN;
                        }
                        self.look_at = now + wait;
                        if self.error.take().is_some() {
                            info!("the market answers again");
                        }
                        self.store();
                    }
                    Err(e) => self.fail(format!("the market's answer is invalid: {e}"), now),
                }
            }
            Reply::Placed(bids, Ok(())) => {
                self.placed += bids.len() as u64;
                self.retry = RETRY_MIN;
                self.household.handle_placed(&bids);
            }
            Reply::Looked(Err(e)) | Reply::Placed(_, Err(e)) => self.fail(e.to_string(), now),
        }
    }

    /// Schedules another look: it is unknown whether the server carried out the request.
    fn fail(&mut self, error: String, now: Time) {
        if self.error.is_none() {
            warn!("{error}");
        }
        self.error = Some(error);
        self.is_fresh = false;
        self.look_at = now + self.retry;
        let slot = self.household.answers().map(|answers| answers.clock.rules.slot_s);
        let most = slot.map_or(RETRY_MAX, |slot_s| (Span::secs(slot_s) / 4).min(RETRY_MAX));
        self.retry = (self.retry * 2).min(most).max(RETRY_MIN);
    }

    /// The time until the next look: after the open slot is closed, at a different time for each gateway.
    fn wait(&self, answers: &Answers) -> Span {
        let (clock, rules) = (&answers.clock, &answers.clock.rules);
        let left_ms = clock.open_until_s.saturating_mul(1_000).saturating_sub(clock.now_ms);
        let slot = Span::secs(rules.slot_s);
        if clock.paused {
            return slot.clamp(Span::secs(1), RETRY_MAX);
        }
        if left_ms == 0 {
            // The server is about to close the slot.
            return (slot / 10).clamp(Span::millis(50), Span::secs(1));
        }
        let spread = match rules.close_before_s {
            0 => (slot / 10).min(SPREAD_MAX),
            before => Span::secs(before) / 2,
        };
        let mut hash = DefaultHasher::new();
        self.enrolment.gateway.hash(&mut hash);
        let jitter = spread.min(RETRY_MAX) * (hash.finish() % 1_000) / 1_000;
        // The policer's result is known some time after the slot has begun.
        let begins_ms = rules.begins_s(clock.open_slot.saturating_sub(1)).saturating_mul(1_000);
        let begins_ms = begins_ms.checked_sub(clock.now_ms).unwrap_or(LOOK_AGAIN_MS);
        // Look again soon: the policer may only have been unavailable for a moment.
        let is_refused = answers.lease.is_some_and(|lease| lease.refused_slot.is_some());
        let most_ms = if is_refused { REFUSED_MS } else { LOOK_AGAIN_MS };
        let wait = Span::millis(left_ms.min(begins_ms.saturating_add(ENFORCED_MS)).min(most_ms));
        (wait + jitter).min(LOOK_AGAIN)
    }

    fn store(&mut self) {
        if *self.household.memory() == self.stored {
            return;
        }
        let text = serde_json::to_vec(self.household.memory());
        let text = text.expect("invariant: memory is JSON");
        match self.dir.write(MEMORY_FILE, &text) {
            Ok(()) => self.stored = self.household.memory().clone(),
            Err(e) => warn!("what was learned is not stored: {e}"),
        }
    }

    fn ask(&mut self, question: Question) -> Result<(), Error> {
        self.is_asking = true;
        let gone = |_| Error::Refused("the thread that asks the market has ended".to_owned());
        self.asks.send(question).map_err(gone)
    }

    fn load(&mut self, dry_run: bool) -> Result<String, String> {
        let config = AgentFile::load(&self.config.path).map_err(|e| e.to_string())?;
        if config.metrics != self.config.metrics {
            return Err("`agent.metrics` changes only with a restart".to_owned());
        }
        let times = config.preferences.times.len();
        if !dry_run {
            self.household.set_preferences(config.preferences.clone());
            self.config = config;
            self.tick_at = Time::ZERO;
        }
        Ok(format!("{times} times of the week"))
    }

    /// Whether a daemon at home limits the rate to the lease.
    fn is_told_to_hold(&self, now: Time) -> bool {
        let told = self.household.guarantee(self.market_ms(now));
        told.is_some_and(|told| told.hold) && self.teller.is_followed()
    }

    fn reasons(&self, now: Time) -> Vec<String> {
        let mut said = self.household.reasons();
        let current = self.household.now(self.market_s(now));
        said.push(match current.until_s {
            Some(until_s) => {
                let left_s = until_s.saturating_sub(self.market_s(now));
                let rate = mbit(current.rate_bps.as_bps());
                match current.is_refused {
                    true => format!(
                        "A rate of {rate} was bought for another {left_s} s, but the operator's policer has refused \
                         the rates of this slot: nothing is guaranteed."
                    ),
                    false if self.is_told_to_hold(now) => format!(
                        "The rate is {rate} for another {left_s} s, and this gateway holds itself to it."
                    ),
                    false => format!("The rate is {rate} for another {left_s} s."),
                }
            }
            None => format!(
                "No lease is in force, so the rate is the floor of {}.",
                mbit(current.rate_bps.as_bps())
            ),
        });
        if let Some(error) = &self.error {
            let since = self.heard.map_or_else(
                || "since the agent started".to_owned(),
                |(at, _)| format!("for {:.0} s", now.since(at).as_secs_f64()),
            );
            let ahead = self.household.answers().map_or(0, |answers| answers.account.bids.len());
            said.push(format!(
                "The market has not answered {since} ({error}); bids for {ahead} slots are placed."
            ));
        }
        said
    }
}

impl Agent {
    /// The household's preferences: those of the configuration, and temporary wishes.
    fn preferences(&self, now: Time) -> Value {
        let Preferences { always, times } = self.household.preferences();
        let (boosted, holiday) = self.household.wishes();
        let left = |until_s: u64| until_s.saturating_sub(self.market_s(now));
        json!({
            "kinds": KINDS,
            "always": always,
            "times": times.iter().map(time_in_json).collect::<Vec<_>>(),
            "boosted_for_s": boosted.map(left),
            "holiday_for_s": left(holiday),
        })
    }
}

impl Service for Agent {
    type Request = Request;

    fn access_for(_: &Request) -> Access {
        Access::Change
    }

    fn deadline(&self) -> Time {
        self.tick_at
    }

    fn handle_tick(&mut self, now: Time) -> Result<(), Error> {
        match self.said.try_recv() {
            Ok(reply) => self.handle_reply(reply, now),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(Error::Refused("the thread that asks the market has ended".to_owned()));
            }
        }
        if !self.is_asking {
            let bids = if self.is_fresh { self.household.bids() } else { Vec::new() };
            if now >= self.look_at {
                self.ask(Question::Look)?;
            } else if !bids.is_empty() {
                self.ask(Question::Bid(bids))?;
            }
        }
        let guarantee = self.household.guarantee(self.market_ms(now));
        self.teller.handle_tick(&self.config.told, guarantee, now);
        // The rate of the next slot is told when it begins.
        let market_ms = self.market_ms(now);
        let left =
            |until_s: u64| Span::millis(until_s.saturating_mul(1_000).saturating_sub(market_ms));
        let left = self.household.now(market_ms / 1_000).until_s.map_or(TICK_TELLING, left);
        let tick = if self.config.told.is_empty() { TICK } else { TICK_TELLING.min(left) };
        self.tick_at = match self.is_asking {
            true => now + TICK_ASKED,
            false => self.look_at.min(now + tick),
        };
        Ok(())
    }

    fn handle_request(
        &mut self,
        request: Request,
        peer: Peer,
        now: Time,
        _: &mut Progress<'_>,
    ) -> Answer {
        // The command's request as a change of settings.
        let wish = |key: String, number: u32| {
            Changes::from([(key, (number > 0).then_some(Setting::Number(number)))])
        };
        let (changes, is_set) = match request {
            Request::Boost { kind, minutes } => (wish(format!("{BOOST}{kind}"), minutes), false),
            Request::Holiday { days } => (wish(HOLIDAY.to_owned(), days), false),
            Request::Set { changes } => (changes, true),
        };
        match self.set(&changes, now) {
            Ok(changed) => {
                info!(uid = peer.uid, "{}", changed.message);
                if is_set { Answer::value(&changed) } else { Answer::outcome(Ok(changed.message)) }
            }
            Err(e) => Answer::error(e),
        }
    }

    fn reload(
        &mut self,
        dry_run: bool,
        _: bool,
        _: Time,
        _: &mut Progress<'_>,
    ) -> Result<String, String> {
        self.load(dry_run)
    }

    fn watched(&self) -> Watched {
        let path = &self.config.path;
        Watched { files: vec![path.clone()], dirs: vec![agent::set_dir(path)] }
    }

    fn status(&mut self, now: Time) -> Answer {
        let current = self.household.now(self.market_s(now));
        let answers = self.household.answers();
        Answer::value(&json!({
            "gateway": self.enrolment.gateway,
            "server": self.enrolment.server,
            "heard_s_ago": self.heard.map(|(at, _)| now.since(at).as_secs_f64()),
            "error": self.error,
            "rate_bps": current.rate_bps,
            "until_s": current.until_s,
            "is_refused": current.is_refused,
            "told": self.teller.said(),
            "balance": answers.map(|answers| answers.account.balance),
            "bids": answers.map(|answers| &answers.account.bids),
            "placed": self.placed,
            "cap": answers.map(|answers| answers.clock.rules.cap),
            "preferences": self.preferences(now),
            "plan": self.household.plan(),
            "why": self.reasons(now),
        }))
    }

    fn metrics(&mut self, _: usize, now: Time) -> Result<String, String> {
        let current = self.household.now(self.market_s(now));
        let balance = self.household.answers().map_or(0, |a| a.account.balance.as_micro());
        let mut metrics = Metrics::default();
        metrics.gauge("fairweir_market_agent_rate_bytes_per_second", "What the household may use.");
        metrics.sample(&[], current.rate_bps.as_bps() / 8);
        metrics.gauge("fairweir_market_agent_balance_micro", "The balance in micro-credits.");
        metrics.sample(&[], balance);
        metrics.gauge("fairweir_market_agent_answered", "1 if the market answers.");
        metrics.sample(&[], u8::from(self.error.is_none() && self.heard.is_some()));
        metrics.counter("fairweir_market_agent_bids", "Bids that the market took.");
        metrics.sample(&[], self.placed);
        Ok(metrics.finish())
    }

    fn end(&mut self) -> Result<(), String> {
        Ok(())
    }
}

const NANOS_PER_MS: u64 = 1_000_000;
