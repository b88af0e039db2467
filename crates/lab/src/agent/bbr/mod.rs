//! BBR for quinn: sends at the rate that the path has been observed to deliver.
//!
//! Problem: quinn's own `bbr` mistakes the rate at which packets are acknowledged at one instant for the
//! path's rate, and so never slows down. Method: the state machine [`Model`] knows neither quinn nor a
//! clock; this module only connects it to quinn.
//!
//! quinn paces at 1.25 windows per smoothed RTT, whatever the controller wants. So the window itself does
//! the pacing: it grows with time at the pacing rate, and sent packets use it up.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use fairweir_core::units::{Bytes, Span, Time};
use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;

mod model;
mod sampler;

use model::Model;

/// Makes a controller for each connection.
pub(super) struct BbrConfig {
    /// Seed for the random phase in which a connection starts its gain cycle.
    pub(super) seed: u64,
}

impl ControllerFactory for BbrConfig {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Bbr { epoch: now, model: Model::new(Bytes::new(mtu.into()), self.seed) })
    }
}

#[derive(Clone)]
struct Bbr {
    /// The instant at which the model's clock is zero.
    epoch: Instant,
    model: Model,
}

impl Bbr {
    fn time(&self, at: Instant) -> Time {
        let nanos = at.saturating_duration_since(self.epoch).as_nanos();
        Time::ZERO + Span::nanos(nanos.min(u64::MAX.into()) as u64)
    }
}

impl Controller for Bbr {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        self.model.handle_sent(self.time(now), Bytes::new(bytes));
    }

    fn on_ack(&mut self, _: Instant, sent: Instant, bytes: u64, _: bool, _: &RttEstimator) {
        self.model.handle_packet_acked(self.time(sent), Bytes::new(bytes));
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, is_dry: bool, _: Option<u64>) {
        self.model.handle_acks_end(self.time(now), Bytes::new(in_flight), is_dry);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost: u64) {
        let (now, sent) = (self.time(now), self.time(sent));
        self.model.handle_lost(now, sent, Bytes::new(lost), is_persistent);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.model.handle_packet_size(Bytes::new(mtu.into()));
    }

    fn window(&self) -> u64 {
        // quinn sends only what leaves the window not completely full, hence one more byte.
        self.model.window().as_u64() + 1
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.model.window_initial().as_u64()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests;
