//! The sender's side of an established connection: it combines flight, recovery, congestion
//! control, pacing and timers.
//!
//! Sending: a packet goes if the congestion window, the receiver's window, Nagle's algorithm and
//! pacing permit it; retransmissions come first. An ACK determines what is delivered and what is
//! lost, its effect on recovery and on the window, and all timers. After an input was handled,
//! packets are drained by [`Connection::transmit`]; when there are no more, [`Connection::settle`]
//! notes whether the window was used.

use fairweir_core::delegate::{Answer, Phase};
use fairweir_core::units::{Bytes, Rate, Span, Time};

use super::congestion::{AckSample, Congestion, INITIAL_WINDOW, Window};
use super::flight::{Delivered, Flight, Losses, Sent};
use super::pacing::Pacer;
use super::rate::RateSampler;
use super::recovery::{Prior, Recovery, State};
use super::rtt::Rtt;
use super::spec::SenderSpec;
use super::{Ack, Segment, Signal, Signals};

mod timers;
mod usage;

use timers::{Timer, Timers};
use usage::Usage;

/// An established connection.
///
/// Invariant: payload written = payload arrived + payload in flight + payload still to be sent; the
/// left side is less if payload was sent twice.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    segment: u64,
    is_paced: bool,
    peer_window: u64,
    /// Payload that has arrived, according to the newest ACK.
    arrived: u64,
    flight: Flight,
    rtt: Rtt,
    window: Window,
    congestion: Congestion,
    recovery: Recovery,
    rates: RateSampler,
    pacer: Pacer,
    timers: Timers,
    usage: Usage,
    probe: Probe,
    sent_at: Time,
    /// One more than the number of the last packet that was not full.
    partial_end: u64,
    resent: u32,
    lost: u32,
    /// Number of marks that have been acknowledged.
    marked: u64,
}

/// State of the tail loss probe; there is one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    None,
    /// May go now, whatever the window allows.
    Due,
    /// Went as the packet with this number.
    Sent(u64),
}

impl Connection {
    pub(super) fn new(spec: &SenderSpec, now: Time, rtt: Span, window: Bytes) -> Connection {
        let segment = spec.segment.as_u64();
        let congestion = Congestion::new(spec.congestion_control, now, rtt, segment, spec.seed);
        let mut connection = Connection {
            segment,
            is_paced: spec.paced || congestion.is_model_based(),
            peer_window: window.as_u64(),
            arrived: 0,
            flight: Flight::default(),
            rtt: Rtt::new(rtt),
            window: Window::new(),
            congestion,
            recovery: Recovery::new(),
            rates: RateSampler::default(),
            pacer: Pacer::new(segment),
            timers: Timers::default(),
            usage: Usage::new(now),
            probe: Probe::None,
            sent_at: now,
            partial_end: 0,
            resent: 0,
            lost: 0,
            marked: 0,
        };
        connection.update_pacing();
        connection
    }

    pub(super) fn unsent(&self, written: Option<u64>) -> u64 {
        written.map_or(u64::MAX, |written| {
            written.saturating_sub(self.arrived).saturating_sub(self.flight.payload())
        })
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// When pacing permits the next packet, whether there is one or not.
    pub(super) fn paced_until(&self, now: Time) -> Option<Time> {
        self.is_paced.then(|| self.pacer.next_at(now))
    }

    pub(super) fn pacing_rate(&self) -> Option<Rate> {
        self.is_paced.then(|| self.pacer.rate())
    }

    pub(super) fn window(&self) -> &Window {
        &self.window
    }

    pub(super) fn flight(&self) -> &Flight {
        &self.flight
    }

    pub(super) fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// Number of packets that carried payload again.
    pub(super) fn resent(&self) -> u32 {
        self.resent
    }

    /// Payload that has arrived, according to the newest ACK.
    pub(super) fn arrived(&self) -> u64 {
        self.arrived
    }

    // --------------------------------------------------------------------------------------------
    // Sending

    /// Payload of the packet that may go if pacing permits it.
    pub(super) fn next_payload(&self, written: Option<u64>) -> Option<u64> {
        let unsent = self.unsent(written);
        let is_probe = self.probe == Probe::Due;
        if unsent == 0 || (self.flight.in_flight() >= self.window.cwnd && !is_probe) {
            return None;
        }
        let payload = unsent.min(self.segment);
        let is_new = self.recovery.lost() == 0;
        // There is always room for one packet, so that a window never closes for good.
        let is_beyond = self.flight.payload() + payload > self.peer_window;
        if is_new && is_beyond && self.flight.in_flight() > 0 {
            return None;
        }
        // Nagle's algorithm with Minshall's change, as in Linux: no second small packet before the
        // first is acknowledged.
        let is_second_small = payload < self.segment && self.partial_end > self.flight.acked_end();
        if is_new && is_second_small && self.flight.in_flight() > 0 {
            return None;
        }
        Some(payload)
    }

    pub(super) fn transmit(&mut self, now: Time, written: Option<u64>) -> Option<Segment> {
        let payload = match self.next_payload(written) {
            Some(payload) => payload,
            None if self.probe == Probe::Due => return self.transmit_copy(now),
            None => return None,
        };
        if self.is_paced && self.probe != Probe::Due && self.pacer.next_at(now) > now {
            return None;
        }
        if self.flight.in_flight() == 0 {
            self.restart(now);
        }
        let mut sent = Sent::new(now, payload as u16);
        if self.recovery.lost() > 0 {
            self.resent = self.resent.wrapping_add(1);
        }
        sent.set(Sent::REPAIR, self.recovery.handle_sent());
        Some(self.send(now, sent, payload, false))
    }

    /// Sends the last packet again: the tail loss probe of a sender without new data.
    fn transmit_copy(&mut self, now: Time) -> Option<Segment> {
        let Some(payload) = self.flight.last_payload() else {
            self.probe = Probe::None;
            return None;
        };
        // The payload is counted with the packet of which this is a copy.
        let mut sent = Sent::new(now, 0);
        sent.set(Sent::COPY, true);
        self.resent = self.resent.wrapping_add(1);
        Some(self.send(now, sent, payload.into(), true))
    }

    fn send(&mut self, now: Time, mut sent: Sent, payload: u64, copy: bool) -> Segment {
        let number = self.flight.numbers_end();
        let in_flight = self.flight.in_flight();
        self.rates.handle_sent(now, in_flight, &mut sent);
        self.flight.send(sent);
        if payload < self.segment {
            self.partial_end = number + 1;
        }
        if self.is_paced {
            self.pacer.handle_sent(now, payload);
        }
        self.sent_at = now;
        self.usage.handle_sent();
        if self.probe == Probe::Due {
            self.probe = Probe::Sent(number);
        }
        if in_flight == 0 {
            self.timers.rto = Some(now + self.rtt.rto_backed_off());
        }
        self.arm_probe(now);
        Segment { number, payload: payload as u32, resent: self.resent, copy, marked: false }
    }

    /// No more packets go now.
    pub(super) fn settle(&mut self, now: Time, written: Option<u64>) {
        if self.unsent(written) == 0 {
            self.recovery.forgive();
        }
        self.pacer.end_burst();
        let may_decay = self.unsent(written) == 0
            && self.recovery.state() == State::Open
            && !self.congestion.is_model_based();
        let rto = self.rtt.rto();
        self.usage.handle_settled(now, &self.flight, &mut self.window, rto, may_decay);
    }

    /// Sending begins again. After more than an RTO the window is reduced (RFC 5681 §4.1): it is
    /// halved for each RTO, down to the initial window (RFC 2861 §3.1).
    fn restart(&mut self, now: Time) {
        let idle = now.since(self.sent_at);
        if idle == Span::ZERO {
            return;
        }
        let rto = self.rtt.rto();
        if idle > rto && !self.congestion.is_model_based() && self.recovery.state() == State::Open {
            let halvings = (idle.as_nanos() / rto.as_nanos()).min(31);
            self.window.ssthresh = self.window.ssthresh_remembered();
            let least = INITIAL_WINDOW.min(self.window.cwnd);
            self.window.cwnd = (self.window.cwnd >> halvings).max(least);
            self.usage = Usage::new(now);
        }
        let is_app_limited = self.rates.is_app_limited();
        self.congestion.handle_restart(now, idle, is_app_limited, &mut self.window);
    }

    pub(super) fn handle_write(&mut self, written_before: Option<u64>) {
        let ran_dry = self.unsent(written_before) < self.segment && self.recovery.lost() == 0;
        if ran_dry && self.flight.in_flight() < self.window.cwnd {
            self.rates.mark_app_limited(self.flight.in_flight());
        }
    }

    // --------------------------------------------------------------------------------------------
    // ACKs

    pub(super) fn handle_ack(&mut self, now: Time, ack: &Ack, signals: &mut Signals<'_>) {
        self.peer_window = ack.window.as_u64();
        let in_flight_before = self.flight.in_flight();
        let had_holes = self.flight.has_holes();
        let delivered = self.flight.acknowledge(ack, self.recovery.point());
        let Some(newest) = delivered.newest else { return };
        self.arrived = ack.payload.as_u64();
        let rtt = now.since(newest.sent_at);
        let oldest_sent_at = delivered.oldest_sent_at.unwrap_or(newest.sent_at);
        self.rtt.handle_sample(now.since(oldest_sent_at), rtt);
        let rate = self.rates.handle_delivered(now, delivered.count, &newest, self.rtt.min());
        if matches!(self.probe, Probe::Sent(number) if ack.last >= number) {
            self.probe = Probe::None;
        }

        // During a recovery any hole counts as lost.
        let at_once = self.recovery.state() != State::Open;
        let losses = self.flight.detect_losses(at_once, self.recovery.point());
        let is_marked = std::mem::replace(&mut self.marked, ack.marked) < ack.marked;
        self.update_recovery(&delivered, &losses, is_marked, signals);

        // The ACK that shows a first hole may also acknowledge the packet below it, for which the
        // receiver was waiting before it sent an ACK. In Linux the window still grows by that; so
        // at the top of Reno's sawtooth often two packets are lost, the second an RTT after the
        // first (measured with 6.18). Packets above holes do not let the window grow (RFC 3042).
        let has_holes = self.recovery.state() == State::Open && self.flight.has_holes();
        let is_above_holes = has_holes && (had_holes || delivered.count < 2);
        let sample = AckSample {
            now,
            state: self.recovery.state(),
            acked: delivered.count,
            lost: losses.count,
            delivered_total: self.rates.delivered(),
            lost_total: self.lost,
            in_flight: self.flight.in_flight(),
            in_flight_before,
            rtt: Some(rtt),
            rate,
            acked_end: self.flight.acked_end(),
            numbers_end: self.flight.numbers_end(),
            may_grow: !is_above_holes && self.usage.is_limited(&self.window),
            is_paced: self.is_paced,
        };
        self.congestion.handle_ack(&sample, &mut self.window);
        if self.congestion.is_probing_rtt() {
            self.rates.mark_app_limited(self.flight.in_flight());
        }
        self.update_pacing();
        self.arm(now);
    }

    fn update_recovery(
        &mut self,
        delivered: &Delivered,
        losses: &Losses,
        is_marked: bool,
        signals: &mut Signals<'_>,
    ) {
        self.recovery.handle_delivered(delivered);
        self.recovery.handle_losses(losses);
        self.lost = self.lost.wrapping_add(losses.count);
        if delivered.late > 0 && self.recovery.state() == State::Loss {
            self.take_back_timeout();
        }
        if self.recovery.is_over() {
            if self.recovery.state() == State::Recovery && !self.congestion.is_model_based() {
                self.window.cwnd = self.window.ssthresh;
            }
            self.recovery.leave();
        }
        let is_lossy = losses.count > 0 || self.recovery.lost() > 0;
        // BBR version 1 does not react to marks.
        let is_told = is_marked && !self.congestion.is_model_based();
        if self.recovery.state() == State::Open && (is_lossy || is_told) {
            self.enter(State::Recovery, true, signals);
        }
        if self.recovery.state() == State::Recovery && !self.congestion.is_model_based() {
            let is_safe = delivered.repaired > 0 && losses.count == 0;
            let in_flight = self.flight.in_flight();
            let ssthresh = self.window.ssthresh;
            let count = delivered.count;
            self.window.cwnd = self.recovery.reduced_window(ssthresh, in_flight, count, is_safe);
        }
    }

    fn enter(&mut self, state: State, is_cut: bool, signals: &mut Signals<'_>) {
        let prior = Prior { cwnd: self.window.cwnd, ssthresh: self.window.ssthresh };
        if is_cut {
            // If the window is cut again within a loss, other connections are not asked again.
            let signal = if state == State::Loss { Signal::Timeout } else { Signal::Loss };
            let is_asked = self.recovery.state() == State::Open;
            self.window.ssthresh = match is_asked.then(|| signals(signal)) {
                // As with a congestion control whose ssthresh is its window: PRR makes no cut, and
                // the growth of CUBIC goes on.
                Some(Answer::Delegated) => self.window.cwnd,
                Some(Answer::Shared(cwnd)) => {
                    self.congestion.handle_congestion(&self.window);
                    cwnd
                }
                Some(Answer::Own) | None => self.congestion.handle_congestion(&self.window),
            };
            self.window.count = 0;
        }
        let in_flight = self.flight.in_flight();
        self.recovery.enter(state, self.flight.numbers_end(), in_flight, is_cut.then_some(prior));
        self.probe = Probe::None;
    }

    /// Reduces the window to `cwnd` packets, for a signal of another connection.
    pub(super) fn cut_to(&mut self, cwnd: u32) {
        self.congestion.handle_congestion(&self.window);
        self.window.ssthresh = cwnd;
        self.window.cwnd = self.window.cwnd.min(cwnd);
        self.window.count = 0;
        self.update_pacing();
    }

    /// The window that would remain after a signal.
    pub(super) fn cwnd_cut(&self) -> u32 {
        self.congestion.ssthresh(self.window.cwnd)
    }

    pub(super) fn phase(&self) -> Phase {
        match self.recovery.state() {
            State::Recovery | State::Loss => Phase::Recovery,
            State::Open if self.window.is_in_slow_start() => Phase::SlowStart,
            State::Open => Phase::Avoidance,
        }
    }

    /// A packet that the timeout gave up has arrived, so it was only late, and the others may be
    /// late too (RFC 5682): the window is restored.
    fn take_back_timeout(&mut self) {
        let taken_back = self.flight.take_back();
        if let Some(prior) = self.recovery.take_back(taken_back) {
            self.window.cwnd = self.window.cwnd.max(prior.cwnd);
            self.window.ssthresh = self.window.ssthresh.max(prior.ssthresh);
        }
    }

    /// The pacing rate for controls without one of their own: somewhat above the window per RTT, so
    /// that pacing is never the limit.
    fn update_pacing(&mut self) {
        if !self.is_paced {
            return;
        }
        let rate = self.congestion.pacing_rate().unwrap_or_else(|| {
            let packets = u64::from(self.window.cwnd.max(self.flight.in_flight()));
            let volume = Bytes::new(packets * self.segment);
            let is_searching = self.window.cwnd < self.window.ssthresh / 2;
            let percent = if is_searching { PACING_SLOW_START } else { PACING_AVOIDANCE };
            Rate::from_volume(volume, self.rtt.smoothed().max(Span::nanos(1))).scale(percent, 100)
        });
        self.pacer.set_rate(rate);
    }

    // --------------------------------------------------------------------------------------------
    // Timers

    /// A packet was acknowledged, so all timers restart.
    fn arm(&mut self, now: Time) {
        let is_waiting = self.flight.in_flight() > 0;
        self.timers.rto = is_waiting.then(|| now + self.rtt.rto_backed_off());
        self.arm_probe(now);
        let has_holes = self.recovery.state() == State::Open && self.flight.has_holes();
        let oldest = if has_holes { self.flight.oldest() } else { None };
        let allowed = self.rtt.latest() + self.rtt.reordering_window();
        self.timers.reorder = oldest.map(|oldest| oldest.sent_at + allowed);
    }

    fn arm_probe(&mut self, now: Time) {
        let in_flight = self.flight.in_flight();
        let is_quiet = self.recovery.state() == State::Open && !self.flight.has_holes();
        let may_probe = is_quiet && in_flight > 0 && self.probe == Probe::None;
        let at = may_probe.then(|| now + self.rtt.probe_timeout(in_flight));
        self.timers.probe = at.zip(self.timers.rto).map(|(probe, rto)| probe.min(rto));
    }

    pub(super) fn handle_timeout(&mut self, now: Time, signals: &mut Signals<'_>) {
        match self.timers.due(now) {
            Some(Timer::Reorder) => self.handle_reorder_timeout(signals),
            Some(Timer::Probe) => self.handle_probe_timeout(now),
            Some(Timer::Retransmission) => self.handle_retransmission_timeout(now, signals),
            None => {}
        }
    }

    /// The time that holes are given has passed.
    fn handle_reorder_timeout(&mut self, signals: &mut Signals<'_>) {
        self.timers.reorder = None;
        let losses = self.flight.detect_losses(true, self.recovery.point());
        // The reduction begins as if one packet had been delivered, as in Linux.
        let delivered = Delivered { count: 1, ..Delivered::default() };
        self.update_recovery(&delivered, &losses, false, signals);
    }

    fn handle_probe_timeout(&mut self, now: Time) {
        self.timers.probe = None;
        self.probe = Probe::Due;
        self.timers.rto = Some(now + self.rtt.rto_backed_off());
    }

    fn handle_retransmission_timeout(&mut self, now: Time, signals: &mut Signals<'_>) {
        self.timers.rto = None;
        if self.flight.in_flight() == 0 {
            return;
        }
        // Packets sent within the last RTT may still arrive (RFC 8985 §6.3).
        let sent_by = now - (self.rtt.latest() + self.rtt.reordering_window());
        let losses = self.flight.give_up(sent_by, self.recovery.point());
        self.recovery.handle_losses(&losses);
        self.lost = self.lost.wrapping_add(losses.count);
        // In a recovery the window is cut already; in a loss state it is cut again if a packet was
        // acknowledged since.
        let is_cut = match self.recovery.state() {
            State::Open => true,
            State::Recovery => false,
            State::Loss => !self.rtt.is_backed_off(),
        };
        self.enter(State::Loss, is_cut, signals);
        self.congestion.handle_timeout();
        self.window.cwnd = self.flight.in_flight() + 1;
        self.rtt.back_off();
        self.timers.rto = Some(now + self.rtt.rto_backed_off());
        self.timers.probe = None;
        self.timers.reorder = None;
        self.update_pacing();
    }
}

/// Linux's `tcp_pacing_ss_ratio` and `tcp_pacing_ca_ratio`.
const PACING_SLOW_START: u64 = 200;
const PACING_AVOIDANCE: u64 = 120;
