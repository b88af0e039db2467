//! Packets that wait in the order of their arrival.

use std::collections::VecDeque;

use fairweir_core::share::Weight;
use fairweir_core::units::Time;

use super::Packet;

/// A packet that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting<T> {
    pub(super) packet: Packet<T>,
    pub(super) since: Time,
}

/// Packets that are served in the order of their arrival.
#[derive(Clone, Debug)]
pub(super) struct Lane<T> {
    pub(super) weight: u64,
    pub(super) waiting: VecDeque<Waiting<T>>,
    pub(super) backlog: u64,
}

impl<T> Default for Lane<T> {
    fn default() -> Lane<T> {
        Lane::new(Weight::ONE)
    }
}

impl<T> Lane<T> {
    pub(super) fn new(weight: Weight) -> Lane<T> {
        Lane { weight: weight.as_u32().into(), waiting: VecDeque::new(), backlog: 0 }
    }

    pub(super) fn backlog(&self) -> u64 {
        self.backlog
    }

    pub(super) fn push(&mut self, waiting: Waiting<T>) {
        self.backlog += waiting.packet.size.as_u64();
        self.waiting.push_back(waiting);
    }

    pub(super) fn pop(&mut self) -> Option<Waiting<T>> {
        let waiting = self.waiting.pop_front()?;
        self.backlog -= waiting.packet.size.as_u64();
        Some(waiting)
    }

    pub(super) fn pop_last(&mut self) -> Option<Waiting<T>> {
        let waiting = self.waiting.pop_back()?;
        self.backlog -= waiting.packet.size.as_u64();
        Some(waiting)
    }

    /// Size of the packet that is served next.
    pub(super) fn head(&self) -> Option<u64> {
        self.waiting.front().map(|w| w.packet.size.as_u64())
    }
}
