//! A client's request to a server: the amount of payload to send on its connection.

use std::io::{self, Read};

use fairweir_core::units::Bytes;
use fairweir_scenario::REQUEST_PAYLOAD;

pub(super) const LENGTH: usize = REQUEST_PAYLOAD as usize;

/// Encodes a request for `volume`; `None` is unlimited.
pub(super) fn written(volume: Option<Bytes>) -> [u8; LENGTH] {
    let mut request = [0; LENGTH];
    let volume = volume.map_or(u64::MAX, Bytes::as_u64);
    request[..8].copy_from_slice(&volume.to_be_bytes());
    request
}

/// Waits for the next request; returns the number of bytes it asks for.
pub(super) fn read(stream: &mut impl Read) -> io::Result<u64> {
    let mut request = [0; LENGTH];
    stream.read_exact(&mut request)?;
    Ok(volume(&request))
}

/// The number of bytes that a request asks for.
pub(super) fn volume(request: &[u8; LENGTH]) -> u64 {
    let mut volume = [0; 8];
    volume.copy_from_slice(&request[..8]);
    u64::from_be_bytes(volume)
}
