//! What the kernel's policer costs: nanoseconds per packet, time to load, memory (needs root).
//!
//! Prints Markdown tables. The kernel's own program runs in a loop inside one test run and measures
//! the whole path of a packet, from the Ethernet header to the verdict, over subscribers and flows
//! in random order. The figures contain the loop itself, a few nanoseconds. Time is the real
//! clock's. The rate of a plan is half of what the loop offers, or the least possible rate. Each
//! figure is the median of several rounds, which alternate between the algorithms.
#![allow(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::net::Ipv4Addr;
use std::time::Instant;

use fairweir_core::agreement::{Classes, mark_of};
use fairweir_core::packet::Side;
use fairweir_core::phantom::plan::{RATE_MAX, RATE_MIN};
use fairweir_core::phantom::{Bundle, BundleSpec, Class, Criterion, Plan, PlanSpec, Share, Signal};
use fairweir_core::policy::PortMatch;
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_linux::monotonic_now;
use fairweir_linux::police::{
    Algorithm, Bench, Direction, Frame, Hook, PlanId, Police, PoliceSpec, SegmentId, SubscriberId,
    SubscriberSpec,
};
use ipnet::IpNet;

const FRAME_BYTES: u64 = 1_514;
const TURNS: u32 = 1 << 15;
const ROUNDS: usize = 31;
const PLAN: PlanId = PlanId(1);
const SEGMENT: SegmentId = SegmentId(0);
/// The random bits of a flow's port: sixteen flows for each subscriber.
const PORTS: u16 = 0xf000;
/// With these random bits nearly each packet is the first of its flow, as in a scan.
const PORTS_ALL: u16 = 0xffff;
/// The first subscriber's address.
const FIRST: u32 = 0x0a00_0000;
const COUNTS: [u32; 4] = [1, 1_000, 100_000, 1_000_000];

#[derive(Clone, Copy)]
enum Kind {
    Unknown,
    Bucket,
    Phantom(u8, Signal),
    /// As `Phantom`, with all subscribers as members of one segment.
    Member(u8, Signal),
    /// Sixteen queues in three classes. With a bundle, one class's seven queues pay for another's single queue.
    Classes {
        is_bundle: bool,
    },
    /// As `Phantom(16, Signal::Soft)`, in a program without the code for clients.
    Without,
    /// As `Phantom(16, Signal::Soft)`, for clients.
    ForClients(Client),
}

#[derive(Clone, Copy, PartialEq)]
enum Client {
    Absent,
    /// Its classes have weights 5:1, and all flows are in the default class.
    Unbound,
    /// Every flow is bound to one of these classes.
    Bound,
}

struct Case {
    name: String,
    police: Police,
    bench: Bench,
    count: u32,
    kind: Kind,
    ports: u16,
    ids: Vec<SubscriberId>,
    spans: Vec<u64>,
}

fn main() {
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: needs root");
        return;
    }
    println!("| subscribers | flows | policer | ns per packet | ratio to token bucket | dropped |");
    println!("|---:|---:|---|---:|---:|---:|");
    // `cargo bench --bench police -- 1000` measures a thousand subscribers only.
    let asked: Vec<u32> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    for count in COUNTS.into_iter().filter(|count| asked.is_empty() || asked.contains(count)) {
        let mut kinds = vec![Kind::Unknown, Kind::Bucket, Kind::Phantom(16, Signal::Soft)];
        if count <= 1_000 {
            let clients = [Client::Absent, Client::Unbound, Client::Bound];
            kinds.extend([Kind::Without].into_iter().chain(clients.map(Kind::ForClients)));
        }
        if count == 1_000 {
            kinds.push(Kind::Phantom(16, Signal::Hard));
            kinds.push(Kind::Member(16, Signal::Soft));
            kinds.extend([false, true].map(|is_bundle| Kind::Classes { is_bundle }));
            kinds.extend([1, 4, 64].map(|queues| Kind::Phantom(queues, Signal::Soft)));
        }
        compare(kinds.into_iter().map(|kind| Case::new(kind, count, PORTS)).collect());
    }
    let kinds = [Kind::Unknown, Kind::Bucket, Kind::Phantom(16, Signal::Soft)];
    compare(kinds.into_iter().map(|kind| Case::new(kind, 1_000, PORTS_ALL)).collect());
    println!("\n| subscribers | clients | MB | bytes per client |\n|---:|---:|---:|---:|");
    weigh_clients(100_000, &[0, 10_000, 100_000]);
    if !asked.is_empty() {
        return;
    }
    println!(
        "\n| queues | subscribers | loaded in | bytes per subscriber |\n|---:|---:|---:|---:|"
    );
    for (queues, count) in [(1, 1_000_000), (4, 1_000_000), (16, 1_000_000), (64, 1_000_000)] {
        weigh(queues, count);
    }
}

impl Case {
    fn new(kind: Kind, count: u32, ports: u16) -> Case {
        let name = match kind {
            Kind::Unknown => "unknown address".to_owned(),
            Kind::Bucket => "token bucket".to_owned(),
            Kind::Phantom(queues, signal) => format!("BC-PQP, {queues} queues, {signal}"),
            Kind::Member(queues, signal) => {
                format!("BC-PQP, {queues} queues, {signal}, in a segment")
            }
            Kind::Classes { is_bundle: false } => "BC-PQP, 1 + 7 + 8 queues, soft".to_owned(),
            Kind::Classes { is_bundle: true } => "the same, the 7 pay for the 1".to_owned(),
            Kind::Without => "BC-PQP, 16 queues, soft, no plan for clients".to_owned(),
            Kind::ForClients(Client::Absent) => "the same, for clients, none asks".to_owned(),
            Kind::ForClients(Client::Unbound) => "divided 5:1, flows not bound".to_owned(),
            Kind::ForClients(Client::Bound) => "divided 5:1, flows bound".to_owned(),
        };
        let mut police = Police::load(&PoliceSpec::default()).unwrap();
        let bench = police.bench(!matches!(kind, Kind::Without)).unwrap();
        let mut case =
            Case { name, police, bench, count, kind, ports, ids: Vec::new(), spans: Vec::new() };
        case.set_rate(RATE_MAX);
        if !matches!(kind, Kind::Unknown) {
            let upload = matches!(kind, Kind::ForClients(_)).then_some(PLAN);
            let subscribers = subscribers(count, upload).into_iter();
            case.ids = case.police.add_all(subscribers, &mut |_| ()).unwrap();
        }
        if let Kind::Member(queues, signal) = kind {
            let pace = plan(RATE_MAX, queues, signal).pace;
            for id in &case.ids {
                case.police.join(*id, Direction::Download, SEGMENT, &pace).unwrap();
                case.police.set_guarantee(*id, Direction::Download, RATE_MIN).unwrap();
            }
        }
        case
    }

    fn set_rate(&mut self, rate: Rate) {
        let (phantom, bundle);
        let algorithm = match self.kind {
            Kind::Unknown => return,
            Kind::Bucket => {
                let burst = Bytes::new(15_000 + (rate * Span::millis(100)).as_u64());
                Algorithm::TokenBucket { rate, burst }
            }
            Kind::Phantom(queues, signal) | Kind::Member(queues, signal) => {
                phantom = plan(rate, queues, signal);
                Algorithm::Phantom(&phantom)
            }
            Kind::Without => {
                phantom = plan(rate, 16, Signal::Soft);
                Algorithm::Phantom(&phantom)
            }
            Kind::ForClients(_) => {
                phantom = plan(rate, 16, Signal::Soft).for_clients(rate).unwrap();
                Algorithm::Phantom(&phantom)
            }
            Kind::Classes { is_bundle } => {
                let spec = classes(rate);
                phantom = Plan::new(&spec).unwrap();
                // The target is what the free class sends: twice its share.
                let target = Rate::bps(rate.as_bps() / 8).max(RATE_MIN);
                let (free, stunts) = ("stream".to_owned(), "backup".to_owned());
                bundle =
                    Bundle::new(&BundleSpec { free, target, stunts }, &spec, &phantom).unwrap();
                match is_bundle {
                    true => Algorithm::Bundled(&phantom, &bundle),
                    false => Algorithm::Phantom(&phantom),
                }
            }
        };
        self.police.set_plan(PLAN, &algorithm).unwrap();
        if let Kind::ForClients(client) = self.kind
            && client != Client::Absent
            && !self.ids.is_empty()
        {
            self.ask(rate, client == Client::Bound);
        }
        if let Kind::Member(queues, signal) = self.kind {
            let pace = plan(rate, queues, signal).pace;
            // The segment is never full: the whole decision is measured.
            let all = Rate::bps(rate.as_bps().saturating_mul(8 * u64::from(self.count)));
            self.police.set_segment(SEGMENT, all);
            self.police.extend(SEGMENT, Time::from_nanos(u64::MAX));
            for id in &self.ids {
                self.police.set_pace(*id, Direction::Download, &pace).unwrap();
            }
        }
    }

    /// Each subscriber's client asks for two classes, and perhaps binds all flows, half of them to each class.
    fn ask(&mut self, rate: Rate, binds: bool) {
        let plan = divided(rate);
        self.ids.iter().for_each(|id| self.police.divide(*id, &plan).unwrap());
        if !binds {
            return;
        }
        let trial = self.police.trial(Direction::Upload, true, 0).unwrap();
        for address in (0..self.ids.len() as u32).map(|at| Ipv4Addr::from(FIRST + at)) {
            for flow in 0..1 << self.ports.count_ones() {
                let mut frame = frame();
                let (remote, local) = (frame[26..30].to_vec(), address.octets());
                frame[26..30].copy_from_slice(&local);
                frame[30..34].copy_from_slice(&remote);
                frame[15] = mark_of(flow % 2) << 2;
                let port = u16::from(flow) << self.ports.trailing_zeros();
                let local = [frame[36], frame[37]];
                frame[34..36].copy_from_slice(&local);
                frame[36..38].copy_from_slice(&port.to_be_bytes());
                let frame = Frame { bytes: &frame, ..Frame::default() };
                trial.run(Hook::TcxIngress, &frame, monotonic_now(), 1).unwrap();
            }
        }
        let bound = self.police.bindings(self.ids[0]).unwrap().unwrap().bound;
        assert_eq!(bound, 1 << self.ports.count_ones(), "flows are bound");
    }

    fn round(&mut self, seed: u64) {
        let span = self.bench.run(&frame(), self.count, self.ports, TURNS, seed).unwrap();
        self.spans.push(span.as_nanos());
    }

    fn median(&self) -> u64 {
        let mut spans = self.spans.clone();
        spans.sort_unstable();
        spans[spans.len() / 2]
    }

    /// Bytes dropped and passed until now.
    fn fate(&self) -> (f64, f64) {
        let totals = self.police.totals(PLAN, Direction::Download).unwrap_or_default();
        (totals.dropped.as_u64() as f64, totals.passed.as_u64() as f64)
    }
}

/// Measures policers side by side and prints a row for each.
fn compare(mut cases: Vec<Case>) {
    let mut seed = 0;
    // The first run lasts until the offered rate is known, the second until queues are full and windows pass.
    for seconds in [1.0, 2.0] {
        let start = Instant::now();
        let mut rounds = 0;
        while start.elapsed().as_secs_f64() < seconds * cases.len() as f64 {
            seed += 1;
            rounds += 1;
            cases.iter_mut().for_each(|case| case.round(seed));
        }
        let bits = (rounds * u64::from(TURNS) * FRAME_BYTES * 8) as f64;
        let offered = bits / start.elapsed().as_secs_f64();
        for case in &mut cases {
            let rate = Rate::bps((offered / 2.0 / f64::from(case.count)) as u64);
            case.set_rate(rate.clamp(RATE_MIN, RATE_MAX));
            case.spans.clear();
        }
    }
    let before: Vec<(f64, f64)> = cases.iter().map(Case::fate).collect();
    for _ in 0..ROUNDS {
        seed += 1;
        cases.iter_mut().for_each(|case| case.round(seed));
    }
    let base = cases[1].median();
    for (case, before) in cases.iter().zip(before) {
        let per_packet = case.median() as f64 / f64::from(TURNS);
        let ratio = case.median() as f64 / base as f64;
        let after = case.fate();
        let (dropped, passed) = (after.0 - before.0, after.1 - before.1);
        let share = if dropped > 0.0 { 100.0 * dropped / (dropped + passed) } else { 0.0 };
        let Case { name, count, .. } = case;
        let flows = 1 << case.ports.count_ones();
        println!("| {count} | {flows} | {name} | {per_packet:.1} | {ratio:.2} | {share:.0} % |");
    }
}

/// Loads this many subscribers; prints the time that it took and the memory per subscriber.
fn weigh(queues: u8, count: u32) {
    let specs = subscribers(count, None);
    let start = Instant::now();
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    let plan = plan(Rate::mbit(50), queues, Signal::Soft);
    police.set_plan(PLAN, &Algorithm::Phantom(&plan)).unwrap();
    police.add_all(specs.into_iter(), &mut |_| ()).unwrap();
    let took = start.elapsed().as_secs_f64();
    let bytes = police.memory().unwrap().as_u64() as f64 / f64::from(count);
    println!("| {queues} | {count} | {took:.1} s | {bytes:.0} |");
}

/// Prints the memory with this many subscribers while more and more of them have a client.
fn weigh_clients(count: u32, clients: &[u32]) {
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    let rate = Rate::mbit(50);
    let base = plan(rate, 16, Signal::Soft).for_clients(rate).unwrap();
    police.set_plan(PLAN, &Algorithm::Phantom(&base)).unwrap();
    let specs = subscribers(count, Some(PLAN)).into_iter();
    let ids = police.add_all(specs, &mut |_| ()).unwrap();
    let bytes = |police: &Police| police.memory().unwrap().as_u64() as f64;
    let alone = bytes(&police);
    let mut ids = ids.into_iter();
    let mut asked = 0;
    for &clients in clients {
        let new = ids.by_ref().take((clients - asked) as usize);
        new.for_each(|id| police.divide(id, &divided(rate)).unwrap());
        asked = clients;
        let all = bytes(&police);
        let each = (all - alone) / f64::from(clients.max(1));
        println!("| {count} | {clients} | {:.0} | {each:.0} |", all / 1e6);
    }
}

fn divided(rate: Rate) -> Plan {
    let base = plan(rate, 16, Signal::Soft).for_clients(rate).unwrap();
    base.divided(&Classes::new(vec![5, 1], 1).unwrap())
}

fn plan(rate: Rate, queues: u8, signal: Signal) -> Plan {
    let rtt_max = Span::millis(50);
    Plan::new(&PlanSpec { rate, rtt_max, signal, share: Share::Flows(queues) }).unwrap()
}

/// One sixteenth of the random ports belongs to the stream, seven sixteenths to the backup.
fn classes(rate: Rate) -> PlanSpec {
    let class = |(name, count, ports): (&str, u8, Option<(u16, u16)>)| {
        let by_port = |(first, last)| {
            Criterion::Port(PortMatch { transport: None, side: Side::Remote, first, last })
        };
        let matches = ports.map(by_port).into_iter().collect();
        Class { name: name.to_owned(), weight: count.into(), matches, share: Share::Flows(count) }
    };
    let classes = [
        ("stream", 1, Some((1, 4_095))),
        ("backup", 7, Some((4_096, 32_767))),
        ("others", 8, None),
    ];
    let share = Share::Weighted(classes.map(class).to_vec());
    PlanSpec { rate, rtt_max: Span::millis(50), signal: Signal::Soft, share }
}

fn subscribers(count: u32, upload: Option<PlanId>) -> Vec<SubscriberSpec> {
    let address = |at: u32| IpNet::from(std::net::IpAddr::from(Ipv4Addr::from(FIRST + at)));
    let spec =
        |at| SubscriberSpec { addresses: [address(at)].into(), download: Some(PLAN), upload };
    (0..count).map(spec).collect()
}

/// Ethernet, IPv4 and UDP headers, to 10.0.0.0.
fn frame() -> Vec<u8> {
    let length = FRAME_BYTES as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend((length - 14).to_be_bytes());
    frame
        .extend([0, 1, 0x40, 0, 64, 17, 0, 0, 203, 0, 113, 7, 10, 0, 0, 0, 0x1f, 0x90, 0x1f, 0x90]);
    frame.extend((length - 34).to_be_bytes());
    frame.resize(usize::from(length), 0);
    frame
}
