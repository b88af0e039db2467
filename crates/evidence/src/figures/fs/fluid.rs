//! The paper's fluid model: windows of TCP as differential equations (§IV, eq. (5)-(15)).
//!
//! Problem: does a gain that follows the error make the free connection's rate follow its target,
//! and which connections pay? Method: Euler's, in steps of 1 ms, with the delays of the paper: a
//! rate reaches the queue after a part of the propagation delay, and a signal returns after the
//! rest of the round-trip time. Rates are in packets per second, signals are probabilities.
//!
//! The paper's print and our resolved version differ in two places, and both are played: the sign of
//! eq. (4), and eq. (10) and (11), where g is subtracted from a probability. Eq. (14) follows from w'
//! = x(t−r) · ((1−q)/w − q·w/2) only while the round-trip time is constant, and without the part that
//! it leaves out the queue oscillates. So windows are integrated, and eq. (13) gives the rates.

use std::collections::VecDeque;

use fairweir_core::delegate::{Algorithm, Controller, Interval, Trace};
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_scenario::random::SplitMix64;

/// Parameters of a run of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) stunts: usize,
    pub(super) cross: usize,
    pub(super) gain: Law,
    pub(super) signals: Signals,
    /// Seed of the round-trip times.
    pub(super) seed: u64,
}

/// How the gain follows the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Law {
    /// Eq. (4): the gain rises with the rate.
    Printed,
    /// As in the controller of the product.
    Resolved,
}

/// The effect of a gain on the signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signals {
    /// Eq. (10) and (11): g is a probability.
    Printed,
    /// g is the part of the signals, and reductions are equal in rate.
    Resolved,
}

/// The mean rates over an interval of 100 ms, in packets per second, with the time of its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) at_s: f64,
    pub(super) target: f64,
    pub(super) free: f64,
    /// Mean over the stunts; below, over the others.
    pub(super) stunt: f64,
    pub(super) cross: f64,
}

/// Capacity of the bottleneck, in packets per second (§IV-B).
pub(super) const CAPACITY: f64 = 2_000.0;
/// Round-trip times are around 100 ms (§IV-B).
pub(super) const RTT: Span = Span::millis(100);
const RTT_SPREAD_S: f64 = 0.02;
/// α: the part of the propagation delay that lies before the queue.
const BEFORE_QUEUE: f64 = 0.25;
/// The paper gives no parameters of RED for its model. With those of §V (11, 45, 0.1) the queue
/// oscillates and the link is idle a quarter of the time. The values here are stable by the
/// criterion of Hollot et al. (INFOCOM 2001) for 20 connections.
const QUEUE_MIN: f64 = 50.0;
const QUEUE_MAX: f64 = 550.0;
const LOSS_MAX: f64 = 0.1;
/// β of eq. (9).
const AVERAGING: f64 = 0.01;
const STEP_S: f64 = 1e-3;
/// Time from one decision to the next.
const INTERVAL: Span = Span::millis(100);
/// K of eq. (4) per packet per second: the amount that the resolved controller integrates in an
/// interval at 200 packets per second.
const PRINTED_K: f64 = 0.04 / 200.0;
/// The largest g of eq. (10) and (11): about twice the loss probability without delegation. With
/// the whole range of probabilities the loop oscillates.
const PRINTED_SIGNALS: f64 = 0.02;
/// Size of a packet: the controller's rates are rates in packets per second times this.
pub(super) const PACKET: Bytes = Bytes::new(1_000);

/// A rate in packets per second.
pub(super) fn packets(per_second: f64) -> Rate {
    Rate::bps((per_second * PACKET.as_u64() as f64 * 8.0).round() as u64)
}

fn per_second(rate: Rate) -> f64 {
    rate.as_bps() as f64 / (PACKET.as_u64() as f64 * 8.0)
}

/// A connection: the free one, then the stunts, then the others.
struct Flow {
    propagation_s: f64,
    window: f64,
    /// Rates of past steps, the newest first, for the longest delay; below, the signals.
    rates: VecDeque<f64>,
    signals: VecDeque<f64>,
}

/// Number of steps that are kept, which the longest delay requires.
const HISTORY: usize = 400;

impl Flow {
    fn ago(history: &VecDeque<f64>, seconds: f64) -> f64 {
        let steps = (seconds / STEP_S) as usize;
        history[steps.min(history.len() - 1)]
    }

    fn rate(&self) -> f64 {
        self.rates[0]
    }

    /// Integrates the window for one step, and computes eq. (13) with the round-trip time after it.
    fn step(&mut self, rtt_s: f64, rtt_next_s: f64) {
        let acks = Flow::ago(&self.rates, rtt_s);
        let q = Flow::ago(&self.signals, rtt_s - BEFORE_QUEUE * self.propagation_s);
        let slope = acks * ((1.0 - q) / self.window - self.window / 2.0 * q);
        // A window has at least one packet.
        self.window = (self.window + STEP_S * slope).max(1.0);
        self.rates.pop_back();
        self.rates.push_front(self.window / rtt_next_s);
    }
}

fn control(controller: &mut Controller, law: Law, gain: f64, seen: &Interval) -> f64 {
    match law {
        Law::Resolved => controller.handle_interval(seen).as_f64(),
        Law::Printed => {
            let error = per_second(seen.rate) - 4.0 / 3.0 * per_second(seen.target);
            (gain + PRINTED_K * error).clamp(-1.0, 1.0)
        }
    }
}

impl Model {
    /// Plays the model until `end`.
    pub(super) fn play(&self, trace: &Trace, end: Time) -> Vec<Sample> {
        let mut random = SplitMix64::new(self.seed);
        let count = 1 + self.stunts + self.cross;
        let mut flow = || Flow {
            window: CAPACITY / count as f64 * RTT.as_secs_f64(),
            propagation_s: RTT.as_secs_f64() + RTT_SPREAD_S * (random.fraction() - 0.5),
            rates: vec![CAPACITY / count as f64; HISTORY].into(),
            signals: vec![0.0; HISTORY].into(),
        };
        let mut flows: Vec<Flow> = (0..count).map(|_| flow()).collect();
        let (mut queue, mut average) = (0.0f64, 0.0f64);
        let mut controller = Controller::new(Algorithm::Pi);
        let mut gain = 0.0;
        let mut samples = Vec::new();
        let mut sums = [0.0; 3];
        let per_interval = (INTERVAL.as_secs_f64() / STEP_S).round() as u64;
        for step in 1..=(end.as_secs_f64() / STEP_S) as u64 {
            let arriving: f64 =
                flows.iter().map(|f| Flow::ago(&f.rates, BEFORE_QUEUE * f.propagation_s)).sum();
            let loss = ((average - QUEUE_MIN) * LOSS_MAX / (QUEUE_MAX - QUEUE_MIN)).clamp(0.0, 1.0);
            self.signal(&mut flows, loss, gain);
            // Eq. (7); a queue cannot be negative.
            let queue_next = (queue + STEP_S * (arriving - CAPACITY)).max(0.0);
            for flow in &mut flows {
                let rtt_s = |queue: f64| flow.propagation_s + queue / CAPACITY;
                let (before, after) = (rtt_s(queue), rtt_s(queue_next));
                flow.step(before, after);
            }
            average -= STEP_S * AVERAGING * CAPACITY * (average - queue);
            queue = queue_next;
            let [free, stunt, cross] = self.means(&flows);
            for (sum, rate) in sums.iter_mut().zip([free, stunt, cross]) {
                *sum += rate / per_interval as f64;
            }
            if step % per_interval == 0 {
                let now = Time::ZERO + INTERVAL * (step / per_interval);
                let [free, stunt, cross] = std::mem::take(&mut sums);
                let target = trace.at(now);
                let spare = (stunt - 1.0 / RTT.as_secs_f64()).max(0.0) * self.stunts as f64;
                gain = control(
                    &mut controller,
                    self.gain,
                    gain,
                    &Interval {
                        length: INTERVAL,
                        target,
                        rate: packets(free),
                        reachable: packets(free + spare),
                        rate_now: packets(flows[0].rate()),
                        rate_least: packets(1.0 / RTT.as_secs_f64()),
                        kept: 0.5,
                    },
                );
                let (at_s, target) = (now.as_secs_f64(), per_second(target));
                samples.push(Sample { at_s, target, free, stunt, cross });
            }
        }
        samples
    }

    /// The signals that each connection sees: eq. (10) to (12).
    fn signal(&self, flows: &mut [Flow], loss: f64, gain: f64) {
        let (free, others) = flows.split_at_mut(1);
        let (stunts, cross) = others.split_at_mut(self.stunts);
        // Reduction per loss probability: rate times window.
        let cost = |flow: &Flow| flow.rate() * flow.window;
        let (cost_free, stunts_sum) = (cost(&free[0]), stunts.iter().map(cost).sum::<f64>());
        let see = |flow: &mut Flow, q: f64| {
            flow.signals.pop_back();
            flow.signals.push_front(q.clamp(0.0, 1.0));
        };
        let count = self.stunts as f64;
        let (forward, reverse) = (gain.max(0.0), (-gain).max(0.0));
        let q_free = match self.signals {
            Signals::Printed => loss - gain * PRINTED_SIGNALS,
            Signals::Resolved => loss * (1.0 - forward) + loss * reverse * stunts_sum / cost_free,
        };
        see(&mut free[0], q_free);
        for flow in stunts {
            let q = match self.signals {
                Signals::Printed => loss + gain * PRINTED_SIGNALS / count,
                Signals::Resolved => {
                    loss * (1.0 - reverse) + loss * forward * cost_free / (count * cost(flow))
                }
            };
            see(flow, q);
        }
        cross.iter_mut().for_each(|flow| see(flow, loss));
    }

    /// The free connection's rate and the means of the stunts and the others.
    fn means(&self, flows: &[Flow]) -> [f64; 3] {
        let mean = |flows: &[Flow]| {
            flows.iter().map(Flow::rate).sum::<f64>() / (flows.len() as f64).max(1.0)
        };
        let (stunts, cross) = flows[1..].split_at(self.stunts);
        [flows[0].rate(), mean(stunts), mean(cross)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_delegation_all_have_the_fair_share() {
        let model = Model {
            stunts: 4,
            cross: 15,
            gain: Law::Resolved,
            signals: Signals::Resolved,
            seed: 1,
        };
        let trace = Trace::constant(packets(100.0)).unwrap();
        let samples = model.play(&trace, Time::ZERO + Span::secs(60));
        let late = &samples[300..];
        let mean = |of: fn(&Sample) -> f64| late.iter().map(of).sum::<f64>() / late.len() as f64;
        for (what, rate) in
            [("free", mean(|s| s.free)), ("stunt", mean(|s| s.stunt)), ("cross", mean(|s| s.cross))]
        {
            assert!((rate / 100.0 - 1.0).abs() < 0.1, "{what} {rate}");
        }
    }
}
