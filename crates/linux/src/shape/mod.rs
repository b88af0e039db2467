//! Limits packets to a rate: classes at an intermediate device or at a root qdisc.

pub(crate) mod classes;
pub(crate) mod htb;
pub(crate) mod ifb;
pub(crate) mod shaper;
pub(crate) mod uplink;
