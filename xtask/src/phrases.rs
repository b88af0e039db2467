//! Phrases to avoid: metaphors and translated idiom, in string literals and comments of the crates, in the README
//! and in the documents.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::root;

/// In lower case; the spaces prevent matches within words.
const AVOIDED: &[&str] = &[
    "whoever",
    "nobody",
    "somebody",
    "everybody",
    " shall ",
    "thereof",
    "stands there",
    "so many",
    "so much",
    " none of ",
    "had better",
    "nothing of fairweir",
    "cannot be told",
    "is none of",
];

/// The beginning of a module's tests, whose strings are not for users.
pub(crate) const TESTS: &str = "#[cfg(test)]\nmod tests";

/// Finds avoided phrases.
pub(crate) fn run() -> Result<()> {
    let mut faults = Vec::new();
    for path in files(&root().join("crates"), "rs")? {
        let shown = path.strip_prefix(root()).unwrap_or(&path);
        let text = read(&path)?;
        for (line, comment) in comments(&text) {
            check(shown, line, &comment, &mut faults);
        }
        let is_test =
            shown.components().any(|c| c.as_os_str() == "tests" || c.as_os_str() == "benches");
        if is_test || shown.ends_with("tests.rs") {
            continue;
        }
        for (line, literal) in literals(text.split(TESTS).next().unwrap_or_default()) {
            check(shown, line, &literal, &mut faults);
        }
    }
    let bpf = root().join("crates/linux/bpf");
    for path in [files(&bpf, "c")?, files(&bpf, "h")?].concat() {
        let shown = path.strip_prefix(root()).unwrap_or(&path);
        for (line, comment) in comments(&read(&path)?) {
            check(shown, line, &comment, &mut faults);
        }
    }
    let mut documents = files(&root().join("docs"), "md")?;
    documents.push(root().join("README.md"));
    for path in documents {
        let shown = path.strip_prefix(root()).unwrap_or(&path);
        for (i, line) in read(&path)?.lines().enumerate() {
            check(shown, i + 1, line, &mut faults);
        }
    }
    if !faults.is_empty() {
        bail!("phrases to avoid (xtask/src/phrases.rs):\n  {}", faults.join("\n  "));
    }
    Ok(())
}

fn check(path: &Path, line: usize, text: &str, faults: &mut Vec<String>) {
    let text = text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    let text = format!(" {text} ");
    for phrase in AVOIDED.iter().filter(|phrase| text.contains(*phrase)) {
        faults.push(format!("{}:{line}: `{}`", path.display(), phrase.trim()));
    }
}

/// Consecutive comment lines, each run joined into one text, with its first line: a phrase may be
/// split between two lines.
pub(crate) fn comments(code: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut next = 0;
    for (i, line) in code.lines().enumerate() {
        let line = line.trim();
        let Some(start) = ["///", "//!", "//", "/*", "*"].iter().find(|s| line.starts_with(**s))
        else {
            continue;
        };
        let text = line[start.len()..].trim_end_matches("*/");
        match found.last_mut() {
            Some((_, joined)) if next == i && !joined.is_empty() => {
                joined.push_str(text);
                joined.push(' ');
            }
            _ => found.push((i + 1, format!("{text} "))),
        }
        next = i + 1;
    }
    found
}

/// String literals outside comments, each with its first line.
fn literals(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (i, line) in code.lines().enumerate() {
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match (&mut open, c) {
                (Some((_, text)), '\\') => text.extend(chars.next()),
                (Some(_), '"') => found.extend(open.take()),
                (Some((_, text)), c) => text.push(c),
                (None, '/') if chars.peek() == Some(&'/') => break,
                // A character such as '"'; a lifetime has no second quote there.
                (None, '\'') => {
                    let rest: String = chars.clone().take(3).collect();
                    let quote = if rest.starts_with('\\') { 2 } else { 1 };
                    if rest.chars().nth(quote) == Some('\'') {
                        chars.nth(quote);
                    }
                }
                (None, '"') => open = Some((i + 1, String::new())),
                (None, _) => {}
            }
        }
        if let Some((_, text)) = &mut open {
            text.push(' ');
        }
    }
    found
}

pub(crate) fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_found_and_comments_are_not() {
        let code = "let a = \"one \\\" two\"; // \"no\"\nlet b = '\"'; let c: &'a str = \"three \\\n    \
                    four\";\n/// \"nobody\"\n";
        let found = literals(code);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0], (1, "one \" two".to_owned()));
        assert!(found[1].0 == 2 && found[1].1.starts_with("three "), "{found:?}");
        let mut faults = Vec::new();
        check(Path::new("x"), 7, "Nobody knows", &mut faults);
        assert_eq!(faults, ["x:7: `nobody`"]);
        let found = comments("/// so\n/// many\nfn a() {}\n/* b\n * c */\n");
        assert_eq!(found, [(1, " so  many ".to_owned()), (4, " b  c  ".to_owned())]);
    }
}
