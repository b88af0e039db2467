//! The site to which a connection goes, from what is seen on the wire.
//!
//! Problem: `web:netflix.com` names a site, but packets have addresses, and many sites share one.
//! Method: the first bytes of a connection nearly always name the requested host: the server name
//! indication of TLS, over TCP or in QUIC's Initial packets, or the `Host` of HTTP/1.1. If they do not,
//! the DNS answer that gave the address may. For which site a request was, a browser's extension says
//! ([`Claim`], [`Departure`]), but not the wire. [`Resolver`] takes in what was heard and issues
//! [`Command`]s, which bind connections to groups.
//!
//! Sources by decreasing weight: extension, `Host`, SNI, DNS. An address whose names belong to different groups
//! does not count. The outer name of an encrypted ClientHello is never used. Since browsers send the ECH
//! extension in every hello, a name counts as an outer one if a DNS record has named it as one.
//!
//! Properties: nothing here waits or allocates beyond the constants of [`Resolver`]; a name from the
//! wire is what the client says, so it can only move the client's own connection; a connection whose
//! sources contradict each other ([`Reason::Mixed`]) or are missing belongs to no `web:` group.
//!
//! Source: RFC 8446, 9000, 9001, 9112, 9369, 9460, 9849.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::host_name::HostName;
use crate::packet::Transport;

mod assemble;
mod claims;
mod departure;
mod division;
mod dns;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod http;
mod names;
mod quic;
mod reader;
mod resolver;
mod site;
mod stream;
mod tls;
#[cfg(test)]
mod trials;

pub use claims::{Claim, HostDigest};
pub use departure::Departure;
pub use resolver::{CLAIMANT_SPAN, CONNECTIONS_MAX, Claimed, Counts, KEPT_MAX, Kept, Resolver};
pub use site::{InnerSites, Lead, Sites};
pub use stream::{FirstBytes, STREAM_MAX, first_bytes};

/// A flow of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Flow {
    /// TCP or UDP.
    pub transport: Transport,
    /// The other end.
    pub remote: SocketAddr,
    /// This host's end. It is the last field, so that flows to one server are adjacent in the order.
    pub local: SocketAddr,
}

/// A connection: one use of a flow's addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Its addresses and ports.
    pub flow: Flow,
    /// Differs from that of the last connection of this flow.
    pub opened: u32,
}

/// What was heard of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Heard<'b> {
    /// It was opened.
    Opened {
        /// The owner of its socket; `None` if it has none here.
        user: Option<u32>,
    },
    /// The connection sent data that may be a request.
    Sent,
    /// Payload that this host sent, from `offset` of the stream on.
    Stream {
        /// Offset of the first byte.
        offset: u32,
        /// The bytes, as many as were heard.
        bytes: &'b [u8],
    },
    /// A datagram with a QUIC Initial packet that this host sent.
    Datagram(&'b [u8]),
    /// A DNS message that this host sent or received.
    Dns(&'b [u8]),
}

/// What is to be done; commands must be carried out in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// The connection belongs to this group, or to no group.
    Bind {
        /// The connection.
        connection: Connection,
        /// What [`Sites`] gives for its host: an index in the policy, or a label of [`InnerSites`].
        group: Option<usize>,
        /// The number with which [`Resolver::attribution`] finds it; not 0.
        number: u64,
        /// Whether its beginning need not be reported any more.
        is_final: bool,
        /// Whether to report when it sends data that may be a request ([`Heard::Sent`]).
        is_watched: bool,
    },
    /// Nothing is known of the connection any more.
    Forget(Connection),
}

/// Why a connection belongs to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The browser's extension.
    Extension,
    /// The `Host` field of an HTTP request.
    Host,
    /// The server name indication of TLS or QUIC.
    Sni,
    /// The DNS answer that gave its address.
    Dns,
    /// Names of different groups on one flow: the connection belongs to no group.
    Mixed,
    /// Nothing names its host.
    Nothing,
}

impl Reason {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Extension => "extension",
            Reason::Host => "host",
            Reason::Sni => "sni",
            Reason::Dns => "dns",
            Reason::Mixed => "mixed",
            Reason::Nothing => "unnamed",
        }
    }
}

/// What is known of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribution {
    /// The source of the attribution.
    pub reason: Reason,
    /// The host, if there is a single one.
    pub name: Option<HostName>,
    /// What [`Sites`] gives for the host: the index of a group in the policy, or a label of [`InnerSites`].
    pub group: Option<usize>,
}
