//! `fairweir sender top`: the rates of connections with a target, live.

use std::io::{self, IsTerminal};
use std::time::Duration;

use fairweir_config::text::on_one_line;
use fairweir_core::units::Rate;
use fairweir_daemon::{Access, Client, Request};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};

use super::NAME;
use super::report::{self, BundleStatus, FreeStatus, Status};
use crate::daemon_args::{AskArgs, connect};
use crate::terminal::{self, Live};

pub(super) fn run(args: &AskArgs) -> anyhow::Result<()> {
    if args.json || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return report::print_status(args);
    }
    let client = connect(&args.run_dir.run_dir, NAME, Access::Read)?;
    terminal::show(&mut Top { client, status: Status::default() })
}

struct Top {
    client: Client,
    status: Status,
}

impl Live for Top {
    const PERIOD: Duration = Duration::from_millis(500);

    fn refresh(&mut self) -> anyhow::Result<()> {
        self.status = self.client.ask(&Request::Status)?;
        Ok(())
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        draw(frame, &self.status);
    }
}

fn draw(frame: &mut Frame<'_>, status: &Status) {
    let notes = printed(|out| report::print_notes(out, status));
    let heads = status.bundles.iter().map(head).collect::<Vec<_>>();
    let heights = status.bundles.iter().zip(&heads).flat_map(|(bundle, head)| {
        [Constraint::Length(head.len() as u16), Constraint::Length(bundle.free.len() as u16 + 2)]
    });
    let heights = heights.chain([Constraint::Length(notes.len() as u16), Constraint::Min(1)]);
    let areas = Layout::vertical(heights).split(frame.area());
    for ((bundle, head), areas) in status.bundles.iter().zip(heads).zip(areas.chunks(2)) {
        frame.render_widget(Paragraph::new(head), areas[0]);
        frame.render_widget(table(bundle), areas[1]);
    }
    let [.., foot, keys] = areas.as_ref() else { return };
    frame.render_widget(Paragraph::new(notes).dim(), *foot);
    let text = "q: quit · bar: rate of the last interval, marked at the target";
    frame.render_widget(Line::from(text).dim(), *keys);
}

fn head(bundle: &BundleStatus) -> Vec<Line<'static>> {
    let color = if bundle.problem.is_some() { Color::Red } else { Color::Green };
    let head = printed(|out| report::print_head(out, bundle));
    let apart = printed(|out| report::print_apart(out, bundle));
    head.into_iter().map(|line| line.bold().fg(color)).chain(apart).collect()
}

fn table(bundle: &BundleStatus) -> Table<'static> {
    let row = |free: &FreeStatus| {
        let (rate, target) = (Rate::bps(free.rate_bps), Rate::bps(free.target_bps));
        let bar = terminal::bar(rate, target, free.target_bps.saturating_mul(3) / 2, BAR_CELLS);
        let [remote, cells @ ..] = report::cells(free).map(|cell| on_one_line(&cell));
        Row::new([remote.into(), bar].into_iter().chain(cells.map(Line::from)))
    };
    let [(first, _), others @ ..] = report::HEADINGS;
    let header = [first, ""].into_iter().chain(others.map(|(heading, _)| heading));
    let widths = [24, BAR_CELLS as u16, 14, 14, 8, 9, 8].map(Constraint::Length);
    let widths = widths.into_iter().chain([Constraint::Min(10)]);
    Table::new(bundle.free.iter().map(row), widths).header(Row::new(header).dim())
}

/// The lines that `print` writes.
fn printed(print: impl Fn(&mut Vec<u8>) -> io::Result<()>) -> Vec<Line<'static>> {
    let mut out = Vec::new();
    print(&mut out).expect("invariant: a vector takes all");
    let text = String::from_utf8_lossy(&out);
    text.lines().map(|line| Line::from(on_one_line(line))).collect()
}

const BAR_CELLS: usize = 15;

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn any_terminal_size_is_drawn() {
        let free =
            FreeStatus { target_bps: 8_000_000, rate_bps: 4_000_000, ..FreeStatus::default() };
        let bundle =
            BundleStatus { name: "live\u{1b}[2J".into(), free: vec![free], ..Default::default() };
        let status = Status { bundles: vec![bundle], ..Status::default() };
        for (width, height) in [(1, 1), (20, 3), (120, 24)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &status)).unwrap();
            let screen = terminal.backend().to_string();
            assert_eq!(screen.contains("█████·····│"), width >= 120, "{screen}");
            assert!(!screen.contains('\u{1b}'), "{screen}");
        }
    }
}
