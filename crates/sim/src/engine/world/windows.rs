//! What the receiving hosts see of connections, and how far they open their windows.

use fairweir_core::receiver::ConnectionSample;
use fairweir_core::units::Bytes;

use super::World;

impl World<'_> {
    /// What the host of a stage has seen of its connections since the last tick.
    pub(super) fn connections_at(&mut self, stage: usize) -> Vec<ConnectionSample> {
        let mut samples = Vec::new();
        for (index, connection) in self.connections.open_ones() {
            let flow = &self.flows[connection.flow];
            let host = self.home.host(flow.group);
            let Some(hop) = host.filter(|hop| hop.stage == stage && flow.has_window) else {
                continue;
            };
            if !connection.measure.is_told(&connection.receiver, connection.is_bounded()) {
                continue;
            }
            let as_kernel = connection.measure.as_kernel();
            let known = ConnectionSample {
                id: id(index, connection.serial),
                group: hop.class,
                window: if as_kernel { connection.clamp() } else { connection.receiver.window() },
                segment: flow.segment,
                ..ConnectionSample::default()
            };
            samples.push(connection.measure.take(known, &connection.receiver));
        }
        samples.sort_unstable_by_key(|sample| sample.id);
        samples
    }

    /// Opens the windows at the host of a stage as far as it wants them.
    pub(super) fn open_windows(&mut self, stage: usize) {
        let windows = &self.home.stages[stage].windows;
        let mut bounds: Vec<(u64, Bytes)> =
            windows.connections.iter().map(|c| (c.id, c.window)).collect();
        bounds.sort_unstable();
        for (index, connection) in self.connections.open_ones() {
            let flow = &self.flows[connection.flow];
            let host = self.home.host(flow.group);
            if !flow.has_window || host.is_none_or(|hop| hop.stage != stage) {
                continue;
            }
            let id = id(index, connection.serial);
            let bound = bounds.binary_search_by_key(&id, |b| b.0).ok().map(|at| bounds[at].1);
            connection.bound_window(bound);
        }
    }

    /// A connection that begins has the window that its host gives to new ones.
    pub(super) fn open_first_window(&mut self, index: u32) {
        let flow = &self.flows[self.connections[index].flow];
        let Some(hop) = self.home.host(flow.group).filter(|_| flow.has_window) else { return };
        let initial = self.home.stages[hop.stage].windows.initial.get(hop.class);
        if let Some(window) = initial.copied().flatten() {
            self.connections[index].bound_window(Some(window));
        }
    }
}

/// Places are used anew, so the serial number is a part of what a connection is known by.
fn id(index: u32, serial: u64) -> u64 {
    (serial << 32) | u64::from(index)
}
