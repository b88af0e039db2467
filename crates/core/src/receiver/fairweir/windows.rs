//! From the groups' shares to the windows of their connections.

use super::super::delay::RTT_GUESS;
use super::super::{ConnectionWindow, Windows};
use super::Fairweir;
use super::asked::{EVEN, weights};
use super::group::{Connection, Group, NO_CORRECTION};
use crate::share::Weight;
use crate::units::{Bytes, Part, Rate, Span, Time};
use crate::window::{
    Bounds, Class, Framing, Member, SEGMENTS_MIN, divide, floor_rate, wire_window,
};

impl Fairweir {
    /// The windows of all connections by the window law.
    pub(super) fn windows(&self) -> Windows {
        let mut windows = Windows::default();
        let capacity = self.link.capacity().unwrap_or(Rate::ZERO);
        let by_weight = self.weights.by_weight(self.own_part(capacity));
        for ((index, group), by_weight) in self.groups.iter().enumerate().zip(by_weight) {
            self.bound_members(index, group, &mut windows.connections);
            let first = by_weight.max(self.weights.min(index));
            let first = self.weights.max(index).map_or(first, |max| first.min(max));
            windows.initial.push(Some(self.first_window(first)));
        }
        windows.connections.sort_unstable_by_key(|c| c.id);
        windows
    }

    /// The initial window of a connection in a group that may have `rate`.
    pub(super) fn first_window(&self, rate: Rate) -> Bytes {
        let rtt = self.delay.rtt_base_max().unwrap_or(RTT_GUESS).max(RTT_GUESS);
        wire_window(rate, rtt, self.queue_target()).max(INITIAL_WINDOW)
    }

    /// The rate that the smallest windows of each group's connections let through.
    pub(super) fn floors(&self) -> Vec<Rate> {
        let mut floors = vec![Rate::ZERO; self.groups.len()];
        let now = self.connections.values().map(|c| c.active_at).max().unwrap_or(Time::ZERO);
        for (&id, c) in &self.connections {
            if now.since(c.active_at) < ACTIVE_FOR {
                floors[c.group] += self.floor_of(id, c);
            }
        }
        floors
    }

    /// Bounds the windows of one group's connections.
    pub(super) fn bound_members(
        &self,
        index: usize,
        group: &Group,
        windows: &mut Vec<ConnectionWindow>,
    ) {
        let of_group = |(_, c): &(&u64, &Connection)| c.group == index;
        let members: Vec<(&u64, &Connection)> = self.connections.iter().filter(of_group).collect();
        let now = members.iter().map(|(_, c)| c.active_at).max().unwrap_or(Time::ZERO);
        let bounds = Bounds::for_capacity(self.link.capacity());
        let classes: Vec<Class> = members
            .iter()
            .map(|(_, c)| match now.since(c.active_at) < ACTIVE_FOR {
                true => c.behaviour.class(now, bounds),
                false => Class::Idle,
            })
            .collect();
        let weights = self.asked_weights(group, &members, &classes);
        let weights = weights.unwrap_or_else(|| vec![Weight::ONE; members.len()]);
        let entries: Vec<Member> = members
            .iter()
            .enumerate()
            .map(|(at, (id, c))| Member {
                weight: weights[at],
                class: classes[at],
                demand: (!c.is_filled).then(|| c.rate * GROWING),
                floor: self.floor_of(**id, c),
            })
            .collect();
        let parts = divide(group.bound, &entries);
        let count = |class| classes.iter().filter(|&&c| c == class).count() as u64;
        let longs = count(Class::Long).max(1);
        let of_longs = weights.iter().zip(&classes).filter(|(_, class)| **class == Class::Long);
        let of_longs: u64 = of_longs.map(|(weight, _)| u64::from(weight.as_u32())).sum();
        let shorts = (count(Class::Short) + count(Class::Interactive)).max(1);
        let shorts = shorts.div_ceil(SHORTS_AT_ONCE);
        // Senders send whole packets: the next connection gets what one connection loses by rounding.
        let mut rest = 0;
        for (at, (&(&id, connection), part)) in members.iter().zip(parts).enumerate() {
            // A connection that does not fill its window may grow to its part at any time.
            let part = match classes[at] {
                Class::Long => {
                    let equal = group.bound / (longs + shorts - 1).max(1);
                    part.max(equal.scale(longs * u64::from(weights[at].as_u32()), of_longs.max(1)))
                }
                Class::Short | Class::Interactive => part.max(group.bound / shorts),
                Class::Idle => group.bound / (longs + shorts),
            };
            let exact = self.window(part, group, id, connection);
            let window = whole_segments(exact, connection.sample.framing(), &mut rest);
            windows.push(ConnectionWindow { id, window });
        }
    }

    /// The weights of a group's connections if its receiver divides them itself; `None` if all are equal.
    fn asked_weights(
        &self,
        group: &Group,
        members: &[(&u64, &Connection)],
        classes: &[Class],
    ) -> Option<Vec<Weight>> {
        let is_long = |at: &usize| classes[*at] == Class::Long;
        let longs: Vec<usize> = (0..members.len()).filter(is_long).collect();
        if !group.division.is_there() || longs.len() < 2 {
            return None;
        }
        let asked = |&at: &usize| {
            let (&id, connection) = members[at];
            let round_trip = self.base_of(id, connection) + self.queue_target();
            let wire = connection.sample.framing().wire(connection.sample.asked?);
            Some(Rate::from_volume(wire, round_trip))
        };
        let asked: Option<Vec<Rate>> = longs.iter().map(asked).collect();
        let of_longs = weights(group.bound, &asked?)?;
        let even = Weight::new(EVEN).expect("invariant: it is within the weights");
        let mut all = vec![even; members.len()];
        for (at, weight) in longs.into_iter().zip(of_longs) {
            all[at] = weight;
        }
        Some(all)
    }

    /// The window law, corrected by the rate that the group really got and by the length of the queue.
    fn window(&self, share: Rate, group: &Group, id: u64, connection: &Connection) -> Bytes {
        let base = self.base_of(id, connection);
        if group.is_capped {
            // The group's class holds the rate, whatever the queue at the link is.
            let wire = wire_window(share, base, self.queue_target() * 2);
            return connection.sample.framing().payload(wire);
        }
        let factor = group.correction * self.opening;
        let share = share.scale(factor, NO_CORRECTION * NO_CORRECTION);
        let wire = match self.drain.ticks_left > 0 {
            true => {
                let part = if self.drain.is_deep { DRAIN_DEEP } else { DRAIN_PART };
                wire_window(share, base * part, Span::ZERO)
            }
            // Behind a class that limits it, a connection needs packets that wait in that class.
            false if self.has_tight_classes() => wire_window(share, base, self.queue_target() * 2),
            false => wire_window(share, base, self.queue_target()),
        };
        connection.sample.framing().payload(wire)
    }

    /// The rate that the connection's smallest window lets through.
    fn floor_of(&self, id: u64, connection: &Connection) -> Rate {
        floor_rate(self.base_of(id, connection), self.queue_target(), connection.sample.framing())
    }

    fn base_of(&self, id: u64, connection: &Connection) -> Span {
        self.delay.rtt_base(id).or(connection.sample.rtt).unwrap_or(RTT_GUESS)
    }
}

/// Rounds to whole segments; `rest` carries the remainder over to the next connection.
fn whole_segments(exact: Bytes, framing: Framing, rest: &mut i64) -> Bytes {
    let segment = framing.segment().as_u64() as i64;
    let wanted = exact.as_u64() as i64 + *rest;
    let segments = ((wanted + segment / 2).max(0) / segment).max(SEGMENTS_MIN as i64);
    *rest = (wanted - segments * segment).clamp(-segment, segment);
    Bytes::new((segments * segment) as u64)
}

/// Time after a connection's last packet in which it takes part in the division.
const ACTIVE_FOR: Span = Span::secs(1);
/// The demand of a connection that does not fill its window, as a multiple of its rate.
const GROWING: Part = Part::of(11, 10);
/// Of this many connections with short answers, about one transmits at a time, since they pause often.
const SHORTS_AT_ONCE: u64 = 3;
/// Ten packets, the initial window of senders.
const INITIAL_WINDOW: Bytes = Bytes::new(14_480);
/// Part of share · base RTT to which windows are narrowed in a drain. Source: docs/control.md.
const DRAIN_PART: Part = Part::percent(85);
/// The same where that RTT contains a queue of unknown length.
const DRAIN_DEEP: Part = Part::percent(50);
