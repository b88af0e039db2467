//! Deficit round robin: lane after lane may send its quantum, and keeps what it could not use.
//!
//! A lane's quantum is a full packet times its weight divided by the lightest weight, so that every
//! lane sends at least one full packet a round and a packet costs O(1) whatever the number of
//! lanes. A lane that sends its last packet loses what it has kept. Lanes are served in the order
//! in which they became busy. Source: Shreedhar and Varghese, SIGCOMM 1995.

use std::collections::VecDeque;

use fairweir_core::share::Weight;

use super::Lane;

/// State of the rounds.
///
/// Invariant: a lane is listed at most once; every lane in which a packet waits is listed. A lane
/// that was emptied by a drop stays listed until its turn. Only the first lane of the list has more
/// credit left than a packet.
#[derive(Clone, Debug)]
pub(super) struct InRounds {
    classes: Vec<Class>,
    listed: VecDeque<u32>,
    /// Whether the first lane has got its quantum.
    is_granted: bool,
    /// The lightest weight: deficits are in bytes times this, so that no quantum is rounded.
    weight_min: u64,
}

#[derive(Clone, Debug)]
struct Class {
    quantum: u64,
    deficit: u64,
    is_listed: bool,
}

/// Bytes that the lightest lane may send per round: a full packet of 1500 bytes on Ethernet.
const QUANTUM: u64 = 1_514;

impl InRounds {
    pub(super) fn new(weights: &[Weight]) -> InRounds {
        let class = |w: &Weight| Class {
            quantum: QUANTUM * u64::from(w.as_u32()),
            deficit: 0,
            is_listed: false,
        };
        InRounds {
            classes: weights.iter().map(class).collect(),
            listed: VecDeque::with_capacity(weights.len()),
            is_granted: false,
            weight_min: weights.iter().map(|w| w.as_u32().into()).min().unwrap_or(1),
        }
    }

    /// A packet comes into an empty lane.
    pub(super) fn wake(&mut self, i: usize) {
        let class = &mut self.classes[i];
        if !class.is_listed {
            class.is_listed = true;
            self.listed.push_back(i as u32);
        }
    }

    /// The lane whose head is taken out now.
    pub(super) fn next<T>(&mut self, lanes: &[Lane<T>]) -> Option<usize> {
        loop {
            let i = *self.listed.front()? as usize;
            let Some(size) = lanes[i].head() else {
                self.unlist();
                continue;
            };
            let class = &mut self.classes[i];
            if !self.is_granted {
                class.deficit += class.quantum;
                self.is_granted = true;
            }
            let cost = size * self.weight_min;
            if cost <= class.deficit {
                class.deficit -= cost;
                if lanes[i].waiting.len() == 1 {
                    self.unlist();
                }
                return Some(i);
            }
            self.listed.rotate_left(1);
            self.is_granted = false;
        }
    }

    /// Takes the first lane, which is or will be empty, off the list.
    fn unlist(&mut self) {
        if let Some(i) = self.listed.pop_front() {
            let class = &mut self.classes[i as usize];
            (class.deficit, class.is_listed) = (0, false);
        }
        self.is_granted = false;
    }
}
