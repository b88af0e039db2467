//! Gateways, bids and slots: what may happen, and what it does.
//!
//! Method: everything that changes the book is an [`Event`]. [`Book::apply`] refuses an event or does
//! it, and the same events lead to the same book, so a log of events is the book. A closed slot
//! carries the root of a hash chain over all statements since the market was founded; a log whose
//! events lead to another root is refused.
//!
//! Invariant: the balances sum to the share times the number of gateways, to the micro-credit.

use std::collections::{BTreeMap, VecDeque};

use fairweir_core::market::ledger::{self, Credits, GATEWAYS_MAX, LedgerError, Statement};
use fairweir_core::market::rates::Terms;
use fairweir_core::units::Rate;
use serde::{Deserialize, Serialize};

use crate::guarantees::{Lease, Leases, number_of};
use crate::{hex, sha256};

/// What a market is founded with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The link, and how spends become rates.
    #[cfg_attr(test, schemars(with = "crate::schemas::Terms"))]
    pub terms: Terms,
    /// Credits per gateway.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub share: Credits,
    /// The largest balance.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub cap: Credits,
    /// The length of a slot, in seconds.
    pub slot_s: u64,
    /// Seconds between the end of a slot's bids and its beginning; at most the slot's length.
    pub close_before_s: u64,
    /// When slot 0 begins, in seconds of Unix time.
    pub epoch_s: u64,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The market began.
    Found(Rules),
    /// The operator issued a code, known by its hash, for a contract.
    Code {
        /// SHA-256 of the code.
        hash: String,
        /// What the operator calls the household.
        contract: String,
        /// Its plan's rate.
        peak: Option<Rate>,
        /// When the code ends, in seconds of Unix time.
        until_s: u64,
    },
    /// A code ended without being used.
    Revoke {
        /// SHA-256 of the code.
        hash: String,
    },
    /// A gateway joined with a code.
    Join {
        /// SHA-256 of the code.
        hash: String,
        /// SHA-256 of its certificate.
        certificate: String,
        /// In seconds of Unix time.
        at_s: u64,
    },
    /// A gateway bid.
    Bid {
        /// Its pseudonym.
        gateway: String,
        /// For which slot.
        slot: u64,
        /// What it would pay.
        spend: Credits,
        /// The higher one counts.
        sequence: u64,
    },
    /// Gateways without a bid for the open slot bid this.
    Absent {
        /// Which slot.
        slot: u64,
        /// What each would pay.
        spend: Credits,
    },
    /// The operator changed the rules, from the open slot on; what is absent stays.
    Change {
        /// What the link carries.
        capacity: Option<Rate>,
        /// See [`Terms`].
        floor_percent: Option<u64>,
        /// The largest balance.
        cap: Option<Credits>,
    },
    /// The operator changed the plan of a gateway, from the open slot on.
    Plan {
        /// Its pseudonym.
        gateway: String,
        /// The plan's rate.
        peak: Option<Rate>,
    },
    /// The operator stopped the market: no slot is closed, and no bid is taken.
    Pause,
    /// It goes on. What was bid for slots before the first one is void.
    Resume {
        /// The open slot.
        open: u64,
    },
    /// A gateway left.
    Leave {
        /// Its pseudonym.
        gateway: String,
        /// In seconds of Unix time.
        at_s: u64,
    },
    /// The bids of a slot ended and were settled.
    Close {
        /// Which slot.
        slot: u64,
        /// The hash chain's root after it.
        root: String,
    },
}

/// Why something is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The market has begun already, or has not.
    #[error("the market was not founded, or was founded already")]
    Founded,
    /// Numbers that no market can have.
    #[error("{0}")]
    Rules(&'static str),
    /// A code that is not open.
    #[error("the code is unknown, used or expired")]
    Code,
    /// No such gateway.
    #[error("there is no gateway `{0}`")]
    NoGateway(String),
    /// Bids for a slot that is settled.
    #[error("slot {slot} is closed; the first open slot is {open}")]
    Closed {
        /// The slot of the bid.
        slot: u64,
        /// The first that is open.
        open: u64,
    },
    /// Bids too far ahead.
    #[error("slot {slot} is not open yet; the last open slot is {last}")]
    TooFar {
        /// The slot of the bid.
        slot: u64,
        /// The last that is open.
        last: u64,
    },
    /// More than it has.
    #[error("spend {spend} is above {most}")]
    Overspent {
        /// Of the bid.
        spend: Credits,
        /// Its balance, or the cap for a later slot.
        most: Credits,
    },
    /// An older bid, or another one with the same number.
    #[error("sequence {sequence} is not above {latest}")]
    Sequence {
        /// Of the bid.
        sequence: u64,
        /// The latest.
        latest: u64,
    },
    /// More changes of bids than an agent makes.
    #[error("gateway `{0}` has bid {BIDS_MAX} times since the last slot was closed")]
    TooOften(String),
    /// The market is full, or there are too many codes.
    #[error("too many gateways or codes")]
    TooMany,
    /// A text that is too long or empty.
    #[error("`{0}` is empty or too long")]
    Text(&'static str),
    /// A slot other than the next is closed, or its root is another.
    #[error("slot {0} does not follow, or its statements are not those that were kept")]
    Chain(u64),
    /// No slot is closed, and no bid is taken.
    #[error("the market is paused by its operator")]
    Paused,
    /// The host's clock differs from others.
    #[error("{0}; nothing is changed until it is right")]
    Clock(String),
    /// The ledger refuses the amounts.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Slots for which bids are taken: the first open one and those after it.
pub const AHEAD: u64 = 48;

/// Changes of bids by a gateway between two closes. Each is stored for good. An agent changes the bids of up
/// to 24 slots after a close, and when the household asks for something.
pub const BIDS_MAX: u32 = 480;

/// Slots whose statements and prices are in the book.
const KEPT: usize = 48;

/// The most codes that are open.
const CODES_MAX: usize = 100_000;

/// The longest word for a contract, in bytes.
const CONTRACT_MAX: usize = 64;

/// The most slots that pass, and the most gateways that join.
const SLOTS_MAX: u64 = 1 << 48;

/// How long the balance of a gateway that left is remembered, in seconds: 7 days.
const LEFT_S: u64 = 7 * 86_400;

/// A gateway's account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gateway {
    /// Its pseudonym.
    pub name: String,
    contract: String,
    certificate: String,
    peak: Option<Rate>,
    bids: BTreeMap<u64, Placed>,
    /// Bids since the last close.
    bid_count: u32,
    statements: VecDeque<(u64, Statement)>,
    /// The rate of the last closed slot.
    rate: Rate,
}

/// A bid for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Bid {
    /// Which slot.
    pub slot: u64,
    /// What the gateway would pay.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub spend: Credits,
    /// The higher one counts.
    pub sequence: u64,
}

/// The bid that counts for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Placed {
    spend: Credits,
    sequence: u64,
}

/// A code with which a gateway can join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OpenCode<'b> {
    #[serde(skip)]
    hash: &'b str,
    /// What the operator calls the household.
    pub contract: &'b str,
    /// Its plan's rate.
    pub peak: Option<Rate>,
    /// When the code ends, in seconds of Unix time.
    pub until_s: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Code {
    contract: String,
    peak: Option<Rate>,
    until_s: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Left {
    balance: Credits,
    at_s: u64,
}

/// A closed slot, as it is published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Closed {
    /// Which.
    pub slot: u64,
    /// For each Mbit/s beyond the floor.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub price: Credits,
    /// The hash chain's root.
    pub root: String,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Book {
    rules: Option<Rules>,
    /// By seat.
    gateways: Vec<Gateway>,
    /// By seat.
    balances: Vec<Credits>,
    codes: BTreeMap<String, Code>,
    left: BTreeMap<String, Left>,
    /// The first slot that is not closed.
    open: u64,
    closed: VecDeque<Closed>,
    root: String,
    names: u64,
    #[serde(default)]
    is_paused: bool,
}

impl Rules {
    /// Whether a market can have them.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), Refused> {
        let slots = (1..=86_400).contains(&self.slot_s) && self.close_before_s <= self.slot_s;
        if !slots {
            return Err(Refused::Rules(
                "a slot is 1 to 86400 s long, and bids end within one slot of it",
            ));
        }
        if self.share == Credits::ZERO || self.cap <= self.share {
            return Err(Refused::Rules("the share must be positive and below the cap"));
        }
        if self.terms.floor_percent > 100 || self.terms.capacity == Rate::ZERO {
            return Err(Refused::Rules("the floor is 0 to 100 %, and the capacity positive"));
        }
        Ok(())
    }

    /// When a slot begins, in seconds of Unix time.
    pub fn begins_s(&self, slot: u64) -> u64 {
        self.epoch_s.saturating_add(slot.saturating_mul(self.slot_s))
    }

    /// The first slot whose bids have not ended.
    pub fn open_at(&self, now_s: u64) -> u64 {
        let passed_s = now_s.saturating_add(self.close_before_s).checked_sub(self.epoch_s);
        passed_s.map_or(0, |passed_s| passed_s / self.slot_s + 1)
    }

    /// When its bids end.
    pub fn closes_s(&self, slot: u64) -> u64 {
        self.begins_s(slot).saturating_sub(self.close_before_s)
    }
}

impl Book {
    /// Reads a book that was kept as JSON.
    ///
    /// # Errors
    /// If it is not a book, or one that no events lead to.
    pub(crate) fn read(text: &str) -> Result<Book, String> {
        let book: Book = serde_json::from_str(text).map_err(|e| e.to_string())?;
        book.check().map_err(str::to_owned)?;
        Ok(book)
    }

    /// What the rest of this module relies on.
    fn check(&self) -> Result<(), &'static str> {
        let Some(rules) = &self.rules else {
            return match *self == Book::default() {
                true => Ok(()),
                false => Err("the book of no market has something in it"),
            };
        };
        rules.check().map_err(|_| "the rules are those of no market")?;
        let seats = self.gateways.len();
        if seats != self.balances.len() || seats > GATEWAYS_MAX {
            return Err("each gateway has one balance");
        }
        let sum: u128 = self.balances.iter().map(|balance| u128::from(balance.as_micro())).sum();
        let is_capped = self.balances.iter().all(|balance| *balance <= rules.cap);
        if sum != u128::from(rules.share.as_micro()) * seats as u128 || !is_capped {
            return Err("the balances do not sum to the share of all gateways");
        }
        if self.open > SLOTS_MAX || self.names > SLOTS_MAX {
            return Err("no market has had as many slots or gateways");
        }
        let numbers: Vec<_> = self.gateways.iter().map(|g| number_of(&g.name)).collect();
        let is_rising = numbers.is_sorted_by(|a, b| a < b);
        if !is_rising
            || numbers.iter().any(|number| !(1..=self.names).contains(&number.unwrap_or(0)))
        {
            return Err("the names of the gateways do not rise with their seats");
        }
        // Slots in which the market was paused are missing.
        let follows = self.closed.back().is_none_or(|last| last.slot < self.open);
        let is_open = |slot: &u64| (self.open..self.open + AHEAD).contains(slot);
        if !follows || !self.gateways.iter().all(|g| g.bids.keys().all(is_open)) {
            return Err("closed slots and bids do not adjoin the open slot");
        }
        Ok(())
    }

    /// Does an event; returns whether that changed something.
    ///
    /// # Errors
    /// Why it is refused; then nothing has changed.
    pub fn apply(&mut self, event: &Event) -> Result<bool, Refused> {
        let done = match event {
            Event::Found(rules) => {
                if self.rules.is_some() {
                    return Err(Refused::Founded);
                }
                rules.check()?;
                self.rules = Some(rules.clone());
                self.root = sha256(b"");
                Ok(())
            }
            Event::Code { hash, contract, peak, until_s } => {
                self.add_code(hash, contract, *peak, *until_s)
            }
            Event::Revoke { hash } => self.codes.remove(hash).map(drop).ok_or(Refused::Code),
            Event::Join { hash, certificate, at_s } => self.join(hash, certificate, *at_s),
            Event::Bid { gateway, slot, spend, sequence } => {
                let bid = Bid { slot: *slot, spend: *spend, sequence: *sequence };
                return self.bid(gateway, bid);
            }
            Event::Change { capacity, floor_percent, cap } => {
                self.change(*capacity, *floor_percent, *cap)
            }
            Event::Plan { gateway, peak } => {
                self.seat(gateway).map(|seat| self.gateways[seat].peak = *peak)
            }
            Event::Pause => return self.pause(),
            Event::Resume { open } => return self.resume(*open),
            Event::Absent { slot, spend } => self.place_absent(*slot, *spend),
            Event::Leave { gateway, at_s } => self.leave(gateway, *at_s),
            Event::Close { slot, root } => self.close(*slot, root),
        };
        done.map(|()| true)
    }

    /// The rules.
    ///
    /// # Errors
    /// If the market was not founded.
    pub fn rules(&self) -> Result<&Rules, Refused> {
        self.rules.as_ref().ok_or(Refused::Founded)
    }

    /// Whether no slot is closed, and no bid is taken.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// The first slot that is not closed.
    pub fn open_slot(&self) -> u64 {
        self.open
    }

    /// By seat.
    pub fn gateways(&self) -> &[Gateway] {
        &self.gateways
    }

    /// By seat.
    pub fn balances(&self) -> &[Credits] {
        &self.balances
    }

    /// The sum of all balances.
    pub fn credits(&self) -> u64 {
        self.balances.iter().map(|balance| balance.as_micro()).sum()
    }

    /// The last closed slots, oldest first.
    pub fn closed(&self) -> impl Iterator<Item = &Closed> {
        self.closed.iter()
    }

    /// The hash chain's root.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// A gateway and its balance by its certificate.
    pub fn by_certificate(&self, certificate: &str) -> Option<(&Gateway, Credits)> {
        let seat = self.gateways.iter().position(|g| g.certificate == certificate)?;
        Some((&self.gateways[seat], self.balances[seat]))
    }

    /// A gateway's seat by its contract or pseudonym.
    ///
    /// # Errors
    /// If there is no such gateway.
    pub fn seat_of(&self, name: &str) -> Result<usize, Refused> {
        let seat = self.gateways.iter().position(|g| g.contract == name);
        seat.map_or_else(|| self.seat(name), Ok)
    }

    /// Whether a code may still be used.
    pub fn has_code(&self, hash: &str, now_s: u64) -> bool {
        self.codes.get(hash).is_some_and(|code| now_s <= code.until_s)
    }

    /// The codes that were neither used nor revoked.
    pub fn codes(&self) -> impl Iterator<Item = OpenCode<'_>> {
        self.codes.iter().map(|(hash, code)| OpenCode {
            hash,
            contract: &code.contract,
            peak: code.peak,
            until_s: code.until_s,
        })
    }

    /// The events that end some of the codes.
    pub fn revoking(&self, which: impl Fn(&OpenCode<'_>) -> bool) -> Vec<Event> {
        let ended = self.codes().filter(which);
        ended.map(|code| Event::Revoke { hash: code.hash.to_owned() }).collect()
    }

    /// The event that gives an equal share of the open slot to gateways without a bid for it: they bid what the
    /// others spend on average, which they receive for it. `None` if all have bid, or none.
    pub fn absent(&self) -> Option<Event> {
        let spend = |(gateway, balance): (&Gateway, &Credits)| {
            Some(gateway.bids.get(&self.open)?.spend.min(*balance).as_micro())
        };
        let spends: Vec<u64> = self.gateways.iter().zip(&self.balances).filter_map(spend).collect();
        let is_needed = !spends.is_empty() && spends.len() < self.gateways.len();
        let mean = || Credits::micro(spends.iter().sum::<u64>() / spends.len() as u64);
        is_needed.then(|| Event::Absent { slot: self.open, spend: mean() })
    }

    /// The event that closes the first open slot.
    ///
    /// # Errors
    /// If the market was not founded, or the ledger refuses the amounts.
    pub fn closing(&self) -> Result<Event, Refused> {
        self.rules()?;
        let statements = self.settle()?;
        Ok(Event::Close { slot: self.open, root: self.root_after(&statements) })
    }

    /// The rates of the last closed slot, with those that joined after it was closed.
    pub fn leases(&self) -> Option<Leases> {
        let (rules, closed) = (self.rules.as_ref()?, self.closed.back()?);
        let is_settled = |g: &Gateway| g.statements.back().is_some_and(|s| s.0 == closed.slot);
        let rates: Vec<_> = self.gateways.iter().map(|g| is_settled(g).then_some(g.rate)).collect();
        let rates = rules.terms.admit(&rates, &self.peaks());
        let lease = |(gateway, rate): (&Gateway, Rate)| Lease {
            gateway: gateway.name.clone(),
            contract: gateway.contract.clone(),
            rate,
        };
        Some(Leases {
            generation: closed.slot,
            from: rules.begins_s(closed.slot),
            until: rules.begins_s(closed.slot + 1),
            rates: self.gateways.iter().zip(rates).map(lease).collect(),
            terms: rules.terms,
        })
    }

    fn peaks(&self) -> Vec<Option<Rate>> {
        self.gateways.iter().map(|g| g.peak).collect()
    }

    /// A gateway's seat.
    ///
    /// # Errors
    /// If there is no such gateway.
    pub fn seat(&self, gateway: &str) -> Result<usize, Refused> {
        // Names rise with the seats.
        let seat = self.gateways.binary_search_by_key(&number_of(gateway), |g| number_of(&g.name));
        let seat = seat.ok().filter(|&seat| self.gateways[seat].name == gateway);
        seat.ok_or_else(|| Refused::NoGateway(gateway.chars().take(CONTRACT_MAX).collect()))
    }

    fn pause(&mut self) -> Result<bool, Refused> {
        self.rules()?;
        Ok(!std::mem::replace(&mut self.is_paused, true))
    }

    fn resume(&mut self, open: u64) -> Result<bool, Refused> {
        if !self.is_paused {
            return Ok(false);
        }
        if !(self.open..SLOTS_MAX).contains(&open) {
            return Err(Refused::Chain(open));
        }
        (self.is_paused, self.open) = (false, open);
        self.gateways.iter_mut().for_each(|gateway| gateway.bids.retain(|&slot, _| slot >= open));
        Ok(true)
    }

    /// Whether slots are closed and bids are taken.
    fn check_running(&self) -> Result<(), Refused> {
        if self.is_paused { Err(Refused::Paused) } else { Ok(()) }
    }

    fn change(
        &mut self,
        capacity: Option<Rate>,
        floor_percent: Option<u64>,
        cap: Option<Credits>,
    ) -> Result<(), Refused> {
        let mut rules = self.rules()?.clone();
        rules.terms.capacity = capacity.unwrap_or(rules.terms.capacity);
        rules.terms.floor_percent = floor_percent.unwrap_or(rules.terms.floor_percent);
        rules.cap = cap.unwrap_or(rules.cap);
        rules.check()?;
        if self.balances.iter().any(|balance| *balance > rules.cap) {
            return Err(Refused::Rules("the cap is below the balance of a gateway"));
        }
        self.rules = Some(rules);
        Ok(())
    }

    fn add_code(
        &mut self,
        hash: &str,
        contract: &str,
        peak: Option<Rate>,
        until_s: u64,
    ) -> Result<(), Refused> {
        self.rules()?;
        if contract.is_empty() || contract.len() > CONTRACT_MAX {
            return Err(Refused::Text("contract"));
        }
        if self.codes.len() >= CODES_MAX || self.gateways.len() >= GATEWAYS_MAX {
            return Err(Refused::TooMany);
        }
        let code = Code { contract: contract.to_owned(), peak, until_s };
        self.codes.insert(hash.to_owned(), code);
        Ok(())
    }

    /// Joins and leaves happen between two closes, so at the boundary of slots.
    fn join(&mut self, hash: &str, certificate: &str, at_s: u64) -> Result<(), Refused> {
        if !self.has_code(hash, at_s) || self.by_certificate(certificate).is_some() {
            return Err(Refused::Code);
        }
        let Code { contract, peak, .. } = self.codes[hash].clone();
        // A contract has one gateway: another one takes over the account.
        if let Some(seat) = self.gateways.iter().position(|g| g.contract == contract) {
            self.codes.remove(hash);
            self.gateways[seat].certificate = certificate.to_owned();
            self.gateways[seat].peak = peak;
            return Ok(());
        }
        let Rules { share, cap, .. } = *self.rules()?;
        let is_known = |left: &Left| at_s <= left.at_s.saturating_add(LEFT_S);
        let had = self.left.get(&contract).filter(|left| is_known(left)).map(|left| left.balance);
        self.balances = ledger::join(&self.balances, share, had, Some(cap), self.open)?;
        self.left.retain(|_, left| is_known(left));
        self.codes.remove(hash);
        self.left.remove(&contract);
        self.names += 1;
        self.gateways.push(Gateway {
            name: format!("gw-{}", self.names),
            contract,
            certificate: certificate.to_owned(),
            peak,
            bids: BTreeMap::new(),
            bid_count: 0,
            statements: VecDeque::new(),
            rate: Rate::ZERO,
        });
        Ok(())
    }

    fn leave(&mut self, gateway: &str, at_s: u64) -> Result<(), Refused> {
        let seat = self.seat(gateway)?;
        let Rules { share, cap, .. } = *self.rules()?;
        let balance = self.balances[seat];
        self.balances = ledger::leave(&self.balances, seat, share, Some(cap), self.open)?;
        let gone = self.gateways.remove(seat);
        self.left.insert(gone.contract, Left { balance, at_s });
        Ok(())
    }

    /// Whether bids for several slots can be placed.
    ///
    /// # Errors
    /// Why one would be refused.
    pub fn check_bids(&self, gateway: &str, bids: &[Bid]) -> Result<(), Refused> {
        let mut count = self.gateways[self.seat(gateway)?].bid_count;
        for &bid in bids {
            count += u32::from(self.check_bid(gateway, bid)?);
        }
        match count > BIDS_MAX {
            true => Err(Refused::TooOften(gateway.to_owned())),
            false => Ok(()),
        }
    }

    /// Whether a bid would change something.
    fn check_bid(&self, gateway: &str, bid: Bid) -> Result<bool, Refused> {
        self.check_running()?;
        let Bid { slot, spend, sequence } = bid;
        let seat = self.seat(gateway)?;
        let open = self.open;
        if slot < open {
            return Err(Refused::Closed { slot, open });
        }
        let last = open + AHEAD - 1;
        if slot > last {
            return Err(Refused::TooFar { slot, last });
        }
        let most = if slot == open { self.balances[seat] } else { self.rules()?.cap };
        if spend > most {
            return Err(Refused::Overspent { spend, most });
        }
        match self.gateways[seat].bids.get(&slot) {
            // The same once more is the same.
            Some(bid) if bid.sequence == sequence && bid.spend == spend => Ok(false),
            Some(bid) if bid.sequence >= sequence => {
                Err(Refused::Sequence { sequence, latest: bid.sequence })
            }
            _ => Ok(true),
        }
    }

    fn bid(&mut self, gateway: &str, bid: Bid) -> Result<bool, Refused> {
        self.check_bids(gateway, &[bid])?;
        let changes = self.check_bid(gateway, bid)?;
        let seat = self.seat(gateway)?;
        let Bid { slot, spend, sequence } = bid;
        self.gateways[seat].bids.insert(slot, Placed { spend, sequence });
        self.gateways[seat].bid_count += u32::from(changes);
        Ok(changes)
    }

    fn place_absent(&mut self, slot: u64, spend: Credits) -> Result<(), Refused> {
        self.rules()?;
        self.check_running()?;
        if slot != self.open {
            return Err(Refused::Chain(slot));
        }
        for gateway in &mut self.gateways {
            gateway.bids.entry(slot).or_insert(Placed { spend, sequence: 0 });
        }
        Ok(())
    }

    fn spends(&self) -> Vec<Credits> {
        let spend = |(gateway, balance): (&Gateway, &Credits)| {
            gateway.bids.get(&self.open).map_or(Credits::ZERO, |bid| bid.spend.min(*balance))
        };
        self.gateways.iter().zip(&self.balances).map(spend).collect()
    }

    fn settle(&self) -> Result<Vec<Statement>, Refused> {
        self.check_running()?;
        let cap = self.rules()?.cap;
        Ok(ledger::close(&self.balances, &self.spends(), Some(cap), self.open)?)
    }

    fn root_after(&self, statements: &[Statement]) -> String {
        let mut bytes = self.root.clone().into_bytes();
        bytes.extend(self.open.to_le_bytes());
        for (gateway, s) in self.gateways.iter().zip(statements) {
            bytes.extend((gateway.name.len() as u64).to_le_bytes());
            bytes.extend(gateway.name.as_bytes());
            for amount in [s.opening, s.spent, s.received, s.closing] {
                bytes.extend(amount.as_micro().to_le_bytes());
            }
            bytes.extend(s.moved.to_le_bytes());
        }
        hex(ring::digest::digest(&ring::digest::SHA256, &bytes).as_ref())
    }

    fn close(&mut self, slot: u64, root: &str) -> Result<(), Refused> {
        let statements = self.settle()?;
        if slot != self.open || self.root_after(&statements) != root {
            return Err(Refused::Chain(slot));
        }
        let rates = self.rules()?.terms.rates(&self.spends(), &self.peaks());
        for (seat, gateway) in self.gateways.iter_mut().enumerate() {
            gateway.bids.remove(&slot);
            gateway.bid_count = 0;
            gateway.rate = rates.rates[seat];
            gateway.statements.push_back((slot, statements[seat]));
            keep_last(&mut gateway.statements, KEPT);
            self.balances[seat] = statements[seat].closing;
        }
        self.closed.push_back(Closed {
            slot,
            price: Credits::nearest(rates.price),
            root: root.to_owned(),
        });
        keep_last(&mut self.closed, KEPT);
        self.root = root.to_owned();
        self.open += 1;
        let credits = self.rules()?.share.as_micro() * self.gateways.len() as u64;
        assert_eq!(self.credits(), credits, "credits are conserved");
        Ok(())
    }
}

impl Gateway {
    /// What the operator calls the household.
    pub fn contract(&self) -> &str {
        &self.contract
    }

    /// The statements of the last slots, oldest first.
    pub fn statements(&self) -> impl Iterator<Item = &(u64, Statement)> {
        self.statements.iter()
    }

    /// Its rate in the last closed slot; zero if it joined later.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The most that its plan gives it.
    pub fn peak(&self) -> Option<Rate> {
        self.peak
    }

    /// Its bids for open slots, by slot.
    pub fn bids(&self) -> impl Iterator<Item = Bid> {
        let bid =
            |(&slot, &Placed { spend, sequence }): (&u64, &Placed)| Bid { slot, spend, sequence };
        self.bids.iter().map(bid)
    }
}

#[cfg(test)]
impl Book {
    /// A market of a size that joins one by one would take long to reach; each gateway bids for the open
    /// slot.
    pub(crate) fn of_size(gateways: u64, rules: Rules) -> Book {
        let mut book = Book::default();
        book.apply(&Event::Found(rules.clone())).unwrap();
        book.names = gateways;
        for i in 1..=gateways {
            let bid = Placed { spend: Credits::micro(i % 9_999_999), sequence: 1 };
            book.gateways.push(Gateway {
                name: format!("gw-{i}"),
                contract: format!("contract-{i}"),
                certificate: format!("{i:064x}"),
                peak: None,
                bids: BTreeMap::from([(0, bid)]),
                bid_count: 1,
                statements: VecDeque::new(),
                rate: Rate::ZERO,
            });
            book.balances.push(rules.share);
        }
        book
    }
}

/// Drops the oldest.
fn keep_last<T>(list: &mut VecDeque<T>, most: usize) {
    while list.len() > most {
        list.pop_front();
    }
}
