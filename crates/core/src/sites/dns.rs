//! DNS messages: the question, and the addresses in the answer. Source: RFC 1035, section 4;
//! RFC 9460 (HTTPS records); RFC 9849, section 4 (ECH configurations).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::reader::Reader;
use crate::host_name::{HOST_NAME_MAX, HostName};

/// A query or an answer with one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) id: u16,
    /// Whether the message answers the question, completely and without an error.
    pub(super) is_answer: bool,
    pub(super) name: HostName,
    pub(super) kind: u16,
    /// The addresses of `name` at the end of its aliases, with their time to live in seconds.
    pub(super) addresses: Vec<(IpAddr, u32)>,
    /// Names that stand in for others in an encrypted ClientHello.
    pub(super) public_names: Vec<HostName>,
}

/// Reads a message; `None` if it is malformed or of no interest. Allocates at most
/// [`RECORDS_MAX`] addresses and names.
pub(super) fn message(bytes: &[u8]) -> Option<Message> {
    let mut reader = Reader::new(bytes);
    let id = reader.u16()?;
    let flags = reader.u16()?;
    let (questions, answers) = (reader.u16()?, reader.u16()?);
    reader.take(4)?;
    if flags & (OPCODE | TRUNCATED | RESPONSE_CODE) != 0 || questions != 1 {
        return None;
    }
    let name = name(bytes, &mut reader)?;
    let (kind, class) = (reader.u16()?, reader.u16()?);
    if !matches!(kind, KIND_A | KIND_AAAA | KIND_HTTPS) || class != CLASS_IN {
        return None;
    }
    let is_answer = flags & ANSWER != 0;
    let (addresses, public_names) = (Vec::new(), Vec::new());
    let mut message = Message { id, is_answer, name, kind, addresses, public_names };
    if is_answer {
        let mut alias = message.name.clone();
        for _ in 0..usize::from(answers).min(RECORDS_MAX) {
            message.read_record(bytes, &mut reader, &mut alias)?;
        }
    }
    Some(message)
}

impl Message {
    /// Servers send aliases before the records that they lead to, so `alias` is the end of the chain so far.
    fn read_record(
        &mut self,
        bytes: &[u8],
        reader: &mut Reader<'_>,
        alias: &mut HostName,
    ) -> Option<()> {
        let owner = name(bytes, reader)?;
        let (kind, class, ttl) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let content = reader.vector16()?;
        if class != CLASS_IN || owner != *alias {
            return Some(());
        }
        match kind {
            KIND_A => {
                let octets: [u8; 4] = content.try_into().ok()?;
                self.add(Ipv4Addr::from(octets).into(), ttl);
            }
            KIND_AAAA => {
                let octets: [u8; 16] = content.try_into().ok()?;
                self.add(Ipv6Addr::from(octets).into(), ttl);
            }
            KIND_CNAME => {
                // The record's content is the last part that was read.
                let at = bytes.len() - reader.rest().len() - content.len();
                *alias = name_at(bytes, at)?.0;
            }
            KIND_HTTPS => self.read_service(content, ttl)?,
            _ => {}
        }
        Some(())
    }

    /// Keeps an address, unless there are too many.
    fn add(&mut self, address: IpAddr, ttl: u32) {
        if self.addresses.len() < RECORDS_MAX {
            self.addresses.push((address, ttl));
        }
    }

    /// An HTTPS record: its address hints, and the public names of its ECH configurations.
    fn read_service(&mut self, content: &[u8], ttl: u32) -> Option<()> {
        let mut reader = Reader::new(content);
        let _priority = reader.u16()?;
        // The target's name is not compressed (RFC 9460, section 2.2).
        while let label @ 1.. = reader.u8()? {
            reader.take(label.into())?;
        }
        while !reader.is_empty() {
            let (key, value) = (reader.u16()?, reader.vector16()?);
            match key {
                PARAMETER_IPV4 => {
                    value
                        .as_chunks::<4>()
                        .0
                        .iter()
                        .for_each(|&a| self.add(Ipv4Addr::from(a).into(), ttl));
                }
                PARAMETER_IPV6 => {
                    value
                        .as_chunks::<16>()
                        .0
                        .iter()
                        .for_each(|&a| self.add(Ipv6Addr::from(a).into(), ttl));
                }
                PARAMETER_ECH => self.read_configurations(value)?,
                _ => {}
            }
        }
        Some(())
    }

    fn read_configurations(&mut self, value: &[u8]) -> Option<()> {
        let mut list = Reader::new(Reader::new(value).vector16()?);
        while !list.is_empty() && self.public_names.len() < RECORDS_MAX {
            let (version, content) = (list.u16()?, list.vector16()?);
            if version != ECH_VERSION {
                continue;
            }
            let mut reader = Reader::new(content);
            // Number and KEM of the key, the key, cipher suites, the length of padded names.
            reader.take(3)?;
            reader.vector16()?;
            reader.vector16()?;
            reader.take(1)?;
            self.public_names.extend(HostName::from_wire(reader.vector8()?));
        }
        Some(())
    }
}

/// Reads the name at the reader's position; the reader then stands after it.
fn name(bytes: &[u8], reader: &mut Reader<'_>) -> Option<HostName> {
    let (name, length) = name_at(bytes, bytes.len() - reader.rest().len())?;
    reader.take(length)?;
    Some(name)
}

/// The name at a position, and its length there. Each pointer must lead further to the front, so loops are
/// impossible.
fn name_at(bytes: &[u8], at: usize) -> Option<(HostName, usize)> {
    let mut text = Vec::with_capacity(HOST_NAME_MAX + 2);
    let (mut begin, mut next, mut length) = (at, at, None);
    loop {
        let first = *bytes.get(next)?;
        match first >> 6 {
            0 if first == 0 => break,
            0 => {
                let end = next + 1 + usize::from(first);
                let label = bytes.get(next + 1..end)?;
                // A dot within a label would look like two labels, and no host has it.
                if label.contains(&b'.') {
                    return None;
                }
                text.extend_from_slice(label);
                text.push(b'.');
                next = end;
            }
            3 => {
                let low = *bytes.get(next + 1)?;
                length.get_or_insert_with(|| next + 2 - at);
                next = usize::from(first & 0x3f) << 8 | usize::from(low);
                if next >= begin {
                    return None;
                }
                begin = next;
            }
            _ => return None,
        }
        if text.len() > HOST_NAME_MAX + 1 {
            return None;
        }
    }
    let length = length.unwrap_or_else(|| next + 1 - at);
    HostName::from_wire(&text).map(|name| (name, length))
}

/// No answer about one name has more records than this.
pub(super) const RECORDS_MAX: usize = 64;
const ANSWER: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
const TRUNCATED: u16 = 0x0200;
const RESPONSE_CODE: u16 = 0x000f;
const CLASS_IN: u16 = 1;
const KIND_A: u16 = 1;
const KIND_CNAME: u16 = 5;
const KIND_AAAA: u16 = 28;
const KIND_HTTPS: u16 = 65;
const PARAMETER_IPV4: u16 = 4;
const PARAMETER_ECH: u16 = 5;
const PARAMETER_IPV6: u16 = 6;
const ECH_VERSION: u16 = 0xfe0d;

/// Messages as servers and resolvers write them.
#[cfg(any(test, fuzzing))]
pub(super) mod written {
    pub(in super::super) fn labels(name: &str) -> Vec<u8> {
        let label = |label: &str| [&[label.len() as u8], label.as_bytes()].concat();
        name.split('.').flat_map(label).chain([0]).collect()
    }

    pub(in super::super) fn query(id: u16, name: &str, kind: u16) -> Vec<u8> {
        let header = [id, 0x0100, 1, 0, 0, 1];
        let mut bytes: Vec<u8> = header.iter().flat_map(|n| n.to_be_bytes()).collect();
        bytes.extend(labels(name));
        bytes.extend([0, kind as u8, 0, 1]);
        // EDNS, as resolvers send it.
        bytes.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        bytes
    }

    pub(in super::super) fn record(owner: &[u8], kind: u16, ttl: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = owner.to_vec();
        bytes.extend([0, kind as u8, 0, 1]);
        bytes.extend(ttl.to_be_bytes());
        bytes.extend((content.len() as u16).to_be_bytes());
        bytes.extend(content);
        bytes
    }

    pub(in super::super) fn answer(id: u16, name: &str, kind: u16, records: &[Vec<u8>]) -> Vec<u8> {
        let header = [id, 0x8180, 1, records.len() as u16, 0, 0];
        let mut bytes: Vec<u8> = header.iter().flat_map(|n| n.to_be_bytes()).collect();
        bytes.extend(labels(name));
        bytes.extend([0, kind as u8, 0, 1]);
        bytes.extend(records.concat());
        bytes
    }

    /// The name of the question.
    pub(in super::super) const OWNER: [u8; 2] = [0xc0, 12];

    #[cfg(test)]
    /// An HTTPS record's content with an address hint and an ECH configuration.
    pub(in super::super) fn service(public_name: &str) -> Vec<u8> {
        let alpn_and_hint = [0, 1, 0, 0, 1, 0, 3, 2, b'h', b'3', 0, 4, 0, 4, 192, 0, 2, 5].to_vec();
        [alpn_and_hint, configurations([public_name].into_iter())].concat()
    }

    /// The parameter of an HTTPS record with an ECH configuration for each name.
    pub(in super::super) fn configurations<'n>(
        public_names: impl Iterator<Item = &'n str>,
    ) -> Vec<u8> {
        let mut list = Vec::new();
        for name in public_names {
            let mut configuration = vec![1, 0, 32, 0, 4, 9, 9, 9, 9, 0, 4, 0, 1, 0, 1, 0];
            configuration.push(name.len() as u8);
            configuration.extend(name.bytes());
            configuration.extend([0, 0]);
            list.extend([0xfe, 0x0d]);
            list.extend((configuration.len() as u16).to_be_bytes());
            list.extend(configuration);
        }
        let length = list.len() as u16;
        [&[0, 5], &(length + 2).to_be_bytes()[..], &length.to_be_bytes(), &list].concat()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::written::*;
    use super::*;

    fn host(text: &str) -> HostName {
        HostName::from_wire(text.as_bytes()).unwrap()
    }

    #[test]
    fn an_answer_gives_the_addresses_at_the_end_of_its_aliases() {
        let cdn = labels("a.cdn.net");
        let bytes = answer(
            7,
            "www.x.com",
            1,
            &[
                record(&OWNER, 5, 300, &cdn),
                record(&cdn, 1, 20, &[192, 0, 2, 7]),
                record(&labels("other.net"), 1, 20, &[192, 0, 2, 9]),
                record(&cdn, 1, 20, &[192, 0, 2, 8]),
            ],
        );
        let message = message(&bytes).unwrap();
        assert!(message.is_answer && message.id == 7 && message.name == host("www.x.com"));
        let addresses = ["192.0.2.7", "192.0.2.8"].map(|a| (a.parse().unwrap(), 20));
        assert_eq!(message.addresses, addresses, "none of another name");
        let asked = super::message(&query(7, "www.x.com", 1)).unwrap();
        assert!(!asked.is_answer && asked.name == host("www.x.com") && asked.kind == 1);
    }

    #[test]
    fn an_https_record_gives_hints_and_public_names() {
        let bytes = answer(1, "x.com", 65, &[record(&OWNER, 65, 60, &service("ech.cdn.net"))]);
        let message = message(&bytes).unwrap();
        assert_eq!(message.addresses, [("192.0.2.5".parse().unwrap(), 60)]);
        assert_eq!(message.public_names, [host("ech.cdn.net")]);
    }

    #[test]
    fn loops_and_lies_are_refused() {
        let mut bytes = query(1, "x.com", 1);
        bytes[12..14].copy_from_slice(&[0xc0, 12]);
        assert_eq!(message(&bytes), None, "a pointer to itself");
        bytes[12..14].copy_from_slice(&[0xc0, 14]);
        assert_eq!(message(&bytes), None, "a pointer to the back");
        let long: String = (0..64).map(|_| "abc.").collect();
        assert_eq!(message(&query(1, long.trim_end_matches('.'), 1)), None, "a long name");
        let right = answer(1, "x.com", 1, &[record(&OWNER, 1, 9, &[192, 0, 2, 7])]);
        for at in 0..right.len() {
            assert_eq!(message(&right[..at]), None, "cut at {at}");
        }
        let mut many = right.clone();
        many[6..8].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(message(&many), None, "fewer records than it says");
        let all: Vec<_> = (0..200).map(|i| record(&OWNER, 1, 9, &[192, 0, 2, i])).collect();
        assert_eq!(message(&answer(1, "x.com", 1, &all)).unwrap().addresses.len(), RECORDS_MAX);
        let hints = [&[0, 1, 0, 0, 4, 0x10, 0][..], &[9; 4_096]].concat();
        let hinted = answer(1, "x.com", 65, &[record(&OWNER, 65, 9, &hints)]);
        assert_eq!(message(&hinted).unwrap().addresses.len(), RECORDS_MAX);
        for flags in [0x8380_u16, 0x8183, 0x9180] {
            let mut other = right.clone();
            other[2..4].copy_from_slice(&flags.to_be_bytes());
            assert_eq!(message(&other), None, "truncated, an error, another opcode");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..300)) {
            let _ = message(&bytes);
            let _ = message(&[&query(1, "x.com", 1)[..23], &bytes].concat());
            let records = [record(&OWNER, 65, 9, &bytes), bytes.clone()];
            let _ = message(&answer(1, "x.com", 65, &records));
        }
    }
}
