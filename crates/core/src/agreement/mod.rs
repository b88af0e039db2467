//! The agreement: the divider before the queue divides, and the client, which knows the weights, says how.
//!
//! Problem: a receiver divides from behind the queue. It needs a round trip, and cannot overrule a policer. A
//! policer divides at once, but does not know what the user wants, nor to which application a packet belongs.
//! Method: the *client* (a host) tells the *divider* (its ISP's policer) its classes and their weights in a few
//! datagrams, and *marks* packets with the class of their flow. The mark binds the flow to the class, so that the
//! divider knows the class of packets that come back. The client verifies that it gets what was agreed, and
//! otherwise returns to its own control.
//!
//! | module | its job |
//! |---|---|
//! | [`message`] | the datagrams: a fixed layout, at most [`message::MESSAGE_MAX`] bytes |
//! | [`cookie`] | the proof that a client receives at its address, for which the divider stores nothing |
//! | [`divider`] | who divides how, and until when |
//! | [`device`] | the classes of a client behind a router, as groups beneath its device |
//! | [`bindings`] | which flow is in which class: the specification of the kernel program |
//! | [`client`] | whom to ask, when again, and what to mark |
//! | [`peers`] | hosts that divide a link among themselves |
//! | [`verify`] | whether what arrives is what was agreed |
//!
//! Terms: a *class* is a part of the client's traffic, a number and a weight. A *lease* is how long an
//! agreement holds without a renewal; its *epoch* changes whenever the divider has forgotten what it knew.

pub mod bindings;
pub mod client;
pub mod cookie;
pub mod device;
pub mod divider;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod message;
pub mod peers;
#[cfg(test)]
mod tests;
pub mod verify;

use std::net::Ipv6Addr;

pub use crate::phantom::plan::{Classes, TOGETHER_MAX, Together, WEIGHT_MAX};
use crate::units::Span;

/// The most classes of a client: there is a mark for each.
pub const CLASSES_MAX: usize = crate::phantom::plan::CLIENT_LEAVES_MAX;
const _: () = assert!(CLASSES_MAX == crate::policy::CLASS_MAX as usize + 1);

/// The UDP port at which a divider listens.
pub const PORT: u16 = 7_425;
/// The UDP port and the link-local group at which hosts hear each other.
pub const PEERS: (Ipv6Addr, u16) = (Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x6661, 0x6972), PORT + 1);
/// How long an agreement holds after the last renewal.
pub const LEASE: Span = Span::secs(3);

/// The DSCP that names a class: pool 2, for local use. Source: RFC 2474, section 6.
pub const fn mark_of(class: u8) -> u8 {
    class << 2 | 3
}

/// The class that a DSCP names, if it is a mark.
pub const fn class_of(dscp: u8) -> Option<u8> {
    if dscp & 3 == 3 && dscp < 64 { Some(dscp >> 2) } else { None }
}
