//! The modules of the binary form no circles: a module that another uses does not use that one.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use crate::phrases::{TESTS, files, read};
use crate::root;

/// Which modules each one uses, by the name of its file or directory.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Finds circles.
pub(crate) fn run() -> Result<()> {
    let src = root().join("crates/fairweir/src");
    let mut uses = Uses::new();
    for path in files(&src, "rs")? {
        let shown = path.strip_prefix(&src).unwrap_or(&path);
        let Some(first) = shown.components().next() else { continue };
        let first = first.as_os_str().to_string_lossy();
        let module = first.strip_suffix(".rs").unwrap_or(&first);
        // The root declares and starts them all.
        if module == "main" {
            continue;
        }
        let text = read(&path)?;
        let code = text.split(TESTS).next().unwrap_or_default();
        let used = used(code).filter(|used| used != module);
        uses.entry(module.to_owned()).or_default().extend(used);
    }
    let circles: Vec<&String> = uses.keys().filter(|m| reached(&uses, m).contains(*m)).collect();
    if !circles.is_empty() {
        bail!("modules of crates/fairweir that use each other in circles: {circles:?}");
    }
    Ok(())
}

/// The modules behind `crate::`.
fn used(code: &str) -> impl Iterator<Item = String> + '_ {
    code.split("crate::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        rest[..end.unwrap_or(rest.len())].to_owned()
    })
}

/// What a module uses, directly or through others.
fn reached(uses: &Uses, module: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![module.to_owned()];
    while let Some(module) = open.pop() {
        for next in uses.get(&module).into_iter().flatten() {
            if reached.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_found_through_others() {
        let of = |pairs: &[(&str, &str)]| {
            let mut uses = Uses::new();
            for (from, code) in pairs {
                uses.insert((*from).to_owned(), used(code).collect());
            }
            uses
        };
        let line = of(&[("a", "use crate::b::X;"), ("b", "crate::c::y()"), ("c", "")]);
        assert!(!reached(&line, "a").contains("a"));
        let circle = of(&[("a", "use crate::b;"), ("b", "use crate::c;"), ("c", "crate::a::z")]);
        assert!(reached(&circle, "b").contains("b"));
    }
}
