//! Frames as they are on the wire, header by header.

use std::net::IpAddr;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// A frame of a flow between a subscriber and a remote host.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    /// The ports: source and destination.
    pub(crate) ports: (u16, u16),
    pub(crate) dscp: u8,
    pub(crate) ecn: u8,
    /// Tags in front, the outer first: EtherType and number.
    pub(crate) tags: Vec<(u16, u16)>,
    pub(crate) is_pppoe: bool,
    pub(crate) has_ethernet: bool,
    /// IPv4: flags and offset. IPv6: those of the fragment header, if not zero.
    pub(crate) fragment: u16,
    /// IPv4: bytes of options, a multiple of four.
    pub(crate) options: usize,
    /// IPv6: headers before the transport's, as type, and content without its first byte.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
    /// Bytes from the device's first header on.
    pub(crate) length: usize,
}

impl Wire {
    pub(crate) fn udp(source: &str, destination: &str) -> Wire {
        Wire {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: UDP,
            ports: (5_000, 6_000),
            dscp: 0,
            ecn: 0,
            tags: Vec::new(),
            is_pppoe: false,
            has_ethernet: true,
            fragment: 0,
            options: 0,
            extensions: Vec::new(),
            length: 1_514,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let is_ip4 = self.source.is_ipv4();
        let mut protocol: u16 = if is_ip4 { 0x0800 } else { 0x86dd };
        if self.has_ethernet {
            bytes.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            for (tag, number) in &self.tags {
                bytes.extend(tag.to_be_bytes());
                bytes.extend(number.to_be_bytes());
            }
            if self.is_pppoe {
                protocol = 0x8864;
            }
            bytes.extend(protocol.to_be_bytes());
            if self.is_pppoe {
                let length = (self.length - bytes.len() - 6) as u16;
                bytes.extend([0x11, 0, 0x12, 0x34]);
                bytes.extend(length.to_be_bytes());
                bytes.extend(if is_ip4 { [0, 0x21] } else { [0, 0x57] });
            }
        }
        let rest = self.length - bytes.len();
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let words = 5 + self.options / 4;
                let mut ip = vec![0x40 | words as u8, self.dscp << 2 | self.ecn];
                ip.extend((rest as u16).to_be_bytes());
                ip.extend([0x12, 0x34]);
                ip.extend(self.fragment.to_be_bytes());
                ip.extend([64, self.protocol, 0, 0]);
                ip.extend(source.octets());
                ip.extend(destination.octets());
                ip.resize(words * 4, 1);
                let sum = checksum(&ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                bytes.extend(ip);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let class = self.dscp << 2 | self.ecn;
                let mut headers = self.extensions.clone();
                if self.fragment != 0 {
                    let [high, low] = self.fragment.to_be_bytes();
                    headers.push((44, vec![0, high, low, 0, 0, 0, 1]));
                }
                bytes.extend([0x60 | class >> 4, class << 4, 0, 0]);
                bytes.extend(((rest - 40) as u16).to_be_bytes());
                bytes.extend([headers.first().map_or(self.protocol, |first| first.0), 64]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
                for (at, (_, content)) in headers.iter().enumerate() {
                    bytes.push(headers.get(at + 1).map_or(self.protocol, |next| next.0));
                    bytes.extend(content);
                }
            }
            _ => panic!("both addresses are of one family"),
        }
        bytes.extend(self.ports.0.to_be_bytes());
        bytes.extend(self.ports.1.to_be_bytes());
        if self.protocol == TCP {
            bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        }
        bytes.resize(self.length, 0);
        bytes
    }
}

/// The Internet checksum over a header: 0 if the header's checksum is right.
pub(crate) fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// A generator of numbers that one seed determines (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True with a probability of 1 in `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
