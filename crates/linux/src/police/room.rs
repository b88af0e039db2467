//! Room for the whole addresses of a family and direction; it grows.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use super::abi::Entry;
use super::maps::Maps;
use crate::Error;
use crate::bpf::{KEY, bpf_error, update};

/// The map that contains the addresses now. Invariant: it is the one that programs find, and it has
/// `used` elements.
pub(super) struct Room {
    /// The map through which programs find it.
    outer: &'static str,
    key_bytes: u32,
    map: MapHandle,
    max: u32,
    used: u32,
}

impl Room {
    /// An empty map, with room for this many addresses at first.
    pub(super) fn make(
        maps: &Maps,
        outer: &'static str,
        key_bytes: u32,
        max: u32,
    ) -> Result<Room, Error> {
        let max = max.clamp(1, ADDRESSES_MAX);
        let map = create(outer, key_bytes, max)?;
        let room = Room { outer, key_bytes, map, max, used: 0 };
        room.show(maps)?;
        Ok(room)
    }

    pub(super) fn map(&self) -> &MapHandle {
        &self.map
    }

    /// Makes room for this many more addresses. Programs find all addresses meanwhile: in the old
    /// map until the new one contains them all. Returns whether the map was replaced.
    ///
    /// # Errors
    /// [`Error::TooMany`], or if the kernel refuses; then the old map stays.
    pub(super) fn reserve(&mut self, maps: &Maps, more: u32) -> Result<bool, Error> {
        let wanted = self.used.saturating_add(more);
        if wanted <= self.max {
            return Ok(false);
        }
        if wanted > ADDRESSES_MAX {
            return Err(Error::TooMany { what: self.what(), max: ADDRESSES_MAX });
        }
        let max = wanted.next_power_of_two();
        let map = create(self.outer, self.key_bytes, max)?;
        self.copy_to(&map)?;
        let old = (std::mem::replace(&mut self.map, map), std::mem::replace(&mut self.max, max));
        if let Err(e) = self.show(maps) {
            (self.map, self.max) = old;
            return Err(e);
        }
        tracing::debug!(addresses = self.outer, max, "room grew");
        Ok(true)
    }

    pub(super) fn count(&mut self, by: i32) {
        self.used = self.used.saturating_add_signed(by);
    }

    /// The kind of its addresses, in words.
    pub(super) fn what(&self) -> String {
        if self.key_bytes == 4 { "IPv4 addresses" } else { "IPv6 addresses" }.to_owned()
    }

    fn copy_to(&self, map: &MapHandle) -> Result<(), Error> {
        let attempted = || format!("make room for more {}", self.what());
        if self.used == 0 {
            return Ok(());
        }
        // All at once: the library takes a batch that is not full for the last one.
        let elements = self
            .map
            .lookup_batch(self.used, MapFlags::ANY, MapFlags::ANY)
            .map_err(|e| bpf_error(attempted(), &e))?;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (key, value) in elements {
            keys.extend(key);
            values.extend(value);
        }
        let copied = (values.len() / size_of::<Entry>()) as u32;
        if copied != self.used {
            let source = std::io::Error::other(format!("read {copied} of {}", self.used));
            return Err(Error::refused(attempted(), source));
        }
        map.update_batch(&keys, &values, copied, MapFlags::ANY, MapFlags::ANY)
            .map_err(|e| bpf_error(attempted(), &e))
    }

    /// Lets programs find this map.
    fn show(&self, maps: &Maps) -> Result<(), Error> {
        update(maps.map(self.outer), &KEY, &self.map.as_fd().as_raw_fd().to_ne_bytes())
    }
}

fn create(name: &str, key_bytes: u32, max: u32) -> Result<MapHandle, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let value_bytes = size_of::<Entry>() as u32;
    MapHandle::create(MapType::Hash, Some(name), key_bytes, value_bytes, max, &options)
        .map_err(|e| bpf_error(format!("make room for {max} addresses"), &e))
}

/// The most addresses of a family and direction: more than an access network has; a power of two.
const ADDRESSES_MAX: u32 = 1 << 26;
