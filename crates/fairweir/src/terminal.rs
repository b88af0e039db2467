//! Common parts of the live views.

use std::time::Duration;

use fairweir_core::units::Rate;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

/// A view of a daemon that is redrawn until the user leaves.
pub(crate) trait Live {
    /// How often the view asks the daemon.
    const PERIOD: Duration;

    /// Asks the daemon.
    ///
    /// # Errors
    /// If it does not answer; the view then ends.
    fn refresh(&mut self) -> anyhow::Result<()>;

    fn draw(&mut self, frame: &mut Frame<'_>);

    /// Handles a key that does not end the view, or another terminal event.
    fn handle_event(&mut self, _: &Event) {}
}

/// Shows `view` until the user leaves.
///
/// # Errors
/// If the terminal cannot be used, or the daemon does not answer.
pub(crate) fn show<V: Live>(view: &mut V) -> anyhow::Result<()> {
    view.refresh()?;
    let mut terminal = ratatui::try_init()?;
    let ran = (|| -> anyhow::Result<()> {
        loop {
            terminal.draw(|frame| view.draw(frame))?;
            if event::poll(V::PERIOD)? {
                let event = event::read()?;
                if is_quit(&event) {
                    return Ok(());
                }
                view.handle_event(&event);
            }
            view.refresh()?;
        }
    })();
    ratatui::try_restore()?;
    ran
}

/// A rate as a bar of `width` cells, which stand for `scale` bit/s, with a mark at the rate `due`.
pub(crate) fn bar(rate: Rate, due: Rate, scale: u64, width: usize) -> Line<'static> {
    let cells = |rate: Rate| {
        (u128::from(rate.as_bps()) * width as u128 / u128::from(scale.max(1))) as usize
    };
    let full = cells(rate).min(width);
    let mark = cells(due).min(width.saturating_sub(1));
    // Blue and yellow can be told apart with every common colour vision deficiency.
    let is_due = rate.as_bps().abs_diff(due.as_bps()) <= due.as_bps() / 10;
    let color = if is_due { Color::Blue } else { Color::Yellow };
    let cell = |i: usize| match (i == mark && due > Rate::ZERO, i < full) {
        (true, _) => Span::styled("│", Style::new().fg(Color::White).bold()),
        (false, true) => Span::styled("█", Style::new().fg(color)),
        (false, false) => Span::styled("·", Style::new().dim()),
    };
    Line::from((0..width).map(cell).collect::<Vec<_>>())
}

/// Whether the user wants to leave: q, Esc or Ctrl-C.
fn is_quit(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
    key.kind == KeyEventKind::Press
        && (interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_the_rate_and_marks_what_is_due() {
        let text = |rate, due, scale, width| -> String {
            let line = bar(Rate::bps(rate), Rate::bps(due), scale, width);
            line.spans.iter().map(|s| s.content.as_ref()).collect()
        };
        assert_eq!(text(5, 8, 10, 10), "█████···│·");
        assert_eq!(text(50, 50, 10, 4), "███│");
        assert_eq!(text(0, 0, 0, 3), "···");
    }
}
