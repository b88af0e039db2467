//! Requests of a server to change or end a session: CoA-Request and Disconnect-Request.
//!
//! Method: [`Request::read`] checks lengths, the authenticator, and the Message-Authenticator if present, and reads
//! which change of which session is wanted. [`Answers::judge`] says whether the request is new or was done before. The
//! result ([`Outcome`]) is remembered by [`Answers::settle`] and sent by [`Request::answer`].
//!
//! A request with an Event-Timestamp is answered only while this is within [`WINDOW_S`] of the clock and not before the
//! start of the memory ([`Answers::since`]), and is done once, whatever its source. A request without one is done once
//! within [`AGAIN`] for each address, port and identifier: a recorded one can be sent again later.
//!
//! Properties, tested: any bytes are read without a panic; a request with another secret or a changed byte is refused;
//! a request that is not understood completely changes nothing. All tables are bounded.
//! Source: RFC 5176; RFC 5080 §2.2.2 (duplicates).

use std::net::SocketAddr;

use super::claims::{Plans, Source};
use super::*;

/// How far the time of a request may be from the clock, in seconds. Source: RFC 5176 §6.3.
pub const WINDOW_S: u64 = 300;
/// How long a request without a time is answered again without an effect. Source: RFC 5080 §2.2.2.
pub const AGAIN: Span = Span::secs(30);

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// To change the plan of a session.
    Change,
    /// To end a session.
    Disconnect,
}

/// Why a request is refused, as values of Error-Cause. Source: RFC 5176 §3.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[repr(u32)]
pub enum Cause {
    /// An attribute is not supported here, or does not belong to this request.
    #[error("Unsupported-Attribute")]
    UnsupportedAttribute = 401,
    /// An attribute is missing.
    #[error("Missing-Attribute")]
    MissingAttribute = 402,
    /// The request identifies a session in two contradicting ways.
    #[error("Invalid-Request")]
    InvalidRequest = 404,
    /// The request asks to authorize again.
    #[error("Unsupported-Service")]
    UnsupportedService = 405,
    /// An attribute has an invalid value, such as a plan that does not exist.
    #[error("Invalid-Attribute-Value")]
    InvalidValue = 407,
    /// No session matches all attributes.
    #[error("Session-Context-Not-Found")]
    NotFound = 503,
    /// The change cannot be stored or applied.
    #[error("Resources-Unavailable")]
    Resources = 506,
    /// Several sessions match.
    #[error("Multiple-Session-Selection-Unsupported")]
    Multiple = 508,
}

/// The result of a request.
pub type Outcome = Result<(), Cause>;

/// The session that is meant: it must match everything that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The user, as in [`Accounting::user`].
    pub user: Option<String>,
    /// The session's number, as in [`Session`].
    pub number: Option<String>,
    /// The NAS of the session.
    pub nas: Option<Nas>,
    /// Addresses that the session has, perhaps among others.
    pub addresses: Vec<IpNet>,
}

/// A request with a valid authenticator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    identifier: u8,
    authenticator: [u8; 16],
    proxy_states: Vec<u8>,
    is_signed: bool,
    happened_s: Option<u64>,
    /// Why the request cannot be done in any case.
    wrong: Option<Cause>,
    /// The requested action.
    pub ask: Ask,
    /// The session that the request names.
    pub named: Named,
    /// What the request says about the new plan.
    claims: Claims,
}

impl Request {
    /// Reads a packet.
    ///
    /// # Errors
    /// [`Refused::Oversized`], [`Refused::Malformed`], or [`Refused::Forged`].
    pub fn read(datagram: &[u8], secret: &[u8]) -> Result<Request, Refused> {
        let (header, attributes) = parts(datagram, &[DISCONNECT, CHANGE])?;
        let authenticator = authenticator_of(header);
        if hash(&header[..4], &[0; 16], attributes, secret) != authenticator {
            return Err(Refused::Forged);
        }
        let signature = message_is_right(header, &[0; 16], attributes, secret);
        if signature == Some(false) {
            return Err(Refused::Forged);
        }
        let mut request = Request {
            identifier: header[1],
            authenticator,
            proxy_states: Vec::new(),
            is_signed: signature.is_some(),
            happened_s: None,
            wrong: None,
            ask: if header[0] == CHANGE { Ask::Change } else { Ask::Disconnect },
            named: Named::default(),
            claims: Claims::default(),
        };
        request.read_attributes(attributes)?;
        Ok(request)
    }

    fn read_attributes(&mut self, mut attributes: &[u8]) -> Result<(), Refused> {
        let (mut station, mut has_others, mut nas) = (None, false, Nas::default());
        while let Some((attribute, kind, value)) = next(&mut attributes)? {
            let name = || name_of(value);
            let number = || <[u8; 4]>::try_from(value).map_err(|_| Cause::InvalidValue);
            let done = match kind {
                USER_NAME => once(&mut self.named.user, name()),
                CALLING_STATION_ID => once(&mut station, name()),
                SESSION_ID => once(&mut self.named.number, name()),
                NAS_IDENTIFIER => once(&mut nas.identifier, name()),
                NAS_IP_ADDRESS => number().and_then(|n| once(&mut nas.v4, n.into())),
                NAS_IPV6_ADDRESS => {
                    let address = <[u8; 16]>::try_from(value).map_err(|_| Cause::InvalidValue);
                    address.and_then(|address| once(&mut nas.v6, address.into()))
                }
                FRAMED_IP_ADDRESS
                | FRAMED_IPV6_PREFIX
                | DELEGATED_IPV6_PREFIX
                | FRAMED_IPV6_ADDRESS => self.add_address(kind, value),
                EVENT_TIMESTAMP => number().and_then(|n| {
                    let happened_s = u32::from_be_bytes(n).into();
                    once(&mut self.happened_s, happened_s)
                }),
                PROXY_STATE => {
                    self.proxy_states.extend(attribute);
                    Ok(())
                }
                // Attributes that were read before, or are for people.
                MESSAGE_AUTHENTICATOR | REPLY_MESSAGE => Ok(()),
                NAS_PORT
                | CALLED_STATION_ID
                | ACCT_MULTI_SESSION_ID
                | NAS_PORT_TYPE
                | NAS_PORT_ID
                | CHARGEABLE_USER => {
                    has_others = true;
                    Ok(())
                }
                SERVICE_TYPE => Err(Cause::UnsupportedService),
                _ if self.ask == Ask::Change && self.claims.note(kind, value) => Ok(()),
                _ => Err(Cause::UnsupportedAttribute),
            };
            self.wrong = self.wrong.or(done.err());
        }
        if nas != Nas::default() {
            self.named.nas = Some(nas);
        }
        let is_one = self.named.number.is_some() || !self.named.addresses.is_empty();
        match station {
            Some(station) if self.named.user.is_none() && !is_one => {
                self.named.user = Some(station_name(&station));
            }
            Some(_) => has_others = true,
            None => {}
        }
        // Attributes that distinguish a user's sessions but are unknown here do not matter if others distinguish them.
        let missing = if self.named.user.is_none() && !is_one || self.lacks_plan() {
            Some(Cause::MissingAttribute)
        } else {
            (has_others && !is_one).then_some(Cause::UnsupportedAttribute)
        };
        self.wrong = self.wrong.or(missing);
        Ok(())
    }

    fn lacks_plan(&self) -> bool {
        self.ask == Ask::Change && self.claims.sources().next().is_none()
    }

    /// The requested plan: all that the request says about it must agree. `None` if the request asks for no plan.
    ///
    /// # Errors
    /// [`Cause::UnsupportedAttribute`] if some of it is not from `sources`, [`Cause::InvalidRequest`], or
    /// [`Cause::InvalidValue`]; each with the reason.
    pub fn plan(
        &self,
        sources: &[Source],
        plans: &impl Plans,
    ) -> Result<Option<String>, (Cause, String)> {
        let mut one = None;
        for source in self.claims.sources() {
            if !sources.contains(&source) {
                let why = format!("{} is not of [radius] plan_by", source.name());
                return Err((Cause::UnsupportedAttribute, why));
            }
            if !self.claims.is_one(source) {
                return Err((Cause::InvalidRequest, format!("several of {}", source.name())));
            }
            let plan = self.claims.plan_of(source, plans);
            let plan = plan.map_err(|why| (Cause::InvalidValue, why))?;
            if one.is_some() && one != plan {
                return Err((Cause::InvalidValue, "its attributes are of two plans".to_owned()));
            }
            one = plan;
        }
        Ok(one)
    }

    fn add_address(&mut self, kind: u8, value: &[u8]) -> Result<(), Cause> {
        let address = address(kind, value).flatten().ok_or(Cause::InvalidValue)?;
        if self.named.addresses.len() == ADDRESSES_MAX {
            return Err(Cause::InvalidValue);
        }
        self.named.addresses.push(address);
        Ok(())
    }

    /// Whether the request is valid by itself; if `strict`, only if it has a Message-Authenticator and a
    /// time.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, strict: bool) -> Outcome {
        let is_safe = self.is_signed && self.happened_s.is_some();
        match self.wrong {
            _ if strict && !is_safe => Err(Cause::MissingAttribute),
            wrong => wrong.map_or(Ok(()), Err),
        }
    }

    /// When it was sent, Unix time, if it arrived at `now_s`.
    pub fn time_s(&self, now_s: u64) -> u64 {
        self.happened_s.unwrap_or(now_s)
    }

    /// The ACK or NAK.
    pub fn answer(&self, outcome: Outcome, secret: &[u8]) -> Vec<u8> {
        let request = if self.ask == Ask::Change { CHANGE } else { DISCONNECT };
        let mut attributes = Vec::new();
        if let Err(cause) = outcome {
            attributes.extend([ERROR_CAUSE, 6]);
            attributes.extend((cause as u32).to_be_bytes());
        }
        // A packet that is too long would not arrive.
        let has_room = HEADER + 18 + attributes.len() + self.proxy_states.len() <= PACKET_MAX;
        attributes.extend(self.proxy_states.iter().filter(|_| has_room));
        let code = request + if outcome.is_ok() { 1 } else { 2 };
        answer([code, self.identifier], &self.authenticator, true, &attributes, secret)
    }

    /// The key that distinguishes the request from others; see the module.
    fn key(&self, source: SocketAddr) -> [u8; 16] {
        match self.happened_s {
            Some(_) => self.authenticator,
            None => {
                let hash = Md5::new().chain_update(self.authenticator);
                hash.chain_update(source.to_string()).finalize().into()
            }
        }
    }
}

/// Notes a value that may be given once, or repeated unchanged.
fn once<T: PartialEq>(known: &mut Option<T>, value: T) -> Result<(), Cause> {
    match known {
        Some(known) if *known != value => Err(Cause::InvalidRequest),
        _ => {
            *known = Some(value);
            Ok(())
        }
    }
}

/// The results of the requests that were answered last.
#[derive(Debug)]
pub struct Answers {
    since_s: u64,
    answered: Answered<Outcome>,
}

impl Answers {
    /// Remembers no requests from before `since_s`, Unix time.
    pub fn since(since_s: u64) -> Answers {
        Answers { since_s, answered: Answered::default() }
    }

    /// The result of a repeated request; `None` if the request is new.
    ///
    /// # Errors
    /// [`Refused::Untimely`].
    pub fn judge(
        &self,
        request: &Request,
        source: SocketAddr,
        now: Time,
        now_s: u64,
    ) -> Result<Option<Outcome>, Refused> {
        let is_timely = |at: u64| at.abs_diff(now_s) <= WINDOW_S && at >= self.since_s;
        if !request.happened_s.is_none_or(is_timely) {
            return Err(Refused::Untimely);
        }
        let known = self.answered.get(&request.key(source));
        let is_again = |at: &Time| request.happened_s.is_some() || now.since(*at) < AGAIN;
        Ok(known.filter(|(at, _)| is_again(at)).map(|(_, outcome)| *outcome))
    }

    /// Remembers the result of a request.
    pub fn settle(&mut self, request: &Request, source: SocketAddr, outcome: Outcome, now: Time) {
        self.answered.insert(request.key(source), now, outcome);
    }
}

pub(super) const DISCONNECT: u8 = 40;
pub(super) const CHANGE: u8 = 43;
const NAS_PORT: u8 = 5;
const SERVICE_TYPE: u8 = 6;
const REPLY_MESSAGE: u8 = 18;
const CALLED_STATION_ID: u8 = 30;
const ACCT_MULTI_SESSION_ID: u8 = 50;
const NAS_PORT_TYPE: u8 = 61;
const NAS_PORT_ID: u8 = 87;
const CHARGEABLE_USER: u8 = 89;
pub(super) const ERROR_CAUSE: u8 = 101;

#[cfg(test)]
mod tests {
    use super::super::claims::Rates;
    use super::*;
    use crate::units::Rate;

    const SECRET: &[u8] = b"a secret of sixteen bytes";
    const NOW_S: u64 = 1_790_000_000;
    const ALICE: Pair<'_> = (USER_NAME, b"alice");
    const GOLD: Pair<'_> = (FILTER_ID, b"gold");

    type Pair<'a> = (u8, &'a [u8]);

    /// A single plan, of 20 Mbit/s down and 5 Mbit/s up.
    struct Gold;

    impl Plans for Gold {
        fn has(&self, name: &str) -> bool {
            name == "gold"
        }

        fn with(&self, rates: &Rates) -> Vec<String> {
            let is = rates.are(Some(Rate::mbit(20)), Some(Rate::mbit(5)));
            is.then(|| "gold".to_owned()).into_iter().collect()
        }
    }

    fn source(port: u16) -> SocketAddr {
        ([192, 0, 2, 20], port).into()
    }

    /// A packet, with a Message-Authenticator after the other attributes if `is_signed`.
    fn packet(code: u8, is_signed: bool, attributes: &[Pair<'_>]) -> Vec<u8> {
        let mut all = Vec::new();
        for (kind, value) in attributes {
            all.extend([*kind, value.len() as u8 + 2]);
            all.extend(*value);
        }
        let signature = [&[MESSAGE_AUTHENTICATOR, 18][..], &[0; 16]].concat();
        all.extend(signature.iter().filter(|_| is_signed));
        let [high, low] = ((HEADER + all.len()) as u16).to_be_bytes();
        let start = [code, 9, high, low];
        if is_signed {
            let code = hmac(&[&start[..], &[0; 16], &all].concat(), SECRET);
            let at = all.len() - 16;
            all[at..].copy_from_slice(&code);
        }
        [&start[..], &hash(&start, &[0; 16], &all, SECRET), &all].concat()
    }

    fn read(code: u8, attributes: &[Pair<'_>]) -> Request {
        Request::read(&packet(code, false, attributes), SECRET).unwrap()
    }

    #[test]
    fn a_request_says_which_session_and_which_plan() {
        let prefix = [0, 56, 0x20, 1, 0x0d, 0xb8, 0, 1, 0];
        let request = read(
            CHANGE,
            &[
                (USER_NAME, b"Flat 12"),
                (SESSION_ID, b"s1"),
                (NAS_IP_ADDRESS, &[10, 0, 0, 1]),
                (FRAMED_IP_ADDRESS, &[192, 0, 2, 1]),
                (DELEGATED_IPV6_PREFIX, &prefix),
                (CALLING_STATION_ID, b"02-00"),
                (NAS_PORT, &[0; 4]),
                GOLD,
            ],
        );
        assert_eq!((request.check(false), request.ask), (Ok(()), Ask::Change));
        assert_eq!(request.plan(&Source::DEFAULT, &Gold), Ok(Some("gold".to_owned())));
        let Named { user, number, nas, addresses } = request.named;
        assert_eq!((user.as_deref(), number.as_deref()), (Some("Flat%2012"), Some("s1")));
        assert_eq!(nas.unwrap().to_string(), "10.0.0.1");
        let texts: Vec<String> = addresses.iter().map(IpNet::to_string).collect();
        assert_eq!(texts, ["192.0.2.1/32", "2001:db8:1::/56"]);
        let station = read(DISCONNECT, &[(CALLING_STATION_ID, b"02-00 x")]);
        assert_eq!(station.named.user.as_deref(), Some("%station:02-00%20x"));
    }

    #[test]
    fn what_is_not_understood_in_whole_is_not_done() {
        let number = (SESSION_ID, &b"s1"[..]);
        let cases: [(u8, &[Pair<'_>], Cause); 13] = [
            (CHANGE, &[ALICE], Cause::MissingAttribute),
            (CHANGE, &[GOLD], Cause::MissingAttribute),
            (CHANGE, &[GOLD, (NAS_IP_ADDRESS, &[10, 0, 0, 1])], Cause::MissingAttribute),
            (DISCONNECT, &[], Cause::MissingAttribute),
            (DISCONNECT, &[ALICE, GOLD], Cause::UnsupportedAttribute),
            (DISCONNECT, &[ALICE, (NAS_PORT, &[0; 4])], Cause::UnsupportedAttribute),
            (DISCONNECT, &[ALICE, (CALLING_STATION_ID, b"x")], Cause::UnsupportedAttribute),
            (CHANGE, &[ALICE, GOLD, (27, &[0; 4])], Cause::UnsupportedAttribute),
            (CHANGE, &[ALICE, GOLD, (26, &[0; 8])], Cause::UnsupportedAttribute),
            (CHANGE, &[ALICE, GOLD, (SERVICE_TYPE, &[0, 0, 0, 17])], Cause::UnsupportedService),
            (DISCONNECT, &[ALICE, (USER_NAME, b"bob")], Cause::InvalidRequest),
            (DISCONNECT, &[number, (FRAMED_IP_ADDRESS, &[0; 4])], Cause::InvalidValue),
            (DISCONNECT, &[number, (FRAMED_IPV6_PREFIX, &[0, 0])], Cause::InvalidValue),
        ];
        for (code, attributes, wanted) in cases {
            assert_eq!(read(code, attributes).check(false), Err(wanted), "{attributes:?}");
        }
        assert_eq!(read(DISCONNECT, &[ALICE, ALICE]).check(false), Ok(()));
        // All that is said about the plan leads to a single one, or nothing is done.
        let mikrotik = |text: &str| {
            let length = text.len() as u8 + 2;
            [&[0, 0, 0x3a, 0x8c, 8, length], text.as_bytes()].concat()
        };
        let [same, other] = ["5M/20M", "5M/21M"].map(mikrotik);
        let cisco = [&[0, 0, 0, 9, 1, 28][..], b"subscriber:command=logoff"].concat();
        let (unknown, of_all) = ((FILTER_ID, &b"silver"[..]), &Source::DEFAULT[..]);
        type Case<'c> = (&'c [Pair<'c>], &'c [Source], Outcome);
        let cases: [Case<'_>; 9] = [
            (&[(26, &same)], of_all, Ok(())),
            (&[(26, &same), GOLD, (25, b"gold"), GOLD], of_all, Ok(())),
            (&[(26, &same)], &[Source::FilterId], Err(Cause::UnsupportedAttribute)),
            (&[(26, &other)], of_all, Err(Cause::InvalidValue)),
            (&[(26, &other), GOLD], of_all, Err(Cause::InvalidValue)),
            (&[(26, &same), unknown], of_all, Err(Cause::InvalidValue)),
            (&[GOLD, unknown], of_all, Err(Cause::InvalidRequest)),
            (&[GOLD, (25, b"\x00\x01")], of_all, Err(Cause::UnsupportedAttribute)),
            (&[GOLD, (26, &cisco[..31])], of_all, Err(Cause::UnsupportedAttribute)),
        ];
        for (attributes, sources, wanted) in cases {
            let request = read(CHANGE, &[&[ALICE], attributes].concat());
            let plan = request
                .check(false)
                .and_then(|()| request.plan(sources, &Gold).map_err(|(cause, _)| cause));
            assert_eq!(plan.map(drop), wanted, "{attributes:?}");
        }
        // A request that can neither be forged nor replayed later has both.
        let time = (EVENT_TIMESTAMP, &(NOW_S as u32).to_be_bytes()[..]);
        for (is_signed, more, wanted) in [
            (true, &[ALICE, time][..], Ok(())),
            (true, &[ALICE], Err(Cause::MissingAttribute)),
            (false, &[ALICE, time], Err(Cause::MissingAttribute)),
        ] {
            let request = Request::read(&packet(DISCONNECT, is_signed, more), SECRET).unwrap();
            assert_eq!((request.check(true), request.check(false)), (wanted, Ok(())));
        }
    }

    #[test]
    fn forged_requests_are_refused_and_the_answer_is_authentic() {
        for is_signed in [false, true] {
            let more = [ALICE, GOLD, (PROXY_STATE, &b"p1"[..])];
            let whole = packet(CHANGE, is_signed, &more);
            assert_eq!(Request::read(&whole, b"another secret"), Err(Refused::Forged));
            for at in 0..whole.len() {
                let mut changed = whole.clone();
                changed[at] ^= 1;
                assert!(Request::read(&changed, SECRET).is_err(), "byte {at}");
            }
            let request = Request::read(&whole, SECRET).unwrap();
            for (outcome, code) in [(Ok(()), CHANGE + 1), (Err(Cause::NotFound), CHANGE + 2)] {
                let mut answer = request.answer(outcome, SECRET);
                assert_eq!(answer[..2], [code, 9]);
                let cause = [ERROR_CAUSE, 6, 0, 0, 1, 247];
                assert_eq!(answer.windows(6).any(|six| six == cause), outcome.is_err());
                assert!(answer.ends_with(&[PROXY_STATE, 4, b'p', b'1']));
                let of = request.authenticator;
                assert_eq!(answer[4..20], hash(&answer[..4], &of, &answer[20..], SECRET));
                let signature = answer[22..38].to_vec();
                answer[4..20].copy_from_slice(&of);
                answer[22..38].fill(0);
                assert_eq!(signature, hmac(&answer, SECRET));
            }
        }
        // A right authenticator with a wrong Message-Authenticator: the sender knows the secret, and changed it.
        let mut wrong = packet(CHANGE, true, &[ALICE, GOLD]);
        let at = wrong.len() - 1;
        wrong[at] ^= 1;
        let authenticator = hash(&wrong[..4], &[0; 16], &wrong[HEADER..], SECRET);
        wrong[4..20].copy_from_slice(&authenticator);
        assert_eq!(Request::read(&wrong, SECRET), Err(Refused::Forged));
        let of_accounting = packet(REQUEST, false, &[ALICE]);
        assert_eq!(Request::read(&of_accounting, SECRET), Err(Refused::Malformed));
        assert_eq!(Request::read(&[CHANGE; PACKET_MAX + 1], SECRET), Err(Refused::Oversized));
        let long = vec![(PROXY_STATE, &[0; 250][..]); 16];
        let request = read(DISCONNECT, &long);
        assert!(request.answer(request.check(false), SECRET).len() <= PACKET_MAX);
    }

    #[test]
    fn a_request_is_done_once_and_an_old_one_is_not_answered() {
        let at = |second| (Time::ZERO + Span::secs(second), NOW_S + second);
        let mut answers = Answers::since(NOW_S);
        let judge = |answers: &Answers, request: &Request, port, second| {
            let (now, now_s) = at(second);
            answers.judge(request, source(port), now, now_s)
        };
        let time = ((NOW_S + 400) as u32).to_be_bytes();
        let timed = read(CHANGE, &[ALICE, GOLD, (EVENT_TIMESTAMP, &time)]);
        assert_eq!(judge(&answers, &timed, 1, 99), Err(Refused::Untimely));
        assert_eq!(judge(&answers, &timed, 1, 100), Ok(None));
        let outcome = Err(Cause::NotFound);
        answers.settle(&timed, source(1), outcome, at(100).0);
        // Replayed from any address, as long as it is not too old.
        assert_eq!(judge(&answers, &timed, 2, 700), Ok(Some(outcome)));
        assert_eq!(judge(&answers, &timed, 2, 701), Err(Refused::Untimely));
        // A request from before a restart, which has forgotten it.
        let restarted = Answers::since(NOW_S + 401);
        assert_eq!(judge(&restarted, &timed, 1, 402), Err(Refused::Untimely));
        // Without a time the same bytes may be intended, from a script that uses one identifier for all requests.
        let timeless = read(DISCONNECT, &[ALICE]);
        answers.settle(&timeless, source(1), Ok(()), at(0).0);
        assert_eq!(judge(&answers, &timeless, 1, 29), Ok(Some(Ok(()))));
        assert_eq!(judge(&answers, &timeless, 1, 30), Ok(None));
        assert_eq!(judge(&answers, &timeless, 2, 1), Ok(None));
    }

    #[test]
    fn sessions_are_found_by_their_numbers_and_end_as_by_a_stop() {
        let mut sessions = Sessions::default();
        let session = |number: &str, identifier: &str| Session {
            nas: Nas { identifier: Some(identifier.to_owned()), ..Nas::default() },
            number: number.to_owned(),
        };
        for (user, number, nas) in [("a", "1", "x"), ("b", "1", "y"), ("c", "10", "x")] {
            sessions.restore(user.to_owned(), session(number, nas), Time::ZERO);
        }
        let users = |sessions: &Sessions, number| {
            sessions.users_of(number).cloned().collect::<Vec<_>>().concat()
        };
        assert_eq!(["1", "10", "2"].map(|number| users(&sessions, number)), ["ab", "c", ""]);
        sessions.end("b", &session("1", "y"), NOW_S);
        sessions.end("a", &session("1", "y"), NOW_S);
        sessions.end("nobody", &session("1", "x"), NOW_S);
        assert_eq!(["1", "10", "2"].map(|number| users(&sessions, number)), ["a", "c", ""]);
        assert_eq!(sessions.over.at("b", &session("1", "y")), Some(NOW_S));
    }
}
