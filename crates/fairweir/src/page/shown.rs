//! What the page shows, as data: the document and the stream of events are made of the same [`View`].
//! `page.ts` declares the same types.

use serde::Serialize;

/// All daemons of this machine.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct View {
    pub(super) daemons: Vec<DaemonView>,
}

/// One daemon.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct DaemonView {
    /// The instance, such as `host-eth0`.
    pub(super) name: String,
    /// What it does now.
    pub(super) headline: String,
    /// Why nothing else is known, if so.
    pub(super) error: Option<String>,
    /// A host's link.
    pub(super) link: Option<LinkView>,
    /// Whether subscribers can be searched for.
    pub(super) search: bool,
    /// What a household wants of the credit market.
    pub(super) household: Option<HouseholdView>,
    /// What else it counts.
    pub(super) tables: Vec<TableView>,
    /// Names and values, for daemons of other kinds.
    pub(super) facts: Vec<(String, String)>,
    /// What to know besides, each with a word for what it is about.
    pub(super) notes: Vec<(String, String)>,
}

/// A table of texts. The first cell of a row names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct TableView {
    /// Unique in its daemon.
    pub(super) key: &'static str,
    pub(super) caption: &'static str,
    pub(super) headings: Vec<&'static str>,
    /// Each as long as `headings`.
    pub(super) rows: Vec<Vec<String>>,
}

impl TableView {
    /// A table without rows.
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
    /// What shares it.
    pub(super) members: Members,
    pub(super) is_paused: bool,
    pub(super) capacity_bps: Option<u64>,
    /// Delay of the queue at the ISP.
    pub(super) queue_ms: Option<f64>,
    /// Its target; null if the control has none.
    pub(super) latency_ms: Option<f64>,
    pub(super) groups: Vec<GroupView>,
    /// The newest first.
    pub(super) changes: Vec<ChangeView>,
    pub(super) connections_all: usize,
    pub(super) connections: Vec<ConnectionView>,
}

/// What shares a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Members {
    #[default]
    Groups,
    /// Of a router.
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
    /// Null if no bound of it is known.
    pub(super) demand_bps: Option<u64>,
    pub(super) received_bytes: u64,
    pub(super) connections: u64,
    pub(super) state: String,
}

/// What the control did.
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

/// What a household wants.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct HouseholdView {
    pub(super) kinds: Vec<String>,
    /// `always` first.
    pub(super) rows: Vec<WantedView>,
}

/// What it wants at a time of the week.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct WantedView {
    pub(super) name: String,
    /// When that is.
    pub(super) when: String,
    /// Before the kind in keys of settings.
    pub(super) key: String,
    /// By kind, 0 to 3; null if this time does not say.
    pub(super) importance: Vec<Option<u8>>,
}
