//! One class: deficit round robin under a token bucket.
//!
//! Each visit of a connection adds to its deficit a quantum in proportion to its alpha; it is served
//! once the deficit is worth a read. The largest alpha among waiting connections has a whole quantum, so
//! alphas are relative and the number of visits between two reads is bounded. Tokens are spent after the
//! read, by the volume that was moved.
//!
//! Properties, all tested: in any span no more is granted than the rate passes in it plus one bucket;
//! connections that always wait have parts in proportion to their alphas, within two quanta; each is
//! served; the class never rests while a connection waits and there are tokens for it.

use std::collections::{BTreeMap, VecDeque};

use crate::units::{Bytes, Rate, Span, Time};

/// A connection's priority in its class, 1 to 255.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alpha(u8);

impl Alpha {
    /// The priority of connections to which nothing else assigns one.
    pub const DEFAULT: Alpha = Alpha(64);

    /// An alpha of `n`, if that is not 0.
    pub fn new(n: u8) -> Option<Alpha> {
        (n > 0).then_some(Alpha(n))
    }

    /// The number.
    pub fn as_u8(self) -> u8 {
        self.0
    }
}

/// What may be read of a connection now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The connection.
    pub id: usize,
    /// The granted volume, in bytes on the wire.
    pub bytes: Bytes,
}

/// A class, see the module. Invariant: the ring has each waiting connection once, and no other.
#[derive(Clone, Debug)]
pub struct Scheduler {
    rate: Option<Rate>,
    /// Bits times nanoseconds of a second, so that nothing is rounded.
    tokens: u128,
    filled_at: Time,
    ring: VecDeque<usize>,
    waiting: BTreeMap<usize, Waiting>,
    /// How many connections wait, by alpha.
    alphas: BTreeMap<Alpha, usize>,
    /// Whether the first connection of the ring has received its quantum of this visit.
    has_quantum: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    alpha: Alpha,
    deficit: u64,
}

impl Scheduler {
    /// A class without connections; `None` as rate means no limit.
    pub fn new(rate: Option<Rate>, now: Time) -> Scheduler {
        Scheduler {
            rate,
            tokens: 0,
            filled_at: now,
            ring: VecDeque::new(),
            waiting: BTreeMap::new(),
            alphas: BTreeMap::new(),
            has_quantum: false,
        }
    }

    /// The rate.
    pub fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Sets another rate from now on.
    pub fn set_rate(&mut self, rate: Option<Rate>, now: Time) {
        self.fill(now);
        self.rate = rate;
        self.tokens = self.tokens.min(self.depth());
    }

    /// Bytes wait in the connection and can be moved; no effect if the connection already waits.
    pub fn handle_ready(&mut self, id: usize, alpha: Alpha) {
        if self.waiting.contains_key(&id) {
            return;
        }
        self.waiting.insert(id, Waiting { alpha, deficit: 0 });
        *self.alphas.entry(alpha).or_default() += 1;
        self.ring.push_back(id);
    }

    /// No more data of the connection can be moved.
    pub fn handle_idle(&mut self, id: usize) {
        if self.forget(id) {
            let place = self.ring.iter().position(|&other| other == id);
            let place = place.expect("invariant: the ring has each waiting connection");
            self.ring.remove(place);
            self.has_quantum &= place != 0;
        }
    }

    /// What to read next, if there are tokens for it. [`Scheduler::handle_moved`] must follow.
    pub fn poll_grant(&mut self, now: Time) -> Option<Grant> {
        self.fill(now);
        let (id, bytes) = self.next()?;
        if self.rate.is_some() && self.tokens < tokens_of(bytes) {
            return None;
        }
        self.ring.pop_front();
        self.has_quantum = false;
        Some(Grant { id, bytes: Bytes::new(bytes) })
    }

    /// A grant was used for `moved` bytes on the wire; `has_more` says whether the connection still waits.
    ///
    /// # Panics
    /// If more was moved than granted.
    pub fn handle_moved(&mut self, grant: Grant, moved: Bytes, has_more: bool) {
        assert!(moved <= grant.bytes, "{moved} of {} granted", grant.bytes);
        if self.rate.is_some() {
            self.tokens -= tokens_of(moved.as_u64());
        }
        if !has_more {
            self.forget(grant.id);
            return;
        }
        if let Some(waiting) = self.waiting.get_mut(&grant.id) {
            waiting.deficit -= moved.as_u64();
            self.ring.push_back(grant.id);
        }
    }

    /// The time at which [`Scheduler::poll_grant`] returns a grant; `None` while no connection waits.
    pub fn deadline(&mut self, now: Time) -> Option<Time> {
        self.fill(now);
        let (_, bytes) = self.next()?;
        let Some(rate) = self.rate else { return Some(now) };
        let missing = tokens_of(bytes).saturating_sub(self.tokens);
        let nanos = missing.div_ceil(u128::from(rate.as_bps().max(1)));
        Some(now + Span::nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// The first connection whose deficit is worth a read, which becomes the first of the ring.
    fn next(&mut self) -> Option<(usize, u64)> {
        let (&largest, _) = self.alphas.last_key_value()?;
        let quantum = self.quantum();
        // The largest alpha is served at its first visit: one round is enough if it waits, and
        // `ALPHA_MAX` rounds if it has just left.
        loop {
            let &id = self.ring.front()?;
            let waiting = self.waiting.get_mut(&id).expect("invariant: it waits");
            if !self.has_quantum {
                let part = quantum * u64::from(waiting.alpha.0) / u64::from(largest.0);
                waiting.deficit = (waiting.deficit + part.max(1)).min(2 * quantum);
                self.has_quantum = true;
            }
            if waiting.deficit >= GRANT_MIN {
                return Some((id, waiting.deficit.min(quantum)));
            }
            self.has_quantum = false;
            self.ring.rotate_left(1);
        }
    }

    fn forget(&mut self, id: usize) -> bool {
        let Some(waiting) = self.waiting.remove(&id) else { return false };
        let number = self.alphas.get_mut(&waiting.alpha).expect("invariant: it was counted");
        *number -= 1;
        if *number == 0 {
            self.alphas.remove(&waiting.alpha);
        }
        true
    }

    fn fill(&mut self, now: Time) {
        let span = now.since(self.filled_at);
        self.filled_at = self.filled_at.max(now);
        if let Some(rate) = self.rate {
            let earned = u128::from(rate.as_bps()) * u128::from(span.as_nanos());
            self.tokens = (self.tokens + earned).min(self.depth());
        }
    }

    /// The volume that the rate passes in a millisecond, within bounds.
    fn quantum(&self) -> u64 {
        let rate = self.rate.unwrap_or(Rate::bps(u64::MAX));
        (rate * QUANTUM_SPAN).as_u64().clamp(QUANTUM_MIN, QUANTUM_MAX)
    }

    /// How many tokens the bucket holds: a whole grant, plus what a late reader must not lose.
    fn depth(&self) -> u128 {
        let rate = self.rate.unwrap_or(Rate::ZERO);
        tokens_of((rate * BUCKET_SPAN).as_u64() + self.quantum())
    }
}

fn tokens_of(bytes: u64) -> u128 {
    u128::from(bytes) * 8_000_000_000
}

/// The paper's block `b`. Source: MYOB algorithm 3.
const QUANTUM_MIN: u64 = 4_096;
/// The default size of a pipe.
const QUANTUM_MAX: u64 = 65_536;
/// Above the minimum quantum, reads are no more frequent than this, to save CPU time.
const QUANTUM_SPAN: Span = Span::millis(1);
/// About a segment: smaller reads cost more than they move.
const GRANT_MIN: u64 = 1_536;
/// How long the class may be late without losing tokens: a scheduler's tick.
const BUCKET_SPAN: Span = Span::millis(5);

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn alpha(n: u8) -> Alpha {
        Alpha::new(n).unwrap()
    }

    fn scheduler(rate: Rate) -> Scheduler {
        Scheduler::new(Some(rate), Time::ZERO)
    }

    /// Serves connections that always have more until `end`, waking up only at the deadlines.
    fn serve(scheduler: &mut Scheduler, connections: usize, from: Time, end: Time) -> Vec<u64> {
        let mut served = vec![0; connections];
        let mut now = from;
        while let Some(deadline) = scheduler.deadline(now) {
            now = deadline.max(now);
            if now > end {
                break;
            }
            while let Some(grant) = scheduler.poll_grant(now) {
                served[grant.id] += grant.bytes.as_u64();
                scheduler.handle_moved(grant, grant.bytes, true);
            }
        }
        served
    }

    #[test]
    fn alphas_are_parts_of_the_rate() {
        let mut scheduler = scheduler(Rate::mbit(10));
        for (id, n) in [1, 2, 4].into_iter().enumerate() {
            scheduler.handle_ready(id, alpha(n));
        }
        let end = Time::ZERO + Span::secs(10);
        let served = serve(&mut scheduler, 3, Time::ZERO, end);
        let sum: u64 = served.iter().sum();
        assert!(sum.abs_diff(12_500_000) <= 8_192, "{sum}");
        for (part, n) in served.iter().zip([1, 2, 4]) {
            assert!(part.abs_diff(sum * n / 7) <= 2 * QUANTUM_MIN, "{served:?}");
        }
    }

    #[test]
    fn a_small_alpha_does_not_starve_beside_large_ones() {
        let mut scheduler = scheduler(Rate::mbit(100));
        scheduler.handle_ready(0, alpha(1));
        (1..64).for_each(|id| scheduler.handle_ready(id, alpha(255)));
        let served = serve(&mut scheduler, 64, Time::ZERO, Time::ZERO + Span::secs(60));
        let sum: u64 = served.iter().sum();
        assert!(served[0].abs_diff(sum / (63 * 255 + 1)) <= 8_192, "{}", served[0]);
        assert!(served[0] > 0);
    }

    #[test]
    fn a_class_without_a_rate_grants_at_once() {
        let mut scheduler = Scheduler::new(None, Time::ZERO);
        scheduler.handle_ready(7, Alpha::DEFAULT);
        assert_eq!(scheduler.deadline(Time::ZERO), Some(Time::ZERO));
        let grant = scheduler.poll_grant(Time::ZERO).unwrap();
        assert_eq!(grant, Grant { id: 7, bytes: Bytes::new(QUANTUM_MAX) });
        scheduler.handle_moved(grant, Bytes::new(3), false);
        assert_eq!(scheduler.deadline(Time::ZERO), None);
    }

    #[test]
    fn a_lower_rate_is_in_force_at_once() {
        let mut scheduler = scheduler(Rate::mbit(100));
        scheduler.handle_ready(0, Alpha::DEFAULT);
        let middle = Time::ZERO + Span::secs(1);
        serve(&mut scheduler, 1, Time::ZERO, middle);
        scheduler.set_rate(Some(Rate::mbit(1)), middle);
        let served = serve(&mut scheduler, 1, middle, middle + Span::secs(8));
        assert!(served[0].abs_diff(1_000_000) <= 2 * QUANTUM_MIN, "{served:?}");
    }

    /// An event of the scheduler: time passes, a connection has data or not, or a read.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Pass(u64),
        Ready(usize, u8),
        Idle(usize),
        /// A read for which this part in 255 of the grant is available.
        Read(u8, bool),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0..20_000_000_u64).prop_map(Event::Pass),
            (0..8_usize, 1..=255_u8).prop_map(|(id, n)| Event::Ready(id, n)),
            (0..8_usize).prop_map(Event::Idle),
            (any::<u8>(), any::<bool>()).prop_map(|(part, more)| Event::Read(part, more)),
        ]
    }

    proptest! {
        #[test]
        fn the_rate_is_never_exceeded_and_the_class_never_rests(
            mbit in 1..200_u64, events in vec(event(), 1..300)
        ) {
            let mut scheduler = scheduler(Rate::mbit(mbit));
            let (mut now, mut moved) = (Time::ZERO, 0);
            let bucket = mbit * 625 + QUANTUM_MIN.max(mbit * 125);
            let mut waiting = std::collections::BTreeSet::new();
            for event in events {
                match event {
                    Event::Pass(nanos) => now = now + Span::nanos(nanos),
                    Event::Ready(id, n) => {
                        waiting.insert(id);
                        scheduler.handle_ready(id, alpha(n));
                    }
                    Event::Idle(id) => {
                        waiting.remove(&id);
                        scheduler.handle_idle(id);
                    }
                    Event::Read(part, more) => {
                        let due = scheduler.deadline(now);
                        let grant = scheduler.poll_grant(now);
                        prop_assert_eq!(due.is_some_and(|due| due <= now), grant.is_some());
                        prop_assert_eq!(due.is_some(), !waiting.is_empty());
                        // A full bucket is enough for any grant.
                        let patience = Span::nanos(bucket * 8_000 / mbit + 1);
                        prop_assert!(due.is_none_or(|due| due <= now + patience));
                        let Some(grant) = grant else { continue };
                        prop_assert!(waiting.contains(&grant.id));
                        let bytes = grant.bytes.as_u64() * u64::from(part) / 255;
                        moved += bytes;
                        scheduler.handle_moved(grant, Bytes::new(bytes), more);
                        if !more {
                            waiting.remove(&grant.id);
                        }
                    }
                }
                let earned = Rate::mbit(mbit) * now.since(Time::ZERO);
                prop_assert!(moved <= earned.as_u64() + 1, "{moved} of {earned}");
                prop_assert_eq!(scheduler.ring.len(), waiting.len());
            }
        }

        #[test]
        fn parts_are_in_proportion_to_any_alphas(
            alphas in vec(1..=255_u8, 1..12), mbit in 1..1_000_u64
        ) {
            let mut scheduler = scheduler(Rate::mbit(mbit));
            for (id, &n) in alphas.iter().enumerate() {
                scheduler.handle_ready(id, alpha(n));
            }
            let span = Span::secs(2);
            let served = serve(&mut scheduler, alphas.len(), Time::ZERO, Time::ZERO + span);
            let sum: u64 = served.iter().sum();
            let all: u64 = alphas.iter().map(|&n| u64::from(n)).sum();
            let quantum = (mbit * 125).clamp(QUANTUM_MIN, QUANTUM_MAX);
            prop_assert!(sum.abs_diff((Rate::mbit(mbit) * span).as_u64()) <= 2 * quantum);
            for (part, &n) in served.iter().zip(&alphas) {
                // A quantum is rounded down: for an alpha of 1 beside 255, 16.06 bytes become 16.
                let wanted = sum * u64::from(n) / all;
                let slack = 2 * quantum + wanted / 8;
                prop_assert!(part.abs_diff(wanted) <= slack, "{served:?} of {alphas:?}");
            }
        }
    }
}
