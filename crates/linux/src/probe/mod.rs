//! A probe: sends small echo requests to a reflector and measures the round-trip times.
//!
//! Problem: what a host gets depends on the queue of the access link, which is in the ISP's
//! network. Method: an echo to a host behind that queue waits in it like every packet, so the
//! round-trip time is a constant plus the queueing delay. [`fairweir_core::probe::Prober`] decides
//! when requests are sent and which count as lost.
//!
//! | module | its job |
//! |---|---|
//! | `packet` | requests and answers as bytes |
//! | `target` | which hosts can be reflectors if none is configured |
//! | `socket` | sending, and seeing what arrives |
//! | `worker` | the thread: when to do what |
//!
//! A [`Probe`] has its own thread: requests leave in time whatever the caller does. The kernel
//! timestamps answers, so neither the thread nor the caller has to be quick.

use std::fmt;
use std::io::{self, PipeWriter, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use fairweir_core::probe::{Intervals, Prober, Totals};
use fairweir_core::receiver::ProbeSample;
use fairweir_core::units::{Span, Time};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::{Error, monotonic_now};

mod packet;
mod socket;
mod target;
mod worker;

use packet::Request;
use worker::Worker;

/// What to probe, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSpec {
    /// The device by which requests leave and answers arrive, independent of the routes.
    pub dev: String,
    /// The host that answers.
    pub reflector: Reflector,
    /// The intervals between requests.
    pub intervals: Intervals,
}

/// The host that answers requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reflector {
    /// This host.
    Address(IpAddr),
    /// A router behind the access link. It is found without requests to hosts of third parties,
    /// once the link is in use.
    Auto,
}

impl fmt::Display for Reflector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reflector::Address(address) => address.fmt(f),
            Reflector::Auto => f.write_str("auto"),
        }
    }
}

/// The present state of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeState {
    /// The host that answered last; before the first answer, the host that is asked, if any.
    pub reflector: Option<IpAddr>,
    /// Number of requests that have been answered or lost since the start.
    pub sent: u64,
    /// Number of these that were answered.
    pub answered: u64,
    /// The newest round-trip time.
    pub rtt_last: Option<Span>,
    /// Why requests cannot be sent; `None` if they can.
    pub error: Option<String>,
}

/// A running probe; it ends when this drops.
#[derive(Debug)]
pub struct Probe {
    shared: Arc<Mutex<Shared>>,
    /// Wakes the thread, and ends it when it closes.
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// Data that the thread and the owner share.
#[derive(Debug)]
struct Shared {
    prober: Prober<Request, IpAddr>,
    asked: Option<IpAddr>,
    error: Option<String>,
}

impl Probe {
    /// Starts to probe in the calling thread's network namespace, as if the link were idle.
    ///
    /// # Errors
    /// If there is no such device, or without CAP_NET_RAW.
    ///
    /// # Panics
    /// If an interval is shorter than [`fairweir_core::probe::INTERVAL_MIN`].
    pub fn start(spec: &ProbeSpec) -> Result<Probe, Error> {
        let started = |e: io::Error| Error::refused("start the probe's thread", e);
        let shared = Arc::new(Mutex::new(Shared::new(spec.intervals, monotonic_now())));
        let (woken, wake) = io::pipe().map_err(started)?;
        for end in [woken.as_fd(), wake.as_fd()] {
            fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|e| started(e.into()))?;
        }
        let worker = Worker::new(spec, woken, Arc::clone(&shared))?;
        let thread = thread::Builder::new().name("probe".to_owned());
        let thread = thread.spawn(move || worker.work()).map_err(started)?;
        Ok(Probe { shared, wake: Some(wake), thread: Some(thread) })
    }

    /// Sets whether the link is in use: requests are then sent more often.
    pub fn set_in_use(&mut self, in_use: bool) {
        let changed = {
            let prober = &mut lock(&self.shared).prober;
            let changed = prober.is_in_use() != in_use;
            if changed {
                prober.handle_use(monotonic_now(), in_use);
            }
            changed
        };
        if changed && let Some(wake) = &mut self.wake {
            // If the pipe is full, the thread is woken anyway.
            let _ = wake.write(&[0]);
        }
    }

    /// The requests that were answered or lost since the last call.
    pub fn take_sample(&mut self) -> ProbeSample {
        lock(&self.shared).prober.take_sample(monotonic_now())
    }

    /// The present state.
    pub fn state(&self) -> ProbeState {
        let shared = lock(&self.shared);
        let Totals { sent, answered, rtt_last, from, .. } = shared.prober.totals();
        let error = shared.error.clone();
        ProbeState { reflector: from.or(shared.asked), sent, answered, rtt_last, error }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // The thread has printed its panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new(intervals: Intervals, now: Time) -> Shared {
        Shared { prober: Prober::new(intervals, now), asked: None, error: None }
    }
}

/// A thread that panicked while it held the lock leaves valid state: all fields are independent.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
