//! Sessions that access servers report by RADIUS accounting. See `fairweir_core::radius`.
//!
//! A packet is answered once what it says is in the journal and in the kernel, so that the access server
//! sends it again otherwise. Packets of others, and those that are refused, are counted and not answered.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Context;
use fairweir_config::isp::{RadiusSection, SubscriberSpec};
use fairweir_core::radius::{Accounting, Event, PACKET_MAX, Refused, Sessions, Verdict};
use fairweir_core::units::{Span, Time};
use fairweir_daemon::unix_now;
use fairweir_linux::datagram;
use ipnet::IpNet;
use tracing::warn;

use super::registry::{Change, Origin, Registry};
use super::sessions::Subscribers;
use super::unpoliced::{Reason, Unpoliced, Who};
use super::wire::RadiusStatus;
use crate::words::chained;

/// The most packets that are handled before other events: each may wait for the disk.
const BURST_MAX: usize = 64;
/// The shortest time between two log entries of refused packets.
const WARN_PERIOD: Span = Span::secs(10);

/// See the module.
pub(super) struct Radius {
    section: RadiusSection,
    socket: UdpSocket,
    sessions: Sessions,
    /// Packets by what became of them.
    counts: BTreeMap<&'static str, u64>,
    warned_at: Option<Time>,
    receive_buffer: usize,
    pub(super) unpoliced: Unpoliced,
}

/// The receive buffer, in bytes, as the kernel counts it: a BNG that starts again reports 50,000 sessions at once,
/// and of each packet the kernel counts up to 2.3 kB.
const RECEIVE_BUFFER: usize = 128 << 20;

/// Packets that were taken, those that were answered before, and why others were not.
const RESULTS: [&str; 13] = [
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
];

impl Radius {
    /// Listens.
    ///
    /// # Errors
    /// If the address is not of this host, or in use.
    pub(super) fn bind(section: RadiusSection) -> anyhow::Result<Radius> {
        let bind = || {
            let socket = UdpSocket::bind(section.listen)?;
            socket.set_nonblocking(true)?;
            io::Result::Ok(socket)
        };
        let socket = bind().with_context(|| format!("radius.listen: {}", section.listen))?;
        let receive_buffer = datagram::set_receive_buffer(&socket, RECEIVE_BUFFER)
            .with_context(|| format!("radius.listen: {}", section.listen))?;
        let radius = Radius {
            section,
            socket,
            sessions: Sessions::default(),
            counts: RESULTS.iter().map(|result| (*result, 0)).collect(),
            warned_at: None,
            receive_buffer,
            unpoliced: Unpoliced::default(),
        };
        if let Some(note) = radius.buffer_note() {
            warn!("{note}");
        }
        Ok(radius)
    }

    /// Says what is wrong with the receive buffer, if something is.
    fn buffer_note(&self) -> Option<String> {
        let (has, wanted) = (self.receive_buffer, RECEIVE_BUFFER);
        (has < wanted).then(|| {
            let half = wanted / 2;
            format!(
                "the receive buffer of RADIUS has {has} of {wanted} bytes; packets that arrive at once may be lost: \
                 give the daemon CAP_NET_ADMIN, or set net.core.rmem_max to {half}"
            )
        })
    }

    /// Takes over the sessions that were stored.
    pub(super) fn restore(&mut self, registry: &Registry) {
        for (name, record) in registry.subscribers() {
            if let Some(session) = record.session() {
                self.sessions.restore(name.to_string(), session.clone());
            }
        }
    }

    pub(super) fn waits_for(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn section(&self) -> &RadiusSection {
        &self.section
    }

    /// Handles the packets that wait.
    pub(super) fn handle_ready(&mut self, daemon: &mut impl Subscribers, now: Time) {
        // A byte more than is allowed shows that there was more.
        let mut bytes = [0; PACKET_MAX + 1];
        for _ in 0..BURST_MAX {
            let (length, from) = match self.socket.recv_from(&mut bytes) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // As of a client that does not listen to the answer.
                Err(_) => continue,
            };
            self.handle_packet(daemon, &bytes[..length], from, now);
        }
    }

    fn handle_packet(
        &mut self,
        daemon: &mut impl Subscribers,
        bytes: &[u8],
        from: SocketAddr,
        now: Time,
    ) {
        let source = from.ip().to_canonical();
        if !self.section.clients.iter().any(|client| client.contains(&source)) {
            return self.count("foreign", from, "not of [radius] clients", now);
        }
        let now_s = unix_now();
        let secret = self.section.secret.as_bytes();
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
                    let _ = self.socket.send_to(&packet.answer(secret), from);
                    let reason = Reason { kind: "over", text: e.to_string() };
                    self.note(&packet, (packet.event != Event::Stop).then_some(reason), now_s);
                }
                let why = format!("{e}{}", of_session(&packet));
                return self.count(result_of(e), from, &why, now);
            }
            Err(e) => return self.count(result_of(e), from, &e.to_string(), now),
        };
        let answer = packet.answer(secret);
        let unusable = match self.apply(daemon, &packet, &verdict) {
            Ok(unusable) => unusable,
            // The access server will send it again.
            Err(e) => return self.count("failed", from, &chained(&e), now),
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
        // If the answer is lost, the packet comes again and is answered again.
        let _ = self.socket.send_to(&answer, from);
        if verdict != Verdict::Again {
            self.note(&packet, unusable, now_s);
        }
        self.count(result, from, &why.unwrap_or_default(), now);
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

    /// Makes what a packet says true; returns why it cannot be, if it was the packet's fault.
    fn apply(
        &self,
        daemon: &mut impl Subscribers,
        packet: &Accounting,
        verdict: &Verdict,
    ) -> anyhow::Result<Option<Reason>> {
        let end = |user: &String| Change::End(user.clone(), Origin::Radius);
        let changes = match verdict {
            Verdict::Nothing if matches!(packet.event, Event::Start | Event::Interim) => {
                let text = "no address yet, which a later packet may have".to_owned();
                return Ok(Some(Reason { kind: "no_address", text }));
            }
            Verdict::Again | Verdict::Nothing => return Ok(None),
            Verdict::Has | Verdict::GoesOn => {
                let record = daemon.registry().subscribers().get(packet.user.as_str());
                let before = record.filter(|record| {
                    *verdict == Verdict::GoesOn && record.origin == Origin::Radius
                });
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
                let addresses =
                    merged(before.map_or(&[][..], |r| &*r.addresses), &packet.addresses);
                let session = before.and_then(|record| record.session()).unwrap_or(&packet.session);
                let session = session.clone();
                if addresses.is_empty() {
                    return Ok(None);
                }
                vec![Change::BeginSession(SubscriberSpec { name, addresses, plan }, session)]
            }
            Verdict::Ended => vec![end(&packet.user)],
            Verdict::EndedAll(users) => users.iter().map(end).collect(),
        };
        let results = daemon.change_sessions(&changes)?;
        Ok(results.into_iter().find_map(Result::err).map(|e| Reason::of(&e)))
    }

    fn count(&mut self, result: &'static str, from: SocketAddr, why: &str, now: Time) {
        *self.counts.entry(result).or_default() += 1;
        let is_quiet = self.warned_at.is_none_or(|at| now.since(at) >= WARN_PERIOD);
        if !why.is_empty() && is_quiet {
            self.warned_at = Some(now);
            warn!(%from, "accounting packet {result}: {why}");
        }
    }

    pub(super) fn status(&self) -> RadiusStatus {
        RadiusStatus {
            receive_buffer_bytes: self.receive_buffer,
            dropped_packets: datagram::drops(&self.socket).unwrap_or_default(),
            note: self.buffer_note(),
            listen: self.section.listen.to_string(),
            sessions: self.sessions.len(),
            packets: self.counts.iter().map(|(result, n)| ((*result).to_owned(), *n)).collect(),
        }
    }
}

/// The addresses of a session that goes on: a packet that speaks of one family leaves those of the other.
fn merged(before: &[IpNet], now: &[IpNet]) -> Vec<IpNet> {
    let is_v4 = |net: &IpNet| matches!(net, IpNet::V4(_));
    let is_unspoken = |net: &&IpNet| !now.iter().any(|other| is_v4(other) == is_v4(net));
    let mut addresses: Vec<IpNet> = before.iter().filter(is_unspoken).copied().collect();
    addresses.extend(now);
    // In one order, so that a session of two families does not change with each packet.
    addresses.sort_by_key(|net| !is_v4(net));
    addresses
}

/// Whose packet it is, for the log.
fn of_session(packet: &Accounting) -> String {
    let (user, number, nas) = (&packet.user, &packet.session.number, &packet.session.nas);
    format!(" (user {user}, session {number}, NAS {nas})")
}

fn result_of(refused: Refused) -> &'static str {
    match refused {
        Refused::Oversized => "oversized",
        Refused::Malformed => "malformed",
        Refused::Forged => "forged",
        Refused::Replayed => "replayed",
        Refused::Untimely => "untimely",
        Refused::Over => "over",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_of_one_family_leaves_the_addresses_of_the_other() {
        let nets =
            |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<IpNet>>();
        let before = nets(&["192.0.2.1/32", "2001:db8:1::/56", "2001:db8:2::/64"]);
        for (now, wanted) in [
            (nets(&[]), before.clone()),
            (
                nets(&["192.0.2.9/32"]),
                nets(&["192.0.2.9/32", "2001:db8:1::/56", "2001:db8:2::/64"]),
            ),
            (nets(&["2001:db8:1::/56"]), nets(&["192.0.2.1/32", "2001:db8:1::/56"])),
            (
                nets(&["2001:db8:3::/56", "192.0.2.1/32"]),
                nets(&["192.0.2.1/32", "2001:db8:3::/56"]),
            ),
        ] {
            assert_eq!(merged(&before, &now), wanted);
        }
    }
}
