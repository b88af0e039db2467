//! `fairweir top`: the groups of a running daemon, updated live.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::bail;
use fairweir_core::receiver::GroupDecision;
use fairweir_core::units::Rate;
use fairweir_daemon::{Access, Request};
use ratatui::Frame;
use ratatui::crossterm::event;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};

use crate::cli::TopArgs;
use crate::host::client::find;
use crate::status::{headline, last_reason, notes};
use crate::terminal::is_quit;
use crate::wire::{GroupStatus, Status};
use crate::words::mbit;

/// The interval of status requests, one tick of the daemon.
const PERIOD: Duration = Duration::from_millis(200);

/// The number of samples in a sparkline.
const HISTORY_MAX: usize = 300;

/// The least rate of a full bar, so that an idle link is drawn as idle.
const SCALE_MIN_BPS: u64 = 1_000_000;

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("stdin and stdout must be a terminal; use `fairweir status --json` in scripts");
    }
    let mut client = find(&args.run_dir.run_dir, args.dev.as_deref(), Access::Read)?;
    let mut top = Top::default();
    top.take_in(client.ask(&Request::Status)?);
    let mut terminal = ratatui::try_init()?;
    let ran = (|| -> anyhow::Result<()> {
        loop {
            terminal.draw(|frame| top.draw(frame))?;
            if event::poll(PERIOD)? && is_quit(&event::read()?) {
                return Ok(());
            }
            top.take_in(client.ask(&Request::Status)?);
        }
    })();
    ratatui::try_restore()?;
    ran
}

/// The state of the screen.
#[derive(Default)]
struct Top {
    status: Status,
    /// Recent rates by group, newest last.
    history: BTreeMap<String, VecDeque<u64>>,
}

impl Top {
    fn take_in(&mut self, status: Status) {
        self.history.retain(|name, _| status.groups.iter().any(|g| g.name == *name));
        for group in &status.groups {
            let rates = self.history.entry(group.name.clone()).or_default();
            if rates.len() == HISTORY_MAX {
                rates.pop_front();
            }
            rates.push_back(group.decision.rate.as_bps());
        }
        self.status = status;
    }

    /// The rate of a full bar: the capacity, or the highest rate seen.
    fn scale(&self) -> u64 {
        let seen = self.history.values().flatten().copied().max().unwrap_or(0);
        self.status.capacity_bps.map_or(0, Rate::as_bps).max(seen).max(SCALE_MIN_BPS)
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let notes = notes(&self.status);
        let rows = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(1),
            Constraint::Length(notes.len().min(6) as u16),
            Constraint::Length(1),
        ])
        .split(frame.area());
        let color = if self.status.open_reason.is_some() { Color::Red } else { Color::Green };
        let head = [
            Line::from(headline(&self.status)).bold().fg(color),
            Line::from(last_reason(&self.status)).italic(),
        ];
        frame.render_widget(Paragraph::new(head.to_vec()), rows[0]);
        self.draw_groups(frame, rows[1]);
        let note = |(label, text): &(&str, String)| Line::from(format!("{label}: {text}")).dim();
        frame.render_widget(Paragraph::new(notes.iter().map(note).collect::<Vec<_>>()), rows[2]);
        frame.render_widget(Line::from("q: quit · bar: rate, │: fair share").dim(), rows[3]);
    }

    fn draw_groups(&self, frame: &mut Frame<'_>, area: Rect) {
        let scale = self.scale();
        for (row, group) in area.rows().zip(&self.status.groups) {
            let cells = Layout::horizontal([
                Constraint::Length(16),
                Constraint::Length(6),
                Constraint::Min(10),
                Constraint::Length(34),
                Constraint::Length(15),
                Constraint::Percentage(25),
            ])
            .spacing(1)
            .split(row);
            frame.render_widget(Line::from(group.name.as_str()).bold(), cells[0]);
            frame.render_widget(Line::from(format!("×{}", group.weight)), cells[1]);
            frame.render_widget(bar(group, scale, cells[2].width.into()), cells[2]);
            let GroupDecision { rate, share, state, .. } = group.decision;
            let rates = format!("{:>14} of {:>14}", mbit(rate.as_bps()), mbit(share.as_bps()));
            frame.render_widget(Line::from(rates), cells[3]);
            frame.render_widget(Line::from(state.to_string()).dim(), cells[4]);
            if let Some(rates) = self.history.get(&group.name) {
                let newest = rates.len().saturating_sub(cells[5].width.into());
                let shown: Vec<u64> = rates.iter().skip(newest).copied().collect();
                let line = Sparkline::default().data(shown).max(scale).fg(Color::Cyan);
                frame.render_widget(line, cells[5]);
            }
        }
    }
}

/// The rate as a bar of `width` cells, with a mark at the fair share.
fn bar(group: &GroupStatus, scale: u64, width: usize) -> Line<'static> {
    let cells = |bps: u64| (bps as u128 * width as u128 / u128::from(scale)) as usize;
    let (rate_bps, share_bps) = (group.decision.rate.as_bps(), group.decision.share.as_bps());
    let full = cells(rate_bps).min(width);
    let share = cells(share_bps).min(width.saturating_sub(1));
    // Blue and yellow are distinguishable with every common colour deficiency.
    let fair = rate_bps.abs_diff(share_bps) <= share_bps / 10;
    let color = if fair { Color::Blue } else { Color::Yellow };
    let cell = |i: usize| match (i == share && share_bps > 0, i < full) {
        (true, _) => Span::styled("│", Style::new().fg(Color::White).bold()),
        (false, true) => Span::styled("█", Style::new().fg(color)),
        (false, false) => Span::styled("·", Style::new().dim()),
    };
    Line::from((0..width).map(cell).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn a_bar_is_as_long_as_the_rate_and_marks_the_share() {
        let group = |rate, share| GroupStatus {
            decision: GroupDecision {
                rate: Rate::bps(rate),
                share: Rate::bps(share),
                ..GroupDecision::default()
            },
            ..GroupStatus::default()
        };
        let text: String =
            bar(&group(5, 8), 10, 10).spans.iter().map(|s| s.content.as_ref()).collect();
        assert_eq!(text, "█████···│·");
        let text: String =
            bar(&group(50, 50), 10, 4).spans.iter().map(|s| s.content.as_ref()).collect();
        assert_eq!(text, "███│");
    }

    #[test]
    fn any_terminal_size_is_drawn() {
        let mut top = Top::default();
        let group = |i: u64| GroupStatus {
            name: format!("group {i}"),
            decision: GroupDecision {
                rate: Rate::mbit(i),
                share: Rate::mbit(5),
                ..GroupDecision::default()
            },
            ..GroupStatus::default()
        };
        for _ in 0..HISTORY_MAX + 2 {
            top.take_in(Status { groups: (0..24).map(group).collect(), ..Status::default() });
        }
        assert!(top.history.values().all(|h| h.len() == HISTORY_MAX));
        for (width, height) in [(1, 1), (20, 3), (80, 24), (250, 80)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| top.draw(frame)).unwrap();
            let screen = terminal.backend().to_string();
            assert_eq!(screen.contains("group 7"), width >= 80, "{screen}");
        }
    }
}
