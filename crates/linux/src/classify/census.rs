use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fairweir_core::units::Bytes;
use ipnet::IpNet;

use crate::bpf::abi::{self, Counter};
use crate::bpf::header;
use crate::classify::cgroup::Tree;
use crate::net::netlink::text;

/// How much a talker received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Talker {
    /// The talker; what one application received is also counted for its user, cgroup and senders.
    pub who: Who,
    /// L2 bytes as on the wire.
    pub received: Bytes,
    /// Packets as on the wire.
    pub packets: u64,
}

/// A local receiver, or a remote sender.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Base name of the executable.
    App(String),
    /// Number of the user.
    User(u32),
    /// Path of the cgroup below the root of the hierarchy; a number if it is gone.
    Cgroup(String),
    /// The senders' prefix: a /24 or a /48.
    Address(IpNet),
}

/// The census as the kernel counted it.
pub(crate) fn talkers(counted: &[(abi::Talker, Counter)], tree: &Tree) -> Vec<Talker> {
    let paths = tree.paths();
    let number = |value: &[u8]| {
        u64::from_ne_bytes(value[..8].try_into().expect("invariant: values have 64 bytes"))
    };
    let who = |talker: &abi::Talker| {
        let value = &talker.value;
        Some(match talker.kind as u32 {
            header::TALKER_APP => Who::App(text(value)),
            header::TALKER_USER => Who::User(number(value) as u32),
            header::TALKER_CGROUP => {
                let id = number(value);
                Who::Cgroup(paths.get(&id).map_or_else(|| id.to_string(), |p| (*p).to_owned()))
            }
            header::TALKER_PREFIX4 => {
                let octets = [value[0], value[1], value[2], value[3]];
                Who::Address(prefix(Ipv4Addr::from(octets).into(), 24)?)
            }
            header::TALKER_PREFIX6 => {
                let octets: [u8; 16] = value[..16].try_into().ok()?;
                Who::Address(prefix(Ipv6Addr::from(octets).into(), 48)?)
            }
            _ => return None,
        })
    };
    let talker = |(talker, counter): &(abi::Talker, Counter)| {
        let received = Bytes::new(counter.bytes);
        Some(Talker { who: who(talker)?, received, packets: counter.packets })
    };
    counted.iter().filter_map(talker).collect()
}

fn prefix(address: IpAddr, length: u8) -> Option<IpNet> {
    IpNet::new(address, length).ok()
}
