//! The thread of a probe: sends requests in time, handles answers, and looks for a reflector if it has none.

use std::collections::VecDeque;
use std::io::{self, PipeReader};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use fairweir_core::probe::{Intervals, Prober, TIMEOUT};
use fairweir_core::units::{Span, Time};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::{TimeSpec, TimeValLike};

use super::packet::{Answer, Request};
use super::socket::{Sender, Tap};
use super::target::{self, Candidate, Sources};
use super::{ProbeSpec, Reflector, Shared, lock, packet};
use crate::random;
use crate::{Error, monotonic_now};

/// The state that only the thread uses.
pub(super) struct Worker {
    spec: ProbeSpec,
    woken: PipeReader,
    shared: Arc<Mutex<Shared>>,
    tap: Tap,
    phase: Phase,
    /// Number of searches for a reflector.
    searches: u32,
    /// A router that does not answer requests to itself.
    silent: Option<IpAddr>,
    id: u16,
    sequence: u16,
}

enum Phase {
    /// Asks a reflector.
    Asking(Aim),
    /// Counts the senders to this host.
    Listening { tap: Tap, sources: Sources, until: Time },
    /// Tests whether a candidate answers, and then the others.
    Trying { aim: Aim, trial: Box<Prober<Request, IpAddr>>, left: VecDeque<Candidate>, until: Time },
    /// No reflector was found; searches again once the link is in use.
    Resting { until: Time },
}

/// The host that is asked, and the socket.
struct Aim {
    to: IpAddr,
    sender: Sender,
    /// Set if it was found, not given.
    found: Option<Candidate>,
}

impl Aim {
    /// # Errors
    /// If the socket cannot be opened.
    fn at(dev: &str, candidate: Candidate) -> Result<Aim, Error> {
        let sender = Sender::open(dev, candidate.to, candidate.hops)?;
        Ok(Aim { to: candidate.to, sender, found: Some(candidate) })
    }

    fn accepts(&self, answer: &Answer) -> bool {
        self.found.map_or(answer.from == self.to, |candidate| candidate.accepts(answer.from))
    }
}

impl Worker {
    pub(super) fn new(
        spec: &ProbeSpec,
        woken: PipeReader,
        shared: Arc<Mutex<Shared>>,
    ) -> Result<Worker, Error> {
        let tap = Tap::for_answers(&spec.dev)?;
        let now = monotonic_now();
        let phase = match spec.reflector {
            Reflector::Auto => Phase::Resting { until: now },
            Reflector::Address(to) => {
                lock(&shared).asked = Some(to);
                Phase::Asking(Aim { to, sender: Sender::open(&spec.dev, to, None)?, found: None })
            }
        };
        let random = random()?;
        Ok(Worker {
            spec: spec.clone(),
            woken,
            shared,
            tap,
            phase,
            searches: 0,
            silent: None,
            id: random as u16,
            sequence: (random >> 16) as u16,
        })
    }

    pub(super) fn work(mut self) {
        while self.wait() {
            self.receive();
            let now = monotonic_now();
            if self.next_send().is_some_and(|due| now >= due) {
                self.send();
                self.with_prober(|prober| prober.schedule_next(now));
            }
            if self.spec.reflector == Reflector::Auto {
                self.search(now);
            }
        }
    }

    fn aim(&self) -> Option<&Aim> {
        match &self.phase {
            Phase::Asking(aim) | Phase::Trying { aim, .. } => Some(aim),
            Phase::Listening { .. } | Phase::Resting { .. } => None,
        }
    }

    /// When the next request is due, if there is a reflector or a candidate.
    fn next_send(&self) -> Option<Time> {
        match &self.phase {
            Phase::Asking(_) => Some(lock(&self.shared).prober.next_send()),
            Phase::Trying { trial, .. } => Some(trial.next_send()),
            Phase::Listening { .. } | Phase::Resting { .. } => None,
        }
    }

    /// Calls `work` with the current schedule: a candidate's, or the probe's own.
    fn with_prober(&mut self, work: impl FnOnce(&mut Prober<Request, IpAddr>)) {
        match &mut self.phase {
            Phase::Trying { trial, .. } => work(trial),
            _ => work(&mut lock(&self.shared).prober),
        }
    }

    /// Sleeps until something arrives or is due; returns false when the probe ends.
    fn wait(&mut self) -> bool {
        let send_at = self.next_send();
        let due = match &self.phase {
            Phase::Asking(_) => send_at.unwrap_or(Time::ZERO),
            Phase::Trying { until, .. } => send_at.map_or(*until, |at| at.min(*until)),
            Phase::Listening { until, .. } => *until,
            // A resting thread is woken when the link comes into use.
            Phase::Resting { until } => (*until).max(monotonic_now() + REST_CHECK),
        };
        let wait = due.since(monotonic_now());
        let (woken, answers) = (self.woken.as_fd(), self.tap.as_fd());
        let mut fds =
            vec![PollFd::new(woken, PollFlags::POLLIN), PollFd::new(answers, PollFlags::POLLIN)];
        if let Phase::Listening { tap, .. } = &self.phase {
            fds.push(PollFd::new(tap.as_fd(), PollFlags::POLLIN));
        }
        match ppoll(&mut fds, Some(TimeSpec::nanoseconds(wait.as_nanos() as i64)), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
        let woken = fds[0].revents().unwrap_or(PollFlags::empty());
        drop(fds);
        if woken.contains(PollFlags::POLLIN) {
            let _ = io::Read::read(&mut self.woken, &mut [0; 64]);
        }
        !woken.contains(PollFlags::POLLHUP)
    }

    /// Handles packets that have arrived, at most [`RECEIVE_BATCH`], so that a flood does not delay
    /// requests. An error means that the device is down or gone, which the next request reports.
    fn receive(&mut self) {
        for _ in 0..RECEIVE_BATCH {
            let Ok(Some((packet, at))) = self.tap.receive() else { break };
            let Some(answer) = packet::answer(packet) else { continue };
            match &mut self.phase {
                Phase::Asking(aim) if aim.accepts(&answer) => {
                    let prober = &mut lock(&self.shared).prober;
                    prober.handle_answer(at, answer.from, |r| r.is_answered_by(&answer));
                }
                Phase::Trying { aim, trial, .. } if aim.accepts(&answer) => {
                    trial.handle_answer(at, answer.from, |r| r.is_answered_by(&answer));
                }
                _ => {}
            }
        }
        if let Phase::Listening { tap, sources, .. } = &mut self.phase {
            for _ in 0..RECEIVE_BATCH {
                let Ok(Some((packet, _))) = tap.receive() else { break };
                sources.handle_packet(packet);
            }
        }
    }

    fn send(&mut self) {
        let Some(to) = self.aim().map(|aim| aim.to) else { return };
        self.sequence = self.sequence.wrapping_add(1);
        let request = |token| Request { to, id: self.id, sequence: self.sequence, token };
        let request = match random() {
            Ok(token) => request(token),
            Err(e) => return self.tell(Some(e.to_string())),
        };
        let sent = self
            .aim()
            .map_or_else(|| Err(io::ErrorKind::NotFound.into()), |aim| aim.sender.send(&request));
        match (sent, &mut self.phase) {
            (Ok(at), Phase::Trying { trial, .. }) => trial.handle_sent(request, at),
            (Ok(at), _) => {
                lock(&self.shared).prober.handle_sent(request, at);
                self.tell(None);
            }
            (Err(e), _) => self.tell(Some(format!("cannot ask {to}: {e}"))),
        }
    }

    fn tell(&self, error: Option<String>) {
        let mut shared = lock(&self.shared);
        if let Some(e) = error.as_ref().filter(|_| shared.error != error) {
            tracing::info!(dev = self.spec.dev, "probe: {e}");
        }
        shared.error = error;
    }

    // --------------------------------------------------------------------------------------------
    // Looking for a reflector

    /// Continues the search, or begins it.
    fn search(&mut self, now: Time) {
        let in_use = lock(&self.shared).prober.is_in_use();
        match &mut self.phase {
            Phase::Asking(aim) => {
                let found = aim.found;
                let mut shared = lock(&self.shared);
                shared.prober.handle_time(now);
                let totals = shared.prober.totals();
                if totals.lost_in_a_row >= LOST_MAX {
                    self.silent = found.filter(|f| f.hops.is_none()).map(|f| f.to).or(self.silent);
                    shared.asked = None;
                    shared.prober.handle_reflector(now, false);
                    drop(shared);
                    tracing::info!(dev = self.spec.dev, "probe: no more answers");
                    self.phase = Phase::Resting { until: now };
                } else if let Some(found) = found.filter(|f| f.hops.is_some())
                    && let Some(router) = totals.from.filter(|&from| Some(from) != self.silent)
                    && (self.searches == 1 || shared.prober.is_slowed())
                {
                    drop(shared);
                    // Until the router has answered it counts as silent, so that it is tried only once: after
                    // the first search at once, since the round trips to another host have another base.
                    self.silent = Some(router);
                    self.try_next([found.router(router), found].into(), now);
                }
            }
            // Round trips of an idle link are the base for later ones.
            Phase::Resting { .. } if self.searches == 0 => {
                self.searches = 1;
                self.try_next(self.candidates(target::FAR.into()).into(), now);
            }
            Phase::Resting { until } if now >= *until && in_use => self.listen(now),
            Phase::Resting { .. } => {}
            Phase::Listening { sources, until, .. } => {
                if sources.are_enough() || now >= *until {
                    let busiest = std::mem::take(sources).busiest();
                    let candidates = self.candidates(busiest);
                    self.try_next(candidates.into(), now);
                }
            }
            Phase::Trying { trial, until, left, .. } => {
                let totals = trial.totals();
                if totals.answered >= u64::from(TRIAL_ANSWERS) {
                    self.settle(totals.from, now);
                } else if now >= *until {
                    let left = std::mem::take(left);
                    self.try_next(left, now);
                }
            }
        }
    }

    fn listen(&mut self, now: Time) {
        self.searches = self.searches.saturating_add(1);
        match Tap::for_samples(&self.spec.dev) {
            Ok(tap) => {
                let until = now + LISTEN;
                self.phase = Phase::Listening { tap, sources: Sources::default(), until };
            }
            Err(e) => {
                self.tell(Some(e.to_string()));
                self.phase = Phase::Resting { until: now + REST };
            }
        }
    }

    fn candidates(&self, busiest: Vec<IpAddr>) -> Vec<Candidate> {
        let gateway = |address| match target::gateway(&self.spec.dev, address) {
            Ok(gateway) => (address, gateway),
            Err(e) => {
                self.tell(Some(e.to_string()));
                (address, None)
            }
        };
        target::candidates(&busiest.into_iter().map(gateway).collect::<Vec<_>>())
    }

    fn try_next(&mut self, mut left: VecDeque<Candidate>, now: Time) {
        while let Some(candidate) = left.pop_front() {
            match Aim::at(&self.spec.dev, candidate) {
                Ok(aim) => {
                    tracing::debug!(dev = self.spec.dev, ?candidate, "probe: candidate tried");
                    let until = now + TRIAL;
                    let intervals = Intervals { in_use: TRIAL_INTERVAL, idle: TRIAL_INTERVAL };
                    let trial = Box::new(Prober::new(intervals, now));
                    self.phase = Phase::Trying { aim, trial, left, until };
                    return;
                }
                Err(e) => self.tell(Some(e.to_string())),
            }
        }
        let pause = if self.searches > 1 { REST } else { Span::ZERO };
        self.phase = Phase::Resting { until: now + pause };
    }

    fn settle(&mut self, reflector: Option<IpAddr>, now: Time) {
        let phase = std::mem::replace(&mut self.phase, Phase::Resting { until: now });
        if let Phase::Trying { aim, .. } = phase {
            let found = reflector.map(tracing::field::display);
            tracing::info!(dev = self.spec.dev, reflector = found, "probe: reflector found");
            let mut shared = lock(&self.shared);
            shared.asked = reflector;
            self.silent = self.silent.filter(|&silent| silent != aim.to);
            let is_router = aim.found.is_some_and(|candidate| candidate.is_router());
            shared.prober.handle_reflector(now, is_router);
            drop(shared);
            self.phase = Phase::Asking(aim);
        }
    }
}

/// The most packets that are read at a time.
const RECEIVE_BATCH: usize = 64;
/// Unanswered requests after which a found reflector is given up.
const LOST_MAX: u32 = 40;
/// The time for which the busiest senders to this host are counted.
const LISTEN: Span = Span::secs(2);
/// The time to wait for answers of one candidate: until the answer to the third request.
const TRIAL: Span = Span::nanos(TIMEOUT.as_nanos() + 3 * TRIAL_INTERVAL.as_nanos());
/// Interval between two requests to a candidate.
const TRIAL_INTERVAL: Span = Span::millis(200);
/// Answers after which a candidate is the reflector.
const TRIAL_ANSWERS: u32 = 2;
/// Time from a search that found no reflector to the next one.
const REST: Span = Span::secs(60);
/// How often a resting thread checks whether the rest is over.
const REST_CHECK: Span = Span::secs(1);
