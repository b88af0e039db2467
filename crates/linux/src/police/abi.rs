//! What the policer and user space share (`bpf/police_abi.h`), under shorter names.

pub(crate) use crate::bpf::abi::{
    Bench, Bindings, PoliceChoice as Choice, PoliceClient as Client, PoliceCriterion as Criterion,
    PoliceEntry as Entry, PoliceMember as Member, PolicePace as Pace, PolicePlan as Plan,
    PolicePlanInner as PlanInner, PolicePlanLeaf as PlanLeaf, PolicePrefixes as Prefixes,
    PoliceSegment as Segment, PoliceSettings as Settings, PoliceTally as Tally,
    PoliceTotals as Totals,
};
pub(crate) use crate::bpf::header::{
    POLICE_CHUNK as CHUNK, POLICE_CHUNKS as CHUNKS, POLICE_CLASS_SHIFT as CLASS_SHIFT,
    POLICE_CLIENT_CHUNK as CLIENT_CHUNK, POLICE_INDEX_MASK as INDEX_MASK,
    POLICE_KIND_BUCKET as KIND_BUCKET, POLICE_KIND_PHANTOM as KIND_PHANTOM,
    POLICE_MEMBERS as MEMBERS, POLICE_PLACES as PLACES, POLICE_PLAN_BITS as PLAN_BITS,
    POLICE_PLANS as PLANS, POLICE_SEGMENTS as SEGMENTS, POLICE_TALLIED as TALLIED,
};

use fairweir_core::agreement::bindings::BINDINGS;
use fairweir_core::phantom::plan::{CLIENT_INNERS_MAX, CLIENT_LEAVES_MAX};
use ipnet::IpNet;

use super::is_whole;
use crate::bpf::abi::{
    Plain, PoliceSlot1, PoliceSlot4, PoliceSlot16, PoliceSlot64, PoliceSlotBundle,
};
use crate::bpf::header;

/// The compiled `bpf/police.bpf.c`.
pub(crate) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/police.bpf.o"));

/// The key of an address in its map.
pub(crate) fn key_of(net: &IpNet) -> Vec<u8> {
    let address: Vec<u8> = match net {
        IpNet::V4(net) => net.network().octets().to_vec(),
        IpNet::V6(net) => net.network().octets().to_vec(),
    };
    if is_whole(net) {
        return address;
    }
    let mut key = u32::from(net.prefix_len()).to_ne_bytes().to_vec();
    key.extend(address);
    key
}

/// The fields at the beginning of a slot of any class: those of the smallest slot.
pub(crate) fn slot_header(slot: &[u8]) -> Option<PoliceSlot1> {
    slot.get(..size_of::<PoliceSlot1>()).and_then(PoliceSlot1::from_bytes)
}

/// Offset of the state in a slot of any class.
pub(crate) const STATE_AT: usize = std::mem::offset_of!(PoliceSlot1, head);
/// Number of size classes of slots.
pub(crate) const CLASSES: usize = header::POLICE_CLASSES as usize;

pub(crate) const MATCH_DSCP: u8 = header::POLICE_MATCH_DSCP as u8;
pub(crate) const MATCH_PORT_REMOTE: u8 = header::POLICE_MATCH_PORT_REMOTE as u8;
pub(crate) const MATCH_PORT_LOCAL: u8 = header::POLICE_MATCH_PORT_LOCAL as u8;
pub(crate) const MATCH_IP: u8 = header::POLICE_MATCH_IP as u8;

/// The class of slots of plans with a bundle.
pub(crate) const CLASS_BUNDLE: usize = CLASSES - 1;

/// The class of slots of plans that clients may divide.
pub(crate) const CLASS_CLIENT: usize = 2;
const _: () = {
    let room = CLASS_ROOMS[CLASS_CLIENT];
    assert!(room.leaves == CLIENT_LEAVES_MAX && room.inners == CLIENT_INNERS_MAX);
    assert!(header::BINDINGS as usize == BINDINGS);
};

/// For each class: the leaves and inner nodes for which a slot has room, and its bytes.
pub(crate) const CLASS_ROOMS: [ClassRoom; CLASSES] = [
    ClassRoom { leaves: 1, inners: 1, bytes: size_of::<PoliceSlot1>() },
    ClassRoom { leaves: 4, inners: 4, bytes: size_of::<PoliceSlot4>() },
    ClassRoom { leaves: 16, inners: 4, bytes: size_of::<PoliceSlot16>() },
    ClassRoom { leaves: 64, inners: 5, bytes: size_of::<PoliceSlot64>() },
    ClassRoom { leaves: 64, inners: 5, bytes: size_of::<PoliceSlotBundle>() },
];

/// The capacity of a slot of a class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassRoom {
    pub(crate) leaves: usize,
    pub(crate) inners: usize,
    pub(crate) bytes: usize,
}

impl ClassRoom {
    /// Bytes of a slot's tallies.
    pub(crate) fn tally_bytes(&self) -> usize {
        self.leaves * size_of::<Tally>()
    }
}
