//! Segments: the members of each, their guarantees, and the division of each capacity ten times a
//! second. See `fairweir_core::phantom::segment`.
//!
//! Guarantees are those of a lease while there is one, otherwise those of the configuration. A
//! lease is not in the journal: it ends by itself, or with the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use fairweir_config::isp::{MemberPattern, PlanEntry, SegmentEntry};
use fairweir_core::phantom::Plan;
use fairweir_core::phantom::segment::{Claim, MEMBERS_MAX, PERIOD, VALID, Watch, divide};
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_daemon::unix_now;
use fairweir_linux::police::{Police, SegmentId, SubscriberId};
use tracing::{info, warn};

use super::kernel::{DIRECTIONS, Kernel};
use super::registry::{Effects, Registry};
use super::wire::{Directions, LeaseStatus, LeasedRate, SegmentStatus, SegmentUse};
use crate::words::chained;

/// The longest lease, in seconds; it limits the effect of a wrong end.
const LEASE_MAX_S: u64 = 8 * 24 * 3600;

/// A pace is changed only if it differs by at least 1 / this of itself.
const CHANGE_LEAST: u64 = 128;

/// All segments, in the order of the file.
#[derive(Default)]
pub(super) struct Segments {
    all: Vec<Segment>,
    divided_at: Time,
}

struct Segment {
    entry: SegmentEntry,
    members: BTreeMap<Arc<str>, Member>,
    /// The number of matching subscribers beyond the most members.
    left_out: usize,
    lease: Option<Lease>,
    /// The generation of the last lease that was accepted.
    generation: u64,
}

struct Member {
    id: SubscriberId,
    plans: Arc<[Option<Plan>; 2]>,
    rates: [Option<Rate>; 2],
    lines: [Line; 2],
}

/// The state of a member in one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    pace: Rate,
    guarantee: Rate,
    /// Bytes that passed since the member joined.
    passed: Bytes,
    refused: u64,
    /// The rate in the last period.
    rate: Rate,
    watch: Watch,
    /// The demand at the last tick; `None` means all it can get.
    demand: Option<Rate>,
}

struct Lease {
    until_s: u64,
    rates: BTreeMap<Arc<str>, [Rate; 2]>,
}

impl Segments {
    /// When the next division is due; `None` without segments.
    pub(super) fn deadline(&self) -> Option<Time> {
        (!self.all.is_empty()).then(|| self.divided_at + PERIOD)
    }

    /// Updates segments and members to match the file and the registry.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn refresh(
        &mut self,
        entries: &[SegmentEntry],
        registry: &Registry,
        kernel: &mut Kernel,
    ) -> anyhow::Result<()> {
        if self.all.is_empty() && entries.is_empty() {
            return Ok(());
        }
        let mut before = std::mem::take(&mut self.all);
        let mut taken = BTreeSet::new();
        let mut gone: Vec<SubscriberId> = Vec::new();
        let mut plans = BTreeMap::new();
        for (index, entry) in entries.iter().enumerate() {
            let known = before.iter().position(|segment| segment.entry.name == entry.name);
            let known = known.map(|at| before.swap_remove(at));
            let (mut old, lease, generation) = match known {
                Some(known) => (known.members, known.lease, known.generation),
                None => (BTreeMap::new(), None, 0),
            };
            for (id, capacity) in ids(index).into_iter().zip(entry.capacity) {
                kernel.police().set_segment(id, capacity.unwrap_or(Rate::ZERO));
            }
            let mut names = matching(&entry.members, registry);
            names.retain(|name| taken.insert(Arc::clone(name)));
            let left_out = names.len().saturating_sub(MEMBERS_MAX);
            let mut members = BTreeMap::new();
            for name in names.into_iter().take(MEMBERS_MAX) {
                let Some(id) = kernel.id(&name) else { continue };
                let plan = &registry.subscribers()[&name].plan;
                let entry_of = || -> anyhow::Result<_> {
                    let entry: &PlanEntry = &registry.plans()[plan].entry;
                    let plans = entry.compile()?.map(|made| made.map(|made| made.plan));
                    Ok((Arc::new(plans), [entry.download, entry.upload]))
                };
                if !plans.contains_key(plan) {
                    plans.insert(Arc::clone(plan), entry_of()?);
                }
                let (plans, rates) = plans[plan].clone();
                let lines = old.remove(&name).filter(|old| old.id == id).map(|old| old.lines);
                let member = Member { id, plans, rates, lines: lines.unwrap_or_default() };
                members.insert(name, member);
            }
            gone.extend(old.into_values().map(|member| member.id));
            let entry = entry.clone();
            let mut segment = Segment { entry, members, left_out, lease, generation };
            segment.join(ids(index), kernel.police_mut())?;
            segment.set_guarantees(kernel.police())?;
            self.all.push(segment);
        }
        gone.extend(before.iter().flat_map(|segment| segment.members.values()).map(|m| m.id));
        let stay = self.all.iter().flat_map(|segment| segment.members.values());
        let stay: BTreeSet<SubscriberId> = stay.map(|member| member.id).collect();
        for id in gone.into_iter().filter(|id| !stay.contains(id)) {
            for direction in DIRECTIONS {
                // The member may have been removed.
                if kernel.police().used(id, direction).is_ok() {
                    kernel.police_mut().part(id, direction)?;
                }
            }
        }
        Ok(())
    }

    /// Ends leases and divides all capacities.
    pub(super) fn handle_tick(&mut self, now: Time, kernel: &Kernel) {
        let span = now.since(self.divided_at);
        self.divided_at = now;
        for (index, segment) in self.all.iter_mut().enumerate() {
            if let Err(e) = segment.handle_tick(ids(index), now, span, kernel.police()) {
                warn!(segment = segment.entry.name, "not divided: {}", chained(&e));
            }
        }
    }

    /// Applies a lease of guarantees, which replaces the previous one. If `keep` is set, members
    /// that it does not name keep theirs. Returns the result in words.
    ///
    /// # Errors
    /// If it is late, or exceeds the capacity of the segment; nothing has changed then.
    pub(super) fn lease(
        &mut self,
        name: &str,
        generation: u64,
        until_s: u64,
        rates: &[LeasedRate],
        keep: bool,
        kernel: &Kernel,
    ) -> anyhow::Result<String> {
        let segment = self.all.iter_mut().find(|segment| segment.entry.name == name);
        let segment = segment.with_context(|| format!("no segment `{name}`"))?;
        let now_s = unix_now();
        ensure!(until_s > now_s, "until_s: {until_s} is over; it is {now_s}");
        ensure!(
            until_s - now_s <= LEASE_MAX_S,
            "until_s: a lease is at most {LEASE_MAX_S} seconds long"
        );
        ensure!(
            generation >= segment.generation,
            "generation: {generation} is older than {}, which is in force",
            segment.generation
        );
        ensure!(rates.len() <= MEMBERS_MAX, "rates: at most {MEMBERS_MAX}");
        let mut leased = match &segment.lease {
            Some(lease) if keep => lease.rates.clone(),
            _ => BTreeMap::new(),
        };
        let mut named = BTreeSet::new();
        let mut strangers = Vec::new();
        for rate in rates {
            ensure!(named.insert(&*rate.name), "rates: duplicate `{}`", rate.name);
            match segment.members.get_key_value(rate.name.as_str()) {
                Some((name, _)) => {
                    let both = [rate.download_bps, rate.upload_bps].map(Rate::bps);
                    leased.insert(Arc::clone(name), both);
                }
                None => strangers.push(rate.name.as_str()),
            }
        }
        for (at, capacity) in segment.entry.capacity.into_iter().enumerate() {
            let sum: u128 = leased.values().map(|both| u128::from(both[at].as_bps())).sum();
            if capacity.is_some_and(|capacity| sum > u128::from(capacity.as_bps())) {
                bail!("rates: they sum to {sum} bit/s, more than the segment carries");
            }
        }
        let count = leased.len();
        segment.generation = generation;
        segment.lease = Some(Lease { until_s, rates: leased });
        segment.set_guarantees(kernel.police())?;
        segment.divide(kernel.police())?;
        let mut text = format!("guarantees of {count} members are in force");
        if let Some(first) = strangers.first() {
            text += &format!("; {} are no members, such as `{first}`", strangers.len());
        }
        Ok(text)
    }

    /// The status of each segment.
    pub(super) fn status(&self) -> Vec<SegmentStatus> {
        self.all.iter().map(Segment::status).collect()
    }
}

impl Segment {
    fn join(&mut self, ids: [SegmentId; 2], police: &mut Police) -> anyhow::Result<()> {
        for member in self.members.values_mut() {
            for (at, direction) in DIRECTIONS.into_iter().enumerate() {
                let shared = self.entry.capacity[at].zip(member.plans[at].as_ref());
                let Some(((_, plan), rate)) = shared.zip(member.rates[at]) else {
                    police.part(member.id, direction)?;
                    continue;
                };
                let line = &mut member.lines[at];
                if line.pace == Rate::ZERO || line.pace > rate {
                    line.pace = rate;
                }
                police.join(member.id, direction, ids[at], &plan.pace_at(line.pace))?;
            }
        }
        Ok(())
    }

    /// Sets the guarantees of all members: those of the lease, or without one those of the configuration. If their sum
    /// exceeds the capacity of the segment, each member gets an equal part of it.
    fn set_guarantees(&mut self, police: &Police) -> anyhow::Result<()> {
        let count = self.members.len().max(1) as u64;
        for (name, member) in &mut self.members {
            for (at, direction) in DIRECTIONS.into_iter().enumerate() {
                let Some(capacity) = self.entry.capacity[at] else { continue };
                let equal = Rate::bps(capacity.as_bps() / count);
                let guarantee = match &self.lease {
                    Some(lease) => lease.rates.get(name).map_or(Rate::ZERO, |both| both[at]),
                    None => self.entry.guarantee[at].min(equal),
                };
                member.lines[at].guarantee = guarantee;
                police.set_guarantee(member.id, direction, guarantee)?;
            }
        }
        Ok(())
    }

    fn handle_tick(
        &mut self,
        ids: [SegmentId; 2],
        now: Time,
        span: Span,
        police: &Police,
    ) -> anyhow::Result<()> {
        if self.lease.as_ref().is_some_and(|lease| lease.until_s <= unix_now()) {
            info!(segment = self.entry.name, generation = self.generation, "the lease ended");
            self.lease = None;
            self.set_guarantees(police)?;
        }
        for (at, direction) in DIRECTIONS.into_iter().enumerate() {
            if self.entry.capacity[at].is_none() {
                continue;
            }
            for member in self.members.values_mut() {
                let Some(used) = police.used(member.id, direction)? else { continue };
                let line = &mut member.lines[at];
                let passed = used.passed.saturating_sub(line.passed);
                (line.passed, line.refused) = (used.passed, used.refused_packets);
                line.rate = match span {
                    Span::ZERO => Rate::ZERO,
                    span => Rate::from_volume(passed, span),
                };
                line.demand = line.watch.demand(passed, span, line.pace);
            }
            police.extend(ids[at], now + VALID);
        }
        self.divide(police)
    }

    /// Sets all paces from the members' demands and guarantees.
    fn divide(&mut self, police: &Police) -> anyhow::Result<()> {
        for (at, direction) in DIRECTIONS.into_iter().enumerate() {
            let Some(capacity) = self.entry.capacity[at] else { continue };
            let mut lines = Vec::with_capacity(self.members.len());
            let mut claims = Vec::with_capacity(self.members.len());
            for member in self.members.values_mut() {
                let (Some(plan), Some(rate)) = (&member.plans[at], member.rates[at]) else {
                    continue;
                };
                let line = &mut member.lines[at];
                let Line { guarantee, demand, .. } = *line;
                claims.push(Claim { plan: rate, guarantee, demand });
                lines.push((member.id, plan, line));
            }
            for ((id, plan, line), pace) in lines.into_iter().zip(divide(capacity, &claims)) {
                let (old, new) = (line.pace.as_bps(), pace.as_bps());
                if old.abs_diff(new) * CHANGE_LEAST > old {
                    line.pace = pace;
                    police.set_pace(id, direction, &plan.pace_at(pace))?;
                }
            }
        }
        Ok(())
    }

    fn status(&self) -> SegmentStatus {
        let of = |at: usize| {
            let capacity = self.entry.capacity[at]?;
            let lines = || self.members.values().map(|member| &member.lines[at]);
            let sum = |of: fn(&Line) -> u64| lines().map(of).sum();
            Some(SegmentUse {
                capacity_bps: capacity.as_bps(),
                guaranteed_bps: sum(|line| line.guarantee.as_bps()),
                passed_bps: sum(|line| line.rate.as_bps()),
                refused_packets: sum(|line| line.refused),
            })
        };
        SegmentStatus {
            name: self.entry.name.clone(),
            members: self.members.len(),
            left_out: self.left_out,
            lease: self.lease.as_ref().map(|lease| LeaseStatus {
                generation: self.generation,
                until_s: lease.until_s,
                members: lease.rates.len(),
            }),
            used: Directions { download: of(0), upload: of(1) },
        }
    }
}

/// The kernel's numbers of a segment's two directions.
fn ids(index: usize) -> [SegmentId; 2] {
    [0, 1].map(|at| SegmentId((2 * index + at) as u16))
}

/// Whether the effects include a member or a plan.
pub(super) fn concern(entries: &[SegmentEntry], effects: &Effects) -> bool {
    let is_of = |name: &str, pattern: &MemberPattern| match pattern {
        MemberPattern::Name(member) => name == member.as_str(),
        MemberPattern::Prefix(prefix) => name.starts_with(prefix.as_str()),
    };
    let patterns = || entries.iter().flat_map(|entry| &entry.members);
    let mut names = effects.subscribers.iter().map(|(name, ..)| name);
    !effects.plans.is_empty() || names.any(|name| patterns().any(|pattern| is_of(name, pattern)))
}

/// The subscribers that match, in the order of the patterns and then of their names.
pub(super) fn matching(patterns: &[MemberPattern], registry: &Registry) -> Vec<Arc<str>> {
    let subscribers = registry.subscribers();
    let mut names = Vec::new();
    for pattern in patterns {
        match pattern {
            MemberPattern::Name(name) => {
                names.extend(subscribers.get_key_value(name.as_str()).map(|(n, _)| Arc::clone(n)));
            }
            MemberPattern::Prefix(prefix) => {
                let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
                let all = subscribers.range::<str, _>(from).map(|(name, _)| name);
                names.extend(all.take_while(|name| name.starts_with(prefix.as_str())).cloned());
            }
        }
    }
    names
}
