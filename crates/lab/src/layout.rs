//! Addresses, ports and names of everything in a scenario, and the daemons' configurations.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fairweir_core::delegate::{Point, Role, Target, Trace};
use fairweir_core::policy::DEFAULT_GROUP;
use fairweir_core::receiver::Control;
use fairweir_core::share::Weight;
use fairweir_core::units::{Span, Time};
use fairweir_scenario::app;
use fairweir_scenario::link::Discipline;
use fairweir_scenario::{
    Browser, Bundle, CongestionControl, Flow, Ip, Kind, Measurement, Scenario, Tuning,
};
use ipnet::IpNet;
use socket2::{Domain, Socket, Type};

use crate::Error;
use crate::job::{Job, Part, Seat};

/// Maximum number of flows; each flow has its own process.
const FLOWS_MAX: usize = 256;
/// Maximum number of devices: all have addresses in one network.
const DEVICES_MAX: usize = 200;
/// Flow `i` is served at this port plus `i`, so that the port identifies the flow.
const FIRST_PORT: u16 = 5001;
/// The home's interface at which downloads arrive.
pub(crate) const WAN_DEVICE: &str = "wan";
/// The bridge to the devices, if the home is a router.
pub(crate) const LAN_DEVICE: &str = "br-lan";
/// The port at which all sites are served.
pub(crate) const SITE_PORT: u16 = 443;

/// A scenario together with its addresses.
pub(crate) struct Layout<'s> {
    pub(crate) scenario: &'s Scenario,
    /// The servers' addresses, in the order of the flows.
    pub(crate) servers: Vec<SocketAddr>,
}

impl<'s> Layout<'s> {
    pub(crate) fn new(scenario: &'s Scenario) -> Layout<'s> {
        let mut named: Vec<(&str, IpAddr)> = Vec::new();
        let mut servers = Vec::new();
        for (i, flow) in scenario.flows.iter().enumerate() {
            if let Kind::Browser(_) = flow.kind {
                servers.push(SocketAddr::new(shared_address(0, flow.ip), SITE_PORT));
                continue;
            }
            let known = named.iter().find(|(name, _)| flow.server.as_deref() == Some(name));
            let address = known.map_or_else(|| server_address(i, flow.ip), |(_, a)| *a);
            if let Some(name) = &flow.server {
                named.push((name, address));
            }
            servers.push(SocketAddr::new(address, FIRST_PORT + i as u16));
        }
        Layout { scenario, servers }
    }

    /// The addresses of all servers and reflectors, without duplicates.
    pub(crate) fn server_addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = self.servers.iter().map(SocketAddr::ip).collect();
        addresses.extend(self.shared_hosts().into_iter().map(|(_, address)| address));
        if self.scenario.probe.is_there {
            addresses.extend(REFLECTORS);
        }
        addresses.sort();
        addresses.dedup();
        addresses
    }

    /// Names and addresses of the hosts from which the sites load; empty without sites.
    pub(crate) fn shared_hosts(&self) -> Vec<(String, IpAddr)> {
        let most =
            sites(self.scenario).map(|(flow, site)| (site.hosts, flow.ip)).max_by_key(|m| m.0);
        let Some((hosts, ip)) = most else { return Vec::new() };
        let host = |i: u32| (format!("cdn{i}.example.org"), shared_address(i, ip));
        (0..hosts).map(host).collect()
    }

    /// The port of the first flow; the others follow in order.
    pub(crate) fn first_port(&self) -> u16 {
        FIRST_PORT
    }

    /// The agents' jobs. The seeds are those of the simulator without control, so that both worlds see the
    /// same pages, sizes and pauses.
    pub(crate) fn jobs(&self) -> Vec<Job> {
        let seeds = app::seeds(self.scenario, self.scenario.seed);
        let flows = self.scenario.flows.iter().zip(&self.servers).zip(seeds);
        let job = |((flow, &server), seed)| Job::new(flow, server, self.scenario.link.mtu, seed);
        let is_of_agent =
            |((flow, _), _): &((&Flow, &SocketAddr), u64)| !matches!(flow.kind, Kind::Browser(_));
        let mut jobs: Vec<Job> = flows.filter(is_of_agent).map(job).collect();
        for job in jobs.iter_mut().filter(|job| job.flow.kind == Kind::Quic) {
            job.seat = self.seat(&job.flow);
        }
        jobs
    }

    /// Whether the server itself, not the daemon, handles the signals of a bundle.
    pub(crate) fn is_of_quic(&self, bundle: &Bundle) -> bool {
        let mut flows = self.scenario.flows.iter();
        flows.any(|flow| flow.kind == Kind::Quic && bundle.groups().any(|g| g == flow.group))
    }

    fn seat(&self, flow: &Flow) -> Option<Seat> {
        let mut bundles = self.scenario.bundles.iter().enumerate();
        let (nth, bundle, role) =
            bundles.find_map(|(nth, b)| Some((nth, b, b.role_of(flow.group)?)))?;
        Some(Seat {
            bundle: nth,
            spec: bundle.delegation?,
            part: match role {
                Role::Free(Target::Trace(trace)) => {
                    let points = trace_points(self.scenario, &trace);
                    Part::Trace(points.map(|point| (point.at, point.rate)).collect())
                }
                Role::Free(Target::Connections(count)) => Part::Connections(count),
                Role::Stunt { weight, min_rate } => Part::Stunt { weight, min_rate },
            },
            free_group: bundle.free.iter().position(|free| free.group == flow.group),
            free_groups: bundle.free.len(),
            duration: self.scenario.duration,
        })
    }

    /// Base name of the executable that receives a flow.
    pub(crate) fn app(&self, flow: &Flow) -> String {
        let group = &self.scenario.groups[flow.group].name;
        flow.app.clone().unwrap_or_else(|| format!("fetch-{group}"))
    }

    /// The configuration of the daemon in the home: of a host, or of a router with devices.
    pub(crate) fn configuration(&self, control: Control) -> String {
        let scenario = self.scenario;
        let divider = if scenario.agreed().is_some() { "auto" } else { "off" };
        if scenario.devices.is_empty() {
            let groups: Vec<usize> = (0..scenario.groups.len()).collect();
            return self.host_configuration(control, &groups, divider);
        }
        let mut text = format!(
            "version = 1\n[router]\nlan = \"{LAN_DEVICE}\"\nwan = \"{WAN_DEVICE}\"\ndivider = \"{divider}\"\n{}",
            self.settings(control)
        );
        let factor = factor(scenario.devices.iter().map(|device| device.weight));
        for (index, device) in scenario.devices.iter().enumerate() {
            let (name, weight) = (quoted(&device.name), device.weight.as_u32() * factor);
            let addresses = LAN.map(|(lan, _)| format!("\"ip:{}\"", device_address(lan, index)));
            let _ = writeln!(
                text,
                "[[device]]\nname = {name}\nweight = {weight}\nmatch = [{}]{}",
                addresses.join(", "),
                if device.via_proxy { "\nvia = \"proxy\"" } else { "" }
            );
        }
        text
    }

    /// The configuration of the proxy beside the router, if a device is behind it.
    pub(crate) fn proxy_configuration(&self) -> Option<String> {
        let is_needed = self.scenario.devices.iter().any(|device| device.via_proxy);
        is_needed
            .then(|| format!("version = 1\n[proxy]\nlan = [\"{LAN_DEVICE}\"]\nrouter = true\n"))
    }

    /// The configuration of a host that receives these groups. As in the simulator, no router divides for it.
    pub(crate) fn host_configuration(
        &self,
        control: Control,
        groups: &[usize],
        divider: &str,
    ) -> String {
        let mut text =
            format!("version = 1\n[host]\ndivider = \"{divider}\"\n{}", self.settings(control));
        let of = |&group: &usize| self.scenario.groups[group].weight;
        let factor = factor(groups.iter().map(of));
        for &i in groups {
            let group = &self.scenario.groups[i];
            let name = quoted(&group.name);
            let weight = group.weight.as_u32() * factor;
            let _ = writeln!(text, "[[group]]\nname = {name}\nweight = {weight}");
            if let Some(max) = group.max {
                let _ = writeln!(text, "max = \"{}bit\"", max.as_bps());
            }
            if let Some(min) = group.min {
                let _ = writeln!(text, "min = \"{}bit\"", min.as_bps());
            }
            if group.name != DEFAULT_GROUP {
                let _ = writeln!(text, "match = [{}]", self.matches(i).join(", "));
            }
        }
        text
    }

    /// The configuration keys that hosts and routers share.
    fn settings(&self, control: Control) -> String {
        let (scenario, mut text) = (self.scenario, String::new());
        if control.needs_capacity() {
            let capacity =
                scenario.control.capacity.unwrap_or_else(|| scenario.link.capacity.nominal());
            let _ = writeln!(text, "capacity = \"{}bit\"", capacity.as_bps());
        }
        let probe = if scenario.probe.is_there { REFLECTORS[0].to_string() } else { "off".into() };
        let _ = writeln!(text, "probe = \"{probe}\"");
        if control == Control::Fairweir || control == Control::Rbm {
            let _ = writeln!(text, "enforce = \"{}\"", scenario.control.enforce.name());
            if let Some(latency) = scenario.control.latency {
                let _ = writeln!(text, "latency = \"{}us\"", latency.as_nanos() / 1_000);
            }
        }
        text
    }

    fn matches(&self, group: usize) -> Vec<String> {
        let given = &self.scenario.groups[group].matches;
        if !given.is_empty() {
            return given.iter().map(|m| quoted(&m.to_string())).collect();
        }
        let flows = self.scenario.flows.iter().zip(&self.servers);
        let own = flows.filter(|(flow, _)| flow.group == group);
        let addresses = own.flat_map(|(flow, server)| match &flow.kind {
            Kind::Browser(site) => (0..site.hosts).map(|i| shared_address(i, flow.ip)).collect(),
            _ => vec![server.ip()],
        });
        let mut texts: Vec<String> = addresses.map(|ip| quoted(&format!("ip:{ip}"))).collect();
        texts.dedup();
        texts
    }
}

/// The points of a trace, one for each second of a run.
pub(crate) fn trace_points<'t>(
    scenario: &Scenario,
    trace: &'t Trace,
) -> impl Iterator<Item = Point> + use<'t> {
    let seconds = scenario.duration.as_nanos() / 1_000_000_000;
    let times = (0..=seconds).map(|s| Time::ZERO + Span::secs(s));
    times.map(|at| Point { at, rate: trace.at(at) })
}

/// The sites of a scenario, with their flows.
pub(crate) fn sites(scenario: &Scenario) -> impl Iterator<Item = (&Flow, &Browser)> {
    scenario.flows.iter().filter_map(|flow| match &flow.kind {
        Kind::Browser(site) => Some((flow, site)),
        _ => None,
    })
}

/// The error for a control that no daemon implements.
pub(crate) const NOT_EMULATED: Error = Error::NotPlayed("the control `crab-printed`");

/// Refuses scenarios with features that only the simulator has, or that this kernel lacks.
///
/// # Errors
/// [`Error::NotPlayed`] or [`Error::NoCongestionControl`], for the first such feature.
pub fn refuse_unplayable(scenario: &Scenario) -> Result<(), Error> {
    if scenario.flows.len() > FLOWS_MAX {
        return Err(Error::NotPlayed("more than 256 flows"));
    }
    if scenario.devices.len() > DEVICES_MAX {
        return Err(Error::NotPlayed("more than 200 devices"));
    }
    let is_policed = !scenario.police.is_empty() && scenario.agreed().is_none();
    if !scenario.devices.is_empty() && (is_policed || !scenario.bundles.is_empty()) {
        return Err(Error::NotPlayed(
            "[[police]] without an agreement, or [[bundle]], beside [[device]]",
        ));
    }
    if cfg!(not(feature = "tls")) {
        let needs_tls = |flow: &Flow| matches!(flow.kind, Kind::Quic | Kind::Browser(_));
        if scenario.flows.iter().any(needs_tls) {
            return Err(Error::NotPlayed("flows of kind `quic` and `browser` in this build"));
        }
    }
    if sites(scenario).next().is_some() {
        if !scenario.police.is_empty() || !scenario.bundles.is_empty() {
            return Err(Error::NotPlayed("[[police]] or [[bundle]] beside sites"));
        }
        // To which site a packet belongs is known only afterwards.
        if matches!(scenario.link.queue, Discipline::Wfq | Discipline::Drr) {
            return Err(Error::NotPlayed("sites behind a link that serves by group"));
        }
    }
    if scenario.devices.iter().any(|device| device.control.at_home().is_none()) {
        return Err(NOT_EMULATED);
    }
    for bundle in scenario.bundles.iter().filter(|bundle| bundle.delegation.is_some()) {
        refuse_mixed(scenario, bundle)?;
    }
    if scenario.control.tuning != Tuning::default() {
        return Err(Error::NotPlayed("other parameters of `crab`"));
    }
    if scenario.control.measurement == Measurement::Exact {
        return Err(Error::NotPlayed("exact measurements"));
    }
    if scenario.control.start > Time::ZERO {
        return Err(Error::NotPlayed("a control that starts late"));
    }
    if scenario.control.strict_priority {
        return Err(Error::NotPlayed("strict priority"));
    }
    if clocks(scenario).any(|clock| clock.is_some_and(|period| period != Span::millis(1))) {
        return Err(Error::NotPlayed("TCP timestamps other than the kernel's"));
    }
    if uses_timestamps(scenario) && clocks(scenario).any(|clock| clock.is_none()) {
        return Err(Error::NotPlayed("servers with TCP timestamps beside servers without"));
    }
    if uses_ecn(scenario) && tcp_flows(scenario).any(|flow| !flow.ecn) {
        return Err(Error::NotPlayed("connections with ECN beside connections without"));
    }
    for flow in &scenario.flows {
        match flow.kind {
            Kind::Browser(_) if flow.stop < scenario.end() => {
                return Err(Error::NotPlayed("a site that is closed before the end"));
            }
            Kind::Bulk
            | Kind::OnOff(_)
            | Kind::Video(_)
            | Kind::Web(_)
            | Kind::Short(_)
            | Kind::Browser(_) => {
                refuse_unknown(flow.congestion_control.name())?;
            }
            // QUIC has its own congestion control.
            Kind::Ping { .. } | Kind::Udp | Kind::Quic => {}
        }
    }
    Ok(())
}

/// Refuses bundles of both TCP and QUIC: the kernel handles TCP's signals, and the server those of QUIC.
fn refuse_mixed(scenario: &Scenario, bundle: &Bundle) -> Result<(), Error> {
    let flows = || scenario.flows.iter().filter(|flow| bundle.groups().any(|g| g == flow.group));
    if !flows().any(|flow| flow.kind == Kind::Quic) {
        return Ok(());
    }
    if flows().any(|flow| flow.kind != Kind::Quic) {
        return Err(Error::NotPlayed("QUIC beside other kinds in a [[bundle]]"));
    }
    match flows().all(|flow| flow.congestion_control == CongestionControl::Reno) {
        true => Ok(()),
        false => Err(Error::NotPlayed("QUIC with other than reno in a [[bundle]]")),
    }
}

/// Whether the servers send TCP timestamps; a network namespace has one setting for all servers.
pub(crate) fn uses_timestamps(scenario: &Scenario) -> bool {
    clocks(scenario).next().is_none() || clocks(scenario).any(|clock| clock.is_some())
}

/// The period of the timestamps of each flow over TCP.
fn clocks(scenario: &Scenario) -> impl Iterator<Item = Option<Span>> {
    tcp_flows(scenario).map(|flow| flow.timestamps)
}

/// Whether connections use ECN; a network namespace has one setting for all connections.
pub(crate) fn uses_ecn(scenario: &Scenario) -> bool {
    tcp_flows(scenario).any(|flow| flow.ecn)
}

fn tcp_flows(scenario: &Scenario) -> impl Iterator<Item = &Flow> {
    let is_tcp = |flow: &&Flow| !matches!(flow.kind, Kind::Ping { .. } | Kind::Udp | Kind::Quic);
    scenario.flows.iter().filter(is_tcp)
}

/// Requests a congestion control from the kernel, which loads its module.
fn refuse_unknown(congestion_control: &'static str) -> Result<(), Error> {
    let socket =
        Socket::new(Domain::IPV4, Type::STREAM, None).map_err(|e| Error::io("open a socket", e))?;
    socket
        .set_tcp_congestion(congestion_control.as_bytes())
        .map_err(|source| Error::NoCongestionControl { name: congestion_control, source })
}

/// The home's side of the access link: networks and addresses of `wan` and of its gateway.
pub(crate) const WAN: [(IpNet, IpAddr); 2] = [
    (
        IpNet::V4(ipnet::Ipv4Net::new_assert(Ipv4Addr::new(198, 19, 0, 2), 24)),
        IpAddr::V4(Ipv4Addr::new(198, 19, 0, 1)),
    ),
    (
        IpNet::V6(ipnet::Ipv6Net::new_assert(Ipv6Addr::new(0xfd77, 2, 0, 0, 0, 0, 0, 2), 64)),
        IpAddr::V6(Ipv6Addr::new(0xfd77, 2, 0, 0, 0, 0, 0, 1)),
    ),
];

/// The networks of devices behind the router, and the router's addresses there.
pub(crate) const LAN: [(IpNet, IpAddr); 2] = [
    (
        IpNet::V4(ipnet::Ipv4Net::new_assert(Ipv4Addr::new(198, 19, 7, 0), 24)),
        IpAddr::V4(Ipv4Addr::new(198, 19, 7, 254)),
    ),
    (
        IpNet::V6(ipnet::Ipv6Net::new_assert(Ipv6Addr::new(0xfd77, 3, 0, 0, 0, 0, 0, 0), 64)),
        IpAddr::V6(Ipv6Addr::new(0xfd77, 3, 0, 0, 0, 0, 0, 0xffff)),
    ),
];

/// The address of a device in one of [`LAN`].
pub(crate) fn device_address(lan: IpNet, device: usize) -> IpAddr {
    let number = device as u16 + 1;
    match lan {
        IpNet::V4(lan) => Ipv4Addr::from_bits(lan.network().to_bits() + u32::from(number)).into(),
        IpNet::V6(lan) => Ipv6Addr::from_bits(lan.network().to_bits() + u128::from(number)).into(),
    }
}

/// Factor by which weights are multiplied. The daemon adds a default group of weight 1, with almost no traffic
/// here: beside larger weights it takes almost nothing where shares are reserved.
fn factor(weights: impl Iterator<Item = Weight>) -> u32 {
    Weight::MAX / weights.map(Weight::as_u32).max().unwrap_or(1)
}

/// The networks of all servers. 198.18.0.0/15 is for benchmarks (RFC 2544).
pub(crate) const INTERNET: [IpNet; 2] = [
    IpNet::V4(ipnet::Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 16)),
    IpNet::V6(ipnet::Ipv6Net::new_assert(Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 0, 0), 64)),
];

/// The home's networks, as seen by the servers.
pub(crate) const INTERNET_PEERS: [IpNet; 2] = [WAN[0].0, WAN[1].0];

/// The addresses that answer the daemon's probe, one for each family.
pub(crate) const REFLECTORS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 18, 255, 254)),
    IpAddr::V6(Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 0, 0xffff)),
];

/// The address of host `i` among the hosts that sites share.
fn shared_address(i: u32, ip: Ip) -> IpAddr {
    let i = i as u16 + 1;
    match ip {
        Ip::V4 => Ipv4Addr::new(198, 18, 254, i as u8).into(),
        Ip::V6 => Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 1, i).into(),
    }
}

fn server_address(flow: usize, ip: Ip) -> IpAddr {
    let i = flow as u16 + 1;
    match ip {
        Ip::V4 => Ipv4Addr::new(198, 18, (i / 250) as u8, (i % 250) as u8).into(),
        Ip::V6 => Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 0, i).into(),
    }
}

pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(flow: &str) -> Option<String> {
        let text = format!(
            "version = 1\nname = \"x\"\nduration = \"9s\"\n[link]\nrate = \"9mbit\"\n\
             [[group]]\nname = \"a\"\nweight = 1\n[[flow]]\ngroup = \"a\"\n{flow}"
        );
        let scenario = Scenario::parse(&text, "x").unwrap();
        refuse_unplayable(&scenario).err().map(|e| e.to_string())
    }

    #[test]
    fn what_only_the_simulator_plays_is_refused_by_name() {
        for flow in [
            "kind = \"bulk\"\ncongestion_control = \"reno\"",
            "kind = \"quic\"\ncongestion_control = \"bbr\"",
            "kind = \"ping\"",
            "kind = \"udp\"\ndemand = \"1mbit\"",
            "kind = \"on-off\"",
            "kind = \"video\"",
            "kind = \"web\"",
            "kind = \"short\"\nrate_per_s = 1\nsize = \"9kB\"",
        ] {
            assert_eq!(error(flow), None, "{flow}");
        }
        let refused = error("kind = \"ping\"\n[control]\nmeasurement = \"exact\"").unwrap();
        assert!(refused.contains("does not play exact measurements"), "{refused}");
        let refused = error("kind = \"ping\"\n[control]\nstrict_priority = true").unwrap();
        assert!(refused.contains("does not play strict priority"), "{refused}");
        let refused = error("kind = \"ping\"\n[control]\nstart = \"5s\"").unwrap();
        assert!(refused.contains("does not play a control that starts late"), "{refused}");
        for timestamps in ["timestamps = false", "timestamp_period = \"1ms\""] {
            assert_eq!(error(&format!("kind = \"bulk\"\n{timestamps}")), None);
        }
        let mixed = "kind = \"bulk\"\n[[flow]]\ngroup = \"a\"\nkind = \"bulk\"\necn = true";
        assert!(error(mixed).unwrap().contains("with ECN beside"));
        let mixed = "kind = \"bulk\"\n[[flow]]\ngroup = \"a\"\nkind = \"bulk\"\ntimestamps = false";
        assert!(error(mixed).unwrap().contains("servers with TCP timestamps beside"));
        let bundle = "kind = \"quic\"\n[[group]]\nname = \"b\"\nweight = 1\n[[flow]]\ngroup = \"b\"\n\
            kind = \"bulk\"\n[[bundle]]\nname = \"x\"\nstunts = [\"b\"]\n\
            free = [{ group = \"a\", target = \"1mbit\" }]";
        let refused = error(bundle).unwrap();
        assert!(refused.contains("does not play QUIC beside other kinds in a [[bundle]]"));
        assert_eq!(error(&bundle.replacen("quic", "bulk", 1)), None);
        let quic = bundle.replacen("bulk", "quic", 1);
        assert!(error(&quic).unwrap().contains("QUIC with other than reno in a [[bundle]]"));
        let reno = quic.replace("\"quic\"", "\"quic\"\ncongestion_control = \"reno\"");
        assert_eq!(error(&reno), None);
        let none = bundle.replace("stunts = ", "controller = \"none\"\nstunts = ");
        assert_eq!(error(&none), None, "without delegation each is as it is");
    }

    #[test]
    fn a_congestion_control_that_the_kernel_lacks_is_named() {
        let refused = refuse_unknown("nonesuch").unwrap_err().to_string();
        assert!(refused.contains("`nonesuch`"), "{refused}");
    }
}
