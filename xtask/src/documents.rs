//! Checks the documents: number of hand-written words, a first paragraph in each, and links with existing targets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::phrases::{files, read};
use crate::root;

/// Maximum of hand-written words in all documents, and in one.
const ALL_MAX: usize = 45_000;
const ONE_MAX: usize = 5_000;
/// Maximum for the README, and for a decision.
const README_MAX: usize = 1_200;
const DECISION_MAX: usize = 500;
/// Marks of a measurement, in a line with a digit. Measurements are kept in documents that commands
/// write, or with a command's output (docs/results); other documents link to them.
const MEASURED: &[&str] = &[
    "±",
    "one run",
    "two runs",
    "three runs",
    "runs had",
    "was measured",
    "were measured",
    "at the median",
    "of the median",
    "at a load of",
];
/// Words that report a measurement if a number follows.
const BEFORE_A_NUMBER: &[&str] = &["had ", "lost ", "took ", "instead of "];
/// Documents that commands write completely.
const GENERATED: &[&str] = &[
    "docs/reference/commands.md",
    "docs/results/measured.md",
    "docs/results/validation.md",
    "docs/results/validation-control.md",
    "docs/results/verifier.md",
];
/// Markers around the text that `fairweir figures` and `fairweir campaign` write into a document.
const BEGIN: &str = "<!-- figures: begin -->";
const END: &str = "<!-- figures: end -->";

/// Finds documents that are too long, have no first paragraph, report a measurement, or have a broken link.
pub(crate) fn run() -> Result<()> {
    let mut faults = Vec::new();
    let mut sum = 0;
    for (name, text) in all()? {
        let has = words(&text);
        if !GENERATED.contains(&name.as_str()) {
            sum += has;
            let allowed = match name.as_str() {
                "README.md" => README_MAX,
                _ if name.starts_with("docs/decisions/") => DECISION_MAX,
                _ => ONE_MAX,
            };
            if has > allowed {
                faults.push(format!("{name}: {has} words, allowed are {allowed}"));
            }
        }
        if !name.starts_with("docs/results/") {
            let typed = measured(&text);
            faults.extend(typed.map(|line| format!("{name}: a measured number is typed: {line}")));
        }
        if !has_first_paragraph(&text) {
            faults.push(format!("{name}: begins without a title and a paragraph"));
        }
        faults.extend(dead_links(&name, &text));
    }
    if sum > ALL_MAX {
        faults.push(format!("all documents: {sum} words, allowed are {ALL_MAX}"));
    }
    if !faults.is_empty() {
        bail!("documents (xtask/src/documents.rs):\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// Hand-written words by folder, and in total.
pub(crate) fn count() -> Result<BTreeMap<String, usize>> {
    let mut counted = BTreeMap::new();
    for (name, text) in all()?.into_iter().filter(|(name, _)| !GENERATED.contains(&name.as_str())) {
        let folder = name.rsplit_once('/').map_or("README.md", |(folder, _)| folder);
        *counted.entry(folder.to_owned()).or_default() += words(&text);
    }
    Ok(counted)
}

/// README and documents, by their paths from the root.
fn all() -> Result<Vec<(String, String)>> {
    let mut paths = files(&root().join("docs"), "md")?;
    paths.push(root().join("README.md"));
    let named = |path: PathBuf| {
        let name = path.strip_prefix(root())?.to_string_lossy().into_owned();
        Ok((name, read(&path)?))
    };
    paths.into_iter().map(named).collect()
}

/// Number of words outside code blocks and generated text. The bars of tables do not count.
fn words(text: &str) -> usize {
    let is_word = |word: &&str| word.contains(char::is_alphanumeric);
    prose(&written(text)).map(|line| line.split_whitespace().filter(is_word).count()).sum()
}

/// The text without generated parts.
fn written(text: &str) -> String {
    let mut written = text.to_owned();
    while let Some((before, rest)) = written.split_once(BEGIN) {
        written = before.to_owned() + rest.split_once(END).map_or("", |(_, after)| after);
    }
    written
}

/// Lines that report a measurement, recognised by certain words; other wordings are not found.
fn measured(text: &str) -> impl Iterator<Item = String> {
    let has_digit = |text: &str| text.contains(|c: char| c.is_ascii_digit());
    let is_number =
        |word: &str| word.trim_start_matches('.').starts_with(|c: char| c.is_ascii_digit());
    let is_report = |line: &&str| {
        let is_outcome = |before: &&&str| line.split(**before).skip(1).any(is_number);
        // A decimal without a leading zero, as in results; a rule is written as 0.04.
        let has_bare_decimal = line
            .split(|c: char| c.is_whitespace() || c == '(')
            .any(|word| word.strip_prefix('.').is_some_and(is_number));
        // A quoted line is an example of a program's output.
        let is_quoted = line.starts_with('>');
        let is_measured = has_digit(line) && MEASURED.iter().any(|m| line.contains(m))
            || BEFORE_A_NUMBER.iter().any(|b| is_outcome(&b))
            || has_bare_decimal;
        is_measured && !is_quoted
    };
    let found: Vec<_> = prose(&written(text)).filter(is_report).map(str::to_owned).collect();
    found.into_iter()
}

/// Lines outside code blocks.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

fn has_first_paragraph(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let title = lines.next().is_some_and(|line| line.starts_with("# "));
    let is_paragraph =
        |line: &str| !["#", "|", "- ", "```", "![", "<"].iter().any(|s| line.starts_with(s));
    title && lines.next().is_some_and(is_paragraph)
}

fn dead_links(name: &str, text: &str) -> Vec<String> {
    let dir = root().join(Path::new(name).parent().unwrap_or(Path::new("")));
    let mut dead = Vec::new();
    for target in prose(text).flat_map(links) {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let file = if path.is_empty() { root().join(name) } else { dir.join(path) };
        let leads = match std::fs::read_to_string(&file) {
            Ok(text) if !anchor.is_empty() => prose(&text).filter_map(slug).any(|s| s == anchor),
            // The target is a folder or a picture.
            _ => file.exists(),
        };
        if !leads {
            dead.push(format!("{name}: nothing at `{target}`"));
        }
    }
    dead
}

/// Targets of a line's links, without those outside the repository.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
}

/// The anchor of a heading, as GitHub makes it.
fn slug(line: &str) -> Option<String> {
    let heading = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    Some(heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_a_person_wrote_are_counted() {
        let code = "```sh\nmake run\n```\n";
        let text = format!("# One\n\nTwo.\n{code}{BEGIN}\n| x |\n{END}\n| 3 | – |\n");
        assert_eq!(words(&text), 3);
        assert_eq!(words("a\n<!-- figures: begin -->\nb\n"), 1);
    }

    #[test]
    fn a_measured_number_that_is_typed_is_found() {
        let planted = format!("Shares were 3.4 and 3.8 : 1 in two runs.\n{BEGIN}\n5 ± 1\n{END}\n");
        assert_eq!(measured(&planted).count(), 1);
        for outcome in
            ["It had .58 of it.", "The least is .64.", "63 ms instead of 10", "A call lost 4 %."]
        {
            assert_eq!(measured(outcome).count(), 1, "{outcome}");
        }
        for rule in
            ["The queue is at least two packets long, 5 ms.", "errors above 0.04", "file.1, v1.2"]
        {
            assert_eq!(measured(rule).count(), 0, "{rule}");
        }
    }

    #[test]
    fn a_document_begins_with_a_title_and_a_paragraph() {
        assert!(has_first_paragraph("# A\n\nFor users of b.\n"));
        for text in ["# A\n\n## B\n", "# A\n\n| b |\n", "For users.\n", "# A\n\n```sh\n", ""] {
            assert!(!has_first_paragraph(text), "{text}");
        }
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        assert_eq!(
            slug("## `[[plan]]`: a plan, its rates").as_deref(),
            Some("plan-a-plan-its-rates")
        );
        let text = "[a](xtask/Cargo.toml) [b](#one) [c](https://example.org/x)\n# One\n";
        let there: Vec<&str> = links(text.lines().next().unwrap()).collect();
        assert_eq!(there, ["xtask/Cargo.toml", "#one"]);
        assert!(
            dead_links("README.md", "[a](xtask/Cargo.toml)\n```\n[b](none.md)\n```\n").is_empty()
        );
        let dead = dead_links("README.md", "[a](none.md) and [b](docs/README.md#none)\n");
        assert_eq!(dead.len(), 2, "{dead:?}");
    }
}
