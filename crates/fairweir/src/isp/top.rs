//! `fairweir isp top`: the busiest subscribers, live.

use std::io::{self, IsTerminal, Write};
use std::thread::sleep;
use std::time::Duration;

use fairweir_daemon::Access;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};

use super::asker::Asker;
use super::cli::TopArgs;
use super::show::headline;
use super::wire::{Busiest, Busy, BusyDirection, Request, SegmentStatus, SegmentUse, Status};
use crate::table::{self, Align};
use crate::terminal::{self, Live};
use crate::words::mbit;
use fairweir_config::text;

pub(super) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let mut asker = Asker::connect(&args.run_dir, Access::Read)?;
    let is_live =
        !args.once && !args.json && io::stdout().is_terminal() && io::stdin().is_terminal();
    if is_live {
        let (status, busiest) = (Status::default(), Busiest::default());
        return terminal::show(&mut View { asker, count: args.count, status, busiest });
    }
    let request = Request::Top { count: args.count };
    let mut busiest: Busiest = asker.ask(&request)?;
    if busiest.interval_s == 0.0 {
        sleep(View::PERIOD);
        busiest = asker.ask(&request)?;
    }
    let out = &mut text::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&busiest)?)?;
    } else {
        let rows: Vec<_> = busiest.subscribers.iter().map(cells).collect();
        table::print(out, &HEADINGS, &rows)?;
    }
    Ok(())
}

/// The live view.
struct View {
    asker: Asker,
    /// The number of subscribers to show.
    count: usize,
    status: Status,
    busiest: Busiest,
}

impl Live for View {
    const PERIOD: Duration = Duration::from_secs(1);

    fn refresh(&mut self) -> anyhow::Result<()> {
        self.busiest = self.asker.ask(&Request::Top { count: self.count })?;
        self.status = self.asker.ask(&fairweir_daemon::Request::Status)?;
        Ok(())
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        draw(frame, &self.status, &self.busiest);
    }
}

const HEADINGS: [(&str, Align); 8] = [
    ("SUBSCRIBER", Align::Left),
    ("PLAN", Align::Left),
    ("DOWNLOAD", Align::Right),
    ("OF", Align::Right),
    ("UPLOAD", Align::Right),
    ("OF", Align::Right),
    ("DROPS", Align::Right),
    ("MARKS", Align::Right),
];

fn cells(busy: &Busy) -> Vec<String> {
    let both = [busy.download, busy.upload];
    let rate = |one: Option<BusyDirection>| {
        one.map_or(["-".to_owned(), "-".to_owned()], |d| [mbit(d.passed_bps), mbit(d.plan_bps)])
    };
    let sum = |count: fn(&BusyDirection) -> u64| both.iter().flatten().map(count).sum::<u64>();
    let mut cells = vec![busy.name.clone(), busy.plan.clone()];
    cells.extend(both.into_iter().flat_map(rate));
    cells.push(sum(|d| d.dropped_packets).to_string());
    cells.push(sum(|d| d.marked_packets).to_string());
    cells
}

/// A line for each segment and direction, the fullest segment first.
fn segment_lines(status: &Status) -> Vec<Line<'static>> {
    let both = |s: &SegmentStatus| [("down", s.used.download), ("up", s.used.upload)];
    let of = |segment: &SegmentStatus| {
        let (name, members) = (segment.name.clone(), segment.members);
        both(segment).into_iter().filter_map(move |(direction, used)| {
            let used: SegmentUse = used?;
            let part = used.passed_bps as f64 / used.capacity_bps.max(1) as f64;
            let (passed, capacity) = (mbit(used.passed_bps), mbit(used.capacity_bps));
            let text = format!("{name} {direction}: {passed} of {capacity}, {members} members");
            Some((part, text))
        })
    };
    let mut lines: Vec<(f64, String)> = status.segments.iter().flat_map(of).collect();
    lines.sort_by(|a, b| b.0.total_cmp(&a.0));
    lines.into_iter().map(|(_, text)| Line::from(text)).collect()
}

/// The most segments that are shown.
const SEGMENTS_MAX: usize = 5;

fn draw(frame: &mut Frame<'_>, status: &Status, busiest: &Busiest) {
    let segments: Vec<Line<'_>> = segment_lines(status).into_iter().take(SEGMENTS_MAX).collect();
    let heights = [
        Constraint::Length(2),
        Constraint::Length(segments.len() as u16),
        Constraint::Min(1),
        Constraint::Length(1),
    ];
    let rows = Layout::vertical(heights).split(frame.area());
    let color = if status.enforcing { Color::Green } else { Color::Red };
    let head = Line::from(headline(status)).bold().fg(color);
    frame.render_widget(Paragraph::new(head), rows[0]);
    frame.render_widget(Paragraph::new(segments), rows[1]);
    let widths = [
        Constraint::Min(12),
        Constraint::Min(8),
        Constraint::Length(15),
        Constraint::Length(15),
        Constraint::Length(15),
        Constraint::Length(15),
        Constraint::Length(8),
        Constraint::Length(8),
    ];
    let body = busiest.subscribers.iter().map(|busy| {
        let is_full = |d: &BusyDirection| d.passed_bps >= d.plan_bps / 10 * 9;
        let at_rate = [busy.download, busy.upload].iter().flatten().any(is_full);
        let style = if at_rate { Style::new().fg(Color::Yellow) } else { Style::new() };
        Row::new(cells(busy)).style(style)
    });
    let header = Row::new(HEADINGS.map(|(heading, _)| heading)).dim();
    frame.render_widget(Table::new(body, widths).header(header), rows[2]);
    frame.render_widget(Line::from("q: quit · yellow: at the plan's rate").dim(), rows[3]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn any_terminal_size_is_drawn() {
        let busy = |i: usize| Busy {
            name: format!("subscriber-{i}"),
            plan: "home-50".into(),
            download: Some(BusyDirection { plan_bps: 50, passed_bps: 49, ..Default::default() }),
            upload: None,
        };
        let busiest = Busiest { interval_s: 1.0, subscribers: (0..30).map(busy).collect() };
        let mut cable = SegmentStatus { name: "cable".into(), ..Default::default() };
        cable.used.upload = Some(SegmentUse { capacity_bps: 50, ..Default::default() });
        let segments = vec![cable; 9];
        let status = Status { device: "eth1".into(), segments, ..Status::default() };
        for (width, height) in [(1, 1), (20, 3), (120, 24), (250, 80)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &status, &busiest)).unwrap();
            let screen = terminal.backend().to_string();
            assert_eq!(screen.contains("subscriber-7"), width >= 120, "{screen}");
            let shown = screen.matches("cable up: ").count();
            assert!(width < 120 || shown == SEGMENTS_MAX, "{screen}");
        }
    }
}
