//! Echo requests and their answers, as bytes. Source: RFC 792, RFC 4443.
//!
//! Terms: a *reply* comes from the host that was asked; a router at which a request's hop limit
//! ends answers that it was *exceeded* and quotes the request. A packet that is not well-formed, checksum
//! included, is not an answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The host that is asked.
    pub(super) to: IpAddr,
    /// An identifier, equal for all requests of a probe.
    pub(super) id: u16,
    /// Counts the requests of a probe.
    pub(super) sequence: u16,
    /// Random, so that a host off the path cannot forge an answer.
    pub(super) token: u64,
}

/// Something that looks like the answer to an echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The sender of the answer.
    pub(super) from: IpAddr,
    /// The host that was asked: equal to `from` unless a router answers.
    pub(super) asked: IpAddr,
    pub(super) id: u16,
    pub(super) sequence: u16,
    /// `None` if a router quotes too little of the request.
    pub(super) token: Option<u64>,
}

impl Request {
    /// The ICMP message. Its checksum is right for IPv4; for IPv6 the kernel computes it.
    pub(super) fn message(&self) -> Vec<u8> {
        let (kind, header) = match self.to {
            IpAddr::V4(_) => (ECHO_REQUEST_4, HEADER_4),
            IpAddr::V6(_) => (ECHO_REQUEST_6, HEADER_6),
        };
        let mut message = vec![0; PACKET_BYTES - header];
        message[0] = kind;
        message[4..6].copy_from_slice(&self.id.to_be_bytes());
        message[6..8].copy_from_slice(&self.sequence.to_be_bytes());
        message[8..16].copy_from_slice(&self.token.to_be_bytes());
        if self.to.is_ipv4() {
            let checksum = !sum(&[&message]);
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
        }
        message
    }

    /// Whether `answer` answers this request; a quote too short for the token is accepted.
    pub(super) fn is_answered_by(&self, answer: &Answer) -> bool {
        answer.id == self.id
            && answer.sequence == self.sequence
            && answer.asked == self.to
            && (answer.token == Some(self.token)
                || (answer.token.is_none() && answer.from != answer.asked))
    }
}

/// Reads a whole IP packet without link header.
pub(super) fn answer(packet: &[u8]) -> Option<Answer> {
    let ip = Ip::parse(packet)?;
    let (icmp, is_4) = (ip.payload.get(..ip.payload_bytes)?, ip.from.is_ipv4());
    if icmp.len() < ICMP_HEADER || ip.icmp_sum(icmp) != 0xffff {
        return None;
    }
    match (icmp[0], is_4) {
        (ECHO_REPLY_4, true) | (ECHO_REPLY_6, false) => {
            let token = Some(u64_at(icmp, 8)?);
            Some(Answer { from: ip.from, asked: ip.from, token, ..echo(icmp)? })
        }
        (EXCEEDED_4, true) | (EXCEEDED_6, false) => {
            let quote = Ip::parse(icmp.get(ICMP_HEADER..)?)?;
            let asks = match quote.from {
                IpAddr::V4(_) => ECHO_REQUEST_4,
                IpAddr::V6(_) => ECHO_REQUEST_6,
            };
            // Bytes that a router appends to a quote are not part of the request.
            let quoted = &quote.payload[..quote.payload.len().min(quote.payload_bytes)];
            if quote.from.is_ipv4() != is_4 || quoted.first() != Some(&asks) {
                return None;
            }
            let token = u64_at(quoted, 8);
            Some(Answer { from: ip.from, asked: quote.to, token, ..echo(quoted)? })
        }
        _ => None,
    }
}

/// An ICMP packet, which may be truncated after its header.
struct Ip<'p> {
    from: IpAddr,
    to: IpAddr,
    /// The available part of the payload, perhaps with padding.
    payload: &'p [u8],
    /// The length of the payload according to the header.
    payload_bytes: usize,
}

impl<'p> Ip<'p> {
    fn parse(packet: &'p [u8]) -> Option<Ip<'p>> {
        match packet.first()? >> 4 {
            4 => {
                let header = usize::from(packet[0] & 0x0f) * 4;
                let fragment = u16_at(packet, 6)? & 0x3fff;
                if header < HEADER_4 || fragment != 0 || *packet.get(9)? != ICMP_4 {
                    return None;
                }
                let address = |at: usize| -> Option<IpAddr> {
                    let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
                    Some(Ipv4Addr::from(octets).into())
                };
                Some(Ip {
                    from: address(12)?,
                    to: address(16)?,
                    payload: packet.get(header..)?,
                    payload_bytes: usize::from(u16_at(packet, 2)?).checked_sub(header)?,
                })
            }
            6 => {
                if *packet.get(6)? != ICMP_6 {
                    return None;
                }
                let address = |at: usize| -> Option<IpAddr> {
                    let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
                    Some(Ipv6Addr::from(octets).into())
                };
                Some(Ip {
                    from: address(8)?,
                    to: address(24)?,
                    payload: packet.get(HEADER_6..)?,
                    payload_bytes: usize::from(u16_at(packet, 4)?),
                })
            }
            _ => None,
        }
    }

    /// The sum over the bytes that the checksum covers; 0xffff if they are undamaged.
    fn icmp_sum(&self, icmp: &[u8]) -> u16 {
        match (self.from, self.to) {
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let length = (icmp.len() as u32).to_be_bytes();
                let tail = [0, 0, 0, ICMP_6];
                sum(&[&from.octets(), &to.octets(), &length, &tail, icmp])
            }
            _ => sum(&[icmp]),
        }
    }
}

fn echo(message: &[u8]) -> Option<Answer> {
    let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let (id, sequence) = (u16_at(message, 4)?, u16_at(message, 6)?);
    Some(Answer { from: unknown, asked: unknown, id, sequence, token: None })
}

/// The ones' complement sum of RFC 1071; all parts but the last are of even length.
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let word = |w: &[u8]| u64::from(w[0]) << 8 | u64::from(w.get(1).copied().unwrap_or(0));
    let mut sum: u64 = words.map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Bytes of a request with its IP header: no more than ping's.
pub(super) const PACKET_BYTES: usize = 64;
pub(super) const ECHO_REPLY_4: u8 = 0;
pub(super) const EXCEEDED_4: u8 = 11;
pub(super) const ECHO_REPLY_6: u8 = 129;
pub(super) const EXCEEDED_6: u8 = 3;
pub(super) const ICMP_4: u8 = 1;
pub(super) const ICMP_6: u8 = 58;
const ECHO_REQUEST_4: u8 = 8;
const ECHO_REQUEST_6: u8 = 128;
/// Bytes of an IPv4 header without options.
const HEADER_4: usize = 20;
const HEADER_6: usize = 40;
const ICMP_HEADER: usize = 8;

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    pub(crate) fn request(to: &str) -> Request {
        Request { to: to.parse().unwrap(), id: 0x1234, sequence: 7, token: 0x0102_0304_0506_0708 }
    }

    /// An IP packet around an ICMP message, whose checksum is filled in.
    pub(crate) fn packet(from: &str, to: &str, mut icmp: Vec<u8>) -> Vec<u8> {
        icmp[2..4].fill(0);
        let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let mut packet = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, ICMP_4, 0, 0];
                header[2..4].copy_from_slice(&(20 + icmp.len() as u16).to_be_bytes());
                header.extend(from.octets().into_iter().chain(to.octets()));
                header
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut header = vec![0x60, 0, 0, 0, 0, 0, ICMP_6, 64];
                header[4..6].copy_from_slice(&(icmp.len() as u16).to_be_bytes());
                header.extend(from.octets().into_iter().chain(to.octets()));
                header
            }
            _ => panic!("two families"),
        };
        let checksum = {
            let probe = [packet.clone(), icmp.clone()].concat();
            !Ip::parse(&probe).unwrap().icmp_sum(&icmp)
        };
        icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
        packet.extend(icmp);
        packet
    }

    pub(crate) fn reply(request: &Request, here: &str) -> Vec<u8> {
        let mut icmp = request.message();
        icmp[0] = if request.to.is_ipv4() { ECHO_REPLY_4 } else { ECHO_REPLY_6 };
        packet(&request.to.to_string(), here, icmp)
    }

    /// An error message of a router that quotes this many bytes after the IP header.
    pub(crate) fn exceeded(request: &Request, here: &str, router: &str, quoted: usize) -> Vec<u8> {
        let kind = if request.to.is_ipv4() { EXCEEDED_4 } else { EXCEEDED_6 };
        let header = if request.to.is_ipv4() { 20 } else { 40 };
        let asked = packet(here, &request.to.to_string(), request.message());
        let icmp = [vec![kind, 0, 0, 0, 0, 0, 0, 0], asked[..header + quoted].to_vec()].concat();
        packet(router, here, icmp)
    }

    /// This host, the host that is asked, and a router, for both families.
    const PLACES: [[&str; 3]; 2] =
        [["192.0.2.1", "198.51.100.7", "203.0.113.1"], ["2001:db8::1", "2001:db8:1::7", "fd00::1"]];

    #[test]
    fn a_reply_and_a_router_s_word_answer_their_request_and_no_other() {
        for [here, far, router] in PLACES {
            let request = request(far);
            let others = [
                Request { id: 1, ..request },
                Request { sequence: 8, ..request },
                Request { token: 9, ..request },
                Request { to: router.parse().unwrap(), ..request },
            ];
            let packets = [
                (reply(&request, here), far),
                (exceeded(&request, here, router, request.message().len()), router),
            ];
            for (packet, from) in packets {
                let answer = answer(&packet).unwrap();
                assert_eq!(answer.from, from.parse::<IpAddr>().unwrap());
                assert!(request.is_answered_by(&answer), "{answer:?}");
                for other in others {
                    assert!(!other.is_answered_by(&answer), "{other:?} {answer:?}");
                }
            }
        }
    }

    #[test]
    fn a_router_that_quotes_eight_bytes_is_believed_and_padding_is_no_token() {
        for [here, far, router] in PLACES {
            let request = request(far);
            let brief = answer(&exceeded(&request, here, router, 8)).unwrap();
            assert_eq!(brief.token, None);
            assert!(request.is_answered_by(&brief));
        }
        // A reply always contains the token.
        let [here, far, _] = PLACES[0];
        let mut short = request(far).message();
        short.truncate(12);
        short[0] = ECHO_REPLY_4;
        assert_eq!(answer(&packet(far, here, short)), None);
    }

    #[test]
    fn what_is_damaged_cut_off_or_something_else_is_no_answer() {
        for [here, far, router] in PLACES {
            let request = request(far);
            let whole = request.message().len();
            for packet in [reply(&request, here), exceeded(&request, here, router, whole)] {
                assert!(answer(&packet).is_some());
                for length in 0..packet.len() {
                    assert_eq!(answer(&packet[..length]), None, "cut to {length}");
                }
                let first = if request.to.is_ipv4() { 20 } else { 8 };
                for at in first..packet.len() {
                    let mut damaged = packet.clone();
                    damaged[at] ^= 0x10;
                    assert_eq!(answer(&damaged), None, "byte {at} of {}", packet.len());
                }
            }
            assert_eq!(answer(&packet(here, far, request.message())), None, "a request");
        }
    }

    #[test]
    fn a_request_has_64_bytes_and_an_ipv4_checksum() {
        assert_eq!(request("192.0.2.1").message().len(), 64 - 20);
        assert_eq!(request("fd00::1").message().len(), 64 - 40);
        assert_eq!(sum(&[&request("192.0.2.1").message()]), 0xffff);
    }

    proptest::proptest! {
        #[test]
        fn no_packet_makes_it_panic(packet: Vec<u8>, version in 0u8..16) {
            let mut packet = packet;
            if let Some(first) = packet.first_mut() {
                *first = version << 4 | *first & 0x0f;
            }
            answer(&packet);
        }
    }
}
