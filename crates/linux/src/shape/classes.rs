//! The classes of one device as they were last set.

use std::collections::BTreeMap;

use fairweir_core::receiver::{Allocation, ClassSpec};
use fairweir_core::units::{Bytes, Rate};

use crate::Error;
use crate::net::netlink::Netlink;
use crate::shape::htb::{self, ClassCount};

/// The device whose root qdisc has the classes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'d> {
    pub(crate) name: &'d str,
    pub(crate) index: u32,
}

/// The classes that were set, by number.
#[derive(Debug, Default)]
pub(crate) struct Classes(BTreeMap<u16, ClassSpec>);

impl Classes {
    /// Changes the classes of `slots` to the allocation, in one batch and only where they differ.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn apply(
        &mut self,
        netlink: &mut Netlink,
        at: At<'_>,
        (allocation, slots): (&Allocation, &[u16]),
        mtu: Bytes,
    ) -> Result<(), Error> {
        let classes = htb::class_specs(allocation, slots, mtu);
        let requests = htb::changes(at.index, &self.0, &classes);
        netlink.change_all(&format!("set the classes of {}", at.name), &requests)?;
        self.0 = classes;
        Ok(())
    }

    /// Deletes the classes of `slots`. They get no packets any more, so a class that stays (or that
    /// another process has already deleted with all others) does no harm: the next group with this
    /// slot sets its rate.
    pub(crate) fn delete(&mut self, netlink: &mut Netlink, at: At<'_>, slots: &[u16]) {
        let made = |slot: &&u16| self.0.contains_key(&htb::minor(**slot));
        let requests: Vec<_> =
            slots.iter().filter(made).map(|&s| htb::deletion(at.index, s)).collect();
        for &slot in slots {
            self.0.remove(&htb::minor(slot));
        }
        if let Err(e) = netlink.change_all(&format!("delete classes of {}", at.name), &requests) {
            tracing::debug!(error = %e, "unused classes stay");
        }
    }

    /// The ceil of the class of `slot`.
    pub(crate) fn ceil(&self, slot: u16) -> Option<Rate> {
        self.0.get(&htb::minor(slot)).map(|class| class.ceil)
    }

    /// The kernel's counts of each class, by slot.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub(crate) fn counts(
        &self,
        netlink: &mut Netlink,
        at: At<'_>,
    ) -> Result<BTreeMap<u16, ClassCount>, Error> {
        if self.0.is_empty() { Ok(BTreeMap::new()) } else { htb::counts(netlink, at.index) }
    }
}
