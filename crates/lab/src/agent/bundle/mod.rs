//! Bundles of QUIC connections: quinn's New Reno, whose congestion signals [`fairweir_core::delegate`] handles.
//!
//! All servers of the lab are in one process, so the connections of a bundle share one value. quinn's New
//! Reno has no way to set its window: to reduce it, a new New Reno is created whose first loss leaves
//! that window.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fairweir_core::delegate::{
    Answer, Bundle, MemberId, Phase, Point, Role, Sample, Shape, Tally, Target, Trace,
};
use fairweir_core::units::{Bytes, Span, Time};
use fairweir_scenario::ETHERNET_HEADER;
use fairweir_scenario::report::BundleSamples;
use quinn::congestion::{Controller, ControllerFactory, NewReno, NewRenoConfig};
use quinn_proto::RttEstimator;

use crate::clock::Clock;
use crate::job::{Job, Part, Seat};

/// The bundles of all jobs, by bundle number.
#[derive(Default)]
pub(super) struct Bundles(BTreeMap<usize, Arc<Played>>);

/// A bundle in use.
struct Played(Mutex<State>);

struct State {
    core: Bundle,
    /// The scenario's clock; set before the first connection.
    clock: Option<Clock>,
    /// The instant that counts as zero while there is no clock.
    origin: Instant,
    next_tick: Time,
    /// The bundle's connections; for a free connection, the number of its group among the groups with a target.
    members: Vec<(MemberId, Option<usize>)>,
    /// Samples without the signals of the current `members`.
    samples: BundleSamples,
}

impl Bundles {
    /// The factory of the controllers for a job's connections; `None` if they are in no bundle.
    pub(super) fn factory(
        &mut self,
        job: &Job,
    ) -> Option<Arc<dyn ControllerFactory + Send + Sync>> {
        let seat = job.seat.as_ref()?;
        let played = self.0.entry(seat.bundle).or_insert_with(|| Arc::new(Played::new(seat)));
        let packet = Bytes::new(u64::from(job.mtu) + ETHERNET_HEADER);
        let (played, seat) = (Arc::clone(played), seat.clone());
        Some(Arc::new(Factory { played, seat, packet }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn begin(&self, clock: Clock) {
        self.0.values().for_each(|played| played.lock().clock = Some(clock));
    }

    /// The samples of each bundle so far.
    pub(super) fn samples(&self) -> BTreeMap<usize, BundleSamples> {
        self.0.iter().map(|(&nth, played)| (nth, played.lock().samples())).collect()
    }
}

impl Played {
    fn new(seat: &Seat) -> Played {
        Played(Mutex::new(State {
            core: Bundle::new(&seat.spec),
            clock: None,
            origin: Instant::now(),
            next_tick: Time::ZERO,
            members: Vec::new(),
            samples: BundleSamples::new(seat.duration, seat.free_groups),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn now(&self, at: Instant) -> Time {
        let since = || Time::ZERO + span(at.saturating_duration_since(self.origin));
        self.clock.map_or_else(since, Clock::now)
    }

    fn tick(&mut self, now: Time) {
        if now < self.next_tick {
            return;
        }
        self.core.handle_tick(now);
        self.next_tick = self.core.next_tick(now);
        for (id, free_group) in &self.members {
            if let Some((nth, status)) = free_group.zip(self.core.status(*id)) {
                self.samples.record(now, nth, &status);
            }
        }
    }

    fn samples(&self) -> BundleSamples {
        let mut samples = self.samples.clone();
        for (id, free_group) in &self.members {
            record_signals(&mut samples, *free_group, self.core.tally(*id));
        }
        samples
    }
}

fn record_signals(samples: &mut BundleSamples, free_group: Option<usize>, tally: Tally) {
    match free_group {
        Some(nth) => samples.record_signals(nth, tally),
        None => samples.stunts = samples.stunts + tally,
    }
}

struct Factory {
    played: Arc<Played>,
    seat: Seat,
    /// Size of a full packet, as counted in rates.
    packet: Bytes,
}

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let reno = NewReno::new(Arc::new(NewRenoConfig::default()), now, mtu);
        let mut state = self.played.lock();
        let role = self.seat.part.role();
        // A connection that the bundle does not admit behaves as if there were no bundle.
        let Some(id) = role.and_then(|role| state.core.join(role)) else { return Box::new(reno) };
        state.members.push((id, self.seat.free_group));
        drop(state);
        Box::new(Delegated {
            place: Arc::new(Place { factory: self, id }),
            reno,
            mtu: mtu.into(),
            signal_at: now,
            is_recovering: false,
            acked: 0,
            newest: None,
            rtt: Span::ZERO,
            rtts: Span::ZERO,
            rtt_count: 0,
        })
    }
}

/// A connection's membership in its bundle; ends when the last of its controllers is dropped.
struct Place {
    factory: Arc<Factory>,
    id: MemberId,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.factory.played.lock();
        let tally = state.core.tally(self.id);
        record_signals(&mut state.samples, self.factory.seat.free_group, tally);
        state.members.retain(|(id, _)| *id != self.id);
        state.core.leave(self.id);
    }
}

/// New Reno for a connection in a bundle.
#[derive(Clone)]
struct Delegated {
    place: Arc<Place>,
    reno: NewReno,
    /// Size of a packet in bytes, as counted in windows.
    mtu: u64,
    /// Time of the last signal; losses of packets sent before it belong to that signal.
    signal_at: Instant,
    is_recovering: bool,
    acked: u64,
    /// Age of the newest packet acknowledged by the ACKs being processed, which is its round-trip time.
    newest: Option<Duration>,
    rtt: Span,
    rtts: Span,
    rtt_count: u64,
}

impl Delegated {
    fn sample(&self) -> Sample {
        let metrics = self.reno.metrics();
        let cwnd = self.packets();
        let phase = if self.is_recovering {
            Phase::Recovery
        } else if metrics.ssthresh.is_none_or(|ssthresh| metrics.congestion_window < ssthresh) {
            Phase::SlowStart
        } else {
            Phase::Avoidance
        };
        Sample {
            cwnd,
            cwnd_cut: (cwnd / 2).max(2),
            packet: self.place.factory.packet,
            rtt: self.rtt.max(Span::nanos(1)),
            rtts: self.rtts,
            rtt_count: self.rtt_count,
            delivered: self.place.factory.packet * (self.acked / self.mtu),
            phase,
        }
    }

    fn packets(&self) -> u32 {
        u32::try_from(self.reno.window() / self.mtu).unwrap_or(u32::MAX)
    }

    /// A packet was acknowledged; `rtt` is the smoothed round-trip time.
    fn hear(&mut self, now: Instant, sent: Instant, bytes: u64, rtt: Duration) {
        self.acked += bytes;
        self.is_recovering = sent <= self.signal_at;
        let age = now.saturating_duration_since(sent);
        self.newest = Some(self.newest.map_or(age, |newest| newest.min(age)));
        self.rtt = span(rtt);
    }

    /// Reduces the window to `packets`; packets sent up to `since` do not make it grow.
    fn go_down_to(&mut self, packets: u32, since: Instant, is_persistent: bool) {
        let window = (u64::from(packets) * self.mtu).min(self.reno.window());
        let mut config = NewRenoConfig::default();
        config.initial_window(window).loss_reduction_factor(1.0);
        let mtu = u16::try_from(self.mtu).unwrap_or(u16::MAX);
        self.reno = NewReno::new(Arc::new(config), since, mtu);
        self.reno.on_congestion_event(since, since + Duration::from_nanos(1), is_persistent, 0);
    }
}

impl Controller for Delegated {
    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, dry: bool, rtt: &RttEstimator) {
        self.reno.on_ack(now, sent, bytes, dry, rtt);
        self.hear(now, sent, bytes, rtt.get());
    }

    fn on_end_acks(&mut self, at: Instant, _: u64, _: bool, _: Option<u64>) {
        let Some(newest) = self.newest.take() else { return };
        (self.rtts, self.rtt_count) = (self.rtts + span(newest), self.rtt_count + 1);
        let place = Arc::clone(&self.place);
        let mut state = place.factory.played.lock();
        let now = state.now(at);
        state.core.handle_sample(place.id, self.sample());
        let cut = if self.is_recovering { None } else { state.core.take_cut(now, place.id) };
        if let Some(packets) = cut {
            self.go_down_to(packets, self.signal_at, false);
            state.core.handle_sample(place.id, self.sample());
        }
        state.tick(now);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, _: u64) {
        if sent <= self.signal_at {
            return;
        }
        (self.signal_at, self.is_recovering) = (now, true);
        let place = Arc::clone(&self.place);
        let mut state = place.factory.played.lock();
        let at = state.now(now);
        let answer = match is_persistent {
            true => state.core.handle_timeout(at, place.id),
            false => state.core.handle_signal(at, place.id),
        };
        let left = match answer {
            Answer::Own => self.sample().cwnd_cut,
            Answer::Shared(packets) => packets,
            Answer::Delegated => self.packets(),
        };
        self.go_down_to(left, now, is_persistent);
        if self.rtt > Span::ZERO {
            state.core.handle_sample(place.id, self.sample());
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = mtu.into();
        self.reno.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        self.reno.window()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.reno.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Part {
    /// The role in the bundle; `None` if the target is not a valid trace, which the scenario has checked.
    fn role(&self) -> Option<Role> {
        Some(match self {
            Part::Trace(points) => {
                let points: Vec<Point> =
                    points.iter().map(|&(at, rate)| Point { at, rate }).collect();
                Role::Free(Target::Trace(Trace::new(&points, Shape::Linear).ok()?))
            }
            Part::Connections(count) => Role::Free(Target::Connections(*count)),
            Part::Stunt { weight, min_rate } => {
                Role::Stunt { weight: *weight, min_rate: *min_rate }
            }
        })
    }
}

fn span(duration: Duration) -> Span {
    Span::nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
