//! Builds scenarios for tests from their parts (feature `testing`).

use crate::Scenario;

/// A scenario of `seconds`, of which the first `settle` do not count. `link` has the keys of
/// `[link]`; `rest` is the text after that table.
///
/// # Panics
/// If the text is not a valid scenario.
pub fn scenario(seconds: u64, settle: u64, link: &str, rest: &str) -> Scenario {
    let text = format!(
        "version = 1\nname = \"x\"\nduration = \"{seconds}s\"\nsettle = \"{settle}s\"\n\
         [link]\n{link}\n{rest}"
    );
    Scenario::parse(&text, "x.toml").unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// A group without match rules.
pub fn group(name: &str, weight: u32) -> String {
    format!("[[group]]\nname = \"{name}\"\nweight = {weight}\n")
}

/// A flow of a group; `keys` are additional lines.
pub fn flow(group: &str, kind: &str, keys: &str) -> String {
    format!("[[flow]]\ngroup = \"{group}\"\nkind = \"{kind}\"\n{keys}\n")
}
