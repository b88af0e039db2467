//! What the policer and user space say to each other: `bpf/police_abi.h`, field by field.

use std::mem::size_of;

use crate::bpf::abi::Plain;
use crate::bpf::header;

/// `struct police_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) plan: u32,
    pub(crate) slot: u32,
}

/// `struct police_prefixes`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prefixes {
    pub(crate) count4: u32,
    pub(crate) count6: u32,
}

/// `struct police_criterion`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Criterion {
    pub(crate) kind: u8,
    pub(crate) choice: u8,
    pub(crate) protocol: u8,
    pub(crate) is_ip6: u8,
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) mask: [u32; 4],
    pub(crate) address: [u32; 4],
}

/// `struct police_choice`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) first: u8,
    pub(crate) count: u8,
}

/// `struct police_plan_inner`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlanInner {
    pub(crate) inverse: u64,
    pub(crate) weight: u16,
    pub(crate) is_priority: u8,
    pub(crate) parent: u8,
    pub(crate) child: u8,
    pub(crate) leaf_first: u8,
    pub(crate) leaf_count: u8,
    pub(crate) inner_first: u8,
    pub(crate) inner_count: u8,
    pub(crate) pad: [u8; 7],
}

/// `struct police_plan_leaf`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PlanLeaf {
    pub(crate) inverse: u64,
    pub(crate) weight: u16,
    pub(crate) parent: u8,
    pub(crate) child: u8,
    pub(crate) class_first: u8,
    pub(crate) class_count: u8,
    pub(crate) pad: [u8; 2],
}

/// `struct police_pace`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) rate: u64,
    pub(crate) idle_after: u64,
    pub(crate) window_bytes: u64,
    pub(crate) gate_cost: u64,
    pub(crate) gate_slack: u64,
    pub(crate) gate_more: u64,
    pub(crate) gate_pause: u64,
    pub(crate) limit: u32,
    pub(crate) spare_max: i32,
}

/// `struct police_member`. It is written and read word by word.
#[repr(C)]
#[allow(dead_code, reason = "only where its fields are is used")]
pub(crate) struct Member {
    pub(crate) pace: Pace,
    pub(crate) segment: u64,
    pub(crate) cost: u64,
    pub(crate) slack: u64,
    pub(crate) pad: [u64; 5],
    pub(crate) at: u64,
    pub(crate) passed: u64,
    pub(crate) refused: u64,
    pub(crate) pad2: [u64; 5],
}

/// `struct police_segment`, as above.
#[repr(C)]
#[allow(dead_code, reason = "only where its fields are is used")]
pub(crate) struct Segment {
    pub(crate) cost: u64,
    pub(crate) slack: u64,
    pub(crate) until: u64,
    pub(crate) pad: [u64; 5],
    pub(crate) at: u64,
    pub(crate) pad2: [u64; 7],
}

/// `struct police_plan`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) pace: Pace,
    pub(crate) kind: u32,
    pub(crate) shape: u32,
    pub(crate) window: u64,
    pub(crate) is_soft: u32,
    pub(crate) inner_count: u16,
    pub(crate) leaf_count: u16,
    pub(crate) criterion_count: u16,
    pub(crate) choice_default: u16,
    pub(crate) zero: u32,
    pub(crate) aim: u32,
    pub(crate) free: u8,
    pub(crate) stunt_first: u8,
    pub(crate) stunt_count: u8,
    pub(crate) pad: u8,
    pub(crate) inners: [PlanInner; INNERS_MAX],
    pub(crate) leaves: [PlanLeaf; LEAVES_MAX],
    pub(crate) choices: [Choice; LEAVES_MAX],
    pub(crate) criteria: [Criterion; CRITERIA_MAX],
}

/// `struct police_tally`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) dropped: u32,
    pub(crate) marked: u32,
}

/// `struct police_totals`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) passed_bytes: u64,
    pub(crate) passed_packets: u64,
    pub(crate) dropped_bytes: u64,
    pub(crate) dropped_packets: u64,
    pub(crate) marked_packets: u64,
    pub(crate) delegated_bytes: u64,
    pub(crate) delegated_packets: u64,
    pub(crate) refused_packets: u64,
}

/// The header before the state in each slot.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotHeader {
    pub(crate) lock: u32,
    pub(crate) shape: u32,
    pub(crate) passed: u64,
    pub(crate) dropped: u32,
    pub(crate) marked: u32,
}

/// The constants of a program, `settings`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) is_upload: u32,
    pub(crate) has_ethernet: u32,
    pub(crate) overhead: i32,
    pub(crate) is_trial: u32,
    pub(crate) classes: u32,
}

/// `struct bench`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bench {
    pub(crate) turns: u32,
    pub(crate) subscribers: u32,
    pub(crate) random: u64,
}

// SAFETY: numbers of fixed width, in an order that leaves no padding; the sizes are asserted.
unsafe impl Plain for Entry {}
// SAFETY: as above.
unsafe impl Plain for Prefixes {}
// SAFETY: as above; so are the arrays' elements.
unsafe impl Plain for Plan {}
// SAFETY: as above.
unsafe impl Plain for Pace {}
// SAFETY: as above.
unsafe impl Plain for Totals {}
// SAFETY: as above.
unsafe impl Plain for Tally {}
// SAFETY: as above.
unsafe impl Plain for SlotHeader {}
// SAFETY: as above.
unsafe impl Plain for Settings {}
// SAFETY: as above.
unsafe impl Plain for Bench {}

const _: () = {
    assert!(size_of::<Entry>() as u64 == header::SIZE_OF_POLICE_ENTRY);
    assert!(size_of::<Prefixes>() as u64 == header::SIZE_OF_POLICE_PREFIXES);
    assert!(size_of::<Criterion>() as u64 == header::SIZE_OF_POLICE_CRITERION);
    assert!(size_of::<Choice>() == 2);
    assert!(size_of::<PlanInner>() as u64 == header::SIZE_OF_POLICE_PLAN_INNER);
    assert!(size_of::<PlanLeaf>() as u64 == header::SIZE_OF_POLICE_PLAN_LEAF);
    assert!(size_of::<Pace>() as u64 == header::SIZE_OF_POLICE_PACE);
    assert!(size_of::<Member>() as u64 == header::SIZE_OF_POLICE_MEMBER);
    assert!(size_of::<Segment>() as u64 == header::SIZE_OF_POLICE_SEGMENT);
    assert!(size_of::<Plan>() as u64 == header::SIZE_OF_POLICE_PLAN);
    assert!(size_of::<Totals>() as u64 == header::SIZE_OF_POLICE_TOTALS);
    assert!(size_of::<Tally>() as u64 == header::SIZE_OF_POLICE_TALLY);
    assert!(size_of::<SlotHeader>() == 24);
    assert!(size_of::<Settings>() == 20);
    assert!(size_of::<Bench>() == 16);
};

/// Numbers of plans that the kernel has; 0 is none.
pub(crate) const PLANS: u32 = header::POLICE_PLANS as u32;
/// An entry has the number of a plan below so many bits, and that of a member above.
pub(crate) const PLAN_BITS: u32 = header::POLICE_PLAN_BITS as u32;
/// Segments of a direction each, and members.
pub(crate) const SEGMENTS: u32 = header::POLICE_SEGMENTS as u32;
pub(crate) const MEMBERS: u32 = header::POLICE_MEMBERS as u32;
/// Places for plans.
pub(crate) const PLACES: u32 = header::POLICE_PLACES as u32;
/// Size classes of slots.
pub(crate) const CLASSES: usize = header::POLICE_CLASSES as usize;
pub(crate) const CLASS_SHIFT: u32 = header::POLICE_CLASS_SHIFT as u32;
/// Of a slot's number.
pub(crate) const TALLIED: u32 = header::POLICE_TALLIED as u32;
pub(crate) const INDEX_MASK: u32 = header::POLICE_INDEX_MASK as u32;
/// Slots of a chunk.
pub(crate) const CHUNK: u32 = header::POLICE_CHUNK as u32;
/// Chunks of a class.
pub(crate) const CHUNKS: u32 = header::POLICE_CHUNKS as u32;

pub(crate) const LEAVES_MAX: usize = header::POLICE_LEAVES_MAX as usize;
pub(crate) const INNERS_MAX: usize = header::POLICE_INNERS_MAX as usize;
pub(crate) const CRITERIA_MAX: usize = header::POLICE_CRITERIA_MAX as usize;

pub(crate) const KIND_BUCKET: u32 = header::POLICE_KIND_BUCKET as u32;
pub(crate) const KIND_PHANTOM: u32 = header::POLICE_KIND_PHANTOM as u32;

pub(crate) const MATCH_DSCP: u8 = header::POLICE_MATCH_DSCP as u8;
pub(crate) const MATCH_PORT_REMOTE: u8 = header::POLICE_MATCH_PORT_REMOTE as u8;
pub(crate) const MATCH_PORT_LOCAL: u8 = header::POLICE_MATCH_PORT_LOCAL as u8;
pub(crate) const MATCH_IP: u8 = header::POLICE_MATCH_IP as u8;

/// The class of slots of plans with a bundle.
pub(crate) const CLASS_BUNDLE: usize = CLASSES - 1;

/// How many leaves and inner nodes a slot of each class has room for, and its bytes.
pub(crate) const CLASS_ROOMS: [ClassRoom; CLASSES] = [
    ClassRoom { leaves: 1, inners: 1, bytes: header::SIZE_OF_POLICE_SLOT_1 as usize },
    ClassRoom { leaves: 4, inners: 4, bytes: header::SIZE_OF_POLICE_SLOT_4 as usize },
    ClassRoom { leaves: 16, inners: 4, bytes: header::SIZE_OF_POLICE_SLOT_16 as usize },
    ClassRoom { leaves: 64, inners: 5, bytes: header::SIZE_OF_POLICE_SLOT_64 as usize },
    ClassRoom { leaves: 64, inners: 5, bytes: header::SIZE_OF_POLICE_SLOT_BUNDLE as usize },
];

/// What fits into a slot of a class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassRoom {
    pub(crate) leaves: usize,
    pub(crate) inners: usize,
    pub(crate) bytes: usize,
}

impl ClassRoom {
    /// Of the tallies of a slot.
    pub(crate) fn tally_bytes(&self) -> usize {
        self.leaves * size_of::<Tally>()
    }
}
