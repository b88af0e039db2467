//! The datagrams between a client and a divider. Numbers are in network order; what is not used is zero.
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
//! | ask | client | cookie (16), epoch (4; 0 is none), number of classes (1), default class (1), 2 of zeros, weights (16 × 2) |
//! | agreed | divider | epoch (4), lease in ms (2; 0 is none), [`Outcome`] (1), number of classes (1), rate in bit/s (8), refused bindings (4), classes that were marked lately (2, a bit each), classes that wait for more (2), marks (16 × 1) |
//! | end | client | cookie (16), epoch (4) |
//!
//! Each datagram has one form only: what is read and written again is the same, and everything else is
//! refused. An answer is never longer than what it answers.

use super::cookie::Cookie;
use super::{CLASSES_MAX, Classes};
use crate::units::{Rate, Span};

/// The longest datagram, in bytes.
pub const MESSAGE_MAX: usize = 256;
/// The version that is spoken.
pub const VERSION: u8 = 1;

const MAGIC: [u8; 4] = *b"FWAG";
const HEADER: usize = 16;
const HELLO: usize = HEADER + 16;
const COOKIE: usize = HEADER + 16;
const ASK: usize = HEADER + 16 + 8 + 2 * CLASSES_MAX;
const AGREED: usize = HEADER + 24 + CLASSES_MAX;
const END: usize = HEADER + 20;
const _: () = assert!(COOKIE <= HELLO && COOKIE <= ASK && AGREED <= ASK && ASK <= MESSAGE_MAX);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Who is there?
    Hello {
        /// Random, and another for each attempt.
        nonce: u64,
    },
    /// To be given back.
    Cookie {
        /// The client's.
        nonce: u64,
        /// See [`super::cookie`].
        cookie: Cookie,
    },
    /// Divide so; also the renewal.
    Ask(Ask),
    /// It is done, or not.
    Agreed(Agreed),
    /// The client divides itself from now on.
    End {
        /// The client's.
        nonce: u64,
        /// The divider's.
        cookie: Cookie,
        /// Of the agreement.
        epoch: u32,
    },
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The client's.
    pub nonce: u64,
    /// The divider's.
    pub cookie: Cookie,
    /// Of the agreement that is renewed; 0 is none.
    pub epoch: u32,
    /// Its classes.
    pub classes: Classes,
}

/// What a divider answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The client's.
    pub nonce: u64,
    /// Another one whenever the divider has forgotten the bindings; 0 without an agreement.
    pub epoch: u32,
    /// How long it holds; zero without an agreement. In whole milliseconds, at most 65 s.
    pub lease: Span,
    /// Whether, and why not.
    pub outcome: Outcome,
    /// What is divided; zero is unknown.
    pub rate: Rate,
    /// What it sees of the client's flows.
    pub seen: Seen,
    /// The DSCP of each class.
    pub marks: Vec<u8>,
}

/// What a divider sees of a client's flows; a bit is a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Marks that found no room since the agreement began; wraps.
    pub refused: u32,
    /// Classes of which a packet was marked in the last [`super::bindings::RECENT`].
    pub marked: u16,
    /// Classes that it holds back without dropping packets.
    pub held: u16,
}

/// Whether a divider does what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It does.
    Divides,
    /// What the subscriber has bought is not divided by clients.
    NotOffered,
    /// Another client of the subscriber has an agreement.
    Taken,
    /// The weights changed too often; those of before hold.
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

    /// Whether classes are divided, if not as asked then as before.
    pub fn is_agreement(self) -> bool {
        matches!(self, Outcome::Divides | Outcome::TooSoon)
    }
}

impl Message {
    /// Reads a datagram; `None` if it is another.
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
        // What should be zero is.
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
    let weights = weights.chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let classes = Classes::new(weights.take(count.into()).collect(), default)?;
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
