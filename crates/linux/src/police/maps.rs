//! The policer's maps and programs in the kernel.
//!
//! The compiled object is loaded once for each direction without any program, which creates the
//! maps; and once for each hook with only the hook's program, which uses these maps and has the
//! hook's settings as constants.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use fairweir_core::agreement::CLASSES_MAX;
use fairweir_core::agreement::bindings::{BINDINGS, Marked};
use libbpf_rs::{
    AsRawLibbpf, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject,
};

use super::abi::{self, CHUNK, CHUNKS, CLASS_ROOMS, CLASSES, CLIENT_CHUNK, OBJECT, Settings};

use crate::Error;
use crate::bpf::abi::Plain;
use crate::bpf::{bpf_error, listen_to_the_loader, pinned};

/// The maps of a direction, some of them shared by both directions.
pub(super) struct Maps {
    /// Keeps the BTF of the slots' types.
    object: Object,
    handles: BTreeMap<String, MapHandle>,
    chunk_types: [(u32, u32); CLASSES],
    /// Slots of subscribers, in chunks by class. Kept open, since opening a map by its number requires CAP_SYS_ADMIN.
    chunks: [Vec<MapHandle>; CLASSES],
    /// Tallies, by the class and the number of the slots' chunk.
    tallies: BTreeMap<(usize, u32), MapHandle>,
    /// Requests of clients, by the number of the slots' chunk.
    clients: BTreeMap<u32, MapHandle>,
    /// Plans of clients' classes, and bindings, in chunks.
    of_clients: [Vec<MapHandle>; 2],
    /// The chunks of bindings.
    bindings: Vec<Shared>,
    /// The directory where chunks and tallies are pinned.
    pinned_in: Option<PathBuf>,
}

/// The objects of a client beside its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfClient {
    /// The plan of its classes.
    Plan,
    /// The bindings of its flows.
    Bindings,
}

/// A map of whole words that is also mapped into this process.
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
            let slots = name.strip_suffix(PATTERN);
            if let Some(class) = SLOTS.iter().position(|&of| Some(of) == slots) {
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
        // For inner-map patterns the library's descriptors are not maps: they are left out.
        for map in object.maps() {
            let name = map.name().to_string_lossy().into_owned();
            if !name.ends_with(PATTERN) {
                let handle = MapHandle::try_from(&map).map_err(|e| bpf_error(attempted, &e))?;
                handles.insert(name, handle);
            }
        }
        let (chunks, tallies) = (Default::default(), BTreeMap::new());
        let (clients, of_clients) = (BTreeMap::new(), Default::default());
        let (bindings, pinned_in) = (Vec::new(), None);
        Ok(Maps {
            object,
            handles,
            chunk_types,
            chunks,
            tallies,
            clients,
            of_clients,
            bindings,
            pinned_in,
        })
    }

    /// Uses the chunks and tallies that are pinned in `dir`, and pins new ones there. Returns the
    /// number of slots of each class.
    ///
    /// # Errors
    /// If a pinned map differs from those that are created here; then no chunk is used.
    pub(super) fn keep(&mut self, dir: &Path) -> Result<[u32; CLASSES], Error> {
        self.pinned_in = Some(dir.to_owned());
        let adopted = (0..CLASSES).try_for_each(|class| {
            let room = CLASS_ROOMS[class];
            let ats = (0..CHUNKS).take_while(|at| is_pinned(dir, SLOTS[class], *at));
            let ats: Vec<u32> = ats.collect();
            self.chunks[class] = self.adopt(dir, SLOTS[class], room.bytes, &ats)?;
            let ats = ats.into_iter().filter(|at| is_pinned(dir, TALLIES[class], *at));
            let ats: Vec<u32> = ats.collect();
            let tallies = self.adopt(dir, TALLIES[class], room.tally_bytes(), &ats)?;
            self.tallies.extend(ats.into_iter().map(|at| (class, at)).zip(tallies));
            Ok(())
        });
        if adopted.is_err() {
            (self.chunks, self.tallies) = Default::default();
        }
        adopted.map(|()| std::array::from_fn(|class| self.slot_count(class)))
    }

    /// Puts pinned chunks into their places in the map `name`.
    fn adopt(
        &self,
        dir: &Path,
        name: &str,
        bytes: usize,
        ats: &[u32],
    ) -> Result<Vec<MapHandle>, Error> {
        if ats.is_empty() {
            return Ok(Vec::new());
        }
        let chunks = ats.iter().map(|at| pinned::open(&dir.join(pin_name(name, *at))));
        let chunks: Vec<MapHandle> = chunks.collect::<Result<_, _>>()?;
        let fits = |chunk: &MapHandle| {
            chunk.map_type() == MapType::Array
                && chunk.value_size() as usize == bytes
                && chunk.max_entries() == CHUNK
        };
        if !chunks.iter().all(fits) {
            let source = std::io::Error::from(std::io::ErrorKind::InvalidData);
            return Err(Error::refused(format!("use the pinned maps {name}"), source));
        }
        self.put(name, ats, &chunks)?;
        Ok(chunks)
    }

    /// Loads the programs `names` with these maps.
    pub(super) fn load(&self, names: &[&str], settings: Settings) -> Result<Object, Error> {
        let object = self.open(names, settings)?;
        object.load().map_err(|e| bpf_error(attempted(names), &e))
    }

    /// Opens the object so that it will load the programs `names` with these maps.
    pub(super) fn open(&self, names: &[&str], settings: Settings) -> Result<OpenObject, Error> {
        let mut object = open(names)?;
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let result = if name.ends_with(SETTINGS) {
                map.set_initial_value(settings.as_bytes())
            } else if name.ends_with(PATTERN) || name.contains(".rodata") {
                Ok(())
            } else {
                map.reuse_fd(self.map(&name).as_fd())
            };
            result.map_err(|e| bpf_error(attempted(names), &e))?;
        }
        Ok(object)
    }

    /// A map that the programs declare.
    pub(super) fn map(&self, name: &str) -> &MapHandle {
        self.handles.get(name).expect("invariant: the compiled object has all these maps")
    }

    /// Creates the next `count` chunks of a class. The kernel waits once for all running programs.
    pub(super) fn make_chunks(&mut self, class: usize, count: usize) -> Result<(), Error> {
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
        let first = self.chunks[class].len() as u32;
        let ats: Vec<u32> = (first..).take(count).collect();
        let size = (CLASS_ROOMS[class].bytes, CHUNK);
        let chunks = self.fill(SLOTS[class], size, &ats, &options)?;
        self.chunks[class].extend(chunks);
        Ok(())
    }

    /// Creates the tallies for chunks of slots that have none.
    pub(super) fn make_tallies(
        &mut self,
        class: usize,
        ats: impl IntoIterator<Item = u32>,
    ) -> Result<(), Error> {
        let is_missing = |at: &u32| !self.tallies.contains_key(&(class, *at));
        let ats: Vec<u32> = ats.into_iter().filter(is_missing).collect();
        let (name, size) = (TALLIES[class], (CLASS_ROOMS[class].tally_bytes(), CHUNK));
        let options = plain_options();
        let chunks = self.fill(name, size, &ats, &options)?;
        self.tallies.extend(ats.into_iter().map(|at| (class, at)).zip(chunks));
        Ok(())
    }

    /// Creates room for the requests of clients of a chunk of slots, if there is none; returns it.
    pub(super) fn make_clients(&mut self, at: u32) -> Result<&MapHandle, Error> {
        if !self.clients.contains_key(&at) {
            let size = (size_of::<abi::Client>(), CHUNK);
            let chunks = self.fill("clients", size, &[at], &plain_options())?;
            self.clients.extend(chunks.into_iter().map(|chunk| (at, chunk)));
        }
        Ok(&self.clients[&at])
    }

    /// The chunk that contains the plan or bindings with this number; created if it is the next one.
    pub(super) fn make_of_client(
        &mut self,
        what: OfClient,
        number: u32,
    ) -> Result<&MapHandle, Error> {
        let at = number / CLIENT_CHUNK;
        while self.of_clients[what as usize].len() <= at as usize {
            let (name, bytes, map_flags) = match what {
                OfClient::Plan => ("client_plans", size_of::<abi::Plan>(), 0),
                OfClient::Bindings => {
                    ("client_bindings", size_of::<abi::Bindings>(), libbpf_sys::BPF_F_MMAPABLE)
                }
            };
            let next = self.of_clients[what as usize].len() as u32;
            let options = libbpf_sys::bpf_map_create_opts { map_flags, ..plain_options() };
            let chunks = self.fill(name, (bytes, CLIENT_CHUNK), &[next], &options)?;
            if what == OfClient::Bindings {
                let words = CLIENT_CHUNK as usize * BINDINGS_WORDS;
                let shared = chunks.iter().map(|chunk| Shared::of(chunk, name, words));
                self.bindings.extend(shared.collect::<Result<Vec<_>, _>>()?);
            }
            self.of_clients[what as usize].extend(chunks);
        }
        Ok(&self.of_clients[what as usize][at as usize])
    }

    /// The chunk that contains the plan or bindings with this number.
    pub(super) fn of_client(&self, what: OfClient, number: u32) -> Option<&MapHandle> {
        self.of_clients[what as usize].get((number / CLIENT_CHUNK) as usize)
    }

    /// What is noted with the bindings of this number: when a flow was last bound to each class, and how many marks
    /// found no place.
    pub(super) fn noted(&self, number: u32) -> Option<(Marked, u32)> {
        let chunk = self.bindings.get((number / CLIENT_CHUNK) as usize)?;
        let first = (number % CLIENT_CHUNK) as usize * BINDINGS_WORDS + BINDINGS;
        // Two numbers are in a word.
        let number = |at: usize| {
            let word = chunk.word(first + at / 2).load(Ordering::Relaxed).to_ne_bytes();
            u32::from_ne_bytes(word.as_chunks().0[at % 2])
        };
        Some((std::array::from_fn(number), number(CLASSES_MAX)))
    }

    /// All maps that were created for clients.
    pub(super) fn all_of_clients(&self) -> impl Iterator<Item = &MapHandle> {
        self.clients.values().chain(self.of_clients.iter().flatten())
    }

    /// Puts new chunks into these places of the map `name`.
    fn fill(
        &self,
        name: &str,
        (bytes, count): (usize, u32),
        ats: &[u32],
        options: &libbpf_sys::bpf_map_create_opts,
    ) -> Result<Vec<MapHandle>, Error> {
        if ats.is_empty() {
            return Ok(Vec::new());
        }
        let attempted = || format!("make room for subscribers ({name})");
        let bytes = bytes as u32;
        let make = |_| MapHandle::create(MapType::Array, Some(name), 4, bytes, count, options);
        let chunks: Vec<MapHandle> = ats
            .iter()
            .map(make)
            .collect::<Result<_, _>>()
            .map_err(|e| bpf_error(attempted(), &e))?;
        if let Some(dir) = self.pinned_in.as_ref().filter(|_| !OF_CLIENTS.contains(&name)) {
            for (at, chunk) in ats.iter().zip(&chunks) {
                pinned::pin(chunk.as_fd(), &dir.join(pin_name(name, *at)))?;
            }
        }
        self.put(name, ats, &chunks)?;
        Ok(chunks)
    }

    fn put(&self, name: &str, ats: &[u32], chunks: &[MapHandle]) -> Result<(), Error> {
        let keys: Vec<u8> = ats.iter().flat_map(|at| at.to_ne_bytes()).collect();
        let values: Vec<u8> =
            chunks.iter().flat_map(|chunk| chunk.as_fd().as_raw_fd().to_ne_bytes()).collect();
        self.map(name)
            .update_batch(&keys, &values, ats.len() as u32, MapFlags::ANY, MapFlags::ANY)
            .map_err(|e| bpf_error(format!("make room for subscribers ({name})"), &e))
    }

    /// Number of slots of a class in all chunks.
    pub(super) fn slot_count(&self, class: usize) -> u32 {
        self.chunks[class].len() as u32 * CHUNK
    }

    /// Chunk number `at` of a class, if it exists.
    pub(super) fn chunk(&self, class: usize, at: u32) -> Option<&MapHandle> {
        self.chunks[class].get(at as usize)
    }

    /// The tallies of a chunk's slots, if they exist.
    pub(super) fn tallies(&self, class: usize, at: u32) -> Option<&MapHandle> {
        self.tallies.get(&(class, at))
    }

    /// All existing tallies.
    pub(super) fn all_tallies(&self) -> impl Iterator<Item = &MapHandle> {
        self.tallies.values()
    }

    /// Whether both directions share the map `name`.
    pub(super) fn is_common(name: &str) -> bool {
        COMMON.contains(&name)
            || OF_CLIENTS.contains(&name)
            || SLOTS.contains(&name)
            || TALLIES.contains(&name)
    }

    /// All declared maps, by name.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, &MapHandle)> {
        self.handles.iter().map(|(name, handle)| (name.as_str(), handle))
    }
}

impl Shared {
    /// Maps the first `words` words of `map`, which is called `name`, into this process.
    pub(super) fn of(map: &MapHandle, name: &str, words: usize) -> Result<Shared, Error> {
        let fd = map.as_fd().as_raw_fd();
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
        // SAFETY: the word is within the mapping, which is page-aligned and lives as long as `self`.
        unsafe { &*self.at.add(index) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and has no references any more.
        unsafe { libc::munmap(self.at.cast(), self.words * 8) };
    }
}

// SAFETY: the mapping belongs to the process, and all access to it is atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

fn pin_name(name: &str, at: u32) -> String {
    format!("{name}-{at}")
}

fn is_pinned(dir: &Path, name: &str, at: u32) -> bool {
    dir.join(pin_name(name, at)).exists()
}

fn plain_options() -> libbpf_sys::bpf_map_create_opts {
    libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    }
}

fn attempted(names: &[&str]) -> String {
    format!("load the program {}", names.join(" and "))
}

/// Opens the object so that it will load these programs, and no map that is only a pattern.
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
        if map.name().to_string_lossy().ends_with(PATTERN) {
            map.set_autocreate(false).map_err(|e| bpf_error(attempted, &e))?;
        }
    }
    Ok(object)
}

const BINDINGS_WORDS: usize = size_of::<abi::Bindings>() / 8;
/// Suffix of the name of the map with the constants.
const SETTINGS: &str = ".rodata.settings";
/// Suffix of the name of a map that is a pattern for chunks.
const PATTERN: &str = "_chunk";
/// Maps that both directions share, in addition to slots and tallies.
const COMMON: [&str; 5] = ["plans", "places", "segments", "members", "deadline"];
const OF_CLIENTS: [&str; 3] = ["clients", "client_plans", "client_bindings"];
const SLOTS: [&str; CLASSES] = ["slots1", "slots4", "slots16", "slots64", "slotsb"];
/// Tallies by class of slots. Empty for the first: a plan with one queue has one class.
const TALLIES: [&str; CLASSES] = ["", "tallies4", "tallies16", "tallies64", "talliesb"];
