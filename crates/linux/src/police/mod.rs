//! Policing subscribers in the kernel: plans, subscribers and the hooks where packets are judged.
//!
//! Problem: hundreds of thousands of subscribers, each with addresses and a plan, come, change and go
//! while packets of all the others flow. Method: the programs of `bpf/police.bpf.c` find an address's
//! entry, by it the plan and the slot with the state, and decide under the slot's lock. User space
//! writes entries and plans, each by one atomic step, and never a state that is in use.
//!
//! Properties: packets of unknown addresses pass untouched. When the process ends, however it does, the
//! programs are gone and everything passes, unless it was told to pin them ([`Police::load_kept`]). Adding, changing or removing a
//! subscriber affects no other. A subscriber keeps its state when its plan, or what the plan says, changes
//! and the tree of classes, weights and queues remains; with another tree it begins empty. Counters
//! are kept in any case.
//!
//! Needs Linux 6.9 for loops under a lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

use fairweir_core::units::{Bytes, Time};
use ipnet::IpNet;

use crate::Error;
use crate::bpf::abi::Plain;
use crate::bpf::update;

mod abi;
mod clients;
mod counters;
mod hook;
mod maps;
pub(crate) mod pins;
mod plan;
mod room;
mod segment;
mod slots;
mod subscribers;
mod tables;
mod trial;

pub use crate::bpf::abi::Bound;
pub use counters::{Counters, Totals};
pub use hook::Hook;
pub use plan::Algorithm;
pub use segment::{SEGMENTS_MAX, SegmentId, Used};
pub use subscribers::SubscriberSpec;
pub use trial::{Bench, Frame, Outcome, Trial};

use abi::{CLASSES, MEMBERS, PLACES, PLANS};
use clients::Clients;
use hook::Attachment;
use maps::Shared;
use pins::{Old, Pins};
use plan::{Encoded, Shapes};
use slots::{Classes, Numbers, SLOTS_MAX, SlotKind};
use subscribers::Subscriber;
use tables::Tables;

/// How many whole addresses of each family the kernel's tables of a direction have room for at first.
/// They grow as needed; an address takes 80 bytes of what there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoliceSpec {
    /// IPv4.
    pub addresses4: u32,
    /// IPv6.
    pub addresses6: u32,
}

/// The end of a packet by which the subscriber is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// To the subscriber: by the destination.
    Download,
    /// From the subscriber: by the source.
    Upload,
}

/// The caller's number of a plan, 1 to [`PLANS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlanId(pub u16);

/// A subscriber, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriberId(u32);

impl SubscriberId {
    /// As an index: numbers are used again before new ones are.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The policer: its tables in the kernel and its hooks. All of it goes when this drops, if it is not pinned.
pub struct Police {
    spec: PoliceSpec,
    pins: Option<Pins>,
    /// What a process before has left, until its programs are replaced.
    old: Option<Old>,
    attachments: Vec<Attachment>,
    /// The classes of slots that plans have had, by which the programs can decide.
    classes: Classes,
    tables: [Option<Tables>; 2],
    /// The place of each plan.
    places: Shared,
    /// Until when packets are policed.
    deadline: Shared,
    segments: Shared,
    members: Shared,
    member_numbers: Numbers,
    place_numbers: Numbers,
    plan_numbers: Numbers,
    plans: BTreeMap<PlanId, LivePlan>,
    shapes: Shapes,
    rooms: [Numbers; CLASSES],
    subscribers: Vec<Option<Subscriber>>,
    ids_free: Vec<u32>,
    /// What was counted in slots that a subscriber has left.
    carried: HashMap<(SubscriberId, Direction), Vec<Counters>>,
    clients: Clients,
}

/// A plan in the kernel.
#[derive(Debug)]
struct LivePlan {
    number: u32,
    places: Places,
    kind: SlotKind,
    /// Subscribers' directions that have it.
    users: u32,
    /// What was counted under numbers that it had before.
    base: [Totals; 2],
}

/// Where the kernel reads a plan, and its bundle's target if it has one.
#[derive(Clone, Copy, Debug)]
struct Places {
    plan: u32,
    aim: Option<u32>,
}

impl Default for PoliceSpec {
    fn default() -> PoliceSpec {
        PoliceSpec { addresses4: 1 << 10, addresses6: 1 << 10 }
    }
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::Download, Direction::Upload];

    fn index(self) -> usize {
        match self {
            Direction::Download => 0,
            Direction::Upload => 1,
        }
    }
}

impl Police {
    /// Makes the tables. Nothing is policed before something is attached.
    ///
    /// # Errors
    /// If the kernel refuses, for example without memory or privileges.
    pub fn load(spec: &PoliceSpec) -> Result<Police, Error> {
        let download = Tables::make(*spec, None)?;
        let places = Shared::of(&download.maps, "places", PLANS as usize)?;
        let deadline = Shared::of(&download.maps, "deadline", 1)?;
        let (segments, members) = segment::map(&download.maps)?;
        Ok(Police {
            spec: *spec,
            pins: None,
            old: None,
            attachments: Vec::new(),
            classes: Classes::default(),
            tables: [Some(download), None],
            places,
            deadline,
            segments,
            members,
            member_numbers: Numbers::new(1, MEMBERS),
            place_numbers: Numbers::new(1, PLACES),
            plan_numbers: Numbers::new(1, PLANS),
            plans: BTreeMap::new(),
            shapes: Shapes::default(),
            rooms: [(); CLASSES].map(|()| Numbers::new(0, SLOTS_MAX)),
            subscribers: Vec::new(),
            ids_free: Vec::new(),
            carried: HashMap::new(),
            clients: Clients::default(),
        })
    }

    /// The same, of which the process's end takes nothing away: it polices until the time of the last
    /// [`Police::extend_deadline`], or until [`open_kept`](crate::open_kept) for `device`. If a process before has
    /// left something for `device`, that polices until [`Police::attach`] replaces it, and subscribers get the state
    /// that their addresses had.
    ///
    /// # Errors
    /// As [`Police::load`]; [`Error::Untrusted`] if others may write where it is pinned; if another process
    /// polices `device` so, or there is no BPF file system.
    pub fn load_kept(spec: &PoliceSpec, device: &str) -> Result<Police, Error> {
        let pins = Pins::open(device)?;
        let mut police = Police::load(spec)?;
        let maps = &mut police.tables_of(Direction::Download)?.maps;
        let counts = match maps.keep(&pins.state) {
            Ok(counts) => counts,
            Err(e) => {
                tracing::warn!("the state of subscribers begins empty: {e}");
                pins.forget_state()?;
                [0; CLASSES]
            }
        };
        for (room, count) in police.rooms.iter_mut().zip(counts) {
            room.beginning(count);
        }
        if counts.iter().any(|count| *count > 0) {
            tracing::info!(slots = counts.iter().sum::<u32>(), "the state of subscribers is kept");
            police.old = Some(Old::open(&pins, counts));
        }
        police.pins = Some(pins);
        Ok(police)
    }

    /// Whether a process that is gone has left a program at this hook, which [`Police::attach`] replaces.
    pub fn is_kept(&self, device: &str, hook: Hook, direction: Direction) -> bool {
        self.pins.as_ref().is_some_and(|pins| pins.link(device, hook, direction).exists())
    }

    /// Polices until then, or until a later call.
    pub fn extend_deadline(&self, until: Time) {
        self.deadline.word(0).store(until.as_nanos().max(1), Ordering::Relaxed);
    }

    /// Detaches what a process before has left at hooks where this one is not attached, and lets what it left unused
    /// be used.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn settle(&mut self) -> Result<(), Error> {
        let Some(pins) = &self.pins else { return Ok(()) };
        let links: Vec<_> = self.attachments.iter().filter_map(|one| one.pin.as_deref()).collect();
        pins.retain_links(&links)?;
        if let Some(old) = self.old.take() {
            for (class, room) in self.rooms.iter_mut().enumerate() {
                old.vacant(class).for_each(|number| room.give_back(number));
            }
        }
        for (tables, direction) in self.tables.iter_mut().zip(Direction::ALL) {
            if let Some(tables) = tables {
                tables.keep(&pins.state, direction)?;
            }
        }
        pins.retain_state()
    }

    /// Polices what passes at a hook. A device may have several; `overhead` is what each packet
    /// takes beyond its Ethernet frame (without the checksum), in bytes.
    ///
    /// # Errors
    /// [`Error::NoDevice`]; [`Error::Occupied`] if there is another XDP program; [`Error::Bpf`]
    /// with the verifier's log if the kernel does not take the program.
    pub fn attach(
        &mut self,
        device: &str,
        hook: Hook,
        direction: Direction,
        overhead: i32,
    ) -> Result<(), Error> {
        let classes = self.classes;
        self.tables_of(direction)?;
        let tables = self.tables[direction.index()].as_ref();
        let maps = &tables.expect("invariant: made above").maps;
        let pins = self.pins.as_ref();
        let attachment = Attachment::new(maps, device, hook, direction, overhead, classes, pins)?;
        let Attachment { device, hook, direction, .. } = &attachment;
        tracing::info!(device, ?hook, ?direction, "polices");
        self.attachments.push(attachment);
        Ok(())
    }

    /// Detaches all programs; everything passes.
    pub fn detach_all(&mut self) {
        self.attachments.drain(..).for_each(Attachment::detach);
    }

    /// Detaches all programs, and unpins everything.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn give_up(&mut self) -> Result<(), Error> {
        self.detach_all();
        self.pins.take().map_or(Ok(()), Pins::remove)
    }

    /// Whether all programs are still attached.
    pub fn is_attached(&self) -> bool {
        self.attachments.iter().all(Attachment::is_attached)
    }

    /// Makes a plan, or replaces what it says for all its subscribers at once. If the new one needs
    /// slots of another size, or has one class where there were several or the reverse, they move one by one.
    ///
    /// # Errors
    /// [`Error::TooMany`], or if the kernel refuses, also what decides by slots of the plan's size; then
    /// nothing has changed, but that no client divides it.
    pub fn set_plan(&mut self, id: PlanId, algorithm: &Algorithm<'_>) -> Result<(), Error> {
        let Encoded { plan, kind, aim } = plan::encode(algorithm, &mut self.shapes);
        self.admit(kind.class)?;
        if plan.is_client != 0 {
            self.admit(Classes::CLIENTS)?;
        }
        self.undivide_all(id)?;
        let places = self.write_plan(*plan, aim.as_deref())?;
        let result = match self.plans.get_mut(&id) {
            Some(live) if live.kind == kind => {
                self.places.word(live.number as usize).store(places.plan.into(), Ordering::Release);
                let before = std::mem::replace(&mut live.places, places);
                self.give_back(before);
                Ok(())
            }
            Some(_) => self.move_plan(id, places, kind),
            None => self.lend_plan_number().map(|number| {
                self.places.word(number as usize).store(places.plan.into(), Ordering::Release);
                let base = [Totals::default(); 2];
                self.plans.insert(id, LivePlan { number, places, kind, users: 0, base });
            }),
        };
        if result.is_err() {
            self.give_back(places);
        }
        result
    }

    /// Lets all programs decide by slots of this class. All are loaded before the first is replaced, so that
    /// a kernel that refuses one keeps all it had.
    fn admit(&mut self, class: usize) -> Result<(), Error> {
        let classes = self.classes.with(class);
        if classes == self.classes {
            return Ok(());
        }
        let load = |attachment: &Attachment| {
            let tables = self.tables[attachment.direction.index()].as_ref();
            let maps = &tables.expect("invariant: made before something is attached").maps;
            attachment.load_for(maps, classes)
        };
        let objects: Vec<_> = self.attachments.iter().map(load).collect::<Result<_, _>>()?;
        for (attachment, object) in self.attachments.iter_mut().zip(objects) {
            attachment.replace(object)?;
        }
        self.classes = classes;
        Ok(())
    }

    /// Writes a plan, and its bundle's target, to places that nothing points to.
    fn write_plan(
        &mut self,
        mut plan: abi::Plan,
        aim: Option<&abi::Plan>,
    ) -> Result<Places, Error> {
        let mut places = Places { plan: self.lend_place()?, aim: None };
        let mut write = || {
            if let Some(aim) = aim {
                plan.aim = *places.aim.insert(self.lend_place()?);
                self.write_place(plan.aim, aim)?;
            }
            self.write_place(places.plan, &plan)
        };
        let written = write();
        if written.is_err() {
            self.give_back(places);
        }
        written.map(|()| places)
    }

    fn write_place(&mut self, place: u32, plan: &abi::Plan) -> Result<(), Error> {
        let maps = &self.tables_of(Direction::Download)?.maps;
        update(maps.map("plans"), &place.to_ne_bytes(), plan.as_bytes())
    }

    fn give_back(&mut self, places: Places) {
        for place in [Some(places.plan), places.aim].into_iter().flatten() {
            self.place_numbers.give_back(place);
        }
    }

    /// Removes a plan that no subscriber has.
    ///
    /// # Errors
    /// [`Error::UnknownPlan`], [`Error::PlanInUse`].
    pub fn remove_plan(&mut self, id: PlanId) -> Result<(), Error> {
        let live = self.plans.get(&id).ok_or(Error::UnknownPlan(id.0))?;
        if live.users > 0 {
            return Err(Error::PlanInUse { plan: id.0, users: live.users });
        }
        let LivePlan { number, places, .. } = *live;
        self.give_back(places);
        self.plan_numbers.give_back(number);
        self.plans.remove(&id);
        Ok(())
    }

    /// Lets a plan have slots of another kind, and its subscribers move there.
    fn move_plan(&mut self, id: PlanId, places: Places, kind: SlotKind) -> Result<(), Error> {
        let number = self.lend_plan_number()?;
        self.places.word(number as usize).store(places.plan.into(), Ordering::Release);
        if let Err(e) = self.move_subscribers(id, number, kind) {
            self.plan_numbers.give_back(number);
            return Err(e);
        }
        let counted = Direction::ALL.map(|direction| self.totals(id, direction));
        let live = self.plans.get_mut(&id).ok_or(Error::UnknownPlan(id.0))?;
        for (base, counted) in live.base.iter_mut().zip(counted) {
            *base = counted?;
        }
        self.plan_numbers.give_back(std::mem::replace(&mut live.number, number));
        let before = std::mem::replace(&mut live.places, places);
        live.kind = kind;
        self.give_back(before);
        Ok(())
    }

    /// A plan's number in the kernel, under which nothing is counted yet.
    fn lend_plan_number(&mut self) -> Result<u32, Error> {
        let too_many = || Error::TooMany { what: "plans".to_owned(), max: PLANS - 1 };
        let lent = lend_patiently(&mut self.plan_numbers).ok_or_else(too_many)?;
        if lent.is_used {
            for tables in self.tables.iter().flatten() {
                tables.reset_totals(lent.number)?;
            }
        }
        Ok(lent.number)
    }

    fn lend_place(&mut self) -> Result<u32, Error> {
        let too_many = || Error::TooMany { what: "plans".to_owned(), max: PLANS - 1 };
        Ok(lend_patiently(&mut self.place_numbers).ok_or_else(too_many)?.number)
    }

    /// The tables of a direction, which are made when it is first needed.
    fn tables_of(&mut self, direction: Direction) -> Result<&mut Tables, Error> {
        let index = direction.index();
        if self.tables[index].is_none() {
            let other = self.tables[1 - index].as_ref().map(|tables| &tables.maps);
            self.tables[index] = Some(Tables::make(self.spec, other)?);
        }
        Ok(self.tables[index].as_mut().expect("invariant: made above"))
    }

    /// What the kernel holds for the policer, programs not included.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn memory(&self) -> Result<Bytes, Error> {
        counters::memory(self)
    }
}

/// Lends a number; if all are lent, waits for those that rest.
fn lend_patiently(numbers: &mut Numbers) -> Option<slots::Lent> {
    for _ in 0..PATIENCE {
        match numbers.lend() {
            Some(lent) => return Some(lent),
            None if numbers.is_any_resting() => std::thread::sleep(PATIENCE_STEP),
            None => return None,
        }
    }
    numbers.lend()
}

/// The most plans.
pub const PLANS_MAX: u16 = PLANS as u16 - 1;
/// Steps for which a number is waited for: together longer than a number rests.
const PATIENCE: u32 = 25;
const PATIENCE_STEP: Duration = Duration::from_millis(50);

impl std::fmt::Debug for Police {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Police")
            .field("spec", &self.spec)
            .field("attachments", &self.attachments)
            .field("plans", &self.plans.len())
            .finish_non_exhaustive()
    }
}

/// Whether a prefix is a single address.
fn is_whole(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}
