use fairweir_core::policy::Match;

use super::*;

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
    // 56 + 8 + 40 + 14 bytes, ten times a second.
    assert_eq!(scenario.demand_at(1, s(10)), Demand::Known(Rate::bps(9_440)));
    assert_eq!(scenario.demand_at(1, s(55)), Demand::Known(Rate::ZERO));
}

/// What replaces what in the good file, and what the error must say.
const BAD: &[(&str, &str, &[&str])] = &[
    ("version = 1", "version = 2", &["bad.toml:2: version", "found 2, allowed is 1"]),
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
    ("[link]", "[lnk]", &["link", "missing"]),
    ("rate = \"30mbit\"", "rate = \"0mbit\"", &["7: link.rate", "zero"]),
    ("rate = \"30mbit\"", "rate = \"30mbps\"", &["7: link.rate", "ambiguous"]),
    ("rate = \"30mbit\"", "raet = \"30mbit\"", &["link.rate", "missing"]),
    ("buffer = \"100ms\"", "buffer = \"100\"", &["8: link.buffer", "100ms", "150kB", "10p"]),
    ("buffer = \"100ms\"", "buffer = \"0p\"", &["8: link.buffer", "holds nothing"]),
    ("buffer = \"100ms\"", "bufer = \"1ms\"", &["8: link.bufer", "did you mean `buffer`?"]),
    ("buffer = \"100ms\"", "mtu = 100", &["8: link.mtu", "1280 to 9000"]),
    ("buffer = \"100ms\"", "loss = 1.5", &["8: link.loss", "1.5", "0 to 1"]),
    ("buffer = \"100ms\"", "jitter = \"fast\"", &["8: link.jitter", "fast"]),
    ("buffer = \"100ms\"", "queue = \"wfg\"", &["8: link.queue", "did you mean `wfq`?"]),
    ("buffer = \"100ms\"", "up_rate = \"0bit\"", &["8: link.up_rate", "zero"]),
    ("at = \"40s\"", "at = \"60s\"", &["9: link.steps.at", "after the end"]),
    ("at = \"40s\"", "at = \"0s\"", &["9: link.steps.at", "out of order"]),
    ("at = \"40s\", ", "", &["9: link.steps.at", "missing"]),
    ("rate = \"10mbit\"", "rate = \"0bit\"", &["9: link.steps.rate", "zero"]),
    ("rate = \"10mbit\"", "demand = \"1mbit\"", &["link.steps.rate", "missing"]),
    ("steps = [{ at = \"40s\", rate = \"10mbit\" }]", "steps = 3", &["9: link.steps", "number 3"]),
    ("name = \"video\"", "name = \"bulk\"", &["14: group.name", "bulk", "twice"]),
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
    ("kind = \"bulk\"", "kind = \"quic\"", &["19: flow.kind", "not there yet"]),
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
        "router.toml:25: group.device: found `m3`; allowed are m1, m2; did you mean `m1`?"
    );
    assert_eq!(
        wrong("device = \"m2\"\n", ""),
        "router.toml:22: group.device: it is missing; wanted the name of its device"
    );
    assert_eq!(
        wrong("name = \"m2\"", "name = \"m1\""),
        "router.toml:12: device.name: there is a device `m1` already"
    );
}

fn varied(changes: &[&str]) -> Result<Scenario, ScenarioError> {
    let overrides: Vec<Override> = changes.iter().map(|c| c.parse().unwrap()).collect();
    Scenario::parse_with(GOOD, "good.toml", &overrides)
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
    let scenario = Scenario::parse_with(&text, "x", &[change]).unwrap();
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
        (&["link.steps.1.at=1s"], &["found `1`", "from 0 to 0"]),
        (&["group.vidoe.weight=1"], &["found `vidoe`", "did you mean `video`?", "from 0 to 1"]),
        (&["group.video=3"], &["`video` is a whole entry"]),
        (&["group.video.weight=0"], &["group.weight", "found the number 0", "1 to 10000"]),
        (&["flow.2.rtt=1ms"], &["found `2`", "video, bulk", "from 0 to 1"]),
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
    let error = Scenario::parse_with(&text, "bad.toml", &[change]).unwrap_err().to_string();
    assert!(error.starts_with("bad.toml:12: group.weight"), "{error}");
}
