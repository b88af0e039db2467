//! Runs the frames that `make fuzz TARGET=packet` has kept through the classifier in the kernel. That target compares
//! the programs' parser with a reference outside of the kernel; here the reference gives the group of a frame.

use fairweir_core::policy::{Group, Policy};
use fairweir_core::share::Weight;

use super::trial::{Packet as Frame, Trial};
use crate::bpf::tests::is_root;

#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
#[allow(dead_code, reason = "groups depend on a part of what is read")]
#[path = "../../../../fuzz/packet.rs"]
mod packet;

use packet::Packet;

/// The groups, in this order, and the default group behind them.
const MATCHES: [&str; 4] = ["port:tcp/1-20000", "port:udp/1-20000", "ip:0.0.0.0/1", "ip:2000::/3"];

fn expected(frame: &[u8]) -> Option<usize> {
    let p = Packet::read(frame, true);
    if p.version == 0 || p.is_discovery {
        return None;
    }
    let is_low = p.ports.is_some_and(|(remote, _)| (1..=20_000).contains(&remote));
    Some(match p.transport {
        6 if is_low => 0,
        17 if is_low => 1,
        _ if p.version == 4 && p.source[0] >> 31 == 0 => 2,
        _ if p.version == 6 && p.source[0] >> 29 == 1 => 3,
        _ => MATCHES.len(),
    })
}

#[test]
fn the_kernel_classifies_frames_as_the_reference_reads_them() {
    if !is_root() {
        return;
    }
    let group = |matched: &&str| {
        Group::new(matched.replace([':', '/'], "-"), Weight::ONE, vec![matched.parse().unwrap()])
    };
    let policy = Policy::new(MATCHES.iter().map(group).collect()).unwrap();
    let trial = Trial::new(&policy, false).unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/linux/packet.txt");
    let (mut seen, mut passed) = ([0; MATCHES.len() + 1], 0);
    for (i, mut frame) in corpus::read(path.as_ref()).unwrap().into_iter().enumerate() {
        // The kernel runs no frame without an Ethernet header, and drops frames for another host.
        if frame.len() < 14 {
            continue;
        }
        frame[..6].fill(0);
        let verdict = trial.run(&Frame { bytes: &frame, ..Frame::default() }, 1);
        let verdict = verdict.unwrap_or_else(|e| panic!("line {}: {e}", i + 1));
        let expected = expected(&frame);
        assert_eq!(verdict.group, expected, "line {}: {}", i + 1, frame.escape_ascii());
        match expected {
            Some(group) => seen[group] += 1,
            None => passed += 1,
        }
    }
    assert!(seen.iter().all(|&count| count > 0) && passed > 0, "{seen:?}, {passed} passed");
}
