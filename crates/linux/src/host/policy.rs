//! The policy: groups and their rules, owners of sockets, the census.

use std::collections::BTreeMap;

use fairweir_core::policy::Policy;
use fairweir_core::units::Span;

use super::Host;
use crate::bpf::Parts;
use crate::bpf::abi::{
    FEATURE_CENSUS, FEATURE_OWNERS, FEATURE_SITES, FEATURE_TRANSIT, FEATURE_UPLOAD, FEATURE_WINDOWS,
};
use crate::classify::census::{self, Talker};
use crate::classify::cgroup::Tree;
use crate::classify::rules::{self, Rules};
use crate::classify::site::Ear;
use crate::{Error, monotonic_now};

impl Host {
    /// Takes over a new policy, touching only what changed: a group that keeps its name keeps its
    /// class, its queue and its counters.
    ///
    /// # Errors
    /// If a user does not exist or the kernel refuses; then the old policy stays.
    pub fn set_policy(&mut self, policy: &Policy) -> Result<(), Error> {
        let names = self.policy.groups().iter().map(|g| g.name.clone());
        let old: BTreeMap<String, u16> = names.zip(self.slots.iter().copied()).collect();
        let slots = rules::assign_slots(policy, &old);
        let rules = Rules::new(policy, &slots, &self.cgroup_tree(policy))?;
        let counters = self.programs.counters()?;
        if let Err(e) = self.programs.set_rules(&self.rules, &rules) {
            let _ = self.programs.set_rules(&rules, &self.rules);
            return Err(e);
        }
        let before = self.config;
        self.config.features =
            rules.features(rules::needs_owners(policy)) | (self.config.features & FEATURES_KEPT);
        self.config.default_slot = slots[policy.default_group()].into();
        self.config.generation += 1;
        if let Err(e) = self.configure() {
            self.config = before;
            return Err(e);
        }
        for (group, &slot) in policy.groups().iter().zip(&slots) {
            if !old.contains_key(&group.name) {
                self.seen.groups.slots[usize::from(slot)] = counters.slots[usize::from(slot)];
            }
        }
        let stays = |name: &str| policy.groups().iter().any(|group| group.name == name);
        let gone: Vec<u16> =
            old.iter().filter(|(name, _)| !stays(name)).map(|(_, &slot)| slot).collect();
        self.bypass.restart();
        self.policy = policy.clone();
        self.slots = slots;
        self.rules = rules;
        self.learn_owners();
        self.hear_sites();
        self.delete_classes(&gone);
        Ok(())
    }

    /// Who received how much since the start, in no particular order; empty without
    /// [`HostSpec::census`].
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn census(&mut self) -> Result<Vec<Talker>, Error> {
        let tree = self.cgroups.as_deref().map(Tree::read).unwrap_or_default();
        Ok(census::talkers(&self.programs.census()?, &tree))
    }

    /// From the first policy on that asks for owners of sockets; others do not pay for them. What
    /// cannot be had is a limit and no error: addresses and ports still work.
    fn learn_owners(&mut self) {
        let needed = self.config.features & (FEATURE_OWNERS | FEATURE_CENSUS) != 0;
        if self.knows_owners || !needed {
            return;
        }
        self.knows_owners = true;
        match self.programs.parts() {
            Parts::All | Parts::NoWindows => {}
            Parts::NoScan => self.limits.push(
                "sockets opened before the daemon started match no application (needs kernel 5.11)"
                    .to_owned(),
            ),
            Parts::NoOwners => self.limits.push(
                "app:, unit:, cgroup: and user: match nothing (needs kernel 5.11)".to_owned(),
            ),
        }
        if let Err(e) = self.programs.attach_owners() {
            self.limits.push(format!("app:, unit:, cgroup: and user: may match nothing: {e}"));
        }
    }

    /// From the first policy on that has sites.
    fn hear_sites(&mut self) {
        if self.ear.is_some() || self.config.features & FEATURE_SITES == 0 {
            return;
        }
        let ear = self.programs.maps.hearing().and_then(|hearing| Ear::new(&hearing.heard));
        match ear.and_then(|ear| self.programs.attach_hear(self.device.index).map(|()| ear)) {
            Ok(ear) => self.ear = Some(ear),
            Err(e) => self.limits.push(format!("web: matches nothing: {e}")),
        }
    }

    fn cgroup_tree(&self, policy: &Policy) -> Tree {
        match &self.cgroups {
            Some(root) if rules::needs_cgroups(policy) => Tree::read(root),
            _ => Tree::default(),
        }
    }

    /// Units come and go: a cgroup that makes sockets for the first time may be one of ours.
    pub(super) fn look_for_cgroups(&mut self, new_cgroups: u64) -> Result<(), Error> {
        let now = monotonic_now();
        let needed = rules::needs_cgroups(&self.policy);
        if needed && now.since(self.seen.cgroups_read) < CGROUPS_READ_INTERVAL {
            return Ok(());
        }
        self.seen.new_cgroups = new_cgroups;
        self.seen.cgroups_read = now;
        if !needed {
            return Ok(());
        }
        let tree = self.cgroup_tree(&self.policy);
        let rules = Rules::new(&self.policy, &self.slots, &tree)?;
        if rules == self.rules {
            return Ok(());
        }
        self.programs.set_rules(&self.rules, &rules)?;
        self.rules = rules;
        self.config.generation += 1;
        self.configure()
    }
}

/// What does not come from the policy.
const FEATURES_KEPT: u32 = FEATURE_CENSUS | FEATURE_WINDOWS | FEATURE_TRANSIT | FEATURE_UPLOAD;
/// Reading all cgroups takes some milliseconds, so they are not read at every tick.
const CGROUPS_READ_INTERVAL: Span = Span::secs(1);
