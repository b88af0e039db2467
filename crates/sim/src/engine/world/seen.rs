//! Views of a world for tests.

use fairweir_core::units::Span;

use super::World;

/// The memory use of a world.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Footprint {
    /// Number of connections opened so far.
    pub(in super::super) opened: u64,
    /// Number of places of connections.
    pub(in super::super) places: usize,
    pub(in super::super) sources: usize,
    /// Number of packets for which there is room on paths.
    pub(in super::super) packets_room: usize,
}

impl World<'_> {
    /// The applications, as they are now.
    pub(in super::super) fn apps(&self) -> Vec<String> {
        self.flows.iter().map(|flow| format!("{:?}", flow.app)).collect()
    }

    /// Number of packets under way down and up, and of connections whose places are not free.
    pub(in super::super) fn left(&self) -> (u64, u64, usize) {
        let (places, free) = self.connections.places();
        (self.down.under_way(), self.up.under_way(), places - free)
    }

    pub(in super::super) fn footprint(&self) -> Footprint {
        let rooms = self.paths.iter().map(|path| path.down.room() + path.up.room());
        Footprint {
            opened: self.connections.opened(),
            places: self.connections.places().0,
            sources: self.sources.len(),
            packets_room: rooms.sum(),
        }
    }

    /// The least RTT that the server of each connection has seen.
    pub(in super::super) fn rtts_min(&self) -> Vec<Option<Span>> {
        let places = 0..self.connections.places().0 as u32;
        places.map(|index| self.connections[index].sender.rtt_min()).collect()
    }
}
