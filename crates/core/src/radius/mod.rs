//! Accounting packets of RADIUS: who has a session, with which addresses and which plan.
//!
//! Method: [`Accounting::read`] checks the length, the authenticator, which is a hash of the packet and a
//! secret that both sides know, and the attributes. [`Sessions::judge`] says what a packet changes;
//! what it says is made true by [`Sessions::settle`] once the change is stored, so that a packet whose
//! change failed counts as never received. The answer ([`Accounting::answer`]) says that it is stored.
//!
//! A user has one session; a newer one takes the place of the older. A packet that was answered is
//! answered again for [`ANSWER_AGAIN`] without an effect, and then refused as a replay. A packet of a
//! session that is over is refused, and so is one whose time differs too much from the clock.
//!
//! Properties, tested: any bytes are read without a panic; no packet with another secret or a changed
//! byte is taken; an old packet never changes a session. All tables are bounded.
//! Source: RFC 2865, 2866, 2869 (time), 3162, 4818 and 6911 (IPv6).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};
use md5::{Digest, Md5};

use crate::units::{Span, Time};

/// The longest packet. Source: RFC 2866 §3.
pub const PACKET_MAX: usize = 4_096;
/// How long a packet that was answered is answered again: NASes repeat theirs for less.
pub const ANSWER_AGAIN: Span = Span::secs(60);
/// How much older than now a packet may be: a NAS may keep packets while the server is down.
pub const AGE_MAX_S: u64 = 3_600;
/// How much newer than now: clocks differ.
pub const AHEAD_MAX_S: u64 = 300;
/// The most packets and ended sessions that are remembered, the newest ones.
pub const REMEMBERED_MAX: usize = 65_536;
/// The most addresses and prefixes of a packet.
pub const ADDRESSES_MAX: usize = 64;

/// What an accounting packet reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session has begun.
    Start,
    /// It goes on.
    Interim,
    /// It is over.
    Stop,
    /// The NAS has started or stops: all its sessions have ended.
    Nas,
}

/// An accounting packet with a valid authenticator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accounting {
    identifier: u8,
    authenticator: [u8; 16],
    /// To be sent back.
    proxy_states: Vec<u8>,
    /// What it reports.
    pub event: Event,
    /// The user of the session; empty for [`Event::Nas`].
    pub user: String,
    /// The name of a plan (Filter-Id), if the packet has one.
    pub plan: Option<String>,
    /// The addresses and prefixes of the session.
    pub addresses: Vec<IpNet>,
    session: SessionKey,
    /// When it happened, Unix time.
    pub happened_s: Option<u64>,
}

/// A session: hashes of its NAS, as the NAS calls itself, and of its number there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct SessionKey {
    nas: [u8; 16],
    number: [u8; 16],
}

/// Why a packet is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refused {
    /// Longer than [`PACKET_MAX`].
    #[error("longer than {PACKET_MAX} bytes")]
    Oversized,
    /// Lengths do not fit, or an attribute is missing or invalid.
    #[error("not a valid accounting request")]
    Malformed,
    /// Another secret, or changed on the way.
    #[error("wrong authenticator: another secret, or changed on the way")]
    Forged,
    /// Answered long ago.
    #[error("a packet that was answered long ago")]
    Replayed,
    /// Its time differs from the clock by more than [`AGE_MAX_S`] or [`AHEAD_MAX_S`].
    #[error("its Event-Timestamp differs too much from the clock")]
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
        if datagram.len() > PACKET_MAX {
            return Err(Refused::Oversized);
        }
        let (header, _) = datagram.split_first_chunk::<HEADER>().ok_or(Refused::Malformed)?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        // Bytes behind the length are padding (RFC 2866 §3).
        if header[0] != REQUEST || !(HEADER..=datagram.len()).contains(&length) {
            return Err(Refused::Malformed);
        }
        let attributes = &datagram[HEADER..length];
        let mut authenticator = [0; 16];
        authenticator.copy_from_slice(&header[4..]);
        if hash(&header[..4], &[0; 16], attributes, secret) != authenticator {
            return Err(Refused::Forged);
        }
        let mut accounting = Accounting {
            identifier: header[1],
            authenticator,
            proxy_states: Vec::new(),
            event: Event::Nas,
            user: String::new(),
            plan: None,
            addresses: Vec::new(),
            session: SessionKey::default(),
            happened_s: None,
        };
        accounting.read_attributes(attributes)?;
        Ok(accounting)
    }

    fn read_attributes(&mut self, mut attributes: &[u8]) -> Result<(), Refused> {
        let (mut event, mut nas) = (None, Md5::new());
        let mut has_number = false;
        while let [kind, length, ..] = *attributes {
            let split = attributes.split_at_checked(length.into()).ok_or(Refused::Malformed)?;
            let (attribute, rest) = split;
            attributes = rest;
            let value = attribute.get(2..).ok_or(Refused::Malformed)?;
            let number = || <[u8; 4]>::try_from(value).map(u32::from_be_bytes);
            match kind {
                USER_NAME => self.user = text(value).ok_or(Refused::Malformed)?,
                FILTER_ID => self.plan = text(value),
                NAS_IP_ADDRESS | NAS_IDENTIFIER | NAS_IPV6_ADDRESS => {
                    nas.update(attribute);
                }
                SESSION_ID => {
                    (self.session.number, has_number) = (Md5::digest(value).into(), true);
                }
                PROXY_STATE => self.proxy_states.extend(attribute),
                EVENT_TIMESTAMP => self.happened_s = number().ok().map(u64::from),
                STATUS_TYPE => {
                    event = match number() {
                        Ok(1) => Some(Event::Start),
                        Ok(2) => Some(Event::Stop),
                        Ok(3) => Some(Event::Interim),
                        Ok(7 | 8) => Some(Event::Nas),
                        _ => None,
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
                _ => {}
            }
        }
        self.event = event.ok_or(Refused::Malformed)?;
        self.session.nas = nas.finalize().into();
        let has_session = !self.user.is_empty() && has_number;
        let is_whole = attributes.is_empty() && (self.event == Event::Nas || has_session);
        is_whole.then_some(()).ok_or(Refused::Malformed)
    }

    /// The Accounting-Response.
    pub fn answer(&self, secret: &[u8]) -> Vec<u8> {
        let length = (HEADER + self.proxy_states.len()) as u16;
        let [high, low] = length.to_be_bytes();
        let start = [RESPONSE, self.identifier, high, low];
        let authenticator = hash(&start, &self.authenticator, &self.proxy_states, secret);
        [&start[..], &authenticator, &self.proxy_states].concat()
    }
}

fn hash(start: &[u8], authenticator: &[u8; 16], attributes: &[u8], secret: &[u8]) -> [u8; 16] {
    let md5 = Md5::new().chain_update(start).chain_update(authenticator);
    md5.chain_update(attributes).chain_update(secret).finalize().into()
}

/// A text without what ends or hides it.
fn text(value: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(value).ok()?;
    (!text.is_empty() && !text.contains(char::is_control)).then(|| text.to_owned())
}

/// The address of an attribute; `Some(None)` leaves it to the user's side.
fn address(kind: u8, value: &[u8]) -> Option<Option<IpNet>> {
    match kind {
        FRAMED_IP_ADDRESS => {
            let address = Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?);
            // 255.255.255.255 and .254: chosen by the user, and by the NAS (RFC 2865 §5.8).
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
            // RFC 3162 §2.3: at least as long as the prefix, and zero behind it.
            let net = Ipv6Net::new(address.into(), *length).ok()?;
            let fits = bytes.len() * 8 >= usize::from(*length) && net.trunc() == net;
            (fits && *length > 0).then_some(Some(net.into()))
        }
    }
}

/// What a packet changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The user has a session with the packet's addresses.
    Has,
    /// The user has no session any more.
    Ended,
    /// These users have none.
    EndedAll(Vec<String>),
    /// Nothing.
    Nothing,
    /// It was answered before.
    Again,
}

/// The users with a session, and the packets that were answered.
#[derive(Debug, Default)]
pub struct Sessions {
    live: BTreeMap<String, SessionKey>,
    over: Remembered<SessionKey>,
    answered: BTreeMap<[u8; 16], Time>,
    answered_order: VecDeque<[u8; 16]>,
}

/// The newest of what was ever put into it.
#[derive(Debug)]
struct Remembered<T> {
    set: BTreeSet<T>,
    order: VecDeque<T>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Remembered<T> {
        Remembered { set: BTreeSet::new(), order: VecDeque::new() }
    }
}

impl<T: Ord + Clone> Remembered<T> {
    fn insert(&mut self, item: T) {
        if !self.set.insert(item.clone()) {
            return;
        }
        if self.order.len() == REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
        self.order.push_back(item);
    }

    fn retain(&mut self, stays: impl Fn(&T) -> bool) {
        self.set.retain(&stays);
        self.order.retain(&stays);
    }
}

impl Sessions {
    /// What a packet changes at `now`, which is `now_s` in Unix time. `owns` says whether a user has
    /// one of these addresses: a session that began before the daemon is known by them alone.
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
        if let Some(at) = self.answered.get(&packet.authenticator) {
            let is_recent = now.since(*at) < ANSWER_AGAIN;
            return if is_recent { Ok(Verdict::Again) } else { Err(Refused::Replayed) };
        }
        let is_timely = |at| now_s.saturating_sub(AGE_MAX_S) <= at && at <= now_s + AHEAD_MAX_S;
        if !packet.happened_s.is_none_or(is_timely) {
            return Err(Refused::Untimely);
        }
        let live = self.live.get(&packet.user);
        match packet.event {
            Event::Nas => {
                let of_nas = self.live.iter().filter(|(_, key)| key.nas == packet.session.nas);
                Ok(Verdict::EndedAll(of_nas.map(|(user, _)| user.clone()).collect()))
            }
            _ if self.over.set.contains(&packet.session) => Err(Refused::Over),
            Event::Start | Event::Interim if packet.addresses.is_empty() => Ok(Verdict::Nothing),
            Event::Start | Event::Interim => Ok(Verdict::Has),
            Event::Stop => {
                let ends = match live {
                    Some(key) => *key == packet.session,
                    None => owns(&packet.user, &packet.addresses),
                };
                Ok(if ends { Verdict::Ended } else { Verdict::Nothing })
            }
        }
    }

    /// Takes over what [`Sessions::judge`] said of a packet, which is stored and will be answered.
    pub fn settle(&mut self, packet: &Accounting, verdict: &Verdict, now: Time) {
        match verdict {
            Verdict::Again => return,
            Verdict::Has => {
                let before = self.live.insert(packet.user.clone(), packet.session);
                if let Some(before) = before.filter(|before| *before != packet.session) {
                    self.over.insert(before);
                }
            }
            Verdict::Ended => drop(self.live.remove(&packet.user)),
            Verdict::EndedAll(users) => {
                for user in users {
                    self.live.remove(user);
                }
                // It may count its sessions from one again.
                self.over.retain(|key| key.nas != packet.session.nas);
            }
            Verdict::Nothing => {}
        }
        if packet.event == Event::Stop {
            self.over.insert(packet.session);
        }
        if self.answered_order.len() == REMEMBERED_MAX
            && let Some(oldest) = self.answered_order.pop_front()
        {
            self.answered.remove(&oldest);
        }
        if self.answered.insert(packet.authenticator, now).is_none() {
            self.answered_order.push_back(packet.authenticator);
        }
    }

    /// How many users have a session of which a packet was received.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }
}

const HEADER: usize = 20;
const REQUEST: u8 = 4;
const RESPONSE: u8 = 5;
const USER_NAME: u8 = 1;
const NAS_IP_ADDRESS: u8 = 4;
const FRAMED_IP_ADDRESS: u8 = 8;
const FILTER_ID: u8 = 11;
const NAS_IDENTIFIER: u8 = 32;
const PROXY_STATE: u8 = 33;
const STATUS_TYPE: u8 = 40;
const SESSION_ID: u8 = 44;
const EVENT_TIMESTAMP: u8 = 55;
const NAS_IPV6_ADDRESS: u8 = 95;
const FRAMED_IPV6_PREFIX: u8 = 97;
const DELEGATED_IPV6_PREFIX: u8 = 123;
const FRAMED_IPV6_ADDRESS: u8 = 168;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;
