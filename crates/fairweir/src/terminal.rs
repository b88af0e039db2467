//! What live views share.

use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};

/// Whether the user wants to leave: q, Esc or Ctrl-C.
pub(crate) fn is_quit(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
    key.kind == KeyEventKind::Press
        && (interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}
