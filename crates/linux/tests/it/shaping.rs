//! Real TCP through the classes, and beside them.

use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use fairweir_core::receiver::{ConnectionWindow, GroupSample, Windows};
use fairweir_core::units::{Bytes, Rate, Span};
use fairweir_core::upload;
use fairweir_linux::{Attached, Health, Host, HostSpec, Mode, realtime};
use fairweir_testing::{judged, traffic};

use fairweir_linux::netns::Netns;

use crate::common::path::{Path, PathSpec};
use crate::common::{Pair, allocation, policy, read_for};

#[test]
fn a_class_limits_a_download_to_its_rate() {
    judged(|| {
        let pair = Pair::new(false);
        let policy = policy(&[("video", &["ip:192.0.2.2"])]);
        let mut host = pair.host(&policy, Mode::Shape);
        for mbit in [5, 40, 200] {
            host.apply(&allocation(&[Rate::mbit(mbit), Rate::mbit(1)])).unwrap();
            let mut stream = pair.download("192.0.2.2");
            read_for(&mut stream, Duration::from_millis(700));
            host.take_samples().unwrap();
            host.beat().unwrap();
            let (start, before) = (Instant::now(), traffic(&pair.home, "ifb4wan").sent);
            read_for(&mut stream, Duration::from_millis(1_500));
            let after = traffic(&pair.home, "ifb4wan").sent;
            let span = Span::nanos(start.elapsed().as_nanos() as u64);
            let samples = host.take_samples().unwrap();
            let rate = Rate::from_volume(Bytes::new(after - before), span).as_mbit_f64();
            assert!((rate / mbit as f64 - 1.0).abs() < 0.05, "{rate} of {mbit} Mbit/s");
            let counted = Rate::from_volume(samples[0].received, span).as_mbit_f64();
            assert!((0.95..1.15).contains(&(counted / mbit as f64)), "counted {counted} of {mbit}");
            assert_eq!(host.health(), Health::Well);
        }
    });
}

/// The queues within the classes have classes of their own, with the same numbers as those of groups.
#[test]
fn what_leaves_through_the_classes_of_an_upload_is_counted_once() {
    judged(|| {
        let pair = Pair::new(false);
        let policy = policy(&[("big", &["ip:192.0.2.2"]), ("small", &["ip:192.0.2.3"])]);
        let weights = policy.weights();
        let spec =
            HostSpec { dev: "wan".into(), policy, mode: Mode::Shape, census: false, marks: false };
        let mut host = pair.home.run(|| Host::attach_sharing_upload(&spec).unwrap());
        let plan =
            upload::classes(Rate::mbit(20), Rate::ZERO, (&weights, &[None; 3]), Bytes::new(1_514));
        host.upload().unwrap().apply(&plan).unwrap();
        let _uploads = ["192.0.2.2", "192.0.2.3"].map(|address| pair.upload(address));
        std::thread::sleep(Duration::from_millis(500));
        host.upload().unwrap().take().unwrap();
        let before = traffic(&pair.home, "wan").sent;
        host.beat().unwrap();
        std::thread::sleep(Duration::from_millis(1_000));
        let sample = host.upload().unwrap().take().unwrap();
        let sent = traffic(&pair.home, "wan").sent - before;
        let counted = sample.sent.as_u64() as f64 / sent as f64;
        assert!((counted - 1.0).abs() < 0.02, "{counted} of {sent} bytes: {sample:?}");
        assert!(sample.groups[..2].iter().all(|g| g.backlog > Bytes::ZERO), "{sample:?}");
        let sum = sample.groups.iter().map(|group| group.backlog).sum();
        assert_eq!(sample.backlog, sum, "{sample:?}");
    });
}

/// When acknowledgements exceed their class, the oldest are dropped, and the download goes on.
#[test]
fn acknowledgements_do_not_wait_for_each_other_at_a_slow_uplink() {
    judged(|| {
        let pair = Pair::new(false);
        let policy = policy(&[]);
        let weights = policy.weights();
        let spec =
            HostSpec { dev: "wan".into(), policy, mode: Mode::Shape, census: false, marks: false };
        let mut host = pair.home.run(|| Host::attach_sharing_upload(&spec).unwrap());
        let packet = Bytes::new(1_514);
        let plan = upload::classes(Rate::kbit(400), Rate::mbit(1), (&weights, &[None]), packet);
        host.upload().unwrap().apply(&plan).unwrap();
        let mut stream = pair.download("192.0.2.2");
        read_for(&mut stream, Duration::from_millis(500));
        host.upload().unwrap().take().unwrap();
        for _ in 0..3 {
            host.beat().unwrap();
            let received = read_for(&mut stream, Duration::from_millis(300));
            let sample = host.upload().unwrap().take().unwrap();
            let begun = format!("{received} bytes, {sample:?}");
            assert!(sample.first > sample.sent, "some were dropped: {begun}");
            assert!(sample.sent <= Rate::kbit(250) * Span::millis(300), "{begun}");
            assert!(sample.data < packet && sample.backlog <= upload::ACK * 20, "{begun}");
            assert!(received > 1_000_000, "{begun}");
        }
    });
}

/// TCP segments that `netns` has sent, retransmitted ones included, as its stack counts them.
fn segments_of(netns: &Netns) -> u64 {
    let number = |name| stack_count(netns, "snmp", "Tcp:", name);
    number("OutSegs") + number("RetransSegs")
}

/// A counter of a namespace's stack.
fn stack_count(netns: &Netns, file: &str, table: &str, name: &str) -> u64 {
    let path = format!("/proc/thread-self/net/{file}");
    let text = netns.run(|| std::fs::read_to_string(path).unwrap());
    let mut lines = text.lines().filter(|line| line.starts_with(table));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|n| n == name).unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

/// The receive queue coalesces only packets with nothing but headers in the linear part.
#[test]
fn the_classifier_moves_no_payload_beside_the_headers() {
    judged(|| {
        let pair = Pair::new(false);
        let mut host = pair.host(&policy(&[("video", &["ip:192.0.2.2"])]), Mode::Count);
        let coalesced = || stack_count(&pair.home, "netstat", "TcpExt:", "TCPRcvCoalesce");
        let before = coalesced();
        read_for(&mut pair.download("192.0.2.2"), Duration::from_millis(500));
        let packets = host.take_samples().unwrap()[0].packets;
        let part = (coalesced() - before) as f64 / packets as f64;
        println!("{part:.2} of {packets} packets were put together");
        assert!(part > 0.3, "{part} of {packets}");
    });
}

#[test]
fn super_packets_are_counted_as_on_the_wire() {
    judged(|| {
        let pair = Pair::new(true);
        let mut host = pair.host(&policy(&[("video", &["ip:192.0.2.2"])]), Mode::Shape);
        for shaped in [None, Some(Rate::mbit(300))] {
            if let Some(rate) = shaped {
                host.apply(&allocation(&[rate, Rate::mbit(1)])).unwrap();
            }
            let (segments, bytes) =
                (segments_of(&pair.internet), traffic(&pair.internet, "far").sent);
            host.take_samples().unwrap();
            let mut stream = pair.download("192.0.2.2");
            let payload = read_for(&mut stream, Duration::from_millis(700));
            drop(stream);
            std::thread::sleep(Duration::from_millis(300));
            let sample = host.take_samples().unwrap()[0];
            let segments = segments_of(&pair.internet) - segments;
            let bytes = traffic(&pair.internet, "far").sent - bytes;
            // The device counts each super-packet's headers once, the wire in each segment.
            let wire_least = payload + segments * 66;
            assert!(
                bytes < wire_least * 99 / 100,
                "no super-packets were sent: {bytes} {wire_least}"
            );
            let ratio = sample.packets as f64 / segments as f64;
            assert!((ratio - 1.0).abs() < 0.01, "{} of {segments} packets", sample.packets);
            let counted = sample.received.as_u64();
            // Data in flight at the end, or dropped by the class, is on the wire but never read;
            // and at tens of Gbit/s not every segment is full.
            let wire_most = segments * 1514;
            let bounds = wire_least..=wire_most;
            assert!(bounds.contains(&counted), "{wire_least} {counted} {wire_most}");
        }
        let (start, before) = (Instant::now(), traffic(&pair.home, "wan").received);
        let mut stream = pair.download("192.0.2.2");
        host.beat().unwrap();
        read_for(&mut stream, Duration::from_millis(1_500));
        let received = traffic(&pair.home, "wan").received - before;
        let rate = received as f64 * 8e-6 / start.elapsed().as_secs_f64();
        assert!(
            (250.0..340.0).contains(&rate),
            "HTB counts super-packets like the classifier: {rate}"
        );
    });
}

/// Acts like a daemon in a tick of 200 ms, with windows of 50 kB: 20 Mbit/s at 20 ms. Returns what
/// the first group received, and the number of segments out of order.
fn tick(host: &mut Host, stream: &mut TcpStream, ceil: Rate) -> (GroupSample, u64) {
    read_for(stream, TICK);
    let group = host.take_samples().unwrap()[0];
    let samples = host.take_connections().unwrap();
    let bound = |id| ConnectionWindow { id, window: Bytes::new(50_000) };
    let connections = samples.iter().map(|s| bound(s.id)).collect();
    host.apply(&allocation(&[ceil, Rate::mbit(1)])).unwrap();
    host.apply_windows(&Windows { connections, initial: vec![Some(Bytes::new(50_000)); 2] })
        .unwrap();
    host.beat().unwrap();
    (group, samples.iter().map(|s| s.holes).sum())
}

const TICK: Duration = Duration::from_millis(200);

#[test]
fn tcp_whose_windows_hold_passes_beside_a_class_that_changes_nothing() {
    judged(|| {
        realtime::enter().unwrap();
        let (rate, rtt) = (Rate::mbit(200), Duration::from_millis(20));
        let path = Path::new(PathSpec { rtt, rate, queue_bytes: 400_000 });
        let home = &path.pair.home;
        let groups: [(&str, &[&str]); 1] = [("video", &["ip:192.0.2.2"])];
        let mut host = path.pair.host(&policy(&groups), Mode::Shape);
        let (loose, tight) = (Rate::mbit(50), Rate::mbit(10));
        let shaped = || traffic(home, "ifb4wan").sent;
        let arrived = || traffic(home, "wan").received;
        let sender = path.pair.internet.run(|| UdpSocket::bind("192.0.2.2:0").unwrap());
        let mut received = 0;
        let mut ticks = |host: &mut Host, stream: &mut TcpStream, count: u32, ceil: Rate| {
            let ticks: Vec<_> = (0..count).map(|_| tick(host, stream, ceil)).collect();
            let now: u64 = ticks.iter().map(|(group, _)| group.received.as_u64()).sum();
            received += now;
            (now, ticks.iter().map(|(_, holes)| holes).sum::<u64>())
        };

        host.apply(&allocation(&[loose, Rate::mbit(1)])).unwrap();
        let initial = vec![Some(Bytes::new(50_000)); 2];
        host.apply_windows(&Windows { connections: Vec::new(), initial }).unwrap();
        let (mut stream, begin) = (path.pair.download("192.0.2.2"), arrived());
        let (first, _) = ticks(&mut host, &mut stream, 3, loose);
        assert!(shaped() > first * 9 / 10, "the class was not calm for a second");

        // TCP bypasses a calm class; other packets do not.
        ticks(&mut host, &mut stream, 8, loose);
        let before = shaped();
        for _ in 0..20 {
            sender.send_to(&[7; 458], "192.0.2.1:9").unwrap();
        }
        let (passed, mut holes) = ticks(&mut host, &mut stream, 5, loose);
        // A packet of neighbour discovery may be among them, but not one full packet of TCP.
        let through_class = shaped() - before;
        assert!(
            (10_000..11_000).contains(&through_class),
            "{through_class} of 20 * 500 bytes of UDP"
        );
        assert!(passed > 1_500_000, "{passed}");

        // A tight class takes all TCP packets.
        holes += ticks(&mut host, &mut stream, 3, tight).1;
        let before = shaped();
        holes += ticks(&mut host, &mut stream, 5, tight).1;
        let mbit = (shaped() - before) as f64 * 8e-6;
        assert!((8.0..11.0).contains(&mbit), "{mbit} of 10 Mbit/s");

        // Without ticks TCP passes only up to what the class would carry in one tick, and after that on no CPU.
        path.pin(0);
        holes += ticks(&mut host, &mut stream, 15, loose).1;
        let before = shaped();
        let read = read_for(&mut stream, TICK * 4);
        let late = (shaped() - before) as f64 / read as f64;
        assert!((0.1..0.8).contains(&late), "{late} of 2 MB through the class");
        path.pin(1);
        let before = shaped();
        let read = read_for(&mut stream, TICK * 2);
        let later = (shaped() - before) as f64 / read as f64;
        assert!(later > 0.9, "{later} of 1 MB through the class on another CPU");
        holes += ticks(&mut host, &mut stream, 3, loose).1;
        assert_eq!(holes, 0, "no packet overtakes another");

        let counted = received as f64 / (arrived() - begin) as f64;
        assert!((0.99..1.01).contains(&counted), "{counted} of what arrived was counted");
    });
}
