//! The state machine: what the path can do, and how much may be in flight.
//!
//! The largest delivery rate of the last ten rounds and the smallest RTT of the last ten seconds
//! give the pacing rate and, times two, the congestion window. STARTUP doubles the rate until it
//! brings no more (three rounds below 25 %), DRAIN empties the queue of that, PROBE_BW lets a cycle
//! of gains probe for more and drain it again, and PROBE_RTT goes down to four packets for 200 ms if
//! no smaller RTT was seen for ten seconds.
//!
//! The caller sees one [`window`](Model::window): what is in flight and, on top, the *credit*,
//! which each ACK fills by the pacing rate times the time since the last one, and each packet
//! empties. So the path's own clock, the ACKs, spaces the packets, and the queue grows and shrinks
//! as if they were paced. In STARTUP the congestion window alone counts.
//!
//! Invariant: with the window full, at most a congestion window is in flight, and never less than
//! four packets may be. Source: draft-cardwell-iccrg-bbr-congestion-control-00; the margin of 1 %
//! below the estimate is Linux's.

use fairweir_core::units::{Bytes, Span, Time};
use fairweir_scenario::bbr::{MaxFilter, Pipe};
use fairweir_scenario::random::SplitMix64;

use super::sampler::{Sample, Sampler};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    /// With the phase of the gain cycle.
    ProbeBw(usize),
    ProbeRtt,
}

/// A connection's congestion control.
#[derive(Clone, Debug)]
pub(super) struct Model {
    packet: Bytes,
    mode: Mode,
    phase_start: Time,
    sampler: Sampler,
    in_flight: Bytes,
    /// Delivery rates in bytes/s.
    rates: MaxFilter,
    round: u32,
    /// The round ends when what was sent after this much was delivered is acknowledged.
    round_end: Bytes,
    is_new_round: bool,
    rtt_min: Option<Span>,
    rtt_min_at: Time,
    /// When PROBE_RTT has lasted, once it has few enough packets in flight.
    probe_rtt_end: Option<Time>,
    pipe: Pipe,
    cwnd: Bytes,
    /// The congestion window before recovery or PROBE_RTT.
    cwnd_before: Bytes,
    /// Since when a loss is repaired; what was sent later ends that.
    recovery_start: Option<Time>,
    /// What may be sent besides what is in flight, in bytes; a probe may overdraw it.
    credit: f64,
    /// Until when the credit is filled.
    credit_until: Time,
    random: SplitMix64,
}

impl Model {
    /// `packet` is the payload of a full packet.
    pub(super) fn new(packet: Bytes, seed: u64) -> Model {
        let cwnd = packet * WINDOW_INITIAL;
        Model {
            packet,
            mode: Mode::Startup,
            phase_start: Time::ZERO,
            sampler: Sampler::default(),
            in_flight: Bytes::ZERO,
            rates: MaxFilter::new(),
            round: 0,
            round_end: Bytes::ZERO,
            is_new_round: false,
            rtt_min: None,
            rtt_min_at: Time::ZERO,
            probe_rtt_end: None,
            pipe: Pipe::default(),
            cwnd,
            cwnd_before: cwnd,
            recovery_start: None,
            credit: 0.0,
            credit_until: Time::ZERO,
            random: SplitMix64::new(seed),
        }
    }

    /// How much may be in flight.
    pub(super) fn window(&self) -> Bytes {
        let window = match self.mode {
            Mode::Startup => self.cwnd,
            Mode::Drain | Mode::ProbeBw(_) => {
                let paced = self.in_flight.as_u64() as f64 + self.credit;
                self.cwnd.min(Bytes::new(paced.max(0.0) as u64))
            }
            Mode::ProbeRtt => self.window_min(),
        };
        window.max(self.window_min())
    }

    pub(super) fn window_initial(&self) -> Bytes {
        self.packet * WINDOW_INITIAL
    }

    pub(super) fn handle_packet_size(&mut self, packet: Bytes) {
        self.packet = packet;
    }

    /// A packet of `size` goes.
    pub(super) fn handle_sent(&mut self, now: Time, size: Bytes) {
        let is_idle = self.in_flight == Bytes::ZERO;
        self.sampler.handle_sent(now, is_idle);
        if is_idle {
            self.grant_round(now);
        }
        self.in_flight += size;
        self.credit -= size.as_u64() as f64;
    }

    /// The present ACK acknowledges a packet.
    pub(super) fn handle_packet_acked(&mut self, sent_at: Time, size: Bytes) {
        self.sampler.handle_packet_acked(sent_at, size);
    }

    /// The present ACK is complete, and leaves `in_flight`; with `is_dry`, the application
    /// had nothing more to send.
    pub(super) fn handle_acks_end(&mut self, now: Time, in_flight: Bytes, is_dry: bool) {
        let before = self.in_flight;
        self.in_flight = in_flight;
        let sample = self.sampler.handle_acks_end(now, in_flight, is_dry);
        self.update_rate(&sample);
        self.update_phase(now, before);
        self.update_pipe(&sample);
        self.update_drain(now);
        self.update_rtt_min(now, &sample);
        self.update_recovery(&sample);
        self.update_cwnd(sample.acked);
        self.update_credit(now);
    }

    /// Packets were lost, the newest of which was sent at `sent_at`: the window shrinks by them, and
    /// for a round a packet goes for each delivered. After `is_persistent` nothing is known of what
    /// the path holds.
    pub(super) fn handle_lost(
        &mut self,
        now: Time,
        sent_at: Time,
        lost: Bytes,
        is_persistent: bool,
    ) {
        self.in_flight = self.in_flight.saturating_sub(lost);
        self.cwnd = self.cwnd.saturating_sub(lost).max(self.window_min());
        if self.recovery_start.is_none_or(|start| sent_at > start) {
            self.remember_cwnd(self.cwnd + lost);
            self.recovery_start = Some(now);
            self.cwnd = (self.in_flight + self.packet).max(self.window_min());
        }
        if is_persistent {
            self.cwnd = self.window_min();
            self.pipe.forget_rate();
        }
    }

    fn update_rate(&mut self, sample: &Sample) {
        self.is_new_round = false;
        let Some(newest) = sample.of_newest else { return };
        if newest.delivered_before >= self.round_end {
            self.round_end = self.sampler.delivered();
            self.round = self.round.wrapping_add(1);
            self.is_new_round = true;
        }
        let Some(rate) = newest.rate else { return };
        if !newest.is_app_limited || rate >= self.rates.max() {
            self.rates.put(self.round, rate);
        }
    }

    /// Goes on in the gain cycle: after an RTT; when probing for more, only once it was tried, or
    /// was too much; when draining, as soon as the queue is gone.
    fn update_phase(&mut self, now: Time, in_flight_before: Bytes) {
        let Mode::ProbeBw(phase) = self.mode else { return };
        let gain = CYCLE[phase];
        let is_long = self.rtt_min.is_some_and(|rtt| now.since(self.phase_start) > rtt);
        let is_over = if gain > 1.0 {
            is_long && (self.recovery_start.is_some() || in_flight_before >= self.target(gain))
        } else if gain < 1.0 {
            is_long || in_flight_before <= self.target(1.0)
        } else {
            is_long
        };
        if is_over {
            self.mode = Mode::ProbeBw((phase + 1) % CYCLE.len());
            self.phase_start = now;
        }
    }

    /// Begins with any phase but the one that drains, since there is nothing to drain.
    fn begin_cycle(&mut self, now: Time) {
        let draw = self.random.below(CYCLE.len() as u64 - 1) as usize;
        self.mode = Mode::ProbeBw(if draw >= DRAIN_PHASE { draw + 1 } else { draw });
        self.phase_start = now;
    }

    fn update_pipe(&mut self, sample: &Sample) {
        let is_limited = sample.of_newest.is_none_or(|newest| newest.is_app_limited);
        if self.is_new_round && !is_limited {
            self.pipe.handle_round(self.rates.max());
        }
    }

    fn update_drain(&mut self, now: Time) {
        if self.mode == Mode::Startup && self.pipe.is_full() {
            self.mode = Mode::Drain;
            self.credit = 0.0;
        }
        if self.mode == Mode::Drain && self.in_flight <= self.target(1.0) {
            self.begin_cycle(now);
        }
    }

    fn update_rtt_min(&mut self, now: Time, sample: &Sample) {
        let is_expired = self.rtt_min.is_some() && now.since(self.rtt_min_at) > RTT_MIN_WINDOW;
        if let Some(newest) = sample.of_newest
            && (is_expired || self.rtt_min.is_none_or(|rtt| newest.rtt <= rtt))
        {
            self.rtt_min = Some(newest.rtt);
            self.rtt_min_at = now;
        }
        if is_expired && self.mode != Mode::ProbeRtt {
            self.remember_cwnd(self.cwnd);
            self.mode = Mode::ProbeRtt;
            self.probe_rtt_end = None;
        }
        if self.mode == Mode::ProbeRtt {
            self.update_probe_rtt(now);
        }
    }

    fn update_probe_rtt(&mut self, now: Time) {
        match self.probe_rtt_end {
            None if self.in_flight <= self.window_min() => {
                let round = self.rtt_min.unwrap_or(Span::ZERO);
                self.probe_rtt_end = Some(now + PROBE_RTT.max(round));
            }
            Some(end) if now > end => {
                self.rtt_min_at = now;
                self.cwnd = self.cwnd.max(self.cwnd_before);
                if self.pipe.is_full() {
                    self.begin_cycle(now);
                } else {
                    self.mode = Mode::Startup;
                }
                self.grant_round(now);
            }
            None | Some(_) => {}
        }
    }

    fn update_recovery(&mut self, sample: &Sample) {
        if self.recovery_start.is_some_and(|start| sample.sent_at > start) {
            self.recovery_start = None;
            self.cwnd = self.cwnd.max(self.cwnd_before);
        }
    }

    fn remember_cwnd(&mut self, cwnd: Bytes) {
        let is_small = self.recovery_start.is_some() || self.mode == Mode::ProbeRtt;
        self.cwnd_before = if is_small { self.cwnd_before.max(cwnd) } else { cwnd };
    }

    fn update_cwnd(&mut self, acked: Bytes) {
        if self.recovery_start.is_some() {
            self.cwnd = self.cwnd.max(self.in_flight + acked);
            return;
        }
        let gain = if self.pipe.is_full() { WINDOW_GAIN } else { HIGH_GAIN };
        let target = self.target(gain);
        if self.pipe.is_full() {
            self.cwnd = (self.cwnd + acked).min(target);
        } else if self.cwnd < target || self.sampler.delivered() < self.window_initial() {
            self.cwnd += acked;
        }
        self.cwnd = self.cwnd.max(self.window_min());
    }

    /// What was not sent in time is not caught up with, but for what a late process explains.
    fn update_credit(&mut self, now: Time) {
        let rate = self.rates.max() * PACING_MARGIN * self.pacing_gain();
        let kept_max = (rate * LATE_MAX.as_secs_f64()).max((self.packet * 2).as_u64() as f64);
        let filled = rate * now.since(self.credit_until).as_secs_f64();
        self.credit = self.credit.min(kept_max) + filled;
        self.credit_until = self.credit_until.max(now);
    }

    /// Gives what passes in a round at once, because no ACKs come that could do it bit by bit; quinn
    /// spreads it over the round.
    fn grant_round(&mut self, now: Time) {
        let round = self.bdp(1.0) as f64 - self.in_flight.as_u64() as f64;
        self.credit = round.max(0.0);
        self.credit_until = now + self.rtt_min.unwrap_or(Span::ZERO);
    }

    fn pacing_gain(&self) -> f64 {
        match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => 1.0 / HIGH_GAIN,
            Mode::ProbeBw(phase) => CYCLE[phase],
            Mode::ProbeRtt => 1.0,
        }
    }

    /// `gain` times what is in flight at the estimated rate without a queue, in bytes.
    fn bdp(&self, gain: f64) -> u64 {
        let rtt_s = self.rtt_min.map_or(0.0, Span::as_secs_f64);
        (self.rates.max() * rtt_s * gain) as u64
    }

    /// The same with room for three bursts: the sender's, the receiver's and the queue's.
    fn target(&self, gain: f64) -> Bytes {
        let burst = (self.rates.max() * BURST.as_secs_f64()) as u64;
        let burst = Bytes::new(burst).max(self.packet * 2);
        Bytes::new(self.bdp(gain) + 3 * burst.as_u64())
    }

    fn window_min(&self) -> Bytes {
        self.packet * WINDOW_MIN
    }
}

/// 2/ln 2: the smallest gain that doubles the rate each round (§4.2.1).
const HIGH_GAIN: f64 = 2.885;
const WINDOW_GAIN: f64 = 2.0;
/// Gains of PROBE_BW, each for about an RTT (§4.3.4).
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const DRAIN_PHASE: usize = 1;
/// Linux's `bbr_pacing_margin_percent`.
const PACING_MARGIN: f64 = 0.99;
const RTT_MIN_WINDOW: Span = Span::secs(10);
const PROBE_RTT: Span = Span::millis(200);
/// RFC 9002 §7.2, in packets.
const WINDOW_INITIAL: u64 = 10;
/// The window of PROBE_RTT, and the smallest of all, in packets.
const WINDOW_MIN: u64 = 4;
/// What is sent at once: as much as passes in this time, or two packets (§4.2.2).
const BURST: Span = Span::millis(1);
/// By how much a process that is not alone on its core may be late.
const LATE_MAX: Span = Span::millis(2);
