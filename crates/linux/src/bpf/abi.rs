//! What BPF programs and user space share: the structures and numbers of `bpf/abi.h`, `bpf/admit_abi.h`,
//! `bpf/binding_abi.h`, `bpf/police_abi.h`, `bpf/router_abi.h` and `bpf/sender_abi.h`, which the build
//! converts (`build/structs.rs`, `build/numbers.rs`), and the additions of user space.

use std::mem::{MaybeUninit, size_of};

use fairweir_core::agreement::bindings::{self, Marked};
use fairweir_core::agreement::message::Seen;
use fairweir_core::units::Time;

use super::header;

pub(crate) use generated::*;
pub(crate) use header::{
    CLAMP_MARK, CLAMP_MARK_MASK, FEATURE_CENSUS, FEATURE_CLASS_MARKS, FEATURE_LOCAL_PORTS,
    FEATURE_OWNERS, FEATURE_PREFIX4, FEATURE_PREFIX6, FEATURE_REMOTE_PORTS, FEATURE_SITES,
    FEATURE_TRANSIT, FEATURE_UPLOAD, FEATURE_WINDOWS, RECENT_SETS_MAX,
};

#[allow(dead_code, reason = "user space does not use all fields and structures")]
mod generated {
    use super::Plain;

    include!(concat!(env!("OUT_DIR"), "/structs.rs"));
}

/// Plain numbers without padding, which the kernel reads and writes as bytes.
///
/// # Safety
/// Every bit pattern must be a valid value, and there must be no padding.
pub(crate) unsafe trait Plain: Copy {
    /// The value whose bytes are all 0.
    const ZERO: Self = {
        // SAFETY: the implementor takes every bit pattern.
        unsafe { MaybeUninit::zeroed().assume_init() }
    };

    /// The value as the kernel reads it.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the implementor has no padding, so all its bytes are initialised; the slice
        // borrows `self`.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// A value that the kernel wrote, or `None` if the size differs.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: the size is the same and the implementor takes every bit pattern.
        (bytes.len() == size_of::<Self>())
            .then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

impl Counter {
    fn add(&mut self, other: &Counter) {
        self.bytes += other.bytes;
        self.packets += other.packets;
    }
}

impl Counters {
    /// The sum of the counters of all CPUs.
    pub(crate) fn sum(by_cpu: &[Counters]) -> Box<Counters> {
        let mut sum = Box::new(Counters::default());
        for mine in by_cpu {
            sum.slots.iter_mut().zip(&mine.slots).for_each(|(total, part)| total.add(part));
            sum.new_cgroups += mine.new_cgroups;
            sum.timeable += mine.timeable;
            sum.unheard += mine.unheard;
        }
        sum
    }
}

impl UploadCounters {
    /// The sum of the counters of all CPUs.
    pub(crate) fn sum(by_cpu: &[Vec<u8>]) -> Box<UploadCounters> {
        let mut sum = Box::new(UploadCounters::default());
        for mine in by_cpu.iter().filter_map(|bytes| UploadCounters::from_bytes(bytes)) {
            sum.slots.iter_mut().zip(&mine.slots).for_each(|(total, part)| total.add(part));
            sum.first.add(&mine.first);
        }
        sum
    }
}

impl RouterCounters {
    /// The sum of the counters of all CPUs.
    pub(crate) fn sum(by_cpu: &[Vec<u8>]) -> Box<RouterCounters> {
        let mut sum = Box::new(RouterCounters::default());
        for mine in by_cpu.iter().filter_map(|bytes| RouterCounters::from_bytes(bytes)) {
            sum.slots.iter_mut().zip(&mine.slots).for_each(|(total, part)| total.add(part));
            sum.total.add(&mine.total);
            sum.frames.add(&mine.frames);
            sum.unheard += mine.unheard;
        }
        sum
    }
}

/// The bindings of a client with an agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Number of bound flows.
    pub bound: usize,
    /// Number of marks that found no room; wraps.
    pub refused: u32,
    /// The bindings, in the format of `agreement::bindings`.
    pub words: Vec<u64>,
    /// When a flow was last bound to each class, likewise.
    pub marked: Marked,
}

impl Bound {
    /// These counts as a divider reports them, without `held`.
    pub fn seen(&self, now: Time) -> Seen {
        bindings::seen(&self.marked, self.refused, now)
    }

    pub(crate) fn of(bindings: &Bindings) -> Bound {
        Bound {
            bound: bindings.of.iter().filter(|&&word| word != 0).count(),
            refused: bindings.refused,
            words: bindings.of.to_vec(),
            marked: bindings.marked,
        }
    }
}

/// A name as a key of a map: zero-padded, and cut where the kernel's copy is cut.
pub(crate) fn name(text: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    for (to, from) in bytes[..NAME_BYTES - 1].iter_mut().zip(text.bytes()) {
        *to = from;
    }
    bytes
}

/// Classes that a device can have; a slot is the index of a class.
pub(crate) const SLOTS_MAX: usize = header::SLOTS_MAX as usize;
/// Bytes of the name of an application.
pub(crate) const NAME_BYTES: usize = header::NAME_BYTES as usize;
/// Entries in a table of ports.
pub(crate) const PORTS: usize = header::PORTS as usize;
/// The tables of ports, in the order of `PORT_TABLE_*`.
pub(crate) const PORT_TABLES: usize = header::PORT_TABLES as usize;

const _: () = {
    assert!(header::FLOWS_MAX as usize == fairweir_core::sites::CONNECTIONS_MAX);
    assert!(header::HEARD_HEADER as usize == size_of::<HeardHeader>());
    assert!(header::MEMBERS_MAX as usize == fairweir_core::delegate::MEMBERS_MAX);
};
