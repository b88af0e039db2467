//! Subscribers as a table of comma-separated values: `name,addresses,plan`.
//!
//! The first line names the columns, in any order. A field can have several addresses, separated by
//! spaces or semicolons. Fields may be quoted as in RFC 4180, but may not contain a line break.
//! Empty lines and lines that begin with `#` are ignored, except an end mark such as `# end 1000`
//! after the last row. It has the number of rows, so that a truncated file is detected.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use serde::{Deserialize, Serialize};

use super::SubscriberSpec;
use super::address::parse_address;
use crate::nearest;

/// A good row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Counted from 1.
    pub line: usize,
    /// The positions at which its fields begin.
    pub columns: Columns,
    /// The subscriber in the row.
    pub subscriber: SubscriberSpec,
}

/// An error in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{line}:{column}: {key}: {what}")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BadRow {
    /// Counted from 1.
    pub line: usize,
    /// The first character of the field, counted from 1.
    pub column: usize,
    /// The column's name.
    pub key: String,
    /// What was found and what is allowed.
    pub what: String,
}

/// The contents of a file.
#[derive(Debug, Default, PartialEq)]
pub struct Table {
    /// The good rows, in order of their lines.
    pub rows: Vec<Row>,
    /// The bad rows, in order of their lines.
    pub bad: Vec<BadRow>,
    /// Whether the file has an end mark.
    pub has_end: bool,
}

const KEYS: [&str; 3] = ["name", "addresses", "plan"];

impl Table {
    /// Reads a whole file.
    ///
    /// # Errors
    /// If its first line does not name the columns; nothing else can be understood then.
    pub fn read(text: &str) -> Result<Table, BadRow> {
        let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line)).filter(says);
        let (line, header) = lines.next().ok_or_else(|| BadRow {
            line: 1,
            column: 1,
            key: "header".to_owned(),
            what: "the file is empty; the first line must be `name,addresses,plan`".to_owned(),
        })?;
        let order = header_order(line, header.trim_start_matches('\u{feff}'))?;
        let mut table = Table::default();
        // Rows by the hash of their name, so that names are not stored twice.
        let hashes = RandomState::new();
        let mut seen: HashMap<u64, u32> = HashMap::new();
        let mut last = line;
        for (line, text) in lines {
            last = line;
            match row(line, text, &order) {
                Err(bad) => table.bad.push(bad),
                Ok(row) => {
                    let name = &row.subscriber.name;
                    let hash = hashes.hash_one(name);
                    let first = seen.get(&hash).and_then(|&first| table.rows.get(first as usize));
                    let first = first.filter(|first| first.subscriber.name == *name);
                    if let Some(first) = first {
                        let what = format!("duplicate `{name}`, first on line {}", first.line);
                        table.bad.push(row.bad("name", what));
                    } else {
                        seen.insert(hash, table.rows.len() as u32);
                        table.rows.push(row);
                    }
                }
            }
        }
        table.find_end(text, last);
        Ok(table)
    }

    /// Checks each end mark: it must be after the last row, and its number must be that of the rows.
    fn find_end(&mut self, text: &str, last: usize) {
        let marks = text.lines().enumerate().map(|(i, text)| (i + 1, text.trim()));
        let mark = |(line, text): (usize, &str)| {
            Some((line, text.strip_prefix("# end ")?.trim().parse::<usize>().ok()?))
        };
        let found = self.rows.len() + self.bad.len();
        for (line, rows) in marks.filter_map(mark) {
            let what = if line < last {
                format!("rows follow, up to line {last}")
            } else if rows != found {
                format!("{rows} is not the number of rows, which is {found}")
            } else {
                self.has_end = true;
                continue;
            };
            self.bad.push(bad(line, 1, "end", what));
        }
    }
}

/// The positions at which the fields of a row begin, counted from 1; large ones are not exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns([u16; 3]);

impl Columns {
    /// The position of the field in a column.
    pub fn of(self, key: &str) -> usize {
        self.0[KEYS.iter().position(|k| *k == key).unwrap_or(0)].into()
    }
}

impl Row {
    /// An error in this row by the rules of the caller.
    pub fn bad(&self, key: &str, what: String) -> BadRow {
        bad(self.line, self.columns.of(key), key, what)
    }
}

fn says(&(_, line): &(usize, &str)) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.starts_with('#')
}

/// For each of [`KEYS`], the index of its field.
fn header_order(line: usize, header: &str) -> Result<[usize; 3], BadRow> {
    let fields = fields(line, header)?;
    for (column, name) in &fields {
        if !KEYS.contains(&name.as_str()) {
            let near = nearest(name, KEYS).map(|n| format!("; did you mean `{n}`?"));
            let hint = near.unwrap_or_default();
            let other = match fields.iter().any(|(_, name)| name == "Circuit ID") {
                true => {
                    "; this is LibreQoS' ShapedDevices.csv: make a table of those three columns from it"
                }
                false => "",
            };
            let what = format!("unknown column `{name}` (name, addresses, plan){hint}{other}");
            return Err(bad(line, *column, "header", what));
        }
    }
    let mut order = [0; 3];
    for (i, key) in KEYS.iter().enumerate() {
        let mut at = fields.iter().enumerate().filter(|(_, (_, name))| name == key);
        order[i] = match (at.next(), at.next()) {
            (Some((at, _)), None) => at,
            (Some(_), Some((_, (column, _)))) => {
                let what = format!("duplicate column `{key}`");
                return Err(bad(line, *column, "header", what));
            }
            (None, _) => {
                let what = format!("column `{key}` is missing (name,addresses,plan)");
                return Err(bad(line, 1, "header", what));
            }
        };
    }
    Ok(order)
}

fn row(line: usize, text: &str, order: &[usize; 3]) -> Result<Row, BadRow> {
    let fields = fields(line, text)?;
    if fields.len() != KEYS.len() {
        let what = format!("{} fields instead of {}", fields.len(), KEYS.len());
        let column = fields.get(KEYS.len()).map_or(1, |(column, _)| *column);
        return Err(bad(line, column, "row", what));
    }
    let [name, addresses, plan] = order.map(|i| &fields[i]);
    for ((column, text), key) in [(name, "name"), (plan, "plan")] {
        if text.is_empty() {
            return Err(bad(line, *column, key, "is empty".to_owned()));
        }
    }
    let texts = addresses.1.split([' ', ';']).filter(|text| !text.is_empty());
    let mut parsed = Vec::with_capacity(texts.clone().count());
    for text in texts {
        parsed.push(parse_address(text).map_err(|what| bad(line, addresses.0, "addresses", what))?);
    }
    if parsed.is_empty() {
        let what = "is empty; addresses are separated by spaces".to_owned();
        return Err(bad(line, addresses.0, "addresses", what));
    }
    let subscriber =
        SubscriberSpec { name: name.1.clone(), addresses: parsed, plan: plan.1.clone() };
    let begins = [name.0, addresses.0, plan.0];
    let columns = Columns(begins.map(|begin| u16::try_from(begin).unwrap_or(u16::MAX)));
    Ok(Row { line, columns, subscriber })
}

/// The fields of a line, and the position at which each begins.
fn fields(line: usize, text: &str) -> Result<Vec<(usize, String)>, BadRow> {
    let mut fields = Vec::new();
    let mut chars = text.chars().enumerate().map(|(i, c)| (i + 1, c)).peekable();
    loop {
        let begin = chars.peek().map_or(text.chars().count() + 1, |&(i, _)| i);
        let mut field = String::new();
        if chars.next_if(|&(_, c)| c == '"').is_some() {
            loop {
                match chars.next() {
                    Some((_, '"')) if chars.next_if(|&(_, c)| c == '"').is_some() => {
                        field.push('"');
                    }
                    Some((_, '"')) => break,
                    Some((_, c)) => field.push(c),
                    None => {
                        let what = "unterminated quote".to_owned();
                        return Err(bad(line, begin, "row", what));
                    }
                }
            }
        }
        while let Some((_, c)) = chars.next_if(|&(_, c)| c != ',') {
            field.push(c);
        }
        fields.push((begin, field.trim().to_owned()));
        if chars.next().is_none() {
            return Ok(fields);
        }
    }
}

fn bad(line: usize, column: usize, key: &str, what: String) -> BadRow {
    BadRow { line, column, key: key.to_owned(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_rows_are_read_and_bad_ones_told_with_line_and_column() {
        let text = "# the north\nplan,name,addresses\n\nslow,alice,192.0.2.1 2001:db8:1::/56\n\
                    slow,bob,192.0.2.300\nfast,\"carol, jr\",\"192.0.2.3;192.0.2.4\"\nfast,dave\n\
                    ,erin,192.0.2.5\nfast,alice,192.0.2.6\nfast,frank,192.0.2.7/24\n\
                    fast,\"gus,192.0.2.8\nfast,heidi,\n";
        let table = Table::read(text).unwrap();
        let names: Vec<_> = table.rows.iter().map(|r| (r.line, &*r.subscriber.name)).collect();
        assert_eq!(names, [(4, "alice"), (6, "carol, jr")]);
        assert_eq!(table.rows[1].subscriber.addresses.len(), 2);
        let bad: Vec<_> = table.bad.iter().map(ToString::to_string).collect();
        assert_eq!(bad.len(), 7, "{bad:#?}");
        for (found, wanted) in bad.iter().zip([
            "5:10: addresses: `192.0.2.300` is neither",
            "7:1: row: 2 fields instead of 3",
            "8:1: plan: is empty",
            "9:6: name: duplicate `alice`, first on line 4",
            "10:12: addresses: `192.0.2.7/24` has host bits set; write 192.0.2.0/24",
            "11:6: row: unterminated quote",
            "12:12: addresses: is empty",
        ]) {
            assert!(found.starts_with(wanted), "{found}");
        }
        assert_eq!(table.rows[1].bad("addresses", String::new()).column, 18);
    }

    #[test]
    fn a_file_with_an_end_mark_is_whole_or_refused() {
        let rows = "name,addresses,plan\na,192.0.2.1,slow\n# end of the north\nb,192.0.2.2,slow\n";
        let read = |text: &str| {
            let table = Table::read(text).unwrap();
            (table.has_end, table.bad.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let (has_end, bad) = read(&format!("{rows}\n# end 2\n"));
        assert!(has_end && bad.is_empty(), "{bad:?}");
        assert_eq!(read(rows), (false, vec![]));
        let (_, bad) = read(&format!("{rows}# end 3"));
        assert_eq!(bad, ["5:1: end: 3 is not the number of rows, which is 2"]);
        let (_, bad) = read(&format!("{rows}# end 3\nc,192.0.2.3,slow\n"));
        assert_eq!(bad, ["5:1: end: rows follow, up to line 6"]);
    }

    #[test]
    fn without_a_header_nothing_is_read() {
        for (text, wanted) in [
            ("", "1:1: header: the file is empty"),
            ("alice,192.0.2.1,slow\n", "1:1: header: unknown column `alice`"),
            ("name,adresses,plan\n", "1:6: header: unknown column `adresses` (name"),
            ("name,plan\n", "1:1: header: column `addresses` is missing"),
            ("name,plan,name\n", "1:11: header: duplicate column `name`"),
        ] {
            let error = Table::read(text).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
    }
}
