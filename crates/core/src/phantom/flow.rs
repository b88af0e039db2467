//! Which leaf a packet goes to: its class by what its headers say, its queue in the class by a hash
//! of its flow. The kernel program computes the same (`crates/linux/bpf/police.bpf.c`).

use std::net::IpAddr;

use super::plan::{Choice, Criterion, Plan};
use crate::packet::{Side, Transport};
use crate::policy::PortMatch;

/// The header fields that decide which leaf a packet belongs to. All packets of a flow have the
/// same values, so a fragment (the first one too) has no ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Address of the other end.
    pub remote: IpAddr,
    /// Address of the subscriber.
    pub local: IpAddr,
    /// Number of the protocol above IP.
    pub protocol: u8,
    /// TCP's or UDP's ports, remote and local; zero if there are none.
    pub ports: (u16, u16),
    /// The six bits of the DSCP; the hash does not include them.
    pub dscp: u8,
}

const TCP: u8 = 6;
const UDP: u8 = 17;

impl Plan {
    /// The leaves of each class, in the order of the classes; one entry if there are no classes.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// The weight of each leaf among the children of its parent.
    pub fn leaf_weights(&self) -> Vec<u16> {
        self.leaves.iter().map(|leaf| leaf.weight).collect()
    }

    /// The leaf of a packet: the first class with a match that fits, and the flow's queue in it.
    pub fn leaf_of(&self, flow: &Flow) -> usize {
        let fits = |choice: &Choice| choice.matches.iter().any(|one| one.fits(flow));
        let index = self.choices.iter().position(fits).unwrap_or(self.choice_default);
        self.leaf_in(index, flow)
    }

    /// The leaf of a packet of this class: its flow's queue in it.
    pub fn leaf_in(&self, class: usize, flow: &Flow) -> usize {
        let choice = &self.choices[class];
        let queue = (u64::from(flow.hash()) * u64::from(choice.count)) >> 32;
        usize::from(choice.first) + queue as usize
    }
}

impl Flow {
    /// A hash of both addresses, the ports and the protocol, evenly spread over 32 bits.
    pub fn hash(&self) -> u32 {
        let ports = u32::from(self.ports.0) << 16 | u32::from(self.ports.1);
        let mut hash = mix(mix(SEED, u32::from(self.protocol)), ports);
        for address in [self.remote, self.local] {
            match address {
                IpAddr::V4(v4) => hash = mix(hash, v4.to_bits()),
                IpAddr::V6(v6) => {
                    for word in 0..4 {
                        hash = mix(hash, (v6.to_bits() >> (96 - 32 * word)) as u32);
                    }
                }
            }
        }
        hash ^ (hash >> 16)
    }
}

/// Takes another word into a hash: xor, a multiplication by 2³²/φ, and high bits down to low ones.
fn mix(hash: u32, word: u32) -> u32 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b1);
    hash ^ (hash >> 15)
}

const SEED: u32 = 0x6661_6972;

impl Criterion {
    fn fits(&self, flow: &Flow) -> bool {
        match self {
            Criterion::Dscp(dscp) => *dscp == flow.dscp,
            Criterion::Ip(prefix) => prefix.contains(&flow.remote),
            Criterion::Port(ports) => ports.fits(flow),
        }
    }
}

impl PortMatch {
    fn fits(&self, flow: &Flow) -> bool {
        let port = match self.side {
            Side::Remote => flow.ports.0,
            Side::Local => flow.ports.1,
        };
        let has_ports = match self.transport {
            Some(Transport::Tcp) => flow.protocol == TCP,
            Some(Transport::Udp) => flow.protocol == UDP,
            None => flow.protocol == TCP || flow.protocol == UDP,
        };
        has_ports && port != 0 && (self.first..=self.last).contains(&port)
    }
}
