//! How far a lump of acknowledgements exceeds what the estimated rate explains.
//!
//! Wi-Fi, cable and receivers acknowledge in lumps; with a window of two BDPs, sending would pause
//! between them. So the window grows by the largest excess of a lump over the rate in the last five
//! to ten rounds. Source: Cardwell et al., BBR update at IETF 101 (iccrg), in Linux since 5.1.

use fairweir_core::units::Time;

use super::super::{AckSample, Window};

#[derive(Clone, Debug)]
pub(super) struct Aggregation {
    /// Since when lumps are compared with the rate, and the packets acknowledged since then.
    epoch_at: Time,
    epoch_acked: u32,
    /// The largest excess of the last and of the present half of the filter's time.
    extra: [u32; 2],
    slot: usize,
    rounds: u32,
}

impl Aggregation {
    pub(super) fn new(now: Time) -> Aggregation {
        Aggregation { epoch_at: now, epoch_acked: 0, extra: [0; 2], slot: 0, rounds: 0 }
    }

    pub(super) fn handle_restart(&mut self, now: Time) {
        self.epoch_at = now;
        self.epoch_acked = 0;
    }

    /// Updates the excess with an ACK; `rate` is in packets/s.
    pub(super) fn handle_ack(
        &mut self,
        sample: &AckSample,
        is_new_round: bool,
        rate: f64,
        window: &Window,
    ) {
        if is_new_round {
            self.rounds += 1;
            if self.rounds >= HALF_ROUNDS {
                self.rounds = 0;
                self.slot = 1 - self.slot;
                self.extra[self.slot] = 0;
            }
        }
        let mut expected = (rate * sample.now.since(self.epoch_at).as_secs_f64()) as u32;
        if self.epoch_acked <= expected || self.epoch_acked + sample.acked >= ACKED_MAX {
            self.handle_restart(sample.now);
            expected = 0;
        }
        self.epoch_acked += sample.acked;
        let extra = (self.epoch_acked - expected).min(window.cwnd);
        self.extra[self.slot] = self.extra[self.slot].max(extra);
    }

    /// Packets to add to the window, at `rate` packets/s.
    pub(super) fn allowance(&self, rate: f64) -> u32 {
        self.extra[0].max(self.extra[1]).min((rate * ALLOWANCE_MAX_S) as u32)
    }
}

/// A lump is remembered for this number of rounds up to twice that number.
const HALF_ROUNDS: u32 = 5;
/// Packets after which the comparison begins again.
const ACKED_MAX: u32 = 1 << 20;
/// The allowance is at most what passes in this time, 100 ms.
const ALLOWANCE_MAX_S: f64 = 0.1;
