//! A segment: a capacity (a cable, a PON, a radio sector) that its members, subscribers with plans, share.
//!
//! Problem: the plans of a segment's members sum to more than it carries. Each member has a guaranteed rate;
//! the rest is shared by max-min fairness among the members that want it, and the capacity is never exceeded.
//! Method: two time scales. Every [`PERIOD`] user space divides the capacity according to what each member
//! used, and gives each a *pace*, the rate at which its phantom queues drain ([`divide`]). Between two
//! divisions the kernel keeps one [`Schedule`] for the whole segment, the *gate*, and one for each guarantee:
//! a packet that finds the gate full passes only within its member's guarantee.
//!
//! Terms. The *level* is what a member that wants all it can get receives beyond its guarantee. A
//! member is *hungry* if it used nearly its whole pace. Every member has the pace that it would
//! have if it were hungry, so that it can start at once; the division counts only what it used.
//!
//! Properties, tested: no pace is below min(plan, guarantee); the paces of the hungry and the demands of
//! the others sum to the capacity at most, and exactly if a hungry member is below its plan; hungry
//! members below their plans have equal parts beyond their guarantees; in any time `t` no more passes
//! than capacity · t, the gate's slack and a burst of each guarantee. If the divisions end, paces are void
//! after [`VALID`]: each member then has its plan, within the gate, and its guarantee.

use super::aggregate::{Aggregate, decide};
use super::plan::{GATE_SHIFT, MSS, Pace, Plan, RATE_MIN};
use super::{Arrival, Verdict};
use crate::share::{Entry, Weight, fair};
use crate::units::{Bytes, Part, Rate, Span, Time};

/// How often a segment is divided.
pub const PERIOD: Span = Span::millis(100);
/// How long paces are in force without another division.
pub const VALID: Span = Span::secs(1);
/// The most members of a segment.
pub const MEMBERS_MAX: usize = 2_000;
/// How far gate and guarantees may be ahead: one window of burst control, in which senders that do
/// not pace send a round trip's packets at once.
const SLACK: Span = Span::millis(100);
/// Smallest burst of a guarantee in bytes: TCP's initial window (RFC 6928).
const BURST_MIN: u64 = 10 * MSS;
/// A member that uses this part of its pace is hungry: Reno falls to half a window, but its queue hides that.
const HUNGRY: Part = Part::of(4, 5);
/// The demand of a member that is not hungry is taken as this multiple of what it used.
const HEADROOM: Part = Part::of(5, 4);
/// The part of a peak that remains after a period.
const DECAY: Part = Part::of(9, 10);

/// The times at which packets would pass at a rate; they may be up to `slack` ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Time that a byte takes, 2⁻¹⁶ ns; with 0 there is room for nothing.
    pub cost: u64,
    /// How far packets may be ahead, ns.
    pub slack: u64,
}

impl Schedule {
    /// The schedule of a rate, with a burst of 100 ms, but at least ten segments.
    pub fn new(rate: Rate) -> Schedule {
        if rate < RATE_MIN {
            return Schedule::default();
        }
        let cost = (8_000_000_000 << GATE_SHIFT) / rate.as_bps();
        let slack = SLACK.as_nanos().max((BURST_MIN * cost) >> GATE_SHIFT);
        Schedule { cost, slack }
    }

    /// Whether a packet may pass now if the schedule is taken until `at`.
    pub fn has_room(&self, at: u64, now: u64) -> bool {
        self.cost != 0 && at <= now + self.slack
    }

    /// Charges a packet to the schedule, which is taken until `at`.
    pub fn charge(&self, at: &mut u64, now: u64, size: u64) {
        *at = (*at).max(now) + ((size * self.cost) >> GATE_SHIFT);
    }
}

/// A member in a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The rate of its plan.
    pub plan: Rate,
    /// The rate it is guaranteed.
    pub guarantee: Rate,
    /// The rate that it would use; `None` for all it can get.
    pub demand: Option<Rate>,
}

/// Divides a segment's capacity: the rate that each member may have from now on, in input order.
///
/// Guarantees come first, up to the demand; the rest is shared by max-min fairness. A member that
/// is not hungry gets what it would get if it were, as the module says. O(n log n).
pub fn divide(capacity: Rate, claims: &[Claim]) -> Vec<Rate> {
    let wanted = |claim: &Claim| claim.demand.map_or(claim.plan, |demand| demand.min(claim.plan));
    let first = |claim: &Claim| wanted(claim).min(claim.guarantee);
    let rest = claims.iter().fold(capacity, |rest, claim| rest.saturating_sub(first(claim)));
    let beyond = |claim: &Claim| Entry {
        weight: Weight::ONE,
        demand: Some(wanted(claim).saturating_sub(first(claim))),
    };
    let entries: Vec<Entry> = claims.iter().map(beyond).collect();
    let parts = fair(rest, &entries);
    let unmet = entries.iter().zip(&parts).filter(|(entry, part)| entry.demand > Some(**part));
    let level = match unmet.map(|(_, part)| *part).min() {
        Some(level) => level,
        None => {
            let most = parts.iter().copied().max().unwrap_or(Rate::ZERO);
            let left = parts.iter().fold(rest, |left, part| left.saturating_sub(*part));
            most + left
        }
    };
    let pace = |(claim, part): (&Claim, &Rate)| {
        let guarantee = claim.guarantee.min(claim.plan);
        (guarantee + level.max(*part)).min(claim.plan).min(capacity)
    };
    claims.iter().zip(&parts).map(pace).collect()
}

/// History of a member's demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Its highest rate, which decays.
    peak: Rate,
}

impl Watch {
    /// The demand of a member that used `passed` in a period of `span` in which its pace was `pace`.
    pub fn demand(&mut self, passed: Bytes, span: Span, pace: Rate) -> Option<Rate> {
        let rate = match span {
            Span::ZERO => Rate::ZERO,
            span => Rate::from_volume(passed, span),
        };
        self.peak = rate.max(self.peak * DECAY);
        (self.peak < pace * HUNGRY).then(|| self.peak * HEADROOM)
    }
}

/// A segment with its members, as kernel and daemon implement it together.
#[derive(Clone, Debug)]
pub struct Segment {
    capacity: Rate,
    gate: Schedule,
    gate_at: u64,
    members: Vec<Member>,
    divided_at: Time,
    /// Until when paces are in force.
    until: Time,
    /// Packets that found the gate full.
    pub refused: u64,
}

/// A subscriber in a segment.
#[derive(Clone, Debug)]
struct Member {
    plan: Plan,
    rate: Rate,
    /// The pace of its plan at the plan's rate; the pace in `plan` changes.
    own: Pace,
    pace: Pace,
    pace_rate: Rate,
    aggregate: Aggregate,
    guarantee_rate: Rate,
    guarantee: Schedule,
    guarantee_at: u64,
    passed: Bytes,
    watch: Watch,
}

impl Segment {
    /// A segment without members.
    pub fn new(capacity: Rate) -> Segment {
        Segment {
            capacity,
            gate: Schedule::new(capacity),
            gate_at: 0,
            members: Vec::new(),
            divided_at: Time::ZERO,
            until: Time::ZERO,
            refused: 0,
        }
    }

    /// Adds a subscriber of a plan with this rate; returns its number.
    pub fn join(&mut self, plan: Plan, rate: Rate) -> usize {
        let (own, aggregate) = (plan.pace, Aggregate::new(&plan));
        self.members.push(Member {
            plan,
            rate,
            own,
            pace: own,
            pace_rate: rate,
            aggregate,
            guarantee_rate: Rate::ZERO,
            guarantee: Schedule::default(),
            guarantee_at: 0,
            passed: Bytes::ZERO,
            watch: Watch::default(),
        });
        self.members.len() - 1
    }

    /// Guarantees a member a rate from now on.
    pub fn guarantee(&mut self, member: usize, rate: Rate) {
        let member = &mut self.members[member];
        member.guarantee_rate = rate;
        member.guarantee = Schedule::new(rate);
    }

    /// Divides the capacity according to what was used since the last division.
    pub fn divide(&mut self, now: Time) {
        let span = now.since(self.divided_at);
        self.divided_at = now;
        let claim = |member: &mut Member| Claim {
            plan: member.rate,
            guarantee: member.guarantee_rate,
            demand: member.watch.demand(std::mem::take(&mut member.passed), span, member.pace_rate),
        };
        let claims: Vec<Claim> = self.members.iter_mut().map(claim).collect();
        for (member, rate) in self.members.iter_mut().zip(divide(self.capacity, &claims)) {
            (member.pace, member.pace_rate) = (member.plan.pace_at(rate), rate);
        }
        self.until = now + VALID;
    }

    /// The pace that a member has, and until when.
    pub fn pace(&self, member: usize) -> (Pace, Time) {
        (self.members[member].pace, self.until)
    }

    /// Decides about a packet of a member.
    pub fn handle_packet(&mut self, now: Time, member: usize, arrival: Arrival) -> Verdict {
        let (ns, size) = (now.as_nanos(), arrival.size.as_u64());
        let member = &mut self.members[member];
        let is_guaranteed = member.guarantee.has_room(member.guarantee_at, ns);
        if !is_guaranteed && !self.gate.has_room(self.gate_at, ns) {
            self.refused += 1;
            return Verdict::Drop;
        }
        member.plan.pace = if now < self.until { member.pace } else { member.own };
        let verdict = decide(&member.plan, &mut member.aggregate.state(), now, arrival);
        if verdict != Verdict::Drop {
            if is_guaranteed {
                member.guarantee.charge(&mut member.guarantee_at, ns, size);
            }
            self.gate.charge(&mut self.gate_at, ns, size);
            member.passed += arrival.size;
        }
        verdict
    }
}

#[cfg(test)]
mod tests;
