//! What the emulated home and the simulator share: scenario files, the link and the scoring.
//!
//! | module | its job |
//! |---|---|
//! | [`scenario`] | what is played: link, groups, flows and their steps, from a TOML file |
//! | [`link`] | a bottleneck with its queue, as a state machine in virtual time |
//! | [`tcp`] | senders and receivers in virtual time, with Linux's congestion controls |
//! | [`report`] | how well the groups got their fair shares, from what left the link |
//!
//! Nothing here reads a clock or touches the outside world; the same input gives the same output.
#![forbid(unsafe_code)]

pub mod link;
mod random;
pub mod report;
pub mod scenario;
pub mod tcp;
