//! The kernel boundary: everything that asks the Linux kernel for something, and the only crate
//! with `unsafe`.
//!
//! | module | its job |
//! |---|---|
//! | [`Host`] | a device whose download is counted by flow group, and shaped |
//! | [`Router`] | a router whose download is counted by device, and shaped; [`router_trial`]: its programs without devices |
//! | `net` | [`link`]: devices, addresses, routes; [`netns`]: network namespaces; [`network`]: which network this is; netlink |
//! | `classify` | from a policy to the classifier's tables; its hook; who owns sockets; [`trial`]: the classifier without a device |
//! | `shape` | HTB classes on an intermediate device |
//! | `window` | what each connection received, and how far its receive window may open |
//! | [`police`] | subscribers' rates and policies in the kernel, for an ISP |
//! | [`sender`] | congestion controls whose connections answer each other's signals |
//! | [`divert`] | connections of a LAN handed to a proxy on this gateway |
//! | [`probe`] | how long a small packet takes to a host behind the access link, and back |
//! | `bpf` | the programs of `bpf/`: loading, maps, attaching; the structures that they share with Rust |
//! | [`doctor`] | what this kernel can |
//! | [`pacing`], [`realtime`] | for the lab: TCP that spreads its packets, real-time priority |
//!
//! Devices are named as in the calling thread's network namespace.

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
mod tcp;
mod window;

pub use classify::census::{Talker, Who};
pub use classify::trial;
pub use clock::monotonic_now;
pub use error::Error;
pub use host::{Health, Host, HostSpec, Mode};
pub use net::{link, netns, network};
pub use random::random;
pub use router::{Router, RouterSpec, trial as router_trial};
pub use shape::ifb::{leftovers, name as ifb_name, sweep};
pub use shape::uplink::{Upload, UploadGroup, UploadSample};
pub use tcp::{round_trip, set_receive_buffer};
pub use window::expiry::{ExpiryProgram, detach_expiry};
pub use window::lift;
