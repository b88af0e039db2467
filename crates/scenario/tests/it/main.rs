//! The scenarios of the repository.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod scenarios;
