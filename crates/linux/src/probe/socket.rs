//! The two sockets of a probe: one that sends, one that captures arriving packets.
//!
//! Answers are captured where they enter the device, before the classifier and the classes, so the
//! round-trip time does not contain waiting in this host. The kernel timestamps them on arrival, so
//! it does not depend on when the thread reads them either. Source: packet(7), socket(7),
//! linux/filter.h.

use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use fairweir_core::units::{Span, Time};
use nix::time::{ClockId, clock_gettime};

use super::packet::{ECHO_REPLY_4, ECHO_REPLY_6, EXCEEDED_4, EXCEEDED_6, ICMP_4, ICMP_6, Request};
use crate::net::link;
use crate::{Error, monotonic_now};

/// Sends echo requests by one device; receives nothing.
pub(super) struct Sender {
    socket: OwnedFd,
    to: IpAddr,
}

impl Sender {
    /// A sender to `to`; with `hops`, its packets go at most that many hops.
    ///
    /// # Errors
    /// Without CAP_NET_RAW, or if the kernel lacks the family.
    pub(super) fn open(dev: &str, to: IpAddr, hops: Option<u8>) -> Result<Sender, Error> {
        let attempted = || format!("open a socket for echo requests to {to}");
        let refused = |e: io::Error| Error::refused(attempted(), e);
        let (family, protocol) = match to {
            IpAddr::V4(_) => (libc::AF_INET, libc::IPPROTO_ICMP),
            IpAddr::V6(_) => (libc::AF_INET6, libc::IPPROTO_ICMPV6),
        };
        let socket = open(family, libc::SOCK_RAW, protocol).map_err(refused)?;
        filter(&socket, &[instruction(RET, NOTHING)]).map_err(refused)?;
        set(&socket, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, dev.as_bytes()).map_err(refused)?;
        if let Some(hops) = hops {
            let (level, name) = match to {
                IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL),
                IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
            };
            set(&socket, level, name, &i32::from(hops).to_ne_bytes()).map_err(refused)?;
        }
        Ok(Sender { socket, to })
    }

    /// Sends one request; returns the time of sending.
    ///
    /// # Errors
    /// If there is no route to the host, or no buffer space.
    pub(super) fn send(&self, request: &Request) -> io::Result<Time> {
        let message = request.message();
        let address =
            nix::sys::socket::SockaddrStorage::from(std::net::SocketAddr::new(self.to, 0));
        let (pointer, length) = {
            use nix::sys::socket::SockaddrLike;
            (address.as_ptr(), address.len())
        };
        let at = monotonic_now();
        // SAFETY: the message and the address outlive the call, and the lengths are correct.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                message.as_ptr().cast(),
                message.len(),
                libc::MSG_DONTWAIT,
                pointer,
                length,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(at) }
    }
}

/// Captures packets that arrive at one device.
pub(super) struct Tap {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Tap {
    /// Captures packets that may answer echo requests.
    ///
    /// # Errors
    /// Without CAP_NET_RAW, or if there is no such device.
    pub(super) fn for_answers(dev: &str) -> Result<Tap, Error> {
        Tap::open(dev, &answers())
    }

    /// Captures a sample of all packets.
    ///
    /// # Errors
    /// Without CAP_NET_RAW, or if there is no such device.
    pub(super) fn for_samples(dev: &str) -> Result<Tap, Error> {
        Tap::open(dev, &samples())
    }

    fn open(dev: &str, program: &[libc::sock_filter]) -> Result<Tap, Error> {
        let attempted = || format!("look at what arrives at {dev}");
        let refused = |e: io::Error| Error::refused(attempted(), e);
        let index = link::index(dev).ok_or_else(|| Error::NoDevice(dev.to_owned()))?;
        // Without a protocol it receives nothing until it is bound; its filter is in place by then.
        let socket = open(libc::AF_PACKET, libc::SOCK_DGRAM, 0).map_err(refused)?;
        filter(&socket, program).map_err(refused)?;
        let yes = 1_i32.to_ne_bytes();
        set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &yes).map_err(refused)?;
        // Without this option, every leaving packet would be copied for it.
        set(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes).map_err(refused)?;
        // SAFETY: a `sockaddr_ll` is plain numbers, for which zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        // Only a socket for all protocols sees packets before the ingress hook.
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the address outlives the call, and the length is the address's.
        let bound = unsafe {
            libc::bind(
                socket.as_raw_fd(),
                (&raw const address).cast(),
                mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if bound < 0 {
            return Err(refused(io::Error::last_os_error()));
        }
        Ok(Tap { socket, buffer: vec![0; PACKET_MAX] })
    }

    /// The next IP packet and its time of arrival, if there is one.
    ///
    /// # Errors
    /// If the device is gone or down.
    pub(super) fn receive(&mut self) -> io::Result<Option<(&[u8], Time)>> {
        let mut control = [0_u64; CONTROL_WORDS];
        let mut vector =
            libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        // SAFETY: a `msghdr` is plain numbers and pointers, for which zero is valid.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = mem::size_of_val(&control);
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: all that the header points to outlives the call, and the lengths are correct.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        if length < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        let at = arrival(stamp(&message), realtime_now(), monotonic_now());
        Ok(Some((&self.buffer[..length as usize], at)))
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The time of a packet's arrival, by the monotonic clock. The kernel's timestamp is of the wall clock;
/// between timestamp and now the two clocks advance alike, unless the wall clock is set just then.
fn arrival(stamp: Option<Time>, realtime: Time, monotonic: Time) -> Time {
    let age = stamp.map(|stamp| realtime.since(stamp)).filter(|age| *age < AGE_MAX);
    monotonic - age.unwrap_or(Span::ZERO)
}

fn realtime_now() -> Time {
    clock_gettime(ClockId::CLOCK_REALTIME)
        .map_or(Time::ZERO, |now| time(now.tv_sec(), now.tv_nsec()))
}

fn time(seconds: i64, nanos: i64) -> Time {
    Time::from_nanos((seconds as u64).saturating_mul(1_000_000_000).saturating_add(nanos as u64))
}

/// The kernel's timestamp of a received message.
fn stamp(message: &libc::msghdr) -> Option<Time> {
    // SAFETY: the header and its control buffer are as the kernel left them.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !control.is_null() {
        // SAFETY: not null, so it points to a header within the control buffer.
        let header = unsafe { &*control };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_TIMESTAMPNS {
            // SAFETY: a message of this type holds a `timespec`, which may lie unaligned.
            let stamp: libc::timespec =
                unsafe { libc::CMSG_DATA(control).cast::<libc::timespec>().read_unaligned() };
            return Some(time(stamp.tv_sec, stamp.tv_nsec));
        }
        // SAFETY: as for the first.
        control = unsafe { libc::CMSG_NXTHDR(message, control) };
    }
    None
}

/// A filter for echo replies and *time exceeded* messages; the reader checks them further.
fn answers() -> [libc::sock_filter; 16] {
    /// The instructions that accept and that reject a packet.
    const IN: u8 = 14;
    const OUT: u8 = 15;
    let equal = |here: u8, value: u32, then: u8, otherwise: u8| {
        jump(JUMP_EQUAL, value, then - here - 1, otherwise - here - 1)
    };
    [
        instruction(LOAD_WORD, AD_PROTOCOL),
        equal(1, libc::ETH_P_IP as u32, 2, 8),
        instruction(LOAD_BYTE, 9),
        equal(3, ICMP_4.into(), 4, OUT),
        instruction(LOAD_X_HEADER_4, 0),
        instruction(LOAD_BYTE_X, 0),
        equal(6, ECHO_REPLY_4.into(), IN, 7),
        equal(7, EXCEEDED_4.into(), IN, OUT),
        equal(8, libc::ETH_P_IPV6 as u32, 9, OUT),
        instruction(LOAD_BYTE, 6),
        equal(10, ICMP_6.into(), 11, OUT),
        instruction(LOAD_BYTE, 40),
        equal(12, ECHO_REPLY_6.into(), IN, 13),
        equal(13, EXCEEDED_6.into(), IN, OUT),
        instruction(RET, ALL),
        instruction(RET, NOTHING),
    ]
}

/// A filter that accepts one packet in [`SAMPLED`], at random.
fn samples() -> [libc::sock_filter; 4] {
    [
        instruction(LOAD_WORD, AD_RANDOM),
        jump(JUMP_ANY_BIT, SAMPLED - 1, 1, 0),
        instruction(RET, ALL),
        instruction(RET, NOTHING),
    ]
}

fn instruction(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn open(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call touches no memory of ours.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set(socket: &OwnedFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the value outlives the call, and the length is the value's.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn filter(socket: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let program =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which outlives the call and is never written to.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            mem::size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_BYTE_X: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
const LOAD_X_HEADER_4: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RET: u32 = libc::BPF_RET | libc::BPF_K;
const NOTHING: u32 = 0;
const ALL: u32 = 0xffff;
const AD_PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
const AD_RANDOM: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
/// One packet in this many is sampled; a power of two.
const SAMPLED: u32 = 16;
/// Linux 4.20 or later. Source: linux/if_packet.h.
const PACKET_IGNORE_OUTGOING: i32 = 23;
/// Maximum bytes that are read of a packet. Answers are shorter; a truncated packet is not an answer.
const PACKET_MAX: usize = 2_048;
/// Words of the control buffer: a `cmsghdr` with a `timespec` takes 4.
const CONTROL_WORDS: usize = 8;
/// A timestamp older than this is from before the clock was set, and is not used.
const AGE_MAX: Span = Span::secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_does_not_move_an_arrival_far() {
        let at = |ms: u64| Time::ZERO + Span::millis(ms);
        let (realtime, now) = (at(50_000), at(9_000));
        assert_eq!(arrival(Some(at(49_997)), realtime, now), at(8_997));
        assert_eq!(arrival(None, realtime, now), now);
        assert_eq!(arrival(Some(at(10_000)), realtime, now), now, "set forward");
        assert_eq!(arrival(Some(at(90_000)), realtime, now), now, "set back");
    }
}
