//! What a sender's bundle costs (needs root): switching existing connections, the daemon's pass
//! over them, and the CPU time per ACK with its congestion controls and with the kernel's own.
#![allow(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::policy::{Group, Policy};
use fairweir_core::share::Weight;
use fairweir_core::units::Rate;
use fairweir_linux::link;
use fairweir_linux::netns::Netns;
use fairweir_linux::sender::{Kind, Layout, Part, Seat, Sender};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};
use nix::time::{ClockId, clock_gettime};

/// Places below this one are for connections with targets.
const STUNTS_FROM: u32 = 256;
const PORT: u16 = 7_001;
/// Bytes of two packets.
const READ: usize = 2_896;
const ROUNDS: usize = 25;
const ROUND: Duration = Duration::from_millis(200);

fn main() {
    // SAFETY: geteuid cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    println!(
        "| connections | switch, ms | look for them, ms | read what they did, ms | give back, ms |"
    );
    println!("|---:|---:|---:|---:|---:|");
    for connections in [100, 1_000, 10_000] {
        let times = Netns::new().unwrap().run(|| switch(connections));
        let [switch, look, read, back] = times.map(|time| time.as_secs_f64() * 1e3);
        println!("| {connections} | {switch:.1} | {look:.1} | {read:.1} | {back:.1} |");
    }
    println!("\n| | ns of CPU per ACK | the kernel's own | ratio |");
    println!("|---|---:|---:|---:|");
    for (name, kind) in Kind::ALL {
        let (ours, own) = Netns::new().unwrap().run(|| per_ack(name, kind));
        println!("| {name} | {ours:.0} | {own:.0} | {:.3} |", ours / own);
    }
}

fn loopback() -> TcpListener {
    link::set_up("lo").unwrap();
    TcpListener::bind(("127.0.0.1", PORT)).unwrap()
}

fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let receiver = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, receiver)
}

fn sender() -> Sender {
    let matches = vec![format!("local-port:tcp/{PORT}").parse().unwrap()];
    let group = Group::new("stunts", Weight::ONE, matches);
    Sender::attach(&Policy::new(vec![group]).unwrap()).unwrap()
}

/// Gives each connection of the port a place among the stunts of the first bundle.
fn seats(sender: &mut Sender, kind: Kind) -> BTreeMap<u64, Seat> {
    let found = sender.connections().unwrap();
    let places = found.iter().zip(STUNTS_FROM..);
    let seats: BTreeMap<u64, Seat> =
        places.map(|(connection, index)| (connection.id, Seat { index, kind })).collect();
    let part = Part::Stunt { weight: Weight::ONE, min_rate: Rate::ZERO, apart: 0 };
    for seat in seats.values() {
        sender.set_part(seat.index, 0, Some(part)).unwrap();
    }
    let stunts = (STUNTS_FROM, STUNTS_FROM + seats.len() as u32);
    let layout = Layout { free: Vec::new(), stunts, reverse: Default::default() };
    sender.set_layout(0, &layout).unwrap();
    seats
}

/// How long it takes to switch connections, find them, read their samples, and give them back.
fn switch(connections: usize) -> [Duration; 4] {
    let listener = loopback();
    // A thread with a file table of its own holds the other ends: a table has at most 20,000 files.
    let (end, is_over) = mpsc::channel::<()>();
    let address = listener.local_addr().unwrap();
    let others = thread::spawn(move || {
        unshare(CloneFlags::CLONE_FILES).unwrap();
        let _ends: Vec<_> =
            (0..connections).map(|_| TcpStream::connect(address).unwrap()).collect();
        let _ = is_over.recv();
    });
    let ends: Vec<_> = (0..connections).map(|_| listener.accept().unwrap().0).collect();
    let mut sender = sender();
    let seats = seats(&mut sender, Kind::Cubic);
    assert_eq!(seats.len(), connections);
    let start = Instant::now();
    assert_eq!(sender.seat(&seats).unwrap(), connections);
    let switched = start.elapsed();
    let start = Instant::now();
    assert_eq!(sender.connections().unwrap().len(), connections);
    let looked = start.elapsed();
    let start = Instant::now();
    sender.members(STUNTS_FROM + connections as u32).unwrap();
    let read = start.elapsed();
    let start = Instant::now();
    assert_eq!(sender.detach().unwrap(), connections);
    let given_back = start.elapsed();
    drop((end, ends));
    others.join().unwrap();
    [switched, looked, read, given_back]
}

/// CPU time of the process per ACK that the sending end of a bulk connection receives, in nanoseconds:
/// with the bundle's congestion control, and with the kernel's. Medians of alternating rounds.
fn per_ack(name: &str, kind: Kind) -> (f64, f64) {
    // Packets as on the wire, and small reads: otherwise one ACK stands for 64 kB, and copying
    // dominates the cost.
    link::set_mtu("lo", 1_500).unwrap();
    link::offloads("lo", false).unwrap();
    let listener = loopback();
    let (writer, mut reader) = pair(&listener);
    setsockopt(&writer, TcpCongestion, &name.into()).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| while reader.read(&mut [0; READ]).is_ok_and(|n| n > 0) {});
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                (&writer).write_all(&[7; READ]).unwrap();
            }
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut sender = sender();
        let (mut ours, mut own) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let seats = seats(&mut sender, kind);
            assert_eq!(sender.seat(&seats).unwrap(), 1);
            ours.push(round(&writer));
            assert_eq!(sender.seat(&BTreeMap::new()).unwrap(), 1);
            own.push(round(&writer));
        }
        stop.store(true, Ordering::Relaxed);
        (median(ours), median(own))
    })
}

fn round(writer: &TcpStream) -> f64 {
    let (acks, cpu) = (acks(writer), cpu_ns());
    thread::sleep(ROUND);
    (cpu_ns() - cpu) / f64::from(self::acks(writer).wrapping_sub(acks).max(1))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cpu_ns() -> f64 {
    Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap()).as_nanos() as f64
}

/// Segments that a socket has received.
fn acks(socket: &TcpStream) -> u32 {
    /// `tcpi_segs_in` in `struct tcp_info`.
    const SEGS_IN: usize = 140;
    let mut info = [0u8; 144];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the buffer is as long as `length` says, and the kernel writes no more.
    let done = unsafe {
        let buffer = info.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_TCP, libc::TCP_INFO, buffer, &mut length)
    };
    assert!(done == 0 && length as usize == info.len());
    u32::from_ne_bytes(info[SEGS_IN..].try_into().unwrap())
}
