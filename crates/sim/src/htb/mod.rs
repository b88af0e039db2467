//! The receiver's own enforcer in virtual time: a hierarchical token bucket as in Linux.
//!
//! Problem: the effect of an [`Allocation`] on packets is decided by the kernel's HTB on an
//! intermediate device, with one class for each flow group under one parent, and a byte FIFO in
//! each. Method: the same rules as a state machine. The caller hands in packets ([`Htb::enqueue`]),
//! asks when one may leave ([`Htb::next_departure`]) and takes them out ([`Htb::poll_departure`]).
//!
//! Terms as in tc(8). A class has tokens for its *rate* and for its *ceil*, both with a *burst*. It
//! sends from its own tokens, or it *borrows*: then it uses its parent's tokens, whose rate is what
//! all classes may carry together. A packet may leave as soon as there is no debt, whatever its
//! size, and may make a debt. A class that sends from its own tokens is not held back, but the
//! parent pays too. A class that borrows waits until the parent has no debt: the highest priority
//! first, and among equals by deficit round robin, a *quantum* each. A device behind HTB takes
//! every packet, so a packet that may leave has left.
//!
//! Properties, all tested: each packet passes, waits or is dropped, and a packet that waits leaves
//! once, in order within its class; a backlogged class that does not borrow gets its rate, and in
//! any time no more than rate · time, a burst and a packet; spare rate is divided by quantum, and a
//! lower priority gets none while a higher one can use it; a change of rates keeps tokens, as time,
//! and loses no packet. A late poll is like a late timer of the kernel: up to a burst is made up
//! for, the rest is lost.
//!
//! Differences: the kernel's timer is never late here, and packets are not merged before they are
//! counted. Source: tc-htb(8); Devera, HTB Linux queuing discipline manual (2002); deficit round
//! robin: Shreedhar and Varghese, SIGCOMM 1995.

use std::collections::VecDeque;

use fairweir_core::policy::GROUPS_MAX;
use fairweir_core::receiver::{Allocation, ClassSpec};
use fairweir_core::units::{Bytes, Time};
use fairweir_scenario::link::Packet;

mod bucket;
mod turns;

use bucket::{Bucket, nanos};
use turns::{Borrowers, NEVER, Timetable};

/// The fate of a packet that comes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<T> {
    /// It leaves at once.
    Pass(Packet<T>),
    /// It leaves later.
    Waits,
    /// It is dropped, as its class's queue is full.
    Dropped(Packet<T>),
}

/// The classes of a receiver and the packets that wait in them.
///
/// Invariant: a class is in the timetable if a packet waits in it, and also among the borrowers if
/// it could borrow when it was last looked at.
#[derive(Clone, Debug)]
pub struct Htb<T> {
    /// Size of the largest packet.
    packet: Bytes,
    is_shaping: bool,
    classes: Vec<Class<T>>,
    parent: Bucket,
    timetable: Timetable,
    borrowers: Borrowers,
    /// When a packet may leave next; [`NEVER`] if none waits.
    next: i64,
}

#[derive(Clone, Debug)]
struct Class<T> {
    own: Bucket,
    ceil: Bucket,
    priority: u8,
    quantum: i64,
    /// The rest of its quantum in this round.
    deficit: i64,
    waiting: VecDeque<Packet<T>>,
    backlog: u64,
    queue_max: u64,
    drops: u64,
}

/// What a class may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    MaySend,
    /// It may borrow now, or send from its own tokens from then on.
    MayBorrow(i64),
    /// It has to wait until then.
    Waits(i64),
}

impl<T> Htb<T> {
    /// Makes `classes` empty classes, which let everything pass until the first
    /// [`Htb::apply`]; `packet_max` is the largest packet in L2 bytes.
    ///
    /// # Panics
    /// If there is no class, or more than [`GROUPS_MAX`].
    pub fn new(classes: usize, packet_max: Bytes) -> Htb<T> {
        assert!((1..=GROUPS_MAX).contains(&classes), "a policy has 1 to {GROUPS_MAX} groups");
        Htb {
            packet: packet_max,
            is_shaping: false,
            classes: (0..classes).map(|_| Class::new()).collect(),
            parent: Bucket::full(),
            timetable: Timetable::new(classes),
            borrowers: Borrowers::default(),
            next: NEVER,
        }
    }

    /// Sets the classes as the allocation says.
    ///
    /// # Panics
    /// If an allocation has another number of classes.
    pub fn apply(&mut self, now: Time, allocation: &Allocation) {
        self.set_rates(allocation);
        self.look_at_all(now);
    }

    /// Lets everything pass, including the packets that wait.
    pub fn release(&mut self, now: Time) {
        self.is_shaping = false;
        self.look_at_all(now);
    }

    fn look_at_all(&mut self, now: Time) {
        self.borrowers.clear();
        for class in 0..self.classes.len() {
            self.look_at(nanos(now), class);
        }
        self.look_ahead();
    }

    /// Takes in a packet.
    ///
    /// # Panics
    /// If there is no such class.
    pub fn enqueue(&mut self, now: Time, packet: Packet<T>) -> Verdict<T> {
        let (now, i, bytes) = (nanos(now), packet.class, packet.size.as_u64());
        let is_first = self.classes[i].waiting.is_empty();
        if is_first && !self.is_shaping {
            return Verdict::Pass(packet);
        }
        // A packet that is due earlier has not been taken out yet: the new one waits for its turn.
        if is_first
            && now < self.next
            && let Some(borrows) = self.may_leave(now, i)
        {
            self.charge(now, i, bytes, borrows);
            self.look_ahead();
            return Verdict::Pass(packet);
        }
        let class = &mut self.classes[i];
        if self.is_shaping && class.backlog + bytes > class.queue_max {
            class.drops += 1;
            return Verdict::Dropped(packet);
        }
        class.backlog += bytes;
        class.waiting.push_back(packet);
        if is_first {
            self.look_at(now, i);
            self.look_ahead();
        }
        Verdict::Waits
    }

    /// Moves waiting packets for which `is_meant` holds from one class to the end of another's
    /// queue, in their order, whether that queue has room or not.
    ///
    /// # Panics
    /// If there is no such class.
    pub fn reclassify(&mut self, now: Time, from: usize, to: usize, is_meant: impl Fn(&T) -> bool) {
        let all = std::mem::take(&mut self.classes[from].waiting);
        let (mut moved, kept) = all.into_iter().partition::<VecDeque<_>, _>(|p| is_meant(&p.body));
        self.classes[from].waiting = kept;
        let bytes: u64 = moved.iter().map(|packet| packet.size.as_u64()).sum();
        self.classes[from].backlog -= bytes;
        self.classes[to].backlog += bytes;
        moved.iter_mut().for_each(|packet| packet.class = to);
        self.classes[to].waiting.append(&mut moved);
        for class in [from, to] {
            self.look_at(nanos(now), class);
        }
        self.look_ahead();
    }

    /// When a packet may leave if no other comes in; a past time if it was not taken out yet.
    pub fn next_departure(&self) -> Option<Time> {
        (self.next < NEVER).then(|| Time::from_nanos(self.next.max(0) as u64))
    }

    /// The next packet that leaves at `now`; there may be none even at [`Htb::next_departure`].
    pub fn poll_departure(&mut self, now: Time) -> Option<Packet<T>> {
        let now = nanos(now);
        if now < self.next {
            return None;
        }
        let sender = self.sender(now);
        let packet = sender.and_then(|(i, borrows)| self.send(now, i, borrows));
        self.look_ahead();
        packet
    }

    /// Number of packets that a class has dropped since the start.
    pub fn drops(&self, class: usize) -> u64 {
        self.classes[class].drops
    }

    /// Number of packets that wait.
    #[expect(clippy::len_without_is_empty, reason = "not asked")]
    pub fn len(&self) -> usize {
        self.classes.iter().map(|class| class.waiting.len()).sum()
    }

    /// Bytes that wait in a class.
    pub fn backlog(&self, class: usize) -> Bytes {
        Bytes::new(self.classes[class].backlog)
    }

    fn set_rates(&mut self, allocation: &Allocation) {
        assert_eq!(allocation.classes.len(), self.classes.len(), "each group has a class");
        self.parent.set_rate(ClassSpec::parent(allocation.total).rate);
        for (class, spec) in self.classes.iter_mut().zip(allocation.leaves(self.packet)) {
            class.own.set_rate(spec.rate);
            class.ceil.set_rate(spec.ceil);
            class.priority = spec.priority;
            class.quantum = spec.quantum.as_u64() as i64;
            class.queue_max = spec.queue.map_or(u64::MAX, Bytes::as_u64);
        }
        self.is_shaping = true;
    }

    /// Whether a class borrows if it sends now; `None` if it may not send.
    fn may_leave(&self, now: i64, i: usize) -> Option<bool> {
        match self.classes[i].standing(now) {
            Standing::MaySend => Some(false),
            Standing::MayBorrow(_) => (self.parent.ready() <= now).then_some(true),
            Standing::Waits(_) => None,
        }
    }

    /// The class that sends next at `now`, and whether it borrows.
    fn sender(&mut self, now: i64) -> Option<(usize, bool)> {
        loop {
            let (at, i) = self.timetable.first();
            if at > now {
                break;
            }
            if !self.is_shaping || self.classes[i].standing(now) == Standing::MaySend {
                return Some((i, false));
            }
            // From now on the class may borrow, and its next time is later.
            self.look_at(now, i);
        }
        if self.parent.ready() > now {
            return None;
        }
        self.borrowers.next().map(|i| (i, true))
    }

    fn send(&mut self, now: i64, i: usize, borrows: bool) -> Option<Packet<T>> {
        let class = &mut self.classes[i];
        let packet = class.waiting.pop_front()?;
        let bytes = packet.size.as_u64();
        class.backlog -= bytes;
        if self.is_shaping {
            self.charge(now, i, bytes, borrows);
        }
        self.look_at(now, i);
        Some(packet)
    }

    fn charge(&mut self, now: i64, i: usize, bytes: u64, borrows: bool) {
        let class = &mut self.classes[i];
        class.ceil.charge(now, bytes);
        self.parent.charge(now, bytes);
        if !borrows {
            class.own.charge(now, bytes);
            return;
        }
        class.deficit -= bytes as i64;
        let is_over = class.deficit < 0;
        if is_over {
            class.deficit += class.quantum;
        }
        self.borrowers.set_turn(class.priority, i + usize::from(is_over));
    }

    /// Updates the time that a class waits for.
    fn look_at(&mut self, now: i64, i: usize) {
        let class = &self.classes[i];
        let standing = match (class.waiting.is_empty(), self.is_shaping) {
            (true, _) => Standing::Waits(NEVER),
            (false, false) => Standing::MaySend,
            (false, true) => class.standing(now),
        };
        let (at, borrows) = match standing {
            Standing::MaySend => (now, false),
            Standing::MayBorrow(at) => (at, true),
            Standing::Waits(at) => (at, false),
        };
        self.timetable.set(i, at);
        self.borrowers.set(class.priority, i, borrows);
    }

    fn look_ahead(&mut self) {
        let borrows_at = if self.borrowers.is_empty() { NEVER } else { self.parent.ready() };
        self.next = self.timetable.first().0.min(borrows_at);
    }
}

impl<T> Class<T> {
    fn new() -> Class<T> {
        Class {
            own: Bucket::full(),
            ceil: Bucket::full(),
            priority: 0,
            quantum: 0,
            deficit: 0,
            waiting: VecDeque::new(),
            backlog: 0,
            queue_max: 0,
            drops: 0,
        }
    }

    fn standing(&self, now: i64) -> Standing {
        if self.ceil.ready() > now {
            Standing::Waits(self.ceil.ready())
        } else if self.own.ready() > now {
            Standing::MayBorrow(self.own.ready())
        } else {
            Standing::MaySend
        }
    }
}

#[cfg(test)]
mod tests;
