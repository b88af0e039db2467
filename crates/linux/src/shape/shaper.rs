//! The part of a host and of a router that handles the groups: their classes, what they received,
//! and the bounds of their connections' windows.

use std::collections::BTreeMap;

use fairweir_core::policy::Policy;
use fairweir_core::receiver::{Allocation, GroupSample};
use fairweir_core::units::{Bytes, Rate};

use crate::Error;
use crate::bpf::abi::{Counter, Marks, SLOTS_MAX};
use crate::classify::rules::{self, Rules};
use crate::net::link::Link;
use crate::net::netlink::Netlink;
use crate::shape::classes::{At, Classes};
use crate::shape::htb::ClassCount;
use crate::shape::uplink::{Uplink, Upload};
use crate::window::Bounds;

/// The groups of a host or a router: see the module.
pub(crate) struct Shaper {
    pub(crate) netlink: Netlink,
    pub(crate) policy: Policy,
    /// The class of each group, in the policy's order.
    pub(crate) slots: Vec<u16>,
    /// The rules in the kernel.
    pub(crate) rules: Rules,
    /// Whether there may be classes; otherwise packets are only counted.
    pub(crate) shape: bool,
    /// The classes at each place.
    classes: Vec<Classes>,
    seen: Seen,
    /// The bounds in force.
    pub(crate) bounds: Bounds,
    /// Present if the upload is shared.
    pub(crate) uplink: Option<Uplink>,
}

/// The counters of groups at the last read, by slot.
struct Seen {
    received: Box<[Counter; SLOTS_MAX]>,
    drops: BTreeMap<u16, u32>,
}

impl Shaper {
    /// The mark of each class, from the marks of the groups in the policy's order.
    pub(crate) fn marks_of(&self, of_groups: &[u8]) -> Marks {
        let mut marks = Marks::default();
        for (slot, mark) in self.slots.iter().zip(of_groups) {
            marks.slots[usize::from(*slot)] = *mark;
        }
        marks
    }

    /// A shaper for `policy`, which is not yet in force ([`Shaper::take_over`]).
    pub(crate) fn new(netlink: Netlink, policy: &Policy, shape: bool) -> Shaper {
        Shaper {
            netlink,
            policy: policy.clone(),
            slots: Vec::new(),
            rules: Rules::default(),
            shape,
            classes: Vec::new(),
            seen: Seen {
                received: Box::new([Counter::default(); SLOTS_MAX]),
                drops: BTreeMap::new(),
            },
            bounds: Bounds::NONE,
            uplink: None,
        }
    }

    /// The classes of the groups of `policy`; a group that exists keeps its own.
    pub(crate) fn slots_of(&self, policy: &Policy) -> Vec<u16> {
        rules::assign_slots(policy, &self.slots_by_name())
    }

    /// Puts `rules` in force by `put`, which gets the old and the new rules.
    ///
    /// # Errors
    /// The error of `put`; then the old rules stay.
    pub(crate) fn put_rules(
        &mut self,
        rules: Rules,
        put: impl Fn(&Rules, &Rules) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Err(e) = put(&self.rules, &rules) {
            let _ = put(&rules, &self.rules);
            return Err(e);
        }
        self.rules = rules;
        Ok(())
    }

    /// Takes over a policy whose rules are in force, with the classes of its groups. The counters
    /// of new groups begin at `counted`; classes of removed groups are deleted.
    pub(crate) fn take_over(
        &mut self,
        policy: &Policy,
        slots: Vec<u16>,
        counted: &[Counter; SLOTS_MAX],
        places: &[At<'_>],
    ) {
        let mut old = self.slots_by_name();
        for (group, &slot) in policy.groups().iter().zip(&slots) {
            if old.remove(&group.name).is_none() {
                self.seen.received[usize::from(slot)] = counted[usize::from(slot)];
            }
        }
        let gone: Vec<u16> = old.into_values().collect();
        self.policy = policy.clone();
        self.slots = slots;
        for (classes, at) in self.classes.iter_mut().zip(places) {
            classes.delete(&mut self.netlink, *at, &gone);
        }
        for slot in gone {
            self.seen.drops.remove(&slot);
        }
    }

    /// What each group received since the last call, in the policy's order; `counted` are the
    /// counters since the start.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub(crate) fn take_samples(
        &mut self,
        counted: &[Counter; SLOTS_MAX],
        places: &[At<'_>],
    ) -> Result<Vec<GroupSample>, Error> {
        let mut classes: BTreeMap<u16, ClassCount> = BTreeMap::new();
        for (made, at) in self.classes.iter().zip(places) {
            for (slot, count) in made.counts(&mut self.netlink, *at)? {
                let all = classes.entry(slot).or_default();
                all.drops = all.drops.wrapping_add(count.drops);
                all.backlog += count.backlog;
            }
        }
        let sample = |&slot: &u16| {
            let class = classes.get(&slot).copied().unwrap_or_default();
            self.seen.take(slot, counted[usize::from(slot)], class)
        };
        Ok(self.slots.iter().map(sample).collect())
    }

    /// Changes the classes at each of `places` to `allocation`; each place has its packet size. Returns
    /// whether packets may have classes now. A group has the rate of its class at each place.
    ///
    /// # Errors
    /// If the kernel refuses.
    ///
    /// # Panics
    /// If the allocation has another number of classes than the policy has groups.
    pub(crate) fn apply(
        &mut self,
        places: &[(At<'_>, Bytes)],
        allocation: &Allocation,
    ) -> Result<bool, Error> {
        assert_eq!(allocation.classes.len(), self.slots.len(), "each group has a class");
        self.classes.resize_with(places.len().max(self.classes.len()), Classes::default);
        let wanted = (allocation, self.slots.as_slice());
        for (classes, (at, mtu)) in self.classes.iter_mut().zip(places) {
            classes.apply(&mut self.netlink, *at, wanted, *mtu)?;
        }
        Ok(!places.is_empty())
    }

    /// The ceil of the class of `slot` at the first place.
    pub(crate) fn ceil(&self, slot: u16) -> Option<Rate> {
        self.classes.first()?.ceil(slot)
    }

    /// Forgets the classes, which the devices have lost.
    pub(crate) fn clear(&mut self) {
        self.classes.clear();
        self.seen.drops.clear();
    }

    /// The shaper of what leaves by `device`; `None` if the upload is not shared. `configure` tells
    /// the programs their features.
    pub(crate) fn upload<'s>(
        &'s mut self,
        device: &'s Link,
        features: &'s mut u32,
        configure: impl Fn(u32) -> Result<(), Error> + 's,
    ) -> Option<Upload<'s>> {
        Some(Upload {
            uplink: self.uplink.as_mut()?,
            netlink: &mut self.netlink,
            device,
            slots: &self.slots,
            shape: self.shape,
            features,
            configure: Box::new(configure),
        })
    }

    /// The fault of the shared upload, in words; `None` if it is as it was created.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub(crate) fn upload_fault(&mut self, device: &Link) -> Result<Option<String>, Error> {
        match &self.uplink {
            Some(uplink) if self.shape => uplink.fault(&mut self.netlink, device),
            _ => Ok(None),
        }
    }

    fn slots_by_name(&self) -> BTreeMap<String, u16> {
        let names = self.policy.groups().iter().map(|g| g.name.clone());
        names.zip(self.slots.iter().copied()).collect()
    }
}

impl Seen {
    fn take(&mut self, slot: u16, now: Counter, class: ClassCount) -> GroupSample {
        let before = std::mem::replace(&mut self.received[usize::from(slot)], now);
        let drops_before = self.drops.insert(slot, class.drops).unwrap_or(0);
        GroupSample {
            received: Bytes::new(now.bytes - before.bytes),
            packets: now.packets - before.packets,
            // The counter of a class that was created anew starts at zero.
            drops: class.drops.checked_sub(drops_before).unwrap_or(class.drops).into(),
            backlog: class.backlog,
        }
    }
}
