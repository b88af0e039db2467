//! The policer with real packets between namespaces: rates, live changes, and its removal.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use fairweir_core::phantom::Signal;
use fairweir_core::units::Rate;
use fairweir_linux::Error;
use fairweir_linux::police::{
    Algorithm, Direction, Hook, PlanId, Police, PoliceSpec, SubscriberId, SubscriberSpec,
};
use fairweir_testing::privileged;

use crate::common::agent::Agent;
use crate::common::path::{Path, PathSpec};
use crate::common::{Pair, flat, plan, read_for};

const PLAN: PlanId = PlanId(1);
const RATE: Rate = Rate::mbit(20);
/// Bytes of a full segment: payload and frame.
const PAYLOAD: f64 = 1_448.0;
const FRAME: f64 = 1_514.0;

/// A path on which TCP can fill far more than any plan here.
fn way() -> Path {
    let rtt = Duration::from_millis(20);
    Path::new(PathSpec { rtt, rate: Rate::mbit(200), queue_bytes: 500_000 })
}

/// The rate of a stream over two seconds, as L2 bytes, in Mbit/s.
fn rate_of(stream: &mut TcpStream) -> f64 {
    let start = Instant::now();
    let bytes = read_for(stream, Duration::from_secs(2)) as f64;
    bytes * FRAME / PAYLOAD * 8e-6 / start.elapsed().as_secs_f64()
}

/// A policer with one subscriber, the home.
fn police() -> (Police, SubscriberId) {
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    police.set_plan(PLAN, &Algorithm::Phantom(&plan(RATE))).unwrap();
    let id = police.add(&home(&["192.0.2.1/32", "2001:db8::1/128"])).unwrap();
    (police, id)
}

fn home(addresses: &[&str]) -> SubscriberSpec {
    let addresses = addresses.iter().map(|net| net.parse().unwrap()).collect();
    SubscriberSpec { addresses, download: Some(PLAN), upload: None }
}

#[test]
fn at_each_hook_a_download_gets_its_rate() {
    if !privileged() {
        return;
    }
    for hook in [Hook::XdpNative, Hook::XdpGeneric, Hook::TcxIngress, Hook::TcxEgress] {
        let path = way();
        let pair = &path.pair;
        let (mut police, id) = police();
        let (netns, device) = match hook {
            Hook::TcxEgress => (&pair.internet, "far"),
            _ => (&pair.home, "wan"),
        };
        netns.run(|| police.attach(device, hook, Direction::Download, 0)).unwrap();
        for address in ["192.0.2.2", "2001:db8::2"] {
            let mut stream = pair.download(address);
            read_for(&mut stream, Duration::from_millis(1_500));
            let before = police.counters(id, Direction::Download).unwrap();
            let rate = rate_of(&mut stream);
            let after = police.counters(id, Direction::Download).unwrap();
            assert!((18.0..20.8).contains(&rate), "{hook:?} {address}: {rate:.2} Mbit/s of 20");
            let counted = after.passed.saturating_sub(before.passed).as_u64() as f64 * 8e-6 / 2.0;
            assert!((0.93..1.07).contains(&(counted / rate)), "{hook:?}: counted {counted:.2}");
        }
        let totals = police.totals(PLAN, Direction::Download).unwrap();
        assert!(totals.dropped_packets > 0, "{hook:?}: {totals:?}");
        assert!(police.is_attached());
    }
}

#[test]
fn what_is_changed_live_holds_for_connections_that_are_open() {
    if !privileged() {
        return;
    }
    let path = way();
    let pair = &path.pair;
    let (mut police, id) = police();
    pair.home.run(|| police.attach("wan", Hook::Xdp, Direction::Download, 0)).unwrap();
    let mut stream = pair.download("192.0.2.2");
    read_for(&mut stream, Duration::from_millis(1_500));
    let twenty = rate_of(&mut stream);
    police.set_plan(PLAN, &Algorithm::Phantom(&plan(Rate::mbit(40)))).unwrap();
    read_for(&mut stream, Duration::from_millis(1_500));
    let forty = rate_of(&mut stream);
    assert!((1.75..2.2).contains(&(forty / twenty)), "{forty:.1} after {twenty:.1} Mbit/s");
    police.change(id, &home(&["198.51.100.1/32"])).unwrap();
    read_for(&mut stream, Duration::from_secs(2));
    let free = rate_of(&mut stream);
    assert!(free > 1.5 * forty, "{free:.1} Mbit/s once the address is unknown");
}

/// The program code for slots of a size is loaded when the first plan needs it.
#[test]
fn a_plan_of_another_size_holds_where_programs_are_attached() {
    if !privileged() {
        return;
    }
    let path = way();
    let pair = &path.pair;
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    pair.home.run(|| police.attach("wan", Hook::XdpGeneric, Direction::Download, 0)).unwrap();
    pair.internet.run(|| police.attach("far", Hook::TcxEgress, Direction::Upload, 0)).unwrap();
    let mut stream = pair.download("192.0.2.2");
    for queues in [1, 4, 16, 64] {
        police.set_plan(PLAN, &Algorithm::Phantom(&flat(RATE, queues, Signal::Soft))).unwrap();
        if queues == 1 {
            police.add(&home(&["192.0.2.1/32"])).unwrap();
        }
        read_for(&mut stream, Duration::from_millis(1_500));
        let rate = rate_of(&mut stream);
        assert!((17.0..21.0).contains(&rate), "{queues} queues: {rate:.2} Mbit/s of 20");
    }
    assert!(police.is_attached());
}

#[test]
fn the_daemon_killed_under_load_leaves_traffic_flowing() {
    if !privileged() {
        return;
    }
    let path = way();
    let pair = &path.pair;
    let mut agent = Agent::start(&pair.home, "police-agent", 0, "police wan");
    agent.go();
    let mut stream = pair.download("192.0.2.2");
    read_for(&mut stream, Duration::from_millis(1_500));
    let policed = rate_of(&mut stream);
    assert!((8.5..10.6).contains(&policed), "{policed:.2} Mbit/s of 10");
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    read_for(&mut stream, Duration::from_secs(2));
    let free = rate_of(&mut stream);
    assert!(free > 3.0 * policed, "{free:.1} after {policed:.1} Mbit/s");
    let (mut police, _) = police();
    pair.home.run(|| police.attach("wan", Hook::Xdp, Direction::Download, 0)).unwrap();
}

#[test]
fn a_device_that_is_not_there_or_in_use_is_refused() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let ((mut first, _), (mut second, _)) = (police(), police());
    pair.home.run(|| {
        let missing = first.attach("nowhere", Hook::Xdp, Direction::Download, 0);
        assert!(matches!(missing, Err(Error::NoDevice(name)) if name == "nowhere"));
        first.attach("wan", Hook::Xdp, Direction::Download, 0).unwrap();
        let occupied = second.attach("wan", Hook::Xdp, Direction::Download, 0);
        assert!(matches!(occupied, Err(Error::Occupied { .. })), "{occupied:?}");
        second.attach("wan", Hook::TcxIngress, Direction::Download, 0).unwrap();
    });
    first.detach_all();
    pair.home.run(|| second.attach("wan", Hook::Xdp, Direction::Upload, 0)).unwrap();
    assert!(second.is_attached());
    pair.home.run(|| fairweir_linux::link::delete("wan")).unwrap();
    assert!(!second.is_attached());
}
