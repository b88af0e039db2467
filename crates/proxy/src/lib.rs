//! The gateway's transparent TCP proxy: the connections of a class share a rate by priority.
//!
//! Problem: a gateway must hold the download of some connections at an exact rate without dropping
//! packets, even where the last hop loses packets. Method: the gateway accepts the clients' connections
//! in the servers' place, connects to the servers in the clients' place, and reads what the servers send
//! at the class's rate ([`fairweir_core::relay`]), so that TCP's own window slows the servers down. The
//! last hop then recovers from its losses within its own short round trip.
//!
//! One thread and one `epoll` serve all connections. Payload stays in the kernel (`splice`), except that
//! a client's first bytes, which name the server, are inspected. The caller holds back the first packet of
//! each connection ([`Proxy::handle_syn`]), delivers it to [`Proxy::ports`] if the server has accepted
//! ([`Proxy::poll_answer`]), and calls [`Proxy::handle`].
//!
//! | module | its job |
//! |---|---|
//! | [`rules`] | to which class a connection belongs, and its priority there |
//! | [`proxy`] | all connections: events, deadlines, grants |
//! | [`handshakes`] | connections being opened |
//! | [`classes`] | state shared by the connections of a class: rate, payload, receive buffers |
//! | [`usage`] | what each device and application has transferred |
//! | [`connection`] | one connection: its two sockets and the data in transit between them |
//! | [`lane`] | one direction of a connection |
//! | [`socket`] | sockets with other hosts' addresses |
//!
//! Properties: a client that does not read, or does not finish its first message, occupies at most a pipe
//! and its sockets' buffers. Above [`CONNECTIONS_MAX`] connections or nine tenths of the file descriptors
//! the proxy stops listening, and new connections pass the gateway as without the proxy.
#![forbid(unsafe_code)]

mod classes;
mod connection;
mod handshakes;
mod lane;
mod proxy;
mod rules;
mod socket;
mod usage;

pub use classes::ClassCounts;
pub use handshakes::Answer;
pub use proxy::{CONNECTIONS_MAX, Counts, Kernel, Proxy};
pub use rules::{App, Class, Known, Rules};
pub use usage::Usage;

/// Why the proxy cannot work.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempted}: {source}")]
pub struct Error {
    /// What was attempted.
    attempted: String,
    /// The kernel's answer.
    source: std::io::Error,
}

impl Error {
    fn of(attempted: &str, source: impl Into<std::io::Error>) -> Error {
        Error { attempted: attempted.to_owned(), source: source.into() }
    }
}
