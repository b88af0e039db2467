//! Kinds of devices, by the packets that they send: the table that is built into the program.
//!
//! Source: `dist/recognition/devices.toml`, which says what belongs in it.

use fairweir_core::recognition::{AgentEntry, DhcpEntry, Kind, Os, Set, SynEntry, What, Word};

pub use fairweir_core::recognition::Table as Devices;

use crate::VERSION;
use crate::error::ConfigError;
use crate::table::{Source, Table};
use crate::words::not_one_of;

/// The built-in table of devices.
///
/// # Panics
/// Never: a test reads it.
pub fn devices() -> Devices {
    parse(Source::new(TABLE, "devices.toml", &[])).expect("invariant: the table is tested")
}

fn parse(source: Source<'_>) -> Result<Devices, ConfigError> {
    let mut top = source.top()?;
    top.version(VERSION)?;
    let mut all = Devices::default();
    for table in top.tables("dhcp")? {
        all.dhcp.push(dhcp(table)?);
    }
    for table in top.tables("syn")? {
        all.syn.push(syn(table)?);
    }
    for table in top.tables("agent")? {
        all.agents.push(agent(table)?);
    }
    top.finish()?;
    Ok(all)
}

fn dhcp(mut table: Table<'_>) -> Result<DhcpEntry, ConfigError> {
    let place = table.place();
    let numbers = |text: &str| {
        let numbers: Result<Vec<u8>, _> = text.split(',').map(str::parse).collect();
        numbers.map_err(|_| format!("`{text}` is no list of options such as 1,3,6"))
    };
    let requests = table.parsed_by("requests", numbers)?.map(|p| p.value);
    let vendor = table.text("vendor")?.map(|p| p.value).unwrap_or_default();
    if requests.is_none() && vendor.is_empty() {
        return Err(place.error("expected `requests` or `vendor`"));
    }
    let what = what(&mut table)?;
    table.finish()?;
    Ok(DhcpEntry { requests, vendor, what })
}

fn syn(mut table: Table<'_>) -> Result<SynEntry, ConfigError> {
    let hops = table.integer("hops", 1, 255)?.ok_or_else(|| table.missing("hops", "64"))?;
    let is_layout = |text: &str| {
        let fits = !text.is_empty() && text.chars().all(|c| "MNWSTE?".contains(c));
        fits.then(|| text.to_owned()).ok_or(format!("`{text}` has letters other than MNWSTE?"))
    };
    let layout = table.parsed_by("layout", is_layout)?;
    let layout = layout.ok_or_else(|| table.missing("layout", "options such as MSTNW"))?;
    let what = what(&mut table)?;
    table.finish()?;
    Ok(SynEntry { hops: hops.value as u8, layout: layout.value, what })
}

fn agent(mut table: Table<'_>) -> Result<AgentEntry, ConfigError> {
    let words = table.texts("words")?.ok_or_else(|| table.missing("words", "a list of words"))?;
    if words.value.is_empty() || words.value.iter().any(|word| word.value.is_empty()) {
        return Err(words.place.error("expected one word or more"));
    }
    let words = words.value.into_iter().map(|word| word.value).collect();
    let what = what(&mut table)?;
    table.finish()?;
    Ok(AgentEntry { words, what })
}

/// The values that an entry leaves possible, and its source.
fn what(table: &mut Table<'_>) -> Result<What, ConfigError> {
    let place = table.place();
    let what = What { os: set::<Os>(table, "os")?, kinds: set::<Kind>(table, "kind")? };
    if what == What::anything() {
        return Err(place.error("expected `os` or `kind`"));
    }
    let source = table.text("source")?;
    source.filter(|source| !source.value.is_empty()).map(|_| what).ok_or_else(|| {
        table.missing("source", "where the entry is from, such as \"seen of curl 8.5\"")
    })
}

/// The words at a key; all words if the key is absent.
fn set<W: Word>(table: &mut Table<'_>, key: &str) -> Result<Set<W>, ConfigError> {
    let Some(texts) = table.texts(key)? else { return Ok(Set::all()) };
    let mut words = Vec::new();
    for text in texts.value {
        let found = W::ALL.iter().find(|(name, _)| *name == text.value);
        let names: Vec<_> = W::ALL.iter().map(|(name, _)| *name).collect();
        let (_, word) = found.ok_or_else(|| text.place.error(not_one_of(&text.value, &names)))?;
        words.push(*word);
    }
    if words.is_empty() {
        return Err(texts.place.error("expected one word or more"));
    }
    Ok(Set::of(&words))
}

const TABLE: &str = include_str!("../../../dist/recognition/devices.toml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_devices_is_valid_and_no_evidence_is_of_two_entries() {
        let all = parse(Source::new(TABLE, "devices.toml", &[])).unwrap();
        assert!(all.dhcp.len() >= 20 && all.syn.len() >= 5 && all.agents.len() >= 20);
        for (i, entry) in all.dhcp.iter().enumerate() {
            let is_same = |other: &DhcpEntry| {
                (&other.requests, &other.vendor) == (&entry.requests, &entry.vendor)
            };
            assert!(!all.dhcp[..i].iter().any(is_same), "{entry:?}");
        }
        for (i, entry) in all.syn.iter().enumerate() {
            let key = (entry.hops, &entry.layout);
            assert!(!all.syn[..i].iter().any(|other| (other.hops, &other.layout) == key));
        }
        // An entry can never match if an earlier entry matches whenever it does.
        for (i, entry) in all.agents.iter().enumerate() {
            let hides = |other: &AgentEntry| {
                other.words.iter().all(|word| entry.words.iter().any(|own| own.contains(word)))
            };
            assert!(!all.agents[..i].iter().any(hides), "{entry:?}");
        }
    }

    #[test]
    fn wrong_entries_are_refused_with_their_line() {
        for (text, says) in [
            ("[[dhcp]]\nos = [\"ios\"]\nsource = \"x\"\n", "`requests` or `vendor`"),
            ("[[dhcp]]\nrequests = \"1,300\"\nos = [\"ios\"]\nsource = \"x\"\n", "1,3,6"),
            ("[[dhcp]]\nvendor = \"x\"\nos = [\"iso\"]\nsource = \"x\"\n", "ios"),
            ("[[dhcp]]\nvendor = \"x\"\nsource = \"x\"\n", "`os` or `kind`"),
            ("[[dhcp]]\nvendor = \"x\"\nos = [\"ios\"]\n", "source"),
            ("[[syn]]\nhops = 64\nlayout = \"mss\"\nos = [\"ios\"]\nsource = \"x\"\n", "MNWSTE"),
            ("[[syn]]\nhops = 0\nlayout = \"M\"\nos = [\"ios\"]\nsource = \"x\"\n", "255"),
            ("[[agent]]\nwords = []\nos = [\"ios\"]\nsource = \"x\"\n", "one word"),
            ("[[colour]]\n", "unknown key"),
        ] {
            let text = format!("version = 1\n{text}");
            let error = parse(Source::new(&text, "devices.toml", &[])).expect_err(&text);
            let error = error.to_string();
            assert!(error.starts_with("devices.toml:") && error.contains(says), "{text}\n{error}");
        }
    }
}
