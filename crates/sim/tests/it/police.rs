//! The policer over several seeds, with TCP flows that come and go. Measurements are printed
//! (`--nocapture`); the bounds are a little beyond them.

use std::sync::atomic::AtomicBool;

use fairweir_scenario::report::Policed;
use fairweir_scenario::{Control, Scenario};
use fairweir_sim::engine;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

fn flow(congestion_control: &str, rtt: &str, keys: &str) -> String {
    format!(
        "[[flow]]\ngroup = \"all\"\ncongestion_control = \"{congestion_control}\"\n\
         rtt = \"{rtt}\"\n{keys}\n"
    )
}

fn bulk(congestion_control: &str, rtt: &str, keys: &str) -> String {
    flow(congestion_control, rtt, &format!("kind = \"bulk\"\n{keys}"))
}

/// Plays flows under a policed rate with every seed; the daemon's hash chooses their queues.
fn play(what: &str, rate: &str, seconds: u64, flows: &[String]) -> Vec<Policed> {
    play_shared(what, rate, seconds, flows, "")
}

/// The same with a policy.
fn play_shared(
    what: &str,
    rate: &str,
    seconds: u64,
    flows: &[String],
    policy: &str,
) -> Vec<Policed> {
    let text = format!(
        "version = 1\nname = \"x\"\nduration = \"{seconds}s\"\nsettle = \"0s\"\n\
         [link]\nrate = \"2gbit\"\n[[group]]\nname = \"all\"\nweight = 1\n{}\
         [[police]]\nname = \"home\"\nrate = \"{rate}\"\nqueue_by = \"hash\"\n{policy}",
        flows.concat(),
    );
    let scenario = Scenario::parse(&text, "x").unwrap_or_else(|e| panic!("{e}\n{text}"));
    let one = |seed| {
        let cancel = AtomicBool::new(false);
        let report = engine::play(&scenario, Control::None, seed, &|_| {}, &cancel).unwrap();
        report.summary.policed.into_iter().next().unwrap()
    };
    let all: Vec<Policed> = SEEDS.map(one).collect();
    let ratios: Vec<f64> = all.iter().map(ratio).collect();
    println!("{what}: {ratios:?} of the rate");
    all
}

/// The rate that passed, divided by the plan's rate.
fn ratio(policed: &Policed) -> f64 {
    policed.rate_ratio.unwrap()
}

/// The rate that passed in the second from `from` on, divided by the plan's; a second is four quarters.
fn second(policed: &Policed, from: f64) -> f64 {
    let first = (4.0 * from) as usize;
    policed.over_time[first..first + 4].iter().sum::<f64>() / 4.0
}

/// A call or a film beside a download: its queue is busy for moments, and these must not count as
/// half of the rate.
#[test]
fn what_a_slow_sender_leaves_goes_to_the_others() {
    for (congestion_control, least) in [("cubic", 0.97), ("reno", 0.90), ("bbr", 0.97)] {
        for slow in ["400kbit", "5mbit"] {
            let slow = bulk("cubic", "20ms", &format!("demand = \"{slow}\""));
            let flows = [slow, bulk(congestion_control, "31ms", "")];
            for policed in play(congestion_control, "20mbit", 30, &flows) {
                let ratio = ratio(&policed);
                assert!(ratio >= least, "{congestion_control}: {ratio:.3}");
            }
        }
    }
}

/// Also where a window is only a few packets. Marks replace drops as signals; packets that overflow
/// in slow start are dropped all the same.
#[test]
fn connections_with_ecn_are_marked_and_have_the_rate() {
    for (rate, rtt) in
        [("1500kbit", "20ms"), ("3mbit", "40ms"), ("20mbit", "5ms"), ("50mbit", "40ms")]
    {
        for congestion_control in ["reno", "cubic"] {
            let flows = |keys| [bulk(congestion_control, rtt, keys), bulk("cubic", rtt, keys)];
            let what = format!("{congestion_control} {rate} {rtt}");
            let with = play(&format!("{what}, ECN"), rate, 40, &flows("ecn = true"));
            for (with, without) in with.iter().zip(play(&what, rate, 40, &flows(""))) {
                println!("marked {}, dropped {} {}", with.marked, with.dropped, without.dropped);
                assert_eq!(without.marked, 0);
                assert!(with.marked > 20, "{what}: {} marked", with.marked);
                assert!((ratio(with) - ratio(&without)).abs() < 0.03, "{what}");
            }
        }
    }
}

/// Round trips that do not begin at the same time: a window has three bursts of one flow, the next has two.
#[test]
fn flows_whose_bursts_share_windows_have_the_rate() {
    for count in [2, 4] {
        let start = |n| format!("start = \"{}ms\"", 13 * n);
        let flows: Vec<String> = (0..count).map(|n| bulk("reno", "44ms", &start(n))).collect();
        for policed in play(&format!("{count} Reno"), "40mbit", 40, &flows) {
            let mean = mean(&policed, &(10..40));
            println!("from 10 s {mean:.3}");
            assert!(mean >= 0.98, "{mean:.3}");
        }
    }
}

#[test]
fn who_ends_is_made_up_for_within_two_seconds() {
    for (congestion_control, rate) in [("cubic", "10mbit"), ("cubic", "50mbit"), ("bbr", "50mbit")]
    {
        let flows = ["", "stop = \"20s\""].map(|stop| bulk(congestion_control, "10ms", stop));
        for policed in play(congestion_control, rate, 24, &flows) {
            let ratio = second(&policed, 21.5);
            assert!(ratio >= 0.9, "{congestion_control} at {rate}: {ratio:.3}");
        }
    }
}

#[test]
fn flows_that_come_and_go_leave_the_rate_used() {
    for congestion_control in ["reno", "cubic", "bbr"] {
        let ends = |n: u64, start: u64, seconds: u64| {
            let keys = format!("start = \"{start}s\"\nstop = \"{}s\"", start + seconds);
            bulk(congestion_control, if n.is_multiple_of(2) { "10ms" } else { "5ms" }, &keys)
        };
        let steady = bulk(congestion_control, "10ms", "");
        let beside: Vec<String> =
            std::iter::once(steady).chain((0..6).map(|n| ends(n, 4 + 6 * n, 2))).collect();
        let by_turns: Vec<String> = (0..11).map(|n| ends(n, 3 * n, 7)).collect();
        for (what, flows) in [("2 of 6 s beside one", beside), ("an end every 3 s", by_turns)] {
            for policed in play(&format!("{congestion_control}, {what}"), "50mbit", 37, &flows) {
                let ratio = ratio(&policed);
                assert!((0.975..1.03).contains(&ratio), "{congestion_control}, {what}: {ratio}");
            }
        }
    }
}

#[test]
fn short_and_long_downloads_use_the_rate_together() {
    for (congestion_control, rtt) in [("cubic", "10ms"), ("bbr", "25ms")] {
        let short = "kind = \"short\"\nrate_per_s = 20\nsize = \"150kB\"\nsigma = 0.5";
        let mut flows = vec![bulk(congestion_control, rtt, ""); 3];
        flows.push(flow(congestion_control, rtt, short));
        for policed in play(congestion_control, "50mbit", 30, &flows) {
            let ratio = ratio(&policed);
            assert!((0.975..1.025).contains(&ratio), "{congestion_control}: {ratio}");
        }
    }
}

#[test]
fn a_class_that_was_starved_is_back_within_two_seconds() {
    let policy = "share = \"priority\"\n[[police.class]]\nname = \"first\"\nflows = [0]\n\
                  [[police.class]]\nname = \"rest\"\nqueues = 4\n";
    for (rate, congestion_control) in [("10mbit", "cubic"), ("50mbit", "bbr"), ("50mbit", "cubic")]
    {
        let first = bulk(congestion_control, "10ms", "start = \"5s\"\nstop = \"17s\"");
        let rest = bulk(congestion_control, "10ms", "");
        let flows = [first, rest.clone(), rest];
        let what = format!("starved {congestion_control}, {rate}");
        for policed in play_shared(&what, rate, 24, &flows, policy) {
            let (beside, after) = (second(&policed, 12.0), second(&policed, 19.25));
            assert!((0.95..1.1).contains(&beside), "{what}: {beside} beside the first");
            assert!(after >= 0.9, "{what}: {after} after it");
        }
    }
}

/// By their hashes alone most of sixteen flows would share one of sixteen queues, and get half a share.
#[test]
fn up_to_24_flows_have_equal_shares_whatever_their_hashes_are() {
    // Over twelve seeds the values for bbr are 0.960 to 0.997.
    for (rate, rtt, congestion_control, connections, least) in [
        ("1500kbit", "50ms", "cubic", 12, 0.97),
        ("10mbit", "50ms", "cubic", 16, 0.97),
        ("10mbit", "50ms", "cubic", 24, 0.97),
        ("50mbit", "10ms", "bbr", 24, 0.95),
    ] {
        let what = format!("{connections} {congestion_control}, {rate}, {rtt}");
        let start = |n| bulk(congestion_control, rtt, &format!("start = \"{}ms\"", 7 * n));
        let flows: Vec<String> = (0..connections).map(start).collect();
        for policed in play(&what, rate, 40, &flows) {
            let (ratio, jain) = (ratio(&policed), policed.jain.unwrap());
            println!("{what}: Jain {jain:.3}");
            assert!(
                (0.97..1.07).contains(&ratio) && jain >= least,
                "{what}: {ratio:.3}, {jain:.3}"
            );
        }
    }
}

/// As from a cache at the ISP. Where a packet takes longer than the round trip, immediate
/// retransmissions are lost too, and all that passes comes after timeouts.
#[test]
fn short_round_trips_reach_the_rate() {
    for (rate, rtt, congestion_control, connections) in [
        ("5mbit", "500us", "cubic", 1),
        ("5mbit", "1ms", "reno", 1),
        ("20mbit", "500us", "bbr", 1),
        ("20mbit", "1ms", "bbr", 4),
        ("50mbit", "500us", "cubic", 4),
        ("100mbit", "1ms", "cubic", 4),
    ] {
        let what = format!("{connections} {congestion_control}, {rate}, {rtt}");
        let flows = vec![bulk(congestion_control, rtt, ""); connections];
        for policed in play(&what, rate, 24, &flows) {
            let ratio = ratio(&policed);
            assert!((0.97..1.1).contains(&ratio), "{what}: {ratio}");
        }
    }
}

/// The gate: floods that are on and off by turns, with all the bytes that they are forgiven.
#[test]
fn no_quarter_of_a_second_has_much_more_than_twice_the_rate() {
    let flood = |n: u64| {
        let keys = (0..20).map(|turn| {
            let at = 1_000 + 700 * turn + 37 * n;
            format!(
                "{{ at = \"{at}ms\", demand = \"{}\" }}",
                ["30mbit", "1kbit"][turn as usize % 2]
            )
        });
        let steps = keys.collect::<Vec<_>>().join(", ");
        format!(
            "[[flow]]\ngroup = \"all\"\nkind = \"udp\"\ndemand = \"1kbit\"\nsteps = [{steps}]\n"
        )
    };
    for policed in play("floods", "20mbit", 18, &[0, 1, 2].map(flood)) {
        let most = policed.steady.unwrap().max;
        assert!(most <= 2.4, "{most}");
    }
}

/// Four homes on one link: at first without guarantees, then two with guarantees, then others; one
/// is away for a while.
#[test]
fn members_of_a_segment_have_their_guarantees_and_share_the_rest() {
    let homes = [
        ("cubic", "[{ at = \"10s\", rate = \"16mbit\" }, { at = \"30s\", rate = \"0kbit\" }]"),
        ("reno", "[{ at = \"10s\", rate = \"4mbit\" }, { at = \"30s\", rate = \"16mbit\" }]"),
        ("bbr", "[]"),
        ("cubic", "[]"),
    ];
    let flows: Vec<String> = homes
        .iter()
        .enumerate()
        .flat_map(|(n, (congestion_control, _))| {
            let away = if n == 3 { "start = \"1s\"\nstop = \"38s\"" } else { "" };
            [bulk(congestion_control, "20ms", away), bulk(congestion_control, "30ms", away)]
        })
        .collect();
    let points: Vec<String> = homes
        .iter()
        .enumerate()
        .map(|(n, (_, guarantees))| {
            format!(
                "[[police]]\nname = \"home{n}\"\nrate = \"40mbit\"\nqueue_by = \"hash\"\n\
                 flows = [{}, {}]\nguarantees = {guarantees}\n",
                2 * n,
                2 * n + 1
            )
        })
        .collect();
    for seed in SEEDS {
        let all = play_segment("40mbit", 50, &flows, &points, seed);
        for (from, to, guaranteed, homes) in [
            (4, 10, [0.0; 4], 4),
            (12, 30, [0.4, 0.1, 0.0, 0.0], 4),
            (32, 38, [0.0, 0.4, 0.0, 0.0], 4),
            (41, 50, [0.0, 0.4, 0.0, 0.0], 3),
        ] {
            let shares = Shares::of(&all[..homes], &guaranteed[..homes], from..to);
            shares.check(&Shares { kept: 0.95, least: 0.65, mean: 0.98, jain: 0.97, total: 0.98 });
        }
    }
}

/// A hundred subscribers, most without a guarantee; the guarantees move to others every 12 s. Each has one
/// connection, so a single play shows chance: Jain's index of its second turn is 0.94 ± 0.04, and in 9 turns of
/// 240 some member has less than 0.98 of its guarantee (80 plays). So means are judged, also of the worst members.
#[test]
fn a_hundred_members_have_guarantees_that_are_redrawn() {
    let all = Redrawn { count: 100, flows: 1, rate_mbit: 200, turn_s: 12, settle_s: 5 };
    let plays = std::env::var("POLICE_PLAYS").map_or(8, |plays| plays.parse().unwrap());
    let guaranteed_mbit = |turn, n| match (n * 7 + turn * 13) % 25 {
        0 => 20.0,
        1 => 10.0,
        2 => 4.0,
        _ => 0.0,
    };
    let redraw = |seed| redraw(&all, seed, guaranteed_mbit);
    let turns: Vec<Shares> = (1..=plays).flat_map(redraw).collect();
    let least = |of: fn(&Shares) -> f64| turns.iter().map(of).fold(f64::INFINITY, f64::min);
    let mean = |of: fn(&Shares) -> f64| turns.iter().map(of).sum::<f64>() / turns.len() as f64;
    let found = Shares {
        kept: mean(|s| s.kept),
        least: least(|s| s.least),
        mean: mean(|s| s.mean),
        jain: mean(|s| s.jain),
        total: least(|s| s.total),
    };
    println!("{} turns: {found:.3?}", turns.len());
    found.check(&Shares { kept: 0.95, least: 0.65, mean: 0.98, jain: 0.97, total: 0.0 });
}

/// Guarantees of 0 to 40 Mbit/s, together 770 Mbit/s, redrawn each minute. Takes minutes.
#[test]
#[ignore = "long: 15 million packets"]
fn five_hundred_members_of_a_gigabit_have_guarantees_that_are_redrawn() {
    for (flows, kept) in [(1, 0.9), (2, 0.92), (4, 0.95)] {
        let all = Redrawn { count: 500, flows, rate_mbit: 1_000, turn_s: 60, settle_s: 10 };
        let least = Shares { kept, least: kept - 0.3, mean: 0.98, jain: 0.97, total: 0.0 };
        let turns = redraw(&all, 1, |turn, n| match (n * 7 + turn * 13) % 50 {
            0 => 40.0,
            1 => 20.0,
            2 => 10.0,
            3 => 5.0,
            4 => 2.0,
            _ => 0.0,
        });
        turns.iter().for_each(|turn| turn.check(&least));
    }
}

/// Members of a segment with plans of 100 Mbit/s.
struct Redrawn {
    count: u64,
    /// Flows of each member, with the same congestion control and round trip.
    flows: u64,
    rate_mbit: u64,
    /// Time for which guarantees stay.
    turn_s: u64,
    /// Time to settle: Reno needs 4 s to grow to a guarantee of 20 Mbit/s.
    settle_s: u64,
}

/// Plays three turns of guarantees, in Mbit/s by turn and member; returns the shares of each turn.
/// A tenth of the members wants less than its share, and a tenth comes and goes.
fn redraw(all: &Redrawn, seed: u64, guaranteed_mbit: impl Fn(u64, u64) -> f64) -> [Shares; 3] {
    let Redrawn { count, flows: each, rate_mbit, turn_s, settle_s } = *all;
    let flows: Vec<String> = (0..count * each)
        .map(|flow_at| {
            let n = flow_at / each;
            let congestion_control = ["cubic", "cubic", "reno", "bbr"][n as usize % 4];
            let rtt = format!("{}ms", 5 + n * 37 % 45);
            match n % 10 {
                8 => flow(congestion_control, &rtt, "kind = \"bulk\"\ndemand = \"500kbit\""),
                9 => {
                    let keys = format!("start = \"{}s\"\nstop = \"{}s\"", n % 7, 20 + n % 13);
                    bulk(congestion_control, &rtt, &keys)
                }
                _ => bulk(congestion_control, &rtt, ""),
            }
        })
        .collect();
    let points: Vec<String> = (0..count)
        .map(|n| {
            let step = |turn| {
                let kbit = 1_000.0 * guaranteed_mbit(turn, n);
                format!("{{ at = \"{}s\", rate = \"{kbit:.0}kbit\" }}", 1 + turn_s * turn)
            };
            let steps: Vec<String> = (0..3).map(step).collect();
            let own: Vec<u64> = (n * each..(n + 1) * each).collect();
            format!(
                "[[police]]\nname = \"home{n}\"\nrate = \"100mbit\"\nqueue_by = \"hash\"\nflows = {own:?}\n\
                 guarantees = [{}]\n",
                steps.join(", ")
            )
        })
        .collect();
    let rate = format!("{rate_mbit}mbit");
    let all = play_segment(&rate, 1 + 3 * turn_s, &flows, &points, seed);
    [0, 1, 2].map(|turn| {
        let endless: Vec<u64> = (0..count).filter(|n| n % 10 < 8).collect();
        let members: Vec<Policed> = endless.iter().map(|n| all[*n as usize].clone()).collect();
        // As a part of the plan's rate.
        let of_plan = |n: &u64| guaranteed_mbit(turn, *n) / 100.0;
        let guarantees: Vec<f64> = endless.iter().map(of_plan).collect();
        let from = (1 + turn_s * turn + settle_s) as usize;
        let span = from..(1 + turn_s * (turn + 1)) as usize;
        let of_all = |p: &Policed| mean(p, &span);
        let total = 100.0 * all.iter().map(of_all).sum::<f64>() / rate_mbit as f64;
        println!("seed {seed}, turn {turn}: total {total:.3}");
        assert!((0.98..1.02).contains(&total), "{total}");
        Shares::of(&members, &guarantees, span)
    })
}

/// The rate that passed in some seconds, divided by the plan's rate.
fn mean(policed: &Policed, span: &std::ops::Range<usize>) -> f64 {
    policed.over_time[4 * span.start..4 * span.end].iter().sum::<f64>() / 4.0 / span.len() as f64
}

/// How well members have their guarantees and share the rest.
#[derive(Debug)]
struct Shares {
    /// The part of the seconds in which a guarantee was kept within 2 %.
    kept: f64,
    /// The worst second of a member, divided by its guarantee.
    least: f64,
    /// The worst mean of a member, divided by its guarantee.
    mean: f64,
    /// Jain's index of the members' rates beyond their guarantees.
    jain: f64,
    /// Sum of all members' rates, divided by a plan's rate.
    total: f64,
}

impl Shares {
    fn of(members: &[Policed], guaranteed: &[f64], span: std::ops::Range<usize>) -> Shares {
        let means: Vec<f64> = members.iter().map(|p| mean(p, &span)).collect();
        let rest: Vec<f64> = means.iter().zip(guaranteed).map(|(mean, g)| mean - g).collect();
        let (sum, squares) = (rest.iter().sum::<f64>(), rest.iter().map(|r| r * r).sum::<f64>());
        let seconds = |(p, g): (&Policed, &f64)| -> Vec<f64> {
            let of_guarantee = |at| second(p, at as f64) / g;
            if *g > 0.0 { span.clone().map(of_guarantee).collect() } else { Vec::new() }
        };
        let seconds: Vec<f64> = members.iter().zip(guaranteed).flat_map(seconds).collect();
        let kept = seconds.iter().filter(|part| **part >= 0.98).count() as f64;
        let of_guarantee = means.iter().zip(guaranteed).filter(|(_, g)| **g > 0.0);
        let shares = Shares {
            kept: if seconds.is_empty() { 1.0 } else { kept / seconds.len() as f64 },
            least: seconds.iter().copied().fold(1.0, f64::min),
            mean: of_guarantee.map(|(mean, g)| mean / g).fold(1.0, f64::min),
            jain: sum * sum / squares / rest.len() as f64,
            total: means.iter().sum(),
        };
        println!("{span:?}: {shares:.3?}");
        shares
    }

    fn check(&self, least: &Shares) {
        let values = |s: &Shares| [s.kept, s.least, s.mean, s.jain, s.total];
        let holds = values(self).iter().zip(values(least)).all(|(value, least)| *value >= least);
        assert!(holds, "{self:.3?}, wanted {least:?}");
    }
}

/// Plays the members of a segment.
fn play_segment(
    rate: &str,
    seconds: u64,
    flows: &[String],
    points: &[String],
    seed: u64,
) -> Vec<Policed> {
    let text = format!(
        "version = 1\nname = \"x\"\nduration = \"{seconds}s\"\nsettle = \"0s\"\n\
         [link]\nrate = \"10gbit\"\n[[group]]\nname = \"all\"\nweight = 1\n{}\
         [segment]\nrate = \"{rate}\"\n{}",
        flows.concat(),
        points.concat(),
    );
    let scenario = Scenario::parse(&text, "x").unwrap_or_else(|e| panic!("{e}\n{text}"));
    let cancel = AtomicBool::new(false);
    engine::play(&scenario, Control::None, seed, &|_| {}, &cancel).unwrap().summary.policed
}

/// A call beside more flows than queues; it begins with them or when the flows in all queues are known.
#[test]
fn a_call_among_many_flows_loses_nothing() {
    for (congestion_control, count) in [("cubic", 32), ("cubic", 64), ("reno", 64), ("bbr", 64)] {
        for start in ["0s", "5s"] {
            let thin = |kind| {
                format!("[[flow]]\ngroup = \"all\"\nrtt = \"40ms\"\nstart = \"{start}\"\n{kind}\n")
            };
            let small = thin("kind = \"ping\"\ninterval = \"20ms\"");
            let full = thin("kind = \"udp\"\ndemand = \"100kbit\"");
            let start = |n| format!("start = \"{}ms\"", 7 * n);
            let mut flows = vec![small, full];
            flows.extend((0..count).map(|n| bulk(congestion_control, "40ms", &start(n))));
            for policed in play(&format!("{count} {congestion_control}"), "20mbit", 30, &flows) {
                let [small, full] = [0, 1].map(|n| policed.flows[n].loss.unwrap_or(0.0));
                println!("lost {small:.4} and {full:.4}");
                assert!(small <= 0.003, "{small:.4} of {count} {congestion_control}");
                // Six of its packets may be lost until the flow is known.
                assert!(full <= 0.03, "{full:.4} of full packets");
                assert!((0.98..1.02).contains(&ratio(&policed)));
            }
        }
    }
}
