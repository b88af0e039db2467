//! Caps of groups, which apply whatever the link carries.
//!
//! The problem: a group at its cap leaves room on the link, so there is no queue that its windows could
//! follow. A cap may also apply before the capacity is known, or while everything else passes. The method: a
//! class with the cap as its rate holds exactly, as for traffic without windows. Windows let in a little more
//! than that, which waits in the class and is not dropped. A capped group wants no more of the link, so the
//! capacity is not concluded from it. Where the link is not divided, the classes and the windows of the
//! other groups are without a bound.

use super::super::class::RATE_UNBOUNDED;
use super::super::{Allocation, ClassRate, Command, Enforce, Excess, Windows};
use super::{CEIL_MIN, Fairweir};
use crate::share::{Claims, Tree, Weight};
use crate::units::Rate;

/// What a group under a cap has while the link is not divided.
#[derive(Clone, Copy, Debug)]
struct Beneath {
    share: Rate,
    /// The rate that it may take at once.
    bound: Rate,
    is_capped: bool,
}

impl Fairweir {
    /// The rate that `group` may take of `capacity` at once, given the demands of all groups.
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

    /// What caps enforce while everything else passes; `None` if there are no caps.
    pub(in super::super) fn caps_alone(&self) -> Option<(Allocation, Windows)> {
        self.weights.has_caps().then(|| self.enforced_beneath(&self.beneath()))
    }

    /// Enforces the caps and nothing else; returns whether there are any.
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

    /// The groups under caps, as if the capacity of the link were unlimited.
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

    /// The windows of the groups that have a bound; all other groups' windows are free.
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
