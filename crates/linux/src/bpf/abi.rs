//! The structures that BPF programs and user space share: `bpf/abi.h`, field by field. The numbers
//! come from the header itself.

use std::mem::size_of;

use super::header;

/// Plain numbers without padding, which the kernel reads and writes as bytes.
///
/// # Safety
/// Every bit pattern must be a valid value, and there must be no padding.
pub(crate) unsafe trait Plain: Copy {
    /// The value as the kernel reads it.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the implementor has no padding, so all its bytes are initialised; the slice
        // borrows `self`.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// A value that the kernel wrote, or `None` if the size is another.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: the size is the same and the implementor takes every bit pattern.
        (bytes.len() == size_of::<Self>())
            .then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

/// `struct config`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Config {
    pub(crate) heartbeat_ns: u64,
    pub(crate) enforce: u32,
    pub(crate) ifb: u32,
    pub(crate) generation: u32,
    pub(crate) features: u32,
    pub(crate) default_slot: u32,
    pub(crate) l2_header: u32,
    pub(crate) device: u32,
    pub(crate) baseline: u32,
    pub(crate) netns: u64,
    pub(crate) time_every: u32,
    pub(crate) pad: u32,
    pub(crate) recent: RecentControl,
}

/// `struct counter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counter {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
}

/// `struct counters`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Counters {
    pub(crate) slots: [Counter; SLOTS_MAX],
    pub(crate) new_cgroups: u64,
    /// When the classifier last looked at the clock; only the classifier uses it.
    pub(crate) own: [u64; 4],
    pub(crate) timeable: u64,
    pub(crate) unheard: u64,
}

impl Counters {
    /// What all CPUs have counted together.
    pub(crate) fn sum(by_cpu: &[Counters]) -> Box<Counters> {
        let mut sum = Box::new(Counters::zero());
        for mine in by_cpu {
            for (total, part) in sum.slots.iter_mut().zip(&mine.slots) {
                total.bytes += part.bytes;
                total.packets += part.packets;
            }
            sum.new_cgroups += mine.new_cgroups;
            sum.timeable += mine.timeable;
            sum.unheard += mine.unheard;
        }
        sum
    }

    pub(crate) fn zero() -> Counters {
        let slots = [Counter::default(); SLOTS_MAX];
        Counters { slots, new_cgroups: 0, own: [0; 4], timeable: 0, unheard: 0 }
    }
}

/// `struct upload_counters`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UploadCounters {
    pub(crate) slots: [Counter; SLOTS_MAX],
    pub(crate) first: Counter,
}

impl UploadCounters {
    pub(crate) fn zero() -> UploadCounters {
        UploadCounters { slots: [Counter::default(); SLOTS_MAX], first: Counter::default() }
    }

    /// What all CPUs have counted together.
    pub(crate) fn sum(by_cpu: &[Vec<u8>]) -> Box<UploadCounters> {
        let mut sum = Box::new(UploadCounters::zero());
        for mine in by_cpu.iter().filter_map(|bytes| UploadCounters::from_bytes(bytes)) {
            let parts = mine.slots.iter().chain([&mine.first]);
            for (total, part) in sum.slots.iter_mut().chain([&mut sum.first]).zip(parts) {
                total.bytes += part.bytes;
                total.packets += part.packets;
            }
        }
        sum
    }
}

/// `struct allowances`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Allowances {
    pub(crate) until: [u64; SLOTS_MAX],
}

/// `struct prefix4`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Prefix4 {
    pub(crate) length: u32,
    pub(crate) address: [u8; 4],
}

/// `struct prefix6`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Prefix6 {
    pub(crate) length: u32,
    pub(crate) address: [u8; 16],
}

/// `struct talker`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Talker {
    pub(crate) kind: u64,
    pub(crate) value: [u8; NAME_BYTES],
}

/// `struct initial_windows`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct InitialWindows {
    pub(crate) slots: [u32; SLOTS_MAX],
}

/// `struct connection_record`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionRecord {
    pub(crate) cookie: u64,
    pub(crate) received: u64,
    pub(crate) transit_min: i64,
    pub(crate) transit_sum: i64,
    pub(crate) transit_samples: u32,
    pub(crate) segs_in: u32,
    pub(crate) segs_out: u32,
    pub(crate) rtt_us: u32,
    pub(crate) rcv_wnd: u32,
    pub(crate) window_clamp: u32,
    pub(crate) rcv_mss: u16,
    pub(crate) slot: u16,
    pub(crate) port_remote: u16,
    pub(crate) rcv_wscale: u8,
    pub(crate) state: u8,
    pub(crate) holes: u32,
    pub(crate) rtt_sent_us: u32,
    pub(crate) number: u64,
}

/// `struct flow_key`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowKey {
    pub(crate) remote: [u8; 16],
    pub(crate) local: [u8; 16],
    pub(crate) port_remote: [u8; 2],
    pub(crate) port_local: [u8; 2],
    pub(crate) family: u16,
    pub(crate) transport: u16,
}

/// `struct flow`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowState {
    pub(crate) seen_ns: u64,
    pub(crate) number: u64,
    pub(crate) rule: u32,
    pub(crate) opened: u32,
    pub(crate) wanted: u32,
    pub(crate) watched: u32,
}

/// `struct recent_control`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecentControl {
    pub(crate) changes: u32,
    pub(crate) sets: u32,
    pub(crate) keys: [u64; RECENT_KEYS],
}

/// `struct heard_header`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeardHeader {
    pub(crate) key: FlowKey,
    pub(crate) kind: u32,
    pub(crate) opened: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    pub(crate) at_ns: u64,
    pub(crate) user: u32,
    pub(crate) pad: u32,
}

// SAFETY: numbers of fixed width, in an order that leaves no padding; the sizes are asserted.
unsafe impl Plain for Config {}
// SAFETY: as above.
unsafe impl Plain for Counter {}
// SAFETY: as above.
unsafe impl Plain for Counters {}
// SAFETY: as above.
unsafe impl Plain for Allowances {}
// SAFETY: as above.
unsafe impl Plain for UploadCounters {}
// SAFETY: as above.
unsafe impl Plain for Prefix4 {}
// SAFETY: as above.
unsafe impl Plain for Prefix6 {}
// SAFETY: as above.
unsafe impl Plain for Talker {}
// SAFETY: as above.
unsafe impl Plain for InitialWindows {}
// SAFETY: as above.
unsafe impl Plain for ConnectionRecord {}
// SAFETY: as above.
unsafe impl Plain for FlowKey {}
// SAFETY: as above.
unsafe impl Plain for FlowState {}
// SAFETY: as above.
unsafe impl Plain for HeardHeader {}

const _: () = {
    assert!(size_of::<Config>() as u64 == header::SIZE_OF_CONFIG);
    assert!(size_of::<Counter>() as u64 == header::SIZE_OF_COUNTER);
    assert!(size_of::<Counters>() as u64 == header::SIZE_OF_COUNTERS);
    assert!(size_of::<UploadCounters>() as u64 == header::SIZE_OF_UPLOAD_COUNTERS);
    assert!(size_of::<Allowances>() as u64 == header::SIZE_OF_ALLOWANCES);
    assert!(size_of::<Prefix4>() as u64 == header::SIZE_OF_PREFIX4);
    assert!(size_of::<Prefix6>() as u64 == header::SIZE_OF_PREFIX6);
    assert!(size_of::<Talker>() as u64 == header::SIZE_OF_TALKER);
    assert!(size_of::<InitialWindows>() as u64 == header::SIZE_OF_INITIAL_WINDOWS);
    assert!(size_of::<ConnectionRecord>() as u64 == header::SIZE_OF_CONNECTION_RECORD);
    assert!(size_of::<FlowKey>() as u64 == header::SIZE_OF_FLOW_KEY);
    assert!(size_of::<FlowState>() as u64 == header::SIZE_OF_FLOW);
    assert!(size_of::<RecentControl>() as u64 == header::SIZE_OF_RECENT_CONTROL);
    assert!(size_of::<HeardHeader>() as u64 == header::SIZE_OF_HEARD_HEADER);
    assert!(header::FLOWS_MAX == fairweir_core::sites::CONNECTIONS_MAX as u64);
    assert!(header::HEARD_HEADER == header::SIZE_OF_HEARD_HEADER);
};

/// A name as a key of a map: zero-padded, and cut where the kernel's copy is cut.
pub(crate) fn name(text: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    for (to, from) in bytes[..NAME_BYTES - 1].iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// Classes that a device can have; a slot is the number of a class, counted from 0.
pub(crate) const SLOTS_MAX: usize = header::SLOTS_MAX as usize;
pub(crate) const NAME_BYTES: usize = header::NAME_BYTES as usize;
pub(crate) const PORTS: usize = header::PORTS as usize;

pub(crate) const FEATURE_PREFIX4: u32 = header::FEATURE_PREFIX4 as u32;
pub(crate) const FEATURE_PREFIX6: u32 = header::FEATURE_PREFIX6 as u32;
pub(crate) const FEATURE_REMOTE_PORTS: u32 = header::FEATURE_REMOTE_PORTS as u32;
pub(crate) const FEATURE_LOCAL_PORTS: u32 = header::FEATURE_LOCAL_PORTS as u32;
pub(crate) const FEATURE_OWNERS: u32 = header::FEATURE_OWNERS as u32;
pub(crate) const FEATURE_CENSUS: u32 = header::FEATURE_CENSUS as u32;
pub(crate) const FEATURE_WINDOWS: u32 = header::FEATURE_WINDOWS as u32;
pub(crate) const FEATURE_TRANSIT: u32 = header::FEATURE_TRANSIT as u32;
pub(crate) const FEATURE_SITES: u32 = header::FEATURE_SITES as u32;
pub(crate) const FEATURE_UPLOAD: u32 = header::FEATURE_UPLOAD as u32;

pub(crate) const HEARD_OPENING: u32 = header::HEARD_OPENING as u32;
pub(crate) const HEARD_STREAM: u32 = header::HEARD_STREAM as u32;
pub(crate) const HEARD_DATAGRAM: u32 = header::HEARD_DATAGRAM as u32;
pub(crate) const HEARD_DNS: u32 = header::HEARD_DNS as u32;
pub(crate) const HEARD_SENT: u32 = header::HEARD_SENT as u32;
pub(crate) const SENDS_MAX: u32 = header::SENDS_MAX as u32;
pub(crate) const USER_NONE: u32 = header::USER_NONE as u32;
pub(crate) const RECENT_KEYS: usize = header::RECENT_KEYS as usize;
pub(crate) const RECENT_SETS_MAX: u32 = header::RECENT_SETS_MAX as u32;
pub(crate) const INITIALS_MAX: u32 = header::INITIALS_MAX as u32;

/// Every bound of a window that is set ends in these bits.
pub(crate) const CLAMP_MARK: u32 = header::CLAMP_MARK as u32;
pub(crate) const CLAMP_MARK_MASK: u32 = header::CLAMP_MARK_MASK as u32;

/// The tables of ports, in the order of `PORT_TABLE_*`.
pub(crate) const PORT_TABLES: usize = header::PORT_TABLES as usize;

pub(crate) const TALKER_APP: u64 = header::TALKER_APP;
pub(crate) const TALKER_USER: u64 = header::TALKER_USER;
pub(crate) const TALKER_CGROUP: u64 = header::TALKER_CGROUP;
pub(crate) const TALKER_PREFIX4: u64 = header::TALKER_PREFIX4;
pub(crate) const TALKER_PREFIX6: u64 = header::TALKER_PREFIX6;
