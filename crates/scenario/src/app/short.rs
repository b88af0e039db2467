//! Short downloads that arrive as a Poisson process, each with a connection of its own.
//!
//! The completion time runs from the arrival to the last byte, so it includes the handshake, and
//! also the wait for a slot if [`CONNECTIONS_MAX`] downloads are under way already.

use std::collections::VecDeque;

use fairweir_core::units::{Bytes, Time};

use super::random::Random;
use super::{Outcome, Play, Want, Wants};
use crate::report::ShortSamples;
use crate::{CONNECTIONS_MAX, Short};

/// The largest size of a random download.
const SIZE_MAX: Bytes = Bytes::kb(1_000_000);

/// Short downloads that arrive at random.
#[derive(Debug)]
pub(super) struct Shorts {
    short: Short,
    random: Random,
    /// When the next one arrives; `None` before the start and after the stop.
    arrives_at: Option<Time>,
    /// Number of downloads still to arrive, if it is bounded.
    left: Option<u32>,
    /// What each slot carries.
    slots: Vec<Option<Download>>,
    /// Slots without a download; the last one is used next.
    free: Vec<u32>,
    /// Downloads without a slot yet; bounded by what a scenario may let arrive.
    waiting: VecDeque<Download>,
    samples: ShortSamples,
}

#[derive(Clone, Copy, Debug)]
struct Download {
    arrived: Time,
    size: Bytes,
}

impl Shorts {
    pub(super) fn new(group: usize, short: Short, seed: u64) -> Shorts {
        Shorts {
            short,
            random: Random::new(seed),
            arrives_at: None,
            left: short.arrivals,
            slots: vec![None; CONNECTIONS_MAX as usize],
            free: (0..CONNECTIONS_MAX).rev().collect(),
            waiting: VecDeque::new(),
            samples: ShortSamples { group, ..ShortSamples::default() },
        }
    }

    fn arrive(&mut self, at: Time, wants: &mut Wants) {
        let sigma = f64::from(self.short.sigma_ppm) / 1e6;
        let size = self.random.lognormal(self.short.size, sigma, SIZE_MAX.max(self.short.size));
        self.waiting.push_back(Download { arrived: at, size });
        self.samples.unfinished += 1;
        self.open(wants);
    }

    fn open(&mut self, wants: &mut Wants) {
        while let Some(slot) = self.free.pop() {
            let Some(download) = self.waiting.pop_front() else {
                self.free.push(slot);
                return;
            };
            self.slots[slot as usize] = Some(download);
            wants.push_back(Want::Open { slot });
        }
    }
}

impl Play for Shorts {
    fn handle_start(&mut self, now: Time, wants: &mut Wants) {
        self.arrives_at = Some(match self.left {
            Some(_) => now,
            None => now + self.random.exponential(self.short.interval),
        });
        self.handle_timeout(now, wants);
    }

    fn handle_stop(&mut self, _: Time, wants: &mut Wants) {
        self.arrives_at = None;
        self.waiting.clear();
        let used = self.slots.iter_mut().enumerate().filter_map(|(i, s)| s.take().map(|_| i));
        wants.extend(used.map(|slot| Want::Close { slot: slot as u32 }));
    }

    fn handle_timeout(&mut self, now: Time, wants: &mut Wants) {
        while let Some(at) = self.arrives_at.filter(|&at| at <= now) {
            self.arrive(at, wants);
            self.left = self.left.map(|left| left - 1);
            let next = at + self.random.exponential(self.short.interval);
            self.arrives_at = Some(next).filter(|_| self.left != Some(0));
        }
    }

    fn handle_opened(&mut self, _: Time, slot: u32, wants: &mut Wants) {
        if let Some(download) = self.slots[slot as usize] {
            wants.push_back(Want::Fetch { slot, volume: Some(download.size) });
        }
    }

    fn handle_received(&mut self, now: Time, slot: u32, total: Bytes, wants: &mut Wants) {
        let carried = &mut self.slots[slot as usize];
        let Some(download) = carried.filter(|download| total >= download.size) else { return };
        *carried = None;
        wants.push_back(Want::Close { slot });
        self.samples.completions.push(now.since(download.arrived));
        self.samples.volume += download.size;
        self.samples.unfinished -= 1;
        self.free.push(slot);
        self.open(wants);
    }

    fn next_timeout(&self) -> Option<Time> {
        self.arrives_at
    }

    fn outcome(self: Box<Self>) -> Outcome {
        Outcome::Short(self.samples)
    }
}
