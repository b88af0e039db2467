use std::cell::Cell;

use super::*;

/// The verdict on a claim whose runs have these results: h(eld), f(ailed), v(oid).
fn verdict(rule: Rule, runs: &str) -> (Verdict, usize) {
    let run = |letter| Run {
        result: match letter {
            'h' => Outcome::Held,
            'f' => Outcome::Failed(Box::new("no")),
            _ => Outcome::Void,
        },
        why: String::new(),
        seconds: 0.0,
        standstill: Duration::ZERO,
        steal: 0.0,
        lateness_ms: None,
    };
    let runs: Vec<Run> = runs.chars().map(run).collect();
    let needed = (1..=runs.len()).find(|&n| rule.verdict(&runs[..n]) != Verdict::NotJudged);
    let needed = needed.unwrap_or(runs.len());
    (rule.verdict(&runs[..needed]), needed)
}

#[test]
fn void_runs_count_neither_way() {
    use Verdict::{Failed, Held, NotJudged};
    for (runs, once, two_of_three) in [
        ("hff", (Held, 1), (Held, 1)),
        ("vvh", (Held, 3), (Held, 3)),
        ("fhh", (Failed, 1), (Held, 3)),
        ("fvhvh", (Failed, 1), (Held, 5)),
        ("fhf", (Failed, 1), (Failed, 3)),
        ("vfvf", (Failed, 2), (Failed, 4)),
        ("vvv", (NotJudged, 3), (NotJudged, 3)),
        ("fvv", (Failed, 1), (NotJudged, 3)),
    ] {
        assert_eq!(verdict(Rule::Once, runs), once, "{runs} once");
        assert_eq!(verdict(Rule::TwoOfThree, runs), two_of_three, "{runs} by two of three");
    }
    for (runs, one_of_four) in
        [("ffvh", (Held, 4)), ("fffh", (Held, 4)), ("fvffvf", (Failed, 6)), ("fff", (NotJudged, 3))]
    {
        assert_eq!(verdict(Rule::OneOfFour, runs), one_of_four, "{runs} by one of four");
    }
}

/// Sums over all sequences of three runs of a claim that holds with probability p.
#[test]
fn the_probability_to_pass_is_the_one_that_is_stated() {
    for p in [0.1, 0.5, 0.8, 1.0_f64] {
        let mut passed = 0.0;
        for bits in 0..8_u32 {
            let holds = |n: u32| bits >> n & 1 == 1;
            let runs: String = (0..3).map(|n| if holds(n) { 'h' } else { 'f' }).collect();
            if verdict(Rule::TwoOfThree, &runs).0 == Verdict::Held {
                passed += (0..3).map(|n| if holds(n) { p } else { 1.0 - p }).product::<f64>();
            }
        }
        assert!((passed - (p + (1.0 - p) * p * p)).abs() < 1e-12, "{p}: {passed}");
    }
}

/// A run that calls itself void is not judged, whatever its outcome would be.
#[test]
fn validity_comes_before_the_outcome() {
    let plays = Cell::new(0);
    let run = play(
        || {
            plays.set(plays.get() + 1);
            record_lateness(0.5);
            void("late")
        },
        false,
    );
    assert!(matches!(run.result, Outcome::Void));
    assert_eq!((run.lateness_ms, plays.get()), (Some(0.5), 1));
    assert!(matches!(play(|| {}, true).result, Outcome::Void));
    assert!(matches!(play(|| panic!("no"), true).result, Outcome::Void));
}
