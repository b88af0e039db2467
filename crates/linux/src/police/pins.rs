//! The parts of the policer that outlive its process: pins in the kernel's BPF file system.
//!
//! Problem: a daemon that ends, in whatever way, must not leave its subscribers unpoliced until the next one
//! starts. Method: the links are pinned; a link keeps its program, and a program its maps. The next daemon
//! fills its own tables by its own configuration, and then replaces the programs through the links, so each
//! packet meets one or the other. The slots, which contain the subscribers' state, are pinned too, with the
//! tables of addresses that lead to them: the next daemon gives a subscriber the slot that its address had.
//! Both programs use the slot under its lock, so no state is lost or outdated.
//!
//! Properties: slots of another layout (the hash of the compiled programs) are not used; then the
//! state begins empty, and policing goes on. Pinned programs police until the time in the map
//! `deadline`. Only one process at a time has a device's directory.
//!
//! Below [`ROOT`]: `fairweir-isp/NETNS/DEVICE/`, with a link for each hook, and `state-LAYOUT/` with all other pins.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use ipnet::IpNet;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::fcntl::{Flock, FlockArg};

use super::abi::{CLASSES, Entry, OBJECT, key_of};
use super::slots::{SlotKind, class_of, index_of, kind_of};
use super::{Direction, Hook, is_whole};
use crate::Error;
use crate::bpf::abi::Plain;
use crate::bpf::pinned::{
    ROOT, directory, entries, escaped, layout, make, open, pin, remove, unescaped,
};
use crate::net::netns::Netns;

/// The directory of a device, locked by one process.
#[derive(Debug)]
pub(super) struct Pins {
    dir: PathBuf,
    /// The directory with the slots of this layout.
    pub(super) state: PathBuf,
    _lock: Flock<File>,
}

/// The tables of a previous process, until its programs are replaced.
pub(super) struct Old {
    /// For each direction, in the order of [`TABLES`].
    tables: [[Option<MapHandle>; 4]; 2],
    /// Number of existing slots of each class, and the slots that subscribers have now.
    counts: [u32; CLASSES],
    claimed: [BTreeSet<u32>; CLASSES],
}

impl Pins {
    /// Locks the directory of a device, which is created if it is missing.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if others may write there; if another process has it; or without a BPF file system.
    pub(super) fn open(device: &str) -> Result<Pins, Error> {
        let dir = directory(&[OURS, &own()?, &escaped(device)])?;
        let lock = lock(&dir, LOCK_TRIES)?.ok_or_else(|| {
            let source = io::Error::other("another process polices there");
            Error::refused(format!("use {}", dir.display()), source)
        })?;
        let state = dir.join(state_name());
        make(&state)?;
        Ok(Pins { dir, state, _lock: lock })
    }

    /// The path of a hook's link.
    pub(super) fn link(&self, device: &str, hook: Hook, direction: Direction) -> PathBuf {
        self.dir.join(format!("{LINK}{hook:?}-{direction:?}-{}", escaped(device)))
    }

    /// Removes all other links, which detaches their programs.
    pub(super) fn retain_links(&self, links: &[&Path]) -> Result<(), Error> {
        for (name, path) in entries(&self.dir)? {
            if name.starts_with(LINK) && !links.contains(&&*path) {
                tracing::info!(link = name, "detaches what another process had attached");
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes slots of other layouts.
    pub(super) fn retain_state(&self) -> Result<(), Error> {
        for (name, path) in entries(&self.dir)? {
            if name.starts_with(STATE) && path != self.state {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the existing slots.
    pub(super) fn forget_state(&self) -> Result<(), Error> {
        remove(&self.state)?;
        make(&self.state)
    }

    /// Removes everything.
    pub(super) fn remove(self) -> Result<(), Error> {
        remove_all(&self.dir)
    }
}

impl Old {
    /// The tables that a previous process has pinned, with `counts` slots.
    pub(super) fn open(pins: &Pins, counts: [u32; CLASSES]) -> Old {
        let table = |direction, name| open(&pins.state.join(table_name(direction, name))).ok();
        let tables = Direction::ALL.map(|direction| TABLES.map(|name| table(direction, name)));
        Old { tables, counts, claimed: Default::default() }
    }

    /// The slot of this kind that one of these addresses had, if no subscriber has it now.
    pub(super) fn slot(&self, direction: Direction, nets: &[IpNet], kind: SlotKind) -> Option<u32> {
        let entries = nets.iter().filter_map(|net| {
            let at = usize::from(matches!(net, IpNet::V6(_))) + if is_whole(net) { 0 } else { 2 };
            let table = self.tables[direction.index()][at].as_ref()?;
            let value = table.lookup(&key_of(net), MapFlags::ANY).ok()??;
            Entry::from_bytes(&value).map(|entry| entry.slot)
        });
        let is_vacant = |slot: &u32| {
            let (class, index) = (class_of(*slot), index_of(*slot));
            kind_of(*slot) == kind
                && index < self.counts[class]
                && !self.claimed[class].contains(&index)
        };
        entries.into_iter().find(is_vacant)
    }

    /// As [`Old::slot`]; the slot then belongs to a subscriber.
    pub(super) fn claim(
        &mut self,
        direction: Direction,
        nets: &[IpNet],
        kind: SlotKind,
    ) -> Option<u32> {
        let slot = self.slot(direction, nets, kind)?;
        self.claimed[class_of(slot)].insert(index_of(slot));
        Some(slot)
    }

    /// The slots of a class that no subscriber has.
    pub(super) fn vacant(&self, class: usize) -> impl Iterator<Item = u32> {
        (0..self.counts[class]).filter(move |index| !self.claimed[class].contains(index))
    }
}

/// Pins in `dir` the tables that lead from addresses to slots, under the names of [`TABLES`].
pub(super) fn pin_tables(
    dir: &Path,
    direction: Direction,
    maps: [&MapHandle; 4],
) -> Result<(), Error> {
    for (name, map) in TABLES.into_iter().zip(maps) {
        pin(map.as_fd(), &dir.join(table_name(direction, name)))?;
    }
    Ok(())
}

/// The devices of this network namespace that have pins, including those of running processes.
///
/// # Errors
/// If the directory cannot be read.
pub fn devices() -> Result<Vec<String>, Error> {
    let found = match entries(&of_namespace()?) {
        // Only root sees the pins, and only root removes them.
        Err(e) if e.errno() == Some(libc::EACCES) => Vec::new(),
        found => found?,
    };
    Ok(found.into_iter().filter_map(|(name, _)| unescaped(&name)).collect())
}

/// Removes the pins that a dead process left for a device, which ends its policing; returns whether there were any.
///
/// # Errors
/// If it cannot be removed.
pub fn sweep(device: &str) -> Result<bool, Error> {
    let dir = of_namespace()?.join(escaped(device));
    if !dir.is_dir() {
        return Ok(false);
    }
    let Some(_lock) = lock(&dir, SWEEP_TRIES)? else { return Ok(false) };
    remove_all(&dir).map(|()| true)
}

/// Removes a device's directory, the links first, and those above it if they are empty.
fn remove_all(dir: &Path) -> Result<(), Error> {
    for (name, path) in entries(dir)? {
        if name.starts_with(LINK) {
            remove(&path)?;
        }
    }
    remove(dir)?;
    for above in dir.ancestors().skip(1).take(2) {
        let _ = fs::remove_dir(above);
    }
    Ok(())
}

fn lock(dir: &Path, tries: u32) -> Result<Option<Flock<File>>, Error> {
    let attempted = || format!("lock {}", dir.display());
    for _ in 0..tries {
        let file = File::open(dir).map_err(|e| Error::refused(attempted(), e))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => sleep(LOCK_PAUSE),
            Err((_, e)) => return Err(Error::refused(attempted(), e)),
        }
    }
    Ok(None)
}

/// The directory that contains those of this network namespace's devices.
fn of_namespace() -> Result<PathBuf, Error> {
    Ok(Path::new(ROOT).join(OURS).join(own()?))
}

/// The name of this network namespace's directory: its cookie, since pins outlive the namespace. An older
/// fairweir named the directory by the inode; until the machine restarts, such a directory stays in use.
fn own() -> Result<String, Error> {
    let cookie = Netns::current_cookie()?.to_string();
    let inode = fs::metadata("/proc/thread-self/ns/net")
        .map_err(|e| Error::refused("find the own network namespace below /proc", e))?
        .ino()
        .to_string();
    let is_there = |name: &str| Path::new(ROOT).join(OURS).join(name).is_dir();
    Ok(if is_there(&inode) && !is_there(&cookie) { inode } else { cookie })
}

fn state_name() -> String {
    format!("{STATE}{}", layout(OBJECT))
}

fn table_name(direction: Direction, name: &str) -> String {
    format!("{direction:?}-{name}")
}

const OURS: &str = "fairweir-isp";
/// Prefixes of the names of links and of directories with slots.
const LINK: &str = "link-";
const STATE: &str = "state-";
/// Whole addresses of IPv4 and IPv6, then shorter prefixes.
const TABLES: [&str; 4] = ["whole4", "whole6", "prefixes4", "prefixes6"];
/// A killed process holds its lock for a moment longer.
const LOCK_TRIES: u32 = 100;
const SWEEP_TRIES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
