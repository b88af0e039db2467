//! A small world for tests: connections that share a link, with a constant delay each way.

use std::collections::VecDeque;

use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_scenario::CongestionControl;
use fairweir_scenario::link::{Buffer, Capacity, Link, LinkSpec, Packet};
use fairweir_scenario::random::SplitMix64;

use super::super::{Ack, Receiver, ReceiverSpec, Segment, Sender, SenderSpec};

pub(super) const SEGMENT: u64 = 1_448;
/// Bytes of Ethernet, IPv4 and TCP headers with timestamps.
pub(super) const HEADERS: u64 = 66;

#[derive(Clone)]
pub(super) struct WorldSpec {
    pub(super) rate: Rate,
    pub(super) buffer: Buffer,
    pub(super) loss_ppm: u32,
    pub(super) ack_loss_ppm: u32,
    /// A token bucket before the link that drops packets above its rate.
    pub(super) policer: Option<(Rate, Bytes)>,
    pub(super) seed: u64,
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) flows: Vec<Flow>,
    link: Link<(usize, Segment)>,
    /// Whether the path carries nothing at all.
    pub(super) is_dark: bool,
    ack_loss_ppm: u32,
    random: SplitMix64,
    policer: Option<(Rate, Bytes)>,
    /// The policer's tokens, and the time at which they were counted.
    tokens: (Bytes, Time),
    /// Bytes that left the link; below, packets that the link and the policer dropped.
    pub(super) left: u64,
    pub(super) dropped: u64,
    pub(super) policed: u64,
}

pub(super) struct Flow {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    half_rtt: Span,
    to_receiver: VecDeque<(Time, Segment)>,
    to_sender: VecDeque<(Time, Ack)>,
    /// When the handshake ends; `None` once it has ended.
    established_at: Option<Time>,
    window: Bytes,
    /// Payload that completes the transfer; below, when it was complete.
    volume: Option<u64>,
    pub(super) completed_at: Option<Time>,
}

impl WorldSpec {
    /// A link with a FIFO of `bdp_percent` of the BDP at `rtt`.
    pub(super) fn new(rate: Rate, rtt: Span, bdp_percent: u64) -> WorldSpec {
        WorldSpec {
            rate,
            buffer: Buffer::Time(Span::nanos(rtt.as_nanos() * bdp_percent / 100)),
            loss_ppm: 0,
            ack_loss_ppm: 0,
            policer: None,
            seed: 1,
        }
    }
}

impl World {
    pub(super) fn new(spec: &WorldSpec) -> World {
        let fifo = LinkSpec::fifo(Capacity::constant(spec.rate), spec.buffer);
        let link = Link::new(LinkSpec { loss_ppm: spec.loss_ppm, seed: spec.seed, ..fifo });
        World {
            now: Time::ZERO,
            flows: Vec::new(),
            link,
            is_dark: false,
            ack_loss_ppm: spec.ack_loss_ppm,
            random: SplitMix64::new(spec.seed + 1),
            policer: spec.policer,
            tokens: (Bytes::ZERO, Time::ZERO),
            left: 0,
            dropped: 0,
            policed: 0,
        }
    }

    /// Adds a connection with payload to send; its handshake begins now.
    pub(super) fn connect(
        &mut self,
        congestion_control: CongestionControl,
        rtt: Span,
        volume: Option<u64>,
    ) -> usize {
        let spec = SenderSpec {
            congestion_control,
            segment: Bytes::new(SEGMENT),
            paced: false,
            seed: self.random.draw(),
        };
        self.connect_as(&spec, rtt, volume, Bytes::new(1 << 40))
    }

    pub(super) fn connect_as(
        &mut self,
        spec: &SenderSpec,
        rtt: Span,
        volume: Option<u64>,
        window: Bytes,
    ) -> usize {
        let mut sender = Sender::new(spec);
        sender.write(self.now, volume.map(Bytes::new));
        self.flows.push(Flow {
            sender,
            receiver: Receiver::new(&ReceiverSpec { window }),
            half_rtt: rtt / 2,
            to_receiver: VecDeque::new(),
            to_sender: VecDeque::new(),
            established_at: Some(self.now + rtt),
            window,
            volume,
            completed_at: None,
        });
        self.flows.len() - 1
    }

    pub(super) fn run_for(&mut self, span: Span) {
        self.run_until(self.now + span, |_| {});
    }

    /// Processes all events until `end`; `look` sees the world after each instant.
    pub(super) fn run_until(&mut self, end: Time, mut look: impl FnMut(&mut World)) {
        self.transmit();
        while let Some(at) = self.next_event().filter(|&at| at <= end) {
            assert!(at >= self.now, "time goes on");
            self.now = at;
            self.step();
            self.transmit();
            look(self);
        }
        self.now = end;
    }

    fn next_event(&self) -> Option<Time> {
        let of_flow = |flow: &Flow| {
            [
                flow.established_at,
                flow.to_receiver.front().map(|x| x.0),
                flow.to_sender.front().map(|x| x.0),
                flow.receiver.next_timeout(),
                flow.sender.next_timeout(),
                flow.sender.next_transmit(self.now),
            ]
        };
        let times = self.flows.iter().flat_map(of_flow).flatten();
        times.chain(self.link.next_departure()).min().map(|at| at.max(self.now))
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(departure) = self.link.poll_departure(now) {
            self.left += departure.packet.size.as_u64();
            let (i, segment) = departure.packet.body;
            let flow = &mut self.flows[i];
            if !self.is_dark {
                flow.to_receiver.push_back((now + flow.half_rtt, segment));
            }
        }
        for flow in &mut self.flows {
            if flow.established_at.is_some_and(|at| at <= now) {
                flow.established_at = None;
                flow.sender.handle_established(now, flow.half_rtt * 2, flow.window);
            }
            while let Some((_, segment)) = flow.to_receiver.pop_front_if(|x| x.0 <= now) {
                flow.receiver.handle_segment(now, &segment);
                let is_complete =
                    flow.volume.is_some_and(|v| flow.receiver.received().as_u64() >= v);
                if is_complete && flow.completed_at.is_none() {
                    flow.completed_at = Some(now);
                }
                flow.acknowledge(now, self.ack_loss_ppm, &mut self.random);
            }
            flow.acknowledge(now, self.ack_loss_ppm, &mut self.random);
            while let Some((_, ack)) = flow.to_sender.pop_front_if(|x| x.0 <= now) {
                flow.sender.handle_ack(now, &ack);
            }
            flow.sender.handle_timeout(now);
        }
    }

    fn transmit(&mut self) {
        let now = self.now;
        for (i, flow) in self.flows.iter_mut().enumerate() {
            while let Some(segment) = flow.sender.poll_transmit(now) {
                let size = Bytes::new(u64::from(segment.payload) + HEADERS);
                if let Some((rate, burst)) = self.policer {
                    let earned = rate * now.since(self.tokens.1);
                    let tokens = (self.tokens.0 + earned).min(burst);
                    self.tokens = (tokens.saturating_sub(size), now);
                    if tokens < size {
                        self.tokens.0 = tokens;
                        self.policed += 1;
                        continue;
                    }
                }
                self.link.enqueue(now, Packet { class: 0, size, body: (i, segment) });
            }
        }
        while self.link.poll_drop().is_some() {
            self.dropped += 1;
        }
    }
}

impl Flow {
    fn acknowledge(&mut self, now: Time, loss_ppm: u32, random: &mut SplitMix64) {
        if let Some(ack) = self.receiver.poll_ack(now)
            && random.below(1_000_000) >= loss_ppm.into()
        {
            self.to_sender.push_back((now + self.half_rtt, ack));
        }
    }
}
