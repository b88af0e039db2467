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

/// The daemon's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Status {
    /// The version of fairweir.
    pub(crate) version: String,
    /// The interface.
    pub(crate) dev: String,
    /// The present interface of the access link, on a router that has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<String>,
    /// The process id of the daemon.
    pub(crate) pid: u32,
    /// Differs after each start: counters belong to this run.
    pub(crate) run: String,
    /// Whether the daemon is attached to the interface.
    pub(crate) ready: bool,
    /// The kind of control.
    pub(crate) control: Control,
    /// Whether the daemon only reports what it would do.
    pub(crate) dry_run: bool,
    /// Whether everything passes unshaped because a person asked for it.
    pub(crate) paused: bool,
    /// Whether downloads are shaped now.
    pub(crate) enforcing: bool,
    /// Who divides the download; null if no other host is to be asked.
    #[serde(default)]
    pub(crate) divider: Option<DividerStatus>,
    /// The reason if everything passes unshaped although it should not.
    pub(crate) open_reason: Option<String>,
    /// The estimated capacity of the link.
    pub(crate) capacity_bps: Option<Rate>,
    /// The target of the queueing delay at the ISP that is in force; null if the control has none.
    pub(crate) latency_ms: Option<f64>,
    /// The rate that is bought for the current slot, as told by the household's market agent; null without an agent.
    #[serde(default)]
    pub(crate) guaranteed_bps: Option<Rate>,
    /// The present bound of the download, when nothing else enforces the market's rates; null otherwise.
    #[serde(default)]
    pub(crate) held_bps: Option<Rate>,
    /// The remembered capacity of this network with which the control started.
    pub(crate) remembered: Option<Remembered>,
    /// The identity of the network.
    pub(crate) network: Option<String>,
    /// Seconds since the start of the daemon.
    pub(crate) since_s: f64,
    /// The last act of the control: an object with `kind` and its numbers.
    pub(crate) act: Act,
    /// The act in words, for people.
    pub(crate) reason: String,
    /// The last acts other than `measure`, oldest first.
    pub(crate) changes: Vec<Change>,
    /// In the policy's order.
    pub(crate) groups: Vec<GroupStatus>,
    /// What fairweir does not cover here.
    pub(crate) limits: Vec<String>,
    /// The queueing delay of the access link; null while it is unknown.
    pub(crate) delay: Option<DelayStatus>,
    /// TCP connections that received something in the last tick, or whose window is bounded.
    pub(crate) connections: u64,
    /// The number of those connections whose window is bounded.
    pub(crate) bounded_connections: u64,
    /// How connections are assigned to sites; null without `web:` rules.
    pub(crate) sites: Option<SitesStatus>,
    /// The round-trip time to a host behind the access link; null if there is no probe.
    pub(crate) probe: Option<ProbeStatus>,
    /// What arrived for the router itself since the start, in L2 bytes; null on a host.
    pub(crate) own_received_bytes: Option<Bytes>,
    /// The device of each name in `host:` matches; null on a host.
    #[serde(default)]
    pub(crate) hosts: Option<Vec<HostStatus>>,
    /// Devices whose share is divided as their own fairweir asks; null on a host.
    #[serde(default)]
    pub(crate) clients: Option<Vec<DeviceClientStatus>>,
    /// The state of the upload; null if it is not shared.
    #[serde(default)]
    pub(crate) upload: Option<UploadStatus>,
    /// The reason if the configuration on disk is not in force.
    pub(crate) config_error: Option<String>,
}

/// Who divides the download, this host or another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct DividerStatus {
    /// The address of the divider that is asked.
    pub(crate) address: Option<IpAddr>,
    /// Whether that divider divides.
    pub(crate) divides: bool,
    /// The rate that it divides, if it reports one.
    pub(crate) rate_bps: Option<Rate>,
    /// How long this has been so, in seconds.
    pub(crate) since_s: Option<f64>,
    /// The time since the traffic last matched the agreement, in seconds.
    pub(crate) verified_s: Option<f64>,
    /// Who divides, and why, in words for people.
    pub(crate) words: String,
}

/// A device whose share is divided as its own fairweir asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct DeviceClientStatus {
    /// The device's name.
    pub(crate) device: String,
    /// The address of the client.
    pub(crate) address: IpAddr,
    /// The number of the device's classes.
    pub(crate) classes: usize,
    /// The time until the agreement ends if it is not renewed, in seconds.
    pub(crate) ends_in_s: f64,
    /// The number of flows that are bound to classes.
    pub(crate) bound: usize,
    /// The number of marks that found no room since the agreement began.
    pub(crate) refused: u32,
}

/// The state of the upload through the interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct UploadStatus {
    /// Whether the upload is shaped now.
    pub(crate) enforcing: bool,
    /// `fixed`, `open`, `drain`, `hold` or `raise`.
    pub(crate) phase: UploadPhase,
    /// The estimated capacity of the uplink.
    pub(crate) capacity_bps: Option<Rate>,
    /// The limit of all groups together; null if there is no limit.
    pub(crate) limit_bps: Option<Rate>,
    /// The queueing delay of the uplink, as last measured.
    pub(crate) queue_ms: Option<f64>,
    /// In the policy's order.
    pub(crate) groups: Vec<UploadGroupStatus>,
}

/// A group's part of the upload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct UploadGroupStatus {
    /// The name of the group.
    pub(crate) name: String,
    /// The rate that the group had to send in the last tick.
    pub(crate) rate_bps: Rate,
    /// The guaranteed rate of its class, beyond which it borrows what others leave unused; in a dry
    /// run the rate it would have. Null while nothing is limited.
    pub(crate) share_bps: Option<Rate>,
    /// The bytes that the group had to send since the start, in L2 bytes, before its class.
    pub(crate) offered_bytes: Bytes,
    /// The number of packets that its class dropped.
    pub(crate) drops: u64,
    /// The bytes that wait in its class.
    pub(crate) backlog_bytes: Bytes,
}

/// A `host:` match, and the device that has the name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct HostStatus {
    /// The name.
    pub(crate) name: String,
    /// The configuration's device with this name.
    pub(crate) group: String,
    /// Null if no device has a lease with this name, or only devices that are listed by `mac:`.
    pub(crate) mac: Option<Mac>,
    /// The number of other devices that claim the name.
    pub(crate) rivals: usize,
}

/// The requests to `fairweir host` beyond those that every daemon has.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum HostRequest {
    /// The reply is [`Connections`].
    Connections {
        /// The most connections in the reply, those that received most first; at most 1,000.
        limit: usize,
    },
    /// The reply is [`Neighbours`].
    Neighbours,
    /// Writes values to the file of `[set]`, and applies them. The reply is [`Changed`].
    Set {
        /// See [`fairweir_config::host::set::Changes`].
        changes: Changes,
    },
    /// Changes a group for a time; this replaces a present change. The reply is a text.
    Timed {
        /// The path of the group.
        group: String,
        /// The change.
        change: TimedChange,
        /// The duration in seconds.
        for_s: u64,
    },
    /// Ends such a change. The reply is a text.
    EndTimed {
        /// The path of the group.
        group: String,
    },
    /// Resets the usage of a group's quota. The reply is a text.
    ResetQuota {
        /// The path of the group.
        group: String,
    },
    /// Lets everything pass unshaped for a time, for a comparison. The reply is a text.
    Open {
        /// The duration in seconds; 0 ends it.
        for_s: u64,
    },
    /// The rate that is bought for a slot of the credit market, from the household's agent.
    Guarantee(Guarantee),
    /// A message of a browser's extension; the reply is [`ClaimsReply`].
    Claims(ClaimsRequest),
}

/// A temporary change of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) enum TimedChange {
    /// The group gets a larger weight.
    Boost {
        /// The weight meanwhile; null means four times the configured one.
        weight: Option<Weight>,
    },
    /// The group gets next to nothing.
    Pause,
}

/// The temporary change of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct TimedStatus {
    /// The change.
    pub(crate) change: TimedChange,
    /// The weight before and after the change.
    pub(crate) configured_weight: Weight,
    /// The seconds until it ends.
    pub(crate) left_s: u64,
}

/// The quota and the schedule of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct PlanStatus {
    /// Null if the group has no quota.
    pub(crate) quota: Option<QuotaStatus>,
    /// The entries of the schedule that are in force now, such as `mon-fri 08:00-18:00: max 2mbit`.
    pub(crate) schedule: Vec<String>,
}

/// The state of a quota.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct QuotaStatus {
    /// The amount per period, in L2 bytes, like all bytes here.
    pub(crate) amount_bytes: Bytes,
    /// The period.
    pub(crate) per: Period,
    /// The bytes that arrived for the group in the present period, before its class.
    pub(crate) used_bytes: Bytes,
    /// The remaining bytes until it is used up.
    pub(crate) left_bytes: Bytes,
    /// Whether `then_bps` is in force.
    pub(crate) used_up: bool,
    /// The most that the group may receive once the quota is used up.
    pub(crate) then_bps: Rate,
    /// The seconds until the next period begins; null if that cannot be computed.
    pub(crate) ends_in_s: Option<u64>,
}

/// The devices behind a router; a host has no such list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Neighbours {
    /// The files of the configuration, in the order in which they were merged.
    pub(crate) files: Vec<PathBuf>,
    /// The most recently heard come first; at most 1,024.
    pub(crate) neighbours: Vec<NeighbourStatus>,
}

/// A device in the LAN, from the kernel's table of neighbours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct NeighbourStatus {
    /// Its link-layer address.
    pub(crate) mac: Mac,
    /// Its addresses in the LAN, of both families.
    pub(crate) addresses: Vec<IpAddr>,
    /// The device of the configuration to which it belongs; null if it is in `default`.
    pub(crate) device: Option<String>,
    /// Its DHCP name; null if this router has seen no lease of it.
    pub(crate) dhcp_name: Option<String>,
    /// How long it has been present, as far as the daemon or its lease show, in seconds.
    pub(crate) since_s: u64,
    /// The time since the kernel last confirmed that it is present, in seconds.
    pub(crate) silent_s: u64,
}

/// The connections of the last tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Connections {
    /// The number of all connections.
    pub(crate) all: usize,
    /// The connections that received most.
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
    /// The rate of payload in the last tick.
    pub(crate) rate_bps: Rate,
    /// The receiver's own estimate of the round-trip time; null while there is none.
    pub(crate) rtt_ms: Option<f64>,
    /// The largest window that the connection may advertise.
    pub(crate) window_bytes: Bytes,
    /// What keeps the connection from receiving more.
    pub(crate) limited_by: LimitedBy,
    /// How its host is known; null if the host does not decide its group.
    pub(crate) evidence: Option<EvidenceStatus>,
}

/// How the host of a connection is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EvidenceStatus {
    /// `extension`, `host`, `sni`, `dns`, `mixed` or `unnamed`.
    pub(crate) reason: String,
    /// The host's name; null if it is unknown, or at the read-only socket.
    pub(crate) name: Option<String>,
}

/// How connections were assigned to sites since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct SitesStatus {
    /// Present connections whose first bytes have not named a host yet.
    pub(crate) undecided: u64,
    /// The number assigned by a browser's extension.
    pub(crate) by_extension: u64,
    /// The number assigned by the `Host` field of an HTTP request.
    pub(crate) by_host: u64,
    /// The number assigned by the server name indication of TLS or QUIC.
    pub(crate) by_sni: u64,
    /// The number assigned by the DNS answer that gave the address.
    pub(crate) by_dns: u64,
    /// Connections whose first bytes name no known host.
    pub(crate) unnamed: u64,
    /// Flows with names of different groups.
    pub(crate) mixed: u64,
    /// Connections with an encrypted ClientHello.
    pub(crate) ech: u64,
    /// Connections for DNS over TLS, whose answers cannot be read.
    pub(crate) encrypted_dns: u64,
    /// First bytes of connections that were lost because too many came at once.
    pub(crate) lost: u64,
    /// The claims of browsers' extensions.
    pub(crate) claims: ClaimsStatus,
}

/// Claims of browsers' extensions since the daemon started, in events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ClaimsStatus {
    /// The number of users whose extension was heard in the last minute.
    pub(crate) users: u64,
    /// Events about a known connection.
    pub(crate) counted: u64,
    /// Events about an unknown connection: on another interface, of another user, or with a name that was not seen.
    pub(crate) unmatched: u64,
    /// Events in another form, or messages that are not requests.
    pub(crate) malformed: u64,
    /// Events beyond the rate that a user may send.
    pub(crate) over_rate: u64,
    /// Events with a time that differs from now by more than 10 s.
    pub(crate) out_of_time: u64,
    /// Events that were sent twice.
    pub(crate) repeated: u64,
    /// Events for a configuration that is no longer in force.
    pub(crate) stale: u64,
}

impl ClaimsStatus {
    /// The number of events that were not used.
    pub(crate) fn refused(&self) -> u64 {
        self.malformed + self.over_rate + self.out_of_time + self.repeated + self.stale
    }
}

impl SitesStatus {
    /// The number of decisions by kind of evidence.
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
    /// Its window, which fairweir bounds to the connection's share.
    Share,
    /// Its window, as large as the receive buffer allows.
    Buffer,
    /// The sender or the path: the connection does not fill its window.
    Sender,
}

/// A capacity that was stored earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Remembered {
    /// The capacity of the link.
    pub(crate) capacity_bps: Rate,
    /// Its age in seconds when it was read.
    pub(crate) age_s: u64,
}

/// The queueing delay of the access link, as determined by the control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct DelayStatus {
    /// The mean of the last tick.
    pub(crate) mean_ms: f64,
    /// The least of the last tick.
    pub(crate) least_ms: f64,
    /// How it was measured.
    pub(crate) source: DelaySource,
    /// The number of packets on which it is based.
    pub(crate) samples: u32,
}

/// A probe of the access link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ProbeStatus {
    /// The host that answers or is asked; null while none was found.
    pub(crate) reflector: Option<String>,
    /// The number of requests that were answered or lost since the probe started.
    pub(crate) sent: u64,
    /// The number of those requests that were answered.
    pub(crate) answered: u64,
    /// The last measured round-trip time.
    pub(crate) rtt_last_ms: Option<f64>,
    /// The reason if no host is asked.
    pub(crate) error: Option<String>,
}

/// An act of the control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Change {
    /// Seconds since the start of the daemon.
    pub(crate) at_s: f64,
    /// The act: an object with `kind` and its numbers.
    pub(crate) act: Act,
    /// The act in words, for people.
    pub(crate) reason: String,
}

/// The result of a change of settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Changed {
    /// A description for people.
    pub(crate) message: String,
    /// The changes that undo it.
    pub(crate) undo: Changes,
}

/// One flow group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct GroupStatus {
    /// As configured; for a group within a device the path, such as `tv/video`.
    pub(crate) name: String,
    /// The weight in force, relative to the groups at the same level.
    pub(crate) weight: Weight,
    /// The group's cap; null without one. While it limits the group, `state` is `capped`.
    #[serde(default)]
    pub(crate) max_bps: Option<Rate>,
    /// The group's floor: it receives at least this if it wants that much; null without one.
    #[serde(default)]
    pub(crate) min_bps: Option<Rate>,
    /// Its temporary change; null without one.
    #[serde(default)]
    pub(crate) timed: Option<TimedStatus>,
    /// Its quota and schedule; null if it has none.
    #[serde(default)]
    pub(crate) plan: Option<PlanStatus>,
    /// The device and the group that contain it, with their weights, the device first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) within: Vec<WithinStatus>,
    /// The configured matches; empty for the default group.
    #[serde(rename = "match")]
    pub(crate) matches: Vec<Match>,
    /// What arrived in the last tick and what was decided: `rate_bps`, `demand_bps`, `share_bps`,
    /// `ceil_bps` and `state`.
    #[serde(flatten)]
    pub(crate) decision: GroupDecision,
    /// The bytes that arrived since the daemon started.
    pub(crate) received_bytes: Bytes,
    /// Packets that its class dropped since the start of the daemon.
    pub(crate) drops: u64,
    /// The bytes that wait in its class now.
    pub(crate) backlog_bytes: Bytes,
    /// TCP connections that received something in the last tick, or whose window is bounded.
    pub(crate) connections: u64,
    /// The number of those connections whose window is bounded.
    pub(crate) bounded_connections: u64,
}

impl GroupStatus {
    /// The first part of the path: the device, or the group of the configuration.
    pub(crate) fn top(&self) -> &str {
        self.name.split(PATH_SEPARATOR).next().unwrap_or_default()
    }

    /// The weight of the group named by [`GroupStatus::top`].
    pub(crate) fn top_weight(&self) -> Weight {
        self.within.first().map_or(self.weight, |top| top.weight)
    }
}

/// A device or group that has groups beneath it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct WithinStatus {
    /// The path.
    pub(crate) name: String,
    /// The weight in force.
    pub(crate) weight: Weight,
    /// The cap of all groups beneath it together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_bps: Option<Rate>,
    /// The floor of all groups beneath it together: they receive at least this if they want that much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) min_bps: Option<Rate>,
    /// Its temporary change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timed: Option<TimedStatus>,
    /// Its quota and schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) plan: Option<PlanStatus>,
}

/// The version of [`ClaimsRequest`] and [`ClaimsReply`].
pub(crate) const CLAIMS_VERSION: u32 = 1;

/// A message of a browser's extension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimsRequest {
    /// The version; see [`CLAIMS_VERSION`].
    pub(crate) version: u32,
    /// The generation of the configuration that the extension knows and its events refer to.
    #[serde(default)]
    pub(crate) generation: Option<u64>,
    /// Requests that are about to be sent, and requests whose response has begun.
    #[serde(default)]
    pub(crate) events: Vec<ClaimEvent>,
}

/// One request of a browser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimEvent {
    /// SHA-256 of the salt and the server's name, in hex.
    pub(crate) host: String,
    /// The server's address; null, like `start_ms`, for a request that is about to be sent.
    pub(crate) address: Option<std::net::IpAddr>,
    /// The server's port.
    pub(crate) port: u16,
    /// The index of the site's group; null if the site has none.
    pub(crate) group: Option<usize>,
    /// When the request was sent, in ms since 1970.
    pub(crate) begin_ms: f64,
    /// When the response began, in ms since 1970.
    pub(crate) start_ms: Option<f64>,
    /// Whether the site is only a guess.
    #[serde(default)]
    pub(crate) unsure: bool,
    /// Whether the host has answered by HTTP/1.1.
    #[serde(default)]
    pub(crate) http1: bool,
}

/// The daemon's reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClaimsReply {
    /// The version; see [`CLAIMS_VERSION`].
    pub(crate) version: u32,
    /// The generation of the configuration in force.
    pub(crate) generation: u64,
    /// The configuration in force, if the extension knows another one.
    pub(crate) config: Option<ClaimsConfig>,
    /// The present rate of each group, in the order of the configuration.
    pub(crate) rates: Vec<GroupRate>,
}

/// What an extension must know of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClaimsConfig {
    /// The salt: it is put before names when they are hashed.
    pub(crate) salt: String,
    /// In the order of the configuration; the last group is for sites that no rule names.
    pub(crate) groups: Vec<ClaimsGroup>,
}

/// A group, as known to an extension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClaimsGroup {
    /// Its name.
    pub(crate) name: String,
    /// Its weight.
    pub(crate) weight: Weight,
    /// Its `web:` rules, without `web:`.
    pub(crate) sites: Vec<String>,
}

/// The rate of a group.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupRate {
    /// The rate in the last tick.
    pub(crate) rate_bps: Rate,
    /// The group's fair share.
    pub(crate) share_bps: Rate,
    /// The group's state relative to its share.
    pub(crate) state: fairweir_core::receiver::GroupState,
}
