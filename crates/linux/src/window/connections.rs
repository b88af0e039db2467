//! Passes over the TCP connections of a network namespace, and the resulting records.
//!
//! A kernel iterator walks the connections of the namespace in which it is opened, so it is opened
//! in the device's namespace. It writes [`ConnectionRecord`]s, one for each connection that
//! received something since the last pass or has a bound.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};

use fairweir_core::receiver::{CONNECTIONS_MAX, ConnectionSample, TransitSample};
use fairweir_core::units::{Bytes, Span};
use libbpf_rs::{Link, MapHandle, ProgramMut};

use crate::Error;
use crate::bpf::abi::{ConnectionRecord, Plain};
use crate::bpf::bpf_error;
use crate::net::netns::Netns;

/// An iterator over connections, which can be run repeatedly.
pub(crate) struct Pass {
    link: Link,
    attempted: String,
}

impl Pass {
    /// A pass that runs `program`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn new(program: &ProgramMut<'_>) -> Result<Pass, Error> {
        let attempted = format!("run {} over the connections", program.name().to_string_lossy());
        let link = program.attach().map_err(|e| bpf_error(attempted.as_str(), &e))?;
        Ok(Pass { link, attempted })
    }

    /// A pass that runs `program` over the sockets in `map`, in all namespaces.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn over(program: &ProgramMut<'_>, map: &MapHandle) -> Result<Pass, Error> {
        let attempted = format!("run {} over the connections", program.name().to_string_lossy());
        let link = program.attach_iter(map.as_fd());
        let link = link.map_err(|e| bpf_error(attempted.as_str(), &e))?;
        Ok(Pass { link, attempted })
    }

    /// Walks the connections of `netns`, and leaves in `output` what the program wrote.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn run(&self, netns: &Netns, output: &mut Vec<u8>) -> Result<(), Error> {
        output.clear();
        let link = self.link.as_fd().as_raw_fd();
        let open = || {
            // SAFETY: the link is open; no flags are given.
            let descriptor = unsafe { libbpf_sys::bpf_iter_create(link) };
            // SAFETY: the descriptor is new and nothing else owns it.
            (descriptor >= 0).then(|| unsafe { File::from_raw_fd(descriptor) })
        };
        // Entering a namespace requires a thread, and privileges that a service may not have.
        let opened = if netns.is_current() { open() } else { netns.run(open) };
        let mut pass = opened.ok_or_else(|| Error::last_os(self.attempted.as_str()))?;
        // Reading runs the program.
        let read = pass.read_to_end(output);
        read.map(drop).map_err(|e| Error::refused(self.attempted.as_str(), e))
    }
}

/// The records in `output` as samples, sorted by id; `slots` are the classes of the groups. Of more
/// than [`CONNECTIONS_MAX`], the connections that received most are kept.
pub(crate) fn samples(output: &[u8], slots: &[u16]) -> Vec<ConnectionSample> {
    let records = output.chunks_exact(size_of::<ConnectionRecord>());
    let mut samples: Vec<ConnectionSample> = records
        .filter_map(ConnectionRecord::from_bytes)
        .filter_map(|record| sample(&record, slots))
        .collect();
    if samples.len() > CONNECTIONS_MAX {
        samples.sort_unstable_by_key(|s| (std::cmp::Reverse(s.received), s.id));
        samples.truncate(CONNECTIONS_MAX);
    }
    samples.sort_unstable_by_key(|s| s.id);
    samples
}

/// The number of the evidence that decided each connection's class, by cookie, if any.
pub(crate) fn evidence(output: &[u8]) -> BTreeMap<u64, u64> {
    let records = output.chunks_exact(size_of::<ConnectionRecord>());
    let records = records.filter_map(ConnectionRecord::from_bytes);
    records.filter(|record| record.number > 0).map(|r| (r.cookie, r.number)).collect()
}

/// `None` if the class no longer belongs to a group, because the policy has changed meanwhile.
fn sample(record: &ConnectionRecord, slots: &[u16]) -> Option<ConnectionSample> {
    let group = slots.iter().position(|&slot| slot == record.slot)?;
    let mean = |sum: i64| sum.checked_div(record.transit_samples.into());
    let transit = mean(record.transit_sum).map(|mean_ns| TransitSample {
        min_ns: record.transit_min,
        mean_ns,
        samples: record.transit_samples,
    });
    Some(ConnectionSample {
        id: record.cookie,
        group,
        received: Bytes::new(record.received),
        segments: record.segs_in.into(),
        holes: record.holes.into(),
        has_sent: record.segs_out > 0,
        rtt: (record.rtt_us > 0).then(|| Span::micros(record.rtt_us.into())),
        rtt_sent: (record.rtt_sent_us > 0).then(|| Span::micros(record.rtt_sent_us.into())),
        transit,
        window: Bytes::new(record.window_clamp.into()),
        advertised: Bytes::new(record.rcv_wnd.into()),
        asked: None,
        segment: Bytes::new(record.rcv_mss.into()),
        port: record.port_remote,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cookie: u64, received: u64) -> Vec<u8> {
        let record = ConnectionRecord {
            cookie,
            received,
            transit_min: -5,
            transit_sum: -9,
            transit_samples: 3,
            segs_in: 1,
            segs_out: 0,
            rtt_us: 0,
            rcv_wnd: 0,
            window_clamp: 7,
            rcv_mss: 1448,
            slot: 4,
            port_remote: 443,
            rcv_wscale: 7,
            state: 1,
            holes: 2,
            rtt_sent_us: 0,
            number: 0,
        };
        record.as_bytes().to_vec()
    }

    #[test]
    fn the_busiest_connections_are_kept_in_the_order_of_their_ids() {
        let many = CONNECTIONS_MAX as u64 + 10;
        // Later connections are busier.
        let output: Vec<u8> = (0..many).rev().flat_map(|i| record(i, 1_000 + i)).collect();
        let samples = samples(&output, &[3, 4]);
        assert_eq!(samples.len(), CONNECTIONS_MAX);
        assert!(samples.is_sorted_by_key(|s| s.id));
        assert_eq!(samples[0].id, 10);
        assert_eq!(samples[0].group, 1);
        assert_eq!(samples[0].rtt, None);
        let transit = TransitSample { min_ns: -5, mean_ns: -3, samples: 3 };
        assert_eq!((samples[0].transit, samples[0].holes), (Some(transit), 2));
    }

    #[test]
    fn a_class_that_is_no_groups_any_more_has_no_samples() {
        assert_eq!(samples(&record(1, 1), &[3]), []);
    }
}
