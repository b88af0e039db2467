//! What a household's agent bids, and why.
//!
//! Problem: decide from what the household wants by time of the week, its balance and what slots have
//! cost, which bids there should be now; say it in words; go on after a crash of either side. Method:
//! the server's answers go in ([`Household::handle_answers`]); the bids that differ from the server's
//! come out ([`Household::bids`]). What is bid stands at the server, sequences included, so the agent
//! cannot bid twice by forgetting. What it has learned, and what the household has asked for, is
//! [`Memory`], which the caller keeps on disk.
//!
//! Time is the server's, in seconds of Unix time; local time is the caller's [`Calendar`].

use std::fmt::Write as _;

use fairweir_core::calendar::{DAY_MIN, Moment};
use fairweir_core::market::agent::{Agent, AgentSpec, SLOTS_MAX, Seen};
use fairweir_core::market::guarantee::Guarantee;
use fairweir_core::market::ledger::Credits;
use fairweir_core::market::preferences::{BOOSTED, Importance, Preferences, Wanted};
use fairweir_core::market::utility::Kind;
use fairweir_core::units::Rate;
use serde::{Deserialize, Serialize};

use crate::book::Closed;
use crate::messages::{Account, Bid, Clock, Leased, Prices};

/// Slots that are planned, and bid for ahead: half a day of half hours.
pub const HORIZON: usize = 24;

/// Bids for slots beyond the next two are changed only by more than this, in percent of the credits
/// per gateway: they only matter if the agent is away.
const CHANGE_MIN_PERCENT: u64 = 5;

/// How long a rate stays in force that other daemons were told, in milliseconds: also after the agent died.
const TOLD_MS: u64 = 3_000;

/// For how long after its slot a rate stays in force, in milliseconds, until the next one is told: a gateway
/// is not without a rate for the moment in which the agent asks for it.
pub const GRACE_MS: u64 = 1_000;

/// How slots lie in the days of the household.
#[derive(Clone, Copy)]
pub enum Calendar {
    /// The local time of an instant, in seconds of Unix time.
    Local(fn(u64) -> Moment),
    /// Days of a given length since the epoch, for trials.
    Compressed {
        /// The length of a day, at least 1.
        day_s: u64,
    },
}

/// What the server answered at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// The clock.
    pub clock: Clock,
    /// The account.
    pub account: Account,
    /// Prices.
    pub prices: Prices,
    /// `None` before the first slot was closed.
    pub lease: Option<Leased>,
}

/// What has to survive a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Of which market; what was learned from another one is forgotten.
    epoch_s: u64,
    slot_s: u64,
    /// The slots before this one were learned from.
    learned_until: u64,
    /// By slot of day.
    learned: Vec<Option<Seen>>,
    /// The leases of the last two closed slots.
    leases: Vec<Leased>,
    /// Without any lease.
    floor: Rate,
    /// Of the market's link.
    #[serde(default)]
    equal: Rate,
    /// Until when each kind is boosted.
    boosted_until_s: [u64; 4],
    holiday_until_s: u64,
}

/// A slot to come, as it is planned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Planned {
    /// Which.
    pub slot: u64,
    /// When it begins, in seconds of Unix time.
    pub begins_s: u64,
    /// The same in local time.
    pub begins: String,
    /// What is bid.
    pub spend: Credits,
    /// What that should buy.
    pub rate_bps: Rate,
    /// What each Mbit/s beyond the floor should cost, in credits.
    pub price: f64,
    /// For which use, in words.
    pub wanted: String,
}

/// What the household may use now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Now {
    /// The rate.
    pub rate_bps: Rate,
    /// When it ends; `None` for the floor.
    pub until_s: Option<u64>,
    /// The operator's policer does not guarantee it.
    pub is_refused: bool,
}

/// See the module.
pub struct Household {
    preferences: Preferences,
    calendar: Calendar,
    memory: Memory,
    agent: Option<Agent>,
    answers: Option<Answers>,
    plan: Vec<Planned>,
}

impl Household {
    /// A household that remembers.
    pub fn new(preferences: Preferences, calendar: Calendar, memory: Memory) -> Household {
        Household { preferences, calendar, memory, agent: None, answers: None, plan: Vec::new() }
    }

    /// Other preferences count from now on.
    pub fn set_preferences(&mut self, preferences: Preferences) {
        self.preferences = preferences;
        self.decide();
    }

    /// What is wanted.
    pub fn preferences(&self) -> &Preferences {
        &self.preferences
    }

    /// Until when each kind is boosted, and until when there is a holiday; times that have passed are over.
    pub fn wishes(&self) -> ([u64; 4], u64) {
        (self.memory.boosted_until_s, self.memory.holiday_until_s)
    }

    /// A kind of use is above all that was stated ahead, until a time; zero ends that. Returns until when
    /// it was before.
    pub fn boost(&mut self, kind: Kind, until_s: u64) -> u64 {
        let before = std::mem::replace(&mut self.memory.boosted_until_s[kind as usize], until_s);
        self.decide();
        before
    }

    /// Nothing is wanted until a time, except what is boosted; zero ends that. Returns until when it was
    /// before.
    pub fn set_holiday(&mut self, until_s: u64) -> u64 {
        let before = std::mem::replace(&mut self.memory.holiday_until_s, until_s);
        self.decide();
        before
    }

    /// What has to survive a restart.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// What was last heard of the market.
    pub fn answers(&self) -> Option<&Answers> {
        self.answers.as_ref()
    }

    /// The open slot and those after it.
    pub fn plan(&self) -> &[Planned] {
        &self.plan
    }

    /// The server has answered.
    ///
    /// # Errors
    /// If no market can have these rules; then nothing has changed.
    pub fn handle_answers(&mut self, answers: Answers) -> Result<(), String> {
        let rules = &answers.clock.rules;
        rules.check().map_err(|e| e.to_string())?;
        let floor = rules.terms.floor(answers.clock.gateways);
        let peak = answers.account.peak_bps.unwrap_or(rules.terms.capacity);
        let day = (self.day_s() / rules.slot_s).clamp(1, SLOTS_MAX as u64) as usize;
        let spec = AgentSpec {
            day,
            horizon: HORIZON,
            cap: Some(rules.cap.as_f64()),
            share: rules.share.as_f64(),
            floor: floor.as_mbit_f64(),
            peak: peak.as_mbit_f64(),
        };
        let memory = &mut self.memory;
        if (memory.epoch_s, memory.slot_s) != (rules.epoch_s, rules.slot_s) {
            memory.epoch_s = rules.epoch_s;
            memory.slot_s = rules.slot_s;
            (memory.learned_until, memory.learned) = (0, Vec::new());
            memory.leases.clear();
        }
        let mut agent = Agent::new(spec);
        agent.recall(&memory.learned);
        memory.floor = floor.min(peak);
        memory.equal = rules.terms.capacity / answers.clock.gateways.max(1) as u64;
        if let Some(lease) = answers.lease {
            memory.leases.retain(|known| known.slot < lease.slot);
            memory.leases.push(lease);
            let old = memory.leases.len().saturating_sub(LEASES);
            memory.leases.drain(..old);
        }
        for dated in &answers.account.statements {
            // A slot beyond the open one is none that was closed.
            if dated.slot < memory.learned_until || dated.slot >= answers.clock.open_slot {
                continue;
            }
            let price = price_of(dated.slot, &answers, floor, peak);
            let price = price.unwrap_or_else(|| agent.price(dated.slot));
            agent.handle_closed(dated.slot, price, dated.statement.received);
        }
        memory.learned_until = answers.clock.open_slot;
        memory.learned = agent.learned().to_vec();
        self.agent = Some(agent);
        self.answers = Some(answers);
        self.decide();
        Ok(())
    }

    /// The bids that should stand at the server and do not, in rising order of slots.
    pub fn bids(&self) -> Vec<Bid> {
        let Some(Answers { clock, account, .. }) = &self.answers else { return Vec::new() };
        if clock.paused {
            return Vec::new();
        }
        let far = clock.rules.share.as_micro() * CHANGE_MIN_PERCENT / 100;
        let bid = |(ahead, planned): (usize, &Planned)| {
            let Planned { slot, spend, .. } = *planned;
            let there = account.bids.iter().find(|bid| bid.slot == slot);
            let known = there.map_or(Credits::ZERO, |bid| bid.spend);
            let change = known.as_micro().abs_diff(spend.as_micro());
            let change_max = if ahead < 2 { 0 } else { far };
            let sequence = there.map_or(1, |bid| bid.sequence.saturating_add(1));
            // To spend nothing has to be said: who is silent is taken to be away.
            let is_silent = ahead < 2 && there.is_none();
            (change > change_max || is_silent).then_some(Bid { slot, spend, sequence })
        };
        self.plan.iter().enumerate().filter_map(bid).collect()
    }

    /// The server has taken bids.
    pub fn handle_placed(&mut self, bids: &[Bid]) {
        let Some(answers) = &mut self.answers else { return };
        let there = &mut answers.account.bids;
        there.retain(|known| bids.iter().all(|bid| bid.slot != known.slot));
        there.extend(bids);
    }

    /// What the household may use: its lease, or the floor if no lease includes the time.
    pub fn now(&self, now_s: u64) -> Now {
        match self.lease_at(now_s) {
            Some(lease) => Now {
                rate_bps: lease.rate_bps,
                until_s: Some(lease.until_s),
                is_refused: self.is_refused(lease),
            },
            None => Now { rate_bps: self.memory.floor, until_s: None, is_refused: false },
        }
    }

    /// What the daemons that shape at home are told at a time in milliseconds, if a lease includes it that is
    /// not refused: its rate until [`GRACE_MS`] after the slot. If the next slot has begun without a known
    /// lease, it is no more than the equal share until then. A bound is never below the floor.
    pub fn guarantee(&self, now_ms: u64) -> Option<Guarantee> {
        let lease = self.lease_at(now_ms / 1_000).map(|lease| (lease, lease.rate_bps));
        let ended = || {
            let lease = self.lease_at(now_ms.checked_sub(GRACE_MS)? / 1_000)?;
            Some((lease, lease.rate_bps.min(self.memory.equal)))
        };
        let (lease, rate) = lease.or_else(ended)?;
        if self.is_refused(lease) {
            return None;
        }
        let until_ms = lease.until_s.saturating_mul(1_000).saturating_add(GRACE_MS);
        let for_ms = until_ms.saturating_sub(now_ms).min(TOLD_MS);
        let told = Guarantee {
            rate_bps: if lease.hold { rate.max(self.memory.floor) } else { rate },
            equal_bps: self.memory.equal,
            for_ms,
            hold: lease.hold,
            importance: Some(self.wanted(now_ms / 1_000, 0).importance),
        };
        (for_ms > 0).then_some(told)
    }

    fn lease_at(&self, now_s: u64) -> Option<&Leased> {
        let slot_s = self.memory.slot_s;
        let is_running = |lease: &&Leased| {
            (lease.until_s.saturating_sub(slot_s)..lease.until_s).contains(&now_s)
        };
        self.memory.leases.iter().find(is_running)
    }

    /// Whether the policer has refused the rates of a lease's slot, as was heard last.
    fn is_refused(&self, lease: &Leased) -> bool {
        self.memory.leases.last().is_some_and(|last| last.refused_slot == Some(lease.slot))
    }

    fn day_s(&self) -> u64 {
        match self.calendar {
            Calendar::Local(_) => 86_400,
            Calendar::Compressed { day_s } => day_s.max(1),
        }
    }

    fn moment(&self, at_s: u64) -> Moment {
        match self.calendar {
            Calendar::Local(moment) => moment(at_s),
            Calendar::Compressed { .. } => {
                let (day_s, day) = (u128::from(self.day_s()), u128::from(DAY_MIN));
                let minute = u128::from(at_s) % day_s * day / day_s;
                let weekday = u128::from(at_s) / day_s % 7;
                Moment { weekday: weekday as u8, minute: minute as u16 }
            }
        }
    }

    fn clock_time(&self, at_s: u64) -> String {
        let minute = self.moment(at_s).minute;
        format!("{:02}:{:02}", minute / 60, minute % 60)
    }

    fn wanted(&self, begins_s: u64, slot_s: u64) -> Wanted {
        let minutes = slot_s.saturating_mul(DAY_MIN.into()) / self.day_s();
        let mut wanted = match begins_s < self.memory.holiday_until_s {
            true => Wanted::default(),
            false => self.preferences.wanted(self.moment(begins_s), minutes),
        };
        for kind in Kind::ALL {
            if begins_s < self.memory.boosted_until_s[kind as usize] {
                wanted.importance[kind as usize] = BOOSTED;
            }
        }
        wanted
    }

    fn decide(&mut self) {
        let (Some(agent), Some(answers)) = (&self.agent, &self.answers) else { return };
        let (rules, open) = (&answers.clock.rules, answers.clock.open_slot);
        let slots = (0..HORIZON as u64).map(|ahead| open.saturating_add(ahead));
        let wanted: Vec<(u64, Wanted)> =
            slots.map(|slot| (slot, self.wanted(rules.begins_s(slot), rules.slot_s))).collect();
        let utilities: Vec<_> = wanted.iter().map(|(_, wanted)| wanted.utility()).collect();
        let balance = answers.account.balance;
        let spends = agent.plan_for(open, balance, &utilities);
        let peak = answers.account.peak_bps.unwrap_or(rules.terms.capacity);
        let planned = |((slot, wanted), spend): (&(u64, Wanted), &f64)| {
            let most = if *slot == open { balance } else { rules.cap };
            let spend = Credits::nearest(*spend).min(most);
            let price = agent.price(*slot);
            let rate = self.memory.floor + mbit(spend.as_f64() / price);
            let begins_s = rules.begins_s(*slot);
            Planned {
                slot: *slot,
                begins_s,
                begins: self.clock_time(begins_s),
                spend,
                rate_bps: rate.min(peak),
                price,
                wanted: self.words(wanted),
            }
        };
        self.plan = wanted.iter().zip(&spends).map(planned).collect();
    }

    /// "streaming 3 and web 1 (film night)".
    fn words(&self, wanted: &Wanted) -> String {
        let most = wanted.importance.iter().max().copied().unwrap_or_default();
        let mut kinds: Vec<(Importance, &str)> = wanted.importance.into_iter().zip(KINDS).collect();
        kinds.retain(|(importance, _)| *importance > 0);
        kinds.sort_by_key(|(importance, _)| std::cmp::Reverse(*importance));
        let word = |(importance, kind): &(Importance, &str)| match *importance {
            BOOSTED.. => format!("{kind} now"),
            importance => format!("{kind} {importance}"),
        };
        let mut text = kinds.iter().map(word).collect::<Vec<_>>().join(", ");
        if most == 0 {
            text.push_str("nothing");
        }
        let names = wanted.times.iter().filter_map(|&i| self.preferences.times.get(i));
        let names: Vec<&str> = names.map(|time| time.name.as_str()).collect();
        if !names.is_empty() {
            let _ = write!(text, " ({})", names.join(", "));
        }
        text
    }

    /// Why it bids what it bids, in sentences.
    pub fn reasons(&self) -> Vec<String> {
        let (Some(answers), Some(next)) = (&self.answers, self.plan.first()) else {
            return vec!["The market has not answered yet, so nothing is decided.".to_owned()];
        };
        let (rules, balance) = (&answers.clock.rules, answers.account.balance);
        if answers.clock.paused {
            let what = "The operator has paused the market: no bid is taken, and nothing is bought or spent.";
            return vec![what.to_owned()];
        }
        let mut said = vec![format!(
            "The balance is {} credits of at most {}.",
            credits(balance),
            credits(rules.cap)
        )];
        if let Some(doubt) = &answers.clock.doubt {
            said.push(format!("The market closes no slot and takes no bids: {doubt}."));
        }
        if next.begins_s < self.memory.holiday_until_s {
            let is_boosted = |until_s: &u64| next.begins_s < *until_s;
            let exception = match self.memory.boosted_until_s.iter().any(is_boosted) {
                true => ", except for what is wanted now",
                false => "",
            };
            said.push(format!("The household is on holiday, so credits are saved{exception}."));
        }
        said.push(format!(
            "The slot from {} is wanted for {}: {} credits are bid, for about {}.",
            next.begins,
            next.wanted,
            credits(next.spend),
            in_mbit(next.rate_bps)
        ));
        said.push(format!(
            "At this time of day 1 Mbit/s beyond the floor of {} is expected to cost {:.2} credits.",
            in_mbit(self.memory.floor),
            next.price
        ));
        let later = self.plan[1..].iter().max_by_key(|planned| planned.spend);
        if let Some(later) = later.filter(|later| later.spend > next.spend) {
            said.push(format!(
                "More is planned for {}: {} credits for {}, at {:.2} credits for 1 Mbit/s.",
                later.begins,
                credits(later.spend),
                later.wanted,
                later.price
            ));
        } else if next.spend > Credits::ZERO {
            said.push("No slot of the next ones is planned to have more.".to_owned());
        }
        if balance == rules.cap && next.spend < balance {
            said.push("The balance is full: what is received beyond it goes to others.".to_owned());
        }
        said
    }
}

/// What a slot cost: as published, or as the gateway found by paying.
fn price_of(slot: u64, answers: &Answers, floor: Rate, peak: Rate) -> Option<f64> {
    let published = answers.prices.slots.iter().find(|closed| closed.slot == slot);
    if let Some(Closed { price, .. }) = published {
        return Some(price.as_f64());
    }
    let lease = answers.lease.filter(|lease| lease.slot == slot && lease.rate_bps < peak)?;
    let dated = answers.account.statements.iter().find(|dated| dated.slot == slot)?;
    let beyond = lease.rate_bps.saturating_sub(floor).as_mbit_f64();
    let spent = dated.statement.spent.as_f64();
    (spent > 0.0 && beyond > 0.0).then(|| spent / beyond)
}

fn mbit(mbit: f64) -> Rate {
    Rate::bps((mbit * 1e6) as u64)
}

/// A rate for people.
fn in_mbit(rate: Rate) -> String {
    format!("{:.1} Mbit/s", rate.as_mbit_f64())
}

/// Credits to two decimals.
fn credits(amount: Credits) -> String {
    format!("{:.2}", amount.as_f64())
}

/// The running slot's lease and the next one's.
const LEASES: usize = 2;

/// For people, as [`Kind::ALL`].
const KINDS: [&str; 4] = ["streaming", "social networks", "downloads", "web"];

#[cfg(test)]
mod tests;
