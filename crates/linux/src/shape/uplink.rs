//! The classes of an upload, at the root of the device that faces the Internet.
//!
//! ```text
//! fa17: htb ── fa17:ffff (the total) ─┬─ fa17:fffe (small ICMP)  ── tbf ── queue
//!                                     ├─ fa17:fffd (acknowledgements)  ── queue
//!                                     ├─ fa17:1 (slot 0)        ── tbf ── queue
//!                                     ├─ fa17:2 (slot 1)        ── tbf ── queue …
//!                                     └─ fa17:fff0 (a device) ─┬─ fa17:3 (slot 2, its group) ── tbf ── queue
//!                                                              └─ …
//! ```
//! Groups of a device are beneath a class of the device, so that they borrow from each other first.
//!
//! TBF, at a rate for which no packet waits, cuts super-packets (GSO, GRO) into packets: at 10
//! Mbit/s one super-packet would delay the others by 50 ms. The queue is fq_codel where the kernel
//! has it, otherwise a FIFO of 100 ms. The queue of acknowledgements drops the oldest.
//!
//! The qdisc exists only while something is enforced, so that a device without limits keeps its
//! previous queue. Source: tc-tbf(8), tc-fq_codel(8), linux/pkt_sched.h.

use std::collections::BTreeMap;

use fairweir_core::policy::GROUPS_MAX;
use fairweir_core::receiver::ClassSpec;
use fairweir_core::units::{Bytes, Rate};
use fairweir_core::upload::{ACK, UploadClass, UploadClasses, burst};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::Error;
use crate::bpf::abi::{Counter, FEATURE_UPLOAD, UploadCounters};
use crate::bpf::header::{ACKS_MINOR, ICMP_MINOR};
use crate::bpf::{KEY, bpf_error};
use crate::net::link::Link;
use crate::net::netlink::{Nest, Netlink, Request, tcmsg};
use crate::shape::htb::{
    self, ClassCount, LINKLAYER_ETHERNET, PARENT, QUEUE_MAJOR, ROOT, class_request, minor,
};
use crate::shape::ifb;

/// What left since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadSample {
    /// What the groups offered, in the policy's order, before their classes.
    pub groups: Vec<UploadGroup>,
    /// Bytes that left by the device.
    pub sent: Bytes,
    /// The part of `sent` that was neither acknowledgements nor small ICMP.
    pub data: Bytes,
    /// Acknowledgements and small ICMP that came to the device, before their classes.
    pub first: Bytes,
    /// Bytes that wait in all classes.
    pub backlog: Bytes,
}

/// One group's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UploadGroup {
    /// L2 bytes that came to the device.
    pub offered: Bytes,
    /// Packets that its class dropped.
    pub drops: u64,
    /// Bytes that wait in its class.
    pub backlog: Bytes,
}

/// The upload of a host or a router that shares it.
pub struct Upload<'p> {
    pub(crate) uplink: &'p mut Uplink,
    pub(crate) netlink: &'p mut Netlink,
    /// The device that faces the Internet.
    pub(crate) device: &'p Link,
    /// The class of each group, in the policy's order.
    pub(crate) slots: &'p [u16],
    pub(crate) shape: bool,
    pub(crate) features: &'p mut u32,
    /// Tells the programs their features.
    pub(crate) configure: Configure<'p>,
}

/// See [`Upload`].
pub(crate) type Configure<'p> = Box<dyn Fn(u32) -> Result<(), Error> + 'p>;

impl Upload<'_> {
    /// What left since the last call.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn take(&mut self) -> Result<UploadSample, Error> {
        self.uplink.take(self.netlink, self.device, self.slots)
    }

    /// Sets the classes to `plan`, and lets packets have them; does nothing if packets are only counted.
    ///
    /// # Errors
    /// If the kernel refuses, or the device has another root qdisc now; then everything leaves
    /// unshaped.
    pub fn apply(&mut self, plan: &UploadClasses) -> Result<(), Error> {
        if !self.shape {
            return Ok(());
        }
        if let Err(e) = self.uplink.apply(self.netlink, self.device, self.slots, plan) {
            self.release()?;
            return Err(e);
        }
        self.enforce(true)
    }

    /// Lets everything leave unshaped until the next [`Upload::apply`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn release(&mut self) -> Result<(), Error> {
        self.enforce(false)?;
        self.uplink.release(self.netlink, self.device)
    }

    fn enforce(&mut self, enforces: bool) -> Result<(), Error> {
        *self.features &= !FEATURE_UPLOAD;
        if enforces {
            *self.features |= FEATURE_UPLOAD;
        }
        (self.configure)(*self.features)
    }

    /// Whether flows have queues of their own within a class, as far as is known.
    pub fn has_flow_queues(&self) -> bool {
        self.uplink.has_fq
    }
}

/// The classes, and their last counters.
pub(crate) struct Uplink {
    counters: MapHandle,
    has_root: bool,
    has_fq: bool,
    packet: Bytes,
    /// The existing classes, each with the class above it.
    made: BTreeMap<u16, (ClassSpec, u16)>,
    counted: Box<UploadCounters>,
    classes: BTreeMap<u16, ClassCount>,
}

impl Uplink {
    /// No class exists yet; `counters` is the map with the programs' counts.
    ///
    /// # Errors
    /// [`Error::Occupied`] if the device has a root qdisc of another program.
    pub(crate) fn new(
        netlink: &mut Netlink,
        device: &Link,
        counters: MapHandle,
    ) -> Result<Uplink, Error> {
        htb::refuse_if_occupied(netlink, device)?;
        Ok(Uplink {
            counters,
            has_root: false,
            has_fq: true,
            packet: Bytes::ZERO,
            made: BTreeMap::new(),
            counted: Box::new(UploadCounters::default()),
            classes: BTreeMap::new(),
        })
    }

    /// Sets the classes of `slots` to the plan, only where they differ.
    ///
    /// # Errors
    /// [`Error::Occupied`], or if the kernel refuses.
    fn apply(
        &mut self,
        netlink: &mut Netlink,
        device: &Link,
        slots: &[u16],
        plan: &UploadClasses,
    ) -> Result<(), Error> {
        self.packet = ifb::mtu(device) + Bytes::new(FRAMING);
        let wanted = wanted(slots, plan);
        // HTB cannot move a class below another one.
        let moves = |(minor, (_, above)): (&u16, &(ClassSpec, u16))| {
            wanted.get(minor).is_some_and(|wanted| wanted.1 != *above)
        };
        if self.made.iter().any(moves) {
            self.release(netlink, device)?;
        }
        if !self.has_root {
            htb::refuse_if_occupied(netlink, device)?;
            let attempted = format!("make the HTB qdisc of {}", device.name);
            netlink.change(&attempted, htb::root(device.index))?;
            self.has_root = true;
        }
        let attempted = format!("set the classes of {}", device.name);
        for (&minor, &(spec, above)) in wanted.iter().rev() {
            let before = self.made.get(&minor);
            if before == Some(&(spec, above)) {
                continue;
            }
            let is_new = before.is_none();
            let old_limit = before.and_then(|(spec, _)| spec.queue);
            let limit = |rate: Rate| burst(rate, self.packet);
            netlink
                .change(&attempted, class_request(device.index, (minor, above), &spec, &limit))?;
            match spec.queue {
                Some(limit) if minor == ACKS && old_limit != Some(limit) => {
                    self.make_queue_of_acks(netlink, device.index, limit)?;
                }
                Some(limit) if minor != ACKS && is_new => {
                    self.make_queue(netlink, device.index, minor, limit)?;
                }
                _ => {}
            }
            self.made.insert(minor, (spec, above));
        }
        let gone: Vec<u16> =
            self.made.keys().filter(|m| !wanted.contains_key(m)).copied().collect();
        for minor in gone {
            self.made.remove(&minor);
            let deleted = netlink.change(&attempted, htb::deletion(device.index, minor - 1));
            if let Err(e) = deleted {
                tracing::debug!(error = %e, "an unused class stays");
            }
        }
        Ok(())
    }

    /// Makes a TBF that only cuts packets, with a queue in it.
    fn make_queue(
        &mut self,
        netlink: &mut Netlink,
        device: u32,
        minor: u16,
        limit: Bytes,
    ) -> Result<(), Error> {
        let limit = u32::try_from(limit.as_u64()).unwrap_or(u32::MAX);
        let cutter = (QUEUE_MAJOR + u32::from(minor)) << 16;
        let at = tcmsg(device, cutter, ROOT | u32::from(minor));
        let mut parameters = vec![0, LINKLAYER_ETHERNET];
        parameters.resize(TBF_PARAMETERS_BYTES, 0);
        parameters[TBF_LIMIT_AT..][..4].copy_from_slice(&limit.to_ne_bytes());
        let options = Nest::default()
            .with(TCA_TBF_PARMS, &parameters)
            .with(TCA_TBF_RATE64, &NO_WAIT_BYTES_PER_S.to_ne_bytes())
            .with_u32(TCA_TBF_BURST, self.packet.as_u64() as u32);
        let request = Request::new(libc::RTM_NEWQDISC, CREATE, &at)
            .with_text(libc::TCA_KIND, "tbf")
            .with_nest(libc::TCA_OPTIONS, options);
        netlink.change("make the queue of a class", request)?;
        let at = ((FQ_MAJOR + u32::from(minor)) << 16, cutter | 1);
        self.make_fq(netlink, device, at, Nest::default())
    }

    /// Makes a queue of at most `limit`, which drops the oldest packet: where possible, of the flow with most packets.
    fn make_queue_of_acks(
        &mut self,
        netlink: &mut Netlink,
        device: u32,
        limit: Bytes,
    ) -> Result<(), Error> {
        let packets = (limit / ACK.as_u64()).as_u64() as u32;
        let at = ((QUEUE_MAJOR + u32::from(ACKS)) << 16, ROOT | u32::from(ACKS));
        self.make_fq(netlink, device, at, Nest::default().with_u32(TCA_FQ_CODEL_LIMIT, packets))?;
        if self.has_fq {
            return Ok(());
        }
        let request = Request::new(libc::RTM_NEWQDISC, CREATE, &tcmsg(device, at.0, at.1))
            .with_text(libc::TCA_KIND, "pfifo_head_drop")
            .with(libc::TCA_OPTIONS, &packets.to_ne_bytes());
        netlink.change("make the queue of acknowledgements", request)
    }

    /// Makes an fq_codel with this handle below this parent, if the kernel has it.
    fn make_fq(
        &mut self,
        netlink: &mut Netlink,
        device: u32,
        (handle, parent): (u32, u32),
        options: Nest,
    ) -> Result<(), Error> {
        if !self.has_fq {
            return Ok(());
        }
        let options = options
            .with_u32(TCA_FQ_CODEL_FLOWS, FLOWS)
            .with_u32(TCA_FQ_CODEL_MEMORY_LIMIT, MEMORY_BYTES_MAX);
        let request = Request::new(libc::RTM_NEWQDISC, CREATE, &tcmsg(device, handle, parent))
            .with_text(libc::TCA_KIND, "fq_codel")
            .with_nest(libc::TCA_OPTIONS, options);
        match netlink.change("make fq_codel", request) {
            Err(e) if e.errno() == Some(libc::ENOENT) => {
                self.has_fq = false;
                Ok(())
            }
            made => made,
        }
    }

    /// Gives the device its own queue again.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn release(&mut self, netlink: &mut Netlink, device: &Link) -> Result<(), Error> {
        self.made.clear();
        self.classes.clear();
        if !std::mem::take(&mut self.has_root) || !htb::is_there(netlink, device.index)? {
            return Ok(());
        }
        let attempted = format!("delete the HTB qdisc of {}", device.name);
        netlink.change(&attempted, htb::root_deletion(device.index))
    }

    /// The fault, in words; `None` if everything is as it was created.
    pub(crate) fn fault(
        &self,
        netlink: &mut Netlink,
        device: &Link,
    ) -> Result<Option<String>, Error> {
        if self.has_root && !htb::is_there(netlink, device.index)? {
            return Ok(Some(format!("the HTB qdisc of {} was deleted or replaced", device.name)));
        }
        Ok(htb::refuse_if_occupied(netlink, device).err().map(|e| e.to_string()))
    }

    /// What left since the last call.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn take(
        &mut self,
        netlink: &mut Netlink,
        device: &Link,
        slots: &[u16],
    ) -> Result<UploadSample, Error> {
        let counted = counted(&self.counters)?;
        let classes = match self.made.is_empty() {
            true => BTreeMap::new(),
            false => htb::counts(netlink, device.index)?,
        };
        // A packet that passes a branch also passes a leaf, so branches are not counted.
        let is_branch = |slot: &u16| (BRANCHES_END..ACKS - 1).contains(slot);
        let classes: BTreeMap<u16, ClassCount> =
            classes.into_iter().filter(|(slot, _)| !is_branch(slot)).collect();
        let before = std::mem::replace(&mut self.classes, classes);
        let counted_before = std::mem::replace(&mut self.counted, counted);
        let since = |now: Counter, before: Counter| Bytes::new(now.bytes - before.bytes);
        let class = |slot: u16| {
            let now = self.classes.get(&slot).copied().unwrap_or_default();
            (now, before.get(&slot).copied().unwrap_or_default())
        };
        let group = |&slot: &u16| {
            let (now, before) = class(slot);
            let i = usize::from(slot);
            UploadGroup {
                offered: since(self.counted.slots[i], counted_before.slots[i]),
                // The counter of a class that was created anew starts at zero.
                drops: now.drops.checked_sub(before.drops).unwrap_or(now.drops).into(),
                backlog: now.backlog,
            }
        };
        let groups: Vec<UploadGroup> = slots.iter().map(group).collect();
        let left = |(now, before): (ClassCount, ClassCount)| {
            let before = if before.sent > now.sent { Bytes::ZERO } else { before.sent };
            now.sent.saturating_sub(before)
        };
        let first = since(self.counted.first, counted_before.first);
        let (sent, data) = if self.made.is_empty() {
            let sent: Bytes = groups.iter().map(|group| group.offered).sum();
            (sent, sent.saturating_sub(first))
        } else {
            let of = |slot: &u16| left(class(*slot));
            let is_data = |slot: &&u16| **slot < ACKS - 1;
            let slots = || self.classes.keys();
            (slots().map(of).sum(), slots().filter(is_data).map(of).sum())
        };
        Ok(UploadSample {
            groups,
            sent,
            data,
            first,
            backlog: self.classes.values().map(|class| class.backlog).sum(),
        })
    }
}

/// The programs' counts at egress, summed over the CPUs.
fn counted(map: &MapHandle) -> Result<Box<UploadCounters>, Error> {
    let per_cpu = map.lookup_percpu(&KEY, MapFlags::ANY);
    let per_cpu = per_cpu.map_err(|e| bpf_error("read the counters", &e))?.unwrap_or_default();
    Ok(UploadCounters::sum(&per_cpu))
}

/// The classes that `plan` asks for, each with the class above it. Of two branches, the upper one
/// has the greater number, so that in descending order each class comes after the one above it.
fn wanted(slots: &[u16], plan: &UploadClasses) -> BTreeMap<u16, (ClassSpec, u16)> {
    let branch = |index: usize| BRANCHES - index as u16;
    let place = |class: &UploadClass| (class.spec, class.within.map_or(PARENT, branch));
    let leaves = slots.iter().map(|&slot| minor(slot)).zip(plan.groups.iter().map(place));
    let branches = plan.branches.iter().enumerate().map(|(i, class)| (branch(i), place(class)));
    let fixed = [(ACKS, plan.acks), (ICMP, plan.icmp), (PARENT, plan.parent)];
    let fixed = fixed.map(|(minor, spec)| (minor, (spec, PARENT)));
    leaves.chain(branches).chain(fixed).collect()
}

const ICMP: u16 = ICMP_MINOR as u16;
const ACKS: u16 = ACKS_MINOR as u16;
/// The class of the first branch; further branches have smaller numbers, all above those of slots.
const BRANCHES: u16 = 0xfff0;
const BRANCHES_END: u16 = BRANCHES - GROUPS_MAX as u16;
/// Bytes of an Ethernet header with two VLAN tags.
const FRAMING: u64 = 22;
/// The number of the queue within a TBF is this plus the number of its class.
const FQ_MAJOR: u32 = 0x300;
/// The flows of a class that fq_codel distinguishes; they take 20 kB.
const FLOWS: u32 = 256;
/// The maximum bytes that wait in a class.
const MEMORY_BYTES_MAX: u32 = 1 << 20;
/// At this rate a packet takes less than a nanosecond, which the kernel rounds to 0.
const NO_WAIT_BYTES_PER_S: u64 = 1 << 50;
const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// `struct tc_tbf_qopt`: two rates, limit, buffer, mtu.
const TBF_PARAMETERS_BYTES: usize = 36;
const TBF_LIMIT_AT: usize = 24;
const TCA_FQ_CODEL_LIMIT: u16 = 2;
const TCA_FQ_CODEL_FLOWS: u16 = 5;
const TCA_FQ_CODEL_MEMORY_LIMIT: u16 = 9;
