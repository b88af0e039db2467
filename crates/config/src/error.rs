//! Errors in files, with their places.

use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;

use crate::overrides::Override;
use crate::text::acts_on_terminal;

/// An error on one line: `FILE:LINE: key: message`, and after `; ` the other mistakes of the file.
///
/// The message says what was found and what is allowed. The line has no control characters:
/// whatever a file, a name or a value contains, they are escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    origin: Origin,
    key: String,
    what: String,
    is_refused: bool,
    more: Option<Box<More>>,
}

/// Members that few errors have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct More {
    hint: Option<Hint>,
    /// Other mistakes of the file.
    others: Vec<ConfigError>,
}

/// Information for reading the file again as if this place were right: see [`mistakes`](crate::mistakes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint {
    /// The offset in the text, in bytes.
    pub(crate) at: usize,
    /// The last part of the key that was probably meant.
    pub(crate) meant: Option<String>,
    /// Whether a key is missing from the table at that place.
    pub(crate) is_missing: bool,
    /// Whether the error is only a consequence of a mend.
    pub(crate) is_caused: bool,
}

/// The place of a key or value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file as a whole.
    File {
        /// The path as the caller gave it.
        file: String,
    },
    /// A line of a file.
    Line {
        /// The path as the caller gave it.
        file: String,
        /// Counted from 1.
        line: usize,
    },
    /// A field of a table of comma-separated values.
    Field {
        /// The path as the caller gave it.
        file: String,
        /// Counted from 1.
        line: usize,
        /// Position of the field's first character, counted from 1.
        column: usize,
    },
    /// An override on the command line.
    Override(Override),
}

impl ConfigError {
    /// An error at `origin`; `key` is a path such as `flow.rtt`, or empty if the error concerns no
    /// single key.
    pub fn new(origin: Origin, key: impl Into<String>, what: impl fmt::Display) -> ConfigError {
        let (key, what) = (key.into(), what.to_string());
        ConfigError { origin, key, what, is_refused: false, more: None }
    }

    /// The errors as one, by file and line; `None` if there are none.
    pub fn of_all(mut errors: Vec<ConfigError>) -> Option<ConfigError> {
        let files: Vec<String> = errors.iter().map(|e| e.origin.file().to_owned()).collect();
        let place = |e: &ConfigError| {
            (files.iter().position(|file| *file == e.origin.file()), e.origin.line())
        };
        errors.sort_by_key(place);
        let mut errors = errors.into_iter();
        let mut first = errors.next()?;
        first.more.get_or_insert_default().others = errors.collect();
        Some(first)
    }

    /// This error and all others, each without its list of others.
    pub fn all(&self) -> impl Iterator<Item = ConfigError> {
        let alone = |error: &ConfigError| ConfigError { more: None, ..error.clone() };
        std::iter::once(alone(self)).chain(self.others().iter().map(alone))
    }

    fn others(&self) -> &[ConfigError] {
        self.more.as_ref().map_or(&[], |more| &more.others)
    }

    /// This error with information for a mend.
    pub(crate) fn hinted(mut self, hint: Hint) -> ConfigError {
        self.more.get_or_insert_default().hint = Some(hint);
        self
    }

    pub(crate) fn hint(&self) -> Option<&Hint> {
        self.more.as_ref()?.hint.as_ref()
    }

    /// This error with the key that was probably meant.
    pub(crate) fn meant(mut self, key: &str) -> ConfigError {
        if let Some(hint) = self.more.as_mut().and_then(|more| more.hint.as_mut()) {
            hint.meant = Some(key.to_owned());
        }
        self
    }

    /// An error that concerns a whole file.
    pub fn whole_file(path: &Path, what: impl fmt::Display) -> ConfigError {
        ConfigError::new(Origin::File { file: path.display().to_string() }, "", what)
    }

    /// A file or directory that cannot be read.
    pub(crate) fn unreadable(path: &Path, error: &io::Error) -> ConfigError {
        let is_refused = error.kind() == io::ErrorKind::PermissionDenied;
        let error = ConfigError::whole_file(path, format_args!("cannot read it: {}", plain(error)));
        ConfigError { is_refused, ..error }
    }

    /// Whether the file is not wrong, but the caller has no permission to read it.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Where the error is.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The key as a path such as `flow.rtt`; empty if the error concerns no single key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The message without its place.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// This error with more text at its end.
    pub(crate) fn with(mut self, more: &str) -> ConfigError {
        self.what.push_str(more);
        self
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfigError { origin, key, what, .. } = self;
        let separator = if key.is_empty() { "" } else { ": " };
        f.write_str(&one_line(&format!("{origin}: {key}{separator}{what}")))?;
        self.others().iter().try_for_each(|other| write!(f, "; {other}"))
    }
}

impl Origin {
    fn file(&self) -> &str {
        match self {
            Origin::File { file } | Origin::Line { file, .. } | Origin::Field { file, .. } => file,
            Origin::Override(_) => "",
        }
    }

    fn line(&self) -> usize {
        match self {
            Origin::Line { line, .. } | Origin::Field { line, .. } => *line,
            Origin::File { .. } | Origin::Override(_) => 0,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { file } => f.write_str(file),
            Origin::Line { file, line } => write!(f, "{file}:{line}"),
            Origin::Field { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Origin::Override(text) => write!(f, "--set {text}"),
        }
    }
}

/// The kernel's error message in lower case, without its number.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let number = text.rfind(" (os error ");
    let words = number.map_or(text.as_str(), |at| &text[..at]);
    let mut letters = words.chars();
    match (letters.next(), letters.clone().next()) {
        // Only a capitalised word is changed, not `I/O error`.
        (Some(first), Some('a'..='z')) => first.to_lowercase().chain(letters).collect(),
        _ => words.to_owned(),
    }
}

/// The text with every character escaped that could break a line or act on a terminal.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if acts_on_terminal(c) {
            // Writing to a String cannot fail.
            let _ = write!(line, "{}", c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_without_control_characters() {
        let origin = Origin::Line { file: "a\u{1b}[2J".into(), line: 3 };
        let error = ConfigError::new(origin, "x\ny", "found `\u{202e}\0`");
        assert_eq!(error.to_string(), "a\\u{1b}[2J:3: x\\ny: found `\\u{202e}\\u{0}`");
        let error = ConfigError::whole_file(Path::new("f"), "too large");
        assert_eq!(error.to_string(), "f: too large");
    }
}
