//! Hosts behind one link that divide it among themselves, if no router or policer divides it.
//!
//! Problem: two hosts that each control the same link take each other for senders that fill its queue. Method: in
//! every tick each host says what it received and wants ([`Said`]). One that knows the link's capacity *leads*: it
//! counts the others' rates as part of what the link carries, and tells each host what it may take. The others believe
//! that, and keep to it by their own windows. A host that hears no leader for [`SILENCE`] continues by itself.
//!
//! There is no secret, so a message is believed while it fits what arrives. A host that is told less than an equal part
//! of the link as it knows it, or that wants more while nothing queues, divides by itself for a while.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use crate::backoff::Backoff;
use crate::receiver::{Act, AtLink, Beside, Decision, Other, Told, divided};
use crate::units::{Part, Rate, Span, Time};

pub mod said;

/// Ticks over which the total rate of all hosts is smoothed.
const CARRIED_TICKS: u64 = 5;
/// The maximum number of other hosts that are heard.
pub const PEERS_MAX: usize = 12;
/// A host that said nothing for this time is gone.
pub const SILENCE: Span = Span::secs(1);
/// The same for a router that divides, which says so once a second.
const ROUTER_SILENCE: Span = Span::secs(5);
/// A host that receives less than [`ACTIVE`] for [`QUIET`] says nothing.
const ACTIVE: Rate = Rate::kbit(100);
const QUIET: Span = Span::secs(2);
/// The leader receives at least this part of the link, since it sees the queue by the packets it receives.
const LEADS: Part = Part::of(1, 20);
/// The least that a host must be told, as part of an equal part.
const DUE: Part = Part::percent(80);
/// A host uses its part if it receives at least this part of it.
const TAKEN: Part = Part::percent(85);
/// How long a host that wants more accepts a smaller part, or an idle link.
const BELIEVED_FOR: Span = Span::secs(2);
/// How long it then divides by itself; doubled each time.
const AWAY: (Span, Span) = (Span::secs(10), Span::secs(3_600));
/// After this time of being told without a fault, the next time by itself is the first again.
const TRUSTED: Span = Span::secs(600);
/// While the leader lets everything pass, each may take this multiple of the link.
const ALL: u64 = 4;

/// What a host says about itself in a tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The host's identity: random, and different each time that its daemon starts.
    pub id: u64,
    /// The rate that it received in the last tick.
    pub rate: Rate,
    /// The highest rate that it wants; `None` if it wants all it can get.
    pub wants: Option<Rate>,
    /// The queue that it sees; `None` if unknown.
    pub queue: Option<Span>,
    /// The link's capacity, if the host could lead.
    pub link: Option<Rate>,
    /// The rate that all hosts together received recently, if this host leads.
    pub carried: Rate,
    /// Whether it is draining the queue now, if it leads.
    pub drains: bool,
    /// Whether it is a router that divides the link: then its hosts do not divide it.
    pub is_router: bool,
    /// What each of the others may take, if it leads.
    pub parts: Vec<(u64, Rate)>,
}

/// What another host said last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The message.
    pub said: Said,
    /// The address from which the message came.
    pub from: Ipv6Addr,
    at: Time,
}

/// What one host has heard of the others.
#[derive(Clone, Debug)]
pub struct Peers {
    own: Said,
    heard: BTreeMap<u64, Heard>,
    beside: Beside,
    /// When this host last heard a router that divides.
    router_at: Option<Time>,
    /// When this host last received at least [`ACTIVE`].
    active_at: Option<Time>,
    /// The capacity that this host knew before another host led.
    known: Rate,
    /// Since when this host is told its part, and since when that part does not fit.
    told_since: Option<Time>,
    short_since: Option<Time>,
    away: Backoff,
    /// Until this time the host divides by itself.
    until: Time,
}

impl Peers {
    /// A host that has heard nothing. `id` is random.
    pub fn new(id: u64) -> Peers {
        Peers {
            own: Said { id, ..Said::default() },
            heard: BTreeMap::new(),
            beside: Beside::Nobody,
            router_at: None,
            active_at: None,
            known: Rate::ZERO,
            told_since: None,
            short_since: None,
            away: Backoff::new(AWAY.0, AWAY.1),
            until: Time::ZERO,
        }
    }

    /// Takes in what the host at an address says. An address stands for one host, and a host keeps its address while it
    /// is heard there. Beyond [`PEERS_MAX`] hosts only the known ones are heard.
    pub fn handle_said(&mut self, said: Said, from: Ipv6Addr, now: Time) {
        if said.is_router {
            self.router_at = Some(now);
            return;
        }
        let is_elsewhere = self.heard.get(&said.id).is_some_and(|known| known.from != from);
        if said.id == self.own.id || is_elsewhere {
            return;
        }
        // An earlier host at this address has started again.
        self.heard.retain(|id, other| other.from != from || *id == said.id);
        if self.heard.contains_key(&said.id) || self.heard.len() < PEERS_MAX {
            self.heard.insert(said.id, Heard { said, from, at: now });
        }
    }

    /// The hosts that are heard.
    pub fn heard(&self) -> impl ExactSizeIterator<Item = &Heard> {
        self.heard.values()
    }

    /// How this host sees the others in this tick.
    pub fn beside(&self) -> &Beside {
        &self.beside
    }

    /// Takes in the beginning of a tick; returns which hosts are there.
    pub fn handle_tick(&mut self, now: Time) -> &Beside {
        self.heard.retain(|_, heard| now.since(heard.at) < SILENCE);
        self.beside = match self.leader() {
            _ if now < self.until || self.has_router(now) => Beside::Nobody,
            Some(said) if said.id == self.own.id => Beside::Led(self.others().collect()),
            Some(said) => said.told(self.own.id).map_or(Beside::Nobody, Beside::Told),
            None => Beside::Nobody,
        };
        &self.beside
    }

    fn has_router(&self, now: Time) -> bool {
        self.router_at.is_some_and(|at| now.since(at) < ROUTER_SILENCE)
    }

    fn others(&self) -> impl Iterator<Item = Other> {
        let other = |said: &Said| Other { rate: said.rate, wants: said.wants, queue: said.queue };
        self.heard().map(move |heard| other(&heard.said))
    }

    /// A leader stays the leader while it can; otherwise the host with the lowest id that can lead.
    fn leader(&self) -> Option<&Said> {
        let all = || {
            let heard = self.heard().map(|heard| &heard.said);
            std::iter::once(&self.own).chain(heard).filter(|said| said.link.is_some())
        };
        if self.heard.is_empty() {
            return None;
        }
        let first = |said: &&Said| said.id;
        all().filter(|said| !said.parts.is_empty()).min_by_key(first).or(all().min_by_key(first))
    }

    /// What to say after a tick with this decision; `None` while this host divides by itself, or receives almost
    /// nothing.
    pub fn say(
        &mut self,
        decision: &Decision,
        AtLink { is_idle, drains }: AtLink,
        now: Time,
    ) -> Option<&Said> {
        let groups = || decision.groups.iter();
        let rate = groups().map(|group| group.rate).sum();
        let wants: Option<Rate> = groups().map(|group| group.state.wants(group.demand)).sum();
        self.verify(rate, wants.is_none(), is_idle, now);
        let link = match &self.beside {
            Beside::Told(told) => Some(told.link),
            Beside::Nobody | Beside::Led(_) => {
                self.known = decision.capacity.unwrap_or(Rate::ZERO);
                decision.capacity
            }
        };
        let link = link.filter(|&link| rate >= link * LEADS && decision.delay.is_some());
        let parts = match (&self.beside, link) {
            (Beside::Led(others), Some(link)) => {
                let is_open = matches!(decision.act, Act::Yield | Act::Compare | Act::LetGo);
                let ids = self.heard.keys().copied();
                ids.zip(parts(link, wants, others, is_open)).collect()
            }
            _ => Vec::new(),
        };
        let carried = self.own.carried.smoothed(rate + self.beside.others(), CARRIED_TICKS);
        let queue = decision.delay.map(|delay| delay.value);
        let (id, is_router) = (self.own.id, false);
        self.own = Said { id, rate, wants, queue, link, carried, drains, is_router, parts };
        if rate >= ACTIVE {
            self.active_at = Some(now);
        }
        let is_active = self.active_at.is_some_and(|at| now.since(at) < QUIET);
        let is_heard = is_active && now >= self.until && !self.has_router(now);
        is_heard.then_some(&self.own)
    }

    /// Stops believing the leader if what it says does not fit what arrives.
    fn verify(&mut self, rate: Rate, wants_more: bool, is_idle: Option<bool>, now: Time) {
        let Beside::Told(told) = &self.beside else {
            (self.told_since, self.short_since) = (None, None);
            return;
        };
        let equal = self.known / (self.heard.len() as u64 + 1);
        // Capacity that the leader keeps for others is not used.
        let is_kept = is_idle == Some(true) && rate >= told.part * TAKEN;
        let is_short = wants_more && (is_kept || told.part < equal * DUE);
        let since = *self.told_since.get_or_insert(now);
        self.short_since = is_short.then(|| self.short_since.unwrap_or(now));
        if self.short_since.is_some_and(|since| now.since(since) >= BELIEVED_FOR) {
            if now.since(since) >= TRUSTED {
                self.away.reset();
            }
            self.until = now + self.away.span();
            self.away.double();
            (self.told_since, self.short_since) = (None, None);
        }
    }
}

impl Said {
    fn told(&self, id: u64) -> Option<Told> {
        let part = self.parts.iter().find(|(to, _)| *to == id)?.1;
        Some(Told { part, link: self.link?, carried: self.carried, drains: self.drains })
    }
}

/// What each of the other hosts may take: the part that it would have if it wanted all it can get.
fn parts(link: Rate, own: Option<Rate>, others: &[Other], is_open: bool) -> Vec<Rate> {
    if is_open {
        return vec![link * ALL; others.len()];
    }
    let mut wants = vec![own];
    wants.extend(others.iter().map(|other| other.wants));
    let part = |i: usize| {
        let all = wants.iter().enumerate().map(|(n, wants)| wants.filter(|_| n != i));
        divided(link, all)[i]
    };
    (1..=others.len()).map(part).collect()
}

#[cfg(test)]
mod tests;
