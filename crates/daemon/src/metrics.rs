//! Metrics in the OpenMetrics text format 1.0.0, as `prometheus-client` writes it.
//!
//! A daemon makes all samples from its status at each request. So nothing is counted twice, and the
//! values of a removed group or subscriber disappear.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// Families of samples, in the order in which they were begun.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    families: Vec<Family>,
}

#[derive(Clone, Debug)]
struct Family {
    name: String,
    help: String,
    kind: Kind,
    samples: Vec<(Vec<(String, String)>, MetricValue)>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Gauge,
    Counter,
}

/// A number as it appears in the text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue {
    /// For counts and bytes.
    Whole(u64),
    /// For seconds, prices and balances.
    Real(f64),
}

impl Metrics {
    /// Begins a family of values that can go up and down. `name` ends in its unit, such as `_bytes`.
    pub fn gauge(&mut self, name: &str, help: &str) {
        self.begin(name, Kind::Gauge, help);
    }

    /// Begins a family of values that only grow; its samples are called `name_total`.
    pub fn counter(&mut self, name: &str, help: &str) {
        self.begin(name, Kind::Counter, help);
    }

    /// Adds a value to the last family that was begun.
    ///
    /// # Panics
    /// If no family was begun.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<MetricValue>) {
        let family = self.families.last_mut().expect("invariant: a sample belongs to a family");
        let labels = labels.iter().map(|&(key, label)| (key.to_owned(), label.to_owned()));
        family.samples.push((labels.collect(), value.into()));
    }

    /// The whole text.
    ///
    /// # Panics
    /// If memory is exhausted.
    pub fn finish(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("invariant: a String takes any text");
        text
    }

    fn begin(&mut self, name: &str, kind: Kind, help: &str) {
        let (name, help) = (name.to_owned(), help.replace('\\', "\\\\").replace('\n', "\\n"));
        self.families.push(Family { name, help, kind, samples: Vec::new() });
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Family { name, help, kind, samples } in &self.families {
            let metric_type = match kind {
                Kind::Gauge => MetricType::Gauge,
                Kind::Counter => MetricType::Counter,
            };
            let mut encoder = encoder.encode_descriptor(name, help, None, metric_type)?;
            for (labels, value) in samples {
                match labels.is_empty() {
                    true => value.encode(*kind, &mut encoder)?,
                    false => value.encode(*kind, &mut encoder.encode_family(labels)?)?,
                }
            }
        }
        Ok(())
    }
}

impl MetricValue {
    fn encode(self, kind: Kind, encoder: &mut MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match (kind, self) {
            (Kind::Gauge, MetricValue::Whole(value)) => encoder.encode_gauge(&value),
            (Kind::Gauge, MetricValue::Real(value)) => encoder.encode_gauge(&value),
            (Kind::Counter, MetricValue::Whole(value)) => {
                encoder.encode_counter::<NoLabelSet, _, f64>(&value, None)
            }
            (Kind::Counter, MetricValue::Real(value)) => {
                encoder.encode_counter::<NoLabelSet, _, f64>(&value, None)
            }
        }
    }
}

impl From<u64> for MetricValue {
    fn from(value: u64) -> MetricValue {
        MetricValue::Whole(value)
    }
}

impl From<usize> for MetricValue {
    fn from(value: usize) -> MetricValue {
        MetricValue::Whole(value as u64)
    }
}

impl From<u8> for MetricValue {
    fn from(value: u8) -> MetricValue {
        MetricValue::Whole(value.into())
    }
}

impl From<f64> for MetricValue {
    fn from(value: f64) -> MetricValue {
        MetricValue::Real(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_as_openmetrics_writes_it() {
        let mut metrics = Metrics::default();
        metrics.gauge("fairweir_up", "Whether traffic is shaped.");
        metrics.sample(&[], 1_u64);
        metrics.gauge("fairweir_delay_seconds", "A\\\ndelay.");
        metrics.sample(&[], 0.004_5);
        metrics.counter("fairweir_received_bytes", "L2 bytes that arrived.");
        let largest = u64::MAX;
        metrics.sample(&[("group", "a \"b\"\\\n"), ("interface", "eth0")], largest);
        let wanted = "# HELP fairweir_up Whether traffic is shaped.\n# TYPE fairweir_up gauge\n\
                      fairweir_up 1\n# HELP fairweir_delay_seconds A\\\\\\ndelay.\n\
                      # TYPE fairweir_delay_seconds gauge\nfairweir_delay_seconds 0.0045\n\
                      # HELP fairweir_received_bytes L2 bytes that arrived.\n\
                      # TYPE fairweir_received_bytes counter\n\
                      fairweir_received_bytes_total{group=\"a \\\"b\\\"\\\\\\n\",interface=\"eth0\"} \
                      18446744073709551615\n# EOF\n";
        assert_eq!(metrics.finish(), wanted);
    }
}
