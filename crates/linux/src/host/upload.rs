//! What leaves by the device: counted by flow group and, if wanted, shared.

use super::Host;
use crate::bpf::abi::Config;
use crate::shape::uplink::{Uplink, Upload};
use crate::{Error, monotonic_now};

impl Host {
    /// Counts from now on what leaves by the device, too, so that it can be shared.
    ///
    /// # Errors
    /// If the device has a root qdisc of another program, the kernel is older than 6.6, or it refuses.
    pub(super) fn share_upload(&mut self) -> Result<(), Error> {
        let counters = self.programs.upload_counters()?;
        self.uplink = Some(Uplink::new(&mut self.netlink, &self.device, counters)?);
        self.programs.attach_upload(self.device.index)
    }

    /// What leaves by the device; `None` if it is not shared.
    pub fn upload(&mut self) -> Option<Upload<'_>> {
        let (programs, config) = (&self.programs, self.config);
        Some(Upload {
            uplink: self.uplink.as_mut()?,
            netlink: &mut self.netlink,
            device: &self.device,
            slots: &self.slots,
            shape: self.shape,
            features: &mut self.config.features,
            configure: Box::new(move |features| {
                let heartbeat_ns = monotonic_now().as_nanos();
                programs.configure(&Config { features, heartbeat_ns, ..config })
            }),
        })
    }

    /// Lets what leaves pass unshaped.
    pub(super) fn release_upload(&mut self) -> Result<(), Error> {
        self.upload().map_or(Ok(()), |mut upload| upload.release())
    }
}
