//! Other hosts behind the same link that say what they get.
//!
//! The problem: two hosts that each control the same link from behind its queue take each other for rivals. The
//! method: one of them divides the link, among all of them alike by demand. To that host the others' traffic
//! belongs to what the link carries; to the others their part is what the link carries. Each holds its part by its
//! own windows, and all see the one queue.

use super::{Contest, Course, Fairweir, NO_CORRECTION, Rivals, Verdict};
use crate::receiver::Observation;
use crate::receiver::observation::{Beside, Told, divided};
use crate::units::{Rate, Time};

impl Fairweir {
    /// What this host may take where another divides the link.
    pub(super) fn told(&self) -> Option<Told> {
        match &self.beside {
            Beside::Told(told) => Some(*told),
            Beside::Nobody | Beside::Led(_) => None,
        }
    }

    /// What others that take part received in the tick.
    pub(super) fn others(&self) -> Rate {
        self.beside.others()
    }

    /// Takes over who is there. A host that is not told its part any more goes on from what the whole link is said
    /// to carry.
    pub(super) fn follow_beside(&mut self, observation: &Observation) {
        let before = std::mem::replace(&mut self.beside, observation.beside.clone());
        match (before, self.told()) {
            (Beside::Told(_), Some(_)) | (Beside::Nobody | Beside::Led(_), None) => {}
            (_, Some(_)) => {
                self.begin_alone(observation.at);
                // It takes part in the first drain of which it is told.
                self.drain.last_at = Time::ZERO;
            }
            (Beside::Told(told), None) => {
                self.link.accept(told.link, observation.at);
                self.begin_alone(observation.at);
            }
        }
    }

    /// There are no rivals, and what was found out beside them does not count.
    fn begin_alone(&mut self, now: Time) {
        (self.rivals, self.contest, self.course) = (Rivals::new(), Contest::new(), Course::Alone);
        self.losses.suppose_another(now);
        (self.drain.ticks_left, self.drain.last_at) = (0, now);
        self.opening = NO_CORRECTION;
    }

    /// Believes what it is told.
    pub(super) fn take_told(&mut self, told: Told) -> Verdict {
        if self.link.capacity() != Some(told.part) {
            self.link.set_capacity(Some(told.part));
        }
        Verdict::Rest
    }

    /// Opens all windows so that of what the link carries this host has the part that it is told; who divides the
    /// link keeps the queue at its target.
    pub(super) fn open_as_told(&mut self, told: Told) {
        let rate: Rate = self.groups.iter().map(|g| g.rate_smoothed).sum();
        if !self.is_wanted() || rate == Rate::ZERO {
            return;
        }
        let due = u128::from(told.part.as_bps()) * u128::from(told.carried.as_bps());
        let got = u128::from(rate.as_bps()) * u128::from(told.link.as_bps());
        let ratio = (due.saturating_mul(1_000) / got.max(1)).clamp(800, 1_250) as i64;
        self.step_opening((ratio - 1_000) / 8);
    }

    /// What this host takes of `capacity`, which it divides among all that take part.
    pub(super) fn own_part(&self, capacity: Rate) -> Rate {
        match &self.beside {
            Beside::Led(others) => {
                let wants = others.iter().map(|other| other.wants);
                let parts = divided(capacity, std::iter::once(self.wants()).chain(wants));
                capacity.saturating_sub(parts[1..].iter().copied().sum())
            }
            Beside::Nobody | Beside::Told(_) => capacity,
        }
    }

    /// What all groups want; `None` is without a known end.
    fn wants(&self) -> Option<Rate> {
        self.groups.iter().map(|group| group.state.wants(group.demand)).sum()
    }
}
