//! Clients: subscribers' hosts that said by which classes their download is to be divided.
//!
//! The plan of a client's classes is written to an unused place; then the client's entry, at the index
//! of the subscriber's slot, points there. The entry of the upload's slot leads to the bindings, which
//! the programs write. When a plan or a subscriber changes, its client is dropped until it asks again.

use std::collections::HashMap;

use fairweir_core::agreement::bindings;
use fairweir_core::agreement::message::Seen;
use fairweir_core::phantom;
use fairweir_core::units::Time;
use libbpf_rs::{MapCore, MapFlags};

use super::abi::{self, CHUNK, CHUNKS, CLASS_CLIENT, CLIENT_CHUNK};
use super::maps::OfClient;
use super::plan::{self, CLIENT_SHAPES, Shapes};
use super::slots::{Numbers, class_of, index_of};
use super::{Bound, Direction, PlanId, Police, SubscriberId};
use crate::Error;
use crate::bpf::abi::Plain;
use crate::bpf::{bpf_error, update};
use crate::clock::monotonic_now;

/// The clients that divide downloads now.
#[derive(Debug)]
pub(super) struct Clients {
    of: HashMap<SubscriberId, Live>,
    places: Numbers,
    numbers: Numbers,
    /// The number of the last shape. Shapes of clients' plans are not remembered, since their
    /// number is unlimited; another process uses other numbers.
    shape: u32,
}

/// A client.
#[derive(Debug)]
struct Live {
    place: u32,
    number: u32,
    shape: (Vec<u8>, u32),
}

impl Default for Clients {
    fn default() -> Clients {
        let all = CHUNKS * CLIENT_CHUNK;
        let (places, numbers) = (Numbers::new(1, all), Numbers::new(1, all));
        let shape = (monotonic_now().as_nanos() >> CLIENT_SHAPE_SHIFT) as u32;
        Clients { of: HashMap::new(), places, numbers, shape }
    }
}

impl Police {
    /// Divides the download of a subscriber from now on, by a plan that [`phantom::Plan::divided`]
    /// made from the subscriber's own. Its queues keep their state if the classes have the same
    /// weights as before. Marks of its uploads bind flows to these classes.
    ///
    /// # Errors
    /// [`Error::UnknownSubscriber`], [`Error::NoClients`] if the subscriber's plan is not for
    /// clients, [`Error::TooMany`], or if the kernel refuses; then nothing has changed.
    pub fn divide(&mut self, id: SubscriberId, plan: &phantom::Plan) -> Result<(), Error> {
        let slots = self.client_slots(id)?;
        let too_many = || Error::TooMany { what: "clients".to_owned(), max: CHUNKS * CLIENT_CHUNK };
        let mut plan = plan::of_client(plan);
        let key = Shapes::key(&plan);
        let before = self.clients.of.get(&id);
        let (number, shape) = match before {
            Some(live) if live.shape.0 == key => (Some(live.number), live.shape.1),
            before => {
                self.clients.shape = self.clients.shape.wrapping_add(1);
                (before.map(|live| live.number), CLIENT_SHAPES | self.clients.shape)
            }
        };
        plan.shape = shape;
        let number = match number {
            Some(number) => number,
            None => {
                let lent = self.clients.numbers.lend().ok_or_else(too_many)?;
                let written = self.write_of_client(OfClient::Bindings, lent.number, || {
                    lent.is_used.then(|| vec![0; size_of::<abi::Bindings>()])
                });
                written.inspect_err(|_| self.clients.numbers.give_back(lent.number))?;
                lent.number
            }
        };
        let lent = self.clients.places.lend().ok_or_else(too_many);
        let shown = lent.and_then(|lent| {
            let place = lent.number;
            let written = self
                .write_of_client(OfClient::Plan, place, || Some(plan.as_bytes().to_vec()))
                .and_then(|()| self.show_client(slots, place, number));
            written.map(|()| place).inspect_err(|_| self.clients.places.give_back(place))
        });
        let place = match shown {
            Ok(place) => place,
            Err(e) => {
                if !self.clients.of.contains_key(&id) {
                    self.clients.numbers.give_back(number);
                }
                return Err(e);
            }
        };
        let live = Live { place, number, shape: (key, shape) };
        if let Some(before) = self.clients.of.insert(id, live) {
            self.clients.places.give_back(before.place);
        }
        Ok(())
    }

    /// Divides the download of a subscriber by its own plan from now on.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn undivide(&mut self, id: SubscriberId) -> Result<(), Error> {
        if !self.clients.of.contains_key(&id) {
            return Ok(());
        }
        let slots = self.client_slots(id)?;
        self.show_client(slots, 0, 0)?;
        if let Some(live) = self.clients.of.remove(&id) {
            self.clients.places.give_back(live.place);
            self.clients.numbers.give_back(live.number);
        }
        Ok(())
    }

    /// As [`Police::undivide`], for all subscribers of a plan.
    pub(super) fn undivide_all(&mut self, plan: PlanId) -> Result<(), Error> {
        let has_plan = |id: &SubscriberId| {
            let seats = self.subscriber(*id).map(|subscriber| subscriber.seats).unwrap_or_default();
            seats.into_iter().flatten().any(|seat| seat.plan == plan)
        };
        let all: Vec<SubscriberId> = self.clients.of.keys().copied().filter(has_plan).collect();
        all.into_iter().try_for_each(|id| self.undivide(id))
    }

    /// Whether a client divides the download of a subscriber.
    pub fn is_divided(&self, id: SubscriberId) -> bool {
        self.clients.of.contains_key(&id)
    }

    /// The bindings of a subscriber's client; `None` if no client divides its download.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn bindings(&self, id: SubscriberId) -> Result<Option<Bound>, Error> {
        let Some(live) = self.clients.of.get(&id) else { return Ok(None) };
        let Some(chunk) = self.maps().of_client(OfClient::Bindings, live.number) else {
            return Ok(None);
        };
        let value = chunk.lookup(&(live.number % CLIENT_CHUNK).to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(|e| bpf_error("read the bindings of a client", &e))?;
        let of_client = value.and_then(|value| abi::Bindings::from_bytes(&value));
        Ok(of_client.map(|bindings| Bound::of(&bindings)))
    }

    /// What the policer sees of the flows of a subscriber's client; `None` if no client divides its download. Reads
    /// the kernel's memory without a call.
    pub fn seen(&self, id: SubscriberId, now: Time) -> Option<Seen> {
        let (marked, refused) = self.maps().noted(self.clients.of.get(&id)?.number)?;
        Some(bindings::seen(&marked, refused, now))
    }

    /// The slots of a subscriber whose plan is for clients: of downloads and of uploads.
    fn client_slots(&self, id: SubscriberId) -> Result<[u32; 2], Error> {
        let slot = |direction: Direction| {
            let seat = self.subscriber(id)?.seats[direction.index()].ok_or(Error::NoClients)?;
            (class_of(seat.slot) == CLASS_CLIENT).then_some(seat.slot).ok_or(Error::NoClients)
        };
        Ok([slot(Direction::Download)?, slot(Direction::Upload)?])
    }

    /// Points the entry to a client's plan and bindings, or to none.
    fn show_client(&mut self, slots: [u32; 2], place: u32, number: u32) -> Result<(), Error> {
        let tables = self.tables_of(Direction::Download)?;
        for (slot, place) in slots.into_iter().zip([place, 0]) {
            let entry = abi::Client { place, number };
            let index = index_of(slot);
            let chunk = tables.maps.make_clients(index / CHUNK)?;
            update(chunk, &(index % CHUNK).to_ne_bytes(), entry.as_bytes())?;
        }
        Ok(())
    }

    /// Makes room for a client's plan or bindings, and writes the value.
    fn write_of_client(
        &mut self,
        what: OfClient,
        number: u32,
        value: impl FnOnce() -> Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let chunk = self.tables_of(Direction::Download)?.maps.make_of_client(what, number)?;
        let at = (number % CLIENT_CHUNK).to_ne_bytes();
        value().map_or(Ok(()), |value| update(chunk, &at, &value))
    }
}

/// A process uses up shapes more slowly than one per 2^17 ns, and each process begins at the current time.
const CLIENT_SHAPE_SHIFT: u32 = 17;
