//! All connections: events, deadlines and grants.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use fairweir_core::packet::Mac;
use fairweir_core::recognition::{Devices, Identity, Portrait, Table};
use fairweir_core::relay::Syn;
use fairweir_core::sites::STREAM_MAX;
use fairweir_core::units::{Bytes, Span, Time};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::SockRef;

use crate::classes::{ClassCounts, Classes};
use crate::connection::{Connection, Naming, Turn};
use crate::handshakes::{Answer, Handshakes};
use crate::lane::Pipes;
use crate::rules::Rules;
use crate::usage::{self, Usage};
use crate::{Error, socket};

/// Maximum number of connections; further ones pass the gateway as without the proxy.
pub const CONNECTIONS_MAX: usize = 12_000;

/// Maximum number of connections per client address, so that one device does not keep the others out.
const OF_CLIENT_MAX: usize = CONNECTIONS_MAX / 4;

/// Interval at which receive buffers are adapted to the rates.
const FOLLOW_PERIOD: Span = Span::secs(1);

/// Delay of the first adaptation after a connection has opened.
const FOLLOW_FIRST: Span = Span::millis(200);

/// Maximum number of items of each kind that are handled before the caller gets its turn.
const TURN_MAX: usize = 256;

/// File descriptors that the process needs outside the proxy.
const DESCRIPTORS_ELSEWHERE: usize = 64;

/// System facilities that the proxy needs besides sockets.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Returns the round-trip time of a TCP socket.
    pub round_trip: fn(BorrowedFd<'_>) -> Option<Span>,
    /// Sets the receive buffer of a TCP socket without setting any other limit on its window.
    pub set_receive_buffer: fn(BorrowedFd<'_>, Bytes),
    /// Packet mark of the proxy's sockets.
    pub mark: u32,
}

/// Event counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections to the gateway itself, which were reset.
    pub to_gateway: u64,
    /// Connections reset because their client already had too many.
    pub crowded: u64,
    /// Connections whose server did not answer or refused.
    pub unreachable: u64,
    /// Connections to servers that this host could not start.
    pub unbegun: u64,
    /// How often the proxy became full, so that new connections bypassed it.
    pub full: u64,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// The proxy; see the module.
#[derive(Debug)]
pub struct Proxy {
    kernel: Kernel,
    rules: Rules,
    devices: Devices,
    epoll: Epoll,
    /// The IPv4 and IPv6 listeners; `None` while the proxy is full.
    listeners: [Option<TcpListener>; 2],
    ports: [u16; 2],
    handshakes: Handshakes,
    slots: Vec<Slot>,
    free: Vec<usize>,
    of_client: HashMap<IpAddr, usize>,
    classes: Classes,
    pipes: Pipes,
    scratch: Vec<u8>,
    timers: BTreeSet<(Time, usize, u32)>,
    /// Connections that need another turn.
    again: VecDeque<(usize, u32)>,
    follow_at: Time,
    usage: Usage,
    counts: Counts,
    descriptors_max: usize,
}

impl Proxy {
    /// Starts to listen. Nothing is diverted to the proxy yet. `table` serves to recognise devices.
    ///
    /// # Errors
    /// If the kernel refuses a socket, for example without CAP_NET_ADMIN.
    pub fn new(rules: Rules, table: Table, kernel: Kernel, now: Time) -> Result<Proxy, Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)
            .map_err(|e| Error::of("read the limit of file descriptors", e))?;
        // A unit file sets the soft limit too; a shell's soft limit is low only for the sake of select().
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        let mut proxy = Proxy {
            kernel,
            classes: Classes::new(&rules, Classes::default(), now),
            rules,
            devices: Devices::new(table),
            epoll: epoll.map_err(|e| Error::of("make an epoll", e))?,
            listeners: [None, None],
            ports: [0, 0],
            handshakes: Handshakes::default(),
            slots: Vec::new(),
            free: Vec::new(),
            of_client: HashMap::new(),
            pipes: Pipes::default(),
            scratch: vec![0; STREAM_MAX],
            timers: BTreeSet::new(),
            again: VecDeque::new(),
            follow_at: now,
            usage: Usage::new(),
            counts: Counts::default(),
            descriptors_max: usize::try_from(hard).unwrap_or(usize::MAX) / 10 * 9,
        };
        proxy.listen().map_err(|e| Error::of("listen with a transparent socket", e))?;
        Ok(proxy)
    }

    /// Ports at 127.0.0.1 and ::1 to which the caller must divert connections.
    pub fn ports(&self) -> [u16; 2] {
        self.ports
    }

    /// File descriptor that becomes readable when there is something to do.
    pub fn waits_for(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Makes [`Proxy::waits_for`] readable also when `other` is readable.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn watch(&self, other: BorrowedFd<'_>) -> Result<(), Error> {
        let added = self.epoll.add(other, EpollEvent::new(EpollFlags::EPOLLIN, WATCHED));
        added.map_err(|e| Error::of("watch for connections", e))
    }

    /// Handles a client's first packet, which the caller has held back.
    pub fn handle_syn(&mut self, syn: Syn, now: Time) {
        if let Some(mac) = syn.mac()
            && self.devices.handle_syn(mac, &syn, now)
        {
            self.recognise(mac, now);
        }
        // A packet sent again then finds no listener and passes the gateway.
        if self.is_full() {
            return;
        }
        let Some((id, generation, upstream)) = self.handshakes.begin(syn, self.kernel.mark, now)
        else {
            return;
        };
        let event = EpollEvent::new(SOCKET, HANDSHAKE | token(id, generation, true));
        if let Err(e) = self.epoll.add(upstream, event) {
            tracing::debug!("connection not relayed: {e}");
        }
    }

    /// Handles a DHCP message by which a device asks for an address.
    pub fn handle_dhcp(&mut self, source: Mac, message: &[u8], now: Time) {
        if self.devices.handle_dhcp(source, message, now) {
            self.recognise(source, now);
        }
    }

    /// Replaces what the user has stated about devices.
    pub fn set_said(&mut self, said: impl IntoIterator<Item = (Mac, Identity)>, now: Time) {
        self.devices.set_said(said);
        (0..self.slots.len()).for_each(|id| self.classify(id, now));
    }

    /// What is known about each device.
    pub fn portraits(&self) -> impl Iterator<Item = Portrait> {
        self.devices.portraits()
    }

    /// Reclassifies the connections of a device if its recognised identity has changed.
    fn recognise(&mut self, mac: Mac, now: Time) {
        for id in 0..self.slots.len() {
            if self.slots[id].connection.as_ref().is_some_and(|c| c.mac == Some(mac)) {
                self.classify(id, now);
            }
        }
    }

    /// The next first packet whose fate is decided, with that decision.
    pub fn poll_answer(&mut self) -> Option<(Syn, Answer)> {
        let (syn, answer) = self.handshakes.poll_answer()?;
        match answer {
            Answer::Deliver => {}
            Answer::Refuse | Answer::Pass => self.counts.unreachable += 1,
            Answer::Skip => self.counts.unbegun += 1,
        }
        Some((syn, answer))
    }

    /// Resets all connections, for when nothing is diverted any more: they would get no packets, and
    /// their clients then open new ones. Forgets the connections that are being opened.
    pub fn let_go(&mut self) {
        self.handshakes.clear();
        (0..self.slots.len()).for_each(|id| self.close(id, true));
    }

    /// The rules in force.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Event counters since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether the proxy is full, so that new connections bypass it.
    pub fn is_full(&self) -> bool {
        self.listeners[0].is_none()
    }

    /// Whether any connection is being opened.
    pub fn is_opening(&self) -> bool {
        self.handshakes.len() > 0
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The classes of the rules, and the class of all other connections.
    pub fn classes(&self) -> impl Iterator<Item = (&str, ClassCounts)> {
        self.classes.counts()
    }

    /// What each device and application has transferred.
    pub fn usage(&self) -> Usage {
        let mut usage = self.usage.clone();
        for connection in self.slots.iter().filter_map(|slot| slot.connection.as_ref()) {
            usage::add(&mut usage, &self.rules, connection);
        }
        usage
    }

    /// Replaces the rules, also for open connections.
    pub fn set_rules(&mut self, rules: Rules, now: Time) {
        // Bytes transferred so far are counted for the applications of the previous rules.
        for slot in &mut self.slots {
            if let Some(connection) = &mut slot.connection {
                usage::add(&mut self.usage, &self.rules, connection);
                (connection.moved, connection.moved_before) = ([0; 2], 0);
            }
        }
        self.classes = Classes::new(&rules, std::mem::take(&mut self.classes), now);
        self.rules = rules;
        for id in 0..self.slots.len() {
            let Some(connection) = &mut self.slots[id].connection else { continue };
            self.classes.enter(connection, self.classes.unclassified());
            self.classify(id, now);
            if let Some(connection) = &self.slots[id].connection {
                self.classes.count_alpha(connection);
            }
        }
        (0..self.slots.len()).for_each(|id| self.follow_one(id));
    }

    /// When [`Proxy::handle`] must be called next, even if nothing becomes readable.
    pub fn deadline(&mut self, now: Time) -> Time {
        if !self.again.is_empty() {
            return now;
        }
        let first = self.timers.first().map(|(at, ..)| *at);
        let follow = (self.connections() > 0).then_some(self.follow_at);
        let handshake = self.handshakes.deadline();
        let all =
            self.classes.deadline(now).into_iter().chain(first).chain(follow).chain(handshake);
        all.min().unwrap_or(now + FOLLOW_PERIOD)
    }

    /// Does everything that is due. Returns whether anything was due.
    ///
    /// # Errors
    /// If the kernel's `epoll` fails.
    pub fn handle(&mut self, now: Time) -> Result<bool, Error> {
        let mut events = [EpollEvent::empty(); TURN_MAX];
        let number = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        let number = match number {
            Ok(number) => number,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(e) => return Err(Error::of("wait for sockets", e)),
        };
        for event in &events[..number] {
            match event.data() {
                listener @ (LISTENER4 | LISTENER6) => {
                    self.accept(usize::from(listener == LISTENER6), now);
                }
                WATCHED => {}
                token if token & HANDSHAKE != 0 => {
                    let (id, generation, _) = parts_of(token & !HANDSHAKE);
                    self.handshakes.handle_event(id, generation, now);
                }
                token => self.handle_event(token, event.events(), now),
            }
        }
        for _ in 0..self.again.len().min(TURN_MAX) {
            let Some((id, generation)) = self.again.pop_front() else { break };
            if self.slots[id].generation == generation {
                self.advance(id, now);
            }
        }
        self.handle_timers(now);
        self.handshakes.handle_timers(now);
        let has_served = self.serve(now);
        if now >= self.follow_at {
            self.follow(now);
        }
        self.mind_room();
        Ok(number > 0 || has_served)
    }

    fn handle_event(&mut self, token: u64, flags: EpollFlags, now: Time) {
        let (id, generation, is_upstream) = parts_of(token);
        let slot = &mut self.slots[id];
        let Some(connection) = slot.connection.as_mut().filter(|_| slot.generation == generation)
        else {
            return;
        };
        let readable = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | ENDS;
        let (read, write) = match is_upstream {
            true => (&mut connection.down, &mut connection.up),
            false => (&mut connection.up, &mut connection.down),
        };
        read.can_read |= flags.intersects(readable);
        write.can_write |= flags.intersects(EpollFlags::EPOLLOUT | ENDS);
        // Data that the client sent before it reset the connection are lost, as they could be on the way.
        if !is_upstream && flags.contains(EpollFlags::EPOLLERR) {
            return self.close(id, true);
        }
        self.advance(id, now);
    }

    fn handle_timers(&mut self, now: Time) {
        while let Some(&(at, id, generation)) = self.timers.first().filter(|(at, ..)| *at <= now) {
            self.timers.remove(&(at, id, generation));
            let slot = &mut self.slots[id];
            let Some(connection) =
                slot.connection.as_mut().filter(|_| slot.generation == generation)
            else {
                continue;
            };
            connection.naming = Naming::Done;
            self.advance(id, now);
        }
    }

    fn accept(&mut self, family: usize, now: Time) {
        for _ in 0..TURN_MAX {
            let Some(listener) = &self.listeners[family] else { return };
            match listener.accept() {
                Ok((client, peer)) => self.begin(client, peer, now),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.raw_os_error() == Some(nix::libc::EMFILE) => return self.shut(),
                // The client has already gone.
                Err(_) => {}
            }
        }
        // The listeners are level-triggered.
    }

    fn begin(&mut self, client: TcpStream, peer: SocketAddr, now: Time) {
        self.counts.accepted += 1;
        let Ok(server) = client.local_addr() else { return };
        let refusal = if server.ip().is_loopback() || server.ip().is_unspecified() {
            Some(&mut self.counts.to_gateway)
        } else if self.of_client.get(&peer.ip()).is_some_and(|&n| n >= OF_CLIENT_MAX) {
            Some(&mut self.counts.crowded)
        } else {
            None
        };
        if let Some(count) = refusal {
            *count += 1;
            socket::reset(&client);
            return;
        }
        let Some((upstream, mac)) = self.handshakes.take(peer, server) else {
            // The client took longer to complete its handshake than the socket to its server was kept.
            socket::reset(&client);
            return;
        };
        let connection = Connection::new(client, upstream, peer.ip(), mac);
        if let Err(e) = self.start(connection, now) {
            tracing::debug!("connection not relayed: {e}");
        }
    }

    fn start(&mut self, mut connection: Connection, now: Time) -> io::Result<()> {
        connection.client.set_nonblocking(true)?;
        socket::prepare(SockRef::from(&connection.client))?;
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let generation = self.slots[id].generation;
        let event = |is_upstream| EpollEvent::new(SOCKET, token(id, generation, is_upstream));
        let added = self.epoll.add(&connection.client, event(false));
        // Events that occurred before are reported again.
        let changed = || self.epoll.modify(&connection.upstream, &mut event(true));
        if let Err(e) = added.and_then(|()| changed()) {
            self.free.push(id);
            return Err(e.into());
        }
        *self.of_client.entry(connection.from).or_default() += 1;
        self.classes.enter(&mut connection, self.classes.unclassified());
        self.slots[id].connection = Some(Box::new(connection));
        self.classify(id, now);
        // By then the round-trip time is known from the segments that arrive.
        self.follow_at = self.follow_at.min(now + FOLLOW_FIRST);
        Ok(())
    }

    /// Assigns the connection the class and priority that the rules give.
    fn classify(&mut self, id: usize, now: Time) {
        let Some(connection) = &mut self.slots[id].connection else { return };
        let name = connection.name.as_ref();
        let identity = connection.mac.map(|mac| self.devices.identity(mac)).unwrap_or_default();
        let class = self.rules.class_of(connection.from, connection.mac, identity, name);
        let class = class.unwrap_or(self.classes.unclassified());
        connection.app = self.rules.app_of(name);
        let alpha = self.rules.alpha_of(connection.app, class);
        self.classes.leave(id, connection);
        self.classes.enter(connection, class);
        connection.alpha = alpha;
        self.follow_one(id);
        self.advance(id, now);
    }

    fn advance(&mut self, id: usize, now: Time) {
        let slot = &mut self.slots[id];
        let Some(connection) = &mut slot.connection else { return };
        let before = connection.moved[1];
        let turn = connection.advance(&mut self.pipes, &mut self.scratch, now);
        let class = self.classes.of_mut(connection.class);
        class.bytes[1] += connection.moved[1] - before;
        if connection.down.is_ready() {
            class.scheduler.handle_ready(id, connection.alpha);
        }
        match turn {
            Turn::Waits => {}
            Turn::Again => self.again.push_back((id, slot.generation)),
            Turn::Names(until) => {
                self.timers.insert((until, id, slot.generation));
            }
            Turn::Named => {
                self.hear_agent(id, now);
                self.classify(id, now);
            }
            Turn::Ended => self.close(id, false),
            Turn::Broken => self.close(id, true),
        }
    }

    /// Takes from the connection what its first request says about the client's program.
    fn hear_agent(&mut self, id: usize, now: Time) {
        let Some(connection) = &mut self.slots[id].connection else { return };
        if let (Some(mac), Some(agent)) = (connection.mac, connection.agent.take())
            && self.devices.handle_agent(mac, &agent, now)
        {
            self.recognise(mac, now);
        }
    }

    /// Reads from servers as much as the rates allow. Returns whether they allowed anything.
    fn serve(&mut self, now: Time) -> bool {
        let mut has_served = false;
        for class in 0..self.classes.len() {
            for _ in 0..TURN_MAX {
                let Some(grant) = self.classes.of_mut(class).scheduler.poll_grant(now) else {
                    break;
                };
                has_served = true;
                let connection = self.slots[grant.id].connection.as_mut();
                let connection = connection.expect("invariant: what waits is there");
                let before = connection.moved[0];
                let served = connection.serve(grant.bytes, &mut self.pipes);
                let state = self.classes.of_mut(class);
                state.bytes[0] += connection.moved[0] - before;
                let moved = *served.as_ref().unwrap_or(&Bytes::new(0));
                let has_more = served.is_ok() && connection.down.is_ready();
                let is_over = connection.down.is_done() && connection.up.is_done();
                state.scheduler.handle_moved(grant, moved, has_more);
                if served.is_err() || is_over {
                    self.close(grant.id, served.is_err());
                }
            }
        }
        has_served
    }

    /// Adapts all receive buffers to the rates.
    fn follow(&mut self, now: Time) {
        self.follow_at = now + FOLLOW_PERIOD;
        self.classes.forget_alphas();
        for id in 0..self.slots.len() {
            let Some(connection) = &mut self.slots[id].connection else { continue };
            let rtt = (self.kernel.round_trip)(connection.upstream.as_fd());
            connection.rtt = rtt.or(connection.rtt);
            connection.is_active = connection.moved[0] > connection.moved_before;
            connection.moved_before = connection.moved[0];
            self.classes.count_alpha(connection);
        }
        (0..self.slots.len()).for_each(|id| self.follow_one(id));
        self.pipes.shrink();
    }

    fn follow_one(&mut self, id: usize) {
        let Some(connection) = &mut self.slots[id].connection else { return };
        self.classes.follow(connection, self.kernel);
    }

    fn close(&mut self, id: usize, with_reset: bool) {
        let slot = &mut self.slots[id];
        let Some(mut connection) = slot.connection.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id);
        if with_reset {
            connection.reset();
        }
        connection.down.close(&mut self.pipes);
        connection.up.close(&mut self.pipes);
        if let Some(number) = self.of_client.get_mut(&connection.from) {
            *number -= 1;
            if *number == 0 {
                self.of_client.remove(&connection.from);
            }
        }
        self.classes.leave(id, &connection);
        usage::add(&mut self.usage, &self.rules, &connection);
    }

    /// Opens the listeners, or closes them if there are as many connections as fit.
    fn mind_room(&mut self) {
        let all = self.connections() + self.handshakes.len();
        let used = DESCRIPTORS_ELSEWHERE + 2 * (all + self.pipes.number);
        if all >= CONNECTIONS_MAX || used >= self.descriptors_max {
            self.shut();
        } else if self.is_full()
            && all < CONNECTIONS_MAX / 10 * 9
            && used < self.descriptors_max / 10 * 9
            && let Err(e) = self.listen()
        {
            tracing::debug!("cannot listen again: {e}");
        }
    }

    fn shut(&mut self) {
        if !self.is_full() {
            self.counts.full += 1;
            self.listeners = [None, None];
            // No listener would accept these connections; packets sent again pass the gateway.
            self.handshakes.clear();
            tracing::warn!(connections = self.connections(), "full: new connections pass directly");
        }
    }

    fn listen(&mut self) -> io::Result<()> {
        for (family, data) in [LISTENER4, LISTENER6].into_iter().enumerate() {
            let listener = socket::listen(family == 0, self.ports[family], self.kernel.mark)?;
            self.ports[family] = listener.local_addr()?.port();
            self.epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, data))?;
            self.listeners[family] = Some(listener);
        }
        Ok(())
    }
}

/// Events of a socket with an error, or with both directions closed.
const ENDS: EpollFlags = EpollFlags::EPOLLERR.union(EpollFlags::EPOLLHUP);

/// Events of a connection's socket: edge-triggered, reported when readiness changes.
const SOCKET: EpollFlags = EpollFlags::EPOLLIN
    .union(EpollFlags::EPOLLOUT)
    .union(EpollFlags::EPOLLRDHUP)
    .union(EpollFlags::EPOLLET);

/// Flag in the token of an event of a handshake's socket.
const HANDSHAKE: u64 = 1 << 63;
const WATCHED: u64 = u64::MAX - 2;
const LISTENER4: u64 = u64::MAX;
const LISTENER6: u64 = u64::MAX - 1;

/// Token that identifies a connection's socket in an event.
fn token(id: usize, generation: u32, is_upstream: bool) -> u64 {
    (id as u64) << 33 | u64::from(generation) << 1 | u64::from(is_upstream)
}

fn parts_of(token: u64) -> (usize, u32, bool) {
    ((token >> 33) as usize, (token >> 1) as u32, token & 1 == 1)
}
