//! Delivery-rate samples, in bytes, for a sender that is told when an acknowledged packet was sent.
//!
//! When a packet goes, it is noted how much had been delivered. When it is acknowledged, what was
//! delivered since, over the longer of the times that it took to send and to acknowledge it, is a
//! sample: ACKs may come in lumps, but nothing is delivered faster than it was sent. Packets that go
//! at one instant share a note. Source: draft-cheng-iccrg-delivery-rate-estimation-02.

use std::collections::VecDeque;

use fairweir_core::units::{Bytes, Span, Time};

/// What one ACK says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) acked: Bytes,
    /// When the newest packet that it acknowledges was sent.
    pub(super) sent_at: Time,
    /// Of that packet, with what is known of when it was sent; if it is not older than one that was
    /// acknowledged before.
    pub(super) of_newest: Option<OfNewest>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OfNewest {
    pub(super) rtt: Span,
    /// What had been delivered when it was sent.
    pub(super) delivered_before: Bytes,
    /// In bytes/s, unless the interval was too short to mean anything.
    pub(super) rate: Option<f64>,
    /// The application ran dry, so that the path can do more than `rate`.
    pub(super) is_app_limited: bool,
}

/// Counts what is sent and delivered, and remembers what was known when.
#[derive(Clone, Debug, Default)]
pub(super) struct Sampler {
    delivered: Bytes,
    delivered_at: Time,
    /// When the packet was sent that was acknowledged last.
    first_sent_at: Time,
    /// Samples are app-limited until more than this is delivered.
    app_limited_until: Option<Bytes>,
    /// From the oldest to the newest, none older than the newest that was acknowledged.
    notes: VecDeque<Note>,
    /// Of the packets that the present ACK acknowledges.
    acked: Bytes,
    newest_at: Time,
}

/// What was known when packets were sent.
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

    /// A packet goes; `is_idle`, if none is in flight.
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

    /// The present ACK acknowledges a packet.
    pub(super) fn handle_packet_acked(&mut self, sent_at: Time, size: Bytes) {
        self.acked += size;
        self.newest_at = self.newest_at.max(sent_at);
    }

    /// The present ACK is complete; with `is_dry`, the application had nothing more to send.
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

    /// The note of a packet, if none newer was acknowledged; those of older ones are forgotten.
    fn note_of(&mut self, sent_at: Time) -> Option<Note> {
        while self.notes.front().is_some_and(|note| note.at < sent_at) {
            self.notes.pop_front();
        }
        self.notes.front().copied().filter(|note| note.at == sent_at)
    }
}

/// The most instants at which packets in flight were sent: more than any path of the lab has.
const NOTES_MAX: usize = 1 << 16;
/// The shortest interval of a sample: of a shorter one, the sender's clock and wake-ups are the larger part.
const INTERVAL_MIN: Span = Span::micros(100);
