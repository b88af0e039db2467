//! The policer's maps and programs in the kernel.
//!
//! The compiled object is loaded once for each direction without any program, which makes the maps,
//! and once for each hook with its program alone, which takes these maps over and has the hook's
//! settings as constants.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

use libbpf_rs::{
    AsRawLibbpf, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject,
};

use super::abi::{CHUNK, CLASS_ROOMS, CLASSES, Settings};
use crate::Error;
use crate::bpf::abi::Plain;
use crate::bpf::{bpf_error, listen_to_the_loader};

/// The maps of a direction, some of them common to both.
pub(super) struct Maps {
    /// Holds the BTF of the slots' types.
    object: Object,
    handles: BTreeMap<String, MapHandle>,
    chunk_types: [(u32, u32); CLASSES],
    /// Room for subscribers. Held here, since the kernel lends a map by its number only to those
    /// that may do anything.
    chunks: [Vec<MapHandle>; CLASSES],
}

/// A map of whole words that this process and the kernel's programs have in common.
pub(super) struct Shared {
    at: *mut AtomicU64,
    words: usize,
}

impl Maps {
    /// Makes the maps of a direction; plans and slots are those of `other` if there is one.
    pub(super) fn make(other: Option<&Maps>) -> Result<Maps, Error> {
        let attempted = "make the policer's maps";
        let mut object = open(&[])?;
        let mut chunk_types = [(0, 0); CLASSES];
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let result = match other.filter(|_| Maps::is_common(&name)) {
                Some(other) => map.reuse_fd(other.handles[&name].as_fd()),
                None => Ok(()),
            };
            result.map_err(|e| bpf_error(attempted, &e))?;
            if let Some(class) = CHUNKS.iter().position(|&chunks| chunks == name) {
                let map = map.as_libbpf_object().as_ptr();
                // SAFETY: the map belongs to the open object, which is there.
                chunk_types[class] = unsafe {
                    let key = libbpf_sys::bpf_map__btf_key_type_id(map);
                    (key, libbpf_sys::bpf_map__btf_value_type_id(map))
                };
            }
        }
        let object = object.load().map_err(|e| bpf_error(attempted, &e))?;
        let mut handles = BTreeMap::new();
        // The library holds the patterns' places in its table with descriptors that are no maps.
        let is_made = |map: &libbpf_rs::Map<'_>| !CHUNKS.iter().any(|name| map.name() == *name);
        for map in object.maps().filter(is_made) {
            let handle = MapHandle::try_from(&map).map_err(|e| bpf_error(attempted, &e))?;
            handles.insert(map.name().to_string_lossy().into_owned(), handle);
        }
        Ok(Maps { object, handles, chunk_types, chunks: Default::default() })
    }

    /// Loads the programs `names` with these maps.
    pub(super) fn load(&self, names: &[&str], settings: Settings) -> Result<Object, Error> {
        let attempted = format!("load the program {}", names.join(" and "));
        let mut object = open(names)?;
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let result = if name.ends_with(SETTINGS) {
                map.set_initial_value(settings.as_bytes())
            } else if CHUNKS.contains(&name.as_str()) || name.contains(".rodata") {
                Ok(())
            } else {
                map.reuse_fd(self.map(&name).as_fd())
            };
            result.map_err(|e| bpf_error(&*attempted, &e))?;
        }
        object.load().map_err(|e| bpf_error(attempted, &e))
    }

    /// A map that the programs declare.
    pub(super) fn map(&self, name: &str) -> &MapHandle {
        self.handles.get(name).expect("invariant: the compiled object has all these maps")
    }

    /// Makes the next `count` chunks of a class. The kernel waits for all running programs once.
    pub(super) fn make_chunks(&mut self, class: usize, count: usize) -> Result<(), Error> {
        let attempted = || format!("make room for subscribers ({})", SLOTS[class]);
        let (btf_key_type_id, btf_value_type_id) = self.chunk_types[class];
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            // SAFETY: the object is loaded and outlives the call.
            btf_fd: unsafe {
                libbpf_sys::bpf_object__btf_fd(self.object.as_libbpf_object().as_ptr())
            } as u32,
            btf_key_type_id,
            btf_value_type_id,
            ..Default::default()
        };
        let bytes = CLASS_ROOMS[class].bytes as u32;
        let name = Some(SLOTS[class]);
        let make = |_| MapHandle::create(MapType::Array, name, 4, bytes, CHUNK, &options);
        let chunks: Vec<MapHandle> = (0..count)
            .map(make)
            .collect::<Result<_, _>>()
            .map_err(|e| bpf_error(attempted(), &e))?;
        let first = self.chunks[class].len();
        let keys: Vec<u8> = (first as u32..).take(count).flat_map(u32::to_ne_bytes).collect();
        let values: Vec<u8> =
            chunks.iter().flat_map(|chunk| chunk.as_fd().as_raw_fd().to_ne_bytes()).collect();
        self.map(SLOTS[class])
            .update_batch(&keys, &values, count as u32, MapFlags::ANY, MapFlags::ANY)
            .map_err(|e| bpf_error(attempted(), &e))?;
        self.chunks[class].extend(chunks);
        Ok(())
    }

    /// How many slots of a class the chunks hold.
    pub(super) fn slot_count(&self, class: usize) -> u32 {
        self.chunks[class].len() as u32 * CHUNK
    }

    /// Chunk number `at` of a class, if it was made.
    pub(super) fn chunk(&self, class: usize, at: u32) -> Option<&MapHandle> {
        self.chunks[class].get(at as usize)
    }

    /// Whether both directions have the map `name` in common.
    pub(super) fn is_common(name: &str) -> bool {
        COMMON.contains(&name)
    }

    /// All maps that were made.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, &MapHandle)> {
        self.handles.iter().map(|(name, handle)| (name.as_str(), handle))
    }
}

impl Shared {
    /// Maps the first `words` words of the map `name` into this process.
    pub(super) fn of(maps: &Maps, name: &str, words: usize) -> Result<Shared, Error> {
        let fd = maps.map(name).as_fd().as_raw_fd();
        // SAFETY: a new mapping; the kernel refuses one that is longer than the map.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                words * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(Error::last_os(format!("map {name} into memory")));
        }
        Ok(Shared { at: at.cast(), words })
    }

    /// The word with this index.
    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "within the map");
        // SAFETY: within the mapping, which is aligned to pages and lives as long as this.
        unsafe { &*self.at.add(index) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it any more.
        unsafe { libc::munmap(self.at.cast(), self.words * 8) };
    }
}

// SAFETY: the mapping belongs to the process, and all access to it is atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Opens the object so that it will load these programs and no map that is a pattern only.
fn open(programs: &[&str]) -> Result<OpenObject, Error> {
    listen_to_the_loader();
    let attempted = "open the policer's programs";
    let mut object =
        ObjectBuilder::default().open_memory(OBJECT).map_err(|e| bpf_error(attempted, &e))?;
    for mut program in object.progs_mut() {
        let load = program.name().to_str().is_some_and(|name| programs.contains(&name));
        program.set_autoload(load);
    }
    for mut map in object.maps_mut() {
        if CHUNKS.iter().any(|chunks| map.name() == *chunks) {
            map.set_autocreate(false).map_err(|e| bpf_error(attempted, &e))?;
        }
    }
    Ok(object)
}

/// The compiled `bpf/police.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/police.bpf.o"));
/// What the name of the map with the constants ends in.
const SETTINGS: &str = ".rodata.settings";
/// Maps that both directions share.
const COMMON: [&str; 9] =
    ["plans", "places", "segments", "members", "slots1", "slots4", "slots16", "slots64", "slotsb"];
pub(super) const SLOTS: [&str; CLASSES] = ["slots1", "slots4", "slots16", "slots64", "slotsb"];
const CHUNKS: [&str; CLASSES] =
    ["slots1_chunk", "slots4_chunk", "slots16_chunk", "slots64_chunk", "slotsb_chunk"];
