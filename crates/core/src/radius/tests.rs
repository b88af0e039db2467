use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECRET: &[u8] = b"a secret of sixteen bytes";
const NOW_S: u64 = 1_790_000_000;

/// A packet of a NAS with these attributes behind its name.
fn packet(identifier: u8, attributes: &[(u8, &[u8])]) -> Vec<u8> {
    let mut all = Vec::new();
    for (kind, value) in [(NAS_IDENTIFIER, &b"bras-1"[..])].iter().chain(attributes) {
        all.extend([*kind, value.len() as u8 + 2]);
        all.extend(*value);
    }
    let [high, low] = (HEADER as u16 + all.len() as u16).to_be_bytes();
    let start = [REQUEST, identifier, high, low];
    [&start[..], &hash(&start, &[0; 16], &all, SECRET), &all].concat()
}

fn of_user(status: u8, user: &str, session: &str, more: &[(u8, &[u8])]) -> Accounting {
    let status = [0, 0, 0, status];
    let mut attributes = vec![
        (STATUS_TYPE, &status[..]),
        (USER_NAME, user.as_bytes()),
        (SESSION_ID, session.as_bytes()),
    ];
    attributes.extend(more);
    Accounting::read(&packet(9, &attributes), SECRET).unwrap()
}

const START: u8 = 1;
const STOP: u8 = 2;
const INTERIM: u8 = 3;
const NAS_ON: u8 = 7;
const ALICE4: (u8, &[u8]) = (FRAMED_IP_ADDRESS, &[192, 0, 2, 1]);

fn at(seconds: u64) -> Time {
    Time::ZERO + Span::secs(seconds)
}

/// Judges and settles.
fn hear(sessions: &mut Sessions, packet: &Accounting, second: u64) -> Result<Verdict, Refused> {
    let verdict = sessions.judge(packet, at(second), NOW_S + second, |_, _| false)?;
    sessions.settle(packet, &verdict, at(second));
    Ok(verdict)
}

#[test]
fn addresses_of_all_kinds_are_read_and_the_answer_is_what_the_nas_expects() {
    let prefix = [0, 56, 0x20, 1, 0x0d, 0xb8, 0, 1, 0];
    let delegated = [0, 48, 0x20, 1, 0x0d, 0xb8, 0, 2];
    let address = Ipv6Addr::from([0x2001, 0xdb8, 3, 0, 0, 0, 0, 1]).octets();
    let start = of_user(
        START,
        "alice",
        "s1",
        &[
            ALICE4,
            (FRAMED_IP_ADDRESS, &[255, 255, 255, 254]),
            (FRAMED_IPV6_PREFIX, &prefix),
            (DELEGATED_IPV6_PREFIX, &delegated),
            (FRAMED_IPV6_ADDRESS, &address),
            (FILTER_ID, b"home-50"),
            (PROXY_STATE, b"p1"),
            (PROXY_STATE, b"p2"),
        ],
    );
    let texts: Vec<String> = start.addresses.iter().map(IpNet::to_string).collect();
    let wanted = ["192.0.2.1/32", "2001:db8:1::/56", "2001:db8:2::/48", "2001:db8:3::1/128"];
    assert_eq!(texts, wanted);
    assert_eq!((start.user.as_str(), start.plan.as_deref()), ("alice", Some("home-50")));
    let answer = start.answer(SECRET);
    assert_eq!(answer[..4], [RESPONSE, 9, 0, 28]);
    assert_eq!(answer[20..], [PROXY_STATE, 4, b'p', b'1', PROXY_STATE, 4, b'p', b'2']);
    assert_eq!(answer[4..20], hash(&answer[..4], &start.authenticator, &answer[20..], SECRET));
}

#[test]
fn forged_cut_and_oversized_packets_are_refused() {
    let whole = packet(1, &[(STATUS_TYPE, &[0, 0, 0, 1]), (USER_NAME, b"alice"), (44, b"1")]);
    assert!(Accounting::read(&whole, SECRET).is_ok());
    let padded = [&whole[..], &[0; 9]].concat();
    assert!(Accounting::read(&padded, SECRET).is_ok());
    assert_eq!(Accounting::read(&whole, b"another secret"), Err(Refused::Forged));
    for at in 4..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        assert_eq!(Accounting::read(&changed, SECRET), Err(Refused::Forged), "byte {at}");
    }
    assert_eq!(Accounting::read(&[4; PACKET_MAX + 1], SECRET), Err(Refused::Oversized));
    assert_eq!(Accounting::read(&whole[..whole.len() - 1], SECRET), Err(Refused::Malformed));
    let malformed: [&[(u8, &[u8])]; 7] = [
        &[],
        &[(STATUS_TYPE, &[0, 0, 0, 9]), (USER_NAME, b"a"), (SESSION_ID, b"1")],
        &[(STATUS_TYPE, &[0, 0, 0, 1]), (USER_NAME, b"a")],
        &[(STATUS_TYPE, &[0, 0, 0, 1]), (SESSION_ID, b"1")],
        &[(STATUS_TYPE, &[0, 0, 0, 1]), (USER_NAME, b"a\x1b[31m"), (SESSION_ID, b"1")],
        &[(STATUS_TYPE, &[0, 0, 0, 1]), (USER_NAME, b"a"), (44, b"1"), (8, b"123")],
        &[(STATUS_TYPE, &[0, 0, 0, 1]), (USER_NAME, b"a"), (44, b"1"), (97, &[0, 64, 1, 2])],
    ];
    for attributes in malformed {
        let read = Accounting::read(&packet(1, attributes), SECRET);
        assert_eq!(read, Err(Refused::Malformed), "{attributes:?}");
    }
    let many: Vec<[u8; 4]> = (0..=ADDRESSES_MAX as u8).map(|n| [192, 0, 2, n]).collect();
    let mut attributes: Vec<(u8, &[u8])> =
        vec![(STATUS_TYPE, &[0, 0, 0, 1]), (USER_NAME, b"a"), (SESSION_ID, b"1")];
    attributes.extend(many.iter().map(|address| (FRAMED_IP_ADDRESS, &address[..])));
    assert_eq!(Accounting::read(&packet(1, &attributes), SECRET), Err(Refused::Malformed));
}

#[test]
fn a_newer_session_takes_the_place_of_the_older_whose_end_ends_nothing() {
    let mut sessions = Sessions::default();
    let start = |number| of_user(START, "alice", number, &[ALICE4]);
    assert_eq!(hear(&mut sessions, &start("1"), 0), Ok(Verdict::Has));
    assert_eq!(hear(&mut sessions, &start("2"), 1), Ok(Verdict::Has));
    let late = of_user(INTERIM, "alice", "1", &[ALICE4, (41, &[0, 0, 0, 7])]);
    assert_eq!(hear(&mut sessions, &late, 2), Err(Refused::Over));
    let stop = of_user(STOP, "alice", "1", &[ALICE4]);
    assert_eq!(hear(&mut sessions, &stop, 3), Err(Refused::Over));
    assert_eq!(sessions.len(), 1);
    let stop = of_user(STOP, "alice", "2", &[ALICE4]);
    assert_eq!(hear(&mut sessions, &stop, 4), Ok(Verdict::Ended));
    assert!(sessions.is_empty());
    // A NAS that restarts may count from one.
    let on = packet(1, &[(STATUS_TYPE, &[0, 0, 0, NAS_ON]), (EVENT_TIMESTAMP, &[0; 4])]);
    let on = Accounting { happened_s: None, ..Accounting::read(&on, SECRET).unwrap() };
    assert_eq!(hear(&mut sessions, &on, 5), Ok(Verdict::EndedAll(Vec::new())));
    let again = of_user(START, "alice", "1", &[ALICE4, (41, &[0, 0, 0, 0])]);
    assert_eq!(hear(&mut sessions, &again, 6), Ok(Verdict::Has));
    let off = packet(2, &[(STATUS_TYPE, &[0, 0, 0, 8])]);
    let off = Accounting::read(&off, SECRET).unwrap();
    assert_eq!(hear(&mut sessions, &off, 7), Ok(Verdict::EndedAll(vec!["alice".to_owned()])));
}

#[test]
fn a_packet_is_answered_again_and_later_it_is_a_replay() {
    let mut sessions = Sessions::default();
    let start = of_user(START, "alice", "1", &[ALICE4]);
    assert_eq!(hear(&mut sessions, &start, 0), Ok(Verdict::Has));
    assert_eq!(hear(&mut sessions, &start, 59), Ok(Verdict::Again));
    assert_eq!(hear(&mut sessions, &start, 60), Err(Refused::Replayed));
    let stop = of_user(STOP, "alice", "1", &[]);
    assert_eq!(hear(&mut sessions, &stop, 61), Ok(Verdict::Ended));
    assert_eq!(hear(&mut sessions, &start, 62), Err(Refused::Replayed));
    // A change that was not stored leaves no trace.
    let bob = of_user(START, "bob", "1", &[ALICE4]);
    for _ in 0..2 {
        assert_eq!(sessions.judge(&bob, at(1), NOW_S, |_, _| false), Err(Refused::Over));
        let bob = of_user(START, "bob", "2", &[ALICE4]);
        assert_eq!(sessions.judge(&bob, at(1), NOW_S, |_, _| false), Ok(Verdict::Has));
    }
    for (happened, wanted) in [
        (NOW_S - AGE_MAX_S, Ok(Verdict::Has)),
        (NOW_S - AGE_MAX_S - 1, Err(Refused::Untimely)),
        (NOW_S + AHEAD_MAX_S, Ok(Verdict::Has)),
        (NOW_S + AHEAD_MAX_S + 1, Err(Refused::Untimely)),
    ] {
        let happened = (happened as u32).to_be_bytes();
        let packet = of_user(START, "eve", "3", &[ALICE4, (EVENT_TIMESTAMP, &happened)]);
        assert_eq!(sessions.judge(&packet, at(1), NOW_S, |_, _| false), wanted);
    }
}

#[test]
fn the_end_of_a_session_from_before_the_start_counts_if_the_addresses_are_the_users() {
    let stop = of_user(STOP, "alice", "1", &[ALICE4]);
    let sessions = Sessions::default();
    for (owns, wanted) in [(true, Verdict::Ended), (false, Verdict::Nothing)] {
        assert_eq!(sessions.judge(&stop, at(0), NOW_S, |_, _| owns), Ok(wanted));
    }
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut sessions = Sessions::default();
    for n in 0..=REMEMBERED_MAX {
        let mut stop = of_user(STOP, "alice", "1", &[]);
        stop.authenticator[..8].copy_from_slice(&n.to_be_bytes());
        stop.session.number[..8].copy_from_slice(&n.to_be_bytes());
        hear(&mut sessions, &stop, 0).unwrap();
    }
    assert_eq!(sessions.answered.len(), REMEMBERED_MAX);
    assert_eq!(sessions.over.set.len(), REMEMBERED_MAX);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(Accounting::read(&bytes, SECRET).is_err());
        let mut signed = packet(1, &[]);
        signed.extend(&bytes);
        let length = (signed.len() as u16).to_be_bytes();
        signed[2..4].copy_from_slice(&length);
        let authenticator = hash(&signed[..4], &[0; 16], &signed[HEADER..], SECRET);
        signed[4..HEADER].copy_from_slice(&authenticator);
        prop_assert_ne!(Accounting::read(&signed, SECRET), Err(Refused::Forged));
    }
}
