//! RADIUS accounting packets: which user has a session, with which addresses and which plan.
//!
//! Method: [`Accounting::read`] checks the length, the attributes and the authenticator, which is a hash of the packet
//! and a secret that both sides know. [`Sessions::judge`] says what a packet changes. Once the change is stored,
//! [`Sessions::settle`] applies it, so that a packet whose change failed counts as never received. The answer
//! ([`Accounting::answer`]) says that the change is stored.
//!
//! A user may have several sessions, and has the addresses of all. A session is over once a newer one has all its
//! addresses. A packet that was answered is answered again for [`ANSWER_AGAIN`] without an effect, and then refused as
//! a replay. A packet of a session that is over is refused, unless it starts a later one with the same number. A packet
//! whose time differs too much from the clock is refused, too.
//!
//! A session is identified by its user, its number, and its NAS, which is compared as [`Nas::is`] says. A user's name
//! is text that can be typed, see [`name_of`].
//!
//! A session is silent when no packet of it came for too long, see [`Sessions::silent`]. It can then be dropped
//! ([`Sessions::drop_silent`]); it is not over, so a later packet brings it back.
//!
//! Module [`coa`] has the requests in the opposite direction, by which a server changes and ends sessions; [`claims`]
//! reads the plan from attributes.
//!
//! Properties, tested: any bytes are read without a panic; a packet with another secret or a changed byte
//! is refused; an old packet never changes a session. All tables are bounded.
//! Source: RFC 2865, 2866, 2867 (tunnels), 2869 (time), 3162, 4818 and 6911 (IPv6), 5997 (Status-Server).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Bound;

use ipnet::{IpNet, Ipv6Net};
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use crate::units::{Span, Time};

use claims::Claims;

/// The longest packet. Source: RFC 2866 §3.
pub const PACKET_MAX: usize = 4_096;
/// How long an answered packet is answered again: NASes repeat packets for a shorter time.
pub const ANSWER_AGAIN: Span = Span::secs(60);
/// For this long after a session's end, a start with its number may be an old packet, if the NAS sends no times.
const OVERTAKEN_S: u64 = 60;
/// How much older than the clock a packet may be: a NAS may keep packets while the server is down.
pub const AGE_MAX_S: u64 = 3_600;
/// How much newer than the clock a packet may be: clocks differ.
pub const AHEAD_MAX_S: u64 = 300;
/// The most packets and ended sessions that are remembered, the newest ones.
pub const REMEMBERED_MAX: usize = 65_536;
/// The most addresses and prefixes of a packet.
pub const ADDRESSES_MAX: usize = 64;
/// The most sessions of a user; if there are more, the oldest is over.
pub const SESSIONS_MAX: usize = 16;
/// After this many missing Interims a session is silent.
pub const INTERIMS_MISSED: u64 = 3;
/// The shortest interval of Interims. Source: RFC 2869 §5.16.
const INTERIM_MIN: Span = Span::secs(60);
/// The longest name of a user, in bytes.
pub const NAME_MAX: usize = 96;

/// What an accounting packet reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session has begun.
    Start,
    /// The session continues.
    Interim,
    /// The session is over.
    Stop,
    /// The NAS has started or stops: all its sessions have ended.
    Nas,
    /// An event that belongs to no session, such as those of tunnels.
    Other,
    /// The sender asks whether there is an answer (Status-Server).
    Status,
}

/// An accounting packet with a valid authenticator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accounting {
    identifier: u8,
    authenticator: [u8; 16],
    /// Proxy-State attributes, which must be sent back.
    proxy_states: Vec<u8>,
    /// The reported event.
    pub event: Event,
    /// The user of the session; empty if the packet belongs to no session.
    pub user: String,
    /// What the packet says about the plan.
    pub claims: Claims,
    /// How often the access server reports the session, if it says so.
    pub interim: Option<Span>,
    /// The addresses and prefixes of the session.
    pub addresses: Vec<IpNet>,
    /// The session; its number is empty if the packet belongs to no session.
    pub session: Session,
    /// When the event happened, Unix time.
    pub happened_s: Option<u64>,
    /// For how many seconds the NAS has tried to send it.
    delay_s: u64,
}

/// A session of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// The NAS of the session.
    pub nas: Nas,
    /// The session's number at its NAS, as [`name_of`] writes it.
    pub number: String,
}

/// A NAS, as it identifies itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nas {
    #[serde(skip_serializing_if = "Option::is_none")]
    v4: Option<Ipv4Addr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    v6: Option<Ipv6Addr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    identifier: Option<String>,
    /// The source address of a packet that no proxy forwarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<IpAddr>,
}

impl Nas {
    /// Whether both are the same NAS. Of the attributes that both have, the first counts, in this order: the IPv4 address,
    /// the IPv6 address, the identifier, which may be a factory default, and the source.
    pub fn is(&self, other: &Nas) -> bool {
        fn is<T: PartialEq>(a: Option<&T>, b: Option<&T>) -> Option<bool> {
            a.zip(b).map(|(a, b)| a == b)
        }
        is(self.v4.as_ref(), other.v4.as_ref())
            .or_else(|| is(self.v6.as_ref(), other.v6.as_ref()))
            .or_else(|| is(self.identifier.as_ref(), other.identifier.as_ref()))
            .or_else(|| is(self.source.as_ref(), other.source.as_ref()))
            // A NAS without attributes behind a proxy equals only another one without attributes.
            .unwrap_or(self == other)
    }
}

impl std::fmt::Display for Nas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Nas { v4: Some(address), .. } => address.fmt(f),
            Nas { v6: Some(address), .. } => address.fmt(f),
            Nas { identifier: Some(name), .. } => name.fmt(f),
            Nas { source: Some(address), .. } => address.fmt(f),
            Nas { .. } => f.write_str("-"),
        }
    }
}

impl Session {
    fn is(&self, other: &Session) -> bool {
        self.number == other.number && self.nas.is(&other.nas)
    }
}

/// Why a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refused {
    /// Longer than [`PACKET_MAX`].
    #[error("longer than {PACKET_MAX} bytes")]
    Oversized,
    /// Lengths do not fit, or an attribute is missing or invalid.
    #[error("not a valid accounting request")]
    Malformed,
    /// The packet has another secret, or was changed on the way.
    #[error("wrong authenticator: another secret, or changed on the way")]
    Forged,
    /// The packet was answered long ago.
    #[error("a packet that was answered long ago")]
    Replayed,
    /// Its time differs from the clock by more than [`AGE_MAX_S`] or [`AHEAD_MAX_S`], or see [`coa`].
    #[error("its Event-Timestamp differs too much from the clock, or is before the start")]
    Untimely,
    /// The session is over.
    #[error("of a session that is over")]
    Over,
}

impl Accounting {
    /// Reads a packet.
    ///
    /// # Errors
    /// [`Refused::Oversized`], [`Refused::Malformed`], or [`Refused::Forged`].
    pub fn read(datagram: &[u8], secret: &[u8]) -> Result<Accounting, Refused> {
        let (header, attributes) = parts(datagram, &[REQUEST, STATUS_SERVER])?;
        let is_status = header[0] == STATUS_SERVER;
        let authenticator = authenticator_of(header);
        if is_status {
            // The authenticator of a Status-Server packet is a random number.
            let is_right = message_is_right(header, &authenticator, attributes, secret);
            if !is_right.ok_or(Refused::Malformed)? {
                return Err(Refused::Forged);
            }
        } else if hash(&header[..4], &[0; 16], attributes, secret) != authenticator {
            return Err(Refused::Forged);
        }
        let mut accounting = Accounting {
            identifier: header[1],
            authenticator,
            proxy_states: Vec::new(),
            event: Event::Status,
            user: String::new(),
            claims: Claims::default(),
            interim: None,
            addresses: Vec::new(),
            session: Session::default(),
            happened_s: None,
            delay_s: 0,
        };
        accounting.read_attributes(attributes, is_status)?;
        Ok(accounting)
    }

    /// Notes the source address of the packet.
    pub fn set_source(&mut self, source: IpAddr) {
        // The address of a proxy is not that of the NAS.
        if self.proxy_states.is_empty() {
            self.session.nas.source = Some(source);
        }
    }

    fn read_attributes(&mut self, mut attributes: &[u8], is_status: bool) -> Result<(), Refused> {
        let mut event = is_status.then_some(Event::Status);
        let mut station = String::new();
        while let Some((attribute, kind, value)) = next(&mut attributes)? {
            let number = || <[u8; 4]>::try_from(value).map(u32::from_be_bytes);
            match kind {
                USER_NAME => self.user = name_of(value),
                CALLING_STATION_ID => station = name_of(value),
                NAS_IP_ADDRESS => self.session.nas.v4 = number().ok().map(Ipv4Addr::from),
                NAS_IPV6_ADDRESS => {
                    self.session.nas.v6 = <[u8; 16]>::try_from(value).ok().map(Ipv6Addr::from);
                }
                NAS_IDENTIFIER => self.session.nas.identifier = Some(name_of(value)),
                SESSION_ID => self.session.number = name_of(value),
                DELAY_TIME => self.delay_s = number().map_or(0, u64::from),
                PROXY_STATE => self.proxy_states.extend(attribute),
                EVENT_TIMESTAMP => self.happened_s = number().ok().map(u64::from),
                INTERIM_INTERVAL => {
                    let said = number().ok().map(|n| Span::secs(n.into()));
                    self.interim = said.filter(|n| *n > Span::ZERO).map(|n| n.max(INTERIM_MIN));
                }
                STATUS_TYPE if !is_status => {
                    event = match number() {
                        Ok(1) => Some(Event::Start),
                        Ok(2) => Some(Event::Stop),
                        Ok(3) => Some(Event::Interim),
                        Ok(7 | 8) => Some(Event::Nas),
                        Ok(_) => Some(Event::Other),
                        Err(_) => None,
                    }
                }
                FRAMED_IP_ADDRESS
                | FRAMED_IPV6_PREFIX
                | DELEGATED_IPV6_PREFIX
                | FRAMED_IPV6_ADDRESS => {
                    let address = address(kind, value).ok_or(Refused::Malformed)?;
                    if self.addresses.len() == ADDRESSES_MAX {
                        return Err(Refused::Malformed);
                    }
                    self.addresses.extend(address.filter(|a| !self.addresses.contains(a)));
                }
                _ => drop(self.claims.note(kind, value)),
            }
        }
        self.event = event.ok_or(Refused::Malformed)?;
        let is_of_session = matches!(self.event, Event::Start | Event::Interim | Event::Stop);
        if is_of_session && self.session.number.is_empty() {
            return Err(Refused::Malformed);
        }
        if !is_of_session {
            (self.user, self.session.number) = (String::new(), String::new());
        } else if self.user.is_empty() {
            let name = if station.is_empty() {
                format!("%session:{}/{}", self.session.nas, self.session.number)
            } else {
                station_name(&station)
            };
            self.user = bounded(name);
        }
        Ok(())
    }

    /// Whether the packet starts a new session after one with the same number has ended. If the NAS sends no times, a
    /// start soon after that end may be an old packet that was overtaken.
    fn begins_after(&self, ended_s: u64, now_s: u64) -> bool {
        let overtaken_s = if self.happened_s.is_some() { 0 } else { OVERTAKEN_S };
        self.event == Event::Start && self.time_s(now_s) > ended_s + overtaken_s
    }

    /// When the event happened, Unix time, if the packet arrived at `now_s`.
    fn time_s(&self, now_s: u64) -> u64 {
        self.happened_s.unwrap_or(now_s.saturating_sub(self.delay_s))
    }

    /// The Accounting-Response.
    pub fn answer(&self, secret: &[u8]) -> Vec<u8> {
        let is_status = self.event == Event::Status;
        let start = [RESPONSE, self.identifier];
        answer(start, &self.authenticator, is_status, &self.proxy_states, secret)
    }
}

/// The header and attributes of a packet with one of `codes`.
fn parts<'d>(datagram: &'d [u8], codes: &[u8]) -> Result<(&'d [u8; HEADER], &'d [u8]), Refused> {
    if datagram.len() > PACKET_MAX {
        return Err(Refused::Oversized);
    }
    let (header, _) = datagram.split_first_chunk::<HEADER>().ok_or(Refused::Malformed)?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // Bytes after the length are padding (RFC 2866 §3).
    let attributes = datagram.get(HEADER..length).ok_or(Refused::Malformed)?;
    codes.contains(&header[0]).then_some((header, attributes)).ok_or(Refused::Malformed)
}

fn authenticator_of(header: &[u8; HEADER]) -> [u8; 16] {
    let mut authenticator = [0; 16];
    authenticator.copy_from_slice(&header[4..]);
    authenticator
}

/// An attribute, its kind and its value.
type Attribute<'a> = (&'a [u8], u8, &'a [u8]);

fn next<'a>(attributes: &mut &'a [u8]) -> Result<Option<Attribute<'a>>, Refused> {
    let [kind, length, ..] = **attributes else {
        return attributes.is_empty().then_some(None).ok_or(Refused::Malformed);
    };
    let split = attributes.split_at_checked(length.into()).ok_or(Refused::Malformed)?;
    let (attribute, rest) = split;
    *attributes = rest;
    Ok(Some((attribute, kind, attribute.get(2..).ok_or(Refused::Malformed)?)))
}

/// The answer to a packet with these attributes; with a Message-Authenticator if `is_signed`.
fn answer(
    [code, identifier]: [u8; 2],
    authenticator: &[u8; 16],
    is_signed: bool,
    more: &[u8],
    secret: &[u8],
) -> Vec<u8> {
    let signature = if is_signed { &[MESSAGE_AUTHENTICATOR, 18][..] } else { &[] };
    let signature = [signature, &[0; 16][..signature.len() * 8]].concat();
    let mut attributes = [&signature, more].concat();
    let [high, low] = ((HEADER + attributes.len()) as u16).to_be_bytes();
    let start = [code, identifier, high, low];
    if is_signed {
        let whole = [&start[..], authenticator, &attributes].concat();
        attributes[2..18].copy_from_slice(&hmac(&whole, secret));
    }
    let authenticator = hash(&start, authenticator, &attributes, secret);
    [&start[..], &authenticator, &attributes].concat()
}

/// Whether the Message-Authenticator of a packet is right; `None` if there is none. `authenticator` is used in place of
/// the packet's authenticator. Source: RFC 2869 §5.14, RFC 5997 §3, RFC 5176 §3.4.
fn message_is_right(
    header: &[u8; HEADER],
    authenticator: &[u8; 16],
    attributes: &[u8],
    secret: &[u8],
) -> Option<bool> {
    let mut rest = attributes;
    while let Ok(Some((attribute, kind, value))) = next(&mut rest) {
        if kind == MESSAGE_AUTHENTICATOR && value.len() == 16 {
            let end = attributes.len() - rest.len();
            let before = &attributes[..end - attribute.len() + 2];
            let whole = [&header[..4], authenticator, before, &[0; 16], rest].concat();
            return Some(hmac(&whole, secret) == value);
        }
    }
    None
}

/// HMAC-MD5. Source: RFC 2104.
fn hmac(bytes: &[u8], secret: &[u8]) -> [u8; 16] {
    const BLOCK: usize = 64;
    let mut key = [0; BLOCK];
    if secret.len() > BLOCK {
        key[..16].copy_from_slice(&Md5::digest(secret));
    } else {
        key[..secret.len()].copy_from_slice(secret);
    }
    let inner = Md5::new().chain_update(key.map(|byte| byte ^ 0x36)).chain_update(bytes).finalize();
    Md5::new().chain_update(key.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

fn hash(start: &[u8], authenticator: &[u8; 16], attributes: &[u8], secret: &[u8]) -> [u8; 16] {
    let md5 = Md5::new().chain_update(start).chain_update(authenticator);
    md5.chain_update(attributes).chain_update(secret).finalize().into()
}

/// Encodes bytes as a name of letters, digits and `-_.@:/+`, of at most [`NAME_MAX`] bytes. Each other byte is `%` and
/// two digits; the end of a longer name is `%h` and a hash of the whole. Different bytes give different names.
fn name_of(bytes: &[u8]) -> String {
    let mut name = String::new();
    let escape = |name: &mut String, bytes: &[u8]| {
        bytes.iter().for_each(|byte| *name += &format!("%{byte:02x}"));
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_alphanumeric() || "-_.@:/+".contains(c) {
                name.push(c);
            } else {
                escape(&mut name, c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        escape(&mut name, chunk.invalid());
    }
    bounded(name)
}

/// Shortens a name as [`name_of`] says.
fn bounded(mut name: String) -> String {
    if name.len() > NAME_MAX {
        let hash: [u8; 16] = Md5::digest(name.as_bytes()).into();
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let fits = |at: &usize| name.is_char_boundary(*at);
        let at = (0..=NAME_MAX - 2 - hash.len()).rev().find(fits).unwrap_or_default();
        name.truncate(at);
        name += "%h";
        name += &hash;
    }
    name
}

/// The name of a user that is known only by its Calling-Station-Id.
fn station_name(station: &str) -> String {
    bounded(format!("%station:{station}"))
}

/// A text without control characters; `None` for other values.
fn text(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    (!text.is_empty() && !text.contains(char::is_control)).then(|| text.to_owned())
}

/// The address of an attribute; `Some(None)` if the attribute leaves the choice to the other side.
fn address(kind: u8, value: &[u8]) -> Option<Option<IpNet>> {
    match kind {
        FRAMED_IP_ADDRESS => {
            let address = Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?);
            // 255.255.255.255 means chosen by the user, .254 chosen by the NAS (RFC 2865 §5.8).
            let is_none = u32::from(address) >= 0xffff_fffe || address.is_unspecified();
            Some((!is_none).then(|| IpAddr::from(address).into()))
        }
        FRAMED_IPV6_ADDRESS => {
            let address = Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?);
            Some(Some(IpAddr::from(address).into()))
        }
        _ => {
            let [_, length, bytes @ ..] = value else { return None };
            let mut address = [0; 16];
            address.get_mut(..bytes.len())?.copy_from_slice(bytes);
            // RFC 3162 §2.3 requires zeros after the prefix; NASes put the address of an interface there.
            let net = Ipv6Net::new(address.into(), *length).ok()?.trunc();
            let fits = bytes.len() * 8 >= usize::from(*length);
            fits.then_some((*length > 0).then_some(net.into()))
        }
    }
}

/// What a packet changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The user has another session than before, with the packet's addresses.
    Has,
    /// The user's session continues. What the packet does not mention stays as before.
    GoesOn,
    /// The session is over.
    Ended,
    /// These users no longer have a session of the NAS.
    EndedAll(Vec<String>),
    /// Nothing.
    Nothing,
    /// The packet was answered before.
    Again,
}

/// The users with a session, and the packets that were answered.
#[derive(Debug, Default)]
pub struct Sessions {
    live: BTreeMap<String, Vec<Live>>,
    /// The numbers of these sessions, with their users.
    numbers: BTreeSet<(String, String)>,
    over: Ended,
    answered: Answered<()>,
}

/// A session that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Live {
    session: Session,
    /// The addresses it reported; `None` for one restored at the start, which has those that no other session has.
    addresses: Option<Vec<IpNet>>,
    heard: Heard,
}

/// The packets of a session that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heard {
    /// The time of the last packet, or of the restoration.
    at: Time,
    is_restored: bool,
    /// The longest time from a packet to an Interim after it.
    gap: Option<Span>,
    /// The interval of Interims that the access server announced.
    interim: Option<Span>,
}

impl Heard {
    fn note(&mut self, packet: &Accounting, now: Time) {
        if packet.event == Event::Interim && !self.is_restored {
            self.gap = self.gap.max(Some(now.since(self.at)));
        }
        (self.at, self.is_restored) = (now, false);
        self.interim = packet.interim.or(self.interim);
    }
}

/// A session that has been silent for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// The session.
    pub session: Session,
    /// The time of its last packet.
    pub since: Time,
    /// Whether that time is the start of this program, before which packets may have come.
    pub is_restored: bool,
    /// Whether it sent Interims before, or announced them.
    pub reports: bool,
    /// The time without packets after which it counts as silent.
    pub limit: Span,
}

/// The addresses among `has`, those of a user, that belong to session `i`.
fn part<'h>(all: &'h [Live], i: usize, has: &'h [IpNet]) -> impl Iterator<Item = IpNet> + 'h {
    let told =
        |live: &Live, address: &IpNet| live.addresses.as_ref().is_some_and(|a| a.contains(address));
    let is_its = move |address: &&IpNet| match &all[i].addresses {
        Some(_) => told(&all[i], address),
        None => !all.iter().any(|other| told(other, address)),
    };
    has.iter().filter(is_its).copied()
}

/// The addresses of a session that continues: a packet with addresses of one family keeps those of the other.
fn merged(before: &[IpNet], now: &[IpNet]) -> Vec<IpNet> {
    let is_v4 = |net: &IpNet| matches!(net, IpNet::V4(_));
    let is_unspoken = |net: &&IpNet| !now.iter().any(|other| is_v4(other) == is_v4(net));
    before.iter().filter(is_unspoken).chain(now).copied().collect()
}

/// The packets that were answered last, with the time and the answer.
#[derive(Debug)]
struct Answered<T> {
    by_hash: BTreeMap<[u8; 16], (Time, T)>,
    order: VecDeque<[u8; 16]>,
}

impl<T> Default for Answered<T> {
    fn default() -> Self {
        Answered { by_hash: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<T> Answered<T> {
    fn get(&self, hash: &[u8; 16]) -> Option<&(Time, T)> {
        self.by_hash.get(hash)
    }

    fn insert(&mut self, hash: [u8; 16], now: Time, how: T) {
        if self.by_hash.insert(hash, (now, how)).is_some() {
            return;
        }
        if self.order.len() == REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_hash.remove(&oldest);
        }
        self.order.push_back(hash);
    }
}

/// The sessions that ended last, by a hash of user and number: their NAS, and the end in Unix time.
#[derive(Debug, Default)]
struct Ended {
    by_hash: BTreeMap<[u8; 16], (Nas, u64)>,
    order: VecDeque<[u8; 16]>,
}

impl Ended {
    fn hash(user: &str, number: &str) -> [u8; 16] {
        // No name contains a zero byte.
        Md5::new().chain_update(user).chain_update([0]).chain_update(number).finalize().into()
    }

    /// When the session ended.
    fn at(&self, user: &str, session: &Session) -> Option<u64> {
        let (nas, at_s) = self.by_hash.get(&Ended::hash(user, &session.number))?;
        nas.is(&session.nas).then_some(*at_s)
    }

    fn insert(&mut self, user: &str, session: Session, at_s: u64) {
        let hash = Ended::hash(user, &session.number);
        if self.by_hash.insert(hash, (session.nas, at_s)).is_some() {
            return;
        }
        if self.order.len() == REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_hash.remove(&oldest);
        }
        self.order.push_back(hash);
    }

    fn forget(&mut self, user: &str, session: &Session) {
        let hash = Ended::hash(user, &session.number);
        if self.by_hash.remove(&hash).is_some() {
            self.order.retain(|one| *one != hash);
        }
    }

    fn forget_all_of(&mut self, nas: &Nas) {
        self.by_hash.retain(|_, (other, _)| !other.is(nas));
        self.order.retain(|hash| self.by_hash.contains_key(hash));
    }
}

impl Sessions {
    /// Restores a user's session from before the start of this program, which is at `now`.
    pub fn restore(&mut self, user: String, session: Session, now: Time) {
        self.numbers.insert((session.number.clone(), user.clone()));
        let heard = Heard { at: now, is_restored: true, gap: None, interim: None };
        self.live.insert(user, vec![Live { session, addresses: None, heard }]);
    }

    /// Notes that a packet arrived, whatever it changes.
    pub fn hear(&mut self, packet: &Accounting, now: Time) {
        let all = self.live.get_mut(&packet.user).into_iter().flatten();
        for live in all.filter(|live| live.session.is(&packet.session)) {
            live.heard.note(packet, now);
        }
    }

    /// Up to `max` users with a session, after `after` in the order of their names.
    pub fn users_after(&self, after: &str, max: usize) -> Vec<String> {
        let from = (Bound::Excluded(after), Bound::Unbounded);
        self.live.range::<str, _>(from).take(max).map(|(user, _)| user.clone()).collect()
    }

    /// The sessions of a user without a packet for `limit` or, without one, [`INTERIMS_MISSED`] times the announced
    /// interval; in both cases at least that many times the longest pause that a session had before.
    pub fn silent(&self, user: &str, limit: Option<Span>, now: Time) -> Vec<Silent> {
        let times = |span: Span| Span::nanos(span.as_nanos().saturating_mul(INTERIMS_MISSED));
        let silent = |live: &Live| {
            let Heard { at: since, is_restored, gap, interim } = live.heard;
            let limit = limit.or(interim.map(times))?.max(gap.map_or(Span::ZERO, times));
            let reports = gap.is_some() || interim.is_some();
            let session = live.session.clone();
            let silent = Silent { session, since, is_restored, reports, limit };
            (now.since(since) >= limit).then_some(silent)
        };
        self.live.get(user).into_iter().flatten().filter_map(silent).collect()
    }

    /// The sessions of a user, and the time of each one's last packet; `None` if there was none since the start.
    pub fn heard(&self, user: &str) -> impl Iterator<Item = (&Session, Option<Time>)> {
        let heard = |live: &Live| (!live.heard.is_restored).then_some(live.heard.at);
        let all = self.live.get(user).into_iter().flatten();
        all.map(move |live| (&live.session, heard(live)))
    }

    /// Forgets a silent session. It is not over: if it continues after all, its next packet begins it again.
    pub fn drop_silent(&mut self, user: &str, session: &Session) {
        self.remove(user, |live| live.session == *session);
    }

    /// The addresses of a user, who now has `has`, once a verdict that concerns the user is applied.
    pub fn addresses_after(
        &self,
        user: &str,
        packet: &Accounting,
        verdict: &Verdict,
        has: &[IpNet],
    ) -> Vec<IpNet> {
        let all = self.live.get(user).map_or(&[][..], Vec::as_slice);
        let mut addresses = Vec::new();
        for (i, live) in all.iter().enumerate() {
            let own: Vec<IpNet> = part(all, i, has).collect();
            let is_it = live.session.is(&packet.session);
            match verdict {
                Verdict::Ended if is_it => {}
                Verdict::EndedAll(_) if live.session.nas.is(&packet.session.nas) => {}
                Verdict::GoesOn if is_it => addresses.extend(merged(&own, &packet.addresses)),
                _ => addresses.extend(own),
            }
        }
        if *verdict == Verdict::Has {
            addresses.extend(&packet.addresses);
        }
        // Sorted, so that a session of two families does not change with each packet.
        addresses.sort_by_key(|net| (matches!(net, IpNet::V6(_)), *net));
        addresses.dedup();
        addresses
    }

    /// The addresses of one session of a user, who has `has`.
    pub fn addresses_of(&self, user: &str, session: &Session, has: &[IpNet]) -> Vec<IpNet> {
        let all = self.live.get(user).map_or(&[][..], Vec::as_slice);
        let i = all.iter().position(|live| live.session == *session);
        i.map(|i| part(all, i, has).collect()).unwrap_or_default()
    }

    /// What a packet changes at `now`, which is `now_s` in Unix time. `owns` says whether a user has one of
    /// these addresses: sessions from an older journal are only identified by their addresses.
    ///
    /// # Errors
    /// [`Refused::Replayed`], [`Refused::Untimely`], or [`Refused::Over`].
    pub fn judge(
        &self,
        packet: &Accounting,
        now: Time,
        now_s: u64,
        owns: impl FnOnce(&str, &[IpNet]) -> bool,
    ) -> Result<Verdict, Refused> {
        if packet.event == Event::Status {
            return Ok(Verdict::Nothing);
        }
        if let Some((at, ())) = self.answered.get(&packet.authenticator) {
            let is_recent = now.since(*at) < ANSWER_AGAIN;
            return if is_recent { Ok(Verdict::Again) } else { Err(Refused::Replayed) };
        }
        let is_timely = |at| now_s.saturating_sub(AGE_MAX_S) <= at && at <= now_s + AHEAD_MAX_S;
        if !packet.happened_s.is_none_or(is_timely) {
            return Err(Refused::Untimely);
        }
        let is_live = self.of(&packet.user).any(|live| live.is(&packet.session));
        let has_none = !self.live.contains_key(&packet.user);
        let ended_s = self.over.at(&packet.user, &packet.session);
        if !is_live && ended_s.is_some_and(|ended_s| !packet.begins_after(ended_s, now_s)) {
            return Err(Refused::Over);
        }
        Ok(match packet.event {
            Event::Status | Event::Other => Verdict::Nothing,
            Event::Nas => {
                let is_of = |live: &Live| live.session.nas.is(&packet.session.nas);
                let of_nas = self.live.iter().filter(|(_, all)| all.iter().any(is_of));
                Verdict::EndedAll(of_nas.map(|(user, _)| user.clone()).collect())
            }
            Event::Start | Event::Interim if is_live => Verdict::GoesOn,
            Event::Start | Event::Interim if packet.addresses.is_empty() => Verdict::Nothing,
            Event::Start | Event::Interim => Verdict::Has,
            Event::Stop => {
                let ends = is_live || (has_none && owns(&packet.user, &packet.addresses));
                if ends { Verdict::Ended } else { Verdict::Nothing }
            }
        })
    }

    /// Applies the verdict of [`Sessions::judge`] on a packet, once the change is stored; the packet will be answered.
    pub fn settle(&mut self, packet: &Accounting, verdict: &Verdict, now: Time, now_s: u64) {
        if *verdict == Verdict::Again || packet.event == Event::Status {
            return;
        }
        let at_s = packet.time_s(now_s);
        match verdict {
            Verdict::Has => {
                self.over.forget(&packet.user, &packet.session);
                let (session, addresses) = (packet.session.clone(), packet.addresses.clone());
                self.numbers.insert((session.number.clone(), packet.user.clone()));
                let all = self.live.entry(packet.user.clone()).or_default();
                take_from(all, None, &packet.addresses);
                let interim = packet.interim;
                let heard = Heard { at: now, is_restored: false, gap: None, interim };
                all.push(Live { session, addresses: Some(addresses), heard });
                let mut too_many = all.len().saturating_sub(SESSIONS_MAX);
                let over = self.remove(&packet.user, |live| {
                    let is_oldest = too_many > 0;
                    too_many = too_many.saturating_sub(1);
                    is_oldest || live.addresses.as_ref().is_some_and(Vec::is_empty)
                });
                for session in over {
                    self.over.insert(&packet.user, session, at_s);
                }
            }
            Verdict::Ended => {
                self.remove(&packet.user, |live| live.session.is(&packet.session));
            }
            Verdict::GoesOn => {
                let all = self.live.get_mut(&packet.user).map_or(&mut [][..], Vec::as_mut_slice);
                let i = all.iter().position(|live| live.session.is(&packet.session));
                take_from(all, i, &packet.addresses);
                if let Some(told) = i.and_then(|i| all[i].addresses.as_mut()) {
                    *told = merged(told, &packet.addresses);
                }
            }
            Verdict::EndedAll(users) => {
                for user in users {
                    self.remove(user, |live| live.session.nas.is(&packet.session.nas));
                }
                // The NAS may restart its session numbers at one.
                self.over.forget_all_of(&packet.session.nas);
            }
            Verdict::Nothing | Verdict::Again => {}
        }
        if packet.event == Event::Stop {
            self.over.insert(&packet.user, packet.session.clone(), at_s);
        }
        self.answered.insert(packet.authenticator, now, ());
    }

    /// The sessions of a user that packets reported; the one that began last is last.
    pub fn of<'s>(&'s self, user: &str) -> impl Iterator<Item = &'s Session> + Clone + use<'s> {
        self.live.get(user).into_iter().flatten().map(|live| &live.session)
    }

    /// The users with a session of this number, which may occur at several access servers.
    pub fn users_of<'s>(&'s self, number: &'s str) -> impl Iterator<Item = &'s String> {
        let from = self.numbers.range((number.to_owned(), String::new())..);
        from.take_while(move |(other, _)| other == number).map(|(_, user)| user)
    }

    /// Ends a session of a user at `at_s`, Unix time, as a Stop packet would.
    pub fn end(&mut self, user: &str, session: &Session, at_s: u64) {
        for session in self.remove(user, |live| live.session == *session) {
            self.over.insert(user, session, at_s);
        }
    }

    /// Removes sessions of a user.
    fn remove(&mut self, user: &str, mut is_over: impl FnMut(&Live) -> bool) -> Vec<Session> {
        let Some(all) = self.live.get_mut(user) else { return Vec::new() };
        let over: Vec<Live> = all.extract_if(.., |live| is_over(live)).collect();
        let left: Vec<&String> = all.iter().map(|live| &live.session.number).collect();
        for Live { session, .. } in &over {
            if !left.contains(&&session.number) {
                self.numbers.remove(&(session.number.clone(), user.to_owned()));
            }
        }
        if left.is_empty() {
            self.live.remove(user);
        }
        over.into_iter().map(|live| live.session).collect()
    }

    /// The number of users with a session of which a packet was received.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether there are no such users.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }
}

/// Removes `addresses` from the user's other sessions, since one session or a new one has them now.
fn take_from(all: &mut [Live], except: Option<usize>, addresses: &[IpNet]) {
    let others = all.iter_mut().enumerate().filter(|(i, _)| Some(*i) != except);
    for told in others.filter_map(|(_, live)| live.addresses.as_mut()) {
        told.retain(|address| !addresses.contains(address));
    }
}

const HEADER: usize = 20;
const REQUEST: u8 = 4;
const STATUS_SERVER: u8 = 12;
const RESPONSE: u8 = 5;
const USER_NAME: u8 = 1;
const NAS_IP_ADDRESS: u8 = 4;
const FRAMED_IP_ADDRESS: u8 = 8;
const FILTER_ID: u8 = 11;
const CALLING_STATION_ID: u8 = 31;
const NAS_IDENTIFIER: u8 = 32;
const PROXY_STATE: u8 = 33;
const STATUS_TYPE: u8 = 40;
const DELAY_TIME: u8 = 41;
const SESSION_ID: u8 = 44;
const EVENT_TIMESTAMP: u8 = 55;
const INTERIM_INTERVAL: u8 = 85;
const MESSAGE_AUTHENTICATOR: u8 = 80;
const NAS_IPV6_ADDRESS: u8 = 95;
const FRAMED_IPV6_PREFIX: u8 = 97;
const DELEGATED_IPV6_PREFIX: u8 = 123;
const FRAMED_IPV6_ADDRESS: u8 = 168;

pub mod claims;
pub mod coa;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
