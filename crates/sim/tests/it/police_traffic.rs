//! Random traffic behind the policer, so that a change is judged by distributions: choose constants on
//! some seeds and report results of others. `POLICE_SEEDS=1001..1300 cargo test -p fairweir-sim --test
//! police_traffic -- --ignored --nocapture` prints the tables; with `POLICE_ECN=1` all flows use ECN.

use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;

use fairweir_scenario::random::SplitMix64;
use fairweir_scenario::report::Policed;
use fairweir_scenario::{Control, Scenario};
use fairweir_sim::engine;

/// The kinds of traffic, taken in turn by the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    /// One download.
    Alone,
    /// 2 to 8 downloads with one congestion control and one RTT.
    Alike,
    /// 2 to 8 downloads with a congestion control and RTT of their own.
    Mixed,
    /// 9 to 32 downloads.
    Many,
    /// A flow that is present for 2 of every 6 s beside a steady one.
    OnAndOff,
    /// Two to three flows, of which one ends every 3 s.
    Ending,
}

const TRAFFIC: [Traffic; 6] = [
    Traffic::Alone,
    Traffic::Alike,
    Traffic::Mixed,
    Traffic::Many,
    Traffic::OnAndOff,
    Traffic::Ending,
];

/// The congestion controls of a seed's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Reno or CUBIC, whose windows arrive as bursts.
    Unpaced,
    /// Reno or CUBIC, spread over the round trip.
    Paced,
    /// BBR, perhaps beside others.
    Bbr,
}

/// The measurements of a seed.
struct Outcome {
    seed: u64,
    traffic: Traffic,
    kind: Kind,
    /// Rate, RTTs and congestion controls.
    what: String,
    /// Divided by the rate: mean and 99th percentile of 250 ms in the steady time, the most at a start.
    mean: f64,
    p99: f64,
    start: f64,
    jain: Option<f64>,
    /// The part of the packets that was dropped.
    loss: f64,
    /// For each departure, the rate in the second that begins one second after it.
    made_up: Vec<f64>,
}

/// A number from `from` to `to`, uniform on a logarithmic scale.
fn between(draw: &mut SplitMix64, from: f64, to: f64) -> f64 {
    from * (to / from).powf(draw.fraction())
}

fn pick<T: Copy>(draw: &mut SplitMix64, all: &[T]) -> T {
    all[draw.below(all.len() as u64) as usize]
}

/// The scenario of a seed, and the times at which flows depart.
fn scenario(seed: u64) -> (Traffic, String, String, Vec<f64>) {
    let draw = &mut SplitMix64::new(seed);
    let traffic = TRAFFIC[(seed % 6) as usize];
    let mbit = between(draw, 1.5, 500.0);
    let rtt_max =
        if traffic == Traffic::OnAndOff || traffic == Traffic::Ending { 20.0 } else { 200.0 };
    let rtt = between(draw, 0.5, rtt_max);
    let congestion_control = pick(draw, &["reno", "cubic", "cubic", "bbr"]);
    let is_paced = draw.below(2) == 0;
    let count = match traffic {
        Traffic::Alone => 1,
        Traffic::Alike | Traffic::Mixed => 2 + draw.below(7),
        Traffic::Many => 9 + draw.below(24),
        Traffic::OnAndOff => 7,
        Traffic::Ending => 12,
    };
    let ecn = std::env::var_os("POLICE_ECN").is_some();
    let (mut flows, mut departures, mut rtts) = (String::new(), Vec::new(), vec![rtt]);
    let mut what = format!("{mbit:.1} Mbit/s, {count} {congestion_control}, {rtt:.1} ms");
    for n in 0..count {
        let (mut rtt, mut congestion_control) = (rtt, congestion_control);
        if traffic == Traffic::Mixed || traffic == Traffic::Many && seed % 12 < 6 {
            rtt = between(draw, 0.5, 200.0);
            congestion_control = pick(draw, &["reno", "cubic", "cubic", "bbr"]);
            what += &format!(", {congestion_control} {rtt:.1} ms");
            rtts.push(rtt);
        }
        let start = match traffic {
            Traffic::OnAndOff if n > 0 => 6.0 * n as f64 - 2.0,
            Traffic::Ending => 3.0 * n as f64,
            _ => draw.fraction() * rtt / 1e3,
        };
        let stop = match traffic {
            Traffic::OnAndOff if n > 0 => Some(start + 2.0),
            Traffic::Ending => Some(start + 7.0),
            _ => None,
        };
        departures.extend(stop.filter(|stop| *stop <= SECONDS - 2.5));
        let stop = stop.map(|stop| format!("stop = \"{stop}s\"\n")).unwrap_or_default();
        flows += &format!(
            "[[flow]]\ngroup = \"all\"\nkind = \"bulk\"\ncongestion_control = \"{congestion_control}\"\n\
             ecn = {ecn}\npaced = {}\nrtt = \"{:.0}us\"\nstart = \"{:.0}ms\"\n{stop}",
            is_paced || congestion_control == "bbr",
            rtt * 1e3,
            start * 1e3
        );
    }
    let rtt_max = rtts.iter().fold(100.0, |most: f64, rtt| most.max(*rtt)).ceil();
    let settle = if departures.is_empty() { 10 } else { 0 };
    let text = format!(
        "version = 1\nname = \"x\"\nduration = \"{SECONDS}s\"\nsettle = \"{settle}s\"\n\
         [link]\nrate = \"10gbit\"\n[[group]]\nname = \"all\"\nweight = 1\n{flows}\
         [[police]]\nname = \"home\"\nrate = \"{:.0}kbit\"\nqueue_by = \"hash\"\n\
         rtt_max = \"{rtt_max}ms\"\n",
        mbit * 1e3
    );
    (traffic, what, text, departures)
}

const SECONDS: f64 = 40.0;

fn play(seed: u64) -> Outcome {
    let (traffic, what, text, departures) = scenario(seed);
    let scenario = Scenario::parse(&text, "x").unwrap_or_else(|e| panic!("{e}\n{text}"));
    let cancel = AtomicBool::new(false);
    let report = engine::play(&scenario, Control::None, seed, &|_| {}, &cancel).unwrap();
    let policed: Policed = report.summary.policed.into_iter().next().unwrap();
    let steady = policed.steady.unwrap();
    // The second from one second after the departure on.
    let second = |at: &f64| {
        let first = ((at + 1.0) * 4.0).ceil() as usize;
        policed.over_time[first..first + 4].iter().sum::<f64>() / 4.0
    };
    Outcome {
        seed,
        traffic,
        kind: match text.contains("\"bbr\"") {
            true => Kind::Bbr,
            false if text.contains("paced = false") => Kind::Unpaced,
            false => Kind::Paced,
        },
        what,
        mean: policed.rate_ratio.unwrap(),
        p99: steady.p99,
        start: policed.start_up.map_or(steady.max, |start| start.max),
        jain: policed.jain.filter(|_| departures.is_empty()),
        loss: policed.loss.unwrap_or(0.0),
        made_up: departures.iter().map(second).collect(),
    }
}

/// The minimum, first decile, median, ninth decile and maximum, and the part that is within the range.
fn row(name: &str, mut all: Vec<f64>, within: RangeInclusive<f64>) -> String {
    if all.is_empty() {
        return format!("  {name:8} -");
    }
    all.sort_by(f64::total_cmp);
    let at = |part: f64| all[((all.len() - 1) as f64 * part).round() as usize];
    let kept = all.iter().filter(|v| within.contains(v)).count() as f64 / all.len() as f64;
    let [p0, p10, p50, p90, p100] = [0.0, 0.1, 0.5, 0.9, 1.0].map(at);
    format!(
        "  {name:8} {p0:6.3} {p10:6.3} {p50:6.3} {p90:6.3} {p100:6.3}  {:3.0} % of {} in {within:?}",
        kept * 100.0,
        all.len()
    )
}

#[test]
#[ignore = "long: prints tables"]
fn random_traffic() {
    let seeds = std::env::var("POLICE_SEEDS").unwrap_or("1..120".to_owned());
    let (from, to) = seeds.split_once("..").unwrap();
    let seeds = from.parse().unwrap()..=to.parse().unwrap();
    let shows_all = std::env::var_os("POLICE_ALL").is_some();
    let mut all: Vec<Outcome> = Vec::new();
    for seed in seeds {
        let one = play(seed);
        if shows_all {
            println!(
                "{:5} {:?} {:?} mean {:.3} p99 {:.2} start {:.2} loss {:.4} jain {:?} {:.2?}: {}",
                seed,
                one.traffic,
                one.kind,
                one.mean,
                one.p99,
                one.start,
                one.loss,
                one.jain,
                one.made_up,
                one.what
            );
        }
        all.push(one);
    }
    let table = |name: &str, of: &dyn Fn(&Outcome) -> bool| {
        let all: Vec<&Outcome> = all.iter().filter(|one| of(one)).collect();
        let numbers = |of: &dyn Fn(&Outcome) -> f64| all.iter().map(|one| of(one)).collect();
        println!("{name}: least, p10, p50, p90, most");
        println!("{}", row("mean", numbers(&|o| o.mean), 0.98..=1.02));
        println!("{}", row("p99", numbers(&|o| o.p99), 0.0..=1.3));
        println!("{}", row("start", numbers(&|o| o.start), 0.0..=1.6));
        println!("{}", row("loss", numbers(&|o| o.loss), 0.0..=1.0));
        println!("{}", row("Jain", all.iter().filter_map(|o| o.jain).collect(), 0.97..=1.0));
        let made_up = all.iter().flat_map(|o| o.made_up.iter().copied()).collect();
        println!("{}", row("made up", made_up, 0.95..=9.0));
        let worst = all.iter().min_by(|a, b| a.mean.total_cmp(&b.mean));
        println!("  worst mean: seed {:?}", worst.map(|o| o.seed));
    };
    for traffic in TRAFFIC {
        for kind in [Kind::Unpaced, Kind::Paced, Kind::Bbr] {
            table(&format!("{traffic:?}, {kind:?}"), &|o| o.traffic == traffic && o.kind == kind);
        }
    }
    for kind in [Kind::Unpaced, Kind::Paced, Kind::Bbr] {
        table(&format!("all, {kind:?}"), &|o| o.kind == kind);
    }
    table("all", &|_| true);
    assert!(!all.is_empty());
}
