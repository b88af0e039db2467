//! The probe of the access link, which a host sends and a reflector behind the link answers.

use fairweir_core::probe::{Intervals, Prober};
use fairweir_core::receiver::ProbeSample;
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_scenario::link::Packet;
use fairweir_scenario::random::SplitMix64;
use fairweir_scenario::{ETHERNET_HEADER, LIE_SLOW_MAX, Lie, Reflector};

use super::super::packet::{Down, DownKind, Up, UpKind};
use super::{DOWNLINK, UPLINK, World};

/// The prober of a host: the schedule of the daemon's probe, and the path of its packets.
#[derive(Debug)]
pub(super) struct HostProber {
    schedule: Prober<u64, ()>,
    reflector: Reflector,
    random: SplitMix64,
    path: usize,
    source: usize,
    requests: u64,
    answered_at: Option<Time>,
}

impl HostProber {
    /// A prober that sends its first request at `start`.
    pub(super) fn new(
        reflector: Reflector,
        seed: u64,
        start: Time,
        path: usize,
        source: usize,
    ) -> HostProber {
        let schedule = Prober::new(Intervals::default(), start);
        let random = SplitMix64::new(seed);
        HostProber { schedule, reflector, random, path, source, requests: 0, answered_at: None }
    }

    fn handle_answer(&mut self, now: Time, id: u64) {
        let more = match self.reflector.lie {
            Lie::Slow => Span::nanos(self.random.below(LIE_SLOW_MAX.as_nanos())),
            Lie::None | Lie::Fast => Span::ZERO,
        };
        self.schedule.handle_answer(now + more, (), |&asked| asked == id);
    }
}

impl World<'_> {
    /// The measurements of a stage's probe since the last tick.
    pub(super) fn probe_sample(&mut self, now: Time, stage: usize) -> Option<ProbeSample> {
        self.probers.get_mut(stage)?.as_mut().map(|prober| prober.schedule.take_sample(now))
    }

    /// Sends a request, and returns when the next one is due.
    pub(super) fn probe(&mut self, now: Time, stage: usize) {
        let in_use = self.home.stages[stage].rate() >= IN_USE;
        let Some(prober) = &mut self.probers[stage] else { return };
        prober.requests += 1;
        let id = prober.requests;
        prober.schedule.handle_use(now, in_use);
        prober.schedule.handle_sent(id, now);
        prober.schedule.schedule_next(now);
        self.deadlines.set(prober.source, Some(prober.schedule.next_send()));
        self.up.sent += 1;
        let body = Up { from: stage as u32, kind: UpKind::Echo { id } };
        self.uplink.enqueue(now, Packet { class: self.probe_class(), size: SIZE, body });
        self.account_for_lost_up(now);
        self.deadlines.set(UPLINK, self.uplink.next_departure());
    }

    /// The path that a stage's requests take.
    pub(super) fn probe_path(&self, stage: usize) -> usize {
        self.probers[stage].as_ref().map_or(0, |prober| prober.path)
    }

    /// A request has reached the reflector.
    pub(super) fn reflect(&mut self, now: Time, stage: usize, id: u64) {
        let class = self.probe_class();
        let Some(prober) = &mut self.probers[stage] else { return };
        let interval = prober.reflector.answer_interval;
        if prober.random.below(1_000_000) < u64::from(prober.reflector.loss_ppm)
            || prober.answered_at.is_some_and(|at| now.since(at) < interval)
        {
            return;
        }
        prober.answered_at = Some(now);
        let path = &mut self.paths[prober.path];
        self.down.sent += 1;
        let body = Down { to: stage as u32, kind: DownKind::Echoed { id } };
        path.down.send(now, Packet { class, size: SIZE, body });
        if self.deadlines.of(path.down_source).is_none() {
            self.deadlines.set(path.down_source, path.down.next_arrival());
        }
    }

    /// Whether a packet bypasses the queue of the downlink.
    pub(super) fn evades(&self, body: &Down) -> bool {
        let DownKind::Echoed { .. } = body.kind else { return false };
        let prober = self.probers[body.to as usize].as_ref();
        prober.is_some_and(|p| p.reflector.lie == Lie::Fast)
    }

    /// An answer has reached the host; the host's own classes do not delay it.
    pub(super) fn handle_echo(&mut self, now: Time, stage: usize, id: u64) {
        self.down.arrived += 1;
        if let Some(prober) = &mut self.probers[stage] {
            prober.handle_answer(now, id);
        }
        self.deadlines.set(DOWNLINK, self.downlink.next_departure());
    }

    fn probe_class(&self) -> usize {
        self.scenario.groups.len() - 1
    }
}

/// Size of a probe: an IP packet of 64 bytes.
const SIZE: Bytes = Bytes::new(64 + ETHERNET_HEADER);
/// Below this rate the link counts as idle.
const IN_USE: Rate = Rate::kbit(100);
