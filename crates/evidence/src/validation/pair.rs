//! A number of a comparison in both worlds, as the tables show it.

use serde_json::Value;

/// A number in both worlds, and the least and the greatest of the seeds in the simulator.
pub(super) struct Pair {
    lab: Option<f64>,
    sim: Option<f64>,
    range: [f64; 2],
}

impl Pair {
    pub(super) fn of(comparison: &Value, name: &str) -> Pair {
        let measures = comparison["measures"].as_array();
        let measure = measures.and_then(|all| all.iter().find(|m| m["name"] == name));
        let measure = measure.unwrap_or(&Value::Null);
        let end = |i: usize| measure["sim_range"][i].as_f64().unwrap_or(f64::NAN);
        let (lab, sim) = (measure["lab"].as_f64(), measure["sim"].as_f64());
        Pair { lab, sim, range: [end(0), end(1)] }
    }

    /// Whether the worlds differ by at most `most`; a number that neither has agrees.
    pub(super) fn is_within(&self, most: f64) -> bool {
        match (self.lab, self.sim) {
            (Some(lab), Some(sim)) => (lab - sim).abs() <= most,
            (lab, sim) => lab.is_none() && sim.is_none(),
        }
    }

    pub(super) fn is_as_a_seed(&self) -> bool {
        self.lab.is_some_and(|lab| (self.range[0]..=self.range[1]).contains(&lab))
    }

    pub(super) fn shown(&self, decimals: usize) -> String {
        let number =
            |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.decimals$}"));
        format!("{} / {}", number(self.lab), number(self.sim))
    }
}
