//! The structures that the router's programs and user space share: `bpf/router_abi.h`.

use crate::bpf::abi::{
    Counter, FEATURE_PREFIX4, FEATURE_PREFIX6, FEATURE_SITES, Plain, RecentControl, SLOTS_MAX,
};
use crate::bpf::header;

/// `struct router_config`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RouterConfig {
    pub(crate) heartbeat_ns: u64,
    pub(crate) enforce: u32,
    pub(crate) features: u32,
    pub(crate) default_slot: u32,
    pub(crate) wan: u32,
    pub(crate) lan_header: u32,
    pub(crate) wan_header: u32,
    pub(crate) interval: u32,
    pub(crate) lan: u32,
    pub(crate) recent: RecentControl,
}

/// `struct router_counters`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RouterCounters {
    pub(crate) slots: [Counter; SLOTS_MAX],
    pub(crate) total: Counter,
    pub(crate) frames: Counter,
    pub(crate) unheard: u64,
}

impl RouterCounters {
    pub(crate) fn zero() -> RouterCounters {
        RouterCounters {
            slots: [Counter::default(); SLOTS_MAX],
            total: Counter::default(),
            frames: Counter::default(),
            unheard: 0,
        }
    }

    pub(crate) fn add(&mut self, other: &RouterCounters) {
        let all = self.slots.iter_mut().zip(&other.slots);
        let sums = [(&mut self.total, &other.total), (&mut self.frames, &other.frames)];
        for (total, part) in all.chain(sums) {
            total.bytes += part.bytes;
            total.packets += part.packets;
        }
        self.unheard += other.unheard;
    }
}

/// `struct transit`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Transit {
    pub(crate) tsval: u32,
    pub(crate) period_ns: u32,
    pub(crate) samples: u32,
    pub(crate) pad: u32,
    pub(crate) anchor_ns: u64,
    pub(crate) ticks: i64,
    pub(crate) sum: i64,
    pub(crate) min: i64,
}

/// `struct router_flow`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RouterFlow {
    pub(crate) received: u64,
    pub(crate) begun_ns: u64,
    pub(crate) slot: u32,
    pub(crate) interval: u32,
    pub(crate) segs_in: u32,
    pub(crate) seq_next: u32,
    pub(crate) edge_own: u32,
    pub(crate) syn_window: u16,
    pub(crate) wscale: u8,
    pub(crate) flags: u8,
    pub(crate) wan_asked_ns: u64,
    pub(crate) lan_asked_ns: u64,
    pub(crate) wan_asked: u32,
    pub(crate) segment: u32,
    pub(crate) transit: Transit,
    pub(crate) id: u64,
    pub(crate) segs_out: u32,
    pub(crate) holes: u32,
    pub(crate) ack: u32,
    pub(crate) edge: u32,
    pub(crate) bound: u32,
    pub(crate) window: u32,
    pub(crate) asked: u32,
    pub(crate) lan_asked: u32,
    pub(crate) wan_rtt_us: u32,
    pub(crate) lan_rtt_us: u32,
    pub(crate) pad: u64,
}

/// `struct leaf_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafKey {
    pub(crate) length: u32,
    pub(crate) slot: [u8; 2],
    pub(crate) kind: u8,
    pub(crate) pad: u8,
    pub(crate) value: [u8; 16],
}

/// `struct dhcp_heard`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DhcpHeard {
    pub(crate) source: [u8; 6],
    pub(crate) is_own: u8,
    pub(crate) pad: u8,
    pub(crate) length: u32,
    pub(crate) bytes: [u8; header::DHCP_HEARD_MAX as usize],
}

// SAFETY: numbers of fixed width, in an order that leaves no padding; the sizes are asserted.
unsafe impl Plain for RouterConfig {}
// SAFETY: as above.
unsafe impl Plain for DhcpHeard {}
// SAFETY: as above.
unsafe impl Plain for LeafKey {}
// SAFETY: as above.
unsafe impl Plain for RouterCounters {}
// SAFETY: as above.
unsafe impl Plain for RouterFlow {}

const _: () = {
    assert!(size_of::<RouterConfig>() as u64 == header::SIZE_OF_ROUTER_CONFIG);
    assert!(size_of::<RouterCounters>() as u64 == header::SIZE_OF_ROUTER_COUNTERS);
    assert!(size_of::<LeafKey>() as u64 == header::SIZE_OF_LEAF_KEY);
    assert!(size_of::<DhcpHeard>() as u64 == header::SIZE_OF_DHCP_HEARD);
    assert!(size_of::<Transit>() as u64 == header::SIZE_OF_TRANSIT);
    assert!(size_of::<RouterFlow>() as u64 == header::SIZE_OF_ROUTER_FLOW);
};

pub(crate) const FEATURE_MACS: u32 = header::FEATURE_MACS as u32;
/// What depends on the rules, beside those by MAC address.
pub(crate) const FEATURES_OF_RULES: u32 = FEATURE_PREFIX4 | FEATURE_PREFIX6 | FEATURE_SITES;
pub(crate) const FEATURE_MARKS: u32 = header::FEATURE_MARKS as u32;
pub(crate) const FLOW_ENDED: u8 = header::FLOW_ENDED as u8;
