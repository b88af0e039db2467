//! Tests a service made with this crate, as a process.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod example;
