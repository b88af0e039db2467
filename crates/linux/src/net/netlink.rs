//! Messages to the kernel's netlink (routing, netfilter) and back, synchronously.
//!
//! A [`Request`] is built byte by byte and an answer is read attribute by attribute. An unknown
//! attribute is skipped; it is never an error. Terms: an attribute is a type and a value; a nest is
//! an attribute whose value consists of attributes. Source: netlink(7), rtnetlink(7).

use std::io;

use netlink_packet_core::{NLA_F_NESTED, NlasIterator};
use netlink_sys::{
    Socket, SocketAddr,
    protocols::{NETLINK_NETFILTER, NETLINK_ROUTE},
};

use crate::Error;

/// Passes the payload of each object of nftables to `take`, as [`Netlink::dump`] does. `message` is
/// `NFT_MSG_GET…`. There are no objects if the kernel has no nftables, or not this kind of object.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn dump_nftables(
    attempted: &str,
    message: u16,
    take: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let request = nftables(message, libc::AF_UNSPEC as u8);
    let asked =
        Netlink::open_netfilter().and_then(|mut netlink| netlink.dump(attempted, request, take));
    let missing = [libc::EINVAL, libc::ENOENT, libc::EOPNOTSUPP, libc::EPROTONOSUPPORT];
    match asked {
        Err(e) if e.errno().is_some_and(|errno| missing.contains(&errno)) => Ok(()),
        asked => asked,
    }
}

/// A request to nftables about objects of a family (`NFPROTO_…`).
pub(crate) fn nftables(message: u16, family: u8) -> Request {
    Request::new(NFNL_SUBSYS_NFTABLES << 8 | message, 0, &[family, 0, 0, 0])
}

/// One message to the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Request {
    /// A request of type `kind` (`RTM_…`) with extra `flags` (`NLM_F_…`) and the fixed `header` of
    /// that type.
    pub(crate) fn new(kind: u16, flags: u16, header: &[u8]) -> Request {
        assert!(header.len().is_multiple_of(ALIGN), "netlink headers are padded to four bytes");
        Request { kind, flags, body: header.to_vec() }
    }

    /// Adds an attribute.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Request {
        push_attribute(&mut self.body, kind, value);
        self
    }

    /// Adds an attribute that is a number in host order.
    pub(crate) fn with_u32(self, kind: u16, value: u32) -> Request {
        self.with(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute that is a text, with the zero byte at its end.
    pub(crate) fn with_text(self, kind: u16, text: &str) -> Request {
        self.with(kind, &zero_ended(text))
    }

    /// Adds a nest.
    pub(crate) fn with_nest(self, kind: u16, nest: Nest) -> Request {
        self.with(kind | NLA_F_NESTED, &nest.0)
    }
}

/// Attributes inside of an attribute.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nest(Vec<u8>);

impl Nest {
    /// A nest that begins with a fixed header.
    pub(crate) fn with_header(header: &[u8]) -> Nest {
        assert!(header.len().is_multiple_of(ALIGN), "netlink headers are padded to four bytes");
        Nest(header.to_vec())
    }

    /// The attributes as they are sent.
    #[cfg(test)]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds an attribute.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Nest {
        push_attribute(&mut self.0, kind, value);
        self
    }

    /// Adds an attribute that is a number in host order.
    pub(crate) fn with_u32(self, kind: u16, value: u32) -> Nest {
        self.with(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute that is a text, with the zero byte at its end.
    pub(crate) fn with_text(self, kind: u16, text: &str) -> Nest {
        self.with(kind, &zero_ended(text))
    }

    /// Adds a nest.
    pub(crate) fn with_nest(self, kind: u16, nest: Nest) -> Nest {
        self.with(kind | NLA_F_NESTED, &nest.0)
    }
}

/// An open socket to a netlink of the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
    pub(crate) fn open() -> Result<Netlink, Error> {
        Netlink::open_protocol(NETLINK_ROUTE)
    }

    /// As [`Netlink::open`], for netfilter's netlink.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
    pub(crate) fn open_netfilter() -> Result<Netlink, Error> {
        Netlink::open_protocol(NETLINK_NETFILTER)
    }

    fn open_protocol(protocol: isize) -> Result<Netlink, Error> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            socket.set_cap_ack(true)?;
            socket.set_ext_ack(true)?;
            // Answers to a batch of 256 classes must not overflow.
            socket.set_rx_buf_sz(RECEIVE_BUFFER_BYTES)?;
            Ok(socket)
        };
        let socket = open().map_err(|e| Error::refused("open a netlink socket", e))?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// The socket, on which the kernel may also send unasked.
    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// Sends one request and waits for the kernel's acknowledgement.
    ///
    /// # Errors
    /// [`Error::Refused`] with what was `attempted` and the kernel's words.
    pub(crate) fn change(&mut self, attempted: &str, request: Request) -> Result<(), Error> {
        self.change_all(attempted, std::slice::from_ref(&request))
    }

    /// Sends all requests in one datagram and waits for all acknowledgements. The kernel carries
    /// the requests out in order, without waiting for this program in between.
    ///
    /// # Errors
    /// The first refusal; the kernel still carries out the requests behind it.
    pub(crate) fn change_all(
        &mut self,
        attempted: &str,
        requests: &[Request],
    ) -> Result<(), Error> {
        if requests.is_empty() {
            return Ok(());
        }
        let first = self.sequence.wrapping_add(1);
        let mut datagram = Vec::new();
        for request in requests {
            self.push(&mut datagram, request, NLM_F_ACK);
        }
        self.send(attempted, &datagram)?;
        let mut acknowledged = 0;
        let mut refusal = None;
        while acknowledged < requests.len() {
            self.receive(attempted, |header, payload| {
                if header.kind == NLMSG_ERROR && header.sequence.wrapping_sub(first) < u32::MAX / 2
                {
                    acknowledged += 1;
                    if let Err(e) = verdict(header, payload) {
                        refusal.get_or_insert(e);
                    }
                }
            })?;
        }
        refusal.map_or(Ok(()), |e| Err(Error::refused(attempted, e)))
    }

    /// Asks for one object; its payload (header and attributes) is the answer.
    ///
    /// # Errors
    /// [`Error::Refused`] with what was `attempted`.
    pub(crate) fn ask(&mut self, attempted: &str, request: Request) -> Result<Vec<u8>, Error> {
        let mut datagram = Vec::new();
        self.push(&mut datagram, &request, NLM_F_ACK);
        self.send(attempted, &datagram)?;
        let sequence = self.sequence;
        let (mut answer, mut end) = (None, None);
        while end.is_none() {
            self.receive(attempted, |header, payload| {
                if header.sequence != sequence {
                    return;
                }
                match header.kind {
                    NLMSG_ERROR => end = Some(verdict(header, payload)),
                    _ => answer = Some(payload.to_vec()),
                }
            })?;
        }
        let nothing = || io::Error::from_raw_os_error(libc::ENOENT);
        end.unwrap_or(Ok(()))
            .and_then(|()| answer.ok_or_else(nothing))
            .map_err(|e| Error::refused(attempted, e))
    }

    /// Asks for all objects of a kind and hands the payload of each to `take`.
    ///
    /// # Errors
    /// [`Error::Refused`] with what was `attempted`.
    pub(crate) fn dump(
        &mut self,
        attempted: &str,
        request: Request,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        self.dump_while(attempted, request, |payload| {
            take(payload);
            true
        })
    }

    /// As [`Netlink::dump`], until `take` returns false; drops the remaining answers.
    ///
    /// # Errors
    /// [`Error::Refused`] with what was `attempted`.
    pub(crate) fn dump_some(
        mut self,
        attempted: &str,
        request: Request,
        take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Error> {
        self.dump_while(attempted, request, take)
    }

    fn dump_while(
        &mut self,
        attempted: &str,
        request: Request,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Error> {
        let mut datagram = Vec::new();
        self.push(&mut datagram, &request, NLM_F_DUMP);
        self.send(attempted, &datagram)?;
        let sequence = self.sequence;
        let mut end = None;
        while end.is_none() {
            self.receive(attempted, |header, payload| {
                if header.sequence != sequence || end.is_some() {
                    return;
                }
                match header.kind {
                    NLMSG_ERROR | NLMSG_DONE => end = Some(verdict(header, payload)),
                    _ => end = (!take(payload)).then_some(Ok(())),
                }
            })?;
        }
        end.unwrap_or(Ok(())).map_err(|e| Error::refused(attempted, e))
    }

    fn push(&mut self, datagram: &mut Vec<u8>, request: &Request, flags: u16) {
        self.sequence = self.sequence.wrapping_add(1);
        let length = (HEADER_BYTES + request.body.len()) as u32;
        datagram.extend_from_slice(&length.to_ne_bytes());
        datagram.extend_from_slice(&request.kind.to_ne_bytes());
        datagram.extend_from_slice(&(request.flags | flags | NLM_F_REQUEST).to_ne_bytes());
        datagram.extend_from_slice(&self.sequence.to_ne_bytes());
        datagram.extend_from_slice(&0u32.to_ne_bytes());
        datagram.extend_from_slice(&request.body);
    }

    fn send(&mut self, attempted: &str, datagram: &[u8]) -> Result<(), Error> {
        self.socket.send(datagram, 0).map(drop).map_err(|e| Error::refused(attempted, e))
    }

    /// Receives one datagram and hands each message in it to `take`.
    fn receive(
        &mut self,
        attempted: &str,
        mut take: impl FnMut(&Header, &[u8]),
    ) -> Result<(), Error> {
        let mut datagram = Vec::with_capacity(RECEIVE_BYTES);
        while let Err(e) = self.socket.recv(&mut datagram, 0) {
            if e.kind() != io::ErrorKind::Interrupted {
                return Err(Error::refused(attempted, e));
            }
        }
        let mut rest = &datagram[..];
        while let Some(header) = Header::parse(rest) {
            take(&header, &rest[HEADER_BYTES..header.length]);
            rest = rest.get(header.length.next_multiple_of(ALIGN)..).unwrap_or_default();
        }
        Ok(())
    }
}

/// The attributes in `bytes`, as type and value; stops at the first malformed one.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(|nla| {
        let nla = nla.ok()?;
        let (kind, length) = (nla.kind(), usize::from(nla.length()));
        Some((kind, nla.into_inner().get(ATTRIBUTE_HEADER_BYTES..length)?))
    })
}

/// The value of the first attribute of type `kind` in `bytes`.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|&(k, _)| k == kind).map(|(_, value)| value)
}

/// The number in host order at `offset` of `bytes`.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

/// The 16-bit number in host order at `offset` of `bytes`.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

/// `struct tcmsg`: the header of requests about qdiscs, classes and filters.
pub(crate) fn tcmsg(device: u32, handle: u32, parent: u32) -> [u8; TCMSG_BYTES] {
    let mut header = [0; TCMSG_BYTES];
    header[4..8].copy_from_slice(&device.to_ne_bytes());
    header[8..12].copy_from_slice(&handle.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    header
}

/// The text in `bytes` up to the first zero byte.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

struct Header {
    length: usize,
    kind: u16,
    flags: u16,
    sequence: u32,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Header> {
        let header = Header {
            length: u32_at(bytes, 0)? as usize,
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            sequence: u32_at(bytes, 8)?,
        };
        let whole = HEADER_BYTES <= header.length && header.length <= bytes.len();
        whole.then_some(header)
    }
}

/// The result in an acknowledgement; the kernel's own message, if there is one, is logged.
fn verdict(header: &Header, payload: &[u8]) -> io::Result<()> {
    let code = u32_at(payload, 0).map_or(0, |code| code as i32);
    if code == 0 {
        return Ok(());
    }
    let error = io::Error::from_raw_os_error(-code);
    let words = (header.flags & NLM_F_ACK_TLVS != 0)
        .then(|| attribute(payload.get(ERROR_BYTES..)?, NLMSGERR_ATTR_MSG).map(text))
        .flatten();
    if let Some(words) = words {
        tracing::debug!(%error, kernel = words, "netlink refusal");
    }
    Err(error)
}

fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = ATTRIBUTE_HEADER_BYTES + value.len();
    let length = u16::try_from(length).expect("invariant: our attributes are far below 64 KiB");
    body.extend_from_slice(&length.to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(ALIGN), 0);
}

fn zero_ended(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

const ALIGN: usize = 4;
/// Bytes of `struct tcmsg`.
pub(crate) const TCMSG_BYTES: usize = 20;
const HEADER_BYTES: usize = 16;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Bytes before the attributes of a netfilter message. Source: linux/netfilter/nfnetlink.h.
pub(crate) const NFGENMSG_BYTES: usize = 4;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
/// Bytes of an error's code and of the header of the request that it answers.
const ERROR_BYTES: usize = 4 + HEADER_BYTES;
/// The kernel's dumps fill at most 32 KiB per datagram.
const RECEIVE_BYTES: usize = 65_536;
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;

const NLM_F_REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const NLM_F_ACK: u16 = libc::NLM_F_ACK as u16;
const NLM_F_DUMP: u16 = libc::NLM_F_DUMP as u16;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
const NLMSGERR_ATTR_MSG: u16 = 1;
