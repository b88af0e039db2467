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
    /// The same in milliseconds.
    pub now_ms: u64,
    /// The first slot that is not closed.
    pub open_slot: u64,
    /// When its bids end, in seconds of Unix time.
    pub open_until_s: u64,
    /// Gateways of the market.
    pub gateways: usize,
    /// What the market was founded with.
    pub rules: Rules,
    /// Why the server's time is not believed, if so: no slot is closed and nothing changes meanwhile.
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
    /// The last slots, oldest first; none in a small market.
    pub slots: Vec<Closed>,
}

/// The answer to `GET /v1/gateways/NAME/statements`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Account {
    /// The gateway's pseudonym.
    pub gateway: String,
    /// What it has.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub balance: Credits,
    /// The most that its plan gives it.
    #[cfg_attr(test, schemars(with = "Option<u64>"))]
    pub peak_bps: Option<Rate>,
    /// Its bids for open slots, by slot.
    pub bids: Vec<Bid>,
    /// The last closed slots, oldest first.
    pub statements: Vec<Dated>,
}

/// What a slot did to a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Dated {
    /// Which slot.
    pub slot: u64,
    /// What it did.
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
    /// What the gateway may use in it.
    #[cfg_attr(test, schemars(with = "u64"))]
    pub rate_bps: Rate,
    /// The slot whose rates the operator's policer refuses now: they are not guaranteed.
    #[serde(default)]
    pub refused_slot: Option<u64>,
    /// Whether a gateway is to let no more through, because no policer enforces the rates.
    #[serde(default)]
    pub hold: bool,
}

/// The body of `PUT /v1/gateways/NAME/bids/SLOT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BidBody {
    /// What the gateway would pay.
    #[cfg_attr(test, schemars(with = "crate::schemas::Amount"))]
    pub spend: Credits,
    /// The higher one counts.
    pub sequence: u64,
}

/// The body of `PUT /v1/gateways/NAME/bids`, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Bids {
    /// In rising order of slots.
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
    /// Its certificate, in hexadecimal digits of DER.
    pub certificate: String,
}

/// The answer to `POST /v1/leave`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Left {
    /// The pseudonym of the gateway that left.
    pub left: String,
}
