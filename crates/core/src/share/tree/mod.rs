//! Division by a tree: each level divides its capacity, and each part is divided among the nodes beneath it.
//!
//! Problem: a device has a weight among the devices, and its groups have weights within the device. Capacity
//! that one group does not want goes to the other groups of its device, and only what the device as a whole
//! does not want goes to other devices. Method: [`fair`] at each node, from the top: a branch wants the sum
//! of what its leaves want, and its part is the capacity that is divided beneath it.
//!
//! Terms: a *leaf* is what is measured and enforced; a *branch* has leaves or branches beneath it.
//! Leaves are numbered depth first. What a leaf *takes* does not react to its share, so it is not divided.
//! A *cap* bounds the part of a node: beyond it the node wants nothing, and the others divide the rest.
//! A *floor* is the least part of a node that wants that much; what it does not want, the others get. A
//! branch gets at least the sum of the floors beneath it. Floors that together exceed the capacity are
//! scaled in proportion.
//!
//! Properties, all tested: without takers the parts sum to min(capacity, Σ demands) exactly; no part is
//! above its demand, and no node above its cap; without floors the leaves of a branch
//! together have what the branch would have as one leaf with their demand, so that nodes beneath a
//! branch do not affect the other branches; a tree without branches divides as [`fair`] does.

use std::ops::Range;

use super::{Entry, Weight, fair, fair_above};
use crate::units::Rate;

/// The most levels of a tree: a device, a group, and a group within it.
pub const DEPTH_MAX: usize = 3;

/// A leaf or a branch, with its weight among its siblings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A leaf, which is measured and enforced.
    Leaf(Weight),
    /// A branch with the nodes beneath it; not empty.
    Branch(Weight, Vec<Node>),
}

/// The weights of leaves, and of the branches above them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: Vec<Node>,
    /// Each leaf's part of the whole by weight alone, as a fraction.
    fractions: Vec<(u64, u64)>,
    caps: Vec<Cap>,
    floors: Vec<Floor>,
}

/// An upper limit of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cap {
    /// The leaves of the node.
    pub leaves: Range<usize>,
    /// The highest rate that they have together.
    pub max: Rate,
}

/// A lower limit of a node that wants that much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The leaves of the node.
    pub leaves: Range<usize>,
    /// The lowest rate that they have together.
    pub min: Rate,
}

/// The rates that the leaves of a tree would use.
#[derive(Clone, Copy, Debug)]
pub struct Claims<'a> {
    /// Each leaf's demand; `None` means unlimited. Ignored for a leaf that takes.
    pub demands: &'a [Option<Rate>],
    /// The rate that each leaf takes whatever it is given; zero for leaves that obey, and empty if all do.
    pub taken: &'a [Rate],
}

impl Tree {
    /// A tree of these nodes.
    ///
    /// # Panics
    /// If a branch is empty, or there are more than [`DEPTH_MAX`] levels.
    pub fn new(nodes: Vec<Node>) -> Tree {
        let mut fractions = Vec::new();
        add_fractions(&nodes, (1, 1), DEPTH_MAX, &mut fractions);
        Tree { nodes, fractions, ..Tree::default() }
    }

    /// The same tree with these caps and no others.
    ///
    /// # Panics
    /// If the leaves of a cap are not those of a node.
    #[must_use]
    pub fn with_caps(self, caps: Vec<Cap>) -> Tree {
        let is_node = |cap: &Cap| is_of_node(&self.nodes, 0, &cap.leaves);
        assert!(caps.iter().all(is_node), "a cap is of the leaves of a node");
        Tree { caps, ..self }
    }

    /// The same tree with these floors and no others.
    ///
    /// # Panics
    /// If the leaves of a floor are not those of a node.
    #[must_use]
    pub fn with_floors(self, floors: Vec<Floor>) -> Tree {
        let is_node = |floor: &Floor| is_of_node(&self.nodes, 0, &floor.leaves);
        assert!(floors.iter().all(is_node), "a floor is of the leaves of a node");
        Tree { floors, ..self }
    }

    /// The same tree without caps and floors, since these are rates of one direction.
    #[must_use]
    pub fn without_rates(self) -> Tree {
        self.with_caps(Vec::new()).with_floors(Vec::new())
    }

    /// Whether only weights decide.
    pub fn is_by_weight(&self) -> bool {
        self.caps.is_empty() && self.floors.is_empty()
    }

    /// The floor of the leaf itself.
    pub fn min(&self, leaf: usize) -> Rate {
        let own = self.floors.iter().filter(|floor| floor.leaves == (leaf..leaf + 1));
        own.map(|floor| floor.min).max().unwrap_or(Rate::ZERO)
    }

    /// Whether any node has a cap.
    pub fn has_caps(&self) -> bool {
        !self.caps.is_empty()
    }

    /// Whether any node has a floor.
    pub fn has_floors(&self) -> bool {
        !self.floors.is_empty()
    }

    /// The lowest cap of the leaf and the nodes above it.
    pub fn max(&self, leaf: usize) -> Option<Rate> {
        self.caps.iter().filter(|cap| cap.leaves.contains(&leaf)).map(|cap| cap.max).min()
    }

    /// Which leaves would get more than their `parts` if there were no caps.
    pub fn capped(&self, demands: &[Option<Rate>], parts: &[Rate]) -> Vec<bool> {
        let mut capped = vec![false; self.len()];
        for Cap { leaves, max } in &self.caps {
            let has: Rate = parts[leaves.clone()].iter().copied().sum();
            for leaf in leaves.clone().filter(|_| has >= *max) {
                capped[leaf] |= demands[leaf].is_none_or(|demand| demand > parts[leaf]);
            }
        }
        capped
    }

    /// The nodes of the first level.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The number of leaves.
    pub fn len(&self) -> usize {
        self.fractions.len()
    }

    /// Whether there are no leaves.
    pub fn is_empty(&self) -> bool {
        self.fractions.is_empty()
    }

    /// Weights with the same ratios as the parts of the leaves by weight alone: without branches the leaves'
    /// own weights, otherwise exact to one part in [`Weight::MAX`] of the largest.
    pub fn weights(&self) -> Vec<Weight> {
        if self.nodes.iter().all(|node| matches!(node, Node::Leaf(_))) {
            return self.nodes.iter().map(Node::weight).collect();
        }
        let part = |&(n, d): &(u64, u64)| n as f64 / d as f64;
        let largest = self.fractions.iter().map(part).fold(f64::MIN_POSITIVE, f64::max);
        let weight = |fraction: &(u64, u64)| {
            let scaled = (part(fraction) / largest * f64::from(Weight::MAX)).round() as u32;
            Weight::new(scaled.clamp(1, Weight::MAX)).unwrap_or(Weight::ONE)
        };
        self.fractions.iter().map(weight).collect()
    }

    /// Each leaf's part of `capacity` by weight alone, rounded down.
    pub fn by_weight(&self, capacity: Rate) -> Vec<Rate> {
        self.fractions.iter().map(|&(n, d)| capacity.scale(n, d)).collect()
    }

    /// Divides `capacity` among the leaves; the rate that a leaf takes does not count towards its share.
    ///
    /// The rate that a leaf takes is first subtracted from what its siblings have. If a branch takes more than
    /// its part, the others divide the rest.
    ///
    /// # Panics
    /// If the numbers of demands and leaves differ.
    pub fn divide(&self, capacity: Rate, claims: Claims<'_>) -> Vec<Rate> {
        assert_eq!(claims.demands.len(), self.len(), "each leaf has a demand");
        assert!(claims.taken.is_empty() || claims.taken.len() == self.len(), "or none takes");
        let limits = Limits { caps: &self.caps, floors: &self.floors };
        let mut parts = vec![Rate::ZERO; self.len()];
        divide(capacity, &self.nodes, Level { claims, limits, first: 0 }, &mut parts);
        parts
    }
}

impl From<Vec<Weight>> for Tree {
    fn from(weights: Vec<Weight>) -> Tree {
        Tree::new(weights.into_iter().map(Node::Leaf).collect())
    }
}

impl Node {
    /// The weight among its siblings.
    pub fn weight(&self) -> Weight {
        match self {
            Node::Leaf(weight) | Node::Branch(weight, _) => *weight,
        }
    }

    fn leaves(&self) -> usize {
        match self {
            Node::Leaf(_) => 1,
            Node::Branch(_, nodes) => nodes.iter().map(Node::leaves).sum(),
        }
    }
}

/// The caps and floors of nodes.
#[derive(Clone, Copy)]
struct Limits<'a> {
    caps: &'a [Cap],
    floors: &'a [Floor],
}

/// Consecutive leaves; `first` is the number of the first of them in the tree.
#[derive(Clone, Copy)]
struct Level<'a> {
    claims: Claims<'a>,
    limits: Limits<'a>,
    first: usize,
}

impl<'a> Level<'a> {
    fn taken(&self) -> Rate {
        self.claims.taken.iter().copied().sum()
    }

    /// What `node` wants, including what its leaves, which are these, take.
    fn demand(&self, node: &Node) -> Option<Rate> {
        let wanted = match node {
            Node::Leaf(_) => {
                let taken = self.claims.taken.first().copied();
                match taken.filter(|&taken| taken > Rate::ZERO) {
                    Some(taken) => return Some(taken),
                    None => self.claims.demands[0],
                }
            }
            Node::Branch(_, nodes) => {
                ranges(nodes).map(|(node, at)| self.of(at).demand(node)).sum::<Option<Rate>>()
            }
        };
        let leaves = self.leaves();
        let own = self.limits.caps.iter().filter(|cap| cap.leaves == leaves);
        own.fold(wanted, |wanted, cap| Some(wanted.map_or(cap.max, |wanted| wanted.min(cap.max))))
    }

    /// The floor of `node`, whose leaves are these.
    fn floor(&self, node: &Node) -> Rate {
        let leaves = self.leaves();
        let own = self.limits.floors.iter().filter(|floor| floor.leaves == leaves);
        let own = own.map(|floor| floor.min).max().unwrap_or(Rate::ZERO);
        let beneath = match node {
            Node::Leaf(_) => Rate::ZERO,
            Node::Branch(_, nodes) => ranges(nodes).map(|(node, at)| self.of(at).floor(node)).sum(),
        };
        let floor = own.max(beneath);
        self.demand(node).map_or(floor, |demand| demand.min(floor))
    }

    fn leaves(&self) -> Range<usize> {
        self.first..self.first + self.claims.demands.len()
    }

    fn of(self, leaves: Range<usize>) -> Level<'a> {
        let Claims { demands, taken } = self.claims;
        let taken = if taken.is_empty() { taken } else { &taken[leaves.clone()] };
        let first = self.first + leaves.start;
        Level { claims: Claims { demands: &demands[leaves], taken }, first, ..self }
    }
}

/// Whether `nodes`, or a node beneath them, has exactly these leaves; the first leaf of `nodes` has the number `first`.
fn is_of_node(nodes: &[Node], first: usize, leaves: &Range<usize>) -> bool {
    ranges(nodes).any(|(node, at)| {
        let at = first + at.start..first + at.end;
        let is_beneath = match node {
            Node::Leaf(_) => false,
            Node::Branch(_, nodes) => is_of_node(nodes, at.start, leaves),
        };
        at == *leaves || is_beneath
    })
}

/// The nodes of a level, each with its leaves.
fn ranges(nodes: &[Node]) -> impl Iterator<Item = (&Node, Range<usize>)> {
    nodes.iter().scan(0, |next, node| {
        let first = *next;
        *next += node.leaves();
        Some((node, first..*next))
    })
}

/// The product of the parts from the top to each leaf. With [`Weight::MAX`], 256 leaves and three levels,
/// a denominator is below 2⁶⁴.
fn add_fractions(nodes: &[Node], above: (u64, u64), levels: usize, all: &mut Vec<(u64, u64)>) {
    assert!(levels > 0, "a tree has at most {DEPTH_MAX} levels");
    let sum: u64 = nodes.iter().map(|node| u64::from(node.weight().as_u32())).sum();
    for node in nodes {
        let own = (above.0 * u64::from(node.weight().as_u32()), above.1 * sum);
        match node {
            Node::Leaf(_) => all.push(own),
            Node::Branch(_, nodes) => {
                assert!(!nodes.is_empty(), "a branch has something beneath");
                add_fractions(nodes, own, levels - 1, all);
            }
        }
    }
}

fn divide(capacity: Rate, nodes: &[Node], level: Level<'_>, parts: &mut [Rate]) {
    let beneath: Vec<(&Node, Range<usize>)> = ranges(nodes).collect();
    // Leaves that take have no share; nor does a branch that takes more than its part.
    let taken: Vec<Rate> = beneath.iter().map(|(_, at)| level.of(at.clone()).taken()).collect();
    let mut is_out: Vec<bool> = beneath
        .iter()
        .zip(&taken)
        .map(|((node, _), &taken)| matches!(node, Node::Leaf(_)) && taken > Rate::ZERO)
        .collect();
    let shares = loop {
        let out: Rate = taken.iter().zip(&is_out).filter(|(_, out)| **out).map(|(t, _)| *t).sum();
        let entry = |((node, at), &is_out): (&(&Node, Range<usize>), &bool)| Entry {
            weight: node.weight(),
            demand: if is_out { Some(Rate::ZERO) } else { level.of(at.clone()).demand(node) },
        };
        let entries: Vec<Entry> = beneath.iter().zip(&is_out).map(entry).collect();
        let left = capacity.saturating_sub(out);
        let shares = if level.limits.floors.is_empty() {
            fair(left, &entries)
        } else {
            let floor = |((node, at), &is_out): (&(&Node, Range<usize>), &bool)| match is_out {
                true => Rate::ZERO,
                false => level.of(at.clone()).floor(node),
            };
            let floors: Vec<Rate> = beneath.iter().zip(&is_out).map(floor).collect();
            fair_above(left, &entries, &floors)
        };
        let exceeds = |i: &usize| !is_out[*i] && taken[*i] > shares[*i];
        match (0..nodes.len()).find(exceeds) {
            Some(i) => is_out[i] = true,
            None => break shares,
        }
    };
    for ((node, at), share) in beneath.into_iter().zip(shares) {
        match node {
            Node::Leaf(_) => parts[at.start] = share,
            Node::Branch(_, nodes) => divide(share, nodes, level.of(at.clone()), &mut parts[at]),
        }
    }
}

#[cfg(test)]
mod tests;
