//! The class of a connection, by its behaviour.

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
    /// Nothing has arrived for a long time.
    Idle,
}

/// The volumes of payload, received since it last sent something, at which a connection changes its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// From this volume on an answer is not interactive.
    pub short: Bytes,
    /// An answer of more than this volume is not short.
    pub long: Bytes,
}

impl Bounds {
    /// The bounds on a link of this capacity; the paper's bounds while it is unknown.
    ///
    /// The paper's 2 kB and 8 kB are for 28.8 kbit/s and "could increase" with the capacity. Here a short
    /// answer is whatever the link carries in [`LONG_TIME`], since a download does not notice such a wait.
    /// On a slow link that would be less than an object of a web page; there the bound is an object
    /// ([`OBJECT`]), unless that takes longer than the paper's 8 kB took on its modem. An interactive answer
    /// is at most a quarter of a short one, as in the paper, and no more than arrives in one flight before
    /// any window can have been changed ([`FLIGHT`]).
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

/// The behaviour of a connection: feed it every tick, ask for its [`Class`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Payload received since the application here last sent something. ACKs do not count as sent, otherwise
    /// it would never grow.
    received: Bytes,
    /// The same for the last earlier answer that was not empty.
    before: Bytes,
    received_at: Time,
    /// When it last sent or received.
    active_at: Time,
    is_bulk_by_port: bool,
}

impl Behaviour {
    /// A connection that was first seen at `now`. The server's port determines its class until its behaviour
    /// does.
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

    /// Takes in the tick that ends at `now`: whether the application here sent something, and how much
    /// payload arrived.
    ///
    /// If it sent and received in one tick, the sending came first: a request and its answer. So a download
    /// that keeps sending, as HTTP/2 does for its own flow control, looks like a series of answers, and
    /// counts as long only if a single tick brings enough.
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

    /// Whether it has neither sent nor received for [`SHORT_QUIET`], so that nothing is in flight.
    pub fn is_quiet(&self, now: Time) -> bool {
        now.since(self.active_at) > SHORT_QUIET
    }

    /// The class at `now`.
    ///
    /// A short answer has ended if nothing arrived for a second: the connection waits for the next request
    /// and is interactive. In the paper it would hold the long connections back for 30 s, since the paper
    /// does not know persistent connections. For the same reason an answer after a long one counts as long
    /// from [`Bounds::short`] on: a download in pieces, such as a film or a package of files, is one
    /// download, and each piece would otherwise be served before the other connections.
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
/// For a link slower than the paper's: about four packets of 576 bytes.
const LONG_MIN: Bytes = Bytes::kb(2);
/// A wait that neither a download nor its user notices.
const LONG_TIME: Span = Span::millis(100);
/// How long the paper's 8 kB take on its modem of 28.8 kbit/s.
const LONG_TIME_MAX: Span = Span::nanos(2_222_222_223);
/// Six of seven objects of a model page (docs/research/simulator.md) are smaller than this.
const OBJECT: Bytes = Bytes::kb(64);
/// Ten segments of 1448 bytes, the initial window of senders (RFC 6928).
const FLIGHT: Bytes = Bytes::new(14_480);
/// Source: Spring et al. §IV-A.
const IDLE_AFTER: Span = Span::secs(30);
/// A pause longer than any RTT, queue included.
const SHORT_QUIET: Span = Span::secs(1);
/// FTP's transfers, rsync. All other connections begin as interactive, so hints for them would have no effect.
const BULK_PORTS: [u16; 2] = [20, 873];
