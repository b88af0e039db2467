//! Plans in the form that the kernel reads.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use fairweir_core::packet::{Side, Transport};
use fairweir_core::phantom::{self, Criterion, Signal};
use fairweir_core::policy::PortMatch;
use fairweir_core::units::{Bytes, Rate};
use ipnet::IpNet;

use super::abi::{self, CLASS_BUNDLE, CLASS_CLIENT, CLASS_ROOMS, KIND_BUCKET, KIND_PHANTOM};
use super::slots::SlotKind;

/// What a plan does with packets.
#[derive(Clone, Copy, Debug)]
pub enum Algorithm<'p> {
    /// Phantom queues with burst control (BC-PQP).
    Phantom(&'p phantom::Plan),
    /// As `Phantom`, with a bundle.
    Bundled(&'p phantom::Plan, &'p phantom::Bundle),
    /// A token bucket, without a policy.
    TokenBucket {
        /// The rate at which it is filled.
        rate: Rate,
        /// The volume that it can hold.
        burst: Bytes,
    },
}

/// A plan as the kernel reads it, and its subscribers' slots.
pub(super) struct Encoded {
    pub(super) plan: Box<abi::Plan>,
    pub(super) kind: SlotKind,
    /// The target of a bundle, to whose place `plan.aim` is to point.
    pub(super) aim: Option<Box<abi::Plan>>,
}

/// Numbers of shapes: plans with one number can use the same state. Never forgotten, since slots
/// outlive the plans that wrote them; equal in each process, since slots outlive processes, too.
#[derive(Debug, Default)]
pub(super) struct Shapes(HashMap<Vec<u8>, u32>);

impl Shapes {
    /// The shape of a plan is its kind and, node by node, its tree.
    fn number(&mut self, plan: &abi::Plan) -> u32 {
        let key = Shapes::key(plan);
        if let Some(known) = self.0.get(&key) {
            return *known;
        }
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let mut number = hasher.finish() as u32 % CLIENT_SHAPES;
        while number == 0 || self.0.values().any(|other| *other == number) {
            number = (number + 1) % CLIENT_SHAPES;
        }
        self.0.insert(key, number);
        number
    }

    /// The bytes that are equal for plans that can use the same state.
    pub(super) fn key(plan: &abi::Plan) -> Vec<u8> {
        let mut key = plan.kind.to_ne_bytes().to_vec();
        for inner in &plan.inners[..usize::from(plan.inner_count)] {
            key.extend(inner.weight.to_ne_bytes());
            key.extend([inner.is_priority, inner.parent, inner.child]);
        }
        for leaf in &plan.leaves[..usize::from(plan.leaf_count)] {
            key.extend(leaf.weight.to_ne_bytes());
            key.extend([leaf.parent, leaf.child, leaf.class_first, leaf.class_count]);
        }
        key.extend([plan.free, plan.stunt_first, plan.stunt_count]);
        key
    }
}

/// Shapes from this number on belong to clients' plans.
pub(super) const CLIENT_SHAPES: u32 = 1 << 31;

/// A plan in the form that the kernel reads.
pub(super) fn encode(algorithm: &Algorithm<'_>, shapes: &mut Shapes) -> Encoded {
    let mut encoded = match algorithm {
        Algorithm::Phantom(plan) => phantom(plan),
        Algorithm::Bundled(plan, bundle) => bundled(plan, bundle),
        Algorithm::TokenBucket { rate, burst } => bucket(*rate, *burst),
    };
    encoded.plan.shape = shapes.number(&encoded.plan);
    encoded
}

fn phantom(plan: &phantom::Plan) -> Encoded {
    let mut to = Box::new(abi::Plan::default());
    to.kind = KIND_PHANTOM;
    to.pace = pace(&plan.pace);
    to.window = plan.window;
    to.is_soft = u16::from(plan.signal == Signal::Soft);
    to.sent_shift = plan.sent_shift as u16;
    to.inner_count = plan.inners.len() as u16;
    to.leaf_count = plan.leaves.len() as u16;
    to.choice_default = plan.choice_default as u16;
    to.is_client = plan.is_for_clients.into();
    for (to, inner) in to.inners.iter_mut().zip(&plan.inners) {
        *to = abi::PlanInner {
            inverse: inner.inverse,
            weight: inner.weight,
            is_priority: inner.is_priority.into(),
            parent: inner.parent,
            child: inner.child,
            leaf_first: inner.leaf_first,
            leaf_count: inner.leaf_count,
            inner_first: inner.inner_first,
            inner_count: inner.inner_count,
            pad: [0; 7],
        };
    }
    for (to, leaf) in to.leaves.iter_mut().zip(&plan.leaves) {
        *to = abi::PlanLeaf {
            inverse: leaf.inverse,
            weight: leaf.weight,
            parent: leaf.parent,
            child: leaf.child,
            class_first: leaf.class_first,
            class_count: leaf.class_count,
            pad: [0; 2],
        };
    }
    let choices = plan.choices.iter().enumerate();
    let criteria = choices.flat_map(|(at, choice)| choice.matches.iter().map(move |one| (at, one)));
    for (to, (choice, one)) in to.criteria.iter_mut().zip(criteria.clone()) {
        *to = criterion(choice as u8, one);
    }
    to.criterion_count = criteria.count() as u16;
    for (to, choice) in to.choices.iter_mut().zip(&plan.choices) {
        *to = abi::Choice { first: choice.first, count: choice.count };
    }
    let fits = |room: &abi::ClassRoom| {
        room.leaves >= plan.leaves.len() && room.inners >= plan.inners.len()
    };
    let class = CLASS_ROOMS.iter().position(fits);
    let class = class.expect("invariant: a valid plan fits the largest class");
    let kind = match plan.is_for_clients {
        true => SlotKind { class: CLASS_CLIENT, is_tallied: true },
        false => SlotKind { class, is_tallied: plan.choices.len() > 1 },
    };
    Encoded { plan: to, kind, aim: None }
}

/// The plan of a client's classes; it has no shape yet.
pub(super) fn of_client(plan: &phantom::Plan) -> Box<abi::Plan> {
    phantom(plan).plan
}

fn bundled(plan: &phantom::Plan, bundle: &phantom::Bundle) -> Encoded {
    let mut encoded = phantom(plan);
    encoded.kind.class = CLASS_BUNDLE;
    let stunts = bundle.stunts();
    encoded.plan.free = bundle.free() as u8;
    encoded.plan.stunt_first = stunts.start as u8;
    encoded.plan.stunt_count = stunts.len() as u8;
    encoded.aim = Some(phantom(bundle.aim()).plan);
    encoded
}

/// A pace in the form that the kernel reads.
pub(super) fn pace(pace: &phantom::plan::Pace) -> abi::Pace {
    abi::Pace {
        rate: pace.rate,
        idle_after: pace.idle_after,
        window_bytes: pace.window_bytes,
        gate_cost: pace.gate_cost,
        gate_slack: pace.gate_slack,
        gate_more: pace.gate_more,
        gate_pause: pace.gate_pause,
        limit: pace.limit,
        spare_max: pace.spare_max,
    }
}

fn criterion(choice: u8, criterion: &Criterion) -> abi::Criterion {
    let mut to = abi::Criterion { choice, ..abi::Criterion::default() };
    match *criterion {
        Criterion::Dscp(dscp) => {
            to.kind = abi::MATCH_DSCP;
            to.first = dscp.into();
        }
        Criterion::Port(PortMatch { transport, side, first, last }) => {
            to.kind = match side {
                Side::Remote => abi::MATCH_PORT_REMOTE,
                Side::Local => abi::MATCH_PORT_LOCAL,
            };
            to.protocol = match transport {
                None => 0,
                Some(Transport::Tcp) => libc::IPPROTO_TCP as u8,
                Some(Transport::Udp) => libc::IPPROTO_UDP as u8,
            };
            (to.first, to.last) = (first, last);
        }
        Criterion::Ip(IpNet::V4(net)) => {
            to.kind = abi::MATCH_IP;
            to.mask[0] = net.netmask().to_bits();
            to.address[0] = net.addr().to_bits();
        }
        Criterion::Ip(IpNet::V6(net)) => {
            to.kind = abi::MATCH_IP;
            to.is_ip6 = 1;
            to.mask = words(net.netmask().to_bits());
            to.address = words(net.addr().to_bits());
        }
    }
    to
}

fn words(address: u128) -> [u32; 4] {
    [96, 64, 32, 0].map(|shift| (address >> shift) as u32)
}

fn bucket(rate: Rate, burst: Bytes) -> Encoded {
    let mut to = Box::new(abi::Plan::default());
    to.kind = KIND_BUCKET;
    // 2⁻²⁴ bytes per nanosecond, rounded to the nearest, and at least one.
    let units = ((u128::from(rate.as_bps()) << 24) + 4_000_000_000) / 8_000_000_000;
    let pace = &mut to.pace;
    pace.rate = (units as u64).max(1);
    pace.limit = u32::try_from(burst.as_u64()).unwrap_or(u32::MAX);
    pace.idle_after = (u64::from(pace.limit) << 24) / pace.rate + 1;
    to.choices[0] = abi::Choice { first: 0, count: 1 };
    Encoded { plan: to, kind: SlotKind { class: 0, is_tallied: false }, aim: None }
}
