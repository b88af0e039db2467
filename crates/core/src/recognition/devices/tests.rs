use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{AgentEntry, Confidence, DhcpEntry, SynEntry, Word};
use super::*;

const FIXED_BYTES: usize = 240;

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0x5e, 0, 0x53, last])
}

fn at(seconds: u64) -> Time {
    Time::ZERO + Span::secs(seconds)
}

fn what(os: &[Os], kinds: &[Kind]) -> What {
    let kinds = if kinds.is_empty() { Set::all() } else { Set::of(kinds) };
    What { os: Set::of(os), kinds }
}

fn devices() -> Devices {
    let dhcp = |requests: Option<&[u8]>, vendor: &str, what| DhcpEntry {
        requests: requests.map(<[u8]>::to_vec),
        vendor: vendor.to_owned(),
        what,
    };
    let agent = |word: &str, what| AgentEntry { words: vec![word.to_owned()], what };
    let apple = what(&[Os::Ios, Os::Macos], &[]);
    Devices::new(Table {
        dhcp: vec![
            dhcp(Some(&[1, 3, 6]), "", apple),
            dhcp(None, "MSFT", what(&[Os::Windows], &[Kind::Computer, Kind::Console])),
            dhcp(None, "MSFT 5.0 XBOX", what(&[Os::Windows], &[Kind::Console])),
        ],
        syn: vec![
            SynEntry {
                hops: 64,
                layout: "MSTNW".into(),
                what: what(&[Os::Linux, Os::Android], &[]),
            },
            SynEntry { hops: 64, layout: "MN".into(), what: apple },
        ],
        agents: vec![
            agent("iPhone", what(&[Os::Ios], &[Kind::Phone])),
            agent("Linux", what(&[Os::Linux, Os::Android], &[])),
            agent("Debian", what(&[Os::Linux], &[])),
        ],
    })
}

fn question(device: u8, options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; FIXED_BYTES];
    bytes[1..3].copy_from_slice(&[1, 6]);
    bytes[28..34].copy_from_slice(&mac(device).0);
    bytes[236..].copy_from_slice(&[99, 130, 83, 99]);
    bytes.extend([53, 1, 1]);
    for (code, value) in options {
        bytes.extend([*code, value.len() as u8]);
        bytes.extend(*value);
    }
    bytes.push(255);
    bytes
}

/// A first packet with these options of TCP.
fn syn(options: &[u8]) -> Syn {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    packet.extend([0; 20]);
    packet[32] = ((20 + options.len()) as u8 / 4) << 4;
    packet[33] = 2;
    packet.extend(options);
    Syn::parse(&packet, None).unwrap()
}

fn linux() -> Syn {
    let mut options = vec![2, 4, 5, 0xb4, 4, 2, 8, 10];
    options.extend([0; 8]);
    options.extend([1, 3, 3, 7]);
    syn(&options)
}

fn os(devices: &Devices, device: u8) -> Verdict<Os> {
    devices.portraits().find(|portrait| portrait.mac == mac(device)).unwrap().os
}

#[test]
fn signs_narrow_until_one_is_left() {
    let mut devices = devices();
    assert!(!devices.handle_dhcp(mac(1), &question(1, &[(55, &[1, 3, 6])]), at(0)));
    assert_eq!(os(&devices, 1), Verdict::Unknown(Set::of(&[Os::Ios, Os::Macos])));
    assert!(devices.handle_agent(mac(1), b"Mozilla/5.0 (iPhone; x)", at(1)));
    assert_eq!(os(&devices, 1), Verdict::Known(Os::Ios, Confidence::Several));
    assert_eq!(devices.identity(mac(1)).kind, Some(Kind::Phone));
    assert!(devices.handle_dhcp(mac(2), &question(2, &[(60, b"MSFT 5.0")]), at(2)));
    assert_eq!(os(&devices, 2), Verdict::Known(Os::Windows, Confidence::One));
    assert_eq!(devices.identity(mac(2)).kind, None);
    assert!(devices.handle_dhcp(mac(3), &question(3, &[(60, b"MSFT 5.0 XBOX")]), at(2)));
    assert_eq!(devices.identity(mac(3)).kind, Some(Kind::Console), "the longer name counts");
    assert!(!devices.handle_syn(mac(4), &linux(), at(3)));
    assert!(devices.handle_agent(mac(4), b"Debian APT-HTTP/1.3", at(4)));
    assert_eq!(os(&devices, 4), Verdict::Known(Os::Linux, Confidence::Several));
    assert_eq!(devices.identity(mac(9)), Identity::default());
}

#[test]
fn conflicts_are_shown_and_not_applied_and_the_user_decides() {
    let mut devices = devices();
    devices.handle_dhcp(mac(1), &question(1, &[(60, b"MSFT 5.0")]), at(0));
    assert!(devices.handle_syn(mac(1), &linux(), at(1)), "it was Windows");
    assert_eq!(os(&devices, 1), Verdict::Conflict);
    assert_eq!(devices.identity(mac(1)).os, None);
    let portrait = devices.portraits().next().unwrap();
    let seen: Vec<_> = portrait.claims.iter().map(|claim| &claim.seen[..]).collect();
    assert_eq!(seen, ["MSFT 5.0 ", "64 MSTNW"]);
    let said = Identity { os: Some(Os::Chromeos), kind: None };
    devices.set_said([(mac(1), said), (mac(5), said)]);
    assert_eq!(os(&devices, 1), Verdict::Known(Os::Chromeos, Confidence::User));
    assert_eq!(devices.identity(mac(5)), said, "it was never heard");
    devices.set_said([]);
    // The device starts another system, which sends different DHCP requests.
    assert!(!devices.handle_dhcp(mac(1), &question(1, &[(55, &[1, 3, 6])]), at(2)));
    assert_eq!(os(&devices, 1), Verdict::Unknown(Set::of(&[Os::Ios, Os::Macos])));
    // A sign that is no longer seen does not count.
    devices.handle_agent(mac(2), b"iPhone", at(0));
    devices.handle_syn(mac(2), &linux(), at(24 * 3_600));
    assert_eq!(os(&devices, 2), Verdict::Conflict);
    devices.handle_syn(mac(2), &linux(), at(24 * 3_600 + 1));
    assert_eq!(os(&devices, 2), Verdict::Unknown(Set::of(&[Os::Android, Os::Linux])));
}

#[test]
fn requests_for_others_and_answers_say_nothing() {
    let mut devices = devices();
    let question = question(1, &[(60, b"MSFT 5.0")]);
    assert!(!devices.handle_dhcp(mac(2), &question, at(0)), "of another device");
    for (at_byte, value) in [(242, 5), (24, 10), (1, 7)] {
        let mut other = question.clone();
        other[at_byte] = value;
        assert!(!devices.handle_dhcp(mac(1), &other, at(0)), "{at_byte}");
    }
    assert!(!devices.handle_agent(mac(1), b"curl/8.0", at(0)));
    assert_eq!(devices.portraits().count(), 0);
    assert!(devices.handle_dhcp(mac(1), &question, at(0)));
}

#[test]
fn devices_and_claims_are_bounded_and_what_speaks_stays() {
    let mut devices = devices();
    for i in 0..3_000_u32 {
        let [_, _, high, low] = i.to_be_bytes();
        devices.handle_agent(mac(1), format!("Linux {i} Debian").as_bytes(), at(i.into()));
        devices.handle_agent(Mac([2, 1, 1, 1, high, low]), b"iPhone", at(i.into()));
        // Options that no table has.
        let hidden = syn(&[(i % 200) as u8 + 10, 4, 0, 0]);
        devices.handle_syn(mac(1), &hidden, at(i.into()));
        assert!(devices.known.len() <= DEVICES_MAX);
        assert!(devices.known.values().all(|device| device.claims.len() <= CLAIMS_MAX));
    }
    assert_eq!(devices.known.len(), DEVICES_MAX);
    assert!(devices.known.contains_key(&mac(1)));
    devices.handle_agent(mac(1), &[0x1b; 4_000], at(3_000));
    let long = [&b"iPhone"[..], &[0x1b; 4_000]].concat();
    devices.handle_agent(mac(7), &long, at(3_000));
    let portrait = devices.portraits().find(|portrait| portrait.mac == mac(7)).unwrap();
    let seen = &portrait.claims[0].seen;
    assert!(seen.len() <= super::super::SEEN_MAX && seen.bytes().all(|c| c.is_ascii_graphic()));
}

#[test]
fn words_of_rules_are_read_and_printed() {
    use super::super::DeviceMatch;
    for (name, os) in Os::ALL {
        let text = format!("os:{name}");
        let matched = DeviceMatch::parse(&text).unwrap().unwrap();
        assert_eq!((matched, matched.to_string()), (DeviceMatch::Os(*os), text));
    }
    let error = DeviceMatch::parse("device-kind:toaster").unwrap().unwrap_err();
    assert!(error.contains("toaster") && error.contains("television"), "{error}");
    assert_eq!(DeviceMatch::parse("ip:192.0.2.1"), None);
}

proptest! {
    /// Each further claim leaves fewer systems or the same, in any order; a conflict stays one.
    #[test]
    fn signs_only_narrow_and_their_order_does_not_matter(sets in vec(1_u16..512, 1..6)) {
        let sets: Vec<Set<Os>> = sets.iter().map(|bits| {
            let words: Vec<Os> = Os::ALL.iter().enumerate()
                .filter(|(i, _)| bits >> i & 1 == 1).map(|(_, (_, word))| *word).collect();
            Set::of(&words)
        }).collect();
        let sources = [Source::Dhcp, Source::Syn, Source::Agent];
        let claims = || sets.iter().enumerate().map(|(i, set)| (sources[i % 3], set));
        let verdict = Verdict::of(claims());
        let reversed: Vec<_> = claims().collect();
        prop_assert_eq!(verdict, Verdict::of(reversed.into_iter().rev()));
        match verdict {
            Verdict::Known(word, _) => {
                prop_assert!(sets.iter().all(|set| !set.and(Set::of(&[word])).is_empty()));
            }
            Verdict::Unknown(left) => {
                prop_assert!(left.words().count() > 1);
                prop_assert!(sets.iter().all(|set| set.and(left) == left));
            }
            Verdict::Conflict => {
                let more = claims().chain([(Source::Syn, &sets[0])]);
                prop_assert_eq!(Verdict::of(more), Verdict::<Os>::Conflict);
            }
        }
    }

    #[test]
    fn any_sign_is_read_without_a_panic(
        bytes in vec(any::<u8>(), 0..600), options in vec(any::<u8>(), 0..10),
    ) {
        let mut devices = devices();
        let mut whole = question(1, &[]);
        whole.pop();
        whole.extend(&bytes);
        for bytes in [&bytes, &whole] {
            devices.handle_dhcp(mac(1), bytes, at(1));
            devices.handle_agent(mac(1), bytes, at(1));
        }
        devices.handle_syn(mac(1), &syn(&options.repeat(4)), at(1));
        for portrait in devices.portraits() {
            let is_shown = |c: u8| c == b' ' || c.is_ascii_graphic();
            prop_assert!(portrait.claims.iter().all(|claim| claim.seen.bytes().all(is_shown)));
        }
    }
}
