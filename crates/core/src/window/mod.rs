//! Receive windows that share a link and bound its queue.
//!
//! The problem: the queue of a download is at the ISP, and before a packet is sent, a receiver can only
//! influence it by stating how much it accepts: the receive window. The method: on a link that carries
//! `X`, a connection whose window is `W` and whose RTT without the queue is `B` gets `W / (B + Q/X)`,
//! where `Q` is the queue in bytes. So windows of `share · (B + Q/X)` give every connection exactly its
//! share, whatever the RTTs, and leave `Q` bytes in the queue: enough to keep the link busy, and no
//! more than the user is willing to wait for, or than the ISP can hold.
//!
//! | file | its job |
//! |---|---|
//! | `law` | from a share to a window ([`window`]), in payload and in L2 bytes ([`Framing`]) |
//! | `class` | the class of a connection by its behaviour: interactive, short, long, idle ([`Class`]) |
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
//! slow link queue more than the target; UDP has no window; and a window is right only if all hosts that
//! share the queue have one, since the others fill the queue.
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
