//! The modules of a crate form no circles: among the modules of one directory, if `a` uses `b`,
//! directly or through others, `b` does not use `a`.
//!
//! A path in the code of `crate::a::b` to `crate::a::c::d` is a use of `c` by `b`; a path to
//! `crate::e` is a use of `e` by `a`. A module and the modules within it may use each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, bail};

use crate::phrases::{TESTS, files, read};
use crate::root;

/// The names of a module and of its parents, from the crate's root.
type Module = Vec<String>;
/// For each module of a directory, the modules that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Finds circles in every crate.
pub(crate) fn run() -> Result<()> {
    let mut faults = Vec::new();
    for entry in std::fs::read_dir(root().join("crates"))? {
        let dir = entry?.path();
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let crate_root = dir.join("src");
        let mut sources = Vec::new();
        for path in files(&crate_root, "rs")? {
            let Some(module) = module_of(path.strip_prefix(&crate_root)?) else { continue };
            sources.push((module, read(&path)?));
        }
        let circles = circles(&sources);
        faults.extend(circles.iter().map(|circle| format!("crates/{name}: {circle}")));
    }
    faults.sort();
    if !faults.is_empty() {
        bail!("modules that use each other in circles:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// The module of a file below `src`; `None` for tests and fuzz targets, which may use whatever they test.
fn module_of(path: &Path) -> Option<Module> {
    let mut module: Module =
        path.components().map(|c| c.as_os_str().to_string_lossy().into_owned()).collect();
    let file = module.pop()?;
    match file.strip_suffix(".rs")? {
        "mod" | "lib" | "main" => {}
        name => module.push(name.to_owned()),
    }
    (!module.iter().any(|name| name == "tests" || name == "fuzz")).then_some(module)
}

/// Each circle as `directory: a → b → a`, once.
fn circles(sources: &[(Module, String)]) -> Vec<String> {
    let modules: BTreeSet<&Module> = sources.iter().map(|(module, _)| module).collect();
    let mut by_directory: BTreeMap<Module, Uses> = BTreeMap::new();
    for (module, text) in sources {
        let code: String = text
            .split(TESTS)
            .next()
            .unwrap_or_default()
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .flat_map(|line| [line, "\n"])
            .collect();
        for path in paths(&code) {
            let Some(target) = resolve(module, &path, &modules) else { continue };
            let common = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
            let (Some(from), Some(to)) = (module.get(common), target.get(common)) else { continue };
            let uses = by_directory.entry(module[..common].to_vec()).or_default();
            uses.entry(from.clone()).or_default().insert(to.clone());
        }
    }
    let mut found = Vec::new();
    for (directory, uses) in &by_directory {
        let mut seen = BTreeSet::new();
        for start in uses.keys() {
            let Some(circle) = shortest_circle(uses, start) else { continue };
            let members: BTreeSet<String> = circle.iter().cloned().collect();
            if seen.insert(members) {
                found.push(format!("{}: {}", directory.join("::"), circle.join(" → ")));
            }
        }
    }
    found
}

/// The deepest module that a path leads to; `None` outside the crate.
fn resolve(from: &Module, path: &[String], modules: &BTreeSet<&Module>) -> Option<Module> {
    let (mut target, mut rest) = match path.first()?.as_str() {
        "crate" => (Module::new(), &path[1..]),
        "self" | "super" => (from.clone(), path),
        _ => return None,
    };
    while let Some(("self" | "super", more)) =
        rest.split_first().map(|(name, more)| (name.as_str(), more))
    {
        if rest[0] == "super" {
            target.pop()?;
        }
        rest = more;
    }
    for name in rest {
        target.push(name.clone());
        if !modules.contains(&target) {
            target.pop();
            break;
        }
    }
    Some(target)
}

/// The paths that begin with `crate`, `self` or `super`; one for each name within braces.
fn paths(code: &str) -> Vec<Vec<String>> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let begins = matches!(tokens[i], "crate" | "self" | "super")
            && tokens.get(i + 1) == Some(&"::")
            && (i == 0 || tokens[i - 1] != "::");
        i = match begins {
            true => read_path(&tokens, i, &mut Vec::new(), &mut found),
            false => i + 1,
        };
    }
    found
}

/// Reads a path at a token; returns the index of the next token.
fn read_path(
    tokens: &[&str],
    mut i: usize,
    path: &mut Vec<String>,
    found: &mut Vec<Vec<String>>,
) -> usize {
    let before = path.len();
    while let Some(&token) = tokens.get(i) {
        if token == "{" {
            i += 1;
            while let Some(&token) = tokens.get(i).filter(|token| **token != "}") {
                i = if token == "," { i + 1 } else { read_path(tokens, i, path, found) };
            }
            path.truncate(before);
            return i + 1;
        }
        path.push(token.to_owned());
        i += 1;
        if tokens.get(i) != Some(&"::") {
            break;
        }
        i += 1;
    }
    // `a::b as c`
    if tokens.get(i) == Some(&"as") {
        i += 2;
    }
    found.push(path.clone());
    path.truncate(before);
    i
}

/// Names, `::` and single other characters.
fn tokens(code: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            c => c.len_utf8(),
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// The shortest path of uses from a module back to itself.
fn shortest_circle(uses: &Uses, start: &str) -> Option<Vec<String>> {
    let mut ways = vec![vec![start.to_owned()]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for next in way.last().and_then(|last| uses.get(last)).into_iter().flatten() {
                let mut way = way.clone();
                way.push(next.clone());
                if next == start {
                    return Some(way);
                }
                if seen.insert(next.clone()) {
                    longer.push(way);
                }
            }
        }
        ways = longer;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sources: &[(&str, &str)]) -> Vec<String> {
        let module = |name: &str| match name {
            "" => Module::new(),
            name => name.split("::").map(str::to_owned).collect(),
        };
        let sources: Vec<_> =
            sources.iter().map(|(name, code)| (module(name), (*code).to_owned())).collect();
        circles(&sources)
    }

    #[test]
    fn circles_are_found_through_others() {
        let line = [("a", "use crate::b::X;"), ("b", "crate::c::y()"), ("c", "")];
        assert!(found(&line).is_empty());
        let circle = [("a", "use crate::b;"), ("b", "use super::c;"), ("c", "crate::a::z")];
        assert_eq!(found(&circle), [": a → b → c → a"]);
    }

    #[test]
    fn circles_are_found_in_each_directory_and_behind_braces() {
        let deep = [
            ("a", ""),
            ("a::b", "use crate::{d, a::{c::X as Y, e}};"),
            ("a::c", "use super::b::Z;"),
            ("a::e", ""),
            ("d", ""),
        ];
        assert_eq!(found(&deep), ["a: b → c → b"]);
    }

    #[test]
    fn a_module_and_what_lies_within_it_may_use_each_other() {
        let within = [("a", "mod b; self::b::f()"), ("a::b", "use super::Z; use crate::a::Y;")];
        assert!(found(&within).is_empty());
        let comment = [("a", "// crate::b\nuse crate::b;"), ("b", "/// [`crate::a::X`]")];
        assert!(found(&comment).is_empty());
    }
}
