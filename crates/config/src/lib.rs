//! Reads all files that users write for fairweir and makes valid configuration of them; writes the
//! files and the output of commands.
//!
//! | module | its job |
//! |---|---|
//! | [`file`](mod@file) | opens input files safely; who may write each input and what they gain |
//! | [`table`] | takes the keys of a TOML document one by one; refuses the rest; every error has a line |
//! | [`mistakes`] | reports all mistakes of a file at once |
//! | [`output`] | writes files such as those of `--out`, safely even as root in others' directories |
//! | `kind` | recognises which command a file is for |
//! | [`overrides`] | `--set link.rate=47mbit`: keys that are put into a document before it is read |
//! | [`words`] | "did you mean" |
//! | [`text`] | escapes control characters for terminals |
//! | [`value`] | values in files and on the command line |
//! | [`host`] | the files of `fairweir host` |
//! | [`isp`] | the files of `fairweir isp` |
//! | [`agent`] | the file of `fairweir market agent` |
//! | [`sender`] | the file of `fairweir sender` |
//! | [`applications`] | applications by the names of their servers |
//! | [`devices`](mod@devices) | systems and kinds of devices by what they send |
//! | [`target`] | the target of a connection: common keys of senders and scenarios |
//! | [`uci`] | OpenWrt's form of a router's file |
//! | [`plan`] | how a rate is shared: common keys of plans and the policing points of scenarios |
//!
//! All errors are [`ConfigError`]s: `FILE:LINE: key: what was found, what is allowed`.
#![forbid(unsafe_code)]

pub mod agent;
pub mod applications;
pub mod devices;
mod error;
pub mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod host;
pub mod isp;
mod kind;
pub mod mistakes;
pub mod output;
pub mod overrides;
pub mod plan;
pub mod proxy;
pub mod sender;
pub mod table;
pub mod target;
pub mod text;
pub mod uci;
pub mod value;
pub mod words;

pub use error::{ConfigError, Origin, one_line, plain};
pub use file::Text;
pub use kind::FileKind;
pub use overrides::{BadOverride, Override};
pub use table::{Place, Placed, Source, Table};
pub use value::MetricsAt;
pub use words::{did_you_mean, nearest, not_one_of};

/// The only version of the formats so far.
pub const VERSION: u64 = 1;
