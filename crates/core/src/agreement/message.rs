//! The datagrams between a client and a divider. Numbers are in network byte order; unused bytes are zero.
//!
//! | at | bytes | of all |
//! |---|---|---|
//! | 0 | 4 | `FWAG` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | kind: 1 hello, 2 cookie, 3 ask, 4 agreed, 5 end |
//! | 6 | 2 | length of the datagram |
//! | 8 | 8 | nonce of the client |
//!
//! | kind | from | behind it |
//! |---|---|---|
//! | hello | client | 16 bytes of zeros, so that the answer is not longer |
//! | cookie | divider | cookie (16) |
//! | ask | client | cookie (16), epoch (4; 0 is none), number of classes (1), default class (1), 2 of zeros, weights (16 × 2), classes that have a weight together (3 × {weight (2), first (1), count (1)}) |
//! | agreed | divider | epoch (4), lease in ms (2; 0 is none), [`Outcome`] (1), number of classes (1), rate in bit/s (8), refused bindings (4), classes that were marked lately (2, a bit each), classes that wait for more (2), marks (16 × 1) |
//! | end | client | cookie (16), epoch (4) |
//!
//! Each datagram has exactly one form: reading and rewriting it gives the same bytes, and all other forms are
//! refused. An answer is never longer than the datagram that it answers.

use super::cookie::Cookie;
use super::{CLASSES_MAX, Classes, TOGETHER_MAX, Together};
use crate::units::{Rate, Span};

/// The longest datagram, in bytes.
pub const MESSAGE_MAX: usize = 256;
/// The version of the protocol.
pub const VERSION: u8 = 1;

const MAGIC: [u8; 4] = *b"FWAG";
const HEADER: usize = 16;
const HELLO: usize = HEADER + 16;
const COOKIE: usize = HEADER + 16;
const ASK: usize = HEADER + 16 + 8 + 2 * CLASSES_MAX + 4 * TOGETHER_MAX;
const AGREED: usize = HEADER + 24 + CLASSES_MAX;
const END: usize = HEADER + 20;
const _: () = assert!(COOKIE <= HELLO && COOKIE <= ASK && AGREED <= ASK && ASK <= MESSAGE_MAX);

/// A datagram, see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The client asks whether there is a divider.
    Hello {
        /// Random, and different for each attempt.
        nonce: u64,
    },
    /// The cookie that the client must return.
    Cookie {
        /// The client's nonce.
        nonce: u64,
        /// See [`super::cookie`].
        cookie: Cookie,
    },
    /// The client asks the divider to divide by these classes; also renews an agreement.
    Ask(Ask),
    /// The divider's answer: whether it divides.
    Agreed(Agreed),
    /// The client divides by itself from now on.
    End {
        /// The client's nonce.
        nonce: u64,
        /// The divider's cookie.
        cookie: Cookie,
        /// The epoch of the agreement.
        epoch: u32,
    },
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The client's nonce.
    pub nonce: u64,
    /// The divider's cookie.
    pub cookie: Cookie,
    /// The epoch of the agreement that is renewed; 0 if there is no agreement yet.
    pub epoch: u32,
    /// The client's classes.
    pub classes: Classes,
}

/// What a divider answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The client's nonce.
    pub nonce: u64,
    /// Changes whenever the divider has forgotten the bindings; 0 without an agreement.
    pub epoch: u32,
    /// How long the agreement holds; zero without an agreement. In whole milliseconds, at most 65 s.
    pub lease: Span,
    /// Whether the divider divides, or why not.
    pub outcome: Outcome,
    /// The rate that is divided; zero if unknown.
    pub rate: Rate,
    /// What the divider sees of the client's flows.
    pub seen: Seen,
    /// The DSCP of each class.
    pub marks: Vec<u8>,
}

/// What a divider sees of a client's flows; in the sets, each bit stands for a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Marks for which the table had no room since the agreement began; wraps.
    pub refused: u32,
    /// Classes in which a packet was marked in the last [`super::bindings::RECENT`].
    pub marked: u16,
    /// Classes that the divider holds back without dropping packets.
    pub held: u16,
}

/// Whether a divider does what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It divides.
    Divides,
    /// The subscriber's plan does not let clients divide.
    NotOffered,
    /// Another client of the subscriber has an agreement.
    Taken,
    /// The weights changed too often; the earlier weights stay in force.
    TooSoon,
    /// The divider has no room.
    Full,
    /// It cannot divide now, but may later.
    NotNow,
}

impl Outcome {
    pub(super) const ALL: [Outcome; 6] = [
        Outcome::Divides,
        Outcome::NotOffered,
        Outcome::Taken,
        Outcome::TooSoon,
        Outcome::Full,
        Outcome::NotNow,
    ];

    /// Whether classes are divided, by the new or the earlier weights.
    pub fn is_agreement(self) -> bool {
        matches!(self, Outcome::Divides | Outcome::TooSoon)
    }
}

impl Message {
    /// Reads a datagram; `None` if it is not one of these.
    pub fn read(bytes: &[u8]) -> Option<Message> {
        let (magic, rest) = bytes.split_at_checked(4)?;
        let (&[version, kind], rest) = rest.split_first_chunk()?;
        let (&length, rest) = rest.split_first_chunk()?;
        let (&nonce, body) = rest.split_first_chunk()?;
        let is_whole = usize::from(u16::from_be_bytes(length)) == bytes.len();
        if magic != MAGIC || version != VERSION || !is_whole {
            return None;
        }
        let nonce = u64::from_be_bytes(nonce);
        let message = match (kind, bytes.len()) {
            (1, HELLO) => Message::Hello { nonce },
            (2, COOKIE) => Message::Cookie { nonce, cookie: body.try_into().ok()? },
            (3, ASK) => Message::Ask(read_ask(nonce, body)?),
            (4, AGREED) => Message::Agreed(read_agreed(nonce, body)?),
            (5, END) => {
                let (&cookie, rest) = body.split_first_chunk()?;
                Message::End { nonce, cookie, epoch: u32::from_be_bytes(rest.try_into().ok()?) }
            }
            _ => return None,
        };
        // The bytes that must be zero are zero.
        (message.bytes() == bytes).then_some(message)
    }

    /// The datagram.
    pub fn bytes(&self) -> Vec<u8> {
        let (kind, length, nonce) = match self {
            Message::Hello { nonce } => (1, HELLO, nonce),
            Message::Cookie { nonce, .. } => (2, COOKIE, nonce),
            Message::Ask(ask) => (3, ASK, &ask.nonce),
            Message::Agreed(agreed) => (4, AGREED, &agreed.nonce),
            Message::End { nonce, .. } => (5, END, nonce),
        };
        let mut to = MAGIC.to_vec();
        to.extend([VERSION, kind]);
        to.extend((length as u16).to_be_bytes());
        to.extend(nonce.to_be_bytes());
        match self {
            Message::Hello { .. } => {}
            Message::Cookie { cookie, .. } => to.extend(cookie),
            Message::Ask(Ask { cookie, epoch, classes, .. }) => {
                to.extend(cookie);
                to.extend(epoch.to_be_bytes());
                to.extend([classes.weights().len() as u8, classes.default(), 0, 0]);
                to.extend(classes.weights().iter().flat_map(|weight| weight.to_be_bytes()));
                to.resize(ASK - 4 * TOGETHER_MAX, 0);
                for Together { weight, first, count } in classes.together() {
                    to.extend(weight.to_be_bytes());
                    to.extend([*first, *count]);
                }
            }
            Message::Agreed(Agreed { epoch, lease, outcome, rate, seen, marks, .. }) => {
                to.extend(epoch.to_be_bytes());
                to.extend(((lease.as_nanos() / 1_000_000) as u16).to_be_bytes());
                to.extend([*outcome as u8, marks.len() as u8]);
                to.extend(rate.as_bps().to_be_bytes());
                to.extend(seen.refused.to_be_bytes());
                to.extend(seen.marked.to_be_bytes());
                to.extend(seen.held.to_be_bytes());
                to.extend(marks);
            }
            Message::End { cookie, epoch, .. } => {
                to.extend(cookie);
                to.extend(epoch.to_be_bytes());
            }
        }
        to.resize(length, 0);
        to
    }
}

fn read_ask(nonce: u64, body: &[u8]) -> Option<Ask> {
    let (&cookie, rest) = body.split_first_chunk()?;
    let (&epoch, rest) = rest.split_first_chunk()?;
    let (&[count, default, ..], weights) = rest.split_first_chunk::<4>()?;
    let (weights, together) = weights.split_at_checked(2 * CLASSES_MAX)?;
    let weights = weights.chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let together = together.chunks_exact(4).filter(|four| four[3] > 0).map(|four| Together {
        weight: u16::from_be_bytes([four[0], four[1]]),
        first: four[2],
        count: four[3],
    });
    let classes = Classes::new(weights.take(count.into()).collect(), default)?;
    let classes = classes.with(together.collect())?;
    let is_all = classes.weights().len() == usize::from(count);
    is_all.then_some(Ask { nonce, cookie, epoch: u32::from_be_bytes(epoch), classes })
}

fn read_agreed(nonce: u64, body: &[u8]) -> Option<Agreed> {
    let (&epoch, rest) = body.split_first_chunk()?;
    let (&lease, rest) = rest.split_first_chunk()?;
    let (&[outcome, count], rest) = rest.split_first_chunk()?;
    let (&rate, rest) = rest.split_first_chunk()?;
    let (&refused, rest) = rest.split_first_chunk()?;
    let (&marked, rest) = rest.split_first_chunk()?;
    let (&held, rest) = rest.split_first_chunk()?;
    let marks = rest.get(..count.into())?.to_vec();
    Some(Agreed {
        nonce,
        epoch: u32::from_be_bytes(epoch),
        lease: Span::millis(u16::from_be_bytes(lease).into()),
        outcome: *Outcome::ALL.get(usize::from(outcome))?,
        rate: Rate::bps(u64::from_be_bytes(rate)),
        seen: Seen {
            refused: u32::from_be_bytes(refused),
            marked: u16::from_be_bytes(marked),
            held: u16::from_be_bytes(held),
        },
        marks: (marks.iter().all(|mark| *mark < 64)).then_some(marks)?,
    })
}
