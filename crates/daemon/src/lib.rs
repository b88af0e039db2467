//! The common parts of all daemons of fairweir: an event loop, a Unix socket with tagged requests and replies, a
//! client, reload, a lock, a state directory, metrics, and the protocol with systemd.
//!
//! A daemon is a [`Service`]: it has a deadline, handles requests, reloads its configuration, and reports its status.
//! [`run`] does everything else. `docs/develop/adding-a-service.md` is a walk-through.
//!
//! | module | its job |
//! |---|---|
//! | [`service`](self) | the trait, and the loop that drives it |
//! | `events` | signals, changed files, end of stdin |
//! | `server`, `client`, `wire` | both ends of the socket, and the messages |
//! | `http`, `metrics` | OpenMetrics, for Prometheus |
//! | `run_dir`, `lock`, `state_dir` | sockets, locks and remembered files, safe from other users |
//! | `guard` | a process that cleans up what a killed daemon left in the kernel |
//! | `systemd` | readiness and watchdog |
#![forbid(unsafe_code)]

mod client;
mod error;
mod events;
mod guard;
mod http;
mod lock;
mod metrics;
mod run_dir;
mod server;
mod service;
mod state_dir;
mod systemd;
mod wire;

pub use client::{Client, OnProgress};
pub use error::Error;
pub use events::Watched;
pub use guard::{Alarm, StandingGuard, stand_guard};
pub use lock::Lock;
pub use metrics::{MetricValue, Metrics};
pub use run_dir::{
    OpenTo, control_socket, instances, listen, metrics_socket, status_socket, web_dir, web_socket,
};
pub use server::{Access, Peer};
pub use service::{Progress, Service, Spec, run};
pub use state_dir::{StateDir, StateLock};
pub use wire::{Answer, Reply, Request, as_line};

/// The time in seconds since 1970; 0 if the clock is before that.
pub fn unix_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
