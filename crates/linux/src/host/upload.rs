//! What leaves by the device: counted by flow group and, if wanted, shared.

use fairweir_core::upload::UploadPlan;

use super::Host;
use crate::Error;
use crate::bpf::abi::FEATURE_UPLOAD;
use crate::shape::uplink::{Uplink, UploadSample};

impl Host {
    /// Counts from now on what leaves by the device, too, so that it can be shared.
    ///
    /// # Errors
    /// If the device has a root qdisc of another program, the kernel is older than 6.6, or it refuses.
    pub(super) fn share_upload(&mut self) -> Result<(), Error> {
        self.uplink = Some(Uplink::new(&mut self.netlink, &self.device)?);
        self.programs.attach_upload(self.device.index)
    }

    /// What left by the device since the last call; `None` if the upload is not shared.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn take_upload(&mut self) -> Result<Option<UploadSample>, Error> {
        let Some(uplink) = &mut self.uplink else { return Ok(None) };
        let counted = self.programs.upload_counters()?;
        uplink.take(&mut self.netlink, &self.device, &self.slots, counted).map(Some)
    }

    /// Makes the classes of the upload so.
    ///
    /// # Errors
    /// If the kernel refuses, or the device has another root qdisc now; then the upload passes
    /// unshaped.
    pub fn apply_upload(&mut self, plan: &UploadPlan) -> Result<(), Error> {
        let Some(uplink) = self.uplink.as_mut().filter(|_| self.shape) else { return Ok(()) };
        if let Err(e) = uplink.apply(&mut self.netlink, &self.device, &self.slots, plan) {
            self.release_upload()?;
            return Err(e);
        }
        self.config.features |= FEATURE_UPLOAD;
        self.configure()
    }

    /// Lets the upload pass unshaped until the next [`Host::apply_upload`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn release_upload(&mut self) -> Result<(), Error> {
        self.config.features &= !FEATURE_UPLOAD;
        self.configure()?;
        let Some(uplink) = &mut self.uplink else { return Ok(()) };
        uplink.release(&mut self.netlink, &self.device)
    }

    /// Whether flows have queues of their own in the classes of the upload.
    pub fn has_flow_queues(&self) -> bool {
        self.uplink.as_ref().is_none_or(Uplink::has_flow_queues)
    }
}
