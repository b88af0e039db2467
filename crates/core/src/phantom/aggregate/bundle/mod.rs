//! A bundle within a plan: a *free* class holds a target rate, and the queues of *stunts* pay for it.
//!
//! Problem: a policer signals a flow whose queue is full, whatever its application needs. In Free and Stunts, other
//! flows take that signal in its place, but their senders have to take part. A policer can do this for senders that
//! know nothing of it, because each signal comes from a full queue. Method: where a packet of the free class finds
//! its class's queue full, the packet passes and is counted in the queue of a stunt. That queue fills up earlier by
//! the same number of bytes, so the stunt is dropped or marked by the same amount instead: both changes of rate are
//! equal, to the byte. The stunts are asked in turn. Traffic of the free class above its target is signalled to the
//! free class itself, by a phantom queue with one leaf that drains at the target.
//!
//! A stunt is asked only while its queue holds a backlog, so that it gives up its own share and not what others
//! would get of it. It gives up at most half of its share in a window, which is as much as a signal takes from it
//! (Reno). If no stunt can be asked, the free class is signalled as without a bundle.
//!
//! Properties, tested: only the queues of the bundle are changed; a stunt pays at most half of its
//! share in a window (with random senders: of the rate); all traffic that passes stays within the
//! plan's rate; the free class gets at most its target; in a bundle whose stunts do not send, the
//! free class gets at most its own share.
//!
//! Source: Guirguis and Valdez, Traffic Shaping via Congestion Signals Delegation, §I (deployment
//! at an ISP); the paper does not say how it is done there.

use std::ops::Range;

use super::window::WINDOW_FLAGS;
use super::{ALLOWANCE, Aggregate, SIZE_MAX, State, decide};
use crate::phantom::plan::{RATE_MIN, Share};
use crate::phantom::{Arrival, Plan, PlanError, PlanSpec, Police, Verdict};
use crate::units::{Bytes, Rate, Time};

/// A bundle as the operator specifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleSpec {
    /// The class that has a target; it has one queue.
    pub free: String,
    /// Rate that the packets of the free class get together, in L2 bytes.
    pub target: Rate,
    /// The class whose queues pay; the owner of its flows has agreed.
    pub stunts: String,
}

/// Why a bundle is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BundleError {
    #[error("there is no class `{0}` with queues in this plan")]
    NoClass(String),
    #[error("class `{0}` cannot be `free` and `stunts`")]
    Same(String),
    #[error("the free class `{0}` has {1} queues; it must have one")]
    Queues(String, u8),
    #[error("class `{0}` is served by priority; a bundle needs classes with weights")]
    Priority(String),
    #[error("target {0} is out of range ({RATE_MIN} to {1}, the rate of the plan)")]
    Target(Rate, Rate),
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// A bundle with everything precomputed that the decision about a packet needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    free: usize,
    stunts: Range<usize>,
    /// One queue that drains at the target.
    aim: Plan,
}

/// State of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleState {
    /// The free class's queue that drains at the target.
    pub aim: Aggregate,
    /// Start of the window to which `lent` refers, ns.
    pub window_at: u64,
    /// The stunt that is asked next.
    pub turn: usize,
    /// Bytes that each stunt paid in the window.
    pub lent: Vec<u32>,
    counts: Counts,
}

/// What a bundle has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets of the free class that a stunt paid for.
    pub delegated: u64,
    /// Their bytes.
    pub delegated_bytes: Bytes,
    /// Packets of the free class that no stunt could pay for.
    pub refused: u64,
}

/// A subscriber whose plan has a bundle.
#[derive(Clone, Debug)]
pub struct Bundled {
    plan: Plan,
    bundle: Bundle,
    aggregate: Aggregate,
    state: BundleState,
}

/// A stunt pays at most its share in a window divided by this: what Reno gives up at a signal.
const PART: u64 = 2;
/// A stunt is asked while its queue is filled to at least one part in this number: then it uses its
/// share. Lent bytes alone cannot keep the queue that full.
const FULL: u32 = 4;

impl Bundle {
    /// Works out a bundle of a plan.
    ///
    /// # Errors
    /// If a class is missing, is named as both, or is served by priority, or if the target is out of range.
    pub fn new(spec: &BundleSpec, of: &PlanSpec, plan: &Plan) -> Result<Bundle, BundleError> {
        let find = |name: &String| {
            let choice = plan.choices.iter().find(|choice| choice.name == *name);
            let choice = choice.ok_or_else(|| BundleError::NoClass(name.clone()))?;
            let mut at = usize::from(plan.leaves[usize::from(choice.first)].parent);
            // A plan makes an inner node of a single queue under priority.
            while !plan.inners[at].is_priority && at != 0 {
                at = plan.inners[at].parent.into();
            }
            match plan.inners[at].is_priority {
                true => Err(BundleError::Priority(name.clone())),
                false => Ok(choice),
            }
        };
        let (free, stunts) = (find(&spec.free)?, find(&spec.stunts)?);
        if spec.free == spec.stunts {
            return Err(BundleError::Same(spec.free.clone()));
        }
        if free.count != 1 {
            return Err(BundleError::Queues(spec.free.clone(), free.count));
        }
        if spec.target < RATE_MIN || spec.target > of.rate {
            return Err(BundleError::Target(spec.target, of.rate));
        }
        let aim = PlanSpec { rate: spec.target, share: Share::Flows(1), ..of.clone() };
        let first = usize::from(stunts.first);
        Ok(Bundle {
            free: free.first.into(),
            stunts: first..first + usize::from(stunts.count),
            aim: Plan::new(&aim)?,
        })
    }

    /// The leaf of the free class.
    pub fn free(&self) -> usize {
        self.free
    }

    /// The leaves that pay.
    pub fn stunts(&self) -> Range<usize> {
        self.stunts.clone()
    }

    /// One queue that drains at the target.
    pub fn aim(&self) -> &Plan {
        &self.aim
    }
}

impl BundleState {
    /// Nothing has arrived yet.
    pub fn new(bundle: &Bundle) -> BundleState {
        BundleState {
            aim: Aggregate::new(&bundle.aim),
            window_at: 0,
            turn: 0,
            lent: vec![0; bundle.stunts.len()],
            counts: Counts::default(),
        }
    }

    /// The bundle's counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

impl Bundled {
    /// A subscriber from whom nothing has arrived yet.
    pub fn new(plan: Plan, bundle: Bundle) -> Bundled {
        let (aggregate, state) = (Aggregate::new(&plan), BundleState::new(&bundle));
        Bundled { plan, bundle, aggregate, state }
    }

    /// The counts of its bundle so far.
    pub fn counts(&self) -> Counts {
        self.state.counts
    }
}

impl Police for Bundled {
    fn handle_packet(&mut self, now: Time, arrival: Arrival) -> Verdict {
        let Bundled { plan, bundle, aggregate, state } = self;
        decide_in_bundle(plan, bundle, &mut aggregate.state(), state, now, arrival)
    }
}

/// Decides about a packet of a subscriber whose plan has a bundle. Packets of classes other than
/// the free one are decided as by [`decide`].
///
/// # Panics
/// As [`decide`].
pub fn decide_in_bundle(
    plan: &Plan,
    bundle: &Bundle,
    state: &mut State<'_>,
    bundled: &mut BundleState,
    now: Time,
    arrival: Arrival,
) -> Verdict {
    if arrival.leaf != bundle.free {
        return decide(plan, state, now, arrival);
    }
    let aimed = Arrival { leaf: 0, ..arrival };
    let aimed = decide(&bundle.aim, &mut bundled.aim.state(), now, aimed);
    if aimed == Verdict::Drop {
        return Verdict::Drop;
    }
    match state.again().charge(plan, bundle, bundled, now, arrival) {
        Some(true) => aimed,
        Some(false) => Verdict::Drop,
        None => match decide(plan, state, now, arrival) {
            Verdict::Pass => aimed,
            own => own,
        },
    }
}

impl State<'_> {
    /// Charges a packet of the free class, whose target lets it pass, to its own queue or a stunt's. Returns
    /// whether the gate lets it pass; `None` if no queue can take it.
    fn charge(
        &mut self,
        plan: &Plan,
        bundle: &Bundle,
        bundled: &mut BundleState,
        now: Time,
        arrival: Arrival,
    ) -> Option<bool> {
        let (at, size) = (now.as_nanos(), arrival.size.as_u64().min(SIZE_MAX));
        self.roll_window(plan, at);
        let Some(gate_at) = self.pass_gate(plan, at, size) else { return Some(false) };
        self.settle_path(plan, at, bundle.free);
        self.settle_path(plan, at, bundle.stunts.start);
        let Some(payer) = self.find_payer(plan, bundle, bundled, size) else {
            bundled.counts.refused += 1;
            return None;
        };
        self.head.gate_at = gate_at;
        self.accept(plan, payer, size);
        if payer != bundle.free {
            let nth = payer - bundle.stunts.start;
            bundled.lent[nth] += size as u32;
            bundled.turn = nth + 1;
            bundled.counts.delegated += 1;
            bundled.counts.delegated_bytes += Bytes::new(size);
        }
        Some(true)
    }

    /// The leaf that a packet of the free class is counted in; the paths to its queue and the stunts' are settled.
    fn find_payer(
        &self,
        plan: &Plan,
        bundle: &Bundle,
        bundled: &mut BundleState,
        size: u64,
    ) -> Option<usize> {
        // Its own queue is no longer than that of a flow of which nothing is known yet. Whatever
        // the free class sends above its share has to be paid for at once.
        let own = self.share_of_window(plan, bundle.free).max(ALLOWANCE.1);
        if self.backlog(plan, bundle.free) + size <= own.min(plan.pace.limit.into()) {
            return Some(bundle.free);
        }
        let window_at = self.head.window_at & !WINDOW_FLAGS;
        if bundled.window_at != window_at {
            bundled.window_at = window_at;
            bundled.lent.fill(0);
        }
        let count = bundle.stunts.len();
        let mut in_turn = (0..count).map(|nth| (bundled.turn + nth) % count);
        in_turn
            .find(|&nth| {
                let leaf = bundle.stunts.start + nth;
                let share = self.share_of_window(plan, leaf);
                let (backlog, limit) = (self.backlog(plan, leaf), plan.pace.limit);
                backlog >= u64::from(limit / FULL).max(ALLOWANCE.0)
                    && backlog + size <= u64::from(limit) + share
                    && u64::from(bundled.lent[nth]) + size <= share / PART
            })
            .map(|nth| bundle.stunts.start + nth)
    }
}

#[cfg(test)]
mod tests;
