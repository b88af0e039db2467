//! Varying a scenario without copying it: `link.rate=47mbit`, `group.video.weight=3`.
//!
//! Keys are put into the document before it is read, so that they pass all checks of the file too.
//! Places beyond the end of the text stand for the overrides, in order, so that errors can name
//! them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::words::not_one_of;

/// A key of a scenario file, and the value that replaces the file's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    key: String,
    value: String,
}

/// A text that is not an override.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found `{0}`, expected a key and a value such as link.rate=47mbit")]
pub struct BadOverride(String);

impl FromStr for Override {
    type Err = BadOverride;

    /// Reads `link.rate=47mbit`, `flow.0.rtt=100ms`, `group.video.weight=3`.
    ///
    /// Entries of a list are given by their index, counted from 0, or by name: a group or device by
    /// its own name, a flow by its group's name if the group has no other flow. A value that is not
    /// valid TOML is taken as a text, so that quotes may be left out.
    fn from_str(text: &str) -> Result<Override, BadOverride> {
        let bad = || BadOverride(text.to_owned());
        let (key, value) = text.split_once('=').ok_or_else(bad)?;
        let (key, value) = (key.trim(), value.trim());
        if value.is_empty() || key.split('.').any(str::is_empty) {
            return Err(bad());
        }
        Ok(Override { key: key.to_owned(), value: value.to_owned() })
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

impl Override {
    /// Puts the value into a document, at the place `at`.
    ///
    /// # Errors
    /// Says which part of the key does not exist.
    pub(crate) fn apply<'t>(&'t self, document: &mut DeTable<'t>, at: usize) -> Result<(), String> {
        self.put_into_table(document, &self.key, at)
    }

    fn put_into_table<'t>(
        &'t self,
        table: &mut DeTable<'t>,
        path: &'t str,
        at: usize,
    ) -> Result<(), String> {
        let (key, rest) = path.split_once('.').map_or((path, None), |(k, rest)| (k, Some(rest)));
        let placed_key = || Spanned::new(at..at, Cow::Borrowed(key));
        let Some(rest) = rest else {
            // The old key is removed too, since it has the old place.
            table.remove(key);
            table.insert(placed_key(), self.value(at));
            return Ok(());
        };
        if table.get(key).is_none() {
            table.insert(placed_key(), Spanned::new(at..at, DeValue::Table(DeTable::new())));
        }
        match table.get_mut(key).map(Spanned::get_mut) {
            Some(DeValue::Table(table)) => self.put_into_table(table, rest, at),
            Some(DeValue::Array(list)) => self.put_into_list(list, rest, at),
            _ => Err(format!("`{key}` has no keys")),
        }
    }

    fn put_into_list<'t>(
        &'t self,
        list: &mut DeArray<'t>,
        path: &'t str,
        at: usize,
    ) -> Result<(), String> {
        let (i, rest) = entry(list, path)?;
        match list.get_mut(i).map(Spanned::get_mut) {
            Some(DeValue::Table(table)) => self.put_into_table(table, rest, at),
            _ => Err(format!("`{path}` names nothing that has keys")),
        }
    }

    fn value<'t>(&'t self, at: usize) -> Spanned<DeValue<'t>> {
        let value = match DeValue::parse(&self.value).map(Spanned::into_inner) {
            Err(_) | Ok(DeValue::Datetime(_)) => DeValue::String(Cow::Borrowed(&self.value)),
            Ok(value) => value,
        };
        placed(value, at)
    }
}

/// The index of the list entry that a path names, and the rest of the path.
fn entry<'p>(list: &DeArray<'_>, path: &'p str) -> Result<(usize, &'p str), String> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    if rest.is_empty() {
        return Err(format!("`{path}` is a whole entry; expected one of its keys"));
    }
    if let Some(i) = first.parse().ok().filter(|&i| i < list.len()) {
        return Ok((i, rest));
    }
    let names: Vec<&str> = list.iter().filter_map(|v| name(v.get_ref())).collect();
    // Names may contain dots: the longest name that fits is used.
    let after = |name: &str| path.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
    let Some(meant) = names.iter().filter(|n| after(n).is_some()).max_by_key(|n| n.len()) else {
        let last = list.len().saturating_sub(1);
        let numbers = format!("a number from 0 to {last}");
        let names = unique(&names);
        if first.parse::<usize>().is_ok() {
            return Err(format!("no entry {first}: there are {}; allowed: {numbers}", list.len()));
        }
        return Err(not_one_of(first, &[&names[..], &[&numbers]].concat()));
    };
    let has_it = |i: &usize| name(list[*i].get_ref()) == Some(meant);
    let found: Vec<usize> = (0..list.len()).filter(has_it).collect();
    match found[..] {
        [i] => Ok((i, after(meant).unwrap_or_default())),
        _ => {
            let numbers: Vec<String> = found.iter().map(usize::to_string).collect();
            Err(format!("`{meant}` has several: write one of {}", numbers.join(", ")))
        }
    }
}

/// The name of a group or device, or the group of a flow.
fn name<'v>(value: &'v DeValue<'_>) -> Option<&'v str> {
    let table = value.as_table()?;
    table.get("name").or_else(|| table.get("group"))?.get_ref().as_str()
}

fn unique<'n>(names: &[&'n str]) -> Vec<&'n str> {
    let is_first = |i: &usize| !names[..*i].contains(&names[*i]);
    (0..names.len()).filter(is_first).map(|i| names[i]).collect()
}

/// The value, with all places in it replaced by `at`.
fn placed(value: DeValue<'_>, at: usize) -> Spanned<DeValue<'_>> {
    let value = match value {
        DeValue::Array(array) => {
            let mut list = DeArray::new();
            array.into_iter().for_each(|v| list.push(placed(v.into_inner(), at)));
            DeValue::Array(list)
        }
        DeValue::Table(table) => {
            let entries = table.into_iter().map(|(key, value)| {
                (Spanned::new(at..at, key.into_inner()), placed(value.into_inner(), at))
            });
            DeValue::Table(entries.collect())
        }
        other => other,
    };
    Spanned::new(at..at, value)
}
