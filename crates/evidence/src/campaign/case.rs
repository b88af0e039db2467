//! A scenario that was drawn from a seed: its text, and how it is played with each control.

use std::path::Path;

use anyhow::Context;
use fairweir_config::{ConfigError, Text, output};
use fairweir_core::units::Span;
use fairweir_scenario::{Control, Scenario};
use toml::{Table, Value};

use super::class::Class;

/// Buffer of the link that replaces a policer when `wfq` is played.
const REFERENCE_BUFFER: &str = "100ms";

/// The tables of a file, in this order.
const ORDER: [&str; 7] = ["link", "control", "probe", "device", "group", "flow", "police"];

fn has_tables(value: &Value) -> bool {
    value.is_table() || value.as_array().is_some_and(|all| all.iter().any(Value::is_table))
}

/// A scenario of the campaign.
///
/// Invariant: [`Case::text`] is a valid scenario file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Case {
    pub(super) seed: u64,
    pub(super) class: Class,
    /// The scenario file. A device with a control is a host under test.
    pub(super) table: Table,
    /// The file that the link's `trace` names.
    pub(super) trace: Option<String>,
}

/// The scenario and control of one run.
#[derive(Clone, Debug)]
pub(super) struct Played {
    pub(super) scenario: Scenario,
    /// The control of the run: with devices, the router's.
    pub(super) control: Control,
}

impl Case {
    /// The scenario file, for [`Control::Fairweir`].
    pub(super) fn text(&self) -> String {
        let Case { seed, class, .. } = self;
        let router = match self.table.contains_key("device") {
            true => " --control none",
            false => "",
        };
        let mut text = format!(
            "# Seed {seed} of `fairweir campaign`, class {class}.\n\
             # Play it: fairweir sim run{router} --seed {seed} FILE\n"
        );
        // In the order in which people write it: scalars, the link, groups, flows.
        let (tables, scalars): (Table, Table) =
            self.table.clone().into_iter().partition(|(_, value)| has_tables(value));
        text.push_str(&scalars.to_string());
        let rank = |key: &str| ORDER.iter().position(|k| *k == key).unwrap_or(ORDER.len());
        let mut tables: Vec<(String, Value)> = tables.into_iter().collect();
        tables.sort_by_key(|(key, _)| rank(key));
        for entry in tables {
            text.push('\n');
            text.push_str(&Table::from_iter([entry]).to_string());
        }
        text
    }

    /// The run of a control. With devices the control is that of the hosts under test, and the
    /// router has none. For `wfq`, a link of the plan's rate replaces a policer, since a link
    /// behind a policer has nothing to schedule.
    ///
    /// # Errors
    /// If the text is not a valid scenario.
    pub(super) fn played(&self, control: Control) -> anyhow::Result<Played> {
        let mut table = self.table.clone();
        let mut router = control;
        let devices = table.get_mut("device").and_then(Value::as_array_mut);
        for device in devices.into_iter().flatten().filter_map(Value::as_table_mut) {
            let is_tested = device.remove("control").is_some();
            if control != Control::Wfq {
                router = Control::None;
                if is_tested {
                    device.insert("control".into(), control.name().into());
                }
            }
        }
        if control == Control::Wfq
            && let Some(Value::Array(police)) = table.remove("police")
        {
            let rate = police.first().and_then(|p| p.get("rate")).cloned();
            let link = table.get_mut("link").and_then(Value::as_table_mut);
            if let (Some(rate), Some(link)) = (rate, link) {
                link.insert("rate".into(), rate);
                link.insert("buffer".into(), REFERENCE_BUFFER.into());
            }
        }
        let file = format!("campaign seed {}", self.seed);
        let load = |path: &Path| match &self.trace {
            Some(trace) => Ok(Text::new(trace.clone(), path.display().to_string())),
            None => Err(ConfigError::whole_file(path, "the campaign has no such trace")),
        };
        let scenario = Scenario::parse_with(&Text::new(table.to_string(), file), &[], &load)?;
        Ok(Played { scenario, control: router })
    }

    /// Sets the duration, if one is given.
    pub(super) fn last(&mut self, duration: Option<Span>) {
        if let Some(duration) = duration {
            self.table.insert("duration".to_owned(), duration.to_string().into());
        }
    }

    /// Gives `fairweir` exact values, which no host can measure.
    pub(super) fn tell_exactly(&mut self) {
        let control = self.table.entry("control").or_insert_with(|| Table::new().into());
        if let Value::Table(control) = control {
            control.insert("measurement".to_owned(), "exact".into());
        }
    }

    /// Whether each device is a host under test; without devices the only host is one.
    pub(super) fn tested(&self) -> Vec<bool> {
        match self.table.get("device").and_then(Value::as_array) {
            Some(devices) => devices.iter().map(|d| d.get("control").is_some()).collect(),
            None => vec![true],
        }
    }

    /// The groups of the hosts under test in the scenario that is played.
    pub(super) fn tested_groups(&self, scenario: &Scenario) -> Vec<usize> {
        let hosts = scenario.hosts().into_iter().zip(self.tested());
        hosts.filter(|(_, tested)| *tested).flat_map(|(groups, _)| groups).collect()
    }

    /// Whether another host without control is behind the link.
    pub(super) fn has_neighbours(&self) -> bool {
        self.tested().contains(&false)
    }

    pub(super) fn has_devices(&self) -> bool {
        self.table.contains_key("device")
    }

    pub(super) fn is_policed(&self) -> bool {
        self.table.contains_key("police")
    }

    /// Writes the scenario, and the trace next to it.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn save(&self, dir: &Path, name: &str) -> anyhow::Result<()> {
        let write = |path: &Path, text: &str| {
            output::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let link = self.table.get("link");
        let trace = link.and_then(|link| link.get("trace")).and_then(Value::as_str);
        if let (Some(name), Some(text)) = (trace, &self.trace) {
            write(&dir.join(name), text)?;
        }
        write(&dir.join(name), &self.text())
    }
}
