//! Loss recovery: when the window is cut, and which packets are sent again.
//!
//! Rounds. The first loss opens a *recovery*, whose *point* is the next number at that moment. The
//! recovery ends when everything that was sent before the point is delivered, if need be by
//! retransmission. Losses meanwhile, also of retransmissions, are sent again without another cut;
//! losses of packets sent after the point open the next recovery when this one ends, as in RFC 6582
//! and RFC 6675.
//!
//! Losses. Every hole counts as lost once three packets above the first are acknowledged (RFC 6675)
//! or a recovery is going on; with fewer, a hole whose time is up (RFC 8985, for paths that do not
//! reorder). A retransmission timeout gives up all packets sent more than an RTT before.
//!
//! Amount sent. During a recovery, proportional rate reduction (RFC 9937) applies: the window goes
//! down to ssthresh in step with deliveries. When the packets in flight fall below ssthresh, one
//! packet goes for each delivered, and one more while repairs arrive and no other packet is lost.

use super::flight::{Delivered, Losses};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing is lost.
    Open,
    /// Lost packets are sent again, with a cut window.
    Recovery,
    /// A timeout has passed; the window starts again from one packet.
    Loss,
}

/// Values before the window was cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prior {
    pub(super) cwnd: u32,
    pub(super) ssthresh: u32,
}

/// The loss recovery of a connection.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    state: State,
    point: u64,
    /// Number of packets sent before the point that are neither delivered nor repaired.
    unrepaired: u32,
    /// Number of packets to be sent again from before the point; below, from after it.
    lost_before: u32,
    lost_after: u32,
    /// Values before the last cut; below, whether a timeout made that cut, with none before it.
    prior: Prior,
    may_undo: bool,
    delivered: u32,
    out: u32,
}

impl Recovery {
    pub(super) fn new() -> Recovery {
        Recovery {
            state: State::Open,
            point: 0,
            unrepaired: 0,
            lost_before: 0,
            lost_after: 0,
            prior: Prior { cwnd: 1, ssthresh: u32::MAX },
            may_undo: false,
            delivered: 0,
            out: 0,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn point(&self) -> u64 {
        self.point
    }

    /// Number of packets to be sent again.
    pub(super) fn lost(&self) -> u32 {
        self.lost_before + self.lost_after
    }

    pub(super) fn handle_delivered(&mut self, delivered: &Delivered) {
        self.unrepaired = self.unrepaired.saturating_sub(delivered.repaired);
        self.lost_before = self.lost_before.saturating_sub(delivered.late);
    }

    pub(super) fn handle_losses(&mut self, losses: &Losses) {
        self.lost_before += losses.before;
        self.lost_after += losses.after;
        self.unrepaired = self.unrepaired.saturating_sub(losses.settled);
    }

    /// Whether all packets sent before the point are repaired.
    pub(super) fn is_over(&self) -> bool {
        self.state != State::Open && self.unrepaired == 0
    }

    /// Goes into recovery. `in_flight` does not include lost packets, `end` is the next number, and
    /// `prior` has the values before the window was cut, if it was.
    pub(super) fn enter(&mut self, state: State, end: u64, in_flight: u32, prior: Option<Prior>) {
        self.prior = prior.unwrap_or(self.prior);
        self.may_undo = state == State::Loss && prior.is_some();
        self.state = state;
        self.point = end;
        self.lost_before += self.lost_after;
        self.lost_after = 0;
        self.unrepaired = in_flight + self.lost_before;
        self.delivered = 0;
        self.out = 0;
    }

    pub(super) fn leave(&mut self) {
        self.state = State::Open;
        self.unrepaired = 0;
        self.lost_after += self.lost_before;
        self.lost_before = 0;
    }

    /// The packets that a timeout gave up were only late; `taken_back` packets are in flight after
    /// all. Returns the values before the timeout's cut.
    pub(super) fn take_back(&mut self, taken_back: u32) -> Option<Prior> {
        self.lost_before = self.lost_before.saturating_sub(taken_back);
        self.leave();
        self.may_undo.then_some(self.prior)
    }

    /// A packet is sent; returns whether it repairs one that was sent before the point.
    pub(super) fn handle_sent(&mut self) -> bool {
        self.out += u32::from(self.state == State::Recovery);
        if self.lost_before > 0 {
            self.lost_before -= 1;
            return true;
        }
        self.lost_after = self.lost_after.saturating_sub(1);
        false
    }

    /// No payload is left to send again: fewer, larger packets carried it, or the packets given up
    /// have arrived.
    pub(super) fn forgive(&mut self) {
        self.unrepaired = self.unrepaired.saturating_sub(self.lost_before);
        self.lost_before = 0;
        self.lost_after = 0;
    }

    /// The window by proportional rate reduction. An ACK is *safe* if it shows a repair and no new
    /// loss.
    pub(super) fn reduced_window(
        &mut self,
        ssthresh: u32,
        in_flight: u32,
        delivered: u32,
        is_safe: bool,
    ) -> u32 {
        self.delivered += delivered;
        let may_go = if in_flight > ssthresh {
            let product = u64::from(ssthresh) * u64::from(self.delivered);
            let proportional = product.div_ceil(self.prior.cwnd.into()) as u32;
            proportional.saturating_sub(self.out)
        } else {
            let conserving = self.delivered.saturating_sub(self.out).max(delivered);
            (conserving + u32::from(is_safe)).min(ssthresh - in_flight)
        };
        // The retransmission that opens the recovery always goes.
        in_flight + may_go.max(u32::from(self.out == 0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each ACK delivers some packets and shows others to be lost; then all permitted ones go.
        #[test]
        fn a_reduction_sends_no_more_than_is_delivered_and_ends_at_ssthresh(
            cwnd in 4u32..500,
            cut_percent in 30u32..90,
            acks in prop::collection::vec((1u32..4, 0u32..3), 1..400),
        ) {
            let ssthresh = (cwnd * cut_percent / 100).max(2);
            let prior = Prior { cwnd, ssthresh: u32::MAX };
            let mut recovery = Recovery::new();
            recovery.enter(State::Recovery, 0, cwnd, Some(prior));
            let (mut in_flight, mut delivered_sum, mut sent_sum, mut lost_sum) = (cwnd, 0, 0, 0);
            for (delivered, lost) in acks {
                let delivered = delivered.min(in_flight);
                if delivered == 0 {
                    break;
                }
                let lost = lost.min(in_flight - delivered);
                in_flight -= delivered + lost;
                delivered_sum += delivered;
                lost_sum += lost;
                let window = recovery.reduced_window(ssthresh, in_flight, delivered, lost == 0);
                prop_assert!(window >= in_flight);
                let sent = window - in_flight;
                // One goes for the first retransmission, one for each ACK that shows a repair.
                prop_assert!(sent <= delivered_sum + 1 - sent_sum.min(delivered_sum) + delivered + 1);
                (0..sent).for_each(|_| { recovery.handle_sent(); });
                sent_sum += sent;
                in_flight = window;
                if in_flight > ssthresh {
                    prop_assert!(sent_sum <= delivered_sum + 1, "conservative");
                } else {
                    prop_assert!(window <= ssthresh.max(in_flight));
                }
                // Once as many packets were delivered as were in flight, at most ssthresh are.
                if delivered_sum + lost_sum >= cwnd {
                    prop_assert!(in_flight <= ssthresh + 1, "{in_flight} {ssthresh}");
                }
            }
        }
    }

    #[test]
    fn without_further_loss_the_reduction_is_proportional() {
        let mut recovery = Recovery::new();
        let prior = Prior { cwnd: 100, ssthresh: u32::MAX };
        recovery.enter(State::Recovery, 0, 100, Some(prior));
        let (mut in_flight, mut sent) = (100, 0);
        for delivered in 1..=90u32 {
            let window = recovery.reduced_window(70, in_flight - 1, 1, false);
            for _ in in_flight - 1..window {
                recovery.handle_sent();
                sent += 1;
            }
            in_flight = window;
            assert_eq!(sent, (delivered * 7).div_ceil(10), "{delivered}");
        }
        assert_eq!(in_flight, 73);
    }
}
