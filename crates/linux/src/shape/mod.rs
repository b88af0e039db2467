//! The intermediate device behind which a device's ingress is shaped, and the classes there.

pub(crate) mod classes;
pub(crate) mod htb;
pub(crate) mod ifb;
pub(crate) mod uplink;
