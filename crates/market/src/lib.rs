//! The credit market: its server, which keeps the ledger of the households on a link in a database, and the
//! agent that bids for a household's gateway.
//!
//! | module | its job |
//! |---|---|
//! | [`book`] | gateways, bids, slots: allowed events and their effects (pure) |
//! | [`clock`] | whether this host's clock can be trusted (pure) |
//! | [`keeper`] | one thread that commits every change before it is acknowledged |
//! | [`store`] | the database: SQLite or PostgreSQL, used by any number of servers |
//! | [`identity`] | the market's own certificate authority, which issues a certificate to each gateway |
//! | [`http`] | HTTP over mutual TLS, server and client, with limits on everything |
//! | [`api`] | maps requests to operations on the book, and results to responses |
//! | [`messages`] | the JSON of requests and answers |
//! | [`client`] | the gateway's client of the server |
//! | [`household`] | decides what a gateway's agent bids, and why (pure) |
//! | [`guarantees`] | the rates of a slot, and the interface of whatever enforces them |
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

/// Encodes bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The SHA-256 hash of some bytes, in hexadecimal digits.
fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// The hash by which a one-time code is stored.
pub fn code_hash(code: &str) -> String {
    sha256(code.as_bytes())
}
