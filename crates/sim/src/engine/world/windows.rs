//! What the receiving hosts and the router in front of them measure of connections, and how far
//! they open the windows.

use fairweir_core::receiver::ConnectionSample;
use fairweir_core::units::{Bytes, Span, Time};

use super::super::home::Hop;
use super::World;

impl World<'_> {
    /// A stage's controller starts; it knows nothing of earlier measurements.
    pub(super) fn begin(&mut self, now: Time, stage: usize) {
        self.connections_at(now, stage);
        for (_, connection) in self.connections.open_ones() {
            connection.measure.begin();
            connection.measure_router.begin();
        }
        self.home.stages[stage].begin(now);
        self.open_windows(stage);
    }

    /// What the host or router of a stage has measured of its connections since the last tick.
    pub(super) fn connections_at(&mut self, now: Time, stage: usize) -> Vec<ConnectionSample> {
        let mut samples = Vec::new();
        let is_router = stage == 0 && self.home.has_router;
        let is_exact = self.is_exact();
        for (index, connection) in self.connections.open_ones() {
            let flow = &self.flows[connection.flow];
            let group = flow.group_of(connection, now);
            let has_control = self.home.router(group).is_some();
            let hops = [self.home.router(group), self.home.host(group)];
            let Some(hop) =
                hops.into_iter().flatten().find(|hop| hop.stage == stage && flow.has_window)
            else {
                continue;
            };
            let is_inner = is_router && has_control;
            let bound = connection.bound_router();
            let (measure, is_bounded) = match is_inner {
                true => (&connection.measure_router, bound.is_some()),
                false => (&connection.measure, connection.is_bounded()),
            };
            if !measure.is_told(&connection.receiver, is_bounded) {
                continue;
            }
            let asked = if is_inner { connection.clamp() } else { connection.tuned() };
            let window = match is_inner {
                true => bound.unwrap_or(asked),
                false => connection.window_clamp(),
            };
            let known = ConnectionSample {
                id: id(index, connection.serial),
                group: hop.class,
                window,
                advertised: connection.receiver.window(),
                asked: is_router.then_some(asked),
                segment: flow.segment,
                rtt_sent: Some(connection.client_rtt).filter(|&rtt| !is_router && rtt > Span::ZERO),
                ..ConnectionSample::default()
            };
            let measure = match is_inner {
                true => &mut connection.measure_router,
                false => &mut connection.measure,
            };
            let mut sample = measure.take(known, &connection.receiver);
            if is_exact {
                let path = &self.paths[flow.path];
                sample.rtt = Some(path.up.delay() + path.down.delay());
            }
            samples.push(sample);
        }
        samples.sort_unstable_by_key(|sample| sample.id);
        samples
    }

    /// Opens the windows at the host or router of a stage as far as the stage wants.
    pub(super) fn open_windows(&mut self, stage: usize) {
        let windows = &self.home.stages[stage].windows;
        let mut bounds: Vec<(u64, Bytes)> =
            windows.connections.iter().map(|c| (c.id, c.window)).collect();
        bounds.sort_unstable();
        for (index, connection) in self.connections.open_ones() {
            let flow = &self.flows[connection.flow];
            let is_at = |hop: Option<Hop>| flow.has_window && hop.is_some_and(|h| h.stage == stage);
            let id = id(index, connection.serial);
            let bound = bounds.binary_search_by_key(&id, |b| b.0).ok().map(|at| bounds[at].1);
            if is_at(self.home.router(flow.group)) {
                connection.bound_at_router(bound);
            } else if is_at(self.home.host(flow.group)) {
                connection.bound_window(bound);
            }
        }
    }

    /// Gives a new connection the window that its host, and its router, set for new ones.
    pub(super) fn open_first_window(&mut self, index: u32) {
        let flow = &self.flows[self.connections[index].flow];
        if !flow.has_window {
            return;
        }
        let initial = |hop: Option<Hop>| {
            let Hop { stage, class } = hop?;
            self.home.stages[stage].windows.initial.get(class).copied().flatten()
        };
        let group = flow.seen_as.first;
        let [router, host] = [self.home.router(group), self.home.host(group)].map(initial);
        let connection = &mut self.connections[index];
        if router.is_some() {
            connection.bound_at_router(router);
        }
        if host.is_some() {
            connection.bound_window(host);
        }
    }
}

/// Places are reused, so the serial number is part of a connection's identity.
fn id(index: u32, serial: u64) -> u64 {
    (serial << 32) | u64::from(index)
}
