//! Metrics in the OpenMetrics text format 1.0.0.

use std::fmt::{Display, Write};

/// Text that grows family by family.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    text: String,
    /// What samples are called that come next.
    sample: String,
}

impl Metrics {
    /// Begins a family of values that go up and down. `name` ends in its unit, such as `_bytes`.
    pub fn gauge(&mut self, name: &str, help: &str) {
        self.begin(name, "gauge", help);
        self.sample = name.to_owned();
    }

    /// Begins a family of values that only grow; its samples are called `name_total`.
    pub fn counter(&mut self, name: &str, help: &str) {
        self.begin(name, "counter", help);
        self.sample = format!("{name}_total");
    }

    /// Adds a value to the family that was begun last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(&self.sample);
        for (i, (key, label)) in labels.iter().enumerate() {
            let separator = if i == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{separator}{key}=\"{}\"", escaped(label));
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// The whole text.
    pub fn finish(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }

    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# TYPE {name} {kind}\n# HELP {name} {}", escaped(help));
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_as_openmetrics_writes_it() {
        let mut metrics = Metrics::default();
        metrics.gauge("fairweir_up", "Whether traffic is shaped.");
        metrics.sample(&[], 1);
        metrics.counter("fairweir_received_bytes", "L2 bytes that arrived.");
        metrics.sample(&[("group", "a \"b\"\\\n"), ("interface", "eth0")], 7_u64);
        let wanted = "# TYPE fairweir_up gauge\n# HELP fairweir_up Whether traffic is shaped.\n\
                      fairweir_up 1\n# TYPE fairweir_received_bytes counter\n\
                      # HELP fairweir_received_bytes L2 bytes that arrived.\n\
                      fairweir_received_bytes_total{group=\"a \\\"b\\\"\\\\\\n\",interface=\"eth0\"} 7\n\
                      # EOF\n";
        assert_eq!(metrics.finish(), wanted);
    }
}
