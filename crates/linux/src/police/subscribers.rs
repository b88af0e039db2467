//! Adding, changing and removing subscribers.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use libbpf_rs::{MapCore, MapFlags};

use super::abi::{CHUNK, CHUNKS, CLASS_ROOMS, CLASSES, Entry, PLAN_BITS};
use super::counters::add_up;
use super::slots::{SLOTS_MAX, SlotKind, class_of, index_of, kind_of, slot};
use super::{Counters, Direction, PlanId, Police, SubscriberId, is_whole};
use crate::Error;
use crate::bpf::bpf_error;

/// A subscriber as the operator configures it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriberSpec {
    /// All addresses share the plans' rates. An address within prefixes of several subscribers
    /// belongs to the longest prefix.
    pub addresses: Arc<[IpNet]>,
    /// `None`: downloads are not policed.
    pub download: Option<PlanId>,
    /// `None`: uploads are not policed.
    pub upload: Option<PlanId>,
}

/// A subscriber as the kernel has it.
#[derive(Debug)]
pub(super) struct Subscriber {
    /// Sorted.
    addresses: Arc<[IpNet]>,
    pub(super) seats: [Option<Seat>; 2],
}

/// A subscriber's plan and state in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) plan: PlanId,
    pub(super) slot: u32,
    /// Its member number in a segment; 0 if it is in no segment.
    pub(super) member: u32,
}

impl SubscriberSpec {
    fn plan(&self, direction: Direction) -> Option<PlanId> {
        match direction {
            Direction::Download => self.download,
            Direction::Upload => self.upload,
        }
    }
}

impl Police {
    /// Adds a subscriber.
    ///
    /// # Errors
    /// [`Error::AddressTaken`], [`Error::UnknownPlan`], [`Error::NoAddress`], [`Error::TooMany`], or
    /// if the kernel refuses; then nothing has changed.
    pub fn add(&mut self, spec: &SubscriberSpec) -> Result<SubscriberId, Error> {
        let addresses = self.check(spec)?;
        let id = self.ids_free.pop().unwrap_or(self.subscribers.len() as u32);
        if id as usize == self.subscribers.len() {
            self.subscribers.push(None);
        }
        let empty = Subscriber { addresses: Arc::default(), seats: [None; 2] };
        self.subscribers[id as usize] = Some(empty);
        let added = self.apply(SubscriberId(id), addresses, spec);
        if added.is_err() {
            self.subscribers[id as usize] = None;
            self.ids_free.push(id);
        }
        added.map(|()| SubscriberId(id))
    }

    /// Adds many subscribers, all or none, and now and then reports to `progress` how many are added.
    ///
    /// # Errors
    /// As [`Police::add`].
    pub fn add_all(
        &mut self,
        specs: impl Iterator<Item = SubscriberSpec> + Clone,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Vec<SubscriberId>, Error> {
        self.reserve(specs.clone())?;
        let mut ids = Vec::new();
        for spec in specs {
            match self.add(&spec) {
                Ok(id) => ids.push(id),
                Err(e) => {
                    ids.into_iter().try_for_each(|id| self.remove(id).map(drop))?;
                    return Err(e);
                }
            }
            if ids.len() % PROGRESS_EVERY == 0 {
                progress(ids.len());
            }
        }
        progress(ids.len());
        Ok(ids)
    }

    /// Makes room for all these subscribers at once, since each change of the tables takes the kernel milliseconds.
    fn reserve(&mut self, specs: impl Iterator<Item = SubscriberSpec>) -> Result<(), Error> {
        let mut slots = [0_u32; CLASSES];
        // Chunks in which slots have tallies, if no old slot is reused.
        let mut tallied: [BTreeSet<u32>; CLASSES] = Default::default();
        let mut addresses = [[0_u32; 2]; 2];
        for spec in specs {
            for direction in Direction::ALL {
                let Some(live) = spec.plan(direction).and_then(|id| self.plans.get(&id)) else {
                    continue;
                };
                let SlotKind { class, is_tallied } = live.kind;
                for net in spec.addresses.iter().filter(|net| is_whole(net)) {
                    addresses[direction.index()][usize::from(matches!(net, IpNet::V6(_)))] += 1;
                }
                let old = self.old.as_ref();
                if old.is_some_and(|old| old.slot(direction, &spec.addresses, live.kind).is_some())
                {
                    continue;
                }
                if is_tallied {
                    tallied[class].insert((self.rooms[class].high_water() + slots[class]) / CHUNK);
                }
                slots[class] += 1;
            }
        }
        for (direction, [more4, more6]) in Direction::ALL.into_iter().zip(addresses) {
            if more4 + more6 > 0 {
                self.tables_of(direction)?.reserve(more4, more6)?;
            }
        }
        for (class, (more, tallied)) in slots.into_iter().zip(tallied).enumerate() {
            let wanted = self.rooms[class].high_water().saturating_add(more).min(SLOTS_MAX);
            let maps = &mut self.tables_of(Direction::Download)?.maps;
            let missing = wanted.saturating_sub(maps.slot_count(class)).div_ceil(CHUNK);
            if missing > 0 {
                maps.make_chunks(class, missing as usize)?;
            }
            maps.make_tallies(class, tallied.into_iter().filter(|at| *at < CHUNKS))?;
        }
        Ok(())
    }

    /// Changes a subscriber to `spec`. Unchanged parts stay; counters are kept, and with the same
    /// tree of queues the state, too.
    ///
    /// # Errors
    /// As [`Police::add`], and [`Error::UnknownSubscriber`].
    pub fn change(&mut self, id: SubscriberId, spec: &SubscriberSpec) -> Result<(), Error> {
        let seats = self.subscriber(id)?.seats;
        let addresses = self.check(spec)?;
        // A client's classes belong to the plan.
        let plans = Direction::ALL.map(|direction| spec.plan(direction));
        if seats.map(|seat| seat.map(|seat| seat.plan)) != plans {
            self.undivide(id)?;
        }
        self.apply(id, addresses, spec)
    }

    /// Removes a subscriber; its packets pass. Returns its counts, download and upload, as
    /// [`Police::counters_by_class`] does, except for packets that another CPU is deciding about.
    ///
    /// # Errors
    /// [`Error::UnknownSubscriber`], or if the kernel refuses.
    pub fn remove(&mut self, id: SubscriberId) -> Result<[Vec<Counters>; 2], Error> {
        self.subscriber(id)?;
        self.undivide(id)?;
        let nothing = SubscriberSpec { addresses: Arc::default(), download: None, upload: None };
        self.apply(id, Arc::default(), &nothing)?;
        let carried = |direction| self.carried.remove(&(id, direction)).unwrap_or_default();
        let counted = Direction::ALL.map(carried);
        self.subscribers[id.0 as usize] = None;
        self.ids_free.push(id.0);
        Ok(counted)
    }

    /// Removes all subscribers.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove_all(&mut self) -> Result<(), Error> {
        for id in 0..self.subscribers.len() {
            if self.subscribers[id].is_some() {
                self.remove(SubscriberId(id as u32))?;
            }
        }
        Ok(())
    }

    /// Number of subscribers.
    pub fn subscriber_count(&self) -> usize {
        self.subscribers.len() - self.ids_free.len()
    }

    pub(super) fn subscriber(&self, id: SubscriberId) -> Result<&Subscriber, Error> {
        let subscriber = self.subscribers.get(id.0 as usize).and_then(Option::as_ref);
        subscriber.ok_or(Error::UnknownSubscriber)
    }

    /// Checks a spec; returns its addresses without host bits, each once, in order. A list that
    /// already has this form is shared.
    fn check(&self, spec: &SubscriberSpec) -> Result<Arc<[IpNet]>, Error> {
        for plan in [spec.download, spec.upload].into_iter().flatten() {
            if !self.plans.contains_key(&plan) {
                return Err(Error::UnknownPlan(plan.0));
            }
        }
        let addresses = &spec.addresses;
        if addresses.is_empty() {
            return Err(Error::NoAddress);
        }
        let is_clean = addresses.windows(2).all(|two| two[0] < two[1]);
        if is_clean && addresses.iter().all(|net| net.trunc() == *net) {
            return Ok(Arc::clone(addresses));
        }
        let mut addresses: Vec<IpNet> = addresses.iter().map(IpNet::trunc).collect();
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses.into())
    }

    /// Changes the tables to the wanted state: first new addresses, which may fail, then addresses
    /// whose entry changes, and last removed addresses.
    fn apply(
        &mut self,
        id: SubscriberId,
        addresses: Arc<[IpNet]>,
        spec: &SubscriberSpec,
    ) -> Result<(), Error> {
        let old = self.subscriber(id)?.seats;
        let mut new = [None; 2];
        let prepared = Direction::ALL.into_iter().try_for_each(|direction| {
            let index = direction.index();
            new[index] = self.seat(old[index], spec.plan(direction), direction, &addresses)?;
            self.insert_new(id, direction, &addresses, old[index], new[index]).inspect_err(|_| {
                if let Some(seat) = new[index].take().filter(|seat| !shares(old[index], *seat)) {
                    self.leave(seat.slot);
                }
            })
        });
        if let Err(e) = prepared {
            for direction in Direction::ALL {
                let index = direction.index();
                let Some(seat) = new[index] else { continue };
                self.remove_new(id, direction, &addresses, old[index])?;
                if !shares(old[index], seat) {
                    self.leave(seat.slot);
                }
            }
            return Err(e);
        }
        for direction in Direction::ALL {
            let index = direction.index();
            self.switch(id, direction, &addresses, old[index], new[index])?;
        }
        let subscriber = self.subscribers[id.0 as usize].as_mut();
        *subscriber.expect("invariant: looked up above") = Subscriber { addresses, seats: new };
        Ok(())
    }

    /// The seat of a subscriber: the old one if it fits the plan, or one of a previous process.
    fn seat(
        &mut self,
        old: Option<Seat>,
        plan: Option<PlanId>,
        direction: Direction,
        addresses: &[IpNet],
    ) -> Result<Option<Seat>, Error> {
        let Some(plan) = plan else { return Ok(None) };
        let kind = self.plans.get(&plan).ok_or(Error::UnknownPlan(plan.0))?.kind;
        let slot = match old {
            Some(seat) if kind_of(seat.slot) == kind => seat.slot,
            _ => {
                let kept = self.old.as_mut().and_then(|old| old.claim(direction, addresses, kind));
                kept.map_or_else(|| self.lend_slot(kind), Ok)?
            }
        };
        Ok(Some(Seat { plan, slot, member: old.map_or(0, |seat| seat.member) }))
    }

    /// Adds the addresses that have no entry in this direction yet.
    fn insert_new(
        &mut self,
        id: SubscriberId,
        direction: Direction,
        addresses: &[IpNet],
        old: Option<Seat>,
        new: Option<Seat>,
    ) -> Result<(), Error> {
        let Some(seat) = new else { return Ok(()) };
        let entry = self.entry(seat);
        let fresh = self.missing(id, addresses, old);
        self.tables_of(direction)?.insert_all(&fresh, entry)
    }

    fn remove_new(
        &mut self,
        id: SubscriberId,
        direction: Direction,
        addresses: &[IpNet],
        old: Option<Seat>,
    ) -> Result<(), Error> {
        let fresh = self.missing(id, addresses, old);
        self.tables_of(direction)?.remove_all(&fresh)
    }

    /// The `addresses` that do not lead to the subscriber's old seat.
    fn missing(&self, id: SubscriberId, addresses: &[IpNet], old: Option<Seat>) -> Vec<IpNet> {
        let known = match (old, &self.subscribers[id.0 as usize]) {
            (Some(_), Some(subscriber)) => &subscriber.addresses[..],
            _ => &[],
        };
        addresses.iter().filter(|net| known.binary_search(net).is_err()).copied().collect()
    }

    /// Gives the remaining addresses the entry of the new seat, and removes the others.
    fn switch(
        &mut self,
        id: SubscriberId,
        direction: Direction,
        addresses: &[IpNet],
        old: Option<Seat>,
        new: Option<Seat>,
    ) -> Result<(), Error> {
        let known = match (old, &self.subscribers[id.0 as usize]) {
            (Some(_), Some(subscriber)) => Arc::clone(&subscriber.addresses),
            _ => Arc::default(),
        };
        let entry = new.map(|seat| self.entry(seat));
        for net in known.iter() {
            match entry {
                Some(entry) if addresses.binary_search(net).is_ok() => {
                    if old != new {
                        self.tables_of(direction)?.replace(net, entry)?;
                    }
                }
                _ => self.tables_of(direction)?.remove(net)?,
            }
        }
        if let Some(seat) = old {
            self.users(seat.plan, -1);
            if new.is_none() && seat.member != 0 {
                self.member_numbers.give_back(seat.member);
            }
            if new.is_none_or(|new| new.slot != seat.slot) {
                self.carry(id, direction, seat.slot)?;
                self.leave(seat.slot);
            }
        }
        if let Some(seat) = new {
            self.users(seat.plan, 1);
        }
        Ok(())
    }

    /// Moves the subscribers of a plan to slots of another kind, under another number of the plan.
    pub(super) fn move_subscribers(
        &mut self,
        plan: PlanId,
        number: u32,
        kind: SlotKind,
    ) -> Result<(), Error> {
        let mut moves = Vec::new();
        for id in (0..self.subscribers.len() as u32).map(SubscriberId) {
            let Ok(Subscriber { seats, .. }) = self.subscriber(id) else { continue };
            for direction in Direction::ALL {
                let seat = seats[direction.index()].filter(|seat| seat.plan == plan);
                moves.extend(seat.map(|seat| (id, direction, seat)));
            }
        }
        let mut slots = Vec::with_capacity(moves.len());
        for _ in &moves {
            match self.lend_slot(kind) {
                Ok(slot) => slots.push(slot),
                Err(e) => {
                    slots.into_iter().for_each(|slot| self.leave(slot));
                    return Err(e);
                }
            }
        }
        for ((id, direction, Seat { slot: old, member, .. }), slot) in moves.into_iter().zip(slots)
        {
            self.lead(id, direction, entry(number, slot, member))?;
            self.carry(id, direction, old)?;
            self.leave(old);
            if let Some(subscriber) = self.subscribers[id.0 as usize].as_mut() {
                subscriber.seats[direction.index()] = Some(Seat { plan, slot, member });
            }
        }
        Ok(())
    }

    fn entry(&self, seat: Seat) -> Entry {
        entry(self.plans[&seat.plan].number, seat.slot, seat.member)
    }

    /// Replaces the entries of all addresses of a subscriber.
    fn lead(&mut self, id: SubscriberId, direction: Direction, entry: Entry) -> Result<(), Error> {
        let addresses = Arc::clone(&self.subscriber(id)?.addresses);
        addresses.iter().try_for_each(|net| self.tables_of(direction)?.replace(net, entry))
    }

    /// Gives a policed subscriber another member number in a segment, or none.
    pub(super) fn seat_member(
        &mut self,
        id: SubscriberId,
        direction: Direction,
        seat: Seat,
    ) -> Result<(), Error> {
        self.lead(id, direction, self.entry(seat))?;
        let subscriber = self.subscribers[id.0 as usize].as_mut();
        subscriber.expect("invariant: looked up above").seats[direction.index()] = Some(seat);
        Ok(())
    }

    fn users(&mut self, plan: PlanId, by: i32) {
        if let Some(live) = self.plans.get_mut(&plan) {
            live.users = live.users.saturating_add_signed(by);
        }
    }

    /// Keeps the counts of a slot that a subscriber leaves.
    fn carry(&mut self, id: SubscriberId, direction: Direction, slot: u32) -> Result<(), Error> {
        let counted = self.counted_by_class(slot)?;
        if counted.iter().any(|counted| *counted != Counters::default()) {
            add_up(self.carried.entry((id, direction)).or_default(), &counted);
        }
        Ok(())
    }

    fn leave(&mut self, slot: u32) {
        self.rooms[class_of(slot)].give_back(index_of(slot));
    }

    /// An empty slot.
    fn lend_slot(&mut self, kind: SlotKind) -> Result<u32, Error> {
        let class = kind.class;
        let leaves = CLASS_ROOMS[class].leaves;
        let what = format!("subscribers with up to {leaves} queues");
        let room = &mut self.rooms[class];
        let lent = room.lend().ok_or(Error::TooMany { what, max: SLOTS_MAX })?;
        let tables = self.tables.iter_mut().flatten().next();
        let maps = &mut tables.expect("invariant: made by load").maps;
        let chunk_at = lent.number / CHUNK;
        if lent.number >= maps.slot_count(class) {
            maps.make_chunks(class, 1).inspect_err(|_| room.lend_never())?;
        }
        if kind.is_tallied {
            let made = maps.make_tallies(class, [chunk_at]);
            made.inspect_err(|_| room.give_back(lent.number))?;
        }
        if lent.is_used {
            let room = CLASS_ROOMS[class];
            let key = (lent.number % CHUNK).to_ne_bytes();
            let state = maps.chunk(class, chunk_at).map(|map| (map, room.bytes, MapFlags::LOCK));
            let tallies = maps.tallies(class, chunk_at);
            let tallies = tallies.map(|map| (map, room.tally_bytes(), MapFlags::ANY));
            for (map, bytes, flags) in state.into_iter().chain(tallies) {
                map.update(&key, &vec![0; bytes], flags)
                    .map_err(|e| bpf_error("empty a subscriber's state", &e))?;
            }
        }
        Ok(slot(kind, lent.number))
    }
}

fn entry(plan: u32, slot: u32, member: u32) -> Entry {
    Entry { plan: member << PLAN_BITS | plan, slot }
}

/// Whether the new seat uses the old seat's slot.
fn shares(old: Option<Seat>, new: Seat) -> bool {
    old.is_some_and(|old| old.slot == new.slot)
}

/// Subscribers between two reports of progress.
const PROGRESS_EVERY: usize = 10_000;
