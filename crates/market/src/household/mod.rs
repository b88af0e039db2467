//! Decides what a household's agent bids, and explains why.
//!
//! Problem: from what the household wants by time of the week, its balance and past prices, decide which
//! bids to place now; explain them in words; and recover from a crash of agent or server. Method: the
//! server's answers go in ([`Household::handle_answers`]); the bids that differ from those on the server
//! come out ([`Household::bids`]). The server stores the bids and their sequence numbers, so an agent that
//! forgets cannot bid twice. [`Memory`] holds what the agent has learned and what the household has asked
//! for; the caller keeps it on disk.
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

/// Number of slots that are planned and bid for: with slots of half an hour, half a day.
pub const HORIZON: usize = 24;

/// A bid beyond the next two slots is only changed if it differs by more than this percentage of the credits
/// per gateway. Such bids only matter while the agent is unavailable.
const CHANGE_MIN_PERCENT: u64 = 5;

/// How long a rate stays in force after it was sent to other daemons, in milliseconds, even if the agent dies.
const TOLD_MS: u64 = 3_000;

/// How long a rate stays in force after its slot has ended, in milliseconds, until the next rate is sent: so a
/// gateway keeps a rate during the moment in which the agent asks for the next one.
pub const GRACE_MS: u64 = 1_000;

/// How slots map to the household's days.
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

/// The server's answers at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// The answer about the clock.
    pub clock: Clock,
    /// The answer about the account.
    pub account: Account,
    /// The published prices.
    pub prices: Prices,
    /// The lease; `None` before the first slot was closed.
    pub lease: Option<Leased>,
}

/// State that has to survive a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Identifies the market by its epoch; anything learned from another market is forgotten.
    epoch_s: u64,
    slot_s: u64,
    /// All slots before this one have been learned from.
    learned_until: u64,
    /// What was learned, by slot of the day.
    learned: Vec<Option<Seen>>,
    /// The leases of the last two closed slots.
    leases: Vec<Leased>,
    /// The rate without any lease.
    floor: Rate,
    /// The equal share of the market's link.
    #[serde(default)]
    equal: Rate,
    /// Until when each kind of use is boosted, in seconds of Unix time.
    boosted_until_s: [u64; 4],
    holiday_until_s: u64,
}

/// The plan for a future slot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Planned {
    /// The slot's number.
    pub slot: u64,
    /// When it begins, in seconds of Unix time.
    pub begins_s: u64,
    /// The same time in words, in local time.
    pub begins: String,
    /// The amount of the bid.
    pub spend: Credits,
    /// The rate that the bid is expected to buy.
    pub rate_bps: Rate,
    /// The expected price of each Mbit/s beyond the floor, in credits.
    pub price: f64,
    /// For which uses, in words.
    pub wanted: String,
}

/// What the household may use now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Now {
    /// The rate.
    pub rate_bps: Rate,
    /// When the rate ends, in seconds of Unix time; `None` for the floor.
    pub until_s: Option<u64>,
    /// Whether the operator's policer has refused the rate, so that it is not guaranteed.
    pub is_refused: bool,
}

/// A household's agent; see the module.
pub struct Household {
    preferences: Preferences,
    calendar: Calendar,
    memory: Memory,
    agent: Option<Agent>,
    answers: Option<Answers>,
    plan: Vec<Planned>,
}

impl Household {
    /// A household with the stored memory of an earlier run.
    pub fn new(preferences: Preferences, calendar: Calendar, memory: Memory) -> Household {
        Household { preferences, calendar, memory, agent: None, answers: None, plan: Vec::new() }
    }

    /// Replaces the preferences, with immediate effect.
    pub fn set_preferences(&mut self, preferences: Preferences) {
        self.preferences = preferences;
        self.decide();
    }

    /// The household's preferences.
    pub fn preferences(&self) -> &Preferences {
        &self.preferences
    }

    /// Until when each kind is boosted, and until when the holiday lasts; times in the past have no effect.
    pub fn wishes(&self) -> ([u64; 4], u64) {
        (self.memory.boosted_until_s, self.memory.holiday_until_s)
    }

    /// Gives a kind of use priority over all stated preferences until a time; zero ends the boost. Returns the
    /// previous end.
    pub fn boost(&mut self, kind: Kind, until_s: u64) -> u64 {
        let before = std::mem::replace(&mut self.memory.boosted_until_s[kind as usize], until_s);
        self.decide();
        before
    }

    /// Drops all wishes until a time, except for boosted kinds of use; zero ends the holiday. Returns the
    /// previous end.
    pub fn set_holiday(&mut self, until_s: u64) -> u64 {
        let before = std::mem::replace(&mut self.memory.holiday_until_s, until_s);
        self.decide();
        before
    }

    /// The state that has to survive a restart.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The server's latest answers.
    pub fn answers(&self) -> Option<&Answers> {
        self.answers.as_ref()
    }

    /// The plan for the open slot and those after it.
    pub fn plan(&self) -> &[Planned] {
        &self.plan
    }

    /// Takes the server's answers.
    ///
    /// # Errors
    /// If the market's rules are invalid; the household is then unchanged.
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
            // A slot that is open or lies ahead cannot have been closed.
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

    /// The bids that should be on the server but are not, in rising order of slots.
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
            // A bid of zero has to be sent: a gateway without a bid is taken to be away.
            let is_silent = ahead < 2 && there.is_none();
            (change > change_max || is_silent).then_some(Bid { slot, spend, sequence })
        };
        self.plan.iter().enumerate().filter_map(bid).collect()
    }

    /// Notes the bids that the server has accepted.
    pub fn handle_placed(&mut self, bids: &[Bid]) {
        let Some(answers) = &mut self.answers else { return };
        let there = &mut answers.account.bids;
        there.retain(|known| bids.iter().all(|bid| bid.slot != known.slot));
        there.extend(bids);
    }

    /// What the household may use at `now_s`: its lease, or the floor if no lease covers that time.
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

    /// What the home's shaping daemons are told at `now_ms`, if an unrefused lease covers that time: its rate,
    /// until [`GRACE_MS`] after the slot. If the next slot has begun but its lease is not known, the rate is at most
    /// the equal share until then. A rate that gateways must hold themselves is never below the floor.
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

    /// Whether the policer has refused the rates of the lease's slot, according to the latest answer.
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

    /// What is wanted, in words, such as "streaming 3 and web 1 (film night)".
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

    /// Why the household bids as it does, in sentences.
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

/// The price of a slot: as published, or as derived from what the gateway paid and got.
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

/// A rate as text for people.
fn in_mbit(rate: Rate) -> String {
    format!("{:.1} Mbit/s", rate.as_mbit_f64())
}

/// Credits as text with two decimals.
fn credits(amount: Credits) -> String {
    format!("{:.2}", amount.as_f64())
}

/// Number of leases kept: for the running slot and the next one.
const LEASES: usize = 2;

/// Names for people, in the order of [`Kind::ALL`].
const KINDS: [&str; 4] = ["streaming", "social networks", "downloads", "web"];

#[cfg(test)]
mod tests;
