//! The gateway's transparent TCP proxy: the connections of a class share a rate by priority.
//!
//! Problem: a gateway is to hold the download of some connections at a rate, exactly and without
//! dropping packets, also where the last hop loses packets. Method: it accepts the clients' connections
//! in the servers' place, connects to the servers in the clients' place, and reads what the servers send
//! at the class's rate ([`fairweir_core::relay`]), so that TCP's own window slows them down. The last hop
//! then recovers from its losses in its own short round trip.
//!
//! One thread and one `epoll` for all connections; payload stays in the kernel (`splice`), but for a
//! look at a client's first bytes, which name the server. The caller keeps first packets of connections
//! back ([`Proxy::handle_syn`]), delivers them to [`Proxy::ports`] if the server is there
//! ([`Proxy::poll_answer`]), and calls [`Proxy::handle`].
//!
//! | module | its job |
//! |---|---|
//! | [`rules`] | to which class a connection belongs, and its priority there |
//! | [`proxy`] | all connections: events, deadlines, grants |
//! | [`handshakes`] | connections that are about to open |
//! | [`classes`] | what the connections of a class have together: rate, payload, receive buffers |
//! | [`usage`] | what each device and application has transferred |
//! | [`connection`] | one connection: its two sockets and what is between them |
//! | [`lane`] | one direction of it |
//! | [`socket`] | sockets with other hosts' addresses |
//!
//! Properties: a client that does not read, or does not finish its first message, holds at most a pipe
//! and its sockets' buffers; above [`CONNECTIONS_MAX`] connections or nine tenths of the file descriptors
//! nothing listens, and new connections pass the gateway as without the proxy.
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

/// Why the proxy does not work.
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
