//! The router's programs without devices, for benchmarks.

use std::os::fd::{AsFd, AsRawFd};

use fairweir_core::policy::Policy;
use fairweir_core::units::{Bytes, Span};

use super::FEATURES_OF_RULES;
use super::programs::{Parts, Programs, RECENT_SETS};
use crate::bpf::abi::{RecentControl, RouterConfig};
use crate::bpf::header::FEATURE_MACS;
use crate::bpf::trial::{self, LOOPBACK, PASS};
use crate::classify::cgroup::Tree;
use crate::classify::rules::{self, Rules};
use crate::{Error, monotonic_now};

/// The loaded programs with the rules of a policy; both devices are the loopback device.
pub struct Trial {
    programs: Programs,
    config: RouterConfig,
}

/// A program of the router, by the packets that it handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Packets from the Internet.
    WanIngress,
    /// Packets to a device.
    LanEgress,
    /// Packets from a device.
    LanIngress,
    /// Packets from a device, too, if the policy has sites.
    Hear,
}

impl Trial {
    /// Loads the programs, which set classes as if a daemon were alive for an hour.
    ///
    /// # Errors
    /// As for [`crate::Router::attach`].
    pub fn new(policy: &Policy) -> Result<Trial, Error> {
        let sites = rules::needs_sites(policy);
        let programs = Programs::load(Parts { sites, ..Parts::default() })?;
        let slots = rules::assign_slots(policy, &Default::default());
        let rules = Rules::new(policy, &slots, &Tree::default())?;
        programs.set_rules(&Rules::default(), &rules)?;
        let macs = if rules.macs.is_empty() { 0 } else { FEATURE_MACS };
        let mut config = RouterConfig {
            heartbeat_ns: monotonic_now().as_nanos() + HOUR_NS,
            enforce: 1,
            features: rules.features(false) & FEATURES_OF_RULES | macs,
            default_slot: rules::slot_of(policy, policy.default_group(), &slots).into(),
            wans: [LOOPBACK, 0, 0, 0],
            lan_header: ETHERNET,
            wan_header: ETHERNET,
            recent: RecentControl::new(RECENT_SETS)?,
            ..RouterConfig::default()
        };
        config.lans[0].index = LOOPBACK;
        programs.configure(&config)?;
        Ok(Trial { programs, config })
    }

    /// Begins another interval, as user space does in each tick.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn begin_interval(&mut self) -> Result<(), Error> {
        self.config.interval = self.config.interval.wrapping_add(1);
        self.programs.configure(&self.config)
    }

    /// Runs a program `repeat` times on a frame; returns how long one run took.
    ///
    /// # Errors
    /// If the kernel refuses the frame.
    pub fn run(&self, hook: Hook, frame: &[u8], repeat: u32) -> Result<Span, Error> {
        let (name, from) = match hook {
            Hook::WanIngress => ("fairweir_wan_ingress", 0),
            Hook::LanEgress => ("fairweir_lan_egress", LOOPBACK),
            Hook::LanIngress => ("fairweir_lan_ingress", 0),
            Hook::Hear => ("fairweir_hear", 0),
        };
        let fields = [(INGRESS_IFINDEX, from)];
        let ran = trial::run(&self.programs.program(name)?, &fields, frame, repeat)?;
        assert_eq!(ran.verdict, PASS, "the router never drops");
        Ok(ran.span)
    }

    /// Number of followed connections.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn connections(&self) -> Result<usize, Error> {
        let mut count = 0;
        self.programs.each_flow(|_, flow| count += usize::from(flow.received > 0))?;
        Ok(count)
    }

    /// The memory that the kernel reports for the tables (`memlock`).
    ///
    /// # Errors
    /// If the kernel does not report it.
    pub fn memory(&self) -> Result<Bytes, Error> {
        let mut sum = 0;
        for map in self.programs.maps() {
            let map = map?;
            let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
            let text = std::fs::read_to_string(&path).map_err(|e| Error::refused(&path, e))?;
            let line = text.lines().find_map(|line| line.strip_prefix("memlock:"));
            sum += line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Bytes::new(sum))
    }
}

/// A field of `struct __sk_buff`.
const INGRESS_IFINDEX: usize = 36;
const ETHERNET: u32 = 14;
const HOUR_NS: u64 = 3_600_000_000_000;
