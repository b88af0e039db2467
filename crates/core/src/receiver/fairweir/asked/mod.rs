//! Devices behind a router that divide their own share.
//!
//! Problem: a router shares the link among devices, and a device may run this control too and divide
//! its share among its applications. Both react to the same queue: as soon as the router holds the queue
//! at the device's target, the device's windows are too wide, and the router's equal parts take
//! effect instead of the device's division.
//!
//! Method: a router sees the windows that the device asks for before it lowers them. Windows that a
//! control sets go down by a few segments every now and then, because its shares follow what arrives.
//! Windows that an operating system opens only grow, until they are too large to limit anything. If a
//! device's windows move as a control's do, and together ask for no more than [`ASKED_MAX`] times what the
//! device has, the router narrows all of them by one factor instead of each to an equal part.
//!
//! A device that lies only divides its own part differently and never gets a larger one: the parts sum to
//! what the device has, whatever it asked for.

use crate::share::Weight;
use crate::units::{Bytes, Rate};

/// Whether a group's receiver sets its windows by a control, and so divides its share itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Division {
    /// One bit for each of the last ticks, newest in the lowest bit: whether a window [`moved`].
    moves: u64,
    is_there: bool,
}

impl Division {
    /// Takes in a tick: whether a window [`moved`].
    pub(super) fn handle_tick(&mut self, moved: bool) {
        self.moves = self.moves << 1 | u64::from(moved);
        let least = if self.is_there { 1 } else { MOVES };
        self.is_there = self.moves.count_ones() >= least;
    }

    /// Whether the group's receiver divides its share itself.
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }
}

/// Whether a window that a receiver asked for went down as a control's windows do: by at least half a
/// segment, which the rounding of scaled windows does not explain, and at most by half. A window that
/// closes because the application does not read falls further.
pub(super) fn moved(before: Option<Bytes>, now: Option<Bytes>, segment: Bytes) -> bool {
    let (Some(before), Some(now)) = (before, now) else { return false };
    let fell = before.saturating_sub(now);
    fell > Bytes::ZERO && fell >= segment / 2 && fell <= before / 2
}

/// The weights by which connections share `bound`, in input order and in proportion to the rates that they
/// ask for; `None` if these rates sum to more than [`ASKED_MAX`] times `bound` and so say nothing.
///
/// The mean is [`EVEN`], each is between an eighth of that and [`Weight::MAX`].
pub(super) fn weights(bound: Rate, asked: &[Rate]) -> Option<Vec<Weight>> {
    let all: u128 = asked.iter().map(|rate| u128::from(rate.as_bps())).sum();
    if all == 0 || all > u128::from(bound.as_bps()) * ASKED_MAX {
        return None;
    }
    let mean = u128::from(EVEN) * asked.len() as u128;
    let weight = |rate: &Rate| {
        let exact = u128::from(rate.as_bps()) * mean / all;
        let exact = exact.clamp(u128::from(EVEN / 8), u128::from(Weight::MAX)) as u32;
        Weight::new(exact).expect("invariant: it is within the weights")
    };
    Some(asked.iter().map(weight).collect())
}

/// The weight of a connection that asks for an equal part.
pub(super) const EVEN: u32 = 1_000;
/// Limit on what a device asks for, as a multiple of its part. A control's windows are at most three times too
/// wide (its opening), and twice that for a moment when the part is halved. A system that opens windows by
/// itself asks for ten times its part and more.
const ASKED_MAX: u128 = 8;
/// Windows that moved in the last 64 ticks before a control is recognised; it is gone once no window moved.
/// In the lab a control with nothing to change moves a window in one of 20 ticks, and a system that opens
/// its windows by itself in no tick.
const MOVES: u32 = 3;

#[cfg(test)]
mod tests;
