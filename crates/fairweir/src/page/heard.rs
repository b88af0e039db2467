//! A daemon's reply about its counters, for the history.

/// A daemon's reply about its counters.
pub(crate) struct Heard {
    /// The run of the daemon to which the counters belong.
    pub(crate) run: String,
    /// Seconds since the daemon started.
    pub(crate) since_s: f64,
    pub(crate) capacity_bps: Option<u64>,
    pub(crate) queue_ms: Option<f64>,
    pub(crate) groups: Vec<GroupSample>,
}

/// What the daemon reported about a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GroupSample {
    pub(crate) name: String,
    /// Bytes received since the start of this run.
    pub(crate) received: u64,
    /// `None` if no bound of its demand is known.
    pub(crate) demand_bps: Option<u64>,
    pub(crate) weight: u32,
}
