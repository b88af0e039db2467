//! The client's side: when to ask a divider, what it answered, and when to return to the host's own control.
//!
//! ```text
//! Waiting ──▶ Asking ──agreed──▶ Delegated ──fault, or no renewal for SILENCE──▶ Waiting
//!    ▲           └──no answer, or refused──▶ Waiting
//! ```
//!
//! Every datagram that the client sends is a `Message` from [`Client::poll_datagram`]. Datagrams that arrive count
//! only with the nonce of the current attempt, which hosts off the path do not know.

use std::fmt;

use super::cookie::Cookie;
use super::message::{Agreed, Ask, Message, Outcome};
use super::verify::{Before, Fault, Received, Verifier};
use super::{CLASSES_MAX, Classes, TOGETHER_MAX, Together, WEIGHT_MAX};
use crate::backoff::Backoff;
use crate::policy::{PATH_SEPARATOR, Policy};
use crate::share::Tree;
use crate::units::{Bytes, Rate, Span, Time};

/// Time between two renewals.
pub const RENEW: Span = Span::secs(1);
/// An agreement ends after this time without a renewal.
pub const SILENCE: Span = Span::secs(2);
/// Time after which a datagram without an answer is sent again.
const AGAIN: Span = Span::millis(300);
/// Hellos without an answer before the client waits.
const HELLOS: u32 = 3;
/// Pause before a host that does not divide is asked again.
pub const PAUSE: Span = Span::secs(300);
/// The first pause before a host that did not answer is asked again; it doubles up to the longest. A divider whose
/// clients all begin at once does not answer all of them at first.
const PAUSE_SILENT: (Span, Span) = (Span::secs(5), PAUSE);
/// Pauses before a host is asked again that divides for another client, or that may divide soon, as a new router.
const PAUSE_TAKEN: Span = Span::secs(30);
const PAUSE_NOT_NOW: Span = Span::secs(5);
/// The first pause after a fault; it doubles up to the longest.
const PAUSE_FAULT: (Span, Span) = (Span::secs(60), Span::secs(3_600));
/// After this time without a fault, the pause after the next fault is the first one again.
const TRUSTED: Span = Span::secs(600);

/// Why the client divides by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No divider was asked yet.
    NotAsked,
    /// The divider did not answer.
    NoAnswer,
    /// The divider refused to divide.
    Refused(Outcome),
    /// The divider did not divide as agreed.
    Fault(Fault),
    /// The divider did not renew the agreement.
    NotRenewed,
}

/// An agreement that is in force.
#[derive(Clone, Debug)]
pub struct Agreement {
    /// The divider's latest answer.
    pub agreed: Agreed,
    /// When the agreement began.
    pub since: Time,
    /// When the traffic that arrived was last found to be as agreed.
    pub verified_at: Option<Time>,
    classes: Classes,
    renewed_at: Time,
    verifier: Verifier,
}

/// The client, see the module.
#[derive(Clone, Debug)]
pub struct Client {
    /// The classes to ask for.
    classes: Classes,
    state: State,
    seed: u64,
    before: Before,
    pause: Backoff,
    pause_silent: Backoff,
    out: Option<Message>,
}

#[derive(Clone, Debug)]
enum State {
    Waiting { until: Time, why: Why },
    Asking { tried: u32, link: Link },
    Delegated { link: Link, agreement: Box<Agreement> },
}

/// The exchange between client and divider in one attempt.
#[derive(Clone, Copy, Debug)]
struct Link {
    nonce: u64,
    cookie: Option<Cookie>,
    sent_at: Time,
    is_answered: bool,
}

impl Client {
    /// Asks for these classes from `now` on. `seed` is random.
    pub fn new(classes: Classes, seed: u64, now: Time) -> Client {
        Client {
            classes,
            state: State::Waiting { until: now, why: Why::NotAsked },
            seed,
            before: Before::default(),
            pause: Backoff::new(PAUSE_FAULT.0, PAUSE_FAULT.1),
            pause_silent: Backoff::new(PAUSE_SILENT.0, PAUSE_SILENT.1),
            out: None,
        }
    }

    /// The agreement that is in force.
    pub fn agreement(&self) -> Option<&Agreement> {
        match &self.state {
            State::Delegated { agreement, .. } => Some(agreement),
            State::Waiting { .. } | State::Asking { .. } => None,
        }
    }

    /// Whether the classes that were asked for last are in force; if not, the earlier classes may be.
    pub fn is_as_asked(&self) -> bool {
        self.agreement().is_some_and(|agreement| agreement.classes == self.classes)
    }

    /// Why there is no agreement, and when a divider is asked again; `None` while a divider is asked or divides.
    pub fn waits(&self) -> Option<(Why, Time)> {
        match &self.state {
            State::Waiting { until, why } => Some((*why, *until)),
            State::Asking { .. } | State::Delegated { .. } => None,
        }
    }

    /// The next datagram for the divider.
    pub fn poll_datagram(&mut self) -> Option<Message> {
        self.out.take()
    }

    /// Asks for other classes; what arrives is judged by the new classes once the divider knows them.
    pub fn set_classes(&mut self, classes: Classes, now: Time) {
        if self.classes != classes {
            self.classes = classes;
            if let State::Delegated { link, .. } = &mut self.state {
                link.is_answered = true;
                link.sent_at = Time::ZERO;
            }
            self.handle_time(now);
        }
    }

    /// Asks at `now`.
    #[cfg(test)]
    pub(super) fn set_waiting(&mut self, now: Time) {
        self.state = State::Waiting { until: now, why: Why::NotAsked };
    }

    /// Ends the agreement; the client divides by itself from now on.
    pub fn stop(&mut self, now: Time) {
        self.end(Why::NotAsked, Span::MAX, now);
    }

    /// Takes in what arrived in a tick, by class, and lets time pass.
    pub fn handle_tick(&mut self, received: &[Received], now: Time) {
        let State::Delegated { agreement, .. } = &mut self.state else {
            self.before.handle_tick(received.iter().map(|one| one.bytes).sum::<Bytes>(), now);
            return self.handle_time(now);
        };
        if received.len() == agreement.classes.weights().len() {
            match agreement.verifier.handle_tick(received, agreement.agreed.seen, now) {
                None => {}
                Some(Ok(())) => {
                    agreement.verified_at = Some(now);
                    if now.since(agreement.since) >= TRUSTED {
                        self.pause.reset();
                    }
                }
                Some(Err(fault)) => return self.fail(Why::Fault(fault), now),
            }
        }
        self.handle_time(now);
    }

    /// Takes in what the divider sent.
    pub fn handle_datagram(&mut self, bytes: &[u8], now: Time) {
        let Some(message) = Message::read(bytes) else { return };
        let link = match &mut self.state {
            State::Waiting { .. } => return,
            State::Asking { link, .. } | State::Delegated { link, .. } => link,
        };
        match message {
            Message::Cookie { nonce, cookie } if nonce == link.nonce && !link.is_answered => {
                link.cookie = Some(cookie);
                link.is_answered = true;
                self.ask(now);
            }
            Message::Agreed(agreed) if agreed.nonce == link.nonce && link.cookie.is_some() => {
                link.is_answered = true;
                self.pause_silent.reset();
                self.handle_agreed(agreed, now);
            }
            // The answer to another attempt, or a datagram that no divider sends.
            Message::Hello { .. }
            | Message::Cookie { .. }
            | Message::Ask(_)
            | Message::Agreed(_)
            | Message::End { .. } => {}
        }
    }

    fn handle_agreed(&mut self, agreed: Agreed, now: Time) {
        let is_of = |classes: &Classes| agreed.marks.len() == classes.weights().len();
        let is_new = agreed.outcome == Outcome::Divides && is_of(&self.classes);
        // The answer to an earlier request, or the earlier classes still hold.
        let is_old = self.agreement().is_some_and(|agreement| is_of(&agreement.classes));
        let is_whole = is_new || is_old;
        if !agreed.outcome.is_agreement() || agreed.lease == Span::ZERO || !is_whole {
            let pause = match agreed.outcome {
                Outcome::Taken | Outcome::TooSoon => PAUSE_TAKEN,
                Outcome::NotNow => PAUSE_NOT_NOW,
                Outcome::Divides | Outcome::NotOffered | Outcome::Full => PAUSE,
            };
            return self.end(Why::Refused(agreed.outcome), pause, now);
        }
        // Behind a router the rate of a host depends on other hosts, so it is not compared.
        let before = self.before.median().filter(|_| agreed.rate > Rate::ZERO);
        match &mut self.state {
            State::Delegated { agreement, .. } => {
                let is_other =
                    agreement.agreed.epoch != agreed.epoch || agreement.classes != self.classes;
                agreement.renewed_at = now;
                if is_other && is_new {
                    agreement.classes = self.classes.clone();
                    agreement.verifier = Verifier::new(&self.classes, before, now);
                }
                agreement.agreed = agreed;
            }
            State::Asking { link, .. } => {
                let agreement = Box::new(Agreement {
                    agreed,
                    since: now,
                    verified_at: None,
                    classes: self.classes.clone(),
                    renewed_at: now,
                    verifier: Verifier::new(&self.classes, before, now),
                });
                self.state = State::Delegated { link: *link, agreement };
            }
            State::Waiting { .. } => {}
        }
    }

    fn handle_time(&mut self, now: Time) {
        match &mut self.state {
            State::Waiting { until, .. } if now >= *until => {
                self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let nonce = scrambled(self.seed);
                let link = Link { nonce, cookie: None, sent_at: now, is_answered: false };
                self.state = State::Asking { tried: 1, link };
                self.out = Some(Message::Hello { nonce });
            }
            State::Waiting { .. } => {}
            State::Asking { tried, link } => {
                if now.since(link.sent_at) < AGAIN {
                    return;
                }
                if *tried >= HELLOS {
                    let pause = self.pause_silent.span();
                    self.pause_silent.double();
                    return self.end(Why::NoAnswer, self.spread(pause), now);
                }
                *tried += 1;
                (link.cookie, link.is_answered, link.sent_at) = (None, false, now);
                self.out = Some(Message::Hello { nonce: link.nonce });
            }
            State::Delegated { link, agreement } => {
                if now.since(agreement.renewed_at) >= SILENCE {
                    return self.fail(Why::NotRenewed, now);
                }
                let due = if link.is_answered { RENEW } else { AGAIN };
                if now.since(link.sent_at) >= due {
                    self.ask(now);
                }
            }
        }
    }

    /// Asks for the client's classes, with the cookie.
    fn ask(&mut self, now: Time) {
        let (link, epoch) = match &mut self.state {
            State::Waiting { .. } => return,
            State::Asking { link, .. } => (link, 0),
            State::Delegated { link, agreement } => (link, agreement.agreed.epoch),
        };
        let Some(cookie) = link.cookie else { return };
        (link.sent_at, link.is_answered) = (now, false);
        let classes = self.classes.clone();
        self.out = Some(Message::Ask(Ask { nonce: link.nonce, cookie, epoch, classes }));
    }

    fn fail(&mut self, why: Why, now: Time) {
        let pause = self.pause.span();
        self.pause.double();
        self.end(why, self.spread(pause), now);
    }

    /// Up to half as long again, at random: clients that lost a divider at the same time return one by one.
    fn spread(&self, pause: Span) -> Span {
        pause + Span::nanos(scrambled(!self.seed) % (pause.as_nanos() / 2).max(1))
    }

    fn end(&mut self, why: Why, pause: Span, now: Time) {
        if let State::Delegated { link, agreement } = &self.state
            && let Some(cookie) = link.cookie
        {
            let epoch = agreement.agreed.epoch;
            self.out = Some(Message::End { nonce: link.nonce, cookie, epoch });
            self.before = Before::default();
        }
        self.state = State::Waiting { until: now + pause, why };
    }
}

/// The classes of a policy's groups, and the class number of each group. If there are more groups than
/// [`CLASSES_MAX`], the groups with the smallest parts use the class of their device's default group, or of the
/// overall default group. Up to [`TOGETHER_MAX`] devices with several classes, the largest ones, divide what they
/// have; the classes of other devices have their parts of the whole. So no device gets more than its part.
pub fn classes_of(policy: &Policy) -> (Classes, Vec<u8>) {
    let own = Own::of(policy);
    let numbers: Vec<usize> = (0..own.of.len()).filter(|&group| own.of[group] == group).collect();
    let device = |number: &usize| own.devices[numbers[*number]];
    let mut devices: Vec<(usize, usize)> = Vec::new();
    for number in 0..numbers.len() {
        match devices.last_mut() {
            Some((first, count)) if device(first) == device(&number) => *count += 1,
            _ => devices.push((number, 1)),
        }
    }
    let part = |number: usize| own.parts[numbers[number]];
    let sum = |(first, count): (usize, usize)| (first..first + count).map(part).sum::<u64>();
    let mut nested: Vec<_> = devices.iter().copied().filter(|(_, count)| *count > 1).collect();
    nested.sort_by_key(|device| std::cmp::Reverse(sum(*device)));
    nested.truncate(TOGETHER_MAX);
    nested.sort_unstable();
    let is_nested = |number: usize| {
        nested.iter().any(|(first, count)| (*first..first + count).contains(&number))
    };
    let alone: Vec<usize> = (0..numbers.len()).filter(|number| !is_nested(*number)).collect();
    let tops = alone.iter().map(|number| part(*number)).chain(nested.iter().map(|one| sum(*one)));
    let tops = scaled(&tops.collect::<Vec<_>>());
    let mut weights = vec![0; numbers.len()];
    for (number, weight) in alone.iter().zip(&tops) {
        weights[*number] = *weight;
    }
    let mut together = Vec::new();
    for ((first, count), weight) in nested.iter().zip(&tops[alone.len()..]) {
        let within = scaled(&(*first..first + count).map(part).collect::<Vec<_>>());
        weights[*first..first + count].copy_from_slice(&within);
        together.push(Together { weight: *weight, first: *first as u8, count: *count as u8 });
    }
    let number = |group: usize| numbers.iter().position(|one| *one == group).unwrap_or(0) as u8;
    let classes = Classes::new(weights, number(policy.default_group()));
    let classes = classes.and_then(|classes| classes.with(together));
    let of = own.of.iter().map(|group| number(*group)).collect();
    (classes.expect("invariant: a policy has a default group, with none beneath"), of)
}

/// Which groups have their own class.
struct Own {
    /// For each group, the group whose class it uses.
    of: Vec<usize>,
    /// The part of [`WHOLE`] that each group has by weight alone, including groups that use its class.
    parts: Vec<u64>,
    /// For each group, the first group of its device.
    devices: Vec<usize>,
}

impl Own {
    fn of(policy: &Policy) -> Own {
        let (groups, default) = (policy.groups(), policy.default_group());
        let device = |group: usize| groups[group].name.split(PATH_SEPARATOR).next();
        let first = |group: usize| (0..group).find(|&one| device(one) == device(group));
        let devices: Vec<usize> = (0..groups.len()).map(|one| first(one).unwrap_or(one)).collect();
        let tree: Tree = policy.weights().without_rates();
        let parts = tree.by_weight(WHOLE).iter().map(|part| part.as_bps().max(1)).collect();
        let mut own = Own { of: (0..groups.len()).collect(), parts, devices };
        let outermost = |group: usize| policy.outermost(group);
        let mut left: Vec<usize> = (0..groups.len()).filter(|group| *group != default).collect();
        while left.len() >= CLASSES_MAX {
            // The default group of a device gives up its class only after the other groups of that device.
            let is_free = |group: &usize| {
                outermost(*group) != *group
                    || left.iter().all(|one| one == group || outermost(*one) != *group)
            };
            let free = left.iter().copied().filter(is_free);
            let Some(group) = free.min_by_key(|&one| (own.parts[one], std::cmp::Reverse(one)))
            else {
                break;
            };
            let to = if outermost(group) == group { default } else { outermost(group) };
            left.retain(|one| *one != group);
            own.parts[to] += own.parts[group];
            own.of.iter_mut().filter(|of| **of == group).for_each(|of| *of = to);
        }
        own
    }
}

/// The rate whose parts are computed.
const WHOLE: Rate = Rate::bps(1 << 50);

/// The rounding error of the parts of a policy's groups, with some margin.
const ROUNDED: u64 = 1 << 12;

/// The smallest weights with the same ratios as `parts`, or the nearest ones if those would be too large.
fn scaled(parts: &[u64]) -> Vec<u16> {
    let most = parts.iter().copied().max().unwrap_or(1);
    let nearest = |part: u64, largest: u64| (part * largest + most / 2) / most;
    let is_exact = |part: u64, largest: u64| {
        let weight = nearest(part, largest);
        weight > 0 && (part * largest).abs_diff(weight * most) <= ROUNDED
    };
    let largest = u64::from(WEIGHT_MAX);
    let all_are_exact = |largest: &u64| parts.iter().all(|&part| is_exact(part, *largest));
    let largest = (1..largest).find(all_are_exact).unwrap_or(largest);
    parts.iter().map(|&part| nearest(part, largest).max(1) as u16).collect()
}

/// Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators.
fn scrambled(seed: u64) -> u64 {
    let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl Agreement {
    /// The rate that is divided, if the divider states it.
    pub fn rate(&self) -> Option<Rate> {
        Some(self.agreed.rate).filter(|rate| *rate > Rate::ZERO)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NotAsked => f.write_str("it was not asked yet"),
            Why::NoAnswer => f.write_str("no answer"),
            Why::Refused(Outcome::Taken) => f.write_str("it divides for another client"),
            Why::Refused(Outcome::TooSoon) => f.write_str("the weights changed too often"),
            Why::Refused(Outcome::Full) => f.write_str("it has no room"),
            Why::Refused(Outcome::NotNow) => f.write_str("it cannot divide now"),
            Why::Refused(Outcome::NotOffered | Outcome::Divides) => {
                f.write_str("it does not divide")
            }
            Why::Fault(fault) => write!(f, "it did not divide as agreed: {fault}"),
            Why::NotRenewed => f.write_str("it did not renew the agreement"),
        }
    }
}
