//! What the emulated home and the simulator share: scenario files, the link, the applications and
//! the scoring; and what only the simulator has: TCP and the receiver's enforcer in virtual time.
//!
//! | module | its job |
//! |---|---|
//! | [`scenario`] | what is played: link, groups, flows and their steps, from a TOML file |
//! | [`htb`] | the receiver's own enforcer, as the kernel's HTB, in virtual time |
//! | [`police`] | policing points before the bottleneck, with the algorithms of the core |
//! | [`link`] | a bottleneck with its queue, as a state machine in virtual time |
//! | [`tcp`] | senders and receivers in virtual time, with Linux's congestion controls |
//! | [`report`] | how well the groups got their fair shares, from what left the link |
//! | [`engine`] | plays a scenario with all of these in virtual time |
//! | [`app`] | what flows do: downloads, films, web pages, as state machines |
//!
//! Nothing here reads a clock or touches the outside world; the same input gives the same output.
#![forbid(unsafe_code)]

pub mod app;
pub mod engine;
pub mod htb;
pub mod link;
pub mod police;
pub mod random;
pub mod report;
pub mod scenario;
pub mod tcp;
