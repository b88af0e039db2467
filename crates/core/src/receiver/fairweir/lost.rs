//! When a connection lost packets last, and in which queue.

use crate::units::{Span, Time};

/// In which queue packets were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lost {
    /// In the queue that all connections share.
    Shared,
    /// In the connection's own queue, in which its packets waited longer than others'.
    Own,
}

/// When a connection lost packets last: in any queue, in the shared queue, and in its own queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastLosses {
    at: Option<Time>,
    shared_at: Option<Time>,
    own_at: Option<Time>,
}

impl LastLosses {
    /// Takes in a loss.
    pub(super) fn handle_loss(&mut self, now: Time, lost: Option<Lost>) {
        self.at = Some(now);
        match lost {
            Some(Lost::Own) => self.own_at = Some(now),
            Some(Lost::Shared) => self.shared_at = Some(now),
            None => {}
        }
    }

    /// Whether the connection's sender still grows back after a loss.
    pub(super) fn is_recovering(&self, now: Time) -> bool {
        is_recent(self.at, now)
    }

    /// The queue in which the connection lost packets recently; its own queue takes precedence.
    pub(super) fn lost(&self, now: Time) -> Option<Lost> {
        let own = is_recent(self.own_at, now).then_some(Lost::Own);
        own.or(is_recent(self.shared_at, now).then_some(Lost::Shared))
    }
}

fn is_recent(at: Option<Time>, now: Time) -> bool {
    at.is_some_and(|at| now.since(at) < RECOVERS_FOR)
}

/// Time in which a sender grows back after a loss, as CUBIC does.
const RECOVERS_FOR: Span = Span::secs(8);
