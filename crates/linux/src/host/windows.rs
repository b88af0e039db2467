//! Bounds of the receive windows of the host's connections.
//!
//! A map contains the bounds by socket cookie. A BPF iterator walks the sockets and sets them
//! (`bpf/connection.h`).

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;

use fairweir_core::receiver::{ConnectionSample, Windows};
use libbpf_rs::Link;

use super::Host;
use super::programs::{Parts, Programs};
use crate::Error;
use crate::bpf::abi::{CLAMP_MARK_MASK, FEATURE_TRANSIT, FEATURE_WINDOWS};
use crate::bpf::bpf_error;
use crate::classify::cgroup;
use crate::net::netns::Netns;
use crate::window::connections::{Pass, evidence, samples};
use crate::window::expiry::{self, Expiry, ExpiryProgram};
use crate::window::{BoundMaps, Bounds, is_marked, number};

/// The part of a [`Host`] that watches connections; it costs nothing until it is used.
pub(super) enum WindowEnforcer {
    /// Not used yet.
    Asleep,
    /// The kernel lacks something; the limits say what.
    Lacking,
    /// Watches, and bounds windows on request.
    Awake(Box<Awake>),
}

/// The programs that watch and bound, and their last results.
pub(super) struct Awake {
    watch: Pass,
    bound: Pass,
    /// Dropping it detaches; `None` if opening connections cannot be seen at once.
    open: Option<Link>,
    /// Present while there are bounds; `None` if the kernel cannot lift them when this process is killed.
    expiry: Option<Expiry>,
    /// The bounds of the connections as they were last seen, by id.
    seen: BTreeMap<u64, u32>,
    /// Ticks until the next pass that visits every connection, even if no bound has to be set.
    ticks_left: u32,
    output: Vec<u8>,
}

impl Host {
    /// The program that lifts the bounds if this process is killed; `None` if the kernel has none.
    pub fn expiry_program(&self) -> Option<ExpiryProgram> {
        ExpiryProgram::of(&self.programs.program(expiry::NAME).ok()?)
    }

    /// Whether this kernel can bound windows, as far as that is known.
    pub fn has_windows(&self) -> bool {
        self.programs.parts().has_windows() && !matches!(self.windows, WindowEnforcer::Lacking)
    }

    /// What each connection received since the last call.
    pub(super) fn watch_connections(&mut self) -> Result<Vec<ConnectionSample>, Error> {
        if matches!(self.windows, WindowEnforcer::Asleep) {
            self.wake_windows()?;
        }
        let WindowEnforcer::Awake(awake) = &mut self.windows else { return Ok(Vec::new()) };
        awake.ticks_left = awake.ticks_left.saturating_sub(1);
        if awake.open.is_none() || awake.ticks_left == 0 {
            awake.run_bound(&self.netns)?;
        }
        awake.watch.run(&self.netns, &mut awake.output)?;
        let samples = samples(&awake.output, &self.shaper.slots);
        self.evidence = evidence(&awake.output);
        let clamp = |s: &ConnectionSample| (s.id, number(s.window));
        awake.seen = samples.iter().map(clamp).collect();
        let is_wanted = |s: &ConnectionSample| self.shaper.bounds.connections.contains_key(&s.id);
        let is_bounded = |s: &&ConnectionSample| is_wanted(s) || is_marked(number(s.window));
        for sample in samples.iter().filter(is_bounded) {
            self.bypass.handle_bounded(self.shaper.slots[sample.group], sample);
        }
        Ok(samples)
    }

    /// Changes the bounds to those of `windows`; does nothing if the kernel cannot bound windows.
    pub(super) fn set_windows(&mut self, windows: &Windows) -> Result<(), Error> {
        let mut wanted = Bounds::of(windows, &self.shaper.slots);
        let WindowEnforcer::Awake(awake) = &mut self.windows else { return Ok(()) };
        let begins = self.config.features & FEATURE_WINDOWS == 0;
        if begins {
            let program = self.programs.program(expiry::NAME);
            awake.expiry = program
                .and_then(|program| Expiry::attach(&program))
                .inspect_err(|e| tracing::info!(error = %e, "bounds of windows do not expire"))
                .ok();
        }
        let bounds = &mut self.shaper.bounds;
        // A connection begins with a bound that ends when it is first watched: it needs its own bound at once.
        let is_new = |id: &u64| !bounds.connections.contains_key(id);
        let has_to_set = begins
            || wanted.connections.keys().any(is_new)
            || awake.has_to_set(&wanted.connections);
        if !has_to_set {
            // Bounds within the tolerance stay; only those of ended connections are removed.
            let mut kept = bounds.connections.clone();
            kept.retain(|id, _| wanted.connections.contains_key(id));
            wanted.connections = kept;
        }
        bounds.replace(wanted, maps(&self.programs))?;
        if !has_to_set {
            return Ok(());
        }
        if begins {
            self.config.features |= FEATURE_WINDOWS;
            self.configure()?;
        }
        let WindowEnforcer::Awake(awake) = &mut self.windows else { return Ok(()) };
        awake.run_bound(&self.netns)
    }

    /// Lifts all bounds. Idempotent.
    pub(super) fn lift_windows(&mut self) -> Result<(), Error> {
        if self.config.features & FEATURE_WINDOWS == 0 {
            return Ok(());
        }
        self.config.features &= !FEATURE_WINDOWS;
        self.configure()?;
        let WindowEnforcer::Awake(awake) = &mut self.windows else { return Ok(()) };
        self.shaper.bounds.replace(Bounds::NONE, maps(&self.programs))?;
        awake.run_bound(&self.netns)?;
        awake.expiry = None;
        Ok(())
    }

    /// Whether all windows are bounded, including those of connections that open between two ticks.
    pub(super) fn bounds_openings(&self) -> bool {
        let WindowEnforcer::Awake(awake) = &self.windows else { return false };
        self.config.features & FEATURE_WINDOWS != 0 && awake.open.is_some()
    }

    /// Lifts all bounds, and stops watching for connections that open. Idempotent.
    pub(super) fn close_windows(&mut self) -> Result<(), Error> {
        let released = self.lift_windows();
        if matches!(self.windows, WindowEnforcer::Awake(_)) {
            self.windows = WindowEnforcer::Asleep;
            self.config.features &= !FEATURE_TRANSIT;
        }
        released
    }

    /// Starts to watch, at the first request. A missing kernel feature becomes a limit, not an error.
    fn wake_windows(&mut self) -> Result<(), Error> {
        if !self.programs.parts().has_windows() {
            self.windows = WindowEnforcer::Lacking;
            self.limits.push(
                "connections are not watched and their windows not bounded (the kernel cannot \
                 walk them: needs 5.16)"
                    .to_owned(),
            );
            return Ok(());
        }
        // What a connection received before the first pass does not belong to an interval.
        self.config.baseline = 1;
        self.config.features |= FEATURE_TRANSIT;
        self.configure()?;
        let mut awake = Box::new(Awake::new(&self.programs)?);
        awake.run_bound(&self.netns)?;
        self.config.baseline = 0;
        self.configure()?;
        match attach_open(&self.programs) {
            Ok(link) => awake.open = Some(link),
            Err(e) => {
                self.limits.push(format!("connections begin with the kernel's own window: {e}"));
            }
        }
        if !expiry::reaches_open_connections() {
            self.limits.push(
                "connections opened before the daemon started keep their bounds if daemon and guard \
                 are killed together (needs kernel 6.12)"
                    .to_owned(),
            );
        }
        self.windows = WindowEnforcer::Awake(awake);
        Ok(())
    }
}

impl Awake {
    fn new(programs: &Programs) -> Result<Awake, Error> {
        Ok(Awake {
            watch: watch(programs)?,
            bound: Pass::new(&programs.program("fairweir_bound")?)?,
            open: None,
            expiry: None,
            seen: BTreeMap::new(),
            ticks_left: BOUND_TICKS,
            output: Vec::new(),
        })
    }

    fn run_bound(&mut self, netns: &Netns) -> Result<(), Error> {
        self.ticks_left = BOUND_TICKS;
        self.bound.run(netns, &mut self.output)
    }

    /// Whether the bound of any connection differs from the wanted one by more than the tolerance.
    fn has_to_set(&self, wanted: &BTreeMap<u64, u32>) -> bool {
        let is_so = |(id, &window): (&u64, &u32)| {
            let off = self.seen.get(id).map(|seen| seen.abs_diff(window));
            off.is_some_and(|off| off <= (window / TOLERANCE).max(CLAMP_MARK_MASK))
        };
        let is_to_lift = |(id, &clamp): (&u64, &u32)| is_marked(clamp) && !wanted.contains_key(id);
        self.seen.iter().any(is_to_lift) || !wanted.iter().all(is_so)
    }
}

/// The pass over the known connections.
pub(super) fn watch(programs: &Programs) -> Result<Pass, Error> {
    if programs.parts() == Parts::WatchAll {
        return Pass::new(&programs.program("fairweir_watch_all")?);
    }
    Pass::over(&programs.program("fairweir_watch")?, &programs.maps.connections)
}

fn maps(programs: &Programs) -> BoundMaps<'_> {
    BoundMaps { connections: &programs.maps.windows, initial: &programs.maps.initial_windows }
}

fn attach_open(programs: &Programs) -> Result<Link, Error> {
    let root = cgroup::open_root()?;
    let link = programs.program("fairweir_open")?.attach_cgroup(root.as_raw_fd());
    link.map_err(|e| bpf_error("see connections open", &e))
}

/// A bound is written only if it differs from the one in force by more than 1/64 of the window,
/// since a pass over all connections takes milliseconds. The rate may be off by the same fraction.
const TOLERANCE: u32 = 64;
/// Ticks (5 s) after which a pass visits every connection, including those that came from another device.
const BOUND_TICKS: u32 = 25;
