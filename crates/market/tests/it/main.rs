//! The market's server and its store.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod server;
mod store;
