//! Other hosts behind the same link that report what they receive.
//!
//! The problem: two hosts that each control the same link from behind its queue take each other for rivals. The
//! method: one of them divides the link equally among all, limited by demand. That host counts the others' traffic as
//! part of what the link carries; the others take their part as the capacity of the link. Each host holds its part by
//! its own windows, and all of them see the same queue.

use super::{Contest, Course, Fairweir, NO_CORRECTION, Rivals, Verdict};
use crate::receiver::Observation;
use crate::receiver::observation::{Beside, Told, divided};
use crate::units::{Rate, Time};

impl Fairweir {
    /// What the dividing host told this host, if another host divides the link.
    pub(super) fn told(&self) -> Option<Told> {
        match &self.beside {
            Beside::Told(told) => Some(*told),
            Beside::Nobody | Beside::Led(_) => None,
        }
    }

    /// The rate that the other participating hosts received in the tick.
    pub(super) fn others(&self) -> Rate {
        self.beside.others()
    }

    /// Takes over which hosts are there. A host that is no longer told its part continues with the capacity that the
    /// whole link is said to have.
    pub(super) fn follow_beside(&mut self, observation: &Observation) {
        let before = std::mem::replace(&mut self.beside, observation.beside.clone());
        match (before, self.told()) {
            (Beside::Told(_), Some(_)) | (Beside::Nobody | Beside::Led(_), None) => {}
            (_, Some(_)) => {
                self.begin_alone(observation.at);
                // The host takes part in the first drain that it is told of.
                self.drain.last_at = Time::ZERO;
            }
            (Beside::Told(told), None) => {
                self.link.accept(told.link, observation.at);
                self.begin_alone(observation.at);
            }
        }
    }

    /// Forgets rivals, and what was found out beside them.
    fn begin_alone(&mut self, now: Time) {
        (self.rivals, self.contest, self.course) = (Rivals::new(), Contest::new(), Course::Alone);
        self.losses.suppose_another(now);
        (self.drain.ticks_left, self.drain.last_at) = (0, now);
        self.opening = NO_CORRECTION;
    }

    /// Takes over the part that this host was told.
    pub(super) fn take_told(&mut self, told: Told) -> Verdict {
        if self.link.capacity() != Some(told.part) {
            self.link.set_capacity(Some(told.part));
        }
        Verdict::Rest
    }

    /// Adjusts the opening of all windows until this host has its part of what the link carries. The host that divides
    /// the link keeps the queue at its target.
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

    /// This host's own part of `capacity`, which it divides among all participating hosts.
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

    /// The demand of all groups together; `None` if it is unlimited.
    fn wants(&self) -> Option<Rate> {
        self.groups.iter().map(|group| group.state.wants(group.demand)).sum()
    }
}
