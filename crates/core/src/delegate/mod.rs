//! Free and Stunts: some connections answer the congestion signals of another connection, so that it
//! holds a rate and the network sees no more load.
//!
//! Problem: a TCP sender must halve its window at a loss, whatever its application needs. Method: a
//! *bundle* of connections that leave one host through one bottleneck. A *free* connection has a
//! target; *stunts* have none. A signal of the free connection may be *delegated*: it keeps its
//! window, and as many stunts reduce theirs as needed to give up at least the rate that the free
//! connection would have given up. While it is above its target, signals of stunts are delegated
//! to it (*reverse* delegation). For each free connection a [`Controller`] decides which part of the
//! signals is delegated, or, under [`Algorithm::Track`], which part of each reduction.
//!
//! The caller reports each connection's window and round-trip time by [`Bundle::handle_sample`]. At every
//! congestion signal it asks [`Bundle::handle_signal`] whether the connection answers the signal itself.
//! By [`Bundle::take_cut`] it gets, at the next ACK, the window to which another connection must go down.
//! It calls [`Bundle::handle_tick`] when [`Bundle::next_tick`] says so.
//!
//! Terms: *signal*, a reason to cut a window, once per round-trip time (a loss recovery, an ECN echo,
//! or a first timeout, which another connection answers only if it has
//! delivered data since); *gain*, the part that is delegated; *turn*, the order in which stunts are asked;
//! *floor*, the rate that a stunt keeps.
//!
//! Properties, all tested: at each delegation the reductions sum to at least the free connection's
//! own and exceed it by less than one stunt's; no stunt is cut for others twice within its
//! round-trip time, nor below its floor or two packets; delegated + taken = signals; gains are within
//! [−1, 1]; a stunt that is judged not to share a free connection's bottleneck does not answer for it.
//!
//! Source: Guirguis and Valdez, Traffic Shaping via Congestion Signals Delegation. Deviations:
//! `docs/research/papers/free-and-stunts.md`.

use serde::{Deserialize, Serialize};

use crate::share::Weight;
use crate::units::{Rate, Span, Time};

mod apart;
mod control;
mod member;
mod sample;
mod trace;
mod watch;

pub use control::{Algorithm, Controller, Gain, Interval};
pub use sample::{Phase, Sample};
pub use trace::{
    Bounds, Change, Point, Shape, TRACE_POINTS_MAX, TRACE_RATE_MAX, TRACE_TIME_MAX, Trace,
    TraceError, Why,
};
pub use watch::{Reason, Verdict};

use apart::{Block, Pair};
use member::{Free, Member, Offer, Part, WINDOW_MIN};
use watch::Watch;

/// The most connections of a bundle.
pub const MEMBERS_MAX: usize = 16_384;
/// A controller decides no more often than this. In less time a connection of
/// some Mbit/s delivers few packets.
const INTERVAL_MIN: Span = Span::millis(100);
/// The newest interval counts for one part in this many of a connection's mean rate.
const RATE_PARTS: u64 = 8;

/// How the free connection answers a stunt's signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reverse {
    /// It reduces its window by what the stunt would have given up (§VI-B).
    #[default]
    Exact,
    /// It reacts as to its own signal (§III-B).
    Own,
}

/// The parameters of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleSpec {
    /// How gains are decided.
    pub algorithm: Algorithm,
    /// How signals of stunts are answered.
    pub reverse: Reverse,
}

/// The target of a free connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A rate over time.
    Trace(Trace),
    /// The mean rate of a connection of the bundle, times this number.
    Connections(Weight),
}

/// The role of a connection in its bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has a target.
    Free(Target),
    /// It answers the free connections' signals.
    Stunt {
        /// A stunt of weight 2 is asked half as often as one of weight 1.
        weight: Weight,
        /// Delegation leaves it at least this rate.
        min_rate: Rate,
    },
}

/// A connection of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberId(usize);

/// How a signal is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The connection answers itself.
    Own,
    /// Others answer; the connection keeps its window.
    Delegated,
    /// A free connection answers in part; this connection's window is then this number of packets.
    Shared(u32),
}

/// How many signals a connection had, and how they were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// All signals: the sum of the next two.
    pub signals: u64,
    /// Answered by others.
    pub delegated: u64,
    /// Answered by itself.
    pub taken: u64,
    /// Signals answered by itself because no connection could answer them.
    pub refused: u64,
    /// Cuts for signals of others.
    pub cuts: u64,
}

impl std::ops::Add for Tally {
    type Output = Tally;
    fn add(self, other: Tally) -> Tally {
        Tally {
            signals: self.signals + other.signals,
            delegated: self.delegated + other.delegated,
            taken: self.taken + other.taken,
            refused: self.refused + other.refused,
            cuts: self.cuts + other.cuts,
        }
    }
}

/// How the signals of a free connection are answered until the next tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The part of the signals that is delegated, if there is no aim.
    pub gain: Gain,
    /// The rate at which reductions end.
    pub aim: Option<Rate>,
}

/// What is known of a free connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status {
    /// The current target.
    pub target: Rate,
    /// The rate of the last interval.
    pub rate: Rate,
    /// The part of the signals that is delegated.
    pub gain: Gain,
    /// Whether the bundle holds the target.
    pub verdict: Verdict,
    /// Its signals.
    pub tally: Tally,
    /// How many stunts do not answer for it because they do not share its bottleneck.
    pub apart: usize,
}

/// What stunts can do for a free connection.
#[derive(Clone, Copy, Debug, Default)]
struct Help {
    /// How many stunts answer for it.
    stunts: usize,
    /// The rate that these have above their floors.
    spare: Rate,
    /// How many stunts do not share its bottleneck.
    apart: usize,
}

/// The connections of one host that share a bottleneck.
#[derive(Clone, Debug)]
pub struct Bundle {
    spec: BundleSpec,
    /// By id; the places of connections that have left are reused.
    members: Vec<Option<Member>>,
    /// The turn of the stunt that was asked last.
    turn: u64,
    /// The time over which shared bottlenecks are judged.
    block: Block,
    /// Number of samples from connections that had delivered data.
    heard: u64,
}

impl Bundle {
    /// A bundle without connections.
    pub fn new(spec: &BundleSpec) -> Bundle {
        Bundle { spec: *spec, members: Vec::new(), turn: 0, block: Block::default(), heard: 0 }
    }

    /// A connection is added; `None` if there are [`MEMBERS_MAX`].
    pub fn join(&mut self, role: Role) -> Option<MemberId> {
        let part = match role {
            Role::Free(target) => Part::Free(Box::new(Free {
                target,
                controller: Controller::new(self.spec.algorithm),
                forward: 0,
                reverse: 0,
                target_now: Rate::ZERO,
                rate: Rate::ZERO,
                apart: 0,
                watch: Watch::default(),
            })),
            Role::Stunt { weight, min_rate } => {
                Part::Stunt { weight, min_rate, turn: self.turn, pairs: Vec::new() }
            }
        };
        let place = match self.members.iter().position(Option::is_none) {
            Some(place) => place,
            None if self.members.len() == MEMBERS_MAX => return None,
            None => {
                self.members.push(None);
                self.members.len() - 1
            }
        };
        self.members[place] = Some(Member {
            part,
            sample: None,
            heard: 0,
            cut_at: None,
            debt: 0,
            gave: 0,
            rate: Rate::ZERO,
            measured: None,
            tally: Tally::default(),
            seen: apart::Seen::default(),
        });
        Some(MemberId(place))
    }

    /// A connection has ended; another one may take its place.
    ///
    /// # Panics
    /// If it is not there.
    pub fn leave(&mut self, id: MemberId) {
        let member = self.members[id.0].take();
        assert!(member.is_some(), "a connection leaves its bundle once");
        for member in self.members.iter_mut().flatten() {
            if let Part::Stunt { pairs, .. } = &mut member.part {
                pairs.retain(|pair| pair.free != id);
            }
        }
    }

    /// The current state of a connection's sender; to be called at every ACK, after its window has changed.
    pub fn handle_sample(&mut self, id: MemberId, sample: Sample) {
        assert!(sample.rtt > Span::ZERO, "a round-trip time is positive");
        // A window of one packet, as after a timeout, is not reduced.
        let cwnd_cut = sample.cwnd_cut.min(sample.cwnd);
        self.heard += 1;
        let heard = self.heard;
        let member = self.member(id);
        if member.sample.is_none_or(|before| before.delivered < sample.delivered) {
            member.heard = heard;
        }
        member.sample = Some(Sample { cwnd_cut, ..sample });
    }

    /// A connection must cut its window, for the first time in this round-trip time, and its window is still
    /// as in its last sample: returns who answers the signal.
    pub fn handle_signal(&mut self, now: Time, id: MemberId) -> Answer {
        self.answer(now, id, 0)
    }

    /// The same if nothing came back before a timeout. Only a connection that has delivered data since this
    /// one did can answer: then the path is open, and the timeout was an ordinary loss. If the path is
    /// closed to all, each connection answers itself.
    pub fn handle_timeout(&mut self, now: Time, id: MemberId) -> Answer {
        let heard = self.member(id).heard;
        self.answer(now, id, heard)
    }

    /// Returns how a signal is answered, by connections that were heard after `since`.
    fn answer(&mut self, now: Time, id: MemberId, since: u64) -> Answer {
        let reverse = self.spec.reverse;
        let member = self.member(id);
        member.tally.signals += 1;
        let Some(sample) = member.sample else {
            member.take(now);
            return Answer::Own;
        };
        member.owe_for(now, &sample);
        let answer = match &mut member.part {
            Part::Free(free) => match free.controller.aim() {
                Some(aim) => self.answer_in_part(now, id, &sample, aim, since),
                None => {
                    let is_due = advance(&mut free.forward, free.controller.gain().forward());
                    match is_due && self.delegate(now, id, sample.own_cut(), since) {
                        true => Answer::Delegated,
                        false => Answer::Own,
                    }
                }
            },
            Part::Stunt { .. } => match self.furthest_above(id, since) {
                Some(free) => self.give_back(now, free, &sample, reverse),
                None => Answer::Own,
            },
        };
        let member = self.member(id);
        match answer {
            Answer::Delegated => member.tally.delegated += 1,
            Answer::Own | Answer::Shared(_) => member.take(now),
        }
        answer
    }

    /// The window in packets to which a connection has to go down for signals of others, if any; to be asked
    /// at every ACK outside of recoveries.
    pub fn take_cut(&mut self, now: Time, id: MemberId) -> Option<u32> {
        let member = self.member(id);
        let sample = member.sample?;
        // Its own signal came first: the cut for others waits for the next round-trip time.
        if member.cut_at.is_some_and(|at| now.since(at) < sample.rtt) {
            return None;
        }
        let cut = member.debt.min(sample.cwnd.saturating_sub(member.floor(&sample)));
        if cut == 0 {
            return None;
        }
        // The part that the floor still protects is given up when the window has grown.
        member.debt -= cut;
        (member.cut_at, member.gave) = (Some(now), cut);
        member.tally.cuts += 1;
        Some(sample.cwnd - cut)
    }

    /// When [`Bundle::handle_tick`] is due after a tick at `now`: the shortest round-trip time of a
    /// free connection, at least 100 ms.
    pub fn next_tick(&self, now: Time) -> Time {
        let free = self.members.iter().flatten().filter(|m| matches!(m.part, Part::Free(_)));
        let rtt = free.filter_map(|m| m.sample).map(|s| s.rtt).min();
        now + rtt.map_or(INTERVAL_MIN, |rtt| rtt.max(INTERVAL_MIN))
    }

    /// Measures rates and decides gains.
    pub fn handle_tick(&mut self, now: Time) {
        let mut last = vec![None; self.members.len()];
        for (member, last) in self.members.iter_mut().zip(&mut last) {
            let Some((member, sample)) = member.as_mut().and_then(|m| m.sample.map(|s| (m, s)))
            else {
                continue;
            };
            let before = member.measured.replace((now, sample.delivered));
            let Some((since, delivered)) = before.filter(|(at, _)| *at < now) else { continue };
            let volume = sample.delivered.saturating_sub(delivered);
            let rate = Rate::from_volume(volume, now.since(since));
            member.rate = member.rate.smoothed(rate, RATE_PARTS);
            *last = Some((now.since(since), rate));
        }
        let rates: Vec<Rate> =
            self.members.iter().flatten().filter(|m| m.rate > Rate::ZERO).map(|m| m.rate).collect();
        let mean = rates.iter().copied().sum::<Rate>() / (rates.len() as u64).max(1);
        self.watch_bottlenecks(now);
        for index in 0..self.members.len() {
            let help = self.help_for(MemberId(index));
            let (member, last) = (&mut self.members[index], last[index]);
            let Some((member, (length, rate))) = member.as_mut().zip(last) else { continue };
            let (Part::Free(free), Some(sample)) = (&mut member.part, member.sample) else {
                continue;
            };
            let target = match &free.target {
                Target::Trace(trace) => trace.at(now),
                Target::Connections(count) => mean * u64::from(count.as_u32()),
            };
            let reachable = member.rate + help.spare;
            let gain = free.controller.handle_interval(&Interval {
                length,
                target,
                rate,
                reachable,
                rate_now: sample.rate_floor(sample.cwnd),
                rate_least: sample.rate_floor(1),
                kept: f64::from(sample.cwnd_cut) / f64::from(sample.cwnd.max(1)),
            });
            (free.target_now, free.rate, free.apart) = (target, rate, help.apart);
            free.watch.handle_interval(&watch::Seen {
                now,
                length,
                target,
                rate,
                gain,
                has_stunts: help.stunts > 0,
                are_apart: help.apart > 0,
                reachable,
                tally: member.tally,
            });
        }
    }

    /// Judges which connections share a bottleneck.
    fn watch_bottlenecks(&mut self, now: Time) {
        let (nth, is_over) = self.block.handle_tick(now);
        for member in self.members.iter_mut().flatten() {
            if let Some(sample) = member.sample {
                member.seen.handle_tick(nth, &sample, member.tally);
            }
        }
        if !is_over {
            return;
        }
        let mut free = Vec::new();
        for (index, member) in self.members.iter_mut().enumerate() {
            let Some(member) = member.as_mut() else { continue };
            if matches!(member.part, Part::Free(_)) {
                free.push((MemberId(index), std::mem::take(&mut member.seen)));
            }
        }
        for member in self.members.iter_mut().flatten() {
            let Part::Stunt { pairs, .. } = &mut member.part else { continue };
            for (id, seen) in &free {
                let known = pairs.iter().position(|pair| pair.free == *id);
                let known = known.unwrap_or_else(|| {
                    pairs.push(Pair::new(*id));
                    pairs.len() - 1
                });
                pairs[known].handle_block(seen, &member.seen);
            }
            member.seen.clear();
        }
        for (id, mut seen) in free {
            seen.clear();
            self.member(id).seen = seen;
        }
    }

    /// What stunts can do for a free connection; nothing if the connection is a stunt.
    fn help_for(&self, id: MemberId) -> Help {
        let mut help = Help::default();
        let is_free = |m: &Member| matches!(m.part, Part::Free(_));
        if !self.members[id.0].as_ref().is_some_and(is_free) {
            return help;
        }
        for member in self.members.iter().flatten().filter(|m| !is_free(m) && m.is_elephant()) {
            if member.is_apart_from(id) {
                help.apart += 1;
            } else {
                help.stunts += 1;
                help.spare += member.spare();
            }
        }
        help
    }

    /// Whether the stunt and the free connection do not answer for each other, because they do not share a
    /// bottleneck.
    pub fn is_apart(&self, stunt: MemberId, free: MemberId) -> bool {
        self.members[stunt.0].as_ref().is_some_and(|member| member.is_apart_from(free))
    }

    /// The status of a free connection; `None` for a stunt.
    pub fn status(&self, id: MemberId) -> Option<Status> {
        let member = self.members[id.0].as_ref()?;
        let Part::Free(free) = &member.part else { return None };
        Some(Status {
            target: free.target_now,
            rate: free.rate,
            gain: free.controller.gain(),
            verdict: free.watch.verdict(),
            tally: member.tally,
            apart: free.apart,
        })
    }

    /// Takes over the counts of a sender that decides elsewhere.
    pub fn handle_tally(&mut self, id: MemberId, tally: Tally) {
        self.member(id).tally = tally;
    }

    /// How a sender that decides elsewhere is to answer a free connection's signals; `None` for a
    /// stunt.
    pub fn order(&self, id: MemberId) -> Option<Order> {
        let member = self.members[id.0].as_ref()?;
        let Part::Free(free) = &member.part else { return None };
        Some(Order { gain: free.controller.gain(), aim: free.controller.aim() })
    }

    /// A connection's mean rate.
    pub fn rate(&self, id: MemberId) -> Rate {
        self.members[id.0].as_ref().map_or(Rate::ZERO, |member| member.rate)
    }

    /// A connection's signals.
    pub fn tally(&self, id: MemberId) -> Tally {
        self.members[id.0].as_ref().map(|member| member.tally).unwrap_or_default()
    }

    fn member(&mut self, id: MemberId) -> &mut Member {
        self.members[id.0].as_mut().expect("invariant: only members of the bundle are asked about")
    }

    /// Makes stunts give up at least `need`, in turn; returns whether those heard after `since` can.
    fn delegate(&mut self, now: Time, id: MemberId, need: Rate, since: u64) -> bool {
        let members = self.members.iter().enumerate();
        let heard = members.filter_map(|(i, m)| Some((i, m.as_ref().filter(|m| m.heard > since)?)));
        let mut offers: Vec<Offer> = heard.filter_map(|(i, m)| m.offer(now, i, id)).collect();
        // One bit/s of the need is left out for rounding.
        let need = need.saturating_sub(Rate::bps(1));
        if offers.iter().map(|offer| offer.rate).sum::<Rate>() < need {
            self.member(id).tally.refused += 1;
            return false;
        }
        offers.sort_unstable();
        let mut given = Rate::ZERO;
        for offer in offers {
            if given >= need {
                break;
            }
            let rest = need.saturating_sub(given);
            given += offer.rate;
            // A stunt that could not be asked for some time does not have to make up for all its missed turns.
            self.turn = offer.turn.max(self.turn);
            let from = self.turn;
            let member = self.member(MemberId(offer.index));
            // The last stunt gives up only the missing part.
            let missing = member.sample.map_or(0, |s| s.packets_ceil(rest));
            member.debt = offer.packets.min(missing);
            if let Part::Stunt { weight, turn, .. } = &mut member.part {
                *turn = from + u64::from(weight.as_u32());
            }
        }
        true
    }

    /// Makes a free connection go down to its aim, and stunts give up the missing part.
    fn answer_in_part(
        &mut self,
        now: Time,
        id: MemberId,
        sample: &Sample,
        aim: Rate,
        since: u64,
    ) -> Answer {
        let aim = sample.packets_ceil(aim).clamp(sample.cwnd_cut, sample.cwnd);
        let given = sample.rate_floor(sample.cwnd - aim);
        let rest = sample.own_cut().saturating_sub(given);
        if aim == sample.cwnd_cut || !self.delegate(now, id, rest, since) {
            return Answer::Own;
        }
        match aim == sample.cwnd {
            true => Answer::Delegated,
            false => Answer::Shared(aim),
        }
    }

    /// Among the free connections heard after `since`, the one furthest above its target, if one has to answer
    /// for a stunt.
    fn furthest_above(&mut self, stunt: MemberId, since: u64) -> Option<MemberId> {
        let above = |(i, m): (usize, &Option<Member>)| {
            let answers = |m: &&Member| m.heard > since && !self.is_apart(stunt, MemberId(i));
            let member = m.as_ref().filter(answers)?;
            let (Part::Free(free), Some(sample)) = (&member.part, member.sample) else {
                return None;
            };
            let excess = free
                .controller
                .aim()
                .map_or(Rate::ZERO, |aim| sample.rate_floor(sample.cwnd).saturating_sub(aim));
            let gain = free.controller.gain();
            let is_above = if free.controller.aim().is_some() {
                excess > Rate::ZERO
            } else {
                gain < Gain::ZERO
            };
            is_above.then_some((gain, std::cmp::Reverse(excess), i))
        };
        let (.., index) = self.members.iter().enumerate().filter_map(above).min()?;
        let id = MemberId(index);
        let Part::Free(free) = &mut self.member(id).part else { return None };
        let is_due = free.controller.aim().is_some()
            || advance(&mut free.reverse, free.controller.gain().reverse());
        is_due.then_some(id)
    }

    /// Makes a free connection give up what the stunt would have, or as much of that as it can.
    fn give_back(&mut self, now: Time, id: MemberId, stunt: &Sample, how: Reverse) -> Answer {
        let need = stunt.own_cut();
        let member = self.member(id);
        let Some(sample) = member.sample.filter(|s| member.may_be_cut(now, s)) else {
            return Answer::Own;
        };
        let Part::Free(free) = &member.part else { return Answer::Own };
        let aim = free.controller.aim();
        let aimed = aim.map_or(0, |aim| sample.packets_ceil(aim));
        let least = sample.cwnd_cut.max(aimed).max(WINDOW_MIN);
        if sample.cwnd <= least {
            return Answer::Own;
        }
        let given = sample.rate_floor(sample.cwnd - least);
        let most = sample.cwnd - least;
        let is_exact = how == Reverse::Exact || aim.is_some();
        member.debt = if is_exact { most.min(sample.packets_ceil(need)) } else { most };
        if given + Rate::bps(1) >= need {
            return Answer::Delegated;
        }
        // The stunt gives up the part that the free connection cannot.
        let rest = stunt.packets_ceil(need.saturating_sub(given));
        Answer::Shared(stunt.cwnd.saturating_sub(rest).max(stunt.cwnd_cut))
    }
}

/// Adds a part of a signal; returns whether the parts make a whole signal, which is then subtracted.
fn advance(signals: &mut u32, part: u32) -> bool {
    *signals += part;
    let whole = Gain::ONE.forward();
    let is_due = *signals >= whole;
    if is_due {
        *signals -= whole;
    }
    is_due
}

#[cfg(test)]
mod tests;
