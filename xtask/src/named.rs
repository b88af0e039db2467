//! Checks that each path named in a comment or a document exists.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};

use crate::phrases::{files, read};
use crate::root;

/// The endings of paths of this repository.
const ENDINGS: &[&str] = &[
    "rs", "c", "h", "md", "toml", "ts", "js", "json", "sh", "html", "css", "service", "svg", "png",
];
/// The first parts of paths of this repository.
const BEGINNINGS: &[&str] = &[
    "crates",
    "docs",
    "dist",
    "scenarios",
    "web",
    "xtask",
    "src",
    "bpf",
    "tests",
    "fuzz",
    "decisions",
    "papers",
    "pictures",
];

/// Finds paths that do not exist.
pub(crate) fn run() -> Result<()> {
    let known: BTreeSet<String> = all_files()?;
    let mut faults = Vec::new();
    for file in &known {
        let kind = Path::new(file).extension().and_then(|e| e.to_str()).unwrap_or_default();
        let is_comment = |line: &str| {
            let line = line.trim_start();
            let begins = ["//", "#", "*", "/*"].iter().any(|start| line.starts_with(start));
            begins && !line.starts_with("#include")
        };
        let text = match kind {
            "rs" | "c" | "h" | "md" | "toml" => read(&root().join(file))?,
            _ => continue,
        };
        let lines = text.lines().enumerate().filter(|(_, line)| kind == "md" || is_comment(line));
        for (i, line) in lines {
            let missing = paths(line).filter(|path| !is_there(path, file, &known));
            faults.extend(missing.map(|path| format!("{file}:{}: {path}", i + 1)));
        }
    }
    if !faults.is_empty() {
        bail!("paths that do not exist:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// Words that look like a path of this repository: with a directory and a known ending.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    line.split(move |c| !is_part(c)).map(|word| word.trim_end_matches('.')).filter(|word| {
        let ends = word.rsplit_once('.').is_some_and(|(_, end)| ENDINGS.contains(&end));
        let first = word.trim_start_matches("../").split('/').next().unwrap_or_default();
        // `scenarios/NAME.toml` stands for any scenario.
        ends && word.contains('/') && BEGINNINGS.contains(&first) && !word.contains("NAME")
    })
}

/// Whether a file exists: relative to the root, to the naming file's directory, or, for a path
/// within a crate such as `src/bpf/abi.rs`, to the root of a crate.
fn is_there(path: &str, file: &str, known: &BTreeSet<String>) -> bool {
    let bare = path.trim_start_matches("../");
    let inside = format!("/{bare}");
    known.contains(bare) || {
        let own = file.split('/').take(2).collect::<Vec<_>>().join("/");
        known.contains(&format!("{own}/{bare}"))
            || known.iter().any(|known| known.ends_with(&inside))
    }
}

/// The files of the repository, from its root.
fn all_files() -> Result<BTreeSet<String>> {
    let output = std::process::Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let listed = output.ok().filter(|output| output.status.success());
    if let Some(listed) = listed {
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        let there = text.lines().filter(|file| root().join(file).is_file());
        return Ok(there.map(str::to_owned).collect());
    }
    // A tarball has no history: lists the directories that contain sources.
    let mut found = BTreeSet::new();
    for top in ["crates", "docs", "dist", "scenarios", "web", "xtask", "fuzz"] {
        for ending in ENDINGS {
            if root().join(top).is_dir() {
                for path in files(&root().join(top), ending)? {
                    found.insert(path.strip_prefix(root())?.to_string_lossy().into_owned());
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_in_text_and_looked_up_where_they_may_be() {
        let line = "/// See `crates/a/src/b.rs:12`, [docs](../docs/c.md), a.b/c and src/x/y.h.";
        let found: Vec<&str> = paths(line).collect();
        assert_eq!(found, ["crates/a/src/b.rs", "../docs/c.md", "src/x/y.h"]);
        let known = BTreeSet::from(["docs/c.md".to_owned(), "crates/a/src/b.rs".to_owned()]);
        assert!(is_there("../docs/c.md", "README.md", &known));
        assert!(is_there("src/b.rs", "crates/a/src/c.rs", &known));
        assert!(!is_there("src/x/y.h", "crates/a/src/c.rs", &known));
    }
}
