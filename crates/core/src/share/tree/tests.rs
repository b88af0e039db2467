use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn weight(n: u32) -> Weight {
    Weight::new(n).unwrap()
}

fn kbit(demands: &[i64]) -> Vec<Option<Rate>> {
    demands.iter().map(|&d| u64::try_from(d).ok().map(Rate::kbit)).collect()
}

fn divide_kbit(tree: &Tree, capacity: u64, demands: &[i64], taken: &[u64]) -> Vec<u64> {
    let taken: Vec<Rate> = taken.iter().map(|&t| Rate::kbit(t)).collect();
    let claims = Claims { demands: &kbit(demands), taken: &taken };
    let parts = tree.divide(Rate::kbit(capacity), claims);
    parts.into_iter().map(|part| (part.as_bps() + 500) / 1_000).collect()
}

/// A television of weight 2 with a video group of weight 3 and a rest of weight 1, and a desk of weight 1.
fn home() -> Tree {
    let tv = vec![Node::Leaf(weight(3)), Node::Leaf(weight(1))];
    Tree::new(vec![Node::Branch(weight(2), tv), Node::Leaf(weight(1))])
}

#[test]
fn what_a_leaf_does_not_want_goes_first_to_its_siblings() {
    assert_eq!(divide_kbit(&home(), 12_000, &[-1, -1, -1], &[]), [6_000, 2_000, 4_000]);
    assert_eq!(divide_kbit(&home(), 12_000, &[1_000, -1, -1], &[]), [1_000, 7_000, 4_000]);
    assert_eq!(divide_kbit(&home(), 12_000, &[1_000, 2_000, -1], &[]), [1_000, 2_000, 9_000]);
    assert_eq!(divide_kbit(&home(), 12_000, &[-1, 0, 1_000], &[]), [11_000, 0, 1_000]);
}

#[test]
fn what_a_leaf_takes_is_missing_beside_it_first() {
    assert_eq!(divide_kbit(&home(), 12_000, &[-1, -1, -1], &[0, 5_000, 0]), [3_000, 0, 4_000]);
    // The leaf takes more than its device has: the others get the rest.
    assert_eq!(divide_kbit(&home(), 12_000, &[-1, -1, -1], &[0, 9_000, 0]), [0, 0, 3_000]);
    assert_eq!(divide_kbit(&home(), 12_000, &[-1, -1, -1], &[0, 0, 5_000]), [5_250, 1_750, 0]);
    assert_eq!(divide_kbit(&home(), 12_000, &[-1, -1, -1], &[0, 20_000, 0]), [0, 0, 0]);
}

#[test]
fn weights_of_leaves_stand_to_each_other_as_their_parts() {
    let numbers: Vec<u32> = home().weights().into_iter().map(Weight::as_u32).collect();
    assert_eq!(numbers, [10_000, 3_333, 6_667]);
    let flat = Tree::from(vec![weight(5), weight(1)]);
    assert_eq!(flat.weights(), [weight(5), weight(1)]);
    let most = vec![Node::Leaf(weight(Weight::MAX)); 256];
    let inner = Node::Branch(weight(Weight::MAX), most);
    let tree = Tree::new(vec![Node::Branch(weight(1), vec![inner])]);
    assert_eq!(tree.by_weight(Rate::mbit(256)), vec![Rate::mbit(1); 256]);
}

#[test]
#[should_panic(expected = "at most 3 levels")]
fn a_fourth_level_is_refused() {
    let leaf = Node::Leaf(Weight::ONE);
    let deep = (0..3).fold(leaf, |node, _| Node::Branch(Weight::ONE, vec![node]));
    Tree::new(vec![deep]);
}

fn nodes(depth: usize) -> BoxedStrategy<Vec<Node>> {
    let leaf = (1..=Weight::MAX).prop_map(|w| Node::Leaf(weight(w)));
    if depth == 1 {
        return vec(leaf, 1..5).boxed();
    }
    let branch = (1..=Weight::MAX, nodes(depth - 1)).prop_map(|(w, n)| Node::Branch(weight(w), n));
    vec(prop_oneof![leaf, branch], 1..5).boxed()
}

/// A tree, and a demand for each of its leaves.
fn claimed() -> impl Strategy<Value = (Vec<Node>, Vec<Option<Rate>>)> {
    let demand = prop_oneof![Just(None), (0..=50_000_000u64).prop_map(|d| Some(Rate::bps(d)))];
    nodes(DEPTH_MAX).prop_flat_map(move |nodes| {
        let leaves = nodes.iter().map(Node::leaves).sum::<usize>();
        (Just(nodes), vec(demand.clone(), leaves))
    })
}

fn sum(demands: &[Option<Rate>]) -> Option<Rate> {
    demands.iter().copied().sum()
}

proptest! {
    #[test]
    fn all_that_is_wanted_is_given((nodes, demands) in claimed(), capacity in 0..200_000_000u64) {
        let capacity = Rate::bps(capacity);
        let tree = Tree::new(nodes);
        let parts = tree.divide(capacity, Claims { demands: &demands, taken: &[] });
        let given: Rate = parts.iter().copied().sum();
        prop_assert_eq!(given, sum(&demands).map_or(capacity, |wanted| wanted.min(capacity)));
        for (part, demand) in parts.iter().zip(&demands) {
            prop_assert!(demand.is_none_or(|demand| *part <= demand));
        }
    }

    /// Whatever is beneath a node, the other nodes have the same.
    #[test]
    fn a_branch_has_what_one_leaf_would_have(
        (nodes, demands) in claimed(), capacity in 0..200_000_000u64,
    ) {
        let capacity = Rate::bps(capacity);
        let parts = Tree::new(nodes.clone())
            .divide(capacity, Claims { demands: &demands, taken: &[] });
        let mut at = 0;
        let (mut entries, mut sums) = (Vec::new(), Vec::new());
        for node in &nodes {
            let leaves = at..at + node.leaves();
            entries.push(Entry { weight: node.weight(), demand: sum(&demands[leaves.clone()]) });
            sums.push(parts[leaves.clone()].iter().copied().sum::<Rate>());
            at = leaves.end;
        }
        prop_assert_eq!(fair(capacity, &entries), sums);
    }

    #[test]
    fn without_branches_it_is_as_before(
        leaves in vec((1..=Weight::MAX, proptest::option::of(0..50_000_000u64)), 1..20),
        capacity in 0..200_000_000u64,
    ) {
        let capacity = Rate::bps(capacity);
        let entries: Vec<Entry> = leaves
            .iter()
            .map(|&(w, demand)| Entry { weight: weight(w), demand: demand.map(Rate::bps) })
            .collect();
        let demands: Vec<Option<Rate>> = entries.iter().map(|e| e.demand).collect();
        let tree = Tree::from(entries.iter().map(|e| e.weight).collect::<Vec<_>>());
        let parts = tree.divide(capacity, Claims { demands: &demands, taken: &[] });
        prop_assert_eq!(parts, fair(capacity, &entries));
    }

    /// Shares plus what is taken never sum to more than the capacity, unless more is taken anyway.
    #[test]
    fn takers_leave_the_rest(
        (nodes, demands) in claimed(), capacity in 0..200_000_000u64, seed in any::<u64>(),
    ) {
        let capacity = Rate::bps(capacity);
        let tree = Tree::new(nodes);
        let take = |i: usize| match seed.rotate_left(i as u32 * 7) % 4 {
            0 => Rate::bps(seed.rotate_left(i as u32 * 11) % 30_000_000),
            _ => Rate::ZERO,
        };
        let taken: Vec<Rate> = (0..tree.len()).map(take).collect();
        let parts = tree.divide(capacity, Claims { demands: &demands, taken: &taken });
        let all_taken: Rate = taken.iter().copied().sum();
        let given: Rate = parts.iter().copied().sum();
        prop_assert!(given <= capacity.saturating_sub(all_taken));
        for (part, taken) in parts.iter().zip(&taken) {
            prop_assert!(*taken == Rate::ZERO || *part == Rate::ZERO);
        }
    }

    /// Water-filling at each level by what is wanted under caps, implemented independently.
    #[test]
    fn caps_bound_nodes_and_the_others_have_the_rest(
        (nodes, demands, caps) in capped(), capacity in 0..200_000_000u64,
    ) {
        let capacity = Rate::bps(capacity);
        let tree = Tree::new(nodes.clone()).with_caps(caps.clone());
        let parts = tree.divide(capacity, Claims { demands: &demands, taken: &[] });
        prop_assert_eq!(&parts, &filled(capacity, &nodes, 0, (&demands, &caps)));
        for (leaf, part) in parts.iter().enumerate() {
            prop_assert!(demands[leaf].is_none_or(|demand| *part <= demand));
            prop_assert!(tree.max(leaf).is_none_or(|max| *part <= max));
        }
        for Cap { leaves, max } in &caps {
            prop_assert!(parts[leaves.clone()].iter().copied().sum::<Rate>() <= *max);
        }
    }

    /// Caps change a part only if a leaf is reported as capped, and a capped leaf is under a cap that
    /// is used up.
    #[test]
    fn capped_are_those_that_a_cap_costs_something(
        (nodes, demands, caps) in capped(), capacity in 0..200_000_000u64,
    ) {
        let capacity = Rate::bps(capacity);
        let free = Tree::new(nodes);
        let tree = free.clone().with_caps(caps.clone());
        let claims = Claims { demands: &demands, taken: &[] };
        let parts = tree.divide(capacity, claims);
        let capped = tree.capped(&demands, &parts);
        prop_assert!(capped.contains(&true) || parts == free.divide(capacity, claims));
        for leaf in (0..capped.len()).filter(|&leaf| capped[leaf]) {
            let is_full = |cap: &&Cap| {
                cap.leaves.contains(&leaf)
                    && parts[cap.leaves.clone()].iter().copied().sum::<Rate>() == cap.max
            };
            prop_assert!(caps.iter().any(|cap| is_full(&cap)));
        }
    }
}

/// A tree, a demand for each of its leaves, and caps of some nodes.
fn capped() -> impl Strategy<Value = (Vec<Node>, Vec<Option<Rate>>, Vec<Cap>)> {
    claimed().prop_flat_map(|(nodes, demands)| {
        let mut all = Vec::new();
        add_leaves(&nodes, 0, &mut all);
        let max = proptest::option::of((0..60_000_000u64).prop_map(Rate::bps));
        let caps = vec(max, all.len()).prop_map(move |maxima| {
            let caps = all.iter().zip(maxima);
            caps.filter_map(|(leaves, max)| Some(Cap { leaves: leaves.clone(), max: max? }))
                .collect()
        });
        (Just(nodes), Just(demands), caps)
    })
}

/// The leaves of each node.
fn add_leaves(nodes: &[Node], mut first: usize, all: &mut Vec<std::ops::Range<usize>>) {
    for node in nodes {
        all.push(first..first + node.leaves());
        if let Node::Branch(_, beneath) = node {
            add_leaves(beneath, first, all);
        }
        first += node.leaves();
    }
}

type Limited = (Vec<Node>, Vec<Option<Rate>>, [Vec<(Range<usize>, Rate)>; 2]);

/// A tree with demands, caps and floors.
fn limited() -> impl Strategy<Value = Limited> {
    claimed().prop_flat_map(|(nodes, demands)| {
        let mut all = Vec::new();
        add_leaves(&nodes, 0, &mut all);
        let limits = |most: u64| {
            let all = all.clone();
            let limit = proptest::option::weighted(0.4, (0..most).prop_map(Rate::bps));
            vec(limit, all.len()).prop_map(move |limits| {
                let limits = all.iter().zip(limits);
                limits.filter_map(|(leaves, limit)| Some((leaves.clone(), limit?))).collect()
            })
        };
        let both = (limits(60_000_000), limits(40_000_000));
        (Just(nodes), Just(demands), both.prop_map(|(caps, floors)| [caps, floors]))
    })
}

proptest! {
    /// Water-filling in exact fractions, to less than 1 bit/s per level.
    #[test]
    fn floors_and_caps_are_filled_exactly(
        (nodes, demands, [caps, floors]) in limited(), capacity in 0..200_000_000u64,
    ) {
        let tree = Tree::new(nodes.clone())
            .with_caps(caps.iter().map(|(l, max)| Cap { leaves: l.clone(), max: *max }).collect())
            .with_floors(floors.iter().map(|(l, min)| Floor { leaves: l.clone(), min: *min }).collect());
        let parts = tree.divide(Rate::bps(capacity), Claims { demands: &demands, taken: &[] });
        let exact = oracle::divided(capacity, &nodes, &demands, [&caps, &floors]);
        for (leaf, (part, exact)) in parts.iter().zip(&exact).enumerate() {
            let levels = oracle::LEVELS as u64;
            prop_assert!(exact.is_within(part.as_bps(), levels), "{leaf}: {part} but {exact:?}");
            prop_assert!(demands[leaf].is_none_or(|demand| *part <= demand));
        }
        for (leaves, max) in &caps {
            prop_assert!(parts[leaves.clone()].iter().copied().sum::<Rate>() <= *max);
        }
        // Nothing is left over while a leaf wants it.
        let given: Rate = parts.iter().copied().sum();
        let caps: Vec<Cap> = caps.into_iter().map(|(leaves, max)| Cap { leaves, max }).collect();
        let mut first = 0;
        let wanted = nodes.iter().map(|node| {
            first += node.leaves();
            wanted(node, first - node.leaves(), (&demands, &caps))
        });
        let wanted: Option<Rate> = wanted.sum();
        prop_assert_eq!(given, wanted.unwrap_or(Rate::MAX).min(Rate::bps(capacity)));
    }
}

#[test]
fn floors_hold_against_any_weight() {
    // The television's rest has a floor above its part, at the cost of the video.
    let floor = |leaves, kbit| Floor { leaves, min: Rate::kbit(kbit) };
    let tree = home().with_floors(vec![floor(1..2, 5_000)]);
    assert_eq!(divide_kbit(&tree, 12_000, &[-1, -1, -1], &[]), [3_000, 5_000, 4_000]);
    assert_eq!(divide_kbit(&tree, 12_000, &[-1, 1_000, -1], &[]), [7_000, 1_000, 4_000]);
    // A floor beneath a device counts against all other devices.
    let tree = home().with_floors(vec![floor(1..2, 9_000)]);
    assert_eq!(divide_kbit(&tree, 12_000, &[-1, -1, -1], &[]), [0, 9_000, 3_000]);
    let tree = home().with_floors(vec![floor(0..2, 9_000), floor(2..3, 6_000)]);
    assert_eq!(divide_kbit(&tree, 12_000, &[-1, -1, -1], &[]), [5_400, 1_800, 4_800]);
}

/// The same division, implemented independently with fractions.
mod oracle {
    use num_bigint::BigInt;

    use super::*;

    pub(super) const LEVELS: usize = DEPTH_MAX;

    /// Numerator and denominator; the denominator is positive.
    #[derive(Clone, Debug)]
    pub(super) struct Exact(BigInt, BigInt);

    fn whole(n: u64) -> Exact {
        Exact(n.into(), 1.into())
    }

    impl Exact {
        fn plus(&self, other: &Exact) -> Exact {
            Exact(&self.0 * &other.1 + &other.0 * &self.1, &self.1 * &other.1).reduced()
        }

        fn minus(&self, other: &Exact) -> Exact {
            self.plus(&Exact(-&other.0, other.1.clone()))
        }

        fn times(&self, n: &Exact, d: &Exact) -> Exact {
            Exact(&self.0 * &n.0 * &d.1, &self.1 * &n.1 * &d.0).reduced()
        }

        fn reduced(self) -> Exact {
            let (mut a, mut b) = (self.0.magnitude().clone(), self.1.magnitude().clone());
            while b != 0u8.into() {
                (a, b) = (b.clone(), a % b);
            }
            let gcd = BigInt::from(a);
            Exact(self.0 / &gcd, self.1 / gcd)
        }

        fn is_below(&self, other: &Exact) -> bool {
            &self.0 * &other.1 < &other.0 * &self.1
        }

        fn min(&self, other: &Exact) -> Exact {
            if other.is_below(self) { other.clone() } else { self.clone() }
        }

        fn max(&self, other: &Exact) -> Exact {
            if self.is_below(other) { other.clone() } else { self.clone() }
        }

        pub(super) fn is_within(&self, n: u64, of: u64) -> bool {
            let off = self.minus(&whole(n));
            off.is_below(&whole(of)) && whole(0).minus(&off).is_below(&whole(of))
        }
    }

    fn total<'e>(all: impl IntoIterator<Item = &'e Exact>) -> Exact {
        all.into_iter().fold(whole(0), |sum, e| sum.plus(e))
    }

    /// The range of one node's part: from its floor to what it wants; unlimited if it wants all.
    struct Want {
        weight: Exact,
        least: Exact,
        most: Option<Exact>,
    }

    /// The parts of all nodes at the water level `level`.
    fn at(level: &Exact, wants: &[Want]) -> Vec<Exact> {
        let part = |w: &Want| {
            let part = level.times(&w.weight, &whole(1)).max(&w.least);
            w.most.as_ref().map_or(part.clone(), |most| part.min(most))
        };
        wants.iter().map(part).collect()
    }

    fn fill(capacity: &Exact, wants: &[Want]) -> Vec<Exact> {
        let least = total(wants.iter().map(|w| &w.least));
        if capacity.is_below(&least) {
            return wants.iter().map(|w| capacity.times(&w.least, &least)).collect();
        }
        // The levels at which a part begins or stops rising, and the last level that does not exceed the capacity.
        let mut bends = vec![whole(0)];
        for w in wants {
            bends.push(w.least.times(&whole(1), &w.weight));
            bends.extend(w.most.as_ref().map(|most| most.times(&whole(1), &w.weight)));
        }
        let fits = |level: &&Exact| !capacity.is_below(&total(&at(level, wants)));
        let level = bends.iter().filter(fits).fold(whole(0), |a, b| a.max(b));
        let parts = at(&level, wants);
        let rises = |w: &&Want| {
            let part = level.times(&w.weight, &whole(1));
            !part.is_below(&w.least) && w.most.as_ref().is_none_or(|most| part.is_below(most))
        };
        let weights = total(wants.iter().filter(rises).map(|w| &w.weight));
        if weights.0 == 0.into() {
            return parts;
        }
        let left = capacity.minus(&total(&parts));
        at(&level.plus(&left.times(&whole(1), &weights)), wants)
    }

    struct Filling<'a> {
        demands: Vec<Option<Exact>>,
        caps: Vec<(&'a Range<usize>, Exact)>,
        floors: Vec<(&'a Range<usize>, Exact)>,
    }

    impl Filling<'_> {
        fn want(&self, node: &Node, first: usize) -> Want {
            let leaves = first..first + node.leaves();
            let (mut most, mut least) = (Some(whole(0)), whole(0));
            match node {
                Node::Leaf(_) => most.clone_from(&self.demands[first]),
                Node::Branch(_, nodes) => {
                    for (node, at) in ranges(nodes) {
                        let inner = self.want(node, first + at.start);
                        most = most.zip(inner.most).map(|(a, b)| a.plus(&b));
                        least = least.plus(&inner.least);
                    }
                }
            }
            for (_, cap) in self.caps.iter().filter(|(of, _)| **of == leaves) {
                most = Some(most.map_or(cap.clone(), |most| most.min(cap)));
            }
            for (_, floor) in self.floors.iter().filter(|(of, _)| **of == leaves) {
                least = least.max(floor);
            }
            let least = most.as_ref().map_or(least.clone(), |most| least.min(most));
            Want { weight: whole(node.weight().as_u32().into()), least, most }
        }

        fn level(&self, capacity: &Exact, nodes: &[Node], first: usize, parts: &mut Vec<Exact>) {
            let wants: Vec<Want> =
                ranges(nodes).map(|(node, at)| self.want(node, first + at.start)).collect();
            for ((node, at), part) in ranges(nodes).zip(fill(capacity, &wants)) {
                match node {
                    Node::Leaf(_) => parts.push(part),
                    Node::Branch(_, nodes) => self.level(&part, nodes, first + at.start, parts),
                }
            }
        }
    }

    pub(super) fn divided(
        capacity: u64,
        nodes: &[Node],
        demands: &[Option<Rate>],
        [caps, floors]: [&[(Range<usize>, Rate)]; 2],
    ) -> Vec<Exact> {
        let exact = |rate: Rate| whole(rate.as_bps());
        let mut parts = Vec::new();
        let filling = Filling {
            demands: demands.iter().map(|demand| demand.map(exact)).collect(),
            caps: caps.iter().map(|(of, max)| (of, exact(*max))).collect(),
            floors: floors.iter().map(|(of, min)| (of, exact(*min))).collect(),
        };
        filling.level(&whole(capacity), nodes, 0, &mut parts);
        parts
    }
}

type Wanted<'a> = (&'a [Option<Rate>], &'a [Cap]);

fn wanted(node: &Node, first: usize, (demands, caps): Wanted<'_>) -> Option<Rate> {
    let mut wanted = match node {
        Node::Leaf(_) => demands[first],
        Node::Branch(_, nodes) => {
            let mut next = first;
            let of = |node: &Node| {
                next += node.leaves();
                wanted(node, next - node.leaves(), (demands, caps))
            };
            nodes.iter().map(of).sum()
        }
    };
    for cap in caps.iter().filter(|cap| cap.leaves == (first..first + node.leaves())) {
        wanted = Some(wanted.unwrap_or(cap.max).min(cap.max));
    }
    wanted
}

fn filled(capacity: Rate, nodes: &[Node], first: usize, of: Wanted<'_>) -> Vec<Rate> {
    let mut at = first;
    let mut entries = Vec::new();
    for node in nodes {
        entries.push(Entry { weight: node.weight(), demand: wanted(node, at, of) });
        at += node.leaves();
    }
    let mut at = first;
    let mut parts = Vec::new();
    for (node, share) in nodes.iter().zip(fair(capacity, &entries)) {
        match node {
            Node::Leaf(_) => parts.push(share),
            Node::Branch(_, nodes) => parts.extend(filled(share, nodes, at, of)),
        }
        at += node.leaves();
    }
    parts
}
