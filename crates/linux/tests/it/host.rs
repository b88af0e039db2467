//! A host's life: refusals, faults, kills, reloads; and nothing is left behind.

use std::io::Write;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use fairweir_core::units::Rate;
use fairweir_linux::netns::Netns;
use fairweir_linux::{Attached, Error, Health, Host, HostSpec, Mode, leftovers, link, sweep};
use fairweir_testing::{judged, once, privileged, traffic};

use crate::common::agent::Agent;
use crate::common::{Pair, allocation, policy, read_for};

fn spec(groups: &[(&str, &[&str])]) -> HostSpec {
    HostSpec {
        dev: "wan".into(),
        policy: policy(groups),
        mode: Mode::Shape,
        census: false,
        marks: false,
    }
}

/// The output of tc, as an oracle independent of our own netlink code.
fn tc(netns: &Netns, arguments: &str) -> String {
    let output =
        netns.run(|| Command::new("tc").args(arguments.split(' ')).output().expect("tc is there"));
    assert!(output.status.success(), "tc {arguments}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The rate received at `wan` in half a second, Mbit/s.
fn rate_of(pair: &Pair, stream: &mut std::net::TcpStream) -> f64 {
    let before = traffic(&pair.home, "wan").received;
    let start = std::time::Instant::now();
    read_for(stream, Duration::from_millis(500));
    let received = traffic(&pair.home, "wan").received - before;
    received as f64 * 8e-6 / start.elapsed().as_secs_f64()
}

#[test]
fn nothing_is_left_when_a_host_drops_or_detaches() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let left = || {
        let links = pair.home.run(|| link::all().unwrap().len());
        (links, tc(&pair.home, "qdisc show dev wan"), pair.home.run(|| leftovers().unwrap()))
    };
    let before = left();
    assert_eq!(before.2, [""; 0]);
    let mut host = pair.home.run(|| Host::attach(&spec(&[])).unwrap());
    host.apply(&allocation(&[Rate::mbit(5)])).unwrap();
    assert_eq!(left().2, ["wan"]);
    drop(host);
    assert_eq!(left(), before);
    pair.home.run(|| Host::attach(&spec(&[])).unwrap()).detach().unwrap();
    assert_eq!(left(), before);
    let host = pair.home.run(|| Host::attach_by_clsact(&spec(&[])).unwrap());
    assert!(tc(&pair.home, "filter show dev wan ingress").contains("fairweir"));
    drop(host);
    assert_eq!(left(), before);
}

#[test]
fn other_peoples_qdiscs_and_devices_are_refused_and_stay() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let refusal = || match pair.home.run(|| Host::attach(&spec(&[]))) {
        Err(e @ Error::Occupied { .. }) => e.to_string(),
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("it was taken"),
    };
    tc(&pair.home, "qdisc add dev wan ingress");
    let why = refusal();
    assert!(why.contains("tc qdisc del dev wan ingress"), "{why}");
    tc(&pair.home, "qdisc del dev wan ingress");

    tc(&pair.home, "qdisc add dev wan clsact");
    tc(&pair.home, "filter add dev wan ingress u32 match u32 0 0 flowid 1:1");
    let why = refusal();
    assert!(why.contains("`u32` filter") && why.contains("tc filter del"), "{why}");
    assert!(tc(&pair.home, "filter show dev wan ingress").contains("u32"));
    tc(&pair.home, "filter del dev wan ingress");

    tc(&pair.home, "filter add dev wan egress u32 match u32 0 0 flowid 1:1");
    drop(pair.home.run(|| Host::attach_by_clsact(&spec(&[])).unwrap()));
    assert!(tc(&pair.home, "filter show dev wan egress").contains("u32"), "egress is not ours");
    tc(&pair.home, "qdisc del dev wan clsact");

    pair.home.run(|| link::create_ifb("ifb4wan", "").unwrap());
    let why = refusal();
    assert!(why.contains("ip link del ifb4wan"), "{why}");
    assert_eq!(pair.home.run(|| sweep("wan").unwrap()), [""; 0]);
    assert!(pair.home.run(|| link::index("ifb4wan")).is_some());
}

#[test]
fn a_killed_host_lets_everything_pass_and_is_swept() {
    if !privileged() {
        return;
    }
    once(|| {
        for task in ["host wan", "host-clsact wan"] {
            let pair = Pair::new(false);
            let mut agent = Agent::start(&pair.home, "daemon", 0, task);
            agent.go();
            let mut stream = pair.download("192.0.2.2");
            read_for(&mut stream, Duration::from_millis(500));
            let shaped = rate_of(&pair, &mut stream);
            assert!(shaped < 10.0, "shaped to 5 Mbit/s: {shaped}");
            agent.child.kill().unwrap();
            agent.child.wait().unwrap();
            std::thread::sleep(Duration::from_millis(2_300));
            let free = rate_of(&pair, &mut stream);
            assert!(free > 50.0, "{task}: {free} Mbit/s after the kill");
            assert_eq!(pair.home.run(|| leftovers().unwrap()), ["wan"]);
            let swept = pair.home.run(|| sweep("wan").unwrap());
            assert!(swept.iter().any(|what| what.contains("ifb4wan")), "{swept:?}");
            assert_eq!(pair.home.run(|| sweep("wan").unwrap()), [""; 0]);
            assert_eq!(pair.home.run(|| leftovers().unwrap()), [""; 0]);
            assert!(!tc(&pair.home, "qdisc show dev wan").contains("clsact"));
        }
    });
}

#[test]
fn a_host_that_hangs_lets_everything_pass_after_two_seconds() {
    if !privileged() {
        return;
    }
    once(|| {
        let pair = Pair::new(false);
        let mut host = pair.home.run(|| Host::attach(&spec(&[])).unwrap());
        host.apply(&allocation(&[Rate::mbit(5)])).unwrap();
        let mut stream = pair.download("192.0.2.2");
        read_for(&mut stream, Duration::from_millis(500));
        assert!(rate_of(&pair, &mut stream) < 10.0);
        std::thread::sleep(Duration::from_millis(1_300));
        assert!(rate_of(&pair, &mut stream) > 50.0);
        host.beat().unwrap();
        read_for(&mut stream, Duration::from_millis(300));
        assert!(rate_of(&pair, &mut stream) < 20.0, "it is in control again");
    });
}

#[test]
fn what_another_process_takes_away_is_noticed_at_once_and_can_be_repaired() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let mut host = pair.home.run(|| Host::attach(&spec(&[])).unwrap());
    let slow = allocation(&[Rate::mbit(5)]);
    type Sabotage = (&'static str, fn(&Netns));
    let sabotage: [Sabotage; 3] = [
        ("deleted", |home| home.run(|| link::delete("ifb4wan").unwrap())),
        ("set down", |home| home.run(|| link::set_down("ifb4wan").unwrap())),
        ("HTB", |home| drop(tc(home, "qdisc del dev ifb4wan root"))),
    ];
    for (word, act) in sabotage {
        host.apply(&slow).unwrap();
        let mut stream = pair.download("192.0.2.2");
        read_for(&mut stream, Duration::from_millis(300));
        assert!(rate_of(&pair, &mut stream) < 10.0, "{word}");
        assert_eq!(host.health(), Health::Well);
        act(&pair.home);
        match host.health() {
            Health::Broken { what } => assert!(what.contains(word), "{what}"),
            other => panic!("{word}: {other:?}"),
        }
        host.take_samples().unwrap();
        read_for(&mut stream, Duration::from_millis(700));
        assert!(rate_of(&pair, &mut stream) > 50.0, "{word}: open");
        host.repair().unwrap();
        assert_eq!(host.health(), Health::Well, "{word}");
        assert!(rate_of(&pair, &mut stream) > 50.0, "{word}: open until the next apply");
    }
    pair.home.run(|| link::delete("ifb4wan").unwrap());
    assert!(
        host.apply(&allocation(&[Rate::mbit(6)])).is_err(),
        "no ifb, before any look at the health"
    );
    let mut stream = pair.download("192.0.2.2");
    read_for(&mut stream, Duration::from_millis(300));
    assert!(rate_of(&pair, &mut stream) > 50.0, "a refused apply opens");
}

#[test]
fn a_device_that_goes_is_told_from_one_that_is_broken() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let mut host = pair.home.run(|| Host::attach(&spec(&[])).unwrap());
    host.apply(&allocation(&[Rate::mbit(5)])).unwrap();
    pair.home.run(|| link::delete("wan").unwrap());
    assert_eq!(host.health(), Health::DeviceGone);
    drop(host);
    assert_eq!(pair.home.run(|| link::all().unwrap().len()), 1, "only lo is left");
}

#[test]
fn one_batch_changes_all_rates() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let names: Vec<String> = (0..23).map(|i| format!("g{i}")).collect();
    let groups: Vec<(&str, &[&str])> = names.iter().map(|name| (name.as_str(), &[][..])).collect();
    let mut host = pair.home.run(|| Host::attach(&spec(&groups)).unwrap());
    for round in 1..4 {
        let rates: Vec<Rate> = (1..=24).map(|i| Rate::mbit(i * round)).collect();
        host.apply(&allocation(&rates)).unwrap();
        let classes = tc(&pair.home, "class show dev ifb4wan");
        for (slot, rate) in rates.iter().enumerate() {
            let class = format!("class htb fa17:{:x} parent fa17:ffff leaf", slot + 1);
            let line = classes.lines().find(|line| line.starts_with(&class)).expect("the class");
            let wanted = format!("rate {}Mbit ceil {0}Mbit", rate.as_bps() / 1_000_000);
            assert!(line.contains(&wanted), "{line}");
        }
    }
    let queues = tc(&pair.home, "qdisc show dev ifb4wan");
    assert!(
        queues.contains("bfifo 118: parent fa17:18 limit 900000b"),
        "2 · 72 Mbit/s · 50 ms: {queues}"
    );
    assert!(queues.contains("bfifo 101: parent fa17:1 limit 37500b"), "{queues}");
    host.apply(&allocation(&[Rate::kbit(100); 24])).unwrap();
    let queues = tc(&pair.home, "qdisc show dev ifb4wan");
    assert!(queues.contains("bfifo 101: parent fa17:1 limit 9084b"), "six packets: {queues}");
}

#[test]
fn a_reload_moves_no_queue_and_deletes_what_is_gone() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let groups: [(&str, &[&str]); 2] = [("a", &["ip:192.0.2.2"]), ("b", &["ip:192.0.2.3"])];
    let mut host = pair.home.run(|| Host::attach(&spec(&groups)).unwrap());
    host.apply(&allocation(&[Rate::mbit(20), Rate::mbit(5), Rate::mbit(1)])).unwrap();
    let mut stream = pair.download("192.0.2.3");
    read_for(&mut stream, Duration::from_millis(500));
    let sent = |class: &str| {
        let classes = tc(&pair.home, "-s class show dev ifb4wan");
        let mut lines = classes.lines().skip_while(|line| !line.contains(&format!(" {class} ")));
        let found = lines.nth(1)?.trim().strip_prefix("Sent ")?.split(' ').next()?.parse().ok();
        found.map(|bytes: u64| bytes)
    };
    let before = sent("fa17:2").expect("b's class");
    assert!(before > 100_000, "{before}");
    read_for(&mut pair.download("192.0.2.2"), Duration::from_millis(300));
    std::thread::sleep(Duration::from_millis(200));

    let new: [(&str, &[&str]); 3] =
        [("c", &["ip:192.0.2.2"]), ("b", &["ip:192.0.2.3"]), ("d", &["port:1"])];
    host.set_policy(&policy(&new)).unwrap();
    let samples = host.take_samples().unwrap();
    assert_eq!(samples.len(), 4);
    assert!(samples[0].received.as_u64() < 5_000, "c took a's slot, not its counts");
    assert_eq!(sent("fa17:1"), None, "nor its class");
    host.apply(&allocation(&[Rate::mbit(1), Rate::mbit(5), Rate::mbit(1), Rate::mbit(1)])).unwrap();
    read_for(&mut stream, Duration::from_millis(500));
    assert!(sent("fa17:2").unwrap() > before, "b's class was not made anew");
    let samples = host.take_samples().unwrap();
    assert!(samples[1].received.as_u64() > 100_000, "{samples:?}");
    assert!(samples[0].received.as_u64() < 5_000, "{samples:?}");

    let bad = policy(&[("e", &["user:no-such-user"])]);
    assert!(matches!(host.set_policy(&bad), Err(Error::NoUser(_))));
    assert_eq!(host.take_samples().unwrap().len(), 4, "the old policy stays");
}

#[test]
fn drops_and_backlog_are_told() {
    judged(|| {
        let pair = Pair::new(false);
        let mut host = pair.home.run(|| Host::attach(&spec(&[])).unwrap());
        host.apply(&allocation(&[Rate::mbit(1)])).unwrap();
        let sink = pair.home.run(|| UdpSocket::bind("192.0.2.1:0").unwrap());
        let sender = pair.internet.run(|| UdpSocket::bind("192.0.2.2:0").unwrap());
        for _ in 0..200 {
            sender.send_to(&[7; 1_000], sink.local_addr().unwrap()).unwrap();
        }
        let sample = host.take_samples().unwrap()[0];
        assert!((200..210).contains(&sample.packets), "{sample:?}");
        // The queue is 12.5 kB and the burst 15 kB.
        assert!((160..190).contains(&sample.drops), "{sample:?}");
        assert!((9_000..=12_500).contains(&sample.backlog.as_u64()), "{sample:?}");
        std::thread::sleep(Duration::from_millis(200));
        let later = host.take_samples().unwrap()[0];
        assert_eq!((later.drops, later.backlog.as_u64()), (0, 0), "{later:?}");
        sink.set_nonblocking(true).unwrap();
        let mut arrived = 0;
        while sink.recv(&mut [0; 2_000]).is_ok() {
            arrived += 1;
        }
        assert_eq!(arrived + sample.drops, 200, "what was not dropped arrived");
    });
}

#[test]
fn a_device_without_ethernet_is_shaped_too() {
    if !privileged() {
        return;
    }
    let home = Netns::new().unwrap();
    let (tun, mut host, socket) = home.run(|| {
        let tun = std::fs::File::from(link::tun("wan").unwrap());
        link::add_address("wan", "192.0.2.1/24".parse().unwrap()).unwrap();
        link::set_up("wan").unwrap();
        let host = Host::attach(&spec(&[("a", &["ip:192.0.2.2"])])).unwrap();
        (tun, host, UdpSocket::bind("192.0.2.1:4000").unwrap())
    });
    host.apply(&allocation(&[Rate::mbit(50), Rate::mbit(1)])).unwrap();
    let mut packet = vec![0x45, 0, 0, 128, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 2, 192, 0, 2, 1];
    let sum: u32 = packet.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend([0x0f, 0xa1, 0x0f, 0xa0, 0, 108, 0, 0]);
    packet.resize(128, 7);
    for _ in 0..10 {
        (&tun).write_all(&packet).unwrap();
    }
    // A packet truncated in its headers is dropped by the stack, not before.
    (&tun).write_all(&packet[..10]).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    for _ in 0..10 {
        assert_eq!(socket.recv(&mut [0; 2_000]).unwrap(), 100);
    }
    let samples = host.take_samples().unwrap();
    assert_eq!((samples[0].packets, samples[0].received.as_u64()), (10, 1_420), "with 14 each");
    let sent = tc(&home, "-s class show dev ifb4wan");
    assert!(sent.contains("Sent 1420 bytes 10 pkt"), "{sent}");
}

#[test]
fn four_capabilities_suffice() {
    if !privileged() {
        return;
    }
    let pair = Pair::new(false);
    let capabilities = ["net_admin", "net_raw", "bpf", "perfmon"];
    let mut agent = Agent::start_with(&pair.home, "daemon", &capabilities, "host wan");
    // The agent also asserts that this kernel then has no limits.
    agent.go();
    let mut stream = pair.download("192.0.2.2");
    read_for(&mut stream, Duration::from_millis(500));
    assert!(rate_of(&pair, &mut stream) < 10.0);
}
