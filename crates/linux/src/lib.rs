//! The kernel boundary: everything that asks the Linux kernel for something, and the only crate
//! with `unsafe`.
//!
//! | module | its job |
//! |---|---|
//! | [`link`] | network devices, addresses, routes, by netlink |
//! | [`netns`] | anonymous network namespaces, for the lab and for tests |
//!
//! Devices are named as in the calling thread's network namespace.

mod error;
pub mod link;
mod netlink;
pub mod netns;

pub use error::Error;
