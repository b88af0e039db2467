//! Turns what the operator specifies into nodes with all constants worked out.

use std::collections::VecDeque;

use super::{
    CLIENT_INNERS_MAX, CLIENT_LEAVES_MAX, Choice, Class, Classes, Criterion, DEPTH_MAX, Deviation,
    INNERS_MAX, Inner, LEAVES_MAX, Leaf, MATCHES_MAX, MSS, Pace, Plan, PlanError, PlanSpec,
    RATE_MAX, RATE_MIN, RTT_MAX_RANGE, Share, Together, WEIGHT_MAX, bdp, limit_for,
};
use crate::phantom::UNIT_BITS;
use crate::units::{Rate, Span};

/// A queue holds this multiple of what Reno needs. Source: BC-PQP §4.
const LIMIT_FACTOR: u64 = 2;
/// The same in the paper's experiments. Source: BC-PQP §6.1.
const LIMIT_FACTOR_PRINTED: u64 = 10;
/// A queue holds at most what its rate carries in this time. With it, Reno at 200 Mbit/s and 50 ms
/// reaches its rate; with one second it would reach nine tenths.
const LIMIT_SPAN: Span = Span::secs(4);
/// Largest queue in bytes: a queue and its grace are counted in 32 bits.
const LIMIT_MAX: u64 = 3_000_000_000;
/// Bytes that a queue holds at least beyond a BDP, and the gate beyond its window: ten segments,
/// TCP's initial window (RFC 6928).
const ALLOWANCE: u64 = 10 * MSS;
/// A sender that comes back from a retransmission timeout may send what the rate carries in this
/// time at once. Where a round trip is shorter than a packet's transmission time, what a sender
/// immediately sends again comes too early and is lost too, and each of its bursts ends in such a
/// timeout: it needs the rate of the time until the next one.
const CATCH_UP: Span = Span::millis(210);
/// Slightly less than the shortest such timeout. Source: Linux, `TCP_RTO_MIN`.
const RTO_MIN: Span = Span::millis(195);
/// Time that a subscriber at its start may be ahead, in addition to the allowance, ns. Seeds 1-240
/// of `crates/sim/tests/it/police_traffic.rs`: 70 or 80 ms with 1.1 or 1.2 times the rate cost
/// nothing; with 60 ms senders that do not pace and have long round trips get less.
pub(super) const START_SLACK: u64 = 70_000_000;
/// The gate's times are in 2⁻¹⁶ ns per byte.
pub(in crate::phantom) const GATE_SHIFT: u32 = 16;
/// The unused part of the rate is counted in 2¹⁰ ns.
pub(in crate::phantom) const SPARE_SHIFT: u32 = 10;
/// Spare part of the rate after idleness, 2¹⁰ ns. If it were a full queue (the most that is ever
/// kept), subscribers with short and long flows would exceed their rate by a twelfth in the first
/// 40 s; with no spare, making up for a flow that ended took 1-3 s instead of 0.5-2 s.
pub(in crate::phantom) const SPARE_IDLE: u64 = 500_000_000 >> SPARE_SHIFT;
/// The volume a flow sends is counted in this number of parts of a window's bytes, or up to twice as many.
const SENT_PARTS: u64 = 1 << 10;
/// The length of a window of burst control, unless the longest round trip is longer. Source: BC-PQP §4.
const WINDOW: Span = Span::millis(100);

impl Plan {
    /// Checks what an operator specifies and works it out.
    ///
    /// # Errors
    /// [`PlanError`] says what is wrong and what would be right.
    pub fn new(spec: &PlanSpec) -> Result<Plan, PlanError> {
        if spec.rate < RATE_MIN || spec.rate > RATE_MAX {
            return Err(PlanError::Rate(spec.rate));
        }
        if spec.rtt_max < RTT_MAX_RANGE.0 || spec.rtt_max > RTT_MAX_RANGE.1 {
            return Err(PlanError::RttMax(spec.rtt_max));
        }
        let mut tree = Tree::default();
        tree.grow(&spec.share)?;
        let mut names = Vec::new();
        names_in_file_order(&spec.share, &mut names);
        tree.choices.sort_by_key(|choice| names.iter().position(|name| **name == choice.name));
        let choice_default = default_of(&tree.choices)?;

        let window = WINDOW.max(spec.rtt_max).as_nanos();
        let pace = Pace::of(spec.rate, spec.rtt_max, window, tree.leaves.len());
        Ok(Plan {
            sent_shift: (pace.window_bytes / SENT_PARTS).max(1).ilog2(),
            pace,
            window,
            rtt_max: spec.rtt_max,
            signal: spec.signal,
            inners: tree.inners,
            leaves: tree.leaves,
            choices: tree.choices,
            choice_default,
            is_for_clients: false,
        })
    }

    /// The same plan for a client to divide, at the rate that it was made with.
    ///
    /// # Errors
    /// [`PlanError::ClientQueues`]. A plan of classes has no room for a client's.
    pub fn for_clients(mut self, rate: Rate) -> Result<Plan, PlanError> {
        if self.leaves.len() > CLIENT_LEAVES_MAX {
            return Err(PlanError::ClientQueues(self.leaves.len()));
        }
        self.is_for_clients = true;
        self.pace = self.pace_at(rate);
        Ok(self)
    }

    /// This plan as a client divides it: a class for each class of the client, with as many queues
    /// as there is room for. The classes are named by their numbers.
    ///
    /// # Panics
    /// If it is not [`Plan::for_clients`].
    pub fn divided(&self, classes: &Classes) -> Plan {
        assert!(self.is_for_clients, "a plan for clients");
        let mut tree = Tree::default();
        tree.grow(&as_share(classes)).expect("invariant: a client's classes fit");
        tree.choices.sort_by_key(|choice| choice.name.parse::<usize>().ok());
        Plan {
            inners: tree.inners,
            leaves: tree.leaves,
            choices: tree.choices,
            choice_default: classes.default().into(),
            ..self.clone()
        }
    }

    /// The number of leaves for which the pace is sized.
    fn leaves_max(&self) -> usize {
        if self.is_for_clients { CLIENT_LEAVES_MAX } else { self.leaves.len() }
    }

    /// The same plan without a deviation, at the rate that it was made with.
    pub fn without(mut self, deviation: Deviation, rate: Rate) -> Plan {
        match deviation {
            Deviation::Gate => self.pace.gate_slack = 1 << 62,
            Deviation::Size => {
                let limit = limit_for(rate, self.rtt_max, LIMIT_FACTOR_PRINTED).as_u64();
                let limit = limit.min(LIMIT_MAX) as u32;
                self.pace = Pace::with(rate, limit, self.window, self.leaves_max());
            }
            Deviation::GivesBack => self.pace.spare_max = -(SPARE_IDLE as i32),
        }
        self
    }

    /// The pace of a subscriber of this plan at another rate, which is brought into the range of plans.
    pub fn pace_at(&self, rate: Rate) -> Pace {
        let rate = rate.clamp(RATE_MIN, RATE_MAX);
        Pace::of(rate, self.rtt_max, self.window, self.leaves_max())
    }
}

impl Pace {
    fn of(bps: Rate, rtt_max: Span, window: u64, leaf_count: usize) -> Pace {
        Pace::with(bps, limit_of(bps, rtt_max), window, leaf_count)
    }

    fn with(bps: Rate, limit: u32, window: u64, leaf_count: usize) -> Pace {
        let rate = units_per_ns(bps);
        let window_bytes = (rate * window) >> UNIT_BITS;
        let gate_bps = u128::from(bps.as_bps()) * 3 / 2;
        let gate_cost = ((8_000_000_000 << GATE_SHIFT) / gate_bps) as u64;
        let gate_slack = window + ((ALLOWANCE * gate_cost) >> GATE_SHIFT);
        let gate_more = (CATCH_UP * 2 / 3).as_nanos().saturating_sub(gate_slack);
        let gate_pause = RTO_MIN.as_nanos().saturating_sub(gate_slack).max(gate_more);
        let backlog_max = leaf_count as u128 * u128::from(u64::from(limit) + 3 * window_bytes);
        let idle_after = (backlog_max << UNIT_BITS) / u128::from(rate) + u128::from(window);
        Pace {
            rate,
            idle_after: u64::try_from(idle_after).expect("invariant: some minutes at most"),
            window_bytes,
            gate_cost,
            gate_slack,
            gate_more,
            gate_pause,
            limit,
            spare_max: spare_max(limit, rate),
        }
    }
}

/// The classes of a client, named by their numbers.
fn as_share(classes: &Classes) -> Share {
    let is_flat = classes.together().is_empty() && classes.weights().len() < CLIENT_INNERS_MAX;
    // A class with several queues is an inner node below the root.
    let queues = if is_flat { CLIENT_LEAVES_MAX / CLIENT_INNERS_MAX } else { 1 };
    let named = |name: String, weight, share| Class { name, weight, matches: Vec::new(), share };
    let class = |number: usize| {
        named(number.to_string(), classes.weights()[number], Share::Flows(queues as u8))
    };
    let together = |one: &Together, members| {
        named(format!("together {}", one.first), one.weight, Share::Weighted(members))
    };
    Share::Weighted(classes.nested(class, together))
}

/// The size of every queue of a plan, since each queue may have the whole rate at some time.
fn limit_of(rate: Rate, rtt_max: Span) -> u32 {
    let bytes = limit_for(rate, rtt_max, LIMIT_FACTOR).as_u64();
    let most = u64::try_from(bdp(rate, LIMIT_SPAN)).expect("invariant: at most 25 Gbit");
    let least = u64::try_from(bdp(rate, rtt_max)).expect("invariant: at most 50 Gbit");
    bytes.min(most).max(least + ALLOWANCE).min(LIMIT_MAX) as u32
}

/// Spare that can be kept beyond [`SPARE_IDLE`], so that both together are what fills a queue.
fn spare_max(limit: u32, rate: u64) -> i32 {
    let full = ((u64::from(limit) << UNIT_BITS) / rate) >> SPARE_SHIFT;
    i32::try_from(full.saturating_sub(SPARE_IDLE)).expect("invariant: a queue is some seconds")
}

/// A rate in 2⁻²⁴ bytes per ns, rounded to the nearest.
fn units_per_ns(rate: Rate) -> u64 {
    ((u128::from(rate.as_bps()) << UNIT_BITS) + 4_000_000_000).div_euclid(8_000_000_000) as u64
}

fn names_in_file_order<'a>(share: &'a Share, names: &mut Vec<&'a str>) {
    if let Share::Weighted(classes) | Share::Priority(classes) = share {
        for class in classes {
            names.push(&class.name);
            names_in_file_order(&class.share, names);
        }
    }
}

fn default_of(choices: &[Choice]) -> Result<usize, PlanError> {
    let mut defaults = choices.iter().enumerate().filter(|(_, choice)| choice.matches.is_empty());
    let (index, first) = defaults.next().ok_or(PlanError::NoDefault)?;
    match defaults.next() {
        Some((_, second)) => Err(PlanError::TwoDefaults(first.name.clone(), second.name.clone())),
        None => Ok(index),
    }
}

/// The nodes in the order in which they are found, breadth first, so that a node's children are neighbours.
#[derive(Default)]
struct Tree {
    inners: Vec<Inner>,
    leaves: Vec<Leaf>,
    choices: Vec<Choice>,
    names: Vec<String>,
    matches: usize,
}

/// An inner node that has not been divided yet: its share, and its class if it has one.
struct Waiting<'a> {
    share: &'a Share,
    class: Option<&'a Class>,
    depth: usize,
}

impl Tree {
    fn grow(&mut self, root: &Share) -> Result<(), PlanError> {
        self.add_inner(0, 0, 1);
        let mut waiting = VecDeque::from([Waiting { share: root, class: None, depth: 1 }]);
        let mut index = 0;
        while let Some(next) = waiting.pop_front() {
            self.divide(index, &next, &mut waiting)?;
            index += 1;
        }
        if self.leaves.len() > LEAVES_MAX {
            return Err(PlanError::TooManyLeaves(self.leaves.len()));
        }
        if self.inners.len() > INNERS_MAX {
            return Err(PlanError::TooManyInners(self.inners.len()));
        }
        if self.matches > MATCHES_MAX {
            return Err(PlanError::TooManyMatches(self.matches));
        }
        Ok(())
    }

    /// Gives inner node `index` its children.
    fn divide<'a>(
        &mut self,
        index: usize,
        node: &Waiting<'a>,
        waiting: &mut VecDeque<Waiting<'a>>,
    ) -> Result<(), PlanError> {
        let leaf_first = self.leaves.len();
        let inner_first = self.inners.len();
        let (is_priority, classes) = match node.share {
            Share::Flows(count) => {
                if *count == 0 || usize::from(*count) > LEAVES_MAX {
                    return Err(PlanError::Queues(*count));
                }
                self.add_choice(node.class, *count)?;
                let class = (leaf_first.min(255) as u8, *count);
                for child in 0..*count {
                    self.add_leaf(index, child, 1, class);
                }
                (false, &[][..])
            }
            Share::Weighted(classes) => (false, &classes[..]),
            Share::Priority(classes) => (true, &classes[..]),
        };
        if !matches!(node.share, Share::Flows(_)) {
            self.check(node, classes)?;
        }
        // Leaves come first among a node's children.
        let is_leaf = |class: &&Class| !is_priority && class.share == Share::Flows(1);
        for (child, class) in classes.iter().filter(is_leaf).enumerate() {
            self.add_choice(Some(class), 1)?;
            let alone = (self.leaves.len().min(255) as u8, 1);
            self.add_leaf(index, child as u8, class.weight, alone);
        }
        let leaf_count = self.leaves.len() - leaf_first;
        for (nth, class) in classes.iter().filter(|class| !is_leaf(class)).enumerate() {
            if node.depth == DEPTH_MAX {
                return Err(PlanError::TooDeep(class.name.clone()));
            }
            self.add_inner(index, leaf_count + nth, class.weight);
            waiting.push_back(Waiting {
                share: &class.share,
                class: Some(class),
                depth: node.depth + 1,
            });
        }
        let inner_count = self.inners.len() - inner_first;
        let inner = &mut self.inners[index];
        inner.is_priority = is_priority;
        [inner.leaf_first, inner.leaf_count, inner.inner_first, inner.inner_count] =
            [leaf_first, leaf_count, inner_first, inner_count].map(|n| n.min(255) as u8);
        Ok(())
    }

    /// Checks the classes into which a node is divided.
    fn check(&mut self, node: &Waiting<'_>, classes: &[Class]) -> Result<(), PlanError> {
        if classes.is_empty() {
            let whose = node.class.map(|class| format!("class `{}`", class.name));
            return Err(PlanError::NoClass(whose.unwrap_or("the plan".to_owned())));
        }
        if classes.len() > LEAVES_MAX {
            return Err(PlanError::TooManyLeaves(classes.len()));
        }
        for class in classes {
            if class.weight == 0 || class.weight > WEIGHT_MAX {
                let Class { name: class, weight, .. } = class.clone();
                return Err(PlanError::Weight { class, weight });
            }
            if self.names.contains(&class.name) {
                return Err(PlanError::DuplicateClass(class.name.clone()));
            }
            if !matches!(class.share, Share::Flows(_)) && !class.matches.is_empty() {
                return Err(PlanError::MatchesOnDivided(class.name.clone()));
            }
            self.names.push(class.name.clone());
        }
        Ok(())
    }

    fn add_inner(&mut self, parent: usize, child: usize, weight: u16) {
        self.inners.push(Inner {
            is_priority: false,
            parent: parent as u8,
            child: child as u8,
            weight,
            inverse: inverse(weight),
            leaf_first: 0,
            leaf_count: 0,
            inner_first: 0,
            inner_count: 0,
        });
    }

    fn add_leaf(
        &mut self,
        parent: usize,
        child: u8,
        weight: u16,
        (class_first, class_count): (u8, u8),
    ) {
        let (parent, inverse) = (parent as u8, inverse(weight));
        self.leaves.push(Leaf { parent, child, weight, inverse, class_first, class_count });
    }

    fn add_choice(&mut self, class: Option<&Class>, count: u8) -> Result<(), PlanError> {
        let matches = class.map(|class| class.matches.clone()).unwrap_or_default();
        for one in &matches {
            match one {
                Criterion::Dscp(dscp) if *dscp > 63 => return Err(PlanError::Dscp(*dscp)),
                _ => {}
            }
        }
        self.matches += matches.len();
        let name = class.map(|class| class.name.clone()).unwrap_or_default();
        let first = self.leaves.len().min(255) as u8;
        self.choices.push(Choice { name, matches, first, count });
        Ok(())
    }
}

fn inverse(weight: u16) -> u64 {
    (1 << 32) / u64::from(weight)
}
