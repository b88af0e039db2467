//! What waits at a link, and in which order it is served.

use std::collections::VecDeque;

use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Time};

use super::{Discipline, Packet};

/// A packet that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting<T> {
    pub(super) packet: Packet<T>,
    pub(super) since: Time,
}

/// Lanes of waiting packets: one for all under FIFO, one per class under WFQ.
///
/// WFQ is start-time fair queueing. Virtual time is counted in bytes per unit of weight: the head
/// of a lane starts at the virtual time at which the lane's last packet was finished, or now if
/// the lane was empty; the head that starts first is served.
#[derive(Clone, Debug)]
pub(super) struct Queue<T> {
    discipline: Discipline,
    lanes: Vec<Lane<T>>,
    /// Start of the packet that was served last.
    virtual_now: u128,
    backlog: Bytes,
    len: usize,
}

#[derive(Clone, Debug)]
struct Lane<T> {
    weight: u128,
    waiting: VecDeque<Waiting<T>>,
    backlog: u64,
    /// Virtual start of the head; while nothing waits, virtual finish of the last one.
    start: u128,
}

/// Virtual time counts in 2⁻³² bytes per weight, so that rounding stays below a byte in 10,000 s
/// at 100 Gbit/s and 128 bits never overflow.
const VIRTUAL_SCALE: u128 = 1 << 32;

impl<T> Queue<T> {
    pub(super) fn new(discipline: Discipline, weights: &[Weight]) -> Queue<T> {
        let lane = |weight: &Weight| Lane {
            weight: weight.as_u32().into(),
            waiting: VecDeque::new(),
            backlog: 0,
            start: 0,
        };
        let lanes = match discipline {
            Discipline::Fifo => vec![lane(&Weight::ONE)],
            Discipline::Wfq => weights.iter().map(lane).collect(),
        };
        Queue { discipline, lanes, virtual_now: 0, backlog: Bytes::ZERO, len: 0 }
    }

    pub(super) fn backlog(&self) -> Bytes {
        self.backlog
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, waiting: Waiting<T>) {
        let lane = match self.discipline {
            Discipline::Fifo => 0,
            Discipline::Wfq => waiting.packet.class,
        };
        assert!(lane < self.lanes.len(), "a packet's class has a weight");
        let lane = &mut self.lanes[lane];
        if lane.waiting.is_empty() {
            lane.start = lane.start.max(self.virtual_now);
        }
        lane.backlog += waiting.packet.size.as_u64();
        self.backlog += waiting.packet.size;
        self.len += 1;
        lane.waiting.push_back(waiting);
    }

    /// Takes out the packet that is served next.
    pub(super) fn pop(&mut self) -> Option<Waiting<T>> {
        let busy = self.lanes.iter_mut().filter(|lane| !lane.waiting.is_empty());
        let lane = busy.min_by_key(|lane| lane.start)?;
        let waiting = lane.waiting.pop_front()?;
        let size = waiting.packet.size;
        self.virtual_now = lane.start;
        lane.start += u128::from(size.as_u64()) * VIRTUAL_SCALE / lane.weight;
        lane.backlog -= size.as_u64();
        self.forget(size);
        Some(waiting)
    }

    /// Takes out the packet that goes when the buffer is full: the last one of the lane with the
    /// most backlog per weight.
    pub(super) fn drop_one(&mut self) -> Option<Packet<T>> {
        let longest = self.lanes.iter_mut().max_by(|a, b| {
            (u128::from(a.backlog) * b.weight).cmp(&(u128::from(b.backlog) * a.weight))
        })?;
        let packet = longest.waiting.pop_back()?.packet;
        longest.backlog -= packet.size.as_u64();
        self.forget(packet.size);
        Some(packet)
    }

    fn forget(&mut self, size: Bytes) {
        self.backlog = self.backlog.saturating_sub(size);
        self.len -= 1;
    }
}
