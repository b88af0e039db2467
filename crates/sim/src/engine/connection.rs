//! The two ends of a TCP connection, and all connections of a run.

use std::ops::{Index, IndexMut};

use fairweir_core::delegate::MemberId;
use fairweir_core::units::{Bytes, Span, Time};
use fairweir_scenario::CongestionControl;

use super::measure::{Measure, Sight};
use crate::tcp::{Receiver, ReceiverSpec, Sender, SenderSpec};

/// Largest size of a receive window: half of Linux's default `tcp_rmem` maximum of 6 MiB.
const RECEIVE_WINDOW: Bytes = Bytes::new(3 << 20);
/// Initial size of a receive window, as in Linux with its default `tcp_rmem`.
const RECEIVE_WINDOW_FIRST: Bytes = Bytes::new(65_535);
/// The least that Linux adds to the smoothed RTT.
const REQUEST_VARIANCE_MIN: Span = Span::millis(200);

/// The receive window without a bound, which grows as in Linux (dynamic right-sizing): once per RTT
/// it becomes twice the volume that was read in that time, and more if that volume grows.
#[derive(Debug, Default)]
struct Autotuning {
    window: Bytes,
    /// Volume that was read in the RTT before `since`; below, total received at `since`.
    read_before: Bytes,
    received_then: Bytes,
    since: Time,
}

impl Autotuning {
    fn window(&self) -> Bytes {
        self.window.max(RECEIVE_WINDOW_FIRST)
    }

    /// Updates the window after a read. Returns whether it has grown.
    fn handle_read(&mut self, now: Time, rtt: Span, received: Bytes, segment: Bytes) -> bool {
        if now.since(self.since) < rtt {
            return false;
        }
        let read = received.saturating_sub(self.received_then);
        (self.since, self.received_then) = (now, received);
        if read <= self.read_before {
            return false;
        }
        let wanted = read * 2 + segment * 16;
        let before = self.read_before.as_u64().max(1);
        let more = read.saturating_sub(self.read_before).as_u64().min(before);
        let grown = wanted + Bytes::new(wanted.as_u64() * more / before) * 2;
        self.read_before = read;
        let window = grown.clamp(self.window, RECEIVE_WINDOW);
        let has_grown = window > self.window();
        self.window = window;
        has_grown
    }
}

/// A connection's role in a bundle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Membership {
    pub(super) bundle: usize,
    pub(super) id: MemberId,
    /// The free group to which it belongs; `None` for a stunt.
    pub(super) free: Option<usize>,
}

/// A TCP connection from a server to the home.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) flow: usize,
    /// Its number in its application.
    pub(super) slot: u32,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Identifies the connection among all connections of the run.
    pub(super) serial: u64,
    /// Its role in a bundle of its server.
    pub(super) membership: Option<Membership>,
    /// What the client's host measures of it.
    pub(super) measure: Measure,
    /// What the router measures of it, in front of a host that controls.
    pub(super) measure_router: Measure,
    autotuning: Autotuning,
    /// Bounds that its host (and, below, that router) set for its window, if any.
    bound: Option<Bytes>,
    bound_router: Option<Bytes>,
    /// The client's newest timestamp that the server has seen, in ms.
    pub(super) echo: u32,
    /// The timestamp of the client's newest request, or of the end of its handshake.
    pub(super) asked: u32,
    /// When the client last sent its SYN.
    pub(super) syn_at: Time,
    /// When the server last sent its SYN-ACK.
    pub(super) syn_ack_at: Time,
    /// Round-trip time that the client measured in the handshake.
    pub(super) client_rtt: Span,
    /// Whether the server has received the client's first packet after its SYN-ACK.
    pub(super) established: bool,
    /// Number of requests that have not reached the server.
    pub(super) requests: u32,
    /// Number of these that come too late: the server has stopped in the meantime.
    pub(super) withdrawn: u32,
    /// When the home knows what the connection is for.
    pub(super) decided_at: Option<Time>,
    /// Whether its packets that waited in the group of undecided connections have been moved.
    pub(super) is_moved: bool,
    /// Whether arriving data is no longer wanted.
    pub(super) closed: bool,
    /// Number of its packets that are between its ends or wait to be sent again; its place is not
    /// reused before they are gone.
    pub(super) under_way: u32,
    pub(super) timer_source: usize,
    pub(super) pacing_source: usize,
}

impl Connection {
    /// Makes both ends.
    pub(super) fn ends(
        congestion_control: CongestionControl,
        paced: bool,
        segment: Bytes,
        seed: u64,
    ) -> (Sender, Receiver) {
        let sender = SenderSpec { congestion_control, segment, paced, seed };
        let receiver = ReceiverSpec { window: RECEIVE_WINDOW_FIRST };
        (Sender::new(&sender), Receiver::new(&receiver))
    }

    /// Sets or removes the host's bound of its window.
    pub(super) fn bound_window(&mut self, bound: Option<Bytes>) {
        self.bound = bound;
        self.open_window();
    }

    /// Sets or removes the router's bound of the window that the host asks for.
    pub(super) fn bound_at_router(&mut self, bound: Option<Bytes>) {
        self.bound_router = bound;
        self.open_window();
    }

    /// Payload has arrived at the application, which reads it at once.
    pub(super) fn handle_read(&mut self, now: Time) {
        self.measure.handle_window(now, &self.receiver);
        let Some(rtt) = self.measure.rtt() else { return };
        let received = self.receiver.received();
        let segment = self.receiver.segment();
        if self.autotuning.handle_read(now, rtt, received, segment) {
            self.open_window();
        }
    }

    fn open_window(&mut self) {
        let asked = self.clamp();
        self.receiver.set_window(self.bound_router.map_or(asked, |bound| bound.min(asked)));
    }

    /// The host's bound of its window (Linux's `window_clamp`), whatever its buffer holds.
    pub(super) fn window_clamp(&self) -> Bytes {
        self.bound.unwrap_or(self.autotuning.window())
    }

    /// The largest size that its window may have.
    pub(super) fn clamp(&self) -> Bytes {
        let tuned = self.autotuning.window();
        self.bound.map_or(tuned, |bound| bound.min(tuned))
    }

    /// The window that it asks for if there is no bound.
    pub(super) fn tuned(&self) -> Bytes {
        self.autotuning.window()
    }

    /// Whether its host bounds its window.
    pub(super) fn is_bounded(&self) -> bool {
        self.bound.is_some()
    }

    /// The router's bound of its window.
    pub(super) fn bound_router(&self) -> Option<Bytes> {
        self.bound_router
    }

    /// Completes the handshake, unless that was done before.
    pub(super) fn establish(&mut self, now: Time) {
        if !self.established {
            self.established = true;
            let window = self.receiver.advertise();
            self.sender.handle_established(now, now.since(self.syn_ack_at), window);
        }
    }

    /// How long the client waits for an answer to its first request. Source: RFC 6298 §2.2 after
    /// one sample, with Linux's `TCP_RTO_MIN`.
    pub(super) fn request_timeout(&self) -> Span {
        self.client_rtt + (self.client_rtt * 2).max(REQUEST_VARIANCE_MIN)
    }

    /// When one of the ends has to be called next.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let ends = [self.sender.next_timeout(), self.receiver.next_timeout()];
        ends.into_iter().flatten().min()
    }
}

/// All connections; the places of connections that are gone are reused.
#[derive(Debug, Default)]
pub(super) struct Connections {
    all: Vec<Connection>,
    free: Vec<u32>,
    /// Number of connections opened so far.
    opened: u64,
}

impl Connections {
    /// Makes a connection of `flow` with the ends that `ends` makes from its serial number. Returns
    /// its place, and whether that place is new.
    pub(super) fn open(
        &mut self,
        flow: usize,
        slot: u32,
        sight: Sight,
        ends: impl FnOnce(u64) -> (Sender, Receiver),
    ) -> (u32, bool) {
        let serial = self.opened;
        let (sender, receiver) = ends(serial);
        self.opened += 1;
        let mut connection = Connection {
            flow,
            slot,
            sender,
            receiver,
            serial,
            membership: None,
            measure: Measure::new(sight),
            measure_router: Measure::new(sight),
            autotuning: Autotuning::default(),
            bound: None,
            bound_router: None,
            echo: 0,
            asked: 0,
            syn_at: Time::ZERO,
            syn_ack_at: Time::ZERO,
            client_rtt: Span::ZERO,
            established: false,
            requests: 0,
            withdrawn: 0,
            decided_at: None,
            is_moved: false,
            closed: false,
            under_way: 0,
            timer_source: 0,
            pacing_source: 0,
        };
        match self.free.pop() {
            Some(index) => {
                let place = &mut self.all[index as usize];
                connection.timer_source = place.timer_source;
                connection.pacing_source = place.pacing_source;
                *place = connection;
                (index, false)
            }
            None => {
                self.all.push(connection);
                (self.all.len() as u32 - 1, true)
            }
        }
    }

    /// The open connections with their places.
    pub(super) fn open_ones(&mut self) -> impl Iterator<Item = (u32, &mut Connection)> {
        let all = self.all.iter_mut().enumerate().map(|(index, c)| (index as u32, c));
        all.filter(|(_, connection)| !connection.closed)
    }

    /// The number of places, and how many of them are free.
    #[cfg(test)]
    pub(super) fn places(&self) -> (usize, usize) {
        (self.all.len(), self.free.len())
    }

    /// Number of connections opened so far.
    #[cfg(test)]
    pub(super) fn opened(&self) -> u64 {
        self.opened
    }

    /// Frees the place of a connection if it is closed and nothing of it is under way.
    pub(super) fn bury(&mut self, index: u32) {
        let connection = &self.all[index as usize];
        if connection.closed && connection.under_way == 0 {
            self.free.push(index);
        }
    }
}

impl Index<u32> for Connections {
    type Output = Connection;
    fn index(&self, index: u32) -> &Connection {
        &self.all[index as usize]
    }
}

impl IndexMut<u32> for Connections {
    fn index_mut(&mut self, index: u32) -> &mut Connection {
        &mut self.all[index as usize]
    }
}
