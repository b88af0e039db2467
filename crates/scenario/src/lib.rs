//! What simulation and emulation share: scenario files, the link, traffic sources and scoring.
//!
//! A [`Scenario`] is read from a TOML file. The simulator plays it in virtual time, the lab in
//! network namespaces with real TCP; both drive the same [`app`]s over the same [`link`] and make
//! the same [`report::Report`].
//!
//! | module | contains |
//! |---|---|
//! | [`Scenario`] and the items of this module | what is played: link, groups, flows and their steps |
//! | [`Control`] | with what it is played |
//! | [`link`] | a bottleneck with its queue, as a state machine in virtual time |
//! | [`police`] | policing points before the bottleneck, with the algorithms of the core and their baselines |
//! | [`app`] | what flows do: downloads, films, web pages, as state machines |
//! | [`report`] | how well the groups got their fair shares, from what left the link |
//! | [`play`] | which runs a command plays: controls and seeds |
//! | [`bbr`], [`random`] | parts of BBR and the random numbers that both use |
//!
//! Nothing here reads a clock or a file; the same input gives the same output.
#![forbid(unsafe_code)]

pub mod app;
pub mod bbr;
mod control;
pub mod link;
pub mod play;
pub mod police;
pub mod random;
pub mod report;
mod scenario;
#[cfg(feature = "testing")]
pub mod testing;

pub use control::{Control, UnknownControl};
pub use scenario::*;
