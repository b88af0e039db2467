//! The market's state: gateways, bids and slots. Defines which events are allowed and their effects.
//!
//! Method: everything that changes the book is an [`Event`]. [`Book::apply`] refuses an event or applies
//! it. The same events always lead to the same book, so the log of events defines the book. A closed slot
//! carries the root of a hash chain over all statements since the market was founded; a log whose events
//! lead to a different root is refused.
//!
//! Invariant: the balances sum to exactly the share times the number of gateways, in micro-credits.

use std::collections::{BTreeMap, VecDeque};

use fairweir_core::market::ledger::{self, Credits, GATEWAYS_MAX, LedgerError, Statement};
use fairweir_core::market::rates::Terms;
use fairweir_core::units::Rate;
use serde::{Deserialize, Serialize};

use crate::guarantees::{Lease, Leases, number_of};
use crate::{hex, sha256};

/// The parameters with which a market is founded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The link's capacity and floor, and how spends become rates.
    #[cfg_attr(test, schemars(with = "crate::schemas::Terms"))]
    pub terms: Terms,
    /// Credits per gateway.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub share: Credits,
    /// The maximum balance of a gateway.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub cap: Credits,
    /// The length of a slot, in seconds.
    pub slot_s: u64,
    /// Seconds from the end of bidding for a slot to the slot's beginning; at most the slot's length.
    pub close_before_s: u64,
    /// When slot 0 begins, in seconds of Unix time.
    pub epoch_s: u64,
}

/// An event in the market.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// The market began.
    Found(Rules),
    /// The operator issued a code, known by its hash, for a contract.
    Code {
        /// SHA-256 of the code.
        hash: String,
        /// The operator's name for the household.
        contract: String,
        /// The rate of the household's plan.
        peak: Option<Rate>,
        /// When the code expires, in seconds of Unix time.
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
        /// When it joined, in seconds of Unix time.
        at_s: u64,
    },
    /// A gateway bid.
    Bid {
        /// Its pseudonym.
        gateway: String,
        /// The slot of the bid.
        slot: u64,
        /// What the gateway offers to pay.
        spend: Credits,
        /// Sequence number: the bid with the higher number replaces the other.
        sequence: u64,
    },
    /// Gateways without a bid for the open slot are given this bid.
    Absent {
        /// The open slot.
        slot: u64,
        /// What each offers to pay.
        spend: Credits,
    },
    /// The operator changed the rules, from the open slot on. Fields that are `None` keep their values.
    Change {
        /// The link's capacity.
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
    /// The operator resumed the market. Bids for slots before the first open one are void.
    Resume {
        /// The first open slot.
        open: u64,
    },
    /// A gateway left.
    Leave {
        /// Its pseudonym.
        gateway: String,
        /// When it left, in seconds of Unix time.
        at_s: u64,
    },
    /// The bids of a slot ended and were settled.
    Close {
        /// Which slot.
        slot: u64,
        /// The hash chain's root after this slot.
        root: String,
    },
}

/// Why an event is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The market was already founded, or was not founded yet.
    #[error("the market was not founded, or was founded already")]
    Founded,
    /// Rules that no market can have.
    #[error("{0}")]
    Rules(&'static str),
    /// A code that is unknown, used or expired.
    #[error("the code is unknown, used or expired")]
    Code,
    /// There is no such gateway.
    #[error("there is no gateway `{0}`")]
    NoGateway(String),
    /// A bid for a closed slot.
    #[error("slot {slot} is closed; the first open slot is {open}")]
    Closed {
        /// The slot of the bid.
        slot: u64,
        /// The first open slot.
        open: u64,
    },
    /// A bid for a slot too far ahead.
    #[error("slot {slot} is not open yet; the last open slot is {last}")]
    TooFar {
        /// The slot of the bid.
        slot: u64,
        /// The last open slot.
        last: u64,
    },
    /// The gateway offers more than it may spend.
    #[error("spend {spend} is above {most}")]
    Overspent {
        /// The amount of the bid.
        spend: Credits,
        /// Its balance for the open slot, or the cap for a later slot.
        most: Credits,
    },
    /// A bid older than the latest one, or a different bid with the same sequence number.
    #[error("sequence {sequence} is not above {latest}")]
    Sequence {
        /// The sequence number of the bid.
        sequence: u64,
        /// The sequence number of the latest bid.
        latest: u64,
    },
    /// More changes of bids than an agent ever makes.
    #[error("gateway `{0}` has bid {BIDS_MAX} times since the last slot was closed")]
    TooOften(String),
    /// The market is full, or there are too many codes.
    #[error("too many gateways or codes")]
    TooMany,
    /// A text that is too long or empty.
    #[error("`{0}` is empty or too long")]
    Text(&'static str),
    /// The closed slot is not the next one, or its root differs from the computed one.
    #[error("slot {0} does not follow, or its statements are not those that were kept")]
    Chain(u64),
    /// The market is paused: no slot is closed, and no bid is taken.
    #[error("the market is paused by its operator")]
    Paused,
    /// The host's clock differs from other clocks.
    #[error("{0}; nothing is changed until it is right")]
    Clock(String),
    /// The ledger refuses the amounts.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Number of slots for which bids are taken: the first open slot and the following ones.
pub const AHEAD: u64 = 48;

/// Maximum number of bid changes by a gateway between two closes. Each change is stored permanently. An agent
/// changes the bids of up to 24 slots after each close, and when its household changes its wishes.
pub const BIDS_MAX: u32 = 480;

/// Number of closed slots whose statements and prices are in the book.
const KEPT: usize = 48;

/// Maximum number of open codes.
const CODES_MAX: usize = 100_000;

/// Maximum length of the operator's name for a contract, in bytes.
const CONTRACT_MAX: usize = 64;

/// Maximum number of slots of a market, and of gateways that ever join.
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
    /// Number of bid changes since the last close.
    bid_count: u32,
    statements: VecDeque<(u64, Statement)>,
    /// Its rate in the last closed slot.
    rate: Rate,
}

/// A bid for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Bid {
    /// The slot of the bid.
    pub slot: u64,
    /// What the gateway offers to pay.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub spend: Credits,
    /// Sequence number: the bid with the higher number replaces the other.
    pub sequence: u64,
}

/// The bid in force for a slot.
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
    /// The operator's name for the household.
    pub contract: &'b str,
    /// The rate of the household's plan.
    pub peak: Option<Rate>,
    /// When the code expires, in seconds of Unix time.
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

/// The published data of a closed slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Closed {
    /// The slot's number.
    pub slot: u64,
    /// The price of each Mbit/s beyond the floor.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub price: Credits,
    /// The hash chain's root after this slot.
    pub root: String,
}

/// The market's state; see the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Book {
    rules: Option<Rules>,
    /// Gateways by seat.
    gateways: Vec<Gateway>,
    /// Balances by seat.
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
    /// Checks whether a market can have these rules.
    ///
    /// # Errors
    /// Which rule is invalid.
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

    /// When bidding for a slot ends, in seconds of Unix time.
    pub fn closes_s(&self, slot: u64) -> u64 {
        self.begins_s(slot).saturating_sub(self.close_before_s)
    }
}

impl Book {
    /// Reads a book that was kept as JSON.
    ///
    /// # Errors
    /// If the text is not a book, or a book to which no events lead.
    pub(crate) fn read(text: &str) -> Result<Book, String> {
        let book: Book = serde_json::from_str(text).map_err(|e| e.to_string())?;
        book.check().map_err(str::to_owned)?;
        Ok(book)
    }

    /// Checks the invariants on which the rest of this module relies.
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
        // Slots that passed while the market was paused are missing.
        let follows = self.closed.back().is_none_or(|last| last.slot < self.open);
        let is_open = |slot: &u64| (self.open..self.open + AHEAD).contains(slot);
        if !follows || !self.gateways.iter().all(|g| g.bids.keys().all(is_open)) {
            return Err("closed slots and bids do not adjoin the open slot");
        }
        Ok(())
    }

    /// Applies an event; returns whether it changed the book.
    ///
    /// # Errors
    /// Why the event is refused; the book is then unchanged.
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

    /// The market's rules.
    ///
    /// # Errors
    /// If the market was not founded.
    pub fn rules(&self) -> Result<&Rules, Refused> {
        self.rules.as_ref().ok_or(Refused::Founded)
    }

    /// Whether the market is paused: no slot is closed, and no bid is taken.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// The first slot that is not closed.
    pub fn open_slot(&self) -> u64 {
        self.open
    }

    /// The gateways by seat.
    pub fn gateways(&self) -> &[Gateway] {
        &self.gateways
    }

    /// The balances by seat.
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

    /// The hash chain's root after the last closed slot.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The gateway with this certificate, and its balance.
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

    /// The events that revoke the codes for which `which` is true.
    pub fn revoking(&self, which: impl Fn(&OpenCode<'_>) -> bool) -> Vec<Event> {
        let ended = self.codes().filter(which);
        ended.map(|code| Event::Revoke { hash: code.hash.to_owned() }).collect()
    }

    /// The event that gives gateways without a bid an equal share of the open slot: each bids the average spend of
    /// the others, and receives as much in return. `None` if all gateways have bid, or if no gateway has.
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

    /// The rates of the last closed slot, including gateways that joined after it was closed.
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
        // The numbers in pseudonyms rise with the seats.
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

    /// Checks that the market is not paused.
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

    /// Adds a gateway. Joins and leaves happen between two closes, that is at a boundary between slots.
    fn join(&mut self, hash: &str, certificate: &str, at_s: u64) -> Result<(), Refused> {
        if !self.has_code(hash, at_s) || self.by_certificate(certificate).is_some() {
            return Err(Refused::Code);
        }
        let Code { contract, peak, .. } = self.codes[hash].clone();
        // A contract has one gateway: a new gateway takes over the account.
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

    /// Checks whether these bids can be placed.
    ///
    /// # Errors
    /// Why the first invalid bid would be refused.
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

    /// Whether a bid would change the book.
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
            // A repeated bid changes nothing.
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
    /// The operator's name for the household.
    pub fn contract(&self) -> &str {
        &self.contract
    }

    /// The statements of the last closed slots, oldest first.
    pub fn statements(&self) -> impl Iterator<Item = &(u64, Statement)> {
        self.statements.iter()
    }

    /// Its rate in the last closed slot; zero if it joined later.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The rate of its plan, which is the most it can get.
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
    /// A market with this number of gateways, since joining them one by one would take long. Each gateway bids
    /// for the open slot.
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

/// Drops the oldest entries so that at most `most` remain.
fn keep_last<T>(list: &mut VecDeque<T>, most: usize) {
    while list.len() > most {
        list.pop_front();
    }
}
