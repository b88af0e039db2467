//! The host in the head of an HTTP/1.1 request. Source: RFC 9112, sections 3 and 3.2.

use super::tls::Read;
use crate::host_name::HostName;

/// The part of a request that is examined, in bytes; browsers send `Host` first.
const HEAD_MAX: usize = 8_192;
/// Longest method: `PROPPATCH` and the like fit.
const METHOD_MAX: usize = 20;

/// Reads the first `Host` field at the beginning of a TCP stream: `None` if it names no host.
/// Allocates only the name.
pub(super) fn host(stream: &[u8]) -> Read<Option<HostName>> {
    let head = &stream[..stream.len().min(HEAD_MAX)];
    let is_cut = if stream.len() < HEAD_MAX { Read::More } else { Read::Not };
    let method = head.iter().take_while(|c| c.is_ascii_uppercase()).count();
    match head.get(method) {
        None if method <= METHOD_MAX => return is_cut,
        Some(b' ') if (1..=METHOD_MAX).contains(&method) => {}
        _ => return Read::Not,
    }
    let mut lines = head.split_inclusive(|&c| c == b'\n').map(|line| {
        let whole = line.strip_suffix(b"\n");
        whole.map(|line| line.strip_suffix(b"\r").unwrap_or(line))
    });
    match lines.next() {
        Some(Some(request)) if is_request(request) => {}
        Some(None) | None => return is_cut,
        Some(Some(_)) => return Read::Not,
    }
    for line in lines {
        let Some(line) = line else { return is_cut };
        if line.is_empty() {
            return Read::Whole(None);
        }
        let Some(colon) = line.iter().position(|&c| c == b':') else { return Read::Not };
        if line[..colon].eq_ignore_ascii_case(b"host") {
            return Read::Whole(HostName::from_wire(without_port(line[colon + 1..].trim_ascii())));
        }
    }
    is_cut
}

/// Whether a request line ends as those of HTTP/1 do.
fn is_request(line: &[u8]) -> bool {
    line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0")
}

fn without_port(host: &[u8]) -> &[u8] {
    match host.iter().rposition(|&c| c == b':') {
        Some(colon) if host[colon + 1..].iter().all(u8::is_ascii_digit) => &host[..colon],
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Read<Option<HostName>> {
        Read::Whole(HostName::from_wire(text.as_bytes()))
    }

    #[test]
    fn the_host_is_found_as_soon_as_its_line_is_whole() {
        let request =
            b"GET /a?b=http://c HTTP/1.1\r\nAccept: */*\r\nhOsT: \t WWW.x.com:8080 \r\n\r\n";
        assert_eq!(host(request), name("www.x.com"));
        let whole = request.len() - 2;
        for cut in 0..whole {
            assert_eq!(host(&request[..cut]), Read::More, "{cut}");
        }
        assert_eq!(host(&request[..whole]), name("www.x.com"));
    }

    #[test]
    fn a_request_without_a_usable_host_has_none() {
        for head in [
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: 192.0.2.1:80\r\n\r\n",
            "GET / HTTP/1.1\nHost: [2001:db8::1]:80\n",
            "GET / HTTP/1.1\r\nHost:\r\n",
        ] {
            assert_eq!(host(head.as_bytes()), Read::Whole(None), "{head}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for other in [
            "get / HTTP/1.1\r\n",
            "\x16\x03",
            "SSH-2.0-OpenSSH\r\n",
            "GET /\r\nHost: x.com\r\n",
            "GET / HTTP/1.1\r\nfolded\r\n",
            "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        ] {
            assert_eq!(host(other.as_bytes()), Read::Not, "{other}");
        }
        let endless = format!("GET /{} HTTP/1.1\r\n", "a".repeat(HEAD_MAX));
        assert_eq!(host(endless.as_bytes()), Read::Not);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..300)) {
            let _ = host(&bytes);
            let _ = host(&[&b"GET / HTTP/1.1\r\n"[..], &bytes].concat());
        }
    }
}
