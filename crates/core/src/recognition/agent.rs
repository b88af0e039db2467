//! The `User-Agent` in the head of an HTTP/1.1 request. Source: RFC 9110, section 10.1.5.

/// The part of a head that is examined, in bytes.
const HEAD_MAX: usize = 4_096;

/// The value of the first whole `User-Agent` field in the beginning of a client's stream, if that is a request
/// of HTTP/1.
pub fn agent(stream: &[u8]) -> Option<&[u8]> {
    let head = &stream[..stream.len().min(HEAD_MAX)];
    let mut lines =
        head.split_inclusive(|&c| c == b'\n').map_while(|line| line.strip_suffix(b"\n"));
    let first = lines.next()?.trim_ascii_end();
    (first.ends_with(b" HTTP/1.1") || first.ends_with(b" HTTP/1.0")).then_some(())?;
    for line in lines {
        let line = line.trim_ascii_end();
        if line.is_empty() {
            return None;
        }
        let colon = line.iter().position(|&c| c == b':')?;
        if line[..colon].eq_ignore_ascii_case(b"user-agent") {
            return Some(line[colon + 1..].trim_ascii());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_agent_is_found_once_its_line_is_whole_and_only_in_the_head() {
        let request = b"GET / HTTP/1.1\r\nHost: x.com\r\nuSER-aGENT:  Wget/1.21.3 \r\n\r\n";
        let whole = request.len() - 2;
        assert_eq!(agent(request), Some(&b"Wget/1.21.3"[..]));
        for cut in 0..whole {
            assert_eq!(agent(&request[..cut]), None, "{cut}");
        }
        for other in [
            "GET / HTTP/1.1\r\nHost: x\r\n\r\nUser-Agent: body\r\n",
            "SSH-2.0\r\nUser-Agent: x\r\n",
            "GET / HTTP/1.1\r\nno field\r\nUser-Agent: x\r\n",
            "",
        ] {
            assert_eq!(agent(other.as_bytes()), None, "{other}");
        }
        let late = format!("GET / HTTP/1.1\r\nA: {}\r\nUser-Agent: x\r\n", "a".repeat(HEAD_MAX));
        assert_eq!(agent(late.as_bytes()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..300)) {
            let _ = agent(&bytes);
            let _ = agent(&[&b"GET / HTTP/1.1\r\n"[..], &bytes].concat());
        }
    }
}
