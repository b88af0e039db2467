//! Start-time fair queueing: the packet is served whose service would have begun first.
//!
//! Virtual time is counted in bytes per unit of weight. The head of a lane starts at the virtual
//! time at which the lane's last packet was finished, or *now* if the lane was empty; *now* is the
//! start of the packet that was served last. When nothing is left to serve, *now* moves on to the
//! last finish, so that no lane pays for service that it got while others did not want it. Of heads
//! that start together the lane with the smallest index is served. O(log n) per packet, for n lanes
//! in which packets wait. Source: Goyal, Vin and Cheng, SIGCOMM 1996.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use fairweir_core::share::Weight;

use super::Lane;

/// The lanes in the order in which they are served.
///
/// Invariant: a lane is listed at most once, with its start; every lane in which a packet waits is
/// listed. A lane that was emptied by a drop stays listed until its turn: its start is not before
/// now, so a packet that comes in meanwhile starts there too.
#[derive(Clone, Debug)]
pub(super) struct ByStart {
    classes: Vec<Class>,
    listed: BinaryHeap<Reverse<(u128, u32)>>,
    /// Start of the packet that was served last.
    virtual_now: u128,
    /// The latest finish of the packets that were served.
    finish_max: u128,
}

#[derive(Clone, Debug)]
struct Class {
    weight: u64,
    /// Virtual start of the head; while the lane is empty, virtual finish of its last packet.
    start: u128,
    is_listed: bool,
}

/// Virtual time counts in 2⁻³² bytes per weight, so that rounding stays below a byte in 10,000 s
/// at 100 Gbit/s and 128 bits never overflow.
const VIRTUAL_BITS: u32 = 32;

impl ByStart {
    pub(super) fn new(weights: &[Weight]) -> ByStart {
        let class = |w: &Weight| Class { weight: w.as_u32().into(), start: 0, is_listed: false };
        ByStart {
            classes: weights.iter().map(class).collect(),
            listed: BinaryHeap::with_capacity(weights.len()),
            virtual_now: 0,
            finish_max: 0,
        }
    }

    /// A packet comes into an empty lane.
    pub(super) fn wake(&mut self, i: usize) {
        let class = &mut self.classes[i];
        class.start = class.start.max(self.virtual_now);
        if !class.is_listed {
            class.is_listed = true;
            self.listed.push(Reverse((class.start, i as u32)));
        }
    }

    /// The lane whose head is taken out now; `None` if the link has nothing more to send.
    pub(super) fn next<T>(&mut self, lanes: &[Lane<T>]) -> Option<usize> {
        loop {
            let Some(mut first) = self.listed.peek_mut() else {
                self.virtual_now = self.finish_max;
                return None;
            };
            let i = first.0.1 as usize;
            let class = &mut self.classes[i];
            let Some(size) = lanes[i].head() else {
                class.is_listed = false;
                PeekMut::pop(first);
                continue;
            };
            self.virtual_now = class.start;
            class.start += u128::from((size << VIRTUAL_BITS) / class.weight);
            self.finish_max = self.finish_max.max(class.start);
            if lanes[i].waiting.len() > 1 {
                first.0.0 = class.start;
            } else {
                class.is_listed = false;
                PeekMut::pop(first);
            }
            return Some(i);
        }
    }
}
