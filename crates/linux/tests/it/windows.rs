//! Receive windows of real connections.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::receiver::{ConnectionSample, ConnectionWindow, Windows};
use fairweir_core::units::{Bytes, Rate};
use fairweir_linux::{Attached, Host, Mode, lift, sweep};
use fairweir_testing::{alone, judged, once, privileged};
use nix::sys::socket::sockopt::RcvBuf;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket,
};

use crate::common::agent::Agent;
use crate::common::path::{Path, PathSpec};
use crate::common::{Pair, policy, read_for};

const WAY: PathSpec =
    PathSpec { rtt: Duration::from_millis(40), rate: Rate::mbit(200), queue_bytes: 400_000 };

fn windows(connections: &[(u64, u64)], initial: &[Option<u64>]) -> Windows {
    let bound = |&(id, window): &(u64, u64)| ConnectionWindow { id, window: Bytes::new(window) };
    Windows {
        connections: connections.iter().map(bound).collect(),
        initial: initial.iter().map(|w| w.map(Bytes::new)).collect(),
    }
}

/// The connection's maximum window, as the kernel tells its owner.
fn clamp(stream: &TcpStream) -> u64 {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the socket is open, and the kernel writes no more than `length` bytes.
    let answer = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    assert_eq!(answer, 0);
    value as u64
}

fn set_clamp(stream: &TcpStream, window: libc::c_int) {
    // SAFETY: the socket is open, and the kernel reads one integer.
    let answer = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP,
            (&raw const window).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(answer, 0);
}

/// Reads all streams for `span` and returns the rate of each in Mbit/s.
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
    judged(|| {
        let _alone = alone();
        let path = Path::new(WAY);
        let policy = policy(&[("four", &["ip:192.0.2.2"]), ("six", &["ip:2001:db8::2"])]);
        let mut host = path.pair.host(&policy, Mode::Count);
        let mut streams = vec![path.pair.download("192.0.2.2"), path.pair.download("2001:db8::2")];
        host.take_connections().unwrap();
        rates(&mut streams, Duration::from_millis(800));
        let samples = by_group(&mut host);
        assert_eq!(samples.iter().map(|s| s.group).collect::<Vec<_>>(), [0, 1], "{samples:?}");
        let bounds: Vec<_> =
            samples.iter().zip([100_000, 200_000]).map(|(s, w)| (s.id, w)).collect();
        host.apply_windows(&windows(&bounds, &[None; 3])).unwrap();
        for _ in 0..15 {
            rates(&mut streams, Duration::from_millis(200));
            host.take_connections().unwrap();
            host.beat().unwrap();
        }
        let bounded = rates(&mut streams, Duration::from_millis(1_000));
        let samples = by_group(&mut host);
        println!("bounded {bounded:?} queue {:?} {samples:?}", path.take_queue());
        for (rate, wanted) in bounded.iter().zip([20.0, 40.0]) {
            assert!((0.85..1.1).contains(&(rate / wanted)), "{rate} of {wanted} Mbit/s");
        }
        host.release_windows().unwrap();
        drop(streams.split_off(1));
        rates(&mut streams, Duration::from_millis(2_000));
        let free = rates(&mut streams, Duration::from_millis(1_000));
        println!("free {free:?} queue {:?}", path.take_queue());
        assert!(free[0] > 60.0, "three times its bound: autotuning is back: {free:?}");
    });
}

#[test]
fn the_group_of_a_connection_is_found_by_prefix_port_and_application() {
    if !privileged() {
        return;
    }
    let _alone = alone();
    let pair = Pair::new(false);
    let (by_port, by_app) = (pair.serve("192.0.2.3"), pair.serve("192.0.2.3"));
    let port = format!("port:tcp/{}", by_port.port());
    let groups: [(&str, &[&str]); 3] =
        [("app", &["app:steam"]), ("port", &[&port]), ("six", &["ip:2001:db8::2"])];
    let mut host = pair.host(&policy(&groups), Mode::Count);
    host.take_connections().unwrap();
    let mut steam = Agent::start(&pair.home, "steam", 0, &format!("tcp-connect {by_app}"));
    steam.go();
    let mut streams = vec![
        pair.home.run(|| TcpStream::connect(by_port).unwrap()),
        pair.download("2001:db8::2"),
        pair.download("192.0.2.2"),
    ];
    rates(&mut streams, Duration::from_millis(300));
    let samples = by_group(&mut host);
    assert_eq!(samples.iter().map(|s| s.group).collect::<Vec<_>>(), [0, 1, 2, 3], "{samples:?}");
    assert!(samples.iter().all(|s| s.received > Bytes::new(100_000)), "{samples:?}");
    assert_eq!(samples[1].port, by_port.port());
    // A bound for one connection leaves the others alone.
    host.apply_windows(&windows(&[(samples[1].id, 40_000)], &[None; 4])).unwrap();
    assert!((39_800..=40_128).contains(&clamp(&streams[0])), "{}", clamp(&streams[0]));
    assert!(clamp(&streams[1]) > 60_000 && clamp(&streams[2]) > 60_000);
}

#[test]
fn connections_through_other_devices_are_left_alone() {
    if !privileged() {
        return;
    }
    let _alone = alone();
    let pair = Pair::new(false);
    let mut host = pair.host(&policy(&[]), Mode::Count);
    host.apply_windows(&windows(&[], &[Some(20_000)])).unwrap();
    let mut streams = pair.home.run(|| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        thread::spawn(move || while std::io::Write::write_all(&mut server, &[7; 9_000]).is_ok() {});
        vec![client]
    });
    rates(&mut streams, Duration::from_millis(200));
    assert_eq!(host.take_connections().unwrap(), []);
    assert!(clamp(&streams[0]) > 30_000, "{}", clamp(&streams[0]));
}

#[test]
fn a_connection_begins_with_the_bound_of_its_group() {
    judged(|| {
        let _alone = alone();
        let path = Path::new(WAY);
        let policy = policy(&[("bounded", &["ip:192.0.2.2"])]);
        let mut host = path.pair.host(&policy, Mode::Count);
        host.apply_windows(&windows(&[], &[Some(30_000), None])).unwrap();
        let (bounded, free) = (path.pair.download("192.0.2.2"), path.pair.download("192.0.2.3"));
        println!("at first: bounded {} free {}", clamp(&bounded), clamp(&free));
        assert!((29_800..=30_128).contains(&clamp(&bounded)), "{}", clamp(&bounded));
        let mut streams = [bounded, free];
        let received = rates(&mut streams, Duration::from_millis(400));
        println!(
            "after 400 ms: {received:?} Mbit/s, {} {}",
            clamp(&streams[0]),
            clamp(&streams[1])
        );
        // 30 kB per round trip are 6 Mbit/s.
        assert!((4.0..6.6).contains(&received[0]), "{received:?}");
        assert!(received[1] > 15.0, "{received:?}");
        // Once the connection has been reported, it is free unless user space sets a bound.
        host.take_connections().unwrap();
        host.apply_windows(&windows(&[], &[Some(30_000), None])).unwrap();
        assert!(clamp(&streams[0]) > 60_000, "{}", clamp(&streams[0]));
    });
}

/// The kernel raises the clamp when it lets the buffer grow, which a busy machine can delay until
/// after any tick. The owner of the socket raises it here instead.
#[test]
fn a_bound_that_is_raised_is_set_again_before_the_next_tick() {
    if !privileged() {
        return;
    }
    once(|| {
        let _alone = alone();
        let pair = Pair::new(false);
        let mut host = pair.host(&policy(&[]), Mode::Count);
        let mut streams = vec![pair.download("192.0.2.2")];
        host.apply_windows(&windows(&[], &[Some(50_000)])).unwrap();
        streams.push(pair.download("2001:db8::2"));
        rates(&mut streams, Duration::from_millis(100));
        let samples = host.take_connections().unwrap();
        let bounds: Vec<_> = samples.iter().map(|s| (s.id, 30_000)).collect();
        host.apply_windows(&windows(&bounds, &[Some(50_000)])).unwrap();
        for stream in &streams {
            set_clamp(stream, 1_000_000);
            assert!(clamp(stream) > 900_000, "{}", clamp(stream));
        }
        rates(&mut streams, Duration::from_millis(100));
        for stream in &streams {
            assert!(clamp(stream) < 31_000, "{}", clamp(stream));
        }
    });
}

#[test]
fn bounds_of_a_process_that_is_gone_can_be_lifted() {
    if !privileged() {
        return;
    }
    once(|| {
        let _alone = alone();
        let pair = Pair::new(false);
        let mut host = pair.host(&policy(&[]), Mode::Count);
        let mut streams = vec![pair.download("192.0.2.2"), pair.download("2001:db8::2")];
        host.take_connections().unwrap();
        rates(&mut streams, Duration::from_millis(300));
        let before: Vec<u64> = streams.iter().map(clamp).collect();
        let samples = host.take_connections().unwrap();
        let bounds: Vec<_> = samples.iter().map(|s| (s.id, 30_000)).collect();
        host.apply_windows(&windows(&bounds, &[None])).unwrap();
        assert!(streams.iter().all(|s| clamp(s) < 31_000));
        assert_eq!(
            pair.internet.run(|| lift().unwrap()),
            0,
            "another namespace is another's business"
        );
        assert_eq!(pair.home.run(|| lift().unwrap()), 2);
        // The host is still running: a packet sent between the two calls sets the bound again.
        let are_lifted = || {
            pair.home.run(|| lift().unwrap());
            streams.iter().zip(&before).all(|(s, &before)| clamp(s) >= before)
        };
        assert!((0..100).any(|_| are_lifted()), "{before:?}");
        // A running host has set its bounds again after the next pass, and lifts them at the end.
        rates(&mut streams, Duration::from_millis(100));
        host.take_connections().unwrap();
        host.apply_windows(&windows(&bounds, &[None])).unwrap();
        assert!(streams.iter().all(|s| clamp(s) < 31_000));
        host.detach().unwrap();
        assert!(streams.iter().zip(&before).all(|(s, &before)| clamp(s) >= before), "{before:?}");
    });
}

/// The mark is 7 bits, so one in 128 of the kernel's own bounds has it by chance.
#[test]
fn a_bound_that_the_kernel_has_set_is_not_lifted() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let servers: Vec<SocketAddr> = (0..128).map(|_| pair.serve("192.0.2.2")).collect();
    let lifted = pair.home.run(|| {
        let mut streams: Vec<TcpStream> = (20_000..)
            .zip(&servers)
            .map(|(buffer, server)| connect_with_buffer(buffer, *server))
            .collect();
        let at_first = lift().unwrap();
        // The kernel learns from the first packets how much of the buffer a packet takes.
        let mut some = vec![0; 100_000];
        streams.iter_mut().for_each(|stream| stream.read_exact(&mut some).unwrap());
        (at_first, lift().unwrap())
    });
    assert_eq!(lifted, (0, 0));
}

fn connect_with_buffer(bytes: usize, server: SocketAddr) -> TcpStream {
    let (family, kind) = (AddressFamily::Inet, SockType::Stream);
    let socket = socket(family, kind, SockFlag::empty(), None).unwrap();
    setsockopt(&socket, RcvBuf, &bytes).unwrap();
    connect(socket.as_raw_fd(), &SockaddrStorage::from(server)).unwrap();
    TcpStream::from(socket)
}

/// The process that sets the bounds is killed, and no other process lifts them.
#[test]
fn bounds_of_a_killed_process_expire_and_downloads_are_fast_again_within_5_s() {
    judged(|| {
        let _alone = alone();
        let path = Path::new(WAY);
        let rounds = |streams: &mut [TcpStream], count: usize| -> Vec<Vec<f64>> {
            (0..count).map(|_| rates(streams, Duration::from_millis(500))).collect()
        };
        // One connection is older than the process, the other opens under its bounds.
        let mut streams = vec![path.pair.download("192.0.2.2")];
        rounds(&mut streams, 2);
        let mut process = Agent::start(&path.pair.home, "bounding", 0, "bound wan");
        process.go();
        rounds(&mut streams, 2);
        streams.push(path.pair.download("2001:db8::2"));
        rounds(&mut streams, 4);
        let bounded = rounds(&mut streams, 2);
        process.child.kill().unwrap();
        process.child.wait().unwrap();
        let killed = Instant::now();
        let after = rounds(&mut streams, 9);
        println!("bounded {bounded:.1?}\nafter the kill {after:.1?} Mbit/s each half second");
        // 50 kB per round trip are 10 Mbit/s.
        for rate in bounded.iter().flatten() {
            assert!((7.0..11.0).contains(rate), "{bounded:?}");
        }
        assert!(killed.elapsed() < Duration::from_secs(5));
        let last = after.last().unwrap();
        // The senders determine how they share the link.
        assert!(
            last.iter().all(|&rate| rate > 13.0) && last.iter().sum::<f64>() > 120.0,
            "{after:?}"
        );
        assert!(streams.iter().all(|stream| clamp(stream) > 1_000_000));
        let swept = path.pair.home.run(|| sweep("wan").unwrap());
        assert!(swept[0].contains("programs of killed daemons") && swept.len() == 1, "{swept:?}");
        assert_eq!(path.pair.home.run(|| sweep("wan").unwrap()), [""; 0]);
    });
}

#[test]
fn transit_follows_the_queue_of_the_bottleneck() {
    judged(|| {
        let _alone = alone();
        // A queue of at most 50 ms.
        let rate = Rate::mbit(20);
        let path =
            Path::new(PathSpec { rtt: Duration::from_millis(20), rate, queue_bytes: 125_000 });
        let mut host = path.pair.host(&policy(&[]), Mode::Count);
        host.apply_windows(&windows(&[], &[Some(30_000)])).unwrap();
        let mut streams = vec![path.pair.download("192.0.2.2")];
        let mut tick = |host: &mut Host, window: u64| {
            path.take_queue();
            rates(&mut streams, Duration::from_millis(200));
            let sample = host.take_connections().unwrap()[0];
            host.apply_windows(&windows(&[(sample.id, window)], &[Some(30_000)])).unwrap();
            host.beat().unwrap();
            // It opened without a queue, but after resolving the address of the other end.
            let sent = sample.rtt_sent.unwrap();
            assert!((19.0..45.0).contains(&sent.as_millis_f64()), "{sent}");
            (sample.transit, path.take_queue().as_secs_f64() * 1e3)
        };
        // 30 kB per round trip are 12 Mbit/s, which leave the queue empty.
        let empty: Vec<_> = (0..12).map(|_| tick(&mut host, 30_000)).collect();
        assert_eq!(empty[0].0, None, "the period is not known yet");
        assert!(empty[3..].iter().all(|(transit, _)| transit.is_some()), "{empty:?}");
        let base = empty.iter().filter_map(|(transit, _)| transit.map(|t| t.min_ns)).min().unwrap();
        // 100 kB are 50 kB more than the path holds: 20 ms of queue.
        let full: Vec<_> = (0..15).map(|_| tick(&mut host, 100_000)).collect();
        let delays: Vec<_> = full[5..]
            .iter()
            .map(|(transit, queue)| ((transit.unwrap().mean_ns - base) as f64 * 1e-6, *queue))
            .collect();
        println!("empty {empty:?}\nfull, ms by timestamps and in truth {delays:.1?}");
        let mean =
            |of: fn(&(f64, f64)) -> f64| delays.iter().map(of).sum::<f64>() / delays.len() as f64;
        let (seen, truth) = (mean(|d| d.0), mean(|d| d.1));
        assert!((seen - truth).abs() < 3.0 && truth > 10.0, "{seen} of {truth} ms");
    });
}

#[test]
fn losses_of_a_download_are_told_as_holes_and_a_clean_one_has_none() {
    judged(|| {
        let _alone = alone();
        let rate = Rate::mbit(50);
        // Slow start ends with a loss in this queue.
        let path =
            Path::new(PathSpec { rtt: Duration::from_millis(20), rate, queue_bytes: 40_000 });
        let groups: [(&str, &[&str]); 1] = [("clean", &["ip:192.0.2.2"])];
        let mut host = path.pair.host(&policy(&groups), Mode::Count);
        // 40 kB per round trip are 16 Mbit/s, which the link carries.
        host.apply_windows(&windows(&[], &[Some(40_000), None])).unwrap();
        let mut holes = |address: &str, bound: Option<u64>| {
            let mut streams = [path.pair.download(address)];
            let (mut holes, mut segments) = (0, 0);
            for _ in 0..10 {
                rates(&mut streams, Duration::from_millis(200));
                let samples = host.take_connections().unwrap();
                let bounds: Vec<_> = samples.iter().filter_map(|s| Some((s.id, bound?))).collect();
                host.apply_windows(&windows(&bounds, &[Some(40_000), None])).unwrap();
                host.beat().unwrap();
                holes += samples.iter().map(|s| s.holes).sum::<u64>();
                segments += samples.iter().map(|s| s.segments).sum::<u64>();
            }
            println!("{address}: {holes} holes in {segments} segments");
            assert!(segments > 1_000, "{segments}");
            holes
        };
        assert_eq!(holes("192.0.2.2", Some(40_000)), 0);
        assert!(holes("192.0.2.3", None) > 10);
    });
}

/// A window counts from the first missing byte, so without room for what is behind it the sender would wait for
/// each repair, and no more is under way than was bounded.
#[test]
fn a_lost_packet_does_not_stop_a_bounded_sender() {
    judged(|| {
        let _alone = alone();
        let path = Path::new(WAY);
        let mut host = path.pair.host(&policy(&[]), Mode::Count);
        let window = 100_000;
        host.apply_windows(&windows(&[], &[Some(window)])).unwrap();
        let server = path.pair.serve_by("192.0.2.2", "bbr");
        let mut streams = [path.pair.home.run(|| TcpStream::connect(server).unwrap())];
        let mut rate = |host: &mut Host, ticks: u32| {
            let mut sum = 0.0;
            for _ in 0..ticks {
                sum += rates(&mut streams, Duration::from_millis(200))[0];
                let sample = host.take_connections().unwrap()[0];
                let off = sample.window.as_u64().abs_diff(window);
                assert!(off < 1_000, "{} of {window} bytes are told", sample.window);
                host.apply_windows(&windows(&[(sample.id, window)], &[Some(window)])).unwrap();
                host.beat().unwrap();
            }
            sum / f64::from(ticks)
        };
        rate(&mut host, 5);
        let clean = rate(&mut host, 10);
        path.lose_one_of(100);
        let lossy = rate(&mut host, 20);
        println!("{clean:.2} Mbit/s, with losses {lossy:.2}");
        // 100 kB per round trip are 20 Mbit/s; BBR gives way to no loss.
        assert!((0.85..1.1).contains(&(lossy / clean)), "{lossy:.2} of {clean:.2} Mbit/s");
    });
}

/// Slow start fills the queue while the clock's period is being determined.
#[test]
fn packets_are_timed_within_half_a_second_although_the_queue_grows() {
    judged(|| {
        let _alone = alone();
        let rate = Rate::mbit(20);
        // A queue of at most 200 ms.
        let path =
            Path::new(PathSpec { rtt: Duration::from_millis(20), rate, queue_bytes: 500_000 });
        let mut host = path.pair.host(&policy(&[]), Mode::Count);
        host.take_connections().unwrap();
        let mut streams = vec![path.pair.download("192.0.2.2")];
        let ticks: Vec<_> = (0..6)
            .map(|_| {
                rates(&mut streams, Duration::from_millis(200));
                let sample = host.take_connections().unwrap()[0];
                host.beat().unwrap();
                (sample.transit, path.take_queue())
            })
            .collect();
        println!("{ticks:?}");
        let grown = ticks.last().unwrap().1;
        assert!(grown > Duration::from_millis(60), "the queue grows by more than clocks differ");
        assert!(ticks[3..].iter().all(|(transit, _)| transit.is_some()), "{ticks:?}");
    });
}
