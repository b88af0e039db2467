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
use fairweir_core::radius::{Accounting, PACKET_MAX, Refused, Sessions, Verdict};
use fairweir_core::units::{Span, Time};
use fairweir_daemon::unix_now;
use tracing::warn;

use super::registry::{Change, Origin};
use super::sessions::Subscribers;
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
}

/// Packets that were taken, those that were answered before, and why others were not.
const RESULTS: [&str; 11] = [
    "taken",
    "repeated",
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
        let counts = RESULTS.iter().map(|result| (*result, 0)).collect();
        Ok(Radius { section, socket, sessions: Sessions::default(), counts, warned_at: None })
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
        let secret = self.section.secret.as_bytes();
        let read = Accounting::read(bytes, secret).map(|packet| {
            let owns = |user: &str, addresses: &[_]| {
                let record = daemon.registry().subscribers().get(user);
                record.is_some_and(|record| {
                    record.origin == Origin::Radius
                        && (addresses.is_empty()
                            || addresses.iter().any(|a| record.addresses.contains(a)))
                })
            };
            let verdict = self.sessions.judge(&packet, now, unix_now(), owns);
            (packet, verdict)
        });
        let (packet, verdict) = match read {
            Ok((packet, Ok(verdict))) => (packet, verdict),
            Ok((packet, Err(e))) => {
                // The sender knows the secret, and to send it again would not help.
                if e == Refused::Over {
                    let _ = self.socket.send_to(&packet.answer(secret), from);
                }
                return self.count(result_of(e), from, &e.to_string(), now);
            }
            Err(e) => return self.count(result_of(e), from, &e.to_string(), now),
        };
        let answer = packet.answer(secret);
        let unusable = match self.apply(daemon, &packet, &verdict) {
            Ok(unusable) => unusable,
            // The access server will send it again.
            Err(e) => return self.count("failed", from, &chained(&e), now),
        };
        let result = match (&unusable, &verdict) {
            (Some(_), _) => "unusable",
            (None, Verdict::Again) => "repeated",
            (None, _) => "taken",
        };
        let verdict = if unusable.is_some() { Verdict::Nothing } else { verdict };
        self.sessions.settle(&packet, &verdict, now);
        // If the answer is lost, the packet comes again and is answered again.
        let _ = self.socket.send_to(&answer, from);
        self.count(result, from, &unusable.unwrap_or_default(), now);
    }

    /// Makes what a packet says true; returns why it cannot be, if it was the packet's fault.
    fn apply(
        &self,
        daemon: &mut impl Subscribers,
        packet: &Accounting,
        verdict: &Verdict,
    ) -> anyhow::Result<Option<String>> {
        let end = |user: &String| Change::End(user.clone(), Origin::Radius);
        let changes = match verdict {
            Verdict::Again | Verdict::Nothing => return Ok(None),
            Verdict::Has => {
                let named = packet.plan.as_ref();
                let known = |plan: &&String| daemon.registry().plans().contains_key(plan.as_str());
                // A Filter-Id may name a filter of the access server instead of a plan.
                let Some(plan) = named.filter(known).or(self.section.plan.as_ref()) else {
                    let user = &packet.user;
                    return Ok(Some(match named {
                        Some(plan) => format!("user {user}: no plan `{plan}` (Filter-Id)"),
                        None => format!("user {user}: no Filter-Id, and no [radius] plan"),
                    }));
                };
                let (name, addresses) = (packet.user.clone(), packet.addresses.clone());
                let spec = SubscriberSpec { name, addresses, plan: plan.clone() };
                vec![Change::Begin(spec, Origin::Radius)]
            }
            Verdict::Ended => vec![end(&packet.user)],
            Verdict::EndedAll(users) => users.iter().map(end).collect(),
        };
        let results = daemon.change_sessions(&changes)?;
        let error = results.into_iter().find_map(Result::err);
        Ok(error.map(|e| format!("user {}: {e}", packet.user)))
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
            listen: self.section.listen.to_string(),
            sessions: self.sessions.len(),
            packets: self.counts.iter().map(|(result, n)| ((*result).to_owned(), *n)).collect(),
        }
    }
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
