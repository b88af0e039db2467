//! What a client asks of a server: an amount of payload on its connection.

use std::io::{self, Read};

use fairweir_core::units::Bytes;
use fairweir_scenario::REQUEST_PAYLOAD;

pub(super) const LENGTH: usize = REQUEST_PAYLOAD as usize;

/// A request for `volume`; `None` is without end.
pub(super) fn written(volume: Option<Bytes>) -> [u8; LENGTH] {
    let mut request = [0; LENGTH];
    let volume = volume.map_or(u64::MAX, Bytes::as_u64);
    request[..8].copy_from_slice(&volume.to_be_bytes());
    request
}

/// Waits for the next request; how much it asks for.
pub(super) fn read(stream: &mut impl Read) -> io::Result<u64> {
    let mut request = [0; LENGTH];
    stream.read_exact(&mut request)?;
    Ok(volume(&request))
}

/// How much a request asks for.
pub(super) fn volume(request: &[u8; LENGTH]) -> u64 {
    let mut volume = [0; 8];
    volume.copy_from_slice(&request[..8]);
    u64::from_be_bytes(volume)
}
