//! One bundle: its connections, and the state of each.

use std::collections::BTreeMap;

use fairweir_config::sender::{BundleConfig, CongestionControl};
use fairweir_core::delegate::{Bundle, MEMBERS_MAX, MemberId, Role, Status, Tally};
use fairweir_core::units::{Rate, Time};
use fairweir_linux::sender::{
    BUNDLES_MAX, Connection, FREE_MAX, Kind, Layout, Part, Seat, Seen, bit_of_free,
};

/// The role that a rule gives to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The connection has a target: the number of its free rule.
    Free(usize),
    /// The connection answers signals of others, as a stunt: the number of its stunt rule.
    Stunt(usize),
}

/// A connection in a bundle.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) connection: Connection,
    pub(super) rule: Rule,
    pub(super) seat: Seat,
    pub(super) id: MemberId,
    /// Whether the kernel has reported anything about the connection.
    is_seen: bool,
    /// What was last set in the kernel for the connection's place.
    told: Option<Part>,
}

/// Numbers of connections that a rule names but that are not in the bundle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Because they go to other hosts.
    pub(super) peers: usize,
    /// Because their congestion control cannot take part.
    pub(super) congestion_control: usize,
    /// Because no place is free.
    pub(super) full: usize,
}

/// A running bundle; see the module.
pub(super) struct Running {
    pub(super) config: BundleConfig,
    pub(super) core: Bundle,
    /// By the socket's cookie.
    pub(super) members: BTreeMap<u64, Member>,
    /// The reason if no connection is in the bundle.
    pub(super) problem: Option<String>,
    pub(super) left_out: LeftOut,
    /// Signals of connections that have ended: those with targets, and stunts.
    pub(super) ended: [Tally; 2],
    pub(super) next_tick: Time,
    /// Answers to signals that the kernel lost, for connections that are still open.
    pub(super) mended: u64,
    /// Time zero of target traces.
    since: Time,
}

impl Running {
    pub(super) fn new(config: BundleConfig, now: Time) -> Running {
        Running {
            core: Bundle::new(&config.spec),
            config,
            members: BTreeMap::new(),
            problem: None,
            left_out: LeftOut::default(),
            ended: [Tally::default(); 2],
            next_tick: now,
            mended: 0,
            since: now,
        }
    }

    /// Takes over the connections that the rules of this bundle name; `nth` is the bundle's number.
    pub(super) fn take_over(
        &mut self,
        nth: usize,
        named: &[(Connection, Rule)],
        places: &mut Places,
    ) {
        let gone: Vec<u64> = self.members.keys().copied().collect();
        for id in gone.iter().filter(|id| !named.iter().any(|(c, _)| c.id == **id)) {
            self.remove(*id);
        }
        self.left_out = LeftOut::default();
        let mut wanted = Vec::new();
        for (connection, rule) in named {
            if !self.config.has_peer(connection.remote) {
                self.left_out.peers += 1;
            } else if self.members.contains_key(&connection.id) {
                wanted.push((connection, *rule, self.members[&connection.id].seat.kind));
            } else if let Some(kind) = self.kind(connection) {
                wanted.push((connection, *rule, kind));
            } else {
                self.left_out.congestion_control += 1;
            }
        }
        let free = wanted.iter().filter(|(_, rule, _)| matches!(rule, Rule::Free(_))).count();
        self.problem = (free > FREE_MAX).then(|| {
            format!("rules of targets name {free} connections (at most {FREE_MAX}); nothing is delegated")
        });
        if self.problem.is_some() {
            let all: Vec<u64> = self.members.keys().copied().collect();
            all.into_iter().for_each(|id| self.remove(id));
            return;
        }
        for (connection, rule, kind) in wanted {
            if self.members.contains_key(&connection.id) {
                continue;
            }
            match places.take(nth, rule) {
                Some(index) => self.add(connection, rule, Seat { index, kind }),
                None => self.left_out.full += 1,
            }
        }
    }

    fn add(&mut self, connection: &Connection, rule: Rule, seat: Seat) {
        let role = match rule {
            // The trace of a target starts when the connection is taken over.
            Rule::Free(nth) => Role::Free(self.config.free[nth].target.clone()),
            Rule::Stunt(nth) => Role::Stunt {
                weight: self.config.stunts[nth].weight,
                min_rate: self.config.min_rate,
            },
        };
        // The kernel has a place for the connection; the model has as many places, so it has one too.
        let Some(id) = self.core.join(role) else { return };
        let connection = connection.clone();
        let member = Member { connection, rule, seat, id, is_seen: false, told: None };
        self.members.insert(member.connection.id, member);
    }

    fn remove(&mut self, id: u64) {
        let Some(member) = self.members.remove(&id) else { return };
        let ended = &mut self.ended[usize::from(matches!(member.rule, Rule::Stunt(_)))];
        *ended = *ended + self.core.tally(member.id);
        self.core.leave(member.id);
    }

    /// Reads what the kernel reports for each place, and makes the bundle's decisions when they are due.
    pub(super) fn handle_tick(&mut self, now: Time, seen: &[Option<Seen>]) {
        let mut gone = Vec::new();
        self.mended = 0;
        for member in self.members.values_mut() {
            let id = member.connection.id;
            let known = seen.get(member.seat.index as usize).copied().flatten();
            match known.filter(|seen| seen.id == id) {
                Some(seen) => {
                    member.is_seen = true;
                    self.mended += u64::from(seen.mended);
                    self.core.handle_tally(member.id, seen.tally);
                    if let Some(sample) = seen.sample {
                        self.core.handle_sample(member.id, sample);
                    }
                }
                None if member.is_seen => gone.push(id),
                None => {}
            }
        }
        gone.into_iter().for_each(|id| self.remove(id));
        if now >= self.next_tick {
            let on_trace = Time::ZERO + now.since(self.since);
            self.core.handle_tick(on_trace);
            self.next_tick = now + self.core.next_tick(on_trace).since(on_trace);
        }
    }

    /// The congestion control of a connection within the bundle; `None` if it cannot take part.
    fn kind(&self, connection: &Connection) -> Option<Kind> {
        match (self.config.congestion_control, connection.congestion_control.as_str()) {
            (Some(CongestionControl::Reno), _) | (None, "reno") => Some(Kind::Reno),
            (Some(CongestionControl::Cubic), _) | (None, "cubic") => Some(Kind::Cubic),
            // The connection already has our congestion control, from another daemon or a replaced bundle.
            (None, name) if name.starts_with("fw_reno") => Some(Kind::Reno),
            (None, name) if name.starts_with("fw_cubic") => Some(Kind::Cubic),
            (None, _) => None,
        }
    }

    /// Updates each place in the kernel that differs from what was last set.
    ///
    /// # Errors
    /// The error of `set`; the remaining places are set the next time.
    pub(super) fn tell<E>(&mut self, set: impl Fn(u32, Part) -> Result<(), E>) -> Result<(), E> {
        let free = self.members.values().filter(|m| matches!(m.rule, Rule::Free(_)));
        let free: Vec<(MemberId, u32)> = free.map(|m| (m.id, bit_of_free(m.seat.index))).collect();
        for member in self.members.values_mut() {
            let part = match member.rule {
                Rule::Free(_) => Part::Free(self.core.order(member.id).unwrap_or_default()),
                Rule::Stunt(nth) => {
                    let apart = free.iter().filter(|(id, _)| self.core.is_apart(member.id, *id));
                    Part::Stunt {
                        weight: self.config.stunts[nth].weight,
                        min_rate: self.config.min_rate,
                        apart: apart.fold(0, |bits, (_, bit)| bits | bit),
                    }
                }
            };
            if member.told != Some(part) {
                set(member.seat.index, part)?;
                member.told = Some(part);
            }
        }
        Ok(())
    }

    pub(super) fn layout(&self) -> Layout {
        let of = |wanted: fn(&Rule) -> bool| {
            let members = self.members.values().filter(move |m| wanted(&m.rule));
            members.map(|m| m.seat.index)
        };
        let stunts = || of(|rule| matches!(rule, Rule::Stunt(_)));
        let mut free: Vec<u32> = of(|rule| matches!(rule, Rule::Free(_))).collect();
        free.sort_unstable();
        Layout {
            free,
            stunts: (stunts().min().unwrap_or(0), stunts().max().map_or(0, |last| last + 1)),
            reverse: self.config.spec.reverse,
        }
    }

    /// The connections with targets, and the status of each.
    pub(super) fn free(&self) -> impl Iterator<Item = (&Member, Status)> {
        self.members.values().filter_map(|m| Some((m, self.core.status(m.id)?)))
    }

    /// How many pairs of a connection with a target and a stunt do not share a bottleneck.
    pub(super) fn apart(&self) -> usize {
        self.free().map(|(_, status)| status.apart).sum()
    }

    /// The number of stunts, the sum of their rates, and the sum of their signals.
    pub(super) fn stunts(&self) -> (usize, Rate, Tally) {
        let stunts = || self.members.values().filter(|m| matches!(m.rule, Rule::Stunt(_)));
        let rate = stunts().map(|m| self.core.rate(m.id)).sum();
        let tally = stunts().fold(self.ended[1], |sum, m| sum + self.core.tally(m.id));
        (stunts().count(), rate, tally)
    }
}

/// Which places in the kernel are taken. The first ones are for connections with targets,
/// [`FREE_MAX`] for each bundle.
pub(super) struct Places {
    taken: Vec<bool>,
}

impl Places {
    /// All places, free.
    pub(super) fn all() -> Places {
        Places { taken: vec![false; MEMBERS_MAX] }
    }

    /// Marks a place as taken.
    pub(super) fn occupy(&mut self, index: u32) {
        self.taken[index as usize] = true;
    }

    fn take(&mut self, bundle: usize, rule: Rule) -> Option<u32> {
        let range = match rule {
            Rule::Free(_) => bundle * FREE_MAX..(bundle + 1) * FREE_MAX,
            Rule::Stunt(_) => FREE_PLACES..self.taken.len(),
        };
        let index = range.into_iter().find(|i| !self.taken[*i])?;
        self.taken[index] = true;
        Some(index as u32)
    }
}

/// The number of places for connections with targets, enough for the most bundles.
const FREE_PLACES: usize = FREE_MAX * BUNDLES_MAX;
