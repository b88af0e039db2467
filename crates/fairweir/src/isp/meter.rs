//! Rates, computed from the growth of the counters.

use std::collections::BTreeMap;
use std::sync::Arc;

use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_linux::police::{Counters, Totals};

use super::kernel::{Kernel, Snapshot};
use super::registry::Registry;
use super::wire::{Busiest, Busy, BusyDirection, Directions, TotalsStatus};

/// Counters of all subscribers that are younger are used again: reading a million takes long.
const SNAPSHOT_AGE_MIN: Span = Span::millis(900);
/// Older counters are not used: they do not show who is busy now.
const SNAPSHOT_AGE_MAX: Span = Span::secs(120);

/// The last counters, and when they were read.
#[derive(Default)]
pub(super) struct Meter {
    at: Time,
    /// Totals and rates by plan, download and upload.
    plans: BTreeMap<Arc<str>, [(Totals, TotalsStatus); 2]>,
    unknown: [(Totals, TotalsStatus); 2],
    snapshot: Option<(Time, Snapshot)>,
    /// The last reply: when it was made, for how many subscribers, and which.
    busiest: Option<(Time, usize, Busiest)>,
}

impl Meter {
    /// Reads the counters of all plans.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn measure(
        &mut self,
        kernel: &Kernel,
        registry: &Registry,
        now: Time,
    ) -> anyhow::Result<()> {
        let interval = now.since(self.at);
        self.at = now;
        self.plans.retain(|name, _| registry.plans().contains_key(name));
        for name in registry.plans().keys() {
            let totals = kernel.totals(name)?;
            match self.plans.get_mut(name) {
                Some(known) => advance(known, totals, interval),
                None => {
                    let mut new = totals.map(|t| (t, TotalsStatus::default()));
                    advance(&mut new, totals, interval);
                    self.plans.insert(Arc::clone(name), new);
                }
            }
        }
        advance(&mut self.unknown, kernel.unknown()?, interval);
        Ok(())
    }

    /// The totals of a plan, as last measured.
    pub(super) fn plan(&self, name: &str) -> Directions<TotalsStatus> {
        self.plans.get(name).map(directions).unwrap_or_default()
    }

    /// The totals of packets that belong to no subscriber.
    pub(super) fn unknown(&self) -> Directions<TotalsStatus> {
        directions(&self.unknown)
    }

    /// The busiest `count` subscribers since the last request.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn busiest(
        &mut self,
        kernel: &Kernel,
        registry: &Registry,
        count: usize,
        now: Time,
    ) -> anyhow::Result<Busiest> {
        if let Some((at, known_count, known)) = &self.busiest
            && now.since(*at) < SNAPSHOT_AGE_MIN
            && count <= *known_count
        {
            let mut known = known.clone();
            known.subscribers.truncate(count);
            return Ok(known);
        }
        let counters = kernel.counters_all()?;
        let before = self.snapshot.take().filter(|(at, _)| now.since(*at) < SNAPSHOT_AGE_MAX);
        let (interval, before) = match &before {
            Some((at, before)) => (now.since(*at), before),
            None => (Span::ZERO, &Snapshot::new()),
        };
        let mut busy: Vec<(u64, &Arc<str>)> =
            counters.iter().map(|(name, now)| (growth(now, before.get(name)), name)).collect();
        busy.sort_unstable_by(|a, b| b.cmp(a));
        let one = |name: &Arc<str>| {
            let record = registry.subscribers().get(name)?;
            let rates = registry.plans().get(&record.plan)?.entry.specs();
            let direction = |i: usize| {
                let spec = rates[i].as_ref()?;
                let of = |all: &Snapshot| all.get(name).map(|both| both[i]).unwrap_or_default();
                let used = of(&counters).since(of(before));
                Some(BusyDirection {
                    plan_bps: spec.rate.as_bps(),
                    passed_bps: rate(used.passed, interval),
                    dropped_packets: used.dropped_packets,
                    marked_packets: used.marked_packets,
                })
            };
            Some(Busy {
                name: name.to_string(),
                plan: record.plan.to_string(),
                download: direction(0),
                upload: direction(1),
            })
        };
        let subscribers = busy.into_iter().filter_map(|(_, name)| one(name)).take(count).collect();
        let busiest = Busiest { interval_s: interval.as_secs_f64(), subscribers };
        self.snapshot = Some((now, counters));
        self.busiest = Some((now, count, busiest.clone()));
        Ok(busiest)
    }
}

/// The bytes that passed in both directions.
fn growth(now: &[Counters; 2], before: Option<&[Counters; 2]>) -> u64 {
    let sum = |both: &[Counters; 2]| both[0].passed.as_u64() + both[1].passed.as_u64();
    sum(now).saturating_sub(before.map_or(0, sum))
}

fn advance(known: &mut [(Totals, TotalsStatus); 2], totals: [Totals; 2], interval: Span) {
    for ((before, status), now) in known.iter_mut().zip(totals) {
        *status = TotalsStatus {
            passed_bps: rate(now.passed.saturating_sub(before.passed), interval),
            dropped_bps: rate(now.dropped.saturating_sub(before.dropped), interval),
            passed_bytes: now.passed.as_u64(),
            passed_packets: now.passed_packets,
            dropped_bytes: now.dropped.as_u64(),
            dropped_packets: now.dropped_packets,
            marked_packets: now.marked_packets,
            delegated_bytes: now.delegated.as_u64(),
            delegated_packets: now.delegated_packets,
            refused_packets: now.refused_packets,
        };
        *before = now;
    }
}

fn directions(both: &[(Totals, TotalsStatus); 2]) -> Directions<TotalsStatus> {
    Directions { download: both[0].1, upload: both[1].1 }
}

fn rate(volume: Bytes, interval: Span) -> u64 {
    if interval == Span::ZERO { 0 } else { Rate::from_volume(volume, interval).as_bps() }
}
