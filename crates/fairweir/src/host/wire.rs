//! The status of `fairweir host`. Its schema is documented in docs/reference/status.md.

use std::net::IpAddr;
use std::path::PathBuf;

use fairweir_config::host::set::Changes;
use fairweir_core::calendar::Period;
use fairweir_core::market::guarantee::Guarantee;
use fairweir_core::packet::Mac;
use fairweir_core::policy::{Match, PATH_SEPARATOR};
use fairweir_core::receiver::{Act, Control, DelaySource, GroupDecision};
use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Rate};
use fairweir_core::upload::UploadPhase;
use serde::{Deserialize, Serialize};

/// What the daemon knows and does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Status {
    /// Of fairweir.
    pub(crate) version: String,
    /// The interface.
    pub(crate) dev: String,
    /// The daemon's process.
    pub(crate) pid: u32,
    /// Another one after each start: what is counted since then is of this run.
    pub(crate) run: String,
    /// Whether it is attached to the interface.
    pub(crate) ready: bool,
    /// The way of control.
    pub(crate) control: Control,
    /// Whether it only says what it would do.
    pub(crate) dry_run: bool,
    /// Whether everything passes unshaped because a person asked for it.
    pub(crate) paused: bool,
    /// Whether downloads are shaped now.
    pub(crate) enforcing: bool,
    /// Who divides; null if no other host is to be asked.
    #[serde(default)]
    pub(crate) divider: Option<DividerStatus>,
    /// Why everything passes unshaped although it should not, if so.
    pub(crate) open_reason: Option<String>,
    /// What the link is believed to carry.
    pub(crate) capacity_bps: Option<Rate>,
    /// Target of the queue at the ISP that is in force; null if the control has none.
    pub(crate) latency_ms: Option<f64>,
    /// What the household's agent of the credit market says that the slot has bought; null if no agent does.
    #[serde(default)]
    pub(crate) guaranteed_bps: Option<Rate>,
    /// The most that is let through meanwhile, because nothing else enforces the market's rates; else null.
    #[serde(default)]
    pub(crate) held_bps: Option<Rate>,
    /// What was remembered of this network when the control began.
    pub(crate) remembered: Option<Remembered>,
    /// What the network is recognised by.
    pub(crate) network: Option<String>,
    /// Seconds since the start of the daemon.
    pub(crate) since_s: f64,
    /// What the control did last: an object with `kind` and its numbers.
    pub(crate) act: Act,
    /// The same for people.
    pub(crate) reason: String,
    /// The last acts other than to measure, oldest first.
    pub(crate) changes: Vec<Change>,
    /// In the policy's order.
    pub(crate) groups: Vec<GroupStatus>,
    /// What is not covered.
    pub(crate) limits: Vec<String>,
    /// What the queue of the access link adds to the delay; null while it is unknown.
    pub(crate) delay: Option<DelayStatus>,
    /// TCP connections that received something in the last tick, or whose window is bounded.
    pub(crate) connections: u64,
    /// How many of them have a window that is bounded.
    pub(crate) bounded_connections: u64,
    /// How connections are assigned to sites; null without `web:` rules.
    pub(crate) sites: Option<SitesStatus>,
    /// The round-trip time to a host behind the access link; null if there is no probe.
    pub(crate) probe: Option<ProbeStatus>,
    /// What arrived for the router itself since the start, in L2 bytes; null on a host.
    pub(crate) own_received_bytes: Option<Bytes>,
    /// Whose the names in `host:` matches are; null on a host.
    #[serde(default)]
    pub(crate) hosts: Option<Vec<HostStatus>>,
    /// Devices that are divided as their own fairweir asks; null on a host.
    #[serde(default)]
    pub(crate) clients: Option<Vec<DeviceClientStatus>>,
    /// What leaves; null if the upload is not shared.
    #[serde(default)]
    pub(crate) upload: Option<UploadStatus>,
    /// Why the configuration on disk is not in force, if so.
    pub(crate) config_error: Option<String>,
}

/// Who divides the download, this host or another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct DividerStatus {
    /// Who is asked.
    pub(crate) address: Option<IpAddr>,
    /// Whether it divides.
    pub(crate) divides: bool,
    /// What it divides, if it says so.
    pub(crate) rate_bps: Option<Rate>,
    /// Since when, in seconds.
    pub(crate) since_s: Option<f64>,
    /// When what arrived was last as agreed, in seconds before now.
    pub(crate) verified_s: Option<f64>,
    /// Who divides and why, for people.
    pub(crate) words: String,
}

/// A device that is divided as its own fairweir asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct DeviceClientStatus {
    /// Its name.
    pub(crate) device: String,
    /// Who asks.
    pub(crate) address: IpAddr,
    /// How many classes it has.
    pub(crate) classes: usize,
    /// Until the agreement ends if it is not renewed, in seconds.
    pub(crate) ends_in_s: f64,
    /// Flows that are bound to classes.
    pub(crate) bound: usize,
    /// Marks that found no room since the agreement began.
    pub(crate) refused: u32,
}

/// What leaves by the interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct UploadStatus {
    /// Whether it is shaped now.
    pub(crate) enforcing: bool,
    /// `fixed`, `open`, `drain`, `hold` or `raise`.
    pub(crate) phase: UploadPhase,
    /// What the uplink is believed to carry.
    pub(crate) capacity_bps: Option<Rate>,
    /// What all groups may send together; null is not limited.
    pub(crate) limit_bps: Option<Rate>,
    /// What the uplink's queue adds to the delay, as measured last.
    pub(crate) queue_ms: Option<f64>,
    /// In the policy's order.
    pub(crate) groups: Vec<UploadGroupStatus>,
}

/// A group's part of the upload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct UploadGroupStatus {
    /// Of the group.
    pub(crate) name: String,
    /// What it had to send in the last tick.
    pub(crate) rate_bps: Rate,
    /// What its class has of its own, beyond which it borrows what others leave; in a dry run what it would
    /// have. Null while nothing is limited.
    pub(crate) share_bps: Option<Rate>,
    /// The same since the start, in L2 bytes, before its class.
    pub(crate) offered_bytes: Bytes,
    /// Packets that its class dropped.
    pub(crate) drops: u64,
    /// What waits in its class.
    pub(crate) backlog_bytes: Bytes,
}

/// A `host:` match, and the device that has the name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct HostStatus {
    /// The name.
    pub(crate) name: String,
    /// The device of the configuration.
    pub(crate) group: String,
    /// Null if no device has a lease with this name, or only ones that are listed by `mac:`.
    pub(crate) mac: Option<Mac>,
    /// How many other devices claim the name.
    pub(crate) rivals: usize,
}

/// What can be asked of `fairweir host` beyond the requests of every daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum HostRequest {
    /// Answered by [`Connections`].
    Connections {
        /// How many, those that received most first; at most 1,000.
        limit: usize,
    },
    /// Answered by [`Neighbours`].
    Neighbours,
    /// Answered by [`Changed`]: puts values into the file of `[set]`, and applies them.
    Set {
        /// See [`fairweir_config::host::set::Changes`].
        changes: Changes,
    },
    /// Answered by a text: changes a group for a time, in place of what changes it already.
    Timed {
        /// Its path.
        group: String,
        /// How it is changed.
        change: TimedChange,
        /// For how many seconds.
        for_s: u64,
    },
    /// Answered by a text: ends such a change.
    EndTimed {
        /// Of this group.
        group: String,
    },
    /// Answered by a text: nothing of the quota of a group was used.
    ResetQuota {
        /// Its path.
        group: String,
    },
    /// Answered by a text: everything passes unshaped for a time, for a comparison.
    Open {
        /// For how many seconds; 0 ends it.
        for_s: u64,
    },
    /// The rate that a slot of the credit market has bought, from the household's agent.
    Guarantee(Guarantee),
    /// What a browser's extension says; answered by [`ClaimsReply`].
    Claims(ClaimsRequest),
}

/// How a group is changed for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) enum TimedChange {
    /// It has more.
    Boost {
        /// Its weight meanwhile; null is four times the configured one.
        weight: Option<Weight>,
    },
    /// It has next to nothing.
    Pause,
}

/// A change of a group that ends by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct TimedStatus {
    /// How the group is changed.
    pub(crate) change: TimedChange,
    /// Its weight before and after.
    pub(crate) configured_weight: Weight,
    /// Until it ends, in seconds.
    pub(crate) left_s: u64,
}

/// What follows the calendar for a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct PlanStatus {
    /// Null without a quota.
    pub(crate) quota: Option<QuotaStatus>,
    /// The entries of its schedule in force now, such as `mon-fri 08:00-18:00: max 2mbit`.
    pub(crate) schedule: Vec<String>,
}

/// A quota.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct QuotaStatus {
    /// In L2 bytes, as all here.
    pub(crate) amount_bytes: Bytes,
    /// In each of these.
    pub(crate) per: Period,
    /// What arrived for the group in this one, before its class.
    pub(crate) used_bytes: Bytes,
    /// Until it is used up.
    pub(crate) left_bytes: Bytes,
    /// Whether `then_bps` is in force.
    pub(crate) used_up: bool,
    /// What it may receive at most when it is used up.
    pub(crate) then_bps: Rate,
    /// Until the next period begins, in seconds; null if no clock can tell.
    pub(crate) ends_in_s: Option<u64>,
}

/// The devices behind a router; a host has no such list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Neighbours {
    /// The files of the configuration, in the order in which they were merged.
    pub(crate) files: Vec<PathBuf>,
    /// Those that were heard of last first; at most 1,024.
    pub(crate) neighbours: Vec<NeighbourStatus>,
}

/// A device in the LAN, as the kernel's table of neighbours has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct NeighbourStatus {
    /// Its link-layer address.
    pub(crate) mac: Mac,
    /// In the LAN, of both families.
    pub(crate) addresses: Vec<IpAddr>,
    /// The device of the configuration; null if it is in `default`.
    pub(crate) device: Option<String>,
    /// What it is called by DHCP; null without a lease that this router has heard.
    pub(crate) dhcp_name: Option<String>,
    /// Since it came, as far as the daemon or its lease know, in seconds.
    pub(crate) since_s: u64,
    /// Since the kernel last knew that it is there, in seconds.
    pub(crate) silent_s: u64,
}

/// The connections of the last tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Connections {
    /// How many there are.
    pub(crate) all: usize,
    /// Those that received most.
    pub(crate) connections: Vec<ConnectionStatus>,
}

/// One TCP connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ConnectionStatus {
    /// The socket's cookie, as `ss --extended` prints it (`sk:`).
    pub(crate) id: u64,
    /// The flow group.
    pub(crate) group: String,
    /// The server's port.
    pub(crate) port: u16,
    /// Payload received in the last tick.
    pub(crate) rate_bps: Rate,
    /// The receiver's own estimate; null while there is none.
    pub(crate) rtt_ms: Option<f64>,
    /// The largest window that it may advertise.
    pub(crate) window_bytes: Bytes,
    /// What keeps it from receiving more.
    pub(crate) limited_by: LimitedBy,
    /// How its host is known; null if the host does not decide its group.
    pub(crate) evidence: Option<EvidenceStatus>,
}

/// How the host of a connection is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EvidenceStatus {
    /// `extension`, `host`, `sni`, `dns`, `mixed` or `unnamed`.
    pub(crate) reason: String,
    /// The host; null if it is not one, or at the socket that only reads.
    pub(crate) name: Option<String>,
}

/// How connections were assigned to sites, since the start of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct SitesStatus {
    /// Connections of now whose beginning has not named a host yet.
    pub(crate) undecided: u64,
    /// By a browser's extension.
    pub(crate) by_extension: u64,
    /// By the `Host` field of an HTTP request.
    pub(crate) by_host: u64,
    /// By the server name indication of TLS or QUIC.
    pub(crate) by_sni: u64,
    /// By the DNS answer that gave the address.
    pub(crate) by_dns: u64,
    /// Whose beginning names no host that is known.
    pub(crate) unnamed: u64,
    /// Names of different groups on one flow.
    pub(crate) mixed: u64,
    /// With an encrypted ClientHello.
    pub(crate) ech: u64,
    /// Connections for DNS over TLS, whose answers cannot be read.
    pub(crate) encrypted_dns: u64,
    /// Beginnings that were lost because too many came at once.
    pub(crate) lost: u64,
    /// What browsers' extensions have said.
    pub(crate) claims: ClaimsStatus,
}

/// What browsers' extensions have said, since the start of the daemon, in events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ClaimsStatus {
    /// Users whose extension was heard in the last minute.
    pub(crate) users: u64,
    /// About a connection that is known.
    pub(crate) counted: u64,
    /// About an unknown connection: another interface, another user, a name that was not seen.
    pub(crate) unmatched: u64,
    /// In another form, or not requests at all.
    pub(crate) malformed: u64,
    /// More than a user may send.
    pub(crate) over_rate: u64,
    /// With a time more than 10 s away.
    pub(crate) out_of_time: u64,
    /// Sent twice.
    pub(crate) repeated: u64,
    /// Of a configuration that is not in force any more.
    pub(crate) stale: u64,
}

impl ClaimsStatus {
    /// Those that were not looked at.
    pub(crate) fn refused(&self) -> u64 {
        self.malformed + self.over_rate + self.out_of_time + self.repeated + self.stale
    }
}

impl SitesStatus {
    /// The decisions, by what they rest on.
    pub(crate) fn by_evidence(&self) -> [(&'static str, u64); 6] {
        [
            ("extension", self.by_extension),
            ("host", self.by_host),
            ("sni", self.by_sni),
            ("dns", self.by_dns),
            ("unnamed", self.unnamed),
            ("mixed", self.mixed),
        ]
    }
}

/// What keeps a connection from receiving more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LimitedBy {
    /// Its window, which fairweir bounds to its share.
    Share,
    /// Its window, as large as the receive buffer allows.
    Buffer,
    /// The sender or the path: it does not fill its window.
    Sender,
}

/// A capacity from an earlier time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Remembered {
    /// What the link carried.
    pub(crate) capacity_bps: Rate,
    /// How old this was when it was read.
    pub(crate) age_s: u64,
}

/// What the queue of the access link adds to the delay, as the control concludes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct DelayStatus {
    /// The mean of the last tick.
    pub(crate) mean_ms: f64,
    /// The least of the last tick.
    pub(crate) least_ms: f64,
    /// Who measured it.
    pub(crate) source: DelaySource,
    /// On how many packets.
    pub(crate) samples: u32,
}

/// A probe of the access link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ProbeStatus {
    /// The host that answers or is asked; null while no host was found.
    pub(crate) reflector: Option<String>,
    /// Requests that were answered or lost since the probe's start.
    pub(crate) sent: u64,
    /// How many of them were answered.
    pub(crate) answered: u64,
    /// The newest round-trip time.
    pub(crate) rtt_last_ms: Option<f64>,
    /// Why no host is asked, if so.
    pub(crate) error: Option<String>,
}

/// Something that the control did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Change {
    /// Seconds since the start of the daemon.
    pub(crate) at_s: f64,
    /// An object with `kind` and its numbers.
    pub(crate) act: Act,
    /// The same for people.
    pub(crate) reason: String,
}

/// What a change of settings did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Changed {
    /// For people.
    pub(crate) message: String,
    /// The changes that undo it.
    pub(crate) undo: Changes,
}

/// One flow group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct GroupStatus {
    /// As configured; of a group within a device the path, `tv/video`.
    pub(crate) name: String,
    /// In force, among the groups beside it.
    pub(crate) weight: Weight,
    /// What it may receive at most; null without a cap. While it limits, `state` is `capped`.
    #[serde(default)]
    pub(crate) max_bps: Option<Rate>,
    /// What it receives at least if it wants that much; null without a floor.
    #[serde(default)]
    pub(crate) min_bps: Option<Rate>,
    /// What changes it for a time; null if nothing does.
    #[serde(default)]
    pub(crate) timed: Option<TimedStatus>,
    /// Its quota and schedule; null if it has none.
    #[serde(default)]
    pub(crate) plan: Option<PlanStatus>,
    /// The device and the group that it is in, with their weights, the device first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) within: Vec<WithinStatus>,
    /// As configured; empty for the default group.
    #[serde(rename = "match")]
    pub(crate) matches: Vec<Match>,
    /// What arrived in the last tick and what was decided: `rate_bps`, `demand_bps`, `share_bps`,
    /// `ceil_bps` and `state`.
    #[serde(flatten)]
    pub(crate) decision: GroupDecision,
    /// Since the start of the daemon.
    pub(crate) received_bytes: Bytes,
    /// Packets that its class dropped since the start of the daemon.
    pub(crate) drops: u64,
    /// What waits in its class now.
    pub(crate) backlog_bytes: Bytes,
    /// TCP connections that received something in the last tick, or whose window is bounded.
    pub(crate) connections: u64,
    /// How many of them have a window that is bounded.
    pub(crate) bounded_connections: u64,
}

impl GroupStatus {
    /// The first part of its path: the device, or the group of the configuration.
    pub(crate) fn top(&self) -> &str {
        self.name.split(PATH_SEPARATOR).next().unwrap_or_default()
    }

    /// The weight of that.
    pub(crate) fn top_weight(&self) -> Weight {
        self.within.first().map_or(self.weight, |top| top.weight)
    }
}

/// A device or group that has groups beneath it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct WithinStatus {
    /// Its path.
    pub(crate) name: String,
    /// In force.
    pub(crate) weight: Weight,
    /// What all beneath it may receive together at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_bps: Option<Rate>,
    /// What they receive together at least if they want that much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) min_bps: Option<Rate>,
    /// What changes it for a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timed: Option<TimedStatus>,
    /// Its quota and schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<PlanStatus>,
}

/// Of [`ClaimsRequest`] and [`ClaimsReply`].
pub(crate) const CLAIMS_VERSION: u32 = 1;

/// What a browser's extension says, and asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimsRequest {
    /// [`CLAIMS_VERSION`].
    pub(crate) version: u32,
    /// Of the configuration that the extension knows; its events are of that one.
    #[serde(default)]
    pub(crate) generation: Option<u64>,
    /// Requests that leave, and requests whose response has begun.
    #[serde(default)]
    pub(crate) events: Vec<ClaimEvent>,
}

/// One request of a browser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimEvent {
    /// SHA-256 of the salt and the server's name, in hex.
    pub(crate) host: String,
    /// The server's address; null, as `start_ms`, for a request that leaves.
    pub(crate) address: Option<std::net::IpAddr>,
    /// Its port.
    pub(crate) port: u16,
    /// Index of the site's group; null if the site has none.
    pub(crate) group: Option<usize>,
    /// When the request was sent, in ms since 1970.
    pub(crate) begin_ms: f64,
    /// When the response began.
    pub(crate) start_ms: Option<f64>,
    /// The site is only a guess.
    #[serde(default)]
    pub(crate) unsure: bool,
    /// The host has answered by HTTP/1.1.
    #[serde(default)]
    pub(crate) http1: bool,
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClaimsReply {
    /// [`CLAIMS_VERSION`].
    pub(crate) version: u32,
    /// Of the configuration in force.
    pub(crate) generation: u64,
    /// It, if the extension knows another one.
    pub(crate) config: Option<ClaimsConfig>,
    /// What each group receives now, in the order of the configuration.
    pub(crate) rates: Vec<GroupRate>,
}

/// What an extension has to know of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClaimsConfig {
    /// In front of the names that are hashed.
    pub(crate) salt: String,
    /// In the order of the configuration; the last one is that of what no rule names.
    pub(crate) groups: Vec<ClaimsGroup>,
}

/// A group as an extension knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClaimsGroup {
    /// Its name.
    pub(crate) name: String,
    /// Its weight.
    pub(crate) weight: Weight,
    /// Its `web:` rules, without `web:`.
    pub(crate) sites: Vec<String>,
}

/// What a group receives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupRate {
    /// In the last tick.
    pub(crate) rate_bps: Rate,
    /// Its fair share.
    pub(crate) share_bps: Rate,
    /// How it stands to its share.
    pub(crate) state: fairweir_core::receiver::GroupState,
}
