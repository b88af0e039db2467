//! The numbers that a header defines, as constants of Rust.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};

/// `#define NAME (4 * OTHER)` becomes `const NAME: u32 = (4 * OTHER);`; the type is `u64` if a number
/// in it ends in `ll`. Macros with arguments are left out.
pub(crate) fn of(path: &str) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let mut constants = String::new();
    for line in text.lines() {
        let line = line.split("/*").next().unwrap_or_default().trim();
        let define = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' '));
        if let Some((name, value)) = define.filter(|(name, _)| !name.contains('(')) {
            let (value, is_long) = without_suffixes(value);
            let kind = if is_long { "u64" } else { "u32" };
            writeln!(constants, "pub(crate) const {name}: {kind} = {value};")?;
        }
    }
    Ok(constants)
}

/// C writes `1u` where Rust writes `1`. Also whether a suffix was `ll`.
fn without_suffixes(expression: &str) -> (String, bool) {
    let (mut kept, mut is_long) = (String::new(), false);
    let mut is_number = false;
    for c in expression.trim().chars() {
        let is_word = c.is_ascii_alphanumeric() || c == '_';
        let begins = is_word && !kept.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        is_number = if begins { c.is_ascii_digit() } else { is_number && is_word };
        match c {
            'u' if is_number => {}
            'l' if is_number => is_long = true,
            _ => kept.push(c),
        }
    }
    (kept, is_long)
}
