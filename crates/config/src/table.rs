//! Reads a TOML table key by key, so that every error can name the line, the key and what is allowed.
//!
//! The keys of a table are taken one by one. [`Table::finish`] refuses the remaining keys, and lists the keys that the
//! reader has asked for as allowed. So a reader asks for every possible key, even if only some combinations are valid.
//! Derived deserialisers are not used: they report the place of a value with a wrong type, but not of one with a wrong
//! meaning.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::rc::Rc;
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::FileKind;
use crate::error::{ConfigError, Hint, Origin};
use crate::mistakes::{GUESSES, How, Mends, guessed, unknown};
use crate::overrides::Override;
use crate::words::{choices, nearest, not_one_of};

/// A document: turns places in the text into lines.
#[derive(Clone, Copy)]
pub struct Source<'t> {
    text: &'t str,
    file: &'t str,
    overrides: &'t [Override],
    /// Whether messages may contain parts of the text; see [`crate::file`].
    is_shown: bool,
    /// For each line of the text, the line of `file` from which it was made; `None` if the text is that of the file.
    lines: Option<&'t [usize]>,
    /// Places that are treated as right.
    mends: Option<&'t Mends>,
}

impl<'t> Source<'t> {
    /// A document with this text; `file` is the file name in errors.
    pub fn new(text: &'t str, file: &'t str, overrides: &'t [Override]) -> Self {
        Source { text, file, overrides, is_shown: true, lines: None, mends: None }
    }

    /// The same document, made from another form of the file. Errors name these lines, one for each
    /// line of the text.
    pub(crate) fn made_from(self, lines: &'t [usize]) -> Self {
        Source { lines: Some(lines), ..self }
    }

    /// The same document, with these places treated as right: see [`mistakes`](crate::mistakes).
    pub fn mended(self, mends: Option<&'t Mends>) -> Self {
        Source { mends, ..self }
    }

    fn mend(&self, at: usize, key: &str) -> Option<&'t How> {
        self.mends?.of(self.file, at, key)
    }

    /// The same document, whose text never appears in messages.
    pub(crate) fn hidden(self) -> Self {
        Source { is_shown: false, ..self }
    }

    /// The document's top table.
    ///
    /// # Errors
    /// [`ConfigError`] if the text is not TOML, or an override names nothing.
    pub fn top(self) -> Result<Table<'t>, ConfigError> {
        let (parsed, errors) = DeTable::parse_recoverable(self.text);
        // The parser's messages do not quote the text. Only the first per line is kept: others follow from it.
        let error = |e: toml::de::Error| {
            let at = e.span().map_or(0, |s| s.start);
            self.last_error(at, "syntax", e.message().replace('\n', ", "))
        };
        let mut first: Vec<ConfigError> = Vec::new();
        for error in errors.into_iter().take(SYNTAX_MAX).map(error) {
            if !first.iter().any(|other| other.origin() == error.origin()) {
                first.push(error);
            }
        }
        if let Some(error) = ConfigError::of_all(first) {
            return Err(error);
        }
        let mut document = parsed.into_inner();
        for (i, change) in self.overrides.iter().enumerate() {
            let at = self.text.len() + 1 + i;
            change.apply(&mut document, at).map_err(|what| self.error(at, "", what))?;
        }
        Ok(Table::new(self.start(), document))
    }

    /// The beginning of the document.
    pub fn start(self) -> Place<'t> {
        Place { source: self, key: "".into(), at: 0, is_mended: false }
    }

    fn error(self, at: usize, key: &str, what: impl Display) -> ConfigError {
        self.last_error(at, key, what).hinted(Hint { at, ..Hint::default() })
    }

    /// An error after which nothing else is reported.
    fn last_error(self, at: usize, key: &str, what: impl Display) -> ConfigError {
        let origin = self.origin(at);
        match origin {
            Origin::Line { .. } if !self.is_shown => ConfigError::new(origin, "", HIDDEN),
            _ => ConfigError::new(origin, key, what),
        }
    }

    /// The origin of a place; places beyond the end of the text are those of the overrides.
    fn origin(self, at: usize) -> Origin {
        let change = at.checked_sub(self.text.len() + 1).and_then(|i| self.overrides.get(i));
        if let Some(change) = change {
            return Origin::Override(change.clone());
        }
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let index = before.iter().filter(|&&b| b == b'\n').count();
        let line = self.lines.and_then(|lines| lines.get(index)).copied().unwrap_or(index + 1);
        Origin::Line { file: self.file.to_owned(), line }
    }
}

/// The most syntax errors that are read: a single wrong word can cause many.
const SYNTAX_MAX: usize = 100;

/// The message about a file whose text may not be shown.
pub(crate) const HIDDEN: &str =
    "not valid; details are not shown, because the calling user may not read this file";

type Entries<'t> = Vec<(Spanned<Cow<'t, str>>, Spanned<DeValue<'t>>)>;

fn entries(table: DeTable<'_>) -> Entries<'_> {
    table.into_iter().collect()
}

/// A table whose keys are taken one by one; the keys that remain at the end are unknown.
pub struct Table<'t> {
    source: Source<'t>,
    /// The table's own key, empty for the top table.
    path: Rc<str>,
    at: usize,
    /// Whether the table stands for one that is missing.
    is_mended: bool,
    entries: Entries<'t>,
    /// The keys that a reader has asked for, in order, and whether the table may have each.
    known: Vec<(Box<str>, bool)>,
    /// Keys with wrong values, and their places: they are treated as left out, or as having another value.
    wrong: Vec<(Box<str>, usize)>,
}

/// The place of a value, for errors that are found only later.
#[derive(Clone)]
pub struct Place<'t> {
    source: Source<'t>,
    key: Rc<str>,
    at: usize,
    /// Whether the value replaces a wrong or missing one.
    is_mended: bool,
}

/// Writes `FILE:LINE`.
impl Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.origin(self.at).fmt(f)
    }
}

impl Place<'_> {
    /// The file as the caller named it.
    pub fn file(&self) -> &str {
        self.source.file
    }

    /// The offset in the text, in bytes, for callers that keep many places and need few lines.
    pub fn offset(&self) -> usize {
        self.at
    }

    fn is_override(&self) -> bool {
        matches!(self.source.origin(self.at), Origin::Override(_))
    }

    /// An error at this place.
    pub fn error(&self, what: impl Display) -> ConfigError {
        let hint = Hint { at: self.at, is_caused: self.is_mended, ..Hint::default() };
        self.source.last_error(self.at, &self.key, what).hinted(hint)
    }
}

/// A value and its place.
pub struct Placed<'t, T> {
    /// The value.
    pub value: T,
    /// Its place.
    pub place: Place<'t>,
}

/// The texts of a list with their places, and the place of the list.
pub type Texts<'t> = Placed<'t, Vec<Placed<'t, String>>>;

impl<'t> Table<'t> {
    fn new(Place { source, key, at, is_mended }: Place<'t>, table: DeTable<'t>) -> Table<'t> {
        let (entries, known, wrong) = (entries(table), Vec::new(), Vec::new());
        let mut table = Table { source, path: key, at, is_mended, entries, known, wrong };
        if source.mends.is_some() {
            table.mend();
        }
        table
    }

    fn mend(&mut self) {
        let names = self.keys();
        for (key, value) in std::mem::take(&mut self.entries) {
            let (name, at) = (key.get_ref(), key.span().start);
            match self.source.mend(at, &self.key(name)) {
                None => self.entries.push((key, value)),
                Some(How::Meant(meant)) if !names.contains(meant) => {
                    let key = Spanned::new(key.span(), Cow::Owned(meant.clone()));
                    // The key that was meant can itself have a wrong value.
                    match self.source.mend(at, &self.key(meant)) {
                        None => self.entries.push((key, value)),
                        Some(_) => self.wrong.push((meant.as_str().into(), at)),
                    }
                }
                Some(_) => self.wrong.push((name.as_ref().into(), at)),
            }
        }
    }

    /// A value that replaces a wrong or missing one, if `make` can make one.
    fn stand_in<T>(
        &self,
        key: &str,
        make: impl FnOnce(&Place<'t>, usize) -> Option<T>,
    ) -> Option<Placed<'t, T>> {
        self.source.mends?;
        let path = self.key(key);
        let wrong = self.wrong.iter().find(|(wrong, _)| **wrong == *key).map(|(_, at)| *at);
        let mut places = wrong.into_iter().chain([self.at]);
        let (at, nth) = places.find_map(|at| match self.source.mend(at, &path)? {
            How::Replaced(nth) => Some((at, *nth)),
            How::Meant(_) | How::LeftOut => None,
        })?;
        let place = Place { source: self.source, key: path, at, is_mended: true };
        Some(Placed { value: make(&place, nth)?, place })
    }

    /// Where the table begins.
    pub fn place(&self) -> Place<'t> {
        let key = Rc::clone(&self.path);
        Place { source: self.source, key, at: self.at, is_mended: self.is_mended }
    }

    fn take(&mut self, key: &str) -> Option<(Place<'t>, DeValue<'t>)> {
        self.note(key, true);
        let i = self.entries.iter().position(|(k, _)| k.get_ref() == key)?;
        let (key_spanned, value) = self.entries.remove(i);
        let at = key_spanned.span().start;
        let key = self.key(key);
        let place = Place { source: self.source, key, at, is_mended: self.is_mended };
        Some((place, value.into_inner()))
    }

    /// Notes that a key was asked for; the first note about a key counts.
    fn note(&mut self, key: &str, is_allowed: bool) {
        if !self.known.iter().any(|(known, _)| **known == *key) {
            self.known.push((key.into(), is_allowed));
        }
    }

    /// Refuses a key that similar tables have, but not this one; `what` says why.
    ///
    /// # Errors
    /// [`ConfigError`] if the key is there.
    pub fn refuse<W: Display>(
        &mut self,
        key: &str,
        what: impl FnOnce() -> W,
    ) -> Result<(), ConfigError> {
        self.note(key, false);
        match self.find(key) {
            Some(place) => Err(place.error(what())),
            None => Ok(()),
        }
    }

    fn key(&self, key: &str) -> Rc<str> {
        if self.path.is_empty() { key.into() } else { format!("{}.{key}", self.path).into() }
    }

    /// The place of a key; `None` if the key is absent.
    pub fn find(&self, key: &str) -> Option<Place<'t>> {
        let (found, _) = self.entries.iter().find(|(k, _)| k.get_ref() == key)?;
        let (key, at) = (self.key(key), found.span().start);
        Some(Place { source: self.source, key, at, is_mended: self.is_mended })
    }

    /// The keys that have not been taken, for tables whose keys are names that the user chooses.
    pub fn keys(&self) -> Vec<String> {
        self.entries.iter().map(|(key, _)| key.get_ref().clone().into_owned()).collect()
    }

    /// Whether the key is present; it counts as known from now on.
    fn has(&mut self, key: &str) -> bool {
        self.note(key, true);
        self.entries.iter().any(|(k, _)| k.get_ref() == key)
    }

    /// A text, if the key is present.
    pub fn text(&mut self, key: &str) -> Result<Option<Placed<'t, String>>, ConfigError> {
        let Some((place, value)) = self.take(key) else {
            return Ok(self.stand_in(key, |place, nth| Some(guessed(unknown(place.at), nth))));
        };
        match value {
            DeValue::String(text) => Ok(Some(Placed { value: text.into_owned(), place })),
            // In an override a text needs no quotes.
            DeValue::Integer(i) if place.is_override() => {
                Ok(Some(Placed { value: i.as_str().to_owned(), place }))
            }
            DeValue::Float(f) if place.is_override() => {
                Ok(Some(Placed { value: f.as_str().to_owned(), place }))
            }
            other => {
                Err(place.error(format!("found {}, expected a text in quotes", found(&other))))
            }
        }
    }

    /// Refuses a number where `is_right` expects a text, and suggests the text that was probably meant.
    fn refuse_number(&self, key: &str, is_right: impl Fn(&str) -> bool) -> Result<(), ConfigError> {
        let entry = self.entries.iter().find(|(k, _)| k.get_ref() == key);
        let number = match entry.map(|(_, value)| value.get_ref()) {
            Some(DeValue::Integer(i)) => i.as_str(),
            Some(DeValue::Float(f)) => f.as_str(),
            _ => return Ok(()),
        };
        let texts = UNITS.map(|unit| format!("{number}{unit}"));
        match (self.find(key), texts.iter().find(|text| is_right(text))) {
            (Some(place), Some(text)) if !place.is_override() => {
                let what = "found the number";
                Err(place.error(format_args!(
                    "{what} {number}, expected a text in quotes such as \"{text}\""
                )))
            }
            _ => Ok(()),
        }
    }

    /// A text that `parse` accepts, if it is there.
    pub fn parsed_by<T>(
        &mut self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<Placed<'t, T>>, ConfigError> {
        self.refuse_number(key, |text| parse(text).is_ok())?;
        if !self.has(key) {
            return Ok(
                self.stand_in(key, |_, _| GUESSES.iter().find_map(|guess| parse(guess).ok()))
            );
        }
        let Some(Placed { value, place }) = self.text(key)? else { return Ok(None) };
        match parse(&value) {
            Ok(value) => Ok(Some(Placed { value, place })),
            Err(what) => Err(place.error(what)),
        }
    }

    /// A text, or a list of up to `most` different texts.
    ///
    /// # Errors
    /// [`ConfigError`] if one is wrong, or the list is empty.
    pub fn some_by(
        &mut self,
        key: &str,
        most: usize,
        parse: impl Fn(&str) -> Result<String, String>,
    ) -> Result<Option<Placed<'t, Vec<String>>>, ConfigError> {
        let is_list = |(k, value): &(Spanned<_>, Spanned<DeValue<'_>>)| {
            k.get_ref() == key && matches!(value.get_ref(), DeValue::Array(_))
        };
        if !self.entries.iter().any(is_list) {
            let one = self.parsed_by(key, parse)?;
            return Ok(one.map(|Placed { value, place }| Placed { value: vec![value], place }));
        }
        let Some(Placed { value: texts, place }) = self.texts(key)? else { return Ok(None) };
        let mut some = Vec::new();
        for text in texts {
            let value = parse(&text.value).map_err(|what| text.place.error(what))?;
            if some.contains(&value) {
                return Err(text.place.error(format_args!("`{value}` is listed twice")));
            }
            some.push(value);
        }
        if !(1..=most).contains(&some.len()) {
            return Err(place.error(format_args!("{} names; expected 1 to {most}", some.len())));
        }
        Ok(Some(Placed { value: some, place }))
    }

    /// Takes the key `version` of the main table of a file of this kind.
    ///
    /// # Errors
    /// [`ConfigError`] if the file is of another kind or of another version.
    pub fn version_of(&mut self, kind: FileKind, expected: u64) -> Result<(), ConfigError> {
        let has = |key: &str| self.find(key).is_some();
        if let Some((key, what)) = kind.other(has) {
            let place = self.find(key).unwrap_or_else(|| self.place());
            return Err(place.source.last_error(place.at, "", what));
        }
        self.version(expected)
    }

    /// Refuses a daemon's file where a scenario is expected.
    ///
    /// # Errors
    /// [`ConfigError`] if it is one.
    pub fn refuse_daemons_file(&self) -> Result<(), ConfigError> {
        let Some((key, kind)) = FileKind::of_daemon(|key| self.find(key).is_some()) else {
            return Ok(());
        };
        let place = self.find(key).unwrap_or_else(|| self.place());
        let what = format!(
            "this is a file of `fairweir {kind}`, not a scenario: `fairweir check` reads it"
        );
        Err(place.source.error(place.at, "", what))
    }

    /// Takes the key `version`, which every file has.
    ///
    /// # Errors
    /// [`ConfigError`] if it is missing or not `expected`.
    pub fn version(&mut self, expected: u64) -> Result<(), ConfigError> {
        let Some((place, value)) = self.take("version") else {
            if self.stand_in("version", |_, _| Some(())).is_some() {
                return Ok(());
            }
            let what = format_args!("`version = {expected}` at the top of the file");
            return Err(self.missing("version", what));
        };
        if whole(&value) == Some(expected) {
            return Ok(());
        }
        let newer = match whole::<u64>(&value) {
            Some(version) if version > expected => {
                "; the file is for a newer fairweir than this one"
            }
            _ => "",
        };
        let what = format!("found {}, allowed is {expected}{newer}", found(&value));
        Err(self.source.last_error(place.at, &place.key, what))
    }

    /// A text that can be parsed as `T`, if the key is present.
    pub fn parsed<T>(&mut self, key: &str) -> Result<Option<Placed<'t, T>>, ConfigError>
    where
        T: FromStr<Err: Display>,
    {
        self.refuse_number(key, |text| text.parse::<T>().is_ok())?;
        if !self.has(key) {
            return Ok(
                self.stand_in(key, |_, _| GUESSES.iter().find_map(|guess| guess.parse().ok()))
            );
        }
        let Some(Placed { value, place }) = self.text(key)? else { return Ok(None) };
        match value.parse() {
            Ok(value) => Ok(Some(Placed { value, place })),
            Err(e) => Err(place.error(e)),
        }
    }

    /// One of several words, if the key is present.
    pub fn word<T: Copy>(
        &mut self,
        key: &str,
        words: &[(&str, T)],
    ) -> Result<Option<Placed<'t, T>>, ConfigError> {
        if !self.has(key) {
            return Ok(self.stand_in(key, |_, _| words.first().map(|(_, value)| *value)));
        }
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
        let Some((place, value)) = self.take(key) else {
            return Ok(self.stand_in(key, |_, _| Some(min)));
        };
        match whole(&value).filter(|n| (min..=max).contains(n)) {
            Some(value) => Ok(Some(Placed { value, place })),
            None => {
                let number = value.as_str().and_then(|text| text.parse().ok());
                let quotes = number.filter(|n| (min..=max).contains(n));
                let hint = quotes.map(|n| format!("; write {n} without quotes"));
                Err(place.error(format!(
                    "found {}, expected a whole number from {min} to {max}{}",
                    found(&value),
                    hint.unwrap_or_default()
                )))
            }
        }
    }

    /// A whole number from `min` to `max` that may be negative, if it is there.
    pub fn signed(
        &mut self,
        key: &str,
        min: i64,
        max: i64,
    ) -> Result<Option<Placed<'t, i64>>, ConfigError> {
        let Some((place, value)) = self.take(key) else {
            return Ok(self.stand_in(key, |_, _| Some(min)));
        };
        let number = match &value {
            DeValue::Integer(i) => i64::from_str_radix(i.as_str(), i.radix()).ok(),
            _ => None,
        };
        match number.filter(|n| (min..=max).contains(n)) {
            Some(value) => Ok(Some(Placed { value, place })),
            None => Err(place.error(format!(
                "found {}, expected a whole number from {min} to {max}",
                found(&value)
            ))),
        }
    }

    /// `true` or `false`, if it is there.
    pub fn truth(&mut self, key: &str) -> Result<Option<bool>, ConfigError> {
        Ok(self.truth_placed(key)?.map(|p| p.value))
    }

    /// `true` or `false` and its place, if it is there.
    pub fn truth_placed(&mut self, key: &str) -> Result<Option<Placed<'t, bool>>, ConfigError> {
        let Some((place, value)) = self.take(key) else {
            return Ok(self.stand_in(key, |_, _| Some(false)));
        };
        match value {
            DeValue::Boolean(value) => Ok(Some(Placed { value, place })),
            other => {
                let hint = match other.as_str() {
                    Some("true" | "yes" | "on") => "; write true without quotes",
                    Some("false" | "no" | "off") => "; write false without quotes",
                    _ => "",
                };
                let found = found(&other);
                Err(place.error(format!("found {found}, expected true or false{hint}")))
            }
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
        let Some((place, value)) = self.take(key) else {
            return Ok(self.stand_in(key, |_, _| Some(0)));
        };
        let number = match &value {
            DeValue::Float(f) => f.as_str().parse::<f64>().ok(),
            DeValue::Integer(i) => i.as_str().parse::<f64>().ok(),
            _ => None,
        };
        match number.filter(|n| (0.0..=f64::from(max)).contains(n)) {
            Some(number) => Ok(Some(Placed { value: (number * 1e6).round() as u64, place })),
            None => Err(place.error(format!("found {}, expected {wanted}", found(&value)))),
        }
    }

    /// Two whole numbers from `min` to `max` in order, if they are there.
    pub fn range(
        &mut self,
        key: &str,
        min: u32,
        max: u32,
    ) -> Result<Option<(u32, u32)>, ConfigError> {
        let Some((place, value)) = self.take(key) else {
            return Ok(self.stand_in(key, |_, _| Some((min, max))).map(|range| range.value));
        };
        let numbers: Vec<Option<u32>> = match &value {
            DeValue::Array(array) => array.iter().map(|v| whole(v.get_ref())).collect(),
            _ => Vec::new(),
        };
        match numbers[..] {
            [Some(from), Some(to)] if min <= from && from <= to && to <= max => {
                Ok(Some((from, to)))
            }
            _ => Err(place.error(format!(
                "found {}, expected two whole numbers from {min} to {max} in order, such as [30, 80]",
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
        let Some((place, value)) = self.take(key) else {
            return Ok(self.stand_in(key, |_, _| Some(vec![min])));
        };
        let wrong = |v: &DeValue| {
            let found = found(v);
            place.error(format!("found {found}, expected a list of whole numbers, {min} to {max}"))
        };
        let DeValue::Array(array) = value else { return Err(wrong(&value)) };
        let mut numbers = Vec::new();
        for entry in array {
            let number = whole(entry.get_ref()).filter(|n| (min..=max).contains(n));
            numbers.push(number.ok_or_else(|| wrong(entry.get_ref()))?);
        }
        Ok(Some(Placed { value: numbers, place }))
    }

    /// A list of texts, each with its own place, if it is there.
    pub fn texts(&mut self, key: &str) -> Result<Option<Texts<'t>>, ConfigError> {
        let one = |place: &Place<'t>, nth| Placed {
            value: guessed("app:unknown".to_owned(), nth),
            place: place.clone(),
        };
        let Some((place, value)) = self.take(key) else {
            return Ok(self.stand_in(key, |place, nth| Some(vec![one(place, nth)])));
        };
        let wrong = |place: &Place<'t>, v: &DeValue| {
            let hint = v.as_str().map(|text| format!(" such as [\"{text}\"]")).unwrap_or_default();
            let found = found(v);
            place.error(format_args!("found {found}, expected a list of texts in quotes{hint}"))
        };
        let DeValue::Array(array) = value else { return Err(wrong(&place, &value)) };
        let mut texts = Vec::new();
        for entry in array {
            let place = Place { at: entry.span().start, ..place.clone() };
            match self.source.mend(place.at, &place.key) {
                None => {}
                Some(How::Replaced(nth)) => {
                    texts.push(one(&Place { is_mended: true, ..place }, *nth));
                    continue;
                }
                Some(How::Meant(_) | How::LeftOut) => {
                    self.wrong.push((key.into(), place.at));
                    continue;
                }
            }
            match entry.into_inner() {
                DeValue::String(text) => texts.push(Placed { value: text.into_owned(), place }),
                other => return Err(wrong(&place, &other)),
            }
        }
        Ok(Some(Placed { value: texts, place }))
    }

    /// A table, if it is there.
    pub fn table(&mut self, key: &str) -> Result<Option<Table<'t>>, ConfigError> {
        let Some((place, value)) = self.take(key) else {
            let empty = self.stand_in(key, |_, _| Some(DeTable::new()));
            return Ok(empty.map(|table| Table::new(table.place, table.value)));
        };
        match value {
            DeValue::Table(table) => Ok(Some(Table::new(place, table))),
            other => {
                Err(place.error(format!("found {}, expected a table `[{key}]`", found(&other))))
            }
        }
    }

    /// A list of tables; empty if it is not there.
    pub fn tables(&mut self, key: &str) -> Result<Vec<Table<'t>>, ConfigError> {
        let Some((place, value)) = self.take(key) else { return Ok(Vec::new()) };
        let wrong = |v: &DeValue| {
            place.error(format!("found {}, expected a list of tables `[[{key}]]`", found(v)))
        };
        let DeValue::Array(array) = value else { return Err(wrong(&value)) };
        let mut tables = Vec::new();
        for entry in array {
            let at = entry.span().start;
            if self.source.mend(at, &place.key) == Some(&How::LeftOut) {
                self.wrong.push((key.into(), at));
                // Names of groups too, since a group may now lack its flow.
                for key in ["name", "group"] {
                    let name = entry.get_ref().get(key).and_then(|name| name.get_ref().as_str());
                    if let (Some(name), Some(mends)) = (name, self.source.mends) {
                        mends.note_left_out(name);
                    }
                }
                continue;
            }
            match entry.into_inner() {
                DeValue::Table(table) => {
                    tables.push(Table::new(Place { at, ..place.clone() }, table));
                }
                other => return Err(wrong(&other)),
            }
        }
        Ok(tables)
    }

    /// The error for a missing key: either that it is missing, or that a similar key is misspelt.
    pub fn missing(&self, key: &str, expected: impl Display) -> ConfigError {
        let similar = self.entries.iter().filter(|(k, _)| nearest(k.get_ref(), [key]).is_some());
        if let Some((found, _)) = similar.min_by_key(|(k, _)| k.span().start) {
            let what = format_args!("unknown key (did you mean `{key}`?)");
            let error = self.source.error(found.span().start, &self.key(found.get_ref()), what);
            return error.meant(key);
        }
        let what = format!("missing; expected {expected}");
        let path = self.key(key);
        // A wrong key that could have been used instead.
        let is_other = |wrong: &str| what.contains(&format!("`{wrong}`"));
        let is_wrong = self.wrong.iter().any(|(wrong, _)| **wrong == *key || is_other(wrong));
        let is_caused = self.is_mended || is_wrong || self.source.mend(self.at, &path).is_some();
        let hint = Hint { at: self.at, is_missing: true, is_caused, ..Hint::default() };
        self.source.last_error(self.at, &path, what).hinted(hint)
    }

    /// Refuses the first key that nothing has asked for, and lists those that were asked for.
    ///
    /// # Errors
    /// [`ConfigError`]: the key, the one that was probably meant, and all that are allowed.
    pub fn finish(self) -> Result<(), ConfigError> {
        let Some((key, _)) = self.entries.iter().min_by_key(|(k, _)| k.span().start) else {
            return Ok(());
        };
        let allowed = self.known.iter().filter(|(_, is_allowed)| *is_allowed);
        let allowed: Vec<&str> = allowed.map(|(key, _)| &**key).collect();
        let other =
            SYNONYMS.iter().find(|(word, other)| *word == key.get_ref() && allowed.contains(other));
        let what = match other {
            Some((_, other)) => {
                format!("unknown key; use `[[{other}]]`; allowed: {}", allowed.join(", "))
            }
            None => format!("unknown key{}", choices(key.get_ref(), &allowed)),
        };
        let error = self.source.error(key.span().start, &self.key(key.get_ref()), what);
        Err(match nearest(key.get_ref(), allowed) {
            Some(meant) => error.meant(meant),
            None => error,
        })
    }
}

/// Tables with different names in files of hosts and of routers.
const SYNONYMS: [(&str, &str); 2] = [("group", "device"), ("device", "group")];

/// Units that may have been left out after a number. The first that makes the text valid is suggested.
const UNITS: [&str; 4] = ["ms", "mbit", "s", "MB"];

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
