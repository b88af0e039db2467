//! Rewrites sources so that constants become functions.

use std::collections::BTreeMap;

/// Sources by their path in the workspace.
pub(super) type Sources = BTreeMap<String, String>;

/// The directory of the modules in which constants are searched.
const CORE: &str = "crates/core/src/";
/// Types that can be changed: see mutant.rs.
const TYPES: [&str; 9] = ["u32", "u64", "u128", "usize", "i64", "Rate", "Bytes", "Span", "Part"];

/// A line `const NAME: TYPE = VALUE;`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Constant {
    path: String,
    word: String,
    kind: String,
    pub(super) value: String,
    /// Whether other files may use it.
    is_shared: bool,
}

impl Constant {
    /// The name with its module: `receiver/fairweir/link::DEEP`.
    pub(super) fn name(&self) -> String {
        let path = self.path.trim_start_matches(CORE).trim_end_matches(".rs");
        format!("{}::{}", path.trim_end_matches("/mod"), self.word)
    }

    fn parse(path: &str, line: &str) -> Option<Constant> {
        let (visibility, rest) = line.split_once("const ")?;
        let (word, rest) = rest.split_once(": ")?;
        let (kind, value) = rest.strip_suffix(';')?.split_once(" = ")?;
        let is_word =
            word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        let is_at_begin = visibility.is_empty() || visibility.starts_with("pub");
        let [path, word, kind, value] = [path, word, kind, value].map(str::to_owned);
        let is_shared = !visibility.is_empty();
        (is_word && is_at_begin).then_some(Constant { path, word, kind, value, is_shared })
    }

    /// Whether a file can use it: a file of the same module, of a module inside it, or, if the
    /// constant is shared, of the module around it.
    fn is_seen_in(&self, path: &str) -> bool {
        let module = self.path.trim_end_matches(".rs").trim_end_matches("/mod");
        let around = module.rsplit_once('/').map_or("", |(around, _)| around);
        let within = if self.is_shared { around } else { module };
        path == self.path || path.starts_with(&format!("{within}/"))
    }
}

/// The constants in some folders, tests left out.
pub(super) fn constants(sources: &Sources, folders: &[&str]) -> Vec<Constant> {
    let is_asked = |path: &str| {
        let inside = path.strip_prefix(CORE);
        !is_test(path) && inside.is_some_and(|p| folders.iter().any(|f| p.starts_with(f)))
    };
    let of = |(path, text): (&String, &String)| -> Vec<Constant> {
        text.lines().filter_map(|line| Constant::parse(path, line)).collect()
    };
    sources.iter().filter(|(path, _)| is_asked(path)).flat_map(of).collect()
}

fn is_test(path: &str) -> bool {
    path.ends_with("tests.rs") || path.contains("/tests/")
}

/// Turns the constants into functions. Those that cannot be functions stay; returns the reasons.
pub(super) fn rewrite(sources: &mut Sources, all: &[Constant]) -> BTreeMap<String, &'static str> {
    let mut kept = BTreeMap::new();
    for constant in all {
        let seen: Vec<&String> = sources
            .iter()
            .filter(|(path, text)| !is_test(path) && uses(constant, path, text))
            .map(|(path, _)| path)
            .collect();
        let is_length = |path: &&String| {
            let length = format!("; {}]", constant.word);
            sources[*path].contains(&length)
        };
        if !TYPES.contains(&constant.kind.as_str()) {
            kept.insert(constant.name(), "it is no number");
        } else if seen.iter().any(is_length) {
            kept.insert(constant.name(), "it is the length of an array");
        } else {
            let seen: Vec<String> = seen.into_iter().cloned().collect();
            for path in seen {
                if let Some(text) = sources.get_mut(&path) {
                    *text = rewritten(text, constant, path == constant.path);
                }
            }
        }
    }
    kept
}

/// Whether the constant's word in a file means this constant.
fn uses(constant: &Constant, path: &str, text: &str) -> bool {
    path == constant.path
        || (constant.is_seen_in(path)
            && imports(text).any(|line| replaced(line, &constant.word, "") != line))
}

/// The lines of `use` declarations.
fn imports(text: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    text.lines().filter(move |line| is_import(line, &mut is_inside))
}

fn is_import(line: &str, is_inside: &mut bool) -> bool {
    let code = line.trim_start();
    let begins = code.starts_with("use ") || (code.starts_with("pub") && code.contains(" use "));
    let is_import = *is_inside || begins;
    *is_inside = is_import && !code.contains(';');
    is_import
}

/// The text with a function in place of the constant, and calls of it.
fn rewritten(text: &str, constant: &Constant, is_own: bool) -> String {
    let Constant { word, kind, .. } = constant;
    let mut is_inside = false;
    let mut new = String::with_capacity(text.len());
    for line in text.lines() {
        let own = if is_own { Constant::parse(&constant.path, line) } else { None };
        if let Some(own) = own.filter(|own| own.word == *word) {
            let visibility = line.split_once("const ").map_or("", |(visibility, _)| visibility);
            // The value as it is now: it may contain calls from earlier rewrites.
            let value = &own.value;
            new.push_str(&format!(
                "{visibility}fn {word}() -> {kind} {{ \
                 static VALUE: std::sync::OnceLock<{kind}> = std::sync::OnceLock::new(); \
                 *VALUE.get_or_init(|| crate::mutant::value(\"{}\", {value})) }}",
                constant.name()
            ));
        } else if is_import(line, &mut is_inside) {
            new.push_str(line);
        } else {
            let (code, comment) = line.find("//").map_or((line, ""), |at| line.split_at(at));
            new.push_str(&replaced(code, word, &format!("{word}()")));
            new.push_str(comment);
        }
        new.push('\n');
    }
    new
}

/// The text with `word` replaced.
fn replaced(text: &str, word: &str, with: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut new = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        new.push_str(before);
        let is_whole = !before.ends_with(is_part) && !after.starts_with(is_part);
        new.push_str(if is_whole { with } else { word });
        rest = after;
    }
    new + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: &str = "crates/core/src/receiver/fairweir/link.rs";
    const MODULE: &str = "crates/core/src/receiver/fairweir/mod.rs";
    const INSIDE: &str = "crates/core/src/receiver/fairweir/link/inside.rs";

    fn sources() -> Sources {
        let link = "\
use super::group::{
    Group, SHARED,
};
fn deep(ticks: [u8; LENGTH]) -> bool {
    // DEEP is a queue.
    queue > DEEP && rate > x * PART + DEEPER && SHARED > 1
}
/// Docs.
const DEEP: u64 = 2;
const DEEPER: u64 = 2 * DEEP;
const LENGTH: usize = 3;
pub(super) const PART: Part = Part::percent(70);
const PORTS: [u16; 2] = [20, 873];
    const INNER: u64 = 1;
";
        let group = "pub(super) const SHARED: u64 = 9;\nconst DEEP: u64 = 5;\n";
        let files = [
            (LINK, link),
            ("crates/core/src/receiver/fairweir/group.rs", group),
            ("crates/core/src/receiver/fairweir/tests.rs", "use super::link::PART;\nPART\n"),
            (MODULE, "use link::PART;\nuse group::SHARED;\nfn f() { PART + DEEP + SHARED }\n"),
            (INSIDE, "use super::DEEP;\nfn f() { DEEP }\n"),
            ("crates/core/src/receiver/crab.rs", "use x::{PART, SHARED};\nPART + SHARED\n"),
            ("crates/core/src/upload/mod.rs", "const DEEP: u64 = 1;\n"),
        ];
        files.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect()
    }

    fn all() -> Vec<Constant> {
        constants(&sources(), &["receiver/fairweir", "window"])
    }

    #[test]
    fn constants_are_found_by_module_and_name() {
        let names: Vec<String> = all().iter().map(Constant::name).collect();
        let group = ["SHARED", "DEEP"].map(|word| format!("receiver/fairweir/group::{word}"));
        let link = ["DEEP", "DEEPER", "LENGTH", "PART", "PORTS"];
        let link = link.map(|word| format!("receiver/fairweir/link::{word}"));
        assert_eq!(names, [&group[..], &link[..]].concat());
        assert_eq!(
            Constant::parse(MODULE, "const A: u64 = 1;").unwrap().name(),
            "receiver/fairweir::A"
        );
    }

    #[test]
    fn uses_become_calls_where_the_word_means_the_constant() {
        let mut sources = sources();
        let kept = rewrite(&mut sources, &all());
        let kept: Vec<&str> = kept.keys().map(|name| name.rsplit(':').next().unwrap()).collect();
        assert_eq!(kept, ["LENGTH", "PORTS"]);
        let link = &sources[LINK];
        for line in [
            "    Group, SHARED,",
            "fn deep(ticks: [u8; LENGTH]) -> bool {",
            "    // DEEP is a queue.",
            "    queue > DEEP() && rate > x * PART() + DEEPER() && SHARED() > 1",
            "const LENGTH: usize = 3;",
            "    const INNER: u64 = 1;",
        ] {
            assert!(link.lines().any(|l| l == line), "{line}\n{link}");
        }
        assert!(link.contains("\npub(super) fn PART() -> Part { static "), "{link}");
        assert!(link.contains("value(\"receiver/fairweir/link::DEEP\", 2)) }\n"), "{link}");
        assert!(link.contains("::DEEPER\", 2 * DEEP())) }\n"), "{link}");
        let group = &sources["crates/core/src/receiver/fairweir/group.rs"];
        assert!(group.contains("value(\"receiver/fairweir/group::DEEP\", 5)) }\n"), "{group}");
        assert!(sources[INSIDE].ends_with("fn f() { DEEP() }\n"));
        // That file does not import DEEP, and the other files import none.
        assert!(sources[MODULE].ends_with("fn f() { PART() + DEEP + SHARED() }\n"));
        for other in ["receiver/crab.rs", "upload/mod.rs", "receiver/fairweir/tests.rs"] {
            let path = format!("{CORE}{other}");
            assert_eq!(sources[&path], super::tests::sources()[&path]);
        }
    }
}
