//! Sessions that access servers report by RADIUS accounting. See `fairweir_core::radius`.
//!
//! A packet is answered only once its contents are in the journal and in the kernel; otherwise the access server sends
//! it again. Packets of others, and refused ones, are counted and not answered.
//!
//! A session is silent if no packet about it arrives for too long. It ends, and is listed as not policed, if it sent
//! Interims before and its access server still sends those of other sessions. Every other silent session stays policed
//! and is listed: its access server may send no Interims, or the path from it may be broken.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use fairweir_config::isp::{CoaSection, RadiusSection, SubscriberSpec};
use fairweir_core::radius::claims::{Plans, Rates, Source};
use fairweir_core::radius::{
    Accounting, Event, INTERIMS_MISSED, Refused, Session, Sessions, Silent, Verdict,
};
use fairweir_core::units::{Span, Time};
use fairweir_daemon::unix_now;
use ipnet::IpNet;
use tracing::{info, warn};

use super::registry::{Change, Origin, Registry};
use super::sessions::Subscribers;
use super::unpoliced::{Reason, Unpoliced, Who};
use super::wire::{CoaStatus, RadiusStatus, SessionStatus};
use crate::words::{chained, lasting};

mod coa;
mod nas;
mod port;

use coa::Coa;
use nas::NasTable;
use port::{Kind, Port, result_of};

/// The port and the sessions; see the module.
pub(super) struct Radius {
    section: RadiusSection,
    port: Port,
    coa: Option<Coa>,
    sessions: Sessions,
    nas: NasTable,
    pub(super) unpoliced: Unpoliced,
    /// Sessions that are silent but still policed.
    pub(super) silent: Unpoliced,
    sweep: Sweep,
}

/// The progress of the search for silent sessions.
#[derive(Default)]
struct Sweep {
    /// The last user that was checked.
    after: String,
    /// When the search began, Unix time.
    since_s: u64,
    /// The number of silent sessions found that stay policed, in this search and in the previous one.
    found: usize,
    found_before: usize,
    pruned: Time,
}

/// The most users that are checked in a tick.
const SWEEP_MAX: usize = 4_096;
/// How often the list of ended sessions is checked, and how long a session stays in it.
const PRUNE_PERIOD: Span = Span::secs(10);
const STALE_LISTED_S: u64 = 86_400;

const KIND: Kind = Kind {
    table: "radius",
    packet: "accounting packet",
    results: &[
        "taken",
        "repeated",
        "status",
        "ignored",
        "unusable",
        "foreign",
        "oversized",
        "malformed",
        "forged",
        "replayed",
        "untimely",
        "over",
        "failed",
    ],
};

impl Radius {
    /// Starts to listen.
    ///
    /// # Errors
    /// If an address is not of this host, or in use.
    pub(super) fn bind(section: RadiusSection, coa: Option<CoaSection>) -> anyhow::Result<Radius> {
        let port = Port::bind(KIND, &section.endpoint)?;
        let coa = coa.map(Coa::bind).transpose()?;
        let (sessions, nas, unpoliced, silent, sweep) = Default::default();
        Ok(Radius { section, port, coa, sessions, nas, unpoliced, silent, sweep })
    }

    /// Restores the sessions that were stored.
    pub(super) fn restore(&mut self, registry: &Registry, now: Time) {
        for (name, record) in registry.subscribers() {
            if let Some(session) = record.session() {
                self.sessions.restore(name.to_string(), session.clone(), now);
            }
        }
    }

    pub(super) fn waits_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let coa = self.coa.iter().map(Coa::port);
        coa.chain([&self.port]).map(Port::waits_for)
    }

    /// The addresses for accounting packets and for requests.
    pub(super) fn listens(&self) -> [Option<SocketAddr>; 2] {
        let coa = self.coa.as_ref().map(|coa| coa.section.endpoint.listen);
        [Some(self.section.endpoint.listen), coa]
    }

    /// Applies new tables that have the same addresses to listen at.
    pub(super) fn set(&mut self, section: RadiusSection, coa: Option<CoaSection>) {
        self.section = section;
        if let (Some(coa), Some(section)) = (&mut self.coa, coa) {
            coa.section = section;
        }
    }

    /// Handles the waiting packets.
    pub(super) fn handle_ready(&mut self, daemon: &mut impl Subscribers, now: Time) {
        let Radius { section, port, coa, sessions, nas, unpoliced, silent, .. } = self;
        if let Some(coa) = coa {
            coa.handle_ready(daemon, sessions, (&section.plan_by, nas), now);
        }
        let mut sides = Sides { section, sessions, nas, unpoliced, silent };
        port.receive(&section.endpoint, now, |port, bytes, from| {
            sides.handle_packet(port, daemon, bytes, from, now);
        });
    }

    /// Called once a second: checks some users, ends their silent sessions that are over, and lists the others.
    pub(super) fn handle_tick(&mut self, daemon: &mut impl Subscribers, now: Time) {
        let now_s = unix_now();
        if self.sweep.after.is_empty() {
            self.sweep.since_s = now_s;
        }
        let users = self.sessions.users_after(&self.sweep.after, SWEEP_MAX);
        let mut ending = Vec::new();
        for user in &users {
            let over = self.look_at(daemon.registry(), user, now, now_s);
            if !over.is_empty() {
                ending.push((user.as_str(), over));
            }
        }
        self.end_silent(daemon, &ending, now, now_s);
        self.sweep.after =
            users.last().filter(|_| users.len() == SWEEP_MAX).cloned().unwrap_or_default();
        if self.sweep.after.is_empty() {
            self.nas.end_count();
            self.silent.forget_before(self.sweep.since_s);
            self.sweep.found_before = std::mem::take(&mut self.sweep.found);
        }
        if now.since(self.sweep.pruned) >= PRUNE_PERIOD {
            self.sweep.pruned = now;
            let registry = daemon.registry();
            let is_free = |address: &String| registry.owner(address).is_none();
            self.unpoliced.retain(|one| {
                let is_recent = now_s.saturating_sub(one.since_s) < STALE_LISTED_S;
                one.kind != "stale" || is_recent && one.addresses.iter().any(is_free)
            });
        }
    }

    /// Lists the silent sessions of a user that stay policed; returns those that are over.
    fn look_at(&mut self, registry: &Registry, user: &str, now: Time, now_s: u64) -> Vec<Silent> {
        for session in self.sessions.of(user) {
            self.nas.count_session(&session.nas);
        }
        let record = registry.subscribers().get(user).filter(|r| r.origin == Origin::Radius);
        let mut over = Vec::new();
        for silent in self.sessions.silent(user, self.section.stale_after, now) {
            let interval = Span::nanos(silent.limit.as_nanos() / INTERIMS_MISSED);
            let Some(record) = record else {
                // A command has removed the subscriber, or replaced the session's record.
                over.push(silent);
                continue;
            };
            let why = match silent.reports {
                false => "it sent no Interim before",
                true if self.nas.reports(&silent.session.nas, interval, now) => {
                    over.push(silent);
                    continue;
                }
                true => "its access server sends no Interims of others",
            };
            let since = if silent.is_restored { " since the start" } else { "" };
            let text = format!("no packet for {}{since}; {why}", pause(&silent, now));
            let addresses = self.sessions.addresses_of(user, &silent.session, &record.addresses);
            let nas = silent.session.nas.to_string();
            let who = Who { subscriber: user, session: &silent.session.number, nas: &nas };
            self.silent.note_if_room(who, &addresses, &Reason { kind: "silent", text }, now_s);
            self.sweep.found += 1;
        }
        over
    }

    /// Ends sessions of users that are silent.
    fn end_silent(
        &mut self,
        daemon: &mut impl Subscribers,
        ending: &[(&str, Vec<Silent>)],
        now: Time,
        now_s: u64,
    ) {
        let Some((first, _)) = ending.first() else { return };
        let registry = daemon.registry();
        let has = |user: &str| {
            let record = registry.subscribers().get(user).filter(|r| r.origin == Origin::Radius);
            record.map(|record| record.addresses.to_vec()).unwrap_or_default()
        };
        let change = |(user, over): &(&str, Vec<Silent>)| {
            let is_over = |one: &Session| over.iter().any(|silent| silent.session == *one);
            without(registry, &self.sessions, user, is_over)
        };
        let changes: Vec<Change> = ending.iter().map(change).collect();
        let before: Vec<Vec<IpNet>> = ending.iter().map(|(user, _)| has(user)).collect();
        let results = match daemon.change_sessions(&changes) {
            Ok(results) => results,
            Err(e) => return warn!("silent sessions cannot end: {}", chained(&e)),
        };
        info!(users = ending.len(), first, "silent sessions ended");
        for (((user, over), has), result) in ending.iter().zip(before).zip(results) {
            let of = |silent: &Silent| self.sessions.addresses_of(user, &silent.session, &has);
            let addresses: Vec<Vec<IpNet>> = over.iter().map(of).collect();
            for (silent, addresses) in over.iter().zip(addresses).filter(|_| result.is_ok()) {
                let Session { nas, number } = &silent.session;
                self.sessions.drop_silent(user, &silent.session);
                self.silent.forget(user, number);
                self.nas.refuse(nas, "stale");
                if addresses.is_empty() {
                    continue;
                }
                let pause = pause(silent, now);
                let text = format!("no packet for {pause}; its access server reports others");
                let who = Who { subscriber: user, session: number, nas: &nas.to_string() };
                self.unpoliced.note(who, &addresses, &Reason { kind: "stale", text }, now_s);
            }
        }
    }

    /// The sessions of a subscriber.
    pub(super) fn sessions_of(&self, user: &str, now: Time) -> Vec<SessionStatus> {
        let status = |(session, heard): (&Session, Option<Time>)| SessionStatus {
            session: session.number.clone(),
            nas: session.nas.to_string(),
            silent_s: heard.map(|at| now.since(at).as_secs_f64()),
        };
        self.sessions.heard(user).map(status).collect()
    }

    pub(super) fn status(&self, now: Time) -> RadiusStatus {
        RadiusStatus {
            silent: self.sweep.found_before,
            nas: self.nas.status(now),
            receive_buffer_bytes: self.port.receive_buffer(),
            dropped_packets: self.port.dropped(),
            note: self.port.buffer_note(),
            listen: self.section.endpoint.listen.to_string(),
            sessions: self.sessions.len(),
            packets: self.port.packets(),
        }
    }

    /// The status of servers' requests; `None` without `[coa]`.
    pub(super) fn coa_status(&self) -> Option<CoaStatus> {
        self.coa.as_ref().map(Coa::status)
    }
}

/// The state that an accounting packet is compared with.
struct Sides<'r> {
    section: &'r RadiusSection,
    sessions: &'r mut Sessions,
    nas: &'r mut NasTable,
    unpoliced: &'r mut Unpoliced,
    silent: &'r mut Unpoliced,
}

/// The result of a packet that was not refused.
enum Done {
    /// All of the packet was applied.
    Whole,
    /// The session has another plan than the packet says, and why.
    OtherPlan(String),
    /// Nothing was applied.
    Unusable(Reason),
}

/// Looks up plans as packets name them.
struct Known<'r>(&'r Registry);

impl Plans for Known<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.plans().contains_key(name)
    }

    fn with(&self, rates: &Rates) -> Vec<String> {
        let plans = self.0.plans().iter();
        let has = plans.filter(|(_, plan)| rates.are(plan.entry.download, plan.entry.upload));
        has.map(|(name, _)| name.to_string()).collect()
    }
}

impl Sides<'_> {
    fn handle_packet(
        &mut self,
        port: &mut Port,
        daemon: &mut impl Subscribers,
        bytes: &[u8],
        from: SocketAddr,
        now: Time,
    ) {
        let source = from.ip().to_canonical();
        let now_s = unix_now();
        let secret = self.section.endpoint.secret.as_bytes();
        let read = Accounting::read(bytes, secret).map(|mut packet| {
            packet.set_source(source);
            let owns = |user: &str, addresses: &[_]| {
                let record = daemon.registry().subscribers().get(user);
                record.is_some_and(|record| {
                    record.origin == Origin::Radius
                        && (addresses.is_empty()
                            || addresses.iter().any(|a| record.addresses.contains(a)))
                })
            };
            let verdict = self.sessions.judge(&packet, now, now_s, owns);
            (packet, verdict)
        });
        let (packet, verdict) = match read {
            Ok((packet, Ok(verdict))) => (packet, verdict),
            Ok((packet, Err(e))) => {
                // The sender knows the secret; an answer stops it from sending the packet again.
                if e == Refused::Over {
                    port.answer(&packet.answer(secret), from);
                    let reason = Reason { kind: "over", text: e.to_string() };
                    self.note(&packet, (packet.event != Event::Stop).then_some(reason), now_s);
                }
                self.nas.refuse(&packet.session.nas, result_of(e));
                let why = format!("{e}{}", of_session(&packet));
                return port.count(result_of(e), from, &why, now);
            }
            Err(e) => return port.count(result_of(e), from, &e.to_string(), now),
        };
        let answer = packet.answer(secret);
        let (unusable, other_plan) = match self.apply(daemon, &packet, &verdict) {
            Ok(Done::Whole) => (None, None),
            Ok(Done::OtherPlan(why)) => (None, Some(why)),
            Ok(Done::Unusable(reason)) => (Some(reason), None),
            // Not answered: the access server will send the packet again.
            Err(e) => {
                self.nas.refuse(&packet.session.nas, "failed");
                return port.count("failed", from, &chained(&e), now);
            }
        };
        let result = match (&unusable, &verdict, packet.event) {
            (.., Event::Status) => "status",
            (None, Verdict::Again, _) => "repeated",
            (.., Event::Other) => "ignored",
            (Some(_), ..) => "unusable",
            (None, ..) => "taken",
        };
        // Many access servers report the address in a later packet.
        let is_early = unusable.as_ref().is_some_and(|reason| reason.kind == "no_address");
        let result = if is_early { "taken" } else { result };
        // For a session that continues, this was logged before.
        let other = other_plan.as_ref().filter(|_| verdict == Verdict::Has);
        let why = unusable.as_ref().filter(|_| !is_early).map(|reason| &reason.text).or(other);
        let why = why.map(|text| format!("{text}{}", of_session(&packet)));
        if verdict != Verdict::Again {
            let nas = &packet.session.nas;
            kind_of(packet.event).into_iter().for_each(|kind| self.nas.count(nas, kind, now));
            match (&other_plan, result) {
                (Some(_), _) => self.nas.refuse(nas, "unknown_plan"),
                (None, "unusable") => self.nas.refuse(nas, result),
                (None, _) => {}
            }
            self.sessions.hear(&packet, now);
        }
        let settled = if unusable.is_some() { &Verdict::Nothing } else { &verdict };
        self.sessions.settle(&packet, settled, now, now_s);
        port.answer(&answer, from);
        if verdict != Verdict::Again {
            self.note(&packet, unusable, now_s);
        }
        port.count(result, from, &why.unwrap_or_default(), now);
    }

    /// Records why the session of a packet is not policed; `None` if it is policed or over.
    fn note(&mut self, packet: &Accounting, reason: Option<Reason>, now_s: u64) {
        let nas = packet.session.nas.to_string();
        let who = Who { subscriber: &packet.user, session: &packet.session.number, nas: &nas };
        match (packet.event, reason) {
            (Event::Status | Event::Other, _) => {}
            (Event::Nas, _) => {
                self.unpoliced.retain(|one| one.nas != nas);
                self.silent.retain(|one| one.nas != nas);
            }
            (_, Some(reason)) => self.unpoliced.note(who, &packet.addresses, &reason, now_s),
            (_, None) => {
                self.unpoliced.forget(who.subscriber, who.session);
                self.silent.forget(who.subscriber, who.session);
            }
        }
    }

    /// The change to a user when the packet has ended a session.
    fn without(
        &self,
        registry: &Registry,
        user: &str,
        packet: &Accounting,
        verdict: &Verdict,
    ) -> Change {
        let record = registry.subscribers().get(user);
        let has = record.map_or(&[][..], |record| &*record.addresses);
        let after = self.sessions.addresses_after(user, packet, verdict, has);
        let is_over = |session: &&Session| match verdict {
            Verdict::EndedAll(_) => session.nas.is(&packet.session.nas),
            _ => session.number == packet.session.number && session.nas.is(&packet.session.nas),
        };
        keep(registry, user, after, self.sessions.of(user).filter(|session| !is_over(session)))
    }

    /// Applies the contents of a packet as far as possible.
    fn apply(
        &self,
        daemon: &mut impl Subscribers,
        packet: &Accounting,
        verdict: &Verdict,
    ) -> anyhow::Result<Done> {
        let mut other_plan = None;
        let changes = match verdict {
            Verdict::Nothing if matches!(packet.event, Event::Start | Event::Interim) => {
                let text = "no address yet, which a later packet may have".to_owned();
                return Ok(Done::Unusable(Reason { kind: "no_address", text }));
            }
            Verdict::Again | Verdict::Nothing => return Ok(Done::Whole),
            Verdict::Has | Verdict::GoesOn => {
                let record = daemon.registry().subscribers().get(packet.user.as_str());
                let record = record.filter(|record| record.origin == Origin::Radius);
                let has = record.map_or(&[][..], |record| &*record.addresses);
                let addresses = self.sessions.addresses_after(&packet.user, packet, verdict, has);
                // The user also has addresses of another session.
                let joins = addresses.iter().any(|address| !packet.addresses.contains(address));
                let before = record.filter(|_| *verdict == Verdict::GoesOn || joins);
                let kept =
                    before.map(|r| r.own_plan().cloned().unwrap_or_else(|| r.plan.to_string()));
                let plan_by = &self.section.plan_by;
                let said = packet.claims.plan(plan_by, &Known(daemon.registry()));
                // The Filter-Id may name the access server's filter, not a plan; then no earlier plan is kept.
                let is_filter = plan_by.contains(&Source::FilterId)
                    && packet.claims.names_of(Source::FilterId).next().is_some();
                let kept = kept.filter(|_| !is_filter);
                let instead = || kept.or_else(|| self.section.plan.clone());
                let plan = match said {
                    Ok(Some(plan)) => Ok(plan),
                    Ok(None) => {
                        instead().ok_or("no attribute of a plan, and no [radius] plan".to_owned())
                    }
                    Err(why) => match instead() {
                        Some(plan) => {
                            other_plan = Some(format!("{why}; the session has `{plan}`"));
                            Ok(plan)
                        }
                        None => Err(why),
                    },
                };
                let plan = match plan {
                    Ok(plan) => plan,
                    Err(text) => return Ok(Done::Unusable(Reason { kind: "no_plan", text })),
                };
                let name = packet.user.clone();
                let session = before.and_then(|record| record.session()).unwrap_or(&packet.session);
                let session = session.clone();
                if addresses.is_empty() {
                    return Ok(Done::Whole);
                }
                vec![Change::BeginSession(SubscriberSpec { name, addresses, plan }, session)]
            }
            Verdict::Ended => vec![self.without(daemon.registry(), &packet.user, packet, verdict)],
            Verdict::EndedAll(users) => {
                let registry = daemon.registry();
                users.iter().map(|user| self.without(registry, user, packet, verdict)).collect()
            }
        };
        let results = daemon.change_sessions(&changes)?;
        let refused = results.into_iter().find_map(Result::err);
        let done = other_plan.map_or(Done::Whole, Done::OtherPlan);
        Ok(refused.map_or(done, |e| Done::Unusable(Reason::of(&e))))
    }
}

/// The change that ends the sessions of a user for which `is_over` holds.
fn without(
    registry: &Registry,
    sessions: &Sessions,
    user: &str,
    is_over: impl Fn(&Session) -> bool,
) -> Change {
    let has = registry.subscribers().get(user).map_or(&[][..], |record| &*record.addresses);
    let left = sessions.of(user).filter(|session| !is_over(session)).collect::<Vec<_>>();
    let of = |session: &&Session| sessions.addresses_of(user, session, has);
    let addresses = left.iter().flat_map(of).collect();
    keep(registry, user, addresses, left.into_iter())
}

/// The change after which a user has these addresses, which are those of the sessions that are `left`; ends the user
/// if there are none. The session whose record is stored stays so if it is left, since the record has its own plan.
fn keep<'s>(
    registry: &Registry,
    user: &str,
    addresses: Vec<IpNet>,
    left: impl Iterator<Item = &'s Session>,
) -> Change {
    let record = registry.subscribers().get(user).filter(|r| r.origin == Origin::Radius);
    let stored = record.and_then(|record| record.session());
    let session = left.reduce(|one, next| if Some(one) == stored { one } else { next });
    match (record, session) {
        (Some(record), Some(session)) if !addresses.is_empty() => {
            let plan = record.own_plan().cloned().unwrap_or_else(|| record.plan.to_string());
            let name = user.to_owned();
            Change::BeginSession(SubscriberSpec { name, addresses, plan }, session.clone())
        }
        _ => Change::End(user.to_owned(), Origin::Radius),
    }
}

/// The user, session and access server of a packet, for the log.
fn of_session(packet: &Accounting) -> String {
    let (user, number, nas) = (&packet.user, &packet.session.number, &packet.session.nas);
    format!(" (user {user}, session {number}, NAS {nas})")
}

/// How long a session has been silent, in words.
fn pause(silent: &Silent, now: Time) -> String {
    lasting(now.since(silent.since).as_nanos() / 1_000_000_000)
}

/// The name under which a packet is counted.
fn kind_of(event: Event) -> Option<&'static str> {
    match event {
        Event::Start => Some("start"),
        Event::Interim => Some("interim"),
        Event::Stop => Some("stop"),
        Event::Nas => Some("on_off"),
        Event::Other => Some("other"),
        Event::Status => None,
    }
}
