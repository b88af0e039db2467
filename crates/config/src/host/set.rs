//! Table `[set]`: values that replace those of the other tables, in any file.
//!
//! Commands and the page change settings only through this table: a daemon writes it to [`FILE`] in
//! `conf.d`, which it reads like any other file. Files that people wrote are never edited. If a key
//! has two values, that of the later file is in force.

use std::collections::BTreeMap;

use fairweir_core::policy::{Branch, DEFAULT_GROUP, Group, PATH_SEPARATOR};
use fairweir_core::share::Weight;
use fairweir_core::units::Span;
use serde::{Deserialize, Serialize};

use crate::VERSION;
use crate::error::ConfigError;
use crate::table::{Placed, Source, Table};
use crate::value::parse_latency;
use crate::words::{choices, nearest};

/// The file in `conf.d` that daemons write. It is read after all files whose names begin with a
/// digit or with a letter below `z`.
pub const FILE: &str = "zz-set.toml";

/// The size limit of this file, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 10;

/// Keys of `[set]`, each with its new value, or `None` to remove it: `latency`, `paused`, and
/// `weight.NAME` of a group.
pub type Changes = BTreeMap<String, Option<Setting>>;

/// The value of a key. Whether it is allowed is checked when the file is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    /// The value of `paused`.
    Truth(bool),
    /// A weight.
    Number(u32),
    /// The value of `latency`.
    Text(String),
}

const WEIGHT: &str = "weight";

/// The keys that are set.
#[derive(Default)]
pub(super) struct SetKeys<'t> {
    latency: Option<Span>,
    paused: Option<bool>,
    weights: Vec<Placed<'t, (String, Weight)>>,
}

impl<'t> SetKeys<'t> {
    pub(super) fn read(mut table: Table<'t>) -> Result<SetKeys<'t>, ConfigError> {
        let latency = table.parsed_by("latency", parse_latency)?.map(|p| p.value);
        let paused = table.truth("paused")?;
        let mut weights = Vec::new();
        if let Some(mut table) = table.table(WEIGHT)? {
            for name in table.keys() {
                let Some(placed) = table.integer(&name, 1, Weight::MAX.into())? else { continue };
                let weight = u32::try_from(placed.value).ok().and_then(Weight::new);
                let weight = weight.expect("invariant: the range was checked");
                weights.push(Placed { value: (name, weight), place: placed.place });
            }
        }
        table.finish()?;
        Ok(SetKeys { latency, paused, weights })
    }

    /// Adds the keys of a later file, which take precedence.
    pub(super) fn merge(&mut self, later: SetKeys<'t>) {
        self.latency = later.latency.or(self.latency);
        self.paused = later.paused.or(self.paused);
        self.weights.extend(later.weights);
    }

    pub(super) fn latency(&self) -> Option<Span> {
        self.latency
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.unwrap_or(false)
    }

    /// Sets the weights of groups; returns errors for weights that name no group.
    pub(super) fn apply_weights(&self, groups: &mut Vec<Branch>) -> Vec<String> {
        let mut warnings = Vec::new();
        for Placed { value: (path, weight), place } in &self.weights {
            if let Some(found) = Branch::find_mut(groups, path) {
                found.group.weight = *weight;
                continue;
            }
            // A default group that is not listed exists if its siblings do.
            let (above, name) = path.rsplit_once(PATH_SEPARATOR).unwrap_or(("", path));
            let siblings = match above {
                "" => Some(&mut *groups),
                above => Branch::find_mut(groups, above).map(|branch| &mut branch.beneath),
            };
            match siblings.filter(|s| name == DEFAULT_GROUP && (above.is_empty() || !s.is_empty()))
            {
                Some(siblings) => {
                    let (name, weight) = (name.to_owned(), *weight);
                    siblings.push(Group::new(name, weight, Vec::new()).into());
                }
                None => warnings.push(format!(
                    "{place}: set.{WEIGHT}.{path}: no effect, because there is no group `{path}`"
                )),
            }
        }
        warnings
    }
}

/// Splits a key below `[set]` into the names of its tables and its own; `None` if there is no such key.
pub type PathOf = fn(&str) -> Option<Vec<&str>>;

/// The [`PathOf`] of a host and a router: accepts `latency`, `paused` and `weight.GROUP`.
pub fn path_of(key: &str) -> Option<Vec<&str>> {
    match (key.split_once('.'), key) {
        (Some((WEIGHT, group)), _) => Some(vec![WEIGHT, group]),
        (_, "latency" | "paused") => Some(vec![key]),
        _ => None,
    }
}

/// Checks keys and values, except whether groups exist, which only the daemon knows.
///
/// # Errors
/// The first mistake, and what is allowed.
pub fn check(changes: &Changes) -> Result<(), String> {
    for (key, value) in changes {
        // A number at a group's name is probably meant as its weight.
        let is_weight = value.as_ref().is_some_and(|value| matches!(value, Setting::Number(_)));
        path_of(key).ok_or_else(|| match is_weight && nearest(key, KEYS).is_none() {
            true => {
                format!("unknown key `{key}`; use {WEIGHT}.{key}; allowed: {}", KEYS.join(", "))
            }
            false => format!("unknown key `{key}`{}", choices(key, &KEYS)),
        })?;
        let one = Changes::from([(key.clone(), value.clone())]);
        let (text, _) = changed("", &one, path_of)?;
        let read = || {
            let mut top = Source::new(&text, FILE, &[]).top()?;
            top.table("set")?.map(SetKeys::read).transpose()
        };
        read().map_err(|e: ConfigError| format!("{key}: {}", e.what()))?;
    }
    Ok(())
}

/// The keys that can be set.
const KEYS: [&str; 3] = ["weight.GROUP", "latency", "paused"];

/// The text of [`FILE`] after `changes`, and the changes that undo them; `old` is its text before,
/// empty if it does not exist. The new text is empty if no setting remains.
///
/// # Errors
/// Says what is wrong with the old text or with a key.
pub fn changed(old: &str, changes: &Changes, path_of: PathOf) -> Result<(String, Changes), String> {
    let mut document: toml::Table =
        old.parse().map_err(|e: toml::de::Error| format!("{FILE}: {}", e.message()))?;
    let mut undo = Changes::new();
    for (key, value) in changes {
        let path = path_of(key).ok_or_else(|| format!("unknown key `{key}`"))?;
        let mut table = &mut document;
        let (name, tables) = path.split_last().ok_or_else(|| format!("unknown key `{key}`"))?;
        for name in ["set"].iter().chain(tables) {
            let inner = table.entry(*name).or_insert_with(|| toml::Table::new().into());
            let inner = inner.as_table_mut();
            table = inner.ok_or_else(|| format!("{FILE}: `{name}` is not a table"))?;
        }
        let before = replace(table, name, value.as_ref());
        undo.insert(key.clone(), before);
    }
    drop_empty_tables(&mut document);
    if document.keys().all(|key| key == "version") {
        return Ok((String::new(), undo));
    }
    document.insert("version".to_owned(), i64::try_from(VERSION).unwrap_or(1).into());
    Ok((format!("{COMMENT}{document}"), undo))
}

const COMMENT: &str = "# Written by fairweir when a setting is changed on the page or by a command.\n\
                       # These values replace those of the other files. Delete the file to return to them.\n";

fn drop_empty_tables(table: &mut toml::Table) {
    for (_, value) in table.iter_mut() {
        value.as_table_mut().into_iter().for_each(drop_empty_tables);
    }
    table.retain(|_, value| !value.as_table().is_some_and(toml::Table::is_empty));
}

/// Sets or removes a key; returns its previous value.
fn replace(table: &mut toml::Table, key: &str, value: Option<&Setting>) -> Option<Setting> {
    let before = match value {
        Some(Setting::Truth(truth)) => table.insert(key.to_owned(), (*truth).into()),
        Some(Setting::Number(number)) => table.insert(key.to_owned(), i64::from(*number).into()),
        Some(Setting::Text(text)) => table.insert(key.to_owned(), text.as_str().into()),
        None => table.remove(key),
    };
    before.and_then(|value| value.try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(all: &[(&str, Option<Setting>)]) -> Changes {
        all.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    }

    #[test]
    fn undo_restores_the_text() {
        let first = changes(&[
            ("weight.video.hd", Some(Setting::Number(8))),
            ("latency", Some(Setting::Text("8ms".into()))),
        ]);
        let (one, undo_one) = changed("", &first, path_of).unwrap();
        assert!(one.contains("[set.weight]\n\"video.hd\" = 8\n"), "{one}");
        assert!(one.contains("latency = \"8ms\"") && one.contains("version = 1\n"), "{one}");
        let second = changes(&[
            ("weight.video.hd", Some(Setting::Number(3))),
            ("paused", Some(Setting::Truth(true))),
        ]);
        let (two, undo_two) = changed(&one, &second, path_of).unwrap();
        assert_eq!(undo_two["weight.video.hd"], Some(Setting::Number(8)));
        assert_eq!(undo_two["paused"], None);
        assert_eq!(changed(&two, &undo_two, path_of).unwrap().0, one);
        assert_eq!(changed(&one, &undo_one, path_of).unwrap().0, "");
    }

    #[test]
    fn keys_that_cannot_be_set_are_refused() {
        for key in ["weight", "capacity", "", "host.latency", "weights.a"] {
            let error = changed("", &changes(&[(key, None)]), path_of).unwrap_err();
            assert!(error.contains("unknown key"), "{key}: {error}");
        }
        for text in ["set = 1", "set = {weight = 1}", "[set"] {
            assert!(changed(text, &changes(&[("weight.a", None)]), path_of).is_err(), "{text}");
        }
    }

    #[test]
    fn what_else_people_wrote_into_the_file_stays() {
        let text = "version = 1\n[host]\nprobe = \"off\"\n[set]\npaused = true\n";
        let (new, _) = changed(text, &changes(&[("paused", None)]), path_of).unwrap();
        assert!(new.contains("probe = \"off\"") && !new.contains("set]"), "{new}");
    }
}
