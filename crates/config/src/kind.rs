//! Recognises which command a configuration file is for.

use std::fmt;
use std::path::Path;

use toml::de::DeTable;

use crate::file::{Rules, Text, Trust};
use crate::isp::FILE_SIZE_MAX;

/// The command that reads a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// `fairweir host`.
    Host,
    /// `fairweir router`.
    Router,
    /// `fairweir isp`.
    Isp,
    /// `fairweir sender`.
    Sender,
    /// `fairweir proxy`.
    Proxy,
    /// `fairweir market agent`.
    Agent,
}

/// The keys by which a kind of file is recognised.
struct Marks {
    kind: FileKind,
    /// The table of general settings; if it is present, it decides.
    main: &'static str,
    /// Other tables, which decide if there is no main table. Each is listed for one kind only.
    parts: &'static [&'static str],
    /// The usual file name, which decides if there is no such table.
    name: &'static str,
}

const MARKS: [Marks; 6] = [
    Marks { kind: FileKind::Host, main: "host", parts: &["group"], name: "fairweir.toml" },
    Marks { kind: FileKind::Router, main: "router", parts: &["device"], name: "router.toml" },
    Marks {
        kind: FileKind::Isp,
        main: "isp",
        parts: &["plan", "subscriber", "subscribers"],
        name: "isp.toml",
    },
    Marks { kind: FileKind::Sender, main: "sender", parts: &["bundle"], name: "sender.toml" },
    Marks { kind: FileKind::Proxy, main: "proxy", parts: &["class", "app"], name: "proxy.toml" },
    Marks { kind: FileKind::Agent, main: "agent", parts: &["always", "time"], name: "agent.toml" },
];

/// Keys that every scenario has, and that no daemon's file has.
const SCENARIO: [&str; 3] = ["name", "duration", "link"];

impl FileKind {
    /// The kind of the file at `path`; if the file cannot be read, by its name.
    pub fn at(path: &Path) -> FileKind {
        let rules = Rules { bytes_max: FILE_SIZE_MAX, trust: Trust::OWNER, if_missing: "" };
        Text::read(path, &rules).map_or_else(|_| FileKind::named(path), |text| FileKind::of(&text))
    }

    /// The kind of a file with this text. If it is not TOML or has no known table, its name decides.
    pub fn of(text: &Text) -> FileKind {
        let by_name = || FileKind::named(Path::new(text.file()));
        let Ok(document) = DeTable::parse(text.as_str()) else { return by_name() };
        let has = |key: &&str| document.get_ref().get(*key).is_some();
        let by_main = MARKS.iter().find(|marks| has(&marks.main));
        let by_part = || MARKS.iter().find(|marks| marks.parts.iter().any(has));
        by_main.or_else(by_part).map_or_else(by_name, |marks| marks.kind)
    }

    /// The first key that shows that a table belongs to a file of another kind, and a description
    /// of that kind; `has` tells whether the table has a key.
    pub(crate) fn other(self, has: impl Fn(&str) -> bool) -> Option<(&'static str, String)> {
        let of = |kind: FileKind| MARKS.iter().find(|marks| marks.kind == kind);
        if of(self).is_some_and(|marks| has(marks.main)) {
            return None;
        }
        if let Some(other) = MARKS.iter().find(|marks| has(marks.main)) {
            let what =
                format!("this is a file of `fairweir {}`, not of `fairweir {self}`", other.kind);
            return Some((other.main, what));
        }
        let is_scenario = SCENARIO.iter().all(|key| has(key));
        let what = "this is a scenario: `fairweir sim check FILE` reads it";
        is_scenario.then(|| (SCENARIO[0], what.to_owned()))
    }

    /// The main key of a daemon's file and its kind; `None` for a scenario.
    pub(crate) fn of_daemon(has: impl Fn(&str) -> bool) -> Option<(&'static str, FileKind)> {
        let is_scenario = SCENARIO.iter().any(|key| has(key));
        let marks = MARKS.iter().find(|marks| has(marks.main))?;
        (!is_scenario).then_some((marks.main, marks.kind))
    }

    /// Advice for the case that there is no such file.
    pub(crate) fn if_missing(self) -> &'static str {
        match self {
            FileKind::Host => "; `fairweir init` writes a first one",
            FileKind::Router => "; `fairweir init --router` writes a first one",
            FileKind::Isp => "; an example is /etc/fairweir/isp.toml.example",
            FileKind::Sender => "; an example is /etc/fairweir/sender.toml.example",
            FileKind::Proxy => "; an example is /etc/fairweir/proxy.toml.example",
            FileKind::Agent => "; an example is /etc/fairweir/agent.toml.example",
        }
    }

    fn named(path: &Path) -> FileKind {
        let name = path.file_name().and_then(|name| name.to_str());
        let marks = MARKS.iter().find(|marks| Some(marks.name) == name);
        marks.map_or(FileKind::Host, |marks| marks.kind)
    }
}

/// The command without `fairweir`.
impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::Host => "host",
            FileKind::Router => "router",
            FileKind::Isp => "isp",
            FileKind::Sender => "sender",
            FileKind::Proxy => "proxy",
            FileKind::Agent => "market agent",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_table_decides_then_others_then_the_name() {
        for (text, name, kind) in [
            ("[isp]\n[[plan]]\n", "x.toml", FileKind::Isp),
            ("subscribers = \"a.csv\"\n", "x.toml", FileKind::Isp),
            ("[host]\n", "isp.toml", FileKind::Host),
            ("[proxy]\n[[device]]\n", "x.toml", FileKind::Proxy),
            ("[[device]]\n", "x.toml", FileKind::Router),
            ("[[bundle]]\n", "x.toml", FileKind::Sender),
            ("[always]\n", "x.toml", FileKind::Agent),
            ("version = 1\n", "etc/sender.toml", FileKind::Sender),
            ("[[[\n", "etc/router.toml", FileKind::Router),
            ("version = 1\n", "x.toml", FileKind::Host),
            ("", "proxy.toml", FileKind::Proxy),
        ] {
            assert_eq!(FileKind::of(&Text::new(text, name)), kind, "{name}: {text}");
        }
        assert_eq!(FileKind::at(Path::new("/nonexistent/isp.toml")), FileKind::Isp);
    }

    #[test]
    fn no_mark_is_of_two_kinds() {
        let all = || MARKS.iter().flat_map(|m| m.parts.iter().chain([&m.main, &m.name]));
        assert!(all().all(|mark| all().filter(|other| *other == mark).count() == 1));
    }
}
