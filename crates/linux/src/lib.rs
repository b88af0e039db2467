//! The kernel boundary: everything that asks the Linux kernel for something, and the only crate
//! with `unsafe`.
//!
//! | module | its job |
//! |---|---|
//! | [`Host`] | a device whose download is counted by flow group, and shaped; [`trial`]: its programs without a device |
//! | [`Router`] | a router whose download is counted by device, and shaped; [`router_trial`]: its programs without devices |
//! | [`Attached`] | what a host and a router have in common |
//! | [`sweep()`] | what a killed daemon leaves is removed |
//! | `net` | [`link`]: devices, addresses, routes; [`netns`]: network namespaces; [`network`]: which network this is; netlink |
//! | `classify` | from a policy to the classifier's tables; its hook; who owns sockets |
//! | `shape` | HTB classes, at an intermediate device or at a root qdisc; `Shaper`: the groups of a host or a router |
//! | `window` | bounds of receive windows, and what each connection received |
//! | [`police`] | subscribers' rates and policies in the kernel, for an ISP |
//! | [`sender`] | congestion controls whose connections answer each other's signals |
//! | [`divert`] | connections of a LAN handed to a proxy on this gateway |
//! | [`probe`] | how long a small packet takes to a host behind the access link, and back |
//! | `bpf` | libbpf: maps, attaching; the structures that the programs of `bpf/` share with Rust |
//! | [`doctor`] | what this kernel supports |
//! | [`pacing`], [`realtime`] | for the lab: TCP that spreads its packets, real-time priority |
//!
//! Devices are named as in the calling thread's network namespace.

mod attached;
mod bpf;
mod classify;
mod clock;
pub mod divert;
pub mod doctor;
mod error;
mod host;
mod net;
pub mod pacing;
pub mod police;
pub mod probe;
mod random;
pub mod realtime;
mod router;
pub mod sender;
mod shape;
mod sweep;
mod tcp;
#[cfg(test)]
mod verifier;
mod window;

pub use attached::{Attached, Health, Mode};
pub use classify::census::{Talker, Who};
pub use clock::{boottime_now, monotonic_now};
pub use error::Error;
pub use host::{Host, HostSpec, trial};
pub use net::{admission, conntrack, datagram, link, netns, network};
pub use police::pins::{devices as kept, sweep as open_kept};
pub use random::random;
pub use router::kept::forget as forget_connections;
pub use router::{Router, RouterSpec, Sharing, link_devices, trial as router_trial};
pub use shape::uplink::{Upload, UploadGroup, UploadSample};
pub use sweep::{leftovers, sweep};
pub use tcp::{round_trip, set_receive_buffer};
pub use window::expiry::{ExpiryProgram, detach_expiry};
pub use window::lift;
