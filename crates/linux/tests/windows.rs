//! Receive windows of real connections.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::receiver::{ConnectionSample, ConnectionWindow, Windows};
use fairweir_core::units::{Bytes, Rate};
use fairweir_linux::{Host, Mode};

use common::path::{Path, PathSpec};
use common::{policy, read_for};

mod common;

const WAY: PathSpec =
    PathSpec { rtt: Duration::from_millis(40), rate: Rate::mbit(200), queue_bytes: 400_000 };

fn windows(connections: &[(u64, u64)], initial: &[Option<u64>]) -> Windows {
    let bound = |&(id, window): &(u64, u64)| ConnectionWindow { id, window: Bytes::new(window) };
    Windows {
        connections: connections.iter().map(bound).collect(),
        initial: initial.iter().map(|w| w.map(Bytes::new)).collect(),
    }
}

/// Reads all for `span` and returns what each received in Mbit/s.
fn rates(streams: &mut [TcpStream], span: Duration) -> Vec<f64> {
    let start = Instant::now();
    thread::scope(|scope| {
        let readers: Vec<_> =
            streams.iter_mut().map(|s| scope.spawn(move || read_for(s, span))).collect();
        let mbit = |bytes: u64| bytes as f64 * 8e-6 / start.elapsed().as_secs_f64();
        readers.into_iter().map(|reader| mbit(reader.join().unwrap())).collect()
    })
}

/// The sample of each group that has one, in the order of groups.
fn by_group(host: &mut Host) -> Vec<ConnectionSample> {
    let mut samples = host.take_connections().unwrap();
    samples.sort_by_key(|s| s.group);
    samples
}

#[test]
fn a_bounded_download_gets_its_window_per_round_trip_and_all_again_after_release() {
    if !common::privileged() {
        return;
    }
    let path = Path::new(WAY);
    let policy = policy(&[("four", &["ip:192.0.2.2"]), ("six", &["ip:2001:db8::2"])]);
    let mut host = path.pair.host(&policy, Mode::Count);
    let mut streams = ["192.0.2.2", "2001:db8::2"].map(|address| path.pair.download(address));
    host.take_connections().unwrap();
    rates(&mut streams, Duration::from_millis(800));
    let samples = by_group(&mut host);
    assert_eq!(samples.iter().map(|s| s.group).collect::<Vec<_>>(), [0, 1], "{samples:?}");
    let bounds: Vec<_> = samples.iter().zip([100_000, 200_000]).map(|(s, w)| (s.id, w)).collect();
    host.apply_windows(&windows(&bounds, &[None; 3])).unwrap();
    for _ in 0..5 {
        rates(&mut streams, Duration::from_millis(200));
        host.take_connections().unwrap();
    }
    let bounded = rates(&mut streams, Duration::from_millis(1_000));
    let samples = by_group(&mut host);
    println!("bounded {bounded:?} queue {:?} {samples:?}", path.queue());
    for (rate, wanted) in bounded.iter().zip([20.0, 40.0]) {
        assert!((0.85..1.05).contains(&(rate / wanted)), "{rate} of {wanted} Mbit/s");
    }
    host.release_windows().unwrap();
    rates(&mut streams, Duration::from_millis(1_500));
    let free = rates(&mut streams, Duration::from_millis(1_000));
    let samples = by_group(&mut host);
    println!("free {free:?} queue {:?} {samples:?}", path.queue());
    assert!(free.iter().sum::<f64>() > 150.0, "{free:?}");
}
