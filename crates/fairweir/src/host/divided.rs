//! How the shares of devices behind a router are divided, as the devices ask.

use std::collections::BTreeMap;

use fairweir_core::agreement::Classes;
use fairweir_core::agreement::device::with_clients;
use fairweir_core::policy::Policy;

/// The classes of each device, by the device's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceClasses(pub(super) BTreeMap<String, Classes>);

impl DeviceClasses {
    /// `policy` with these classes as groups beneath their devices.
    pub(super) fn applied(&self, policy: &Policy) -> Policy {
        with_clients(policy, self.0.iter().map(|(device, classes)| (device.as_str(), classes)))
    }
}
