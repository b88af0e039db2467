//! What the headers of a frame say, read in the plainest way: the reference for the parser of the BPF programs
//! (`crates/linux/bpf/packet.h`).

/// What is said of a packet; all 0 if it is not IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packet {
    /// 4 or 6; 0 is not IP.
    pub(super) version: u8,
    /// The protocol of the last header that was reached.
    pub(super) transport: u8,
    /// Source and destination of TCP and UDP; none in later fragments.
    pub(super) ports: Option<(u16, u16)>,
    /// Whether it is a part of a packet.
    pub(super) is_fragment: bool,
    /// DSCP and ECN.
    pub(super) tos: u8,
    /// Neighbour discovery of this link.
    pub(super) is_discovery: bool,
    /// Where the IP header begins.
    pub(super) ip_at: usize,
    /// Where the header of `transport` begins.
    pub(super) transport_at: usize,
    /// Where the IP packet ends by its header; 0 of a fragment.
    pub(super) end: usize,
    /// Of IPv4 the first only.
    pub(super) source: [u32; 4],
    /// As `source`.
    pub(super) destination: [u32; 4],
}

/// The furthest place of a header.
const OFFSET_MAX: usize = 0x3fff;
const EXTENSIONS_MAX: usize = 8;

impl Packet {
    /// Reads a frame, with an Ethernet header or without.
    pub(super) fn read(frame: &[u8], has_ethernet: bool) -> Packet {
        let (ip_at, version) = match ip_at(frame, has_ethernet) {
            Some(found) => found,
            None => return Packet::default(),
        };
        let p = if version == 4 { read_ip4(frame, ip_at) } else { read_ip6(frame, ip_at) };
        p.unwrap_or_default()
    }
}

/// The `N` bytes at `at`.
fn bytes<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    if at > OFFSET_MAX {
        return None;
    }
    frame.get(at..at + N)?.try_into().ok()
}

fn u16_at(frame: &[u8], at: usize) -> Option<u16> {
    bytes(frame, at).map(u16::from_be_bytes)
}

/// Where the IP header is, and which version it has.
fn ip_at(frame: &[u8], has_ethernet: bool) -> Option<(usize, u8)> {
    if !has_ethernet {
        let version = frame.first()? >> 4;
        return matches!(version, 4 | 6).then_some((0, version));
    }
    let (mut at, mut protocol) = (14, u16_at(frame, 12)?);
    for _ in 0..2 {
        if matches!(protocol, 0x8100 | 0x88a8) {
            bytes::<4>(frame, at)?;
            protocol = u16_at(frame, at + 2)?;
            at += 4;
        }
    }
    if protocol == 0x8864 {
        let session: [u8; 8] = bytes(frame, at)?;
        protocol = match session {
            [0x11, 0, _, _, _, _, 0x00, 0x21] => 0x0800,
            [0x11, 0, _, _, _, _, 0x00, 0x57] => 0x86dd,
            _ => return None,
        };
        at += 8;
    }
    match protocol {
        0x0800 => Some((at, 4)),
        0x86dd => Some((at, 6)),
        _ => None,
    }
}

fn read_ip4(frame: &[u8], ip_at: usize) -> Option<Packet> {
    let header: [u8; 20] = bytes(frame, ip_at)?;
    let words = usize::from(header[0] & 15);
    if header[0] >> 4 != 4 || words < 5 {
        return None;
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    // More fragments follow, or some are before it.
    let is_fragment = fragment & 0x3fff != 0;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let address = |at: usize| [word(&header, at), 0, 0, 0];
    let transport_at = ip_at + words * 4;
    let is_first = fragment & 0x1fff == 0;
    Some(Packet {
        version: 4,
        transport: header[9],
        ports: is_first.then(|| ports(frame, header[9], transport_at)).flatten(),
        is_fragment,
        tos: header[1],
        is_discovery: false,
        ip_at,
        transport_at,
        end: if is_fragment { 0 } else { ip_at + length },
        source: address(12),
        destination: address(16),
    })
}

fn read_ip6(frame: &[u8], ip_at: usize) -> Option<Packet> {
    let header: [u8; 40] = bytes(frame, ip_at)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let address = |at: usize| [0, 4, 8, 12].map(|part| word(&header, at + part));
    let mut p = Packet {
        version: 6,
        transport: header[6],
        tos: header[0] << 4 | header[1] >> 4,
        ip_at,
        transport_at: ip_at + 40,
        end: ip_at + 40 + length,
        source: address(8),
        destination: address(24),
        ..Packet::default()
    };
    for _ in 0..EXTENSIONS_MAX {
        let kind = p.transport;
        if !matches!(kind, 0 | 43 | 44 | 51 | 60) {
            break;
        }
        let Some(extension) = bytes::<8>(frame, p.transport_at) else { return Some(p) };
        p.transport = extension[0];
        let length = usize::from(extension[1]);
        match kind {
            44 => {
                (p.is_fragment, p.end) = (true, 0);
                p.transport_at += 8;
                if u16::from_be_bytes([extension[2], extension[3]]) >> 3 != 0 {
                    return Some(p);
                }
                break;
            }
            // The one header whose length is in words of four bytes.
            51 => p.transport_at += (length + 2) * 4,
            _ => p.transport_at += (length + 1) * 8,
        }
    }
    let kind = bytes::<1>(frame, p.transport_at).map_or(0, |[kind]| kind);
    p.is_discovery =
        p.transport == 58 && header[7] == 255 && !p.is_fragment && (133..=137).contains(&kind);
    p.ports = ports(frame, p.transport, p.transport_at);
    Some(p)
}

fn ports(frame: &[u8], transport: u8, at: usize) -> Option<(u16, u16)> {
    let [a, b, c, d] = bytes(frame, at).filter(|_| matches!(transport, 6 | 17))?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
