//! What groups received: the last hour per second, the last 31 days per minute.
//!
//! `fairweir page` records once a second for all hosts and routers of the machine, even while no
//! browser is connected ([`record`]). It has no privileges and controls nothing, so neither a slow disk
//! nor a damaged file can delay a daemon (docs/decisions/0009-the-page-records-the-history.md). It answers
//!
//! | module | its job |
//! |---|---|
//! | [`record`] | from the counters of daemons to samples, and when they are written |
//! | [`store`] | the file: SQLite |
//! | [`record`] | turns counters of daemons into samples, and decides when they are written |
//! | [`suggest`] | `fairweir suggest`: weights that would have helped |

use serde::{Deserialize, Serialize};

pub(crate) use super::ask::Query;
use super::heard::GroupSample;

pub(crate) mod record;
pub(crate) mod show;
pub(crate) mod store;
pub(crate) mod suggest;

pub(crate) use show::run;

/// What a daemon reported at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Seconds since 1970.
    pub(crate) at: u64,
    /// The daemon's instance.
    pub(crate) daemon: String,
    /// The run of the daemon to which the counters belong.
    pub(crate) run: String,
    /// The time since the previous sample; `None` if it is not known when the bytes arrived.
    pub(crate) span_ms: Option<u64>,
    pub(crate) capacity_bps: Option<u64>,
    pub(crate) queue_ms: Option<f64>,
    pub(crate) groups: Vec<GroupSample>,
}

/// What a group received in a step. A step in which it received nothing has no point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Point {
    /// The begin of the step, in seconds since 1970.
    pub(crate) at: u64,
    pub(crate) daemon: String,
    pub(crate) group: String,
    pub(crate) received_bytes: u64,
    /// Bytes counted in this step that arrived in it or earlier, while nothing was recorded.
    pub(crate) late_bytes: u64,
    /// The largest capacity in the step.
    pub(crate) capacity_bps: Option<u64>,
    /// The longest queueing delay at the ISP in the step.
    pub(crate) queue_ms: Option<f64>,
}

/// A reply to a [`Query`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Points {
    pub(crate) points: Vec<Point>,
    /// The time at which the next query should begin, if there are more points.
    pub(crate) next: Option<u64>,
    /// The reason if nothing is recorded now; null otherwise.
    pub(crate) fault: Option<String>,
}

/// What a group received in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Second {
    /// Seconds since 1970.
    pub(crate) at: u64,
    pub(crate) capacity_bps: Option<u64>,
    /// The index of the group among the groups of the daemon.
    pub(crate) group: usize,
    pub(crate) weight: u32,
    pub(crate) rate_bps: u64,
    pub(crate) demand_bps: Option<u64>,
}
