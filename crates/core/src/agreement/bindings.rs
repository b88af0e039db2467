//! The class to which each flow of a client is bound: a table of fixed size for each client.
//!
//! A flow may be in one of two sets of [`WAYS`] places. A mark puts the flow there or renews it. If both sets are
//! full, the flow replaces the one whose last mark is oldest, if that mark is older than [`IDLE`]; otherwise it is
//! refused. The kernel program takes the same steps (`crates/linux/bpf/binding.h`).

use super::CLASSES_MAX;
use super::message::Seen;
use crate::units::{Span, Time};

/// Places of a table.
pub const BINDINGS: usize = 2_048;
/// Places in a set.
pub const WAYS: usize = 8;
/// The time without a mark after which another flow may take the place.
pub const IDLE: Span = Span::secs(10);

/// How long a mark is recent: a flow that sends is marked once a second.
pub const RECENT: Span = Span::millis(2_500);

/// [`IDLE`], rounded up, in ticks of 2²⁶ ns.
const IDLE_TICKS: u32 = 150;
const TICK_SHIFT: u32 = 26;
const CLASS_SHIFT: u32 = 28;
const TICKS: u32 = (1 << CLASS_SHIFT) - 1;
const WAS_MARKED: u32 = TICKS + 1;
/// Source: 2³²/φ, and the constant of MurmurHash3's finalizer.
const FACTORS: [u32; 2] = [0x9e37_79b1, 0x85eb_ca6b];

/// The table, see the module. A place is a word: the flow's hash, its class and the tick of the last mark; 0 is vacant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bindings {
    of: Vec<u64>,
    marked: Marked,
    refused: u32,
}

/// The tick of the last binding to each class, with [`WAS_MARKED`]; 0 without any.
pub type Marked = [u32; CLASSES_MAX];

impl Default for Bindings {
    fn default() -> Bindings {
        Bindings { of: vec![0; BINDINGS], marked: Marked::default(), refused: 0 }
    }
}

impl Bindings {
    /// The class of the flow with this hash, if it is bound.
    pub fn class_of(&self, hash: u32) -> Option<u8> {
        let word = places(hash).map(|at| self.of[at]).find(|&word| is_of(word, hash))?;
        Some((word >> CLASS_SHIFT) as u8 & (CLASSES_MAX as u8 - 1))
    }

    /// Binds a flow that was marked at `now`; returns whether there was a place.
    pub fn bind(&mut self, hash: u32, class: u8, now: Time) -> bool {
        let tick = (now.as_nanos() >> TICK_SHIFT) as u32 & TICKS;
        let class = usize::from(class) % CLASSES_MAX;
        let word = u64::from(hash) << 32 | (class as u64) << CLASS_SHIFT | u64::from(tick);
        let (mut oldest, mut found) = (IDLE_TICKS, None);
        for at in places(hash) {
            if is_of(self.of[at], hash) {
                found = Some(at);
                break;
            }
            let age = age(self.of[at], tick);
            if age > oldest {
                (oldest, found) = (age, Some(at));
            }
        }
        match found {
            Some(at) => (self.of[at], self.marked[class]) = (word, WAS_MARKED | tick),
            None => self.refused = self.refused.wrapping_add(1),
        }
        found.is_some()
    }

    /// Marks for which there was no place; wraps.
    pub fn refused(&self) -> u32 {
        self.refused
    }

    /// When a flow was last bound to each class, as the kernel stores it.
    pub fn marked(&self) -> &Marked {
        &self.marked
    }

    /// All places, as the kernel stores them.
    pub fn words(&self) -> &[u64] {
        &self.of
    }
}

/// What a divider reports of a client's flows, without `held`: the classes to which a flow was bound in the last
/// [`RECENT`], and how many marks found no place.
pub fn seen(marked: &Marked, refused: u32, now: Time) -> Seen {
    let tick = (now.as_nanos() >> TICK_SHIFT) as u32 & TICKS;
    let recent = (RECENT.as_nanos() >> TICK_SHIFT) as u32;
    let is_recent = |at: u32| age(at.into(), tick) <= recent;
    let recently = (0..CLASSES_MAX).filter(|&class| is_recent(marked[class]));
    Seen { refused, marked: recently.fold(0, |all, class| all | 1 << class), held: 0 }
}

/// The places where a flow may be.
fn places(hash: u32) -> impl Iterator<Item = usize> {
    let set = move |factor: u32| (hash.wrapping_mul(factor) >> 24) as usize * WAYS;
    FACTORS.into_iter().flat_map(move |factor| (set(factor)..).take(WAYS))
}

fn is_of(word: u64, hash: u32) -> bool {
    word != 0 && (word >> 32) as u32 == hash
}

/// Age in ticks; a vacant place is older than any flow. A mark later than `tick` comes from another CPU.
fn age(word: u64, tick: u32) -> u32 {
    let age = tick.wrapping_sub(word as u32) & TICKS;
    match word {
        0 => u32::MAX,
        _ if age > TICKS / 2 => 0,
        _ => age,
    }
}
