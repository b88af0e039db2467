//! Properties of accounting packets that hold for any attributes.

use super::claims::{Plans, Rates, Source};
use super::*;

const SECRET: &[u8] = b"a secret of sixteen bytes";
const NOW_S: u64 = 1_790_000_000;

/// The input is a list of packets, whose authenticators are computed here: a byte for the time that passes, one or two
/// for the length, then attributes. No changed packet is accepted, what is read stays the same if it is written and
/// read again, a packet counts once, and the end of one session never ends another.
pub(crate) fn radius(data: &[u8]) {
    assert_ne!(Accounting::read(data, SECRET).map(|_| ()), Ok(()), "not authentic");
    let (mut sessions, mut answers) = (Sessions::default(), coa::Answers::since(NOW_S));
    let (mut second, mut rest) = (0, data);
    for identifier in 0..8 {
        let Some((&passed, behind)) = rest.split_first() else { break };
        let Some((length, behind)) = behind.split_first_chunk::<2>() else { break };
        let length = usize::from(u16::from_be_bytes(*length)).min(behind.len());
        let (attributes, behind) = behind.split_at(length);
        rest = behind;
        second += u64::from(passed);
        if let Some(packet) = read(identifier, attributes) {
            hear(&mut sessions, &packet, second);
        }
        for code in [coa::CHANGE, coa::DISCONNECT] {
            ask([code, identifier], attributes, &sessions, &mut answers, second);
        }
        let numbers: BTreeSet<_> =
            all(&sessions).map(|(user, s)| (s.number.clone(), user.clone())).collect();
        assert_eq!(sessions.numbers, numbers);
    }
}

fn all(sessions: &Sessions) -> impl Iterator<Item = (&String, &Session)> {
    sessions.live.iter().flat_map(|(user, of)| of.iter().map(move |live| (user, &live.session)))
}

/// The same attributes as a request of a server.
fn ask(
    start: [u8; 2],
    attributes: &[u8],
    sessions: &Sessions,
    answers: &mut coa::Answers,
    second: u64,
) {
    let datagram = signed(start, attributes);
    let read = coa::Request::read(&datagram, SECRET);
    assert!(coa::Request::read(&datagram, b"another secret").is_err());
    // With a Message-Authenticator, which only its sender can make.
    assert!(attributes.contains(&MESSAGE_AUTHENTICATOR) || read != Err(Refused::Forged));
    let Ok(request) = read else { return };
    let named = &request.named;
    assert!(named.addresses.len() <= ADDRESSES_MAX);
    let is_named = named.user.is_some() || named.number.is_some() || !named.addresses.is_empty();
    assert!(request.check(false).is_err() || is_named);
    assert!(request.check(true).is_err() || request.check(false).is_ok());
    let plan = request.plan(&Source::DEFAULT, &AnyPlan);
    let asks = request.ask == coa::Ask::Change && request.check(false).is_ok();
    assert!(!asks || plan != Ok(None), "a change without a plan");
    let number = named.number.clone().unwrap_or_default();
    let has = |user: &String| sessions.of(user).any(|session| session.number == number);
    assert!(sessions.users_of(&number).all(has));

    let source = |port| ([192, 0, 2, 1], port).into();
    let (now, now_s) = (Time::ZERO + Span::secs(second), NOW_S + second);
    let Ok(before) = answers.judge(&request, source(1), now, now_s) else { return };
    let outcome = before.unwrap_or(request.check(false));
    answers.settle(&request, source(1), outcome, now);
    assert_eq!(answers.judge(&request, source(1), now, now_s), Ok(Some(outcome)));
    let answer = request.answer(outcome, SECRET);
    assert!(answer.len() <= PACKET_MAX && answer[1] == start[1]);
    assert_eq!(answer[0], start[0] + if outcome.is_ok() { 1 } else { 2 });
    assert_eq!(answer[4..20], hash(&answer[..4], &authenticator(&datagram), &answer[20..], SECRET));
}

fn authenticator(datagram: &[u8]) -> [u8; 16] {
    datagram[4..HEADER].try_into().expect("sixteen bytes")
}

fn signed(start: [u8; 2], attributes: &[u8]) -> Vec<u8> {
    let [high, low] = ((HEADER + attributes.len()) as u16).to_be_bytes();
    let start = [start[0], start[1], high, low];
    [&start[..], &hash(&start, &[0; 16], attributes, SECRET), attributes].concat()
}

fn read(identifier: u8, attributes: &[u8]) -> Option<Accounting> {
    let datagram = signed([REQUEST, identifier], attributes);
    let read = Accounting::read(&datagram, SECRET);
    if datagram.len() > PACKET_MAX {
        assert_eq!(read, Err(Refused::Oversized));
        return None;
    }
    assert_ne!(read, Err(Refused::Forged));
    let padding = (PACKET_MAX - datagram.len()).min(9);
    let padded = [&datagram[..], &[0; 9][..padding]].concat();
    assert_eq!(Accounting::read(&padded, SECRET), read, "padded");
    let mut changed = datagram.clone();
    changed[attributes.len() * 7 % datagram.len()] ^= 1 << (attributes.len() % 8);
    assert!(Accounting::read(&changed, SECRET).is_err(), "changed on the way");

    let packet = read.ok()?;
    assert!(packet.addresses.len() <= ADDRESSES_MAX);
    let user = packet.user.as_str();
    let is_of_session = matches!(packet.event, Event::Start | Event::Interim | Event::Stop);
    assert_eq!(is_of_session, !user.is_empty());
    assert!(user.len() <= NAME_MAX && packet.session.number.len() <= NAME_MAX);
    let names = packet.claims.names.iter().map(|(_, name)| name.as_str());
    assert!(!names.chain([user]).collect::<String>().contains(char::is_control));
    for (i, address) in packet.addresses.iter().enumerate() {
        assert!(address.trunc() == *address && !packet.addresses[..i].contains(address));
    }
    let answer = packet.answer(SECRET);
    assert_eq!(answer[..2], [RESPONSE, identifier]);
    assert_eq!(usize::from(u16::from_be_bytes([answer[2], answer[3]])), answer.len());
    assert_eq!(answer[4..20], hash(&answer[..4], &packet.authenticator, &answer[20..], SECRET));

    let again = Accounting::read(&signed([REQUEST, identifier], &written(&packet)), SECRET);
    let again = again.expect("a packet that we wrote");
    assert_eq!((again.event, again.interim), (packet.event, packet.interim));
    let said = |claims: &Claims| {
        let rates = claims.rates.iter().map(|(source, rates)| (*source, rates.ok()));
        let mut names = claims.names.clone();
        names.sort_by_key(|(source, _)| *source);
        (names, rates.collect::<Vec<_>>())
    };
    assert_eq!(said(&again.claims), said(&packet.claims));
    let order = Source::ALL.map(|(_, source)| source);
    let plan = packet.claims.plan(&order, &AnyPlan);
    assert_eq!(packet.claims.plan(&order, &NoPlan).ok().flatten(), None);
    assert!(plan.is_err() || plan == Ok(None) || packet.claims.sources().next().is_some());
    assert_eq!(again.user.is_empty(), packet.user.is_empty());
    assert_eq!(again.addresses, packet.addresses);
    assert_eq!(again.happened_s, packet.happened_s);
    assert_eq!(again.proxy_states, packet.proxy_states);
    Some(packet)
}

/// Knows every name, and no name for any rates.
struct AnyPlan;

impl Plans for AnyPlan {
    fn has(&self, _: &str) -> bool {
        true
    }

    fn with(&self, rates: &Rates) -> Vec<String> {
        vec![rates.to_string()]
    }
}

struct NoPlan;

impl Plans for NoPlan {
    fn has(&self, _: &str) -> bool {
        false
    }

    fn with(&self, _: &Rates) -> Vec<String> {
        Vec::new()
    }
}

/// Attributes that state the same.
fn written(packet: &Accounting) -> Vec<u8> {
    let status: u8 = match packet.event {
        Event::Start => 1,
        Event::Stop => 2,
        Event::Interim => 3,
        Event::Nas => 7,
        Event::Other => 9,
        Event::Status => unreachable!("its code is another"),
    };
    let mut attributes = packet.proxy_states.clone();
    let mut add = |kind: u8, value: &[u8]| {
        attributes.extend([kind, value.len() as u8 + 2]);
        attributes.extend(value);
    };
    add(STATUS_TYPE, &[0, 0, 0, status]);
    add(SESSION_ID, b"1");
    if !packet.user.is_empty() {
        add(USER_NAME, packet.user.as_bytes());
    }
    if let Some(interim) = packet.interim {
        add(INTERIM_INTERVAL, &((interim.as_nanos() / 1_000_000_000) as u32).to_be_bytes());
    }
    for (kind, value) in packet.claims.written() {
        add(kind, &value);
    }
    if let Some(happened_s) = packet.happened_s {
        add(EVENT_TIMESTAMP, &(happened_s as u32).to_be_bytes());
    }
    for address in &packet.addresses {
        match address {
            IpNet::V4(net) => add(FRAMED_IP_ADDRESS, &net.addr().octets()),
            IpNet::V6(net) if net.prefix_len() == 128 => {
                add(FRAMED_IPV6_ADDRESS, &net.addr().octets());
            }
            IpNet::V6(net) => {
                let prefix = [&[0, net.prefix_len()], &net.addr().octets()[..]].concat();
                add(DELEGATED_IPV6_PREFIX, &prefix);
            }
        }
    }
    attributes
}

fn hear(sessions: &mut Sessions, packet: &Accounting, second: u64) {
    let (now, now_s) = (Time::ZERO + Span::secs(second), NOW_S + second);
    let before = sessions.live.clone();
    let Ok(verdict) = sessions.judge(packet, now, now_s, |_, _| false) else {
        return;
    };
    assert_eq!(sessions.live, before, "judging changes nothing");
    sessions.hear(packet, now);
    sessions.settle(packet, &verdict, now, now_s);
    let silent = sessions.silent(&packet.user, Some(Span::secs(1)), now);
    assert!(silent.iter().all(|silent| silent.session != packet.session), "it was heard");
    let count = all(sessions).count();
    let sessions_before =
        before.iter().flat_map(|(user, of)| of.iter().map(move |one| (user, one)));
    for (user, Live { session, .. }) in sessions_before {
        let is_the_users = *user == packet.user;
        let stays = match &verdict {
            Verdict::Has => !is_the_users,
            Verdict::Ended => !(is_the_users && session.is(&packet.session)),
            Verdict::EndedAll(_) => !session.nas.is(&packet.session.nas),
            Verdict::Nothing | Verdict::Again | Verdict::GoesOn => true,
        };
        assert!(!stays || sessions.of(user).any(|one| one == session), "another session ends");
    }
    assert!(sessions.live.values().all(|of| (1..=SESSIONS_MAX).contains(&of.len())));
    let has = sessions.of(&packet.user).any(|one| *one == packet.session);
    assert!(verdict != Verdict::Has || has);
    assert!(verdict != Verdict::Ended || !has);
    assert!(verdict == Verdict::Has || count <= before.values().map(Vec::len).sum());
    let again = |after| sessions.judge(packet, now + after, now_s, |_, _| false);
    if verdict != Verdict::Again {
        assert_eq!(again(Span::ZERO), Ok(Verdict::Again));
        assert_eq!(again(ANSWER_AGAIN), Err(Refused::Replayed));
    }
}
