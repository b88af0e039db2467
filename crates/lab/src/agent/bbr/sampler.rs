//! Delivery-rate samples, in bytes, for a sender that knows when each acknowledged packet was sent.
//!
//! When a packet is sent, the bytes delivered so far are noted. When it is acknowledged, a sample is the bytes
//! delivered since then, divided by the longer of the times it took to send and to acknowledge them: ACKs
//! may come in batches, but nothing is delivered faster than it was sent. Packets sent at the same instant
//! share a note. Source: draft-cheng-iccrg-delivery-rate-estimation-02.

use std::collections::VecDeque;

use fairweir_core::units::{Bytes, Span, Time};

/// The information in one ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) acked: Bytes,
    /// When the newest acknowledged packet was sent.
    pub(super) sent_at: Time,
    /// About that packet, including the note of when it was sent; `None` if a newer packet was acknowledged
    /// before.
    pub(super) of_newest: Option<OfNewest>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OfNewest {
    pub(super) rtt: Span,
    /// Bytes that had been delivered when the packet was sent.
    pub(super) delivered_before: Bytes,
    /// Delivery rate in bytes/s; `None` if the interval was too short to be meaningful.
    pub(super) rate: Option<f64>,
    /// The application ran out of data, so the path may be able to do more than `rate`.
    pub(super) is_app_limited: bool,
}

/// Counts sent and delivered bytes, and remembers the state at the time of each packet.
#[derive(Clone, Debug, Default)]
pub(super) struct Sampler {
    delivered: Bytes,
    delivered_at: Time,
    /// When the newest acknowledged packet was sent.
    first_sent_at: Time,
    /// Samples are app-limited until more than this is delivered.
    app_limited_until: Option<Bytes>,
    /// Notes from oldest to newest; those older than the newest acknowledged packet are dropped.
    notes: VecDeque<Note>,
    /// Bytes that the current ACK acknowledges.
    acked: Bytes,
    newest_at: Time,
}

/// The state at the time when packets were sent.
#[derive(Clone, Copy, Debug)]
struct Note {
    at: Time,
    delivered: Bytes,
    delivered_at: Time,
    first_sent_at: Time,
    is_app_limited: bool,
}

impl Sampler {
    pub(super) fn delivered(&self) -> Bytes {
        self.delivered
    }

    /// A packet is sent; `is_idle` means that no packet was in flight.
    pub(super) fn handle_sent(&mut self, now: Time, is_idle: bool) {
        if is_idle {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        if self.notes.back().is_some_and(|note| note.at >= now) {
            return;
        }
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(Note {
            at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            is_app_limited: self.app_limited_until.is_some(),
        });
    }

    /// The current ACK acknowledges a packet.
    pub(super) fn handle_packet_acked(&mut self, sent_at: Time, size: Bytes) {
        self.acked += size;
        self.newest_at = self.newest_at.max(sent_at);
    }

    /// The current ACK has been processed; `is_dry` means that the application had nothing more to send.
    pub(super) fn handle_acks_end(&mut self, now: Time, in_flight: Bytes, is_dry: bool) -> Sample {
        let acked = std::mem::take(&mut self.acked);
        let sent_at = std::mem::take(&mut self.newest_at);
        if acked > Bytes::ZERO {
            self.delivered += acked;
            self.delivered_at = now;
        }
        if self.app_limited_until.is_some_and(|until| self.delivered > until) {
            self.app_limited_until = None;
        }
        let note = self.note_of(sent_at).filter(|_| acked > Bytes::ZERO);
        let of_newest = note.map(|note| self.sample(now, &note, is_dry));
        if is_dry {
            self.app_limited_until = Some(self.delivered + in_flight);
        }
        Sample { acked, sent_at, of_newest }
    }

    fn sample(&mut self, now: Time, newest: &Note, is_dry: bool) -> OfNewest {
        self.first_sent_at = newest.at;
        let took_to_send = newest.at.since(newest.first_sent_at);
        let took_to_acknowledge = now.since(newest.delivered_at);
        let interval = took_to_send.max(took_to_acknowledge);
        let delivered = self.delivered.saturating_sub(newest.delivered).as_u64() as f64;
        OfNewest {
            rtt: now.since(newest.at),
            delivered_before: newest.delivered,
            rate: (interval >= INTERVAL_MIN).then(|| delivered / interval.as_secs_f64()),
            is_app_limited: newest.is_app_limited || is_dry,
        }
    }

    /// The note of a packet, if no newer one was acknowledged; older notes are dropped.
    fn note_of(&mut self, sent_at: Time) -> Option<Note> {
        while self.notes.front().is_some_and(|note| note.at < sent_at) {
            self.notes.pop_front();
        }
        self.notes.front().copied().filter(|note| note.at == sent_at)
    }
}

/// Maximum number of notes: more than any path in the lab needs for its packets in flight.
const NOTES_MAX: usize = 1 << 16;
/// Minimum interval of a sample: in a shorter one, the sender's clock and wake-up delays dominate.
const INTERVAL_MIN: Span = Span::micros(100);
