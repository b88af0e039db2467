//! Makes text safe for a terminal.
//!
//! Names and reasons come from files, from the network and from other users. A terminal acts on the
//! control characters in them: an escape sequence can set the window's title, move the cursor over
//! earlier lines, or type on behalf of the user. So everything that a command prints passes through
//! [`stdout`] or [`escaped`], which replace control characters by the escape of JSON, `\u001b`.
//! Printed JSON keeps its meaning.

use std::fmt::Write as _;
use std::io::{self, StdoutLock, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Standard output, where control characters other than line breaks and tabs are escaped.
pub fn stdout() -> Plain<StdoutLock<'static>> {
    Plain(io::stdout().lock())
}

/// Whether anything was written through [`stdout`] or another [`Plain`].
pub fn has_written() -> bool {
    HAS_WRITTEN.load(Ordering::Relaxed)
}

static HAS_WRITTEN: AtomicBool = AtomicBool::new(false);

/// `text` with control characters other than line breaks and tabs escaped.
pub fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut plain, c| {
        if is_escaped(c) {
            write!(plain, "\\u{:04x}", u32::from(c)).expect("invariant: a String takes all");
        } else {
            plain.push(c);
        }
        plain
    })
}

/// `text` escaped in the same way, and on one line.
pub fn on_one_line(text: &str) -> String {
    escaped(text).replace(['\n', '\t'], " ")
}

fn is_escaped(c: char) -> bool {
    acts_on_terminal(c) && !matches!(c, '\n' | '\t')
}

/// Whether a character is a control character, a line separator, or a mark that reorders the text around it. Source:
/// Unicode 16, general categories Cc, Zl and Zp; UAX #9, table of directional formatting characters.
pub(crate) fn acts_on_terminal(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A writer that escapes control characters; see [`stdout`].
#[derive(Debug)]
pub struct Plain<W>(W);

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        HAS_WRITTEN.store(true, Ordering::Relaxed);
        // Formatted text arrives in whole strings, so no character is split.
        self.0.write_all(escaped(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLE: &str = "a\u{1b}]0;title\u{7}b\u{9b}2Jc\u{202e}d\u{7f}\r";

    #[test]
    fn no_control_character_reaches_the_terminal() {
        let plain = escaped(TITLE);
        assert_eq!(plain, r"a\u001b]0;title\u0007b\u009b2Jc\u202ed\u007f\u000d");
        assert_eq!(escaped("straße →\tok\n"), "straße →\tok\n");
        assert_eq!(on_one_line("a\nb\tc\u{1b}"), r"a b c\u001b");
        let mut out = Plain(Vec::new());
        writeln!(out, "{TITLE} {}", 1).unwrap();
        assert_eq!(String::from_utf8(out.0).unwrap(), format!("{plain} 1\n"));
    }

    #[test]
    fn json_stays_the_same_json() {
        let value = serde_json::json!({ "name": TITLE });
        let mut out = Plain(Vec::new());
        write!(out, "{value}").unwrap();
        let read: serde_json::Value = serde_json::from_slice(&out.0).unwrap();
        assert_eq!(read, value);
    }
}
