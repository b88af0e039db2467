//! Connections being opened: the client's first packet is held back until the server has answered.
//!
//! So a client gets the same answer as without the proxy, and as late: the server accepts, refuses, or
//! does not answer. If the server accepts, the packet is delivered, and the client's side of the
//! connection is accepted one LAN round trip later.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

use fairweir_core::packet::Mac;
use fairweir_core::relay::Syn;
use fairweir_core::units::{Span, Time};

use crate::socket;

/// How long a server may take to answer: a lost SYN is sent again after one second. After that the
/// client's own retries go to the server directly.
const CONNECT_PATIENCE: Span = Span::secs(3);

/// How long a client may take to complete its handshake: the kernel sends SYN-ACKs after 0, 1, 3 and 7 s.
const CLIENT_PATIENCE: Span = Span::secs(8);

/// Maximum number of pending handshakes per client address.
const OF_CLIENT_MAX: usize = 512;

/// Maximum number of answers that wait for [`Handshakes::poll_answer`].
const ANSWERS_MAX: usize = 4_096;

/// What to do with a client's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The server has accepted: deliver the packet to the listener.
    Deliver,
    /// The server refuses the connection.
    Refuse,
    /// The server does not answer; the client's next packets pass the gateway as without the proxy.
    Pass,
    /// As `Pass`, but because this host cannot connect, which says nothing about the server.
    Skip,
}

/// The two ends of a connection: the client (or this host), and the server.
type Ends = (SocketAddr, SocketAddr);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_ends: HashMap<Ends, usize>,
    /// Ends of the sockets to servers: a route may lead their packets back to this host.
    own: HashSet<Ends>,
    of_client: HashMap<IpAddr, usize>,
    deadlines: BTreeSet<(Time, usize)>,
    answers: VecDeque<(Syn, Answer)>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    handshake: Option<Handshake>,
}

#[derive(Debug)]
struct Handshake {
    syn: Syn,
    upstream: TcpStream,
    own: Ends,
    /// When the handshake is given up.
    until: Time,
    has_answered: bool,
}

impl Handshakes {
    pub(crate) fn len(&self) -> usize {
        self.by_ends.len()
    }

    /// Handles a client's first packet: connects to its server unless that is already in progress.
    /// Returns the socket to wait for, with its slot.
    pub(crate) fn begin(
        &mut self,
        syn: Syn,
        mark: u32,
        now: Time,
    ) -> Option<(usize, u32, &TcpStream)> {
        let ends = (syn.client(), syn.server());
        let from = syn.client().ip();
        // The client will retransmit a packet that is ignored here.
        if self.by_ends.contains_key(&ends)
            || self.own.contains(&ends)
            || self.of_client.get(&from).is_some_and(|&n| n >= OF_CLIENT_MAX)
        {
            return None;
        }
        let connected = socket::connect_as(from, syn.server(), mark);
        let upstream = connected.and_then(|upstream| Ok((upstream.local_addr()?, upstream)));
        let (local, upstream) = match upstream {
            Ok(both) => both,
            Err(e) => {
                let is_far = [io::ErrorKind::NetworkUnreachable, io::ErrorKind::HostUnreachable];
                let is_far = is_far.contains(&e.kind());
                self.answer(syn, if is_far { Answer::Pass } else { Answer::Skip });
                return None;
            }
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        let own = (local, syn.server());
        let until = now + CONNECT_PATIENCE;
        self.by_ends.insert(ends, id);
        self.own.insert(own);
        *self.of_client.entry(from).or_default() += 1;
        self.deadlines.insert((until, id));
        let Slot { generation, handshake } = &mut self.slots[id];
        let handshake =
            handshake.insert(Handshake { syn, upstream, own, until, has_answered: false });
        Some((id, *generation, &handshake.upstream))
    }

    /// Handles an event of a socket to a server: it is connected or broken.
    pub(crate) fn handle_event(&mut self, id: usize, generation: u32, now: Time) {
        let slot = &mut self.slots[id];
        let Some(handshake) = slot.handshake.as_mut().filter(|_| slot.generation == generation)
        else {
            return;
        };
        if handshake.has_answered {
            return;
        }
        match socket::connected(&handshake.upstream) {
            Ok(true) => {
                handshake.has_answered = true;
                self.deadlines.remove(&(handshake.until, id));
                handshake.until = now + CLIENT_PATIENCE;
                self.deadlines.insert((handshake.until, id));
                let syn = handshake.syn.clone();
                self.answer(syn, Answer::Deliver);
            }
            Ok(false) => {}
            Err(e) => {
                let refuses = e.kind() == io::ErrorKind::ConnectionRefused;
                let answer = if refuses { Answer::Refuse } else { Answer::Pass };
                if let Some(handshake) = self.remove(id) {
                    self.answer(handshake.syn, answer);
                }
            }
        }
    }

    /// The client has completed the handshake: returns the socket to its server and the client's
    /// link-layer address. `None` if the handshake is unknown.
    pub(crate) fn take(
        &mut self,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<(TcpStream, Option<Mac>)> {
        let id = *self.by_ends.get(&(client, server))?;
        let handshake = self.remove(id)?;
        handshake.has_answered.then(|| (handshake.upstream, handshake.syn.mac()))
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Gives up the handshakes whose deadline has passed.
    pub(crate) fn handle_timers(&mut self, now: Time) {
        while let Some(&(_, id)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            let Some(handshake) = self.remove(id) else { break };
            if handshake.has_answered {
                // The client has gone; its server need not wait.
                socket::reset(&handshake.upstream);
            } else {
                self.answer(handshake.syn, Answer::Pass);
            }
        }
    }

    /// The next packet whose fate is decided, with that decision.
    pub(crate) fn poll_answer(&mut self) -> Option<(Syn, Answer)> {
        self.answers.pop_front()
    }

    /// Gives up all handshakes; packets that clients send again then belong to no known handshake.
    pub(crate) fn clear(&mut self) {
        self.answers.clear();
        for id in 0..self.slots.len() {
            if let Some(handshake) = self.remove(id) {
                socket::reset(&handshake.upstream);
            }
        }
    }

    fn answer(&mut self, syn: Syn, answer: Answer) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((syn, answer));
        }
    }

    fn remove(&mut self, id: usize) -> Option<Handshake> {
        let slot = &mut self.slots[id];
        let handshake = slot.handshake.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id);
        self.deadlines.remove(&(handshake.until, id));
        self.own.remove(&handshake.own);
        let from = handshake.syn.client().ip();
        self.by_ends.remove(&(handshake.syn.client(), handshake.syn.server()));
        if let Some(number) = self.of_client.get_mut(&from) {
            *number -= 1;
            if *number == 0 {
                self.of_client.remove(&from);
            }
        }
        Some(handshake)
    }
}
