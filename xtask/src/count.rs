//! Lines of Rust, with and without tests, and hand-written words of the documents.

use std::path::Path;

use anyhow::Result;

use crate::phrases::{TESTS, files, read};
use crate::root;

/// Prints a line for each crate and their sums.
pub(crate) fn run() -> Result<()> {
    let mut crates = vec![("xtask".to_owned(), root().join("xtask"))];
    for entry in std::fs::read_dir(root().join("crates"))? {
        let dir = entry?.path();
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        crates.push((name, dir));
    }
    crates.sort();
    println!("{:<12} {:>8} {:>8} {:>8}", "crate", "code", "comments", "tests");
    let mut sums = Lines::default();
    for (name, dir) in crates {
        let mut lines = Lines::default();
        for path in files(&dir, "rs")? {
            lines.add(path.strip_prefix(&dir)?, &read(&path)?);
        }
        lines.print(&name);
        sums.code += lines.code;
        sums.comments += lines.comments;
        sums.tests += lines.tests;
    }
    sums.print("all");
    let documents = crate::documents::count()?;
    for (folder, words) in &documents {
        println!("{folder:<24} {words:>8} words");
    }
    println!("{:<24} {:>8} words", "all documents", documents.values().sum::<usize>());
    Ok(())
}

/// Lines that are not empty.
#[derive(Debug, Default, PartialEq)]
struct Lines {
    /// Outside tests, without comments.
    code: usize,
    /// The part of `code`: lines with only a comment.
    comments: usize,
    /// Tests, fuzz targets and benches, with their comments.
    tests: usize,
}

impl Lines {
    fn add(&mut self, path: &Path, text: &str) {
        let is_test = path.components().any(|c| {
            matches!(
                c.as_os_str().to_string_lossy().as_ref(),
                "tests" | "benches" | "tests.rs" | "fuzz.rs"
            )
        });
        let (code, tests) = match text.find(TESTS) {
            _ if is_test => ("", text),
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        for line in code.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match line.starts_with("//") {
                true => self.comments += 1,
                false => self.code += 1,
            }
        }
        self.tests += tests.lines().filter(|line| !line.trim().is_empty()).count();
    }

    fn print(&self, name: &str) {
        println!("{name:<12} {:>8} {:>8} {:>8}", self.code, self.comments, self.tests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_comments_and_tests_are_told_apart() {
        let mut lines = Lines::default();
        lines.add(Path::new("src/a.rs"), &format!("//! A\n\nfn a() {{}}\n{TESTS} {{\n}}\n"));
        assert_eq!(lines, Lines { code: 1, comments: 1, tests: 3 });
        lines.add(Path::new("src/a/tests.rs"), "// B\nfn b() {}\n");
        assert_eq!(lines, Lines { code: 1, comments: 1, tests: 5 });
    }
}
