//! An emulated home: plays a scenario file in network namespaces with real TCP.
//!
//! ```text
//!   internet                      isp                     home
//!   every server, net0 ── line ─── acc0, lan0 ── veth ── wan, the daemon, every receiver
//! ```
//!
//! The line is the access link: it reads packets from one TUN device and writes them to the other according
//! to the model in [`fairweir_scenario::link`], so the bottleneck is exact and the rest is Linux. Half of a
//! flow's RTT lies before the queue of the downlink, half after the queue of the uplink. The namespaces have
//! no names, and the processes end when their standard input does, so nothing outlives the lab, however it
//! ends.
//!
//! | module | its job |
//! |---|---|
//! | `layout` | addresses, ports and names of everything in a scenario |
//! | `job` | what agents are told, and what they report |
//! | `home` | namespaces, devices, routes |
//! | `idle` | waiting until other programs leave the CPU alone |
//! | `line` | the access link in real time |
//! | `agent` | sender and receiver of the flows, as processes |
//! | `daemon` | the real `fairweir host` in the home |
//! | `browser` | real browsers with the extension, and nginx for the sites that they open |
//! | `sites` | the sites of a scenario, played with these browsers and servers |
//! | `run` | one scenario with one control, from the set-up to the report |
//!
//! Without the feature `tls` there are no `browser` and `sites`, and flows of kind `quic` and `browser` are refused.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "tls"),
    allow(dead_code, unused_mut, reason = "it serves flows that are left out")
)]

mod agent;
#[cfg(feature = "tls")]
pub mod browser;
mod clock;
mod daemon;
mod home;
mod idle;
mod isp;
mod job;
mod layout;
mod line;
mod process;
mod run;
mod sender;
#[cfg(feature = "tls")]
mod sites;
mod watch;

pub use agent::{agent_main, is_agent};
pub use daemon::Watchers;
pub use idle::wait_until_idle;
pub use layout::refuse_unplayable;
pub use run::{Options, Progress, run_all, run_once};

use std::io;
use std::path::PathBuf;

/// Why a scenario cannot be played.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The scenario has a feature that only the simulator supports.
    #[error("the emulated home does not play {0}; `fairweir sim run` does")]
    NotPlayed(&'static str),
    /// The kernel lacks a congestion control that the scenario wants.
    #[error("the kernel has no congestion control `{name}`: {source}")]
    NoCongestionControl {
        /// Its name.
        name: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused something of the set-up.
    #[error(transparent)]
    Kernel(#[from] fairweir_linux::Error),
    /// Something of the set-up, or of a process, failed.
    #[error("cannot {attempted}: {source}")]
    Io {
        /// What was attempted.
        attempted: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A process of the lab ended too early.
    #[error("{name} ended: {why}")]
    Ended {
        /// Which one.
        name: String,
        /// Its exit status and last words.
        why: String,
    },
    /// The daemon did not report that it was ready.
    #[error("the daemon was not ready after {after_s} s: {why}")]
    DaemonNotReady {
        /// How long the lab waited.
        after_s: u64,
        /// Its last words.
        why: String,
    },
    /// The file that should act as sender, receiver and daemon is not there.
    #[error("no executable {}", .0.display())]
    NoExecutable(PathBuf),
    /// A program that the scenario needs is not installed.
    #[error("`{0}` is not installed; flows of kind `browser` need it")]
    NotInstalled(&'static str),
    /// The browser's extension was not built.
    #[error("the browser extension is missing; `make extension` makes it")]
    NoExtension,
    /// The user interrupted the run; everything was taken down.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn io(attempted: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Io { attempted: attempted.into(), source: source.into() }
    }
}
