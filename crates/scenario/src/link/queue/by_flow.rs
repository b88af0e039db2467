//! Flow queues (FQ-CoDel): flows are hashed to lanes; lanes are served in rounds by bytes, first
//! those that were empty before, and each has a CoDel of its own.
//!
//! An idle lane that gets a packet joins the *new* lanes with a quantum of credit. New lanes are
//! served before *old* ones; a lane without credit gets another quantum and goes to the end of the
//! old ones. A new lane that becomes empty passes through the old ones first, so that a flow of
//! single packets cannot always be first. When the buffer is full, half of the packets of the lane
//! with the most bytes are dropped from its head, but at most [`BATCH_MAX`].
//!
//! Source: RFC 8290 §4; O(1) per packet except for the search for the fullest lane, once a batch.

use std::collections::VecDeque;

use fairweir_core::units::Time;

use super::{Lane, Waiting};
use crate::link::Dropped;
use crate::link::codel::Codel;
use crate::random::SplitMix64;

/// Number of lanes. Source: RFC 8290 §5.2.4.
pub(super) const LANES: usize = 1_024;
/// Bytes that a lane may send per round. Source: RFC 8290 §5.2.3.
const QUANTUM: i64 = 1_514;
/// The most packets dropped at once when the buffer is full. Source: RFC 8290 §4.1.
pub(super) const BATCH_MAX: usize = 64;

/// The lane of each flow, and the order in which lanes are served.
///
/// Invariant: a lane is listed at most once; every lane in which a packet waits is listed.
#[derive(Clone, Debug)]
pub(super) struct ByFlow {
    perturbation: u64,
    states: Vec<State>,
    new: VecDeque<u16>,
    old: VecDeque<u16>,
}

#[derive(Clone, Debug, Default)]
struct State {
    codel: Codel,
    credit: i64,
    is_listed: bool,
}

impl ByFlow {
    pub(super) fn new(seed: u64) -> ByFlow {
        let states = vec![State::default(); LANES];
        ByFlow { perturbation: seed, states, new: VecDeque::new(), old: VecDeque::new() }
    }

    /// The lane of a flow.
    pub(super) fn lane(&self, flow: u64) -> usize {
        SplitMix64::new(flow ^ self.perturbation).below(LANES as u64) as usize
    }

    /// A packet comes into a lane.
    pub(super) fn wake(&mut self, i: usize) {
        let state = &mut self.states[i];
        if !state.is_listed {
            (state.credit, state.is_listed) = (QUANTUM, true);
            self.new.push_back(i as u16);
        }
    }

    /// Takes out the packet that is served next, and drops those before it that CoDel drops.
    pub(super) fn pop<T>(
        &mut self,
        now: Time,
        lanes: &mut [Lane<T>],
        drops: &mut VecDeque<Dropped<T>>,
    ) -> Option<Waiting<T>> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let first = *list.front()?;
            let state = &mut self.states[usize::from(first)];
            if state.credit <= 0 {
                state.credit += QUANTUM;
                list.pop_front();
                self.old.push_back(first);
                continue;
            }
            if let Some(waiting) = state.codel.pop(now, &mut lanes[usize::from(first)], drops) {
                state.credit -= waiting.packet.size.as_u64() as i64;
                return Some(waiting);
            }
            list.pop_front();
            if is_new {
                self.old.push_back(first);
            } else {
                state.is_listed = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fairweir_core::units::Bytes;

    use super::*;
    use crate::link::Packet;

    struct Queues {
        by_flow: ByFlow,
        lanes: Vec<Lane<()>>,
    }

    impl Queues {
        fn new() -> Queues {
            let lanes = (0..LANES).map(|_| Lane::default()).collect();
            Queues { by_flow: ByFlow::new(1), lanes }
        }

        fn push(&mut self, lane: usize, size: u64) {
            let packet = Packet { class: lane, size: Bytes::new(size), body: () };
            self.lanes[lane].push(Waiting { packet, since: Time::ZERO });
            self.by_flow.wake(lane);
        }

        fn pop(&mut self) -> Option<usize> {
            let popped = self.by_flow.pop(Time::ZERO, &mut self.lanes, &mut VecDeque::new());
            popped.map(|w| w.packet.class)
        }

        fn order(&mut self, count: usize) -> Vec<usize> {
            (0..count).map_while(|_| self.pop()).collect()
        }
    }

    #[test]
    fn lanes_share_by_bytes_in_rounds_of_a_quantum() {
        let mut queues = Queues::new();
        (0..4).for_each(|_| queues.push(1, 1_514));
        (0..8).for_each(|_| queues.push(2, 757));
        // A quantum is one packet of lane 1 and two of lane 2.
        assert_eq!(queues.order(20), [1, 2, 2].repeat(4));
    }

    #[test]
    fn a_lane_that_was_empty_goes_first_but_only_with_a_quantum() {
        let mut queues = Queues::new();
        (0..20).for_each(|_| queues.push(1, 1_514));
        assert_eq!(queues.order(3), [1, 1, 1]);
        (0..3).for_each(|_| queues.push(2, 1_514));
        // Lane 1 has used up its quantum by then, and lane 2 is behind it but has a fresh one.
        assert_eq!(queues.order(5), [2, 2, 1, 2, 1]);
    }

    #[test]
    fn a_flow_that_sends_its_next_packet_when_one_left_is_not_first_each_time() {
        let mut queues = Queues::new();
        (0..40).for_each(|_| queues.push(1, 1_514));
        queues.pop();
        let mut served = [0u32; 3];
        queues.push(2, 1_514);
        for _ in 0..40 {
            let lane = queues.pop().unwrap();
            served[lane] += 1;
            if lane == 2 {
                queues.push(2, 1_514);
            }
        }
        assert!(served[1].abs_diff(served[2]) <= 1, "{served:?}");
    }

    #[test]
    fn flows_are_spread_over_the_lanes() {
        let by_flow = ByFlow::new(7);
        let lanes: std::collections::BTreeSet<usize> =
            (0..1_024).map(|f| by_flow.lane(f)).collect();
        // 1024 balls in as many bins leave 1/e of them empty.
        assert!((600..700).contains(&lanes.len()), "{}", lanes.len());
    }
}
