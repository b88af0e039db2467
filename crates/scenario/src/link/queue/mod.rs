//! The packets that wait at a link, and the order in which they are served.

use std::collections::VecDeque;

use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Time};

use super::codel::Codel;
use super::lane::{Lane, Waiting};
use super::{Discipline, Dropped, Packet};

mod by_flow;
mod by_start;
mod in_rounds;

use by_flow::{BATCH_MAX, ByFlow, LANES};
use by_start::ByStart;
use in_rounds::InRounds;

/// Lanes of waiting packets: a single lane if service is first in, first out; otherwise one per
/// class or per hash of flows.
#[derive(Clone, Debug)]
pub(super) struct Queue<T> {
    lanes: Vec<Lane<T>>,
    order: Order,
    backlog: Bytes,
    len: usize,
}

/// Which lane is served next.
#[derive(Clone, Debug)]
enum Order {
    OneLane,
    Controlled(Codel),
    ByStart(ByStart),
    InRounds(InRounds),
    ByFlow(ByFlow),
}

impl<T> Queue<T> {
    /// An empty queue. Where flows have lanes, `seed` determines which flows share a lane.
    pub(super) fn new(discipline: Discipline, weights: &[Weight], seed: u64) -> Queue<T> {
        let one = &[Weight::ONE][..];
        let (order, weights) = match discipline {
            Discipline::Fifo | Discipline::Red(_) | Discipline::Pie => (Order::OneLane, one),
            Discipline::Codel => (Order::Controlled(Codel::default()), one),
            Discipline::Wfq => (Order::ByStart(ByStart::new(weights)), weights),
            Discipline::Drr => (Order::InRounds(InRounds::new(weights)), weights),
            Discipline::FqCodel => (Order::ByFlow(ByFlow::new(seed)), &[Weight::ONE; LANES][..]),
        };
        let lanes = weights.iter().copied().map(Lane::new).collect();
        Queue { lanes, order, backlog: Bytes::ZERO, len: 0 }
    }

    pub(super) fn backlog(&self) -> Bytes {
        self.backlog
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes in a packet of a flow.
    pub(super) fn push(&mut self, flow: u64, waiting: Waiting<T>) {
        let i = match &self.order {
            Order::OneLane | Order::Controlled(_) => 0,
            Order::ByStart(_) | Order::InRounds(_) => waiting.packet.class,
            Order::ByFlow(order) => order.lane(flow),
        };
        assert!(i < self.lanes.len(), "a packet's class has a weight");
        let lane = &mut self.lanes[i];
        if lane.waiting.is_empty() {
            match &mut self.order {
                Order::OneLane | Order::Controlled(_) => {}
                Order::ByStart(order) => order.wake(i),
                Order::InRounds(order) => order.wake(i),
                Order::ByFlow(order) => order.wake(i),
            }
        }
        self.backlog += waiting.packet.size;
        self.len += 1;
        lane.push(waiting);
    }

    /// Takes out the packet that is served next, and drops those before it that have to go.
    pub(super) fn pop(
        &mut self,
        now: Time,
        drops: &mut VecDeque<Dropped<T>>,
    ) -> Option<Waiting<T>> {
        let drops_before = drops.len();
        let waiting = match &mut self.order {
            Order::OneLane => self.lanes[0].pop(),
            Order::Controlled(codel) => codel.pop(now, &mut self.lanes[0], drops),
            Order::ByStart(order) => order.next(&self.lanes).and_then(|i| self.lanes[i].pop()),
            Order::InRounds(order) => order.next(&self.lanes).and_then(|i| self.lanes[i].pop()),
            Order::ByFlow(order) => order.pop(now, &mut self.lanes, drops),
        };
        let dropped = drops.range(drops_before..).map(|dropped| dropped.packet.size);
        for size in dropped.chain(waiting.as_ref().map(|w| w.packet.size)) {
            self.forget(size);
        }
        waiting
    }

    /// Drops packets when the buffer is full: the last packet of the lane with the most backlog per
    /// weight (of equal lanes the last one), or, where flows have lanes, a batch from its head.
    /// Looks at every lane, but only when it drops.
    pub(super) fn drop_some(&mut self, mut drop: impl FnMut(Packet<T>)) {
        let lanes = self.lanes.iter_mut();
        let fullest = lanes.max_by(|a, b| {
            let product = |p: u64, q: u64| u128::from(p) * u128::from(q);
            product(a.backlog, b.weight).cmp(&product(b.backlog, a.weight))
        });
        let Some(lane) = fullest else { return };
        let mut dropped = Vec::new();
        if let Order::ByFlow(_) = self.order {
            let batch = lane.waiting.len().div_ceil(2).min(BATCH_MAX);
            dropped.extend((0..batch).map_while(|_| lane.pop()));
        } else {
            dropped.extend(lane.pop_last());
        }
        for Waiting { packet, .. } in dropped {
            self.forget(packet.size);
            drop(packet);
        }
    }

    fn forget(&mut self, size: Bytes) {
        self.backlog = self.backlog.saturating_sub(size);
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Start-time fair queueing by its definition; it looks at every lane each time.
    struct Plain {
        weights: Vec<u64>,
        lanes: Vec<VecDeque<(usize, u64)>>,
        starts: Vec<u128>,
        now: u128,
        finish_max: u128,
    }

    impl Plain {
        fn push(&mut self, class: usize, id: usize, size: u64) {
            if self.lanes[class].is_empty() {
                self.starts[class] = self.starts[class].max(self.now);
            }
            self.lanes[class].push_back((id, size));
        }

        fn pop(&mut self) -> Option<usize> {
            let busy = (0..self.lanes.len()).filter(|&i| !self.lanes[i].is_empty());
            let Some(i) = busy.min_by_key(|&i| (self.starts[i], i)) else {
                self.now = self.finish_max;
                return None;
            };
            let (id, size) = self.lanes[i].pop_front().unwrap();
            self.now = self.starts[i];
            self.starts[i] += u128::from((size << 32) / self.weights[i]);
            self.finish_max = self.finish_max.max(self.starts[i]);
            Some(id)
        }

        fn drop_one(&mut self) -> Option<usize> {
            let backlog = |i: usize| self.lanes[i].iter().map(|(_, size)| size).sum::<u64>();
            let per_weight = |i: usize| backlog(i) as f64 / self.weights[i] as f64;
            let order = |&i: &usize, &j: &usize| per_weight(i).total_cmp(&per_weight(j));
            let longest = (0..self.lanes.len()).max_by(order)?;
            self.lanes[longest].pop_back().map(|(id, _)| id)
        }
    }

    #[test]
    fn what_a_class_did_not_use_alone_is_gone_under_drr() {
        let mut queue: Queue<()> = Queue::new(Discipline::Drr, &[Weight::ONE; 2], 1);
        let push = |queue: &mut Queue<()>, class, size| {
            let packet = Packet { class, size: Bytes::new(size), body: () };
            queue.push(0, Waiting { packet, since: Time::ZERO });
        };
        for _ in 0..100 {
            push(&mut queue, 0, 60);
            queue.pop(Time::ZERO, &mut VecDeque::new());
        }
        for i in 0..20 {
            push(&mut queue, i % 2, 1_514);
        }
        let order: Vec<usize> = std::iter::from_fn(|| queue.pop(Time::ZERO, &mut VecDeque::new()))
            .map(|w| w.packet.class)
            .collect();
        assert_eq!(order, [0, 1].repeat(10));
    }

    proptest! {
        #[test]
        fn wfq_serves_and_drops_as_it_is_defined(
            // Weights that divide exactly, so that ties in the code are ties in floating point too.
            weights in proptest::collection::vec((0u32..4).prop_map(|p| 1 << p), 1..8),
            steps in proptest::collection::vec((0u8..9, 0usize..8, 1u64..40), 1..500),
        ) {
            let of = |&w: &u32| Weight::new(w).unwrap();
            let weights_typed: Vec<Weight> = weights.iter().map(of).collect();
            let mut queue: Queue<usize> = Queue::new(Discipline::Wfq, &weights_typed, 1);
            let mut plain = Plain {
                weights: weights.iter().map(|&w| w.into()).collect(),
                lanes: vec![VecDeque::new(); weights.len()],
                starts: vec![0; weights.len()],
                now: 0,
                finish_max: 0,
            };
            for (id, (what, class, size)) in steps.into_iter().enumerate() {
                match what {
                    0..4 => {
                        let class = class % weights.len();
                        let packet = Packet { class, size: Bytes::new(size), body: id };
                        queue.push(0, Waiting { packet, since: Time::ZERO });
                        plain.push(class, id, size);
                    }
                    4..8 => {
                        let popped = queue.pop(Time::ZERO, &mut VecDeque::new());
                        prop_assert_eq!(popped.map(|w| w.packet.body), plain.pop());
                    }
                    _ => {
                        let mut dropped = None;
                        queue.drop_some(|packet| dropped = Some(packet.body));
                        prop_assert_eq!(dropped, plain.drop_one());
                    }
                }
                prop_assert_eq!(queue.len(), plain.lanes.iter().map(VecDeque::len).sum::<usize>());
            }
        }
    }
}
