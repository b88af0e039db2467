//! Rates of TCP connections held by reading slowly, for a proxy between sender and receiver.
//!
//! Problem: a gateway wants the connections of a class to have a given rate together, and each of them its
//! part of it, without dropping packets. Method: the gateway terminates the sender's connection and reads
//! its receive buffer at the class's rate. The buffer fills, and TCP advertises its free space as the
//! window, so the sender sends as fast as the gateway reads.
//!
//! Terms: a *class* has a rate and connections; *alpha* is a connection's priority in its class. Volumes
//! are bytes on the wire: the payload with the headers of the packets that carry it.
//!
//! | item | its job |
//! |---|---|
//! | [`Scheduler`] | which connection of a class is read next, and how much |
//! | [`buffer_target`], [`follow`] | how large the receive buffer of a connection is |
//! | [`alphas`] | priorities by kind of use |
//! | [`Told`] | the request of a router to its proxy |
//! | [`Syn`] | a client's first packet, which is held until the server has answered |
//!
//! Source: MYOB section IV, algorithm 3 and appendix G. The paper's threads, which sleep and share a
//! mutex, are replaced by one deficit round robin. The paper's equations 13 and 14 take the positive part
//! of drain minus fill, so that the window could never shrink; here it is the signed difference.

mod buffer;
mod priority;
mod scheduler;
mod syn;
mod told;

pub use buffer::{BUFFER_MAX, buffer_target, follow};
pub use priority::alphas;
pub use scheduler::{Alpha, Grant, Scheduler};
pub use syn::{SYN_MAX, Syn};
pub use told::{FOR_MS_MAX, Told, ToldDevice};
