//! Generates a scenario from a seed.
//!
//! The class is drawn first, so that each class is frequent enough to report on; then the
//! parameters within it. Numbers are rounded to two digits, so that files are readable. Sizes are
//! bounded by [`WORK_MAX_MBIT`], so that a run takes about half a second.

use fairweir_scenario::random::SplitMix64;
use toml::{Table, Value};

use super::case::Case;
use super::class::Class;

/// The most that the link carries in a run, in Mbit: 300 Mbit/s for 20 s.
const WORK_MAX_MBIT: f64 = 6_000.0;
/// The sum of the weights of all classes. Weight that no class has yet counts as plain, so that a
/// class that is added at the end of the list changes no other scenario.
const WEIGHTS: u64 = 600;
/// Durations in seconds, unless the rate shortens them.
const DURATION_S: (u64, u64) = (40, 60);
const DURATION_MIN_S: u64 = 16;
/// Times between events in seconds: longer than settling takes, so that windows are scored.
const EVENT_GAP_S: (u64, u64) = (10, 16);

/// The class of a seed.
pub(crate) fn class(seed: u64) -> Class {
    Draw::new(seed).class()
}

/// The scenario of a seed: a pure function.
pub(super) fn case(seed: u64) -> Case {
    let mut draw = Draw::new(seed);
    let class = draw.class();
    let mut home = Home::new(&mut draw, class);
    home.fill(&mut draw, class);
    home.case(seed, class)
}

/// Random numbers with the distributions that scenarios need.
struct Draw(SplitMix64);

impl Draw {
    fn new(seed: u64) -> Draw {
        Draw(SplitMix64::new(seed))
    }

    fn class(&mut self) -> Class {
        let mut left = self.0.below(WEIGHTS);
        for class in Class::ALL {
            match left.checked_sub(class.weight()) {
                Some(rest) => left = rest,
                None => return *class,
            }
        }
        Class::Plain
    }

    /// Uniform, ends included.
    fn int(&mut self, (least, most): (u64, u64)) -> u64 {
        least + self.0.below(most - least + 1)
    }

    /// Equal ratios are equally likely; rounded to two digits.
    fn log(&mut self, (least, most): (f64, f64)) -> f64 {
        let part = self.0.below(1_000_001) as f64 / 1e6;
        two_digits(least * (most / least).powf(part))
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.0.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.0.below(of.len() as u64) as usize]
    }

    /// One of several values, drawn by their weights.
    fn weighted<T: Copy>(&mut self, of: &[(u64, T)]) -> T {
        let mut left = self.0.below(of.iter().map(|(weight, _)| weight).sum());
        for &(weight, one) in of {
            match left.checked_sub(weight) {
                Some(rest) => left = rest,
                None => return one,
            }
        }
        of[of.len() - 1].1
    }
}

fn two_digits(value: f64) -> f64 {
    let exponent = value.log10().floor() as i32 - 1;
    // Powers of ten are exact only upwards.
    let scale = 10f64.powi(exponent.abs());
    match exponent < 0 {
        true => (value * scale).round() / scale,
        false => (value / scale).round() * scale,
    }
}

fn mbit(rate: f64) -> Value {
    let kbit = (rate * 1e3).round() as u64;
    match kbit % 1_000 {
        0 => format!("{}mbit", kbit / 1_000).into(),
        _ => format!("{kbit}kbit").into(),
    }
}

fn ms(time: f64) -> Value {
    match time < 1.0 {
        true => format!("{}us", (time * 1e3).round()).into(),
        false => format!("{time}ms").into(),
    }
}

fn seconds(time: u64) -> Value {
    format!("{time}s").into()
}

fn ratio(value: f64) -> Value {
    Value::Float(value)
}

fn count(value: u64) -> Value {
    Value::Integer(value as i64)
}

/// The values of a table.
fn table<const N: usize>(entries: [(&str, Value); N]) -> Table {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A scenario that is being built.
struct Home {
    rate: f64,
    /// The range of RTTs in ms.
    rtt: (f64, f64),
    duration: u64,
    /// Times at which something may change, in seconds.
    events: Vec<u64>,
    top: Table,
    link: Table,
    groups: Vec<Table>,
    flows: Vec<Table>,
    devices: Vec<Table>,
    police: Vec<Table>,
    trace: Option<String>,
}

/// The congestion controls of a class, with their frequencies.
const USUAL: &[(u64, &str)] = &[(70, "cubic"), (22, "bbr"), (8, "reno")];
const MIXED: &[(u64, &str)] = &[(35, "cubic"), (35, "bbr"), (20, "reno"), (10, "vegas")];
const CUBIC: &[(u64, &str)] = &[(80, "cubic"), (20, "bbr")];

impl Home {
    /// A link of the class, still without users.
    fn new(draw: &mut Draw, class: Class) -> Home {
        let is_wide = class == Class::Plain && draw.chance(20);
        let rate = draw.log(match class {
            Class::Slow => (1.0, 4.0),
            Class::Deep => (1.0, 20.0),
            Class::Policed => (5.0, 100.0),
            Class::Far | Class::Jitter => (2.0, 150.0),
            Class::Call => (3.0, 60.0),
            Class::Apps => (4.0, 150.0),
            Class::Crowded => (10.0, 300.0),
            _ if is_wide => (1.0, 1_000.0),
            _ => (2.0, 300.0),
        });
        let rtt = match class {
            Class::Far => (200.0, 500.0),
            Class::Rtts => (1.0, 500.0),
            // With longer RTTs, TCP alone does not fill a link with such a buffer.
            Class::Shallow => (5.0, 60.0),
            _ if is_wide => (1.0, 500.0),
            _ => (10.0, 150.0),
        };
        let buffer = draw.log(match class {
            Class::Shallow => (3.0, 10.0),
            Class::Deep => (300.0, 1_000.0),
            _ if is_wide => (5.0, 500.0),
            _ => (25.0, 250.0),
        });
        let longest = ((WORK_MAX_MBIT / rate) as u64).max(DURATION_MIN_S);
        let duration = draw.int(DURATION_S).min(longest);
        let mut events = Vec::new();
        let mut at = draw.int(EVENT_GAP_S);
        while at + EVENT_GAP_S.0 <= duration {
            events.push(at);
            at += draw.int(EVENT_GAP_S);
        }
        let link = table([("rate", mbit(rate)), ("buffer", ms(buffer))]);
        Home {
            rate,
            rtt,
            duration,
            events,
            top: Table::new(),
            link,
            groups: Vec::new(),
            flows: Vec::new(),
            devices: Vec::new(),
            police: Vec::new(),
            trace: None,
        }
    }

    fn case(self, seed: u64, class: Class) -> Case {
        let tables = |all: Vec<Table>| Value::Array(all.into_iter().map(Value::Table).collect());
        let (mut top, mut link) = (self.top, self.link);
        if self.trace.is_some() {
            link.insert("trace".into(), format!("campaign-{seed}.trace").into());
        }
        top.insert("version".into(), count(1));
        top.insert("name".into(), format!("campaign-{seed}").into());
        top.insert("duration".into(), seconds(self.duration));
        top.insert("seed".into(), count(seed));
        top.insert("link".into(), link.into());
        let lists = [
            ("group", self.groups),
            ("flow", self.flows),
            ("device", self.devices),
            ("police", self.police),
        ];
        for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            top.insert(key.into(), tables(list));
        }
        Case { seed, class, table: top, trace: self.trace }
    }

    /// Adds what is special about the class, and the users of the link.
    fn fill(&mut self, draw: &mut Draw, class: Class) {
        match class {
            Class::Plain | Class::Shallow | Class::Deep | Class::Far | Class::Rtts => {
                self.usual(draw, USUAL);
            }
            Class::Apps => self.apps(draw),
            Class::Senders => self.usual(draw, MIXED),
            Class::Late => {
                let start = draw.int((4, 8));
                self.told([("start", seconds(start))]);
                self.usual(draw, USUAL);
            }
            Class::Steps => {
                self.steps(draw);
                self.usual(draw, CUBIC);
            }
            Class::Policed => self.policed(draw),
            Class::Shaped => {
                let burst = draw.log((0.1, 4.0)) * self.rate * 1e3 / 8.0 * 40.0;
                self.link.insert("burst".into(), format!("{}B", burst as u64).into());
                let line = mbit(two_digits(self.rate * draw.log((2.0, 10.0))));
                self.link.insert("line_rate".into(), line);
                self.usual(draw, CUBIC);
            }
            Class::Neighbours => self.neighbours(draw),
            Class::Hosts => self.two_hosts(draw),
            Class::Jitter => {
                self.link.insert("jitter".into(), ms(draw.log((1.0, 30.0))));
                let model = draw.weighted(&[(40, "uniform"), (25, "exponential"), (35, "burst")]);
                self.link.insert("jitter_model".into(), model.into());
                if draw.chance(50) {
                    self.link.insert("jitter_part".into(), ratio(0.5));
                }
                self.usual(draw, CUBIC);
            }
            Class::Loss => {
                self.link.insert("loss".into(), ratio(draw.log((1e-4, 2e-2))));
                if draw.chance(50) {
                    let burst = draw.log((2.0, 20.0)).round() as u64;
                    self.link.insert("loss_burst".into(), count(burst));
                }
                self.usual(draw, USUAL);
            }
            Class::Slow => {
                let connections = draw.log((4.0, 32.0)) as u64;
                self.crowd(draw, connections);
            }
            Class::Crowded => {
                let connections = draw.log((16.0, 128.0)) as u64;
                self.crowd(draw, connections);
            }
            Class::Remembered => {
                let remembered = two_digits(self.rate * draw.log((0.3, 3.0)));
                self.told([("remembered", mbit(remembered))]);
                self.usual(draw, CUBIC);
            }
            Class::Trace => self.traced(draw),
            Class::Silent => self.silent(draw),
            Class::Call => self.call(draw),
            Class::Aqm => {
                let queue = draw.weighted(&[(35, "fq_codel"), (35, "codel"), (30, "pie")]);
                self.link.insert("queue".into(), queue.into());
                self.usual(draw, USUAL);
            }
            Class::Grants => {
                let keys = draw.weighted(&[
                    (50, &["up_grant"][..]),
                    (20, &["down_grant"]),
                    (30, &["up_grant", "down_grant"]),
                ]);
                for key in keys {
                    self.link.insert((*key).into(), ms(draw.log((1.0, 10.0))));
                }
                self.usual(draw, USUAL);
            }
            Class::Cold => {
                let connections = draw.int((2, 10));
                let start = draw.int((1, 5));
                self.events.clear();
                self.crowd(draw, connections);
                for flow in &mut self.flows {
                    flow.insert("start".into(), seconds(start));
                }
            }
        }
    }

    fn told<const N: usize>(&mut self, entries: [(&str, Value); N]) {
        self.top.insert("control".into(), table(entries).into());
    }

    fn probe<const N: usize>(&mut self, entries: [(&str, Value); N]) {
        self.top.insert("probe".into(), table(entries).into());
    }

    /// Adds a group with a weight of 1 to 20; returns its name.
    fn group(&mut self, draw: &mut Draw) -> String {
        let name = format!("g{}", self.groups.len() + 1);
        let weight = draw.log((1.0, 20.0)).round() as u64;
        self.groups.push(table([("name", name.clone().into()), ("weight", count(weight))]));
        name
    }

    /// Adds a flow for the whole run; the caller may change it.
    fn flow(&mut self, draw: &mut Draw, group: &str, kind: &str) -> &mut Table {
        let rtt = ms(draw.log(self.rtt));
        self.flows.push(table([("group", group.into()), ("kind", kind.into()), ("rtt", rtt)]));
        let last = self.flows.len() - 1;
        &mut self.flows[last]
    }

    fn bulk(&mut self, draw: &mut Draw, group: &str, connections: u64, of: &[(u64, &str)]) {
        let congestion_control = draw.weighted(of);
        let flow = self.flow(draw, group, "bulk");
        flow.insert("congestion_control".into(), congestion_control.into());
        if connections > 1 {
            flow.insert("connections".into(), count(connections));
        }
    }

    /// A small number of connections, seldom up to 8.
    fn connections(&mut self, draw: &mut Draw) -> u64 {
        match draw.chance(50) {
            true => 1,
            false => draw.log((1.0, 8.0)).round() as u64,
        }
    }

    /// Two to six groups: one downloads all the time; the others download, make calls or want
    /// little, and come, go or change their demand.
    fn usual(&mut self, draw: &mut Draw, of: &[(u64, &str)]) {
        let groups = draw.weighted(&[(45, 2), (30, 3), (12, 4), (8, 5), (5, 6)]);
        for i in 0..groups {
            let group = self.group(draw);
            let connections = self.connections(draw);
            let kind = match i {
                0 => "bulk",
                _ => draw.weighted(&[(70, "bulk"), (12, "demand"), (10, "quic"), (8, "udp")]),
            };
            match kind {
                "quic" => {
                    let sender = draw.weighted(&[(50, "cubic"), (40, "bbr"), (10, "reno")]);
                    let flow = self.flow(draw, &group, "quic");
                    flow.insert("congestion_control".into(), sender.into());
                }
                "udp" => self.udp(draw, &group),
                "demand" => {
                    self.bulk(draw, &group, connections, of);
                    self.demand(draw);
                }
                _ => self.bulk(draw, &group, connections, of),
            }
            if i > 0 {
                self.comes_and_goes(draw, kind);
            }
            if draw.chance(15) {
                self.flow(draw, &group, "ping");
            }
        }
    }

    /// A stream of up to a sixth of the link, at most 5 Mbit/s.
    fn udp(&mut self, draw: &mut Draw, group: &str) {
        let rate = draw.log((0.1, (self.rate / 6.0).clamp(0.15, 5.0)));
        self.flow(draw, group, "udp").insert("demand".into(), mbit(rate));
    }

    /// Bounds the last flow's demand.
    fn demand(&mut self, draw: &mut Draw) {
        let demand = two_digits(self.rate * draw.log((0.05, 0.6)));
        if let Some(flow) = self.flows.last_mut() {
            flow.insert("demand".into(), mbit(demand.max(0.1)));
        }
    }

    /// Lets the last flow begin or end at an event, or change its demand there, or leaves it.
    fn comes_and_goes(&mut self, draw: &mut Draw, kind: &str) {
        let events = self.events.clone();
        let steps = kind == "bulk" || kind == "demand";
        let rate = self.rate;
        let Some(flow) = self.flows.last_mut().filter(|_| !events.is_empty()) else { return };
        match draw.weighted(&[(35, 0), (30, 1), (15, 2), (10, 3), (10, 4)]) {
            0 => {}
            1 => drop(flow.insert("start".into(), seconds(draw.pick(&events)))),
            2 => drop(flow.insert("stop".into(), seconds(draw.pick(&events)))),
            3 if events.len() > 1 => {
                flow.insert("start".into(), seconds(events[0]));
                flow.insert("stop".into(), seconds(draw.pick(&events[1..])));
            }
            _ if steps => {
                let mut is_bounded = kind == "demand";
                let step = |&at: &u64| {
                    is_bounded = !is_bounded;
                    let demand = match is_bounded {
                        true => mbit(two_digits(rate * draw.log((0.05, 0.8))).max(0.1)),
                        false => "unlimited".into(),
                    };
                    Value::Table(table([("at", seconds(at)), ("demand", demand)]))
                };
                let steps = events.iter().map(step).collect();
                flow.insert("steps".into(), Value::Array(steps));
            }
            _ => {}
        }
    }

    /// A download and one to four applications, each in its own group.
    fn apps(&mut self, draw: &mut Draw) {
        let bulk = self.group(draw);
        let connections = self.connections(draw);
        self.bulk(draw, &bulk, connections, USUAL);
        let apps = draw.weighted(&[(40, 1), (35, 2), (15, 3), (10, 4)]);
        for _ in 0..apps {
            let group = self.group(draw);
            self.app(draw, &group);
        }
    }

    fn app(&mut self, draw: &mut Draw, group: &str) {
        let apps = [(30, "video"), (22, "web"), (22, "short"), (10, "on-off"), (8, "ping")];
        let kind = draw.weighted(&[&apps[..], &[(8, "udp")]].concat());
        match kind {
            "udp" => self.udp(draw, group),
            "web" => {
                let hosts = draw.int((1, 4));
                let flow = self.flow(draw, group, "web");
                flow.insert("hosts".into(), count(hosts));
                flow.insert("think".into(), "2s".into());
                flow.insert("session_gap".into(), "2s".into());
            }
            "short" => {
                // The load is a tenth to a third of the link on average.
                let kb = draw.log((10.0, 1_000.0));
                let load = self.rate * draw.log((0.1, 0.33)) * 1e3 / 8.0;
                let per_s = two_digits((load / kb).clamp(0.2, 50.0));
                let flow = self.flow(draw, group, "short");
                flow.insert("size".into(), format!("{kb}kB").into());
                flow.insert("rate_per_s".into(), ratio(per_s));
            }
            "on-off" => {
                let (on, off) = (draw.log((0.5, 5.0)), draw.log((0.5, 5.0)));
                let flow = self.flow(draw, group, "on-off");
                flow.insert("on".into(), format!("{on}s").into());
                flow.insert("off".into(), format!("{off}s").into());
            }
            kind => drop(self.flow(draw, group, kind)),
        }
    }

    fn steps(&mut self, draw: &mut Draw) {
        let mut steps = Vec::new();
        for &at in &self.events {
            let rate = two_digits(self.rate * draw.log((0.2, 2.0)));
            let rate = mbit(rate.max(1.0));
            steps.push(Value::Table(table([("at", seconds(at)), ("rate", rate)])));
        }
        if !steps.is_empty() {
            self.link.insert("steps".into(), Value::Array(steps));
        }
    }

    /// The drawn rate is that of the plan; the link behind it is ten times as fast or more.
    fn policed(&mut self, draw: &mut Draw) {
        let algorithm =
            draw.weighted(&[(65, "token-bucket"), (20, "bc-pqp"), (8, "fair-policer"), (7, "pqp")]);
        let mut police = table([
            ("name", "plan".into()),
            ("rate", mbit(self.rate)),
            ("algorithm", algorithm.into()),
        ]);
        if algorithm == "token-bucket" {
            let burst = format!("{}bdp", draw.log((0.1, 4.0)));
            police.insert("burst".into(), burst.into());
        }
        self.police.push(police);
        self.link.insert("rate".into(), mbit(draw.pick(&[1_000.0, 10_000.0])));
        let groups = draw.weighted(&[(70, 2), (30, 3)]);
        for _ in 0..groups {
            let group = self.group(draw);
            let connections = self.connections(draw);
            self.bulk(draw, &group, connections, USUAL);
        }
    }

    fn device(&mut self, name: &str, is_tested: bool) {
        let mut device = table([("name", name.into()), ("weight", count(1))]);
        if is_tested {
            device.insert("control".into(), "fairweir".into());
        }
        self.devices.push(device);
    }

    /// Puts all groups from `first` on behind a device.
    fn behind(&mut self, first: usize, device: &str) {
        for group in &mut self.groups[first..] {
            group.insert("device".into(), device.into());
        }
    }

    /// The host under test downloads in two or three groups; a host without control begins
    /// downloads or applications, from the start or later.
    fn neighbours(&mut self, draw: &mut Draw) {
        self.device("host", true);
        self.device("neighbour", false);
        for _ in 0..draw.weighted(&[(70, 2), (30, 3)]) {
            let group = self.group(draw);
            let connections = self.connections(draw);
            self.bulk(draw, &group, connections, CUBIC);
        }
        self.behind(0, "host");
        let first = self.groups.len();
        let group = self.group(draw);
        match draw.chance(70) {
            true => {
                let connections = self.connections(draw);
                self.bulk(draw, &group, connections, USUAL);
            }
            false => self.app(draw, &group),
        }
        if draw.chance(60) {
            self.comes_and_goes(draw, "");
        }
        self.behind(first, "neighbour");
    }

    /// Two hosts under test with the same load, so that they should get the same.
    fn two_hosts(&mut self, draw: &mut Draw) {
        self.device("first", true);
        self.device("second", true);
        for device in ["first", "second"] {
            let begin = self.groups.len();
            for _ in 0..2 {
                let group = self.group(draw);
                self.bulk(draw, &group, 1, &[(1, "cubic")]);
            }
            self.behind(begin, device);
        }
        for i in 0..2 {
            let rtt = self.flows[i]["rtt"].clone();
            self.flows[i + 2].insert("rtt".into(), rtt);
            let weight = self.groups[i]["weight"].clone();
            self.groups[i + 2].insert("weight".into(), weight);
        }
    }

    /// Several groups that divide the connections at random.
    fn crowd(&mut self, draw: &mut Draw, connections: u64) {
        let groups = draw.weighted(&[(50, 2u64), (30, 3), (20, 4)]);
        let mut left = connections.max(groups);
        for i in 0..groups {
            let others = groups - 1 - i;
            let mine = match others {
                0 => left,
                _ => draw.int((1, left - others)),
            };
            left -= mine;
            let group = self.group(draw);
            self.bulk(draw, &group, mine, CUBIC);
            if i > 0 && draw.chance(50) {
                self.comes_and_goes(draw, "bulk");
            }
        }
    }

    /// A random walk of the capacity, one step a second, between a tenth of the rate and the rate.
    fn traced(&mut self, draw: &mut Draw) {
        let most = self.rate.clamp(4.0, 60.0);
        let mut rate = most * 0.6;
        let mut trace = String::new();
        let mut credit = 0.0;
        let period = draw.int((20, 40)) * 1_000;
        for ms in 1..=period {
            if ms % 1_000 == 0 {
                rate = (rate * draw.log((0.6, 1.65))).clamp(most * 0.1, most);
            }
            // Each opportunity carries 1514 bytes.
            credit += rate * 1e3 / 8.0 / 1_514.0;
            while credit >= 1.0 {
                trace.push_str(&format!("{ms}\n"));
                credit -= 1.0;
            }
        }
        trace.push_str(&format!("{period}\n"));
        self.trace = Some(trace);
        self.link.remove("rate");
        let buffer = draw.log((50.0, 500.0));
        self.link.insert("buffer".into(), format!("{}kB", buffer as u64).into());
        self.rate = most;
        let groups = draw.weighted(&[(70, 2), (30, 3)]);
        for _ in 0..groups {
            let group = self.group(draw);
            let connections = self.connections(draw);
            self.bulk(draw, &group, connections, CUBIC);
        }
    }

    fn silent(&mut self, draw: &mut Draw) {
        match draw.weighted(&[(50, 0), (20, 1), (15, 2), (15, 3)]) {
            0 => self.probe([("reflector", false.into())]),
            1 => self.probe([("loss", ratio(draw.log((0.1, 0.9))))]),
            2 => self.probe([("lie", "fast".into())]),
            _ => self.probe([("lie", "slow".into())]),
        }
        self.usual(draw, CUBIC);
        if draw.chance(50) {
            self.without_timestamps(draw);
        }
    }

    /// No sender has TCP timestamps; a host that answers may answer only once a second.
    fn without_timestamps(&mut self, draw: &mut Draw) {
        self.told([("measurement", "kernel".into())]);
        let has_timestamps = |flow: &&mut Table| flow["kind"].as_str() == Some("bulk");
        for flow in self.flows.iter_mut().filter(has_timestamps) {
            flow.insert("timestamps".into(), false.into());
        }
        if draw.chance(50) {
            self.probe([("answer_interval", "1s".into())]);
        }
    }

    /// A ping and a small UDP stream in a group with downloads, and another group.
    fn call(&mut self, draw: &mut Draw) {
        for _ in 0..2 {
            let group = self.group(draw);
            let connections = self.connections(draw);
            self.bulk(draw, &group, connections, CUBIC);
        }
        let busy = draw.pick(&["g1", "g2"]);
        self.flow(draw, busy, "ping");
        self.flow(draw, busy, "udp").insert("demand".into(), mbit(0.1));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fairweir_scenario::Control;

    use super::*;

    #[test]
    fn the_scenarios_of_200_seeds_are_valid_with_every_control_and_the_same_again() {
        for seed in 1..=200 {
            let one = case(seed);
            for control in Control::ALL {
                one.played(control)
                    .unwrap_or_else(|e| panic!("seed {seed}: {e:#}\n{}", one.text()));
            }
            assert_eq!(one, case(seed), "seed {seed}");
            assert_eq!(one.class, class(seed));
            let as_saved: Table = one.text().parse().unwrap();
            assert_eq!(as_saved, one.table, "seed {seed}");
        }
    }

    #[test]
    fn every_class_is_drawn_by_its_weight() {
        let mut drawn: BTreeMap<Class, u64> = BTreeMap::new();
        let seeds = 20_000;
        (0..seeds).for_each(|seed| *drawn.entry(class(seed)).or_default() += 1);
        let all: u64 = Class::ALL.iter().map(|class| class.weight()).sum();
        assert!(all <= WEIGHTS, "{all}: a class would never be drawn");
        for class in Class::ALL {
            let left = if *class == Class::Plain { WEIGHTS - all } else { 0 };
            let wanted = (seeds * (class.weight() + left) / WEIGHTS) as f64;
            let found = drawn[class] as f64;
            assert!((found / wanted - 1.0).abs() < 0.25, "{class}: {found} of {wanted}");
            assert_eq!(class.name().parse(), Ok(*class));
        }
    }

    #[test]
    fn no_scenario_carries_more_than_the_bound() {
        for seed in 1..=500 {
            let one = case(seed).played(Control::Wfq).unwrap().scenario;
            let rate = one.link.capacity.nominal().as_mbit_f64();
            let seconds = one.duration.as_secs_f64();
            let most = WORK_MAX_MBIT.max(rate * DURATION_MIN_S as f64);
            assert!(rate * seconds <= most * 1.01, "seed {seed}: {rate} for {seconds} s");
        }
    }

    #[test]
    fn numbers_have_two_digits() {
        let rounded = [0.012345, 0.987, 5.55, 12.9, 999.0, 2_345.0].map(two_digits);
        assert_eq!(rounded, [0.012, 0.99, 5.6, 13.0, 1_000.0, 2_300.0]);
    }
}
