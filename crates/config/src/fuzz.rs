//! Fuzz targets of this crate: properties of the readers of files that hold for any contents.

use std::fmt::Debug;
use std::path::Path;

use crate::agent::AgentFile;
use crate::host::{Config, Role};
use crate::isp::{IspFile, SubscriberSpec, address::address_text, csv};
use crate::proxy::ProxyFile;
use crate::sender::SenderFile;
use crate::{ConfigError, Text, uci};

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

/// The name of a target, and its function, which panics if a property does not hold for the input.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this crate.
pub const TARGETS: &[Target] = &[("subscribers", subscribers), ("toml", toml), ("uci", uci)];

/// Reads a text as the file of one daemon; returns its contents without their places.
type Reader = fn(&str) -> Result<String, ConfigError>;

const READERS: [Reader; 6] = [
    |text| host(Role::Host, text),
    |text| host(Role::Router, text),
    |text| isp(text),
    |text| shown(SenderFile::parse(Text::new(text, FILE).source(&[]), Path::new(FILE))),
    |text| shown(ProxyFile::parse(Text::new(text, FILE).source(&[]), Path::new(FILE))),
    |text| shown(AgentFile::parse(Text::new(text, FILE).source(&[]), Path::new(FILE))),
];

const FILE: &str = "file.toml";

fn host(role: Role, text: &str) -> Result<String, ConfigError> {
    let text = Text::new(text, FILE);
    let read = Config::read(role, &[text.source(&[])], Vec::new())?;
    let Config { host, policy, plans, relayed, files: _, warnings: _ } = read;
    Ok(format!("{host:?} {policy:?} {plans:?} {relayed:?}"))
}

fn isp(text: &str) -> Result<String, ConfigError> {
    let IspFile { isp, plans, segments, radius, leases, usage, subscribers, table, .. } =
        IspFile::parse(Text::new(text, FILE).source(&[]), Path::new("/nonexistent/isp.toml"))?;
    let plans: Vec<_> = plans.into_iter().map(|(_, plan)| plan).collect();
    let subscribers: Vec<_> = subscribers.into_iter().map(|(_, subscriber)| subscriber).collect();
    Ok(format!(
        "{isp:?} {plans:?} {segments:?} {radius:?} {leases:?} {usage:?} {subscribers:?} {table:?}"
    ))
}

fn shown(read: Result<impl Debug, ConfigError>) -> Result<String, ConfigError> {
    read.map(|file| format!("{file:?}"))
}

/// Properties: the contents do not depend on the order and the layout of the keys; an unknown key
/// is refused; an error is one line without control characters.
fn toml(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for read in READERS {
        let said = match read(&text) {
            Ok(said) => said,
            Err(e) => {
                is_clean(&e);
                continue;
            }
        };
        let unknown = read(&format!("fuzz = 1\n{text}")).expect_err("an unknown key");
        is_clean(&unknown);
        if let Ok(table) = text.parse::<toml::Table>() {
            let again = read(&table.to_string());
            assert_eq!(again.map_err(|e| e.to_string()), Ok(said), "{table}");
        }
    }
}

/// Properties: the result of a UCI file does not depend on how its words are quoted; it is TOML that a router accepts.
fn uci(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let judged = |text: &str| uci::judged(text, "fairweir", "br-lan", "wan");
    let read = judged(&text).inspect_err(is_clean).map_err(|e| e.to_string());
    let lines: Result<Vec<_>, String> = text.lines().map(uci::words).collect();
    if let Ok(lines) = lines {
        let line = |words: Vec<String>| {
            words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join("\t")
        };
        let quoted = lines.into_iter().map(line).collect::<Vec<_>>().join("\n");
        assert_eq!(judged(&quoted).map_err(|e| e.to_string()), read, "{quoted}");
    }
    let Ok(Some(written)) = read else { return };
    let table: toml::Table = written.parse().expect("it is TOML");
    assert!(table.keys().all(|key| matches!(key.as_str(), "version" | "router" | "device")));
    host(Role::Router, &written).expect("it was read before");
}

fn quoted(word: &str) -> String {
    if !word.contains('\'') {
        return format!("'{word}'");
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Properties: every row is good or bad; the good ones read the same with the columns in another order.
fn subscribers(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(table) = csv::Table::read(&text) else { return };
    let lines = text.lines().count();
    assert!(table.rows.len() + table.bad.len() <= 2 * lines);
    assert!(
        table.rows.is_sorted_by(|a, b| a.line < b.line)
            && table.bad.iter().all(|b| b.line <= lines)
    );
    for bad in &table.bad {
        assert!(!bad.what.contains('\n'));
    }
    let mut written = "plan,name,addresses\n".to_owned();
    for row in &table.rows {
        let SubscriberSpec { name, addresses, plan } = &row.subscriber;
        let addresses: Vec<String> = addresses.iter().map(address_text).collect();
        written += &[plan, name, &addresses.join(";")].map(|field| csv_field(field)).join(",");
        written += "\n";
    }
    written += &format!("# end {}\n", table.rows.len());
    let again = csv::Table::read(&written).expect("a table that we wrote");
    assert_eq!(again.bad, []);
    assert!(again.has_end || table.rows.is_empty());
    let of =
        |table: csv::Table| -> Vec<_> { table.rows.into_iter().map(|r| r.subscriber).collect() };
    assert_eq!(of(again), of(table), "written again");
}

fn csv_field(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn is_clean(error: &ConfigError) {
    let text = error.to_string();
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_were_found_are_replayed() {
        corpus::replay("config", TARGETS);
    }
}
