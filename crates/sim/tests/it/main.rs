//! Results of the controls and the policers in the simulator.
#![allow(clippy::unwrap_used, reason = "it is a test")]

mod bundle;
mod crab;
mod fairweir;
mod harm;
mod police;
mod police_bundle;
mod police_traffic;
mod sites;
mod strict_priority;
