//! Connections that are about to open: the client's first packet waits until the server has answered.
//!
//! So a client hears what it would hear without the proxy, as late: that the server is there, that it
//! refuses, or nothing. If the server was there, the packet is delivered, and the client's side of the
//! connection is accepted a round trip of the LAN later.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};

use fairweir_core::packet::Mac;
use fairweir_core::relay::Syn;
use fairweir_core::units::{Span, Time};

use crate::socket;

/// How long a server may take to answer: one lost SYN is sent again after a second. Later the client
/// tries by itself.
const CONNECT_PATIENCE: Span = Span::secs(3);

/// How long a client may take to complete what it began: the kernel answers it after 0, 1, 3 and 7 s.
const CLIENT_PATIENCE: Span = Span::secs(8);

/// Handshakes of one address.
const OF_CLIENT_MAX: usize = 512;

/// Answers that were not asked for.
const ANSWERS_MAX: usize = 4_096;

/// What becomes of a client's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The server is there: it is delivered to the listener.
    Deliver,
    /// The server refuses.
    Refuse,
    /// The server does not answer; what the client sends next passes the gateway as without the proxy.
    Pass,
    /// The same, because this host cannot connect, which says nothing of the server.
    Skip,
}

/// The two ends of a connection: whose, and the server.
type Ends = (SocketAddr, SocketAddr);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    slots: Vec<Slot>,
    free: Vec<usize>,
    by_ends: HashMap<Ends, usize>,
    /// Of the sockets to servers: a route may lead their packets back here.
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
    /// When it is given up.
    until: Time,
    has_answered: bool,
}

impl Handshakes {
    pub(crate) fn len(&self) -> usize {
        self.by_ends.len()
    }

    /// A client's first packet: connects to its server, unless that is being done. Returns the socket
    /// to wait for, with its place.
    pub(crate) fn begin(
        &mut self,
        syn: Syn,
        mark: u32,
        now: Time,
    ) -> Option<(usize, u32, &TcpStream)> {
        let ends = (syn.client(), syn.server());
        let from = syn.client().ip();
        // What is left out here is sent again.
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

    /// The socket to the server is connected or broken.
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

    /// The client has completed the connection: its socket to the server, with the client's link-layer
    /// address. `None` if nothing is known of it.
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

    /// Gives up what is due.
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

    /// What becomes of a packet.
    pub(crate) fn poll_answer(&mut self) -> Option<(Syn, Answer)> {
        self.answers.pop_front()
    }

    /// Gives up all; what their clients send again is nothing that is known.
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
