//! Classes of the hierarchical token bucket: one for each flow group, under one parent.
//!
//! ```text
//! fa17: htb ── fa17:ffff (what all may carry together) ─┬─ fa17:1 (slot 0) ── bfifo
//!                                                       └─ fa17:2 (slot 1) ── bfifo …
//! ```
//! A packet whose class does not exist passes unshaped. Terms as in tc(8): rate, ceil, quantum, burst.
//! Source: tc-htb(8), linux/pkt_sched.h.

use std::collections::BTreeMap;

use fairweir_core::receiver::{Allocation, ClassSpec};
use fairweir_core::units::{Bytes, Rate};

use crate::Error;
use crate::net::link::Link;
use crate::net::netlink::{Nest, Netlink, Request, TCMSG_BYTES, attribute, tcmsg, text, u32_at};

/// The kernel's counts of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassCount {
    /// Packets dropped since the class was made; wraps.
    pub(crate) drops: u32,
    /// The bytes that wait now.
    pub(crate) backlog: Bytes,
    /// The bytes that it has sent since it was made.
    pub(crate) sent: Bytes,
}

/// The classes of an allocation: the parent, and one for each of `slots`.
pub(crate) fn class_specs(
    allocation: &Allocation,
    slots: &[u16],
    mtu: Bytes,
) -> BTreeMap<u16, ClassSpec> {
    let packet = mtu + Bytes::new(L2_HEADER);
    let leaves = slots.iter().zip(allocation.leaves(packet));
    let leaves = leaves.map(|(&slot, class)| (minor(slot), class));
    leaves.chain([(PARENT, ClassSpec::parent(allocation.total))]).collect()
}

/// The requests that turn the classes `old` of the device into `new`, the parent first; classes that
/// are not in `new` stay as they are.
pub(crate) fn changes(
    device: u32,
    old: &BTreeMap<u16, ClassSpec>,
    new: &BTreeMap<u16, ClassSpec>,
) -> Vec<Request> {
    let mut requests = Vec::new();
    for (&minor, spec) in new.iter().rev() {
        let before = old.get(&minor);
        if before == Some(spec) {
            continue;
        }
        requests.push(class_request(device, (minor, PARENT), spec, &ClassSpec::burst));
        if let Some(limit) = spec.queue.filter(|_| before.and_then(|b| b.queue) != spec.queue) {
            requests.push(queue_request(device, minor, limit));
        }
    }
    requests
}

/// Makes the qdisc; until there are classes everything passes unshaped.
pub(crate) fn root(device: u32) -> Request {
    // version, rate2quantum, defcls (none: unshaped), debug, direct packets
    let globals = numbers(&[3, 10, 0, 0, 0]);
    Request::new(libc::RTM_NEWQDISC, CREATE, &tcmsg(device, ROOT, TC_H_ROOT))
        .with_text(libc::TCA_KIND, "htb")
        .with_nest(libc::TCA_OPTIONS, Nest::default().with(TCA_HTB_INIT, &globals))
}

/// Deletes the qdisc with its classes and queued packets; the device has its default queue again.
pub(crate) fn root_deletion(device: u32) -> Request {
    Request::new(libc::RTM_DELQDISC, 0, &tcmsg(device, ROOT, TC_H_ROOT))
}

/// Deletes the class of `slot`, its queue and the queued packets.
pub(crate) fn deletion(device: u32, slot: u16) -> Request {
    Request::new(libc::RTM_DELTCLASS, 0, &tcmsg(device, ROOT | u32::from(minor(slot)), 0))
}

/// Whether the device's root qdisc is the one that [`root`] makes.
///
/// # Errors
/// If the kernel does not answer.
pub(crate) fn is_there(netlink: &mut Netlink, device: u32) -> Result<bool, Error> {
    Ok(root_of(netlink, device)?.is_some_and(|(kind, handle)| kind == "htb" && handle == ROOT))
}

/// Refuses if the device has a root qdisc of another program. Qdiscs that the kernel chooses itself
/// have no handle.
///
/// # Errors
/// [`Error::Occupied`] says what was found and how to remove it.
pub(crate) fn refuse_if_occupied(netlink: &mut Netlink, device: &Link) -> Result<(), Error> {
    match root_of(netlink, device.index)? {
        Some((kind, handle)) if handle != 0 && handle != ROOT => Err(Error::Occupied {
            dev: device.name.clone(),
            found: format!("the `{kind}` qdisc of another program is at its root"),
            remedy: format!("tc qdisc del dev {} root", device.name),
        }),
        _ => Ok(()),
    }
}

/// Passes the root qdisc of each device to `take`: the device, the kind, and whether it is
/// fairweir's.
///
/// # Errors
/// If the kernel does not answer.
pub(crate) fn roots(
    netlink: &mut Netlink,
    mut take: impl FnMut(u32, String, bool),
) -> Result<(), Error> {
    let request = Request::new(libc::RTM_GETQDISC, 0, &tcmsg(0, 0, 0));
    netlink.dump("list the qdiscs", request, |payload| {
        let kind = attribute(payload.get(TCMSG_BYTES..).unwrap_or_default(), libc::TCA_KIND);
        let at = |offset| u32_at(payload, offset);
        if let (Some(device), Some(TC_H_ROOT), Some(kind)) = (at(4), at(12), kind.map(text)) {
            take(device, kind, at(8) == Some(ROOT));
        }
    })
}

/// Kind and handle of the device's root qdisc, if it has one.
fn root_of(netlink: &mut Netlink, device: u32) -> Result<Option<(String, u32)>, Error> {
    // Kernels before 6.7 answer only a request with NLM_F_ECHO.
    let echo = libc::NLM_F_ECHO as u16;
    let request = Request::new(libc::RTM_GETQDISC, echo, &tcmsg(device, 0, TC_H_ROOT));
    match netlink.ask("look at the root qdisc", request) {
        Ok(payload) => {
            let kind = attribute(payload.get(TCMSG_BYTES..).unwrap_or_default(), libc::TCA_KIND);
            Ok(kind.map(text).zip(u32_at(&payload, 8)))
        }
        Err(e) if matches!(e.errno(), Some(libc::ENOENT | libc::ENODEV)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The kernel's counts of each class, by slot, in one request.
///
/// # Errors
/// If the kernel does not answer.
pub(crate) fn counts(
    netlink: &mut Netlink,
    device: u32,
) -> Result<BTreeMap<u16, ClassCount>, Error> {
    let request = Request::new(libc::RTM_GETTCLASS, 0, &tcmsg(device, 0, ROOT));
    let mut counts = BTreeMap::new();
    netlink.dump("read the classes", request, |payload| {
        // The queues within the classes have classes of their own, whose numbers also start at 1.
        let minor = match u32_at(payload, 8) {
            Some(handle) if handle & MAJOR == ROOT => handle as u16,
            _ => return,
        };
        if minor == 0 || minor == PARENT {
            return;
        }
        let statistics =
            attribute(payload.get(TCMSG_BYTES..).unwrap_or_default(), libc::TCA_STATS2);
        let queue = statistics.and_then(|s| attribute(s, TCA_STATS_QUEUE));
        let count = queue.and_then(|queue| {
            let backlog = Bytes::new(u32_at(queue, 4)?.into());
            let basic = statistics.and_then(|s| attribute(s, TCA_STATS_BASIC));
            let sent = basic.and_then(|b| b.first_chunk()).map_or(0, |&b| u64::from_ne_bytes(b));
            Some(ClassCount { drops: u32_at(queue, 8)?, backlog, sent: Bytes::new(sent) })
        });
        counts.insert(minor - 1, count.unwrap_or_default());
    })?;
    Ok(counts)
}

/// Makes or changes a class. Its number comes first, then that of the class above it; `burst` is
/// the volume that it may send at once at a rate.
pub(crate) fn class_request(
    device: u32,
    (minor, above): (u16, u16),
    spec: &ClassSpec,
    burst: &dyn Fn(Rate) -> Bytes,
) -> Request {
    let parent = if minor == PARENT { TC_H_ROOT } else { ROOT | u32::from(above) };
    let mut parameters = Vec::with_capacity(PARAMETERS_BYTES);
    for rate in [spec.rate, spec.ceil] {
        // `struct tc_ratespec`: with a known link layer the kernel needs no rate table.
        parameters.extend_from_slice(&[0, LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
        parameters.extend_from_slice(&bytes_per_second(rate).to_ne_bytes());
    }
    let ticks = |rate: Rate| {
        let span = rate.time_to_send(burst(rate)).as_nanos() / TICK_NS;
        u32::try_from(span).unwrap_or(u32::MAX)
    };
    parameters.extend(numbers(&[
        ticks(spec.rate),
        ticks(spec.ceil),
        spec.quantum.as_u64() as u32,
        0,
        spec.priority.into(),
    ]));
    let handle = ROOT | u32::from(minor);
    Request::new(libc::RTM_NEWTCLASS, libc::NLM_F_CREATE as u16, &tcmsg(device, handle, parent))
        .with_text(libc::TCA_KIND, "htb")
        .with_nest(libc::TCA_OPTIONS, Nest::default().with(TCA_HTB_PARMS, &parameters))
}

/// Makes the queue of a class, or changes its limit without losing a packet.
fn queue_request(device: u32, minor: u16, limit: Bytes) -> Request {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
    let handle = (QUEUE_MAJOR + u32::from(minor)) << 16;
    let limit = u32::try_from(limit.as_u64()).unwrap_or(u32::MAX);
    Request::new(libc::RTM_NEWQDISC, flags, &tcmsg(device, handle, ROOT | u32::from(minor)))
        .with_text(libc::TCA_KIND, "bfifo")
        .with_u32(libc::TCA_OPTIONS, limit)
}

/// The number of a slot's class.
pub(crate) fn minor(slot: u16) -> u16 {
    slot + 1
}

fn bytes_per_second(rate: Rate) -> u32 {
    u32::try_from(rate.bytes_per_second_floor()).unwrap_or(u32::MAX)
}

pub(crate) fn numbers(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

/// `fa17:`, as `HTB_MAJOR` in `bpf/classify.bpf.c`.
pub(crate) const ROOT: u32 = 0xfa17 << 16;
const MAJOR: u32 = 0xffff << 16;
/// `fa17:ffff`, the parent of all classes.
pub(crate) const PARENT: u16 = 0xffff;
/// Queues are `101:` to `200:`, below the numbers that the kernel assigns.
pub(crate) const QUEUE_MAJOR: u32 = 0x100;

/// Bytes of an Ethernet header.
const L2_HEADER: u64 = 14;
/// Nanoseconds in a unit of tc's burst (PSCHED_SHIFT is 6).
const TICK_NS: u64 = 64;

const PARAMETERS_BYTES: usize = 44;
const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const TC_H_ROOT: u32 = 0xffff_ffff;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
pub(crate) const LINKLAYER_ETHERNET: u8 = 1;
