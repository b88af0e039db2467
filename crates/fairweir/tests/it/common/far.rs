//! A server some milliseconds away from a [`Stage`]'s internet, whose TCP timestamps may lie.
//!
//! Two TUN devices, one in the server's namespace and one in the internet, and threads that pass packets
//! on after a delay. Lies are written into the packets on the way, with a correct checksum, as if they
//! came from the server's clock.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::{link, netns::Netns};

use super::stage::{Download, Stage, serve_without_end};

/// Default delay in one direction.
const DELAY: Duration = Duration::from_millis(10);

/// How a server's timestamps lie once the lie has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The clock loses 15 ms a second: packets seem to wait longer and longer.
    Slow,
    /// The clock gains 15 ms a second: packets seem to wait less and less.
    Fast,
    /// The clock stops for 300 ms and then catches up: packets seem to wait between 0 and 300 ms.
    Halting,
}

/// A server at some distance; see the module.
pub struct Far {
    netns: Netns,
    address: SocketAddr,
    lies: Arc<AtomicBool>,
}

impl Far {
    /// A server at `address`, connected to the internet's device `name`.
    pub fn new(stage: &Stage, name: &str, address: &str, lie: Option<Lie>) -> Far {
        Far::with_delay(stage, name, address, lie, DELAY)
    }

    /// As [`Far::new`], with this delay in each direction.
    pub fn with_delay(
        stage: &Stage,
        name: &str,
        address: &str,
        lie: Option<Lie>,
        delay: Duration,
    ) -> Far {
        Far::behind(stage, name, address, lie, delay, None)
    }

    /// As [`Far::with_delay`]; packets to the server pass through the modem's queue.
    pub fn behind(
        stage: &Stage,
        name: &str,
        address: &str,
        lie: Option<Lie>,
        delay: Duration,
        modem: Option<Arc<Modem>>,
    ) -> Far {
        let netns = Netns::new().unwrap();
        let route = |to: String, device: &str| link::add_route(to.parse().unwrap(), None, device);
        let tun = |name: &str| {
            let fd = link::tun(name).unwrap();
            link::set_txqueuelen(name, 5_000).unwrap();
            link::set_up(name).unwrap();
            fd
        };
        let server = netns.run(|| {
            let fd = tun("net");
            link::add_address("net", format!("{address}/32").parse().unwrap()).unwrap();
            route("0.0.0.0/0".to_owned(), "net").unwrap();
            fd
        });
        let internet = stage.at_internet(|| {
            fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            let fd = tun(name);
            route(format!("{address}/32"), name).unwrap();
            fd
        });
        let lies = Arc::<AtomicBool>::default();
        let lying = lie.map(|lie| Liar { lie, lies: Arc::clone(&lies), begun: None });
        carry(&server, &internet, lying, delay, None);
        carry(&internet, &server, None, delay, modem);
        let port = netns.run(|| serve_without_end("[::]:0"));
        Far { netns, address: format!("{address}:{port}").parse().unwrap(), lies }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server's namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Runs `work` on the server.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.netns.run(work)
    }

    /// Starts a download from this server to the home.
    pub fn download(&self, stage: &Stage) -> Download {
        Download::new(stage.at_home(|| TcpStream::connect(self.address).unwrap()))
    }

    /// Adds an IPv6 address to the server, behind the internet's device `name`.
    pub fn add_address6(&self, stage: &Stage, name: &str, address: &str) -> SocketAddr {
        let prefix = || format!("{address}/128").parse().unwrap();
        self.netns.run(|| {
            link::add_address("net", prefix()).unwrap();
            link::add_route("::/0".parse().unwrap(), None, "net").unwrap();
        });
        stage.at_internet(|| {
            fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
            link::add_route(prefix(), None, name).unwrap();
        });
        format!("[{address}]:{}", self.address.port()).parse().unwrap()
    }

    /// Adds an IPv4 address to the server, behind the internet's device `name`.
    pub fn add_address(&self, stage: &Stage, name: &str, address: &str) {
        let prefix = || format!("{address}/32").parse().unwrap();
        self.netns.run(|| link::add_address("net", prefix()).unwrap());
        stage.at_internet(|| link::add_route(prefix(), None, name).unwrap());
    }

    /// Makes the timestamps lie from now on.
    pub fn begin_to_lie(&self) {
        self.lies.store(true, Ordering::Relaxed);
    }
}

/// A home's modem: a FIFO in front of the uplink. Unlike in a qdisc of this machine, packets in it no longer count
/// against their sender's socket.
pub struct Modem {
    mbit: f64,
    buffer: Duration,
    free_at: Mutex<Instant>,
    carried: AtomicU64,
}

impl Modem {
    pub fn new(mbit: f64, buffer: Duration) -> Arc<Modem> {
        let free_at = Mutex::new(Instant::now());
        Arc::new(Modem { mbit, buffer, free_at, carried: AtomicU64::new(0) })
    }

    /// How long a packet that arrived now would wait.
    pub fn wait(&self) -> Duration {
        self.free_at.lock().unwrap().saturating_duration_since(Instant::now())
    }

    /// Number of L2 bytes carried.
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }

    /// When an IP packet that arrives now will have left; `None` if the buffer is full.
    fn pass(&self, bytes: usize) -> Option<Instant> {
        let (bytes, now) = (bytes as u64 + 14, Instant::now());
        let mut free_at = self.free_at.lock().unwrap();
        if free_at.saturating_duration_since(now) > self.buffer {
            return None;
        }
        *free_at = now.max(*free_at) + Duration::from_secs_f64(bytes as f64 * 8e-6 / self.mbit);
        self.carried.fetch_add(bytes, Ordering::Relaxed);
        Some(*free_at)
    }
}

/// Passes packets on until a device is removed.
fn carry(
    from: &OwnedFd,
    to: &OwnedFd,
    mut liar: Option<Liar>,
    delay: Duration,
    modem: Option<Arc<Modem>>,
) {
    let mut from = File::from(from.try_clone().unwrap());
    let mut to = File::from(to.try_clone().unwrap());
    let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(5_000);
    thread::spawn(move || {
        let mut buffer = [0; 2_048];
        while let Ok(n) = from.read(&mut buffer) {
            let mut packet = buffer[..n].to_vec();
            if let Some(liar) = &mut liar {
                liar.rewrite(&mut packet);
            }
            let left = modem.as_ref().map_or(Some(Instant::now()), |modem| modem.pass(n));
            let Some(left) = left else { continue };
            if sender.send((left + delay, packet)).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, packet) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // A packet that the device does not take is lost.
            let _ = to.write(&packet);
        }
    });
}

struct Liar {
    lie: Lie,
    lies: Arc<AtomicBool>,
    begun: Option<Instant>,
}

impl Liar {
    /// Replaces the timestamp in a TCP packet, at the place where Linux puts it, and corrects the checksum.
    fn rewrite(&mut self, packet: &mut [u8]) {
        let is_stamped = packet.len() >= 52
            && packet[0] == 0x45
            && packet[9] == 6
            && packet[40..44] == [1, 1, 8, 10];
        if !is_stamped || !self.lies.load(Ordering::Relaxed) {
            return;
        }
        let since = self.begun.get_or_insert_with(Instant::now).elapsed().as_millis() as u32;
        let old: [u8; 4] = packet[44..48].try_into().unwrap();
        let stamp = u32::from_be_bytes(old);
        let new = match self.lie {
            Lie::Slow => stamp.wrapping_sub(since * 15 / 1_000),
            Lie::Fast => stamp.wrapping_add(since * 15 / 1_000),
            Lie::Halting => stamp.wrapping_sub(since % 300),
        };
        let new = new.to_be_bytes();
        packet[44..48].copy_from_slice(&new);
        // RFC 1624, equation 3.
        let word = |bytes: &[u8]| u32::from(u16::from_be_bytes([bytes[0], bytes[1]]));
        let mut sum = 0xffff - word(&packet[36..38]);
        for at in [0, 2] {
            sum += 0xffff - word(&old[at..]) + word(&new[at..]);
        }
        sum = (sum & 0xffff) + (sum >> 16);
        sum = (sum & 0xffff) + (sum >> 16);
        packet[36..38].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
}
