//! Devices behind a router that divide their own share.
//!
//! Problem: a router shares the link among devices, and a device may run this control too and share
//! its share among its applications. Both follow the same queue: as soon as the router keeps the queue
//! where the device wants it, the device's windows are too wide, and the router's equal parts take
//! effect instead.
//!
//! Method: a router sees the windows that the device asks for before it lowers them. Windows that a
//! control sets go down by a few segments every now and then, because its shares follow what arrives.
//! Windows that a system opens by itself only grow, until they are so large that they bind nothing.
//! Of a device whose windows move like that, and together ask for no more than [`ASKED_MAX`] of what the
//! device has, the router narrows all by one factor instead of each to an equal part.
//!
//! A device that lies divides its own part differently, and never gets another part: the parts sum to
//! what the device has, whatever was asked.

use crate::share::Weight;
use crate::units::{Bytes, Rate};

/// Whether a group's connections ask for windows that a control sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Division {
    /// A bit for each of the last ticks, the newest is the lowest: whether a window [`moved`].
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

    /// Whether it is there.
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }
}

/// Whether a window that a receiver asked for went down as one does that a control sets: by half a
/// segment at least, which no rounding of scaled windows explains, and by half at most. A window that
/// closes because the application does not read falls further.
pub(super) fn moved(before: Option<Bytes>, now: Option<Bytes>, segment: Bytes) -> bool {
    let (Some(before), Some(now)) = (before, now) else { return false };
    let fell = before.saturating_sub(now);
    fell > Bytes::ZERO && fell >= segment / 2 && fell <= before / 2
}

/// The weights by which connections share `bound`, in proportion to the rates that they ask for, in
/// input order; `None` if these together are more than [`ASKED_MAX`] of `bound`, so that they say nothing.
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
/// A control's windows are at most three times too wide (its opening), and twice that for a moment when
/// the device's part is halved; those who do not fill them have what they would have if they did. A
/// system that opens windows by itself comes to ten times and more.
const ASKED_MAX: u128 = 8;
/// Moves in the last 64 ticks that show a control; without any it is gone. In the lab a control that
/// has nothing to change moves a window in one of 20 ticks, and a system that opens its windows by
/// itself in none.
const MOVES: u32 = 3;

#[cfg(test)]
mod tests;
