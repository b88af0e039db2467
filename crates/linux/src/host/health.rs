//! Whether everything is still attached, and how it is restored.

use super::Host;
use crate::Error;
use crate::attached::Attached;
use crate::classify::ingress;
use crate::net::link;
use crate::shape::ifb::Ifb;

impl Host {
    /// Restores what was removed.
    pub(super) fn restore(&mut self) -> Result<(), Error> {
        self.release()?;
        self.release_upload()?;
        if let Some(old) = self.ifb.take() {
            old.delete(&mut self.shaper.netlink)?;
        }
        self.shaper.clear();
        self.bypass.restart();
        if self.shaper.shape {
            let ifb = Ifb::create(&mut self.shaper.netlink, &self.device.name)?;
            self.config.ifb = ifb.index;
            self.ifb = Some(ifb);
            self.configure()?;
        }
        if self.programs.has_lost_hear() {
            self.programs.attach_hear(self.device.index)?;
        }
        if self.programs.has_lost_upload() {
            self.programs.attach_upload(self.device.index)?;
        }
        match (self.is_attached()?, self.by_clsact) {
            (true, _) => Ok(()),
            (false, false) => self.programs.attach_tcx(self.device.index),
            (false, true) => self.attach_clsact(),
        }
    }

    pub(super) fn attach_clsact(&mut self) -> Result<(), Error> {
        let program = self.programs.classifier_fd()?;
        ingress::attach_clsact(&mut self.shaper.netlink, self.device.index, program)?;
        self.by_clsact = true;
        Ok(())
    }

    fn is_attached(&mut self) -> Result<bool, Error> {
        match self.by_clsact {
            true => ingress::has_our_filter(&mut self.shaper.netlink, self.device.index),
            false => Ok(self.programs.is_attached()),
        }
    }

    /// The fault, in words; `None` if everything is as it was created.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the device is gone, or if the kernel does not answer.
    pub(super) fn fault(&mut self) -> Result<Option<String>, Error> {
        let device = link::find_index_with(&mut self.shaper.netlink, self.device.index)?;
        let device = device.ok_or_else(|| Error::NoDevice(self.device.name.clone()))?;
        self.device.mtu = device.mtu;
        if !self.is_attached()? {
            return Ok(Some(format!("the classifier was detached from {}", self.device.name)));
        }
        if self.programs.has_lost_hear() {
            let dev = &self.device.name;
            return Ok(Some(format!(
                "the program that hears connections open was detached from {dev}"
            )));
        }
        if self.programs.has_lost_upload() {
            let dev = &self.device.name;
            return Ok(Some(format!("the program at the egress was detached from {dev}")));
        }
        if let Some(what) = self.shaper.upload_fault(&self.device)? {
            return Ok(Some(what));
        }
        self.ifb.as_ref().map_or(Ok(None), |ifb| ifb.fault(&mut self.shaper.netlink))
    }
}

#[cfg(test)]
mod tests {
    use fairweir_core::policy::Policy;

    use super::*;
    use crate::bpf::tests::is_root;
    use crate::net::netns::Netns;
    use crate::{Health, HostSpec, Mode};

    #[test]
    fn a_classifier_that_another_process_detaches_is_missed_and_attached_again() {
        if !is_root() {
            return;
        }
        Netns::new().unwrap().run(|| {
            link::create_ifb("wan", "").unwrap();
            let policy = Policy::new(Vec::new()).unwrap();
            let spec = HostSpec {
                dev: "wan".into(),
                policy,
                mode: Mode::Shape,
                census: false,
                marks: false,
            };
            for attach in [Host::attach, Host::attach_by_clsact] {
                let mut host = attach(&spec).unwrap();
                assert_eq!(host.health(), Health::Well);
                if host.by_clsact {
                    ingress::detach_clsact(&mut host.shaper.netlink, host.device.index).unwrap();
                } else {
                    host.programs.force_detach();
                }
                let what = "the classifier was detached from wan".to_owned();
                assert_eq!(host.health(), Health::Broken { what });
                host.repair().unwrap();
                assert_eq!(host.health(), Health::Well);
            }
        });
    }
}
