//! The client's side: when to ask a divider, what it answered, and when to go back to the own control.
//!
//! ```text
//! Waiting ──▶ Asking ──agreed──▶ Delegated ──fault, or no renewal for SILENCE──▶ Waiting
//!    ▲           └──no answer, or refused──▶ Waiting
//! ```
//!
//! Every datagram that it sends is a `Message` from [`Client::poll_datagram`]. What arrives counts only with
//! the nonce of this attempt, which is not known off the path.

use std::fmt;

use super::cookie::Cookie;
use super::message::{Agreed, Ask, Message, Outcome};
use super::verify::{Before, Fault, Received, Verifier};
use super::{CLASSES_MAX, Classes, WEIGHT_MAX};
use crate::backoff::Backoff;
use crate::share::Weight;
use crate::units::{Bytes, Rate, Span, Time};

/// Between two renewals.
pub const RENEW: Span = Span::secs(1);
/// An agreement ends after this time without a renewal.
pub const SILENCE: Span = Span::secs(2);
/// When a datagram without an answer is sent again.
const AGAIN: Span = Span::millis(300);
/// Hellos without an answer before it waits.
const HELLOS: u32 = 3;
/// When a host is asked again that did not answer, or does not divide.
pub const PAUSE: Span = Span::secs(300);
/// When it is asked again that may divide soon.
const PAUSE_TAKEN: Span = Span::secs(30);
/// The first pause after a fault; it doubles up to the longest.
const PAUSE_FAULT: (Span, Span) = (Span::secs(60), Span::secs(3_600));
/// After this time without a fault the next pause is a first one again.
const TRUSTED: Span = Span::secs(600);

/// Why the client divides itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// No divider was asked yet.
    NotAsked,
    /// The divider did not answer.
    NoAnswer,
    /// It does not divide.
    Refused(Outcome),
    /// It did not divide as agreed.
    Fault(Fault),
    /// It did not renew the agreement.
    NotRenewed,
}

/// An agreement that is in force.
#[derive(Clone, Debug)]
pub struct Agreement {
    /// As the divider said it last.
    pub agreed: Agreed,
    /// Since when.
    pub since: Time,
    /// When what arrived was last as agreed.
    pub verified_at: Option<Time>,
    classes: Classes,
    renewed_at: Time,
    verifier: Verifier,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Client {
    /// What to ask for.
    classes: Classes,
    state: State,
    seed: u64,
    before: Before,
    pause: Backoff,
    out: Option<Message>,
}

#[derive(Clone, Debug)]
enum State {
    Waiting { until: Time, why: Why },
    Asking { tried: u32, link: Link },
    Delegated { link: Link, agreement: Box<Agreement> },
}

/// What is between client and divider in one attempt.
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

    /// Why there is none, and when a divider is asked again; `None` while it is asked or divides.
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

    /// Asks for other classes; what arrives is judged by them once the divider knows them.
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

    /// Divides itself from now on.
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
                self.handle_agreed(agreed, now);
            }
            // Others' words, or what no divider says.
            Message::Hello { .. }
            | Message::Cookie { .. }
            | Message::Ask(_)
            | Message::Agreed(_)
            | Message::End { .. } => {}
        }
    }

    fn handle_agreed(&mut self, agreed: Agreed, now: Time) {
        let is_whole = agreed.marks.len() == self.classes.weights().len();
        if !agreed.outcome.is_agreement() || agreed.lease == Span::ZERO || !is_whole {
            let pause = match agreed.outcome {
                Outcome::Taken | Outcome::TooSoon | Outcome::NotNow => PAUSE_TAKEN,
                Outcome::Divides | Outcome::NotOffered | Outcome::Full => PAUSE,
            };
            return self.end(Why::Refused(agreed.outcome), pause, now);
        }
        // What a host has behind a router depends on others.
        let before = self.before.median().filter(|_| agreed.rate > Rate::ZERO);
        match &mut self.state {
            State::Delegated { agreement, .. } => {
                let is_other =
                    agreement.agreed.epoch != agreed.epoch || agreement.classes != self.classes;
                agreement.renewed_at = now;
                if is_other && agreed.outcome == Outcome::Divides {
                    agreement.classes = self.classes.clone();
                    agreement.verifier = Verifier::new(self.classes.weights(), before, now);
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
                    verifier: Verifier::new(self.classes.weights(), before, now),
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
                    return self.end(Why::NoAnswer, PAUSE, now);
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

    /// Sends what it wants, with the cookie.
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
        self.end(why, pause, now);
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

/// The classes of a policy's groups, and which one each group has. Weights above the largest are scaled
/// down. Of more groups than [`CLASSES_MAX`] those with the largest weights have a class each, and the others
/// that of the default group, which then weighs as much as all of them.
pub fn classes_of(weights: &[Weight], default: usize) -> Option<(Classes, Vec<u8>)> {
    let mut order: Vec<usize> = (0..weights.len()).filter(|&group| group != default).collect();
    order.sort_by_key(|&group| (std::cmp::Reverse(weights[group].as_u32()), group));
    let mut own: Vec<usize> = order.iter().copied().take(CLASSES_MAX - 1).collect();
    own.push(default);
    own.sort_unstable();
    let number = |group: usize| own.iter().position(|&one| one == group);
    let rest = number(default)?;
    let of: Vec<u8> = (0..weights.len()).map(|group| number(group).unwrap_or(rest) as u8).collect();
    let mut sums = vec![0_u64; own.len()];
    for (weight, class) in weights.iter().zip(&of) {
        sums[usize::from(*class)] += u64::from(weight.as_u32());
    }
    let (most, max) = (sums.iter().copied().max()?, u64::from(WEIGHT_MAX));
    let scaled = |sum: u64| if most <= max { sum } else { (sum * max / most).max(1) } as u16;
    let classes = Classes::new(sums.into_iter().map(scaled).collect(), rest as u8)?;
    Some((classes, of))
}

/// Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators.
fn scrambled(seed: u64) -> u64 {
    let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl Agreement {
    /// What is divided, if the divider says it.
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
