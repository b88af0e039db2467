//! Bundles of the sending hosts: which connections answer for which congestion signals.

use fairweir_core::delegate::{Answer, Bundle, MemberId, Phase, Sample, Target};
use fairweir_core::units::{Bytes, Span, Time};
use fairweir_scenario::report::BundleSamples;

use super::super::connection::{Connection, Membership};
use super::{Source, World};
use crate::tcp::{Ack, Signal, Signals};

/// Interval at which a bundle without delegation is recorded.
const TICK: Span = Span::millis(100);

/// A bundle of the scenario, as it is played.
#[derive(Debug)]
pub(super) struct PlayedBundle {
    /// `None` if its connections are left unchanged.
    core: Option<Bundle>,
    pub(super) samples: BundleSamples,
    source: usize,
}

impl World<'_> {
    pub(super) fn add_bundles(&mut self) {
        for (index, bundle) in self.scenario.bundles.iter().enumerate() {
            let source = self.add_source(Source::Bundle(index), Some(Time::ZERO + TICK));
            let core = bundle.delegation.as_ref().map(Bundle::new);
            let samples = BundleSamples::new(self.scenario.duration, bundle.free.len());
            self.bundles.push(PlayedBundle { core, samples, source });
        }
    }

    /// The role of a new connection of a flow.
    pub(super) fn join_bundle(&mut self, flow: usize) -> Option<Membership> {
        let group = self.flows[flow].group;
        let roles = || self.scenario.bundles.iter().map(|bundle| bundle.role_of(group));
        let (bundle, role) = roles().enumerate().find_map(|(i, role)| Some((i, role?)))?;
        let free = self.scenario.bundles[bundle].free.iter().position(|free| free.group == group);
        let id = self.bundles[bundle].core.as_mut()?.join(role)?;
        Some(Membership { bundle, id, free })
    }

    pub(super) fn leave_bundle(&mut self, index: u32) {
        let Some(place) = self.connections[index].membership.take() else { return };
        self.record_signals(place);
        if let Some(core) = &mut self.bundles[place.bundle].core {
            core.leave(place.id);
        }
    }

    /// Records the signals of a connection that is over, or that is still open at the end.
    fn record_signals(&mut self, Membership { bundle, id, free }: Membership) {
        let PlayedBundle { core, samples, .. } = &mut self.bundles[bundle];
        let Some(core) = core else { return };
        match free {
            Some(nth) => samples.record_signals(nth, core.tally(id)),
            None => samples.stunts = samples.stunts + core.tally(id),
        }
    }

    pub(super) fn end_bundles(&mut self) {
        let open = self.connections.open_ones();
        let places: Vec<Membership> = open.filter_map(|(_, c)| c.membership).collect();
        places.into_iter().for_each(|place| self.record_signals(place));
    }

    /// An ACK has come to a server.
    pub(super) fn hear_ack(&mut self, now: Time, index: u32, ack: &Ack) {
        let connection = &mut self.connections[index];
        let Some(Membership { bundle, id, .. }) = connection.membership else {
            return connection.sender.handle_ack(now, ack);
        };
        let Some(core) = &mut self.bundles[bundle].core else { return };
        let is_reduced = connection.sender.growth().is_none_or(|(_, p)| p == Phase::Recovery);
        let cut = if is_reduced { None } else { core.take_cut(now, id) };
        let packet = self.flows[connection.flow].full_packet();
        if let Some(cwnd) = cut {
            connection.sender.cut_to(cwnd);
            tell(core, id, connection, packet);
        }
        connection
            .sender
            .handle_ack_in_bundle(now, ack, &mut |signal| answer(core, now, id, signal));
        tell(core, id, connection, packet);
    }

    /// A timer of a server has expired.
    pub(super) fn hear_timeout(&mut self, now: Time, index: u32) {
        let connection = &mut self.connections[index];
        let place = connection.membership;
        let core = place.and_then(|p| Some((p.id, self.bundles[p.bundle].core.as_mut()?)));
        let Some((id, core)) = core else { return connection.sender.handle_timeout(now) };
        let signals: &mut Signals<'_> = &mut |signal| answer(core, now, id, signal);
        connection.sender.handle_timeout_in_bundle(now, signals);
        let segment = self.flows[connection.flow].full_packet();
        tell(core, id, connection, segment);
    }

    pub(super) fn tick_bundle(&mut self, now: Time, index: usize) {
        let PlayedBundle { core, samples, source } = &mut self.bundles[index];
        let spec = &self.scenario.bundles[index];
        let Some(core) = core else {
            for (nth, free) in spec.free.iter().enumerate() {
                if let Target::Trace(trace) = &free.target {
                    samples.record_target(now, nth, trace.at(now));
                }
            }
            return self.deadlines.set(*source, Some(now + TICK));
        };
        core.handle_tick(now);
        for (_, connection) in self.connections.open_ones() {
            let Some(Membership { bundle, id, free: Some(nth) }) = connection.membership else {
                continue;
            };
            if let Some(status) = core.status(id).filter(|_| bundle == index) {
                samples.record(now, nth, &status);
            }
        }
        self.deadlines.set(*source, Some(core.next_tick(now)));
    }
}

fn answer(core: &mut Bundle, now: Time, id: MemberId, signal: Signal) -> Answer {
    match signal {
        Signal::Loss => core.handle_signal(now, id),
        Signal::Timeout => core.handle_timeout(now, id),
    }
}

/// Tells the bundle the state of a sender.
fn tell(core: &mut Bundle, id: MemberId, connection: &Connection, (segment, packet): (u64, Bytes)) {
    let sender = &connection.sender;
    let (Some((cwnd_cut, phase)), Some(rtt)) = (sender.growth(), sender.srtt()) else { return };
    let (rtts, rtt_count) = sender.rtts();
    let packets = sender.arrived().as_u64() / segment;
    core.handle_sample(
        id,
        Sample {
            cwnd: sender.cwnd(),
            cwnd_cut,
            packet,
            rtt: rtt.max(Span::nanos(1)),
            rtts,
            rtt_count,
            delivered: packet * packets,
            phase,
        },
    );
}
