//! Packets that cross the simulated paths.

use fairweir_core::units::Bytes;
use fairweir_scenario::{
    ETHERNET_HEADER, Flow, Kind, PING_PAYLOAD, REQUEST_PAYLOAD, TCP_HEADER, TIMESTAMPS, UDP_HEADER,
};

use super::measure::Stamps;
use crate::tcp::{Ack, Segment};

/// A packet towards the home.
#[derive(Clone, Copy, Debug)]
pub(super) struct Down {
    /// Index of the connection, or of the flow where there is none (UDP).
    pub(super) to: u32,
    pub(super) kind: DownKind,
}

impl Down {
    pub(super) fn is_of_connection(&self, index: u32) -> bool {
        self.to == index && matches!(self.kind, DownKind::SynAck | DownKind::Data(..))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum DownKind {
    /// SYN-ACK.
    SynAck,
    Data(Segment, Stamps),
    /// UDP of the flow `to`, which is not answered.
    Datagram,
    /// The answer to a ping of the flow `to`.
    Pong {
        id: u64,
    },
    /// The answer to a probe of the stage `to`.
    Echoed {
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
    /// Asks for this much payload; `None` is without end.
    Request { volume: Option<Bytes> },
    /// `stamp` is the time at which it was sent, in ms.
    Ack { ack: Ack, stamp: u32 },
    /// UDP of the flow `from`.
    Ping { id: u64 },
    /// A probe of the stage `from`.
    Echo { id: u64 },
}

/// L2 sizes of a flow's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Ethernet and IP headers.
    l3: u64,
    /// All headers of a full packet of a connection.
    full: u64,
    /// A whole packet of the handshake; below, one that only acknowledges; both without `l3`.
    syn: u64,
    ack: u64,
}

/// Bytes that a SYN adds to the TCP header as Linux sends it, without timestamps: MSS, SACK
/// permitted, window scale. With timestamps, SACK permitted fits into their padding.
const SYN_OPTIONS: u64 = 8;
const SYN_OPTIONS_ALONE: u64 = 12;
/// UDP payload of QUIC's first packets, which are padded. Source: RFC 9000 §14.1.
const QUIC_INITIAL: u64 = 1_200;
/// UDP payload of a QUIC packet with an ACK frame of one range: a short header with a connection id
/// of 8 bytes, the frame, the AEAD's tag. Source: RFC 9000 §17.3.1 and §19.3.
const QUIC_ACK: u64 = 1 + 8 + 2 + 8 + 16;

impl Sizes {
    pub(super) fn new(flow: &Flow) -> Sizes {
        let (syn, ack) = if flow.kind == Kind::Quic {
            (UDP_HEADER + QUIC_INITIAL, UDP_HEADER + QUIC_ACK)
        } else {
            match flow.timestamps {
                Some(_) => (TCP_HEADER + TIMESTAMPS + SYN_OPTIONS, TCP_HEADER + TIMESTAMPS),
                None => (TCP_HEADER + SYN_OPTIONS_ALONE, TCP_HEADER),
            }
        };
        let l3 = ETHERNET_HEADER + flow.ip.header();
        Sizes { l3, full: ETHERNET_HEADER + flow.headers(), syn, ack }
    }

    pub(super) fn syn(self) -> Bytes {
        Bytes::new(self.l3 + self.syn)
    }

    pub(super) fn ack(self) -> Bytes {
        Bytes::new(self.l3 + self.ack)
    }

    pub(super) fn request(self) -> Bytes {
        Bytes::new(self.full + REQUEST_PAYLOAD)
    }

    pub(super) fn data(self, payload: u32) -> Bytes {
        Bytes::new(self.full + u64::from(payload))
    }

    pub(super) fn datagram(self, payload: u32) -> Bytes {
        Bytes::new(self.l3 + UDP_HEADER + u64::from(payload))
    }

    /// Size of a ping or its answer.
    pub(super) fn ping(self) -> Bytes {
        Bytes::new(self.l3 + UDP_HEADER + PING_PAYLOAD)
    }
}
