//! Sessions that access servers report by RADIUS accounting. See `fairweir_core::radius`.
//!
//! A packet is answered once what it says is in the journal and in the kernel, so that the access server
//! sends it again otherwise. Packets of others, and those that are refused, are counted and not answered.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use fairweir_config::isp::{CoaSection, RadiusSection, SubscriberSpec};
use fairweir_core::radius::{Accounting, Event, Refused, Session, Sessions, Verdict};
use fairweir_core::units::Time;
use fairweir_daemon::unix_now;
use ipnet::IpNet;

use super::registry::{Change, Origin, Registry};
use super::sessions::Subscribers;
use super::unpoliced::{Reason, Unpoliced, Who};
use super::wire::{CoaStatus, RadiusStatus};
use crate::words::chained;

mod coa;
mod port;

use coa::Coa;
use port::{Kind, Port, result_of};

/// See the module.
pub(super) struct Radius {
    section: RadiusSection,
    port: Port,
    coa: Option<Coa>,
    sessions: Sessions,
    pub(super) unpoliced: Unpoliced,
}

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
    /// Listens.
    ///
    /// # Errors
    /// If an address is not of this host, or in use.
    pub(super) fn bind(section: RadiusSection, coa: Option<CoaSection>) -> anyhow::Result<Radius> {
        let port = Port::bind(KIND, &section.endpoint)?;
        let coa = coa.map(Coa::bind).transpose()?;
        let (sessions, unpoliced) = Default::default();
        Ok(Radius { section, port, coa, sessions, unpoliced })
    }

    /// Takes over the sessions that were stored.
    pub(super) fn restore(&mut self, registry: &Registry) {
        for (name, record) in registry.subscribers() {
            if let Some(session) = record.session() {
                self.sessions.restore(name.to_string(), session.clone());
            }
        }
    }

    pub(super) fn waits_for(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let coa = self.coa.iter().map(Coa::port);
        coa.chain([&self.port]).map(Port::waits_for)
    }

    /// Where accounting packets and requests arrive.
    pub(super) fn listens(&self) -> [Option<SocketAddr>; 2] {
        let coa = self.coa.as_ref().map(|coa| coa.section.endpoint.listen);
        [Some(self.section.endpoint.listen), coa]
    }

    /// Takes over tables that listen where these do.
    pub(super) fn set(&mut self, section: RadiusSection, coa: Option<CoaSection>) {
        self.section = section;
        if let (Some(coa), Some(section)) = (&mut self.coa, coa) {
            coa.section = section;
        }
    }

    /// Handles the packets that wait.
    pub(super) fn handle_ready(&mut self, daemon: &mut impl Subscribers, now: Time) {
        let Radius { section, port, coa, sessions, unpoliced } = self;
        if let Some(coa) = coa {
            coa.handle_ready(daemon, sessions, now);
        }
        let mut sides = Sides { section, sessions, unpoliced };
        port.receive(&section.endpoint, now, |port, bytes, from| {
            sides.handle_packet(port, daemon, bytes, from, now);
        });
    }

    pub(super) fn status(&self) -> RadiusStatus {
        RadiusStatus {
            receive_buffer_bytes: self.port.receive_buffer(),
            dropped_packets: self.port.dropped(),
            note: self.port.buffer_note(),
            listen: self.section.endpoint.listen.to_string(),
            sessions: self.sessions.len(),
            packets: self.port.packets(),
        }
    }

    /// Of the requests of servers, `None` without `[coa]`.
    pub(super) fn coa_status(&self) -> Option<CoaStatus> {
        self.coa.as_ref().map(Coa::status)
    }
}

/// What an accounting packet is held against.
struct Sides<'r> {
    section: &'r RadiusSection,
    sessions: &'r mut Sessions,
    unpoliced: &'r mut Unpoliced,
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
                // The sender knows the secret, and to send it again would not help.
                if e == Refused::Over {
                    port.answer(&packet.answer(secret), from);
                    let reason = Reason { kind: "over", text: e.to_string() };
                    self.note(&packet, (packet.event != Event::Stop).then_some(reason), now_s);
                }
                let why = format!("{e}{}", of_session(&packet));
                return port.count(result_of(e), from, &why, now);
            }
            Err(e) => return port.count(result_of(e), from, &e.to_string(), now),
        };
        let answer = packet.answer(secret);
        let unusable = match self.apply(daemon, &packet, &verdict) {
            Ok(unusable) => unusable,
            // The access server will send it again.
            Err(e) => return port.count("failed", from, &chained(&e), now),
        };
        let result = match (&unusable, &verdict, packet.event) {
            (.., Event::Status) => "status",
            (None, Verdict::Again, _) => "repeated",
            (.., Event::Other) => "ignored",
            (Some(_), ..) => "unusable",
            (None, ..) => "taken",
        };
        // Many access servers tell the address later.
        let is_early = unusable.as_ref().is_some_and(|reason| reason.kind == "no_address");
        let result = if is_early { "taken" } else { result };
        let why = unusable.as_ref().filter(|_| !is_early);
        let why = why.map(|r| format!("{}{}", r.text, of_session(&packet)));
        let settled = if unusable.is_some() { &Verdict::Nothing } else { &verdict };
        self.sessions.settle(&packet, settled, now, now_s);
        port.answer(&answer, from);
        if verdict != Verdict::Again {
            self.note(&packet, unusable, now_s);
        }
        port.count(result, from, &why.unwrap_or_default(), now);
    }

    /// Notes why the session of a packet is not policed; with `None` it is, or it is over.
    fn note(&mut self, packet: &Accounting, reason: Option<Reason>, now_s: u64) {
        let nas = packet.session.nas.to_string();
        let who = Who { subscriber: &packet.user, session: &packet.session.number, nas: &nas };
        match (packet.event, reason) {
            (Event::Status | Event::Other, _) => {}
            (Event::Nas, _) => self.unpoliced.retain(|one| one.nas != nas),
            (_, Some(reason)) => self.unpoliced.note(who, &packet.addresses, &reason, now_s),
            (_, None) => self.unpoliced.forget(who.subscriber, who.session),
        }
    }

    /// What is left of a user when the packet has ended a session.
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
        let stored = record.and_then(|record| record.session());
        let left = self.sessions.of(user).filter(|session| !is_over(session));
        let kept = left.clone().find(|session| Some(*session) == stored);
        keep(registry, user, after, kept.or(left.last()))
    }

    /// Makes what a packet says true; returns why it cannot be, if it was the packet's fault.
    fn apply(
        &self,
        daemon: &mut impl Subscribers,
        packet: &Accounting,
        verdict: &Verdict,
    ) -> anyhow::Result<Option<Reason>> {
        let changes = match verdict {
            Verdict::Nothing if matches!(packet.event, Event::Start | Event::Interim) => {
                let text = "no address yet, which a later packet may have".to_owned();
                return Ok(Some(Reason { kind: "no_address", text }));
            }
            Verdict::Again | Verdict::Nothing => return Ok(None),
            Verdict::Has | Verdict::GoesOn => {
                let record = daemon.registry().subscribers().get(packet.user.as_str());
                let record = record.filter(|record| record.origin == Origin::Radius);
                let has = record.map_or(&[][..], |record| &*record.addresses);
                let addresses = self.sessions.addresses_after(&packet.user, packet, verdict, has);
                // Of another session of the account.
                let joins = addresses.iter().any(|address| !packet.addresses.contains(address));
                let before = record.filter(|_| *verdict == Verdict::GoesOn || joins);
                let named = packet.plan.as_ref();
                let known = |plan: &&String| daemon.registry().plans().contains_key(plan.as_str());
                let kept =
                    before.map(|r| r.own_plan().cloned().unwrap_or_else(|| r.plan.to_string()));
                // A Filter-Id may name a filter of the access server instead of a plan.
                let plan = named.filter(known).cloned();
                let plan = plan.or(kept.filter(|_| named.is_none()));
                let Some(plan) = plan.or_else(|| self.section.plan.clone()) else {
                    let text = match named {
                        Some(plan) => format!("no plan `{plan}` (Filter-Id)"),
                        None => "no Filter-Id, and no [radius] plan".to_owned(),
                    };
                    return Ok(Some(Reason { kind: "no_plan", text }));
                };
                let name = packet.user.clone();
                let session = before.and_then(|record| record.session()).unwrap_or(&packet.session);
                let session = session.clone();
                if addresses.is_empty() {
                    return Ok(None);
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
        Ok(results.into_iter().find_map(Result::err).map(|e| Reason::of(&e)))
    }
}

/// A user keeps the addresses of the other sessions, or has none.
fn keep(
    registry: &Registry,
    user: &str,
    addresses: Vec<IpNet>,
    session: Option<&Session>,
) -> Change {
    let record = registry.subscribers().get(user).filter(|r| r.origin == Origin::Radius);
    match (record, session) {
        (Some(record), Some(session)) if !addresses.is_empty() => {
            let plan = record.own_plan().cloned().unwrap_or_else(|| record.plan.to_string());
            let name = user.to_owned();
            Change::BeginSession(SubscriberSpec { name, addresses, plan }, session.clone())
        }
        _ => Change::End(user.to_owned(), Origin::Radius),
    }
}

/// Whose packet it is, for the log.
fn of_session(packet: &Accounting) -> String {
    let (user, number, nas) = (&packet.user, &packet.session.number, &packet.session.nas);
    format!(" (user {user}, session {number}, NAS {nas})")
}
