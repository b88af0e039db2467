//! What daemon and commands say to each other: one JSON value per line (docs/isp/reference.md).

use std::collections::BTreeMap;

use fairweir_config::isp::SubscriberSpec;
use fairweir_config::isp::address::{as_texts, parse_address};
use fairweir_config::isp::csv::BadRow;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    Add {
        subscriber: SubscriberSpec,
    },
    /// What is absent stays as it is.
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
    /// Answered by [`Listing`].
    List {
        /// Those of a plan alone.
        #[serde(default)]
        plan: Option<String>,
        /// Those behind this name.
        #[serde(default)]
        after: Option<String>,
        #[serde(default)]
        limit: Option<usize>,
    },
    /// Who has this address, and whose names begin so; answered by [`Found`].
    Find {
        text: String,
    },
    /// Answered by [`SubscriberStatus`].
    Counters {
        name: String,
    },
    /// The busiest subscribers; answered by [`Busiest`].
    Top {
        count: usize,
    },
    /// Answered by an object `plans`, as they are added.
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
    /// Adds or changes the subscribers of a table (CSV); answered by [`Imported`].
    Import {
        table: String,
        #[serde(default)]
        dry_run: bool,
        #[serde(default)]
        skip_bad: bool,
    },
    /// Guarantees rates to members of a segment until a time, all of them or none.
    Lease {
        segment: String,
        /// Earlier ones are refused.
        generation: u64,
        /// Unix time.
        until_s: u64,
        rates: Vec<LeasedRate>,
        /// Members that it does not name keep what the lease before guarantees.
        #[serde(default)]
        keep: bool,
    },
    /// Write what was used until now.
    Usage,
    /// Forget what the API said of names, or of all.
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
    /// Reads what people write on a command line.
    ///
    /// # Errors
    /// Says what would be right.
    pub(super) fn parse(texts: &[String]) -> Result<Addresses, String> {
        texts.iter().map(|text| parse_address(text)).collect::<Result<_, _>>().map(Addresses)
    }
}

/// What is guaranteed to a member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LeasedRate {
    pub(super) name: String,
    pub(super) download_bps: u64,
    #[serde(default)]
    pub(super) upload_bps: u64,
}

/// How an import went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Imported {
    pub(super) ok: bool,
    pub(super) message: String,
    pub(super) added: usize,
    pub(super) changed: usize,
    pub(super) unchanged: usize,
    /// How many rows are bad.
    pub(super) bad: usize,
    /// The first of them.
    pub(super) bad_rows: Vec<BadRow>,
}

/// Some subscribers, by their names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Listing {
    pub(super) subscribers: Vec<Value>,
    /// What to ask for next, if there are more.
    pub(super) after: Option<String>,
}

/// Subscribers that a text names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Who has the address first, then names in their order.
    pub(crate) subscribers: Vec<SubscriberStatus>,
    /// Whether there are more names.
    pub(crate) has_more: bool,
}

/// A subscriber and what became of its packets.
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
    /// The plan that a session would have if a command had not given it another until its end.
    #[serde(default)]
    pub(crate) own_plan: Option<String>,
    /// Null if the plan does not police that direction.
    pub(crate) download: Option<SubscriberCounters>,
    pub(crate) upload: Option<SubscriberCounters>,
    /// By what a host of the subscriber has the download divided; null without an agreement.
    #[serde(default)]
    pub(crate) client: Option<ClientStatus>,
}

/// An agreement with a host of a subscriber.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ClientStatus {
    /// Its address and port.
    pub(crate) address: String,
    /// When the agreement ends without a renewal, in seconds.
    pub(crate) ends_in_s: f64,
    pub(crate) classes: Vec<ClientClass>,
    /// The number of the class of flows that are not bound.
    pub(crate) default_class: usize,
    /// Flows that are bound to a class.
    pub(crate) bound: usize,
    /// Marks for which there was no room.
    pub(crate) refused: u32,
}

/// A class of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ClientClass {
    pub(crate) weight: u16,
    /// Under this number since the subscriber was added; under 0 also what passed without an agreement.
    pub(crate) passed_bytes: u64,
    pub(crate) dropped_packets: u64,
}

/// Agreements with hosts of subscribers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ClientsStatus {
    /// The UDP port.
    pub(crate) port: u16,
    /// That are in force.
    pub(crate) agreements: usize,
    /// Why hosts cannot ask, if so.
    pub(crate) error: Option<String>,
}

/// Since the subscriber was added, or the daemon began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct SubscriberCounters {
    /// What the plan gives.
    pub(crate) plan_bps: u64,
    pub(crate) passed_bytes: u64,
    pub(crate) dropped_packets: u64,
    pub(crate) marked_packets: u64,
}

/// The busiest subscribers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Busiest {
    /// Over which time rates are; zero if it is not known yet.
    pub(super) interval_s: f64,
    /// By what passed in both directions, most first.
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

/// See [`Busy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct BusyDirection {
    pub(super) plan_bps: u64,
    pub(super) passed_bps: u64,
    /// In the interval.
    pub(super) dropped_packets: u64,
    pub(super) marked_packets: u64,
}

/// What the daemon knows and does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) device: String,
    pub(crate) uplink: Option<String>,
    pub(crate) pid: u32,
    /// Whether it polices.
    pub(crate) enforcing: bool,
    /// Why everything passes although it should not, if so.
    pub(crate) open_reason: Option<String>,
    /// How long it polices after the daemon ended without a command, in seconds; null if not at all.
    #[serde(default)]
    pub(crate) watchdog_s: Option<f64>,
    /// Why not although it should, if so.
    #[serde(default)]
    pub(crate) keep_error: Option<String>,
    pub(crate) hooks: Vec<HookStatus>,
    pub(crate) since_s: f64,
    pub(crate) subscribers: usize,
    pub(crate) addresses: usize,
    /// By name.
    pub(crate) plans: Vec<PlanStatus>,
    /// In the order of the file.
    #[serde(default)]
    pub(crate) segments: Vec<SegmentStatus>,
    /// What belongs to no subscriber; it passes.
    pub(crate) unknown: Directions<TotalsStatus>,
    pub(crate) api: ApiStatus,
    /// How many sessions and leases are not policed, by kinds of reasons.
    #[serde(default)]
    pub(crate) unpoliced_by_reason: BTreeMap<String, usize>,
    /// The first of them.
    #[serde(default)]
    pub(crate) unpoliced: Vec<UnpolicedStatus>,
    /// What the kernel holds for it.
    pub(crate) memory_bytes: u64,
    /// Why the file on disk is not in force, if so.
    pub(crate) config_error: Option<String>,
    /// Which part of the journal is not in force, if so.
    #[serde(default)]
    pub(crate) journal_error: Option<String>,
    /// Whose downloads pass because this host translates their addresses, if so.
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

/// Files of what subscribers used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct UsageStatus {
    pub(crate) dir: String,
    /// When rows were written last, Unix time.
    pub(crate) written_s: Option<u64>,
    /// Of subscribers that were removed while the disk took no rows for long.
    pub(crate) lost_rows: u64,
    /// Why rows are not written, if so.
    pub(crate) error: Option<String>,
    /// Null without a collector.
    #[serde(default)]
    pub(crate) collector: Option<CollectorStatus>,
}

/// The collector of what subscribers used, by IPFIX.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct CollectorStatus {
    pub(crate) collector: String,
    /// That the kernel took to send.
    pub(crate) sent_records: u64,
    /// That found too many waiting.
    pub(crate) lost_records: u64,
    /// Why nothing is sent, if so.
    pub(crate) error: Option<String>,
}

/// Sessions that access servers report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct RadiusStatus {
    pub(crate) listen: String,
    /// Users that have one.
    pub(crate) sessions: usize,
    /// By what became of them, since the daemon began.
    pub(crate) packets: BTreeMap<String, u64>,
    /// That the kernel dropped, as too many waited.
    #[serde(default)]
    pub(crate) dropped_packets: u64,
    /// How much may wait, as the kernel counts it.
    #[serde(default)]
    pub(crate) receive_buffer_bytes: usize,
    /// What is wrong with the receive buffer, if something is.
    #[serde(default)]
    pub(crate) note: Option<String>,
}

/// Requests of servers to change and end sessions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct CoaStatus {
    pub(crate) listen: String,
    /// By what became of them, since the daemon began.
    pub(crate) packets: BTreeMap<String, u64>,
    /// That the kernel dropped, as too many waited.
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
    /// Of the reason.
    pub(crate) kind: String,
    pub(crate) reason: String,
    /// Unix time.
    pub(crate) since_s: u64,
}

/// Devices from the files of DHCP servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct LeasesStatus {
    pub(crate) files: Vec<String>,
    pub(crate) devices: usize,
    /// Lines that say nothing.
    pub(crate) skipped: usize,
    /// Devices that other subscribers exclude.
    pub(crate) refused: usize,
    /// Why the files are not in force, if so.
    pub(crate) error: Option<String>,
}

/// A place where packets are looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct HookStatus {
    pub(crate) device: String,
    pub(crate) hook: String,
    pub(crate) direction: String,
}

/// One of each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Directions<T> {
    pub(crate) download: T,
    pub(crate) upload: T,
}

/// How many records are not as the file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct ApiStatus {
    /// Of the API alone.
    pub(crate) added: usize,
    /// Of the API instead of the file.
    pub(crate) changed: usize,
    /// Of the file, and removed by the API.
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
    /// What one subscriber may have; null if the direction is not policed.
    pub(crate) rate_bps: Directions<Option<u64>>,
    /// Of all its subscribers together.
    pub(crate) totals: Directions<TotalsStatus>,
}

/// A segment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct SegmentStatus {
    pub(crate) name: String,
    pub(crate) members: usize,
    /// Matching subscribers that are not members, because there are too many.
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
    /// To all members together.
    pub(crate) guaranteed_bps: u64,
    /// In the last tenth of a second.
    pub(crate) passed_bps: u64,
    /// Dropped because the segment was full, since the members joined.
    pub(crate) refused_packets: u64,
}

/// What became of packets since the daemon began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct TotalsStatus {
    /// Over the last second.
    pub(crate) passed_bps: u64,
    /// Over the last second.
    pub(crate) dropped_bps: u64,
    pub(crate) passed_bytes: u64,
    pub(crate) passed_packets: u64,
    pub(crate) dropped_bytes: u64,
    pub(crate) dropped_packets: u64,
    pub(crate) marked_packets: u64,
    /// Of a bundle's free class, for which a stunt paid.
    #[serde(default)]
    pub(crate) delegated_bytes: u64,
    #[serde(default)]
    pub(crate) delegated_packets: u64,
    /// Of a bundle's free class, for which no stunt could pay.
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
