//! The messages between the daemon and commands: one JSON value per line (docs/isp/reference.md).

use std::collections::BTreeMap;

use fairweir_config::isp::SubscriberSpec;
use fairweir_config::isp::address::{as_texts, parse_address};
use fairweir_config::isp::csv::BadRow;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A client's request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    Add {
        subscriber: SubscriberSpec,
    },
    /// Members that are absent stay as they are.
    Change {
        name: String,
        #[serde(default)]
        addresses: Option<Addresses>,
        #[serde(default)]
        plan: Option<String>,
    },
    Remove {
        name: String,
    },
    /// The reply is [`Listing`].
    List {
        /// Only subscribers of this plan.
        #[serde(default)]
        plan: Option<String>,
        /// Only subscribers after this name.
        #[serde(default)]
        after: Option<String>,
        #[serde(default)]
        limit: Option<usize>,
    },
    /// The subscriber with this address, and those whose names begin with this text; the reply is [`Found`].
    Find {
        text: String,
    },
    /// The reply is [`SubscriberStatus`].
    Counters {
        name: String,
    },
    /// The busiest subscribers; the reply is [`Busiest`].
    Top {
        count: usize,
    },
    /// Sessions and leases that are not policed, after the first ones; the reply is [`Unpoliced`].
    Unpoliced {
        #[serde(default)]
        skip: usize,
        /// Lists instead the sessions that are policed although no packet about them came for too long.
        #[serde(default)]
        silent: bool,
    },
    /// The reply is an object `plans`, in the form in which they are added.
    Plans,
    AddPlan {
        plan: Value,
    },
    ChangePlan {
        plan: Value,
    },
    RemovePlan {
        name: String,
    },
    /// Adds or changes the subscribers of a table (CSV); the reply is [`Imported`].
    Import {
        table: String,
        #[serde(default)]
        dry_run: bool,
        #[serde(default)]
        skip_bad: bool,
    },
    /// Guarantees rates to members of a segment until a time: all of them, or none.
    Lease {
        segment: String,
        /// A request with an earlier generation is refused.
        generation: u64,
        /// The end of the lease, Unix time.
        until_s: u64,
        rates: Vec<LeasedRate>,
        /// Members that the request does not name keep the guarantee of the previous lease.
        #[serde(default)]
        keep: bool,
    },
    /// Writes the usage until now.
    Usage,
    /// Drops the API's changes to some names, or all of them.
    Revert {
        #[serde(default)]
        names: Vec<String>,
        #[serde(default)]
        all: bool,
    },
}

/// Addresses as texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Addresses(#[serde(with = "as_texts")] pub(super) Vec<IpNet>);

impl Addresses {
    /// Reads addresses from a command line.
    ///
    /// # Errors
    /// Says what is expected.
    pub(super) fn parse(texts: &[String]) -> Result<Addresses, String> {
        texts.iter().map(|text| parse_address(text)).collect::<Result<_, _>>().map(Addresses)
    }
}

/// The guaranteed rate of a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeasedRate {
    pub(super) name: String,
    pub(super) download_bps: u64,
    #[serde(default)]
    pub(super) upload_bps: u64,
}

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Imported {
    pub(super) ok: bool,
    pub(super) message: String,
    pub(super) added: usize,
    pub(super) changed: usize,
    pub(super) unchanged: usize,
    /// The number of bad rows.
    pub(super) bad: usize,
    /// The first of the bad rows.
    pub(super) bad_rows: Vec<BadRow>,
}

/// A page of subscribers, in order of their names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Listing {
    pub(super) subscribers: Vec<Value>,
    /// The value of `after` for the next request, if there are more.
    pub(super) after: Option<String>,
}

/// A page of sessions and leases that are not policed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Unpoliced {
    pub(super) unpoliced: Vec<UnpolicedStatus>,
    pub(super) has_more: bool,
}

/// Subscribers that match a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// First the one that has the address, then matching names in their order.
    pub(crate) subscribers: Vec<SubscriberStatus>,
    /// Whether more names match.
    pub(crate) has_more: bool,
}

/// A subscriber, and the counters of its packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct SubscriberStatus {
    pub(crate) name: String,
    pub(crate) addresses: Vec<String>,
    pub(crate) plan: String,
    /// How the plan divides the rate among queues, for people.
    #[serde(default)]
    pub(crate) policy: String,
    /// `file`, `api`, `api_over_file`, `radius` or `lease`.
    pub(crate) origin: String,
    /// The plan that was reported for the session, if a command has set another one until the session ends.
    #[serde(default)]
    pub(crate) own_plan: Option<String>,
    /// The subscriber's RADIUS sessions.
    #[serde(default)]
    pub(crate) sessions: Vec<SessionStatus>,
    /// Null if the plan does not police that direction.
    pub(crate) download: Option<SubscriberCounters>,
    pub(crate) upload: Option<SubscriberCounters>,
    /// The agreement by which the subscriber's download is divided; null if there is none.
    #[serde(default)]
    pub(crate) client: Option<ClientStatus>,
}

/// A session of a subscriber.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct SessionStatus {
    pub(crate) session: String,
    pub(crate) nas: String,
    /// How long no packet about the session has come, in seconds; null if none came since the start.
    pub(crate) silent_s: Option<f64>,
}

/// An agreement with a host of a subscriber.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ClientStatus {
    /// The address and port of the host.
    pub(crate) address: String,
    /// When the agreement ends if it is not renewed, in seconds.
    pub(crate) ends_in_s: f64,
    pub(crate) classes: Vec<ClientClass>,
    /// The number of the class for flows that are not bound to a class.
    pub(crate) default_class: usize,
    /// The number of flows that are bound to a class.
    pub(crate) bound: usize,
    /// The number of marks that had no room.
    pub(crate) refused: u32,
}

/// A class of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ClientClass {
    pub(crate) weight: u16,
    /// Passed under this class number since the subscriber was added; number 0 includes traffic without an agreement.
    pub(crate) passed_bytes: u64,
    pub(crate) dropped_packets: u64,
}

/// Agreements with hosts of subscribers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ClientsStatus {
    /// The UDP port.
    pub(crate) port: u16,
    /// The number of agreements in force.
    pub(crate) agreements: usize,
    /// The reason if hosts cannot ask.
    pub(crate) error: Option<String>,
}

/// Counters since the subscriber was added or the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct SubscriberCounters {
    /// The rate of the plan.
    pub(crate) plan_bps: u64,
    pub(crate) passed_bytes: u64,
    pub(crate) dropped_packets: u64,
    pub(crate) marked_packets: u64,
}

/// The busiest subscribers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Busiest {
    /// The interval over which rates were measured; zero if there is none yet.
    pub(super) interval_s: f64,
    /// Sorted by what passed in both directions, the most first.
    pub(super) subscribers: Vec<Busy>,
}

/// A subscriber's rates over an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Busy {
    pub(super) name: String,
    pub(super) plan: String,
    pub(super) download: Option<BusyDirection>,
    pub(super) upload: Option<BusyDirection>,
}

/// One direction of [`Busy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct BusyDirection {
    pub(super) plan_bps: u64,
    pub(super) passed_bps: u64,
    /// Packets that were dropped in the interval.
    pub(super) dropped_packets: u64,
    pub(super) marked_packets: u64,
}

/// The daemon's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) device: String,
    pub(crate) uplink: Option<String>,
    pub(crate) pid: u32,
    /// Whether the daemon polices.
    pub(crate) enforcing: bool,
    /// The reason if all traffic passes although it should not.
    pub(crate) open_reason: Option<String>,
    /// How long policing continues after the daemon ended without a command, in seconds; null if not at all.
    #[serde(default)]
    pub(crate) watchdog_s: Option<f64>,
    /// The reason if it does not although it should.
    #[serde(default)]
    pub(crate) keep_error: Option<String>,
    pub(crate) hooks: Vec<HookStatus>,
    pub(crate) since_s: f64,
    pub(crate) subscribers: usize,
    pub(crate) addresses: usize,
    /// In order of their names.
    pub(crate) plans: Vec<PlanStatus>,
    /// In the order of the file.
    #[serde(default)]
    pub(crate) segments: Vec<SegmentStatus>,
    /// Traffic that belongs to no subscriber; it passes.
    pub(crate) unknown: Directions<TotalsStatus>,
    pub(crate) api: ApiStatus,
    /// The number of sessions and leases that are not policed, by kind of reason.
    #[serde(default)]
    pub(crate) unpoliced_by_reason: BTreeMap<String, usize>,
    /// The first of the sessions and leases that are not policed.
    #[serde(default)]
    pub(crate) unpoliced: Vec<UnpolicedStatus>,
    /// The kernel memory that the tables use.
    pub(crate) memory_bytes: u64,
    /// The reason if the file on disk is not in force.
    pub(crate) config_error: Option<String>,
    /// The part of the journal that is not in force, if there is one.
    #[serde(default)]
    pub(crate) journal_error: Option<String>,
    /// Whose downloads pass because this host translates their addresses; null if no case was found.
    #[serde(default)]
    pub(crate) nat_error: Option<String>,
    /// Null if there is no table `[radius]`.
    #[serde(default)]
    pub(crate) radius: Option<RadiusStatus>,
    /// Null if there is no table `[coa]`.
    #[serde(default)]
    pub(crate) coa: Option<CoaStatus>,
    /// Null if there is no table `[leases]`.
    #[serde(default)]
    pub(crate) leases: Option<LeasesStatus>,
    /// Null if there is no table `[usage]`.
    #[serde(default)]
    pub(crate) usage: Option<UsageStatus>,
    /// Null if no plan has `share = "client"`.
    #[serde(default)]
    pub(crate) clients: Option<ClientsStatus>,
}

/// The state of the usage files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct UsageStatus {
    pub(crate) dir: String,
    /// When rows were last written, Unix time.
    pub(crate) written_s: Option<u64>,
    /// Rows of removed subscribers that were lost because rows could not be written for long.
    pub(crate) lost_rows: u64,
    /// The reason if rows are not written.
    pub(crate) error: Option<String>,
    /// Null if no collector is configured.
    #[serde(default)]
    pub(crate) collector: Option<CollectorStatus>,
}

/// The collector to which usage is sent as IPFIX.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct CollectorStatus {
    pub(crate) collector: String,
    /// Records that the kernel accepted for sending.
    pub(crate) sent_records: u64,
    /// Records that were lost because too many were waiting.
    pub(crate) lost_records: u64,
    /// The reason if nothing is sent.
    pub(crate) error: Option<String>,
}

/// Sessions that access servers report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct RadiusStatus {
    pub(crate) listen: String,
    /// The number of users that have a session.
    pub(crate) sessions: usize,
    /// The number of packets by result, since the daemon started.
    pub(crate) packets: BTreeMap<String, u64>,
    /// Packets that the kernel dropped because too many were waiting.
    #[serde(default)]
    pub(crate) dropped_packets: u64,
    /// The size of the receive buffer, as the kernel counts it.
    #[serde(default)]
    pub(crate) receive_buffer_bytes: usize,
    /// A problem with the receive buffer, if there is one.
    #[serde(default)]
    pub(crate) note: Option<String>,
    /// The number of sessions that are policed although no packet about them came for too long.
    #[serde(default)]
    pub(crate) silent: usize,
    /// The access servers that have sessions or have sent packets, 256 at most, then `others`.
    #[serde(default)]
    pub(crate) nas: Vec<NasStatus>,
}

/// An access server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct NasStatus {
    pub(crate) nas: String,
    /// The number of sessions at the last count, which was some seconds ago.
    pub(crate) sessions: usize,
    /// How long no packet has come, in seconds; null if none came since the start.
    pub(crate) silent_s: Option<f64>,
    /// The number of packets by kind, including requests of servers about its sessions.
    pub(crate) packets: BTreeMap<String, u64>,
    /// What had no effect or a different one, by reason: packets, and sessions that ended because they were silent.
    pub(crate) refused: BTreeMap<String, u64>,
}

/// Requests of servers to change and end sessions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct CoaStatus {
    pub(crate) listen: String,
    /// The number of requests by result, since the daemon started.
    pub(crate) packets: BTreeMap<String, u64>,
    /// Packets that the kernel dropped because too many were waiting.
    pub(crate) dropped_packets: u64,
}

/// A session or a lease whose traffic passes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct UnpolicedStatus {
    pub(crate) subscriber: String,
    /// Empty for a lease.
    pub(crate) session: String,
    pub(crate) nas: String,
    pub(crate) addresses: Vec<String>,
    /// The kind of the reason.
    pub(crate) kind: String,
    pub(crate) reason: String,
    /// When it was first noted for this reason, Unix time.
    pub(crate) since_s: u64,
}

/// Devices from the files of DHCP servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct LeasesStatus {
    pub(crate) files: Vec<String>,
    pub(crate) devices: usize,
    /// The number of lines without a usable lease.
    pub(crate) skipped: usize,
    /// The number of devices that are refused because of other subscribers.
    pub(crate) refused: usize,
    /// The reason if the files are not in force.
    pub(crate) error: Option<String>,
}

/// A place where packets are policed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct HookStatus {
    pub(crate) device: String,
    pub(crate) hook: String,
    pub(crate) direction: String,
}

/// A value for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Directions<T> {
    pub(crate) download: T,
    pub(crate) upload: T,
}

/// The number of records that differ from the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ApiStatus {
    /// Records that only the API has.
    pub(crate) added: usize,
    /// Records of the API that override the file's.
    pub(crate) changed: usize,
    /// Records of the file that the API removed.
    pub(crate) removed: usize,
}

/// One plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct PlanStatus {
    pub(crate) name: String,
    pub(crate) origin: String,
    pub(crate) subscribers: usize,
    /// How the rate is shared, for people.
    pub(crate) policy: String,
    /// The rate of one subscriber; null if the direction is not policed.
    pub(crate) rate_bps: Directions<Option<u64>>,
    /// The sum over all subscribers of the plan.
    pub(crate) totals: Directions<TotalsStatus>,
}

/// A segment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct SegmentStatus {
    pub(crate) name: String,
    pub(crate) members: usize,
    /// The number of matching subscribers that are not members, because there are too many.
    pub(crate) left_out: usize,
    pub(crate) lease: Option<LeaseStatus>,
    /// Null if the segment does not share that direction.
    #[serde(flatten)]
    pub(crate) used: Directions<Option<SegmentUse>>,
}

/// A lease in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct LeaseStatus {
    pub(crate) generation: u64,
    pub(crate) until_s: u64,
    pub(crate) members: usize,
}

/// A segment in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct SegmentUse {
    pub(crate) capacity_bps: u64,
    /// The sum of the guarantees of all members.
    pub(crate) guaranteed_bps: u64,
    /// The rate that passed in the last tenth of a second.
    pub(crate) passed_bps: u64,
    /// Packets that were dropped because the segment was full, since the members joined.
    pub(crate) refused_packets: u64,
}

/// Counters of packets since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct TotalsStatus {
    /// The rate over the last second.
    pub(crate) passed_bps: u64,
    /// The rate over the last second.
    pub(crate) dropped_bps: u64,
    pub(crate) passed_bytes: u64,
    pub(crate) passed_packets: u64,
    pub(crate) dropped_bytes: u64,
    pub(crate) dropped_packets: u64,
    pub(crate) marked_packets: u64,
    /// Bytes of a bundle's free class for which a stunt paid.
    #[serde(default)]
    pub(crate) delegated_bytes: u64,
    #[serde(default)]
    pub(crate) delegated_packets: u64,
    /// Packets of a bundle's free class for which no stunt could pay.
    #[serde(default)]
    pub(crate) refused_packets: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_the_documentation_writes_them() {
        let read = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(read(r#"{"request":"plans"}"#).unwrap(), Request::Plans);
        let add = r#"{"request":"add","subscriber":
            {"name":"alice","addresses":["192.0.2.1","2001:db8:1::/56"],"plan":"home-50"}}"#;
        let Request::Add { subscriber } = read(add).unwrap() else { panic!("it is `add`") };
        assert_eq!(subscriber.addresses.len(), 2);
        assert_eq!(serde_json::to_value(&subscriber).unwrap()["addresses"][0], "192.0.2.1");
        let change = r#"{"request":"change","name":"alice","plan":"home-100"}"#;
        let Request::Change { addresses, .. } = read(change).unwrap() else { panic!("`change`") };
        assert_eq!(addresses, None);
        for (wrong, wanted) in [
            (r#"{"request":"add","subscriber":{"name":"a","addresses":[],"paln":"x"}}"#, "paln"),
            (r#"{"request":"remove","nmae":"a"}"#, "nmae"),
            (r#"{"request":"rmove","name":"a"}"#, "rmove"),
            (r#"{"request":"change","name":"a","addresses":["192.0.2.1/24"]}"#, "192.0.2.0/24"),
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
