//! The view of the groups.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use fairweir_core::units::Rate;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Stylize};
use ratatui::text::Line;
use ratatui::widgets::Sparkline;

use super::{Top, mbit_plain};
use crate::host::wire::GroupStatus;
use crate::terminal;
use fairweir_config::text::on_one_line;

/// The orders of groups to choose from.
pub(super) const ORDERS: [&str; 4] = ["configuration", "rate", "share", "name"];

/// The number of samples in a sparkline.
const HISTORY_MAX: usize = 300;

/// The lowest rate of a full bar, so that an idle link looks idle.
const SCALE_MIN_BPS: u64 = 1_000_000;

/// The smallest width of a terminal at which the history of rates is shown.
const WIDTH_WITH_HISTORY: u16 = 110;

/// Recent rates by group, newest last.
#[derive(Default)]
pub(super) struct History {
    rates: BTreeMap<String, VecDeque<u64>>,
}

impl History {
    pub(super) fn take_in(&mut self, groups: &[GroupStatus]) {
        self.rates.retain(|name, _| groups.iter().any(|g| g.name == *name));
        for group in groups {
            let rates = self.rates.entry(group.name.clone()).or_default();
            if rates.len() == HISTORY_MAX {
                rates.pop_front();
            }
            rates.push_back(group.decision.rate.as_bps());
        }
    }

    /// The rate of a full bar: the capacity, or the highest rate seen.
    fn scale(&self, capacity: Option<Rate>) -> u64 {
        let seen = self.rates.values().flatten().copied().max().unwrap_or(0);
        capacity.map_or(0, Rate::as_bps).max(seen).max(SCALE_MIN_BPS)
    }
}

pub(super) fn draw(top: &Top, frame: &mut Frame<'_>, titles: Rect, list: Rect) {
    let names = ["GROUP", "WEIGHT", "Mbit/s", "RATE", "SHARE", "CONN", "STATE", "HISTORY"];
    let cells = columns(titles);
    for (i, (name, cell)) in names.into_iter().zip(cells).enumerate() {
        let line = Line::from(name).dim();
        frame.render_widget(if is_number(i) { line.right_aligned() } else { line }, cell);
    }
    let scale = top.history.scale(top.status.capacity_bps);
    for (row, group) in list.rows().zip(sorted(top).into_iter().skip(top.offset)) {
        draw_group(top, frame, row, group, scale);
    }
}

fn sorted(top: &Top) -> Vec<&GroupStatus> {
    let mut groups: Vec<&GroupStatus> = top.status.groups.iter().collect();
    match ORDERS[top.order] {
        "rate" => groups.sort_by_key(|g| Reverse(g.decision.rate)),
        "share" => groups.sort_by_key(|g| Reverse(g.decision.share)),
        "name" => groups.sort_by(|a, b| a.name.cmp(&b.name)),
        _ => {}
    }
    groups
}

fn draw_group(top: &Top, frame: &mut Frame<'_>, row: Rect, group: &GroupStatus, scale: u64) {
    let cells = columns(row);
    let decision = &group.decision;
    let texts = [
        Line::from(on_one_line(&group.name)).bold(),
        Line::from(group.weight.to_string()),
        terminal::bar(decision.rate, decision.share, scale, cells[2].width.into()),
        Line::from(mbit_plain(decision.rate)),
        Line::from(mbit_plain(decision.share)),
        Line::from(group.connections.to_string()),
        Line::from(decision.state.to_string()).dim(),
    ];
    for (i, (line, cell)) in texts.into_iter().zip(&cells).enumerate() {
        frame.render_widget(if is_number(i) { line.right_aligned() } else { line }, *cell);
    }
    if let (Some(cell), Some(rates)) = (cells.get(7), top.history.rates.get(&group.name)) {
        let newest = rates.len().saturating_sub(cell.width.into());
        let shown: Vec<u64> = rates.iter().skip(newest).copied().collect();
        frame.render_widget(Sparkline::default().data(shown).max(scale).fg(Color::Cyan), *cell);
    }
}

/// Whether a column has numbers: weight, rate, share and connections.
fn is_number(column: usize) -> bool {
    matches!(column, 1 | 3..=5)
}

/// The columns of a line; the history is included only if there is room.
fn columns(row: Rect) -> Vec<Rect> {
    let mut widths = vec![
        Constraint::Length(16),
        Constraint::Length(6),
        Constraint::Min(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(5),
        Constraint::Length(15),
    ];
    if row.width >= WIDTH_WITH_HISTORY {
        widths.push(Constraint::Percentage(25));
    }
    Layout::horizontal(widths).spacing(1).split(row).to_vec()
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_history_stays_short_and_forgets_groups_that_are_gone() {
        let mut history = History::default();
        let group = |name: &str| GroupStatus { name: name.into(), ..GroupStatus::default() };
        for _ in 0..HISTORY_MAX + 2 {
            history.take_in(&[group("a"), group("b")]);
        }
        assert!(history.rates.values().all(|h| h.len() == HISTORY_MAX));
        history.take_in(&[group("b")]);
        assert_eq!(history.rates.keys().collect::<Vec<_>>(), ["b"]);
    }
}
