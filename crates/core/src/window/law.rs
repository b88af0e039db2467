//! Converts a share into a window.

use crate::units::{Bytes, Rate, Span};

/// How a connection's payload becomes L2 bytes.
///
/// Invariant: the segment is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    segment: Bytes,
    headers: Bytes,
}

impl Framing {
    /// Full segments of `segment` bytes of payload in packets with IPv4 and TCP with timestamps.
    /// If `segment` is zero, [`SEGMENT_GUESS`] is used.
    pub fn ipv4(segment: Bytes) -> Framing {
        Framing::new(segment, HEADERS_V4)
    }

    /// The same with IPv6.
    pub fn ipv6(segment: Bytes) -> Framing {
        Framing::new(segment, HEADERS_V6)
    }

    fn new(segment: Bytes, headers: Bytes) -> Framing {
        let segment = if segment == Bytes::ZERO { SEGMENT_GUESS } else { segment };
        Framing { segment, headers }
    }

    /// Payload of a full segment.
    pub fn segment(self) -> Bytes {
        self.segment
    }

    /// The bytes on the wire of `payload` in full segments, rounded up.
    pub fn wire(self, payload: Bytes) -> Bytes {
        let packet = u128::from((self.segment + self.headers).as_u64());
        let wire = u128::from(payload.as_u64()) * packet;
        Bytes::new(clamped(wire.div_ceil(u128::from(self.segment.as_u64()))))
    }

    /// The payload of full segments that take `wire` bytes, rounded down.
    pub fn payload(self, wire: Bytes) -> Bytes {
        let packet = u128::from((self.segment + self.headers).as_u64());
        Bytes::new(clamped(u128::from(wire.as_u64()) * u128::from(self.segment.as_u64()) / packet))
    }
}

/// The volume in flight, in L2 bytes, with which `share` arrives at a queue of `queue`.
///
/// Exact except for rounding down. Source: Spring et al., equation (1), in its weighted form: their
/// `(X · RTT + Q) / N` is this with a share of `X / N` and a queue of `Q / X`.
pub fn wire_window(share: Rate, rtt_base: Span, queue: Span) -> Bytes {
    share * (rtt_base + queue)
}

/// The window in payload for [`wire_window`]: whole segments, at least [`SEGMENTS_MIN`].
///
/// It is rounded to the nearest segment, not up: a sender sends only full segments, and rounding up
/// would add half a packet of queue for each connection.
pub fn window(share: Rate, rtt_base: Span, queue: Span, framing: Framing) -> Bytes {
    let segment = framing.segment.as_u64();
    let exact = framing.payload(wire_window(share, rtt_base, queue)).as_u64();
    let segments = exact.saturating_add(segment / 2) / segment;
    framing.segment * segments.max(SEGMENTS_MIN)
}

/// The rate of a connection whose window is the smallest.
pub fn floor_rate(rtt_base: Span, queue: Span, framing: Framing) -> Rate {
    Rate::from_volume(framing.wire(framing.segment * SEGMENTS_MIN), rtt_base + queue)
}

fn clamped(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// The smallest window in segments. The paper's is one, but then every packet waits for a delayed
/// ACK; with two segments the second one is acknowledged at once (RFC 1122 §4.2.3.2).
pub const SEGMENTS_MIN: u64 = 2;
/// Ethernet, IP and TCP with timestamps, which Linux always uses.
const HEADERS_V4: Bytes = Bytes::new(14 + 20 + 32);
const HEADERS_V6: Bytes = Bytes::new(14 + 40 + 32);
/// IPv4 packets of 1500 bytes.
const SEGMENT_GUESS: Bytes = Bytes::new(1_448);
