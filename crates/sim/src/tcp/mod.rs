//! TCP in virtual time, as Linux (6.x) behaves on the wire.
//!
//! Problem: the effect of a queue, a policer or a window on TCP depends on details of loss recovery
//! and congestion control that no formula contains. Method: a [`Sender`] and a [`Receiver`] as
//! state machines, with packets that are *fungible*. A packet is known by its transmission number
//! (0, 1, 2 …); every transmission has a new number, even if it carries payload again. There is no
//! reassembly: payload is a number of bytes. That leaves congestion control and loss recovery exact
//! and makes an ACK O(packets acknowledged).
//!
//! Paths may lose packets and ACKs but must not reorder those of a connection. An [`Ack`] contains
//! the highest number and the total of packets and bytes that have arrived. So, of the numbers that
//! it covers for the first time, as many as arrived are taken as delivered, the newest first, and
//! the others are *holes*; if ACKs are lost this may name the wrong packet, but counts stay exact.
//! The payload still to be sent is what was written minus what has arrived minus what is in flight,
//! so that lost payload is sent again automatically.
//!
//! Terms: *segment*, the payload of a full packet; *in flight*, sent and neither acknowledged nor
//! given up; *hole*, not acknowledged though a later packet is; *lost*, given up. Windows are in
//! packets, as in Linux.
//!
//! | file | its job | source |
//! |---|---|---|
//! | `sender` | what the world sees of a sender | |
//! | `connection` | when what is sent; window, Nagle, idle restart, timers | RFC 9293, 5681, 2861, 896 |
//! | `flight` | the packets that are under way, and what becomes of them | RFC 6675, 8985 |
//! | `recovery` | one cut per round, PRR, what is sent again | RFC 6675, 9937, 5681 |
//! | `rtt` | round-trip times and the retransmission timeout | RFC 6298, 8985 |
//! | `rate` | delivery-rate samples | draft-cheng-iccrg-delivery-rate-estimation |
//! | `pacing` | what goes when, in bursts of a millisecond | |
//! | `receiver` | when what is acknowledged | RFC 1122, 5681 |
//! | `congestion` | Reno, CUBIC, Vegas, BBR | each its own |
//!
//! Accuracy compared with the kernel: `docs/results/validation.md`.
//!
//! With ECN an [`Ack`] says how many marks have arrived. The first of a round is answered as a loss is,
//! the others of the round are not, which is what RFC 3168 does with its one bit.
//!
//! Not modelled: reordering, timestamps, the persist timer (a window always has room for one
//! packet), receive window autotuning, TSO deferral, the compression of ACKs during loss, what F-RTO
//! sends to find out whether a timeout was spurious.

mod congestion;
mod connection;
mod flight;
mod pacing;
mod rate;
mod receiver;
mod recovery;
mod rtt;
mod sender;
mod spec;

pub use receiver::{Receiver, ReceiverSpec};
pub use sender::Sender;
pub use spec::SenderSpec;

use fairweir_core::delegate::Answer;
use fairweir_core::units::Bytes;

/// A signal to which a connection has to react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A loss that an ACK showed, or a mark.
    Loss,
    /// No ACK arrived for too long.
    Timeout,
}

/// Called at each congestion signal: returns which connections answer it.
pub type Signals<'s> = dyn FnMut(Signal) -> Answer + 's;

/// A packet with payload, from the sender to the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its transmission number: 0, 1, 2 … on a connection.
    pub number: u64,
    /// Its payload in bytes.
    pub payload: u32,
    /// Number of the connection's transmissions up to this one that carry payload again. From it
    /// the receiver knows whether it misses any: real TCP reads that off the sequence numbers.
    pub resent: u32,
    /// Whether it carries the payload of the transmission just before it, which may have arrived: a
    /// tail loss probe.
    pub copy: bool,
    /// Whether it was marked on the way: ECN's *congestion experienced*.
    pub marked: bool,
}

/// A packet without payload, from the receiver to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The highest transmission number that has arrived.
    pub last: u64,
    /// Total number of packets that have arrived.
    pub received: u64,
    /// Number of these that were marked.
    pub marked: u64,
    /// Total payload that has arrived, copies not counted.
    pub payload: Bytes,
    /// Payload that the receiver accepts beyond that.
    pub window: Bytes,
}

#[cfg(test)]
mod tests;
