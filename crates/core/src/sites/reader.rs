//! Reads numbers and vectors off a slice. Every method returns `None` beyond the end, and none
//! allocates.

/// A slice that is consumed from the front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'b> {
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { rest: bytes }
    }

    pub(super) fn rest(&self) -> &'b [u8] {
        self.rest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    pub(super) fn u24(&mut self) -> Option<usize> {
        self.take(3).map(|b| usize::from(b[0]) << 16 | usize::from(b[1]) << 8 | usize::from(b[2]))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// A vector after its length in one byte, as in TLS.
    pub(super) fn vector8(&mut self) -> Option<&'b [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// A vector after its length in two bytes.
    pub(super) fn vector16(&mut self) -> Option<&'b [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }

    /// A number of variable length. Source: RFC 9000, section 16.
    pub(super) fn varint(&mut self) -> Option<u64> {
        let first = *self.rest.first()?;
        let bytes = self.take(1 << (first >> 6))?;
        let number = bytes.iter().fold(0, |sum, &b| sum << 8 | u64::from(b));
        Some(number & (u64::MAX >> (66 - 8 * bytes.len())))
    }

    /// A vector after its length as a number of variable length.
    pub(super) fn vector_varint(&mut self) -> Option<&'b [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.take(length)
    }
}
