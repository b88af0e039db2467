//! Scenario files: an access link, the groups that share it and the flows that load it.
//!
//! One TOML file describes a scenario for the emulated home as well as for the simulator (its
//! format is in `docs/research/simulator.md`). [`Scenario::parse`] reads it into a [`Scenario`],
//! which is valid by construction: names are unique, times lie inside the run, steps are in order,
//! no rate is zero. All questions about it are functions of time: the capacity
//! ([`Scenario::capacity_at`]), the demands, and so the fair shares.
//!
//! Terms: a *flow* is one application of a group, with as many connections as it needs. An *event*
//! is an instant at which the fair shares may change. Under a trace they also change in between,
//! since they are the shares of each second's capacity, which may be zero. All rates, also demands,
//! count L2 bytes.

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
pub use police::{Algorithm, By, POLICE_COPIES_MAX, Police, PoliceSize, QueueBy};

/// The most flows of a scenario.
pub const FLOWS_MAX: usize = 4_096;
/// The most connections of a flow.
pub const CONNECTIONS_MAX: u32 = 256;
/// The longest duration of a scenario.
pub const DURATION_MAX: Span = Span::secs(24 * 3600);

/// A valid scenario, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its name in reports.
    pub name: String,
    /// Length of the run.
    pub duration: Span,
    /// Time after each event that the averages leave out.
    pub settle: Span,
    /// Seed of all randomness.
    pub seed: u64,
    /// Delay of the flows' starts after the times in the file.
    pub start_jitter: StartJitter,
    /// The access link.
    pub link: Access,
    /// The parameters of the control.
    pub control: Told,
    /// The reflector that answers the control's probe.
    pub probe: Reflector,
    /// The groups that share the link, in the order of the file. A group without matches takes the
    /// addresses of its flows' servers.
    pub groups: Vec<Group>,
    /// Devices behind a router, which share by weight before their groups do; empty if the link
    /// ends at a single host.
    pub devices: Vec<Device>,
    /// Index of each group's device; empty without devices.
    pub device_of: Vec<usize>,
    /// The flows that load the link, in the order of the file; after them come the flows of the
    /// copies of policing points.
    pub flows: Vec<Flow>,
    /// The rate of all policing points together, if they are members of a segment.
    pub segment: Option<Rate>,
    /// The points that limit flows to a rate before they come to the downlink.
    pub police: Vec<Police>,
    /// The groups whose connections answer each other's congestion signals.
    pub bundles: Vec<Bundle>,
}

/// The largest random delay of a flow's start after the time in the file. It is used only in the
/// simulator, so that seeds differ in the same way as real processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartJitter {
    /// The same limit for all flows.
    UpTo(Span),
    /// The flow's round-trip time: flows that start together are in any phase of it.
    Rtt,
}

impl StartJitter {
    /// The differences between processes that are started together.
    pub const PROCESSES: StartJitter = StartJitter::UpTo(Span::millis(5));

    /// The largest delay for this flow, which still begins before it stops.
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
    /// Its name, unique in the scenario.
    pub name: String,
    /// Its weight at the router.
    pub weight: Weight,
    /// How it controls its own groups, behind the router's control.
    pub control: Control,
    /// Whether the router leaves its connections to the proxy.
    pub via_proxy: bool,
    /// The part of TCP packets that its last hop loses, in millionths.
    pub loss_ppm: u32,
}

/// An access link: a bottleneck in each direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    /// Capacity of the downlink over time.
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
    /// Mean number of packets in a burst of these losses; 1 means no bursts.
    pub loss_burst: u32,
    /// The random delay that the downlink adds to packets, without reordering.
    pub jitter: Jitter,
    /// Time from one grant of the downlink to the next; zero without grants.
    pub down_grant: Span,
    /// The same for the uplink.
    pub up_grant: Span,
    /// Order of service on the downlink.
    pub queue: Discipline,
}

/// A host in the internet that answers a control's probe, and the quality of its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflector {
    /// Whether there is one; otherwise there is no probe.
    pub is_there: bool,
    /// Round-trip time without any queue.
    pub rtt: Span,
    /// Number of requests in a million that it leaves unanswered.
    pub loss_ppm: u32,
    /// Routers limit answers: it does not answer a request within this time after an answered one.
    pub answer_interval: Span,
    /// How its answers mislead.
    pub lie: Lie,
}

/// How the answers of a reflector mislead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// They do not mislead.
    None,
    /// They bypass the queue of the downlink.
    Fast,
    /// They take up to [`LIE_SLOW_MAX`] longer, at random.
    Slow,
}

/// The largest delay that a slow reflector adds.
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

/// The parameters of the control, among them the link data that it is given at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The capacity, for controls that do not learn it; `None` for the link's nominal rate.
    pub capacity: Option<Rate>,
    /// The capacity that a learning control remembers from earlier days.
    pub remembered: Option<Rate>,
    /// Whether `chokepoint` serves the groups strictly in their order instead of by weight.
    pub strict_priority: bool,
    /// Deviations of `crab` from its defaults.
    pub tuning: Tuning,
    /// How `fairweir` enforces shares.
    pub enforce: Enforce,
    /// Target of `fairweir` for the queue at the ISP; `None` for the default.
    pub latency: Option<Span>,
    /// How the control sees its connections in the simulator.
    pub measurement: Measurement,
    /// When the control starts; before that, there is no control.
    pub start: Time,
}

/// How the simulator lets a control see its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measurement {
    /// Every packet is timed from the first one on.
    #[default]
    Ideal,
    /// As the daemon does with the kernel and its BPF programs: one packet in four is timed, after
    /// a second; RTTs are as the kernel estimates them.
    Kernel,
    /// `fairweir` is told the capacity, and each connection's RTT with empty queues. No real host
    /// can measure them as well.
    Exact,
}

/// Deviations of `crab` from its defaults; `None` for the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Time between two ticks, at which it reads what arrived.
    pub tick: Option<Span>,
    /// Ticks in a window.
    pub window_ticks: Option<u32>,
    /// Rate that a lender keeps at least in addition to what it uses.
    pub headroom: Option<Rate>,
    /// Whether it estimates the capacity.
    pub estimates: Option<bool>,
}

impl Tuning {
    /// The defaults `of` a loop with these deviations.
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
    /// do so.
    pub paced: bool,
    /// Length of a tick of its servers' TCP timestamps; `None` if they use no timestamps.
    pub timestamps: Option<Span>,
    /// Whether its connections use ECN (RFC 3168), so that a policer marks their packets.
    pub ecn: bool,
    /// Number of connections, for flows of kind bulk or QUIC and a browser's endless page.
    pub connections: u32,
    /// Round-trip time without any queue.
    pub rtt: Span,
    /// When it begins.
    pub start: Time,
    /// When it ends.
    pub stop: Time,
    /// The demand of a flow of kind bulk, QUIC, on-off (while on) or UDP, all connections together;
    /// the first entry applies from the start.
    pub demands: Vec<DemandStep>,
    /// Version of IP that it uses.
    pub ip: Ip,
    /// Base name of the receiving executable; `None` means `fetch-<group>`.
    pub app: Option<String>,
    /// Flows with the same server name have the same address; with `None` a flow has its own.
    pub server: Option<String>,
}

/// A demand of a flow and when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemandStep {
    /// When it begins.
    pub at: Time,
    /// The demand; `None` is without end.
    pub demand: Option<Rate>,
}

/// A ping's interval if its scenario does not give one.
pub const PING_INTERVAL: Span = Span::millis(100);
/// UDP payload of a ping's request and answer in bytes, as in ping(8).
pub const PING_PAYLOAD: u64 = 56;
/// Payload of a request in bytes, as in an HTTP GET with a few headers.
pub const REQUEST_PAYLOAD: u64 = 300;
/// Bytes that Ethernet adds to an IP packet; fairweir's rates include them.
pub const ETHERNET_HEADER: u64 = 14;
/// The smallest MTU with which IPv6 works, in bytes. Source: RFC 8200 §5.
pub const IPV6_MTU_MIN: u32 = 1280;
/// TCP header without options in bytes.
pub const TCP_HEADER: u64 = 20;
/// Bytes that timestamps add to the TCP header (RFC 7323 appendix A).
pub const TIMESTAMPS: u64 = 12;
/// UDP header in bytes.
pub const UDP_HEADER: u64 = 8;
/// Bytes that QUIC adds to the payload of a full UDP packet: a short header with a connection id of
/// 8 bytes and a packet number of 1 (enough while fewer than 128 are under way), the header of a
/// stream's frame without its length, and the AEAD's tag. Source: RFC 9000 §17.3.1 and §19.8, RFC
/// 9001 §5.3.
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
    /// Its name in the kernel.
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

/// The groups in which a receiving host counts a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenAs {
    /// The group until it is known what the connection is for.
    pub first: usize,
    /// The group from then on.
    pub decided: usize,
}

impl SeenAs {
    /// A connection whose group is known from the start.
    const fn one(group: usize) -> SeenAs {
        SeenAs { first: group, decided: group }
    }
}

/// An instant at which the fair shares may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it happens.
    pub at: Time,
    /// What happens, as readable text: `video starts, link 10mbit`.
    pub what: String,
}

impl Scenario {
    /// Reads a scenario that needs no other file; `file` is the name of the text in errors.
    ///
    /// # Errors
    /// [`ConfigError`]: all faults, with file, line and key.
    pub fn parse(text: &str, file: &str) -> Result<Scenario, ConfigError> {
        let refuse = |path: &Path| {
            Err(ConfigError::whole_file(path, "cannot read it: a scenario without files"))
        };
        Scenario::parse_with(&Text::new(text, file), &[], &refuse)
    }

    /// Reads a scenario as if its file contained the overrides (of several for one key, the last
    /// applies), and the trace that it names, if any: `load` gets the trace's path, which is beside
    /// the scenario's file, and reads it.
    ///
    /// # Errors
    /// [`ConfigError`]: all faults in either, with file and line, or override, and key.
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

    /// Starts, stops and steps in order of time, those at the same instant as one event. A stop at
    /// the end of the run is not an event.
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

    /// The group in which packets count that belong to no flow: the default group, or the last one.
    pub fn rest_group(&self) -> usize {
        self.default_group().unwrap_or(self.groups.len() - 1)
    }

    /// The groups in which a receiving host counts a flow's connections.
    ///
    /// A site's connections go to servers of all sites. Only a `web:` rule tells them apart, and
    /// only from the moment at which the browser extension reports; until then they belong to the
    /// default group. Without such a rule the servers' addresses decide, for all sites alike.
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

    /// The downlink as a link; with the control `wfq` the ISP itself serves by weight.
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

    /// The capacity at time `t` that both the downlink and a plan divided by agreement allow; under
    /// a trace, the mean of the second that begins at `t`.
    pub fn capacity_at(&self, t: Time) -> Rate {
        let link = self.link.capacity.at(t);
        self.agreed().map_or(link, |plan| plan.min(link))
    }

    /// The rate of the plan that is divided by agreement, if there is one.
    pub fn agreed(&self) -> Option<Rate> {
        self.police.iter().find(|police| police.by == By::Agreement).map(Police::rate)
    }

    /// Whether only plans decide the rates of the groups.
    fn is_policed(&self) -> bool {
        !self.police.is_empty() && self.agreed().is_none()
    }

    /// The demand of a group at time `t`: the sum over its active flows.
    pub fn demand_at(&self, group: usize, t: Time) -> Demand {
        self.flows.iter().filter(|f| f.group == group).map(|f| f.demand_at(t)).sum()
    }

    /// Weighted max-min fair shares of the groups at time `t`, by true capacity and demands; if there are devices,
    /// capacity is shared among them first. `None` while the demand of a group is unknown, since then all shares
    /// are, and where flows are policed without an agreement, since then the plans decide.
    pub fn fair_shares_at(&self, t: Time) -> Option<Vec<Rate>> {
        if self.is_policed() {
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

    /// The groups of each device, or all groups as the groups of the only host.
    pub fn hosts(&self) -> Vec<Vec<usize>> {
        let groups = || 0..self.groups.len();
        if self.devices.is_empty() {
            return vec![groups().collect()];
        }
        let of = |device| groups().filter(|&group| self.device_of[group] == device).collect();
        (0..self.devices.len()).map(of).collect()
    }

    /// How weighted max-min fairness divides `total` among some groups at time `t`; `None` while
    /// the demand of one of these groups is unknown.
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

    /// Whether the flows demand at least the capacity of the downlink at time `t`, whatever flows
    /// of unknown demand want. `false` where flows are policed without an agreement.
    pub fn demand_suffices_at(&self, t: Time) -> bool {
        if self.is_policed() {
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

    /// Size of the IP header and all headers between it and the payload of its connections, in bytes.
    pub fn headers(&self) -> u64 {
        let is_quic = self.kind == Kind::Quic;
        self.ip.header() + if is_quic { UDP_HEADER + QUIC_HEADER } else { self.tcp_header() }
    }

    /// The demand of the flow at time `t`: nothing while it is not active.
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
