//! All mistakes of a file in one answer.
//!
//! A reader stops at its first mistake. [`all`] notes that one and reads again as if the place were right, until the
//! reader comes through. A misspelt key counts as the one that was meant, a wrong or missing value as one that is
//! allowed ([`GUESSES`]); what cannot be mended so is left out, then the table around it. An error that only a mend
//! causes is not reported. Nothing of a file with a mistake is used.

use std::cell::RefCell;

use crate::error::{ConfigError, Origin};

/// The most mistakes that are reported.
pub const MISTAKES_MAX: usize = 20;

/// The most times that a file is read: each mistake takes one to three.
const ROUNDS: usize = 3 * MISTAKES_MAX;

/// Of a larger file, or of several, the first mistake is reported: to read it takes long.
const BYTES_MAX: usize = 1 << 20;

/// Values that stand for a wrong one; the first that its reader accepts.
pub(crate) const GUESSES: [&str; 10] = [
    "5ms",
    "30mbit",
    "60s",
    "1MB",
    "auto",
    "fairweir",
    "127.0.0.1:9115",
    "192.0.2.1",
    "192.0.2.0/24",
    "proxy",
];

/// What is mended in documents.
#[derive(Debug, Default)]
pub struct Mends {
    list: Vec<Mend>,
    /// Names of the tables that were left out: a word about one of them is no mistake.
    names: RefCell<Vec<String>>,
}

/// A mend of one place: of a key or an entry of a list, or of a key that its table lacks.
#[derive(Debug)]
struct Mend {
    file: String,
    at: usize,
    key: String,
    how: How,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The key is this one.
    Meant(String),
    /// The value is one that is allowed.
    Replaced,
    /// It is not there.
    LeftOut,
}

/// What an error tells about a mend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint {
    /// Where in the text.
    pub(crate) at: usize,
    /// The last part of the key that was probably meant.
    pub(crate) meant: Option<String>,
    /// A key is missing from the table at that place.
    pub(crate) is_missing: bool,
    /// A mend causes it.
    pub(crate) is_caused: bool,
}

impl Mends {
    /// How a place of a document is mended.
    pub(crate) fn of(&self, file: &str, at: usize, key: &str) -> Option<&How> {
        let found = self.list.iter().find(|m| m.at == at && m.key == key && m.file == file);
        found.map(|mend| &mend.how)
    }

    pub(crate) fn note_left_out(&self, name: &str) {
        self.names.borrow_mut().push(format!("`{name}`"));
    }

    /// Whether the error follows from a mend.
    fn cause(&self, error: &ConfigError) -> bool {
        let is_caused = error.hint().is_some_and(|hint| hint.is_caused);
        is_caused || self.names.borrow().iter().any(|name| error.what().contains(name.as_str()))
    }

    /// Mends what the error is about, in another way than before; false if there is none.
    fn add(&mut self, error: &ConfigError) -> bool {
        let (Origin::Line { file, .. }, Some(hint)) = (error.origin(), error.hint()) else {
            return false;
        };
        let mut tries = vec![(error.key().to_owned(), How::Replaced)];
        if let Some(meant) = &hint.meant {
            tries.insert(0, (error.key().to_owned(), How::Meant(meant.clone())));
        }
        match (hint.is_missing, error.key().rsplit_once('.')) {
            (true, Some((table, _))) => tries.push((table.to_owned(), How::LeftOut)),
            (true, None) => {}
            (false, _) => tries.push((error.key().to_owned(), How::LeftOut)),
        }
        let before = |key: &str| {
            let is_same = |m: &Mend| m.at == hint.at && m.key == key && m.file == *file;
            self.list.iter().position(is_same)
        };
        let tried = tries
            .iter()
            .rposition(|(key, how)| before(key).is_some_and(|i| self.list[i].how == *how));
        let Some((key, how)) = tries.into_iter().nth(tried.map_or(0, |i| i + 1)) else {
            return false;
        };
        match before(&key) {
            Some(i) => self.list[i].how = how,
            None => self.list.push(Mend { file: file.clone(), at: hint.at, key, how }),
        }
        true
    }
}

/// Reads files of `bytes` in all, or reports every mistake in them.
///
/// # Errors
/// [`ConfigError`]: the first mistake, and [`the others`](ConfigError::all), by file and line.
pub fn all<T>(
    bytes: usize,
    read: impl Fn(Option<&Mends>) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let mut error = match read(None) {
        Ok(value) => return Ok(value),
        Err(error) if bytes > BYTES_MAX => return Err(error),
        Err(error) => error,
    };
    let (mut mends, mut found) = (Mends::default(), Vec::new());
    for _ in 0..ROUNDS {
        if !mends.cause(&error) && !found.contains(&error) {
            found.push(error.clone());
        }
        if found.len() == MISTAKES_MAX || !mends.add(&error) {
            break;
        }
        match read(Some(&mends)) {
            Ok(_) => break,
            Err(next) => error = next,
        }
    }
    Err(ConfigError::of_all(found).unwrap_or(error))
}
