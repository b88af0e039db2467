//! Two sites that load from the same servers: only `web:` rules can tell them apart.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use fairweir_config::Text;
use fairweir_config::file::{SCENARIO, TRACE};
use fairweir_scenario::{Control, Scenario};
use fairweir_sim::engine::play;

/// The bytes of the first site for each byte of the second.
fn ratio(name: &str, seed: u64, overrides: &[&str]) -> f64 {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name);
    let text = Text::read(&path, &SCENARIO).unwrap();
    let overrides: Vec<_> = overrides.iter().map(|o| o.parse().unwrap()).collect();
    let load = |path: &Path| Text::read(path, &TRACE);
    let scenario = Scenario::parse_with(&text, &overrides, &load).unwrap();
    let report =
        play(&scenario, Control::Fairweir, seed, &|_| {}, &AtomicBool::new(false)).unwrap();
    let bytes = |i: usize| report.summary.groups[i].rate.as_bps() as f64;
    println!("{name} {overrides:?} seed {seed}: {:.3}", bytes(0) / bytes(1));
    bytes(0) / bytes(1)
}

#[test]
fn sites_of_shared_servers_share_by_weight() {
    for http in [1, 2] {
        let http = [0, 1].map(|flow| format!("flow.{flow}.http={http}"));
        for seed in 1..=5 {
            let ratio = ratio("sites-4-1.toml", seed, &[&http[0], &http[1]]);
            assert!((3.8..=4.2).contains(&ratio), "{ratio:.3}");
        }
    }
}

#[test]
fn addresses_do_not_tell_sites_of_shared_servers_apart() {
    for seed in 1..=3 {
        let ratio = ratio("sites-by-address.toml", seed, &[]);
        assert!((0.5..=2.0).contains(&ratio), "{ratio:.3}");
    }
}
