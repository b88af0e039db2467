//! Phrases that users must not read: metaphors and translated idiom, in string literals of the
//! crates, in the help texts of clap, in the README and in the documents.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::root;

/// In lower case, with the spaces that keep them from matching within words.
const AVOIDED: &[&str] = &[
    "whoever",
    "nobody",
    "somebody",
    "everybody",
    " shall ",
    "thereof",
    "stands there",
    "so many",
    "nothing of fairweir",
    "cannot be told",
    "is none of",
];

/// Where tests of a module begin: their strings are not for users.
pub(crate) const TESTS: &str = "#[cfg(test)]\nmod tests";

/// Finds avoided phrases.
pub(crate) fn run() -> Result<()> {
    let mut faults = Vec::new();
    for path in files(&root().join("crates"), "rs")? {
        let shown = path.strip_prefix(root()).unwrap_or(&path);
        let is_test =
            shown.components().any(|c| c.as_os_str() == "tests" || c.as_os_str() == "benches");
        if is_test || shown.ends_with("tests.rs") {
            continue;
        }
        let text = read(&path)?;
        let code = text.split(TESTS).next().unwrap_or_default();
        for (line, literal) in literals(code) {
            check(shown, line, &literal, &mut faults);
        }
        if shown.ends_with("cli.rs") {
            let help = code.lines().enumerate().filter(|(_, line)| line.trim().starts_with("///"));
            help.for_each(|(i, line)| check(shown, i + 1, line, &mut faults));
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
    let text = text.to_lowercase();
    for phrase in AVOIDED.iter().filter(|phrase| text.contains(*phrase)) {
        faults.push(format!("{}:{line}: `{}`", path.display(), phrase.trim()));
    }
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
                // A character, such as '"'; lifetimes have no second quote there.
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
    }
}
