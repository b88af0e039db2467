//! BBR, version 1: sends at the rate that the path was seen to deliver.
//!
//! A model of the path gives the pacing rate and, times two, the window: the largest delivery rate
//! of the last ten rounds and the smallest RTT of the last ten seconds. STARTUP doubles the rate
//! until the rate no longer grows (three rounds below 25 %). DRAIN empties the queue that this
//! built up. PROBE_BW uses a cycle of gains to probe for more and to drain again. PROBE_RTT goes
//! down to four packets for 200 ms if no smaller RTT was seen for ten seconds.
//!
//! Source: draft-cardwell-iccrg-bbr-congestion-control-00; Cardwell et al., CACM 60(2), 2017. Three
//! points are as in Linux and not in the draft: pacing 1 % below the estimate, the window's
//! allowance for lumps of ACKs ([`aggregation`]), and the handling of policers ([`policer`]).

use fairweir_core::units::{Rate, Span, Time};
use fairweir_scenario::bbr::{MaxFilter, Pipe};
use fairweir_scenario::random::SplitMix64;

use super::super::pacing::Pacer;
use super::super::rate::is_after;
use super::super::recovery::State;
use super::{AckSample, INITIAL_WINDOW, Window};

mod aggregation;
mod policer;

use aggregation::Aggregation;
use policer::{PolicerDetector, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    /// The value is the phase of the gain cycle.
    ProbeBw(usize),
    ProbeRtt,
}

#[derive(Clone, Debug)]
pub(in crate::tcp) struct Bbr {
    /// Payload of a full packet in bytes.
    segment: u64,
    mode: Mode,
    phase_start: Time,
    /// Delivery rates in packets/s.
    rates: MaxFilter,
    round: u32,
    /// The round ends when a packet is acknowledged that was sent after this volume was delivered.
    round_end: u32,
    is_new_round: bool,
    rtt_min: Span,
    rtt_min_at: Time,
    /// When PROBE_RTT ends; known once few enough packets are in flight.
    probe_rtt_end: Option<Time>,
    probe_rtt_round_done: bool,
    pipe: Pipe,
    pacing_rate: Rate,
    /// The window before recovery or PROBE_RTT.
    cwnd_before: u32,
    state_before: State,
    /// In the first round of a recovery one packet is sent for each that is delivered.
    is_conserving: bool,
    /// Sending began again, and no ACK has arrived since.
    is_restarting: bool,
    aggregation: Aggregation,
    policer: PolicerDetector,
    random: SplitMix64,
}

impl Bbr {
    pub(super) fn new(now: Time, rtt: Span, segment: u64, seed: u64) -> Bbr {
        let mut bbr = Bbr {
            segment,
            mode: Mode::Startup,
            phase_start: now,
            rates: MaxFilter::new(),
            round: 0,
            round_end: 0,
            is_new_round: false,
            rtt_min: rtt,
            rtt_min_at: now,
            probe_rtt_end: None,
            probe_rtt_round_done: false,
            pipe: Pipe::default(),
            pacing_rate: Rate::ZERO,
            cwnd_before: 0,
            state_before: State::Open,
            is_conserving: false,
            is_restarting: false,
            aggregation: Aggregation::new(now),
            policer: PolicerDetector::default(),
            random: SplitMix64::new(seed),
        };
        let rate = f64::from(INITIAL_WINDOW) / rtt.as_secs_f64().max(RTT_FIRST_MIN_S);
        bbr.pacing_rate = bbr.paced(rate, HIGH_GAIN);
        bbr
    }

    pub(super) fn is_probing_rtt(&self) -> bool {
        self.mode == Mode::ProbeRtt
    }

    pub(super) fn pacing_rate(&self) -> Rate {
        self.pacing_rate
    }

    pub(super) fn handle_ack(&mut self, sample: &AckSample, window: &mut Window) {
        self.update_rate(sample);
        if sample.rate.is_some() && sample.acked > 0 {
            let rate = self.rate();
            self.aggregation.handle_ack(sample, self.is_new_round, rate, window);
        }
        self.update_phase(sample);
        self.update_pipe(sample);
        self.update_drain(sample, window);
        self.update_rtt_min(sample, window);

        let rate = self.paced(self.rate(), self.pacing_gain());
        if self.pipe.is_full() || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
        self.set_window(sample, window);
    }

    /// A loss changes nothing in the model; after the repair the window is restored.
    pub(super) fn handle_congestion(&mut self, cwnd: u32) {
        let is_small = self.state_before != State::Open || self.mode == Mode::ProbeRtt;
        self.cwnd_before = if is_small { self.cwnd_before.max(cwnd) } else { cwnd };
    }

    /// The end of STARTUP is judged again, from the rate after the timeout.
    pub(super) fn handle_timeout(&mut self) {
        self.state_before = State::Loss;
        self.pipe.forget_rate();
    }

    /// The application sends again after a silence: the rate is kept, without a probe.
    pub(super) fn handle_restart(&mut self, now: Time, window: &mut Window) {
        self.is_restarting = true;
        self.aggregation.handle_restart(now);
        match self.mode {
            Mode::ProbeBw(_) => self.pacing_rate = self.paced(self.rate(), 1.0),
            Mode::ProbeRtt => self.finish_probe_rtt(now, window),
            Mode::Startup | Mode::Drain => {}
        }
    }

    /// The estimated rate in packets/s: the policer's if there is one.
    fn rate(&self) -> f64 {
        self.policer.rate().unwrap_or(self.rates.max())
    }

    fn pacing_gain(&self) -> f64 {
        match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => 1.0 / HIGH_GAIN,
            Mode::ProbeBw(_) if self.policer.rate().is_some() => 1.0,
            Mode::ProbeBw(phase) => CYCLE[phase],
            Mode::ProbeRtt => 1.0,
        }
    }

    fn window_gain(&self) -> f64 {
        match self.mode {
            Mode::Startup | Mode::Drain => HIGH_GAIN,
            Mode::ProbeBw(_) => WINDOW_GAIN,
            Mode::ProbeRtt => 1.0,
        }
    }

    /// The pacing rate, in payload, for a rate in packets/s.
    fn paced(&self, rate: f64, gain: f64) -> Rate {
        let bps = rate * self.segment as f64 * 8.0 * gain * PACING_MARGIN;
        Rate::bps(bps as u64).max(PACING_RATE_MIN)
    }

    fn update_rate(&mut self, sample: &AckSample) {
        self.is_new_round = false;
        let Some(rate) = sample.rate else { return };
        if !is_after(self.round_end, rate.delivered_before) {
            self.round_end = sample.delivered_total;
            self.round = self.round.wrapping_add(1);
            self.is_new_round = true;
            self.is_conserving = false;
        }
        let is_probing = matches!(self.mode, Mode::ProbeBw(_));
        match self.policer.handle_ack(sample, self.is_new_round, is_probing, self.segment) {
            Verdict::Nothing | Verdict::Found => {}
            Verdict::Over => self.begin_cycle(sample.now),
        }
        let achieved = f64::from(rate.delivered) / rate.interval.as_secs_f64();
        if !rate.is_app_limited || achieved >= self.rates.max() {
            self.rates.put(self.round, achieved);
        }
    }

    /// Advances the gain cycle: after an RTT; when probing for more, only once the higher rate was
    /// tried, or was too much; when draining, as soon as the queue is gone.
    fn update_phase(&mut self, sample: &AckSample) {
        let Mode::ProbeBw(phase) = self.mode else { return };
        let gain = self.pacing_gain();
        let is_long = sample.now.since(self.phase_start) > self.rtt_min;
        let is_over = if gain > 1.0 {
            let target = self.target(self.rates.max(), gain);
            is_long && (sample.lost > 0 || sample.in_flight_before >= target)
        } else if gain < 1.0 {
            is_long || sample.in_flight_before <= self.target(self.rates.max(), 1.0)
        } else {
            is_long
        };
        if is_over {
            self.mode = Mode::ProbeBw((phase + 1) % CYCLE.len());
            self.phase_start = sample.now;
        }
    }

    /// Begins with any phase except the draining one, since there is nothing to drain.
    fn begin_cycle(&mut self, now: Time) {
        let draw = self.random.below(CYCLE.len() as u64 - 1) as usize;
        let phase = if draw >= DRAIN_PHASE { draw + 1 } else { draw };
        self.mode = Mode::ProbeBw(phase);
        self.phase_start = now;
    }

    fn update_pipe(&mut self, sample: &AckSample) {
        let is_limited = sample.rate.is_some_and(|rate| rate.is_app_limited);
        if self.is_new_round && !is_limited {
            self.pipe.handle_round(self.rates.max());
        }
    }

    fn update_drain(&mut self, sample: &AckSample, window: &mut Window) {
        if self.mode == Mode::Startup && self.pipe.is_full() {
            self.mode = Mode::Drain;
            window.ssthresh = self.target(self.rates.max(), 1.0);
        }
        if self.mode == Mode::Drain && sample.in_flight <= self.target(self.rates.max(), 1.0) {
            self.begin_cycle(sample.now);
        }
    }

    fn update_rtt_min(&mut self, sample: &AckSample, window: &mut Window) {
        let is_expired = sample.now.since(self.rtt_min_at) > RTT_MIN_WINDOW;
        if let Some(rtt) = sample.rtt.filter(|&rtt| rtt < self.rtt_min || is_expired) {
            self.rtt_min = rtt;
            self.rtt_min_at = sample.now;
        }
        if is_expired && !self.is_restarting && self.mode != Mode::ProbeRtt {
            self.handle_congestion(window.cwnd);
            self.mode = Mode::ProbeRtt;
            self.probe_rtt_end = None;
        }
        if self.mode == Mode::ProbeRtt {
            self.update_probe_rtt(sample, window);
        }
        if sample.acked > 0 {
            self.is_restarting = false;
        }
    }

    fn update_probe_rtt(&mut self, sample: &AckSample, window: &mut Window) {
        if self.probe_rtt_end.is_some() {
            self.probe_rtt_round_done |= self.is_new_round;
            if self.probe_rtt_round_done {
                self.finish_probe_rtt(sample.now, window);
            }
        } else if sample.in_flight <= WINDOW_MIN {
            self.probe_rtt_end = Some(sample.now + PROBE_RTT);
            self.probe_rtt_round_done = false;
            self.round_end = sample.delivered_total;
        }
    }

    fn finish_probe_rtt(&mut self, now: Time, window: &mut Window) {
        if self.probe_rtt_end.is_none_or(|end| now <= end) {
            return;
        }
        self.rtt_min_at = now;
        window.cwnd = window.cwnd.max(self.cwnd_before);
        if self.pipe.is_full() {
            self.begin_cycle(now);
        } else {
            self.mode = Mode::Startup;
        }
    }

    fn set_window(&mut self, sample: &AckSample, window: &mut Window) {
        if sample.acked > 0 && !self.set_window_in_recovery(sample, window) {
            let rate = self.rate();
            let mut target = self.bdp(rate, self.window_gain());
            if self.pipe.is_full() {
                target += self.aggregation.allowance(rate);
            }
            let target = self.with_room_for_bursts(target);
            if self.pipe.is_full() {
                window.cwnd = (window.cwnd + sample.acked).min(target);
            } else if window.cwnd < target || sample.delivered_total < INITIAL_WINDOW {
                window.cwnd += sample.acked;
            }
            window.cwnd = window.cwnd.max(WINDOW_MIN);
        }
        if self.mode == Mode::ProbeRtt {
            window.cwnd = window.cwnd.min(WINDOW_MIN);
        }
    }

    /// Subtracts lost packets from the window; returns whether a recovery's first round is on.
    fn set_window_in_recovery(&mut self, sample: &AckSample, window: &mut Window) -> bool {
        let conserved = sample.in_flight + sample.acked;
        if sample.lost > 0 {
            window.cwnd = window.cwnd.saturating_sub(sample.lost).max(1);
        }
        if sample.state == State::Recovery && self.state_before != State::Recovery {
            self.is_conserving = true;
            self.round_end = sample.delivered_total;
            window.cwnd = conserved;
        } else if self.state_before != State::Open && sample.state == State::Open {
            window.cwnd = window.cwnd.max(self.cwnd_before);
            self.is_conserving = false;
        }
        self.state_before = sample.state;
        if self.is_conserving {
            window.cwnd = window.cwnd.max(conserved);
        }
        self.is_conserving
    }

    /// `gain` times the packets that are in flight at a rate in packets/s without a queue.
    fn bdp(&self, rate: f64, gain: f64) -> u32 {
        (rate * self.rtt_min.as_secs_f64() * gain).ceil() as u32
    }

    /// The same, with room for packets that hosts hold back in bursts.
    fn target(&self, rate: f64, gain: f64) -> u32 {
        self.with_room_for_bursts(self.bdp(rate, gain))
    }

    /// Adds a burst each for sender, receiver and queue; makes the window even, for delayed ACKs;
    /// and adds two packets while probing, so that this works with the smallest window.
    fn with_room_for_bursts(&self, window: u32) -> u32 {
        let bursts = 3 * Pacer::burst_packets(self.pacing_rate, self.segment) as u32;
        let even = (window + bursts).next_multiple_of(2);
        if self.mode == Mode::ProbeBw(PROBE_PHASE) { even + 2 } else { even }
    }
}

/// 2/ln 2: the smallest gain that doubles the rate each round (§4.2.1), as Linux rounds it.
const HIGH_GAIN: f64 = 2.885;
const WINDOW_GAIN: f64 = 2.0;
/// Gains of PROBE_BW, each for about an RTT.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const PROBE_PHASE: usize = 0;
const DRAIN_PHASE: usize = 1;
/// Linux's `bbr_pacing_margin_percent`.
const PACING_MARGIN: f64 = 0.99;
/// About a packet per second, so that held-back packets go at some time.
const PACING_RATE_MIN: Rate = Rate::kbit(10);
const RTT_MIN_WINDOW: Span = Span::secs(10);
const PROBE_RTT: Span = Span::millis(200);
/// The window of PROBE_RTT, and the smallest of all.
const WINDOW_MIN: u32 = 4;
/// A handshake RTT below this is not believed.
const RTT_FIRST_MIN_S: f64 = 0.001;
