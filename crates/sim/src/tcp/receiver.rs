//! The receiver: what has arrived, and when an ACK is sent.
//!
//! As in Linux, an ACK is sent for every second full segment (RFC 1122 §4.2.3.2), at the latest
//! after [`DELAY`]. It is sent at once for the first [`QUICK_ACKS`] of a connection and after a
//! pause, while a hole is open, for the packet that fills the last hole (RFC 5681 §4.2), for a
//! copy, and for a packet that is marked.
//!
//! The window shrinks and grows as the kernel's does, and as RFC 9293 §3.8.6 requires. A window
//! that was advertised is never taken back, so a smaller window takes effect as packets arrive. A
//! larger window opens by a full segment for each packet that arrives, so that no burst follows
//! (Spring et al. §IV-B).
//!
//! Whether a hole is open follows from counts: the transmissions up to the newest that carry new
//! payload, minus the packets that arrived.

use fairweir_core::units::{Bytes, Span, Time};

use super::{Ack, Segment};

/// Parameters of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverSpec {
    /// The largest volume that may be under way to it.
    pub window: Bytes,
}

/// The receiving end of a connection.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// Volume that may be under way, apart from what was advertised before.
    window: Bytes,
    /// The value to which the window grows.
    window_target: Bytes,
    /// Payload up to which the sender may send, as last advertised; `None` before the first
    /// advertisement. Invariant: it never becomes less.
    right_edge: Option<Bytes>,
    /// One more than the highest number that arrived.
    numbers_end: u64,
    /// Number of packets that arrived, copies included.
    packets: u64,
    /// Number of packets that arrived with a mark.
    marked: u64,
    /// Number of packets that arrived, without copies.
    distinct: u64,
    /// Number of packets up to the newest that carry new payload.
    sent: u64,
    /// Number of packets that arrived with new payload while an earlier one was missing.
    out_of_order: u64,
    /// Number of packets that arrived twice because the sender gave them up too early.
    surplus: u64,
    payload: Bytes,
    segment_max: u32,
    unacknowledged: u64,
    quick_left: u32,
    is_due: bool,
    has_holes: bool,
    delayed_until: Option<Time>,
    arrived_at: Time,
}

impl Receiver {
    /// Makes the receiver of a connection on which nothing has arrived.
    pub fn new(spec: &ReceiverSpec) -> Receiver {
        Receiver {
            window: spec.window,
            window_target: spec.window,
            right_edge: None,
            numbers_end: 0,
            packets: 0,
            marked: 0,
            distinct: 0,
            sent: 0,
            out_of_order: 0,
            surplus: 0,
            payload: Bytes::ZERO,
            segment_max: 1,
            unacknowledged: 0,
            quick_left: QUICK_ACKS,
            is_due: false,
            has_holes: false,
            delayed_until: None,
            arrived_at: Time::ZERO,
        }
    }

    /// A packet has arrived; whether an ACK is due comes from [`Receiver::poll_ack`].
    ///
    /// # Panics
    /// If packets are out of order.
    pub fn handle_segment(&mut self, now: Time, segment: &Segment) {
        assert!(segment.number >= self.numbers_end, "paths keep the order of packets");
        let is_known = segment.copy && segment.number == self.numbers_end && segment.number > 0;
        self.numbers_end = segment.number + 1;
        self.packets += 1;
        self.marked += u64::from(segment.marked);
        if !is_known {
            self.distinct += 1;
            self.payload += Bytes::new(segment.payload.into());
            self.unacknowledged += u64::from(segment.payload);
        }
        self.segment_max = self.segment_max.max(segment.payload);
        let grown = self.window + Bytes::new(self.segment_max.into());
        self.window = grown.min(self.window_target);
        if now.since(self.arrived_at) > QUICK_AFTER {
            self.quick_left = QUICK_ACKS;
        }
        self.arrived_at = now;

        let had_holes = self.has_holes;
        let sent = self.numbers_end - u64::from(segment.resent);
        self.surplus = self.surplus.max(self.distinct.saturating_sub(sent));
        self.has_holes = sent + self.surplus > self.distinct;
        // A retransmission fills the first hole, so it counts as in order.
        let is_new = sent > std::mem::replace(&mut self.sent, sent) && !is_known;
        self.out_of_order += u64::from(is_new && self.has_holes);
        self.is_due |= is_known
            || segment.marked
            || had_holes
            || self.has_holes
            || self.quick_left > 0
            || self.unacknowledged > self.segment_max.into();
        if self.delayed_until.is_none() {
            self.delayed_until = Some(now + DELAY);
        }
    }

    /// The ACK that is due, if any.
    pub fn poll_ack(&mut self, now: Time) -> Option<Ack> {
        if !self.is_due && self.delayed_until.is_none_or(|at| now < at) {
            return None;
        }
        self.is_due = false;
        self.delayed_until = None;
        self.unacknowledged = 0;
        self.quick_left = self.quick_left.saturating_sub(1);
        Some(Ack {
            last: self.numbers_end - 1,
            received: self.packets,
            marked: self.marked,
            payload: self.payload,
            window: self.advertise(),
        })
    }

    /// When a delayed ACK is due.
    pub fn next_timeout(&self) -> Option<Time> {
        self.delayed_until
    }

    /// The payload that has arrived. It is fungible: an object is complete when this reaches the
    /// total payload written up to the object's end.
    pub fn received(&self) -> Bytes {
        self.payload
    }

    /// Number of packets that arrived out of order, as Linux's `tcpi_rcv_ooopack` counts them.
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// The sender has handed over no more than `written`: payload beyond that arrived twice, since
    /// packets were given up too early.
    pub fn handle_written(&mut self, written: Bytes) {
        self.payload = self.payload.min(written);
    }

    /// Payload of the largest packet that has arrived.
    pub fn segment(&self) -> Bytes {
        Bytes::new(self.segment_max.into())
    }

    /// The window that it would advertise now: the volume that may be under way to it.
    pub fn window(&self) -> Bytes {
        let promised = self.right_edge.unwrap_or(Bytes::ZERO).saturating_sub(self.payload);
        promised.max(self.window)
    }

    /// Advertises the window to the sender, which makes it binding.
    pub fn advertise(&mut self) -> Bytes {
        let window = self.window();
        self.right_edge = Some(self.payload + window);
        window
    }

    /// Changes the window: at once if nothing was advertised yet; else a smaller one applies once
    /// the advertised payload has arrived, a larger one by a full segment for each packet.
    pub fn set_window(&mut self, window: Bytes) {
        self.window_target = window;
        if self.right_edge.is_none() || window < self.window {
            self.window = window;
        }
    }
}

/// Linux's smallest delay of an ACK (`TCP_DELACK_MIN`).
const DELAY: Span = Span::millis(40);
/// Number of ACKs sent at once when a connection starts (Linux's `TCP_MAX_QUICKACKS`).
const QUICK_ACKS: u32 = 16;
/// After a pause longer than its own RTO, Linux sends quick ACKs again. This receiver knows no RTT,
/// so it takes the smallest RTO with an RTT of 50 ms.
const QUICK_AFTER: Span = Span::millis(250);
