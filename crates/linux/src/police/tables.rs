//! The tables of one direction: from addresses to entries.

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use super::abi::{self, Entry, Prefixes, key_of};
use super::maps::Maps;
use super::room::Room;
use super::{Direction, PoliceSpec, is_whole, pins};
use crate::Error;
use crate::bpf::abi::Plain;
use crate::bpf::{KEY, bpf_error, update};

/// The tables of one direction.
pub(super) struct Tables {
    pub(super) maps: Maps,
    prefixes: Prefixes,
    whole4: Room,
    whole6: Room,
    /// The directory where they are pinned.
    pinned_in: Option<(PathBuf, Direction)>,
}

impl Tables {
    /// Makes the tables; plans and slots are those of `other` if there is one.
    pub(super) fn make(spec: PoliceSpec, other: Option<&Maps>) -> Result<Tables, Error> {
        let maps = Maps::make(other)?;
        let whole4 = Room::make(&maps, "addresses4", 4, spec.addresses4)?;
        let whole6 = Room::make(&maps, "addresses6", 16, spec.addresses6)?;
        Ok(Tables { maps, prefixes: Prefixes::default(), whole4, whole6, pinned_in: None })
    }

    /// Makes room for this many more whole addresses of each family.
    ///
    /// # Errors
    /// [`Error::TooMany`], or if the kernel refuses.
    pub(super) fn reserve(&mut self, more4: u32, more6: u32) -> Result<(), Error> {
        let has_grown = self.whole4.reserve(&self.maps, more4)?;
        let has_grown = self.whole6.reserve(&self.maps, more6)? | has_grown;
        // Policing does not need the pin; without it the next process finds no state.
        if has_grown && let Err(e) = self.pin() {
            tracing::warn!("the state of subscribers will not be kept: {e}");
        }
        Ok(())
    }

    /// Pins the tables in `dir`, now and when they grow.
    pub(super) fn keep(&mut self, dir: &Path, direction: Direction) -> Result<(), Error> {
        self.pinned_in = Some((dir.to_owned(), direction));
        self.pin()
    }

    fn pin(&self) -> Result<(), Error> {
        let Some((dir, direction)) = &self.pinned_in else { return Ok(()) };
        let [whole4, whole6] = self.rooms();
        let prefixes = ["prefixes4", "prefixes6"].map(|name| self.maps.map(name));
        pins::pin_tables(dir, *direction, [whole4, whole6, prefixes[0], prefixes[1]])
    }

    /// The maps of whole addresses.
    pub(super) fn rooms(&self) -> [&MapHandle; 2] {
        [self.whole4.map(), self.whole6.map()]
    }

    /// Adds an address that leads to `entry`.
    ///
    /// # Errors
    /// [`Error::AddressTaken`], [`Error::TooMany`].
    pub(super) fn insert(&mut self, net: &IpNet, entry: Entry) -> Result<(), Error> {
        if is_whole(net) {
            let is_ip4 = matches!(net, IpNet::V4(_));
            self.reserve(u32::from(is_ip4), u32::from(!is_ip4))?;
        }
        let (map, key) = self.find(net);
        // SAFETY: the map is open, its keys and values have these lengths, and the call keeps
        // neither. The library's own call does not return the kernel's error number.
        let answer = unsafe {
            libbpf_sys::bpf_map_update_elem(
                map.as_fd().as_raw_fd(),
                key.as_ptr().cast(),
                entry.as_bytes().as_ptr().cast(),
                MapFlags::NO_EXIST.bits(),
            )
        };
        if answer != 0 {
            return Err(Tables::refusal(net, -answer));
        }
        self.count(net, 1)
    }

    /// Replaces the entry of an address.
    pub(super) fn replace(&mut self, net: &IpNet, entry: Entry) -> Result<(), Error> {
        let (map, key) = self.find(net);
        update(map, &key, entry.as_bytes())
    }

    /// Removes an address.
    pub(super) fn remove(&mut self, net: &IpNet) -> Result<(), Error> {
        let (map, key) = self.find(net);
        match map.delete(&key) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(bpf_error(format!("remove the address {net}"), &e)),
            Ok(()) => self.count(net, -1),
        }
    }

    /// Inserts all addresses, or none.
    pub(super) fn insert_all(&mut self, nets: &[IpNet], entry: Entry) -> Result<(), Error> {
        for (done, net) in nets.iter().enumerate() {
            if let Err(e) = self.insert(net, entry) {
                self.remove_all(&nets[..done])?;
                return Err(e);
            }
        }
        Ok(())
    }

    pub(super) fn remove_all(&mut self, nets: &[IpNet]) -> Result<(), Error> {
        nets.iter().try_for_each(|net| self.remove(net))
    }

    /// Resets the counters of the plan with this number.
    pub(super) fn reset_totals(&self, number: u32) -> Result<(), Error> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(|e| bpf_error("count the CPUs", &e))?;
        let zero = abi::Totals::default().as_bytes().to_vec();
        let map = self.maps.map("totals");
        map.update_percpu(&number.to_ne_bytes(), &vec![zero; cpus], MapFlags::ANY)
            .map_err(|e| bpf_error("reset the totals of a plan", &e))
    }

    /// The map and the key of an address.
    fn find(&self, net: &IpNet) -> (&MapHandle, Vec<u8>) {
        let map = match (is_whole(net), net) {
            (true, IpNet::V4(_)) => self.whole4.map(),
            (true, IpNet::V6(_)) => self.whole6.map(),
            (false, IpNet::V4(_)) => self.maps.map("prefixes4"),
            (false, IpNet::V6(_)) => self.maps.map("prefixes6"),
        };
        (map, key_of(net))
    }

    /// Counts addresses; for shorter prefixes the programs only need to know whether there are any.
    fn count(&mut self, net: &IpNet, by: i32) -> Result<(), Error> {
        let count = match (is_whole(net), net) {
            (true, IpNet::V4(_)) => {
                self.whole4.count(by);
                return Ok(());
            }
            (true, IpNet::V6(_)) => {
                self.whole6.count(by);
                return Ok(());
            }
            (false, IpNet::V4(_)) => &mut self.prefixes.count4,
            (false, IpNet::V6(_)) => &mut self.prefixes.count6,
        };
        let before = *count;
        *count = before.saturating_add_signed(by);
        if (before == 0) == (*count == 0) {
            return Ok(());
        }
        update(self.maps.map("prefixes"), &KEY, self.prefixes.as_bytes())
    }

    fn refusal(net: &IpNet, errno: i32) -> Error {
        match errno {
            libc::EEXIST => Error::AddressTaken(*net),
            libc::ENOSPC if !is_whole(net) => {
                Error::TooMany { what: "prefixes".to_owned(), max: PREFIXES_MAX }
            }
            _ => {
                let source = std::io::Error::from_raw_os_error(errno);
                Error::refused(format!("add the address {net}"), source)
            }
        }
    }
}

/// Capacity of the prefix table of a family and direction in `bpf/police_maps.h`.
const PREFIXES_MAX: u32 = 1 << 24;
