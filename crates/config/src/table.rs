//! Reading a TOML table key by key, so that every error can name line, key and what is allowed.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::overrides::Override;

/// What is wrong with a scenario file: the first thing found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {key}{what}", key = if key.is_empty() { String::new() } else { format!("{key}: ") })]
pub struct ConfigError {
    /// Where it stands.
    pub origin: Origin,
    /// The key as a path, such as `flow.rtt`; empty if the text is no TOML at all.
    pub key: String,
    /// What was found and what is allowed.
    pub what: String,
}

/// Where something of a scenario stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the file.
    Line {
        /// As the caller named it.
        file: String,
        /// Counted from 1.
        line: usize,
    },
    /// In an override.
    Override(Override),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line { file, line } => write!(f, "{file}:{line}"),
            Origin::Override(text) => write!(f, "--set {text}"),
        }
    }
}

/// A document: turns places in the text into lines.
#[derive(Clone, Copy)]
pub struct Source<'t> {
    text: &'t str,
    file: &'t str,
    overrides: &'t [Override],
}

impl<'t> Source<'t> {
    /// A document with this text; `file` is what errors call it.
    pub fn new(text: &'t str, file: &'t str, overrides: &'t [Override]) -> Self {
        Source { text, file, overrides }
    }

    /// The document's top table.
    pub fn top(self) -> Result<Table<'t>, ConfigError> {
        let parsed = DeTable::parse(self.text).map_err(|e| {
            let at = e.span().map_or(0, |s| s.start);
            self.error(at, "", e.message().replace('\n', ", "))
        })?;
        let mut document = parsed.into_inner();
        for (i, change) in self.overrides.iter().enumerate() {
            let at = self.text.len() + 1 + i;
            change.apply(&mut document, at).map_err(|what| self.error(at, "", what))?;
        }
        Ok(Table { source: self, path: String::new(), at: 0, entries: entries(document) })
    }

    fn error(self, at: usize, key: &str, what: impl Display) -> ConfigError {
        ConfigError {
            origin: self.origin(at),
            key: key.to_owned(),
            // What the user wrote may hold control characters, which would break the one line.
            what: what.to_string().replace(char::is_control, " "),
        }
    }

    /// Places beyond the end of the text are those of the overrides.
    fn origin(self, at: usize) -> Origin {
        let change = at.checked_sub(self.text.len() + 1).and_then(|i| self.overrides.get(i));
        if let Some(change) = change {
            return Origin::Override(change.clone());
        }
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
        Origin::Line { file: self.file.to_owned(), line }
    }
}

type Entries<'t> = Vec<(Spanned<Cow<'t, str>>, Spanned<DeValue<'t>>)>;

fn entries(table: DeTable<'_>) -> Entries<'_> {
    table.into_iter().collect()
}

/// A table whose keys are taken one by one; what is left at the end is unknown.
pub struct Table<'t> {
    source: Source<'t>,
    /// Its own name, empty for the top.
    path: String,
    at: usize,
    entries: Entries<'t>,
}

/// Where a value stands, for errors that only its meaning reveals.
#[derive(Clone)]
pub struct Place<'t> {
    source: Source<'t>,
    key: String,
    at: usize,
}

impl Place<'_> {
    /// The file as the caller named it.
    pub fn file(&self) -> &str {
        self.source.file
    }

    /// Where in the text it is, in bytes: for who keeps many places and asks for few lines.
    pub fn offset(&self) -> usize {
        self.at
    }

    fn is_override(&self) -> bool {
        matches!(self.source.origin(self.at), Origin::Override(_))
    }

    /// An error here.
    pub fn error(&self, what: impl Display) -> ConfigError {
        self.source.error(self.at, &self.key, what)
    }
}

/// A value and where it stands.
pub struct Placed<'t, T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub place: Place<'t>,
}

impl<'t> Table<'t> {
    /// Where the table begins.
    pub fn place(&self) -> Place<'t> {
        Place { source: self.source, key: self.path.clone(), at: self.at }
    }

    fn take(&mut self, key: &str) -> Option<(Place<'t>, DeValue<'t>)> {
        let i = self.entries.iter().position(|(k, _)| k.get_ref() == key)?;
        let (key_spanned, value) = self.entries.remove(i);
        let at = key_spanned.span().start;
        let key = self.key(key);
        Some((Place { source: self.source, key, at }, value.into_inner()))
    }

    fn key(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Where a key stands, if it is there.
    pub fn find(&self, key: &str) -> Option<Place<'t>> {
        let (found, _) = self.entries.iter().find(|(k, _)| k.get_ref() == key)?;
        Some(Place { source: self.source, key: self.key(key), at: found.span().start })
    }

    /// A text, if it is there.
    pub fn text(&mut self, key: &str) -> Result<Option<Placed<'t, String>>, ConfigError> {
        let Some((place, value)) = self.take(key) else { return Ok(None) };
        match value {
            DeValue::String(text) => Ok(Some(Placed { value: text.into_owned(), place })),
            // An override needs no quotes.
            DeValue::Integer(i) if place.is_override() => {
                Ok(Some(Placed { value: i.as_str().to_owned(), place }))
            }
            DeValue::Float(f) if place.is_override() => {
                Ok(Some(Placed { value: f.as_str().to_owned(), place }))
            }
            other => Err(place.error(format!("found {}, wanted a text in quotes", found(&other)))),
        }
    }

    /// A text that `T` can be read from, if it is there.
    pub fn parsed<T>(&mut self, key: &str) -> Result<Option<Placed<'t, T>>, ConfigError>
    where
        T: FromStr<Err: Display>,
    {
        let Some(Placed { value, place }) = self.text(key)? else { return Ok(None) };
        match value.parse() {
            Ok(value) => Ok(Some(Placed { value, place })),
            Err(e) => Err(place.error(e)),
        }
    }

    /// One of some words, if it is there.
    pub fn word<T: Copy>(
        &mut self,
        key: &str,
        words: &[(&str, T)],
    ) -> Result<Option<Placed<'t, T>>, ConfigError> {
        let Some(Placed { value, place }) = self.text(key)? else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == value) {
            Some(&(_, value)) => Ok(Some(Placed { value, place })),
            None => {
                let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                Err(place.error(not_one_of(&value, &words)))
            }
        }
    }

    /// A whole number from `min` to `max`, if it is there.
    pub fn integer(
        &mut self,
        key: &str,
        min: u64,
        max: u64,
    ) -> Result<Option<Placed<'t, u64>>, ConfigError> {
        let Some((place, value)) = self.take(key) else { return Ok(None) };
        match whole(&value).filter(|n| (min..=max).contains(n)) {
            Some(value) => Ok(Some(Placed { value, place })),
            None => Err(place.error(format!(
                "found {}, wanted a whole number from {min} to {max}",
                found(&value)
            ))),
        }
    }

    /// A whole number from `min` to `max` that may be negative, if it is there.
    pub fn signed(
        &mut self,
        key: &str,
        min: i64,
        max: i64,
    ) -> Result<Option<Placed<'t, i64>>, ConfigError> {
        let Some((place, value)) = self.take(key) else { return Ok(None) };
        let number = match &value {
            DeValue::Integer(i) => i64::from_str_radix(i.as_str(), i.radix()).ok(),
            _ => None,
        };
        match number.filter(|n| (min..=max).contains(n)) {
            Some(value) => Ok(Some(Placed { value, place })),
            None => Err(place.error(format!(
                "found {}, wanted a whole number from {min} to {max}",
                found(&value)
            ))),
        }
    }

    /// `true` or `false`, if it is there.
    pub fn truth(&mut self, key: &str) -> Result<Option<bool>, ConfigError> {
        let Some((place, value)) = self.take(key) else { return Ok(None) };
        match value {
            DeValue::Boolean(truth) => Ok(Some(truth)),
            other => Err(place.error(format!("found {}, wanted true or false", found(&other)))),
        }
    }

    /// A ratio from 0 to 1 in parts per million, if it is there.
    pub fn ratio_ppm(&mut self, key: &str) -> Result<Option<u32>, ConfigError> {
        let ratio = self.millionths(key, 1, "a ratio from 0 to 1, such as 0.01")?;
        Ok(ratio.map(|p| p.value as u32))
    }

    /// A number from 0 to `max` in millionths, if it is there.
    pub fn millionths(
        &mut self,
        key: &str,
        max: u32,
        wanted: &str,
    ) -> Result<Option<Placed<'t, u64>>, ConfigError> {
        let Some((place, value)) = self.take(key) else { return Ok(None) };
        let number = match &value {
            DeValue::Float(f) => f.as_str().parse::<f64>().ok(),
            DeValue::Integer(i) => i.as_str().parse::<f64>().ok(),
            _ => None,
        };
        match number.filter(|n| (0.0..=f64::from(max)).contains(n)) {
            Some(number) => Ok(Some(Placed { value: (number * 1e6).round() as u64, place })),
            None => Err(place.error(format!("found {}, wanted {wanted}", found(&value)))),
        }
    }

    /// Two whole numbers from `min` to `max` in order, if they are there.
    pub fn range(
        &mut self,
        key: &str,
        min: u32,
        max: u32,
    ) -> Result<Option<(u32, u32)>, ConfigError> {
        let Some((place, value)) = self.take(key) else { return Ok(None) };
        let numbers: Vec<Option<u32>> = match &value {
            DeValue::Array(array) => array.iter().map(|v| whole(v.get_ref())).collect(),
            _ => Vec::new(),
        };
        match numbers[..] {
            [Some(from), Some(to)] if min <= from && from <= to && to <= max => {
                Ok(Some((from, to)))
            }
            _ => Err(place.error(format!(
                "found {}, wanted two whole numbers from {min} to {max} in order, such as [30, 80]",
                found(&value)
            ))),
        }
    }

    /// A list of whole numbers from `min` to `max`, if it is there.
    pub fn integers(
        &mut self,
        key: &str,
        min: u64,
        max: u64,
    ) -> Result<Option<Placed<'t, Vec<u64>>>, ConfigError> {
        let Some((place, value)) = self.take(key) else { return Ok(None) };
        let wrong = |v: &DeValue| {
            let found = found(v);
            place.error(format!("found {found}, wanted a list of whole numbers, {min} to {max}"))
        };
        let DeValue::Array(array) = value else { return Err(wrong(&value)) };
        let mut numbers = Vec::new();
        for entry in array {
            let number = whole(entry.get_ref()).filter(|n| (min..=max).contains(n));
            numbers.push(number.ok_or_else(|| wrong(entry.get_ref()))?);
        }
        Ok(Some(Placed { value: numbers, place }))
    }

    /// A list of texts, if it is there.
    pub fn texts(&mut self, key: &str) -> Result<Option<Placed<'t, Vec<String>>>, ConfigError> {
        let Some((place, value)) = self.take(key) else { return Ok(None) };
        let wrong = |v: &DeValue| {
            place.error(format!("found {}, wanted a list of texts such as [\"app:mpv\"]", found(v)))
        };
        let DeValue::Array(array) = value else { return Err(wrong(&value)) };
        let mut texts = Vec::new();
        for entry in array {
            match entry.into_inner() {
                DeValue::String(text) => texts.push(text.into_owned()),
                other => return Err(wrong(&other)),
            }
        }
        Ok(Some(Placed { value: texts, place }))
    }

    /// A table, if it is there.
    pub fn table(&mut self, key: &str) -> Result<Option<Table<'t>>, ConfigError> {
        let Some((place, value)) = self.take(key) else { return Ok(None) };
        match value {
            DeValue::Table(table) => Ok(Some(self.inner(place, table))),
            other => Err(place.error(format!("found {}, wanted a table [{key}]", found(&other)))),
        }
    }

    /// A list of tables; empty if it is not there.
    pub fn tables(&mut self, key: &str) -> Result<Vec<Table<'t>>, ConfigError> {
        let Some((place, value)) = self.take(key) else { return Ok(Vec::new()) };
        let wrong =
            |v: &DeValue| place.error(format!("found {}, wanted a list of tables", found(v)));
        let DeValue::Array(array) = value else { return Err(wrong(&value)) };
        let mut tables = Vec::new();
        for entry in array {
            let at = entry.span().start;
            match entry.into_inner() {
                DeValue::Table(table) => {
                    tables.push(self.inner(Place { at, ..place.clone() }, table));
                }
                other => return Err(wrong(&other)),
            }
        }
        Ok(tables)
    }

    fn inner(&self, place: Place<'t>, table: DeTable<'t>) -> Table<'t> {
        Table { source: self.source, path: place.key, at: place.at, entries: entries(table) }
    }

    /// The error that a key is missing, or the one that was probably meant is misspelt.
    pub fn missing(&self, key: &str, wanted: &str) -> ConfigError {
        let slips = |found: &str| strsim::osa_distance(found, key);
        let near = self.entries.iter().filter(|(k, _)| slips(k.get_ref()) <= slips_max(key));
        if let Some((found, _)) = near.min_by_key(|(k, _)| slips(k.get_ref())) {
            let what = format!("this key is unknown; did you mean `{key}`?");
            return self.source.error(found.span().start, &self.key(found.get_ref()), what);
        }
        self.source.error(self.at, &self.key(key), format!("it is missing; wanted {wanted}"))
    }

    /// Refuses the first key that nobody took.
    pub fn finish(self, allowed: &[&str]) -> Result<(), ConfigError> {
        let Some((key, _)) = self.entries.iter().min_by_key(|(k, _)| k.span().start) else {
            return Ok(());
        };
        let what = format!("this key is unknown; {}", choices(key.get_ref(), allowed));
        Err(self.source.error(key.span().start, &self.key(key.get_ref()), what))
    }
}

/// Says that `word` is none of `words`, and which was probably meant.
pub fn not_one_of(word: &str, words: &[&str]) -> String {
    format!("found `{word}`; {}", choices(word, words))
}

fn choices(word: &str, words: &[&str]) -> String {
    let near = words
        .iter()
        .map(|w| (strsim::osa_distance(word, w), *w))
        .filter(|(slips, _)| *slips <= slips_max(word))
        .min();
    let hint = near.map_or(String::new(), |(_, w)| format!("; did you mean `{w}`?"));
    let listed = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
    format!("allowed are {listed}{hint}")
}

/// How much a word may differ from what was meant: one slip, and one more for every four letters.
fn slips_max(word: &str) -> usize {
    1 + word.chars().count() / 4
}

fn whole<T: TryFrom<u64>>(value: &DeValue<'_>) -> Option<T> {
    let DeValue::Integer(i) = value else { return None };
    u64::from_str_radix(i.as_str(), i.radix()).ok()?.try_into().ok()
}

fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the text \"{text}\""),
        DeValue::Integer(i) => format!("the number {}", i.as_str()),
        DeValue::Float(f) => format!("the number {}", f.as_str()),
        DeValue::Boolean(b) => format!("{b}"),
        DeValue::Datetime(d) => format!("the date {d}"),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
