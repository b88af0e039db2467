//! The name in a TLS ClientHello. Source: RFC 8446, sections 4.1.2 and 5.1; RFC 6066, section 3.

use super::assemble::STREAM_MAX;
use super::reader::Reader;
use crate::host_name::HostName;

/// What the beginning of a stream contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read<T> {
    /// It may still be a hello; more bytes are needed.
    More,
    /// It is not a hello, or a malformed one.
    Not,
    /// It is a complete hello.
    Whole(T),
}

/// What a ClientHello says about the requested server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hello {
    /// The server name indication.
    pub(super) name: Option<HostName>,
    /// Whether the Encrypted Client Hello extension is present. Browsers always send it, so it does not show
    /// whether `name` is the true one.
    pub(super) has_ech: bool,
}

/// Reads a ClientHello from the beginning of a TCP stream: it may be spread over several records.
/// Allocates at most [`STREAM_MAX`] bytes and the name.
pub(super) fn hello_of_records(stream: &[u8]) -> Read<Hello> {
    let mut handshake = Vec::new();
    let mut reader = Reader::new(&stream[..stream.len().min(STREAM_MAX)]);
    loop {
        let rest = reader.rest();
        let looks_right = rest.first().is_none_or(|&kind| kind == RECORD_HANDSHAKE)
            && rest.get(1).is_none_or(|&major| major == 3);
        if !looks_right {
            return Read::Not;
        }
        let (Some(_), Some(length)) = (reader.take(3), reader.u16()) else {
            return if stream.len() < STREAM_MAX { Read::More } else { Read::Not };
        };
        let length = usize::from(length);
        if length == 0 || length > STREAM_MAX {
            return Read::Not;
        }
        let part = reader.rest().len().min(length);
        handshake.extend_from_slice(reader.take(part).unwrap_or_default());
        match hello(&handshake) {
            Read::More if part == length => {}
            Read::More if stream.len() < STREAM_MAX => return Read::More,
            Read::More => return Read::Not,
            read => return read,
        }
    }
}

/// Reads a ClientHello from the beginning of a stream of handshake messages. Allocates only the
/// name.
pub(super) fn hello(handshake: &[u8]) -> Read<Hello> {
    let mut reader = Reader::new(handshake);
    match reader.u8() {
        None => return Read::More,
        Some(HANDSHAKE_CLIENT_HELLO) => {}
        Some(_) => return Read::Not,
    }
    let Some(length) = reader.u24() else { return Read::More };
    if length + 4 > STREAM_MAX {
        return Read::Not;
    }
    match reader.take(length) {
        None => Read::More,
        Some(body) => content(body).map_or(Read::Not, Read::Whole),
    }
}

/// The content of the hello; `None` if the message is malformed.
fn content(body: &[u8]) -> Option<Hello> {
    let mut reader = Reader::new(body);
    // The version and the random.
    reader.take(2 + 32)?;
    let _session = reader.vector8()?;
    let _ciphers = reader.vector16()?;
    let _compressions = reader.vector8()?;
    let mut found = Hello::default();
    if reader.is_empty() {
        return Some(found);
    }
    let mut extensions = Reader::new(reader.vector16()?);
    while !extensions.is_empty() {
        match (extensions.u16()?, extensions.vector16()?) {
            (EXTENSION_SERVER_NAME, content) if found.name.is_none() => {
                found.name = server_name(content)?;
            }
            // A second extension of this type is not allowed (RFC 8446, section 4.2).
            (EXTENSION_SERVER_NAME, _) => return None,
            (EXTENSION_ECH, _) => found.has_ech = true,
            _ => {}
        }
    }
    Some(found)
}

/// The first host name of the extension; `None` if it is malformed.
fn server_name(content: &[u8]) -> Option<Option<HostName>> {
    let mut list = Reader::new(Reader::new(content).vector16()?);
    while !list.is_empty() {
        let (kind, name) = (list.u8()?, list.vector16()?);
        if kind == 0 {
            return Some(HostName::from_wire(name));
        }
    }
    Some(None)
}

const RECORD_HANDSHAKE: u8 = 22;
const HANDSHAKE_CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;
/// Source: RFC 9849, section 5.
pub(super) const EXTENSION_ECH: u16 = 0xfe0d;

/// Hellos as clients write them.
#[cfg(any(test, fuzzing))]
pub(super) mod written {
    use super::EXTENSION_SERVER_NAME;

    /// A ClientHello with these extensions, as a handshake message.
    pub(in super::super) fn hello_with(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        let mut all = Vec::new();
        for (kind, content) in extensions {
            all.extend(kind.to_be_bytes());
            all.extend((content.len() as u16).to_be_bytes());
            all.extend(content);
        }
        body.extend((all.len() as u16).to_be_bytes());
        body.extend(all);
        let mut message = vec![1, 0];
        message.extend((body.len() as u16).to_be_bytes());
        message.extend(body);
        message
    }

    /// The extension with a server's name.
    pub(in super::super) fn names(name: &str) -> (u16, Vec<u8>) {
        let length = name.len() as u16;
        let mut content = (length + 3).to_be_bytes().to_vec();
        content.push(0);
        content.extend(length.to_be_bytes());
        content.extend(name.bytes());
        (EXTENSION_SERVER_NAME, content)
    }

    /// A handshake message in records of at most `size` bytes.
    pub(in super::super) fn records(message: &[u8], size: usize) -> Vec<u8> {
        let record = |part: &[u8]| {
            let mut record = vec![22, 3, 1];
            record.extend((part.len() as u16).to_be_bytes());
            record.extend(part);
            record
        };
        message.chunks(size).flat_map(record).collect()
    }

    /// As browsers send it: unknown extensions around the name, and key shares of 1.2 kB.
    #[cfg(test)]
    pub(in super::super) fn browser_hello(name: &str) -> Vec<u8> {
        hello_with(&[
            (0x0a0a, vec![]),
            (super::EXTENSION_ECH, vec![5; 200]),
            (51, vec![9; 1_250]),
            names(name),
            (21, vec![0; 300]),
        ])
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::written::*;
    use super::*;

    fn name(text: &str) -> Option<HostName> {
        HostName::from_wire(text.as_bytes())
    }

    #[test]
    fn the_name_is_found_however_the_hello_is_split_into_records() {
        let message = browser_hello("www.Netflix.com");
        for size in [1, 5, 100, 1_000, 16_000] {
            let stream = records(&message, size);
            if stream.len() > STREAM_MAX {
                continue;
            }
            let Read::Whole(hello) = hello_of_records(&stream) else { panic!("at {size}") };
            assert_eq!(hello, Hello { name: name("www.netflix.com"), has_ech: true });
            for cut in 0..stream.len() {
                assert_eq!(hello_of_records(&stream[..cut]), Read::More, "{cut} of {size}");
            }
        }
    }

    #[test]
    fn a_hello_without_a_usable_name_has_none() {
        for extensions in
            [vec![], vec![names("192.0.2.1")], vec![names("x y")], vec![(43, vec![1])]]
        {
            let read = hello(&hello_with(&extensions));
            assert_eq!(read, Read::Whole(Hello { name: None, has_ech: false }));
        }
        let mut bare = vec![1, 0, 0, 39, 3, 3];
        bare.extend([7; 32]);
        bare.extend([0, 0, 0, 1, 0]);
        assert!(matches!(hello(&bare), Read::Whole(Hello { name: None, .. })), "no extensions");
    }

    #[test]
    fn what_is_no_hello_is_refused_at_its_first_bytes() {
        for other in [
            &b"GET / HTTP/1.1"[..],
            b"SSH-2.0",
            &[22, 2],
            &[23, 3],
            &[22, 3, 1, 0, 0],
            &[22, 3, 1, 0, 9, 2],
            &[22, 3, 1, 0xff, 0xff],
        ] {
            assert_eq!(hello_of_records(other), Read::Not, "{other:?}");
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let right = hello_with(&[names("x.com"), (43, vec![1, 2])]);
        // For every changed byte: never a panic, and never a name that is not in the stream.
        for at in 0..right.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut wrong = right.clone();
                wrong[at] = value;
                if let Read::Whole(Hello { name: Some(name), .. }) = hello(&wrong) {
                    assert!(right.windows(4).any(|w| w == b".com"), "{name}");
                }
            }
        }
        let mut huge = right.clone();
        huge[1] = 1;
        assert_eq!(hello(&huge), Read::Not, "65,536 bytes are more than any hello has");
        let twice = hello_with(&[names("x.com"), names("y.com")]);
        assert_eq!(hello(&twice), Read::Not);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(mut bytes in vec(any::<u8>(), 0..600), shape: u8) {
            // Some have the right beginning, so that more of the parser is met.
            for (at, byte) in [22, 3, 1, 0, 250, 1, 0, 0, 246, 3, 3].iter().enumerate() {
                if shape % 2 == 0 && at < bytes.len() {
                    bytes[at] = *byte;
                }
            }
            let _ = hello_of_records(&bytes);
            let _ = hello(&bytes);
        }
    }
}
