//! The ClientHello in a client's QUIC Initial packets.
//!
//! Initial packets are encrypted with keys that follow from the Destination Connection ID of the
//! client's first packet, so anyone on the path can read them. A client that receives a Retry starts
//! again with the ID that the server chose; later it uses other IDs with the same keys. So each packet
//! is tried with the keys in use, then with the keys of its own ID: authentication shows which are
//! right.
//!
//! Source: RFC 9000, sections 12.4 and 17.2; RFC 9001, section 5; RFC 9369 (version 2).

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::aes::Aes128;
use aes_gcm::aes::cipher::{Array, BlockCipherEncrypt};
use aes_gcm::{Aes128Gcm, Tag};
use hkdf::Hkdf;
use sha2::Sha256;

use super::assemble::Assembler;
use super::reader::Reader;
use super::tls::{Hello, Read, hello};

/// What is known of a client's Initial packets. Holds at most
/// [`STREAM_MAX`](super::assemble::STREAM_MAX) bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Initials {
    seed: Option<Seed>,
    stream: Assembler,
}

/// The data from which the keys follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seed {
    version: Version,
    id: [u8; ID_MAX],
    id_length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Initials {
    /// Takes in a datagram that the client sent. Allocates at most the length of the datagram, in addition to
    /// the data that is kept.
    pub(super) fn handle_datagram(&mut self, datagram: &[u8]) -> Read<Hello> {
        let mut rest = &datagram[..datagram.len().min(DATAGRAM_MAX)];
        // Packets of other kinds may follow in the same datagram.
        while let Some((packet, behind)) = Packet::split(rest) {
            rest = behind;
            if let Some(packet) = packet {
                self.handle_packet(&packet);
            }
        }
        match (self.seed, hello(self.stream.prefix())) {
            (None, _) => Read::Not,
            (Some(_), read) => read,
        }
    }

    fn handle_packet(&mut self, packet: &Packet<'_>) {
        let mut payload = self.seed.and_then(|seed| packet.decrypted(&seed));
        if payload.is_none() && self.seed != Some(packet.seed) {
            payload = packet.decrypted(&packet.seed);
            if payload.is_some() {
                // The first packet, or the first after a Retry: the handshake begins again.
                *self = Initials { seed: Some(packet.seed), stream: Assembler::default() };
            }
        }
        if let Some(payload) = payload {
            self.handle_frames(&payload);
        }
    }

    /// Reads frames until the first frame that a client's Initial packet cannot have.
    fn handle_frames(&mut self, payload: &[u8]) -> Option<()> {
        let mut reader = Reader::new(payload);
        while !reader.is_empty() {
            match reader.varint()? {
                FRAME_PADDING | FRAME_PING => {}
                FRAME_CRYPTO => {
                    let offset = reader.varint()?;
                    self.stream.insert(offset, reader.vector_varint()?);
                }
                kind @ (FRAME_ACK | FRAME_ACK_ECN) => skip_ack(&mut reader, kind)?,
                _ => return None,
            }
        }
        Some(())
    }
}

fn skip_ack(reader: &mut Reader<'_>, kind: u64) -> Option<()> {
    let (_largest, _delay) = (reader.varint()?, reader.varint()?);
    let (ranges, _first) = (reader.varint()?, reader.varint()?);
    // The loop ends at the latest at the end of the packet.
    for _ in 0..ranges {
        let (_gap, _length) = (reader.varint()?, reader.varint()?);
    }
    if kind == FRAME_ACK_ECN {
        let (_ect0, _ect1, _ce) = (reader.varint()?, reader.varint()?, reader.varint()?);
    }
    Some(())
}

/// An Initial packet as it was sent.
struct Packet<'b> {
    seed: Seed,
    /// From the first byte to the end of the ciphertext.
    bytes: &'b [u8],
    number_at: usize,
}

impl<'b> Packet<'b> {
    /// The packet at the front of a datagram, if it is an Initial packet, and the bytes after it. `None` if
    /// nothing can be read there.
    fn split(datagram: &'b [u8]) -> Option<(Option<Packet<'b>>, &'b [u8])> {
        let mut reader = Reader::new(datagram);
        let first = reader.u8()?;
        if first & FORM_LONG == 0 {
            return None;
        }
        let version = match reader.u32()? {
            VERSION_1 => Version::One,
            VERSION_2 => Version::Two,
            _ => return None,
        };
        let destination = reader.vector8()?;
        let source = reader.vector8()?;
        if destination.len() > ID_MAX || source.len() > ID_MAX {
            return None;
        }
        let kind = first >> 4 & 3;
        if kind == version.retry() {
            return None;
        }
        let is_initial = kind == version.initial();
        if is_initial {
            let _token = reader.vector_varint()?;
        }
        let length = usize::try_from(reader.varint()?).ok()?;
        let number_at = datagram.len() - reader.rest().len();
        reader.take(length)?;
        let bytes = &datagram[..number_at + length];
        let packet =
            is_initial.then(|| Packet { seed: Seed::new(version, destination), bytes, number_at });
        Some((packet, reader.rest()))
    }

    /// The frames, if the packet was encrypted with the keys of `seed`.
    fn decrypted(&self, seed: &Seed) -> Option<Vec<u8>> {
        if seed.version != self.seed.version {
            return None;
        }
        let keys = seed.keys();
        let sample = self.bytes.get(self.number_at + 4..self.number_at + 4 + SAMPLE)?;
        let mut mask = Array::try_from(sample).ok()?;
        keys.header.encrypt_block(&mut mask);
        let first = self.bytes[0] ^ mask[0] & 0x0f;
        let number_length = usize::from(first & 3) + 1;
        let mut header = self.bytes[..self.number_at + number_length].to_vec();
        header[0] = first;
        let mut nonce = keys.nonce;
        for i in 0..number_length {
            header[self.number_at + i] ^= mask[1 + i];
            // The first packets of a connection have untruncated packet numbers.
            nonce[NONCE - number_length + i] ^= header[self.number_at + i];
        }
        let sealed = self.bytes.get(header.len()..)?;
        let (ciphertext, tag) = sealed.split_at_checked(sealed.len().checked_sub(TAG)?)?;
        let mut frames = ciphertext.to_vec();
        let tag = Tag::try_from(tag).ok()?;
        let opened = keys.packet.decrypt_inout_detached(
            &nonce.into(),
            &header,
            frames.as_mut_slice().into(),
            &tag,
        );
        opened.ok().map(|()| frames)
    }
}

struct Keys {
    packet: Aes128Gcm,
    nonce: [u8; NONCE],
    header: Aes128,
}

impl Seed {
    /// `id` is not longer than [`ID_MAX`].
    fn new(version: Version, id: &[u8]) -> Seed {
        let mut seed = Seed { version, id: [0; ID_MAX], id_length: id.len() };
        seed.id[..id.len()].copy_from_slice(id);
        seed
    }

    /// The client's keys.
    fn keys(&self) -> Keys {
        let (salt, labels) = match self.version {
            Version::One => (SALT_1, ["quic key", "quic iv", "quic hp"]),
            Version::Two => (SALT_2, ["quicv2 key", "quicv2 iv", "quicv2 hp"]),
        };
        let (_, initial) = Hkdf::<Sha256>::extract(Some(&salt), &self.id[..self.id_length]);
        let secret: [u8; 32] = expand(&initial, "client in");
        let client = Hkdf::<Sha256>::from_prk(&secret).expect("invariant: a whole hash is enough");
        let (key, header): ([u8; 16], [u8; 16]) =
            (expand(&client, labels[0]), expand(&client, labels[2]));
        Keys {
            packet: Aes128Gcm::new(&key.into()),
            nonce: expand(&client, labels[1]),
            header: Aes128::new(&header.into()),
        }
    }
}

/// HKDF-Expand-Label without a context. Source: RFC 8446, section 7.1.
fn expand<const N: usize>(secret: &Hkdf<Sha256>, label: &str) -> [u8; N] {
    let label = [b"tls13 ", label.as_bytes()].concat();
    let info = [&(N as u16).to_be_bytes()[..], &[label.len() as u8], &label, &[0]].concat();
    let mut key = [0; N];
    secret.expand(&info, &mut key).expect("invariant: short keys can be expanded");
    key
}

impl Version {
    /// The type of an Initial packet.
    fn initial(self) -> u8 {
        match self {
            Version::One => 0,
            Version::Two => 1,
        }
    }

    /// The type of a Retry packet, which has no length.
    fn retry(self) -> u8 {
        match self {
            Version::One => 3,
            Version::Two => 0,
        }
    }
}

/// The longest connection ID. Source: RFC 9000, section 17.2.
const ID_MAX: usize = 20;
/// The largest UDP payload.
const DATAGRAM_MAX: usize = 65_527;
const VERSION_1: u32 = 1;
const VERSION_2: u32 = 0x6b33_43cf;
const FORM_LONG: u8 = 0x80;
const FRAME_PADDING: u64 = 0;
const FRAME_PING: u64 = 1;
const FRAME_ACK: u64 = 2;
const FRAME_ACK_ECN: u64 = 3;
const FRAME_CRYPTO: u64 = 6;
const SAMPLE: usize = 16;
const TAG: usize = 16;
const NONCE: usize = 12;
/// Source: RFC 9001, section 5.2.
const SALT_1: [u8; 20] = [
    0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad,
    0xcc, 0xbb, 0x7f, 0x0a,
];
/// Source: RFC 9369, section 3.3.1.
const SALT_2: [u8; 20] = [
    0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d, 0xcb,
    0xf9, 0xbd, 0x2e, 0xd9,
];

/// Packets as clients send them.
#[cfg(any(test, fuzzing))]
pub(super) mod written {
    use super::*;

    /// A client's Initial packet, padded to `size` bytes; longer if its frames need more.
    pub(in super::super) struct Sent<'f> {
        pub(in super::super) is_two: bool,
        /// The ID in the header.
        pub(in super::super) id: &'f [u8],
        /// The ID from which the keys follow.
        pub(in super::super) key_id: &'f [u8],
        pub(in super::super) token: &'f [u8],
        pub(in super::super) number: u32,
        pub(in super::super) frames: Vec<u8>,
        pub(in super::super) size: usize,
    }

    impl Sent<'_> {
        pub(in super::super) fn packet(&self) -> Vec<u8> {
            let version = if self.is_two { Version::Two } else { Version::One };
            let number = if self.is_two { VERSION_2 } else { VERSION_1 };
            let mut header = vec![FORM_LONG | 0x43 | version.initial() << 4];
            header.extend(number.to_be_bytes());
            header.push(self.id.len() as u8);
            header.extend(self.id);
            header.extend([0, self.token.len() as u8]);
            header.extend(self.token);
            let room = self.size.saturating_sub(header.len() + 2 + 4 + TAG);
            let mut frames = self.frames.clone();
            frames.resize(frames.len().max(room), 0);
            header.extend(((4 + frames.len() + TAG) as u16 | 0x4000).to_be_bytes());
            let number_at = header.len();
            header.extend(self.number.to_be_bytes());
            let keys = Seed::new(version, self.key_id).keys();
            let mut nonce = keys.nonce;
            for (byte, number) in nonce[8..].iter_mut().zip(self.number.to_be_bytes()) {
                *byte ^= number;
            }
            let sealed = keys.packet.encrypt_inout_detached(
                &nonce.into(),
                &header,
                frames.as_mut_slice().into(),
            );
            frames.extend(sealed.expect("invariant: a packet is short enough to be sealed"));
            let sample = Array::try_from(&frames[..SAMPLE]);
            let mut mask = sample.expect("invariant: the tag alone is as long");
            keys.header.encrypt_block(&mut mask);
            header[0] ^= mask[0] & 0x0f;
            for i in 0..4 {
                header[number_at + i] ^= mask[1 + i];
            }
            header.extend(frames);
            header
        }
    }

    #[cfg(test)]
    pub(in super::super) fn sent(id: &[u8], number: u32, frames: Vec<u8>) -> Sent<'_> {
        Sent { is_two: false, id, key_id: id, token: &[], number, frames, size: 1_200 }
    }

    #[cfg(test)]
    pub(in super::super) fn crypto(offset: usize, part: &[u8]) -> Vec<u8> {
        let mut frame = vec![6];
        frame.extend((offset as u16 | 0x4000).to_be_bytes());
        frame.extend((part.len() as u16 | 0x4000).to_be_bytes());
        frame.extend(part);
        frame
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::tls::written::{browser_hello, hello_with, names};
    use super::written::*;
    use super::*;
    use crate::host_name::HostName;

    fn hex(text: &str) -> Vec<u8> {
        let digit = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
        (0..text.len()).step_by(2).map(digit).collect()
    }

    fn name_of(read: &Read<Hello>) -> &str {
        match read {
            Read::Whole(Hello { name: Some(name), .. }) => name.as_str(),
            _ => panic!("{read:?}"),
        }
    }

    const ID: [u8; 8] = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];

    /// RFC 9001, appendix A.2, and RFC 9369, appendix A.2: keys and protected headers.
    #[test]
    fn the_packets_of_the_standards_are_read() {
        let frame = hex(
            "060040f1010000ed0303ebf8fa56f12939b9584a3896472ec40bb863cfd3e86804fe3a47f06a2b69484c\
             00000413011302010000c000000010000e00000b6578616d706c652e636f6dff01000100000a00080006\
             001d0017001800100007000504616c706e000500050100000000003300260024001d00209370b2c9caa4\
             7fbabaf4559fedba753de171fa71f50f1ce15d43e994ec74d748002b0003020304000d0010000e040305\
             0306030203080408050806002d00020101001c00024001003900320408ffffffffffffffff05048000ff\
             ff07048000ffff0801100104800075300901100f088394c8f03e51570806048000ffff",
        );
        for (is_two, header, nonce) in [
            (false, "c000000001088394c8f03e5157080000449e7b9aec34", "fa044b2f42a3fd3b46fb255c"),
            (true, "d76b3343cf088394c8f03e5157080000449ea0c95e82", "91f73e2351d8fa91660e909f"),
        ] {
            let packet = Sent { is_two, ..sent(&ID, 2, frame.clone()) }.packet();
            assert_eq!(packet.len(), 1_200);
            assert_eq!(packet[..22], hex(header));
            let version = if is_two { Version::Two } else { Version::One };
            assert_eq!(Seed::new(version, &ID).keys().nonce[..], hex(nonce));
            assert_eq!(name_of(&Initials::default().handle_datagram(&packet)), "example.com");
        }
    }

    /// As Chromium sends it: a hello over two packets, in frames that are out of order.
    #[test]
    fn frames_and_packets_come_in_any_order() {
        let hello = browser_hello("video.example.com");
        let cuts: Vec<(usize, &[u8])> =
            hello.chunks(170).enumerate().map(|(i, c)| (i * 170, c)).collect();
        let (early, late): (Vec<_>, Vec<_>) = cuts.iter().partition(|(at, _)| (at / 170) % 3 != 1);
        let frames = |cuts: &[&(usize, &[u8])]| {
            let mut frames = vec![0, 1];
            for (at, part) in cuts.iter().rev() {
                frames.extend(crypto(*at, part));
                frames.extend([0; 3]);
            }
            frames
        };
        let [first, second] =
            [(0, early), (1, late)].map(|(number, cuts)| sent(&ID, number, frames(&cuts)).packet());
        for order in [[&first, &second], [&second, &first]] {
            let mut initials = Initials::default();
            assert_eq!(initials.handle_datagram(order[0]), Read::More);
            assert_eq!(initials.handle_datagram(order[0]), Read::More, "a copy");
            assert_eq!(name_of(&initials.handle_datagram(order[1])), "video.example.com");
        }
        let both = [first, second].concat();
        assert_eq!(name_of(&Initials::default().handle_datagram(&both)), "video.example.com");
    }

    #[test]
    fn after_a_retry_the_keys_follow_from_the_new_id() {
        let hello = browser_hello("x.example.com");
        let (front, back) = hello.split_at(1_000);
        let mut initials = Initials::default();
        let lost = sent(&ID, 0, crypto(0, &browser_hello("lost.example.com")[..400])).packet();
        assert_eq!(initials.handle_datagram(&lost), Read::More);
        let new = [9; 20];
        let again = |number, offset, part| Sent {
            token: b"the server's token",
            ..sent(&new, number, crypto(offset, part))
        };
        assert_eq!(initials.handle_datagram(&again(1, 1_000, back).packet()), Read::More);
        // The server has chosen another ID meanwhile; the keys stay.
        let other = Sent { id: &[], key_id: &new, ..again(2, 0, front) }.packet();
        assert_eq!(name_of(&initials.handle_datagram(&other)), "x.example.com");
    }

    #[test]
    fn acknowledgements_and_packets_of_other_kinds_are_passed_over() {
        let hello = hello_with(&[names("x.example.com")]);
        let mut frames = vec![3, 9, 0, 2, 1, 0, 1, 0, 1, 1, 2, 3, 2, 1, 0, 0, 0];
        frames.extend(crypto(0, &hello));
        let packet = sent(&ID, 5, frames).packet();
        // A 0-RTT packet of 30 bytes in front.
        let mut datagram = vec![0xd0, 0, 0, 0, 1, 1, 7, 1, 8, 30];
        datagram.extend([5; 30]);
        datagram.extend(packet);
        assert_eq!(name_of(&Initials::default().handle_datagram(&datagram)), "x.example.com");
    }

    #[test]
    fn what_is_forged_or_cut_says_nothing() {
        let packet = sent(&ID, 0, crypto(0, &hello_with(&[names("x.example.com")]))).packet();
        for at in [0, 1, 5, 6, 13, 16, 20, 60, 700, 1_199] {
            let mut wrong = packet.clone();
            wrong[at] ^= 0x10;
            assert_eq!(Initials::default().handle_datagram(&wrong), Read::Not, "byte {at}");
            let cut = &packet[..at];
            assert_eq!(Initials::default().handle_datagram(cut), Read::Not, "{at} bytes");
        }
        let mut initials = Initials::default();
        let mut first = packet.clone();
        first[700] ^= 1;
        assert_eq!(initials.handle_datagram(&first), Read::Not);
        assert_eq!(
            name_of(&initials.handle_datagram(&packet)),
            "x.example.com",
            "it is not misled"
        );
        // An authentic packet that begins another connection on the same ports starts again.
        let forged = sent(&[1; 8], 0, crypto(0, &hello_with(&[names("y.example.com")]))).packet();
        assert_eq!(name_of(&initials.handle_datagram(&forged)), "y.example.com");
        let name = HostName::from_wire(b"y.example.com");
        assert_eq!(initials.handle_datagram(&[]), Read::Whole(Hello { name, has_ech: false }));
    }

    proptest! {
        #[test]
        fn any_datagram_is_read_without_a_panic(mut bytes in vec(any::<u8>(), 0..200), shape: u8) {
            for (at, byte) in [0xc0, 0, 0, 0, 1, 8].iter().enumerate() {
                if shape % 2 == 0 && at < bytes.len() {
                    bytes[at] = *byte;
                }
            }
            let _ = Initials::default().handle_datagram(&bytes);
        }

        /// Authentic frames with arbitrary content.
        #[test]
        fn any_frames_are_read_without_a_panic(frames in vec(any::<u8>(), 0..400), offset: u16) {
            let mut initials = Initials::default();
            let frames = [crypto(offset.into(), &frames), frames].concat();
            let _ = initials.handle_datagram(&sent(&ID, 0, frames).packet());
        }
    }
}
