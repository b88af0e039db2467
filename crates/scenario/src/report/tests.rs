use fairweir_config::Text;
use fairweir_core::delegate::{Gain, Reason, Status, Tally, Verdict};
use serde_json::Value;

use super::*;

/// Two groups 2:1 on 30 Mbit/s, one from the start, the other from 4 s; 12 s; settling takes 2 s.
const TWO: &str = r#"
version = 1
name = "two"
duration = "12s"
settle = "2s"
[link]
rate = "30mbit"
[[group]]
name = "a"
weight = 2
[[group]]
name = "b"
weight = 1
[[flow]]
group = "a"
kind = "bulk"
[[flow]]
group = "b"
kind = "bulk"
start = "4s"
"#;

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, "test.toml").unwrap()
}

/// Samples in which the groups have the rates in Mbit/s that `rates` gives for the begin of each
/// bin in ms; each packet waited 10 ms.
fn samples(scenario: &Scenario, rates: impl Fn(u64) -> Vec<f64>) -> Samples {
    let mut samples = Samples::new(scenario);
    for bin in 0..scenario.duration.as_nanos() / BIN.as_nanos() {
        let at = Time::ZERO + BIN * bin;
        for (group, mbit) in rates(bin * 200).into_iter().enumerate() {
            let bytes = Bytes::new((mbit * 1e6 * 0.2 / 8.0).round() as u64);
            samples.record_departure(at, group, bytes, Span::millis(10));
        }
    }
    samples
}

fn score(scenario: &Scenario, samples: &Samples) -> Summary {
    judged(scenario, samples).summary
}

fn judged(scenario: &Scenario, samples: &Samples) -> Report {
    let run = Run {
        scenario,
        world: "sim",
        control: Control::None,
        valid: true,
        samples,
        pings: Vec::new(),
        videos: Vec::new(),
        pages: Vec::new(),
        shorts: Vec::new(),
        policed: Vec::new(),
        bundled: Vec::new(),
        daemon_cpu_cores: None,
        lateness: None,
    };
    run.score()
}

#[test]
fn the_least_use_is_that_of_three_seconds_after_the_first_three() {
    let scenario = scenario(TWO);
    // A slow start, a pause of one second, and a pause that three seconds in a row alone do not show.
    let rates = |ms| match ms {
        0..3_000 => vec![1.0, 0.0],
        6_000..7_000 => vec![0.0, 6.0],
        _ => vec![24.0, 6.0],
    };
    let summary = score(&scenario, &samples(&scenario, rates));
    assert_eq!(summary.least_utilization, Some(0.7333));
    let lent = TWO.replace("kind = \"bulk\"\nstart", "demand = \"3mbit\"\nkind = \"bulk\"\nstart");
    let none = lent.replacen("kind = \"bulk\"", "demand = \"9mbit\"\nkind = \"bulk\"", 1);
    let scenario = self::scenario(&none);
    let summary = score(&scenario, &samples(&scenario, |_| vec![9.0, 3.0]));
    assert_eq!(summary.least_utilization, None);
}

#[test]
fn perfect_shares_have_no_error() {
    let scenario = scenario(TWO);
    let samples =
        samples(&scenario, |ms| if ms < 4_000 { vec![30.0, 0.0] } else { vec![20.0, 10.0] });
    let summary = score(&scenario, &samples);
    assert_eq!(summary.allocation_error, Some(0.0));
    assert_eq!(summary.transient_error, Some(0.0));
    assert_eq!(summary.utilization, Some(1.0));
    let right: Vec<_> = summary.right_after_s.iter().map(|r| (r.at_s, r.seconds)).collect();
    assert_eq!(right, [(0.0, Some(1.0)), (4.0, Some(1.0))]);
    // The scored times are 2-4 s and 6-12 s.
    let a = &summary.groups[0];
    assert_eq!((a.rate, a.fair), (Rate::bps(22_500_000), Some(Rate::bps(22_500_000))));
    let queue = summary.isp_queue_ms.unwrap();
    assert_eq!((queue.mean, queue.p99), (10.0, 10.0));
}

#[test]
fn the_error_is_half_the_distance_by_capacity_and_transients_count_apart() {
    let scenario = scenario(TWO);
    // The rates are swapped for 3 s after b starts, then off by 3 Mbit/s.
    let samples = samples(&scenario, |ms| match ms {
        0..4_000 => vec![30.0, 0.0],
        4_000..7_000 => vec![10.0, 20.0],
        _ => vec![17.0, 13.0],
    });
    let summary = score(&scenario, &samples);
    // Transient errors: 0, 0 and at 4, 5 s 20/2/30; scored: 2, 3 s right, 6 s swapped, 7-11 s 3/30.
    assert_eq!(summary.transient_error, Some(0.1667));
    let expected = (1.0 / 3.0 + 5.0 * 0.1) / 8.0;
    assert!((summary.allocation_error.unwrap() - expected).abs() < 1e-4);
    // 13 instead of 10 is not right, so `b` is never right.
    assert_eq!(summary.right_after_s[1].seconds, None);
}

#[test]
fn a_host_divides_what_it_gets_whatever_the_link_carries() {
    let with_devices = TWO
        .replace("weight = 2", "weight = 2\ndevice = \"host\"")
        .replace("weight = 1", "weight = 1\ndevice = \"host\"")
        + "[[device]]\nname = \"host\"\nweight = 1\n[[device]]\nname = \"other\"\nweight = 1\n\
           [[group]]\nname = \"c\"\nweight = 9\ndevice = \"other\"\n\
           [[flow]]\ngroup = \"c\"\nkind = \"video\"\n";
    let scenario = scenario(&with_devices);
    // The host gets 9 of 30 Mbit/s: first all for a, then 2:1, in the last 3 of 6 scored seconds 1:1.
    let samples = samples(&scenario, |ms| match ms {
        0..4_000 => vec![9.0, 0.0, 21.0],
        4_000..9_000 => vec![6.0, 3.0, 21.0],
        _ => vec![4.5, 4.5, 21.0],
    });
    let summary = score(&scenario, &samples);
    let [host, other] = &summary.hosts[..] else { panic!("{:?}", summary.hosts) };
    assert_eq!(summary.allocation_error, None, "what the video wants is not known");
    assert_eq!((host.device.as_deref(), host.rate), (Some("host"), Rate::mbit(9)));
    // The error is 1.5 of 9 in three of eight windows.
    assert_eq!(host.division_error, Some(0.0625));
    assert_eq!((other.rate, other.division_error), (Rate::mbit(21), None));
}

#[test]
fn right_is_when_it_stays_so() {
    let scenario = scenario(TWO);
    // The rates are right at once, wrong from 6 s to 7.2 s, and right from then on.
    let samples = samples(&scenario, |ms| match ms {
        0..4_000 => vec![30.0, 0.0],
        6_000..7_200 => vec![10.0, 20.0],
        _ => vec![20.0, 10.0],
    });
    let summary = score(&scenario, &samples);
    // The second from 7.2 to 8.2 s is right; in the one from 7.0 s a fifth has 20 Mbit/s.
    assert_eq!(summary.right_after_s[1].seconds, Some(4.2));
}

#[test]
fn under_a_trace_each_second_has_its_own_shares() {
    // The trace has by turns a second of 1.2112 Mbit/s, one of nothing and one of twice as much.
    let lines = (1..100).map(|i| i * 10).chain((0..200).map(|i| 2_000 + i * 5)).chain([3_000]);
    let trace: String = lines.map(|ms| format!("{ms}\n")).collect();
    let text = TWO.replace("rate = \"30mbit\"", "trace = \"t\"");
    let scenario =
        Scenario::parse_with(&Text::new(text, "x"), &[], &|_| Ok(Text::new(&*trace, "t"))).unwrap();
    let perfect = samples(&scenario, |ms| {
        let all = [1.2112, 0.0, 2.4224][(ms / 1_000 % 3) as usize];
        if ms < 4_000 { vec![all, 0.0] } else { vec![all * 2.0 / 3.0, all / 3.0] }
    });
    let summary = score(&scenario, &perfect);
    assert_eq!((summary.allocation_error, summary.utilization), (Some(0.0), Some(1.0)));
    assert_eq!(summary.right_after_s[1].seconds, Some(1.0));
    // If one group gets everything, the error is the other group's share of each second.
    let starving =
        samples(&scenario, |ms| vec![[1.2112, 0.0, 2.4224][(ms / 1_000 % 3) as usize], 0.0]);
    let summary = score(&scenario, &starving);
    // Scored are the seconds from 2 to 4 and from 6 on; those with no capacity do not count.
    assert_eq!(summary.allocation_error, Some(0.2222));
    assert_eq!(summary.right_after_s[1].seconds, None);
}

#[test]
fn a_tiny_share_has_a_slack_of_the_capacity() {
    let mbit = |m: f64| Rate::bps((m * 1e6) as u64);
    assert!(is_right(mbit(0.28), mbit(0.01), mbit(30.0)));
    assert!(!is_right(mbit(0.32), mbit(0.01), mbit(30.0)));
    assert!(is_right(mbit(18.1), mbit(20.0), mbit(30.0)));
    assert!(!is_right(mbit(17.9), mbit(20.0), mbit(30.0)));
}

#[test]
fn utilisation_counts_only_where_demand_suffices() {
    let text = TWO.replace("kind = \"bulk\"\nstart", "kind = \"bulk\"\ndemand = \"5mbit\"\nstart");
    let text = text.replace(
        "[[flow]]\ngroup = \"a\"\nkind = \"bulk\"\n",
        "[[flow]]\ngroup = \"a\"\nkind = \"bulk\"\nstop = \"8s\"\n",
    );
    let scenario = scenario(&text);
    let samples = samples(&scenario, |ms| match ms {
        0..4_000 => vec![30.0, 0.0],
        4_000..8_000 => vec![19.0, 5.0],
        _ => vec![0.0, 5.0],
    });
    let summary = score(&scenario, &samples);
    // Scored and full: 2-4 s at 30, 6-8 s at 24. From 8 s on b wants 5 of 30.
    assert_eq!(summary.utilization, Some(0.9));
    let none = scenario_without_load();
    let summary = score(&none, &Samples::new(&none));
    assert_eq!((summary.utilization, summary.isp_queue_ms), (None, None));
    // From 11 s on there is demand, but all of it is transient.
    assert_eq!((summary.allocation_error, summary.transient_error), (None, Some(0.5)));
}

#[test]
fn where_a_demand_is_unknown_nothing_is_judged_by_it() {
    // The download without end runs throughout; b looks at a film from 4 s to 8 s.
    let film = "kind = \"video\"\nstop = \"8s\"\nstart";
    let scenario = scenario(&TWO.replace("kind = \"bulk\"\nstart", film));
    let samples = samples(&scenario, |ms| match ms {
        4_000..8_000 => vec![20.0, 4.0],
        _ => vec![27.0, 0.0],
    });
    let summary = score(&scenario, &samples);
    // Scored are 2-4 s and 10-12 s without the film, off by a tenth, and 6-8 s with it.
    assert_eq!(summary.allocation_error, Some(0.05));
    assert_eq!(summary.utilization, Some(0.8667));
    let events: Vec<_> = summary.right_after_s.iter().map(|r| r.at_s).collect();
    assert_eq!(events, [0.0, 8.0], "the film's start is not judged");
    assert_eq!(summary.groups[0].fair, None);
    assert_eq!(summary.groups[0].rate, Rate::bps((2 * 27_000_000 + 20_000_000) / 3));
    let report = Report { summary, ..judged(&scenario, &samples) };
    assert!(table(std::slice::from_ref(&report)).contains("a, Mbit/s (fair -)"));
    let rows = csv(&scenario, &report);
    assert!(rows.contains("\n3.8,a,27000000,30000000\n"), "{rows}");
    assert!(rows.contains("\n4,a,20000000,\n"), "{rows}");
    // There are two lines of rates, and two lines of shares in two pieces each.
    assert_eq!(picture(&scenario, &[report]).matches("<polyline").count(), 6);
}

#[test]
fn the_whole_run_is_summed_whatever_the_demand_was() {
    // From 6 s on the link has half its rate.
    let stepped = "rate = \"30mbit\"\nsteps = [{ at = \"6s\", rate = \"15mbit\" }]";
    let text = TWO.replace("rate = \"30mbit\"", stepped).replace("12s", "11900ms");
    let scenario = scenario(&text);
    let mut samples = samples(&scenario, |_| vec![9.0, 3.0]);
    samples.record_departure(scenario.end(), 0, Bytes::kb(9_000), Span::ZERO);
    let summary = score(&scenario, &samples);
    let delivered: Vec<_> = summary.groups.iter().map(|g| g.delivered.as_u64()).collect();
    // 59 bins of 0.2 s begin before the end; what leaves at the end is not counted.
    assert_eq!(delivered, [59 * 225_000, 59 * 75_000]);
    let carried = 6.0 * 30.0 + 5.9 * 15.0;
    let expected = 59.0 * 0.2 * 12.0 / carried;
    assert!((summary.link_utilization - expected).abs() < 1e-4, "{}", summary.link_utilization);
}

#[test]
fn loss_is_what_was_dropped_of_all_that_came_out_or_was_dropped() {
    let scenario = scenario(TWO);
    let mut samples = Samples::new(&scenario);
    assert_eq!(score(&scenario, &samples).isp_loss, None);
    for ms in 0..999 {
        samples.record_departure(Time::ZERO + Span::millis(ms), 0, Bytes::new(1_514), Span::ZERO);
    }
    samples.record_drop();
    assert_eq!(score(&scenario, &samples).isp_loss, Some(0.001));
    assert_eq!(score(&scenario, &samples).isp_drops, 1);
}

fn scenario_without_load() -> Scenario {
    let late = TWO.replace("kind = \"bulk\"\nstart = \"4s\"", "kind = \"bulk\"\nstart = \"11s\"");
    scenario(&late.replace(
        "group = \"a\"\nkind = \"bulk\"\n",
        "group = \"a\"\nkind = \"bulk\"\nstart = \"11s\"\n",
    ))
}

#[test]
fn pings_report_median_tail_and_loss() {
    let rtts = (1..=100).map(Span::millis).collect();
    let ping = PingSamples { group: 0, sent: 103, rtts }.judge("p");
    assert_eq!((ping.rtt_ms_median, ping.rtt_ms_p95, ping.lost), (Some(50.0), Some(95.0), 3));
    let none = PingSamples { group: 0, sent: 3, rtts: Vec::new() }.judge("p");
    assert_eq!((none.rtt_ms_median, none.lost), (None, 3));
}

#[test]
fn a_picture_says_what_it_shows_and_long_names_stay_on_the_page() {
    let groups: String = (0..9)
        .map(|i| {
            let name = format!("group-{i}-with-a-long-name");
            format!(
                "[[group]]\nname = \"{name}\"\nweight = 1\n\
                 [[flow]]\ngroup = \"{name}\"\nkind = \"bulk\"\n"
            )
        })
        .collect();
    let text = TWO.split("[[group]]").next().unwrap().replace("30mbit", "47mbit");
    let scenario = scenario(&format!("{text}{groups}"));
    let report = judged(&scenario, &Samples::new(&scenario));
    let svg = picture(&scenario, &[report]);
    assert!(svg.contains(">two: rate of each flow group, "), "{svg}");
    assert!(svg.contains(">Downlink 47 Mbit/s, buffer 100 ms."), "{svg}");
    assert!(svg.contains("Dashed: weighted max-min fair share."), "{svg}");
    let mut places = Vec::new();
    for element in svg.lines().filter(|l| l.contains("(weight 1)") || l.contains(">fair share<")) {
        let number = |key: &str| -> f64 {
            let rest = element.split_once(&format!("{key}=\"")).unwrap().1;
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let label = element.split_once('>').unwrap().1.strip_suffix("</text>").unwrap();
        places.push((number("y"), number("x"), number("x") + 7.0 * label.len() as f64));
    }
    assert_eq!(places.len(), 10);
    assert!(places.iter().all(|(.., right)| *right <= 840.0), "clipped: {places:?}");
    for pair in places.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        assert!(pair[0].2 < pair[1].1, "overlap: {pair:?}");
    }
    let panel =
        svg.lines().find(|l| l.contains("font-weight=\"bold\">none (status quo)<")).unwrap();
    let top: f64 = panel.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
    assert!(places.iter().all(|(y, ..)| y + 12.0 < top), "the legend lies on the panel: {panel}");
}

#[test]
fn json_table_csv_and_picture_show_the_run() {
    let scenario = scenario(TWO);
    let samples = samples(&scenario, |_| vec![20.0, 10.0]);
    let run = Run {
        scenario: &scenario,
        world: "lab",
        control: Control::Crab,
        valid: true,
        samples: &samples,
        pings: Vec::new(),
        videos: Vec::new(),
        pages: Vec::new(),
        shorts: Vec::new(),
        policed: Vec::new(),
        bundled: Vec::new(),
        daemon_cpu_cores: Some(0.0031),
        lateness: None,
    };
    let mut report = run.score();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["control"], "crab");
    assert_eq!(json["summary"]["groups"][1]["rate_bps"], 10_000_000);
    assert_eq!(
        json["series"][3],
        serde_json::json!({"t_s": 0.2, "group": "b", "rate_bps": 10_000_000})
    );
    assert!(table(std::slice::from_ref(&report)).contains("b, Mbit/s (fair"));
    assert!(
        csv(&scenario, &report).starts_with("t_s,group,rate_bps,fair_bps\n0,a,20000000,30000000\n")
    );
    let svg = picture(&scenario, std::slice::from_ref(&report));
    assert!(svg.contains("crab") && svg.matches("<polyline").count() == 4);
    report.series = None;
    assert!(serde_json::to_value(&report).unwrap().get("series").is_none());
}

#[test]
fn the_json_form_is_what_the_schema_says() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let policed = "[[police]]\nname = \"home\"\nrate = \"9mbit\"\n";
    let bundle = "[[bundle]]\nname = \"server\"\nstunts = [\"b\"]\n\
        free = [{ group = \"a\", target = \"50mbit\" }]\n";
    let scenario = scenario(&format!("{TWO}{policed}{bundle}"));
    let samples = samples(&scenario, |_| vec![20.0, 10.0]);
    let mut server = BundleSamples::new(scenario.duration, scenario.bundles[0].free.len());
    let tally = Tally { signals: 3, delegated: 2, taken: 1, refused: 1, cuts: 0 };
    let status = Status {
        apart: 3,
        target: Rate::mbit(16),
        rate: Rate::mbit(20),
        gain: Gain::ONE,
        verdict: Verdict::Unreachable(Reason::TooFewSignals),
        tally,
    };
    (0..600).for_each(|n| server.record(Time::ZERO + Span::millis(100) * n, 0, &status));
    server.record_signals(0, tally);
    let mut home = PoliceSamples::new(&scenario, 0);
    home.record_mark(Time::ZERO + Span::secs(10), 1, Bytes::new(1_514));
    let ping = PingSamples { group: 0, sent: 3, rtts: vec![Span::millis(7)] };
    let second = Span::secs(1);
    let played = vec![(Rate::mbit(1), second), (Rate::mbit(4), second * 2)];
    let startup = Some(second);
    let video = VideoSamples { played, startup, ..VideoSamples::default() };
    let pages = WebSamples { loads: vec![second], ..WebSamples::default() };
    let shorts = ShortSamples { completions: vec![second], ..ShortSamples::default() };
    let full = Run {
        scenario: &scenario,
        world: "lab",
        control: Control::Crab,
        valid: true,
        samples: &samples,
        pings: vec![ping],
        videos: vec![video, VideoSamples::default()],
        pages: vec![pages, WebSamples::default()],
        shorts: vec![shorts, ShortSamples::default()],
        policed: vec![home, PoliceSamples::new(&scenario, 0)],
        bundled: vec![server],
        daemon_cpu_cores: Some(0.0031),
        lateness: Some(Lateness { p50_ms: 0.1, p99_ms: 0.2, max_ms: 0.3 }),
    };
    let summary = full.score().summary;
    assert_eq!(summary.videos[0].quality, Some(Rate::mbit(3)));
    assert_eq!(summary.videos[0].rungs[1].share, 0.6667);
    assert_eq!(summary.shorts[0].completion_ms_p99, Some(1_000.0));
    assert_eq!((summary.policed[0].marked, summary.policed[1].jain), (1, None));
    let free = &summary.bundled[0].free[0];
    assert_eq!((free.target, free.rate), (Some(Rate::mbit(16)), Rate::mbit(20)));
    assert_eq!((free.error_rms, free.gain, free.signals), (Some(0.25), Some(1.0), tally));
    assert_eq!((free.verdict, free.changes[0].why), ("unreachable", "region"));
    assert!(free.apart == 3 && free.apart_from_s.is_some());
    let text = table(&[full.score()]);
    assert!(text.contains("a, Mbit/s (target 16.00)"), "{text}");
    assert!(text.contains("home (bc-pqp): rate by plan"), "{text}");
    for row in ["film Mbit/s / stalled, s", "page load", "completion median"] {
        assert!(text.contains(&format!("a, {row}")), "{text}");
    }
    let empty = Samples::new(&scenario);
    let bare = Run { samples: &empty, daemon_cpu_cores: None, lateness: None, ..full.clone() };
    for mut report in [full.score(), bare.score()] {
        assert_eq!(contradiction(&schema, &serde_json::to_value(&report).unwrap()), None);
        report.series = None;
        assert_eq!(contradiction(&schema, &serde_json::to_value(&report).unwrap()), None);
    }
    let mut wrong = serde_json::to_value(full.score()).unwrap();
    wrong["summary"]["groups"][1]["rate_bps"] = "fast".into();
    assert!(contradiction(&schema, &wrong).is_some_and(|c| c.contains("rate_bps")));
    let names = Control::ALL.map(|c| Value::from(c.name()));
    assert_eq!(schema["properties"]["control"]["enum"], Value::from(names.to_vec()));
}

#[test]
fn a_table_has_a_column_per_control_with_the_mean_and_spread_of_its_seeds() {
    let scenario = scenario(TWO);
    let samples = samples(&scenario, |_| vec![20.0, 10.0]);
    let report = |control, seed, error, right_after| {
        let scenario = Scenario { seed, ..scenario.clone() };
        let mut report = judged(&scenario, &samples);
        report.control = control;
        report.summary.allocation_error = error;
        report.summary.right_after_s[0].seconds = right_after;
        report
    };
    let several = table(&[
        report(Control::None, 1, Some(0.3), Some(4.0)),
        report(Control::None, 2, Some(0.1), None),
        report(Control::None, 3, None, None),
        report(Control::Crab, 1, Some(0.05), None),
    ]);
    let row = |text: &str, name: &str| {
        let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
        let cells = line[name.len()..].split("  ").map(str::trim).filter(|c| !c.is_empty());
        cells.collect::<Vec<_>>().join("; ")
    };
    assert_eq!(row(&several, "two, 3 seeds"), "none; crab");
    assert_eq!(row(&several, "allocation error"), "0.200 ± 0.141 (2 of 3); 0.050");
    assert_eq!(row(&several, "ISP drops"), "0 ± 0; 0");
    let single = [report(Control::None, 1, None, Some(4.0)), report(Control::Crab, 1, None, None)];
    let single = table(&single);
    assert_eq!(row(&single, "allocation error"), "-; -");
    assert!(
        several.contains("never") && single.contains("4.0") && !single.contains('±'),
        "{single}"
    );
}

const SCHEMA: &str = include_str!("../../../../docs/reference/report.schema.json");

/// Finds where a value contradicts a schema; supports only the parts of JSON Schema that ours uses.
fn contradiction(schema: &Value, value: &Value) -> Option<String> {
    if let Some(words) = schema["enum"].as_array() {
        return (!words.contains(value)).then(|| format!("{value} is none of {words:?}"));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is = |t: &Value| t == kind || (t == "number" && kind == "integer");
    let types = &schema["type"];
    if !types.as_array().map_or_else(|| is(types), |all| all.iter().any(is)) {
        return Some(format!("{value} is not of type {types}"));
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        let Some(schema) = schema["properties"].get(key) else {
            return Some(format!("{key} is not in the schema"));
        };
        if let Some(wrong) = contradiction(schema, inner) {
            return Some(format!("{key}: {wrong}"));
        }
    }
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(key) = required.filter(|_| value.is_object()).find(|key| value.get(key).is_none()) {
        return Some(format!("{key} is missing"));
    }
    value.as_array().into_iter().flatten().find_map(|v| contradiction(&schema["items"], v))
}
