//! A choke point serves by weight, or strictly in the order of the groups.

use std::sync::atomic::AtomicBool;

use fairweir_scenario::{Control, Scenario};
use fairweir_sim::engine;

/// Rates of two greedy flows of equal weight behind a choke point, in Mbit/s.
fn rates(strict_priority: bool) -> Vec<f64> {
    let text = format!(
        "version = 1\nname = \"x\"\nduration = \"20s\"\n\
         group = [{{ name = \"a\", weight = 1 }}, {{ name = \"b\", weight = 1 }}]\n\
         flow = [{{ group = \"a\", kind = \"bulk\" }}, {{ group = \"b\", kind = \"bulk\" }}]\n\
         [link]\nrate = \"12mbit\"\n[control]\nstrict_priority = {strict_priority}\n"
    );
    let scenario = Scenario::parse(&text, "x").unwrap();
    let cancel = AtomicBool::new(false);
    let report = engine::play(&scenario, Control::Chokepoint, 1, &|_| {}, &cancel).unwrap();
    report.summary.groups.iter().map(|g| g.rate.as_mbit_f64()).collect()
}

#[test]
fn without_it_equal_weights_get_equal_rates() {
    let rates = rates(false);
    assert!((rates[0] / rates[1] - 1.0).abs() < 0.1, "{rates:?}");
}

#[test]
fn with_it_the_first_group_takes_all_that_the_choke_point_lets_through() {
    let rates = rates(true);
    assert!(rates[0] > 9.0 && rates[1] < 1.0, "{rates:?}");
    assert!(rates[0] + rates[1] < 10.3, "a choke point of 10 Mbit/s: {rates:?}");
}
