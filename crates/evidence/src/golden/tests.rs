use std::collections::BTreeMap;

use fairweir_core::units::Span;
use fairweir_scenario::Control;

use super::*;
use crate::campaign::Class;
use crate::simulator::Simulator;

const GOLDEN: &str = include_str!("../../golden.txt");

fn quiet(_: usize, _: usize) {}

/// The first lines of the golden that are scenarios of the campaign.
fn some(count: usize) -> Vec<Line> {
    parse(GOLDEN).unwrap().into_iter().take(count).collect()
}

#[test]
fn the_simulator_gives_the_results_of_the_golden() {
    let golden = parse(GOLDEN).unwrap();
    compare(&golden, None, &Simulator, quiet).unwrap_or_else(|e| panic!("golden.txt: {e:#}"));
}

#[test]
fn the_golden_has_three_scenarios_of_every_class_and_the_figures() {
    let golden = parse(GOLDEN).unwrap();
    let mut of: BTreeMap<Class, usize> = BTreeMap::new();
    let mut figures: BTreeMap<&str, usize> = BTreeMap::new();
    for line in &golden {
        match &line.subject {
            Subject::Campaign(drawn) if drawn.control == Control::Fairweir => {
                *of.entry(campaign::class(drawn.seed)).or_default() += 1;
            }
            Subject::Campaign(_) => {}
            Subject::Figure { collection, .. } => *figures.entry(collection).or_default() += 1,
        }
    }
    for class in Class::ALL {
        assert!(of.get(class).is_some_and(|&count| count >= 3), "{class}: {of:?}");
    }
    assert!(of.values().sum::<usize>() >= 60, "{of:?}");
    assert_eq!(figures, BTreeMap::from([("control", 10), ("crab", 13)]));
}

#[test]
fn a_difference_names_the_run_and_both_results() {
    let mut golden = some(3);
    golden[1].hash = golden[1].hash.map(|hash| hash ^ 1);
    golden[1].summary = "late: error 0.9".to_owned();
    let error = compare(&golden, None, &Simulator, quiet).unwrap_err().to_string();
    let now = &some(2)[1];
    for part in [&format!("{} differs", now.subject), "late: error 0.9", &now.result()] {
        assert!(error.contains(part), "{part}: {error}");
    }
    golden[1] = Line::unwritten(now.subject.clone());
    let error = compare(&golden, None, &Simulator, quiet).unwrap_err().to_string();
    assert!(error.contains("not written yet"), "{error}");
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let golden = some(4);
    let [one, three] = [1, 3].map(|n| play(&golden, Some(n), &Simulator, quiet).unwrap());
    assert_eq!((&one, &three), (&golden, &golden));
}

#[test]
fn a_golden_reads_back_as_it_was_written() {
    let golden = parse(GOLDEN).unwrap();
    let lines: String = golden.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(format!("{HEAD}{lines}"), GOLDEN);
    let added = "campaign 17/90s crab".parse::<Line>().unwrap();
    let duration = Some(Span::secs(90));
    let drawn = Drawn { seed: 17, duration, control: Control::Crab };
    assert_eq!(added, Line::unwritten(Subject::Campaign(drawn)));
    for wrong in ["campaign 17", "campaign x fairweir", "campaign 1 best", "figures crab", "1 2 3"]
    {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    assert!(parse("# nothing\n").is_err());
}
