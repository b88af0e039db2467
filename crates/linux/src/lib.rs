//! The kernel boundary: everything that asks the Linux kernel for something, and the only crate
//! with `unsafe`.
//!
//! | module | its job |
//! |---|---|
//! | [`Host`] | a device whose download is counted by flow group, and shaped |
//! | [`link`] | network devices, addresses, routes, by netlink |
//! | [`netns`] | anonymous network namespaces, for the lab and for tests |
//! | [`pacing`] | TCP that spreads its packets, for the lab's servers |
//! | [`realtime`] | real-time priority for the lab's link element |
//! | [`network`], [`doctor`] | which network this is, what this kernel can |
//! | [`probe`] | how long a small packet takes to somebody behind the access link, and back |
//! | [`police`] | subscribers' rates and policies in the kernel, for an ISP |
//! | [`trial`] | the classifier without a device, for tests and benchmarks |
//! | `bpf` | the programs of `bpf/`: loading, maps, attaching |
//! | `rules` | from a policy to the tables that the classifier looks up |
//! | `htb` | the classes |
//! | `ifb`, `ingress` | the device behind which is shaped, and the hook in front of it |
//! | `connections`, `windows` | what each connection received, and how far its window may open |
//! | `cgroup`, `census` | who owns sockets |
//!
//! Devices are named as in the calling thread's network namespace.

mod abi;
mod bpf;
mod census;
mod cgroup;
mod clock;
mod connections;
pub mod doctor;
mod error;
mod host;
mod htb;
mod ifb;
mod ingress;
pub mod link;

mod netlink;
pub mod netns;
pub mod network;
pub mod pacing;
pub mod police;
pub mod probe;
pub mod realtime;
mod rules;
pub mod trial;
mod windows;

pub use census::{Talker, Who};
pub use clock::monotonic_now;
pub use error::Error;
pub use host::{Health, Host, HostSpec, Mode};
pub use ifb::{leftovers, name as ifb_name, sweep};
pub use windows::lift;
