//! What is wrong with a configuration, and where.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first thing that is wrong, on one line: `file:line: key: what was found, what is allowed`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(String);

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    file: Arc<PathBuf>,
    line: usize,
}

/// A value, and where the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

impl ConfigError {
    /// A file or directory that cannot be read.
    pub(super) fn unreadable(path: &Path, error: &io::Error) -> ConfigError {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "; `fairweir init` writes a first one",
            _ => "",
        };
        ConfigError::whole_file(path, format!("cannot read it: {error}{hint}"))
    }

    /// Something that has no line.
    pub(super) fn whole_file(path: &Path, message: String) -> ConfigError {
        ConfigError::one_line(format!("{}: {message}", path.display()))
    }

    /// What the user wrote may hold line breaks and other control characters, which would break
    /// the one line that is promised, or the terminal.
    fn one_line(text: String) -> ConfigError {
        let plain = |c: char| match c {
            c if c.is_control() => c.escape_default().to_string(),
            c => c.to_string(),
        };
        ConfigError(text.chars().map(plain).collect())
    }
}

impl Place {
    pub(super) fn new(file: &Path, line: usize) -> Place {
        Place { file: Arc::new(file.to_owned()), line }
    }

    /// The same file at another line.
    pub(super) fn at(&self, line: usize) -> Place {
        Place { file: Arc::clone(&self.file), line }
    }

    pub(super) fn error(&self, key: &str, message: impl fmt::Display) -> ConfigError {
        ConfigError::one_line(format!("{self}: {key}: {message}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// The known word that is most like `word`, if one is like it at all.
pub(crate) fn nearest<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    // One slip, and one more for every four letters.
    let slips_max = 1 + word.chars().count() / 4;
    known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(word, k), k))
        .filter(|&(slips, k)| slips <= slips_max && slips < k.chars().count())
        .min()
        .map(|(_, k)| k)
}

/// ` (did you mean `weight`?)`, or nothing.
pub(super) fn did_you_mean(word: &str, known: &[&str]) -> String {
    nearest(word, known.iter().copied())
        .map(|near| format!(" (did you mean `{near}`?)"))
        .unwrap_or_default()
}
