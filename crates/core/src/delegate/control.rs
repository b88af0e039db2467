//! Decides which part of the congestion signals is delegated, so that a rate follows its target.
//!
//! Problem: a connection that reacts to fewer signals becomes faster. Method: in every interval the last
//! rate is compared with the target, and the *gain* g follows. If g > 0, the part g of the free
//! connection's signals is delegated to the stunts. If g < 0, the part |g| of the stunts' signals is
//! delegated to the free connection.
//!
//! The paper's eq. (4) has the wrong sign, and integrates without bound. Here the error is target minus
//! rate, and the integral and the gain are each clamped. The velocity form, whose clamp is itself an
//! anti-windup, held 4 to 18 % less than a target above the fair share when measured: its clamp cuts
//! noise off on one side only.
//!
//! [`Algorithm::Track`] goes beyond the paper. Each reduction ends at the target: what the free
//! connection has above its aim it gives up at the next signal, its own or a stunt's, and what is
//! missing to the reduction that the signal asks for is given up by the other side. Source: Free and Stunts §III-A, eq. (3), (4); deviations: docs/research/papers/free-and-stunts.md.

use serde::{Deserialize, Serialize};

use crate::units::{Rate, Span};

/// The part of the signals that is delegated, from −1 to 1: a fixed-point number, so that a kernel
/// program and this crate decide alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gain(i32);

/// How the gain is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// 1 below the peak that belongs to the target, −1 above it.
    OnOff,
    /// Proportional-integral.
    Pi,
    /// Every reduction ends at the target: beyond the paper.
    Track,
}

/// What a controller sees of one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// How long it was.
    pub length: Span,
    /// The target of the connection's rate.
    pub target: Rate,
    /// The connection's rate.
    pub rate: Rate,
    /// The highest rate that the stunts let it have.
    pub reachable: Rate,
    /// Window divided by round-trip time at the end of the interval.
    pub rate_now: Rate,
    /// One packet per round-trip time.
    pub rate_least: Rate,
    /// The part of its window that a signal leaves, from 0 to 1.
    pub kept: f64,
}

/// Decides the gain of one free connection.
#[derive(Clone, Debug)]
pub struct Controller {
    algorithm: Algorithm,
    gain: f64,
    integral: f64,
    aim: Option<Rate>,
}

/// The integral gain per second, and the proportional gain. With smaller ones the fluid model misses a
/// sine of 60 s by more than 2 % (figure 3); with larger ones the noise of packets costs more.
const INTEGRAL: f64 = 1.5;
const PROPORTIONAL: f64 = 1.0;

/// Part of the error by which an aim moves away from its target per second.
const TRIM: f64 = 0.3;
/// How far the aim moves at most. Downwards far, since a small window grows by a large part of itself
/// before the next signal.
const TRIM_DOWN: f64 = 0.8;
const TRIM_UP: f64 = 0.3;

impl Gain {
    /// No delegation.
    pub const ZERO: Gain = Gain(0);
    /// Delegation of every signal.
    pub const ONE: Gain = Gain(1 << 16);

    /// The nearest gain to a number; NaN becomes zero.
    pub fn from_f64(gain: f64) -> Gain {
        Gain((gain.clamp(-1.0, 1.0) * f64::from(Gain::ONE.0)).round() as i32)
    }

    /// As a number from −1 to 1.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Gain::ONE.0)
    }

    /// The part of the free connection's signals that is delegated, in 2^-16.
    pub fn forward(self) -> u32 {
        self.0.max(0) as u32
    }

    /// The part of the stunts' signals that is delegated, in 2^-16.
    pub fn reverse(self) -> u32 {
        (-self.0).max(0) as u32
    }
}

impl Algorithm {
    /// Every one with its name in configuration files.
    pub const ALL: [(&'static str, Algorithm); 3] =
        [("track", Algorithm::Track), ("pi", Algorithm::Pi), ("on-off", Algorithm::OnOff)];
}

impl Controller {
    /// A controller that delegates nothing yet.
    pub fn new(algorithm: Algorithm) -> Controller {
        Controller { algorithm, gain: 0.0, integral: 0.0, aim: None }
    }

    /// The gain.
    pub fn gain(&self) -> Gain {
        Gain::from_f64(self.gain)
    }

    /// The rate at which reductions end, if this rather than the gain decides who gives up how much: a free
    /// connection gives up what it has above this rate, at its own signals and at those of stunts.
    pub fn aim(&self) -> Option<Rate> {
        self.aim
    }

    /// An interval is over.
    pub fn handle_interval(&mut self, interval: &Interval) -> Gain {
        let Interval { length, target, rate, reachable, rate_now, rate_least, kept } = *interval;
        // The online region check: the aim requires no more than the stunts can give up.
        let within = if rate < target { target.min(reachable).max(rate) } else { target };
        let (target, within) = (target.as_bps() as f64, within.as_bps() as f64);
        match self.algorithm {
            Algorithm::OnOff => {
                // A signal at the peak leaves `kept` of it, and the mean of peak and rest is the target.
                let peak = target * 2.0 / (1.0 + kept);
                self.gain = if rate_now.as_bps() as f64 > peak { -1.0 } else { 1.0 };
            }
            Algorithm::Pi => {
                let scale = target.max(rate_least.as_bps() as f64).max(1.0);
                // A rate of several times its target counts no more than twice the target.
                let error = ((within - rate.as_bps() as f64) / scale).max(-1.0);
                let step = INTEGRAL * length.as_secs_f64() * error;
                self.integral = (self.integral + step).clamp(-1.0, 1.0);
                self.gain = (self.integral + PROPORTIONAL * error).clamp(-1.0, 1.0);
            }
            Algorithm::Track => {
                let scale = target.max(rate_least.as_bps() as f64).max(1.0);
                let error = ((within - rate.as_bps() as f64) / scale).max(-1.0);
                // Between reductions the window is above the aim: the integral corrects the mean.
                let step = TRIM * length.as_secs_f64() * error;
                self.integral = (self.integral + step).clamp(-TRIM_DOWN, TRIM_UP);
                let aim = Rate::bps((target * (1.0 + self.integral)) as u64);
                self.gain = if rate_now > aim { -1.0 } else { 1.0 };
                self.aim = Some(aim);
            }
        }
        self.gain()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interval(target: u64, rate: u64) -> Interval {
        Interval {
            length: Span::millis(100),
            target: Rate::kbit(target),
            rate: Rate::kbit(rate),
            reachable: Rate::MAX,
            rate_now: Rate::kbit(rate),
            rate_least: Rate::kbit(120),
            kept: 0.5,
        }
    }

    #[test]
    fn on_off_delegates_up_to_four_thirds_of_the_target() {
        let mut controller = Controller::new(Algorithm::OnOff);
        assert_eq!(controller.handle_interval(&interval(3_000, 3_999)), Gain::ONE);
        assert_eq!(controller.handle_interval(&interval(3_000, 4_001)).as_f64(), -1.0);
    }

    #[test]
    fn pi_delegates_more_while_the_rate_is_below_the_target_and_is_not_wound_up() {
        let mut controller = Controller::new(Algorithm::Pi);
        let first = controller.handle_interval(&interval(1_000, 500));
        assert_eq!(first, Gain::from_f64(0.5 + 0.075), "proportional and integral");
        for _ in 0..1_000 {
            controller.handle_interval(&interval(1_000, 500));
        }
        assert_eq!(controller.gain(), Gain::ONE);
        let less = controller.handle_interval(&interval(1_000, 1_100));
        assert!(less < Gain::ONE, "the clamp forgets what is beyond it");
    }

    #[test]
    fn what_is_out_of_reach_does_not_raise_the_gain_and_does_not_turn_it_around() {
        let mut controller = Controller::new(Algorithm::Pi);
        let near = Interval { reachable: Rate::kbit(500), ..interval(1_000, 500) };
        assert_eq!(controller.handle_interval(&near), Gain::ZERO);
        let below = Interval { reachable: Rate::kbit(400), ..near };
        assert_eq!(controller.handle_interval(&below), Gain::ZERO);
    }

    #[test]
    fn an_aim_is_moved_until_the_mean_is_the_target() {
        let mut controller = Controller::new(Algorithm::Track);
        // Between two reductions to the aim the window's rate is 200 kbit/s above the aim on average.
        let mut rate = Rate::kbit(1_000);
        for _ in 0..500 {
            controller.handle_interval(&interval(1_000, rate.as_bps() / 1_000));
            rate = controller.aim().unwrap() + Rate::kbit(200);
        }
        assert!(rate.as_bps().abs_diff(1_000_000) < 5_000, "{rate}");
    }

    proptest! {
        #[test]
        fn the_gain_is_between_minus_one_and_one(
            rates in prop::collection::vec((0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 40), 1..50),
            algorithm in 0..3usize,
        ) {
            let mut controller = Controller::new(Algorithm::ALL[algorithm].1);
            for (target, rate, rate_now) in rates {
                let rates = interval(target, rate);
                let gain = controller.handle_interval(&Interval {
                    rate_now: Rate::bps(rate_now),
                    length: Span::nanos(target),
                    ..rates
                });
                prop_assert!((-1.0..=1.0).contains(&gain.as_f64()));
                prop_assert!(gain.forward() == 0 || gain.reverse() == 0);
                prop_assert!(gain.forward().max(gain.reverse()) <= 1 << 16);
            }
        }
    }
}
