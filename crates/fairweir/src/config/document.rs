//! One TOML document: its keys and values, each with its line.

use std::ops::RangeInclusive;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::VERSION;
use super::error::{ConfigError, Place, Placed, did_you_mean};

/// The most of a wrong line that a message repeats, in characters.
const LINE_SHOWN_MAX: usize = 60;

/// The text of one file, or of a request.
pub(crate) struct Source {
    place: Place,
    text: String,
    /// Where its lines begin; empty if nobody sees lines in it.
    lines: Vec<usize>,
}

impl Source {
    /// The text of a file.
    ///
    /// # Errors
    /// If it is not UTF-8.
    pub(crate) fn new(path: &Path, bytes: Vec<u8>) -> Result<Source, ConfigError> {
        let place = Place::new(path, 1);
        let text = String::from_utf8(bytes).map_err(|e| {
            let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
            let line = 1 + good.iter().filter(|&&b| b == b'\n').count();
            place.at(line).error("text", "a byte that is not UTF-8")
        })?;
        let breaks = text.bytes().enumerate().filter(|&(_, b)| b == b'\n');
        let lines = [0].into_iter().chain(breaks.map(|(i, _)| i + 1)).collect();
        Ok(Source { place, text, lines })
    }

    /// A text that no user wrote, called `title` in messages, which name no line of it.
    pub(crate) fn without_lines(title: &str, text: String) -> Source {
        Source { place: Place::new(Path::new(title), 0), text, lines: Vec::new() }
    }

    /// Hands the whole document to `read`.
    ///
    /// # Errors
    /// If it is no TOML, or what `read` says.
    pub(crate) fn parse<T>(
        &self,
        read: impl FnOnce(&Section<'_>) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        let table = DeTable::parse(&self.text).map_err(|e| {
            let start = e.span().map_or(0, |span| span.start);
            let line = self.line_of(start);
            self.place_of(start).error("syntax", format!("{} in `{line}`", e.message()))
        })?;
        read(&Section { source: self, name: String::new(), table: table.get_ref(), start: 0 })
    }

    /// The line that holds `offset`, cut to what a message can hold.
    fn line_of(&self, offset: usize) -> String {
        let start = offset.min(self.text.len());
        let before = self.text.as_bytes()[..start].iter().rposition(|&b| b == b'\n');
        let line = self.text.get(before.map_or(0, |i| i + 1)..).unwrap_or_default();
        line.lines().next().unwrap_or_default().trim().chars().take(LINE_SHOWN_MAX).collect()
    }

    fn place_of(&self, offset: usize) -> Place {
        self.place.at(self.lines.partition_point(|&begin| begin <= offset))
    }
}

/// A table of the document.
pub(crate) struct Section<'d> {
    source: &'d Source,
    /// What stands before the keys in messages: `host`, `plan.class`, or nothing.
    name: String,
    table: &'d DeTable<'d>,
    start: usize,
}

impl<'d> Section<'d> {
    /// Whether the key stands there.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    pub(crate) fn check_version(&self) -> Result<(), ConfigError> {
        let place = self.source.place.at(1);
        let Some(value) = self.find("version") else {
            let message = format!("is missing; write `version = {VERSION}` at the top");
            return Err(place.error("version", message));
        };
        match self.integer(value) {
            Some(VERSION) => Ok(()),
            _ => {
                let message =
                    format!("{} is unknown; this fairweir reads version {VERSION}", shown(value));
                Err(self.error(value, "version", message))
            }
        }
    }

    pub(crate) fn check_keys(&self, title: &str, known: &[&str]) -> Result<(), ConfigError> {
        let unknown = self.table.iter().filter(|(k, _)| !known.contains(&k.get_ref().as_ref()));
        let Some((key, _)) = unknown.min_by_key(|(k, _)| k.span().start) else {
            return Ok(());
        };
        let word = key.get_ref();
        let message = format!(
            "is no key of {title}{}; there are {}",
            did_you_mean(word, known),
            known.join(", ")
        );
        Err(self.place_at(key.span().start).error(&self.key(word), message))
    }

    pub(crate) fn boolean(&self, key: &str) -> Result<Option<Placed<bool>>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        match value.get_ref().as_bool() {
            Some(b) => Ok(Some(Placed { value: b, place: self.place_at(value.span().start) })),
            None => Err(self.error(value, key, wanted_instead(value, "true or false"))),
        }
    }

    pub(crate) fn parsed<T>(
        &self,
        key: &str,
        wanted: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<Placed<T>>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let Some(text) = value.get_ref().as_str() else {
            return Err(self.error(value, key, wanted_instead(value, wanted)));
        };
        let parsed = parse(text).map_err(|message| self.error(value, key, message))?;
        Ok(Some(Placed { value: parsed, place: self.place_at(value.span().start) }))
    }

    /// A list of texts, each understood by `parse`; empty if the key is absent.
    pub(crate) fn list<T>(
        &self,
        key: &str,
        wanted: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(Vec::new()) };
        let Some(entries) = value.get_ref().as_array() else {
            return Err(self.error(value, key, wanted_instead(value, wanted)));
        };
        let understood = |entry: &Spanned<DeValue<'d>>| {
            let Some(text) = entry.get_ref().as_str() else {
                return Err(self.error(entry, key, wanted_instead(entry, wanted)));
            };
            parse(text).map_err(|message| self.error(entry, key, message))
        };
        entries.iter().map(understood).collect()
    }

    /// A whole number within `range`; `what` is what it should be.
    pub(crate) fn number(
        &self,
        key: &str,
        what: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<Placed<i64>>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        match self.integer(value).filter(|n| range.contains(n)) {
            Some(n) => Ok(Some(Placed { value: n, place: self.place_at(value.span().start) })),
            None => {
                let (least, most) = (range.start(), range.end());
                let message =
                    format!("{} is no {what}: a whole number from {least} to {most}", shown(value));
                Err(self.error(value, key, message))
            }
        }
    }

    pub(crate) fn table(&self, key: &str) -> Result<Option<Section<'d>>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        match value.get_ref() {
            DeValue::Table(table) => Ok(Some(self.section(key, value, table))),
            _ => Err(self.error(value, key, format!("is a table: write `[{}]`", self.key(key)))),
        }
    }

    pub(crate) fn tables(&self, key: &str) -> Result<Vec<Section<'d>>, ConfigError> {
        let Some(value) = self.find(key) else { return Ok(Vec::new()) };
        let message = format!("is a list of tables: write `[[{}]]`", self.key(key));
        let Some(entries) = value.get_ref().as_array() else {
            return Err(self.error(value, key, message));
        };
        let section = |entry: &'d Spanned<DeValue<'d>>| match entry.get_ref() {
            DeValue::Table(table) => Ok(self.section(key, entry, table)),
            _ => Err(self.error(entry, key, &message)),
        };
        entries.iter().map(section).collect()
    }

    fn section(
        &self,
        key: &str,
        value: &Spanned<DeValue<'d>>,
        table: &'d DeTable<'d>,
    ) -> Section<'d> {
        Section { source: self.source, name: self.key(key), table, start: value.span().start }
    }

    fn find(&self, key: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.table.iter().find(|(k, _)| k.get_ref() == key).map(|(_, value)| value)
    }

    fn integer(&self, value: &Spanned<DeValue<'_>>) -> Option<i64> {
        let integer: &DeInteger<'_> = value.get_ref().as_integer()?;
        i64::from_str_radix(integer.as_str(), integer.radix()).ok()
    }

    /// Where the table begins.
    pub(crate) fn place(&self) -> Place {
        self.place_at(self.start)
    }

    fn place_at(&self, offset: usize) -> Place {
        self.source.place_of(offset)
    }

    fn key(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn error(
        &self,
        value: &Spanned<DeValue<'_>>,
        key: &str,
        message: impl std::fmt::Display,
    ) -> ConfigError {
        self.place_at(value.span().start).error(&self.key(key), message)
    }
}

/// What a value is, for a message: short ones in full, others by their type.
fn shown(value: &Spanned<DeValue<'_>>) -> String {
    match value.get_ref() {
        DeValue::String(text) => format!("the text `{text}`"),
        DeValue::Integer(n) => format!("{n}"),
        DeValue::Float(n) => format!("{n}"),
        DeValue::Boolean(b) => format!("`{b}`"),
        other => format!("the {}", other.type_str()),
    }
}

fn wanted_instead(value: &Spanned<DeValue<'_>>, wanted: &str) -> String {
    format!("{} is not {wanted}", shown(value))
}
