//! BC-PQP as printed: phantom queues with burst control by the paper's constants, with one level of weighted
//! queues. It measures the worth of the deviations of [`aggregate`](fairweir_core::phantom::aggregate).
//!
//! Method: as in [`pqp`](super::pqp), plus windows. A window of 100 ms begins with a packet of its
//! queue. If the queue accepts more than 3/2 of its share within the window, it is filled with
//! magic bytes; if less than half, all magic is removed. Three points had to be added. Windows of a
//! queue that has magic continue without packets, and are evaluated with the aggregate's next
//! packet, since the text removes magic when a flow has become inactive. An empty queue counts as
//! active for its own packet. The drain is exact instead of batched.
//!
//! Source: BC-PQP §4; θ⁺, θ⁻, T and the size of a queue: §6.1.

use super::fluid::{Fluid, QUEUE_MAX};
use super::volume;
use fairweir_core::phantom::{Arrival, Police, Verdict};
use fairweir_core::units::{Bytes, Rate, Time};

/// T, the length of a window, ns.
const WINDOW: u64 = 100_000_000;

/// Weighted phantom queues with burst control. Invariant: no queue holds more than the limit.
#[derive(Clone, Debug)]
pub struct Printed {
    /// Size of each queue, 2⁻²⁴ bytes.
    limit: u64,
    queues: Fluid,
    windows: Vec<Window>,
    /// No window ends before this time, ns.
    look_at: u64,
}

/// A queue's burst control.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// When it began, ns; `None` between a window and the next packet.
    begin: Option<u64>,
    /// Accepted in this window, 2⁻²⁴ bytes.
    accepted: u64,
    /// Magic put in and not removed since, 2⁻²⁴ bytes, whether or not it was served.
    magic: u64,
}

impl Printed {
    /// Empty queues of these weights, each of `limit`; a limit of 4 GiB or more is cut to the most below that.
    ///
    /// # Panics
    /// If there are no weights or more than a plan has, or a weight is out of a plan's range.
    pub fn new(rate: Rate, limit: Bytes, weights: &[u16]) -> Printed {
        Printed {
            limit: volume(limit.min(Bytes::new(QUEUE_MAX))),
            queues: Fluid::new(rate, weights),
            windows: vec![Window::default(); weights.len()],
            look_at: u64::MAX,
        }
    }

    /// Ends the windows that are over.
    fn end_windows(&mut self, now: u64) {
        if now < self.look_at {
            return;
        }
        self.look_at = u64::MAX;
        for leaf in 0..self.windows.len() {
            while let Some(end) = self.windows[leaf].begin.map(|begin| begin + WINDOW) {
                if now < end {
                    self.look_at = self.look_at.min(end);
                    break;
                }
                self.end_window(leaf, end);
            }
        }
    }

    fn end_window(&mut self, leaf: usize, end: u64) {
        let expected = self.queues.service(leaf, WINDOW);
        let window = &mut self.windows[leaf];
        let accepted = std::mem::take(&mut window.accepted);
        if accepted < expected / 2 {
            self.queues.remove(leaf, std::mem::take(&mut window.magic));
        }
        window.begin = (window.magic > 0).then_some(end);
    }
}

impl Police for Printed {
    fn handle_packet(&mut self, now: Time, arrival: Arrival) -> Verdict {
        self.queues.drain(now);
        self.end_windows(now.as_nanos());
        let (leaf, size) = (arrival.leaf, volume(arrival.size));
        let window = &mut self.windows[leaf];
        let begin = *window.begin.get_or_insert(now.as_nanos());
        self.look_at = self.look_at.min(begin + WINDOW);
        if size > self.limit - self.queues.backlog(leaf) {
            return Verdict::Drop;
        }
        self.queues.add(leaf, size);
        window.accepted += size;
        if window.accepted > self.queues.service(leaf, WINDOW) / 2 * 3 {
            let room = self.limit - self.queues.backlog(leaf);
            self.queues.add(leaf, room);
            window.magic += room;
        }
        Verdict::Pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policer with 1 byte per microsecond and queues of 1 MB.
    fn printed(weights: &[u16]) -> Printed {
        Printed::new(Rate::mbit(8), Bytes::kb(1_000), weights)
    }

    fn offer(police: &mut Printed, ms: u64, leaf: usize) -> Verdict {
        let size = Bytes::new(1_000);
        let arrival = Arrival { leaf, flow: leaf as u32, size, can_be_marked: false };
        police.handle_packet(Time::from_nanos(ms * 1_000_000), arrival)
    }

    /// Number of packets that pass of many that arrive at once.
    fn burst(police: &mut Printed, ms: u64, leaf: usize) -> usize {
        (0..1_000).take_while(|_| offer(police, ms, leaf) == Verdict::Pass).count()
    }

    #[test]
    fn a_queue_is_filled_once_it_accepts_more_than_three_halves_of_its_share_in_a_window() {
        // 100 ms carry a little less than 100 kB: 150 packets are more than 3/2 of it.
        assert_eq!(burst(&mut printed(&[1]), 0, 0), 150);
        let mut two = printed(&[1, 3]);
        offer(&mut two, 0, 1);
        assert_eq!(burst(&mut two, 0, 0), 38, "a quarter: 37.5");
        assert_eq!(burst(&mut printed(&[1, 3]), 0, 0), 150, "who is alone has all");
    }

    #[test]
    fn a_full_queue_accepts_its_share_and_no_more() {
        let mut police = printed(&[1]);
        burst(&mut police, 0, 0);
        // In the window of the burst each packet fills the queue again, and the rest of the room of
        // each packet is lost.
        let mut passed = |from: u64| (from..from + 100).map(|ms| burst(&mut police, ms, 0)).sum();
        let (first, second): (usize, usize) = (passed(1), passed(101));
        assert!(first.abs_diff(50) <= 1 && second.abs_diff(100) <= 1, "{first} {second}");
    }

    #[test]
    fn all_magic_is_removed_when_a_flow_has_become_slow() {
        let mut police = printed(&[1, 1]);
        burst(&mut police, 0, 0);
        // Its window of 150 packets ends, and the next one has no packet; then the other flow has the whole rate.
        assert_eq!(offer(&mut police, 150, 1), Verdict::Pass);
        assert!(police.queues.backlog(0) >> 24 > 800_000, "the window was not slow");
        assert_eq!(offer(&mut police, 201, 1), Verdict::Pass);
        assert_eq!(police.queues.backlog(0), 0, "real bytes go as well: served was magic, too");
    }
}
