//! The view of the connections.

use std::cmp::Reverse;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Stylize;
use ratatui::text::Line;

use super::{Top, mbit_plain};
use crate::host::wire::{ConnectionStatus, LimitedBy};
use fairweir_config::text::on_one_line;

/// The orders of connections to choose from.
pub(super) const ORDERS: [&str; 4] = ["rate", "RTT", "window", "group"];

pub(super) fn draw(top: &Top, frame: &mut Frame<'_>, titles: Rect, list: Rect) {
    let names =
        ["GROUP", "SOCKET", "PORT", "RATE Mbit/s", "RTT", "WINDOW", "LIMITED BY", "HOST BY"];
    draw_line(frame, titles, names.map(|name| Line::from(name).dim()));
    for (row, connection) in list.rows().zip(sorted(top).into_iter().skip(top.offset)) {
        let rtt = connection.rtt_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms"));
        let limited_by = match connection.limited_by {
            LimitedBy::Share => "share",
            LimitedBy::Buffer => "buffer",
            LimitedBy::Sender => "sender or path",
        };
        // The last column gets the rest of the line.
        let evidence = connection.evidence.as_ref().map_or_else(String::new, |evidence| {
            let name = evidence.name.as_deref().unwrap_or_default();
            on_one_line(&format!("{} {name}", evidence.reason))
        });
        let line = [
            Line::from(on_one_line(&connection.group)).bold(),
            Line::from(connection.id.to_string()),
            Line::from(connection.port.to_string()),
            Line::from(mbit_plain(connection.rate_bps)),
            Line::from(rtt),
            Line::from(connection.window_bytes.to_string()),
            Line::from(limited_by).dim(),
            Line::from(evidence).dim(),
        ];
        draw_line(frame, row, line);
    }
}

fn sorted(top: &Top) -> Vec<&ConnectionStatus> {
    let mut connections: Vec<&ConnectionStatus> = top.connections.connections.iter().collect();
    connections.sort_by_key(|c| Reverse(c.rate_bps));
    match ORDERS[top.order] {
        "RTT" => connections.sort_by(|a, b| {
            let rtt = |c: &ConnectionStatus| c.rtt_ms.unwrap_or(0.0);
            rtt(b).total_cmp(&rtt(a))
        }),
        "window" => connections.sort_by_key(|c| Reverse(c.window_bytes)),
        "group" => connections.sort_by(|a, b| a.group.cmp(&b.group)),
        _ => {}
    }
    connections
}

fn draw_line(frame: &mut Frame<'_>, row: Rect, texts: [Line<'_>; 8]) {
    let cells: [Rect; 8] = Layout::horizontal([
        Constraint::Length(16),
        Constraint::Length(8),
        Constraint::Length(5),
        Constraint::Length(11),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(14),
        Constraint::Min(0),
    ])
    .spacing(1)
    .areas(row);
    for (i, (line, cell)) in texts.into_iter().zip(cells).enumerate() {
        let is_number = (1..=5).contains(&i);
        frame.render_widget(if is_number { line.right_aligned() } else { line }, cell);
    }
}
