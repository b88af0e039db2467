//! Policing subscribers in the kernel: plans, subscribers and the hooks where packets are policed.
//!
//! Problem: hundreds of thousands of subscribers, each with addresses and a plan, come, change and go
//! while the others' packets flow. Method: the programs of `bpf/police.bpf.c` find an address's entry,
//! and through it the plan and the slot with the state, and decide under the slot's lock. User space
//! writes entries and plans, each by one atomic step, and never writes a state that is in use.
//!
//! Properties: packets of unknown addresses pass untouched. When the process ends, in whatever way,
//! the programs are removed and everything passes, unless they are pinned ([`Police::load_kept`]).
//! Adding, changing or removing a subscriber affects no other. A subscriber keeps its state when it
//! gets another plan, or its plan changes, as long as the tree of classes, weights and queues is
//! the same; with another tree its state begins empty. Counters are kept in any case.
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

/// The initial number of whole addresses of each family for which a direction's tables have room.
/// The tables grow as needed; each address that has room takes 80 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoliceSpec {
    /// IPv4.
    pub addresses4: u32,
    /// IPv6.
    pub addresses6: u32,
}

/// The direction of a packet, which tells the end by which the subscriber is found.
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

/// A subscriber; valid until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriberId(u32);

impl SubscriberId {
    /// The number as an index: freed numbers are used again before new ones.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The policer: its tables in the kernel and its hooks. All of it is removed when this drops, unless it is pinned.
pub struct Police {
    spec: PoliceSpec,
    pins: Option<Pins>,
    /// The tables of a previous process, until its programs are replaced.
    old: Option<Old>,
    attachments: Vec<Attachment>,
    /// The classes of slots that plans have had so far; the programs are loaded for them.
    classes: Classes,
    tables: [Option<Tables>; 2],
    /// The place of each plan.
    places: Shared,
    /// The time until which packets are policed.
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
    /// Counts in slots that a subscriber has left.
    carried: HashMap<(SubscriberId, Direction), Vec<Counters>>,
    clients: Clients,
}

/// A plan in the kernel.
#[derive(Debug)]
struct LivePlan {
    number: u32,
    places: Places,
    kind: SlotKind,
    /// Number of directions of subscribers that have it.
    users: u32,
    /// Counts under numbers that the plan had before.
    base: [Totals; 2],
}

/// The places where the kernel reads a plan, and its bundle's target if it has one.
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
    /// Both directions.
    pub const ALL: [Direction; 2] = [Direction::Download, Direction::Upload];

    fn index(self) -> usize {
        match self {
            Direction::Download => 0,
            Direction::Upload => 1,
        }
    }
}

impl Police {
    /// Makes the tables. Nothing is policed until a program is attached.
    ///
    /// # Errors
    /// If the kernel refuses, for example without memory or privileges.
    pub fn load(spec: &PoliceSpec) -> Result<Police, Error> {
        let download = Tables::make(*spec, None)?;
        let places = Shared::of(download.maps.map("places"), "places", PLANS as usize)?;
        let deadline = Shared::of(download.maps.map("deadline"), "deadline", 1)?;
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

    /// As [`Police::load`], but policing outlives the process: it goes on until the time of the
    /// last [`Police::extend_deadline`], or until [`open_kept`](crate::open_kept) for `device`. If
    /// a previous process has left programs for `device`, they police until [`Police::attach`]
    /// replaces them, and subscribers get the state that their addresses had.
    ///
    /// # Errors
    /// As [`Police::load`]; [`Error::Untrusted`] if others may write to the directory of the pins;
    /// if another process already polices `device` in this way, or there is no BPF file system.
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

    /// Whether a previous process has left a program at this hook, which [`Police::attach`] replaces.
    pub fn is_kept(&self, device: &str, hook: Hook, direction: Direction) -> bool {
        self.pins.as_ref().is_some_and(|pins| pins.link(device, hook, direction).exists())
    }

    /// Extends policing to this time; later calls replace it.
    pub fn extend_deadline(&self, until: Time) {
        self.deadline.word(0).store(until.as_nanos().max(1), Ordering::Relaxed);
    }

    /// Detaches what a previous process has left at hooks where this one is not attached, and frees
    /// the slots that it left and no subscriber uses.
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

    /// Polices the packets at a hook. A device may have several hooks; `overhead` is the size that
    /// each packet has beyond its Ethernet frame (without the checksum), in bytes.
    ///
    /// # Errors
    /// [`Error::NoDevice`]; [`Error::Occupied`] if there is another XDP program; [`Error::Bpf`]
    /// with the verifier's log if the kernel rejects the program.
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

    /// Makes a plan, or replaces it for all its subscribers at once. If the new plan needs slots of
    /// another size, or changes between one class and several, the subscribers move one by one.
    ///
    /// # Errors
    /// [`Error::TooMany`], or if the kernel refuses, including the program code for the plan's size
    /// of slots; then nothing has changed, except that no client divides the plan.
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

    /// Makes all programs able to decide by slots of this class. All are loaded before the first is
    /// replaced, so that nothing changes if the kernel refuses one.
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

    /// Writes a plan, and its bundle's target, to unused places.
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

    /// Gives a plan slots of another kind, and moves its subscribers there.
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

    /// A number for a plan in the kernel, whose counters are zero.
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

    /// The tables of a direction, created when first needed.
    fn tables_of(&mut self, direction: Direction) -> Result<&mut Tables, Error> {
        let index = direction.index();
        if self.tables[index].is_none() {
            let other = self.tables[1 - index].as_ref().map(|tables| &tables.maps);
            self.tables[index] = Some(Tables::make(self.spec, other)?);
        }
        Ok(self.tables[index].as_mut().expect("invariant: made above"))
    }

    /// The memory that the kernel uses for the policer, programs not included.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn memory(&self) -> Result<Bytes, Error> {
        counters::memory(self)
    }
}

/// Lends a number; if all are lent, waits for resting ones.
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
/// Steps of waiting for a number: together longer than a number rests.
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
