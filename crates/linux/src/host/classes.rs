//! The classes: what each group gets.

use fairweir_core::receiver::Allocation;

use super::Host;
use crate::Error;
use crate::shape::{htb, ifb};

impl Host {
    /// Makes the classes so, all in one batch and only what differs, and lets the classifier send
    /// packets through them.
    ///
    /// # Errors
    /// If the kernel refuses; then everything passes unshaped.
    ///
    /// # Panics
    /// If the allocation has another number of classes than the policy has groups.
    pub fn apply(&mut self, allocation: &Allocation) -> Result<(), Error> {
        assert_eq!(allocation.classes.len(), self.slots.len(), "each group has a class");
        let Some(ifb) = &self.ifb else {
            return Ok(());
        };
        let classes = htb::class_specs(allocation, &self.slots, ifb::mtu(&self.device));
        let requests = htb::changes(ifb.index, &self.classes, &classes);
        let attempted = format!("set the classes of {}", ifb.name);
        if let Err(e) = self.netlink.change_all(&attempted, &requests) {
            self.release()?;
            return Err(e);
        }
        self.classes = classes;
        self.config.enforce = 1;
        self.configure()
    }

    /// Lets everything pass unshaped until the next [`Host::apply`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn release(&mut self) -> Result<(), Error> {
        self.config.enforce = 0;
        self.configure()
    }

    /// Nothing is sent to these classes any more, so one that stays (or that another process has
    /// deleted with all the rest) does no harm: the next group with this slot sets its rate.
    pub(super) fn delete_classes(&mut self, slots: Vec<u16>) {
        let Some(ifb) = &self.ifb else {
            return;
        };
        let made = |slot: &u16| self.classes.contains_key(&htb::minor(*slot));
        let requests: Vec<_> =
            slots.iter().filter(|s| made(s)).map(|&s| htb::deletion(ifb.index, s)).collect();
        for slot in slots {
            self.classes.remove(&htb::minor(slot));
            self.seen.drops.remove(&slot);
        }
        let attempted = format!("delete classes of {}", ifb.name);
        if let Err(e) = self.netlink.change_all(&attempted, &requests) {
            tracing::debug!(error = %e, "unused classes stay");
        }
    }
}
