//! The access link in real time: a thread that carries packets between two TUN devices according to
//! the link model.
//!
//! Everything happens in virtual time: a packet is due at an instant that does not depend on when
//! the thread handles it, so lateness delays single packets and never changes the rate. The thread
//! runs with real-time priority and measures how late it is, so that the report shows whether the
//! machine was fast enough ([`Outcome::lateness`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use fairweir_core::units::{Bytes, Span, Time};
use fairweir_linux::realtime;
use fairweir_scenario::link::{Link, Packet};
use fairweir_scenario::police::{Fate as Policed, Points};
use fairweir_scenario::report::{Histogram, PoliceSamples, Samples};
use fairweir_scenario::{Control, ETHERNET_HEADER, Kind};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::{TimeSpec, TimeValLike};
use nix::unistd;

use crate::Error;
use crate::clock::Clock;
use crate::layout::{Layout, SITE_PORT};

mod reflector;

use reflector::{Fate, Reflector};

/// Interval at which the thread checks whether it has to stop.
const STOP_CHECK: Span = Span::millis(50);
/// Maximum number of packets read before due packets are written.
const READ_BATCH: usize = 64;
/// Maximum size of an IP packet that the TUN devices carry.
const PACKET_MAX: usize = 16 * 1024;

/// A running access link; it stops when dropped.
pub(crate) struct Line {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Outcome, Error>>>,
}

/// What happened on the access link.
pub(crate) struct Outcome {
    pub(crate) samples: Samples,
    /// What passed the policing points, as samples.
    pub(crate) policed: Vec<PoliceSamples>,
    /// How late packets were written, compared with the model.
    pub(crate) lateness: Histogram,
    /// Packets of servers that sites share: which site each belongs to is known only afterwards.
    pub(crate) shared: Vec<Shared>,
    /// Number of packets that the kernel did not take; should be zero.
    pub(crate) refused: u64,
}

/// A packet that has left the downlink, on a connection to a server that sites share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    pub(crate) at: Time,
    pub(crate) server: IpAddr,
    pub(crate) client_port: u16,
    pub(crate) size: Bytes,
    pub(crate) sojourn: Span,
}

impl Line {
    /// Starts to carry packets; the link's time zero is that of the clock.
    pub(crate) fn start(
        layout: &Layout<'_>,
        control: Control,
        clock: Clock,
        net0: OwnedFd,
        acc0: OwnedFd,
        delivered: Vec<OwnedFd>,
    ) -> Result<Line, Error> {
        for tun in [&net0, &acc0] {
            fcntl(tun, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
                .map_err(|e| Error::io("make a TUN device non-blocking", e))?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let carrier = Carrier::new(layout, control, clock, net0, acc0, delivered);
        let stop_too = Arc::clone(&stop);
        let thread = thread::Builder::new().name("line".to_owned());
        let thread = thread
            .spawn(move || carrier.carry(&stop_too))
            .map_err(|e| Error::io("start the thread of the access link", e))?;
        Ok(Line { stop, thread: Some(thread) })
    }

    /// Whether the thread has given up.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the thread and returns what happened on the link.
    pub(crate) fn finish(mut self) -> Result<Outcome, Error> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("invariant: only finish and drop take the thread");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The run has been abandoned, so an error does not matter.
            let _ = thread.join();
        }
    }
}

/// An IP packet and the time at which it may continue; ordered by time, then by arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Delayed {
    due: Time,
    arrival: u64,
    flow: usize,
    ip: Vec<u8>,
}

/// The group and delays of a flow, or of the probe.
struct Route {
    group: usize,
    /// Delay on the way down, before the queue; the rest of the RTT follows the uplink's queue.
    delay_down: Span,
    delay_up: Span,
}

/// A packet before a policing point: its class on the downlink, and its bytes.
type Policeable = (usize, Vec<u8>);

struct Carrier {
    clock: Clock,
    net0: OwnedFd,
    acc0: OwnedFd,
    /// Sockets at the home for packets that a daemon after the link has not dropped.
    delivered: Vec<OwnedFd>,
    /// A route for each flow, followed by that of the reflector.
    routes: Vec<Route>,
    reflector: Reflector,
    first_port: u16,
    /// The first flow that is a site; on the way it stands for all site flows.
    site: Option<usize>,
    police: Points<Policeable>,
    /// Number of each connection within its flow, by the client's port, in order of arrival.
    units: BTreeMap<(usize, u16), u32>,
    down: Link<Vec<u8>>,
    up: Link<(usize, Vec<u8>)>,
    to_down: BinaryHeap<Reverse<Delayed>>,
    to_net0: BinaryHeap<Reverse<Delayed>>,
    /// Packets that bypass the downlink's queue.
    to_acc0: BinaryHeap<Reverse<Delayed>>,
    arrivals: u64,
    buffer: Vec<u8>,
    outcome: Outcome,
}

impl Carrier {
    fn new(
        layout: &Layout<'_>,
        control: Control,
        clock: Clock,
        net0: OwnedFd,
        acc0: OwnedFd,
        delivered: Vec<OwnedFd>,
    ) -> Carrier {
        let route = |group: usize, rtt: Span| {
            let delay_down = rtt / 2;
            let delay_up = Span::nanos(rtt.as_nanos() - delay_down.as_nanos());
            Route { group, delay_down, delay_up }
        };
        let scenario = layout.scenario;
        let flows = scenario.flows.iter().map(|flow| route(flow.group, flow.rtt));
        // The probe's answers are too few to matter in the group of the rest.
        let probe = route(scenario.rest_group(), scenario.probe.rtt);
        let samples = Samples::new(scenario);
        Carrier {
            clock,
            net0,
            acc0,
            delivered,
            routes: flows.chain([probe]).collect(),
            reflector: Reflector::new(scenario),
            first_port: layout.first_port(),
            site: scenario.flows.iter().position(|flow| matches!(flow.kind, Kind::Browser(_))),
            police: Points::new(scenario, true),
            units: BTreeMap::new(),
            down: Link::new(scenario.downlink(control)),
            up: Link::new(scenario.uplink()),
            to_down: BinaryHeap::new(),
            to_net0: BinaryHeap::new(),
            to_acc0: BinaryHeap::new(),
            arrivals: 0,
            buffer: vec![0; PACKET_MAX],
            outcome: Outcome {
                samples,
                policed: Vec::new(),
                lateness: Histogram::default(),
                shared: Vec::new(),
                refused: 0,
            },
        }
    }

    fn carry(mut self, stop: &AtomicBool) -> Result<Outcome, Error> {
        realtime::enter()?;
        while !stop.load(Ordering::Relaxed) {
            let now = self.clock.now();
            self.read_net0(now)?;
            self.read_acc0(now)?;
            self.read_delivered(now)?;
            self.move_on(now);
            self.wait()?;
        }
        self.outcome.policed = self.police.into_samples();
        Ok(self.outcome)
    }

    /// Downloads: half the RTT passes between the servers and the queue of the downlink.
    fn read_net0(&mut self, now: Time) -> Result<(), Error> {
        for _ in 0..READ_BATCH {
            let Some(ip) = read(&self.net0, &mut self.buffer)? else { break };
            let Some(flow) = self.flow_of(&ip, End::Source) else { continue };
            let fate = if flow == self.probe() {
                self.reflector.answer(now)
            } else {
                Fate::Queues(Span::ZERO)
            };
            let due = now + self.routes[flow].delay_down;
            self.arrivals += 1;
            let delayed = Delayed { due, arrival: self.arrivals, flow, ip };
            match fate {
                Fate::Lost => {}
                Fate::Passes => self.to_acc0.push(Reverse(delayed)),
                Fate::Queues(late) => {
                    self.to_down.push(Reverse(Delayed { due: due + late, ..delayed }));
                }
            }
        }
        Ok(())
    }

    /// ACKs and requests: they go from the home straight to the queue of the uplink.
    fn read_acc0(&mut self, now: Time) -> Result<(), Error> {
        for _ in 0..READ_BATCH {
            let Some(ip) = read(&self.acc0, &mut self.buffer)? else { break };
            let Some(flow) = self.flow_of(&ip, End::Destination) else { continue };
            let (class, size) = (self.routes[flow].group, l2_size(&ip));
            self.up.enqueue(now, Packet { class, size, body: (flow, ip) });
        }
        while self.up.poll_drop().is_some() {}
        Ok(())
    }

    /// Downloads that a daemon after the link has let through.
    fn read_delivered(&mut self, now: Time) -> Result<(), Error> {
        for nth in 0..self.delivered.len() {
            while let Some(ip) = read(&self.delivered[nth], &mut self.buffer)? {
                let Some(flow) = self.flow_of(&ip, End::Source) else { continue };
                self.outcome.samples.record_arrival(now, self.routes[flow].group, l2_size(&ip));
            }
        }
        Ok(())
    }

    /// Forwards everything that is due.
    fn move_on(&mut self, now: Time) {
        while let Some(Reverse(delayed)) = pop_due(&mut self.to_down, now) {
            // A packet that left a shaper earlier must reach the downlink earlier.
            self.leave_shapers(delayed.due);
            self.police(delayed);
        }
        self.leave_shapers(now);
        while let Some(departure) = self.down.poll_departure(now) {
            let Packet { class, size, body } = departure.packet;
            let (at, sojourn) = (departure.at, departure.sojourn);
            match self.site.and_then(|_| shared(&body)) {
                Some((server, client_port)) => {
                    self.outcome.shared.push(Shared { at, server, client_port, size, sojourn });
                }
                None if self.delivered.is_empty() => {
                    self.outcome.samples.record_departure(at, class, size, sojourn);
                }
                None => self.outcome.samples.record_sojourn(at, sojourn),
            }
            self.outcome.write(&self.acc0, &body, departure.at, self.clock);
        }
        self.record_drops();
        while let Some(Reverse(delayed)) = pop_due(&mut self.to_acc0, now) {
            self.outcome.write(&self.acc0, &delayed.ip, delayed.due, self.clock);
        }
        while let Some(departure) = self.up.poll_departure(now) {
            let (flow, ip) = departure.packet.body;
            let due = departure.at + self.routes[flow].delay_up;
            self.arrivals += 1;
            self.to_net0.push(Reverse(Delayed { due, arrival: self.arrivals, flow, ip }));
        }
        while let Some(Reverse(delayed)) = pop_due(&mut self.to_net0, now) {
            self.outcome.write(&self.net0, &delayed.ip, delayed.due, self.clock);
        }
    }

    /// Passes a packet through its policing point, if it has one, and on to the downlink.
    fn police(&mut self, Delayed { due, flow, ip, .. }: Delayed) {
        let class = self.routes[flow].group;
        if self.police.is_empty() || flow == self.probe() {
            return self.enqueue(due, class, ip);
        }
        let port = port(&ip, End::Destination).unwrap_or(0);
        let unit = self.units.get(&(flow, port)).copied().unwrap_or_else(|| {
            let next = self.units.range((flow, 0)..=(flow, u16::MAX)).count() as u32;
            *self.units.entry((flow, port)).or_insert(next)
        });
        let can_be_marked = ecn(&ip) != 0;
        match self.police.arrive(due, (flow, unit), l2_size(&ip), can_be_marked, (class, ip)) {
            Policed::Pass((class, ip)) => self.enqueue(due, class, ip),
            Policed::Mark((class, mut ip)) => {
                mark(&mut ip);
                self.enqueue(due, class, ip);
            }
            Policed::Drop(_) | Policed::Waits => {}
        }
    }

    /// Forwards the packets that have left a shaper to the downlink.
    fn leave_shapers(&mut self, now: Time) {
        while let Some((at, (class, ip))) = self.police.poll_departure(now) {
            self.enqueue(at, class, ip);
        }
    }

    fn enqueue(&mut self, at: Time, class: usize, ip: Vec<u8>) {
        // Every flow has its own server port, and every connection its own client port.
        let ports = [End::Source, End::Destination].map(|end| port(&ip, end).unwrap_or(0));
        let flow = u64::from(ports[0]) << 16 | u64::from(ports[1]);
        self.down.enqueue_of(at, flow, Packet { class, size: l2_size(&ip), body: ip });
        self.record_drops();
    }

    fn record_drops(&mut self) {
        while let Some(dropped) = self.down.poll_drop() {
            if !dropped.random {
                self.outcome.samples.record_drop();
            }
        }
    }

    /// Sleeps until a packet arrives or is due.
    fn wait(&self) -> Result<(), Error> {
        let due = [
            self.to_down.peek().map(|d| d.0.due),
            self.to_net0.peek().map(|d| d.0.due),
            self.to_acc0.peek().map(|d| d.0.due),
            self.police.next_departure(),
            self.down.next_departure(),
            self.up.next_departure(),
        ];
        let next = due.into_iter().flatten().min();
        let wait = next.map_or(STOP_CHECK, |t| t.since(self.clock.now()).min(STOP_CHECK));
        if wait == Span::ZERO {
            return Ok(());
        }
        let fds = [&self.net0, &self.acc0].into_iter().chain(&self.delivered);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        match ppoll(&mut fds, Some(TimeSpec::nanoseconds(wait.as_nanos() as i64)), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(Error::io("wait for packets", e)),
        }
    }

    /// The flow of a packet by the server's port, or the probe by the reflector's address. Other
    /// packets, such as neighbour discovery, have no flow and are dropped.
    fn flow_of(&self, ip: &[u8], server: End) -> Option<usize> {
        if reflector::is_at(ip, server) {
            return Some(self.probe());
        }
        let port = port(ip, server)?;
        if port == SITE_PORT {
            return self.site;
        }
        let i = usize::from(port.checked_sub(self.first_port)?);
        (i < self.probe()).then_some(i)
    }

    /// The route index that stands for the probe.
    fn probe(&self) -> usize {
        self.routes.len() - 1
    }
}

impl Outcome {
    fn write(&mut self, tun: &OwnedFd, ip: &[u8], due: Time, clock: Clock) {
        if unistd::write(tun, ip).is_err() {
            self.refused += 1;
        }
        self.lateness.record(clock.now().since(due));
    }
}

/// One of the two ends of a packet's path.
#[derive(Clone, Copy)]
enum End {
    Source,
    Destination,
}

/// Server address and client port of a packet from the port at which all sites are served.
fn shared(ip: &[u8]) -> Option<(IpAddr, u16)> {
    if port(ip, End::Source)? != SITE_PORT {
        return None;
    }
    let server = match ip[0] >> 4 {
        4 => IpAddr::from(<[u8; 4]>::try_from(ip.get(12..16)?).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(ip.get(8..24)?).ok()?),
    };
    Some((server, port(ip, End::Destination)?))
}

/// The port at one end of a TCP or UDP packet over IPv4 or IPv6.
fn port(ip: &[u8], end: End) -> Option<u16> {
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    let (protocol, header) = match ip.first()? >> 4 {
        4 => (*ip.get(9)?, usize::from(ip[0] & 0x0f) * 4),
        6 => (*ip.get(6)?, 40),
        _ => return None,
    };
    if protocol != TCP && protocol != UDP {
        return None;
    }
    let at = match end {
        End::Source => header,
        End::Destination => header + 2,
    };
    Some(u16::from_be_bytes([*ip.get(at)?, *ip.get(at + 1)?]))
}

/// The ECN field of an IP packet (RFC 3168 §5); 0 means that the sender does not use ECN.
fn ecn(ip: &[u8]) -> u8 {
    match *ip {
        [first, second, ..] if first >> 4 == 4 => second & 3,
        [first, second, ..] if first >> 4 == 6 => second >> 4 & 3,
        _ => 0,
    }
}

/// Sets *congestion experienced* in a packet whose sender uses ECN.
fn mark(ip: &mut [u8]) {
    let word = |ip: &[u8], at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    if ip[0] >> 4 == 6 {
        ip[1] |= 3 << 4;
        return;
    }
    let before = word(ip, 0);
    ip[1] |= 3;
    // RFC 1624, equation 3.
    let sum = u32::from(!word(ip, 10)) + u32::from(!before) + u32::from(word(ip, 0));
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// The packet's size on Ethernet.
fn l2_size(ip: &[u8]) -> Bytes {
    Bytes::new(ip.len() as u64 + ETHERNET_HEADER)
}

fn pop_due(heap: &mut BinaryHeap<Reverse<Delayed>>, now: Time) -> Option<Reverse<Delayed>> {
    if heap.peek()?.0.due <= now { heap.pop() } else { None }
}

/// Reads the next packet of a TUN device or socket, if there is one.
fn read(tun: &OwnedFd, buffer: &mut [u8]) -> Result<Option<Vec<u8>>, Error> {
    match unistd::read(tun, buffer) {
        Ok(length) => Ok(Some(buffer[..length].to_vec())),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(e) => Err(Error::io("read a packet", e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum over a header, which is all ones if its checksum is right.
    fn sum(header: &[u8]) -> u32 {
        let words = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let sum: u32 = words.sum();
        (sum & 0xffff) + (sum >> 16)
    }

    #[test]
    fn what_comes_from_where_sites_are_served_is_known_by_server_and_client_port() {
        let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 254, 2, 198, 19, 0, 2];
        ip.extend([1, 187, 0x9c, 0x40]);
        assert_eq!(shared(&ip), Some(([198, 18, 254, 2].into(), 40_000)));
        assert_eq!(shared(&ip[..22]), None);
        ip[21] = 188;
        assert_eq!(shared(&ip), None, "another port");
        let mut ip6 = vec![0x60, 0, 0, 0, 0, 20, 6, 64, 0xfd, 0x77];
        ip6.resize(40, 0);
        ip6.extend([1, 187, 0x9c, 0x40]);
        let mut server = [0; 16];
        server[..2].copy_from_slice(&[0xfd, 0x77]);
        assert_eq!(shared(&ip6), Some((server.into(), 40_000)));
    }

    #[test]
    fn a_mark_keeps_the_checksum_right_and_changes_nothing_else() {
        for tos in [1, 2] {
            let mut ip = vec![0x45, tos, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0];
            ip.extend([192, 168, 0, 1, 192, 168, 0, 199]);
            let checksum = !sum(&ip) as u16;
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            assert_eq!((sum(&ip), ecn(&ip)), (0xffff, tos));
            let before = ip.clone();
            mark(&mut ip);
            assert_eq!((sum(&ip), ecn(&ip)), (0xffff, 3));
            assert_eq!((&ip[2..10], &ip[12..]), (&before[2..10], &before[12..]));
        }
        let mut ip = vec![0x60, 0x2a, 0xbc, 0xde];
        assert_eq!(ecn(&ip), 2);
        mark(&mut ip);
        assert_eq!(ip, [0x60, 0x3a, 0xbc, 0xde]);
        assert_eq!(ecn(&[]), 0);
    }
}
