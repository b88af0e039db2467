//! Hosts behind one link that divide it among themselves, where no router and no policer does.
//!
//! Problem: two hosts that each control the same link take each other for senders that fill its queue. Method: each
//! says in every tick what it received and wants ([`Said`]). One that knows the link *leads*: it counts what the
//! others say as part of what the link carries, and tells each what it may take. The others believe that, and keep
//! to it by their own windows. A host that hears no leader for [`SILENCE`] goes on by itself.
//!
//! There is no secret, so what is said is believed while it fits what arrives. A host that is told less than an equal
//! part of what it knows of the link, or wants more while nothing queues, divides by itself for a while.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use crate::backoff::Backoff;
use crate::receiver::{Act, AtLink, Beside, Decision, Other, Told, divided};
use crate::units::{Part, Rate, Span, Time};

pub mod said;

/// Ticks over which what all receive is smoothed.
const CARRIED_TICKS: u64 = 5;
/// The most others that are heard.
pub const PEERS_MAX: usize = 12;
/// Who said nothing for this time is not there.
pub const SILENCE: Span = Span::secs(1);
/// The same of a router that divides, which says so once a second.
const ROUTER_SILENCE: Span = Span::secs(5);
/// Who receives less than this for so long says nothing.
const ACTIVE: Rate = Rate::kbit(100);
const QUIET: Span = Span::secs(2);
/// Who leads receives this part of the link at least, since it sees the queue by what it receives.
const LEADS: Part = Part::of(1, 20);
/// Part of an equal part that a host is told at least.
const DUE: Part = Part::percent(80);
/// A host takes its part from this part of it on.
const TAKEN: Part = Part::percent(85);
/// How long a host that wants more believes less, or leaves the link idle.
const BELIEVED_FOR: Span = Span::secs(2);
/// How long it divides by itself then; doubled each time.
const AWAY: (Span, Span) = (Span::secs(10), Span::secs(3_600));
/// Told for this time without a fault, the next time is the first again.
const TRUSTED: Span = Span::secs(600);
/// While the leader lets everything pass, each may take this multiple of the link.
const ALL: u64 = 4;

/// What a host says of itself in a tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Who it is: random, other each time that its daemon starts.
    pub id: u64,
    /// What it received in the last tick.
    pub rate: Rate,
    /// What it wants at most; `None` is without a known end.
    pub wants: Option<Rate>,
    /// The queue that it sees; `None` if it does not know.
    pub queue: Option<Span>,
    /// What the link carries, if it could lead.
    pub link: Option<Rate>,
    /// What all received together lately, if it leads.
    pub carried: Rate,
    /// Whether it empties the queue now, if it leads.
    pub drains: bool,
    /// Whether it is a router that divides the link: then its hosts do not.
    pub is_router: bool,
    /// What each of the others may take, if it leads.
    pub parts: Vec<(u64, Rate)>,
}

/// What another said last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// That.
    pub said: Said,
    /// Where it was heard.
    pub from: Ipv6Addr,
    at: Time,
}

/// What one host has heard of the others.
#[derive(Clone, Debug)]
pub struct Peers {
    own: Said,
    heard: BTreeMap<u64, Heard>,
    beside: Beside,
    /// When it last heard a router that divides.
    router_at: Option<Time>,
    /// When it last received much.
    active_at: Option<Time>,
    /// What it knew of the link before it was told.
    known: Rate,
    /// Since when it is told, and since when that does not fit.
    told_since: Option<Time>,
    short_since: Option<Time>,
    away: Backoff,
    /// Until when it divides by itself.
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

    /// Takes in what the host at an address says. An address is one host, and a host has one address as long as it
    /// is heard there; beyond [`PEERS_MAX`] hosts those that are known are heard alone.
    pub fn handle_said(&mut self, said: Said, from: Ipv6Addr, now: Time) {
        if said.is_router {
            self.router_at = Some(now);
            return;
        }
        let is_elsewhere = self.heard.get(&said.id).is_some_and(|known| known.from != from);
        if said.id == self.own.id || is_elsewhere {
            return;
        }
        // One of before at this address has started again.
        self.heard.retain(|id, other| other.from != from || *id == said.id);
        if self.heard.contains_key(&said.id) || self.heard.len() < PEERS_MAX {
            self.heard.insert(said.id, Heard { said, from, at: now });
        }
    }

    /// Who is heard.
    pub fn heard(&self) -> impl ExactSizeIterator<Item = &Heard> {
        self.heard.values()
    }

    /// As what this host sees them in this tick.
    pub fn beside(&self) -> &Beside {
        &self.beside
    }

    /// Who is there at the beginning of a tick.
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

    /// Who leads does so while it can; then the first that can.
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

    /// What to say after a tick in which this was decided; nothing while it divides by itself, or hardly receives
    /// anything.
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

    /// Ends what does not fit.
    fn verify(&mut self, rate: Rate, wants_more: bool, is_idle: Option<bool>, now: Time) {
        let Beside::Told(told) = &self.beside else {
            (self.told_since, self.short_since) = (None, None);
            return;
        };
        let equal = self.known / (self.heard.len() as u64 + 1);
        // What is kept for others is not taken.
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

/// What each of the others may take: what it would have if it wanted all.
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
