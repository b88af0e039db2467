use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECRET: &[u8] = b"a secret of sixteen bytes";
const NOW_S: u64 = 1_790_000_000;

/// A packet of a NAS with these attributes after its name.
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

/// Judges and settles a packet.
fn hear(sessions: &mut Sessions, packet: &Accounting, second: u64) -> Result<Verdict, Refused> {
    let verdict = sessions.judge(packet, at(second), NOW_S + second, |_, _| false)?;
    sessions.settle(packet, &verdict, at(second), NOW_S + second);
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
    let plans = start.claims.names_of(claims::Source::FilterId).map(String::as_str);
    assert_eq!((start.user.as_str(), plans.collect()), ("alice", vec!["home-50"]));
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
    let malformed: [&[(u8, &[u8])]; 5] = [
        &[],
        &[(STATUS_TYPE, &[0, 0, 1]), (USER_NAME, b"a"), (SESSION_ID, b"1")],
        &[(STATUS_TYPE, &[0, 0, 0, 1]), (USER_NAME, b"a")],
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
    // A NAS that restarts may number its sessions from one.
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
fn sessions_of_one_account_share_what_it_has_until_each_ends() {
    let mut sessions = Sessions::default();
    let mut has: Vec<IpNet> = Vec::new();
    let mut hear = |second: u64, event, number: &str, addresses: &[[u8; 4]]| {
        let attributes = addresses.iter().map(|a| (FRAMED_IP_ADDRESS, &a[..]));
        let time = ((NOW_S + second) as u32).to_be_bytes();
        let more: Vec<_> = attributes.chain([(EVENT_TIMESTAMP, &time[..])]).collect();
        let packet = of_user(event, "alice", number, &more);
        let owns = |_: &str, addresses: &[IpNet]| {
            addresses.is_empty() || addresses.iter().any(|a| has.contains(a))
        };
        let verdict = sessions.judge(&packet, at(second), NOW_S + second, owns).ok()?;
        has = sessions.addresses_after("alice", &packet, &verdict, &has);
        sessions.settle(&packet, &verdict, at(second), NOW_S + second);
        let shown: Vec<String> = has.iter().map(|net| net.addr().to_string()).collect();
        Some(shown.join(" "))
    };
    let [a, b, c] = [1, 2, 3].map(|n| [192, 0, 2, n]);
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(hear(1, START, "1", &[a]), some("192.0.2.1"));
    assert_eq!(hear(2, START, "2", &[b]), some("192.0.2.1 192.0.2.2"));
    assert_eq!(hear(3, INTERIM, "1", &[a]), some("192.0.2.1 192.0.2.2"));
    assert_eq!(hear(4, INTERIM, "1", &[c]), some("192.0.2.2 192.0.2.3"));
    assert_eq!(hear(5, STOP, "2", &[]), some("192.0.2.3"));
    // A session that has all addresses of another one replaces it.
    assert_eq!(hear(6, START, "3", &[c]), some("192.0.2.3"));
    assert_eq!(hear(7, INTERIM, "1", &[c]), None);
    assert_eq!(hear(8, START, "4", &[a]), some("192.0.2.1 192.0.2.3"));
    assert_eq!(hear(9, NAS_ON, "", &[]), some(""), "all are of that access server");
    assert_eq!(hear(10, INTERIM, "4", &[b]), some("192.0.2.2"));
}

#[test]
fn a_packet_of_one_family_leaves_the_addresses_of_the_other() {
    let nets = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<IpNet>>();
    let before = nets(&["192.0.2.1/32", "2001:db8:1::/56", "2001:db8:2::/64"]);
    for (now, wanted) in [
        (nets(&[]), before.clone()),
        (nets(&["192.0.2.9/32"]), nets(&["2001:db8:1::/56", "2001:db8:2::/64", "192.0.2.9/32"])),
        (nets(&["2001:db8:1::/56"]), nets(&["192.0.2.1/32", "2001:db8:1::/56"])),
        (nets(&["2001:db8:3::/56", "192.0.2.1/32"]), nets(&["2001:db8:3::/56", "192.0.2.1/32"])),
    ] {
        assert_eq!(merged(&before, &now), wanted);
    }
}

#[test]
fn the_sessions_of_a_user_are_bounded_and_one_of_before_a_restart_keeps_its_addresses() {
    let mut sessions = Sessions::default();
    let start = |n: u8| of_user(START, "alice", &n.to_string(), &[(8, &[192, 0, 2, n])]);
    sessions.restore("alice".to_owned(), start(0).session, at(0));
    let net = |n: u8| IpNet::from(IpAddr::from([192, 0, 2, n]));
    let after = |n, has: &[IpNet]| sessions.addresses_after("alice", &start(n), &Verdict::Has, has);
    assert_eq!(after(1, &[net(0)]), [net(0), net(1)]);
    assert_eq!(after(1, &[net(0), net(1)]), [net(0), net(1)], "of two of before a restart");
    let has = [net(0), net(9)];
    assert_eq!(sessions.addresses_of("alice", &start(0).session, &has), has);
    assert_eq!(sessions.addresses_of("alice", &start(1).session, &has), []);
    for n in 1..=SESSIONS_MAX as u8 {
        hear(&mut sessions, &start(n), 1).unwrap();
    }
    assert_eq!(sessions.of("alice").count(), SESSIONS_MAX);
    assert_eq!(sessions.numbers.len(), SESSIONS_MAX);
    assert_eq!(sessions.users_of("0").count(), 0, "the oldest is over");
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
        // Another user's session of the same number has ended before.
        assert_eq!(sessions.judge(&bob, at(1), NOW_S, |_, _| false), Ok(Verdict::Has));
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
        stop.session.number = n.to_string();
        hear(&mut sessions, &stop, 0).unwrap();
    }
    assert_eq!(sessions.answered.by_hash.len(), REMEMBERED_MAX);
    assert_eq!(sessions.over.by_hash.len(), REMEMBERED_MAX);
    assert_eq!(sessions.over.order.len(), REMEMBERED_MAX);
}

/// A packet with the attributes `nas` in place of those of [`packet`].
fn of_nas(nas: &[(u8, &[u8])], event: u8, more: &[(u8, &[u8])]) -> Accounting {
    let event = [0, 0, 0, event];
    let mut attributes = vec![(STATUS_TYPE, &event[..])];
    attributes.extend(nas);
    attributes.extend(more);
    let mut all = Vec::new();
    for (kind, value) in attributes {
        all.extend([kind, value.len() as u8 + 2]);
        all.extend(value);
    }
    let [high, low] = (HEADER as u16 + all.len() as u16).to_be_bytes();
    let start = [REQUEST, 1, high, low];
    let whole = [&start[..], &hash(&start, &[0; 16], &all, SECRET), &all].concat();
    Accounting::read(&whole, SECRET).unwrap()
}

const V4: (u8, &[u8]) = (NAS_IP_ADDRESS, &[10, 0, 0, 1]);
const OTHER_V4: (u8, &[u8]) = (NAS_IP_ADDRESS, &[10, 0, 0, 2]);
const NAME: (u8, &[u8]) = (NAS_IDENTIFIER, b"MikroTik");
const ALICE1: [(u8, &[u8]); 3] = [(USER_NAME, b"alice"), (SESSION_ID, b"1"), ALICE4];

#[test]
fn a_nas_is_the_same_whatever_the_order_and_number_of_its_attributes() {
    let from = |nas: &[(u8, &[u8])], source: [u8; 4]| {
        let mut packet = of_nas(nas, NAS_ON, &[]);
        packet.set_source(source.into());
        packet.session.nas
    };
    let both = from(&[V4, NAME], [10, 0, 0, 1]);
    for same in [&[NAME, V4][..], &[V4], &[NAME], &[]] {
        assert!(from(same, [10, 0, 0, 1]).is(&both) && both.is(&from(same, [10, 0, 0, 1])));
    }
    assert!(!from(&[OTHER_V4, NAME], [10, 0, 0, 1]).is(&both), "a factory default tells no NAS");
    assert!(from(&[V4], [10, 0, 0, 9]).is(&both), "it has two addresses");
    assert!(from(&[V4], [10, 0, 0, 1]).is(&from(&[NAME], [10, 0, 0, 1])));
    assert!(!from(&[V4], [10, 0, 0, 1]).is(&from(&[NAME], [10, 0, 0, 2])));
    // Behind a proxy the source address says nothing.
    let proxied = |nas: &[(u8, &[u8])]| {
        let mut packet = of_nas(nas, NAS_ON, &[(PROXY_STATE, b"p")]);
        packet.set_source([10, 0, 0, 1].into());
        packet.session.nas
    };
    assert!(!proxied(&[V4]).is(&proxied(&[NAME])));
    assert!(proxied(&[]).is(&proxied(&[])));
}

#[test]
fn sessions_of_before_a_restart_end_with_their_nas_and_by_their_number() {
    let mut sessions = Sessions::default();
    for (user, nas) in [("alice", V4), ("bob", V4), ("carol", OTHER_V4)] {
        let session = of_nas(&[nas], START, &ALICE1).session;
        let stored = serde_json::to_string(&session).unwrap();
        sessions.restore(user.to_owned(), serde_json::from_str(&stored).unwrap(), at(0));
    }
    let interim = of_nas(&[NAME, V4], INTERIM, &ALICE1);
    assert_eq!(hear(&mut sessions, &interim, 1), Ok(Verdict::GoesOn));
    let stop = of_nas(&[NAME, V4], STOP, &ALICE1[..2]);
    assert_eq!(hear(&mut sessions, &stop, 2), Ok(Verdict::Ended));
    let on = of_nas(&[V4, NAME], NAS_ON, &[]);
    assert_eq!(hear(&mut sessions, &on, 3), Ok(Verdict::EndedAll(vec!["bob".to_owned()])));
    assert_eq!(sessions.len(), 1);
}

#[test]
fn a_session_is_silent_after_three_intervals_and_goes_on_with_its_next_packet() {
    let mut sessions = Sessions::default();
    let minutes = |n: u64| Span::secs(60 * n);
    let interim = 600_u32.to_be_bytes();
    let says: [(u8, &[u8]); 2] = [ALICE4, (INTERIM_INTERVAL, &interim)];
    let silent = |sessions: &Sessions, user: &str, limit, minute: u64| {
        let all = sessions.silent(user, limit, at(60 * minute));
        all.first().map(|one| (one.limit, one.reports, one.is_restored))
    };
    hear(&mut sessions, &of_user(START, "alice", "1", &says), 0).unwrap();
    assert_eq!(silent(&sessions, "alice", None, 29), None);
    assert_eq!(silent(&sessions, "alice", None, 30), Some((minutes(30), true, false)));
    // Without an announced interval the configured limit counts, and never less than three of the session's own pauses.
    let bob = |event| of_user(event, "bob", "2", &[(FRAMED_IP_ADDRESS, &[192, 0, 2, 2])]);
    hear(&mut sessions, &bob(START), 0).unwrap();
    assert_eq!(silent(&sessions, "bob", None, 1_000), None);
    let five = Some(minutes(5));
    assert_eq!(silent(&sessions, "bob", five, 5), Some((minutes(5), false, false)));
    sessions.hear(&bob(INTERIM), at(60 * 15));
    assert_eq!(silent(&sessions, "bob", five, 59), None);
    assert_eq!(silent(&sessions, "bob", five, 60), Some((minutes(45), true, false)));
    // Nothing is known from before a restart; the first Interim shows no pause.
    sessions.restore("carol".to_owned(), bob(START).session, at(0));
    assert_eq!(silent(&sessions, "carol", None, 1_000), None);
    assert_eq!(silent(&sessions, "carol", five, 5), Some((minutes(5), false, true)));
    let carol = of_user(INTERIM, "carol", "2", &[]);
    sessions.hear(&carol, at(60 * 90));
    assert_eq!(silent(&sessions, "carol", five, 95), Some((minutes(5), false, false)));
    // The session is not over.
    let one = sessions.silent("alice", None, at(1_800)).remove(0);
    sessions.drop_silent("alice", &one.session);
    assert_eq!(sessions.users_after("", 9), ["bob", "carol"]);
    let back = of_user(INTERIM, "alice", "1", &[ALICE4]);
    assert_eq!(hear(&mut sessions, &back, 1_801), Ok(Verdict::Has));
}

#[test]
fn a_number_that_is_used_again_is_another_session_if_it_begins_later() {
    let mut sessions = Sessions::default();
    let at_s = |second: u64| ((NOW_S + second) as u32).to_be_bytes();
    let packet = |event, happened: Option<u64>, delay: u32| {
        let (time, delay) = (happened.map(at_s), delay.to_be_bytes());
        let mut more = vec![ALICE4, (DELAY_TIME, &delay[..])];
        more.extend(time.iter().map(|time| (EVENT_TIMESTAMP, &time[..])));
        of_user(event, "alice", "1", &more)
    };
    hear(&mut sessions, &packet(START, Some(0), 0), 0).unwrap();
    hear(&mut sessions, &packet(STOP, Some(10), 0), 10).unwrap();
    for (event, happened, delay) in
        [(START, Some(5), 1), (INTERIM, Some(20), 1), (START, None, 2), (INTERIM, None, 3)]
    {
        let late = packet(event, happened, delay);
        assert_eq!(hear(&mut sessions, &late, 20), Err(Refused::Over), "{event} {happened:?}");
    }
    assert_eq!(hear(&mut sessions, &packet(START, Some(11), 0), 20), Ok(Verdict::Has));
    assert_eq!(hear(&mut sessions, &packet(INTERIM, Some(30), 0), 30), Ok(Verdict::GoesOn));
    hear(&mut sessions, &packet(STOP, None, 0), 40).unwrap();
    // A NAS that lost power and sends no times.
    assert_eq!(hear(&mut sessions, &packet(START, None, 90), 150), Err(Refused::Over));
    assert_eq!(hear(&mut sessions, &packet(START, None, 0), 151), Ok(Verdict::Has));
}

#[test]
fn names_are_text_that_can_be_typed_and_different_bytes_have_different_names() {
    for (bytes, wanted) in [
        (&b"alice@example.org"[..], "alice@example.org"),
        ("M\u{fc}ller".as_bytes(), "M\u{fc}ller"),
        (b"Flat 12", "Flat%2012"),
        (b"DOM\\u1", "DOM%5cu1"),
        (b"a%20b", "a%2520b"),
        (b"M\xfcller", "M%fcller"),
        (b"a\x1b[31m", "a%1b%5b31m"),
        (b"", ""),
    ] {
        assert_eq!(name_of(bytes), wanted);
    }
    let long = |end: u8| name_of(&[&[b' '; 250][..], &[end]].concat());
    assert!(long(1) != long(2) && long(1).len() <= NAME_MAX);
    let station =
        of_nas(&[V4], START, &[(SESSION_ID, b"1"), (CALLING_STATION_ID, b"02-00 x"), ALICE4]);
    assert_eq!(station.user, "%station:02-00%20x");
    let session = of_nas(&[V4], START, &[(SESSION_ID, b"1"), ALICE4]);
    assert_eq!(session.user, "%session:10.0.0.1/1");
    let named = of_user(START, "%session:10.0.0.1/1", "1", &[ALICE4]);
    assert_eq!(named.user, "%25session:10.0.0.1/1");
}

#[test]
fn a_status_server_is_answered_if_it_is_authentic_and_changes_nothing() {
    let ping = |authenticator: [u8; 16], secret: &[u8], more: &[u8]| {
        let attributes = [&[MESSAGE_AUTHENTICATOR, 18][..], &[0; 16], more].concat();
        let length = (HEADER + attributes.len()) as u16;
        let start = [&[STATUS_SERVER, 7][..], &length.to_be_bytes(), &authenticator].concat();
        let mut whole = [&start[..], &attributes].concat();
        let code = hmac(&whole, secret);
        whole[HEADER + 2..HEADER + 18].copy_from_slice(&code);
        whole
    };
    let good = ping([3; 16], SECRET, &[PROXY_STATE, 3, b'p']);
    let mut packet = Accounting::read(&good, SECRET).unwrap();
    packet.set_source([10, 0, 0, 1].into());
    let mut sessions = Sessions::default();
    for second in [0, 1, 100] {
        assert_eq!(hear(&mut sessions, &packet, second), Ok(Verdict::Nothing), "never a replay");
    }
    assert!(sessions.answered.order.is_empty());
    let answer = packet.answer(SECRET);
    assert_eq!(answer[..4], [RESPONSE, 7, 0, 41]);
    assert_eq!(answer[4..20], hash(&answer[..4], &[3; 16], &answer[20..], SECRET));
    assert_eq!(answer[20..22], [MESSAGE_AUTHENTICATOR, 18]);
    assert_eq!(answer[38..], [PROXY_STATE, 3, b'p']);
    // The Message-Authenticator of an answer covers the authenticator of the question.
    let whole = [&answer[..4], &[3; 16], &answer[20..22], &[0; 16], &answer[38..]].concat();
    assert_eq!(answer[22..38], hmac(&whole, SECRET));
    assert_eq!(Accounting::read(&ping([3; 16], b"another", &[]), SECRET), Err(Refused::Forged));
    for at in 4..good.len() {
        let mut changed = good.clone();
        changed[at] ^= 1;
        assert!(Accounting::read(&changed, SECRET).is_err(), "byte {at}");
    }
    let without = [STATUS_SERVER, 7, 0, 20, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
    assert_eq!(Accounting::read(&without, SECRET), Err(Refused::Malformed));
    // RFC 2202, cases 1 and 2.
    assert_eq!(hmac(b"Hi There", &[0x0b; 16])[..4], [0x92, 0x94, 0x72, 0x7a]);
    assert_eq!(hmac(b"what do ya want for nothing?", b"Jefe")[..4], [0x75, 0x0c, 0x78, 0x3e]);
}

#[test]
fn what_is_of_no_session_is_answered_and_a_prefix_loses_its_host_bits() {
    let tunnel = of_nas(&[V4], 9, &[]);
    let mut sessions = Sessions::default();
    assert_eq!(
        (tunnel.event, hear(&mut sessions, &tunnel, 0)),
        (Event::Other, Ok(Verdict::Nothing))
    );
    let host_bits = [0, 64, 0x20, 1, 0x0d, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let all = [0, 0];
    let more = [ALICE4, (FRAMED_IPV6_PREFIX, &host_bits[..]), (DELEGATED_IPV6_PREFIX, &all[..])];
    let start = of_user(START, "alice", "1", &more);
    let shown: Vec<String> = start.addresses.iter().map(IpNet::to_string).collect();
    assert_eq!(shown, ["192.0.2.1/32", "2001:db8:9::/64"]);
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
