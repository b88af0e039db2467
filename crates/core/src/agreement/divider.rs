//! The divider's side: which subscriber's client divides, how, and until when.
//!
//! Nothing is stored before a client has returned a cookie. Addresses that belong to no subscriber get no answer
//! and nothing is stored for them; the caller bounds how much strangers may send. A subscriber has one client at a
//! time: the first one, until its lease ends. Since queues begin empty after a change of weights, changes are
//! limited: [`CHANGES`] at once, and one more each [`CHANGE_EACH`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};

use super::cookie::Key;
use super::message::{Agreed, Ask, Message, Outcome, Seen};
use super::{Classes, LEASE, mark_of};
use crate::units::{Rate, Span, Time};

/// Changes of weights that a client may make at once.
pub const CHANGES: u32 = 8;
/// The time after which it may make another change. Queues that begin empty let pass an additional volume of
/// about a fifth of a second at the rate.
pub const CHANGE_EACH: Span = Span::secs(10);

/// The mechanism that divides, and its subscribers.
pub trait Subscribers {
    /// A subscriber's name.
    type Id: Ord + Clone + Debug;

    /// The subscriber to whom the address belongs.
    fn owner(&self, address: IpAddr) -> Option<Self::Id>;

    /// The rate that a client of the subscriber may divide; zero if unknown.
    ///
    /// # Errors
    /// Why the client may not divide.
    fn offer(&self, subscriber: &Self::Id) -> Result<Rate, Outcome>;

    /// Divides by these classes from now on; `false` if there is no room.
    fn divide(&mut self, subscriber: &Self::Id, classes: &Classes) -> bool;

    /// Stops dividing for a client from now on.
    fn undivide(&mut self, subscriber: &Self::Id);

    /// Whether the subscriber's traffic is divided for a client.
    fn is_divided(&self, subscriber: &Self::Id) -> bool;

    /// What the divider sees of the client's flows.
    fn seen(&self, subscriber: &Self::Id, now: Time) -> Seen;
}

/// An agreement, or what is remembered of one that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The client that has the agreement.
    pub client: SocketAddr,
    /// The classes in force, or the last ones.
    pub classes: Classes,
    /// The epoch of the agreement.
    pub epoch: u32,
    /// When the lease ends, or has ended.
    pub until: Time,
    /// Changes are counted as the time that they take up, as in a leaky bucket.
    changes_until: Time,
}

impl Lease {
    /// Whether it is in force.
    pub fn is_live(&self, now: Time) -> bool {
        now < self.until
    }

    /// Takes a change into account, if one more is allowed.
    fn change(&mut self, now: Time) -> bool {
        let ahead = self.changes_until.since(now);
        let is_allowed = ahead + CHANGE_EACH <= CHANGE_EACH * u64::from(CHANGES);
        if is_allowed {
            self.changes_until = self.changes_until.max(now) + CHANGE_EACH;
        }
        is_allowed
    }
}

/// The divider, see the module.
#[derive(Clone, Debug)]
pub struct Divider<K> {
    key: Key,
    leases: BTreeMap<K, Lease>,
    epoch: u32,
}

impl<K: Ord + Clone + Debug> Divider<K> {
    /// A divider without agreements. `key` and `epoch` are random.
    pub fn new(key: Key, epoch: u32) -> Divider<K> {
        Divider { key, leases: BTreeMap::new(), epoch }
    }

    /// The agreement of a subscriber, or what is remembered of the last one.
    pub fn lease(&self, subscriber: &K) -> Option<&Lease> {
        self.leases.get(subscriber)
    }

    /// The epoch of the last agreement that has begun.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// How many agreements are in force.
    pub fn live(&self, now: Time) -> usize {
        self.leases.values().filter(|lease| lease.is_live(now)).count()
    }

    /// Takes in a datagram; returns the answer, which is never longer.
    pub fn handle_datagram(
        &mut self,
        client: SocketAddr,
        bytes: &[u8],
        now: Time,
        subscribers: &mut impl Subscribers<Id = K>,
    ) -> Option<Message> {
        let message = Message::read(bytes)?;
        let (nonce, cookie) = match &message {
            Message::Hello { nonce } => (*nonce, None),
            Message::Ask(ask) => (ask.nonce, Some(ask.cookie)),
            Message::End { nonce, cookie, .. } => (*nonce, Some(*cookie)),
            Message::Cookie { .. } | Message::Agreed(_) => return None,
        };
        let is_proven = cookie.is_some_and(|cookie| self.key.knows(&cookie, client, nonce, now));
        let subscriber = subscribers.owner(client.ip())?;
        match message {
            _ if !is_proven => {
                let is_offered = subscribers.offer(&subscriber) != Err(Outcome::NotOffered);
                let cookie = self.key.cookie(client, nonce, now);
                is_offered.then_some(Message::Cookie { nonce, cookie })
            }
            Message::Ask(ask) => {
                let agreed = self.handle_ask(client, &subscriber, &ask, now, subscribers);
                Some(Message::Agreed(agreed))
            }
            Message::End { epoch, .. } => {
                self.handle_end(client, &subscriber, epoch, now, subscribers);
                None
            }
            Message::Hello { .. } | Message::Cookie { .. } | Message::Agreed(_) => None,
        }
    }

    /// Ends leases that were not renewed, and forgets those that need not be remembered.
    pub fn handle_tick(&mut self, now: Time, subscribers: &mut impl Subscribers<Id = K>) {
        self.leases.retain(|subscriber, lease| {
            if !lease.is_live(now) && subscribers.is_divided(subscriber) {
                subscribers.undivide(subscriber);
            }
            lease.is_live(now) || now < lease.changes_until
        });
    }

    fn handle_ask(
        &mut self,
        client: SocketAddr,
        subscriber: &K,
        ask: &Ask,
        now: Time,
        subscribers: &mut impl Subscribers<Id = K>,
    ) -> Agreed {
        let refuse = |outcome| Agreed {
            nonce: ask.nonce,
            epoch: 0,
            lease: Span::ZERO,
            outcome,
            rate: Rate::ZERO,
            seen: Seen::default(),
            marks: Vec::new(),
        };
        let rate = match subscribers.offer(subscriber) {
            Ok(rate) => rate,
            Err(outcome) => return refuse(outcome),
        };
        let lease = self.leases.entry(subscriber.clone()).or_insert_with(|| Lease {
            client,
            classes: ask.classes.clone(),
            epoch: 0,
            until: Time::ZERO,
            changes_until: now,
        });
        if lease.is_live(now) && lease.client != client {
            return refuse(Outcome::Taken);
        }
        let is_in_force = lease.is_live(now) && subscribers.is_divided(subscriber);
        let mut outcome = Outcome::Divides;
        if !is_in_force || lease.classes != ask.classes {
            if !lease.change(now) {
                outcome = Outcome::TooSoon;
                if !is_in_force {
                    return refuse(outcome);
                }
            } else if subscribers.divide(subscriber, &ask.classes) {
                lease.classes = ask.classes.clone();
            } else {
                subscribers.undivide(subscriber);
                self.leases.remove(subscriber);
                return refuse(Outcome::Full);
            }
        }
        if !is_in_force {
            self.epoch = self.epoch.wrapping_add(1).max(1);
            lease.epoch = self.epoch;
        }
        (lease.client, lease.until) = (client, now + LEASE);
        let marks = (0..lease.classes.weights().len() as u8).map(mark_of).collect();
        Agreed {
            nonce: ask.nonce,
            epoch: lease.epoch,
            lease: LEASE,
            outcome,
            rate,
            seen: subscribers.seen(subscriber, now),
            marks,
        }
    }

    fn handle_end(
        &mut self,
        client: SocketAddr,
        subscriber: &K,
        epoch: u32,
        now: Time,
        subscribers: &mut impl Subscribers<Id = K>,
    ) {
        let Some(lease) = self.leases.get_mut(subscriber) else { return };
        if lease.client == client && lease.epoch == epoch && lease.is_live(now) {
            lease.until = now;
            subscribers.undivide(subscriber);
        }
    }
}
