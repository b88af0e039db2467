//! Checks with real packets that the emulated home behaves as promised. Needs root.
//!
//! The test binary also acts as the lab's hidden subcommands, as the product's binary does, so
//! it has its own `main`.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_lab::{Error, Options, agent_main, is_agent, run_once};
use fairweir_scenario::report::{Report, Summary};
use fairweir_scenario::testing;
use fairweir_scenario::{Control, Scenario};
use fairweir_sim::engine;
use fairweir_testing::{can_run, once, privileged, record_lateness, two_of_three, void};
use libtest_mimic::{Arguments, Failed, Trial};

const PLAY: &str = "play-until-killed";

/// The name of a test, the judge that repeats it, and the test.
type Claim = (&'static str, fn(fn()), fn());

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(name) if is_agent(name) => return agent_main(name),
        Some(PLAY) => {
            let scenario = two_flows("cubic", "cubic", 60);
            let played = run_once(&scenario, Control::None, &options(), &|_| {});
            return if played.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        _ => {}
    }
    // Measurements of real packets are noisy; what a run leaves behind is not.
    let tests: [Claim; 14] = [
        ("a_lone_cubic_flow_fills_the_link_at_its_exact_rate", two_of_three, lone_flow),
        ("pings_see_the_configured_rtt_by_ipv4_and_ipv6", two_of_three, pings),
        ("a_source_with_a_demand_sends_it_within_two_percent", two_of_three, demand),
        ("every_kind_does_what_it_does_in_the_simulator", two_of_three, every_kind),
        ("quic_fills_the_link_and_follows_a_demand_that_falls", two_of_three, quic),
        ("a_capacity_step_takes_place", two_of_three, capacity_step),
        ("wfq_divides_cubic_and_bbr_by_weight", two_of_three, wfq),
        ("loss_and_jitter_of_the_scenario_are_there", two_of_three, loss_and_jitter),
        ("flows_start_and_stop_in_time", two_of_three, start_and_stop),
        ("receivers_have_the_names_of_their_applications", once, applications),
        ("a_failed_start_leaves_nothing", once, failed_start),
        ("an_interrupted_run_leaves_nothing", once, interrupted),
        ("a_killed_lab_leaves_no_process", once, killed),
        ("several_tests_are_played_by_their_names", once, named_tests),
    ];
    let (flags, names) = named_by(&args);
    // The judge identifies a claim by the name of its test's thread.
    let named = |name: &str, test| thread::Builder::new().name(name.to_owned()).spawn(test);
    let trial = |(name, judge, test): Claim| {
        Trial::test(name, move || {
            let played = named(name, move || {
                if privileged() && has_tun() {
                    judge(test);
                }
            });
            played?.join().map_err(|panic| {
                let words = panic.downcast_ref::<String>().map(String::as_str);
                Failed::from(words.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no words"))
            })
        })
    };
    let is_meant = |test: &Claim| names.is_empty() || names.iter().any(|name| name == test.0);
    let meant = tests.into_iter().filter(is_meant).map(trial).collect();
    let arguments =
        Arguments::from_iter(["it"].into_iter().chain(flags.iter().map(String::as_str)));
    libtest_mimic::run(&arguments, meant).exit_code()
}

/// The flags, and the names after `--exact`: libtest accepts several, libtest-mimic only one.
fn named_by(args: &[String]) -> (&[String], &[String]) {
    let exact = args.iter().position(|arg| arg == "--exact").unwrap_or(args.len());
    (&args[..exact], args.get(exact + 1..).unwrap_or_default())
}

/// Passes names in the way `cargo xtask judge again` does.
fn named_tests() {
    let names = ["pings_see_the_configured_rtt_by_ipv4_and_ipv6", "a_capacity_step_takes_place"];
    let mut list = Command::new(std::env::current_exe().expect("the test has a file"));
    let listed = list.args(["--test-threads", "1", "--list", "--exact"]).args(names).output();
    let text = String::from_utf8(listed.expect("it starts").stdout).expect("it prints text");
    assert_eq!(text, names.map(|name| format!("{name}: test\n")).concat());
}

/// Whether there are TUN devices, of which the lab's link consists.
fn has_tun() -> bool {
    let tun = fs::File::options().read(true).write(true).open("/dev/net/tun");
    can_run(tun.is_ok(), "/dev/net/tun")
}

fn options() -> Options {
    Options {
        executable: std::env::current_exe().expect("the test has a file"),
        with_daemon: false,
        watchers: None,
        parallel: None,
        // The judge repeats void runs.
        repeats: 0,
        cancel: Arc::new(AtomicBool::new(false)),
    }
}

/// A link of 30 Mbit/s with 100 ms of buffer, plus the settings in `rest`.
fn home(seconds: u64, link: &str, rest: &str) -> Scenario {
    let link = format!("rate = \"30mbit\"\nbuffer = \"100ms\"\n{link}");
    testing::scenario(seconds, 3, &link, rest)
}

/// A group with one flow.
fn group(name: &str, weight: u32, kind: &str, keys: &str) -> String {
    testing::group(name, weight) + &testing::flow(name, kind, keys)
}

fn two_flows(one: &str, other: &str, seconds: u64) -> Scenario {
    two_flows_with("", [one, other], seconds)
}

/// Two flows, of which the first has further keys.
fn two_flows_with(keys: &str, [one, other]: [&str; 2], seconds: u64) -> Scenario {
    let by = |cc: &str| format!("congestion_control = \"{cc}\"");
    let flows = group("video", 5, "bulk", &format!("{}\n{keys}", by(one)))
        + &group("bulk", 1, "bulk", &format!("{}\nconnections = 4", by(other)));
    testing::scenario(seconds, 4, "rate = \"30mbit\"", &flows)
}

fn play(scenario: &Scenario, control: Control) -> Report {
    let report = run_once(scenario, control, &options(), &|_| {}).unwrap_or_else(|e| panic!("{e}"));
    if let Some(lateness) = report.lateness {
        record_lateness(lateness.p99_ms);
    }
    if !report.valid {
        void("the machine was too busy to emulate the link in time");
    }
    report
}

/// Mean rate of a group in Mbit/s between two times.
fn mbit(report: &Report, group: &str, from_s: f64, to_s: f64) -> f64 {
    let series = report.series.iter().flatten();
    let within = series.filter(|p| p.group == group && p.t_s >= from_s && p.t_s < to_s);
    let rates: Vec<f64> = within.map(|p| p.rate.as_mbit_f64()).collect();
    rates.iter().sum::<f64>() / rates.len() as f64
}

fn assert_near(found: f64, expected: f64, tolerance: f64, what: &str) {
    let off = (found / expected - 1.0).abs();
    assert!(off <= tolerance, "{what}: {found} instead of {expected}, {:.1} % off", off * 100.0);
}

fn lone_flow() {
    let report = play(&home(11, "", &group("a", 1, "bulk", "")), Control::None);
    assert_near(report.summary.utilization.expect("it is loaded"), 1.0, 0.005, "utilisation");
    let lateness = report.lateness.expect("packets were carried");
    assert!(lateness.p50_ms < 0.5, "the relay keeps time: {lateness:?}");
    let queue = report.summary.isp_queue_ms.expect("something left").p99;
    assert!((80.0..=101.0).contains(&queue), "a FIFO of 100 ms is full at last: {queue} ms");
}

fn pings() {
    let flows = group("near", 1, "ping", "rtt = \"20ms\"")
        + &group("far", 1, "ping", "rtt = \"150ms\"\nip = 6");
    let report = play(&home(6, "", &flows), Control::None);
    // A machine that is late adds its lateness to round trips, in the relay and at both ends.
    let late_ms = report.lateness.expect("packets were carried").p99_ms.min(3.0);
    for (ping, expected) in report.summary.pings.iter().zip([20.0, 150.0]) {
        let median = ping.rtt_ms_median.expect("there are answers");
        assert!((expected..expected + 1.0 + late_ms).contains(&median), "{ping:?}, {late_ms} late");
        assert!(ping.sent >= 50 && ping.lost == 0, "{ping:?}");
    }
}

fn demand() {
    let four = "demand = \"8mbit\"\nsteps = [{ at = \"6s\", demand = \"3mbit\" }]";
    let six = "congestion_control = \"bbr\"\ndemand = \"12mbit\"\nconnections = 2\nip = 6";
    let flows = group("four", 1, "bulk", four) + &group("six", 1, "bulk", six);
    let report = play(&home(10, "", &flows), Control::None);
    assert_near(mbit(&report, "four", 2.0, 6.0), 8.0, 0.02, "IPv4, one connection");
    assert_near(mbit(&report, "four", 6.4, 10.0), 3.0, 0.02, "after the step");
    assert_near(mbit(&report, "six", 2.0, 10.0), 12.0, 0.02, "IPv6, two connections");
}

/// Flows that hardly overlap, so that each shows only its own effects.
fn every_kind() {
    let flows = group(
        "udp",
        1,
        "udp",
        "demand = \"6mbit\"\nip = 6\nsteps = [{ at = \"6s\", demand = \"2mbit\" }]",
    ) + &group(
        "on-off",
        1,
        "on-off",
        "on = \"900ms\"\noff = \"500ms\"\ndemand = \"3mbit\"\nsteps = [{ at = \"7s\", demand = \"1mbit\" }]",
    ) + &group("quic", 1, "quic", "connections = 2\nip = 6\ndemand = \"5mbit\"")
        + &group("short", 1, "short", "rate_per_s = 4\nsize = \"30kB\"\nsigma = 1")
        + &group(
            "web",
            1,
            "web",
            "think = \"300ms\"\nobjects = [8, 20]\nhosts = 2\napp = \"lab-test-web\"",
        )
        + &group("video", 1, "video", "ladder = [\"200kbit\", \"500kbit\"]")
        + &testing::flow("web", "ping", "");
    let scenario = testing::scenario(12, 6, "rate = \"100mbit\"", &flows);
    let lab = play(&scenario, Control::None).summary;
    let sim = simulated(&scenario).summary;
    let volume = |summary: &Summary, i: usize| summary.groups[i].delivered.as_u64() as f64;
    for (i, tolerance) in [(0, 0.02), (1, 0.05), (2, 0.02), (3, 0.03), (4, 0.03), (5, 0.03)] {
        let name = &lab.groups[i].name;
        assert_near(volume(&lab, i), volume(&sim, i), tolerance, &format!("bytes of {name}"));
    }
    let ms = |value: Option<f64>| value.expect("there are some");
    let (shorts, expected) = (&lab.shorts[0], &sim.shorts[0]);
    assert!(shorts.flows.abs_diff(expected.flows) <= 1 && expected.flows > 20, "{shorts:?}");
    let medians = [&shorts, &expected].map(|s| ms(s.completion_ms_median));
    assert_near(medians[0], medians[1], 0.25, "completion time of short downloads");
    let (pages, expected) = (&lab.pages[0], &sim.pages[0]);
    assert!(pages.pages.abs_diff(expected.pages) <= 1 && expected.pages >= 8, "{pages:?}");
    if pages.pages == expected.pages {
        assert_eq!(pages.volume, expected.volume, "both worlds load the same pages");
    }
    assert_near(ms(pages.load_ms_median), ms(expected.load_ms_median), 0.25, "load time of pages");
    let (video, expected) = (&lab.videos[0], &sim.videos[0]);
    assert_near(ms(video.startup_s), ms(expected.startup_s), 0.25, "start of the film");
    assert_eq!((video.stalls, expected.stalls), (0, 0));
    let qualities = [video, expected].map(|v| v.quality.expect("it was played").as_mbit_f64());
    assert_near(qualities[0], qualities[1], 0.1, "quality of the film");
    assert!(lab.pings[0].sent >= 110 && lab.pings[0].lost <= 1, "{:?}", lab.pings);
}

fn simulated(scenario: &Scenario) -> Report {
    let cancel = AtomicBool::new(false);
    let played = engine::play(scenario, Control::None, scenario.seed, &|_| {}, &cancel);
    played.unwrap_or_else(|e| panic!("{e}"))
}

fn quic() {
    let keys = "demand = \"40mbit\"\nsteps = [{ at = \"7s\", demand = \"3mbit\" }]";
    let report = play(&home(10, "", &group("a", 1, "quic", keys)), Control::None);
    assert_near(mbit(&report, "a", 2.0, 7.0), 30.0, 0.01, "more than the link carries");
    // The data waiting in the link's and the sender's buffers are gone within 150 ms.
    assert_near(mbit(&report, "a", 7.4, 10.0), 3.0, 0.02, "after the step");
}

fn capacity_step() {
    let steps = "steps = [{ at = \"5s\", rate = \"10mbit\" }, { at = \"9s\", rate = \"20mbit\" }]";
    let report = play(&home(13, steps, &group("a", 1, "bulk", "")), Control::None);
    assert_near(mbit(&report, "a", 3.0, 5.0), 30.0, 0.01, "before");
    assert_near(mbit(&report, "a", 5.2, 9.0), 10.0, 0.01, "after the first step");
    assert_near(mbit(&report, "a", 11.0, 13.0), 20.0, 0.05, "after the second");
}

fn wfq() {
    let scenario = two_flows("cubic", "bbr", 14);
    let report = play(&scenario, Control::Wfq);
    let rate = |i: usize| report.summary.groups[i].rate.as_mbit_f64();
    assert_near(rate(0) / rate(1), 5.0, 0.05, "cubic against bbr");
    let report = play(&scenario, Control::None);
    let (video, bulk) = (report.summary.groups[0].rate, report.summary.groups[1].rate);
    assert!(video < bulk, "without WFQ one cubic flow cannot hold out against four of bbr");
}

fn loss_and_jitter() {
    let link = "loss = 0.2\njitter = \"20ms\"";
    let ping = group("a", 1, "ping", "rtt = \"20ms\"");
    let report = play(&home(12, link, &ping), Control::None);
    let ping = &report.summary.pings[0];
    let lost = ping.lost as f64 / ping.sent as f64;
    assert!((0.08..0.35).contains(&lost), "{ping:?}");
    let median = ping.rtt_ms_median.expect("there are answers");
    assert!((24.0..37.0).contains(&median), "20 ms and 0 to 20 ms of jitter: {ping:?}");
}

fn start_and_stop() {
    let bulk = "start = \"2s\"\nstop = \"5s\"";
    let report = play(&home(7, "", &group("a", 1, "bulk", bulk)), Control::None);
    assert!(mbit(&report, "a", 0.0, 2.0) == 0.0, "nothing before the start");
    assert!(mbit(&report, "a", 3.0, 5.0) > 25.0, "load between");
    assert!(mbit(&report, "a", 5.4, 7.0) < 0.1, "nothing after the stop");
}

fn applications() {
    let scenario = two_flows_with("app = \"lab-test-steam\"", ["cubic"; 2], 3);
    let (steam, other) = (AtomicBool::new(false), AtomicBool::new(false));
    let look = |_| {
        steam.fetch_or(!processes_of("lab-test-steam").is_empty(), Ordering::Relaxed);
        other.fetch_or(!processes_of("fetch-bulk").is_empty(), Ordering::Relaxed);
    };
    run_once(&scenario, Control::None, &options(), &look).unwrap_or_else(|e| panic!("{e}"));
    assert!(steam.into_inner(), "the receiver has the name that the scenario wants");
    assert!(other.into_inner(), "or that of its group");
    assert_eq!(processes_of("lab-test-steam"), Vec::<u32>::new());
}

/// Processes whose executable file has this base name.
fn processes_of(name: &str) -> Vec<u32> {
    processes_where(|exe| exe.file_name().is_some_and(|file| file == name))
}

fn processes_where(is_wanted: impl Fn(PathBuf) -> bool) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
    let ids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|id| fs::read_link(format!("/proc/{id}/exe")).is_ok_and(&is_wanted)).collect()
}

fn failed_start() {
    let executable = PathBuf::from("/bin/false");
    let scenario = home(5, "", &group("a", 1, "bulk", ""));
    let error = run_once(&scenario, Control::None, &Options { executable, ..options() }, &|_| {});
    assert!(matches!(error, Err(Error::Ended { .. })), "{error:?}");
    let executable = PathBuf::from("/nonexistent/fairweir");
    let error = run_once(&scenario, Control::None, &Options { executable, ..options() }, &|_| {});
    assert!(matches!(error, Err(Error::NoExecutable(_))), "{error:?}");
    // The test binary acts as server and receiver, but not as daemon.
    let options = Options { with_daemon: true, ..options() };
    let error = run_once(&scenario, Control::None, &options, &|_| {});
    assert!(matches!(&error, Err(Error::Ended { name, .. }) if name == "the daemon"), "{error:?}");
}

fn interrupted() {
    let scenario = two_flows_with("app = \"lab-test-int\"", ["cubic"; 2], 60);
    let options = options();
    let cancel = Arc::clone(&options.cancel);
    let begin = Instant::now();
    let stop_soon = move |p: fairweir_lab::Progress| {
        cancel.fetch_or(p.at.as_secs_f64() > 1.0, Ordering::Relaxed);
    };
    let error = run_once(&scenario, Control::None, &options, &stop_soon);
    assert!(matches!(error, Err(Error::Interrupted)), "{error:?}");
    assert!(begin.elapsed() < Duration::from_secs(10), "it takes no time");
    assert_eq!(processes_of("lab-test-int"), Vec::<u32>::new());
}

fn killed() {
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let mut lab = Command::new(std::env::current_exe().expect("the test has a file"))
        .arg(PLAY)
        .env("TMPDIR", temporary.path())
        .stdin(Stdio::null())
        .spawn()
        .expect("the lab starts");
    let of_lab = || processes_where(|exe| exe.starts_with(temporary.path()));
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < Duration::from_secs(10), "{what}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    wait_for("the receivers start", &|| of_lab().len() == 2);
    lab.kill().expect("it can be killed");
    lab.wait().expect("it was ours");
    wait_for("the receivers end with the lab", &|| of_lab().is_empty());
}
