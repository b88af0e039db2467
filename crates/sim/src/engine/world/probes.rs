//! The probe of the access link, which a host sends and a reflector behind the link answers.

use std::collections::VecDeque;

use fairweir_core::receiver::ProbeSample;
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_scenario::link::Packet;
use fairweir_scenario::random::SplitMix64;
use fairweir_scenario::{ETHERNET_HEADER, LIE_SLOW_MAX, Lie, Reflector};

use super::super::packet::{Down, DownKind, Up, UpKind};
use super::{DOWNLINK, UPLINK, World};

/// The prober of a host.
#[derive(Debug)]
pub(super) struct Prober {
    reflector: Reflector,
    random: SplitMix64,
    /// Where its packets travel.
    path: usize,
    source: usize,
    /// Requests that were neither answered nor given up, oldest first.
    asked: VecDeque<(u64, Time)>,
    requests: u64,
    /// What was seen since the last tick.
    lost: u32,
    answers: u32,
    sum: Span,
    least: Option<Span>,
}

impl Prober {
    pub(super) fn new(reflector: Reflector, seed: u64, path: usize, source: usize) -> Prober {
        Prober {
            reflector,
            random: SplitMix64::new(seed),
            path,
            source,
            asked: VecDeque::new(),
            requests: 0,
            lost: 0,
            answers: 0,
            sum: Span::ZERO,
            least: None,
        }
    }

    fn handle_answer(&mut self, now: Time, id: u64) {
        let Some(at) = self.asked.iter().position(|(asked, _)| *asked == id) else { return };
        let Some((_, sent)) = self.asked.remove(at) else { return };
        let more = match self.reflector.lie {
            Lie::Slow => Span::nanos(self.random.below(LIE_SLOW_MAX.as_nanos())),
            Lie::None | Lie::Fast => Span::ZERO,
        };
        let rtt = now.since(sent) + more;
        self.answers += 1;
        self.sum += rtt;
        self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
    }

    fn take(&mut self, now: Time) -> ProbeSample {
        while self.asked.front().is_some_and(|(_, sent)| now.since(*sent) >= TIMEOUT) {
            self.asked.pop_front();
            self.lost += 1;
        }
        let answered = std::mem::take(&mut self.answers);
        let sum = std::mem::take(&mut self.sum);
        ProbeSample {
            sent: answered + std::mem::take(&mut self.lost),
            answered,
            rtt_min: self.least.take().unwrap_or(Span::ZERO),
            rtt_mean: if answered == 0 { Span::ZERO } else { sum / u64::from(answered) },
            reflector: 0,
        }
    }
}

impl World<'_> {
    /// What the probe of a stage has measured since the last tick.
    pub(super) fn probe_sample(&mut self, now: Time, stage: usize) -> Option<ProbeSample> {
        self.probers.get_mut(stage)?.as_mut().map(|prober| prober.take(now))
    }

    /// Sends a request, and says when the next one goes.
    pub(super) fn probe(&mut self, now: Time, stage: usize) {
        let in_use = self.home.stages[stage].rate() >= IN_USE;
        let Some(prober) = &mut self.probers[stage] else { return };
        prober.requests += 1;
        let id = prober.requests;
        prober.asked.push_back((id, now));
        let pause = if in_use { PAUSE } else { PAUSE_IDLE };
        self.deadlines.set(prober.source, Some(now + pause));
        self.up.sent += 1;
        let body = Up { from: stage as u32, kind: UpKind::Echo { id } };
        self.uplink.enqueue(now, Packet { class: self.probe_class(), size: SIZE, body });
        self.account_for_lost_up(now);
        self.deadlines.set(UPLINK, self.uplink.next_departure());
    }

    /// Which path a stage's requests take.
    pub(super) fn probe_path(&self, stage: usize) -> usize {
        self.probers[stage].as_ref().map_or(0, |prober| prober.path)
    }

    /// A request has reached the reflector.
    pub(super) fn reflect(&mut self, now: Time, stage: usize, id: u64) {
        let class = self.probe_class();
        let Some(prober) = &mut self.probers[stage] else { return };
        if prober.random.below(1_000_000) < u64::from(prober.reflector.loss_ppm) {
            return;
        }
        let path = &mut self.paths[prober.path];
        self.down.sent += 1;
        let body = Down { to: stage as u32, kind: DownKind::Echoed { id } };
        path.down.send(now, Packet { class, size: SIZE, body });
        if self.deadlines.of(path.down_source).is_none() {
            self.deadlines.set(path.down_source, path.down.next_arrival());
        }
    }

    /// Whether a packet passes the queue of the downlink by.
    pub(super) fn evades(&self, body: &Down) -> bool {
        let DownKind::Echoed { .. } = body.kind else { return false };
        let prober = self.probers[body.to as usize].as_ref();
        prober.is_some_and(|p| p.reflector.lie == Lie::Fast)
    }

    /// An answer has reached the host; its own classes do not hold it up.
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

/// An IP packet of 64 bytes.
const SIZE: Bytes = Bytes::new(64 + ETHERNET_HEADER);
/// As the daemon's: often while something arrives, seldom else.
const PAUSE: Span = Span::millis(50);
const PAUSE_IDLE: Span = Span::secs(1);
const IN_USE: Rate = Rate::kbit(100);
const TIMEOUT: Span = Span::secs(1);
