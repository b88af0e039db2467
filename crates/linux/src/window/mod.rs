//! How far the receive windows of a host's connections may open.
//!
//! The bounds are in a map by the socket's cookie, and an iterator brings the sockets to them
//! (`bpf/connection.h`); connections that open begin with the bound of their class. What is bounded
//! is known by the lowest bits of the bound, so that also a process that knows nothing of the one
//! that set them can lift them ([`lift`]).

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;

use fairweir_core::receiver::{ConnectionSample, Windows};
use fairweir_core::units::Bytes;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ObjectBuilder};

use crate::Error;
use crate::bpf::abi::{
    CLAMP_MARK, CLAMP_MARK_MASK, FEATURE_TRANSIT, FEATURE_WINDOWS, InitialWindows, Plain, SLOTS_MAX,
};
use crate::bpf::{KEY, Parts, Programs, bpf_error, listen_to_the_loader, update};
use crate::classify::cgroup;
use crate::host::Host;
use crate::net::netns::Netns;
use crate::window::connections::{Pass, evidence, samples};
use crate::window::expiry::{Expiry, ExpiryProgram};

pub(crate) mod connections;
pub(crate) mod expiry;

/// The part of a [`Host`] that watches connections; it costs nothing before it is asked for.
pub(crate) enum WindowEnforcer {
    /// Not asked for yet.
    Asleep,
    /// The kernel lacks something; this is told among the limits.
    Lacking,
    /// It watches, and bounds if that is wanted.
    Awake(Box<Awake>),
}

/// The programs that watch and bound, and what is wanted of them.
pub(crate) struct Awake {
    watch: Pass,
    bound: Pass,
    /// Dropping it detaches; `None` if connections that open cannot be seen at once.
    open: Option<Link>,
    /// While there are bounds; `None` if the kernel cannot lift them when this process is killed.
    expiry: Option<Expiry>,
    /// The bounds in force, and those of the connections as they were last seen or set.
    wanted: BTreeMap<u64, u32>,
    seen: BTreeMap<u64, u32>,
    initial: InitialWindows,
    /// Until the next pass that meets every connection, whether something has to be set or not.
    ticks_left: u32,
    output: Vec<u8>,
}

impl Host {
    /// What each connection received since the last call, by id: those that received something or
    /// have a bound, at most [`fairweir_core::receiver::CONNECTIONS_MAX`]. Nothing if the kernel
    /// cannot tell.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_connections(&mut self) -> Result<Vec<ConnectionSample>, Error> {
        if matches!(self.windows, WindowEnforcer::Asleep) {
            self.wake_windows()?;
        }
        let WindowEnforcer::Awake(awake) = &mut self.windows else { return Ok(Vec::new()) };
        awake.ticks_left = awake.ticks_left.saturating_sub(1);
        if awake.open.is_none() || awake.ticks_left == 0 {
            awake.run_bound(&self.netns)?;
        }
        awake.watch.run(&self.netns, &mut awake.output)?;
        let samples = samples(&awake.output, &self.slots);
        self.evidence = evidence(&awake.output);
        let clamp = |s: &ConnectionSample| (s.id, number(s.window));
        awake.seen = samples.iter().map(clamp).collect();
        let is_wanted = |s: &ConnectionSample| awake.wanted.contains_key(&s.id);
        let is_bounded = |s: &&ConnectionSample| is_wanted(s) || is_marked(number(s.window));
        for sample in samples.iter().filter(is_bounded) {
            self.bypass.handle_bounded(self.slots[sample.group], sample);
        }
        Ok(samples)
    }

    /// Makes the windows so, and only these: every other connection is free. What differs by less
    /// than the tolerance from what is in force stays as it is.
    ///
    /// # Errors
    /// If the kernel refuses; then nothing is bounded.
    ///
    /// # Panics
    /// If there is another number of initial windows than the policy has groups.
    pub fn apply_windows(&mut self, windows: &Windows) -> Result<(), Error> {
        assert_eq!(windows.initial.len(), self.slots.len(), "each group has an initial window");
        if matches!(self.windows, WindowEnforcer::Asleep) {
            self.take_connections()?;
        }
        let applied = self.set_windows(windows);
        if applied.is_err() {
            self.release_windows()?;
        }
        applied
    }

    /// Lets all windows open as the kernel likes, until the next [`Host::apply_windows`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn release_windows(&mut self) -> Result<(), Error> {
        if self.config.features & FEATURE_WINDOWS == 0 {
            return Ok(());
        }
        self.config.features &= !FEATURE_WINDOWS;
        self.configure()?;
        let WindowEnforcer::Awake(awake) = &mut self.windows else { return Ok(()) };
        awake.write(&self.programs, BTreeMap::new())?;
        awake.write_initial(&self.programs, FREE)?;
        awake.run_bound(&self.netns)?;
        awake.expiry = None;
        Ok(())
    }

    /// Whether all windows are bounded, also those of connections that open between two ticks.
    pub(crate) fn bounds_openings(&self) -> bool {
        let WindowEnforcer::Awake(awake) = &self.windows else { return false };
        self.config.features & FEATURE_WINDOWS != 0 && awake.open.is_some()
    }

    /// Whether the window of the connection `id` is bounded, as last applied.
    pub fn is_bounded(&self, id: u64) -> bool {
        matches!(&self.windows, WindowEnforcer::Awake(awake) if awake.wanted.contains_key(&id))
    }

    /// The program that lifts the bounds if this process is killed; `None` if the kernel has none.
    pub fn expiry_program(&self) -> Option<ExpiryProgram> {
        ExpiryProgram::of(&self.programs)
    }

    /// Whether this kernel can bound windows, as far as that is known.
    pub fn has_windows(&self) -> bool {
        self.programs.parts() == Parts::All && !matches!(self.windows, WindowEnforcer::Lacking)
    }

    fn set_windows(&mut self, windows: &Windows) -> Result<(), Error> {
        let WindowEnforcer::Awake(awake) = &mut self.windows else { return Ok(()) };
        let wanted = windows.connections.iter().map(|w| (w.id, number(w.window))).collect();
        let mut initial = FREE;
        for (&slot, window) in self.slots.iter().zip(&windows.initial) {
            initial.slots[usize::from(slot)] = window.map_or(0, number);
        }
        awake.write_initial(&self.programs, initial)?;
        let begins = self.config.features & FEATURE_WINDOWS == 0;
        if begins {
            awake.expiry = Expiry::attach(&self.programs)
                .inspect_err(|e| tracing::info!(error = %e, "bounds of windows do not expire"))
                .ok();
        }
        if !begins && !awake.has_to_set(&wanted) {
            // Only of connections that have ended.
            let stays = |id: &u64| awake.wanted.contains_key(id);
            let wanted: BTreeMap<u64, u32> =
                wanted.into_keys().filter(stays).map(|id| (id, awake.wanted[&id])).collect();
            return awake.write(&self.programs, wanted);
        }
        awake.write(&self.programs, wanted)?;
        if begins {
            self.config.features |= FEATURE_WINDOWS;
            self.configure()?;
        }
        let WindowEnforcer::Awake(awake) = &mut self.windows else { return Ok(()) };
        awake.run_bound(&self.netns)
    }

    /// Idempotent: lifts what is bounded and sees no more connections open.
    pub(crate) fn close_windows(&mut self) -> Result<(), Error> {
        let released = self.release_windows();
        if matches!(self.windows, WindowEnforcer::Awake(_)) {
            self.windows = WindowEnforcer::Asleep;
            self.config.features &= !FEATURE_TRANSIT;
        }
        released
    }

    /// Starts to watch, at the first request. What the kernel lacks becomes a limit, not an error.
    fn wake_windows(&mut self) -> Result<(), Error> {
        if self.programs.parts() != Parts::All {
            self.windows = WindowEnforcer::Lacking;
            self.limits.push(
                "connections are not watched and their windows not bounded (the kernel cannot \
                 walk them: needs 5.16)"
                    .to_owned(),
            );
            return Ok(());
        }
        // What a connection has received before the first pass is no volume of an interval.
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
        let watch = programs.program("fairweir_watch")?;
        Ok(Awake {
            watch: Pass::over(&watch, &programs.maps.connections)?,
            bound: Pass::new(&programs.program("fairweir_bound")?)?,
            open: None,
            expiry: None,
            wanted: BTreeMap::new(),
            seen: BTreeMap::new(),
            initial: FREE,
            ticks_left: BOUND_TICKS,
            output: Vec::new(),
        })
    }

    fn run_bound(&mut self, netns: &Netns) -> Result<(), Error> {
        self.ticks_left = BOUND_TICKS;
        self.bound.run(netns, &mut self.output)
    }

    /// Whether any connection is not as it is wanted, beyond the tolerance.
    fn has_to_set(&self, wanted: &BTreeMap<u64, u32>) -> bool {
        let is_so = |(id, &window): (&u64, &u32)| {
            let off = self.seen.get(id).map(|seen| seen.abs_diff(window));
            off.is_some_and(|off| off <= (window / TOLERANCE).max(CLAMP_MARK_MASK))
        };
        let is_to_lift = |(id, &clamp): (&u64, &u32)| is_marked(clamp) && !wanted.contains_key(id);
        self.seen.iter().any(is_to_lift) || !wanted.iter().all(is_so)
    }

    /// Writes what differs.
    fn write(&mut self, programs: &Programs, wanted: BTreeMap<u64, u32>) -> Result<(), Error> {
        write_bounds(&programs.maps.windows, &self.wanted, &wanted)?;
        self.wanted = wanted;
        Ok(())
    }

    fn write_initial(&mut self, programs: &Programs, initial: InitialWindows) -> Result<(), Error> {
        if self.initial != initial {
            update(&programs.maps.initial_windows, &KEY, initial.as_bytes())?;
            self.initial = initial;
        }
        Ok(())
    }
}

/// Turns the bounds `old` in the map into `new`, by id; writes what differs.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn write_bounds(
    map: &MapHandle,
    old: &BTreeMap<u64, u32>,
    new: &BTreeMap<u64, u32>,
) -> Result<(), Error> {
    for id in old.keys().filter(|&id| !new.contains_key(id)) {
        match map.delete(&id.to_ne_bytes()) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
                return Err(bpf_error("lift a window", &e));
            }
            _ => {}
        }
    }
    let changed = || new.iter().filter(|&(id, window)| old.get(id) != Some(window));
    let keys: Vec<u8> = changed().flat_map(|(id, _)| id.to_ne_bytes()).collect();
    let values: Vec<u8> = changed().flat_map(|(_, window)| window.to_ne_bytes()).collect();
    let count = (values.len() / size_of::<u32>()) as u32;
    if count > 0 {
        map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)
            .map_err(|e| bpf_error("write the windows", &e))?;
    }
    Ok(())
}

/// A window as the kernel has it; none is not even a byte.
pub(crate) fn number(window: Bytes) -> u32 {
    u32::try_from(window.as_u64()).unwrap_or(u32::MAX).max(1)
}

/// Whether the bound of a window is one that a [`Host`] has set.
fn is_marked(clamp: u32) -> bool {
    clamp & CLAMP_MARK_MASK == CLAMP_MARK
}

/// Lifts the bounds that a killed process left in the calling thread's network namespace, and says
/// of how many connections. Bounds of a process that lives are set again by its next pass.
///
/// # Errors
/// If the kernel refuses.
pub fn lift() -> Result<usize, Error> {
    listen_to_the_loader();
    let attempted = "lift the bounds of windows";
    let object = ObjectBuilder::default()
        .open_memory(LIFT)
        .and_then(|object| object.load())
        .map_err(|e| bpf_error(attempted, &e))?;
    let missing = || Error::refused(attempted, std::io::Error::from(std::io::ErrorKind::NotFound));
    let program = object.progs_mut().find(|p| p.name() == "fairweir_lift").ok_or_else(missing)?;
    let mut lifted = Vec::new();
    Pass::new(&program)?.run(&Netns::current()?, &mut lifted)?;
    Ok(lifted.len())
}

fn attach_open(programs: &Programs) -> Result<Link, Error> {
    let root = cgroup::open_root()?;
    let link = programs.program("fairweir_open")?.attach_cgroup(root.as_raw_fd());
    link.map_err(|e| bpf_error("see connections open", &e))
}

/// The compiled `bpf/lift.bpf.c`.
const LIFT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lift.bpf.o"));
/// Every connection begins as the kernel likes.
pub(crate) const FREE: InitialWindows = InitialWindows { slots: [0; SLOTS_MAX] };
/// A pass that bounds takes milliseconds, so small changes wait for larger ones: this part of the
/// window. The error is a rate's as well.
const TOLERANCE: u32 = 64;
/// So often every connection is met, also such as came from another device.
const BOUND_TICKS: u32 = 25;
