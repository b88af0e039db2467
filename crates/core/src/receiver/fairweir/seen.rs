//! What an observation says about losses, connections and groups.

use super::super::{ConnectionSample, DelaySample, Observation, TICK};
use super::asked::moved;
use super::group::{Connection, Connections, SeenConnections};
use super::link::Verdict;
use super::loss::{Interval, LossVerdict};
use super::{Fairweir, NO_CORRECTION, PACKET_GUESS};
use crate::units::{Part, Rate, Span};
use crate::window::Behaviour;

impl Fairweir {
    /// What losses say about the capacity; `None` if they say nothing.
    pub(super) fn see_losses(
        &mut self,
        observation: &Observation,
        total: Rate,
        delay: Option<DelaySample>,
    ) -> Option<Verdict> {
        let is_clean = |c: &&ConnectionSample| c.segments > 0 && self.groups[c.group].is_clean();
        let active = || observation.connections.iter().filter(is_clean);
        // If the link has a queue where packets could be lost, a connection that loses packets all the time loses
        // them to noise.
        let shown = self.link.confirmed();
        let lossiness = |id| self.connections.get(&id).map_or(0, |c| c.lossiness);
        let is_noisy = |c: &ConnectionSample| shown.is_some() && lossiness(c.id) > NOISY_PATH;
        let interval = Interval {
            at: observation.at,
            rate: total,
            active: active().count() as u32,
            lossy: active().filter(|c| c.holes > 0 && !is_noisy(c)).count() as u32,
            queue: delay.map(|d| d.value),
            queue_target: self.short_queue() + self.noise_part(),
            is_wanted: self.is_wanted(),
            shown,
        };
        // An assumed capacity is not a value to return to.
        let before = self.link.capacity().filter(|_| !self.assumption.is_made());
        self.see_short_buffer(&interval, before);
        let capacity = match self.losses.handle_interval(interval, before) {
            LossVerdict::None => return None,
            LossVerdict::Limit(rate) => Some(rate),
            LossVerdict::Back(capacity) => capacity,
        };
        self.link.set_capacity(capacity);
        self.opening = NO_CORRECTION;
        self.drain.ticks_left = 0;
        Some(Verdict::Rest)
    }

    /// Notices a buffer that drops packets although the queue is hardly above its target.
    pub(super) fn see_short_buffer(&mut self, interval: &Interval, capacity: Option<Rate>) {
        self.short = self.short.map(|s| s + s / SHORT_FORGOTTEN).filter(|&s| s < self.latency);
        let Some(queue) = interval.queue.filter(|_| interval.lossy > 0) else { return };
        let is_full = capacity.is_some_and(|c| interval.rate > c.scale(9, 10));
        if is_full && queue > interval.queue_target / 2 && queue < self.latency * 3 {
            let half = (queue / 2).max(SHORT_MIN);
            self.short = Some(self.short.map_or(half, |short| short.min(half)));
        }
    }

    pub(super) fn see_connections(&mut self, observation: &Observation, queue: Span) {
        let now = observation.at;
        let mut seen = Connections::new();
        for sample in &observation.connections {
            let before = self.connections.get(&sample.id);
            let received = sample.framing().wire(sample.received);
            let rtt = self.delay.rtt_base(sample.id).map(|base| base + queue).or(sample.rtt);
            // Time that packets wait in classes is part of the round trip.
            let has_class = self.groups.get(sample.group).is_some_and(|group| group.is_capped);
            let rtt = if has_class || self.has_tight_classes() { rtt.max(sample.rtt) } else { rtt };
            // Only the window that held at the beginning of the interval could be filled.
            let window = before.map_or(sample.window, |c| c.sample.window.min(sample.window));
            let arrived = Rate::from_volume(sample.received, observation.interval);
            // Traffic with a round trip longer than a tick comes in bursts.
            let ticks = rtt.map_or(1, |rtt| rtt.as_nanos() / TICK.as_nanos() + 1).min(8);
            let arrived = before.map_or(arrived, |c| c.goodput.smoothed(arrived, ticks));
            let in_flight = rtt.map(|rtt| arrived * rtt + sample.segment);
            let is_near = self.delay.rtt_base(sample.id).is_some_and(|base| base < NEARBY);
            let fills = |part: Part| {
                in_flight.is_some_and(|flying| part.is_reached(flying.as_u64(), window.as_u64()))
            };
            let active_at = match before {
                Some(known) if sample.segments == 0 => known.active_at,
                _ => now,
            };
            let begun = || Behaviour::new(now, sample.port);
            let mut behaviour = before.map_or_else(begun, |known| known.behaviour);
            behaviour.handle_tick(now, sample.has_sent, sample.received);
            let connection = Connection {
                group: sample.group,
                begun_at: before.map_or(now, |known| known.begun_at),
                rate: Rate::from_volume(received, observation.interval),
                goodput: arrived,
                is_filled: fills(WINDOW_FILLED),
                is_about_filled: fills(if is_near { ABOUT_FILLED } else { WINDOW_FILLED }),
                active_at,
                lossiness: {
                    let before = before.map_or(0, |known| known.lossiness);
                    before - before / 16 + if sample.holes > 0 { 1_000 / 16 } else { 0 }
                },
                losses: self.see_losses_of(now, sample, before, queue),
                own_queue: self.delay.own_queue(sample.id),
                behaviour,
                has_moved: before
                    .is_some_and(|known| moved(known.sample.asked, sample.asked, sample.segment)),
                sample: *sample,
            };
            seen.insert(sample.id, connection);
        }
        self.connections = seen;
        self.queue_last = queue;
        let full =
            self.connections.values().map(|c| c.sample.framing().wire(c.sample.segment)).max();
        self.packet = full.unwrap_or(PACKET_GUESS);
    }

    pub(super) fn see_groups(&mut self, observation: &Observation, is_crowded: bool) {
        let packet = self.packet;
        let mut seen = vec![
            SeenConnections {
                filled: Rate::ZERO,
                about_filled: Rate::ZERO,
                is_crowded,
                is_recovering: false,
                lost: None,
                has_moved: false,
                old: Rate::ZERO,
                bounded: Rate::ZERO,
                packet,
            };
            self.groups.len()
        ];
        for connection in self.connections.values() {
            let seen = &mut seen[connection.group];
            seen.bounded += connection.rate;
            seen.has_moved |= connection.has_moved;
            let losses = &connection.losses;
            seen.is_recovering |= losses.is_recovering(observation.at) && !self.losses.is_testing();
            seen.lost = seen.lost.max(losses.lost(observation.at));
            if observation.at.since(connection.begun_at) >= YOUNG {
                seen.old += connection.rate;
            }
            if connection.is_filled {
                seen.filled += connection.rate;
            }
            if connection.is_about_filled {
                seen.about_filled += connection.rate;
            }
        }
        for ((group, sample), seen) in self.groups.iter_mut().zip(&observation.groups).zip(seen) {
            group.handle_tick(sample, observation.interval, seen);
        }
    }
}

/// A window counts as filled from this part of itself on.
const WINDOW_FILLED: Part = Part::percent(90);
/// A sender nearby may be waiting for room if this part of its window is filled: below an RTT of 2 ms Linux sends
/// bursts of up to 64 kB, for which it waits until a third of the window is free (`tcp_tso_autosize`,
/// `tcp_tso_should_defer`), and receivers answer each burst once.
const ABOUT_FILLED: Part = Part::percent(50);
/// Highest base RTT of a sender nearby, including the rest of a queue that it may contain.
const NEARBY: Span = Span::millis(4);
/// Shortest target of the queue at a short buffer.
const SHORT_MIN: Span = Span::millis(2);
/// The target grows by one part in this many each tick.
const SHORT_FORGOTTEN: u64 = 400;
/// Losses in more ticks than this, in thousandths, count as noise if the link has a queue.
const NOISY_PATH: u32 = 200;
/// Age until which a connection is young.
const YOUNG: Span = Span::millis(1_500);
