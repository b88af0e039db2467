use proptest::collection::vec;
use proptest::prelude::*;

use super::super::claims::{Claim, HostDigest};
use super::super::departure::Departure;
use super::super::dns::written::{OWNER, answer, query, record, service};
use super::super::quic::written::{crypto, sent};
use super::super::tls::written::{browser_hello, hello_with, names, records};
use super::browsed::CLAIMANTS_MAX;
use super::*;
use crate::packet::Transport;
use crate::policy::{Group, Policy};
use crate::share::Weight;

pub(in super::super) fn sites(groups: &[&[&str]]) -> Sites {
    let group = |(i, matches): (usize, &&[&str])| {
        Group::new(
            format!("g{i}"),
            Weight::ONE,
            matches.iter().map(|m| m.parse().unwrap()).collect(),
        )
    };
    Sites::of(&Policy::new(groups.iter().enumerate().map(group).collect()).unwrap())
}

fn two_sites() -> Resolver {
    Resolver::new(sites(&[&["web:video.com"], &["web:bulk.net"]]), SALT.to_owned())
}

pub(in super::super) fn connection(transport: Transport, port: u16, server: [u8; 4]) -> Connection {
    let flow =
        Flow { transport, local: ([192, 0, 2, 1], port).into(), remote: (server, 443).into() };
    Connection { flow, opened: 1 }
}

fn tcp(port: u16) -> Connection {
    connection(Transport::Tcp, port, [198, 51, 100, 1])
}

pub(in super::super) const AT: Time = Time::from_nanos(1_000_000_000);
const USER: u32 = 1_000;
pub(in super::super) const SALT: &str = "salt";

/// Two connections of a browser to one host, opened 300 ms apart, which belongs to `video`.
fn browsed() -> Resolver {
    let mut resolver = two_sites();
    resolver.handle_claimant(USER, AT);
    for port in [1, 2] {
        let at = AT + Span::millis(300 * u64::from(port));
        resolver.handle_heard(tcp(port), Heard::Opened { user: Some(USER) }, at);
        hear(&mut resolver, tcp(port), &records(&browser_hello("cdn.video.com"), 9_000));
    }
    assert_eq!(binds(&mut resolver), [(1, Some(0), true), (2, Some(0), true)]);
    resolver
}

/// A request to the host of [`browsed`], `ms` after [`AT`].
fn claim(group: Option<usize>, ms: u64) -> Claim {
    let name = HostName::from_wire(b"cdn.video.com").unwrap();
    Claim {
        user: USER,
        remote: tcp(1).flow.remote,
        host: HostDigest::new(SALT, &name),
        group,
        begin: AT + Span::millis(ms),
        start: AT + Span::millis(ms + 150),
        is_unsure: false,
        is_http1: false,
    }
}

fn open(resolver: &mut Resolver, port: u16, ms: u64) {
    let heard = Heard::Opened { user: Some(USER) };
    resolver.handle_heard(tcp(port), heard, AT + Span::millis(ms));
}

fn hello(resolver: &mut Resolver, port: u16, ms: u64) {
    let hello = records(&browser_hello("cdn.video.com"), 9_000);
    let heard = Heard::Stream { offset: 0, bytes: &hello };
    resolver.handle_heard(tcp(port), heard, AT + Span::millis(ms));
}

fn group_of(resolver: &Resolver, number: u64) -> Option<usize> {
    resolver.attribution(number).unwrap().group
}

fn send(resolver: &mut Resolver, port: u16, ms: u64) {
    resolver.handle_heard(tcp(port), Heard::Sent, AT + Span::millis(ms));
}

#[test]
fn an_extension_tells_apart_two_sites_that_fetch_from_one_host() {
    let mut resolver = browsed();
    let now = AT + Span::secs(1);
    assert!(resolver.handle_claim(&claim(Some(0), 299), now));
    assert!(resolver.handle_claim(&claim(Some(1), 598), now));
    assert_eq!(binds(&mut resolver), [(1, Some(0), true), (2, Some(1), true)]);
    assert_eq!(resolver.attribution(2).unwrap().reason, Reason::Extension);
    // Both connections send at once, which by itself decides nothing and changes nothing.
    for ms in [1_000, 1_100] {
        send(&mut resolver, 1, ms);
        send(&mut resolver, 2, ms);
        resolver.handle_claim(&claim(Some(0), ms), now);
        resolver.handle_claim(&claim(Some(1), ms), now);
    }
    assert_eq!(binds(&mut resolver), []);
    assert_eq!((resolver.counts().by_extension, resolver.counts().mixed), (2, 0));
}

fn departure(group: Option<usize>, ms: u64) -> Departure {
    let Claim { user, host, remote, begin, is_http1, .. } = claim(group, ms);
    Departure { user, host, port: remote.port(), group, begin, is_http1 }
}

#[test]
fn a_connection_is_of_the_site_whose_request_left_when_it_opened_until_votes_tell() {
    // The request is reported before the hello of its connection, and after.
    let mut resolver = two_sites();
    resolver.handle_claimant(USER, AT);
    for (port, group, tells_first) in [(1, 1, true), (2, 0, false), (3, 1, false)] {
        let ms = 300 * u64::from(port);
        let told = departure(Some(group), ms - 2);
        if tells_first {
            resolver.handle_departure(&told);
        }
        open(&mut resolver, port, ms);
        hello(&mut resolver, port, ms + 10);
        if !tells_first {
            resolver.handle_departure(&told);
        }
    }
    assert_eq!(
        binds(&mut resolver),
        [
            (1, Some(1), true),
            (2, Some(0), true),
            (2, Some(0), true),
            (3, Some(0), true),
            (3, Some(1), true)
        ]
    );
    assert_eq!(resolver.attribution(1).unwrap().reason, Reason::Extension);
    // A request that fits better, or equally well, is reported later.
    resolver.handle_departure(&departure(Some(0), 899));
    assert_eq!(binds(&mut resolver), [(3, Some(0), true)], "as the wire says");
    assert_eq!(resolver.attribution(3).unwrap().reason, Reason::Sni);
    // The request of another user, to another host.
    let other = HostName::from_wire(b"other.org").unwrap();
    for wrong in [
        Departure { user: USER + 1, ..departure(Some(0), 299) },
        Departure { host: HostDigest::new(SALT, &other), ..departure(Some(0), 299) },
        Departure { port: 80, ..departure(Some(0), 299) },
    ] {
        resolver.handle_departure(&wrong);
    }
    assert_eq!(binds(&mut resolver), []);
    assert!(resolver.handle_claim(&claim(Some(0), 299), AT));
    assert_eq!(binds(&mut resolver), [], "one of another group may be about another");
    assert!(resolver.handle_claim(&claim(Some(0), 300), AT));
    assert_eq!(binds(&mut resolver), [(1, Some(0), true)], "votes tell");
    resolver.handle_departure(&departure(Some(1), 300));
    assert_eq!(binds(&mut resolver), [], "and go on to");
    assert_eq!(resolver.counts().by_extension, 1);
}

/// Responses begin 150 ms after requests.
#[test]
fn a_connection_that_sent_too_late_for_a_response_has_not_carried_its_request() {
    let mut resolver = two_sites();
    resolver.handle_claimant(USER, AT);
    for (port, handshake_ms) in [(1, 400), (2, 80)] {
        open(&mut resolver, port, 0);
        hello(&mut resolver, port, handshake_ms);
    }
    binds(&mut resolver);
    send(&mut resolver, 1, 1_060);
    send(&mut resolver, 2, 1_100);
    resolver.handle_claim(&claim(Some(1), 1_000), AT);
    assert_eq!(binds(&mut resolver), [(1, Some(1), true)], "the least handshake counts");
    // This connection was only late to answer in its handshake.
    let mut resolver = two_sites();
    resolver.handle_claimant(USER, AT);
    open(&mut resolver, 1, 0);
    hello(&mut resolver, 1, 400);
    binds(&mut resolver);
    send(&mut resolver, 1, 1_000);
    assert!(resolver.handle_claim(&claim(Some(1), 1_000), AT));
    assert_eq!(binds(&mut resolver), [(1, Some(1), true)]);
}

/// Recorded: Chromium over HTTP/1.1, two pages that open at once and ask one host for two long objects each.
#[test]
fn connections_of_two_pages_that_open_at_once_over_http_1_are_told_apart() {
    let mut resolver = two_sites();
    resolver.handle_claimant(USER, AT);
    let at = |ms: u64| AT + Span::millis(ms);
    let opened = [(1, 178), (2, 181), (3, 186), (4, 187)];
    opened.into_iter().for_each(|(port, ms)| open(&mut resolver, port, ms));
    for (port, ms) in opened {
        hear(&mut resolver, tcp(port), &records(&browser_hello("cdn.video.com"), 9_000));
        send(&mut resolver, port, ms + 42);
    }
    for (group, begin) in [(1, 177), (0, 182)] {
        resolver.handle_departure(&departure(Some(group), begin));
    }
    for (group, begin, start) in [(1, 177, 314), (1, 178, 321), (0, 182, 341), (0, 183, 348)] {
        let told = Claim { start: at(start), is_http1: true, ..claim(Some(group), begin) };
        assert!(resolver.handle_claim(&told, at(start + 20)));
    }
    assert_eq!([1, 2, 3, 4].map(|number| group_of(&resolver, number)), [1, 1, 0, 0].map(Some));
    // If the order was wrong, votes correct it.
    for ms in [9_000, 9_500] {
        send(&mut resolver, 2, ms);
        resolver.handle_claim(&claim(Some(0), ms), at(ms + 200));
    }
    assert_eq!(group_of(&resolver, 2), Some(0));
}

/// Recorded: Chromium over HTTP/2, two pages that open at once; the second asks for nothing but long objects.
#[test]
fn connections_of_two_pages_that_open_at_once_over_http_2_are_told_apart() {
    let mut resolver = two_sites();
    resolver.handle_claimant(USER, AT);
    let at = |ms: u64| AT + Span::millis(ms);
    let opened = [(1, 293), (2, 294), (3, 294), (4, 347), (5, 348)];
    opened.into_iter().for_each(|(port, ms)| open(&mut resolver, port, ms));
    for (group, begin) in [(0, 272), (1, 291)] {
        resolver.handle_departure(&departure(Some(group), begin));
    }
    for (port, ms) in opened {
        hello(&mut resolver, port, ms + 40);
        // It ends the handshake; a spare connection sends nothing more.
        send(&mut resolver, port, ms + 90);
    }
    for (port, ms) in [(1, 447), (4, 453)] {
        send(&mut resolver, port, ms);
    }
    assert_eq!([1, 4].map(|port| group_of(&resolver, port)), [Some(0), Some(1)]);
    let claims = [(0, 277, 591), (1, 291, 632), (1, 295, 899), (0, 282, 979), (0, 275, 1_334)];
    for (group, begin, start) in claims {
        let told = Claim { start: at(start), ..claim(Some(group), begin) };
        assert!(resolver.handle_claim(&told, at(start + 20)));
    }
    for port in [2, 3, 5] {
        assert_eq!(resolver.attribution(port).unwrap().reason, Reason::Sni, "{port} had votes");
    }
    // A spare connection that is used later says nothing about the others.
    for ms in [3_000, 3_010] {
        send(&mut resolver, 2, ms);
    }
    assert_eq!([1, 4].map(|port| group_of(&resolver, port)), [Some(0), Some(1)]);
    // If the order was wrong, votes correct it.
    for ms in [9_000, 9_500, 10_000] {
        send(&mut resolver, 4, ms);
        resolver.handle_claim(&claim(Some(0), ms), at(ms + 200));
    }
    assert_eq!(group_of(&resolver, 4), Some(0));
}

#[test]
fn a_site_without_a_rule_is_of_no_group_though_its_host_is() {
    let mut resolver = browsed();
    resolver.handle_claim(&claim(None, 598), AT);
    assert_eq!(binds(&mut resolver), [(2, None, true)]);
    let attribution = resolver.attribution(2).unwrap();
    assert_eq!((attribution.reason, attribution.group), (Reason::Extension, None));
}

#[test]
fn a_claim_counts_only_for_the_user_the_address_the_name_and_the_time() {
    let mut resolver = browsed();
    let other = HostName::from_wire(b"other.org").unwrap();
    let right = claim(Some(1), 598);
    for wrong in [
        Claim { user: USER + 1, ..right },
        Claim { host: HostDigest::new(SALT, &other), ..right },
        Claim { host: HostDigest::new("", &other), ..right },
        Claim { remote: ([198, 51, 100, 2], 443).into(), ..right },
        Claim { remote: ([198, 51, 100, 1], 80).into(), ..right },
        claim(Some(1), 900),
        Claim { begin: right.start, start: right.begin, ..right },
    ] {
        assert!(!resolver.handle_claim(&wrong, AT), "{wrong:?}");
    }
    assert_eq!(binds(&mut resolver), []);
    assert!(resolver.handle_claim(&right, AT));
}

/// As in a browser that does not separate the connections of sites.
#[test]
fn three_events_of_a_second_site_make_a_connection_mixed() {
    for first in 1..=6 {
        let mut resolver = browsed();
        let mut tell = |group, events: std::ops::Range<u64>| {
            for i in events {
                send(&mut resolver, 1, 10_000 + 1_000 * i);
                resolver.handle_claim(&claim(Some(group), 10_000 + 1_000 * i), AT);
            }
            resolver.counts().mixed
        };
        assert_eq!(tell(0, 0..first + 2), 0);
        assert_eq!(tell(1, 20..22), 0);
        assert_eq!(tell(1, 22..23), u64::from(first + 2 <= 6), "after {first}");
    }
}

#[test]
fn connections_of_users_without_an_extension_are_not_watched() {
    for (user, at) in [(None, AT), (Some(USER + 1), AT), (Some(USER), AT + CLAIMANT_SPAN)] {
        let mut resolver = two_sites();
        resolver.handle_claimant(USER, AT);
        resolver.handle_heard(tcp(1), Heard::Opened { user }, at);
        hear(&mut resolver, tcp(1), &records(&browser_hello("cdn.video.com"), 9_000));
        let command = resolver.poll_command();
        assert!(matches!(command, Some(Command::Bind { is_watched: false, .. })));
        let claim = Claim { begin: at, start: at + Span::secs(1), ..claim(Some(1), 0) };
        assert!(!resolver.handle_claim(&claim, at));
    }
    let mut resolver = two_sites();
    (0..1_000).for_each(|user| resolver.handle_claimant(user, AT));
    assert_eq!(resolver.claimants.len(), CLAIMANTS_MAX);
}

#[test]
fn connections_that_are_open_when_an_extension_is_first_heard_are_watched_too() {
    let mut resolver = two_sites();
    for (port, user) in [(1, USER), (2, USER + 1)] {
        resolver.handle_heard(tcp(port), Heard::Opened { user: Some(user) }, AT);
        hear(&mut resolver, tcp(port), &records(&browser_hello("cdn.video.com"), 9_000));
    }
    binds(&mut resolver);
    resolver.handle_claimant(USER, AT);
    let command = resolver.poll_command();
    let Some(Command::Bind { connection, is_watched, .. }) = command else { panic!() };
    assert!(is_watched && connection == tcp(1));
    resolver.handle_claimant(USER, AT);
    assert_eq!(resolver.poll_command(), None, "once");
    send(&mut resolver, 1, 501);
    assert!(resolver.handle_claim(&claim(Some(1), 500), AT));
    assert_eq!(binds(&mut resolver), [(1, Some(1), true)]);
}

#[test]
fn a_connection_that_a_browser_shares_among_sites_is_mixed_within_three_claims() {
    let mut resolver = browsed();
    for ms in [300, 1_000, 1_200] {
        send(&mut resolver, 1, ms + 1);
        resolver.handle_claim(&claim(Some(0), ms), AT);
    }
    assert_eq!(binds(&mut resolver), [(1, Some(0), true)]);
    for ms in [2_000, 2_100, 2_200] {
        assert_eq!(binds(&mut resolver), []);
        send(&mut resolver, 1, ms + 1);
        resolver.handle_claim(&claim(Some(1), ms), AT);
    }
    assert_eq!(binds(&mut resolver), [(1, None, true)]);
    assert_eq!(resolver.attribution(1).unwrap().reason, Reason::Mixed);
}

#[test]
fn another_policy_forgets_claims() {
    let mut resolver = browsed();
    resolver.handle_claim(&claim(Some(1), 598), AT);
    assert_eq!(binds(&mut resolver), [(2, Some(1), true)]);
    resolver.handle_sites(sites(&[&["web:bulk.net"], &["web:video.com"]]), AT);
    assert_eq!(binds(&mut resolver), [(1, Some(1), true), (2, Some(1), true)]);
    assert_eq!(resolver.attribution(2).unwrap().reason, Reason::Sni);
}

/// As after a restart of a daemon.
#[test]
fn what_is_kept_is_bound_by_the_policy_of_the_next_resolver() {
    let mut before = browsed();
    before.handle_claim(&claim(Some(1), 598), AT);
    hear(&mut before, tcp(3), b"\0\0");
    before.handle_heard(tcp(4), Heard::Opened { user: Some(USER) }, AT);
    let kept = before.kept();
    let ports: Vec<_> = kept.iter().map(|k| k.connection.flow.local.port()).collect();
    assert_eq!(ports, [1, 2], "nameless and undecided ones are not");
    let mut after = Resolver::new(
        sites(&[&["web:other.org"], &["web:bulk.net"], &["web:video.com"]]),
        "other".to_owned(),
    );
    // Its ports are in use again.
    after.handle_heard(Connection { opened: 2, ..tcp(1) }, Heard::Opened { user: None }, AT);
    kept.into_iter().for_each(|kept| after.handle_kept(kept));
    assert_eq!(binds(&mut after), [(2, Some(1), true)]);
    let Counts { opened, by_sni, by_extension, .. } = after.counts();
    assert_eq!((opened, by_sni, by_extension), (1, 0, 0), "they were decided before");
    let mut after = two_sites();
    before.kept().into_iter().map(|kept| Kept { claimed: None, ..kept }).for_each(|kept| {
        after.handle_kept(kept);
    });
    assert_eq!(binds(&mut after), [(1, Some(0), true), (2, Some(0), true)], "by the wire");
    // The extension is active again and makes claims about them.
    after.handle_claimant(USER, AT);
    send(&mut after, 2, 501);
    assert!(after.handle_claim(&claim(Some(1), 500), AT));
    assert_eq!(binds(&mut after).last(), Some(&(2, Some(1), true)));
    assert_eq!(after.kept()[1].claimed, Some(Claimed { group: Some(1) }));
}

/// The requests of both sites always leave at the same times.
#[test]
fn what_the_extension_said_before_a_restart_is_not_forgotten_over_votes_that_tell_nothing() {
    let mut before = browsed();
    for (group, ms) in [(0, 299), (1, 598)] {
        before.handle_claim(&claim(Some(group), ms), AT);
    }
    let mut after = two_sites();
    before.kept().into_iter().for_each(|kept| after.handle_kept(kept));
    after.handle_claimant(USER, AT);
    for ms in (1_000..20_000).step_by(300) {
        [1, 2].into_iter().for_each(|port| send(&mut after, port, ms));
        for group in [0, 1] {
            assert!(after.handle_claim(&claim(Some(group), ms), AT));
        }
    }
    let groups: Vec<_> =
        after.connections.values().map(|k| k.attribution().unwrap().group).collect();
    assert_eq!((groups, after.counts().mixed), (vec![Some(0), Some(1)], 0));
}

#[test]
fn a_name_that_is_hidden_has_to_be_one_of_the_address() {
    let mut resolver = two_sites();
    resolver.handle_claimant(USER, AT);
    tell(&mut resolver, 1, "cdn.video.com", &[198, 51, 100, 1]);
    resolver.handle_heard(tcp(1), Heard::Opened { user: Some(USER) }, AT);
    hear(&mut resolver, tcp(1), &records(&hello_with(&[]), 900));
    let other = HostName::from_wire(b"bulk.net").unwrap();
    let forged = Claim { host: HostDigest::new(SALT, &other), ..claim(Some(1), 0) };
    assert!(!resolver.handle_claim(&forged, AT));
    assert!(resolver.handle_claim(&claim(Some(1), 0), AT));
    assert_eq!(binds(&mut resolver).last(), Some(&(1, Some(1), true)));
}

fn binds(resolver: &mut Resolver) -> Vec<(u16, Option<usize>, bool)> {
    let mut binds = Vec::new();
    while let Some(command) = resolver.poll_command() {
        if let Command::Bind { connection, group, is_final, number, .. } = command {
            assert!(number > 0);
            binds.push((connection.flow.local.port(), group, is_final));
        }
    }
    binds
}

fn hear(resolver: &mut Resolver, connection: Connection, bytes: &[u8]) {
    resolver.handle_heard(connection, Heard::Stream { offset: 0, bytes }, AT);
}

pub(in super::super) fn tell(resolver: &mut Resolver, kind: u16, name: &str, content: &[u8]) {
    let dns = connection(Transport::Udp, 5_353, [192, 0, 2, 53]);
    resolver.handle_heard(dns, Heard::Dns(&query(1, name, kind)), AT);
    let told = answer(1, name, kind, &[record(&OWNER, kind, 300, content)]);
    resolver.handle_heard(dns, Heard::Dns(&told), AT);
}

#[test]
fn two_sites_at_one_address_are_told_apart() {
    let mut resolver = two_sites();
    hear(&mut resolver, tcp(1), &records(&browser_hello("a.video.com"), 900));
    hear(&mut resolver, tcp(2), b"GET / HTTP/1.1\r\nHost: bulk.net\r\n\r\n");
    hear(&mut resolver, tcp(3), &records(&browser_hello("other.org"), 9_000));
    let quic = connection(Transport::Udp, 4, [198, 51, 100, 1]);
    let packet = sent(&[7; 8], 0, crypto(0, &hello_with(&[names("video.com")]))).packet();
    resolver.handle_heard(quic, Heard::Datagram(&packet), AT);
    hear(&mut resolver, tcp(5), b"\0\0");
    assert_eq!(
        binds(&mut resolver),
        [
            (1, Some(0), true),
            (2, Some(1), true),
            (3, None, true),
            (4, Some(0), true),
            (5, None, true)
        ]
    );
    let counts = Counts { opened: 5, by_host: 1, by_sni: 3, unnamed: 1, ..Counts::default() };
    assert_eq!(resolver.counts(), counts);
}

#[test]
fn segments_come_in_any_order() {
    let mut resolver = two_sites();
    let stream = records(&browser_hello("video.com"), 9_000);
    resolver.handle_heard(tcp(1), Heard::Opened { user: Some(USER) }, AT);
    for offset in [1_400, 700, 0] {
        let bytes = &stream[offset..stream.len().min(offset + 700)];
        let heard = Heard::Stream { offset: offset as u32, bytes };
        assert_eq!(binds(&mut resolver), []);
        resolver.handle_heard(tcp(1), heard, AT);
    }
    assert_eq!(binds(&mut resolver), [(1, Some(0), true)]);
}

#[test]
fn the_address_decides_where_nothing_else_does_and_only_if_its_names_agree() {
    let mut resolver = two_sites();
    tell(&mut resolver, 1, "video.com", &[198, 51, 100, 1]);
    resolver.handle_heard(tcp(1), Heard::Opened { user: Some(USER) }, AT);
    assert_eq!(binds(&mut resolver), [(1, Some(0), false)], "until it speaks");
    hear(&mut resolver, tcp(1), &records(&hello_with(&[]), 900));
    assert_eq!(binds(&mut resolver), [(1, Some(0), true)]);
    hear(&mut resolver, tcp(2), &records(&browser_hello("bulk.net"), 9_000));
    assert_eq!(binds(&mut resolver), [(2, Some(0), false), (2, Some(1), true)], "SNI is more");
    tell(&mut resolver, 1, "www.video.com", &[198, 51, 100, 1]);
    hear(&mut resolver, tcp(3), b"SSH-2.0");
    assert_eq!(binds(&mut resolver), [(3, Some(0), false), (3, Some(0), true)]);
    tell(&mut resolver, 1, "other.org", &[198, 51, 100, 1]);
    hear(&mut resolver, tcp(4), b"SSH-2.0");
    assert_eq!(binds(&mut resolver), [(4, None, true)], "one of its names has no rule");
    let counts = Counts { opened: 4, by_sni: 1, by_dns: 2, unnamed: 1, ..Counts::default() };
    assert_eq!(resolver.counts(), counts);
}

#[test]
fn the_outer_name_of_an_encrypted_hello_is_never_taken() {
    let mut resolver = two_sites();
    tell(&mut resolver, 65, "video.com", &service("bulk.net"));
    let outer = records(&browser_hello("bulk.net"), 9_000);
    hear(&mut resolver, connection(Transport::Tcp, 1, [192, 0, 2, 5]), &outer);
    assert_eq!(binds(&mut resolver), [(1, Some(0), false), (1, Some(0), true)], "by the hint");
    hear(&mut resolver, tcp(2), &outer);
    assert_eq!(binds(&mut resolver), [(2, None, true)], "not at an address of video.com");
    hear(&mut resolver, tcp(3), &records(&hello_with(&[names("bulk.net")]), 9_000));
    assert_eq!(binds(&mut resolver), [(3, Some(1), true)], "without the extension it is true");
    assert_eq!(resolver.counts().ech, 2);
}

#[test]
fn two_groups_on_one_quic_flow_are_mixed_for_good() {
    let mut resolver = two_sites();
    let quic = connection(Transport::Udp, 4, [198, 51, 100, 1]);
    for (id, name, expected) in [
        ([1; 8], "video.com", Some((4, Some(0), true))),
        ([1; 8], "video.com", None),
        ([2; 8], "www.video.com", None),
        ([3; 8], "bulk.net", Some((4, None, true))),
        ([4; 8], "video.com", None),
    ] {
        let packet = sent(&id, 0, crypto(0, &hello_with(&[names(name)]))).packet();
        resolver.handle_heard(quic, Heard::Datagram(&packet), AT);
        assert_eq!(binds(&mut resolver), Vec::from_iter(expected));
    }
    assert_eq!(resolver.counts().mixed, 1);
    assert!(resolver.pending.is_empty());
}

#[test]
fn ports_that_are_used_again_begin_anew() {
    let mut resolver = two_sites();
    hear(&mut resolver, tcp(1), &records(&browser_hello("video.com"), 9_000));
    let again = Connection { opened: 2, ..tcp(1) };
    hear(&mut resolver, again, &records(&browser_hello("bulk.net"), 9_000));
    assert_eq!(binds(&mut resolver), [(1, Some(0), true), (1, Some(1), true)]);
    assert_eq!(resolver.connections.len(), 1);
}

#[test]
fn another_policy_binds_every_connection_anew() {
    let mut resolver = two_sites();
    tell(&mut resolver, 1, "video.com", &[198, 51, 100, 9]);
    hear(&mut resolver, tcp(1), &records(&browser_hello("video.com"), 9_000));
    hear(&mut resolver, tcp(2), &records(&browser_hello("new.org"), 9_000));
    let by_dns = connection(Transport::Tcp, 3, [198, 51, 100, 9]);
    resolver.handle_heard(by_dns, Heard::Opened { user: Some(USER) }, AT);
    binds(&mut resolver);
    resolver.handle_sites(sites(&[&["web:new.org"], &["app:x"], &["web:video.com"]]), AT);
    assert_eq!(binds(&mut resolver), [(1, Some(2), true), (2, Some(0), true), (3, Some(2), false)]);
}

#[test]
fn tables_are_bounded_and_what_never_ends_is_given_up() {
    let mut resolver = two_sites();
    let stream = records(&browser_hello("video.com"), 9_000);
    let many = PENDING_MAX as u16 + 100;
    for port in 0..many {
        let heard = Heard::Stream { offset: 0, bytes: &stream[..100] };
        resolver.handle_heard(tcp(port), heard, AT);
        assert!(resolver.pending.len() <= PENDING_MAX);
    }
    assert_eq!(binds(&mut resolver).len(), 100, "the oldest");
    resolver.handle_time(AT + Span::secs(9));
    assert_eq!(resolver.counts().undecided, PENDING_MAX as u64);
    resolver.handle_time(AT + PATIENCE);
    assert_eq!((resolver.counts().undecided, resolver.pending.len()), (0, 0));
    assert!(resolver.connections.values().all(|known| known.pending.is_none()));
    let mut forgotten = 0;
    for i in 0..CONNECTIONS_MAX as u32 + 10 {
        let [_, a, b, c] = i.to_be_bytes();
        let connection = connection(Transport::Tcp, 9, [10 + a, b, c, 1]);
        resolver.handle_heard(connection, Heard::Opened { user: Some(USER) }, AT);
        assert!(resolver.connections.len() <= CONNECTIONS_MAX);
        while let Some(command) = resolver.poll_command() {
            forgotten += u32::from(matches!(command, Command::Forget(_)));
        }
    }
    assert_eq!(forgotten, u32::from(many) + 10);
    assert_eq!(resolver.numbers.len(), CONNECTIONS_MAX);
}

proptest! {
    /// Whatever is heard: no panic, tables agree, and every decided connection was reported.
    #[test]
    fn anything_may_be_heard(
        events in vec((0_u16..6, 0_u8..5, 0_usize..3_000, vec(any::<u8>(), 0..40)), 0..60)
    ) {
        let mut resolver = two_sites();
        let stream = records(&browser_hello("video.com"), 900);
        let packet = sent(&[7; 8], 0, crypto(0, &browser_hello("bulk.net")[..900])).packet();
        let mut at = AT;
        for (port, kind, number, bytes) in events {
            at = at + Span::millis(number as u64);
            let offset = number.min(stream.len());
            let transport = if kind > 2 { Transport::Udp } else { Transport::Tcp };
            let connection = connection(transport, port, [198, 51, 100, 1]);
            let connection = Connection { opened: u32::from(bytes.len() > 38), ..connection };
            if bytes.len() % 7 == 0 {
                resolver.handle_claimant(USER, at);
            }
            if bytes.len() % 3 == 0 {
                resolver.handle_heard(connection, Heard::Sent, at);
                let begin = Time::from_nanos(at.as_nanos().saturating_sub(number as u64));
                let group = Some(bytes.len() % 2);
                let told = Claim { begin, start: at, group, ..claim(None, 0) };
                resolver.handle_claim(&told, at);
                resolver.handle_departure(&Departure { begin, group, ..departure(None, 0) });
            }
            let part = &stream[offset..stream.len().min(offset + 700)];
            let heard = match kind {
                0 => Heard::Opened { user: Some(USER) },
                1 => Heard::Stream { offset: offset as u32, bytes: part },
                2 => Heard::Stream { offset: number as u32, bytes: &bytes },
                3 => Heard::Datagram(if number % 2 == 0 { &packet } else { &bytes }),
                _ => Heard::Dns(&bytes),
            };
            resolver.handle_heard(connection, heard, at);
            resolver.handle_time(at);
            prop_assert_eq!(resolver.numbers.len(), resolver.connections.len());
            let pending = resolver.connections.iter().filter(|(_, known)| known.pending.is_some());
            prop_assert!(pending.map(|(number, _)| number).eq(&resolver.pending));
            while let Some(command) = resolver.poll_command() {
                let Command::Bind { number, group, .. } = command else { continue };
                if let Some(attribution) = resolver.attribution(number) {
                    prop_assert!(attribution.group.is_none() || group.is_some());
                }
            }
        }
    }
}
