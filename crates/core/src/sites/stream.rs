//! The host that the beginning of a stream names.

pub use super::assemble::STREAM_MAX;

use super::tls::Read;
use super::{Reason, http, tls};
use crate::host_name::HostName;

/// What the first bytes of a client say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstBytes {
    /// They may still name a host; more bytes are needed. Never the result for [`STREAM_MAX`] bytes.
    More,
    /// They name no host.
    Unnamed,
    /// They name this host.
    Named(Reason, HostName),
}

/// Reads the first bytes of a client's stream. In a hello with Encrypted Client Hello the name may be an
/// outer one; only DNS shows this.
pub fn first_bytes(stream: &[u8]) -> FirstBytes {
    let (reason, read) = match stream {
        [] => return FirstBytes::More,
        [b'A'..=b'Z', ..] => (Reason::Host, http::host(stream)),
        _ => (
            Reason::Sni,
            match tls::hello_of_records(stream) {
                Read::More => Read::More,
                Read::Not => Read::Not,
                Read::Whole(hello) => Read::Whole(hello.name),
            },
        ),
    };
    match read {
        Read::More => FirstBytes::More,
        Read::Not | Read::Whole(None) => FirstBytes::Unnamed,
        Read::Whole(Some(name)) => FirstBytes::Named(reason, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sites::tls::written::{browser_hello, records};

    #[test]
    fn hosts_of_both_protocols_are_named() {
        let hello = records(&browser_hello("tv.example.com"), 16_000);
        for (stream, wanted) in [
            (&hello[..], Some(Reason::Sni)),
            (b"GET / HTTP/1.1\r\nHost: tv.example.com\r\n\r\n", Some(Reason::Host)),
            (b"SSH-2.0-OpenSSH\r\n", None),
        ] {
            match (first_bytes(stream), wanted) {
                (FirstBytes::Named(reason, name), Some(wanted)) => {
                    assert_eq!((reason, name.as_str()), (wanted, "tv.example.com"));
                }
                (said, wanted) => assert_eq!((said, wanted), (FirstBytes::Unnamed, None)),
            }
        }
        assert_eq!(first_bytes(&hello[..100]), FirstBytes::More);
        assert_eq!(first_bytes(&[b'A'; STREAM_MAX]), FirstBytes::Unnamed);
    }
}
