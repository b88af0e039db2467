//! Rules of groups within devices, as the router's programs look them up: by the longest prefix of
//! an address or a port, among the packets of one class.
//!
//! A range of ports becomes a few prefixes. Where ranges of two groups overlap, the policy's first
//! group has the ports, so ranges are cut before they become prefixes.

use std::collections::BTreeMap;

use fairweir_core::policy::Match;
use ipnet::IpNet;

use crate::bpf::abi::{LeafKey, Plain};
use crate::bpf::{Table, header};
use crate::classify::ports::port_tables;

/// The bit of a rule, next to the slot, that says that the group contains groups.
pub(crate) const RULE_HAS_GROUPS: u16 = header::RULE_HAS_GROUPS as u16;

/// The rules added so far; groups are added in the order of the policy.
#[derive(Default)]
pub(crate) struct LeafRules {
    table: Table,
    /// The rule of each port, by the outer group's slot and the kind of key.
    ports: BTreeMap<(u16, u8), BTreeMap<u16, u32>>,
}

impl LeafRules {
    /// Makes `criterion` lead from the class `above` to `rule`; an entry keeps its first rule.
    pub(crate) fn add(&mut self, criterion: &Match, above: u16, rule: u32) {
        match criterion {
            Match::Ip(net) => {
                let (kind, address) = match net {
                    IpNet::V4(net) => (header::LEAF_IP4, net.network().octets().to_vec()),
                    IpNet::V6(net) => (header::LEAF_IP6, net.network().octets().to_vec()),
                };
                let key = key(above, kind as u8, &address, net.prefix_len().into());
                self.table.entry(key).or_insert(rule);
            }
            Match::Port(ports) => {
                for table in port_tables(ports) {
                    let kind = header::LEAF_PORTS as u8 + table as u8;
                    let of_kind = self.ports.entry((above, kind)).or_default();
                    for port in ports.first..=ports.last {
                        of_kind.entry(port).or_insert(rule);
                    }
                }
            }
            Match::Class(number) => {
                let key = key(above, header::LEAF_CLASSES as u8, &[number + 1], u8::BITS);
                self.table.entry(key).or_insert(rule);
            }
            // Names have labels, see `LeafRules::add_label`. A policy has no other kind beneath a group.
            Match::Web(_)
            | Match::App(_)
            | Match::Unit(_)
            | Match::Cgroup(_)
            | Match::User(_)
            | Match::Mac(_)
            | Match::Lan(_)
            | Match::Host(_) => {}
        }
    }

    /// Makes flows of the sites with this label lead from the class `above` to `rule`.
    pub(crate) fn add_label(&mut self, label: usize, above: u16, rule: u32) {
        let bound = label_rule(label).to_ne_bytes();
        self.table.insert(key(above, header::LEAF_SITES as u8, &bound, u32::BITS), rule);
    }

    /// The entries of the kernel's table.
    pub(crate) fn into_table(mut self) -> Table {
        for ((above, kind), ports) in self.ports {
            for (first, bits, rule) in prefixes(&ports) {
                self.table.insert(key(above, kind, &first.to_be_bytes(), bits), rule);
            }
        }
        self.table
    }
}

/// The rule of a router's flow whose host has this label ([`fairweir_core::sites::InnerSites`]); 0
/// is no rule.
pub(crate) fn label_rule(label: usize) -> u32 {
    label as u32 + 1
}

fn key(above: u16, kind: u8, value: &[u8], bits: u32) -> Vec<u8> {
    let mut key = LeafKey {
        length: header::LEAF_HEADER_BITS + bits,
        slot: above.to_be_bytes(),
        kind,
        pad: 0,
        value: [0; 16],
    };
    key.value[..value.len()].copy_from_slice(value);
    key.as_bytes().to_vec()
}

/// The fewest prefixes that give each port its rule: first port, length in bits, rule.
fn prefixes(ports: &BTreeMap<u16, u32>) -> Vec<(u16, u32, u32)> {
    let mut all = Vec::new();
    let mut next = 0u32;
    while let Some((&first, &rule)) = u16::try_from(next).ok().and_then(|n| ports.range(n..).next())
    {
        let first = u32::from(first);
        let has_rule =
            |port: u32| u16::try_from(port).is_ok_and(|port| ports.get(&port) == Some(&rule));
        // The largest block that begins here, is aligned, and has this rule throughout.
        let mut size = 1;
        while first % (size * 2) == 0 && (first + size..first + size * 2).all(has_rule) {
            size *= 2;
        }
        all.push((first as u16, 16 - size.ilog2(), rule));
        next = first + size;
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_is_few_prefixes() {
        let range = |first: u16, last: u16| (first..=last).map(|port| (port, 7)).collect();
        assert_eq!(prefixes(&range(443, 443)), [(443, 16, 7)]);
        assert_eq!(prefixes(&range(0, 65_535)), [(0, 0, 7)]);
        assert_eq!(
            prefixes(&range(8_000, 8_010)),
            [(8_000, 13, 7), (8_008, 15, 7), (8_010, 16, 7)]
        );
        assert!(prefixes(&range(1, 65_534)).len() <= 30);
        assert!(prefixes(&BTreeMap::new()).is_empty());
    }

    proptest! {
        #[test]
        fn each_port_keeps_its_rule(
            mut ports in btree_map(0..200u16, 1..3u32, 0..150), high in any::<bool>(),
        ) {
            if high {
                ports = ports.into_iter().map(|(port, rule)| (port + (u16::MAX - 199), rule)).collect();
            }
            let all = prefixes(&ports);
            for port in 0..=u16::MAX {
                let is_in = |&&(first, bits, _): &&(u16, u32, u32)| {
                    bits == 0 || port >> (16 - bits) == first >> (16 - bits)
                };
                let found: Vec<_> = all.iter().filter(is_in).map(|p| p.2).collect();
                let wanted: Vec<u32> = ports.get(&port).copied().into_iter().collect();
                prop_assert_eq!(found, wanted);
            }
        }
    }
}
