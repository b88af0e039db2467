//! The state of connections outlives the router's process.
//!
//! Problem: the window scale of a connection is told only when it opens. A daemon that restarts while downloads
//! run would not know their scale, and could only drop packets that have already crossed the link. Method: the
//! table of connections is pinned, and the next daemon takes over what stays valid: the scale, round trips, the
//! segment size. What connections received or acknowledged meanwhile was not seen, so that begins anew.
//!
//! Properties: a table that was not in use within the last minute is useless, since a connection could have
//! ended and another could have its ports; the next daemon, of any network namespace, removes it. A table of
//! another layout (the hash of the compiled programs) is not read. Without a BPF file system nothing is kept.
//!
//! Below the BPF file system: `fairweir-router/NETNS-LAN-LAYOUT/`, with `flows` and `config`, which has the heartbeat.

use std::os::fd::AsFd;
use std::path::Path;

use fairweir_core::units::{Span, Time};
use libbpf_rs::{MapCore, MapFlags};

use super::programs::{OBJECT, Programs};
use crate::Error;
use crate::bpf::abi::{FlowKey, Plain, RouterConfig, RouterFlow};
use crate::bpf::header::{FLOW_ENDED, FLOW_OPEN};
use crate::bpf::pinned::{ROOT, directory, entries, escaped, layout, open, pin, remove};
use crate::bpf::{KEY, each_entry, update};
use crate::net::netns::Netns;

/// Takes over a previous process's table of connections of `lan`, and keeps this process's table.
///
/// # Errors
/// Without a BPF file system, or if others may write there.
pub(super) fn take_over(lan: &str, programs: &Programs, now: Time) -> Result<(), Error> {
    let dir = directory(&[OURS, &name(lan)?])?;
    if is_in_use(&dir, now)
        && let Err(e) = copy(&dir.join(FLOWS), programs)
    {
        tracing::debug!(error = %e, "no connections are known from before");
    }
    pin(programs.config.as_fd(), &dir.join(CONFIG))?;
    pin(programs.flows.as_fd(), &dir.join(FLOWS))?;
    for (_, other) in entries(&Path::new(ROOT).join(OURS))? {
        if other != dir && !is_in_use(&other, now) {
            remove(&other)?;
        }
    }
    Ok(())
}

/// Forgets the connections of the router of this LAN, or of all of this network namespace.
///
/// # Errors
/// If the pins cannot be removed.
pub fn forget(lan: Option<&str>) -> Result<(), Error> {
    let of_lan = lan.map(|lan| format!("{}-", escaped(lan))).unwrap_or_default();
    let begin = format!("{}-{of_lan}", Netns::current_cookie()?);
    for (name, path) in entries(&Path::new(ROOT).join(OURS))? {
        if name.starts_with(&begin) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Whether the tables in `dir` were in use within the last minute.
fn is_in_use(dir: &Path, now: Time) -> bool {
    let config = open(&dir.join(CONFIG)).ok();
    let bytes = config.and_then(|config| config.lookup(&KEY, MapFlags::ANY).ok()?);
    let config = bytes.and_then(|bytes| RouterConfig::from_bytes(&bytes));
    let used_at = config.map(|config| Time::from_nanos(config.heartbeat_ns));
    used_at.is_some_and(|at| now.since(at) < UNUSED_MAX)
}

fn copy(flows: &Path, programs: &Programs) -> Result<(), Error> {
    let mut known = Vec::new();
    each_entry(&open(flows)?, |key: FlowKey, flow: RouterFlow| {
        known.extend(lasting(&flow).map(|flow| (key, flow)));
    })?;
    known
        .iter()
        .try_for_each(|(key, flow)| update(&programs.flows, key.as_bytes(), flow.as_bytes()))
}

/// The part of a connection's state that stays valid without a program; `None` if it cannot be bounded, or ends.
fn lasting(flow: &RouterFlow) -> Option<RouterFlow> {
    let flags = u32::from(flow.flags);
    (flags & FLOW_OPEN != 0 && flags & FLOW_ENDED == 0).then(|| RouterFlow {
        id: flow.id,
        wscale: flow.wscale,
        flags: FLOW_OPEN as u8,
        segment: flow.segment,
        window: flow.window,
        wan_rtt_us: flow.wan_rtt_us,
        lan_rtt_us: flow.lan_rtt_us,
        ..RouterFlow::default()
    })
}

fn name(lan: &str) -> Result<String, Error> {
    Ok(format!("{}-{}-{}", Netns::current_cookie()?, escaped(lan), layout(OBJECT)))
}

const OURS: &str = "fairweir-router";
const FLOWS: &str = "flows";
const CONFIG: &str = "config";
/// Clients keep a port for a minute after a connection.
const UNUSED_MAX: Span = Span::secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_received_or_acknowledged_begins_anew_and_what_ends_is_left_out() {
        let open = RouterFlow {
            id: 7,
            wscale: 9,
            flags: FLOW_OPEN as u8,
            wan_rtt_us: 20_000,
            ..RouterFlow::default()
        };
        let busy = RouterFlow { received: 5, begun_ns: 6, ack: 7, edge: 8, flags: 0xff, ..open };
        let busy = RouterFlow { flags: busy.flags & !FLOW_ENDED as u8, ..busy };
        assert_eq!(lasting(&busy).unwrap().as_bytes(), open.as_bytes());
        for flags in [0, FLOW_OPEN | FLOW_ENDED] {
            assert!(lasting(&RouterFlow { flags: flags as u8, ..busy }).is_none());
        }
    }
}
