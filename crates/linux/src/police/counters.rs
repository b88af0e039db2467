//! Counters, and the memory of the kernel's tables.

use std::ops::{Add, AddAssign};
use std::os::fd::{AsFd, AsRawFd};

use fairweir_core::units::Bytes;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::abi::{self, CHUNK, CLASSES, Tally};
use super::maps::Maps;
use super::slots::{class_of, index_of, kind_of};
use super::{Direction, PlanId, Police, SubscriberId};
use crate::Error;
use crate::bpf::abi::Plain;
use crate::bpf::bpf_error;

/// Counts of a subscriber's packets in one direction since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Passed bytes, marked packets included, as counted by the policer.
    pub passed: Bytes,
    /// Dropped packets; a super-packet before segmentation counts as one.
    pub dropped_packets: u64,
    /// Marked packets; a super-packet counts as one.
    pub marked_packets: u64,
}

/// Counts of a plan's packets in one direction since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Passed bytes, marked packets included, as counted by the policer.
    pub passed: Bytes,
    /// Passed packets, marked ones included, as on the wire.
    pub passed_packets: u64,
    /// Dropped bytes.
    pub dropped: Bytes,
    /// Dropped packets, as on the wire.
    pub dropped_packets: u64,
    /// Marked packets, as on the wire.
    pub marked_packets: u64,
    /// Bytes of a bundle's free class for which a stunt paid.
    pub delegated: Bytes,
    /// Packets of a bundle's free class for which a stunt paid, as on the wire.
    pub delegated_packets: u64,
    /// Packets of a bundle's free class for which no stunt could pay, as on the wire; they are
    /// treated as without a bundle.
    pub refused_packets: u64,
}

impl Add for Counters {
    type Output = Counters;

    fn add(self, other: Counters) -> Counters {
        Counters {
            passed: self.passed + other.passed,
            dropped_packets: self.dropped_packets + other.dropped_packets,
            marked_packets: self.marked_packets + other.marked_packets,
        }
    }
}

impl Counters {
    /// The counts since `before`. The packet counters may have wrapped in between.
    pub fn since(self, before: Counters) -> Counters {
        let more = |now: u64, before: u64| now.saturating_sub(before);
        Counters {
            passed: self.passed.saturating_sub(before.passed),
            dropped_packets: more(self.dropped_packets, before.dropped_packets),
            marked_packets: more(self.marked_packets, before.marked_packets),
        }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        *self = *self + other;
    }
}

impl Add for Totals {
    type Output = Totals;

    fn add(self, other: Totals) -> Totals {
        Totals {
            passed: self.passed + other.passed,
            passed_packets: self.passed_packets + other.passed_packets,
            dropped: self.dropped + other.dropped,
            dropped_packets: self.dropped_packets + other.dropped_packets,
            marked_packets: self.marked_packets + other.marked_packets,
            delegated: self.delegated + other.delegated,
            delegated_packets: self.delegated_packets + other.delegated_packets,
            refused_packets: self.refused_packets + other.refused_packets,
        }
    }
}

impl Police {
    /// Counts of a subscriber's packets. The packet counters of a slot wrap at 2³².
    ///
    /// # Errors
    /// [`Error::UnknownSubscriber`], or if the kernel refuses.
    pub fn counters(&self, id: SubscriberId, direction: Direction) -> Result<Counters, Error> {
        let carried = self.carried_sum(id, direction);
        match self.subscriber(id)?.seats[direction.index()] {
            Some(seat) => Ok(counters_of(&self.slot_bytes(seat.slot)?) + carried),
            None => Ok(carried),
        }
    }

    /// As [`Police::counters`], by the index of the class in the plan of the time, in the file's
    /// order; a plan without classes counts under index 0. Their sum equals that of
    /// [`Police::counters`], except for packets that another CPU is deciding about.
    ///
    /// # Errors
    /// As [`Police::counters`].
    pub fn counters_by_class(
        &self,
        id: SubscriberId,
        direction: Direction,
    ) -> Result<Vec<Counters>, Error> {
        let mut sum = self.carried.get(&(id, direction)).cloned().unwrap_or_default();
        if let Some(seat) = self.subscriber(id)?.seats[direction.index()] {
            add_up(&mut sum, &self.counted_by_class(seat.slot)?);
        }
        Ok(sum)
    }

    /// Counts of the packets of all subscribers that are policed in a direction.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn counters_all(
        &self,
        direction: Direction,
    ) -> Result<Vec<(SubscriberId, Counters)>, Error> {
        let mut all = Vec::new();
        for Owned { class, at, owners } in self.chunks_of(direction) {
            for (id, slot) in owned(&owners, self.maps().chunk(class, at))? {
                all.push((id, counters_of(&slot) + self.carried_sum(id, direction)));
            }
        }
        Ok(all)
    }

    /// As [`Police::counters_by_class`], for all subscribers that are or were policed in a direction.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn counters_by_class_all(
        &self,
        direction: Direction,
        tell: &mut dyn FnMut(SubscriberId, &[Counters]),
    ) -> Result<(), Error> {
        let seat = |id| self.subscriber(id).ok().and_then(|one| one.seats[direction.index()]);
        let is_tallied = |id| seat(id).is_some_and(|seat| kind_of(seat.slot).is_tallied);
        for Owned { class, at, owners } in self.chunks_of(direction) {
            let (tallied, plain): (Vec<_>, Vec<_>) =
                owners.iter().partition(|(_, id)| is_tallied(*id));
            let maps = self.maps();
            for (owners, chunk, read) in [
                (plain, maps.chunk(class, at), whole as fn(&[u8]) -> Vec<Counters>),
                (tallied, maps.tallies(class, at), tallies_of),
            ] {
                for (id, bytes) in owned(&owners, chunk)? {
                    let mut sum = self.carried.get(&(id, direction)).cloned().unwrap_or_default();
                    add_up(&mut sum, &read(&bytes));
                    tell(id, &sum);
                }
            }
        }
        for ((id, of), carried) in &self.carried {
            if *of == direction && seat(*id).is_none() {
                tell(*id, carried);
            }
        }
        Ok(())
    }

    /// The chunks that contain slots of a direction.
    fn chunks_of(&self, direction: Direction) -> Vec<Owned> {
        let mut slots: Vec<(usize, u32, SubscriberId)> = Vec::new();
        for id in (0..self.subscribers.len() as u32).map(SubscriberId) {
            let Ok(subscriber) = self.subscriber(id) else { continue };
            if let Some(seat) = subscriber.seats[direction.index()] {
                slots.push((class_of(seat.slot), index_of(seat.slot), id));
            }
        }
        slots.sort_unstable_by_key(|(class, index, _)| (*class, *index));
        let chunks =
            slots.chunk_by(|one, other| (one.0, one.1 / CHUNK) == (other.0, other.1 / CHUNK));
        let chunk = |slots: &[(usize, u32, SubscriberId)]| Owned {
            class: slots[0].0,
            at: slots[0].1 / CHUNK,
            owners: slots.iter().map(|(_, index, id)| (index % CHUNK, *id)).collect(),
        };
        chunks.map(chunk).collect()
    }

    fn carried_sum(&self, id: SubscriberId, direction: Direction) -> Counters {
        let carried = self.carried.get(&(id, direction)).map_or(&[][..], |carried| carried);
        carried.iter().fold(Counters::default(), |sum, one| sum + *one)
    }

    /// Counts of the packets of a plan's subscribers.
    ///
    /// # Errors
    /// [`Error::UnknownPlan`], or if the kernel refuses.
    pub fn totals(&self, id: PlanId, direction: Direction) -> Result<Totals, Error> {
        let live = self.plans.get(&id).ok_or(Error::UnknownPlan(id.0))?;
        Ok(self.counted_totals(live.number, direction)? + live.base[direction.index()])
    }

    /// Packets that belong to no subscriber; all of them passed.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn unknown(&self, direction: Direction) -> Result<Totals, Error> {
        self.counted_totals(0, direction)
    }

    fn counted_totals(&self, number: u32, direction: Direction) -> Result<Totals, Error> {
        let Some(tables) = &self.tables[direction.index()] else { return Ok(Totals::default()) };
        let map = tables.maps.map("totals");
        let per_cpu = map
            .lookup_percpu(&number.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| bpf_error("read the totals of a plan", &e))?
            .unwrap_or_default();
        let mut sum = Totals::default();
        for mine in per_cpu.iter().filter_map(|bytes| abi::Totals::from_bytes(bytes)) {
            sum = sum
                + Totals {
                    passed: Bytes::new(mine.passed_bytes),
                    passed_packets: mine.passed_packets,
                    dropped: Bytes::new(mine.dropped_bytes),
                    dropped_packets: mine.dropped_packets,
                    marked_packets: mine.marked_packets,
                    delegated: Bytes::new(mine.delegated_bytes),
                    delegated_packets: mine.delegated_packets,
                    refused_packets: mine.refused_packets,
                };
        }
        Ok(sum)
    }

    /// The counts of a slot, by class.
    pub(super) fn counted_by_class(&self, slot: u32) -> Result<Vec<Counters>, Error> {
        if !kind_of(slot).is_tallied {
            return Ok(whole(&self.slot_bytes(slot)?));
        }
        let tallies = self.maps().tallies(class_of(slot), index_of(slot) / CHUNK);
        Ok(tallies_of(&bytes_at(tallies, slot, MapFlags::ANY)?))
    }

    /// All bytes of a slot.
    pub(super) fn slot_bytes(&self, slot: u32) -> Result<Vec<u8>, Error> {
        let chunk = self.maps().chunk(class_of(slot), index_of(slot) / CHUNK);
        bytes_at(chunk, slot, MapFlags::LOCK)
    }

    /// The maps of one direction, including those that both directions share.
    pub(super) fn maps(&self) -> &Maps {
        &self.tables.iter().flatten().next().expect("invariant: made by load").maps
    }
}

/// The used slots of a chunk, in ascending order of their index in it, with their subscribers.
struct Owned {
    class: usize,
    at: u32,
    owners: Vec<(u32, SubscriberId)>,
}

/// The values in a chunk at these owners' slots.
fn owned(
    owners: &[(u32, SubscriberId)],
    chunk: Option<&MapHandle>,
) -> Result<Vec<(SubscriberId, Vec<u8>)>, Error> {
    let (Some(chunk), false) = (chunk, owners.is_empty()) else { return Ok(Vec::new()) };
    let attempted = "read the counters of subscribers";
    let values = chunk
        .lookup_batch(CHUNK, MapFlags::ANY, MapFlags::ANY)
        .map_err(|e| bpf_error(attempted, &e))?;
    let owner = |(key, value): (Vec<u8>, Vec<u8>)| {
        let index = u32::from_ne_bytes(key.try_into().expect("invariant: keys are 4 bytes"));
        let at = owners.binary_search_by_key(&index, |(index, _)| *index).ok()?;
        Some((owners[at].1, value))
    };
    Ok(values.filter_map(owner).collect())
}

/// The value in a chunk at a slot's index.
fn bytes_at(chunk: Option<&MapHandle>, slot: u32, flags: MapFlags) -> Result<Vec<u8>, Error> {
    let Some(chunk) = chunk else { return Ok(Vec::new()) };
    let value = chunk.lookup(&(index_of(slot) % CHUNK).to_ne_bytes(), flags);
    Ok(value.map_err(|e| bpf_error("read a subscriber's state", &e))?.unwrap_or_default())
}

/// Adds counters by class; `more` may have more classes than `sum`.
pub(super) fn add_up(sum: &mut Vec<Counters>, more: &[Counters]) {
    sum.resize(sum.len().max(more.len()), Counters::default());
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += *more;
    }
}

/// All that a slot has counted, as one class.
fn whole(slot: &[u8]) -> Vec<Counters> {
    vec![counters_of(slot)]
}

fn tallies_of(bytes: &[u8]) -> Vec<Counters> {
    let counters = |tally: Tally| Counters {
        passed: Bytes::new(tally.passed),
        dropped_packets: tally.dropped.into(),
        marked_packets: tally.marked.into(),
    };
    bytes.chunks_exact(size_of::<Tally>()).filter_map(Tally::from_bytes).map(counters).collect()
}

fn counters_of(slot: &[u8]) -> Counters {
    abi::slot_header(slot).map_or(Counters::default(), |header| Counters {
        passed: Bytes::new(header.passed),
        dropped_packets: header.dropped.into(),
        marked_packets: header.marked.into(),
    })
}

/// The memory of the maps, as the kernel reports it.
pub(super) fn memory(police: &Police) -> Result<Bytes, Error> {
    let mut sum = 0;
    for (at, tables) in police.tables.iter().flatten().enumerate() {
        for (name, map) in tables.maps.names() {
            // Maps that both directions share count once.
            if at == 0 || !Maps::is_common(name) {
                sum += memory_of(map)?;
            }
        }
        for room in tables.rooms() {
            sum += memory_of(room)?;
        }
    }
    for class in 0..CLASSES {
        let chunks = police.maps().slot_count(class) / CHUNK;
        if let Some(chunk) = police.maps().chunk(class, 0) {
            sum += u64::from(chunks) * memory_of(chunk)?;
        }
    }
    for more in police.maps().all_tallies().chain(police.maps().all_of_clients()) {
        sum += memory_of(more)?;
    }
    Ok(Bytes::new(sum))
}

fn memory_of(map: &MapHandle) -> Result<u64, Error> {
    let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
    let text =
        std::fs::read_to_string(&path).map_err(|e| Error::refused(format!("read {path}"), e))?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("memlock:")?.trim().parse().ok());
    bytes.ok_or_else(|| {
        Error::refused(format!("find the memory in {path}"), std::io::ErrorKind::InvalidData)
    })
}
