//! Scenario files: an access link, the groups that share it and the flows that load it.
//!
//! One TOML file describes what is played, in the emulated home as in the simulator (the format
//! is in `docs/research/simulator.md`). [`Scenario::parse`] reads it into a [`Scenario`], which is valid by
//! construction: names are unique, times lie inside the run, steps are in order, no rate is zero.
//! Everything that can be asked of it is a function of time: which [`Scenario::capacity_at`], which
//! demand, and so which fair shares hold.
//!
//! Terms: a *flow* is one application of a group, with as many connections as it needs; an *event*
//! is an instant at which the fair shares may change; under a trace they also do in between, since
//! they are those of each second's capacity, which may be zero. All rates, also demands, count L2
//! bytes.

use std::path::Path;

use crate::Control;
use fairweir_core::host_name::HostName;
pub use fairweir_core::policy::Group;
use fairweir_core::policy::{DEFAULT_GROUP, tree_of};
use fairweir_core::receiver::{CrabTuning, Enforce};
use fairweir_core::share::{Claims, Entry, Weight, fair};
use fairweir_core::sites::Sites;
use fairweir_core::units::{Bytes, Rate, Span, Time};
use serde::{Deserialize, Serialize};

use crate::link::{Buffer, Capacity, Discipline, Jitter, LinkSpec};

mod access;
mod bundle;
mod kind;
mod police;
mod read;
mod value;

pub use bundle::{BUNDLE_FREE_MAX, Bundle, FreeGroup};
pub use fairweir_config::{BadOverride, ConfigError, Origin, Override};
use fairweir_config::{Text, mistakes};
pub use kind::{
    Browser, Demand, Http, Kind, OnOff, PAGE_IMAGES, Page, Program, SHARED_HOSTS_MAX, Short, Video,
    Web,
};
pub use police::{Algorithm, POLICE_COPIES_MAX, Police, PoliceSize, QueueBy};

/// The most flows of a scenario.
pub const FLOWS_MAX: usize = 4_096;
/// The most connections of a flow.
pub const CONNECTIONS_MAX: u32 = 256;
/// The longest that a scenario may take.
pub const DURATION_MAX: Span = Span::secs(24 * 3600);

/// What is played: valid, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What reports call it.
    pub name: String,
    /// How long it takes.
    pub duration: Span,
    /// How long after each event the averages leave out.
    pub settle: Span,
    /// Where all randomness comes from.
    pub seed: u64,
    /// How much later than the file says flows begin.
    pub start_jitter: StartJitter,
    /// The access link.
    pub link: Access,
    /// The parameters of the control.
    pub control: Told,
    /// The reflector that answers the control's probe.
    pub probe: Reflector,
    /// The groups that share the link, in the order of the file; one without matches has the addresses of its
    /// flows' servers.
    pub groups: Vec<Group>,
    /// Devices behind a router, which share by weight before their groups do; empty if the link
    /// ends at the one host.
    pub devices: Vec<Device>,
    /// Index of each group's device; empty without devices.
    pub device_of: Vec<usize>,
    /// The flows that load the link, in the order of the file; behind them those of the copies of policing
    /// points.
    pub flows: Vec<Flow>,
    /// What all policing points together let through, if they are members of a segment.
    pub segment: Option<Rate>,
    /// Which flows are kept to a rate before they come to the downlink, and how.
    pub police: Vec<Police>,
    /// The groups whose connections answer each other's congestion signals.
    pub bundles: Vec<Bundle>,
}

/// How much later than the file says a flow begins at most, by chance and only in the simulator, so
/// that seeds differ in what real processes differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartJitter {
    /// The same for all flows.
    UpTo(Span),
    /// The flow's round trip: flows that start together are in any phase of it.
    Rtt,
}

impl StartJitter {
    /// What processes that are started together differ by.
    pub const PROCESSES: StartJitter = StartJitter::UpTo(Span::millis(5));

    /// The longest jitter of this flow, which begins before it stops.
    pub fn max(self, flow: &Flow) -> Span {
        let max = match self {
            StartJitter::UpTo(span) => span,
            StartJitter::Rtt => flow.rtt,
        };
        max.min(flow.stop.since(flow.start))
    }
}

/// A device behind the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Unique.
    pub name: String,
    /// Its weight at the router.
    pub weight: Weight,
    /// How it controls its own groups, behind the router's control.
    pub control: Control,
    /// The router leaves its connections to the proxy.
    pub via_proxy: bool,
    /// The part of TCP packets that its last hop loses, in millionths.
    pub loss_ppm: u32,
}

/// An access link: a bottleneck in each direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    /// What the downlink carries, and when.
    pub capacity: Capacity,
    /// Buffer of the downlink.
    pub buffer: Buffer,
    /// Capacity of the uplink.
    pub up_rate: Rate,
    /// Buffer of the uplink.
    pub up_buffer: Buffer,
    /// The largest IP packet in bytes.
    pub mtu: u32,
    /// How many of a million packets the downlink loses at random.
    pub loss_ppm: u32,
    /// How many packets a burst of these losses has on average; 1 is no bursts.
    pub loss_burst: u32,
    /// The random delay that the downlink adds to packets, without reordering.
    pub jitter: Jitter,
    /// From one grant of the downlink to the next; zero without grants.
    pub down_grant: Span,
    /// The same of the uplink.
    pub up_grant: Span,
    /// Order of service on the downlink.
    pub queue: Discipline,
}

/// A host in the internet that answers a control's probe, and how well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflector {
    /// Whether there is one; otherwise there is no probe.
    pub is_there: bool,
    /// Round-trip time without any queue.
    pub rtt: Span,
    /// How many of a million requests it leaves unanswered.
    pub loss_ppm: u32,
    /// A request that follows an answered one by less is left unanswered, as routers limit them.
    pub answer_interval: Span,
    /// What is wrong with its answers.
    pub lie: Lie,
}

/// How the answers of a reflector mislead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// They do not.
    None,
    /// They pass the queue of the downlink by.
    Fast,
    /// They take up to [`LIE_SLOW_MAX`] longer, at random.
    Slow,
}

/// The most that a slow reflector adds.
pub const LIE_SLOW_MAX: Span = Span::millis(40);

impl Default for Reflector {
    fn default() -> Reflector {
        Reflector {
            is_there: true,
            rtt: Span::millis(20),
            loss_ppm: 0,
            answer_interval: Span::ZERO,
            lie: Lie::None,
        }
    }
}

/// The parameters of the control, among them what it knows of the link at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The capacity, for controls that do not learn it; `None` is what the link nominally has.
    pub capacity: Option<Rate>,
    /// What a control that learns the capacity remembers of earlier days.
    pub remembered: Option<Rate>,
    /// Whether `chokepoint` serves the groups strictly in their order, not by weight.
    pub strict_priority: bool,
    /// How `crab` differs from its defaults.
    pub tuning: Tuning,
    /// How `fairweir` enforces shares.
    pub enforce: Enforce,
    /// Target of `fairweir` for the queue at the ISP; `None` is the default.
    pub latency: Option<Span>,
    /// How it sees its connections in the simulator.
    pub measurement: Measurement,
    /// When it starts; until then there is no control.
    pub start: Time,
}

/// How the simulator lets a control see its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measurement {
    /// Every packet is timed from the first one on.
    #[default]
    Ideal,
    /// As the daemon does by the kernel and its BPF programs: a packet in four, after a second; and
    /// RTTs as the kernel estimates them.
    Kernel,
    /// `fairweir` gets the capacity and the RTT of each connection without queues: better than
    /// anything can be measured.
    Exact,
}

/// How `crab` differs from its defaults; `None` is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// How often it takes in what arrived.
    pub tick: Option<Span>,
    /// Ticks in a window.
    pub window_ticks: Option<u32>,
    /// What a lender keeps at least beyond what it uses.
    pub headroom: Option<Rate>,
    /// Whether it estimates the capacity.
    pub estimates: Option<bool>,
}

impl Tuning {
    /// The defaults `of` a loop, with what differs.
    pub fn applied_to(self, of: CrabTuning) -> CrabTuning {
        CrabTuning {
            tick: self.tick.unwrap_or(of.tick),
            window_ticks: self.window_ticks.unwrap_or(of.window_ticks),
            headroom: self.headroom.unwrap_or(of.headroom),
            estimates: self.estimates.unwrap_or(of.estimates),
            ..of
        }
    }
}

/// One application of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Index of its group.
    pub group: usize,
    /// What it does.
    pub kind: Kind,
    /// Congestion control of the sender; ignored for UDP.
    pub congestion_control: CongestionControl,
    /// Whether the sender spreads packets over the RTT, as under the fq qdisc; BBR and QUIC always
    /// do.
    pub paced: bool,
    /// How long a tick of its servers' TCP timestamps takes; `None` if they use none.
    pub timestamps: Option<Span>,
    /// Whether its connections use ECN (RFC 3168), so that a policer marks their packets.
    pub ecn: bool,
    /// How many connections a flow of kind bulk or QUIC has, or a browser's endless page.
    pub connections: u32,
    /// Round-trip time without any queue.
    pub rtt: Span,
    /// When it begins.
    pub start: Time,
    /// When it ends.
    pub stop: Time,
    /// What a flow of kind bulk, QUIC, on-off (while on) or UDP would use, all connections together; the
    /// first entry holds from the start.
    pub demands: Vec<DemandStep>,
    /// Which IP it uses.
    pub ip: Ip,
    /// Base name of the receiving executable; `None` is `fetch-<group>`.
    pub app: Option<String>,
    /// Flows of one server name have one address; `None` has its own.
    pub server: Option<String>,
}

/// From when on a flow would use how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemandStep {
    /// From then on.
    pub at: Time,
    /// `None` is without end.
    pub demand: Option<Rate>,
}

/// How often a ping asks if its scenario does not say.
pub const PING_INTERVAL: Span = Span::millis(100);
/// UDP payload of a ping's request and answer in bytes, as of ping(8).
pub const PING_PAYLOAD: u64 = 56;
/// Payload of a request in bytes, as of an HTTP GET with a few headers.
pub const REQUEST_PAYLOAD: u64 = 300;
/// What Ethernet adds to an IP packet, in bytes; fairweir's rates include it.
pub const ETHERNET_HEADER: u64 = 14;
/// The smallest MTU with which IPv6 works, in bytes. Source: RFC 8200 §5.
pub const IPV6_MTU_MIN: u32 = 1280;
/// TCP header without options in bytes.
pub const TCP_HEADER: u64 = 20;
/// What timestamps add to it (RFC 7323 appendix A).
pub const TIMESTAMPS: u64 = 12;
/// UDP header in bytes.
pub const UDP_HEADER: u64 = 8;
/// What QUIC adds to the payload of a full UDP packet, in bytes: a short header with a connection
/// id of 8 bytes and a packet number of 1 (which does while less than 128 are under way), the header
/// of a stream's frame without its length, and the AEAD's tag. Source: RFC 9000 §17.3.1 and §19.8,
/// RFC 9001 §5.3.
pub const QUIC_HEADER: u64 = (1 + 8 + 1) + (1 + 1 + 4) + 16;

/// A sender's congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CongestionControl {
    /// TCP Reno.
    Reno,
    /// TCP CUBIC.
    Cubic,
    /// TCP BBR.
    Bbr,
    /// TCP Vegas.
    Vegas,
}

impl CongestionControl {
    /// The kernel's name of it.
    pub const fn name(self) -> &'static str {
        match self {
            CongestionControl::Reno => "reno",
            CongestionControl::Cubic => "cubic",
            CongestionControl::Bbr => "bbr",
            CongestionControl::Vegas => "vegas",
        }
    }
}

/// A version of the Internet protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ip {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Ip {
    /// Length of its header without options, in bytes.
    pub const fn header(self) -> u64 {
        match self {
            Ip::V4 => 20,
            Ip::V6 => 40,
        }
    }
}

/// In which groups a receiving host counts a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenAs {
    /// Until it is known what it is for.
    pub first: usize,
    /// From then on.
    pub decided: usize,
}

impl SeenAs {
    /// Known from the start.
    const fn one(group: usize) -> SeenAs {
        SeenAs { first: group, decided: group }
    }
}

/// An instant at which the fair shares may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Time,
    /// What happens, for people: `video starts, link 10mbit`.
    pub what: String,
}

impl Scenario {
    /// Reads a scenario that needs no other file; `file` is what errors call the text.
    ///
    /// # Errors
    /// [`ConfigError`]: all that is wrong, with file, line and key.
    pub fn parse(text: &str, file: &str) -> Result<Scenario, ConfigError> {
        let refuse = |path: &Path| {
            Err(ConfigError::whole_file(path, "cannot read it: a scenario without files"))
        };
        Scenario::parse_with(&Text::new(text, file), &[], &refuse)
    }

    /// Reads a scenario as if its file said what the overrides say (the last of one key holds), and
    /// the trace that it names, if it does: `load` gets its path, beside the scenario's file, and
    /// reads it.
    ///
    /// # Errors
    /// [`ConfigError`]: all that is wrong in either, with file and line, or override, and key.
    pub fn parse_with(
        text: &Text,
        overrides: &[Override],
        load: &dyn Fn(&Path) -> Result<Text, ConfigError>,
    ) -> Result<Scenario, ConfigError> {
        mistakes::all(text.as_str().len(), |mends| {
            read::scenario(text.source(overrides).mended(mends), load)
        })
    }

    /// The end of the run.
    pub fn end(&self) -> Time {
        Time::ZERO + self.duration
    }

    /// Starts, stops and steps in order of time, those of one instant as one event. A stop at the
    /// end of the run is none.
    pub fn events(&self) -> Vec<Event> {
        let mut all: Vec<(Time, String)> = Vec::new();
        for flow in &self.flows {
            let name = &self.groups[flow.group].name;
            all.push((flow.start, format!("{name} starts")));
            all.push((flow.stop, format!("{name} stops")));
            for step in flow.demands.iter().skip(1) {
                let wants = step.demand.map_or("all it can have".to_owned(), |d| d.to_string());
                all.push((step.at, format!("{name} wants {wants}")));
            }
        }
        for step in self.link.capacity.steps().iter().skip(1) {
            all.push((step.at, format!("link {}", step.rate)));
        }
        if self.control.start > Time::ZERO {
            all.push((self.control.start, "control starts".to_owned()));
        }
        all.retain(|(at, _)| *at < self.end());
        all.sort_by_key(|(at, _)| *at);
        let mut events: Vec<Event> = Vec::new();
        for (at, what) in all {
            match events.last_mut() {
                Some(last) if last.at == at => {
                    if !last.what.split(", ").any(|w| w == what) {
                        last.what = format!("{}, {what}", last.what);
                    }
                }
                _ => events.push(Event { at, what }),
            }
        }
        events
    }

    fn default_group(&self) -> Option<usize> {
        self.groups.iter().position(|group| group.name == DEFAULT_GROUP)
    }

    /// In which group packets count that are of no flow: the default one, or the last.
    pub fn rest_group(&self) -> usize {
        self.default_group().unwrap_or(self.groups.len() - 1)
    }

    /// In which groups a receiving host counts a flow's connections.
    ///
    /// A site's connections go to servers of all sites. Only a `web:` rule tells them apart, and that
    /// from the moment of the browser extension's report on; until then they are of the
    /// default group. Without one the servers' addresses decide, for all sites alike.
    pub fn seen_as(&self, flow: &Flow) -> SeenAs {
        let Kind::Browser(browser) = &flow.kind else { return SeenAs::one(flow.group) };
        let sites = Sites::of_lists(self.groups.iter().map(|group| &group.matches[..]));
        let default = self.default_group();
        let site = HostName::from_wire(browser.site.as_bytes());
        if let Some(group) = site.and_then(|site| sites.group_of(&site)) {
            return SeenAs { first: default.unwrap_or(group), decided: group };
        }
        let by_address = |i: &usize| {
            let shares = |f: &Flow| f.group == *i && matches!(f.kind, Kind::Browser(_));
            self.groups[*i].matches.is_empty() && self.flows.iter().any(shares)
        };
        let mut groups = 0..self.groups.len();
        SeenAs::one(groups.find(by_address).or(default).unwrap_or(flow.group))
    }

    /// The downlink as a link; for the control `wfq` the ISP itself serves by weight.
    pub fn downlink(&self, control: Control) -> LinkSpec {
        let link = &self.link;
        LinkSpec {
            capacity: link.capacity.clone(),
            buffer: link.buffer,
            queue: if control == Control::Wfq { Discipline::Wfq } else { link.queue },
            weights: self.groups.iter().map(|g| g.weight).collect(),
            loss_ppm: link.loss_ppm,
            loss_burst: link.loss_burst,
            jitter: link.jitter,
            grant: link.down_grant,
            seed: self.seed,
        }
    }

    /// The uplink as a link.
    pub fn uplink(&self) -> LinkSpec {
        let Access { up_rate, up_buffer, up_grant, .. } = self.link;
        let link = LinkSpec::fifo(Capacity::constant(up_rate), up_buffer);
        LinkSpec { seed: self.seed, grant: up_grant, ..link }
    }

    /// What the downlink carries at time `t`; under a trace, in the second that begins at `t`.
    pub fn capacity_at(&self, t: Time) -> Rate {
        self.link.capacity.at(t)
    }

    /// What a group would use at time `t`: the sum of its active flows.
    pub fn demand_at(&self, group: usize, t: Time) -> Demand {
        self.flows.iter().filter(|f| f.group == group).map(|f| f.demand_at(t)).sum()
    }

    /// Weighted max-min fair shares of the groups at time `t`, by true capacity and demands, among
    /// the devices first where there are some; `None` while the demand of a group is unknown, since
    /// then all shares are, and where flows are policed, since then the plans decide.
    pub fn fair_shares_at(&self, t: Time) -> Option<Vec<Rate>> {
        if !self.police.is_empty() {
            return None;
        }
        let (hosts, capacity) = (self.hosts(), self.capacity_at(t));
        if self.devices.is_empty() {
            return self.division_at(&hosts[0], capacity, t);
        }
        let mut devices = Vec::new();
        for (device, groups) in self.devices.iter().zip(&hosts) {
            let entries = self.entries_at(groups, t)?;
            let demand = entries.iter().map(|entry| entry.demand).sum();
            devices.push(Entry { weight: device.weight, demand });
        }
        let mut shares = vec![Rate::ZERO; self.groups.len()];
        for (groups, capacity) in hosts.iter().zip(fair(capacity, &devices)) {
            for (&group, share) in groups.iter().zip(self.division_at(groups, capacity, t)?) {
                shares[group] = share;
            }
        }
        Some(shares)
    }

    /// The groups of each device, or all groups as those of the only host.
    pub fn hosts(&self) -> Vec<Vec<usize>> {
        let groups = || 0..self.groups.len();
        if self.devices.is_empty() {
            return vec![groups().collect()];
        }
        let of = |device| groups().filter(|&group| self.device_of[group] == device).collect();
        (0..self.devices.len()).map(of).collect()
    }

    /// How weighted max-min fairness divides `total` among some groups at time `t`; `None` while
    /// the demand of one of them is unknown.
    pub fn division_at(&self, groups: &[usize], total: Rate, t: Time) -> Option<Vec<Rate>> {
        let entries = self.entries_at(groups, t)?;
        let demands: Vec<Option<Rate>> = entries.iter().map(|entry| entry.demand).collect();
        let tree = tree_of(groups.iter().map(|&group| &self.groups[group]));
        Some(tree.divide(total, Claims { demands: &demands, taken: &[] }))
    }

    fn entries_at(&self, groups: &[usize], t: Time) -> Option<Vec<Entry>> {
        let entry = |&group: &usize| {
            let demand = match self.demand_at(group, t) {
                Demand::Known(rate) => Some(rate),
                Demand::Endless => None,
                Demand::Unknown => return None,
            };
            let Group { weight, max, .. } = self.groups[group];
            let demand = match (demand, max) {
                (Some(demand), Some(max)) => Some(demand.min(max)),
                (demand, max) => demand.or(max),
            };
            Some(Entry { weight, demand })
        };
        groups.iter().map(entry).collect()
    }

    /// Whether the flows want at least what the downlink carries at time `t`, whatever those of
    /// unknown demand want, and are not policed.
    pub fn demand_suffices_at(&self, t: Time) -> bool {
        if !self.police.is_empty() {
            return false;
        }
        let known = |flow: &Flow| match flow.demand_at(t) {
            Demand::Known(rate) => rate,
            Demand::Endless => Rate::MAX,
            Demand::Unknown => Rate::ZERO,
        };
        self.flows.iter().map(known).sum::<Rate>() >= self.capacity_at(t)
    }
}

impl Flow {
    /// Payload of a full packet of its connections in IP packets of at most `mtu` bytes.
    pub fn segment(&self, mtu: u32) -> Bytes {
        Bytes::new(u64::from(mtu) - self.headers())
    }

    /// TCP header of all packets but SYNs, in bytes.
    pub fn tcp_header(&self) -> u64 {
        TCP_HEADER + self.timestamps.map_or(0, |_| TIMESTAMPS)
    }

    /// IP header and what is between it and the payload of its connections, in bytes.
    pub fn headers(&self) -> u64 {
        let is_quic = self.kind == Kind::Quic;
        self.ip.header() + if is_quic { UDP_HEADER + QUIC_HEADER } else { self.tcp_header() }
    }

    /// What the flow would use at time `t`: nothing while it is not active.
    pub fn demand_at(&self, t: Time) -> Demand {
        if t < self.start || t >= self.stop {
            return Demand::Known(Rate::ZERO);
        }
        match self.kind {
            Kind::Ping { interval } => Demand::Known(ping_rate(self.ip, interval)),
            Kind::Bulk | Kind::Quic | Kind::Udp => {
                let holds = self.demands.iter().rev().find(|step| step.at <= t);
                holds.and_then(|step| step.demand).map_or(Demand::Endless, Demand::Known)
            }
            Kind::Browser(Browser { page: Page::Endless, .. }) => Demand::Endless,
            Kind::OnOff(_)
            | Kind::Video(_)
            | Kind::Web(_)
            | Kind::Short(_)
            | Kind::Browser(Browser { page: Page::Images { .. }, .. }) => Demand::Unknown,
        }
    }
}

/// L2 rate of a ping's answers.
pub fn ping_rate(ip: Ip, interval: Span) -> Rate {
    let bytes = PING_PAYLOAD + UDP_HEADER + ip.header() + ETHERNET_HEADER;
    Rate::from_volume(Bytes::new(bytes), interval)
}

#[cfg(test)]
mod tests;
