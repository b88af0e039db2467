//! Delivery-rate samples: the rate at which the network delivered the packets an ACK acknowledges.
//!
//! Each packet stores the number of packets delivered when it was sent. When it is acknowledged, a
//! sample is the number delivered since then, divided by the longer of two times: that to send and
//! that to acknowledge them. ACKs may come in lumps, but nothing is delivered faster than it was
//! sent. A sample is *app-limited* if the application ran dry meanwhile: it may then be below the
//! network's rate. Source: draft-cheng-iccrg-delivery-rate-estimation-02.

use fairweir_core::units::{Span, Time};

use super::flight::Sent;

/// The rate sample of one ACK.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateSample {
    /// Packets delivered in the interval.
    pub(super) delivered: u32,
    /// Packets that had been delivered when the acknowledged packet was sent.
    pub(super) delivered_before: u32,
    pub(super) interval: Span,
    pub(super) is_app_limited: bool,
}

/// The connection's counters, in packets; they wrap around.
#[derive(Clone, Debug, Default)]
pub(super) struct RateSampler {
    delivered: u32,
    delivered_at: Time,
    /// When the packet that was acknowledged last was sent.
    first_sent_at: Time,
    /// Samples are app-limited until more packets than this are delivered.
    app_limited_until: Option<u32>,
}

impl RateSampler {
    pub(super) fn delivered(&self) -> u32 {
        self.delivered
    }

    /// The application has nothing to send although the window permits it.
    pub(super) fn mark_app_limited(&mut self, in_flight: u32) {
        self.app_limited_until = Some(self.delivered.wrapping_add(in_flight));
    }

    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }

    /// Stores the sampler's state in a packet that is sent.
    pub(super) fn handle_sent(&mut self, now: Time, in_flight: u32, sent: &mut Sent) {
        if in_flight == 0 {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        sent.delivered = self.delivered;
        sent.delivered_at = self.delivered_at;
        sent.first_sent_at = self.first_sent_at;
        sent.set(Sent::APP_LIMITED, self.is_app_limited());
    }

    /// `newest` is the newest of `count` packets that were acknowledged. A sample shorter than the
    /// smallest RTT would be an artefact and is discarded.
    pub(super) fn handle_delivered(
        &mut self,
        now: Time,
        count: u32,
        newest: &Sent,
        rtt_min: Span,
    ) -> Option<RateSample> {
        self.delivered = self.delivered.wrapping_add(count);
        self.delivered_at = now;
        self.first_sent_at = newest.sent_at;
        if self.app_limited_until.is_some_and(|until| is_after(self.delivered, until)) {
            self.app_limited_until = None;
        }
        let took_to_send = newest.sent_at.since(newest.first_sent_at);
        let took_to_acknowledge = now.since(newest.delivered_at);
        let interval = took_to_send.max(took_to_acknowledge);
        (interval >= rtt_min && interval > Span::ZERO).then(|| RateSample {
            delivered: self.delivered.wrapping_sub(newest.delivered),
            delivered_before: newest.delivered,
            interval,
            is_app_limited: newest.is(Sent::APP_LIMITED),
        })
    }
}

/// Whether count `a` is ahead of count `b`; counts wrap around.
pub(super) fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}
