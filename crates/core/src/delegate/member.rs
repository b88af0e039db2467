//! What a bundle knows of one connection, and what that one can give up.

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
    /// The number of the sample with which it last delivered something.
    pub(super) heard: u64,
    /// When its window was last cut.
    pub(super) cut_at: Option<Time>,
    /// By how many packets it has to reduce its window at an ACK, whatever it gives up for signals
    /// of its own until then.
    pub(super) debt: u32,
    /// What it gave up at its last cut, if that was for others.
    pub(super) gave: u32,
    pub(super) rate: Rate,
    pub(super) measured: Option<(Time, Bytes)>,
    pub(super) tally: Tally,
    /// What was seen in the present block.
    pub(super) seen: Seen,
}

#[derive(Clone, Debug)]
pub(super) enum Part {
    Free(Box<Free>),
    Stunt {
        weight: Weight,
        min_rate: Rate,
        turn: u64,
        /// How it stands to free connections; those that are not in it are as at the begin.
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
    /// What the target was, and the rate, in the last interval.
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

    /// A signal of its own within a round-trip time of a cut for others is of the window before that
    /// cut: at a full queue all connections lose packets at once. What it gives up less for that
    /// reason, it owes.
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

    /// The least window that a cut for others leaves: what a signal of its own would, and what a
    /// stunt keeps in any case.
    pub(super) fn floor(&self, sample: &Sample) -> u32 {
        let kept = match self.part {
            Part::Free(_) => 0,
            Part::Stunt { min_rate, .. } => sample.packets_ceil(min_rate),
        };
        kept.max(sample.cwnd_cut).max(WINDOW_MIN)
    }

    /// Short transfers and those that still search for their rate are no stunts.
    pub(super) fn is_elephant(&self) -> bool {
        let is_long = |s: &Sample| s.delivered >= ELEPHANT && s.phase != Phase::SlowStart;
        self.sample.as_ref().is_some_and(is_long)
    }

    /// What the stunt has above its floor on average.
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

/// Least volume that a stunt has delivered: shorter transfers are not delayed.
const ELEPHANT: Bytes = Bytes::kb(1_000);
/// The least window that a cut leaves. Source: RFC 5681 (4).
pub(super) const WINDOW_MIN: u32 = 2;
