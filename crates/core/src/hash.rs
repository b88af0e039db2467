//! A hash that is the same on every machine and with every release of Rust.

/// FNV-1a with 64 bits.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    #[test]
    fn test_vectors() {
        // Source: the test vectors of FNV.
        let [empty, some] = ["", "foobar"].map(|text| super::fnv1a(text.as_bytes()));
        assert_eq!((empty, some), (0xcbf2_9ce4_8422_2325, 0x8594_4171_f739_67e8));
    }
}
