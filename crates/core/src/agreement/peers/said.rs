//! The datagram with which a host says what it gets. Numbers are in network byte order.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 4 | `FWPE` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | how many parts there are; at most 12 |
//! | 6 | 1 | 1 if it leads and empties the queue now, 2 if it is a router that divides; else 0 |
//! | 7 | 1 | zero |
//! | 8 | 8 | by which network the access link is reached |
//! | 16 | 8 | who says it |
//! | 24 | 8 | what it received in the last tick, in bit/s, as all rates here |
//! | 32 | 8 | what it wants at most; all ones is without a known end |
//! | 40 | 8 | what the link carries, if it could lead; else zero |
//! | 48 | 8 | what all received together, if it leads |
//! | 56 | 8 | the queue that it sees, in ns; all ones is unknown |
//! | 64 | 16 each | who may take how much |

use super::{PEERS_MAX, Said};
use crate::units::{Rate, Span};

/// The longest datagram, in bytes.
pub const SAID_MAX: usize = HEADER + PART * PEERS_MAX;

const MAGIC: [u8; 4] = *b"FWPE";
const VERSION: u8 = 1;
const HEADER: usize = 64;
const PART: usize = 16;

impl Said {
    /// The datagram of a host in this network.
    pub fn bytes(&self, network: u64) -> Vec<u8> {
        let mut to = MAGIC.to_vec();
        let flags = u8::from(self.drains) | u8::from(self.is_router) << 1;
        to.extend([VERSION, self.parts.len() as u8, flags, 0]);
        let wants = self.wants.unwrap_or(Rate::MAX);
        let link = self.link.unwrap_or(Rate::ZERO);
        let rates = [self.rate, wants, link, self.carried].map(Rate::as_bps);
        let parts = self.parts.iter().flat_map(|(id, part)| [*id, part.as_bps()]);
        let queue = self.queue.unwrap_or(Span::MAX).as_nanos();
        let numbers = [network, self.id].into_iter().chain(rates).chain([queue]).chain(parts);
        to.extend(numbers.flat_map(u64::to_be_bytes));
        to
    }

    /// Reads what a host in this network says; `None` if it is something else.
    pub fn read(bytes: &[u8], network: u64) -> Option<Said> {
        let (header, body) = bytes.split_first_chunk::<8>()?;
        let [m0, m1, m2, m3, version, count, flags @ 0..=2, 0] = *header else { return None };
        let is_whole = bytes.len() == HEADER + PART * usize::from(count);
        if [m0, m1, m2, m3] != MAGIC || version != VERSION || !is_whole || bytes.len() > SAID_MAX {
            return None;
        }
        let numbers =
            body.chunks_exact(8).map(|eight| u64::from_be_bytes(eight.try_into().expect("eight")));
        let numbers: Vec<u64> = numbers.collect();
        let (&[from, id, rate, wants, link, carried, queue], parts) =
            numbers.split_first_chunk()?;
        let some = |bps: u64, none: Rate| Some(Rate::bps(bps)).filter(|rate| *rate != none);
        let parts = parts.chunks_exact(2).map(|two| (two[0], Rate::bps(two[1])));
        // A router divides for all networks behind it, so its network does not matter.
        (from == network || flags == 2).then(|| Said {
            id,
            rate: Rate::bps(rate),
            wants: some(wants, Rate::MAX),
            queue: Some(Span::nanos(queue)).filter(|queue| *queue != Span::MAX),
            link: some(link, Rate::ZERO),
            carried: Rate::bps(carried),
            drains: flags == 1,
            is_router: flags == 2,
            parts: parts.collect(),
        })
    }
}
