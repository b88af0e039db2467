//! Oracles that judge the policer: they compute the same tree in other ways, which are too slow or
//! need too much memory for use, and are simple enough to be seen to be right.

use crate::phantom::{Plan, Share};

/// Bits after the point of the fixed-point numbers in which the oracles count bytes.
pub(super) const FINE_BITS: u32 = 60;

/// A tree of queues, made from what the operator specifies; only the numbers of the leaves come
/// from the plan, by the names of their classes.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Leaf(usize),
    Weighted(Vec<(u128, Node)>),
    Priority(Vec<Node>),
}

impl Node {
    pub(super) fn new(share: &Share, plan: &Plan) -> Node {
        Node::of_class("", share, plan)
    }

    fn of_class(name: &str, share: &Share, plan: &Plan) -> Node {
        match share {
            Share::Flows(_) => {
                let choice = plan.choices.iter().find(|choice| choice.name == name).unwrap();
                let leaf = |n| Node::Leaf(usize::from(choice.first + n));
                match choice.count {
                    1 => leaf(0),
                    count => Node::Weighted((0..count).map(|n| (1, leaf(n))).collect()),
                }
            }
            Share::Weighted(classes) => Node::Weighted(
                classes
                    .iter()
                    .map(|c| (u128::from(c.weight), Node::of_class(&c.name, &c.share, plan)))
                    .collect(),
            ),
            Share::Priority(classes) => Node::Priority(
                classes.iter().map(|c| Node::of_class(&c.name, &c.share, plan)).collect(),
            ),
        }
    }

    /// Backlog below this node, where `left` is the backlog of each leaf.
    pub(super) fn backlog(&self, left: &[u128]) -> u128 {
        match self {
            Node::Leaf(leaf) => left[*leaf],
            Node::Weighted(children) => children.iter().map(|(_, c)| c.backlog(left)).sum(),
            Node::Priority(children) => children.iter().map(|c| c.backlog(left)).sum(),
        }
    }

    /// Serves as a fluid (GPS), event by event: until the next child is empty, all busy ones get
    /// service by weight, and a node below divides its part in turn. Returns what was served.
    pub(super) fn serve(&self, left: &mut [u128], service: u128) -> u128 {
        let service = service.min(self.backlog(left));
        match self {
            Node::Leaf(leaf) => left[*leaf] -= service,
            Node::Priority(children) => {
                let mut rest = service;
                for child in children {
                    rest -= child.serve(left, rest);
                }
            }
            Node::Weighted(children) => {
                let mut rest = service;
                while rest > 0 {
                    rest -= until_one_is_empty(children, left, rest);
                }
            }
        }
        service
    }

    /// The part of the whole that each of `count` leaves is guaranteed; all ranks count as equal.
    pub(super) fn guaranteed(&self, count: usize) -> Vec<f64> {
        let mut shares = vec![0.0; count];
        self.divide(1.0, &mut shares);
        shares
    }

    fn divide(&self, part: f64, shares: &mut [f64]) {
        match self {
            Node::Leaf(leaf) => shares[*leaf] = part,
            Node::Weighted(children) => {
                let sum: u128 = children.iter().map(|(weight, _)| weight).sum();
                for (weight, child) in children {
                    child.divide(part * *weight as f64 / sum as f64, shares);
                }
            }
            Node::Priority(children) => {
                children.iter().for_each(|c| c.divide(part / children.len() as f64, shares));
            }
        }
    }

    /// Serves byte by byte: every busy child gets its part of each byte, and what a child cannot
    /// use waits for the next byte. Returns what no child could use.
    pub(super) fn serve_bytewise(&self, left: &mut [f64], service: u64) -> f64 {
        let mut spare = 0.0;
        for _ in 0..service {
            spare = self.euler(left, 1.0 + spare);
        }
        spare
    }

    fn euler(&self, left: &mut [f64], amount: f64) -> f64 {
        match self {
            Node::Leaf(leaf) => {
                let used = amount.min(left[*leaf]);
                left[*leaf] -= used;
                amount - used
            }
            Node::Priority(children) => {
                children.iter().fold(amount, |rest, child| child.euler(left, rest))
            }
            Node::Weighted(children) => {
                let is_busy = |child: &Node| child.holds_any(left);
                let busy: Vec<bool> = children.iter().map(|(_, c)| is_busy(c)).collect();
                let each = || children.iter().zip(&busy).filter(|(_, busy)| **busy);
                let sum: u128 = each().map(|((weight, _), _)| weight).sum();
                if sum == 0 {
                    return amount;
                }
                let part = |weight: u128| amount * weight as f64 / sum as f64;
                each().map(|((weight, child), _)| child.euler(left, part(*weight))).sum()
            }
        }
    }

    fn holds_any(&self, left: &[f64]) -> bool {
        match self {
            Node::Leaf(leaf) => left[*leaf] > 0.0,
            Node::Weighted(children) => children.iter().any(|(_, c)| c.holds_any(left)),
            Node::Priority(children) => children.iter().any(|c| c.holds_any(left)),
        }
    }
}

/// Serves busy children by weight until one is empty or the service used up. Returns what that took.
fn until_one_is_empty(children: &[(u128, Node)], left: &mut [u128], service: u128) -> u128 {
    let backlogs: Vec<u128> = children.iter().map(|(_, child)| child.backlog(left)).collect();
    let busy = || children.iter().zip(&backlogs).filter(|(_, backlog)| **backlog > 0);
    let sum: u128 = busy().map(|((weight, _), _)| weight).sum();
    let cost = |(weight, backlog): (u128, u128)| backlog * sum / weight;
    let least = busy().map(|((weight, _), backlog)| cost((*weight, *backlog))).min().unwrap();
    let is_over = least <= service;
    let step = least.min(service);
    let mut used = 0;
    for ((weight, child), backlog) in busy() {
        let is_empty = is_over && cost((*weight, *backlog)) == least;
        let part = if is_empty { *backlog } else { step * weight / sum };
        used += child.serve(left, part.min(service - used));
    }
    // Too little service for every busy child to get some: the first child gets it.
    match used {
        0 => busy().next().map_or(service, |((_, child), _)| child.serve(left, service)),
        _ => used,
    }
}

/// A shaper's drop-tail queues with a fluid scheduler: the bytes of real packets wait in them.
#[derive(Clone, Debug)]
pub(super) struct FluidShaper {
    tree: Node,
    /// Size of each queue, bytes.
    limit: u64,
    /// 2⁻²⁴ bytes per nanosecond.
    rate: u64,
    latest: u64,
    pub(super) left: Vec<u128>,
}

/// A drop-tail queue's answer about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Yes,
    No,
    /// The packet fits or not by a few bytes: rounding decides.
    Barely,
}

impl FluidShaper {
    pub(super) fn new(tree: Node, plan: &Plan) -> FluidShaper {
        let left = vec![0; plan.leaves.len()];
        FluidShaper { tree, limit: plan.pace.limit.into(), rate: plan.pace.rate, latest: 0, left }
    }

    /// Serves the queues until now.
    pub(super) fn advance(&mut self, now: u64) {
        let service = (u128::from(self.rate) * u128::from(now - self.latest)) << (FINE_BITS - 24);
        self.tree.serve(&mut self.left, service);
        self.latest = now;
    }

    /// Whether a packet fits, with `slack` bytes for rounding.
    pub(super) fn fit(&self, leaf: usize, size: u64, slack: u64) -> Fit {
        let full = self.left[leaf] + fine(size);
        match (full + fine(slack) <= fine(self.limit), full > fine(self.limit + slack)) {
            (true, _) => Fit::Yes,
            (_, true) => Fit::No,
            _ => Fit::Barely,
        }
    }

    pub(super) fn accept(&mut self, leaf: usize, size: u64) {
        self.left[leaf] += fine(size);
    }
}

pub(super) fn fine(bytes: u64) -> u128 {
    u128::from(bytes) << FINE_BITS
}

pub(super) fn coarse(fine: u128) -> f64 {
    fine as f64 / 2f64.powi(FINE_BITS as i32)
}
