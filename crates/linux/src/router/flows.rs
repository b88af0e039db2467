//! The TCP connections through a router: what each received since the last look.

use std::collections::BTreeMap;

use fairweir_core::receiver::{CONNECTIONS_MAX, ConnectionSample, TransitSample};
use fairweir_core::units::{Bytes, Span, Time};

use crate::bpf::abi::{RouterFlow, Transit};
use crate::bpf::header::FLOW_ENDED;

/// The last reported values of each connection, by its id.
#[derive(Debug, Default)]
pub(crate) struct Flows(BTreeMap<u64, Seen>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    received: u64,
    segs_in: u32,
    segs_out: u32,
    holes: u32,
    changed_at: Time,
    looked_at: Time,
}

/// What is asked about the connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// The number of the interval that ends.
    pub(crate) interval: u32,
    /// The slots of the groups.
    pub(crate) slots: &'a [u16],
    /// The bounds in force, by id.
    pub(crate) bounds: &'a BTreeMap<u64, u32>,
    pub(crate) now: Time,
}

impl Flows {
    /// What connections received since the last call, by id. `read` passes on the connections, each with the
    /// server's port and the kernel's state. Included are those that received something, and those with a bound
    /// that have neither ended nor been silent for long. Of more than [`CONNECTIONS_MAX`] the busiest are kept.
    ///
    /// # Errors
    /// The error of `read`.
    pub(crate) fn take<E>(
        &mut self,
        read: impl FnOnce(&mut dyn FnMut(u16, RouterFlow)) -> Result<(), E>,
        asked: Asked<'_>,
    ) -> Result<Vec<ConnectionSample>, E> {
        let mut samples = Vec::new();
        read(&mut |port, flow| {
            samples.extend(self.look(port, &flow, asked));
            if samples.len() == SAMPLES_MAX {
                keep_busiest(&mut samples);
            }
        })?;
        self.0.retain(|_, seen| seen.looked_at == asked.now);
        keep_busiest(&mut samples);
        samples.sort_unstable_by_key(|s| s.id);
        samples.dedup_by_key(|s| s.id);
        Ok(samples)
    }

    /// `None` if nothing of the connection is reported.
    fn look(&mut self, port: u16, flow: &RouterFlow, asked: Asked<'_>) -> Option<ConnectionSample> {
        if flow.received == 0 {
            return None;
        }
        let seen = self.0.entry(flow.id).or_insert(Seen::of(&RouterFlow::default(), asked.now));
        let before = *seen;
        let has_received = flow.received != before.received;
        *seen = Seen::of(flow, asked.now);
        if !has_received {
            seen.changed_at = before.changed_at;
        }
        let lives = u32::from(flow.flags) & FLOW_ENDED == 0
            && asked.now.since(seen.changed_at) < SILENT_MAX;
        if has_received || (lives && asked.bounds.contains_key(&flow.id)) {
            sample(flow, &before, port, asked)
        } else {
            None
        }
    }
}

fn keep_busiest(samples: &mut Vec<ConnectionSample>) {
    if samples.len() > CONNECTIONS_MAX {
        let busy = |s: &ConnectionSample| (std::cmp::Reverse(s.received), s.id);
        samples.select_nth_unstable_by_key(CONNECTIONS_MAX, busy);
        samples.truncate(CONNECTIONS_MAX);
    }
}

impl Seen {
    fn of(flow: &RouterFlow, now: Time) -> Seen {
        Seen {
            received: flow.received,
            segs_in: flow.segs_in,
            segs_out: flow.segs_out,
            holes: flow.holes,
            changed_at: now,
            looked_at: now,
        }
    }
}

/// `None` if the class no longer belongs to a group, because the policy has changed meanwhile.
fn sample(
    flow: &RouterFlow,
    before: &Seen,
    port: u16,
    asked: Asked<'_>,
) -> Option<ConnectionSample> {
    let group = asked.slots.iter().position(|&slot| u32::from(slot) == flow.slot)?;
    let Transit { samples, sum, min, .. } = flow.transit;
    let is_current = flow.interval == asked.interval && samples > 0;
    let transit = is_current.then(|| TransitSample {
        min_ns: min,
        mean_ns: sum / i64::from(samples),
        samples,
    });
    let rtt = u64::from(flow.wan_rtt_us) + u64::from(flow.lan_rtt_us);
    let bound = asked.bounds.get(&flow.id).copied().unwrap_or(flow.bound);
    let window = Bytes::new(if bound > 0 { bound } else { flow.window }.into());
    Some(ConnectionSample {
        id: flow.id,
        group,
        received: Bytes::new(flow.received.wrapping_sub(before.received)),
        segments: flow.segs_in.wrapping_sub(before.segs_in).into(),
        holes: flow.holes.wrapping_sub(before.holes).into(),
        has_sent: flow.segs_out != before.segs_out,
        rtt: (flow.wan_rtt_us > 0).then(|| Span::micros(rtt)),
        rtt_sent: None,
        transit,
        window,
        advertised: window,
        asked: (flow.interval == asked.interval && flow.asked > 0)
            .then(|| Bytes::new(flow.asked.into())),
        segment: Bytes::new(flow.segment.into()),
        port,
    })
}

/// Samples that are held before all but the busiest are dropped: the capacity of a vector that grew
/// by doubling.
const SAMPLES_MAX: usize = CONNECTIONS_MAX * 2;
/// The time without payload after which a connection loses its bound; its entry stays.
const SILENT_MAX: Span = Span::secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(id: u64, received: u64) -> (u16, RouterFlow) {
        (443, RouterFlow { id, received, slot: 4, wan_rtt_us: 20_000, ..RouterFlow::default() })
    }

    fn read(
        flows: &mut Flows,
        entries: &[(u16, RouterFlow)],
        asked: Asked<'_>,
    ) -> Vec<ConnectionSample> {
        let pass = |each: &mut dyn FnMut(u16, RouterFlow)| {
            entries.iter().for_each(|&(port, flow)| each(port, flow));
            Ok::<(), ()>(())
        };
        flows.take(pass, asked).unwrap()
    }

    fn take(flows: &mut Flows, entries: &[(u16, RouterFlow)], now_s: u64) -> Vec<(u64, u64)> {
        let asked = Asked {
            interval: 7,
            slots: &[3, 4],
            bounds: &BTreeMap::from([(1, 9_000)]),
            now: Time::ZERO + Span::secs(now_s),
        };
        let samples = read(flows, entries, asked);
        samples.iter().map(|s| (s.id, s.received.as_u64())).collect()
    }

    #[test]
    fn a_connection_is_told_while_it_receives_or_its_bound_is_of_use() {
        let mut flows = Flows::default();
        assert_eq!(
            take(&mut flows, &[flow(2, 50), flow(1, 30), flow(3, 0)], 1),
            [(1, 30), (2, 50)]
        );
        assert_eq!(take(&mut flows, &[flow(2, 50), flow(1, 30)], 2), [(1, 0)], "the bounded one");
        assert_eq!(take(&mut flows, &[flow(2, 60), flow(1, 30)], 62), [(2, 10)], "silence");
        let mut ended = flow(1, 31);
        ended.1.flags = FLOW_ENDED as u8;
        assert_eq!(take(&mut flows, &[ended], 63), [(1, 1)]);
        assert_eq!(take(&mut flows, &[ended], 64), []);
    }

    #[test]
    fn of_many_connections_the_busiest_are_told() {
        let many = |id: u64| flow(id, 1 + id * 7 % 30_011);
        let all: Vec<_> = (1..=30_000).map(many).collect();
        let mut told = take(&mut Flows::default(), &all, 1);
        assert_eq!(told.len(), CONNECTIONS_MAX);
        told.sort_unstable_by_key(|&(_, received)| received);
        let mut received: Vec<u64> = all.iter().map(|(_, flow)| flow.received).collect();
        received.sort_unstable();
        assert_eq!(told[0].1, received[30_000 - CONNECTIONS_MAX]);
    }

    #[test]
    fn samples_of_transit_are_those_of_the_interval() {
        let asked = Asked { interval: 7, slots: &[4], bounds: &BTreeMap::new(), now: Time::ZERO };
        let mut timed = flow(1, 10);
        timed.1.transit = Transit { samples: 2, sum: -6, min: -4, ..Transit::default() };
        for (interval, mean) in [(6, None), (7, Some(-3))] {
            timed.1.interval = interval;
            let samples = read(&mut Flows::default(), &[timed], asked);
            assert_eq!(samples[0].transit.map(|t| t.mean_ns), mean);
            assert_eq!((samples[0].rtt, samples[0].port), (Some(Span::millis(20)), 443));
        }
    }
}
