//! Applications by the names of their servers: the table that is built into the program.
//!
//! Source: `dist/recognition/applications.toml`, which says what belongs in it.

use fairweir_core::market::utility::Kind;
use fairweir_core::policy::{Match, is_name};

use crate::VERSION;
use crate::error::ConfigError;
use crate::table::{Source, Table};
use crate::value::parse_match;

/// An application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    /// Unique.
    pub name: String,
    /// The kind of use.
    pub kind: Kind,
    /// Only `web:` matches.
    pub sites: Vec<Match>,
}

/// The words for kinds of use, in files.
pub const KINDS: [(&str, Kind); 4] = [
    ("streaming", Kind::Streaming),
    ("social", Kind::Social),
    ("download", Kind::Downloads),
    ("web", Kind::Web),
];

/// The built-in table of applications.
///
/// # Panics
/// Never: a test reads it.
pub fn applications() -> Vec<Application> {
    parse(Source::new(TABLE, "applications.toml", &[])).expect("invariant: the table is tested")
}

fn parse(source: Source<'_>) -> Result<Vec<Application>, ConfigError> {
    let mut top = source.top()?;
    top.version(VERSION)?;
    let mut all = Vec::new();
    for (word, kind) in KINDS {
        if let Some(table) = top.table(word)? {
            of_kind(table, kind, &mut all)?;
        }
    }
    top.finish()?;
    Ok(all)
}

fn of_kind(
    mut table: Table<'_>,
    kind: Kind,
    all: &mut Vec<Application>,
) -> Result<(), ConfigError> {
    for name in table.keys() {
        let texts = table.texts(&name)?.expect("invariant: the key is there");
        if !is_name(&name) || all.iter().any(|other| other.name == name) {
            return Err(texts.place.error(format!("duplicate or invalid name `{name}`")));
        }
        let site = |text: crate::Placed<'_, String>| {
            parse_match(&format!("web:{}", text.value)).map_err(|e| text.place.error(e))
        };
        let sites = texts.value.into_iter().map(site).collect::<Result<_, _>>()?;
        all.push(Application { name, kind, sites });
    }
    Ok(())
}

const TABLE: &str = include_str!("../../../dist/recognition/applications.toml");

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_table_of_applications_is_valid_and_no_name_is_of_two() {
        let all = parse(Source::new(TABLE, "applications.toml", &[])).unwrap();
        assert!(all.len() >= 200, "{}", all.len());
        for (word, kind) in KINDS {
            assert!(all.iter().filter(|a| a.kind == kind).count() >= 40, "{word}");
        }
        let mut owners = BTreeMap::new();
        for application in &all {
            for site in &application.sites {
                let other = owners.insert(site.to_string(), &application.name);
                assert_eq!(other, None, "{site}");
            }
        }
    }
}
