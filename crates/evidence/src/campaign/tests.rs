use super::score::{Bound, failures};
use super::*;
use crate::simulator::Simulator;

/// A case with this text, treated as one of this class.
fn case(class: Class, text: &str) -> Case {
    Case { seed: 1, class, table: text.parse().unwrap(), trace: None }
}

fn outcomes(case: &Case, control: Control) -> Vec<Outcome> {
    play(std::slice::from_ref(case), &[control], None, &Simulator).unwrap()
}

fn of(outcomes: &[Outcome], control: Control) -> &Outcome {
    outcomes.iter().find(|o| o.control == control).unwrap()
}

const TWO: &str = r#"
version = 1
name = "two"
duration = "20s"
group = [{ name = "a", weight = 4 }, { name = "b", weight = 1 }]
flow = [{ group = "a", kind = "bulk" }, { group = "b", kind = "bulk", connections = 4 }]
[link]
rate = "10mbit"
"#;

#[test]
fn a_reference_is_right_and_without_control_the_shares_are_not() {
    let all = outcomes(&case(Class::Plain, TWO), Control::Static);
    let [wfq, none, fixed] = &all[..] else { panic!("{all:?}") };
    assert_eq!(
        (wfq.control, none.control, fixed.control),
        (Control::Wfq, Control::None, Control::Static)
    );
    assert!(wfq.score.error.unwrap() < 0.01, "{wfq:?}");
    assert_eq!((wfq.score.used_by_wfq, none.score.total_by_none), (Some(1.0), Some(1.0)));
    assert_eq!((wfq.score.events, wfq.score.events_right), (1, 1));
    // Four connections compete with one that has a weight of 4.
    assert!(none.score.error.unwrap() > 0.3, "{none:?}");
    assert_eq!(none.score.events_right, 0);
    let broken: Vec<Bound> = none.failures.iter().map(|f| f.bound).collect();
    assert!(broken.contains(&Bound::Error) && broken.contains(&Bound::Right), "{broken:?}");
    assert!(none.badness() > 0.5 && wfq.badness() < none.badness());
}

#[test]
fn a_host_beside_a_neighbour_is_scored_by_its_own_groups() {
    let text = TWO
        .replace("weight = 4 }", "weight = 4, device = \"host\" }")
        .replace(
            "weight = 1 }",
            "weight = 1, device = \"host\" }, { name = \"c\", weight = 1, device = \"other\" }",
        )
        .replace("connections = 4 }", "connections = 4 }, { group = \"c\", kind = \"bulk\" }")
        + "[[device]]\nname = \"host\"\nweight = 1\ncontrol = \"fairweir\"\n\
           [[device]]\nname = \"other\"\nweight = 1\n";
    let case = case(Class::Neighbours, &text);
    assert_eq!(case.tested(), [true, false]);
    let crab = case.played(Control::Crab).unwrap();
    let controls: Vec<Control> = crab.scenario.devices.iter().map(|d| d.control).collect();
    assert_eq!((crab.control, controls), (Control::None, vec![Control::Crab, Control::None]));
    let all = outcomes(&case, Control::None);
    let (wfq, none) = (of(&all, Control::Wfq), of(&all, Control::None));
    assert!(wfq.score.error.unwrap() < 0.01 && none.score.error.unwrap() > 0.3, "{all:?}");
    // By weight the host gets 5 of 6 parts; by connections it gets 5 of 6 as well.
    assert!((0.8..1.4).contains(&wfq.score.total_by_none.unwrap()), "{wfq:?}");
    assert_eq!(wfq.score.events, 0, "the shares among devices are not the host's");
}

#[test]
fn behind_a_policer_the_reference_is_a_link_of_the_plans_rate() {
    let text = TWO.replace("10mbit", "1gbit")
        + "[[police]]\nname = \"plan\"\nrate = \"10mbit\"\nalgorithm = \"token-bucket\"\n";
    let case = case(Class::Policed, &text);
    let wfq = case.played(Control::Wfq).unwrap().scenario;
    assert_eq!(wfq.link.capacity.nominal().as_mbit_f64(), 10.0);
    assert!(wfq.police.is_empty());
    let all = outcomes(&case, Control::None);
    let (wfq, none) = (of(&all, Control::Wfq), of(&all, Control::None));
    assert!(wfq.score.error.unwrap() < 0.01 && none.score.error.unwrap() > 0.2, "{all:?}");
    assert!((0.8..1.05).contains(&none.score.used.unwrap()), "{none:?}");
}

#[test]
fn failures_are_those_of_the_numbers() {
    let fine = score::Score {
        error: Some(0.01),
        reference_error: Some(0.005),
        excess: Some(0.01),
        used_by_wfq: Some(0.99),
        total_by_none: Some(1.0),
        events: 3,
        events_right: 3,
        queue_mean_ms: Some(5.0),
        ..score::Score::default()
    };
    let broken = |class, score: &score::Score| -> Vec<Bound> {
        failures(class, score).iter().map(|f| f.bound).collect()
    };
    assert_eq!(broken(Class::Plain, &fine), []);
    let wrong = score::Score { excess: Some(0.2), ..fine.clone() };
    assert_eq!(broken(Class::Plain, &wrong), [Bound::Error]);
    let unreachable = score::Score { reference_error: Some(0.2), ..wrong.clone() };
    assert_eq!(broken(Class::Plain, &unreachable), []);
    let harm = score::Score { used_by_wfq: Some(0.3), total_by_none: Some(0.5), ..wrong };
    assert_eq!(broken(Class::Plain, &harm), [Bound::Used, Bound::Total, Bound::Error]);
    let late = score::Score { events_right: 0, ..fine.clone() };
    assert!((failures(Class::Plain, &late)[0].amount - 0.2).abs() < 1e-9);
    let queue = score::Score { queue_mean_ms: Some(50.0), ping_p95_ms: Some(90.0), ..fine };
    assert_eq!(broken(Class::Neighbours, &queue), []);
    assert_eq!(broken(Class::Call, &queue), [Bound::Ping, Bound::Queue]);
}

#[test]
fn tables_clusters_and_targets_tell_of_the_worst() {
    let all = outcomes(&case(Class::Plain, TWO), Control::None);
    let none = vec![of(&all, Control::None)];
    let rows = summary::distribution(&none);
    assert_eq!(
        rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(),
        ["class", "plain", "all"]
    );
    assert!(rows[1][2].ends_with("(1)"), "{rows:?}");
    let clusters = summary::clusters(&all[1..]);
    assert!(clusters.iter().all(|c| (c.class, c.cases, c.of) == (Class::Plain, 1, 1)));
    let worst = clusters.iter().find(|c| c.bound == Bound::Error).unwrap();
    assert_eq!(worst.worst_seed, 1);
    let targets = summary::targets(Control::None, &all);
    let target = |what: &str| targets.iter().find(|t| t.what == what).unwrap();
    assert_eq!(target("error, median").met, Some(false));
    assert_eq!(target("host total by none's, p10").met, Some(true));
    assert_eq!(target("video by wfq's, median").met, None);
}

#[test]
fn quantiles_are_values_that_were_found() {
    let outcome = |seed, error| Outcome {
        seed,
        class: Class::Plain,
        control: Control::None,
        bound: 0.0,
        score: score::Score { error, ..score::Score::default() },
        failures: Vec::new(),
    };
    let all: Vec<Outcome> = (1..=10).map(|n| outcome(n, Some(n as f64))).collect();
    let values = summary::Values::of(all.iter().chain([&outcome(11, None)]), |s| s.error);
    assert_eq!(
        (values.len(), values.quantile(0.5), values.quantile(0.9)),
        (10, Some(5.0), Some(9.0))
    );
    assert_eq!((values.least(), values.most()), (Some((1.0, 1)), Some((10.0, 10))));
    assert_eq!(values.cumulative()[4], (5.0, 0.5));
}
