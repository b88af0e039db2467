//! The classifier's tables of ports, one for each transport and end.

use std::collections::BTreeMap;

use fairweir_core::packet::{Side, Transport};
use fairweir_core::policy::PortMatch;

use crate::bpf::abi::PORTS;

/// The rules of a table of ports as the classifier reads it.
pub(crate) fn port_table(rules: &BTreeMap<u16, u32>) -> Vec<u8> {
    let mut table = vec![0; PORTS * size_of::<u32>()];
    for (&port, rule) in rules {
        table[usize::from(port) * 4..][..4].copy_from_slice(&rule.to_ne_bytes());
    }
    table
}

/// Indices as `PORT_TABLE_*` in `bpf/abi.h`.
pub(crate) fn port_tables(ports: &PortMatch) -> Vec<usize> {
    let side = match ports.side {
        Side::Remote => 0,
        Side::Local => 2,
    };
    match ports.transport {
        Some(Transport::Tcp) => vec![side],
        Some(Transport::Udp) => vec![side + 1],
        None => vec![side, side + 1],
    }
}
