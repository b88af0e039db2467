//! The classifier without a device: packets in, verdicts out, for tests and benchmarks.

use fairweir_core::policy::Policy;
use fairweir_core::sites::{self, Command, Connection};
use fairweir_core::units::{Bytes, Span, Time};
use libbpf_rs::{MapCore, MapFlags};

use super::programs::{Egress, Programs};
use super::windows;
use crate::Error;
use crate::bpf::abi::{
    Config, FEATURE_CENSUS, FEATURE_TRANSIT, Flow, Plain, RECENT_SETS_MAX, RecentControl,
};
use crate::bpf::trial::{self, LOOPBACK, PASS};
use crate::bpf::{bpf_error, update};
use crate::classify::cgroup::{self, Tree};
use crate::classify::rules::{self, Rules};
use crate::classify::site;
use crate::net::netlink::u32_at;
use crate::net::netns::Netns;
use crate::window::connections::{Pass, samples};

/// A loaded classifier with the rules of a policy.
pub struct Trial {
    programs: Programs,
    slots: Vec<u16>,
    config: Config,
}

/// A packet as the classifier sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packet<'p> {
    /// The bytes from the Ethernet header on.
    pub bytes: &'p [u8],
    /// How many packets of the wire GRO has merged into this one; 0 if it is one packet.
    pub segments: u32,
    /// Payload bytes of each of these packets.
    pub segment_size: u32,
}

/// What the classifier did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it was redirected to the class; otherwise it passed.
    pub redirected: bool,
    /// Index, in the policy's order, of the group that it was counted for.
    pub group: Option<usize>,
    /// Bytes that were counted.
    pub received: Bytes,
    /// Packets that were counted.
    pub packets: u64,
    /// The class that was stamped on it.
    pub class: u16,
    /// How long one run took.
    pub span: Span,
}

impl Trial {
    /// Loads the classifier with the rules of `policy`, not enforcing; if the policy asks for
    /// owners of sockets, learns them from now on.
    ///
    /// # Errors
    /// As for [`crate::Host::attach`].
    pub fn new(policy: &Policy, census: bool) -> Result<Trial, Error> {
        let mut programs = Programs::load(Egress::default())?;
        let slots = rules::assign_slots(policy, &Default::default());
        let tree = cgroup::root().map(|root| Tree::read(&root)).unwrap_or_default();
        let rules = Rules::new(policy, &slots, &tree)?;
        programs.set_rules(&Rules::default(), &rules)?;
        let owners = rules::needs_owners(policy);
        if owners || census {
            programs.attach_owners()?;
        }
        let config = Config {
            ifb: 1,
            generation: 1,
            features: rules.features(owners) | if census { FEATURE_CENSUS } else { 0 },
            default_slot: slots[policy.default_group()].into(),
            l2_header: 14,
            recent: RecentControl::new(RECENT_SETS_MAX)?,
            ..Config::default()
        };
        programs.configure(&config)?;
        Ok(Trial { programs, slots, config })
    }

    /// Times packets of the connections that are open on the loopback device.
    ///
    /// # Errors
    /// If the kernel cannot watch connections.
    pub fn time_packets(&mut self) -> Result<(), Error> {
        self.config.features |= FEATURE_TRANSIT;
        self.config.device = LOOPBACK;
        self.programs.configure(&self.config)?;
        let known = Pass::new(&self.programs.program("fairweir_bound")?)?;
        known.run(&Netns::current()?, &mut Vec::new())
    }

    /// Number of timed packets, over the connections that have received something.
    ///
    /// # Errors
    /// If the kernel cannot watch connections.
    pub fn timed(&self) -> Result<u32, Error> {
        let mut told = Vec::new();
        windows::watch(&self.programs)?.run(&Netns::current()?, &mut told)?;
        Ok(samples(&told, &self.slots).iter().filter_map(|s| s.transit).map(|t| t.samples).sum())
    }

    /// Creates a flow and binds it to a group of the policy, as if it had packets at the last
    /// heartbeat, before it has any.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn bind(&self, flow: &sites::Flow, group: usize) -> Result<(), Error> {
        let rule = rules::rule(group, self.slots[group]);
        let seen_ns = self.config.heartbeat_ns;
        let state = Flow { seen_ns, number: 1, rule, ..Flow::default() };
        let map = &self.programs.maps.hearing()?.flows;
        update(map, site::key(flow).as_bytes(), state.as_bytes())
    }

    /// Binds a known flow to another group, as a daemon does.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn bind_anew(&mut self, flow: &sites::Flow, group: usize) -> Result<(), Error> {
        let connection = Connection { flow: *flow, opened: 0 };
        let rule = |group| rules::rule(group, self.slots[group]);
        let (group, number) = (Some(group), 1);
        let bound = Command::Bind { connection, group, number, is_final: true, is_watched: false };
        if site::bind(&self.programs.maps.hearing()?.flows, rule, &bound)? {
            self.config.recent.forget();
        }
        self.programs.configure(&self.config)
    }

    /// Reduces the table of recent flows to one set.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remember_little(&mut self) -> Result<(), Error> {
        self.config.recent.sets = 1;
        self.programs.configure(&self.config)
    }

    /// The words of the kernel's table of recent flows.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remembered(&self) -> Result<Vec<u64>, Error> {
        let map = self.programs.map("recent_sets")?;
        let mut words = Vec::new();
        for set in 0..self.config.recent.sets {
            let found = map.lookup(&set.to_ne_bytes(), MapFlags::ANY);
            let found = found.map_err(|e| bpf_error("look up what is remembered", &e))?;
            let found = found.unwrap_or_default();
            let (eight, _) = found.as_chunks::<8>();
            words.extend(eight.iter().map(|word| u64::from_ne_bytes(*word)));
        }
        words.retain(|word| *word != 0);
        Ok(words)
    }

    /// Runs the program that hears connections `repeat` times on a leaving packet; returns one run's time.
    ///
    /// # Errors
    /// As for [`Trial::run`].
    pub fn run_sent(&self, bytes: &[u8], repeat: u32) -> Result<Span, Error> {
        let program = self.programs.program("fairweir_hear")?;
        let ran = trial::run(&program, &[], bytes, repeat)?;
        assert!(ran.verdict == PASS, "what hears never drops: {}", ran.verdict);
        Ok(ran.span)
    }

    /// Enforces, with a heartbeat at `heartbeat`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn enforce(&mut self, heartbeat: Time) -> Result<(), Error> {
        self.config.enforce = 1;
        self.config.heartbeat_ns = heartbeat.as_nanos();
        self.programs.configure(&self.config)
    }

    /// Runs the classifier `repeat` times on a packet that arrives at the loopback device.
    ///
    /// # Errors
    /// If the kernel refuses the packet, for example one without an Ethernet header.
    pub fn run(&self, packet: &Packet, repeat: u32) -> Result<Verdict, Error> {
        let before = self.programs.counters()?;
        let fields = [(GSO_SEGS, packet.segments), (GSO_SIZE, packet.segment_size)];
        let ran = trial::run(&self.programs.classifier()?, &fields, packet.bytes, repeat)?;
        let verdict = ran.verdict;
        assert!(verdict == PASS || verdict == REDIRECT, "the classifier never drops: {verdict}");
        let after = self.programs.counters()?;
        let counted = |slot: &u16| {
            let slot = usize::from(*slot);
            (after.slots[slot].bytes - before.slots[slot].bytes)
                .max(after.slots[slot].packets - before.slots[slot].packets)
                > 0
        };
        let group = self.slots.iter().position(counted);
        let change = group.map_or((0, 0), |group| {
            let slot = usize::from(self.slots[group]);
            let (after, before) = (after.slots[slot], before.slots[slot]);
            (after.bytes - before.bytes, after.packets - before.packets)
        });
        Ok(Verdict {
            redirected: verdict == REDIRECT,
            group,
            received: Bytes::new(change.0 / u64::from(repeat.max(1))),
            packets: change.1 / u64::from(repeat.max(1)),
            class: u32_at(&ran.context, PRIORITY).map_or(0, |priority| priority as u16),
            span: ran.span,
        })
    }
}

/// Fields of `struct __sk_buff`.
const PRIORITY: usize = 32;
const GSO_SEGS: usize = 164;
const GSO_SIZE: usize = 176;
/// TC_ACT_REDIRECT.
const REDIRECT: i32 = 7;
