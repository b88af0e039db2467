//! Properties of the packet parsers that hold for any bytes.

use std::net::{IpAddr, SocketAddr};

use super::assemble::STREAM_MAX;
use super::dns::{RECORDS_MAX, message, written as dns_written};
use super::names::Names;
use super::quic::{Initials, written::Sent};
use super::reader::Reader;
use super::stream::{FirstBytes, first_bytes};
use super::tls::{EXTENSION_ECH, Hello, Read, hello, hello_of_records, written as tls_written};
use super::{Flow, HostName, Reason, http};
use crate::packet::Transport;
use crate::recognition::agent;
use crate::units::{Span, Time};

/// What is read is bounded, does not depend on bytes that follow, stays the same when it is written without
/// compression and read again, and contains addresses only if they were asked for.
pub(crate) fn dns(data: &[u8]) {
    let Some(read) = message(data) else { return };
    assert!(read.addresses.len() <= RECORDS_MAX && read.public_names.len() <= RECORDS_MAX);
    assert!(read.is_answer || read.addresses.is_empty());
    assert_eq!(message(&[data, b"\x00more"].concat()).as_ref(), Some(&read), "with more behind");
    let cut = message(&data[..data.len() / 2]);
    assert!(cut.is_none_or(|cut| cut == read), "a part says something else");

    let name = read.name.as_str();
    let mut records: Vec<Vec<u8>> = Vec::new();
    if !read.public_names.is_empty() {
        let names = read.public_names.iter().map(HostName::as_str);
        // Priority 1, and the owner's own name as the target.
        let content = [vec![0, 1, 0], dns_written::configurations(names)].concat();
        records.push(dns_written::record(&dns_written::OWNER, 65, 9, &content));
    }
    for (address, ttl) in &read.addresses {
        let (kind, content) = match address {
            IpAddr::V4(address) => (1, address.octets().to_vec()),
            IpAddr::V6(address) => (28, address.octets().to_vec()),
        };
        records.push(dns_written::record(&dns_written::OWNER, kind, *ttl, &content));
    }
    let query = dns_written::query(read.id, name, read.kind);
    let asked = message(&query).expect("a query that we wrote");
    assert_eq!((&asked.name, asked.kind, asked.id), (&read.name, read.kind, read.id));
    if read.is_answer && records.len() <= RECORDS_MAX {
        let answer = dns_written::answer(read.id, name, read.kind, &records);
        assert_eq!(message(&answer).as_ref(), Some(&read), "written again");
    }

    let at = Time::ZERO + Span::secs(9);
    let end: SocketAddr = ([192, 0, 2, 1], 53).into();
    let flow = Flow { transport: Transport::Udp, remote: end, local: end };
    let mut names = Names::default();
    names.handle_message(flow, data, at);
    let known = |names: &Names, at| {
        read.addresses.iter().all(|(address, _)| names.of(*address, at).eq([&read.name]))
    };
    assert!(read.addresses.is_empty() || !known(&names, at), "an answer that was not asked for");
    names.handle_message(flow, &query, at);
    names.handle_message(flow, data, at);
    assert!(known(&names, at + Span::secs(59)));
    assert!(read.addresses.is_empty() || !known(&names, at + Span::secs(86_400)));
}

/// A verdict depends neither on bytes that follow nor on the sizes of records, and is reached within
/// [`STREAM_MAX`] bytes.
pub(crate) fn tls(data: &[u8]) {
    is_final(data, hello_of_records);
    is_final(data, hello);
    let read = hello_of_records(data);
    assert!(data.len() < STREAM_MAX || read != Read::More);
    let named = match &read {
        Read::Whole(Hello { name: Some(name), .. }) => Some(name.clone()),
        _ => None,
    };
    if data.first().is_some_and(|first| !first.is_ascii_uppercase()) {
        let said = named.map(|name| FirstBytes::Named(Reason::Sni, name));
        let other = if read == Read::More { FirstBytes::More } else { FirstBytes::Unnamed };
        assert_eq!(first_bytes(data), said.unwrap_or(other));
    }
    let Read::Whole(found) = &read else { return };
    let mut handshake = Vec::new();
    let mut reader = Reader::new(data);
    while let (Some(_), Some(part)) = (reader.take(3), reader.vector16()) {
        handshake.extend_from_slice(part);
    }
    // The last record may be incomplete; the hello is complete.
    handshake.extend_from_slice(reader.rest());
    assert_eq!(hello(&handshake), read, "without records");
    for size in [1 + data.len() % 97, 1_000] {
        let records = tls_written::records(&handshake, size);
        if records.len() < STREAM_MAX {
            assert_eq!(hello_of_records(&records), read, "in records of {size} bytes");
        }
    }
    let names = found.name.iter().map(|name| tls_written::names(name.as_str()));
    let ech = found.has_ech.then(|| (EXTENSION_ECH, vec![0]));
    let written = tls_written::hello_with(&names.chain(ech).collect::<Vec<_>>());
    assert_eq!(hello(&written), read, "written again");
}

/// The input is packets with any frames, which are sealed here, or raw datagrams. A copy of a datagram changes
/// nothing, nor does a copy with a changed bit; packets give the same result in one datagram and one by one.
pub(crate) fn quic(data: &[u8]) {
    let datagrams = datagrams(data);
    let (mut initials, mut last) = (Initials::default(), Read::Not);
    for (datagram, is_sealed) in &datagrams {
        last = initials.handle_datagram(datagram);
        // If there are more pieces than are kept, a copy may fill a piece that was left out before.
        if last != Read::More || data.len() < 256 {
            assert_eq!(initials.handle_datagram(datagram), last, "a copy");
        }
        if *is_sealed {
            let mut changed = datagram.clone();
            changed[data.len() * 7 % datagram.len()] ^= 1 << (data.len() % 8);
            let mut other = initials.clone();
            assert_eq!(other.handle_datagram(&changed), last, "a changed bit");
        }
    }
    if datagrams.iter().all(|(_, is_sealed)| *is_sealed) {
        let all: Vec<u8> = datagrams.into_iter().flat_map(|(datagram, _)| datagram).collect();
        assert_eq!(Initials::default().handle_datagram(&all), last, "in one datagram");
    }
}

/// At most four datagrams, and whether each is one authentic packet. A byte gives the shape, one or two the length.
fn datagrams(data: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let (mut reader, mut datagrams) = (Reader::new(data), Vec::new());
    while let Some(shape) = reader.u8().filter(|_| datagrams.len() < 4) {
        let frames = if shape & 1 == 0 { reader.vector8() } else { reader.vector16() };
        let Some(frames) = frames.filter(|frames| frames.len() < 16_000) else { break };
        let ids = [[7; 8], [9; 8]];
        let id = &ids[usize::from(shape >> 1 & 1)][..usize::from(shape >> 2 & 7) + 1];
        let sent = Sent {
            is_two: shape & 0x40 != 0,
            id: if shape & 0x80 == 0 { id } else { &[3; 4] },
            key_id: id,
            token: &frames[..frames.len().min(3)],
            number: frames.len() as u32,
            frames: frames.to_vec(),
            size: 0,
        };
        let is_sealed = shape & 0x20 == 0;
        datagrams.push((if is_sealed { sent.packet() } else { frames.to_vec() }, is_sealed));
    }
    datagrams
}

/// A verdict depends neither on bytes that follow nor on the line endings, and the host stays the same when its
/// request is written and read again.
pub(crate) fn http(data: &[u8]) {
    is_final(data, http::host);
    let read = http::host(data);
    assert!(data.len() < STREAM_MAX || read != Read::More);
    let is_short = data.len() < 4_096;
    if let Some(found) = agent(data) {
        assert!(found.len() < 4_096 && !found.contains(&b'\n'));
        assert_eq!(agent(&[data, b"more"].concat()), Some(found));
        if found.len() < 4_000 {
            let request = [b"GET / HTTP/1.1\r\nUser-Agent: ", found, b"\r\n"].concat();
            assert_eq!(agent(&request), Some(found), "written again");
        }
    }
    if is_short && !data.windows(2).any(|pair| pair == b"\r\r") {
        let mut bare = data.to_vec();
        let mut at = 0;
        bare.retain(|&c| {
            at += 1;
            c != b'\r' || data.get(at) != Some(&b'\n')
        });
        assert_eq!(http::host(&bare), read, "without carriage returns");
    }
    let Read::Whole(Some(name)) = &read else { return };
    if data.first().is_some_and(u8::is_ascii_uppercase) {
        assert_eq!(first_bytes(data), FirstBytes::Named(Reason::Host, name.clone()));
    }
    let request = format!("GET / HTTP/1.1\r\nhOST:{}:80 \r\n", name.as_str().to_uppercase());
    assert_eq!(http::host(request.as_bytes()), read, "written again");
}

/// A verdict on a prefix also holds for the whole.
fn is_final<T: PartialEq + std::fmt::Debug>(data: &[u8], read: impl Fn(&[u8]) -> Read<T>) {
    let whole = read(data);
    for cut in [data.len() / 4, data.len() / 2, data.len() * 3 / 4, data.len().saturating_sub(1)] {
        let part = read(&data[..cut]);
        assert!(part == Read::More || part == whole, "{part:?} at {cut}, then {whole:?}");
    }
}
