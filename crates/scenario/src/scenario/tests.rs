use fairweir_core::policy::Match;
use fairweir_core::units::Bytes;

use super::*;
use crate::link::{JitterModel, Red};

const GOOD: &str = r#"
version = 1
name = "weights-change"
duration = "60s"
settle = "6s"
[link]
rate = "30mbit"
buffer = "100ms"
steps = [{ at = "40s", rate = "10mbit" }]
[[group]]
name = "video"
weight = 5
[[group]]
name = "bulk"
weight = 1
match = ["app:steam", "ip:203.0.113.0/24"]
[[flow]]
group = "video"
kind = "bulk"
congestion_control = "cubic"
connections = 1
rtt = "40ms"
start = "5s"
stop = "60s"
demand = "unlimited"
ip = 4
steps = [{ at = "20s", demand = "8mbit" }, { at = "30s", demand = "unlimited" }]
[[flow]]
group = "bulk"
kind = "bulk"
congestion_control = "bbr"
connections = 4
ip = 6
app = "steam"
stop = "50s"
"#;

fn good() -> Scenario {
    Scenario::parse(GOOD, "good.toml").unwrap()
}

/// Fails: a scenario that names no other file does not ask for one.
fn no_file(path: &Path) -> Result<Text, ConfigError> {
    panic!("{} is asked for", path.display());
}

fn s(n: u64) -> Time {
    Time::ZERO + Span::secs(n)
}

#[test]
fn a_good_file_is_read_with_its_defaults() {
    let scenario = good();
    assert_eq!(scenario.link.up_rate, Rate::mbit(30));
    assert_eq!(scenario.link.up_buffer, Buffer::Time(Span::millis(100)));
    assert_eq!((scenario.link.mtu, scenario.link.loss_ppm), (1500, 0));
    assert_eq!(scenario.link.queue, Discipline::Fifo);
    assert_eq!(scenario.flows[1].rtt, Span::millis(40));
    assert_eq!(scenario.flows[1].stop, s(50));
    assert_eq!(scenario.groups[1].matches[0], Match::App("steam".into()));
}

#[test]
fn flows_begin_up_to_5_ms_a_given_time_or_their_round_trip_later() {
    let with = |line: &str| {
        let text = GOOD.replace("settle = \"6s\"", &format!("settle = \"6s\"\n{line}"));
        let scenario = Scenario::parse(&text, "good.toml").unwrap();
        let flows = scenario.flows.iter();
        flows.map(|flow| scenario.start_jitter.max(flow)).collect::<Vec<_>>()
    };
    let (ms, rtts) = (Span::millis, good().flows.iter().map(|f| f.rtt).collect::<Vec<_>>());
    assert_eq!(with(""), vec![ms(5); rtts.len()]);
    assert_eq!(with("start_jitter = \"20ms\""), vec![ms(20); rtts.len()]);
    assert_eq!(with("start_jitter = \"rtt\""), rtts);
    // The delay ends no later than the flow stops.
    assert_eq!(with("start_jitter = \"1h\"")[1], good().flows[1].stop.since(good().flows[1].start));
}

#[test]
fn a_reflector_is_there_and_honest_unless_the_file_says_otherwise() {
    let honest = Reflector {
        is_there: true,
        rtt: Span::millis(20),
        loss_ppm: 0,
        answer_interval: Span::ZERO,
        lie: Lie::None,
    };
    assert_eq!(good().probe, honest);
    let probe = "[probe]\nreflector = false\nrtt = \"35ms\"\nloss = 0.25\n\
                 answer_interval = \"1s\"\nlie = \"slow\"\n[link]";
    let scenario = Scenario::parse(&GOOD.replace("[link]", probe), "x").unwrap();
    let wanted = Reflector {
        is_there: false,
        rtt: Span::millis(35),
        loss_ppm: 250_000,
        answer_interval: Span::secs(1),
        lie: Lie::Slow,
    };
    assert_eq!(scenario.probe, wanted);
}

#[test]
fn fair_shares_follow_starts_stops_and_steps() {
    let scenario = good();
    let shares = |t: u64| {
        let shares = scenario.fair_shares_at(s(t)).unwrap();
        shares.iter().map(|r| r.as_bps() / 1_000).collect::<Vec<_>>()
    };
    assert_eq!(shares(0), [0, 30_000]);
    assert_eq!(shares(5), [25_000, 5_000]);
    assert_eq!(shares(20), [8_000, 22_000]);
    assert_eq!(shares(30), [25_000, 5_000]);
    assert_eq!(shares(40), [8_333, 1_666]);
    assert_eq!(shares(50), [10_000, 0]);
}

#[test]
fn events_are_in_order_and_one_per_instant() {
    let events: Vec<_> = good().events().into_iter().map(|e| (e.at, e.what)).collect();
    let expected = [
        (0, "bulk starts"),
        (5, "video starts"),
        (20, "video wants 8mbit"),
        (30, "video wants all it can have"),
        (40, "link 10mbit"),
        (50, "bulk stops"),
    ];
    assert_eq!(events, expected.map(|(at, what)| (s(at), what.to_owned())));

    let two = GOOD.replace("start = \"5s\"\n", "").replace("stop = \"50s\"", "stop = \"40s\"");
    let events = Scenario::parse(&two, "two.toml").unwrap().events();
    assert_eq!(events[0].what, "video starts, bulk starts");
    assert_eq!(events.last().unwrap().what, "bulk stops, link 10mbit");
}

#[test]
fn a_ping_wants_its_own_tiny_rate() {
    let text = GOOD.replace(
        "kind = \"bulk\"\ncongestion_control = \"bbr\"\nconnections = 4\n",
        "kind = \"ping\"\n",
    );
    let scenario = Scenario::parse(&text, "ping.toml").unwrap();
    // A ping has 56 + 8 + 40 + 14 bytes, ten times a second.
    assert_eq!(scenario.demand_at(1, s(10)), Demand::Known(Rate::bps(9_440)));
    assert_eq!(scenario.demand_at(1, s(55)), Demand::Known(Rate::ZERO));
}

/// Texts to replace in the good file, their replacements, and what the error must say.
const BAD: &[(&str, &str, &[&str])] = &[
    ("version = 1", "version = 2", &["bad.toml:2: version", "found the number 2, allowed is 1"]),
    ("version = 1\n", "", &["version", "missing"]),
    ("name = \"weights-change\"", "", &["name", "missing"]),
    ("name = \"weights-change\"", "name = \"\"", &["3: name", "empty"]),
    ("name = \"weights-change\"", "name = 7", &["3: name", "the number 7", "text in quotes"]),
    ("duration = \"60s\"", "", &["duration", "missing"]),
    ("duration = \"60s\"", "duration = 60", &["4: duration", "number 60"]),
    ("duration = \"60s\"", "duration = \"60\"", &["4: duration", "has no unit"]),
    ("duration = \"60s\"", "duration = \"0s\"", &["4: duration", "1s to"]),
    ("duration = \"60s\"", "duration = \"25h\"", &["4: duration", "1s to"]),
    ("settle = \"6s\"", "settle = \"-6s\"", &["5: settle", "-6s"]),
    ("settle = \"6s\"", "setle = \"6s\"", &["5: setle", "unknown", "did you mean `settle`?"]),
    ("settle = \"6s\"", "seed = -1", &["5: seed", "-1"]),
    ("settle = \"6s\"", "start_jitter = \"1rtt\"", &["5: start_jitter", "1rtt", "or `rtt`"]),
    ("settle = \"6s\"", "start_jitter = 5", &["5: start_jitter", "number 5"]),
    ("[link]", "[lnk]", &["lnk", "unknown", "did you mean `link`?"]),
    ("[link]", "[prob]\n[link]", &["6: prob", "did you mean `probe`?"]),
    ("[link]", "[probe]\nlie = \"slwo\"\n[link]", &["7: probe.lie", "did you mean `slow`?"]),
    ("[link]", "[probe]\nloss = 2\n[link]", &["7: probe.loss", "0 to 1"]),
    ("[link]", "[probe]\nreflector = 1\n[link]", &["7: probe.reflector", "true or false"]),
    ("[link]", "[probe]\nrt = \"1ms\"\n[link]", &["7: probe.rt", "did you mean `rtt`?"]),
    ("rate = \"30mbit\"", "rate = \"0mbit\"", &["7: link.rate", "zero"]),
    ("rate = \"30mbit\"", "rate = \"30mbps\"", &["7: link.rate", "ambiguous"]),
    ("rate = \"30mbit\"", "raet = \"30mbit\"", &["link.raet", "unknown", "did you mean `rate`?"]),
    ("buffer = \"100ms\"", "buffer = \"100\"", &["8: link.buffer", "100ms", "150kB", "10p"]),
    ("buffer = \"100ms\"", "buffer = \"0p\"", &["8: link.buffer", "holds nothing"]),
    ("buffer = \"100ms\"", "bufer = \"1ms\"", &["8: link.bufer", "did you mean `buffer`?"]),
    ("buffer = \"100ms\"", "mtu = 100", &["8: link.mtu", "576 to 9000"]),
    ("buffer = \"100ms\"", "loss = 1.5", &["8: link.loss", "1.5", "0 to 1"]),
    ("buffer = \"100ms\"", "jitter = \"fast\"", &["8: link.jitter", "fast"]),
    ("buffer = \"100ms\"", "jitter = \"61s\"", &["8: link.jitter", "0ms to 60s"]),
    ("buffer = \"100ms\"", "jitter_model = \"bust\"", &["8: link.jitter_model", "`burst`"]),
    ("buffer = \"100ms\"", "[control]\nmeasurement = \"kernal\"", &["did you mean `kernel`?"]),
    ("buffer = \"100ms\"", "loss_burst = 0", &["8: link.loss_burst", "1 to 10000"]),
    (
        "buffer = \"100ms\"",
        "loss = 0.8\nloss_burst = 2",
        &["9: link.loss_burst", "up to 0.667", "found 0.8"],
    ),
    ("buffer = \"100ms\"", "queue = \"wfg\"", &["8: link.queue", "did you mean `wfq`?"]),
    ("buffer = \"100ms\"", "queue = \"ddr\"", &["8: link.queue", "did you mean `drr`?"]),
    ("buffer = \"100ms\"", "burst = \"1MB\"", &["6: link.line_rate", "missing", "`burst`"]),
    ("buffer = \"100ms\"", "line_rate = \"1gbit\"", &["6: link.burst", "missing", "150kB"]),
    (
        "buffer = \"100ms\"",
        "burst = \"1MB\"\nline_rate = \"29mbit\"",
        &["9: link.line_rate", "found 29mbit", "from 30mbit"],
    ),
    ("buffer = \"100ms\"", "burst = \"0B\"\nline_rate = \"1gbit\"", &["8: link.burst", "zero"]),
    ("buffer = \"100ms\"", "burst = \"100ms\"", &["8: link.burst", "100ms", "kB"]),
    ("buffer = \"100ms\"", "trase = \"x\"", &["8: link.trase", "did you mean `trace`?"]),
    ("buffer = \"100ms\"", "trace = \"x\"", &["7: link.rate", "a link with a `trace`"]),
    ("rate = \"30mbit\"", "trace = \"x\"", &["9: link.steps", "a link with a `trace`"]),
    ("buffer = \"100ms\"", "red.min = 0.1", &["8: link.red", "queue = \"red\""]),
    ("buffer = \"100ms\"", "queue = \"red\"\nred.min = 0.5", &["9: link.red", "below `max`, 0.5"]),
    ("buffer = \"100ms\"", "queue = \"red\"\nred.max = 2", &["9: link.red.max", "0 to 1"]),
    ("buffer = \"100ms\"", "queue = \"red\"\nred.wq = 0", &["9: link.red", "never move"]),
    (
        "buffer = \"100ms\"",
        "queue = \"red\"\nred.mx_p = 0.1",
        &["9: link.red.mx_p", "did you mean `max_p`?"],
    ),
    ("buffer = \"100ms\"", "up_rate = \"0bit\"", &["8: link.up_rate", "zero"]),
    ("at = \"40s\"", "at = \"60s\"", &["9: link.steps.at", "after the end"]),
    ("at = \"40s\"", "at = \"0s\"", &["9: link.steps.at", "out of order"]),
    ("at = \"40s\", ", "", &["9: link.steps.at", "missing"]),
    ("rate = \"10mbit\"", "rate = \"0bit\"", &["9: link.steps.rate", "zero"]),
    ("rate = \"10mbit\"", "demand = \"1mbit\"", &["link.steps.rate", "missing"]),
    ("steps = [{ at = \"40s\", rate = \"10mbit\" }]", "steps = 3", &["9: link.steps", "number 3"]),
    ("name = \"video\"", "name = \"bulk\"", &["14: group.name", "bulk", "duplicate"]),
    ("name = \"video\"", "name = \"vi deo\"", &["11: group.name", "vi deo"]),
    ("name = \"video\"", "", &["group.name", "missing"]),
    ("weight = 5", "weight = 0", &["12: group.weight", "1 to 10000"]),
    ("weight = 5", "weight = 1.5", &["12: group.weight", "1.5"]),
    ("weight = 5", "", &["group.weight", "missing"]),
    ("\"app:steam\"", "\"ap:steam\"", &["16: group.match", "ap:"]),
    ("\"app:steam\"", "7", &["16: group.match", "number 7"]),
    ("[\"app:steam\", \"ip:203.0.113.0/24\"]", "[]", &["16: group.match", "empty"]),
    ("group = \"video\"", "group = \"vidoe\"", &["18: flow.group", "did you mean `video`?"]),
    ("group = \"video\"", "group = \"bulk\"", &["11: group.name", "neither a flow nor"]),
    ("kind = \"bulk\"", "kind = \"bulkk\"", &["19: flow.kind", "did you mean `bulk`?"]),
    ("kind = \"bulk\"\n", "", &["flow.kind", "missing"]),
    (
        "kind = \"bulk\"",
        "kind = \"ping\"",
        &["20: flow.congestion_control", "kind `ping`", "only flows of `bulk`"],
    ),
    ("\"cubic\"", "\"cubik\"", &["20: flow.congestion_control", "did you mean `cubic`?"]),
    ("connections = 1", "connections = 0", &["21: flow.connections", "1 to 256"]),
    ("rtt = \"40ms\"", "rtt = 40", &["22: flow.rtt", "number 40"]),
    ("start = \"5s\"", "start = \"-5s\"", &["23: flow.start", "-5s"]),
    ("start = \"5s\"", "start = \"60s\"", &["24: flow.stop", "stops before it starts"]),
    ("start = \"5s\"", "start = \"61s\"", &["23: flow.start", "allowed is from"]),
    ("stop = \"60s\"", "stop = \"4s\"", &["24: flow.stop", "stops before it starts at 5s"]),
    ("stop = \"60s\"", "stop = \"70s\"", &["24: flow.stop", "70s"]),
    ("demand = \"unlimited\"", "demand = \"0bit\"", &["25: flow.demand", "zero"]),
    ("demand = \"unlimited\"", "demand = \"lots\"", &["25: flow.demand", "or `unlimited`"]),
    ("ip = 4", "ip = 5", &["26: flow.ip", "allowed are 4, 6"]),
    ("at = \"20s\"", "at = \"31s\"", &["27: flow.steps.at", "out of order", "31s"]),
    ("at = \"20s\"", "at = \"3s\"", &["27: flow.steps.at", "out of order", "5s"]),
    ("demand = \"8mbit\"", "rate = \"8mbit\"", &["27: flow.steps.demand", "missing"]),
    ("app = \"steam\"", "app = \"a/b\"", &["flow.app", "a/b", "file's name"]),
    ("app = \"steam\"", "app = \"..\"", &["flow.app", "file's name"]),
    ("[[flow]]\ngroup = \"video\"", "[[flow]]\ngroup = \"video\"\ncolour = 1", &["flow.colour"]),
    ("[link]", "[link", &["bad.toml:6"]),
    ("[link]", "[control]\ncapacity = \"x\"\n[link]", &["7: control.capacity", "x"]),
    ("[link]", "[control]\nremembered = \"0bit\"\n[link]", &["7: control.remembered", "zero"]),
    ("[link]", "[control]\nrembered = \"1bit\"\n[link]", &["did you mean `remembered`?"]),
    (
        "[link]",
        "[control]\nestimate = false\n[link]",
        &["7: control.estimate", "`remembered` says what the capacity is"],
    ),
    (
        "[link]",
        "[control]\nstrict_priority = 1\n[link]",
        &["7: control.strict_priority", "the number 1", "true or false"],
    ),
];

#[test]
fn each_bad_file_gives_one_clear_line() {
    for (from, to, says) in BAD {
        assert!(GOOD.contains(from), "{from}");
        let text = GOOD.replacen(from, to, 1);
        let error = Scenario::parse(&text, "bad.toml").expect_err(to).to_string();
        assert!(error.starts_with("bad.toml:") && !error.contains('\n'), "{error}");
        for fragment in *says {
            assert!(error.contains(fragment), "`{to}` gives: {error}; wanted `{fragment}`");
        }
    }
}

#[test]
fn timestamps_are_read_and_change_the_size_of_segments() {
    let read = |keys: &str| {
        let text = GOOD.replacen("kind = \"bulk\"", &format!("kind = \"bulk\"\n{keys}"), 1);
        Scenario::parse(&text, "good.toml").map(|scenario| scenario.flows[0].clone())
    };
    let (with, slow, without) = (
        read("").unwrap(),
        read("timestamp_period = \"10ms\"").unwrap(),
        read("timestamps = false").unwrap(),
    );
    assert_eq!(with.timestamps, Some(Span::millis(1)));
    assert_eq!(slow.timestamps, Some(Span::millis(10)));
    assert_eq!(without.timestamps, None);
    let segments = [with, slow, without].map(|flow| flow.segment(1500).as_u64());
    assert_eq!(segments, [1_448, 1_448, 1_460]);
    let error = read("timestamps = false\ntimestamp_period = \"10ms\"").unwrap_err().to_string();
    assert!(error.contains("timestamp_period") && error.contains("no clock"), "{error}");
}

#[test]
fn noise_is_read_with_its_defaults() {
    let read = |keys: &str| {
        let text = GOOD.replace("buffer = \"100ms\"", keys);
        Scenario::parse(&text, "good.toml").unwrap().link
    };
    let plain = read("jitter = \"5ms\"\nloss = 0.01");
    assert_eq!(plain.jitter, Jitter::uniform(Span::millis(5)));
    assert_eq!((plain.loss_burst, plain.up_grant, plain.down_grant), (1, Span::ZERO, Span::ZERO));
    let noisy = read(
        "jitter = \"5ms\"\njitter_part = 0.5\njitter_model = \"burst\"\nloss = 0.01\n\
         loss_burst = 4\nup_grant = \"4ms\"\ndown_grant = \"10ms\"",
    );
    let (max, model) = (Span::millis(5), JitterModel::Burst);
    assert_eq!(noisy.jitter, Jitter { max, part_ppm: 500_000, model });
    assert_eq!(noisy.loss_burst, 4);
    assert_eq!((noisy.up_grant, noisy.down_grant), (Span::millis(4), Span::millis(10)));
}

#[test]
fn queues_and_shapers_are_read_with_their_defaults() {
    let read = |keys: &str| {
        let text = GOOD.replace("buffer = \"100ms\"", keys);
        Scenario::parse(&text, "good.toml").unwrap().link
    };
    assert_eq!(read("queue = \"drr\"").queue, Discipline::Drr);
    assert_eq!(read("queue = \"fq_codel\"").queue, Discipline::FqCodel);
    assert_eq!(read("queue = \"red\"").queue, Discipline::Red(Red::default()));
    let red = Red { max_ppm: 400_000, ..Red::default() };
    assert_eq!(read("queue = \"red\"\nred = { max = 0.4 }").queue, Discipline::Red(red));
    let shaped = read("burst = \"150kB\"\nline_rate = \"1gbit\"");
    let Capacity::Shaped { steps, burst, line_rate } = &shaped.capacity else {
        panic!("{shaped:?}");
    };
    assert_eq!((steps.len(), *burst, *line_rate), (2, Bytes::kb(150), Rate::mbit(1_000)));
    assert_eq!(shaped.capacity.at(s(50)), Rate::mbit(10));
    assert_eq!(shaped.up_rate, Rate::mbit(30));
}

/// The good file with a trace in `traces/t` beside it.
fn traced(trace: &str) -> Result<Scenario, ConfigError> {
    let text = GOOD.replace("rate = \"30mbit\"", "trace = \"traces/t\"");
    let text = text.replace("steps = [{ at = \"40s\", rate = \"10mbit\" }]\n", "");
    let text = Text::new(text, "some/where/good.toml");
    Scenario::parse_with(&text, &[], &|path| match path.to_str() {
        Some("some/where/traces/t") => Ok(Text::new(trace, "some/where/traces/t")),
        _ => panic!("{} is asked for", path.display()),
    })
}

#[test]
fn the_capacity_of_a_second_is_what_its_opportunities_carry() {
    // There are two opportunities in the first second, one in the second one, and again from 2 s on.
    let scenario = traced("300\n600\n1000\n2000\n").unwrap();
    let opportunity = Rate::bps(1_514 * 8);
    let capacity = |t: u64| scenario.capacity_at(s(t)).as_bps() / opportunity.as_bps();
    assert_eq!([0, 1, 2, 3, 4].map(capacity), [2, 1, 3, 1, 3]);
    assert_eq!(scenario.fair_shares_at(s(3)), Some(vec![Rate::ZERO, opportunity]));
    assert_eq!(scenario.link.up_rate, opportunity * 2);
    assert!(scenario.events().iter().all(|e| !e.what.contains("link")));
}

#[test]
fn a_bad_trace_is_named_with_its_line_and_a_missing_one_with_its_path() {
    let error = traced("1\n2\nthree\n").unwrap_err().to_string();
    assert!(error.starts_with("some/where/traces/t:3: found `three`, expected"), "{error}");
    let text = GOOD.replace("rate = \"30mbit\"", "trace = \"nope\"");
    let text = text.replace("steps = [{ at = \"40s\", rate = \"10mbit\" }]\n", "");
    let missing = |path: &Path| Err(ConfigError::whole_file(path, "it is gone"));
    let named = Text::new(text.as_str(), "a/b.toml");
    let error = Scenario::parse_with(&named, &[], &missing).unwrap_err().to_string();
    assert_eq!(error, "a/b.toml:7: link.trace: a/nope: it is gone");
    let error = Scenario::parse(&text, "b.toml").unwrap_err().to_string();
    assert!(error.contains("7: link.trace: nope: cannot read it: a scenario without"), "{error}");
}

#[test]
fn a_file_without_groups_or_flows_is_refused() {
    let (head, flows) = GOOD.split_at(GOOD.find("[[flow]]").unwrap());
    let error = Scenario::parse(head, "x").unwrap_err().to_string();
    assert!(error.contains("flow") && error.contains("missing"), "{error}");
    let head = &head[..head.find("[[group]]").unwrap()];
    let error = Scenario::parse(&format!("{head}{flows}"), "x").unwrap_err().to_string();
    assert!(error.contains("group") && error.contains("missing"), "{error}");
}

#[test]
fn one_server_has_one_address() {
    let text = GOOD.replace("ip = 4", "ip = 4\nserver = \"cdn\"");
    let text = text.replace("ip = 6", "ip = 6\nserver = \"cdn\"");
    let error = Scenario::parse(&text, "x").unwrap_err().to_string();
    assert!(error.contains("one `ip`"), "{error}");
}

const BEHIND_A_ROUTER: &str = r#"
version = 1
name = "behind-a-router"
duration = "60s"
[link]
rate = "30mbit"
[[device]]
name = "m1"
weight = 1
control = "crab"
[[device]]
name = "m2"
weight = 2
[[group]]
name = "a"
weight = 2
device = "m1"
[[group]]
name = "b"
weight = 1
device = "m1"
[[group]]
name = "c"
weight = 7
device = "m2"
[[flow]]
group = "a"
kind = "bulk"
[[flow]]
group = "b"
kind = "bulk"
[[flow]]
group = "c"
kind = "bulk"
start = "10s"
stop = "20s"
demand = "12mbit"
steps = [{ at = "15s", demand = "unlimited" }]
"#;

#[test]
fn devices_share_before_their_groups_do() {
    let scenario = Scenario::parse(BEHIND_A_ROUTER, "router.toml").unwrap();
    assert_eq!(scenario.devices[0].control, Control::Crab);
    assert_eq!(scenario.devices[1].control, Control::None);
    let shares = |t: u64| {
        scenario
            .fair_shares_at(s(t))
            .unwrap()
            .iter()
            .map(|r| r.as_bps() / 1_000)
            .collect::<Vec<_>>()
    };
    assert_eq!(shares(0), [20_000, 10_000, 0]);
    assert_eq!(shares(10), [12_000, 6_000, 12_000]);
    assert_eq!(shares(15), [6_666, 3_333, 20_000]);
}

#[test]
fn what_is_wrong_with_devices_is_said() {
    let wrong = |from: &str, to: &str| {
        let text = BEHIND_A_ROUTER.replacen(from, to, 1);
        Scenario::parse(&text, "router.toml").unwrap_err().to_string()
    };
    assert_eq!(
        wrong("device = \"m2\"", "device = \"m3\""),
        "router.toml:25: group.device: unknown value `m3` (did you mean `m1`?); allowed: m1, m2"
    );
    assert_eq!(
        wrong("device = \"m2\"\n", ""),
        "router.toml:22: group.device: missing; expected the name of its device"
    );
    assert_eq!(
        wrong("name = \"m2\"", "name = \"m1\""),
        "router.toml:12: device.name: there is a device `m1` already"
    );
}

fn varied(changes: &[&str]) -> Result<Scenario, ConfigError> {
    let overrides: Vec<Override> = changes.iter().map(|c| c.parse().unwrap()).collect();
    Scenario::parse_with(&Text::new(GOOD, "good.toml"), &overrides, &no_file)
}

#[test]
fn overrides_change_what_the_file_says_and_nothing_else() {
    let changed = varied(&[
        "seed = 7",
        "link.buffer=\"50ms\"",
        "link.loss=0.01",
        "link.steps.0.at=35s",
        "control.remembered=33mbit",
        "group.video.weight=3",
        "group.1.match=[\"app:steam\"]",
        "flow.0.rtt=100ms",
        "flow.0.steps=[{at=\"25s\",demand=\"1mbit\"}]",
        "flow.bulk.connections=2",
        "flow.bulk.connections=9",
    ]);
    let (changed, good) = (changed.unwrap(), good());
    assert_eq!((changed.seed, changed.link.loss_ppm), (7, 10_000));
    assert_eq!(changed.link.buffer, Buffer::Time(Span::millis(50)));
    assert_eq!(changed.control.remembered, Some(Rate::mbit(33)));
    assert_eq!((changed.groups[0].weight.as_u32(), changed.groups[1].matches.len()), (3, 1));
    assert_eq!(changed.flows[0].rtt, Span::millis(100));
    assert_eq!(changed.flows[0].demands[1].at, s(25));
    assert_eq!(changed.flows[1].connections, 9, "the last one holds");
    assert_eq!(changed.capacity_at(s(36)), Rate::mbit(10));
    assert_eq!((&changed.name, changed.duration), (&good.name, good.duration));
    assert_eq!(varied(&[]).unwrap(), good);
}

#[test]
fn a_group_is_found_by_a_name_with_dots() {
    let text = GOOD.replace("\"bulk\"\nweight", "\"video.hd\"\nweight");
    let text = text.replace("group = \"bulk\"", "group = \"video.hd\"");
    let change = "group.video.hd.weight=9".parse().unwrap();
    let scenario = Scenario::parse_with(&Text::new(text, "x"), &[change], &no_file).unwrap();
    let weights: Vec<u32> = scenario.groups.iter().map(|g| g.weight.as_u32()).collect();
    assert_eq!(weights, [5, 9]);
}

#[test]
fn each_bad_override_gives_one_line_that_names_it() {
    let bad: &[(&[&str], &[&str])] = &[
        (&["link.raet=1mbit"], &["link.raet", "unknown", "did you mean `rate`?"]),
        (&["lnik.rate=1mbit"], &["lnik", "unknown", "did you mean `link`?"]),
        (&["link.rate=fast"], &["link.rate", "`fast` is not a rate"]),
        (&["link.rate=47"], &["link.rate", "`47` has no unit", "`47mbit`"]),
        (&["flow.0.rtt=1.5"], &["flow.rtt", "`1.5` has no unit"]),
        (&["link.rate.x=1"], &["`rate` has no keys"]),
        (&["link.steps.1.at=1s"], &["no entry 1", "from 0 to 0"]),
        (
            &["group.vidoe.weight=1"],
            &["unknown value `vidoe`", "did you mean `video`?", "from 0 to 1"],
        ),
        (&["group.video=3"], &["`video` is a whole entry"]),
        (&["group.video.weight=0"], &["group.weight", "found the number 0", "1 to 10000"]),
        (&["flow.2.rtt=1ms"], &["no entry 2: there are 2", "from 0 to 1"]),
        (&["flow.0.rtt=1ms", "flow.1.rtt=-1ms"], &["flow.rtt", "-1ms"]),
        (&["flow.0.group=bulk", "flow.bulk.rtt=1ms"], &["`bulk` has several", "0, 1"]),
        (&["flow.0.stop=4s"], &["flow.stop", "stops before it starts"]),
        (&["control.capacity.x=1"], &["control.capacity", "found a table"]),
    ];
    for (changes, says) in bad {
        let error = varied(changes).expect_err(changes[0]).to_string();
        let last = changes[changes.len() - 1];
        assert!(error.starts_with(&format!("--set {last}: ")) && !error.contains('\n'), "{error}");
        for fragment in *says {
            assert!(error.contains(fragment), "{error}; wanted `{fragment}`");
        }
    }
    for text in ["link.rate", "=3", "link.rate=", "link..rate=3", ".=3"] {
        let error = text.parse::<Override>().unwrap_err().to_string();
        assert!(error.contains(text) && error.contains("link.rate=47mbit"), "{error}");
    }
}

#[test]
fn what_is_wrong_in_the_file_is_said_with_its_line_beside_overrides() {
    let change = "seed=3".parse().unwrap();
    let text = GOOD.replace("weight = 5", "weight = 0");
    let text = Text::new(text, "bad.toml");
    let error = Scenario::parse_with(&text, &[change], &no_file).unwrap_err().to_string();
    assert!(error.starts_with("bad.toml:12: group.weight"), "{error}");
}

/// A scenario with an endless download in group `a` and a flow of `kind` in group `b`, which lasts
/// from 10 s to 50 s.
fn with(kind: &str, keys: &str) -> Result<Scenario, ConfigError> {
    let text = format!(
        "version = 1\nname = \"x\"\nduration = \"60s\"\n[link]\nrate = \"30mbit\"\n\
         [[group]]\nname = \"a\"\nweight = 1\n[[group]]\nname = \"b\"\nweight = 1\n\
         [[flow]]\ngroup = \"a\"\nkind = \"bulk\"\n\
         [[flow]]\ngroup = \"b\"\nstart = \"10s\"\nstop = \"50s\"\nkind = \"{kind}\"\n{keys}"
    );
    Scenario::parse(&text, "kind.toml")
}

#[test]
fn a_small_mtu_has_no_room_for_ipv6() {
    let text = |ip: u8, mtu: u32| {
        format!(
            "version = 1\nname = \"x\"\nduration = \"9s\"\n[link]\nrate = \"28.8kbit\"\nmtu = {mtu}\n\
             [[group]]\nname = \"a\"\nweight = 1\n[[flow]]\ngroup = \"a\"\nkind = \"bulk\"\nip = {ip}\n"
        )
    };
    assert_eq!(Scenario::parse(&text(4, 576), "x").unwrap().link.mtu, 576);
    assert!(Scenario::parse(&text(6, 1280), "x").is_ok());
    let error = Scenario::parse(&text(6, 1279), "x").unwrap_err().to_string();
    assert!(error.contains("1280") && error.contains("1279"), "{error}");
}

#[test]
fn every_kind_has_its_defaults() {
    let kind = |name: &str, keys: &str| with(name, keys).unwrap().flows.remove(1).kind;
    let on_off = OnOff { on: Span::secs(2), off: Span::secs(2) };
    assert_eq!(kind("on-off", ""), Kind::OnOff(on_off));
    let Kind::Video(video) = kind("video", "") else { panic!("a video") };
    assert_eq!((video.ladder[0], video.ladder[7]), (Rate::kbit(300), Rate::mbit(25)));
    assert_eq!((video.ladder.len(), video.length), (8, None));
    let web = Web {
        hosts: 1,
        objects: (30, 80),
        object: Bytes::kb(15),
        think: Span::secs(5),
        session_gap: Span::secs(60),
        pages_per_session: 10,
    };
    let ping = |keys: &str, interval| assert_eq!(kind("ping", keys), Kind::Ping { interval });
    ping("", Span::millis(100));
    ping("interval = \"1s\"", Span::secs(1));
    assert!(with("ping", "interval = \"9ms\"").is_err());
    let small = Web { object: Bytes::kb(2), ..web };
    assert_eq!(kind("web", "object = \"2kB\""), Kind::Web(small));
    assert!(with("web", "object = \"101kB\"").is_err());
    assert_eq!(kind("web", ""), Kind::Web(web));
    let short = |interval, sigma_ppm| {
        Kind::Short(Short { interval, size: Bytes::kb(9), sigma_ppm, arrivals: None })
    };
    let keys = "rate_per_s = 0.5\nsize = \"9kB\"";
    assert_eq!(kind("short", keys), short(Span::secs(2), 0));
    let keys = "rate_per_s = 8\nsize = \"9kB\"\nsigma = 1.25";
    assert_eq!(kind("short", keys), short(Span::millis(125), 1_250_000));
    let size = Bytes::kb(9);
    let one = Short { interval: Span::secs(1), size, sigma_ppm: 0, arrivals: Some(1) };
    assert_eq!(kind("short", "arrivals = 1\nsize = \"9kB\""), Kind::Short(one));
    assert!(with("short", "arrivals = 2\nsize = \"9kB\"").is_err(), "when is the second?");
    let flow =
        with("video", "congestion_control = \"vegas\"\nrtt = \"9ms\"").unwrap().flows.remove(1);
    assert_eq!((flow.congestion_control, flow.rtt), (CongestionControl::Vegas, Span::millis(9)));
}

#[test]
fn sites_share_servers_and_are_told_apart_only_by_web_rules() {
    let read = |matches: [&str; 2], keys: [&str; 2]| {
        let group = |(name, matches): (&str, &str)| {
            format!("[[group]]\nname = \"{name}\"\nweight = 1\n{matches}\n")
        };
        let flow = |(name, keys): (&str, &str)| {
            format!("[[flow]]\ngroup = \"{name}\"\nkind = \"browser\"\n{keys}\n")
        };
        let names = ["a", "b"];
        let text = "version = 1\nname = \"x\"\nduration = \"9s\"\n[link]\nrate = \"9mbit\"\n"
            .to_owned()
            + &names.into_iter().zip(matches).map(group).collect::<String>()
            + &group(("default", ""))
            + &names.into_iter().zip(keys).map(flow).collect::<String>();
        Scenario::parse(&text, "x").map_err(|e| e.to_string())
    };
    let web = ["match = [\"web:a.com\"]", "match = [\"web:b.com\"]"];
    let (one, two) = ("site = \"A.com\"", "site = \"www.b.com\"\n");
    let seen = |matches| {
        let scenario = read(matches, [one, two]).unwrap();
        let seen = |i: usize| scenario.seen_as(&scenario.flows[i]);
        [seen(0), seen(1)].map(|seen| (seen.first, seen.decided))
    };
    assert_eq!(seen(web), [(2, 0), (2, 1)], "the default group first");
    assert_eq!(seen(["", ""]), [(0, 0), (0, 0)], "addresses do not tell them apart");
    assert_eq!(seen([web[0], ""]), [(2, 0), (1, 1)]);
    let flows = read(web, [one, two]).unwrap().flows;
    assert_eq!(flows[0].connections, 3, "one for each host by HTTP/2");
    let Kind::Browser(browser) = &flows[0].kind else { panic!("a browser") };
    assert_eq!((browser.site.as_str(), browser.page), ("a.com", Page::Endless));
    let http1 = read(web, [&format!("{one}\nhttp = 1"), &format!("{two}\nhttp = 1\nhosts = 4")]);
    let connections = http1.unwrap().flows.iter().map(|flow| flow.connections).collect::<Vec<_>>();
    assert_eq!(connections, [6, 8]);
    let more = |keys: &str| read(web, [one, &format!("{two}{keys}")]).unwrap_err();
    for (keys, what) in [
        ("rtt = \"9ms\"", "one `rtt`"),
        ("http = 1", "one `http`"),
        ("program = \"firefox\"", "one `program`"),
        ("ip = 6", "one `ip`"),
        ("http = 3", "1 to 2"),
        ("hosts = 17", "1 to 16"),
        ("think = \"1s\"", "page = \"images\""),
        ("server = \"x\"", "only flows of `bulk`"),
        ("connections = 2", "only flows of `bulk`"),
    ] {
        let error = more(keys);
        assert!(error.contains(what), "{error}");
    }
    for (site, what) in
        [("com", "public suffix"), ("*.b.com", "address bar"), ("10.0.0.1", "host name")]
    {
        let error = read(web, [one, &format!("site = \"{site}\"")]).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
    assert!(read(web, [one, one]).unwrap_err().contains("duplicate site `a.com`"));
    assert!(read(web, [one, ""]).unwrap_err().contains("site"));
    let device = "[[device]]\nname = \"d\"\nweight = 1\n";
    let text = format!(
        "version = 1\nname = \"x\"\nduration = \"9s\"\n[link]\nrate = \"9mbit\"\n{device}\
         [[group]]\nname = \"a\"\nweight = 1\ndevice = \"d\"\n[[flow]]\ngroup = \"a\"\nkind = \"browser\"\n{one}\n"
    );
    let error = Scenario::parse(&text, "x").unwrap_err().to_string();
    assert!(error.contains("without [[device]]"), "{error}");
}

#[test]
fn each_key_belongs_to_its_kinds() {
    let bad: &[(&str, &str, &[&str])] = &[
        ("video", "demand = \"8mbit\"", &["20: flow.demand", "kind `video`", "`udp` have it"]),
        ("video", "conections = 2", &["20: flow.conections", "unknown"]),
        ("video", "connections = 2", &["flow.connections", "only flows of `bulk`, `quic` have it"]),
        ("video", "ladder = [\"2mbit\", \"1mbit\"]", &["20: flow.ladder", "rising order"]),
        ("video", "ladder = [\"2mbps\"]", &["flow.ladder", "ambiguous"]),
        ("video", "ladder = []", &["flow.ladder", "1 to 32"]),
        ("video", "length = \"0s\"", &["20: flow.length", "zero"]),
        ("video", "lenght = \"9s\"", &["flow.lenght", "did you mean `length`?"]),
        ("udp", "", &["flow", "UDP does not adapt"]),
        ("udp", "demand = \"unlimited\"", &["flow", "UDP does not adapt"]),
        ("udp", "demand = \"1mbit\"\ncongestion_control = \"reno\"", &["kind `udp`"]),
        ("quic", "congestion_control = \"vegas\"", &["flow.congestion_control", "no `vegas`"]),
        ("quic", "on = \"1s\"", &["flow.on", "kind `quic`"]),
        ("on-off", "on = \"0s\"", &["20: flow.on", "zero"]),
        ("web", "objects = [80, 30]", &["20: flow.objects", "in order"]),
        ("web", "objects = 30", &["flow.objects", "the number 30", "[30, 80]"]),
        ("web", "objects = [0, 30]", &["flow.objects", "from 1 to 1000"]),
        ("web", "hosts = 43", &["20: flow.hosts", "1 to 42"]),
        ("web", "size = \"9kB\"", &["flow.size", "only flows of `short` have it"]),
        ("short", "size = \"9kB\"", &["flow.rate_per_s", "missing"]),
        ("short", "rate_per_s = 1", &["flow.size", "missing"]),
        ("short", "rate_per_s = 0", &["20: flow.rate_per_s", "zero"]),
        ("short", "rate_per_s = -1", &["flow.rate_per_s", "-1", "above 0"]),
        ("short", "rate_per_s = 10000\nsize = \"0B\"", &["21: flow.size", "zero"]),
        ("short", "rate_per_s = 1\nsize = \"9kB\"\nsigma = 5", &["flow.sigma", "0", "to 4"]),
        ("ping", "demand = \"1mbit\"", &["flow.demand", "kind `ping`"]),
    ];
    for (kind, keys, says) in bad {
        let error = with(kind, keys).expect_err(keys).to_string();
        assert!(error.starts_with("kind.toml:") && !error.contains('\n'), "{error}");
        for fragment in *says {
            assert!(error.contains(fragment), "`{keys}` gives: {error}; wanted `{fragment}`");
        }
    }
}

/// Two groups with three flows, and a policing point to which `keys` are added.
fn policed(keys: &str) -> Result<Scenario, ConfigError> {
    let text = format!(
        "version = 1\nname = \"p\"\nduration = \"60s\"\nlink = {{ rate = \"1gbit\" }}\n\
         group = [{{ name = \"a\", weight = 1 }}, {{ name = \"b\", weight = 1 }}]\n\
         flow = [{{ group = \"a\", kind = \"bulk\" }}, {{ group = \"b\", kind = \"bulk\" }},\n\
         {{ group = \"b\", kind = \"bulk\", start = \"9s\" }}]\n\
         [[police]]\nname = \"home\"\nrate = \"9mbit\"\n{keys}"
    );
    Scenario::parse(&text, "police.toml")
}

#[test]
fn a_policing_point_has_its_flows_and_defaults() {
    let one = |keys: &str| policed(keys).unwrap().police.remove(0);
    let all = one("");
    assert_eq!((all.flows.len(), all.algorithm), (3, Algorithm::BcPqp));
    assert_eq!(all.rate(), Rate::mbit(9));
    assert_eq!(one("groups = [\"b\"]").flows, [1, 2]);
    assert_eq!(one("groups = [\"a\"]\nflows = [2]").flows, [0, 2]);
    let bucket = one("algorithm = \"token-bucket\"\nburst = \"2bdp\"");
    assert_eq!(bucket.size(), Bytes::new(225_000));
    // The queue is 2 · BDP² / (18 · MSS) for 9 Mbit/s and 100 ms.
    let queues = one("algorithm = \"pqp\"\nqueue = \"2reno\"");
    assert_eq!(queues.size().as_u64(), 2 * 112_500 * 112_500 / (18 * 1_500));
    let classes = "share = \"weighted\"\n[[police.class]]\nname = \"x\"\nflows = [0]\n\
        [[police.class]]\nname = \"y\"\nweight = 3\ngroups = [\"b\"]";
    assert_eq!(one(classes).class_of, ["x", "y", "y"], "although nobody takes the rest");
    let scenario = policed("").unwrap();
    assert_eq!(scenario.fair_shares_at(s(20)), None, "plans say what is fair");
    assert!(!scenario.demand_suffices_at(s(20)));
}

#[test]
fn copies_of_a_policing_point_have_flows_of_their_own() {
    let scenario = policed("groups = [\"b\"]\ncount = 3\nstagger = \"2s\"").unwrap();
    let flows: Vec<&[usize]> = scenario.police.iter().map(|p| &p.flows[..]).collect();
    assert_eq!(flows, [[1, 2], [3, 4], [5, 6]]);
    assert_eq!(scenario.police[2].name, "home-3");
    let starts: Vec<Time> = scenario.flows.iter().map(|flow| flow.start).collect();
    assert_eq!(starts[3..], [s(2), s(11), s(4), s(13)]);
    assert!(scenario.flows[5..].iter().all(|flow| flow.group == 1));
}

#[test]
fn what_is_wrong_with_policing_points_is_said() {
    let class = "\n[[police.class]]\nname = \"x\"\n";
    for (keys, says) in [
        ("groups = [\"c\"]", "11: police.groups: unknown value `c`; allowed: a, b"),
        (
            "flows = [3]",
            "11: police.flows: found the number 3, expected a list of whole numbers, 0 to 2",
        ),
        ("algorithm = \"bcpqp\"", "did you mean `bc-pqp`?"),
        ("queue = \"9kB\"", "11: police.queue: `bc-pqp` sizes its queues itself"),
        ("algorithm = \"shaper\"\nburst = \"9kB\"", "what it has is `queue`"),
        ("algorithm = \"pqp\"\nqueue = \"2rtt\"", "`2rtt` is not a size"),
        ("algorithm = \"pqp\"\nwithout = \"gate\"", "only `bc-pqp` has deviations"),
        ("without = \"gat\"", "did you mean `gate`?"),
        ("by = \"daemon\"\nwithout = \"gate\"", "neither the daemon nor a segment"),
        (
            &format!("by = \"agreement\"\nshare = \"weighted\"{class}groups = [\"a\", \"b\"]"),
            "11: police.by: the groups are the classes of an agreement",
        ),
        ("rtt_max = \"3s\"", "11: police.rtt_max: "),
        ("count = 0", "11: police.count: "),
        ("count = 9\nstagger = \"9s\"", "11: police.count: copy 7 would start at the end"),
        ("[[police]]\nname = \"home\"\nrate = \"1mbit\"\nflows = [0]", "pass `home` already"),
        ("groups = [\"a\"]\n[[police]]\nname = \"home\"\nrate = \"1mbit\"\nflows = [1]", "already"),
        (&format!("share = \"weighted\"{class}flows = [0]"), "belong to no class"),
        (
            &format!("share = \"weighted\"{class}flows = [0]\n[[police.class]]\nname = \"x\""),
            "16: police.class.name: duplicate class `x`",
        ),
        (
            &format!(
                "share = \"weighted\"{class}flows = [0]\n[[police.class]]\nname = \"y\"\nflows = [0]"
            ),
            "belongs to the class `x` already",
        ),
        (
            &format!("algorithm = \"pqp\"\nshare = \"priority\"{class}"),
            "`pqp` knows weights of single",
        ),
    ] {
        let error = policed(keys).expect_err(keys).to_string();
        assert!(error.contains(says), "{keys}\n{error}\nwanted {says}");
    }
}

#[test]
fn shares_are_unknown_while_a_demand_is() {
    for (kind, keys) in
        [("video", ""), ("web", ""), ("on-off", ""), ("short", "rate_per_s = 1\nsize = \"9kB\"")]
    {
        let scenario = with(kind, keys).unwrap();
        assert_eq!(scenario.demand_at(1, s(20)), Demand::Unknown, "{kind}");
        assert_eq!(scenario.fair_shares_at(s(20)), None, "{kind}");
        assert_eq!(scenario.fair_shares_at(s(5)), Some(vec![Rate::mbit(30), Rate::ZERO]));
        assert_eq!(scenario.fair_shares_at(s(50)), Some(vec![Rate::mbit(30), Rate::ZERO]));
        // The download takes whatever is left.
        assert!(scenario.demand_suffices_at(s(20)));
    }
    let scenario = with("udp", "demand = \"2mbit\"").unwrap();
    assert_eq!(scenario.fair_shares_at(s(20)), Some(vec![Rate::mbit(28), Rate::mbit(2)]));
}

#[test]
fn beside_an_endless_flow_of_its_group_an_unknown_demand_does_not_matter() {
    let both = [Demand::Unknown, Demand::Endless, Demand::Known(Rate::mbit(1))];
    assert_eq!(both.into_iter().sum::<Demand>(), Demand::Endless);
    let unknown = [Demand::Known(Rate::mbit(1)), Demand::Unknown];
    assert_eq!(unknown.into_iter().sum::<Demand>(), Demand::Unknown);
    let mut scenario = with("video", "").unwrap();
    scenario.flows[1].group = 0;
    assert_eq!(scenario.fair_shares_at(s(20)), Some(vec![Rate::mbit(30), Rate::ZERO]));
}

#[test]
fn a_needed_key_that_is_misspelt_is_found() {
    let wrong = |from: &str, to: &str| {
        Scenario::parse(&GOOD.replacen(from, to, 1), "bad.toml").unwrap_err().to_string()
    };
    assert_eq!(
        wrong("duration", "duraton"),
        "bad.toml:4: duraton: unknown key (did you mean `duration`?)"
    );
    assert_eq!(
        wrong("weight =", "wieght ="),
        "bad.toml:12: group.wieght: unknown key (did you mean `weight`?)"
    );
    assert_eq!(
        wrong("weight = 5\n", ""),
        "bad.toml:10: group.weight: missing; expected a whole number, 1 to 10000"
    );
}

/// Two groups in a bundle, a third one outside.
fn bundled(keys: &str) -> Result<Scenario, ConfigError> {
    let text = format!(
        "version = 1\nname = \"b\"\nduration = \"60s\"\nlink = {{ rate = \"20mbit\" }}\n\
         group = [{{ name = \"a\", weight = 1 }}, {{ name = \"b\", weight = 3 }},\n\
         {{ name = \"c\", weight = 1 }}, {{ name = \"d\", weight = 1 }}]\n\
         flow = [{{ group = \"a\", kind = \"bulk\", rtt = \"100ms\" }},\n\
         {{ group = \"b\", kind = \"bulk\", connections = 4 }},\n\
         {{ group = \"c\", kind = \"bulk\", connections = 15, congestion_control = \"bbr\" }},\n\
         {{ group = \"d\", kind = \"ping\" }}]\n\
         [[bundle]]\nname = \"server\"\n{keys}"
    );
    Scenario::parse(&text, "bundle.toml")
}

#[test]
fn a_bundle_has_targets_that_are_feasible_and_says_what_was_changed() {
    use fairweir_core::delegate::{Algorithm, Reverse, Role, Target, Why};
    let free = |target: &str| {
        let keys = format!("stunts = [\"b\"]\nfree = [{{ group = \"a\", {target} }}]");
        bundled(&keys).unwrap().bundles.remove(0)
    };
    let bundle = free("target = \"2mbit\"");
    let spec = bundle.delegation.unwrap();
    assert_eq!((spec.algorithm, spec.reverse), (Algorithm::Track, Reverse::Exact));
    assert!(bundle.free[0].changes.is_empty());
    assert!(matches!(bundle.role_of(0), Some(Role::Free(Target::Trace(_)))));
    let weight = Weight::new(3).unwrap();
    assert_eq!(bundle.role_of(1), Some(Role::Stunt { weight, min_rate: Rate::ZERO }));
    assert_eq!(bundle.role_of(2), None);
    // Four of 21 connections have 3.8 of 20 Mbit/s.
    let region = &free("target = \"5mbit\"").free[0].changes;
    assert_eq!((region.len(), region[0].why), (1, Why::Region));
    assert_eq!(region[0].feasible, Rate::mbit(20).scale(4, 21));
    let steps = "trace = [{ at = \"0s\", rate = \"1mbit\" }, { at = \"20s\", rate = \"2mbit\" }]";
    assert!(free(steps).free[0].changes.is_empty());
    let step = &free(&format!("{steps}, shape = \"step\"")).free[0].changes;
    assert_eq!((step.len(), step[0].why, step[0].at), (1, Why::Slope, s(20)));
    let sine = "sine = { mean = \"2mbit\", amplitude = \"1mbit\", period = \"40s\" }";
    let Target::Trace(trace) = &free(sine).free[0].target else { panic!("a trace") };
    assert_eq!(trace.at(s(10)), Rate::mbit(1));
    assert_eq!(
        free("connections = 2").free[0].target,
        Target::Connections(Weight::new(2).unwrap())
    );
}

#[test]
fn a_bundle_that_cannot_be_is_refused_with_the_reason() {
    let a = "free = [{ group = \"a\", target = \"1mbit\" }]";
    for (keys, says) in [
        (a.to_owned(), "stunts: missing"),
        (format!("stunts = []\n{a}"), "at least one stunt"),
        ("stunts = [\"b\"]".to_owned(), "free: missing"),
        (format!("stunts = [\"x\"]\n{a}"), "`x`"),
        (format!("stunts = [\"b\", \"b\"]\n{a}"), "duplicate stunt `b`"),
        (format!("stunts = [\"a\"]\n{a}"), "in the bundle already"),
        (format!("stunts = [\"c\"]\n{a}"), "not TCP or QUIC with reno or cubic"),
        (format!("stunts = [\"d\"]\n{a}"), "not TCP or QUIC with reno or cubic"),
        (format!("stunts = [\"b\"]\nspeed = 1\n{a}"), "unknown key"),
        (format!("stunts = [\"b\"]\ncontroller = \"p\"\n{a}"), "track"),
        (
            format!("stunts = [\"b\"]\n{a}\n[[bundle]]\nname = \"server\"\nstunts = [\"b\"]\n{a}"),
            "duplicate bundle `server`",
        ),
        (
            format!("stunts = [\"b\"]\n{a}\n[[bundle]]\nname = \"y\"\nstunts = [\"b\"]\n{a}"),
            "belongs to another bundle",
        ),
    ] {
        let error = bundled(&keys).expect_err(&keys).to_string();
        assert!(error.contains(says), "{keys}\n{error}\nwanted {says}");
    }
    for (target, says) in [
        ("", "expected one of"),
        ("target = \"1mbit\", connections = 1", "expected one of"),
        ("target = \"0bit\"", "out of range"),
        ("target = \"-1mbit\"", "not a rate"),
        ("target = \"9999999gbit\"", "out of range"),
        ("target = \"1mbit\", shape = \"step\"", "belongs to `trace`"),
        (
            "trace = [{ at = \"9s\", rate = \"1mbit\" }, { at = \"3s\", rate = \"1mbit\" }]",
            "not after",
        ),
        ("trace = [{ at = \"9s\" }]", "rate: missing"),
        ("sine = { mean = \"1mbit\", amplitude = \"1mbit\", period = \"9s\" }", "not a sine"),
        ("connections = 0", "expected a whole number from 1"),
    ] {
        let keys = format!("stunts = [\"b\"]\nfree = [{{ group = \"a\", {target} }}]");
        let error = bundled(&keys).expect_err(&keys).to_string();
        assert!(error.contains(says), "{target}\n{error}\nwanted {says}");
    }
    // This makes a rule that matches a thousand connections.
    let many = "stunts = [\"a\"]\nfree = [{ group = \"b\", target = \"1mbit\" }]";
    let set: Override = "flow.1.connections=200".parse().unwrap();
    let file = format!(
        "version = 1\nname = \"b\"\nduration = \"60s\"\nlink = {{ rate = \"20mbit\" }}\n\
         group = [{{ name = \"a\", weight = 1 }}, {{ name = \"b\", weight = 1 }}]\n\
         flow = [{{ group = \"a\", kind = \"bulk\" }}, {{ group = \"b\", kind = \"bulk\" }}]\n\
         [[bundle]]\nname = \"x\"\n{many}"
    );
    let refuse = |_: &Path| panic!("no other file");
    let error = Scenario::parse_with(&Text::new(file, "b.toml"), &[set], &refuse).unwrap_err();
    assert!(error.to_string().contains("200 connections with a target"), "{error}");
}
