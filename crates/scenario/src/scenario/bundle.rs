//! Bundles: groups whose connections leave one host and answer each other's congestion signals.

use fairweir_core::delegate::{BundleSpec, Change, Role, Target};
use fairweir_core::share::Weight;
use fairweir_core::units::Rate;

/// The most connections of a bundle that have a target.
pub const BUNDLE_FREE_MAX: u32 = 16;

/// Connections of one sending host.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    /// Its name, unique in the scenario.
    pub name: String,
    /// How signals are delegated; `None` leaves every connection unchanged, for comparison.
    pub delegation: Option<BundleSpec>,
    /// Groups whose connections have a target.
    pub free: Vec<FreeGroup>,
    /// Groups whose connections answer the signals of the free ones, with their weights.
    pub stunts: Vec<(usize, Weight)>,
    /// Rate that delegation leaves each stunt at least.
    pub min_rate: Rate,
}

/// A group whose connections have a target each.
#[derive(Clone, Debug, PartialEq)]
pub struct FreeGroup {
    /// Index of the group.
    pub group: usize,
    /// The target, as far as it is feasible.
    pub target: Target,
    /// The times at which the target differs from the request.
    pub changes: Vec<Change>,
}

impl Bundle {
    /// The role of a group's connections in this bundle; `None` if they do not belong to it.
    pub fn role_of(&self, group: usize) -> Option<Role> {
        let free = self.free.iter().find(|free| free.group == group);
        let target = free.map(|free| Role::Free(free.target.clone()));
        let min_rate = self.min_rate;
        let stunt = self.stunts.iter().find(|(stunt, _)| *stunt == group);
        target.or(stunt.map(|&(_, weight)| Role::Stunt { weight, min_rate }))
    }

    /// Every group in it.
    pub fn groups(&self) -> impl Iterator<Item = usize> {
        self.free.iter().map(|free| free.group).chain(self.stunts.iter().map(|(group, _)| *group))
    }
}
