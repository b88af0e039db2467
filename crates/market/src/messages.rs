//! The JSON of requests and answers between a gateway and the server.

use fairweir_core::market::ledger::{Credits, Statement};
use fairweir_core::units::Rate;
use serde::{Deserialize, Serialize};

pub use crate::book::Bid;
use crate::book::{Closed, Rules};

/// The answer to `GET /v1/clock`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Clock {
    /// The server's time, in seconds of Unix time.
    pub now_s: u64,
    /// The server's time, in milliseconds of Unix time.
    pub now_ms: u64,
    /// The first slot that is not closed.
    pub open_slot: u64,
    /// When bidding for that slot ends, in seconds of Unix time.
    pub open_until_s: u64,
    /// Number of gateways in the market.
    pub gateways: usize,
    /// The market's rules.
    pub rules: Rules,
    /// Why the server's clock is not trusted, if so; meanwhile no slot is closed and nothing changes.
    #[serde(default)]
    pub doubt: Option<String>,
    /// Whether the operator has stopped the market: no slot is closed, and no bid is taken.
    #[serde(default)]
    pub paused: bool,
}

/// The answer to `GET /v1/prices`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Prices {
    /// The last closed slots, oldest first; empty in a small market.
    pub slots: Vec<Closed>,
}

/// The answer to `GET /v1/gateways/NAME/statements`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Account {
    /// The gateway's pseudonym.
    pub gateway: String,
    /// The gateway's balance.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub balance: Credits,
    /// The rate of its plan, which is the most it can get.
    #[cfg_attr(test, schemars(with = "Option<u64>"))]
    pub peak_bps: Option<Rate>,
    /// Its bids for open slots, by slot.
    pub bids: Vec<Bid>,
    /// The last closed slots, oldest first.
    pub statements: Vec<Dated>,
}

/// A gateway's statement for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Dated {
    /// Which slot.
    pub slot: u64,
    /// The gateway's statement for that slot.
    #[cfg_attr(test, schemars(with = "crate::schemas::Statement"))]
    pub statement: Statement,
}

/// The answer to `GET /v1/gateways/NAME/lease`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Leased {
    /// The last closed slot.
    pub slot: u64,
    /// When it ends, in seconds of Unix time.
    pub until_s: u64,
    /// The rate that the gateway may use in that slot.
    #[cfg_attr(test, schemars(with = "u64"))]
    pub rate_bps: Rate,
    /// The slot whose rates the operator's policer refuses now, so that they are not guaranteed.
    #[serde(default)]
    pub refused_slot: Option<u64>,
    /// Whether a gateway has to limit itself to this rate, because no policer enforces the rates.
    #[serde(default)]
    pub hold: bool,
}

/// The body of `PUT /v1/gateways/NAME/bids/SLOT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BidBody {
    /// What the gateway offers to pay.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub spend: Credits,
    /// Sequence number: the bid with the higher number replaces the other.
    pub sequence: u64,
}

/// The body of `PUT /v1/gateways/NAME/bids`, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Bids {
    /// The bids, in rising order of slots.
    pub bids: Vec<Bid>,
}

/// The body of `POST /v1/enrolments`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EnrolBody {
    /// The one-time code.
    pub code: String,
    /// A P-256 point of 65 bytes in hexadecimal digits.
    pub public_key: String,
}

/// The answer to `POST /v1/enrolments`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Enrolled {
    /// The gateway's pseudonym.
    pub gateway: String,
    /// The gateway's certificate: DER in hexadecimal digits.
    pub certificate: String,
}

/// The answer to `POST /v1/leave`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Left {
    /// The pseudonym of the gateway that left.
    pub left: String,
}
