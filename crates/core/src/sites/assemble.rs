//! The beginning of a stream, put together from pieces that come in any order.

/// The part of a stream that is kept: a TLS record, several times as long as any ClientHello or head of
/// an HTTP request that browsers send. Source: RFC 8446, section 5.1.
pub const STREAM_MAX: usize = 16_384;

/// Maximum number of separate pieces; Chromium sends a ClientHello in up to 24.
const PIECES_MAX: usize = 64;

/// The beginning of a stream. Never holds more than [`STREAM_MAX`] bytes; where pieces overlap, the
/// first one that arrived counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Assembler {
    bytes: Vec<u8>,
    /// The parts of `bytes` that have arrived: sorted, disjoint, not adjacent.
    pieces: Vec<(usize, usize)>,
}

impl Assembler {
    /// Takes in `piece` at `offset`. Bytes beyond [`STREAM_MAX`] are ignored, and so is a piece that would
    /// exceed the maximum number of pieces.
    pub(super) fn insert(&mut self, offset: u64, piece: &[u8]) {
        let Some(begin) = usize::try_from(offset).ok().filter(|&begin| begin < STREAM_MAX) else {
            return;
        };
        let end = (begin + piece.len()).min(STREAM_MAX);
        if begin == end || (self.pieces.len() == PIECES_MAX && !self.touches(begin, end)) {
            return;
        }
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let mut at = begin;
        for &(from, to) in self.pieces.iter().filter(|&&(from, to)| to > begin && from < end) {
            if at < from {
                self.bytes[at..from].copy_from_slice(&piece[at - begin..from - begin]);
            }
            at = at.max(to);
        }
        if at < end {
            self.bytes[at..end].copy_from_slice(&piece[at - begin..end - begin]);
        }
        let mut merged = (begin, end);
        self.pieces.retain(|&(from, to)| {
            let apart = to < begin || from > end;
            if !apart {
                merged = (merged.0.min(from), merged.1.max(to));
            }
            apart
        });
        self.pieces.push(merged);
        self.pieces.sort_unstable();
    }

    /// The bytes that have arrived, from the beginning up to the first gap.
    pub(super) fn prefix(&self) -> &[u8] {
        match self.pieces.first() {
            Some(&(0, end)) => &self.bytes[..end],
            _ => &[],
        }
    }

    fn touches(&self, begin: usize, end: usize) -> bool {
        self.pieces.iter().any(|&(from, to)| from <= end && begin <= to)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map from offset to byte; pieces of one stream agree where they overlap.
        #[test]
        fn pieces_in_any_order_make_the_stream(
            pieces in vec((0_usize..STREAM_MAX + 9, 0_usize..900), 0..60)
        ) {
            let stream: Vec<u8> = (0..STREAM_MAX + 1_000).map(|i| (i * 7 + i / 256) as u8).collect();
            let mut assembler = Assembler::default();
            let mut has = vec![false; STREAM_MAX];
            for (begin, length) in pieces {
                assembler.insert(begin as u64, &stream[begin..begin + length]);
                has[begin.min(STREAM_MAX)..(begin + length).min(STREAM_MAX)].fill(true);
                let prefix = has.iter().take_while(|has| **has).count();
                prop_assert_eq!(assembler.prefix(), &stream[..prefix]);
                prop_assert!(assembler.bytes.len() <= STREAM_MAX);
                prop_assert!(assembler.pieces.len() <= PIECES_MAX);
            }
        }
    }

    #[test]
    fn the_first_of_two_different_bytes_stays() {
        let mut assembler = Assembler::default();
        assembler.insert(2, b"cd");
        assembler.insert(0, b"ABCDEF");
        assert_eq!(assembler.prefix(), b"ABcdEF");
    }

    #[test]
    fn pieces_are_bounded() {
        let mut assembler = Assembler::default();
        for i in (0..STREAM_MAX as u64).step_by(2) {
            assembler.insert(i, b"x");
        }
        assert_eq!(assembler.pieces.len(), PIECES_MAX);
        assembler.insert(u64::MAX, b"x");
        assembler.insert(STREAM_MAX as u64 - 1, &[1; 100]);
        assembler.insert(1, b"y");
        assert_eq!(assembler.prefix(), b"xyx", "what joins pieces is still taken");
        assert!(assembler.bytes.len() <= STREAM_MAX);
    }
}
