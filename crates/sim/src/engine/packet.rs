//! What crosses the simulated paths.

use fairweir_core::units::Bytes;

use super::measure::Stamps;
use crate::scenario::{ETHERNET_HEADER, Ip, PING_PAYLOAD, TCP_HEADER, UDP_HEADER};
use crate::tcp::{Ack, Segment};

/// A packet towards the home.
#[derive(Clone, Copy, Debug)]
pub(super) struct Down {
    /// Index of the connection, or of the flow where there is none (UDP).
    pub(super) to: u32,
    pub(super) kind: DownKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum DownKind {
    /// SYN-ACK.
    Opening,
    Data(Segment, Stamps),
    /// UDP of the flow `to`, which nobody answers.
    Datagram,
    /// The answer to a ping of the flow `to`.
    Pong {
        id: u64,
    },
}

/// A packet from the home.
#[derive(Clone, Copy, Debug)]
pub(super) struct Up {
    /// Index of the connection, or of the flow.
    pub(super) from: u32,
    pub(super) kind: UpKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum UpKind {
    /// SYN.
    Open,
    /// The ACK of the SYN-ACK.
    Opened,
    /// Asks for so much payload; `None` is without end.
    Request { volume: Option<Bytes> },
    /// The stamp says when it was sent, in ms.
    Ack { ack: Ack, stamp: u32 },
    /// UDP of the flow `from`.
    Ping { id: u64 },
}

/// L2 sizes of a flow's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Ethernet and IP.
    l3: u64,
}

/// TCP header of a SYN as Linux sends it: MSS, SACK permitted, timestamps, window scale.
const SYN_HEADER: u64 = 40;
/// Payload of a request, as of an HTTP GET with a few headers.
const REQUEST_PAYLOAD: u64 = 300;

impl Sizes {
    pub(super) fn new(ip: Ip) -> Sizes {
        Sizes { l3: ETHERNET_HEADER + ip.header() }
    }

    /// Payload of a full segment in IP packets of at most `mtu` bytes.
    pub(super) fn segment(ip: Ip, mtu: u32) -> Bytes {
        Bytes::new(u64::from(mtu) - ip.header() - TCP_HEADER)
    }

    pub(super) fn syn(self) -> Bytes {
        Bytes::new(self.l3 + SYN_HEADER)
    }

    pub(super) fn ack(self) -> Bytes {
        Bytes::new(self.l3 + TCP_HEADER)
    }

    pub(super) fn request(self) -> Bytes {
        Bytes::new(self.l3 + TCP_HEADER + REQUEST_PAYLOAD)
    }

    pub(super) fn data(self, payload: u32) -> Bytes {
        Bytes::new(self.l3 + TCP_HEADER + u64::from(payload))
    }

    pub(super) fn datagram(self, payload: u32) -> Bytes {
        Bytes::new(self.l3 + UDP_HEADER + u64::from(payload))
    }

    /// Of a ping or its answer.
    pub(super) fn ping(self) -> Bytes {
        Bytes::new(self.l3 + UDP_HEADER + PING_PAYLOAD)
    }
}
