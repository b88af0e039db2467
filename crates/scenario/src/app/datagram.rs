//! Applications without connections: a stream of datagrams, and a ping.

use fairweir_core::units::{Bytes, Span, Time};

use super::source::{Pacer, Steps};
use super::{Outcome, Play, Want, Wants, full_packet};
use crate::report::PingSamples;
use crate::{ETHERNET_HEADER, Flow, UDP_HEADER};

/// A request younger than this at the stop does not count as lost if it has no answer yet.
const ANSWER_WITHIN: Span = Span::secs(1);

/// Sends full packets at the demanded rate, whatever becomes of them.
#[derive(Debug)]
pub(super) struct Cbr {
    steps: Steps,
    /// L2 size of a packet.
    wire: Bytes,
    payload: u32,
    /// `None` before the start and after the stop.
    pacer: Option<Pacer>,
}

impl Cbr {
    pub(super) fn new(flow: &Flow, segment: Bytes) -> Cbr {
        let packet = full_packet(flow, segment);
        Cbr {
            steps: Steps::new(flow),
            wire: packet + Bytes::new(ETHERNET_HEADER),
            payload: (packet.as_u64() - flow.ip.header() - UDP_HEADER) as u32,
            pacer: None,
        }
    }
}

impl Play for Cbr {
    fn handle_start(&mut self, now: Time, wants: &mut Wants) {
        if let Some(rate) = self.steps.poll(now).flatten() {
            self.pacer = Some(Pacer::new(now, rate, self.wire));
        }
        self.handle_timeout(now, wants);
    }

    fn handle_stop(&mut self, _: Time, _: &mut Wants) {
        self.pacer = None;
    }

    fn handle_timeout(&mut self, now: Time, wants: &mut Wants) {
        let Some(pacer) = &mut self.pacer else { return };
        if let Some(rate) = self.steps.poll(now).flatten() {
            pacer.set_rate(now, rate, self.wire);
        }
        while pacer.poll(now) {
            wants.push_back(Want::Datagram { payload: self.payload });
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        let due = self.pacer?.due();
        Some(self.steps.next_timeout().map_or(due, |step| step.min(due)))
    }
}

/// Sends a request at every interval and measures how long the answers take.
#[derive(Debug)]
pub(super) struct Pinger {
    /// `None` before the start and after the stop.
    due: Option<Time>,
    interval: Span,
    stop: Time,
    samples: PingSamples,
}

impl Pinger {
    pub(super) fn new(flow: &Flow, interval: Span) -> Pinger {
        let samples = PingSamples { group: flow.group, ..PingSamples::default() };
        Pinger { due: None, interval, stop: flow.stop, samples }
    }

    /// Whether a request has time enough to be answered before the stop.
    fn is_old_enough(&self, asked: Time) -> bool {
        asked + ANSWER_WITHIN <= self.stop
    }
}

impl Play for Pinger {
    fn handle_start(&mut self, now: Time, wants: &mut Wants) {
        self.due = Some(now);
        self.handle_timeout(now, wants);
    }

    fn handle_stop(&mut self, _: Time, _: &mut Wants) {
        self.due = None;
    }

    fn handle_timeout(&mut self, now: Time, wants: &mut Wants) {
        if let Some(due) = self.due.filter(|&due| due <= now) {
            // The id is the time of the request and comes back with the answer; nothing is stored.
            wants.push_back(Want::Ping { id: now.as_nanos() });
            self.samples.sent += u64::from(self.is_old_enough(now));
            self.due = Some(due + self.interval);
        }
    }

    fn handle_pong(&mut self, now: Time, id: u64) {
        if self.due.is_none() {
            return;
        }
        let asked = Time::from_nanos(id);
        self.samples.sent += u64::from(!self.is_old_enough(asked));
        self.samples.rtts.push(now.since(asked));
    }

    fn next_timeout(&self) -> Option<Time> {
        self.due
    }

    fn outcome(self: Box<Self>) -> Outcome {
        Outcome::Ping(self.samples)
    }
}
