//! Caps of groups, which hold whatever the link carries.
//!
//! The problem: a group at its cap leaves room at the link, so that there is no queue that its windows could
//! follow, and it may be capped before the capacity is known, or while everything else passes. The method: a
//! class with the cap as its rate holds exactly, as for what has no window; windows let a little more come
//! than that, which waits in the class and is not dropped. A capped group wants nothing of the link, so that
//! the capacity is not concluded from it. Where the link is not divided, the other groups' classes are
//! without a bound, and so are their windows.

use super::super::class::RATE_UNBOUNDED;
use super::super::{Allocation, ClassRate, Command, Enforce, Excess, Windows};
use super::{CEIL_MIN, Fairweir};
use crate::share::{Claims, Tree, Weight};
use crate::units::Rate;

/// What a group beneath a cap has where the link is not divided.
#[derive(Clone, Copy, Debug)]
struct Beneath {
    share: Rate,
    /// What it may take at once.
    bound: Rate,
    is_capped: bool,
}

impl Fairweir {
    /// What each group may take at once of `capacity`, by what all want.
    pub(super) fn bound_of(
        weights: &Tree,
        capacity: Rate,
        demands: &mut [Option<Rate>],
        group: usize,
    ) -> Rate {
        let wanted = demands[group].take();
        let bound = weights.divide(capacity, Claims { demands, taken: &[] })[group];
        demands[group] = wanted;
        bound
    }

    /// What caps hold while everything else passes; `None` without caps.
    pub(in super::super) fn caps_alone(&self) -> Option<(Allocation, Windows)> {
        self.weights.has_caps().then(|| self.enforced_beneath(&self.beneath()))
    }

    /// Has the caps hold, and nothing else; returns whether there are any.
    pub(super) fn divide_by_caps(&mut self) -> bool {
        if !self.weights.has_caps() {
            self.groups.iter_mut().for_each(|group| group.see_cap(false));
            return false;
        }
        let all = self.beneath();
        let (allocation, windows) = self.enforced_beneath(&all);
        for (group, beneath) in self.groups.iter_mut().zip(all) {
            group.see_cap(beneath.is_some_and(|beneath| beneath.is_capped));
            if let Some(Beneath { share, bound, .. }) = beneath {
                (group.share, group.bound, group.ceil) = (share, bound, bound.max(CEIL_MIN));
            }
        }
        self.commands.push(Command::SetRates(allocation));
        if self.enforce != Enforce::Htb {
            self.commands.push(Command::SetWindows(windows));
        }
        true
    }

    /// The groups beneath caps, if the link carried without end.
    fn beneath(&self) -> Vec<Option<Beneath>> {
        let mut demands: Vec<Option<Rate>> = self.groups.iter().map(|g| g.demand).collect();
        let shares = self.weights.divide(Rate::MAX, Claims { demands: &demands, taken: &[] });
        let capped = self.weights.capped(&demands, &shares);
        let mut beneath = |i: usize| {
            self.weights.max(i)?;
            let bound = Fairweir::bound_of(&self.weights, Rate::MAX, &mut demands, i);
            Some(Beneath { share: shares[i], bound, is_capped: capped[i] })
        };
        (0..shares.len()).map(&mut beneath).collect()
    }

    fn enforced_beneath(&self, all: &[Option<Beneath>]) -> (Allocation, Windows) {
        let class = |(i, weight): (usize, Weight)| {
            let rate = all[i].map_or(RATE_UNBOUNDED, |beneath| beneath.bound.max(CEIL_MIN));
            let excess = match self.groups[i].has_windows() && self.enforce != Enforce::Htb {
                true => Excess::Delay,
                false => Excess::Drop,
            };
            ClassRate { rate, ceil: rate, priority: 0, weight, excess }
        };
        let classes = self.weights.weights().into_iter().enumerate().map(class).collect();
        let bounds: Vec<Option<Rate>> =
            all.iter().map(|beneath| beneath.map(|beneath| beneath.bound)).collect();
        (Allocation { total: None, classes }, self.windows_beneath(&bounds))
    }

    /// The windows of groups with a bound; all others are free.
    pub(super) fn windows_beneath(&self, bounds: &[Option<Rate>]) -> Windows {
        let mut windows = Windows::free(bounds.len());
        for (i, bound) in bounds.iter().enumerate() {
            let Some(bound) = *bound else { continue };
            let mut group = self.groups[i].clone();
            (group.bound, group.is_capped) = (bound, true);
            self.bound_members(i, &group, &mut windows.connections);
            windows.initial[i] = Some(self.first_window(bound));
        }
        windows.connections.sort_unstable_by_key(|c| c.id);
        windows
    }
}
