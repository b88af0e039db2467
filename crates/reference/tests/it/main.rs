//! The market's optimum beside a generic solver.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod clarabel;
mod optimum;
