//! A bundle in the kernel's policer with real, unmodified TCP: a free class holds its target,
//! stunts pay, and no other class pays.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::packet::{Side, Transport};
use fairweir_core::phantom::{Bundle, BundleSpec, Class, Criterion, Plan, PlanSpec, Share, Signal};
use fairweir_core::policy::PortMatch;
use fairweir_core::units::{Rate, Span};
use fairweir_linux::police::{
    Algorithm, Direction, Hook, PlanId, Police, PoliceSpec, SubscriberSpec,
};
use fairweir_testing::{judged, privileged};

use crate::common::path::{Path, PathSpec};
use crate::common::set_congestion_control;

const PLAN: PlanId = PlanId(1);
const RATE: Rate = Rate::mbit(40);
/// Number of connections of the stream, of the stunts and of all others, and the port of their servers.
const CLASSES: [(&str, u8, u16); 3] =
    [("stream", 1, 5_001), ("backup", 7, 5_002), ("others", 8, 5_003)];
/// The rate of each of the sixteen connections without a bundle, Mbit/s.
const SHARE: f64 = 2.5;
/// Bytes of a full frame.
const FRAME: f64 = 1_514.0;

fn spec() -> PlanSpec {
    let class = |(name, count, port): (&str, u8, u16)| Class {
        name: name.to_owned(),
        weight: count.into(),
        matches: match name {
            "others" => Vec::new(),
            _ => vec![Criterion::Port(PortMatch {
                transport: Some(Transport::Tcp),
                side: Side::Remote,
                first: port,
                last: port,
            })],
        },
        share: Share::Flows(count),
    };
    let share = Share::Weighted(CLASSES.map(class).to_vec());
    PlanSpec { rate: RATE, rtt_max: Span::millis(100), signal: Signal::Soft, share }
}

/// Sixteen downloads, half of them by IPv6, through a policer.
struct Home {
    police: Police,
    /// Bytes that each class received, as the policer counts them.
    received: [Arc<AtomicU64>; 3],
    _path: Path,
}

impl Home {
    /// Senders take the congestion controls in turn.
    fn new(rtt: Duration, controls: &'static [&'static str]) -> Home {
        let path = Path::new(PathSpec { rtt, rate: Rate::mbit(500), queue_bytes: 2_000_000 });
        let mut police = Police::load(&PoliceSpec::default()).unwrap();
        police.set_plan(PLAN, &Algorithm::Phantom(&Plan::new(&spec()).unwrap())).unwrap();
        let nets = ["192.0.2.1/32", "2001:db8::1/128"];
        let addresses = nets.map(|net| net.parse().unwrap()).to_vec().into();
        police.add(&SubscriberSpec { addresses, download: Some(PLAN), upload: None }).unwrap();
        path.pair.home.run(|| police.attach("wan", Hook::Xdp, Direction::Download, 0)).unwrap();
        let received = CLASSES.map(|(_, count, port)| {
            let received = Arc::new(AtomicU64::new(0));
            for (address, payload) in [("192.0.2.2", 1_448.0), ("2001:db8::2", 1_428.0)] {
                serve(&path, (address, port), controls);
                // If the number is odd, one more uses IPv4.
                let count = if payload > 1_430.0 { count.div_ceil(2) } else { count / 2 };
                for _ in 0..count {
                    let server = (address, port);
                    let stream = path.pair.home.run(|| TcpStream::connect(server).unwrap());
                    let received = Arc::clone(&received);
                    thread::spawn(move || count_into(stream, FRAME / payload, &received));
                }
            }
            received
        });
        Home { police, received, _path: path }
    }

    /// Sets the target of the stream, as a multiple of its share; `None` removes the bundle.
    fn aim(&mut self, times: Option<f64>) {
        let plan = Plan::new(&spec()).unwrap();
        let bundle = times.map(|times| {
            let target = Rate::bps((times * SHARE * 1e6) as u64);
            let (free, stunts) = ("stream".to_owned(), "backup".to_owned());
            Bundle::new(&BundleSpec { free, target, stunts }, &spec(), &plan).unwrap()
        });
        let algorithm = match &bundle {
            Some(bundle) => Algorithm::Bundled(&plan, bundle),
            None => Algorithm::Phantom(&plan),
        };
        self.police.set_plan(PLAN, &algorithm).unwrap();
    }

    /// The rates of the classes, and of all that passed, in Mbit/s.
    fn measure(&self, span: Duration) -> [f64; 4] {
        let look = || {
            let passed = self.police.totals(PLAN, Direction::Download).unwrap().passed.as_u64();
            let [a, b, c] = [0, 1, 2].map(|at| self.received[at].load(Ordering::Relaxed));
            [a, b, c, passed].map(|bytes| bytes as f64)
        };
        let (start, before) = (Instant::now(), look());
        thread::sleep(span);
        let (after, seconds) = (look(), start.elapsed().as_secs_f64());
        std::array::from_fn(|at| (after[at] - before[at]) * 8e-6 / seconds)
    }
}

/// Servers at an address and a port that send as fast as they can.
fn serve(path: &Path, at: (&'static str, u16), controls: &'static [&'static str]) {
    let listener = path.pair.internet.run(|| TcpListener::bind(at).unwrap());
    thread::spawn(move || {
        for nth in 0.. {
            let Ok((mut stream, _)) = listener.accept() else { return };
            set_congestion_control(&stream, controls[nth % controls.len()]);
            thread::spawn(move || while stream.write_all(&[7; 65_536]).is_ok() {});
        }
    });
}

fn count_into(mut stream: TcpStream, by: f64, received: &AtomicU64) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
        received.fetch_add((bytes as f64 * by) as u64, Ordering::Relaxed);
    }
}

#[test]
fn real_tcp_in_a_bundle_holds_its_target_at_the_cost_of_its_stunts_alone() {
    judged(|| {
        let mut home = Home::new(Duration::from_millis(20), &["reno", "cubic"]);
        thread::sleep(Duration::from_millis(800));
        let before = home.measure(Duration::from_millis(1_500));
        home.aim(Some(2.0));
        thread::sleep(Duration::from_millis(1_200));
        let with = home.measure(Duration::from_secs(3));
        println!("Mbit/s: {before:.2?} without a bundle, {with:.2?} with it");
        let totals = home.police.totals(PLAN, Direction::Download).unwrap();
        assert!(totals.delegated_packets > 100, "{totals:?}");
        let free = with[0] / (2.0 * SHARE);
        assert!((0.95..=1.05).contains(&free), "{free:.3} of the target: {with:.2?}");
        assert!(with[1] < 0.97 * before[1], "the stunts pay: {before:.2?}, {with:.2?}");
        assert!(with[2] >= 0.95 * before[2], "others: {before:.2?}, {with:.2?}");
        assert!((0.97..=1.03).contains(&(with[3] / before[3])), "all: {before:.2?}, {with:.2?}");
    });
}

/// `cargo test -p fairweir-linux --test it police_bundle:: -- --ignored --nocapture` prints the
/// table in docs/research/papers/free-and-stunts.md.
#[test]
#[ignore = "long: 9 min"]
fn each_target_with_real_tcp() {
    if !privileged() {
        return;
    }
    const SPAN: Duration = Duration::from_secs(15);
    let mut missed = Vec::new();
    for (name, rtt, controls) in [
        ("reno, 20 ms", 20, &["reno"][..]),
        ("cubic, 20 ms", 20, &["cubic"]),
        ("reno and cubic, 20 ms", 20, &["reno", "cubic"]),
        ("reno, 80 ms", 80, &["reno"]),
        ("cubic, 80 ms", 80, &["cubic"]),
    ] {
        let mut home = Home::new(Duration::from_millis(rtt), controls);
        thread::sleep(Duration::from_secs(3));
        let without = home.measure(SPAN);
        for times in [0.5, 1.0, 1.5, 2.0, 2.5] {
            home.aim(Some(times));
            thread::sleep(Duration::from_secs(3));
            let with = home.measure(SPAN);
            let free = with[0] / (times * SHARE);
            let by = |at: usize| with[at] / without[at];
            println!(
                "| {name} | {times} | {:.1} % | {:.1} % | {:.1} % | {:.1} % | {:.1} % |",
                100.0 * free,
                100.0 * by(1),
                100.0 * by(2),
                100.0 * with[3] / RATE.as_mbit_f64(),
                100.0 * without[3] / RATE.as_mbit_f64(),
            );
            if (free - 1.0).abs() > 0.05 || by(2) < 0.97 || (by(3) - 1.0).abs() > 0.01 {
                missed.push(format!("{name} at {times}"));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}
