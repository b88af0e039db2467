//! Reads the TOML files of every daemon and of the scenarios.
//!
//! | module | its job |
//! |---|---|
//! | [`table`] | takes a document's keys one by one; what is left is unknown; every error has a line |
//! | [`output`] | writes the files of `--out` and the like, also as root in directories of others |
//! | [`overrides`] | `--set link.rate=47mbit`: keys put into a document before it is read |
//! | [`plan`] | how a rate is shared: the keys that an operator's plan and a scenario's policing point have in common |
#![forbid(unsafe_code)]

pub mod output;
pub mod overrides;
pub mod plan;
pub mod table;

pub use overrides::{BadOverride, Override};
pub use table::{ConfigError, Origin, Place, Placed, Source, Table, not_one_of};
