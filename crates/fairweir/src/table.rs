//! Plain text tables for people.

use std::io::{self, Write};

use fairweir_config::text::on_one_line;

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// Prints `rows` under their headings, each column as wide as its widest cell.
///
/// # Errors
/// Errors of `out`, such as a broken pipe.
pub(crate) fn print(
    out: &mut impl Write,
    headings: &[(&str, Align)],
    rows: &[Vec<String>],
) -> io::Result<()> {
    let plain = |row: &Vec<String>| row.iter().map(|cell| on_one_line(cell)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(plain).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count());
        cells.max().unwrap_or(0).max(headings[column].0.chars().count())
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for ((cell, &(_, align)), width) in cells.zip(headings).zip(&widths) {
            match align {
                Align::Left => text.push_str(&format!("{cell:<width$}  ")),
                Align::Right => text.push_str(&format!("{cell:>width$}  ")),
            }
        }
        writeln!(out, "{}", text.trim_end())
    };
    line(&mut headings.iter().map(|&(heading, _)| heading))?;
    rows.iter().try_for_each(|row| line(&mut row.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_neither_breaks_the_table_nor_reaches_the_terminal() {
        let mut out = Vec::new();
        let headings = [("NAME", Align::Left), ("N", Align::Right)];
        let rows = [["a\u{1b}[2J\nb".to_owned(), "1".to_owned()].to_vec()];
        print(&mut out, &headings, &rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "NAME          N\na\\u001b[2J b  1\n");
    }
}
