//! The shaper: real queues of real packets for each aggregate, served in deficit round robin.
//!
//! Problem: keep many aggregates to their rates without a burst and share each rate among its
//! flows. Method: a packet waits in its flow's queue, or is dropped if the queue is full. When the
//! time of the packet before has passed at the aggregate's rate, the next packet leaves: from the
//! queue whose turn it is while its deficit, which grows by its quantum each turn, covers its
//! packets. A timing wheel finds the aggregates whose time has come. The wheel holds aggregates,
//! not packets, since the policy decides only at the last moment which packet goes. Terms:
//! *quantum*, the bytes a queue may send per turn: weight · MSS; *deficit*, the rest of them.
//! Properties: an aggregate never sends faster than its rate by more than a packet; busy queues get
//! their weights' parts within a quantum and a packet; a packet leaves at most a tick of the wheel
//! late, and this lateness does not add up. Cost: all packets are in one pool as a list per queue.
//! This layout favours the shaper: it needs memory only for packets that wait, and sending a packet
//! touches only that packet.
//!
//! Source: BC-PQP §2.1 and §6.1; Shreedhar and Varghese, Efficient fair queueing using deficit
//! round robin, SIGCOMM 1995; Saeed et al., Carousel, SIGCOMM 2017 (the wheel).

use super::wheel::Wheel;
use fairweir_core::phantom::plan;
use fairweir_core::units::{Bytes, Rate, Time};

/// An aggregate of a shaper.
#[derive(Clone, Debug)]
pub struct ShaperSpec {
    /// The rate of the aggregate, in L2 bytes.
    pub rate: Rate,
    /// Size of each queue.
    pub queue: Bytes,
    /// One queue for each weight.
    pub weights: Vec<u16>,
}

/// A packet that leaves, and the caller's data for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure<T> {
    /// When its time came; at most a tick of the wheel before it is polled.
    pub at: Time,
    /// The aggregate to which it belongs.
    pub aggregate: usize,
    /// The leaf in whose queue it was.
    pub leaf: usize,
    /// Its size as it was enqueued.
    pub size: Bytes,
    /// The caller's data as it was enqueued.
    pub packet: T,
}

/// Shapers on one timing wheel. Invariant: exactly the aggregates with a packet are on the wheel.
#[derive(Clone, Debug)]
pub struct Shapers<T> {
    aggregates: Vec<Aggregate>,
    queues: Vec<Queue>,
    pool: Pool<T>,
    wheel: Wheel,
}

#[derive(Clone, Debug)]
struct Aggregate {
    /// Time of a byte, in 2⁻²⁴ ns.
    byte_time: u64,
    /// When the packet that is leaving has had its time, ns.
    free_at: u64,
    /// A bit for each queue that has packets.
    busy: u64,
    /// The queue whose turn it is.
    turn: u32,
    queue_first: u32,
    /// The most bytes of a queue.
    limit: u32,
}

#[derive(Clone, Debug)]
struct Queue {
    head: u32,
    tail: u32,
    backlog: u32,
    deficit: u32,
    quantum: u32,
}

impl<T> Shapers<T> {
    /// Shapers without packets, numbered like the specifications.
    ///
    /// # Panics
    /// If an aggregate has no queue or more than [`plan::LEAVES_MAX`], a weight or a rate out of a
    /// plan's range, or a queue of 4 GiB or more.
    pub fn new(specs: &[ShaperSpec]) -> Shapers<T> {
        let mut queues = Vec::new();
        let aggregates = specs.iter().map(|spec| Aggregate::new(spec, &mut queues)).collect();
        Shapers { aggregates, queues, pool: Pool::new(), wheel: Wheel::new(specs.len()) }
    }

    /// Puts a packet into its queue; returns the packet if the queue is full.
    pub fn enqueue(
        &mut self,
        now: Time,
        aggregate: usize,
        leaf: usize,
        size: Bytes,
        packet: T,
    ) -> Option<T> {
        let owner = &mut self.aggregates[aggregate];
        let queue = &mut self.queues[owner.queue_first as usize + leaf];
        let room = u64::from(owner.limit - queue.backlog);
        if size.as_u64() > room {
            return Some(packet);
        }
        let size = size.as_u64() as u32;
        let at = self.pool.put(size, packet);
        if queue.head == NONE {
            queue.head = at;
        } else {
            self.pool.waiting[queue.tail as usize].next = at;
        }
        queue.tail = at;
        queue.backlog += size;
        if owner.busy == 0 {
            owner.turn = leaf as u32;
            queue.deficit = queue.quantum;
            owner.free_at = owner.free_at.max(now.as_nanos());
            self.wheel.set(aggregate, Time::from_nanos(owner.free_at));
        }
        owner.busy |= 1 << leaf;
        None
    }

    /// When to poll next.
    pub fn next_departure(&self) -> Option<Time> {
        self.wheel.next()
    }

    /// A packet that leaves by now, if there is one.
    pub fn poll_departure(&mut self, now: Time) -> Option<Departure<T>> {
        let aggregate = self.wheel.poll(now)?;
        let owner = &mut self.aggregates[aggregate];
        let first = owner.queue_first as usize;
        let queues = &mut self.queues[first..];
        let (leaf, size, packet) = owner.dequeue(queues, &mut self.pool);
        let at = Time::from_nanos(owner.free_at);
        // An empty packet takes a nanosecond, so that time passes.
        owner.free_at += ((u64::from(size) * owner.byte_time) >> 24) + 1;
        if owner.busy != 0 {
            self.wheel.set(aggregate, Time::from_nanos(owner.free_at));
        }
        Some(Departure { at, aggregate, leaf, size: Bytes::new(u64::from(size)), packet })
    }

    /// Bytes that wait in a queue.
    pub fn backlog(&self, aggregate: usize, leaf: usize) -> Bytes {
        let first = self.aggregates[aggregate].queue_first as usize;
        Bytes::new(u64::from(self.queues[first + leaf].backlog))
    }

    /// Reads what enqueuing will read; see [`Slot::touch`](fairweir_core::phantom::aggregate::Slot::touch).
    /// Which packets leave next is not known yet.
    #[inline]
    pub fn touch(&self, aggregate: usize, leaf: usize) -> u64 {
        let owner = &self.aggregates[aggregate];
        let queue = &self.queues[owner.queue_first as usize + leaf];
        let last = self.pool.waiting.get(queue.tail as usize);
        last.map_or(0, |last| u64::from(last.size)) ^ owner.free_at
    }
}

impl Aggregate {
    fn new(spec: &ShaperSpec, queues: &mut Vec<Queue>) -> Aggregate {
        assert!((1..=plan::LEAVES_MAX).contains(&spec.weights.len()), "a bit for each queue");
        let is_weight = |weight| (1..=plan::WEIGHT_MAX).contains(weight);
        assert!(spec.weights.iter().all(is_weight), "weights are a plan's");
        assert!((plan::RATE_MIN..=plan::RATE_MAX).contains(&spec.rate), "rates are a plan's");
        let limit = u32::try_from(spec.queue.as_u64()).expect("queues are smaller than 4 GiB");
        let queue_first = u32::try_from(queues.len()).expect("queues are numbered by 32 bits");
        queues.extend(spec.weights.iter().map(|weight| Queue {
            head: NONE,
            tail: NONE,
            backlog: 0,
            deficit: 0,
            quantum: u32::from(*weight) * plan::MSS as u32,
        }));
        let byte_time = (8_000_000_000u64 << 24) / spec.rate.as_bps();
        Aggregate { byte_time, free_at: 0, busy: 0, turn: 0, queue_first, limit }
    }

    /// Takes the packet whose turn it is; there has to be one.
    fn dequeue<T>(&mut self, queues: &mut [Queue], pool: &mut Pool<T>) -> (usize, u32, T) {
        loop {
            let leaf = self.turn as usize;
            let queue = &mut queues[leaf];
            let head = queue.head;
            if head != NONE && pool.waiting[head as usize].size <= queue.deficit {
                let (size, packet, next) = pool.take(head);
                queue.head = next;
                queue.backlog -= size;
                queue.deficit -= size;
                if next == NONE {
                    queue.deficit = 0;
                    self.busy &= !(1 << leaf);
                }
                return (leaf, size, packet);
            }
            // The next busy queue after this one, in a circle; it may be this one again.
            let after = self.busy.rotate_right(self.turn + 1);
            self.turn = (self.turn + 1 + after.trailing_zeros()) % 64;
            let queue = &mut queues[self.turn as usize];
            queue.deficit = queue.deficit.saturating_add(queue.quantum);
        }
    }
}

/// Lists of waiting packets; the free places are one more list.
#[derive(Clone, Debug)]
struct Pool<T> {
    waiting: Vec<Waiting<T>>,
    free: u32,
}

#[derive(Clone, Debug)]
struct Waiting<T> {
    /// `None` while the place is free.
    packet: Option<T>,
    size: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

impl<T> Pool<T> {
    fn new() -> Pool<T> {
        Pool { waiting: Vec::new(), free: NONE }
    }

    fn put(&mut self, size: u32, packet: T) -> u32 {
        let place = Waiting { packet: Some(packet), size, next: NONE };
        let at = self.free;
        if at == NONE {
            let at = u32::try_from(self.waiting.len()).expect("packets are numbered by 32 bits");
            self.waiting.push(place);
            return at;
        }
        let old = std::mem::replace(&mut self.waiting[at as usize], place);
        self.free = old.next;
        at
    }

    /// Takes a packet out; returns its size, the packet and the place of the one after it.
    fn take(&mut self, at: u32) -> (u32, T, u32) {
        let place = &mut self.waiting[at as usize];
        let packet = place.packet.take().expect("invariant: a queue's packets are there");
        let next = std::mem::replace(&mut place.next, self.free);
        self.free = at;
        (place.size, packet, next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::wheel::TICK;
    use super::*;

    fn one(mbit: u64, queue: Bytes, weights: &[u16]) -> Shapers<u32> {
        Shapers::new(&[ShaperSpec { rate: Rate::mbit(mbit), queue, weights: weights.to_vec() }])
    }

    fn drain(shapers: &mut Shapers<u32>) -> Vec<Departure<u32>> {
        let mut all = Vec::new();
        while let Some(at) = shapers.next_departure() {
            all.extend(std::iter::from_fn(|| shapers.poll_departure(at)));
        }
        all
    }

    #[test]
    fn packets_of_a_queue_leave_in_order_at_the_rate() {
        let mut shapers = one(12, Bytes::kb(150), &[1]);
        for packet in 0..100 {
            assert_eq!(shapers.enqueue(Time::ZERO, 0, 0, Bytes::new(1_500), packet), None);
        }
        assert_eq!(shapers.enqueue(Time::ZERO, 0, 0, Bytes::new(1), 100), Some(100));
        assert_eq!(shapers.backlog(0, 0), Bytes::kb(150));
        let gone = drain(&mut shapers);
        assert!(gone.iter().map(|departure| departure.packet).eq(0..100));
        for (i, departure) in gone.iter().enumerate() {
            assert!(departure.at.since(Time::from_nanos(i as u64 * 1_000_000)) < TICK);
        }
    }

    #[test]
    fn busy_queues_share_by_weight_and_leave_nothing_idle() {
        let mut shapers = one(12, Bytes::kb(900), &[1, 2, 4]);
        for packet in 0..1_050 {
            let (leaf, size) = (packet as usize % 3, 500 + 977 * u64::from(packet) % 1_000);
            assert_eq!(shapers.enqueue(Time::ZERO, 0, leaf, Bytes::new(size), packet), None);
        }
        let mut bytes = [0; 3];
        for departure in drain(&mut shapers) {
            // Ends when the first queue is nearly empty.
            if bytes[2] < 300_000 {
                bytes[departure.leaf] += departure.size.as_u64();
            }
        }
        assert!(bytes[0].abs_diff(75_000) <= 3_000, "{bytes:?}");
        assert!(bytes[1].abs_diff(150_000) <= 4_500, "{bytes:?}");
    }

    #[test]
    fn every_aggregate_of_many_has_its_own_rate() {
        let spec = |mbit| ShaperSpec {
            rate: Rate::mbit(mbit),
            queue: Bytes::kb(3_000),
            weights: vec![1; 4],
        };
        let mut shapers: Shapers<u32> = Shapers::new(&[1, 3, 10, 200].map(spec));
        for packet in 0..4_000u32 {
            let (aggregate, leaf) = (packet as usize % 4, packet as usize / 4 % 4);
            assert_eq!(
                shapers.enqueue(Time::ZERO, aggregate, leaf, Bytes::new(1_250), packet),
                None
            );
        }
        let mut last = [Time::ZERO; 4];
        for departure in drain(&mut shapers) {
            assert!(departure.at >= last[departure.aggregate], "time never goes back");
            last[departure.aggregate] = departure.at;
        }
        for (last, mbit) in last.iter().zip([1.0, 3.0, 10.0, 200.0]) {
            let rate = 999.0 * 0.01 / last.as_secs_f64();
            assert!((rate / mbit - 1.0).abs() < 1e-3, "{rate} of {mbit} Mbit/s");
        }
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let mut shapers = one(12, Bytes::kb(150), &[1, 1]);
        let late = Time::from_nanos(5_000_000_000);
        for packet in 0..10 {
            shapers.enqueue(late, 0, packet as usize % 2, Bytes::new(1_500), packet);
        }
        let gone = drain(&mut shapers);
        assert!(gone[9].at.since(late).as_nanos() >= 9_000_000);
    }

    #[test]
    fn a_packet_larger_than_many_quanta_leaves_in_the_end() {
        let mut shapers = one(12, Bytes::kb(150), &[1, 1]);
        shapers.enqueue(Time::ZERO, 0, 0, Bytes::new(65_000), 0);
        shapers.enqueue(Time::ZERO, 0, 1, Bytes::new(65_000), 1);
        shapers.enqueue(Time::ZERO, 0, 1, Bytes::ZERO, 2);
        assert_eq!(drain(&mut shapers).len(), 3);
    }
}
