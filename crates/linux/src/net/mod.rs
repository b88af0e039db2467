//! Network devices, namespaces and the identity of a network, by netlink.

pub mod admission;
pub mod conntrack;
pub mod datagram;
pub mod link;
pub(crate) mod netlink;
pub mod netns;
pub mod network;
