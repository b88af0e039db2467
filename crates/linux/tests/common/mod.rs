//! What the tests on the real kernel share.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "tests")]

pub(crate) mod agent;
pub(crate) mod frames;
mod judge;
pub(crate) mod path;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::phantom::{Plan, PlanSpec, Share, Signal};
use fairweir_core::policy::{Group, Policy};
use fairweir_core::receiver::{Allocation, ClassRate};
use fairweir_core::share::Weight;
use fairweir_core::units::{Rate, Span};
use fairweir_linux::police::{
    Algorithm, Direction, Hook, PlanId, Police, PoliceSpec, SubscriberSpec,
};
use fairweir_linux::{Host, HostSpec, Mode, link, netns::Netns};

use judge::{note, two_of_three};

/// Whether the tests may touch the kernel; a skip is loud, and a failure under FAIRWEIR_STRICT=1.
pub(crate) fn privileged() -> bool {
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } == 0 {
        return true;
    }
    note("SKIPPED: needs root for network namespaces");
    assert!(
        std::env::var_os("FAIRWEIR_STRICT").is_none(),
        "skipped although FAIRWEIR_STRICT is set"
    );
    false
}

/// Judges a claim about real traffic, if the tests may touch the kernel.
pub(crate) fn judged(claim: impl Fn()) {
    if privileged() {
        two_of_three(claim);
    }
}

/// Two namespaces with a veth pair: `wan` in `home` (192.0.2.1, 2001:db8::1), `far` in `internet`
/// (192.0.2.2 and .3, 2001:db8::2 and ::3).
pub(crate) struct Pair {
    pub(crate) home: Netns,
    pub(crate) internet: Netns,
}

impl Pair {
    pub(crate) fn new(offloads: bool) -> Pair {
        let pair = Pair { home: Netns::new().unwrap(), internet: Netns::new().unwrap() };
        pair.home.run(|| {
            link::create_veth("wan", &pair.internet, "far").unwrap();
            prepare("wan", &["192.0.2.1/24", "2001:db8::1/64"], offloads);
        });
        pair.internet.run(|| {
            let addresses = ["192.0.2.2/24", "192.0.2.3/24", "2001:db8::2/64", "2001:db8::3/64"];
            prepare("far", &addresses, offloads);
        });
        pair
    }

    /// A host at `wan`.
    pub(crate) fn host(&self, policy: &Policy, mode: Mode) -> Host {
        let spec = HostSpec { dev: "wan".into(), policy: policy.clone(), mode, census: false };
        self.home.run(|| Host::attach(&spec).unwrap())
    }

    /// A connection from `home` to a server at `address` that sends as fast as it can until the
    /// client closes.
    pub(crate) fn download(&self, address: &str) -> TcpStream {
        let server = self.serve(address);
        self.home.run(|| TcpStream::connect(server).unwrap())
    }

    /// A connection from `home` that sends as fast as it can to a server at `address`, until it is
    /// shut down or the server ends.
    pub(crate) fn upload(&self, address: &str) -> TcpStream {
        let listener = self.internet.run(|| TcpListener::bind((address, 0)).unwrap());
        let server = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        let stream = self.home.run(|| TcpStream::connect(server).unwrap());
        set_congestion_control(&stream, "cubic");
        let mut writer = stream.try_clone().unwrap();
        thread::spawn(move || while writer.write_all(&[7; 65_536]).is_ok() {});
        stream
    }

    /// A server at `address` that sends to one client as fast as it can until that closes.
    pub(crate) fn serve(&self, address: &str) -> SocketAddr {
        let listener = self.internet.run(|| TcpListener::bind((address, 0)).unwrap());
        let server = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            set_congestion_control(&stream, "cubic");
            while stream.write_all(&[7; 65_536]).is_ok() {}
        });
        server
    }
}

fn prepare(name: &str, addresses: &[&str], offloads: bool) {
    for address in addresses {
        link::add_address(name, address.parse().unwrap()).unwrap();
    }
    link::offloads(name, offloads).unwrap();
    link::set_up(name).unwrap();
}

pub(crate) fn set_congestion_control(stream: &TcpStream, name: &str) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open and the name outlives the call.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "no congestion control {name}");
}

/// Reads for `span` and returns the bytes that came.
pub(crate) fn read_for(stream: &mut TcpStream, span: Duration) -> u64 {
    let end = Instant::now() + span;
    let mut buffer = vec![0; 1 << 18];
    let mut total = 0;
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    while Instant::now() < end {
        total += stream.read(&mut buffer).unwrap_or(0) as u64;
    }
    total
}

/// A policer in the calling thread's namespace that keeps downloads to 192.0.2.1 and 2001:db8::1
/// together to 10 Mbit/s, at the ingress of `device`.
pub(crate) fn police(device: &str, hook: Hook) -> Police {
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    police.set_plan(PlanId(1), &Algorithm::Phantom(&plan(Rate::mbit(10)))).unwrap();
    let addresses =
        ["192.0.2.1/32", "2001:db8::1/128"].map(|net| net.parse().unwrap()).to_vec().into();
    police.add(&SubscriberSpec { addresses, download: Some(PlanId(1)), upload: None }).unwrap();
    police.attach(device, hook, Direction::Download, 0).unwrap();
    police
}

/// A plan for short round trips, fair between four flows.
pub(crate) fn plan(rate: Rate) -> Plan {
    flat(rate, 4, Signal::Soft)
}

/// A flat plan of phantom queues, for short round trips.
pub(crate) fn flat(rate: Rate, queues: u8, signal: Signal) -> Plan {
    let rtt_max = Span::millis(20);
    Plan::new(&PlanSpec { rate, rtt_max, signal, share: Share::Flows(queues) }).unwrap()
}

/// Groups with their matches, each of weight 1.
pub(crate) fn policy(groups: &[(&str, &[&str])]) -> Policy {
    let group = |&(name, matches): &(&str, &[&str])| Group {
        name: name.to_owned(),
        weight: Weight::ONE,
        matches: matches.iter().map(|m| m.parse().unwrap()).collect(),
    };
    Policy::new(groups.iter().map(group).collect()).unwrap()
}

/// Classes with these rates and no borrowing.
pub(crate) fn allocation(rates: &[Rate]) -> Allocation {
    let class = |&rate: &Rate| ClassRate { rate, ceil: rate, priority: 0, weight: Weight::ONE };
    Allocation { total: None, classes: rates.iter().map(class).collect() }
}

/// The bytes that the device `name` of `netns` has sent since it was made.
pub(crate) fn sent_by(netns: &Netns, name: &str) -> u64 {
    counter_of(netns, name, 8)
}

/// The bytes that the device `name` of `netns` has received since it was made.
pub(crate) fn received_by(netns: &Netns, name: &str) -> u64 {
    counter_of(netns, name, 0)
}

fn counter_of(netns: &Netns, name: &str, column: usize) -> u64 {
    let table = netns.run(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let mut lines = table.lines().filter_map(|line| line.split_once(':'));
    let (_, numbers) = lines.find(|(device, _)| device.trim() == name).unwrap();
    numbers.split_whitespace().nth(column).unwrap().parse().unwrap()
}
