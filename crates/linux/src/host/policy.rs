//! The policy: groups and their rules, owners of sockets, the census.

use fairweir_core::policy::Policy;
use fairweir_core::units::Span;

use super::Host;
use super::programs::Parts;
use crate::bpf::abi::{
    FEATURE_CENSUS, FEATURE_OWNERS, FEATURE_SITES, FEATURE_TRANSIT, FEATURE_UPLOAD, FEATURE_WINDOWS,
};
use crate::classify::census::{self, Talker};
use crate::classify::cgroup::Tree;
use crate::classify::rules::{self, Rules};
use crate::classify::site::Ear;
use crate::shape::ifb::Ifb;
use crate::{Error, monotonic_now};

impl Host {
    /// Takes over a new policy.
    pub(super) fn change_policy(&mut self, policy: &Policy) -> Result<(), Error> {
        let slots = self.shaper.slots_of(policy);
        let rules = Rules::new(policy, &slots, &self.cgroup_tree(policy))?;
        let counters = self.programs.counters()?;
        let features = rules.features(rules::needs_owners(policy));
        self.shaper.put_rules(rules, |old, new| self.programs.set_rules(old, new))?;
        let before = self.config;
        self.config.features = features | (self.config.features & FEATURES_KEPT);
        self.config.default_slot = slots[policy.default_group()].into();
        self.config.generation += 1;
        if let Err(e) = self.configure() {
            self.config = before;
            return Err(e);
        }
        self.bypass.restart();
        let at = self.ifb.as_ref().map(Ifb::at);
        self.shaper.take_over(policy, slots, &counters.slots, at.as_slice());
        self.learn_owners();
        self.hear_sites();
        Ok(())
    }

    /// How much each talker received since the start, in no particular order; empty without
    /// [`crate::HostSpec::census`].
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn census(&mut self) -> Result<Vec<Talker>, Error> {
        let tree = self.cgroups.as_deref().map(Tree::read).unwrap_or_default();
        Ok(census::talkers(&self.programs.census()?, &tree))
    }

    /// Learns owners of sockets from the first policy on that needs them; other policies do not
    /// pay. A missing kernel feature becomes a limit, not an error: addresses and ports still work.
    fn learn_owners(&mut self) {
        let needed = self.config.features & (FEATURE_OWNERS | FEATURE_CENSUS) != 0;
        if self.knows_owners || !needed {
            return;
        }
        self.knows_owners = true;
        match self.programs.parts() {
            Parts::All | Parts::WatchAll | Parts::NoWindows => {}
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

    /// Hears sites from the first policy on that has sites.
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

    /// Units come and go: a cgroup that makes sockets for the first time may belong to a group.
    pub(super) fn look_for_cgroups(&mut self, new_cgroups: u64) -> Result<(), Error> {
        let now = monotonic_now();
        let needed = rules::needs_cgroups(&self.shaper.policy);
        if needed && now.since(self.seen.cgroups_read) < CGROUPS_READ_INTERVAL {
            return Ok(());
        }
        self.seen.new_cgroups = new_cgroups;
        self.seen.cgroups_read = now;
        if !needed {
            return Ok(());
        }
        let tree = self.cgroup_tree(&self.shaper.policy);
        let rules = Rules::new(&self.shaper.policy, &self.shaper.slots, &tree)?;
        if rules == self.shaper.rules {
            return Ok(());
        }
        self.shaper.put_rules(rules, |old, new| self.programs.set_rules(old, new))?;
        self.config.generation += 1;
        self.configure()
    }
}

/// Features that do not come from the policy.
const FEATURES_KEPT: u32 = FEATURE_CENSUS | FEATURE_WINDOWS | FEATURE_TRANSIT | FEATURE_UPLOAD;
/// Interval between two reads of all cgroups, each of which takes some milliseconds.
const CGROUPS_READ_INTERVAL: Span = Span::secs(1);
