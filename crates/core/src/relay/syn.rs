//! The first packet of a TCP connection, as a client sent it.
//!
//! A proxy that answers this packet at once suggests to the client that the server is reachable, which may be
//! false. So the packet is held until the server has answered the proxy. It is then delivered as it came,
//! without the client's payload, or it is answered as the server did.

use std::net::{IpAddr, SocketAddr};

use crate::packet::Mac;

/// The packet, see the module. Invariant: `packet` is an IP header without options and a TCP header with its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syn {
    client: SocketAddr,
    server: SocketAddr,
    mac: Option<Mac>,
    packet: Box<[u8]>,
}

/// The number of bytes of a packet that are needed: the longest headers of both protocols.
pub const SYN_MAX: usize = 120;

impl Syn {
    /// Reads an IP packet whose end may be missing; `None` if it opens no connection.
    pub fn parse(packet: &[u8], mac: Option<Mac>) -> Option<Syn> {
        let (source, destination, rest) = match packet.first()? >> 4 {
            4 => {
                let length = usize::from(packet[0] & 15) * 4;
                let header = packet.get(..length.max(IP4_BYTES))?;
                let address =
                    |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(&header[at..at + 4]).ok()?));
                (header[9] == TCP && length >= IP4_BYTES).then_some(())?;
                (address(12)?, address(16)?, packet.get(length..)?)
            }
            6 => {
                let header = packet.get(..IP6_BYTES)?;
                let address = |at: usize| {
                    Some(IpAddr::from(<[u8; 16]>::try_from(&header[at..at + 16]).ok()?))
                };
                (header[6] == TCP).then_some(())?;
                (address(8)?, address(24)?, &packet[IP6_BYTES..])
            }
            _ => return None,
        };
        let length = usize::from(rest.get(12)? >> 4) * 4;
        let tcp = rest.get(..length.max(TCP_BYTES))?;
        if length < TCP_BYTES || tcp[13] & (FIN | SYN | RST | ACK) != SYN {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let (client, server) =
            (SocketAddr::new(source, port(0)), SocketAddr::new(destination, port(2)));
        let hops = packet[if source.is_ipv4() { 8 } else { 7 }];
        let packet = packet_of(source, destination, hops, tcp);
        Some(Syn { client, server, mac, packet })
    }

    /// The address that opens the connection.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// The address to which it opens the connection.
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// The link-layer address it came from.
    pub fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// The IP packet without payload.
    pub fn packet(&self) -> &[u8] {
        &self.packet
    }

    /// The hop limit of the packet as it arrived.
    pub fn hops(&self) -> u8 {
        self.packet[if self.client.is_ipv4() { 8 } else { 7 }]
    }

    /// A letter for each TCP option, in order: `M` MSS, `N` NOP, `W` window scale, `S` SACK permitted, `T` timestamp,
    /// `E` end of the options, `?` any other. The text ends after an option whose length is wrong.
    pub fn layout(&self) -> String {
        let mut rest = &self.packet[ip_bytes(self.client.ip()) + TCP_BYTES..];
        let mut layout = String::new();
        while let Some((&kind, more)) = rest.split_first() {
            layout.push(match kind {
                0 => 'E',
                1 => 'N',
                2 => 'M',
                3 => 'W',
                4 => 'S',
                8 => 'T',
                _ => '?',
            });
            match kind {
                0 => break,
                1 => rest = more,
                _ => {
                    let length = more.first().map_or(0, |&length| usize::from(length));
                    let Some(after) = rest.get(length..).filter(|_| length >= 2) else { break };
                    rest = after;
                }
            }
        }
        layout
    }

    /// The IP packet with which the server refuses the connection. Source: RFC 9293, section 3.10.7.1.
    pub fn refusal(&self) -> Box<[u8]> {
        let sent = &self.packet[ip_bytes(self.client.ip())..];
        let sequence = u32::from_be_bytes([sent[4], sent[5], sent[6], sent[7]]);
        let mut tcp = [0; TCP_BYTES];
        tcp[..2].copy_from_slice(&self.server.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.client.port().to_be_bytes());
        tcp[8..12].copy_from_slice(&sequence.wrapping_add(1).to_be_bytes());
        (tcp[12], tcp[13]) = ((TCP_BYTES as u8 / 4) << 4, RST | ACK);
        packet_of(self.server.ip(), self.client.ip(), HOPS, &tcp)
    }
}

fn ip_bytes(address: IpAddr) -> usize {
    if address.is_ipv4() { IP4_BYTES } else { IP6_BYTES }
}

/// A packet with checksums; the client may have left its own to its network card.
fn packet_of(source: IpAddr, destination: IpAddr, hops: u8, tcp: &[u8]) -> Box<[u8]> {
    let mut packet = Vec::with_capacity(IP6_BYTES + tcp.len());
    // Addresses, protocol and length are the beginning of both checksums.
    let mut pseudo = (u32::from(TCP)) + tcp.len() as u32;
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let length = (IP4_BYTES + tcp.len()) as u16;
            packet.extend([0x45, 0]);
            packet.extend(length.to_be_bytes());
            // Flags and offset: do not fragment.
            packet.extend([0, 0, 0x40, 0, hops, TCP, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            let sum = fold(sum_of(&packet));
            packet[10..12].copy_from_slice(&sum);
            pseudo += sum_of(&packet[12..]);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend((tcp.len() as u16).to_be_bytes());
            packet.extend([TCP, hops]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            pseudo += sum_of(&packet[8..]);
        }
        _ => unreachable!("invariant: both addresses are of one header"),
    }
    let at = packet.len();
    packet.extend_from_slice(tcp);
    packet[at + 16..at + 18].fill(0);
    let sum = fold(pseudo + sum_of(&packet[at..]));
    packet[at + 16..at + 18].copy_from_slice(&sum);
    packet.into()
}

/// Source: RFC 1071. All headers have an even number of bytes.
fn sum_of(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

fn fold(mut sum: u32) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

const IP4_BYTES: usize = 20;
const IP6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;
const TCP: u8 = 6;
const HOPS: u8 = 64;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// `curl http://127.0.0.1:9` on Linux, as tcpdump shows it, without the checksum that the network card would add.
    const SYN4: &[u8] =
        b"\x45\x00\x00\x3c\x1c\x46\x40\x00\x40\x06\x20\x74\x7f\x00\x00\x01\x7f\x00\x00\x01\
        \xd4\x31\x00\x09\x01\x02\x03\xff\x00\x00\x00\x00\xa0\x02\xff\xd7\xfe\x30\x00\x00\
        \x02\x04\xff\xd7\x04\x02\x08\x0a\xd4\x5d\xea\x05\x00\x00\x00\x00\x01\x03\x03\x07";

    /// The one's complement sum of a correct packet with its pseudo header is zero.
    fn is_correct(packet: &[u8]) -> bool {
        let (ip, addresses) = if packet[0] >> 4 == 4 { (20, 12..20) } else { (40, 8..40) };
        let tcp = &packet[ip..];
        let sum = sum_of(&packet[addresses]) + u32::from(TCP) + tcp.len() as u32 + sum_of(tcp);
        let header = ip == 40 || fold(sum_of(&packet[..20])) == [0, 0];
        header && fold(sum) == [0, 0]
    }

    #[test]
    fn a_packet_is_read_and_given_back_without_payload_and_options() {
        let mut longer = SYN4.to_vec();
        longer[0] = 0x46;
        longer.splice(20..20, [1; 4]);
        longer.extend(b"early data");
        for packet in [SYN4, &longer] {
            let syn = Syn::parse(packet, None).unwrap();
            assert_eq!(syn.client(), "127.0.0.1:54321".parse().unwrap());
            assert_eq!(syn.server(), "127.0.0.1:9".parse().unwrap());
            assert_eq!(syn.packet().len(), 60);
            assert_eq!((syn.hops(), &syn.layout()[..]), (64, "MSTNW"));
            assert_eq!(syn.packet()[24..36], SYN4[24..36]);
            assert_eq!(syn.packet()[40..], SYN4[40..]);
            assert!(is_correct(syn.packet()));
            let refusal = syn.refusal();
            assert!(is_correct(&refusal) && refusal.len() == 40);
            assert_eq!(
                refusal[20..34],
                *b"\x00\x09\xd4\x31\x00\x00\x00\x00\x01\x02\x04\x00\x50\x14"
            );
        }
        for (at, value) in [(0, 0x55), (0, 0x44), (9, 17), (32, 0x40), (33, 0x12), (33, 0x04)] {
            let mut other = SYN4.to_vec();
            other[at] = value;
            assert_eq!(Syn::parse(&other, None), None, "{at}");
        }
        assert_eq!(Syn::parse(&SYN4[..59], None), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_become_correct_packets(
            mut bytes in vec(any::<u8>(), 0..SYN_MAX), is_v6: bool,
        ) {
            // Most random bytes are not a packet at all.
            let (version, protocol, tcp) = if is_v6 { (0x60, 6, 40) } else { (0x45, 9, 20) };
            for (at, value) in [(0, version), (protocol, TCP), (tcp + 12, 0x60), (tcp + 13, SYN)] {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            prop_assert_eq!(Syn::parse(&bytes, None).is_some(), bytes.len() >= tcp + 24);
            if let Some(syn) = Syn::parse(&bytes, None) {
                prop_assert!(is_correct(syn.packet()) && is_correct(&syn.refusal()));
                let again = Syn::parse(syn.packet(), None);
                prop_assert_eq!(again.as_ref(), Some(&syn));
                prop_assert!(syn.layout().len() <= 40);
            }
        }
    }
}
