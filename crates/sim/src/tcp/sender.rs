//! The sender: the interface of a connection's sending end.

use fairweir_core::delegate::{Answer, Phase};
use fairweir_core::units::{Bytes, Rate, Span, Time};

use super::congestion::INITIAL_WINDOW;
use super::connection::Connection;
use super::spec::SenderSpec;
use super::{Ack, Segment, Signals};

/// The sending end of a connection.
///
/// Feed it by the `handle_*` methods and [`Sender::write`]; after each call, drain
/// [`Sender::poll_transmit`] and read [`Sender::next_timeout`] and [`Sender::next_transmit`] again.
#[derive(Clone, Debug)]
pub struct Sender {
    spec: SenderSpec,
    /// `None` until the handshake is done; nothing is sent before.
    connection: Option<Connection>,
    /// Payload that the application has handed over; `None` is without end.
    written: Option<u64>,
}

impl Sender {
    /// Makes the sender of a connection whose handshake is under way.
    ///
    /// # Panics
    /// If the segment is empty or not below 64 KiB.
    pub fn new(spec: &SenderSpec) -> Sender {
        let segment = spec.segment.as_u64();
        assert!((1..=u16::MAX.into()).contains(&segment), "a segment fits into an IP packet");
        Sender { spec: *spec, connection: None, written: Some(0) }
    }

    /// The handshake is done, and took `rtt`; `window` is the receiver's.
    pub fn handle_established(&mut self, now: Time, rtt: Span, window: Bytes) {
        self.connection = Some(Connection::new(&self.spec, now, rtt, window));
    }

    /// The application hands over more payload; `None` is without end.
    pub fn write(&mut self, _now: Time, volume: Option<Bytes>) {
        if let Some(connection) = &mut self.connection {
            connection.handle_write(self.written);
        }
        self.written = match (self.written, volume) {
            (Some(written), Some(volume)) => Some(written.saturating_add(volume.as_u64())),
            (None, _) | (_, None) => None,
        };
    }

    /// The application takes back payload that has not been sent yet, except for `kept`.
    pub fn withdraw(&mut self, kept: Bytes) {
        let (arrived, flying) =
            self.connection.as_ref().map_or((0, 0), |c| (c.arrived(), c.flight().payload()));
        let most = arrived + flying + kept.as_u64();
        self.written = Some(self.written.map_or(most, |written| written.min(most)));
    }

    /// An ACK has arrived.
    pub fn handle_ack(&mut self, now: Time, ack: &Ack) {
        self.handle_ack_in_bundle(now, ack, &mut |_| Answer::Own);
    }

    /// An ACK has arrived at a connection of a bundle; `signals` decides who answers a loss.
    pub fn handle_ack_in_bundle(&mut self, now: Time, ack: &Ack, signals: &mut Signals<'_>) {
        if let Some(connection) = &mut self.connection {
            connection.handle_ack(now, ack, signals);
        }
    }

    /// Handles timers that are due, see [`Sender::next_timeout`]; harmless if no timer is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.handle_timeout_in_bundle(now, &mut |_| Answer::Own);
    }

    /// The same for a connection of a bundle; `signals` decides who answers a loss.
    pub fn handle_timeout_in_bundle(&mut self, now: Time, signals: &mut Signals<'_>) {
        if let Some(connection) = &mut self.connection {
            connection.handle_timeout(now, signals);
        }
    }

    /// Reduces the window to `cwnd` packets, for a signal of another connection.
    pub fn cut_to(&mut self, cwnd: u32) {
        if let Some(connection) = &mut self.connection {
            connection.cut_to(cwnd);
        }
    }

    /// The window that would remain after a signal, and the phase of its growth; `None` before the
    /// handshake is done.
    pub fn growth(&self) -> Option<(u32, Phase)> {
        self.connection.as_ref().map(|c| (c.cwnd_cut(), c.phase()))
    }

    /// Payload that has arrived, as far as the sender knows.
    pub fn arrived(&self) -> Bytes {
        Bytes::new(self.connection.as_ref().map_or(0, |c| c.arrived()))
    }

    /// The next packet to send now.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Segment> {
        let connection = self.connection.as_mut()?;
        let segment = connection.transmit(now, self.written);
        if segment.is_none() {
            connection.settle(now, self.written);
        }
        segment
    }

    /// When [`Sender::handle_timeout`] has to be called unless an ACK comes first; changes with
    /// most ACKs.
    pub fn next_timeout(&self) -> Option<Time> {
        self.connection.as_ref()?.next_timeout()
    }

    /// When pacing permits the next packet, if nothing else holds it back.
    pub fn next_transmit(&self, now: Time) -> Option<Time> {
        let connection = self.connection.as_ref()?;
        let at = connection.paced_until(now)?;
        (at > now && connection.next_payload(self.written).is_some()).then_some(at)
    }

    /// The congestion window in packets.
    pub fn cwnd(&self) -> u32 {
        self.connection.as_ref().map_or(INITIAL_WINDOW, |c| c.window().cwnd)
    }

    /// The slow-start threshold in packets; `None` before anything was lost.
    pub fn ssthresh(&self) -> Option<u32> {
        self.connection.as_ref().map(|c| c.window().ssthresh).filter(|&packets| packets < u32::MAX)
    }

    /// Packets in flight: sent, neither acknowledged nor given up.
    pub fn in_flight(&self) -> u32 {
        self.connection.as_ref().map_or(0, |c| c.flight().in_flight())
    }

    /// The smoothed RTT; `None` before the handshake is done.
    pub fn srtt(&self) -> Option<Span> {
        self.connection.as_ref().map(|c| c.rtt().smoothed())
    }

    /// The sum of the RTTs of each ACK's newest packet, and their number.
    pub fn rtts(&self) -> (Span, u64) {
        self.connection.as_ref().map_or((Span::ZERO, 0), |c| c.rtt().all())
    }

    /// The smallest RTT; `None` before the handshake is done.
    pub fn rtt_min(&self) -> Option<Span> {
        self.connection.as_ref().map(|c| c.rtt().min())
    }

    /// The rate at which packets are paced, in payload; `None` without pacing.
    pub fn pacing_rate(&self) -> Option<Rate> {
        self.connection.as_ref()?.pacing_rate()
    }

    /// Number of packets sent, including those that carry payload again.
    pub fn transmitted(&self) -> u64 {
        self.connection.as_ref().map_or(0, |c| c.flight().numbers_end())
    }

    /// Number of packets that carried payload again.
    pub fn retransmitted(&self) -> u64 {
        self.connection.as_ref().map_or(0, |c| c.resent().into())
    }

    /// Whether there is payload that is not in flight and has not arrived.
    pub fn has_unsent(&self) -> bool {
        match &self.connection {
            Some(connection) => connection.unsent(self.written) > 0,
            None => self.written != Some(0),
        }
    }

    /// Payload that the application has handed over; `None` is without end.
    pub fn written(&self) -> Option<Bytes> {
        self.written.map(Bytes::new)
    }

    /// Payload that has still to be sent; `None` is without end.
    pub fn unsent(&self) -> Option<Bytes> {
        let written = self.written?;
        Some(Bytes::new(self.connection.as_ref().map_or(written, |c| c.unsent(Some(written)))))
    }

    /// Whether all written payload has arrived, as far as the sender knows.
    pub fn all_delivered(&self) -> bool {
        let arrived = self.connection.as_ref().map_or(0, |c| c.arrived());
        self.written.is_some_and(|written| arrived >= written)
    }
}
