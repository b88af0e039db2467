//! What a connection is, by what it does.

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Rate, Span, Time};

/// How a connection is served relative to the others of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Little comes at a time: a user waits for each answer, so the queue must be short.
    Interactive,
    /// An answer of moderate size, such as an object of a web page: served before the long ones.
    Short,
    /// A download.
    Long,
    /// Nothing has come for long.
    Idle,
}

/// From how much payload on, since it last sent something, a connection is of another class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// From this volume on an answer is not interactive.
    pub short: Bytes,
    /// More is no short answer any more.
    pub long: Bytes,
}

impl Bounds {
    /// The bounds on a link of this capacity; the paper's while it is unknown.
    ///
    /// The paper's 2 kB and 8 kB are for 28.8 kbit/s and "could increase" with the capacity. Here a
    /// short answer is whatever the link carries in [`LONG_TIME`], since a download does not notice
    /// such a wait. On a slow link that would be less than an object of a web page;
    /// there it is an object ([`OBJECT`]), unless that takes longer than the paper's 8 kB took on
    /// its modem. An interactive answer is a quarter of it, as the paper has it, but not more than
    /// comes in one flight before any window can have been changed ([`FLIGHT`]).
    ///
    /// | capacity | interactive below | short up to | which takes |
    /// |---|---|---|---|
    /// | 28.8 kbit/s | 2 kB | 8 kB | 2.2 s |
    /// | 0.5 Mbit/s | 14.5 kB | 64 kB | 1.0 s |
    /// | 10 Mbit/s | 14.5 kB | 125 kB | 0.1 s |
    /// | 100 Mbit/s | 14.5 kB | 1.25 MB | 0.1 s |
    pub fn for_capacity(capacity: Option<Rate>) -> Bounds {
        let Some(capacity) = capacity else { return Bounds { short: LONG / 4, long: LONG } };
        let object = OBJECT.min(capacity * LONG_TIME_MAX);
        let long = object.max(capacity * LONG_TIME).max(LONG_MIN);
        Bounds { short: (long / 4).min(FLIGHT), long }
    }
}

/// What a connection has done: feed it every tick, ask for its [`Class`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Payload received since the application here last sent something. ACKs do not count, or it
    /// would never grow.
    received: Bytes,
    /// The same of the answer before, the last one of which something came.
    before: Bytes,
    received_at: Time,
    /// When it last sent or received.
    active_at: Time,
    is_bulk_by_port: bool,
}

impl Behaviour {
    /// A connection that was first seen at `now`. The server's port says what it is until the
    /// connection does.
    pub fn new(now: Time, port: u16) -> Behaviour {
        let is_bulk_by_port = BULK_PORTS.contains(&port);
        Behaviour {
            received: Bytes::ZERO,
            before: Bytes::ZERO,
            received_at: now,
            active_at: now,
            is_bulk_by_port,
        }
    }

    /// Takes in what was seen of it in the tick that ends at `now`: whether the application here sent
    /// something, and how much payload arrived.
    ///
    /// If it sent and received in one tick, the sending came first: a request and its answer. A
    /// download that keeps sending, as HTTP/2 does for its own flow control, so looks like a series
    /// of answers, and counts as long only if a single tick brings enough.
    pub fn handle_tick(&mut self, now: Time, has_sent: bool, received: Bytes) {
        if has_sent {
            if self.received > Bytes::ZERO {
                self.before = self.received;
            }
            self.received = Bytes::ZERO;
            self.active_at = now;
            self.is_bulk_by_port = false;
        }
        if received > Bytes::ZERO {
            self.received += received;
            self.received_at = now;
            self.active_at = now;
        }
    }

    /// Whether it has neither asked nor been answered for [`SHORT_QUIET`], so that nothing is in flight.
    pub fn is_quiet(&self, now: Time) -> bool {
        now.since(self.active_at) > SHORT_QUIET
    }

    /// Its class now.
    ///
    /// A short answer has ended if nothing arrived for a second: the
    /// connection waits for the next request and is interactive. In the paper it would hold the
    /// long ones back for 30 s, since it knows no connections that are kept for later. For the same reason an
    /// answer after a long one counts as long from [`Bounds::short`] on: a download that comes in pieces, such
    /// as a film or a package of files, is one download, and each piece would be served before the others.
    pub fn class(&self, now: Time, bounds: Bounds) -> Class {
        let quiet = now.since(self.received_at);
        if quiet >= IDLE_AFTER {
            return Class::Idle;
        }
        if self.is_bulk_by_port || self.received > bounds.long {
            return Class::Long;
        }
        if self.received >= bounds.short && !self.is_quiet(now) {
            return if self.before > bounds.long { Class::Long } else { Class::Short };
        }
        Class::Interactive
    }
}

/// The paper's bound between short and long, for 28.8 kbit/s. Source: §IV-D.
const LONG: Bytes = Bytes::kb(8);
/// On a slower link than the paper's, about four packets of 576 bytes.
const LONG_MIN: Bytes = Bytes::kb(2);
/// A wait that neither a download nor its user notices.
const LONG_TIME: Span = Span::millis(100);
/// How long the paper's 8 kB take on its modem of 28.8 kbit/s.
const LONG_TIME_MAX: Span = Span::nanos(2_222_222_223);
/// Six of seven objects of a model page (docs/research/simulator.md) are smaller.
const OBJECT: Bytes = Bytes::kb(64);
/// Ten segments of 1448 bytes, as senders begin (RFC 6928).
const FLIGHT: Bytes = Bytes::new(14_480);
/// Source: Spring et al. §IV-A.
const IDLE_AFTER: Span = Span::secs(30);
/// Longer than any RTT, queue included, in which an answer pauses.
const SHORT_QUIET: Span = Span::secs(1);
/// FTP's transfers, rsync. Everything else begins as interactive, so other hints would say nothing.
const BULK_PORTS: [u16; 2] = [20, 873];
