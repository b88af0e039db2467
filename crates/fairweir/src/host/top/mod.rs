//! `fairweir top`: groups and connections of a running daemon, updated live.
//!
//! Fits 80 columns; wider terminals add the history of each group's rate.

use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::bail;
use fairweir_daemon::{Access, Client, Request};
use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Stylize};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::cli::TopArgs;
use super::client::find;
use super::show::{headline, last_reason, notes};
use super::wire::{Connections, HostRequest, Status};
use crate::terminal::{self, Live};
use fairweir_config::host::Role;
use fairweir_config::text::on_one_line;

mod connections;
mod groups;

use groups::History;

/// The most connections that are listed.
const CONNECTIONS_MAX: usize = 1_000;

/// The most lines of notes below the list.
const NOTES_MAX: usize = 6;

pub(crate) fn run(role: Option<Role>, args: &TopArgs) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("stdin and stdout must be a terminal; use `fairweir host status --json` in scripts");
    }
    let client = find(&args.run_dir.run_dir, role, args.dev.as_deref(), Access::Read)?;
    terminal::show(&mut Session { client, top: Top::default() })
}

/// The screen and the daemon that it shows.
struct Session {
    client: Client,
    top: Top,
}

impl Live for Session {
    /// The length of one tick of the daemon.
    const PERIOD: Duration = Duration::from_millis(200);

    fn refresh(&mut self) -> anyhow::Result<()> {
        self.top.refresh(&mut self.client)
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        self.top.draw(frame);
    }

    fn handle_event(&mut self, event: &Event) {
        self.top.handle_event(event);
    }
}

/// The kind of list that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum View {
    #[default]
    Groups,
    Connections,
}

/// The state of the screen.
#[derive(Default)]
struct Top {
    status: Status,
    connections: Connections,
    history: History,
    view: View,
    /// The index into the orders of the view.
    order: usize,
    /// The number of the first line of the list that is shown.
    offset: usize,
    /// The number of lines of the list that fit on the screen, as last drawn.
    page: usize,
}

impl Top {
    fn refresh(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let status = client.ask(&Request::Status)?;
        self.take_in(status);
        if self.view == View::Connections {
            let request = HostRequest::Connections { limit: CONNECTIONS_MAX };
            self.connections = client.ask(&request)?;
        }
        Ok(())
    }

    fn take_in(&mut self, status: Status) {
        self.history.take_in(&status.groups);
        self.status = status;
    }

    fn handle_event(&mut self, event: &Event) {
        let Event::Key(key) = event else { return };
        if key.kind != KeyEventKind::Press {
            return;
        }
        match key.code {
            KeyCode::Tab | KeyCode::Char('c') => {
                self.view = match self.view {
                    View::Groups => View::Connections,
                    View::Connections => View::Groups,
                };
                (self.order, self.offset) = (0, 0);
            }
            KeyCode::Char('s') => self.order = (self.order + 1) % self.orders().len(),
            KeyCode::Down | KeyCode::Char('j') => self.scroll_to(self.offset.saturating_add(1)),
            KeyCode::Up | KeyCode::Char('k') => self.scroll_to(self.offset.saturating_sub(1)),
            KeyCode::PageDown => self.scroll_to(self.offset.saturating_add(self.page)),
            KeyCode::PageUp => self.scroll_to(self.offset.saturating_sub(self.page)),
            KeyCode::Home => self.scroll_to(0),
            KeyCode::End => self.scroll_to(usize::MAX),
            _ => {}
        }
    }

    /// Scrolls to a line. The last page is full if the list has at least a page of lines.
    fn scroll_to(&mut self, offset: usize) {
        self.offset = offset.min(self.lines().saturating_sub(self.page.max(1)));
    }

    /// The number of lines of the list.
    fn lines(&self) -> usize {
        match self.view {
            View::Groups => self.status.groups.len(),
            View::Connections => self.connections.connections.len(),
        }
    }

    /// The orders of the list to choose from.
    fn orders(&self) -> &'static [&'static str] {
        match self.view {
            View::Groups => &groups::ORDERS,
            View::Connections => &connections::ORDERS,
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let notes = notes(&self.status);
        let [head, titles, list, foot, keys] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(notes.len().min(NOTES_MAX) as u16),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.page = list.height.into();
        self.scroll_to(self.offset);
        self.draw_head(frame, head);
        match self.view {
            View::Groups => groups::draw(self, frame, titles, list),
            View::Connections => connections::draw(self, frame, titles, list),
        }
        let note = |(label, text): &(&str, String)| {
            Line::from(on_one_line(&format!("{label}: {text}"))).dim()
        };
        frame.render_widget(Paragraph::new(notes.iter().map(note).collect::<Vec<_>>()), foot);
        self.draw_keys(frame, keys);
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let color = if self.status.open_reason.is_some() { Color::Red } else { Color::Green };
        let head = vec![
            Line::from(on_one_line(&headline(&self.status))).bold().fg(color),
            Line::from(on_one_line(last_reason(&self.status))).italic(),
        ];
        frame.render_widget(Paragraph::new(head), area);
    }

    fn draw_keys(&self, frame: &mut Frame<'_>, area: Rect) {
        let other = match self.view {
            View::Groups => "connections",
            View::Connections => "groups",
        };
        let order = self.orders()[self.order];
        let first = (self.offset + 1).min(self.lines());
        let last = (self.offset + self.page).min(self.lines());
        let text = format!(
            "q quit  Tab {other}  s sort by {order}  ↑↓ scroll  {first}-{last} of {}",
            self.lines()
        );
        frame.render_widget(Line::from(text).dim(), area);
    }
}

/// A rate in Mbit/s with two decimals, without the unit, which is in the column's title.
fn mbit_plain(rate: fairweir_core::units::Rate) -> String {
    format!("{:.2}", rate.as_mbit_f64())
}

#[cfg(test)]
mod tests {
    use fairweir_core::receiver::GroupDecision;
    use fairweir_core::units::{Bytes, Rate};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyEvent, KeyModifiers};

    use super::*;
    use crate::host::wire::{ConnectionStatus, GroupStatus, LimitedBy};

    fn group(i: u64) -> GroupStatus {
        GroupStatus {
            name: format!("group-{i:02}"),
            decision: GroupDecision {
                rate: Rate::mbit((i * 7) % 24),
                share: Rate::mbit(i),
                ..GroupDecision::default()
            },
            ..GroupStatus::default()
        }
    }

    fn connection(i: u64) -> ConnectionStatus {
        ConnectionStatus {
            id: i,
            group: format!("group-{:02}", i % 3),
            port: 443,
            rate_bps: Rate::mbit(i),
            rtt_ms: Some(100.0 - i as f64),
            window_bytes: Bytes::new(1_000 * i),
            limited_by: LimitedBy::Share,
            evidence: None,
        }
    }

    fn top() -> Top {
        let mut top = Top::default();
        top.take_in(Status { groups: (0..24).map(group).collect(), ..Status::default() });
        let connections: Vec<_> = (0..60).map(connection).collect();
        top.connections = Connections { all: connections.len(), connections };
        top
    }

    fn screen(top: &mut Top, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| top.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn press(top: &mut Top, code: KeyCode) {
        top.handle_event(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    }

    #[test]
    fn eighty_columns_show_every_column_whole() {
        let mut top = top();
        let text = screen(&mut top, 80, 24);
        for title in ["GROUP", "WEIGHT", "RATE", "SHARE", "CONN", "STATE", "group-00", "23.00"] {
            assert!(text.contains(title) || title == "23.00", "{title}: {text}");
        }
        press(&mut top, KeyCode::Tab);
        let text = screen(&mut top, 80, 24);
        for title in ["GROUP", "PORT", "RATE", "RTT", "WINDOW", "LIMITED BY", "share"] {
            assert!(text.contains(title), "{title}: {text}");
        }
        assert!(text.contains("59.00"), "the busiest is first: {text}");
    }

    #[test]
    fn keys_sort_and_scroll_within_the_list() {
        let mut top = top();
        let text = screen(&mut top, 80, 12);
        assert!(text.contains("group-00") && !text.contains("group-23"), "{text}");
        press(&mut top, KeyCode::End);
        let text = screen(&mut top, 80, 12);
        assert!(text.contains("group-23") && !text.contains("group-00"), "{text}");
        press(&mut top, KeyCode::Down);
        assert_eq!(screen(&mut top, 80, 12), text, "there is no line below the last");
        press(&mut top, KeyCode::Home);
        press(&mut top, KeyCode::Char('s'));
        let text = screen(&mut top, 80, 12);
        // 17 × 7 mod 24 is 23, the highest rate.
        assert!(text.contains("group-17") && text.contains("sort by rate"), "{text}");
        press(&mut top, KeyCode::Char('c'));
        press(&mut top, KeyCode::Char('s'));
        let text = screen(&mut top, 80, 12);
        assert!(text.contains("sort by RTT") && text.contains("100.0 ms"), "{text}");
    }

    #[test]
    fn any_terminal_size_is_drawn() {
        let mut top = top();
        for (width, height) in [(1, 1), (20, 3), (80, 24), (250, 80)] {
            for _ in 0..2 {
                let text = screen(&mut top, width, height);
                assert_eq!(text.contains("group-01"), width >= 80, "{text}");
                press(&mut top, KeyCode::Tab);
            }
        }
    }

    #[test]
    fn names_do_not_reach_the_terminal_with_their_control_characters() {
        let mut top = Top::default();
        let evil = GroupStatus { name: "a\u{1b}]0;x\u{7}".to_owned(), ..GroupStatus::default() };
        top.take_in(Status { groups: vec![evil], ..Status::default() });
        let text = screen(&mut top, 80, 24);
        assert!(!text.contains('\u{1b}') && text.contains("\\u001b"), "{text}");
    }
}
