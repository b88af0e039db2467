//! Receive windows that share a link and bound its queue.
//!
//! The problem: the queue of a download is at the ISP, and the only thing that a receiver can do
//! about it before a packet is sent is to say how much it takes: the receive window. The method:
//! on a link that carries `X`, a connection whose window is `W` and whose RTT without the queue is
//! `B` gets `W / (B + Q/X)`, where `Q` is what waits. So windows of `share · (B + Q/X)` give every
//! connection its share exactly, whatever the RTTs, and leave `Q` bytes in the queue: enough to keep
//! the link busy, and no more than the user wants to wait for, or than the ISP can hold.
//!
//! | file | its job |
//! |---|---|
//! | `law` | from a share to a window ([`window`]), in payload and in L2 bytes ([`Framing`]) |
//! | `class` | what a connection is by what it does: interactive, short, long, idle ([`Class`]) |
//! | `divide` | what each connection of a group gets ([`divide`]): short ones before long ones |
//!
//! Terms: *base RTT* is the RTT without the queue; a window is *payload*, a share and a queue are
//! *L2 bytes*; *full* is a segment of the connection's largest size.
//!
//! Properties, all tested: windows that follow from shares sum to the link's BDP + the queue's
//! target within a segment each; a larger share, RTT or target never makes a window smaller; the
//! parts of a group never exceed its share, and use all of it if anybody would.
//!
//! What windows cannot do: N connections hold at least two segments each, so a hundred connections on a
//! slow link queue more than the target; UDP has no window; and a window is right only if all who
//! share the queue have one, since the others fill it.
//!
//! Source: Spring et al., Receiver Based Management of Low Bandwidth Access Links, §III-IV
//! (docs/research/papers/rbm.md).

mod class;
mod divide;
mod law;

pub use class::{Behaviour, Bounds, Class};
pub use divide::{Member, divide};
pub use law::{Framing, SEGMENTS_MIN, floor_rate, window, wire_window};

#[cfg(test)]
mod tests;
