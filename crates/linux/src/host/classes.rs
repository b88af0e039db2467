//! The classes: what each group gets.

use fairweir_core::receiver::Allocation;

use super::Host;
use crate::Error;
use crate::shape::ifb;

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
        let wanted = (allocation, self.slots.as_slice());
        let mtu = ifb::mtu(&self.device);
        if let Err(e) = self.classes.apply(&mut self.netlink, ifb.at(), wanted, mtu) {
            self.release()?;
            return Err(e);
        }
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

    pub(super) fn delete_classes(&mut self, slots: &[u16]) {
        let Some(ifb) = &self.ifb else {
            return;
        };
        self.classes.delete(&mut self.netlink, ifb.at(), slots);
        for slot in slots {
            self.seen.groups.drops.remove(slot);
        }
    }
}
