//! The control `fairweir` over several seeds: its promises, and every state in which CRAB's loop
//! fails. Measurements are printed (`--nocapture`); the bounds are a little above them.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use fairweir_core::receiver::{Act, Decision};
use fairweir_core::units::{Span, Time};
use fairweir_scenario::report::{Report, Summary};
use fairweir_scenario::testing::{flow, group, scenario};
use fairweir_scenario::{Control, Scenario};
use fairweir_sim::engine;

// ------------------------------------------------------------------------------------------------
// Playing and judging

/// One run of the control.
struct Played {
    report: Report,
    /// Changes of the believed capacity per minute, after the first ten seconds.
    changes: f64,
    /// The mean of the believed capacity after that, in Mbit/s.
    believed: f64,
}

impl Played {
    fn summary(&self) -> &Summary {
        &self.report.summary
    }

    fn error(&self) -> f64 {
        self.summary().allocation_error.unwrap_or(f64::NAN)
    }

    fn utilization(&self) -> f64 {
        self.summary().utilization.unwrap_or(f64::NAN)
    }

    fn queue_ms(&self) -> f64 {
        self.summary().isp_queue_ms.map_or(f64::NAN, |queue| queue.mean)
    }

    fn queue_ms_p99(&self) -> f64 {
        self.summary().isp_queue_ms.map_or(f64::NAN, |queue| queue.p99)
    }

    fn rate(&self, group: &str) -> f64 {
        let group = self.summary().groups.iter().find(|g| g.name == group).unwrap();
        group.rate.as_mbit_f64()
    }

    /// The longest time after an event until every group has its share for good; infinite if it never has.
    fn right_after_s(&self) -> f64 {
        let seconds = self.summary().right_after_s.iter();
        seconds.map(|right| right.seconds.unwrap_or(f64::INFINITY)).fold(0.0, f64::max)
    }
}

fn file(name: &str) -> Scenario {
    file_in("../../scenarios", name)
}

/// A scenario in a directory, relative to this crate.
pub(crate) fn file_in(directory: &str, name: &str) -> Scenario {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{directory}/{name}.toml"));
    Scenario::parse(&fs::read_to_string(path).unwrap(), name).unwrap()
}

/// Plays a claim that does not hold yet, so that it is noticed when the claim begins to hold.
///
/// # Panics
/// If the claim holds.
pub(crate) fn not_yet(why_not: &str, claim: impl FnOnce()) {
    let result = catch_unwind(AssertUnwindSafe(claim));
    assert!(result.is_err(), "it holds now, so claim it; it did not because {why_not}");
}

/// Two groups of weights 5 (one connection) and 1 (four connections) with unlimited demand.
fn five_to_one() -> String {
    group("video", 5)
        + &group("bulk", 1)
        + &flow("video", "bulk", "")
        + &flow("bulk", "bulk", "connections = 4")
}

fn play(scenario: &Scenario, seed: u64) -> Played {
    let mut changes = 0;
    let mut capacities = Vec::new();
    let mut note = |decision: &Decision| {
        if decision.at < Time::ZERO + START {
            return;
        }
        let is_change = matches!(
            decision.act,
            Act::Learn { .. } | Act::Measured { .. } | Act::Increase { .. } | Act::Decrease { .. }
        );
        changes += u64::from(is_change);
        capacities.push(decision.capacity.map_or(0.0, |capacity| capacity.as_mbit_f64()));
    };
    let report = engine::play_watched(scenario, Control::Fairweir, seed, &mut note).unwrap();
    let minutes = scenario.end().since(Time::ZERO + START).as_secs_f64() / 60.0;
    let believed = capacities.iter().sum::<f64>() / capacities.len() as f64;
    Played { report, changes: changes as f64 / minutes, believed }
}

/// Plays a scenario with another control.
pub(crate) fn with_control(scenario: &Scenario, control: Control, seed: u64) -> Report {
    engine::play(scenario, control, seed, &|_| {}, &AtomicBool::new(false)).unwrap()
}

/// Plays with several seeds and prints the results.
fn play_seeds(what: &str, scenario: &Scenario, seeds: u64) -> Vec<Played> {
    let all: Vec<Played> = (1..=seeds).map(|seed| play(scenario, seed)).collect();
    let mean = |of: &dyn Fn(&Played) -> f64| mean(&all, of);
    println!(
        "{what}: error {:.4} (at most {:.4}), utilisation {:.4}, queue {:.2} ms, p99 {:.1} ms, right after {:.1} s, \
         drops {:.0}, changes {:.1}/min",
        mean(&Played::error),
        all.iter().map(Played::error).fold(0.0, f64::max),
        mean(&Played::utilization),
        mean(&Played::queue_ms),
        mean(&Played::queue_ms_p99),
        all.iter().map(Played::right_after_s).fold(0.0, f64::max),
        mean(&|played| played.summary().isp_drops as f64),
        mean(&|played| played.changes),
    );
    assert!(mean(&|played| played.changes) < CHANGES_MAX, "{what}: it never comes to rest");
    all
}

fn mean(all: &[Played], of: &dyn Fn(&Played) -> f64) -> f64 {
    all.iter().map(of).sum::<f64>() / all.len() as f64
}

/// Checks that the means over the seeds are within bounds.
fn assert_shares(what: &str, all: &[Played], error_max: f64, utilization_min: f64) {
    let (error, utilization) = (mean(all, &Played::error), mean(all, &Played::utilization));
    let is_fine = error <= error_max && utilization >= utilization_min;
    assert!(is_fine, "{what}: error {error}, utilisation {utilization}");
}

/// Checks that with every seed, from `settle` after each event on, every group has its share.
fn assert_each(what: &str, all: &[Played], error_max: f64) {
    for (seed, played) in all.iter().enumerate() {
        let error = played.error();
        assert!(error <= error_max, "{what}, seed {}: error {error}", seed + 1);
    }
}

/// The time until then counts as the control's beginning.
const START: Span = Span::secs(10);
/// Most changes of the believed capacity, per minute.
const CHANGES_MAX: f64 = 12.0;
const SEEDS: u64 = 8;
/// Number of seeds where each single one has to be right.
const FEW_SEEDS: u64 = 4;
const LINK_30: &str = "rate = \"30mbit\"";

// ------------------------------------------------------------------------------------------------
// The figures

#[test]
fn figure_7_is_followed_with_a_short_queue_and_hardly_a_loss() {
    let scenario = file("crab-fig7-short");
    let all = play_seeds("figure 7", &scenario, SEEDS);
    assert_shares("figure 7", &all, 0.006, 0.99);
    let queue = (mean(&all, &Played::queue_ms), mean(&all, &Played::queue_ms_p99));
    assert!(queue.0 <= 5.5 && queue.1 <= 13.0, "{queue:?}");
    let crab = with_control(&scenario, Control::Crab, 1);
    let drops = mean(&all, &|played| played.summary().isp_drops as f64);
    println!("figure 7: drops {drops} of {} with crab", crab.summary.isp_drops);
    assert!(drops <= crab.summary.isp_drops as f64 / 100.0, "{drops}: {}", crab.summary.isp_drops);
}

#[test]
fn figure_8_is_followed_through_a_capacity_that_falls_to_a_third() {
    let all = play_seeds("figure 8", &file("crab-fig8-short"), SEEDS);
    assert_shares("figure 8", &all, 0.004, 0.99);
}

#[test]
fn bbr_gets_and_leaves_its_share() {
    let bounds = [
        ("weights-5-1-bbr", 0.025, 0.97),
        ("weights-5-1-mixed", 0.004, 0.99),
        ("weights-1-5-mixed", 0.03, 0.97),
        ("mix-cubic-bbr", 0.015, 0.98),
    ];
    for (name, error_max, utilization_min) in bounds {
        let all = play_seeds(name, &file(name), SEEDS);
        assert_shares(name, &all, error_max, utilization_min);
    }
}

#[test]
fn near_and_far_servers_get_the_same() {
    for name in ["rtts", "rtts-first-200"] {
        let all = play_seeds(name, &file(name), SEEDS);
        assert_shares(name, &all, 0.012, 0.98);
    }
}

// ------------------------------------------------------------------------------------------------
// States in which CRAB's loop ends wrong

#[test]
fn a_capacity_that_falls_by_little_or_more_is_followed_within_five_seconds() {
    for to in ["28.5mbit", "27mbit", "24mbit"] {
        let link = format!("{LINK_30}\nsteps = [{{ at = \"12s\", rate = \"{to}\" }}]");
        let what = format!("step to {to}");
        let all = play_seeds(&what, &scenario(24, 5, &link, &five_to_one()), SEEDS);
        assert_shares(&what, &all, 0.006, 0.99);
        assert_each(&what, &all, 0.008);
    }
}

#[test]
fn with_exact_measurements_the_capacity_is_what_the_link_carries() {
    let link = format!("{LINK_30}\nsteps = [{{ at = \"12s\", rate = \"12mbit\" }}]");
    let told = "[control]\nmeasurement = \"exact\"\n".to_owned();
    let scenario = scenario(24, 5, &link, &(told + &five_to_one()));
    let mut ticks = 0;
    let mut check = |decision: &Decision| {
        ticks += 1;
        let carried = scenario.link.capacity.at(decision.at);
        assert_eq!(decision.capacity, Some(carried), "at {:?}", decision.at);
    };
    let report = engine::play_watched(&scenario, Control::Fairweir, 1, &mut check).unwrap();
    assert!(ticks > 100 && report.summary.allocation_error.unwrap() <= 0.006, "{ticks} ticks");
}

#[test]
fn a_capacity_remembered_too_high_or_too_low_is_left_within_five_seconds() {
    for remembered in ["33mbit", "31.5mbit", "20mbit"] {
        let rest = format!("[control]\nremembered = \"{remembered}\"\n{}", five_to_one());
        let what = format!("remembered {remembered}");
        let all = play_seeds(&what, &scenario(20, 5, LINK_30, &rest), SEEDS);
        assert_shares(&what, &all, 0.006, 0.99);
        assert_each(&what, &all, 0.008);
    }
}

#[test]
fn one_that_is_on_and_off_by_turns_takes_no_capacity_from_the_others() {
    for (period, utilization_min) in [(1, 0.82), (2, 0.89), (4, 0.93)] {
        let on_off = format!("on = \"{period}s\"\noff = \"{period}s\"");
        let rest = group("video", 5)
            + &group("bulk", 1)
            + &flow("video", "on-off", &on_off)
            + &flow("bulk", "bulk", "connections = 4\nrtt = \"30ms\"");
        let what = format!("on and off for {period} s");
        let scenario = scenario(60, 5, LINK_30, &rest);
        let all = play_seeds(&what, &scenario, SEEDS);
        let (mut with, mut crab) = (0.0, 0.0);
        for played in &all {
            with += played.utilization() / all.len() as f64;
            crab += with_control(&scenario, Control::Crab, played.report.seed)
                .summary
                .utilization
                .unwrap()
                / all.len() as f64;
            let believed = played.believed;
            println!("{what}: {believed:.1} of 30 Mbit/s are believed");
            assert!((28.0..32.0).contains(&believed), "{what}: {believed} of 30 Mbit/s");
        }
        println!("{what}: {with:.3}, {crab:.3} with crab");
        assert!(with >= utilization_min && with > crab + 0.1, "{what}: {with}, {crab}");
    }
}

#[test]
fn groups_that_want_nothing_hold_nothing() {
    let groups: String =
        (0..24).map(|i| group(&format!("g{i}"), if i == 0 { 3 } else { 1 })).collect();
    let idle: String = (2..24)
        .map(|i| flow(&format!("g{i}"), "bulk", "start = \"17s\"\nstop = \"18s\""))
        .collect();
    let rest = groups + &flow("g0", "bulk", "") + &flow("g1", "bulk", "") + &idle;
    let scenario = scenario(18, 5, "rate = \"20mbit\"", &rest);
    let all = play_seeds("22 of 24 groups idle", &scenario, SEEDS);
    assert_shares("22 of 24 groups idle", &all, 0.006, 0.99);
    assert_each("22 of 24 groups idle", &all, 0.008);
}

#[test]
fn silence_is_no_lack_of_capacity() {
    let scenario = Scenario { settle: Span::secs(5), ..file("idle-then-load") };
    let all = play_seeds("60 s of silence", &scenario, SEEDS);
    assert_shares("60 s of silence", &all, 0.004, 0.99);
    assert_each("60 s of silence", &all, 0.008);
}

// ------------------------------------------------------------------------------------------------
// Bad measurements

#[test]
fn the_queue_does_not_grow_over_five_minutes() {
    let rest = five_to_one();
    for rate in ["10mbit", "30mbit"] {
        let link = format!("rate = \"{rate}\"");
        // The scored part is the last 30 s; all time before belongs to the events at the start.
        let soon = play_seeds("queue soon", &scenario(40, 10, &link, &rest), 3);
        let late = play_seeds("queue after 5 min", &scenario(330, 300, &link, &rest), 3);
        let (soon, late) = (mean(&soon, &Played::queue_ms), mean(&late, &Played::queue_ms));
        // Windows are whole segments, so the queue may settle a packet higher or lower.
        assert!((late - soon).abs() <= 2.0, "{rate}: {soon} ms, {late} ms later");
    }
}

#[test]
fn short_and_long_buffers_and_jitter_hide_no_shares() {
    let bounds = [
        ("buffer = \"25ms\"", 0.006, 0.99),
        ("buffer = \"400ms\"", 0.006, 0.99),
        ("jitter = \"5ms\"", 0.02, 0.97),
    ];
    for (link, error_max, utilization_min) in bounds {
        let link = format!("{LINK_30}\n{link}");
        let rest = group("heavy", 2)
            + &group("light", 1)
            + &flow("heavy", "bulk", "connections = 8\nrtt = \"30ms\"")
            + &flow("light", "bulk", "connections = 12\nrtt = \"30ms\"");
        for (who, rest) in [("5:1", five_to_one()), ("8 + 12", rest)] {
            let what = format!("{link}, {who}").replace('\n', ", ");
            let all = play_seeds(&what, &scenario(25, 8, &link, &rest), SEEDS);
            assert_shares(&what, &all, error_max, utilization_min);
        }
    }
}

#[test]
fn a_probe_that_is_lost_or_lies_does_not_mislead() {
    for probe in ["reflector = false", "loss = 0.9", "lie = \"fast\"", "lie = \"slow\""] {
        let rest = format!("[probe]\n{probe}\n{}", five_to_one());
        let all = play_seeds(probe, &scenario(25, 8, LINK_30, &rest), SEEDS);
        assert_shares(probe, &all, 0.005, 0.99);
    }
}

/// In the kernel's view: without timestamps its RTT is the least time in which a window arrived.
#[test]
fn without_timestamps_an_answer_a_second_suffices() {
    let flow =
        |group, more| flow(group, "bulk", &format!("rtt = \"40ms\"\ntimestamps = false\n{more}"));
    let rest = group("video", 5)
        + &group("bulk", 1)
        + &flow("video", "start = \"5s\"")
        + &flow("bulk", "connections = 4");
    for probe in ["", "answer_interval = \"1s\""] {
        for rate in ["10mbit", "30mbit", "100mbit"] {
            let told = format!("[control]\nmeasurement = \"kernel\"\n[probe]\n{probe}\n{rest}");
            let what = format!("{rate}, {probe}");
            let all =
                play_seeds(&what, &scenario(36, 8, &format!("rate = \"{rate}\""), &told), SEEDS);
            assert_shares(&what, &all, 0.03, 0.97);
        }
    }
}

#[test]
fn random_loss_is_no_lower_capacity() {
    let rest = group("heavy", 2)
        + &group("light", 1)
        + &flow("heavy", "bulk", "connections = 12\nrtt = \"20ms\"")
        + &flow("light", "bulk", "connections = 8\nrtt = \"20ms\"");
    let link = format!("{LINK_30}\nloss = 0.01");
    let all = play_seeds("1 % loss", &scenario(30, 8, &link, &rest), SEEDS);
    assert_shares("1 % loss", &all, 0.02, 0.97);
}

// ------------------------------------------------------------------------------------------------
// Bottlenecks without a queue, noise, neighbours and long paths

#[test]
fn a_policed_plan_is_shared_by_weight() {
    for burst in ["75kB", "150kB", "600kB"] {
        let police = format!(
            "[[police]]\nname = \"plan\"\nrate = \"30mbit\"\nalgorithm = \"token-bucket\"\n\
             burst = \"{burst}\"\n"
        );
        let scenario = scenario(60, 20, "rate = \"1gbit\"", &(five_to_one() + &police));
        for seed in 1..=FEW_SEEDS {
            let played = play(&scenario, seed);
            let (video, bulk) = (played.rate("video"), played.rate("bulk"));
            let (ratio, used) = (video / bulk, (video + bulk) / 30.0);
            println!("bucket of {burst}, seed {seed}: ratio {ratio:.2}, used {used:.3}");
            assert!((4.6..5.4).contains(&ratio), "{burst}, seed {seed}: {video}, {bulk}");
            assert!(used >= 0.94, "{burst}, seed {seed}: {used}");
        }
    }
}

#[test]
fn a_buffer_that_drops_before_the_queue_is_seen_hides_no_shares() {
    for (buffer, error_max, utilization_min) in [("10ms", 0.01, 0.99), ("5ms", 0.08, 0.94)] {
        let link = format!("{LINK_30}\nbuffer = \"{buffer}\"");
        let what = format!("buffer {buffer}");
        let all = play_seeds(&what, &scenario(40, 15, &link, &five_to_one()), SEEDS);
        assert_shares(&what, &all, error_max, utilization_min);
        assert_each(&what, &all, error_max * 2.0);
    }
}

#[test]
fn a_buffer_of_5_ms_is_not_yet_shared_as_well_as_one_of_10_ms() {
    not_yet("the error is .07", || {
        let scenario = scenario(40, 15, &format!("{LINK_30}\nbuffer = \"5ms\""), &five_to_one());
        assert_each("buffer 5ms", &play_seeds("buffer 5ms", &scenario, SEEDS), 0.01);
    });
}

/// FQ-CoDel gives each connection a queue of its own, and CoDel keeps the queue below the target.
#[test]
fn one_connection_has_its_share_beside_four_behind_queue_management() {
    for (queue, error_max, utilization_min) in
        [("fq_codel", 0.05, 0.93), ("codel", 0.01, 0.97), ("pie", 0.01, 0.98)]
    {
        let link = format!("{LINK_30}\nqueue = \"{queue}\"");
        let all = play_seeds(queue, &scenario(40, 15, &link, &five_to_one()), SEEDS);
        assert_shares(queue, &all, error_max, utilization_min);
        assert_each(queue, &all, error_max * 3.0);
    }
}

#[test]
fn jitter_of_15_and_30_ms_leaves_the_link_used() {
    // Random delays of 30 ms may look like a rival's queue, beside which nothing is enforced.
    for (jitter, error_max) in [("15ms", 0.03), ("30ms", 0.07)] {
        let link = format!("{LINK_30}\njitter = \"{jitter}\"");
        let scenario = scenario(40, 15, &link, &five_to_one());
        for seed in 1..=FEW_SEEDS {
            let played = play(&scenario, seed);
            let (used, error, changes) = (played.utilization(), played.error(), played.changes);
            println!(
                "jitter {jitter}, seed {seed}: used {used:.3}, error {error:.4}, {changes:.0} changes/min"
            );
            assert!(used >= 0.97 && error <= error_max, "{jitter}, seed {seed}: {used}, {error}");
        }
    }
}

/// Two groups of a host, 2:1, beside `connections` downloads of a neighbour, all with these keys. Returns the part of
/// the host's total without control that is kept, and how the groups divide it, over all seeds.
fn beside_neighbour(connections: u32, keys: &str) -> (f64, f64) {
    let run = |control: Control, seed: u64| {
        let device =
            |name: &str, keys: &str| format!("[[device]]\nname = \"{name}\"\nweight = 1\n{keys}\n");
        let behind = |name: &str, weight: u32, device: &str| {
            format!("{}device = \"{device}\"\n", group(name, weight))
        };
        let many = format!("connections = {connections}");
        let rest = device("host", &format!("control = \"{}\"", control.name()))
            + &device("neighbour", "")
            + &behind("heavy", 2, "host")
            + &behind("light", 1, "host")
            + &behind("other", 1, "neighbour")
            + &flow("heavy", "bulk", keys)
            + &flow("light", "bulk", keys)
            // The scored part begins after this.
            + &flow("other", "bulk", &format!("{keys}\n{many}\nstart = \"10s\""));
        let link = format!("{LINK_30}\nbuffer = \"100ms\"");
        let report = with_control(&scenario(120, 15, &link, &rest), Control::None, seed);
        let rate = |i: usize| report.summary.groups[i].rate.as_mbit_f64();
        (rate(0) + rate(1), rate(0) / rate(1))
    };
    let all = (1..=SEEDS).map(|seed| {
        let (without, _) = run(Control::None, seed);
        let (with, ratio) = run(Control::Fairweir, seed);
        println!(
            "{connections} beside it ({keys:?}), seed {seed}: {with:.2} of {without:.2}, {ratio:.2}"
        );
        [with, without, ratio]
    });
    let sums = all.fold([0.0; 3], |sum, one| [0, 1, 2].map(|i| sum[i] + one[i]));
    let (kept, ratio) = (sums[0] / sums[1], sums[2] / SEEDS as f64);
    println!("{connections} beside it: keeps {kept:.3}, ratio {ratio:.2}");
    (kept, ratio)
}

/// Three hosts of one network start one after the other, and the first ends: each one's rate in between, in seconds.
#[test]
fn hosts_that_hear_each_other_divide_the_link() {
    let host = |name: &str, keys: &str| {
        format!("[[device]]\nname = \"{name}\"\nweight = 1\ncontrol = \"fairweir\"\n")
            + &format!("{}device = \"{name}\"\n", group(name, 1))
            + &flow(name, "bulk", keys)
    };
    let rest = host("a", "rtt = \"20ms\"\nstop = \"50s\"")
        + &host("b", "rtt = \"60ms\"\nconnections = 4")
        + &host("c", "rtt = \"30ms\"\nstart = \"25s\"\ncongestion_control = \"bbr\"");
    let link = format!("{LINK_30}\nbuffer = \"150ms\"");
    let scenario = scenario(70, 10, &link, &rest);
    for seed in 1..=SEEDS {
        let report = with_control(&scenario, Control::None, seed);
        let series = report.series.unwrap();
        let mean = |name: &str, from: f64, to: f64| {
            let points = series.iter().filter(|p| p.group == name && p.t_s >= from && p.t_s < to);
            let rates: Vec<f64> = points.map(|point| point.rate.as_mbit_f64()).collect();
            rates.iter().sum::<f64>() / rates.len() as f64
        };
        let queue = report.summary.isp_queue_ms.unwrap().mean;
        for (from, to, due) in [
            (10.0, 25.0, [15.0, 15.0, 0.0]),
            (30.0, 50.0, [10.0; 3]),
            (55.0, 70.0, [0.0, 15.0, 15.0]),
        ] {
            let got = ["a", "b", "c"].map(|name| mean(name, from, to));
            println!("seed {seed}, {from} to {to} s: {got:.2?} Mbit/s, queue {queue:.1} ms");
            let is_due = |(got, due): (f64, f64)| (got - due).abs() <= 0.05 * due.max(2.0);
            assert!(got.into_iter().zip(due).all(is_due), "seed {seed}: {got:.2?} of {due:.2?}");
        }
        assert!(queue <= 10.0, "seed {seed}: {queue} ms");
    }
}

const NEAR: &str = "rtt = \"30ms\"";

/// BBR keeps the queue short itself and takes what others yield: the host was once left with a quarter of its total.
#[test]
fn beside_bbr_a_host_keeps_its_total() {
    let (kept, _) = beside_neighbour(2, "rtt = \"15ms\"\ncongestion_control = \"bbr\"");
    assert!(kept >= 0.92, "{kept}");
}

#[test]
fn beside_a_neighbour_a_host_keeps_most_of_its_total() {
    for (connections, kept_min) in [(1, 0.95), (4, 0.83)] {
        let (kept, _) = beside_neighbour(connections, NEAR);
        assert!(kept >= kept_min, "beside {connections}: {kept}");
    }
}

#[test]
fn beside_neighbours_a_host_does_not_yet_keep_its_total_and_its_weights() {
    for connections in [1, 4] {
        not_yet("a host keeps .94 and .89 of its total, divided 1.24:1 and 0.95:1", || {
            let (kept, ratio) = beside_neighbour(connections, NEAR);
            assert!(kept >= 0.85 && ratio >= 1.5, "beside {connections}: {kept}, {ratio}");
        });
    }
}

#[test]
fn a_link_alone_is_filled_at_rtts_of_220_and_400_ms() {
    for (rtt, link) in [("220ms", "rate = \"80mbit\"\nbuffer = \"85ms\""), ("400ms", LINK_30)] {
        let rest = group("far", 1) + &flow("far", "bulk", &format!("rtt = \"{rtt}\""));
        let all = play_seeds(rtt, &scenario(60, 20, link, &rest), FEW_SEEDS);
        for played in &all {
            let used = played.utilization();
            println!("{rtt}: used {used:.3}");
            assert!(used >= 0.97, "{rtt}, seed {}: used {used}", played.report.seed);
        }
    }
}

/// A ping takes no share, however long the queue is at the moment.
#[test]
fn beside_pings_a_download_keeps_the_link() {
    let rest = group("bulk", 2)
        + &group("first", 8)
        + &group("second", 6)
        + &flow("bulk", "bulk", "connections = 2\nrtt = \"60ms\"")
        + &flow("first", "ping", "rtt = \"30ms\"")
        + &flow("second", "ping", "rtt = \"25ms\"");
    let link = format!("{LINK_30}\nqueue = \"codel\"");
    for seed in 1..=SEEDS {
        let played = play(&scenario(30, 3, &link, &rest), seed);
        let rate = played.rate("bulk");
        println!("beside pings, seed {seed}: {rate:.2} Mbit/s");
        assert!(rate >= 28.0, "seed {seed}: {rate} Mbit/s");
    }
}

/// Windows that are too wide because of a queue in the first measurements are corrected at once.
#[test]
fn beside_a_stream_of_short_connections_a_download_takes_what_they_leave() {
    let all = play_seeds("requests beside bulk", &file("requests-beside-bulk"), 4);
    // Without control it is 99.9 % with five times the queue; before this correction it was 88 %.
    assert!(mean(&all, &Played::utilization) >= 0.91);
    assert!(mean(&all, &Played::queue_ms) <= 25.0);
}

#[test]
fn a_start_is_over_as_soon_as_the_queue_of_slow_start_is_gone() {
    let rest = group("many", 1) + &flow("many", "bulk", "connections = 8\nrtt = \"30ms\"");
    let link = "rate = \"48mbit\"\nbuffer = \"33ms\"";
    let all = play_seeds("start of eight", &scenario(20, 2, link, &rest), SEEDS);
    for played in &all {
        let used = played.utilization();
        assert!(used >= 0.96, "seed {}: used {used}", played.report.seed);
    }
}

#[test]
fn random_loss_costs_no_more_than_without_control() {
    let scenario = scenario(60, 15, &format!("{LINK_30}\nloss = 0.005"), &five_to_one());
    for seed in 1..=FEW_SEEDS {
        let with = play(&scenario, seed).utilization();
        let without = with_control(&scenario, Control::None, seed).summary.utilization.unwrap();
        println!("0.5 % loss, seed {seed}: used {with:.3}, {without:.3} without control");
        assert!(with >= without * 0.94, "seed {seed}: {with}, {without} without control");
    }
}

// ------------------------------------------------------------------------------------------------
// What has no window, ways to enforce, IPv6, light traffic

#[test]
fn quic_keeps_to_its_share() {
    let all = play_seeds("quic", &file("quic-vs-tcp"), SEEDS);
    println!("quic: tcp {:.1}, quic {:.1} Mbit/s", all[0].rate("tcp"), all[0].rate("quic"));
    assert_shares("quic", &all, 0.01, 0.98);
}

#[test]
fn a_flood_that_heeds_nothing_leaves_the_others_two_to_one() {
    let flooded = scenario(
        35,
        8,
        LINK_30,
        &(group("heavy", 2)
            + &group("light", 1)
            + &group("flood", 1)
            + &flow("heavy", "bulk", "connections = 2\nstart = \"1s\"")
            + &flow("light", "bulk", "connections = 2\nstart = \"1s\"")
            // From here on the scored windows contain the flood.
            + &flow("flood", "udp", "demand = \"20mbit\"\nstart = \"6s\"")),
    );
    let all = play_seeds("flood", &flooded, SEEDS);
    for played in &all {
        let (heavy, light) = (played.rate("heavy"), played.rate("light"));
        println!("flood: {heavy:.2}, {light:.2}, {:.2} Mbit/s", played.rate("flood"));
        assert!((1.9..2.1).contains(&(heavy / light)), "{heavy}, {light}");
        assert!(heavy + light > 9.5, "{heavy}, {light}");
    }
}

#[test]
fn each_way_to_enforce_gives_the_shares() {
    for enforce in ["htb", "window", "auto"] {
        let rest = format!("[control]\nenforce = \"{enforce}\"\n{}", five_to_one());
        let all = play_seeds(enforce, &scenario(25, 8, LINK_30, &rest), SEEDS);
        assert_shares(enforce, &all, 0.007, 0.99);
    }
}

#[test]
fn ipv6_is_shared_as_ipv4() {
    let all = play_seeds("IPv6", &file("weights-5-1-ipv6"), SEEDS);
    assert_shares("IPv6", &all, 0.004, 0.99);
}

#[test]
fn light_traffic_alone_is_not_taken_for_the_capacity() {
    let rest = group("a", 1) + &flow("a", "short", "rate_per_s = 20\nsize = \"10kB\"");
    let scenario = scenario(40, 5, "rate = \"20mbit\"", &rest);
    let p95 = |summary: &Summary| summary.shorts[0].completion_ms_p95.unwrap();
    for played in play_seeds("light", &scenario, SEEDS) {
        let seed = played.report.seed;
        let alone = with_control(&scenario, Control::None, seed);
        let (with, without) = (p95(played.summary()), p95(&alone.summary));
        println!("light: p95 {with} ms, {without} ms without control");
        assert!(with <= without * 1.02, "{with} ms, {without} ms without control");
    }
}

#[test]
fn nearly_all_cold_starts_use_the_link() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/cold-start.toml");
    let text = fs::read_to_string(file).unwrap();
    let mut failed = Vec::new();
    for probe in ["", "[probe]\nreflector = false\n"] {
        let scenario = Scenario::parse(&format!("{text}{probe}"), "cold-start.toml").unwrap();
        for seed in 1..=50 {
            let mut rates = Vec::new();
            let mut watch = |decision: &Decision| {
                let rates_now = decision.groups.iter().map(|group| group.rate.as_mbit_f64());
                rates.push(rates_now.sum::<f64>());
            };
            engine::play_watched(&scenario, Control::Fairweir, seed, &mut watch).unwrap();
            // The flows start at 1 s, and ticks are 200 ms.
            let means = rates[20..].windows(15).map(|w| w.iter().sum::<f64>() / 15.0);
            let least = means.fold(f64::INFINITY, f64::min);
            if least < 0.8 * 30.0 {
                failed.push((probe.is_empty(), seed, least));
            }
        }
    }
    println!("{} of 100 starts below 80 % over 3 s: {failed:.1?}", failed.len());
    // The aim is zero; before bases were settled only by measurements that can tell, it was 45.
    assert!(failed.len() <= 4);
}

// ------------------------------------------------------------------------------------------------
// Caps

/// A cap holds to +2 and -3 %, and what it leaves is divided by weight.
#[test]
fn a_capped_group_has_its_cap_and_the_others_the_rest_by_weight() {
    let endless = |group| flow(group, "bulk", "");
    let capped = group("capped", 5) + "max = \"6mbit\"\n";
    let text = capped + &group("a", 1) + &group("b", 3);
    let text = text + &endless("capped") + &endless("a") + &endless("b");
    for played in play_seeds("cap", &scenario(24, 8, LINK_30, &text), 5) {
        let rates = ["capped", "a", "b"].map(|group| played.rate(group));
        let is_cap = |rate: f64| (5.82..=6.12).contains(&rate);
        let is_weighted = (rates[2] / rates[1] / 3.0 - 1.0).abs() < 0.06;
        assert!(is_cap(rates[0]) && is_weighted, "{rates:?}");
        assert!(played.utilization() > 0.97, "{}", played.utilization());
        assert!(played.error() < 0.03, "{}", played.error());
    }
}

/// A floor holds against a group of nine times its weight.
#[test]
fn a_floor_holds() {
    let groups = group("floor", 1) + "min = \"12mbit\"\n" + &group("greedy", 9);
    let greedy = flow("greedy", "bulk", "connections = 4");
    let full = groups + &flow("floor", "bulk", "") + &greedy;
    for played in play_seeds("floor", &scenario(24, 8, LINK_30, &full), 3) {
        let rates = ["floor", "greedy"].map(|group| played.rate(group));
        assert!((11.76..=12.5).contains(&rates[0]), "{rates:?}");
        assert!(played.utilization() > 0.97, "{}", played.utilization());
    }
}

/// A cap also holds where the link is never full, so that its capacity is unknown.
#[test]
fn a_cap_holds_where_nothing_else_is_enforced() {
    let capped = group("capped", 1) + "max = \"6mbit\"\n";
    let alone =
        scenario(24, 8, LINK_30, &(capped.clone() + &flow("capped", "bulk", "connections = 3")));
    for played in play_seeds("cap alone", &alone, 5) {
        let rate = played.rate("capped");
        assert!((5.82..=6.12).contains(&rate), "{rate}");
    }
}
