//! The structures that the congestion controls and user space share: `bpf/sender_abi.h`, field by
//! field.

use std::mem::size_of;

use crate::bpf::abi::Plain;
use crate::bpf::header;

/// `struct order`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) aim_bps: u64,
    pub(super) min_rate_bps: u64,
    pub(super) gain: i32,
    pub(super) has_aim: u32,
    pub(super) bundle: u32,
    pub(super) role: u32,
    pub(super) weight: u32,
    pub(super) apart: u32,
}

/// `struct bundle_order`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BundleOrder {
    pub(super) stunts_from: u32,
    pub(super) stunts_to: u32,
    pub(super) free_count: u32,
    pub(super) reverse_own: u32,
    pub(super) free: [u32; FREE_MAX],
}

/// `struct member`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Member {
    pub(super) cookie: u64,
    pub(super) cut_ns: u64,
    pub(super) turn: u64,
    pub(super) delivered: u64,
    pub(super) signals: u64,
    pub(super) delegated: u64,
    pub(super) taken: u64,
    pub(super) refused: u64,
    pub(super) cuts: u64,
    pub(super) rtts_us: u64,
    pub(super) rtt_count: u64,
    pub(super) heard_us: u64,
    pub(super) cwnd: u32,
    pub(super) cwnd_cut: u32,
    pub(super) debt: u32,
    pub(super) packet: u32,
    pub(super) rtt_us: u32,
    pub(super) phase: u32,
    pub(super) forward: u32,
    pub(super) reverse: u32,
    pub(super) delivered_seen: u32,
    pub(super) mended: u32,
    pub(super) gave: u32,
    pub(super) pad: u32,
}

/// `struct place`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) member: u32,
    pub(super) name: [u8; CC_NAME_BYTES],
}

/// `struct role_record`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RoleRecord {
    pub(super) cookie: u64,
    pub(super) remote: [u8; 16],
    pub(super) name: [u8; CC_NAME_BYTES],
    pub(super) slot: u16,
    pub(super) is_ipv6: u16,
    pub(super) port_remote: u16,
    pub(super) port_local: u16,
}

/// `struct replay`.
#[cfg(test)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Replay {
    pub(super) now_ns: u64,
    pub(super) delivered: u64,
    pub(super) event: u32,
    pub(super) member: u32,
    pub(super) cwnd: u32,
    pub(super) cwnd_cut: u32,
    pub(super) packet: u32,
    pub(super) rtt_us: u32,
    pub(super) phase: u32,
    pub(super) answer: u32,
}

// SAFETY: numbers of fixed width, in an order that leaves no padding; the sizes are asserted.
unsafe impl Plain for Order {}
// SAFETY: as above.
unsafe impl Plain for BundleOrder {}
// SAFETY: as above.
unsafe impl Plain for Member {}
// SAFETY: as above.
unsafe impl Plain for Place {}
// SAFETY: as above.
unsafe impl Plain for RoleRecord {}
#[cfg(test)]
// SAFETY: as above.
unsafe impl Plain for Replay {}

const _: () = {
    assert!(size_of::<Order>() as u64 == header::SIZE_OF_ORDER);
    assert!(size_of::<BundleOrder>() as u64 == header::SIZE_OF_BUNDLE_ORDER);
    assert!(size_of::<Member>() as u64 == header::SIZE_OF_MEMBER);
    assert!(size_of::<Place>() as u64 == header::SIZE_OF_PLACE);
    assert!(size_of::<RoleRecord>() as u64 == header::SIZE_OF_ROLE_RECORD);
    assert!(header::MEMBERS_MAX as usize == fairweir_core::delegate::MEMBERS_MAX);
};
#[cfg(test)]
const _: () = assert!(size_of::<Replay>() as u64 == header::SIZE_OF_REPLAY);

pub(super) const FREE_MAX: usize = header::FREE_MAX as usize;
pub(super) const CC_NAME_BYTES: usize = header::CC_NAME_BYTES as usize;
