//! What the page shows, as data: the document and the stream of events are both made from a
//! [`View`]. `page.ts` declares the same types.

use serde::Serialize;

/// The view of all daemons of this machine.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct View {
    pub(super) daemons: Vec<DaemonView>,
}

/// The view of one daemon.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct DaemonView {
    /// The instance, such as `host-eth0`.
    pub(super) name: String,
    /// What the daemon does now.
    pub(super) headline: String,
    /// The reason if nothing else is known.
    pub(super) error: Option<String>,
    /// The link of a host or router.
    pub(super) link: Option<LinkView>,
    /// Whether subscribers can be searched for.
    pub(super) search: bool,
    /// A household's preferences for the credit market.
    pub(super) household: Option<HouseholdView>,
    /// Tables of further counters.
    pub(super) tables: Vec<TableView>,
    /// Names and values, for daemons without a view of their own.
    pub(super) facts: Vec<(String, String)>,
    /// Further remarks, each with a word that names its topic.
    pub(super) notes: Vec<(String, String)>,
}

/// A table of texts. The first cell of a row is its heading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct TableView {
    /// Unique among the tables of a daemon.
    pub(super) key: &'static str,
    pub(super) caption: &'static str,
    pub(super) headings: Vec<&'static str>,
    /// Each row is as long as `headings`.
    pub(super) rows: Vec<Vec<String>>,
}

impl TableView {
    /// A table that has no rows yet.
    pub(super) fn new(
        key: &'static str,
        caption: &'static str,
        headings: &[&'static str],
    ) -> TableView {
        TableView { key, caption, headings: headings.to_vec(), rows: Vec::new() }
    }
}

/// How a link is shared.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LinkView {
    /// The kind of members that share the link.
    pub(super) members: Members,
    pub(super) is_paused: bool,
    pub(super) capacity_bps: Option<u64>,
    /// The queueing delay at the ISP.
    pub(super) queue_ms: Option<f64>,
    /// The target of that delay; null if the control has none.
    pub(super) latency_ms: Option<f64>,
    pub(super) groups: Vec<GroupView>,
    /// The newest change is first.
    pub(super) changes: Vec<ChangeView>,
    pub(super) connections_all: usize,
    pub(super) connections: Vec<ConnectionView>,
}

/// The kind of members that share a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Members {
    #[default]
    Groups,
    /// The devices behind a router.
    Devices,
}

/// One group, or one device of a router.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupView {
    pub(super) name: String,
    pub(super) matches: String,
    pub(super) weight: u32,
    pub(super) rate_bps: u64,
    pub(super) share_bps: u64,
    /// Null if no bound of the demand is known.
    pub(super) demand_bps: Option<u64>,
    pub(super) received_bytes: u64,
    pub(super) connections: u64,
    pub(super) state: String,
}

/// A change that the control made.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangeView {
    pub(super) ago_s: f64,
    pub(super) reason: String,
}

/// One connection.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConnectionView {
    pub(super) group: String,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) rate_bps: u64,
    pub(super) rtt_ms: Option<f64>,
    pub(super) limited_by: String,
}

/// A household's preferences.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct HouseholdView {
    pub(super) kinds: Vec<String>,
    /// The row `always` is first.
    pub(super) rows: Vec<WantedView>,
}

/// A household's preferences at a time of the week.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct WantedView {
    pub(super) name: String,
    /// The time of the week.
    pub(super) when: String,
    /// The prefix before the kind in keys of settings.
    pub(super) key: String,
    /// By kind, 0 to 3; null if none is set for this time.
    pub(super) importance: Vec<Option<u8>>,
}
