//! A long path between two namespaces: a thread carries Ethernet frames between two devices, with a
//! delay in each direction and, if wanted, a bottleneck with a queue in the download.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fairweir_core::units::Rate;
use fairweir_linux::{link, netns::Netns, realtime};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, gettid};

use super::{Pair, prepare};

/// The properties of the path.
#[derive(Clone, Copy)]
pub(crate) struct PathSpec {
    /// Round-trip time of the empty path.
    pub(crate) rtt: Duration,
    /// Rate of the bottleneck in the download.
    pub(crate) rate: Rate,
    /// Maximum bytes that wait in front of the bottleneck.
    pub(crate) queue_bytes: u64,
}

/// Waiting times of the packets that arrived at the bottleneck.
#[derive(Default)]
struct Waits {
    sum_ns: AtomicU64,
    count: AtomicU64,
}

/// As [`Pair`], with a long path between the two.
pub(crate) struct Path {
    pub(crate) pair: Pair,
    _middle: Netns,
    stop: Arc<AtomicBool>,
    waits: Arc<Waits>,
    /// Of as many packets of the download one is lost; 0 is none.
    lost_of: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
    thread_id: Pid,
}

impl Path {
    pub(crate) fn new(spec: PathSpec) -> Path {
        let pair = Pair { home: Netns::new().unwrap(), internet: Netns::new().unwrap() };
        let middle = Netns::new().unwrap();
        let mut ends = Vec::new();
        for (netns, name, addresses) in [
            (&pair.home, "wan", &["192.0.2.1/24", "2001:db8::1/64"][..]),
            (&pair.internet, "far", &["192.0.2.2/24", "192.0.2.3/24", "2001:db8::2/64"][..]),
        ] {
            let end = format!("to-{name}");
            netns.run(|| {
                link::create_veth(name, &middle, &end).unwrap();
                prepare(name, addresses, false);
                link::checksum_offload(name, false).unwrap();
            });
            middle.run(|| {
                link::offloads(&end, false).unwrap();
                link::set_up(&end).unwrap();
                ends.push(packet_socket(link::index(&end).unwrap()));
            });
        }
        let stop = Arc::new(AtomicBool::new(false));
        let waits = Arc::new(Waits::default());
        let lost_of = Arc::new(AtomicU64::new(0));
        let (stop_too, waits_too) = (Arc::clone(&stop), Arc::clone(&waits));
        let lost_of_too = Arc::clone(&lost_of);
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            realtime::enter().unwrap();
            tell.send(gettid()).unwrap();
            carry(&ends, spec, &stop_too, &waits_too, &lost_of_too);
        });
        let thread_id = told.recv().unwrap();
        Path { pair, _middle: middle, stop, waits, lost_of, thread: Some(thread), thread_id }
    }

    /// Loses one of this many packets of the download from now on.
    pub(crate) fn lose_one_of(&self, packets: u64) {
        self.lost_of.store(packets, Ordering::Relaxed);
    }

    /// Makes everything arrive on this CPU from now on.
    pub(crate) fn pin(&self, cpu: usize) {
        let mut set = CpuSet::new();
        set.set(cpu).unwrap();
        sched_setaffinity(self.thread_id, &set).unwrap();
    }

    /// Average waiting time at the bottleneck of the packets that arrived since the last call.
    pub(crate) fn take_queue(&self) -> Duration {
        let sum = self.waits.sum_ns.swap(0, Ordering::Relaxed);
        let count = self.waits.count.swap(0, Ordering::Relaxed);
        Duration::from_nanos(sum.checked_div(count).unwrap_or(0))
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

/// Carries frames between `ends`: the home's, then the Internet's.
fn carry(ends: &[OwnedFd], spec: PathSpec, stop: &AtomicBool, waits: &Waits, lost_of: &AtomicU64) {
    let mut arrived = 0_u64;
    let mut ways: [VecDeque<(Instant, Vec<u8>)>; 2] = Default::default();
    let mut free_at = Instant::now();
    let mut buffer = [0; 2_048];
    while !stop.load(Ordering::Relaxed) {
        for (from, way) in ways.iter_mut().enumerate() {
            while let Some(bytes) = receive(&ends[from], &mut buffer) {
                let now = Instant::now();
                let mut due = now + spec.rtt / 2;
                if from == 1 {
                    arrived += 1;
                    let lost_of = lost_of.load(Ordering::Relaxed);
                    if lost_of > 0 && arrived.is_multiple_of(lost_of) {
                        continue;
                    }
                    let wait = free_at.saturating_duration_since(now);
                    waits.sum_ns.fetch_add(wait.as_nanos() as u64, Ordering::Relaxed);
                    waits.count.fetch_add(1, Ordering::Relaxed);
                    let bps = spec.rate.as_bps() as f64;
                    if wait.as_secs_f64() * bps > spec.queue_bytes as f64 * 8.0 {
                        continue;
                    }
                    let takes = Duration::from_secs_f64(bytes.len() as f64 * 8.0 / bps);
                    free_at = free_at.max(now) + takes;
                    due = free_at + spec.rtt / 2;
                }
                way.push_back((due, bytes.to_vec()));
            }
        }
        let mut next = Instant::now() + Duration::from_millis(20);
        for (from, way) in ways.iter_mut().enumerate() {
            while way.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                let (_, bytes) = way.pop_front().unwrap();
                send(&ends[1 - from], &bytes);
            }
            next = way.front().map_or(next, |(due, _)| next.min(*due));
        }
        wait(ends, next.saturating_duration_since(Instant::now()));
    }
}

fn wait(ends: &[OwnedFd], span: Duration) {
    let entry =
        |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut entries = [entry(&ends[0]), entry(&ends[1])];
    let span = libc::timespec { tv_sec: 0, tv_nsec: span.as_nanos() as i64 };
    // SAFETY: the array and the time outlive the call.
    unsafe { libc::ppoll(entries.as_mut_ptr(), 2, &span, std::ptr::null()) };
}

pub(crate) fn receive<'b>(end: &OwnedFd, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    // SAFETY: the kernel writes no more than the buffer's length.
    let got = unsafe {
        libc::recv(end.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
    };
    usize::try_from(got).ok().map(|length| &buffer[..length])
}

fn send(end: &OwnedFd, bytes: &[u8]) {
    // SAFETY: the kernel reads no more than the slice's length.
    unsafe { libc::send(end.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
}

/// A packet socket at the device `index` of the calling thread's namespace, both ways.
pub(crate) fn packet_socket(index: u32) -> OwnedFd {
    let every = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: the descriptor is new; the address and the options outlive the calls.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
        assert!(fd >= 0, "a packet socket needs root");
        let on: libc::c_int = 1;
        let ignored = libc::setsockopt(
            fd,
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            (&raw const on).cast(),
            4,
        );
        let room: libc::c_int = 8 << 20;
        let roomy = libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const room).cast(),
            4,
        );
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = every;
        address.sll_ifindex = index as i32;
        let length = size_of::<libc::sockaddr_ll>() as u32;
        let bound = libc::bind(fd, (&raw const address).cast(), length);
        assert_eq!((ignored, roomy, bound), (0, 0, 0));
        OwnedFd::from_raw_fd(fd)
    }
}
