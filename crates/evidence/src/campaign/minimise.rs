//! Reduces a scenario that fails to a small one that still fails.
//!
//! Every edit removes something from the file: a device, a group with its flows, a flow, an event,
//! a key, or the last third of the run. An edit is kept if the file is still valid and still fails.
//! The large parts come first. The search ends when no edit can be kept, so that each part of the
//! result is needed for the failure, or when [`EDITS_MAX`] edits were tried. Source: Zeller and
//! Hildebrandt, IEEE TSE 28(2), 2002, with edits by structure instead of by lines.

use fairweir_core::units::Span;
use fairweir_scenario::Control;
use toml::{Table, Value};

use super::case::Case;

/// The most edits that are tried.
const EDITS_MAX: usize = 400;
/// Shortest run: a shorter one would have no scored second.
const DURATION_MIN: Span = Span::secs(10);
/// Keys without which a file is invalid, or a different scenario.
const NEEDED: [&str; 5] = ["version", "name", "seed", "duration", "link"];

/// One step of the path to a value.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Key(String),
    Index(usize),
}

/// An edit that makes a scenario smaller.
#[derive(Clone, Debug, PartialEq)]
enum Edit {
    /// A device with its groups and their flows.
    Device(usize),
    /// A group with its flows.
    Group(usize),
    /// All devices, but not their groups.
    Devices,
    /// The last third of the run, with its events.
    Shorten,
    /// An entry of a table or of a list.
    Remove(Vec<Step>),
}

/// The smallest scenario found for which `fails` is true, as it is for `case`.
///
/// # Errors
/// The first error of `fails`.
pub(super) fn minimise(
    case: &Case,
    mut fails: impl FnMut(&Case) -> anyhow::Result<bool>,
) -> anyhow::Result<Case> {
    let mut best = case.clone();
    let mut tried = 0;
    loop {
        let before = best.clone();
        let mut i = 0;
        while let Some(edit) = edits(&best.table).get(i) {
            let smaller = Case { table: edit.apply(&best.table), ..best.clone() };
            if smaller != best && smaller.played(Control::Fairweir).is_ok() {
                tried += 1;
                if fails(&smaller)? {
                    best = smaller;
                    continue;
                }
            }
            if tried >= EDITS_MAX {
                return Ok(best);
            }
            i += 1;
        }
        if best == before {
            return Ok(best);
        }
    }
}

/// Every edit of a file, large ones first.
fn edits(table: &Table) -> Vec<Edit> {
    let mut all = Vec::new();
    let length = |key: &str| table.get(key).and_then(Value::as_array).map_or(0, Vec::len);
    all.extend((0..length("device")).map(Edit::Device));
    all.extend((0..length("group")).map(Edit::Group));
    all.extend((length("device") > 0).then_some(Edit::Devices));
    let at = |key: &str, i: usize| vec![Step::Key(key.to_owned()), Step::Index(i)];
    all.extend((0..length("flow")).map(|i| Edit::Remove(at("flow", i))));
    all.push(Edit::Shorten);
    for (key, value) in table {
        let path = vec![Step::Key(key.clone())];
        if !NEEDED.contains(&key.as_str()) {
            all.push(Edit::Remove(path.clone()));
        }
        inner(value, &path, &mut all);
    }
    all
}

/// The removals below a value. Invalid results are detected when the file is read.
fn inner(value: &Value, path: &[Step], all: &mut Vec<Edit>) {
    let below = |step: Step| [path, &[step]].concat();
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                let path = below(Step::Key(key.clone()));
                // This key makes a host one under test.
                if key != "control" {
                    all.push(Edit::Remove(path.clone()));
                }
                inner(value, &path, all);
            }
        }
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                let path = below(Step::Index(i));
                // Groups and devices are removed together with what refers to them.
                let [Step::Key(key), ..] = &path[..] else { continue };
                if path.len() > 2 || key == "police" {
                    all.push(Edit::Remove(path.clone()));
                }
                inner(value, &path, all);
            }
        }
        _ => {}
    }
}

impl Edit {
    fn apply(&self, table: &Table) -> Table {
        let mut table = table.clone();
        match self {
            Edit::Device(i) => {
                let name = remove(&mut table, "device", *i);
                while let Some(group) = find(&table, "group", "device", &name) {
                    remove_group(&mut table, group);
                }
            }
            Edit::Group(i) => remove_group(&mut table, *i),
            Edit::Devices => {
                table.remove("device");
                for group in tables(&mut table, "group") {
                    group.remove("device");
                }
            }
            Edit::Shorten => shorten(&mut table),
            Edit::Remove(path) => remove_at(&mut table, path),
        }
        // Empty lists are left out.
        table.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
        table
    }
}

fn tables<'t>(table: &'t mut Table, key: &str) -> impl Iterator<Item = &'t mut Table> {
    let list = table.get_mut(key).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_table_mut)
}

fn find(table: &Table, list: &str, key: &str, value: &str) -> Option<usize> {
    let list = table.get(list).and_then(Value::as_array)?;
    list.iter().position(|entry| entry.get(key).and_then(Value::as_str) == Some(value))
}

/// Removes an entry of a list; returns its name.
fn remove(table: &mut Table, key: &str, i: usize) -> String {
    let list = table.get_mut(key).and_then(Value::as_array_mut).filter(|list| i < list.len());
    let entry = list.map(|list| list.remove(i));
    let name = entry.as_ref().and_then(|entry| entry.get("name")).and_then(Value::as_str);
    name.unwrap_or_default().to_owned()
}

fn remove_group(table: &mut Table, i: usize) {
    let name = remove(table, "group", i);
    while let Some(flow) = find(table, "flow", "group", &name) {
        remove(table, "flow", flow);
    }
}

fn remove_at(table: &mut Table, path: &[Step]) {
    let Some((Step::Key(first), rest)) = path.split_first() else { return };
    let Some((last, way)) = rest.split_last() else {
        table.remove(first);
        return;
    };
    let Some(mut value) = table.get_mut(first) else { return };
    for step in way {
        let next = match step {
            Step::Key(key) => value.get_mut(key.as_str()),
            Step::Index(i) => value.get_mut(*i),
        };
        let Some(next) = next else { return };
        value = next;
    }
    match (value, last) {
        (Value::Table(inner), Step::Key(key)) => drop(inner.remove(key)),
        (Value::Array(list), Step::Index(i)) if *i < list.len() => drop(list.remove(*i)),
        _ => {}
    }
}

/// Cuts the duration to two thirds; flows and steps that begin later are removed.
fn shorten(table: &mut Table) {
    let time = |value: Option<&Value>| value?.as_str()?.parse::<Span>().ok();
    let Some(duration) = time(table.get("duration")) else { return };
    let seconds = duration.as_nanos() / Span::secs(1).as_nanos() * 2 / 3;
    let duration = Span::secs(seconds);
    if duration < DURATION_MIN {
        return;
    }
    table.insert("duration".into(), format!("{seconds}s").into());
    let is_inside = |value: Option<&Value>| time(value).is_none_or(|at| at < duration);
    if let Some(flows) = table.get_mut("flow").and_then(Value::as_array_mut) {
        flows.retain(|flow| is_inside(flow.get("start")));
    }
    let flows_and_link = |table: &mut Table, f: &dyn Fn(&mut Table)| {
        tables(table, "flow").for_each(f);
        table.get_mut("link").and_then(Value::as_table_mut).into_iter().for_each(f);
    };
    flows_and_link(table, &|one| {
        if !is_inside(one.get("stop")) {
            one.remove("stop");
        }
        if let Some(steps) = one.get_mut("steps").and_then(Value::as_array_mut) {
            steps.retain(|step| is_inside(step.get("at")));
        }
    });
}

#[cfg(test)]
mod tests {
    use fairweir_core::units::Time;

    use super::super::generate;
    use super::*;

    fn length(case: &Case, key: &str) -> usize {
        case.table.get(key).and_then(Value::as_array).map_or(0, Vec::len)
    }

    /// The first case for which a condition is true.
    fn case_with(is_wanted: impl Fn(&Case) -> bool) -> Case {
        (1..).map(generate::case).find(is_wanted).unwrap()
    }

    #[test]
    fn only_what_the_failure_needs_is_left() {
        let uses_bbr = |case: &Case| {
            let flows = case.table.get("flow").and_then(Value::as_array);
            let name = |flow: &Value| {
                flow.get("congestion_control").and_then(Value::as_str).map(str::to_owned)
            };
            flows.into_iter().flatten().any(|flow| name(flow).as_deref() == Some("bbr"))
        };
        let large = case_with(|case| uses_bbr(case) && length(case, "flow") >= 4);
        let small = minimise(&large, |case| Ok(uses_bbr(case))).unwrap();
        assert_eq!((length(&small, "group"), length(&small, "flow")), (1, 1), "{}", small.text());
        let flow = small.table["flow"][0].as_table().unwrap();
        let keys: Vec<&str> = flow.keys().map(String::as_str).collect();
        assert_eq!(keys, ["congestion_control", "group", "kind"]);
        let keys: Vec<&str> =
            small.table["link"].as_table().unwrap().keys().map(|k| &**k).collect();
        assert_eq!(keys, ["rate"]);
        assert!(small.played(Control::Fairweir).is_ok());
    }

    #[test]
    fn devices_go_with_their_groups_and_the_host_under_test_stays_one() {
        let has_two_tested_groups = |case: &Case| {
            let groups = case.table.get("group").and_then(Value::as_array);
            let on_host = |g: &&Value| g.get("device").and_then(Value::as_str) == Some("host");
            case.tested().contains(&true)
                && groups.is_some_and(|groups| groups.iter().filter(on_host).count() == 2)
        };
        let large = case_with(|case| has_two_tested_groups(case) && length(case, "device") == 2);
        let small = minimise(&large, |case| Ok(has_two_tested_groups(case))).unwrap();
        assert_eq!((length(&small, "device"), length(&small, "group")), (1, 2));
        assert_eq!(length(&small, "flow"), 2);
    }

    #[test]
    fn what_always_fails_is_tried_a_bounded_number_of_times_and_errors_are_handed_on() {
        let large = generate::case(3);
        let mut tried = 0;
        let same = minimise(&large, |_| {
            tried += 1;
            Ok(false)
        });
        assert_eq!(same.unwrap(), large);
        assert!((1..=EDITS_MAX).contains(&tried), "{tried}");
        assert!(minimise(&large, |_| anyhow::bail!("interrupted")).is_err());
    }

    #[test]
    fn a_shorter_run_has_no_event_after_its_end() {
        let large = case_with(|case| {
            let scenario = case.played(Control::None).unwrap().scenario;
            let steps = scenario.link.capacity.steps();
            steps.last().is_some_and(|step| step.at > Time::ZERO + scenario.duration / 4 * 3)
        });
        let mut table = large.table.clone();
        shorten(&mut table);
        let small = Case { table, ..large.clone() };
        let (small, large) = (small.played(Control::None), large.played(Control::None));
        let (small, large) = (small.unwrap().scenario, large.unwrap().scenario);
        assert!(small.duration < large.duration);
        assert!(small.events().len() < large.events().len());
    }
}
