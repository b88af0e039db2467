//! CUBIC: a window that is a cubic function of the time since the last cut.
//!
//! W(t) = C·(t − K)³ + W_max with K = ∛((W_max − cwnd)/C): growth is fast below the window of the
//! last loss, slow around it and fast above it, and never slower than Reno's. A loss leaves β of
//! the window. Source: RFC 9438. Linux and this code differ from it in four points. The target is
//! W(t + min RTT), with time since the last ACK-driven update of at least a millisecond. Reno's
//! increase in the friendly region stays 3(1−β)/(1+β) per round also above W_max. Until the first
//! loss the window grows by at least 5 % a round. After a timeout nothing is remembered.
//!
//! HyStart (Ha and Rhee, Computer Networks 55(9), 2011) ends slow start early, from a window of 16
//! on: if ACKs that follow each other within 2 ms span half the smallest RTT, or if the smallest of
//! eight or more RTTs of a round is an eighth above the smallest RTT of all (4 to 16 ms). Unlike
//! HyStart++ (RFC 9406), Linux keeps the ACK train test and has no second, slower phase.

use fairweir_core::units::{Span, Time};

use super::super::recovery::State;
use super::{AckSample, WINDOW_AFTER_LOSS_MIN, Window};

#[derive(Clone, Debug)]
pub(in crate::tcp) struct Cubic {
    /// The window at the last loss, or less if these windows are falling; 0 before the first loss.
    window_max: f64,
    epoch: Option<Epoch>,
    /// Number of acknowledged packets for which the window grows by one packet.
    per_packet: u32,
    rtt_min: Option<Span>,
    hystart: HyStart,
}

/// The time since the window began to grow after a cut.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Time,
    updated: Time,
    /// The window at the last update.
    cwnd: u32,
    /// K, the time at which the function is flat; below, its value there.
    plateau_after_s: f64,
    plateau: f64,
    /// The window that Reno would have.
    reno: f64,
}

impl Cubic {
    pub(super) fn new() -> Cubic {
        Cubic {
            window_max: 0.0,
            epoch: None,
            per_packet: 1,
            rtt_min: None,
            hystart: HyStart::default(),
        }
    }

    pub(super) fn handle_ack(&mut self, sample: &AckSample, window: &mut Window) {
        if let Some(rtt) = sample.rtt {
            self.handle_rtt(rtt, sample, window);
        }
        if sample.state == State::Recovery || !sample.may_grow {
            return;
        }
        let mut rest = sample.acked;
        if window.is_in_slow_start() {
            rest = window.slow_start(rest);
        }
        if rest > 0 {
            self.update(sample.now, window.cwnd, rest);
            window.increase(self.per_packet, rest);
        }
    }

    pub(super) fn handle_congestion(&mut self, cwnd: u32) -> u32 {
        self.epoch = None;
        let window = cwnd;
        let cwnd = f64::from(cwnd);
        // Fast convergence (§4.7): a flow that gets less than before makes room for others.
        let is_going_down = cwnd < self.window_max;
        self.window_max = if is_going_down { cwnd * (1.0 + BETA) / 2.0 } else { cwnd };
        ssthresh(window)
    }

    /// Time in which nothing was sent does not let the window grow (§5.8).
    pub(super) fn handle_restart(&mut self, now: Time, idle: Span) {
        if let Some(epoch) = &mut self.epoch {
            epoch.start = (epoch.start + idle).min(now);
        }
    }

    fn handle_rtt(&mut self, rtt: Span, sample: &AckSample, window: &mut Window) {
        // RTTs say nothing while there is still the queue that a recovery leaves behind.
        if self.epoch.is_some_and(|epoch| sample.now.since(epoch.start) < SETTLE) {
            return;
        }
        let rtt_min = self.rtt_min.map_or(rtt, |least| least.min(rtt));
        self.rtt_min = Some(rtt_min);
        if window.is_in_slow_start() && self.hystart.is_time_to_leave(rtt, rtt_min, sample, window)
        {
            window.ssthresh = window.cwnd;
        }
    }

    /// Updates the speed at which the window grows.
    fn update(&mut self, now: Time, cwnd: u32, acked: u32) {
        let window_max = self.window_max;
        let epoch = match &mut self.epoch {
            Some(epoch) => epoch,
            None => {
                let window = f64::from(cwnd);
                let (plateau_after_s, plateau) = if window_max <= window {
                    (0.0, window)
                } else {
                    (cube_root((window_max - window) / C), window_max)
                };
                let start = Epoch {
                    start: now,
                    updated: Time::ZERO,
                    cwnd: 0,
                    plateau_after_s,
                    plateau,
                    reno: window,
                };
                self.epoch.insert(start)
            }
        };
        let window = f64::from(cwnd);
        epoch.reno += RENO_INCREASE * f64::from(acked) / window;
        let age = now.since(epoch.updated);
        if epoch.cwnd == cwnd && age < UPDATE_MAX {
            return;
        }
        if age >= UPDATE_MIN {
            epoch.updated = now;
            epoch.cwnd = cwnd;
            let t_s = (now.since(epoch.start) + self.rtt_min.unwrap_or(Span::ZERO)).as_secs_f64();
            let off_s = t_s - epoch.plateau_after_s;
            let target = epoch.plateau + C * off_s * off_s * off_s;
            let rate = if target > window { window / (target - window) } else { SLOWEST * window };
            self.per_packet = rate as u32;
            if window_max == 0.0 {
                self.per_packet = self.per_packet.min(PER_PACKET_AT_FIRST);
            }
        }
        if epoch.reno > window {
            self.per_packet = self.per_packet.min((window / (epoch.reno - window)) as u32);
        }
        self.per_packet = self.per_packet.max(PER_PACKET_MIN);
    }
}

/// The window that remains after a loss.
pub(super) fn ssthresh(cwnd: u32) -> u32 {
    ((f64::from(cwnd) * BETA) as u32).max(WINDOW_AFTER_LOSS_MIN)
}

/// Finds the end of slow start before a packet is lost.
#[derive(Clone, Debug, Default)]
struct HyStart {
    is_found: bool,
    /// The round ends when this number is acknowledged.
    round_end: u64,
    round_start: Time,
    /// The last ACK of the train that began with the round.
    train_last: Time,
    rtt_round: Option<Span>,
    samples: u32,
}

impl HyStart {
    fn is_time_to_leave(
        &mut self,
        rtt: Span,
        rtt_min: Span,
        sample: &AckSample,
        window: &Window,
    ) -> bool {
        if self.is_found {
            return false;
        }
        let now = sample.now;
        if sample.acked_end > self.round_end {
            *self = HyStart {
                round_end: sample.numbers_end,
                round_start: now,
                train_last: now,
                ..HyStart::default()
            };
        }
        if window.cwnd < HYSTART_WINDOW_MIN {
            return false;
        }
        if now.since(self.train_last) <= TRAIN_GAP_MAX {
            self.train_last = now;
            let whole = rtt_min + TRAIN_ALLOWANCE;
            let most = if sample.is_paced { whole } else { whole / 2 };
            self.is_found = now.since(self.round_start) > most;
        }
        let rtt_round = self.rtt_round.map_or(rtt, |least| least.min(rtt));
        self.rtt_round = Some(rtt_round);
        if self.samples < HYSTART_SAMPLES {
            self.samples += 1;
        } else {
            let rise = (rtt_min / 8).clamp(RISE_MIN, RISE_MAX);
            self.is_found |= rtt_round > rtt_min + rise;
        }
        self.is_found
    }
}

/// The cube root of a number from 0 to 2⁶⁴, by Newton's method: the standard library's may differ
/// in the last bit from machine to machine.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    // A third of the exponent gives a start value within a factor of two.
    let mut root = f64::from_bits(x.to_bits() / 3 + (1023 - 1023 / 3) * (1 << 52));
    for _ in 0..CUBE_ROOT_STEPS {
        root = (2.0 * root + x / (root * root)) / 3.0;
    }
    root
}

/// β_cubic (RFC 9438 §4.6); 717/1024 as in Linux.
const BETA: f64 = 717.0 / 1024.0;
/// C (RFC 9438 §5.1), in packets/s³; Linux uses 410/1024.
const C: f64 = 0.4;
/// α_cubic (RFC 9438 §4.3): Reno's increase per round that matches β.
const RENO_INCREASE: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// The fastest growth: 1.5-fold per round (RFC 9438 §4.2).
const PER_PACKET_MIN: u32 = 2;
/// The slowest growth before the first loss: 5 % per round.
const PER_PACKET_AT_FIRST: u32 = 20;
/// At its target, the window grows by 1 % of a packet per round.
const SLOWEST: f64 = 100.0;
/// A jiffy of Linux at 1000 Hz.
const UPDATE_MIN: Span = Span::millis(1);
/// While the window does not change, the target is computed once in this time.
const UPDATE_MAX: Span = Span::nanos(31_250_000);
/// Time after the start of an epoch in which RTTs are ignored.
const SETTLE: Span = Span::secs(1);
/// Linux's `hystart_low_window`.
const HYSTART_WINDOW_MIN: u32 = 16;
/// Linux's `HYSTART_MIN_SAMPLES`.
const HYSTART_SAMPLES: u32 = 8;
/// Linux's `hystart_ack_delta`.
const TRAIN_GAP_MAX: Span = Span::millis(2);
/// Allowance in a train's length for lumps of senders and receivers; below 2 Gbit/s it is this value.
const TRAIN_ALLOWANCE: Span = Span::millis(1);
/// Linux's `HYSTART_DELAY_MIN` and `HYSTART_DELAY_MAX`.
const RISE_MIN: Span = Span::millis(4);
const RISE_MAX: Span = Span::millis(16);
/// From a factor of two, each step doubles the correct digits.
const CUBE_ROOT_STEPS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cube_root_is_one() {
        for x in [1e-9, 0.125, 1.0, 2.0, 27.0, 1_000.0, 123_456.789, 1e12] {
            let root = cube_root(x);
            assert!((root * root * root / x - 1.0).abs() < 1e-14, "{x} {root}");
        }
        assert_eq!(cube_root(0.0), 0.0);
    }

    #[test]
    fn the_window_follows_the_closed_form() {
        // 300 packets are cut to 210: K = ∛(90/0.4) = 6.08 s; then 300 is reached again, and flat.
        let rtt = Span::millis(100);
        let mut cubic = Cubic::new();
        let mut window = Window { cwnd: 300, ssthresh: 0, count: 0 };
        window.cwnd = cubic.handle_congestion(300);
        assert_eq!(window.cwnd, 210);
        let k_s = cube_root(90.0 / C);
        let mut cwnd_at = Vec::new();
        for round in 0..100u64 {
            for i in 0..20 {
                let now = Time::ZERO + rtt * (round + 10) + Span::millis(5) * i;
                let acked = window.cwnd / 20 + u32::from(u64::from(window.cwnd % 20) > i);
                cubic.rtt_min = Some(rtt);
                cubic.update(now, window.cwnd, acked);
                window.increase(cubic.per_packet, acked);
            }
            cwnd_at.push(f64::from(window.cwnd));
        }
        for (round, cwnd) in cwnd_at.iter().enumerate() {
            let t_s = (round as f64 + 1.0) * 0.1;
            let off = t_s - k_s;
            let closed_form = 300.0 + C * off * off * off;
            assert!((cwnd / closed_form - 1.0).abs() < 0.02, "{t_s} s: {cwnd}, not {closed_form}");
        }
    }

    #[test]
    fn who_goes_down_remembers_less() {
        let mut cubic = Cubic::new();
        cubic.handle_congestion(300);
        assert_eq!(cubic.window_max, 300.0);
        assert_eq!(cubic.handle_congestion(200), 140);
        assert!((cubic.window_max - 170.0).abs() < 0.1);
    }
}
