//! Bounds of receive windows in the kernel, and what connections received.
//!
//! A map contains each bound by the connection's number; connections that open begin with the bound
//! of their class. A host's programs set the bounds of its sockets (`bpf/connection.h`); a router's
//! lower the windows of acknowledgements that pass (`bpf/router_flow.h`). A host's bounds are
//! recognised by their lowest bits, so any process can lift them, even one that did not see the
//! process that set them ([`lift`]).

use std::collections::BTreeMap;

use fairweir_core::receiver::Windows;
use fairweir_core::units::Bytes;
use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder, OpenObject};

use crate::Error;
use crate::bpf::abi::{CLAMP_MARK, CLAMP_MARK_MASK, InitialWindows, Plain, SLOTS_MAX};
use crate::bpf::{KEY, bpf_error, listen_to_the_loader, program, update};
use crate::net::netns::Netns;
use crate::window::connections::Pass;

pub(crate) mod connections;
pub(crate) mod expiry;

/// Bounds of receive windows in the form of the maps.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Bounds of connections, by id.
    pub(crate) connections: BTreeMap<u64, u32>,
    /// Bounds of connections that open, by slot.
    initial: InitialWindows,
}

/// The maps that hold [`Bounds`].
#[derive(Clone, Copy)]
pub(crate) struct BoundMaps<'m> {
    pub(crate) connections: &'m MapHandle,
    pub(crate) initial: &'m MapHandle,
}

impl Bounds {
    /// No bounds.
    pub(crate) const NONE: Bounds =
        Bounds { connections: BTreeMap::new(), initial: InitialWindows { slots: [0; SLOTS_MAX] } };

    /// The bounds for `windows`, where `slots` are the classes of the groups.
    ///
    /// # Panics
    /// If the number of initial windows is not the number of groups.
    pub(crate) fn of(windows: &Windows, slots: &[u16]) -> Bounds {
        assert_eq!(windows.initial.len(), slots.len(), "each group has an initial window");
        let mut bounds = Bounds::NONE;
        bounds.connections = windows.connections.iter().map(|w| (w.id, number(w.window))).collect();
        for (&slot, window) in slots.iter().zip(&windows.initial) {
            bounds.initial.slots[usize::from(slot)] = window.map_or(0, number);
        }
        bounds
    }

    /// Replaces the bounds in `maps`, which equal `self`, by `new`; writes only differences.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn replace(&mut self, new: Bounds, maps: BoundMaps<'_>) -> Result<(), Error> {
        if self.initial != new.initial {
            update(maps.initial, &KEY, new.initial.as_bytes())?;
            self.initial = new.initial;
        }
        let (map, old, new) = (maps.connections, &self.connections, new.connections);
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
        self.connections = new;
        Ok(())
    }
}

/// A window in the kernel's form, where 0 means no bound: at least 1 byte.
pub(crate) fn number(window: Bytes) -> u32 {
    u32::try_from(window.as_u64()).unwrap_or(u32::MAX).max(1)
}

/// Whether a [`crate::Host`] has set this bound of a window.
pub(crate) fn is_marked(clamp: u32) -> bool {
    clamp & CLAMP_MARK_MASK == CLAMP_MARK
}

/// Lifts the bounds that a killed process left in the calling thread's network namespace, and
/// returns the number of connections. The next pass of a living process sets its bounds again.
///
/// # Errors
/// If the kernel refuses.
pub fn lift() -> Result<usize, Error> {
    let object = open_lift()?.load().map_err(|e| bpf_error(LIFTING, &e))?;
    let mut lifted = Vec::new();
    Pass::new(&program(&object, "fairweir_lift")?)?.run(&Netns::current()?, &mut lifted)?;
    Ok(lifted.len())
}

/// Opens the object with the program that lifts bounds.
pub(crate) fn open_lift() -> Result<OpenObject, Error> {
    listen_to_the_loader();
    ObjectBuilder::default().open_memory(LIFT).map_err(|e| bpf_error(LIFTING, &e))
}

const LIFTING: &str = "lift the bounds of windows";
/// The compiled `bpf/lift.bpf.c`.
const LIFT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lift.bpf.o"));
