//! Checks, counts and limits the claims of browsers' extensions before they are used.
//!
//! A client is one process of some user ([`Peer::uid`](fairweir_daemon::Peer), as reported by the
//! kernel). Its claims count only for that user's connections: see
//! [`Resolver::handle_claim`](fairweir_core::sites::Resolver::handle_claim).

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use fairweir_core::sites::{Claim, Departure, HostDigest};
use fairweir_core::units::{Span, Time};

use super::wire::{CLAIMS_VERSION, ClaimEvent, ClaimsRequest, ClaimsStatus};

/// Checks claims, and counts those that are refused.
#[derive(Debug)]
pub(super) struct Checks {
    pub(super) counts: ClaimsStatus,
    clocks: Clocks,
    users: BTreeMap<u32, User>,
}

/// The offset between the wall clock and the monotonic clock. A given wall clock time always maps
/// to the same [`Time`], until one of the clocks is set.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    /// The wall clock time at which the monotonic clock was zero, in ms; NaN before the first reading.
    begin_ms: f64,
}

impl Clocks {
    /// Takes a reading of both clocks at the same moment.
    fn handle_reading(&mut self, now: Time, wall_ms: f64) {
        let begin_ms = wall_ms - now.as_nanos() as f64 * 1e-6;
        if self.begin_ms.is_nan() || (begin_ms - self.begin_ms).abs() > CLOCKS_DIFFER_MS {
            self.begin_ms = begin_ms;
        }
    }

    /// Rounded to whole microseconds: a wall clock in milliseconds has no more precision.
    fn time(self, wall_ms: f64) -> Time {
        Time::from_nanos(((wall_ms - self.begin_ms) * 1e3).round().max(0.0) as u64 * 1_000)
    }
}

/// The extensions of one user.
#[derive(Debug)]
struct User {
    heard_at: Time,
    /// How many more events the user may send, in thousandths.
    allowance: u64,
    /// The user's last events.
    last: VecDeque<ClaimEvent>,
}

/// What an extension reports about a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Told {
    /// The request is about to be sent.
    Departure(Departure),
    /// The response has begun.
    Claim(Claim),
}

impl Checks {
    pub(super) fn new() -> Checks {
        Checks {
            counts: ClaimsStatus::default(),
            clocks: Clocks { begin_ms: f64::NAN },
            users: BTreeMap::new(),
        }
    }

    /// Returns the events that pass the checks. `groups` has the number of groups, and the index
    /// that stands for `default`; `wall_ms` is the wall clock time in ms, read at `now`.
    pub(super) fn pass(
        &mut self,
        user: u32,
        request: &ClaimsRequest,
        generation: u64,
        groups: (usize, usize),
        (now, wall_ms): (Time, f64),
    ) -> Vec<Told> {
        let events = request.events.len() as u64;
        if request.version != CLAIMS_VERSION {
            self.counts.malformed += events.max(1);
            return Vec::new();
        }
        self.clocks.handle_reading(now, wall_ms);
        let clocks = self.clocks;
        let (mut all, mut counts) = (Vec::new(), self.counts);
        let known = self.user(user, now);
        // The group indices of these events belong to another configuration.
        if request.generation != Some(generation) {
            counts.stale += events;
        } else {
            for event in &request.events {
                if known.allowance < 1_000 {
                    counts.over_rate += 1;
                    continue;
                }
                known.allowance -= 1_000;
                match told(user, event, groups, clocks, wall_ms) {
                    Err(Wrong::Content) => counts.malformed += 1,
                    Err(Wrong::Time) => counts.out_of_time += 1,
                    // Compared by the event's own times: times of a claim depend on when both clocks were read.
                    Ok(_) if known.last.contains(event) => counts.repeated += 1,
                    Ok(told) => {
                        if known.last.len() == LAST_MAX {
                            known.last.pop_front();
                        }
                        known.last.push_back(event.clone());
                        all.push(told);
                    }
                }
            }
        }
        self.counts = counts;
        all
    }

    /// The number of users whose extension was heard within `span`.
    pub(super) fn users(&self, now: Time, span: Span) -> u64 {
        self.users.values().filter(|user| now.since(user.heard_at) < span).count() as u64
    }

    fn user(&mut self, user: u32, now: Time) -> &mut User {
        if self.users.len() >= USERS_MAX && !self.users.contains_key(&user) {
            let oldest = self.users.iter().min_by_key(|(_, known)| known.heard_at);
            let oldest = oldest.map(|(user, _)| *user);
            oldest.and_then(|oldest| self.users.remove(&oldest));
        }
        let known = self.users.entry(user).or_insert_with(|| User {
            heard_at: now,
            allowance: ALLOWANCE_MAX,
            last: VecDeque::new(),
        });
        let earned = now.since(known.heard_at).as_nanos() / 1_000_000 * EVENTS_PER_S;
        // The fraction of a millisecond is kept for the next time.
        let elapsed = Span::millis(now.since(known.heard_at).as_nanos() / 1_000_000);
        known.heard_at = known.heard_at + elapsed;
        known.allowance = (known.allowance + earned).min(ALLOWANCE_MAX);
        known
    }
}

enum Wrong {
    Content,
    Time,
}

fn told(
    user: u32,
    event: &ClaimEvent,
    (groups, default): (usize, usize),
    clocks: Clocks,
    wall_ms: f64,
) -> Result<Told, Wrong> {
    let host = digest(&event.host).ok_or(Wrong::Content)?;
    if event.group.is_some_and(|group| group >= groups) {
        return Err(Wrong::Content);
    }
    let (port, group) = (event.port, event.group.filter(|group| *group != default));
    let start_ms = match (event.address, event.start_ms) {
        (Some(_), Some(start_ms)) => start_ms,
        (None, None) => event.begin_ms,
        _ => return Err(Wrong::Content),
    };
    // Refuses a start too far from now, in either direction, and a start before the begin.
    let (age, took) = (wall_ms - start_ms, start_ms - event.begin_ms);
    if !(age.abs() <= CLOCKS_APART_MS && (0.0..=RESPONSE_MAX_MS).contains(&took)) {
        return Err(Wrong::Time);
    }
    let (begin, is_http1) = (clocks.time(event.begin_ms), event.http1);
    let Some(address) = event.address else {
        return Ok(Told::Departure(Departure { user, host, port, group, begin, is_http1 }));
    };
    let start = clocks.time(start_ms);
    let (remote, is_unsure) = (SocketAddr::new(address, port), event.unsure);
    Ok(Told::Claim(Claim { user, remote, host, group, begin, start, is_unsure, is_http1 }))
}

fn digest(hex: &str) -> Option<HostDigest> {
    let bytes = hex.as_bytes();
    let mut digest = [0; 32];
    if bytes.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(bytes.chunks_exact(2)) {
        let nibble = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (nibble(0)? << 4 | nibble(1)?) as u8;
    }
    Some(HostDigest(digest))
}

/// The most users: as many as the resolver watches.
const USERS_MAX: usize = 64;
/// Events of a user per second: more than a page with 500 objects asks for.
const EVENTS_PER_S: u64 = 500;
/// The most events of a user at once, in thousandths: those of two seconds.
const ALLOWANCE_MAX: u64 = 2 * EVENTS_PER_S * 1_000;
const LAST_MAX: usize = 64;
/// The greatest allowed difference between an event's time and now. The extension sends it about 20
/// ms after the response began.
const CLOCKS_APART_MS: f64 = 10_000.0;
/// The smallest change of the clocks' offset that counts; smaller ones come from not reading them at once.
const CLOCKS_DIFFER_MS: f64 = 2.0;
/// The oldest request that is accepted: servers and browsers do not wait longer for a response.
const RESPONSE_MAX_MS: f64 = 600_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(100_000_000_000);
    const WALL_MS: f64 = 1.8e12;
    const GENERATION: u64 = 7;

    fn event(begin_ms: f64) -> ClaimEvent {
        ClaimEvent {
            host: "0a".repeat(32),
            address: Some([192, 0, 2, 1].into()),
            port: 443,
            group: Some(1),
            begin_ms,
            start_ms: Some(begin_ms + 20.0),
            unsure: false,
            http1: false,
        }
    }

    fn request(events: Vec<ClaimEvent>) -> ClaimsRequest {
        ClaimsRequest { version: CLAIMS_VERSION, generation: Some(GENERATION), events }
    }

    fn pass(checks: &mut Checks, user: u32, now: Time, events: Vec<ClaimEvent>) -> Vec<Told> {
        checks.pass(user, &request(events), GENERATION, (3, 2), (now, WALL_MS))
    }

    #[test]
    fn a_claim_has_the_times_of_the_monotonic_clock() {
        let mut checks = Checks::new();
        let told = ClaimEvent { group: Some(2), ..event(WALL_MS - 70.0) };
        let leaves = ClaimEvent { address: None, start_ms: None, ..event(WALL_MS - 30.0) };
        let all = pass(&mut checks, 5, NOW, vec![event(WALL_MS - 120.0), told, leaves]);
        let [Told::Claim(first), Told::Claim(second), Told::Departure(leaves)] = all[..] else {
            panic!("{all:?}");
        };
        let claims = [first, second];
        assert_eq!((leaves.user, leaves.port, leaves.group), (5, 443, Some(1)));
        assert_eq!(leaves.begin + Span::millis(30), NOW);
        assert_eq!(claims[0].host, HostDigest([0x0a; 32]));
        assert_eq!((claims[0].user, claims[0].group), (5, Some(1)));
        assert_eq!(claims[0].begin + Span::millis(120), NOW);
        assert_eq!(claims[0].start + Span::millis(100), NOW);
        assert_eq!(claims[1].group, None, "the default group is none");
        assert_eq!(checks.counts, ClaimsStatus::default());
    }

    #[test]
    fn what_cannot_be_is_refused_and_counted() {
        let mut checks = Checks::new();
        let right = || event(WALL_MS - 120.0);
        let wrong = |at: f64| ClaimEvent { start_ms: Some(at), ..right() };
        let malformed = vec![
            ClaimEvent { host: "0a".repeat(31), ..right() },
            ClaimEvent { host: "é".repeat(32), ..right() },
            ClaimEvent { host: "0g".repeat(32), ..right() },
            ClaimEvent { group: Some(3), ..right() },
            ClaimEvent { address: None, ..right() },
            ClaimEvent { start_ms: None, ..right() },
        ];
        let times = vec![
            event(WALL_MS + 11_000.0),
            event(WALL_MS - 11_000.0),
            wrong(WALL_MS - 121.0),
            wrong(f64::NAN),
            wrong(f64::INFINITY),
            ClaimEvent { begin_ms: f64::NEG_INFINITY, ..right() },
            ClaimEvent { begin_ms: -1e300, ..right() },
        ];
        assert_eq!(pass(&mut checks, 5, NOW, [malformed, times].concat()), []);
        assert_eq!((checks.counts.malformed, checks.counts.out_of_time), (6, 7));
        let old = ClaimsRequest { generation: Some(GENERATION - 1), ..request(vec![right()]) };
        let other = ClaimsRequest { version: CLAIMS_VERSION + 1, ..request(vec![right()]) };
        for request in [old, other] {
            let passed = checks.pass(5, &request, GENERATION, (3, 2), (NOW, WALL_MS));
            assert_eq!(passed, []);
        }
        assert_eq!((checks.counts.malformed, checks.counts.stale), (7, 1));
    }

    #[test]
    fn a_claim_counts_once_also_if_it_is_sent_again_later() {
        let mut checks = Checks::new();
        let told = event(WALL_MS - 120.0);
        assert_eq!(pass(&mut checks, 5, NOW, vec![told.clone(), told.clone()]).len(), 1);
        let later = (NOW + Span::secs(1), WALL_MS + 1_000.0);
        let again = checks.pass(5, &request(vec![told.clone()]), GENERATION, (3, 2), later);
        assert_eq!(again, []);
        assert_eq!(checks.counts.repeated, 2);
        assert_eq!(pass(&mut checks, 6, NOW, vec![told]).len(), 1, "another user's is another");
    }

    #[test]
    fn a_user_has_500_events_a_second_and_takes_none_of_another() {
        let mut checks = Checks::new();
        let mut passed = 0;
        let mut at = 0.0;
        for ms in 0..10_000 {
            let many = (0..10).map(|_| {
                at += 0.1;
                event(WALL_MS - 5_000.0 + at % 4_000.0)
            });
            let many = many.collect();
            passed += pass(&mut checks, 5, NOW + Span::millis(ms), many).len();
        }
        assert!((5_900..=6_100).contains(&passed), "{passed} in 10 s");
        assert!(checks.counts.over_rate > 90_000);
        let later = NOW + Span::secs(10);
        assert_eq!(pass(&mut checks, 6, later, vec![event(WALL_MS - 50.0)]).len(), 1);
        for user in 0..1_000 {
            pass(&mut checks, user, later, vec![]);
        }
        assert_eq!(checks.users.len(), USERS_MAX);
        assert!(checks.users.values().all(|user| user.last.len() <= LAST_MAX));
    }
}
