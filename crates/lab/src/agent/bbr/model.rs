//! The state machine: estimates what the path can carry, and how much may be in flight.
//!
//! The largest delivery rate of the last ten rounds and the smallest RTT of the last ten seconds
//! give the pacing rate and, times two, the congestion window. STARTUP doubles the rate until that gains
//! nothing more (three rounds below 25 %), DRAIN empties the queue that STARTUP built up, PROBE_BW cycles
//! through gains that probe for more and drain it again, and PROBE_RTT goes down to four packets for
//! 200 ms if no smaller RTT was seen for ten seconds.
//!
//! The caller sees one [`window`](Model::window): the bytes in flight plus the *credit*. Each ACK adds to
//! the credit the pacing rate times the time since the last ACK; each packet sent uses it up. So the ACKs
//! space the packets at the path's pace, and the queue grows and shrinks as if they were paced. In STARTUP
//! only the congestion window counts.
//!
//! Invariant: when the window is full, at most a congestion window is in flight; at least four packets
//! may always be. Source: draft-cardwell-iccrg-bbr-congestion-control-00; the margin of 1 %
//! below the estimate is Linux's.

use fairweir_core::units::{Bytes, Span, Time};
use fairweir_scenario::bbr::{MaxFilter, Pipe};
use fairweir_scenario::random::SplitMix64;

use super::sampler::{Sample, Sampler};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    /// Contains the phase of the gain cycle.
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
    /// Maximum of recent delivery rates, in bytes/s.
    rates: MaxFilter,
    round: u32,
    /// The round ends when a packet is acknowledged that was sent after this number of bytes was delivered.
    round_end: Bytes,
    is_new_round: bool,
    rtt_min: Option<Span>,
    rtt_min_at: Time,
    /// When PROBE_RTT ends; set once few enough packets are in flight.
    probe_rtt_end: Option<Time>,
    pipe: Pipe,
    cwnd: Bytes,
    /// The congestion window before recovery or PROBE_RTT began.
    cwnd_before: Bytes,
    /// When recovery began; it ends when a packet that was sent later is acknowledged.
    recovery_start: Option<Time>,
    /// What may be sent in addition to the bytes in flight, in bytes; negative if a probe overdraws it.
    credit: f64,
    /// The time up to which credit has been added.
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

    /// How many bytes may be in flight.
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

    /// A packet of `size` was sent.
    pub(super) fn handle_sent(&mut self, now: Time, size: Bytes) {
        let is_idle = self.in_flight == Bytes::ZERO;
        self.sampler.handle_sent(now, is_idle);
        if is_idle {
            self.grant_round(now);
        }
        self.in_flight += size;
        self.credit -= size.as_u64() as f64;
    }

    /// The current ACK acknowledges a packet.
    pub(super) fn handle_packet_acked(&mut self, sent_at: Time, size: Bytes) {
        self.sampler.handle_packet_acked(sent_at, size);
    }

    /// The current ACK has been processed and leaves `in_flight` bytes. `is_dry` means that the
    /// application had nothing more to send.
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

    /// Packets were lost, the newest of which was sent at `sent_at`. The window shrinks by them, and for one
    /// round each delivered packet allows one new packet. After a persistent loss the rate estimate of the
    /// pipe is forgotten.
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

    /// Moves to the next phase of the gain cycle: after an RTT; when probing, only after the higher amount
    /// was in flight or caused a loss; when draining, also as soon as the queue is empty.
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

    /// Starts the cycle in a random phase other than the draining one, since there is nothing to drain.
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

    /// Packets that were not sent in time are not made up for, except for the delay of a late process.
    fn update_credit(&mut self, now: Time) {
        let rate = self.rates.max() * PACING_MARGIN * self.pacing_gain();
        let kept_max = (rate * LATE_MAX.as_secs_f64()).max((self.packet * 2).as_u64() as f64);
        let filled = rate * now.since(self.credit_until).as_secs_f64();
        self.credit = self.credit.min(kept_max) + filled;
        self.credit_until = self.credit_until.max(now);
    }

    /// Grants the credit of a whole round at once, because no ACKs arrive that could add it gradually; quinn
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

    /// `gain` times the bytes in flight at the estimated rate without a queue (the BDP).
    fn bdp(&self, gain: f64) -> u64 {
        let rtt_s = self.rtt_min.map_or(0.0, Span::as_secs_f64);
        (self.rates.max() * rtt_s * gain) as u64
    }

    /// As [`Model::bdp`], plus room for three bursts: at the sender, the receiver and the queue.
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
/// The window in PROBE_RTT, and the minimum window in all modes, in packets.
const WINDOW_MIN: u64 = 4;
/// A burst: the bytes that pass in this time, but at least two packets (§4.2.2).
const BURST: Span = Span::millis(1);
/// Maximum delay of a process that shares its core with others.
const LATE_MAX: Span = Span::millis(2);
