//! What is measured on the receiving side in one tick: a controller's only source.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::share::{Entry, Weight, fair};
use crate::units::{Bytes, Rate, Span, Time};
use crate::window::Framing;

/// The most connections that an observation carries; the busiest are kept.
pub const CONNECTIONS_MAX: usize = 4_096;

/// What was measured in one interval, before enforcement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// End of the interval.
    pub at: Time,
    /// Its length; normally [`TICK`].
    pub interval: Span,
    /// One sample for each group of the policy, in its order.
    pub groups: Vec<GroupSample>,
    /// The busiest connections, ordered by id, at most [`CONNECTIONS_MAX`]; empty where they are not measured.
    pub connections: Vec<ConnectionSample>,
    /// What an active probe measured, where there is one.
    pub probe: Option<ProbeSample>,
    /// The true capacity of the link at this time, which only a simulator can know. If it is given, the RTTs of the
    /// connections are without queues.
    pub exact: Option<Rate>,
    /// What other hosts that control the same link report.
    #[serde(default)]
    pub beside: Beside,
}

/// Other hosts behind the same link that report what they get, as seen by this host. Source: `crate::agreement::peers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beside {
    /// There are no other hosts.
    #[default]
    Nobody,
    /// This host divides the link among itself and these hosts.
    Led(Vec<Other>),
    /// Another host divides the link.
    Told(Told),
}

/// Divides `link` equally among hosts, limited by what each of them wants.
pub(crate) fn divided(link: Rate, wants: impl IntoIterator<Item = Option<Rate>>) -> Vec<Rate> {
    let entry = |demand| Entry { weight: Weight::ONE, demand };
    fair(link, &wants.into_iter().map(entry).collect::<Vec<_>>())
}

/// Another host, to which this host tells its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    /// The rate that the host received recently.
    pub rate: Rate,
    /// The highest rate that the host wants; `None` if it wants all it can get.
    pub wants: Option<Rate>,
    /// The queue that the host sees; `None` if unknown.
    pub queue: Option<Span>,
}

/// What the dividing host tells this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The rate that this host may take.
    pub part: Rate,
    /// The capacity of the link.
    pub link: Rate,
    /// The rate that all hosts together received recently.
    pub carried: Rate,
    /// Whether the queue is emptied now, so that all see delays without it.
    pub drains: bool,
}

impl Beside {
    /// The rate that the hosts received among which this host divides the link.
    pub fn others(&self) -> Rate {
        match self {
            Beside::Led(others) => others.iter().map(|other| other.rate).sum(),
            Beside::Nobody | Beside::Told(_) => Rate::ZERO,
        }
    }

    /// Whether one of them sees a queue that differs from this host's by more than `tolerance`. All share one queue,
    /// so a base is then wrong.
    pub(super) fn disagrees(&self, queue: Span, tolerance: Span) -> bool {
        let Beside::Led(others) = self else { return false };
        let differs = |seen: Span| seen.max(queue) > seen.min(queue) + tolerance;
        others.iter().filter_map(|other| other.queue).any(differs)
    }

    /// Whether one of them would take more than it gets.
    pub(super) fn wants_more(&self) -> bool {
        matches!(self, Beside::Led(others) if others.iter().any(|other| other.wants.is_none()))
    }
}

/// What one group received in the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSample {
    /// Volume that arrived at the interface, in L2 bytes as on the wire.
    pub received: Bytes,
    /// Packets that arrived at the interface, as on the wire.
    pub packets: u64,
    /// Packets that the group's class dropped.
    pub drops: u64,
    /// What waits in the group's class at the end of the interval.
    pub backlog: Bytes,
}

/// What one TCP connection received in the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionSample {
    /// Unique among the connections that exist at one time.
    pub id: u64,
    /// Index of its group.
    pub group: usize,
    /// Payload received in the interval.
    pub received: Bytes,
    /// Packets with payload received in the interval.
    pub segments: u64,
    /// Packets with payload that arrived out of order in the interval, behind a packet that is
    /// missing: as the kernel's `tcpi_rcv_ooopack` counts them.
    #[serde(default)]
    pub holes: u64,
    /// Whether the application here has sent anything in the interval; ACKs do not count.
    pub has_sent: bool,
    /// The receiver's own estimate of the round-trip time, smoothed over the last packets; it
    /// contains what waits in the group's class.
    pub rtt: Option<Span>,
    /// The least round-trip time of what this end sent, its SYN among it; it contains what waited
    /// at that time. `None` where it is not measured.
    #[serde(default)]
    pub rtt_sent: Option<Span>,
    /// How long packets took from the server to the interface.
    pub transit: Option<TransitSample>,
    /// The largest window that the connection may advertise now.
    pub window: Bytes,
    /// The window that was advertised last. It is not taken back: a smaller window holds only after this
    /// much has arrived. Zero where it is unknown.
    #[serde(default)]
    pub advertised: Bytes,
    /// On the way to the receiver: the largest window that the receiver itself has asked for in the
    /// interval, before it was bounded; it may be any number. `None` at the receiver.
    #[serde(default)]
    pub asked: Option<Bytes>,
    /// Payload of a full packet.
    pub segment: Bytes,
    /// The server's port.
    pub port: u16,
}

impl ConnectionSample {
    /// How payload converts to L2 bytes: as with IPv4. The correction of each group compensates for
    /// the larger headers of IPv6.
    pub(super) fn framing(&self) -> Framing {
        Framing::ipv4(self.segment)
    }
}

/// How long packets of one connection took from the server to the interface, by their TCP
/// timestamps: up to an unknown constant of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransitSample {
    /// The shortest in the interval, in ns.
    pub min_ns: i64,
    /// The mean of the interval, in ns.
    pub mean_ns: i64,
    /// The number of packets measured.
    pub samples: u32,
}

/// What an active probe of a host behind the access link measured in the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeSample {
    /// Requests whose answer, or the end of the wait for it, fell in the interval.
    pub sent: u32,
    /// How many of them were answered.
    pub answered: u32,
    /// The shortest round-trip time; 0 if nothing was answered.
    pub rtt_min: Span,
    /// The mean round-trip time; 0 if nothing was answered.
    pub rtt_mean: Span,
    /// Which of the hosts that were asked so far answered: another number is another way.
    pub reflector: u32,
}

/// What the queue of the access link adds to the delay of arriving packets, as a controller concludes
/// from an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelaySample {
    /// The mean of the interval.
    #[serde(rename = "value_ns")]
    pub value: Span,
    /// The least of the interval: the queue was never shorter.
    #[serde(rename = "least_ns")]
    pub least: Span,
    /// The random delay of the path: the smallest distance of mean and least over the last seconds.
    /// It is not part of `value`.
    #[serde(rename = "noise_ns", default)]
    pub noise: Span,
    /// What measured it.
    pub source: DelaySource,
    /// The number of packets; 0 if the value stems from a probe's last answer, which is at most about 1 s
    /// old.
    pub samples: u32,
    /// How many connections and probes say that the queue was never shorter.
    pub sources: u32,
}

/// What measured a queueing delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum DelaySource {
    /// TCP timestamps of arriving packets: the download alone.
    Timestamps,
    /// The receiver's own RTT estimates of TCP connections: both directions.
    ReceiverRtt,
    /// An active probe of a reflector: both directions.
    Probe,
}

/// A few words for people.
impl fmt::Display for DelaySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DelaySource::Timestamps => "timestamps",
            DelaySource::ReceiverRtt => "receiver rtt",
            DelaySource::Probe => "probe",
        })
    }
}
