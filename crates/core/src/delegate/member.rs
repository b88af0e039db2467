//! What a bundle knows of one connection, and what that connection can give up.

use super::apart::{Pair, Seen};
use super::control::Controller;
use super::sample::{Phase, Sample};
use super::watch::Watch;
use super::{MemberId, Tally, Target};
use crate::share::Weight;
use crate::units::{Bytes, Rate, Time};

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) part: Part,
    pub(super) sample: Option<Sample>,
    /// The number of the sample with which it last delivered data.
    pub(super) heard: u64,
    /// When its window was last cut.
    pub(super) cut_at: Option<Time>,
    /// The number of packets by which it has to reduce its window at an ACK, whatever it gives up for its own
    /// signals until then.
    pub(super) debt: u32,
    /// The number of packets that it gave up at its last cut, if that was for others.
    pub(super) gave: u32,
    pub(super) rate: Rate,
    pub(super) measured: Option<(Time, Bytes)>,
    pub(super) tally: Tally,
    /// What was seen in the current block.
    pub(super) seen: Seen,
}

#[derive(Clone, Debug)]
pub(super) enum Part {
    Free(Box<Free>),
    Stunt {
        weight: Weight,
        min_rate: Rate,
        turn: u64,
        /// Its relation to free connections; a free connection that is missing here is as at the beginning.
        pairs: Vec<Pair>,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Free {
    pub(super) target: Target,
    pub(super) controller: Controller,
    /// Signals that should have been delegated and were not, in 2^-16.
    pub(super) forward: u32,
    pub(super) reverse: u32,
    /// The target and the rate of the last interval.
    pub(super) target_now: Rate,
    pub(super) rate: Rate,
    /// How many stunts do not share its bottleneck.
    pub(super) apart: usize,
    pub(super) watch: Watch,
}

/// What a stunt can give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Offer {
    pub(super) turn: u64,
    pub(super) index: usize,
    pub(super) packets: u32,
    pub(super) rate: Rate,
}

impl Member {
    /// Whether it may be cut for others now.
    pub(super) fn may_be_cut(&self, now: Time, sample: &Sample) -> bool {
        let is_fresh = self.cut_at.is_some_and(|at| now.since(at) < sample.rtt);
        self.debt == 0 && !is_fresh && sample.phase != Phase::Recovery
    }

    /// Its own signal within a round-trip time after a cut for others belongs to the window before that cut:
    /// at a full queue all connections lose packets at once. The packets that it therefore gives up less, it
    /// owes.
    pub(super) fn owe_for(&mut self, now: Time, sample: &Sample) {
        let gave = std::mem::take(&mut self.gave);
        if self.cut_at.is_some_and(|at| now.since(at) < sample.rtt) {
            let kept = u64::from(gave) * u64::from(sample.cwnd_cut) / u64::from(sample.cwnd.max(1));
            self.debt += gave.saturating_sub(kept as u32);
        }
    }

    /// What a stunt can give up now for a free connection.
    pub(super) fn offer(&self, now: Time, index: usize, free: MemberId) -> Option<Offer> {
        let Part::Stunt { turn, .. } = self.part else { return None };
        if self.is_apart_from(free) {
            return None;
        }
        let sample = self.sample.filter(|s| self.is_elephant() && self.may_be_cut(now, s))?;
        let packets = sample.cwnd.checked_sub(self.floor(&sample)).filter(|given| *given > 0)?;
        Some(Offer { turn, index, packets, rate: sample.rate_floor(packets) })
    }

    /// Whether it is a stunt that does not share a free connection's bottleneck.
    pub(super) fn is_apart_from(&self, free: MemberId) -> bool {
        let Part::Stunt { pairs, .. } = &self.part else { return false };
        pairs.iter().any(|pair| pair.free == free && pair.is_apart)
    }

    /// The smallest window that a cut for others leaves: the window that its own signal would leave, or the
    /// minimum of a stunt.
    pub(super) fn floor(&self, sample: &Sample) -> u32 {
        let kept = match self.part {
            Part::Free(_) => 0,
            Part::Stunt { min_rate, .. } => sample.packets_ceil(min_rate),
        };
        kept.max(sample.cwnd_cut).max(WINDOW_MIN)
    }

    /// Whether it can be a stunt: short transfers, and those that still search for their rate, cannot.
    pub(super) fn is_elephant(&self) -> bool {
        let is_long = |s: &Sample| s.delivered >= ELEPHANT && s.phase != Phase::SlowStart;
        self.sample.as_ref().is_some_and(is_long)
    }

    /// The stunt's mean rate above its floor.
    pub(super) fn spare(&self) -> Rate {
        let Part::Stunt { min_rate, .. } = self.part else { return Rate::ZERO };
        let Some(sample) = self.sample.filter(|_| self.is_elephant()) else { return Rate::ZERO };
        self.rate.saturating_sub(min_rate.max(sample.rate_floor(WINDOW_MIN)))
    }

    pub(super) fn take(&mut self, now: Time) {
        self.tally.taken += 1;
        self.cut_at = Some(now);
    }
}

/// Smallest volume that a stunt must have delivered, so that shorter transfers are not delayed.
const ELEPHANT: Bytes = Bytes::kb(1_000);
/// The least window that a cut leaves. Source: RFC 5681 (4).
pub(super) const WINDOW_MIN: u32 = 2;
