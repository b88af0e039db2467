//! Compares the market's optimum with a generic solver.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod clarabel;
mod optimum;
