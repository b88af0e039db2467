//! The credit market: its server, which keeps the ledger of the households of a link in a database, and
//! the agent by which their gateways bid.
//!
//! | module | its job |
//! |---|---|
//! | [`book`] | gateways, bids, slots: what may happen, and what it does (pure) |
//! | [`clock`] | whether the time of this host can be believed (pure) |
//! | [`keeper`] | one thread that commits every change before it is answered |
//! | [`store`] | the database: SQLite or PostgreSQL, used by any number of servers |
//! | [`identity`] | the market's own certificate authority, and one certificate per gateway |
//! | [`http`] | HTTP over mutual TLS, both ends, bounded in every direction |
//! | [`api`] | requests to operations, operations to answers |
//! | [`messages`] | the JSON of requests and answers |
//! | [`client`] | the gateway's end |
//! | [`household`] | what a gateway's agent bids, and why (pure) |
//! | [`guarantees`] | the rates of a slot, and what enforces them |
//!
//! The arithmetic is `fairweir_core::market`.
#![forbid(unsafe_code)]

pub mod api;
pub mod book;
pub mod client;
pub mod clock;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod guarantees;
pub mod household;
pub mod http;
pub mod identity;
pub mod keeper;
pub mod messages;
#[cfg(test)]
mod openapi;
#[cfg(test)]
mod schemas;
pub mod store;

use std::fmt::Write as _;

/// Bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The SHA-256 of some bytes, as hexadecimal digits.
fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// The hash by which a one-time code is stored.
pub fn code_hash(code: &str) -> String {
    sha256(code.as_bytes())
}
