//! Plays a scenario in virtual time: the engine, models of TCP and of the receiver's enforcer.
//!
//! | module | contains |
//! |---|---|
//! | [`engine`] | plays a scenario with the modules below and those of `fairweir_scenario` |
//! | [`tcp`] | senders and receivers in virtual time, with Linux's congestion controls |
//! | [`htb`] | the receiver's enforcer, as the kernel's HTB, in virtual time |
//!
//! Nothing here reads a clock or touches the outside world; the same input gives the same output.
#![forbid(unsafe_code)]

pub mod engine;
pub mod htb;
pub mod tcp;
