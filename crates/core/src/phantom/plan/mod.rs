//! The plan that a subscriber has bought: a rate and how it is shared, as the operator specifies it
//! ([`PlanSpec`]) and as a tree of nodes with all constants worked out ([`Plan`]).

use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::policy::PortMatch;
use crate::share::{Node, Tree, Weight};
use crate::units::{Bytes, Rate, Span};

mod compile;

use compile::START_SLACK;
pub(super) use compile::{GATE_SHIFT, SPARE_IDLE, SPARE_SHIFT};

/// The most leaves of a plan: a node's set of busy children is one word.
pub const LEAVES_MAX: usize = 64;
/// The most inner nodes of a plan, including the root and the nodes that the plan makes of single
/// leaves under priority: as many as fit in the 2 KiB of the largest slot.
pub const INNERS_MAX: usize = 5;
/// The most inner nodes on the way from the root to a leaf, the root and the leaf's parent included.
pub const DEPTH_MAX: usize = 3;
/// The largest weight: with 64 children their sum fits in 16 bits.
pub const WEIGHT_MAX: u16 = 256;
/// The most matches of all classes of a plan.
pub const MATCHES_MAX: usize = 32;
/// The lowest rate: its rounding to 2⁻²⁴ bytes per ns is .2 %.
pub const RATE_MIN: Rate = Rate::kbit(64);
/// The highest rate: what it carries in a second is counted in 32 bits.
pub const RATE_MAX: Rate = Rate::mbit(25_000);
/// Round-trip times that a plan may be sized for.
pub const RTT_MAX_RANGE: (Span, Span) = (Span::millis(1), Span::secs(2));
/// The most leaves, and inner nodes, of a plan that a client may divide.
pub const CLIENT_LEAVES_MAX: usize = 16;
/// See [`CLIENT_LEAVES_MAX`].
pub const CLIENT_INNERS_MAX: usize = 4;
/// The most [`Together`] of a client: inner nodes below the root.
pub const TOGETHER_MAX: usize = CLIENT_INNERS_MAX - 1;
/// The packet size for which formulas are stated, on the wire. Source: BC-PQP §6.1.
pub const MSS: u64 = 1_500;

/// A plan as the operator specifies it, for one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanSpec {
    /// The rate that the subscriber may use, in L2 bytes.
    pub rate: Rate,
    /// The longest round-trip time whose connections can reach the rate.
    pub rtt_max: Span,
    /// How senders are signalled.
    pub signal: Signal,
    /// How the rate is shared.
    pub share: Share,
}

/// How a node divides what it gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// Into this number of queues of equal weight, chosen by a hash of the flow; 1 is one queue for all.
    Flows(u8),
    /// By the weights of classes, which divide it.
    Weighted(Vec<Class>),
    /// The first class that has traffic takes all it can use, the next class takes what is left.
    Priority(Vec<Class>),
}

/// A part of a subscriber's traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Unique within the plan.
    pub name: String,
    /// 1 to [`WEIGHT_MAX`]; without effect under [`Share::Priority`].
    pub weight: u16,
    /// The traffic that belongs to it: any one of these is enough. An empty list takes what no
    /// other class takes. Only classes that are not divided into classes have matches.
    pub matches: Vec<Criterion>,
    /// How the class itself is divided.
    pub share: Share,
}

/// The classes of a client: at least one and at most [`CLIENT_LEAVES_MAX`], each with a weight of 1 to [`WEIGHT_MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    weights: Vec<u16>,
    default: u8,
    together: Vec<Together>,
}

/// Neighbouring classes that share one weight, such as those of a device; their own weights divide that share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    /// 1 to [`WEIGHT_MAX`], relative to the other groups and to the classes that are in no group.
    pub weight: u16,
    /// The number of the first class.
    pub first: u8,
    /// The number of classes, at least one.
    pub count: u8,
}

/// One criterion for belonging to a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Criterion {
    /// The six bits of the DSCP.
    Dscp(u8),
    /// A port; [`crate::packet::Side::Local`] is the subscriber's.
    Port(PortMatch),
    /// The address of the host that the subscriber communicates with.
    Ip(IpNet),
}

/// How senders are told that they exceed their share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// Each packet that finds its queue full is dropped, as a shaper's drop-tail queue does.
    Hard,
    /// One packet is dropped, or marked if its sender supports that; then there is grace until the
    /// sender can have reacted. See [`super::soft`].
    Soft,
}

/// Why a plan is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PlanError {
    #[error("rate {0} is out of range ({RATE_MIN} to {RATE_MAX})")]
    Rate(Rate),
    #[error("rtt_max {0} is out of range ({min} to {max})", min = RTT_MAX_RANGE.0, max = RTT_MAX_RANGE.1)]
    RttMax(Span),
    #[error("weight {weight} of class `{class}` is out of range (1 to {WEIGHT_MAX})")]
    Weight { class: String, weight: u16 },
    #[error("{0} queues: a class has 1 to {LEAVES_MAX}")]
    Queues(u8),
    #[error("{0} has no classes; add one, or set `queues`")]
    NoClass(String),
    #[error("{0} queues: a plan has at most {LEAVES_MAX}")]
    TooManyLeaves(usize),
    #[error(
        "the policy needs {0} inner nodes (the root, each divided class and each class under priority); a plan has at most {INNERS_MAX}"
    )]
    TooManyInners(usize),
    #[error("class `{0}` is nested too deeply: at most {DEPTH_MAX} levels")]
    TooDeep(String),
    #[error("duplicate class `{0}`")]
    DuplicateClass(String),
    #[error(
        "class `{0}` is divided into classes and cannot have `match`; set `match` in its classes"
    )]
    MatchesOnDivided(String),
    #[error("no class takes unmatched packets; one class must have no `match`")]
    NoDefault,
    #[error("classes `{0}` and `{1}` have no `match`; only one class can take unmatched packets")]
    TwoDefaults(String, String),
    #[error("{0} matches: a plan has at most {MATCHES_MAX}")]
    TooManyMatches(usize),
    #[error("{0} queues: a plan that clients divide has at most {CLIENT_LEAVES_MAX}")]
    ClientQueues(usize),
    #[error("DSCP {0} is out of range (0 to 63)")]
    Dscp(u8),
}

/// A plan with everything precomputed that the decision about a packet needs. All its subscribers share it.
///
/// Nodes are numbered so that an inner node's leaves are neighbours, and so are its inner children:
/// child `b` of a node is leaf `leaf_first + b`, or for `b >= leaf_count` inner node
/// `inner_first + b - leaf_count`. Node 0 is the root; parents stand before their children.
/// Invariant: all leaves hang under weighted nodes, under priority nodes there are inner nodes only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// All that depends on the rate.
    pub pace: Pace,
    /// Length of a window of burst control, ns: the usual window, or the longest round trip that the
    /// plan is sized for if that is longer.
    pub window: u64,
    /// The longest round-trip time whose connections can reach the rate.
    pub rtt_max: Span,
    /// How senders are signalled.
    pub signal: Signal,
    /// Inner nodes, the root first.
    pub inners: Vec<Inner>,
    /// Leaves.
    pub leaves: Vec<Leaf>,
    /// The leaves of each class, in the order of the file.
    pub choices: Vec<Choice>,
    /// Index in `choices` of the class without matches.
    pub choice_default: usize,
    /// Whether a client may divide it.
    pub is_for_clients: bool,
    /// The volume of flows that share a queue is counted in 2^`sent_shift` bytes.
    pub sent_shift: u32,
}

impl Classes {
    /// Classes with these weights; `default` is the number of the class that takes all flows without a binding.
    pub fn new(weights: Vec<u16>, default: u8) -> Option<Classes> {
        let fits = (1..=CLIENT_LEAVES_MAX).contains(&weights.len())
            && weights.iter().all(|weight| (1..=WEIGHT_MAX).contains(weight))
            && usize::from(default) < weights.len();
        fits.then_some(Classes { weights, default, together: Vec::new() })
    }

    /// The same classes, some of them grouped under a common weight, in their order; the default class is in no group.
    pub fn with(self, together: Vec<Together>) -> Option<Classes> {
        let mut next = 0;
        let fits = |one: &Together| {
            let is_behind = usize::from(one.first) >= next;
            next = usize::from(one.first) + usize::from(one.count);
            let has_default = (usize::from(one.first)..next).contains(&usize::from(self.default));
            let is_weight = (1..=WEIGHT_MAX).contains(&one.weight);
            is_behind && one.count > 0 && next <= self.weights.len() && is_weight && !has_default
        };
        let all_fit = together.len() <= TOGETHER_MAX && together.iter().all(fits);
        all_fit.then_some(Classes { together, ..self })
    }

    /// The groups of classes that share a weight.
    pub fn together(&self) -> &[Together] {
        &self.together
    }

    /// The classes in the order of their numbers, each made by `class`; each group that shares a
    /// weight is one entry, made of its classes by `together`.
    pub(crate) fn nested<T>(
        &self,
        class: impl Fn(usize) -> T,
        together: impl Fn(&Together, Vec<T>) -> T,
    ) -> Vec<T> {
        let mut all = Vec::new();
        let mut next = 0;
        for one in &self.together {
            let first = usize::from(one.first);
            all.extend((next..first).map(&class));
            next = first + usize::from(one.count);
            all.push(together(one, (first..next).map(&class).collect()));
        }
        all.extend((next..self.weights.len()).map(&class));
        all
    }

    /// The tree by which the classes divide; its leaves are the classes.
    pub fn tree(&self) -> Tree {
        let weight = |weight: u16| Weight::new(weight.into()).unwrap_or_default();
        let leaf = |number: usize| Node::Leaf(weight(self.weights[number]));
        Tree::new(self.nested(leaf, |one, members| Node::Branch(weight(one.weight), members)))
    }

    /// The weights, by class number.
    pub fn weights(&self) -> &[u16] {
        &self.weights
    }

    /// The class of flows without a binding.
    pub fn default(&self) -> u8 {
        self.default
    }
}

impl Plan {
    /// Cost of a byte at the gate, 2⁻¹⁶ ns, and how far the subscriber may be ahead, ns. During a start the gate has
    /// the rate plus a fifth, with which less than 1.6 times the rate passes in 250 ms.
    #[inline]
    pub(super) fn gate(&self, is_start: bool) -> (u64, u64) {
        let Pace { gate_cost, gate_slack, .. } = self.pace;
        match is_start {
            false => (gate_cost, gate_slack),
            true => (gate_cost + gate_cost / 4, START_SLACK + (gate_slack - self.window) / 4 * 5),
        }
    }

    /// The inner nodes from below the root to `inner`, which is the last; none for the root.
    #[inline]
    pub(super) fn path_to(&self, inner: usize) -> impl Iterator<Item = usize> {
        let mut path = [0; DEPTH_MAX];
        let mut depth = 0;
        let mut at = inner;
        while at != 0 {
            path[depth] = at;
            depth += 1;
            at = usize::from(self.inners[at].parent);
        }
        path.into_iter().take(depth).rev()
    }
}

/// A deviation from the paper that a plan can leave out, to measure what it is worth. The letters
/// are those of docs/research/papers/bcpqp.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// The limit across all queues, also at the start (h, p).
    Gate,
    /// The size of the queues: ten times what Reno needs instead of twice, and no least size (j).
    Size,
    /// Real bytes of silent queues are given back as far as there is a spare, and no queue is
    /// filled meanwhile (m, q).
    GivesBack,
}

impl Deviation {
    /// All deviations, by their names in scenario files.
    pub const ALL: [(&str, Deviation); 3] = [
        ("gate", Deviation::Gate),
        ("size", Deviation::Size),
        ("gives-back", Deviation::GivesBack),
    ];
}

/// The parts of a plan that depend on its rate. A member of a segment has a pace of its own, which changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// 2⁻²⁴ bytes per nanosecond.
    pub rate: u64,
    /// Time in ns without a packet after which every queue is certainly empty.
    pub idle_after: u64,
    /// What the rate carries in a window, bytes.
    pub window_bytes: u64,
    /// How long a byte takes at the gate's rate, 2⁻¹⁶ ns. The gate keeps the whole subscriber to
    /// half as much again as its rate, whatever its leaves would accept.
    pub gate_cost: u64,
    /// How far the subscriber may be ahead of the gate's rate, ns.
    pub gate_slack: u64,
    /// How much further it may be ahead after a pause, ns.
    pub gate_more: u64,
    /// Time in ns without anything at the gate that counts as a pause; at least `gate_more`.
    pub gate_pause: u64,
    /// Size of each phantom queue, bytes.
    pub limit: u32,
    /// The spare of the rate that can be kept beyond the spare after idleness, in 2¹⁰ ns of the rate.
    pub spare_max: i32,
}

/// A plan's constants for an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inner {
    /// Whether its children are served in order; otherwise by weight.
    pub is_priority: bool,
    /// Its parent's index; 0 for the root.
    pub parent: u8,
    /// Which child of its parent it is.
    pub child: u8,
    /// Its weight at its parent.
    pub weight: u16,
    /// 2³² / weight, rounded down.
    pub inverse: u64,
    /// Index of its first leaf.
    pub leaf_first: u8,
    /// How many leaves it has.
    pub leaf_count: u8,
    /// Index of its first inner child.
    pub inner_first: u8,
    /// How many inner children it has.
    pub inner_count: u8,
}

/// A plan's constants for a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaf {
    /// Its parent's index.
    pub parent: u8,
    /// Which child of its parent it is.
    pub child: u8,
    /// Its weight at its parent.
    pub weight: u16,
    /// 2³² / weight, rounded down.
    pub inverse: u64,
    /// The first leaf of its class.
    pub class_first: u8,
    /// How many leaves its class has. If there are several, each weighs as much as it has flows.
    pub class_count: u8,
}

/// The leaves of a class, and the traffic that goes there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The class's name; empty if the plan has no classes.
    pub name: String,
    /// The traffic that belongs to it.
    pub matches: Vec<Criterion>,
    /// Its first leaf.
    pub first: u8,
    /// How many leaves it has, at least one.
    pub count: u8,
}

/// How large a phantom queue has to be for Reno to use `rate` at `rtt`: `factor` times
/// BDP² / (18 · MSS), in bytes. Source: BC-PQP §3.5 and appendix A.
pub fn limit_for(rate: Rate, rtt: Span, factor: u64) -> Bytes {
    let bdp = bdp(rate, rtt);
    let bytes = u128::from(factor) * bdp * bdp / (18 * u128::from(MSS));
    Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
}

fn bdp(rate: Rate, rtt: Span) -> u128 {
    u128::from(rate.as_bps()) * u128::from(rtt.as_nanos()) / 8_000_000_000
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Signal::Hard => "hard",
            Signal::Soft => "soft",
        })
    }
}
