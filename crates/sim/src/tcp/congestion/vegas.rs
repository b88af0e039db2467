//! Vegas: a window that keeps a few packets in the queue.
//!
//! Once per round, the rate expected without any queue (window / base RTT) is compared with the rate
//! achieved (window / smallest RTT of the round). The difference times the base RTT is the number of
//! packets that the connection has in the queue. It is kept between [`ALPHA`] and [`BETA`]; slow
//! start ends above [`GAMMA`]. Source: Brakmo and Peterson, IEEE JSAC 13(8), 1995, as in Linux: one
//! window per round also in slow start, Reno's growth if a round has too few samples, Reno's cut.

use fairweir_core::units::Span;

use super::super::recovery::State;
use super::{AckSample, WINDOW_AFTER_LOSS_MIN, Window, reno};

#[derive(Clone, Debug)]
pub(in crate::tcp) struct Vegas {
    /// The smallest RTT since sending last began; `None` before the first RTT.
    rtt_base: Option<Span>,
    /// The smallest RTT of this round; below, the number of its RTTs.
    rtt_round: Option<Span>,
    samples: u32,
    /// The round ends when this number is acknowledged; `None` after a recovery, until the next ACK.
    round_end: Option<u64>,
}

impl Vegas {
    pub(super) fn new(rtt: Span) -> Vegas {
        Vegas { rtt_base: Some(rtt), rtt_round: None, samples: 0, round_end: None }
    }

    pub(super) fn handle_restart(&mut self) {
        *self = Vegas { rtt_base: None, rtt_round: None, samples: 0, round_end: None };
    }

    pub(super) fn handle_ack(&mut self, sample: &AckSample, window: &mut Window) {
        if let Some(rtt) = sample.rtt {
            self.rtt_base = Some(self.rtt_base.map_or(rtt, |base| base.min(rtt)));
            self.rtt_round = Some(self.rtt_round.map_or(rtt, |least| least.min(rtt)));
            self.samples += 1;
        }
        match sample.state {
            State::Open => {}
            State::Recovery | State::Loss => {
                self.round_end = None;
                if sample.state == State::Loss && sample.may_grow {
                    reno::grow(window, sample.acked);
                }
                return;
            }
        }
        let Some(round_end) = self.round_end else {
            self.begin_round(sample.numbers_end);
            return;
        };
        if sample.acked_end > round_end {
            self.end_round(sample, window);
            self.begin_round(sample.numbers_end);
        } else if sample.may_grow && window.is_in_slow_start() {
            window.slow_start(sample.acked);
        }
    }

    fn begin_round(&mut self, end: u64) {
        self.round_end = Some(end);
        self.rtt_round = None;
        self.samples = 0;
    }

    fn end_round(&mut self, sample: &AckSample, window: &mut Window) {
        let (Some(base), Some(rtt)) = (self.rtt_base, self.rtt_round) else { return };
        if self.samples < SAMPLES_MIN {
            if sample.may_grow {
                reno::grow(window, sample.acked);
            }
            return;
        }
        let [base, rtt] = [base, rtt].map(|rtt| rtt.as_nanos().max(1));
        let cwnd = u64::from(window.cwnd);
        let queued = cwnd * (rtt - base) / base;
        if window.is_in_slow_start() {
            if queued > GAMMA {
                let without_queue = (cwnd * base / rtt) as u32 + 1;
                window.cwnd = window.cwnd.min(without_queue);
                window.ssthresh = window.ssthresh.min(window.cwnd.saturating_sub(1));
            } else if sample.may_grow {
                window.slow_start(sample.acked);
            }
        } else if queued > BETA {
            window.cwnd -= 1;
            window.ssthresh = window.ssthresh.min(window.cwnd.saturating_sub(1));
        } else if queued < ALPHA && sample.may_grow {
            window.cwnd += 1;
        }
        window.cwnd = window.cwnd.max(WINDOW_AFTER_LOSS_MIN);
        window.ssthresh = window.ssthresh_remembered().max(WINDOW_AFTER_LOSS_MIN);
    }
}

/// The queue is kept at no fewer packets than this.
const ALPHA: u64 = 2;
/// The queue is kept at no more packets than this.
const BETA: u64 = 4;
/// The most packets in the queue during slow start.
const GAMMA: u64 = 1;
/// A round with fewer RTTs says nothing, since one or two may come from delayed ACKs.
const SAMPLES_MIN: u32 = 3;
