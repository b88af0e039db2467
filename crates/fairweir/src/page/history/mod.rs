//! What groups received: the last hour by seconds, the last 31 days by minutes.
//!
//! `fairweir page` records, once a second, for all hosts and routers of the machine, also while no
//! browser looks ([`record`]). It has no privileges and controls nothing, so neither a slow disk nor
//! a damaged file can hold a daemon (docs/decisions/0009-the-page-records-the-history.md). It answers
//! `fairweir history` at its socket.
//!
//! | module | its job |
//! |---|---|
//! | [`record`] | from the counters of daemons to samples, and when they are written |
//! | [`store`] | the file: SQLite |
//! | [`show`] | `fairweir history` |
//! | [`suggest`] | `fairweir suggest`: weights that would have helped |

use serde::{Deserialize, Serialize};

pub(crate) use super::ask::Query;
use super::heard::GroupSample;

pub(crate) mod record;
pub(crate) mod show;
pub(crate) mod store;
pub(crate) mod suggest;

pub(crate) use show::run;

/// What a daemon said at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Seconds since 1970.
    pub(crate) at: u64,
    /// The instance.
    pub(crate) daemon: String,
    /// Which run of the daemon the counters are of.
    pub(crate) run: String,
    /// The time since the sample before; `None` if what arrived has no known time.
    pub(crate) span_ms: Option<u64>,
    pub(crate) capacity_bps: Option<u64>,
    pub(crate) queue_ms: Option<f64>,
    pub(crate) groups: Vec<GroupSample>,
}

/// What a group received in a step. Steps in which it received nothing have no point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Point {
    /// Its begin, in seconds since 1970.
    pub(crate) at: u64,
    pub(crate) daemon: String,
    pub(crate) group: String,
    pub(crate) received_bytes: u64,
    /// What arrived in this step or before while it was not recorded.
    pub(crate) late_bytes: u64,
    /// The largest in the step.
    pub(crate) capacity_bps: Option<u64>,
    /// The longest queue at the ISP in the step.
    pub(crate) queue_ms: Option<f64>,
}

/// A reply to a [`Query`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Points {
    pub(crate) points: Vec<Point>,
    /// Where the next ones begin, if there are more.
    pub(crate) next: Option<u64>,
    /// Why nothing is recorded now, if so.
    pub(crate) fault: Option<String>,
}

/// What a group received in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Second {
    /// Seconds since 1970.
    pub(crate) at: u64,
    pub(crate) capacity_bps: Option<u64>,
    /// Its index among the groups of the daemon.
    pub(crate) group: usize,
    pub(crate) weight: u32,
    pub(crate) rate_bps: u64,
    pub(crate) demand_bps: Option<u64>,
}
