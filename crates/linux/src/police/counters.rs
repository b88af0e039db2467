//! What was counted, and what the kernel's tables take.

use std::ops::{Add, AddAssign};
use std::os::fd::{AsFd, AsRawFd};

use fairweir_core::units::Bytes;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::abi::{self, CHUNK, CLASSES, SlotHeader};
use super::maps::{Maps, SLOTS};
use super::slots::{class_of, index_of};
use super::{Direction, PlanId, Police, SubscriberId};
use crate::Error;
use crate::bpf::abi::Plain;
use crate::bpf::bpf_error;

/// What became of a subscriber's packets in one direction since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Passed, marked ones included, in bytes as counted by the policer.
    pub passed: Bytes,
    /// Dropped; a super-packet before segmentation is one.
    pub dropped_packets: u64,
    /// Marked; as above.
    pub marked_packets: u64,
}

/// What became of a plan's packets in one direction since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Passed, marked ones included, in bytes as counted by the policer.
    pub passed: Bytes,
    /// Passed, marked ones included, as on the wire.
    pub passed_packets: u64,
    /// Dropped, in bytes.
    pub dropped: Bytes,
    /// Dropped, as on the wire.
    pub dropped_packets: u64,
    /// Marked, as on the wire.
    pub marked_packets: u64,
    /// Of a bundle's free class, for which a stunt paid, in bytes.
    pub delegated: Bytes,
    /// The same, as on the wire.
    pub delegated_packets: u64,
    /// Of a bundle's free class, for which no stunt could pay, as on the wire; decided about as without
    /// a bundle.
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
    /// What became of a subscriber's packets. The packet counters of a slot wrap at 2³².
    ///
    /// # Errors
    /// [`Error::UnknownSubscriber`], or if the kernel refuses.
    pub fn counters(&self, id: SubscriberId, direction: Direction) -> Result<Counters, Error> {
        let carried = self.carried.get(&(id, direction)).copied().unwrap_or_default();
        match self.subscriber(id)?.seats[direction.index()] {
            Some(seat) => Ok(self.counted(seat.slot)? + carried),
            None => Ok(carried),
        }
    }

    /// What became of the packets of all subscribers that are policed in a direction.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn counters_all(
        &self,
        direction: Direction,
    ) -> Result<Vec<(SubscriberId, Counters)>, Error> {
        let mut owners: [Vec<Option<SubscriberId>>; CLASSES] = Default::default();
        for (owners, room) in owners.iter_mut().zip(&self.rooms) {
            owners.resize(room.high_water() as usize, None);
        }
        for id in (0..self.subscribers.len() as u32).map(SubscriberId) {
            let Ok(subscriber) = self.subscriber(id) else { continue };
            if let Some(seat) = subscriber.seats[direction.index()] {
                owners[class_of(seat.slot)][index_of(seat.slot) as usize] = Some(id);
            }
        }
        let mut all = Vec::new();
        for (class, owners) in owners.iter().enumerate() {
            for (at, owners) in owners.chunks(CHUNK as usize).enumerate() {
                if owners.iter().any(Option::is_some) {
                    self.count_chunk(class, at as u32, owners, direction, &mut all)?;
                }
            }
        }
        Ok(all)
    }

    fn count_chunk(
        &self,
        class: usize,
        at: u32,
        owners: &[Option<SubscriberId>],
        direction: Direction,
        all: &mut Vec<(SubscriberId, Counters)>,
    ) -> Result<(), Error> {
        let attempted = "read the counters of subscribers";
        let Some(chunk) = self.maps().chunk(class, at) else { return Ok(()) };
        let slots = chunk
            .lookup_batch(CHUNK, MapFlags::ANY, MapFlags::ANY)
            .map_err(|e| bpf_error(attempted, &e))?;
        for (key, value) in slots {
            let index = u32::from_ne_bytes(key.try_into().expect("invariant: keys are 4 bytes"));
            if let Some(id) = owners.get(index as usize).copied().flatten() {
                let carried = self.carried.get(&(id, direction)).copied().unwrap_or_default();
                all.push((id, counters_of(&value) + carried));
            }
        }
        Ok(())
    }

    /// What became of the packets of a plan's subscribers.
    ///
    /// # Errors
    /// [`Error::UnknownPlan`], or if the kernel refuses.
    pub fn totals(&self, id: PlanId, direction: Direction) -> Result<Totals, Error> {
        let live = self.plans.get(&id).ok_or(Error::UnknownPlan(id.0))?;
        Ok(self.counted_totals(live.number, direction)? + live.base[direction.index()])
    }

    /// What was seen of packets that are no subscriber's; all of them passed.
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

    /// What was counted in a slot.
    pub(super) fn counted(&self, slot: u32) -> Result<Counters, Error> {
        Ok(counters_of(&self.slot_bytes(slot)?))
    }

    /// All of a slot.
    pub(super) fn slot_bytes(&self, slot: u32) -> Result<Vec<u8>, Error> {
        let attempted = "read a subscriber's state";
        let index = index_of(slot);
        let Some(chunk) = self.maps().chunk(class_of(slot), index / CHUNK) else {
            return Ok(Vec::new());
        };
        let value = chunk.lookup(&(index % CHUNK).to_ne_bytes(), MapFlags::LOCK);
        Ok(value.map_err(|e| bpf_error(attempted, &e))?.unwrap_or_default())
    }

    /// The maps that both directions share, among others.
    fn maps(&self) -> &Maps {
        &self.tables.iter().flatten().next().expect("invariant: made by load").maps
    }
}

fn counters_of(slot: &[u8]) -> Counters {
    let header = slot.get(..size_of::<SlotHeader>()).and_then(SlotHeader::from_bytes);
    header.map_or(Counters::default(), |header| Counters {
        passed: Bytes::new(header.passed),
        dropped_packets: header.dropped.into(),
        marked_packets: header.marked.into(),
    })
}

/// What the maps take, as the kernel says.
pub(super) fn memory(police: &Police) -> Result<Bytes, Error> {
    let mut sum = 0;
    for (at, tables) in police.tables.iter().flatten().enumerate() {
        for (name, map) in tables.maps.names() {
            // What both directions share counts once.
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

const _: () = assert!(SLOTS.len() == CLASSES);
