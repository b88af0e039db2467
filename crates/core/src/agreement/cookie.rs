//! Cookies: a keyed hash of the asking client and the time, which only a host that receives it can return.

use std::net::SocketAddr;

use sha2::{Digest, Sha256};

use crate::packet::as_ip6;
use crate::units::{Span, Time};

/// The cookie that a divider sends and expects back.
pub type Cookie = [u8; 16];

/// The divider's key, random at each start.
#[derive(Clone)]
pub struct Key(pub [u8; 16]);

/// A cookie is valid in the period in which it was made and in the next one.
pub const PERIOD: Span = Span::secs(60);

impl Key {
    /// The cookie of a client at `now`. One block of SHA-256: all inputs have a fixed length, and only half of the
    /// hash is disclosed.
    pub fn cookie(&self, client: SocketAddr, nonce: u64, now: Time) -> Cookie {
        self.in_period(client, nonce, now.as_nanos() / PERIOD.as_nanos())
    }

    /// Whether this key made the cookie for the client recently.
    pub fn knows(&self, cookie: &Cookie, client: SocketAddr, nonce: u64, now: Time) -> bool {
        let period = now.as_nanos() / PERIOD.as_nanos();
        let before = period.saturating_sub(1);
        [period, before].into_iter().any(|at| is_same(&self.in_period(client, nonce, at), cookie))
    }

    fn in_period(&self, client: SocketAddr, nonce: u64, period: u64) -> Cookie {
        let hash = Sha256::new()
            .chain_update(self.0)
            .chain_update(as_ip6(client.ip()).octets())
            .chain_update(client.port().to_be_bytes())
            .chain_update(nonce.to_be_bytes())
            .chain_update(period.to_be_bytes())
            .finalize();
        let mut cookie = Cookie::default();
        cookie.copy_from_slice(&hash[..16]);
        cookie
    }
}

/// Compares in constant time, so that the duration does not reveal how many bytes are right.
fn is_same(one: &Cookie, other: &Cookie) -> bool {
    one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}
