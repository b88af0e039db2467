//! What a daemon says of what it counts, for the history.

/// What a daemon said of what it counts.
pub(crate) struct Heard {
    /// Which run of the daemon the counters are of.
    pub(crate) run: String,
    /// Seconds since its start.
    pub(crate) since_s: f64,
    pub(crate) capacity_bps: Option<u64>,
    pub(crate) queue_ms: Option<f64>,
    pub(crate) groups: Vec<GroupSample>,
}

/// What it said of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GroupSample {
    pub(crate) name: String,
    /// Since the start of this run.
    pub(crate) received: u64,
    /// `None` if no bound of it is known.
    pub(crate) demand_bps: Option<u64>,
    pub(crate) weight: u32,
}
