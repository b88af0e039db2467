//! The divider's side: which subscriber's client divides how, and until when.
//!
//! Nothing is stored before a client has given a cookie back, nor for addresses that are no subscriber's, which
//! get no answer; the caller bounds how much strangers may say. A subscriber has one client at a time: the first,
//! until its lease ends. Since queues begin empty with other weights, what a client may change is limited:
//! [`CHANGES`] at once, and one more each [`CHANGE_EACH`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};

use super::cookie::Key;
use super::message::{Agreed, Ask, Message, Outcome, Seen};
use super::{Classes, LEASE, mark_of};
use crate::units::{Rate, Span, Time};

/// Changes of weights that a client may make at once.
pub const CHANGES: u32 = 8;
/// The time after which it may make another one. Queues that begin empty let about a fifth of a second of the
/// rate pass in addition.
pub const CHANGE_EACH: Span = Span::secs(10);

/// What divides, and for whom.
pub trait Subscribers {
    /// A subscriber's name.
    type Id: Ord + Clone + Debug;

    /// Whose address it is.
    fn owner(&self, address: IpAddr) -> Option<Self::Id>;

    /// What a client of the subscriber may divide; zero is unknown.
    ///
    /// # Errors
    /// Why it may not.
    fn offer(&self, subscriber: &Self::Id) -> Result<Rate, Outcome>;

    /// Divides so from now on; `false` if there is no room.
    fn divide(&mut self, subscriber: &Self::Id, classes: &Classes) -> bool;

    /// Divides as without a client from now on.
    fn undivide(&mut self, subscriber: &Self::Id);

    /// Whether it divides for a client.
    fn is_divided(&self, subscriber: &Self::Id) -> bool;

    /// What it sees of the client's flows.
    fn seen(&self, subscriber: &Self::Id, now: Time) -> Seen;
}

/// An agreement, or the memory of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whose it is.
    pub client: SocketAddr,
    /// What was asked for last.
    pub classes: Classes,
    /// Of the agreement.
    pub epoch: u32,
    /// When it ends; in the past it has ended.
    pub until: Time,
    /// Changes are counted as time that they take, as in a bucket that leaks.
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

/// See the module.
#[derive(Clone, Debug)]
pub struct Divider<K> {
    key: Key,
    leases: BTreeMap<K, Lease>,
    epoch: u32,
}

impl<K: Ord + Clone + Debug> Divider<K> {
    /// Without agreements. `key` and `epoch` are random.
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

    /// How many are in force.
    pub fn live(&self, now: Time) -> usize {
        self.leases.values().filter(|lease| lease.is_live(now)).count()
    }

    /// Takes in a datagram; what to answer. The answer is never longer.
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

    /// Ends what was not renewed, and forgets what need not be remembered.
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
        let mut lease = match self.leases.get(subscriber) {
            Some(lease) if lease.is_live(now) && lease.client != client => {
                return refuse(Outcome::Taken);
            }
            Some(lease) => lease.clone(),
            None => Lease {
                client,
                classes: ask.classes.clone(),
                epoch: 0,
                until: Time::ZERO,
                changes_until: now,
            },
        };
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
        let agreed = Agreed {
            nonce: ask.nonce,
            epoch: lease.epoch,
            lease: LEASE,
            outcome,
            rate,
            seen: subscribers.seen(subscriber, now),
            marks,
        };
        self.leases.insert(subscriber.clone(), lease);
        agreed
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
