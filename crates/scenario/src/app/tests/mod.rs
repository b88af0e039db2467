//! Each application against an idealised transport.

use fairweir_core::units::{Rate, Span};
use proptest::prelude::*;

use super::*;
use transport::{SEGMENT, World, flow, s};

mod transport;

fn play(kind: &str, keys: &str, seed: u64, rate: Rate, seconds: u64) -> (World, Outcome) {
    World::new(&flow(kind, keys), seed, rate).play(s(seconds))
}

fn mbit(rate: &str) -> Rate {
    rate.parse().unwrap()
}

/// Goodput of a demand: the demand times a full packet's payload divided by its L2 size.
fn payload(demand: Rate, seconds: u64) -> f64 {
    demand.as_bps() as f64 / 8.0 * 1448.0 / 1514.0 * seconds as f64
}

fn is_near(value: f64, expected: f64, percent: f64) -> bool {
    (value / expected - 1.0).abs() <= percent / 100.0
}

// ------------------------------------------------------------------------------------------------
// Endless pages

/// The volumes that a page asks of a connection, in order.
fn asked(world: &World, of: u32) -> Vec<Bytes> {
    let sizes = world.wants.iter().filter_map(|(_, want)| match want {
        Want::Fetch { slot, volume } if *slot == of => *volume,
        _ => None,
    });
    sizes.collect()
}

#[test]
fn an_endless_page_asks_for_the_next_object_when_one_is_there() {
    let page = |http: u32| {
        let keys = format!("site = \"a.example\"\nhosts = 1\nhttp = {http}");
        play("browser", &keys, 1, Rate::mbit(20), 20).0
    };
    // Each download has a connection: one request per complete object, and one that is under way.
    let world = page(1);
    for (slot, size) in crate::Browser::OBJECTS.into_iter().enumerate() {
        let objects = world.received_by_slot[slot] / size.as_u64() + 1;
        assert_eq!(asked(&world, slot as u32), vec![size; objects as usize]);
        assert!(objects > 5, "{objects}");
    }
    // One connection for both.
    let world = page(2);
    let [small, large] = crate::Browser::OBJECTS;
    let sizes = asked(&world, 0);
    assert!(sizes.chunks_exact(2).all(|pair| pair == [small, large]), "{sizes:?}");
    let under_way = sizes.iter().map(|size| size.as_u64()).sum::<u64>() - world.received;
    assert!((3_000_000..=7_200_000).contains(&under_way), "{under_way}");
}

// ------------------------------------------------------------------------------------------------
// Bulk and on-off

#[test]
fn an_endless_download_takes_all_that_the_link_carries() {
    let (world, _) = play("bulk", "connections = 4", 1, Rate::mbit(20), 10);
    assert!(is_near(world.received as f64, 2.5e6 * 9.92, 0.5), "{}", world.received);
}

#[test]
fn a_paced_source_delivers_its_demand_and_no_more() {
    for (demand, connections) in [("300kbit", 1), ("8mbit", 1), ("8mbit", 7), ("200mbit", 3)] {
        let keys = format!("demand = \"{demand}\"\nconnections = {connections}");
        let (world, _) = play("bulk", &keys, 1, Rate::mbit(500), 60);
        // Nothing is written before the handshake is over, and the last RTT's data has not arrived.
        let expected = payload(mbit(demand), 60) * (60.0 - 0.06) / 60.0;
        assert!(is_near(world.received as f64, expected, 0.5), "{demand}: {}", world.received);
        let of_slots = &world.received_by_slot[..connections];
        let part = expected / connections as f64;
        assert!(of_slots.iter().all(|&n| is_near(n as f64, part, 1.0)), "{of_slots:?}");
    }
}

#[test]
fn a_paced_source_does_not_owe_what_it_could_not_send() {
    let mut world = World::new(&flow("bulk", "demand = \"8mbit\""), 1, Rate::mbit(100));
    world.held = s(2)..s(6);
    let (world, _) = world.play(s(10));
    let expected = payload(Rate::mbit(8), 6);
    assert!(world.received as f64 > expected * 0.99, "{}", world.received);
    // The server may be behind by 40 ms.
    assert!((world.received as f64) < expected * (6.045 / 6.0), "{}", world.received);
}

#[test]
fn a_demand_changes_in_steps_to_and_from_without_end() {
    let keys = "rtt = \"2ms\"\ndemand = \"8mbit\"\nsteps = [{ at = \"10s\", demand = \"2mbit\" }, \
                { at = \"20s\", demand = \"unlimited\" }, { at = \"30s\", demand = \"4mbit\" }]";
    let mut world = World::new(&flow("bulk", keys), 1, Rate::mbit(50));
    world.start();
    let mut before = 0;
    let expected = [
        payload(Rate::mbit(8), 10),
        payload(Rate::mbit(2), 10),
        50e6 / 8.0 * 10.0,
        // Data that the kernel had taken still goes out: four packets, because of the 2 Mbit/s.
        payload(Rate::mbit(4), 10) + 4.0 * 1_448.0,
    ];
    for (i, expected) in expected.into_iter().enumerate() {
        world.run_until(s(10 * (i as u64 + 1)));
        let received = (world.received - before) as f64;
        assert!(is_near(received, expected, 0.2), "step {i}: {received}, wanted {expected}");
        before = world.received;
    }
}

#[test]
fn an_on_off_source_rests_between_its_periods() {
    let keys = "on = \"300ms\"\noff = \"900ms\"\ndemand = \"8mbit\"";
    let (world, _) = play("on-off", keys, 3, Rate::mbit(100), 3_600);
    let opened = world.wants.iter().filter(|(_, w)| matches!(w, Want::Open { .. })).count();
    assert_eq!(opened, 1, "one connection is kept");
    // It sends for a quarter of the time; sums of Pareto times converge slowly.
    let quarter = payload(Rate::mbit(8), 900);
    assert!(is_near(world.received as f64, quarter, 20.0), "{}", world.received as f64 / quarter);
    let writes: Vec<Time> = times(&world, |want| matches!(want, Want::Write { .. }));
    let long_rests = writes.windows(2).filter(|w| w[1].since(w[0]) >= Span::millis(300)).count();
    // There is one off period in each 1.2 s; no off period is below a third of the mean.
    assert!((2_600..3_400).contains(&long_rests), "{long_rests}");
}

#[test]
fn the_demand_of_an_on_off_source_changes_in_steps_while_it_is_on_and_while_it_is_off() {
    let keys = "on = \"300ms\"\noff = \"900ms\"\ndemand = \"8mbit\"\n\
                steps = [{ at = \"1800s\", demand = \"2mbit\" }]";
    let (world, _) = play("on-off", keys, 3, Rate::mbit(100), 3_600);
    let (mut shortest, mut early) = (Span::MAX, Span::MAX);
    for pair in times(&world, |want| matches!(want, Want::Write { .. })).windows(2) {
        let least = if pair[0] >= s(1_800) { &mut shortest } else { &mut early };
        *least = pair[1].since(pair[0]).min(*least);
    }
    let interval = |rate: Rate| rate.time_to_send(Bytes::new(1_514));
    assert_eq!((early, shortest), (interval(Rate::mbit(8)), interval(Rate::mbit(2))));
    // Each demand applies for a quarter of half the time; sums of Pareto times converge slowly.
    let expected = payload(Rate::mbit(8), 450) + payload(Rate::mbit(2), 450);
    assert!(is_near(world.received as f64, expected, 25.0), "{}", world.received as f64 / expected);
}

#[test]
fn an_on_off_source_without_a_demand_takes_all_and_then_withdraws_it() {
    let (world, _) = play("on-off", "", 5, Rate::mbit(10), 600);
    let asked = times(&world, |want| matches!(want, Want::Fetch { .. }));
    let withdrawn = times(&world, |want| matches!(want, Want::Withdraw { .. }));
    assert!(asked.len() > 50 && asked.len().abs_diff(withdrawn.len()) <= 1);
    let on: f64 = asked.iter().zip(&withdrawn).map(|(a, w)| w.since(*a).as_secs_f64()).sum();
    let carried = world.received as f64 * 8.0 / 10e6;
    // After the end of each period 128 KiB more go out.
    let more = withdrawn.len() as f64 * 131_072.0 * 8.0 / 10e6;
    assert!(is_near(carried, on + more, 4.0), "{carried} {on} {more}");
}

fn times(world: &World, which: impl Fn(&Want) -> bool) -> Vec<Time> {
    world.wants.iter().filter(|(_, want)| which(want)).map(|(at, _)| *at).collect()
}

// ------------------------------------------------------------------------------------------------
// Datagrams

#[test]
fn datagrams_fill_full_packets_at_the_demand() {
    let keys = "demand = \"8mbit\"\nsteps = [{ at = \"5s\", demand = \"2mbit\" }]";
    let (world, _) = play("udp", keys, 1, Rate::mbit(100), 10);
    let (mut bytes, mut late) = (0, 0);
    for (at, want) in &world.wants {
        let Want::Datagram { payload } = want else { panic!("{want:?}") };
        assert_eq!(*payload, 1_472);
        bytes += 1_514;
        late += if *at >= s(5) { 1_514 } else { 0 };
    }
    assert!(is_near(f64::from(bytes), 6.25e6, 0.1), "{bytes}");
    assert!(is_near(f64::from(late), 1.25e6, 0.2), "{late}");
}

#[test]
fn a_ping_asks_ten_times_a_second_and_measures_the_rtt() {
    let (world, outcome) = play("ping", "rtt = \"30ms\"", 1, Rate::mbit(1), 7_200);
    let Outcome::Ping(samples) = outcome else { panic!("{outcome:?}") };
    assert_eq!(world.wants.len(), 72_001);
    assert!(samples.rtts.iter().all(|&rtt| rtt == Span::millis(30)));
    // The request of the last instant has no answer, and no time to get one.
    assert_eq!((samples.sent, samples.rtts.len()), (72_000, 72_000));
}

// ------------------------------------------------------------------------------------------------
// Films

fn film(keys: &str, rate: Rate, seconds: u64) -> (Vec<(Time, u64)>, crate::report::VideoSamples) {
    let (world, outcome) = play("video", keys, 1, rate, seconds);
    let Outcome::Video(samples) = outcome else { panic!("{outcome:?}") };
    let chunk = |(at, want): &(Time, Want)| match want {
        Want::Fetch { volume: Some(volume), .. } => Some((*at, volume.as_u64() * 2)),
        _ => None,
    };
    // A chunk plays for four seconds: its volume in kB times two is its rate in kbit/s.
    let chunks = world.wants.iter().filter_map(chunk).collect();
    (chunks, samples)
}

#[test]
fn a_film_alone_on_30_mbit_reaches_the_top_and_goes_on_and_off() {
    let (chunks, samples) = film("", Rate::mbit(30), 300);
    let late: Vec<_> = chunks.iter().filter(|(at, _)| *at > s(120)).collect();
    assert!(late.iter().all(|(_, bps)| *bps == 25_000_000), "{late:?}");
    // With a full buffer the chunks follow each other at the pace at which they are played.
    assert!(late.windows(2).all(|w| w[1].0.since(w[0].0) == player::CHUNK), "{late:?}");
    assert_eq!((samples.stalls, samples.stalled), (0, Span::ZERO));
    // Startup takes a handshake, a request and 150 kB.
    let startup = samples.startup.unwrap().as_millis_f64();
    assert!((80.0..130.0).contains(&startup), "{startup}");
    let climbs = chunks.windows(2).filter(|w| w[0].1 != w[1].1).count() as u64;
    assert_eq!(samples.switches, climbs);
}

#[test]
fn a_film_on_6_mbit_settles_at_5_without_stalls() {
    let (chunks, samples) = film("", Rate::mbit(6), 600);
    let late: Vec<_> = chunks.iter().filter(|(at, _)| *at > s(300)).collect();
    let mean = late.iter().map(|(_, bps)| *bps as f64).sum::<f64>() / late.len() as f64;
    assert!((4.5e6..6e6).contains(&mean), "{mean}");
    assert_eq!(samples.stalls, 0);
    assert!(samples.switches <= 6, "{}", samples.switches);
}

#[test]
fn a_film_stalls_if_even_the_lowest_quality_is_too_much() {
    let (_, samples) = film("", Rate::kbit(200), 600);
    assert!(samples.stalls > 50, "{}", samples.stalls);
    // For a third of the time there is nothing to play.
    let part = samples.stalled.as_secs_f64() / 600.0;
    assert!((0.3..0.36).contains(&part), "{part}");
}

#[test]
fn a_film_that_has_come_to_its_end_is_played_to_it_and_no_longer() {
    let keys = "length = \"62s\"\nladder = [\"500kbit\", \"1mbit\"]";
    let (chunks, samples) = film(keys, Rate::mbit(10), 300);
    assert_eq!(chunks.len(), 16, "15 whole chunks and a half");
    let played: Span = samples.played.iter().map(|(_, span)| *span).sum();
    assert_eq!((played, samples.stalls), (Span::secs(62), 0));
}

#[test]
fn quality_falls_when_the_link_does_and_before_the_buffer_is_empty() {
    let mut player = player::Player::new(0, &[1, 2, 4, 8].map(Rate::mbit), None);
    player.handle_start(Time::ZERO);
    let mut now = Time::ZERO;
    let mut last = Bytes::ZERO;
    for chunk in 0..200 {
        now = now.max(player.next_timeout().unwrap_or(now));
        last = player.poll_request(now).unwrap();
        let rate = if chunk < 40 { Rate::mbit(20) } else { Rate::kbit(1_300) };
        now = now + rate.time_to_send(last);
        player.handle_chunk(now);
    }
    assert_eq!(last, Rate::mbit(1) * player::CHUNK);
    let samples = player.samples();
    assert_eq!(samples.stalls, 0);
    assert!(samples.played[3].1 >= Span::secs(100), "{samples:?}");
}

proptest! {
    #[test]
    fn a_players_time_is_played_stalled_or_before_the_first_picture(
        rates in prop::collection::vec(50u64..40_000, 1..60),
        idles in prop::collection::vec(0u64..30_000, 60),
    ) {
        let ladder = [300, 1_200, 5_000, 25_000].map(Rate::kbit);
        let mut player = player::Player::new(0, &ladder, None);
        let start = s(5);
        player.handle_start(start);
        let mut now = start;
        for (kbit, idle) in rates.into_iter().zip(idles) {
            // Reading the state at any time changes nothing.
            now = now + Span::millis(idle);
            let Some(volume) = player.poll_request(now) else {
                prop_assert!(player.next_timeout().unwrap() >= now);
                continue;
            };
            prop_assert_eq!(player.poll_request(now), None);
            now = now + Rate::kbit(kbit).time_to_send(volume);
            player.handle_chunk(now);
            prop_assert!(player.buffered() <= player::BUFFER_MAX);
        }
        player.handle_stop(now);
        let samples = player.samples();
        let played: Span = samples.played.iter().map(|(_, span)| *span).sum();
        let first = samples.startup.unwrap_or(now.since(start));
        prop_assert_eq!(played + samples.stalled + first, now.since(start));
    }
}

// ------------------------------------------------------------------------------------------------
// Web pages and short downloads

fn browse(keys: &str, seed: u64, rate: Rate, seconds: u64) -> (World, crate::report::WebSamples) {
    let (world, outcome) = play("web", keys, seed, rate, seconds);
    let Outcome::Web(samples) = outcome else { panic!("{outcome:?}") };
    (world, samples)
}

#[test]
fn a_page_takes_an_rtt_for_each_level_and_one_for_the_handshake() {
    let rtt = Span::millis(50);
    // Without transmission times a load consists only of steps that must follow each other. The six
    // objects of a wave have one open connection and five new ones, or six open ones.
    for (objects, rtts) in [(1, 2), (2, 3), (3, 4), (13, 5)] {
        let keys = format!("rtt = \"50ms\"\nobjects = [{objects}, {objects}]");
        let (_, samples) = browse(&keys, 1, Rate::MAX, 600);
        assert!(samples.loads.len() > 50, "{}", samples.loads.len());
        let near = rtt * rtts..rtt * rtts + Span::millis(1);
        assert!(samples.loads.iter().all(|load| near.contains(load)), "{:?}", samples.loads);
    }
    let (_, samples) = browse("rtt = \"50ms\"\nhosts = 20", 1, Rate::mbit(1_000), 600);
    assert!(samples.loads.iter().all(|&load| load >= rtt * 4), "{:?}", samples.loads);
}

#[test]
fn pages_are_as_large_and_as_many_as_they_should_be() {
    let (world, samples) = browse("rtt = \"20ms\"", 2, Rate::mbit(1_000), 7_200);
    let mean = samples.volume.as_u64() as f64 / samples.loads.len() as f64;
    assert!((1.6e6..2.4e6).contains(&mean), "{mean}");
    // A session of ten pages lasts 10 loads, 9 thoughts of 5 s and a gap of 60 s.
    let loads: Span = samples.loads.iter().copied().sum();
    let pause = (7_200.0 - loads.as_secs_f64()) / samples.loads.len() as f64;
    assert!(is_near(pause, 10.5, 25.0), "{pause}");
    let begins = times(&world, |want| matches!(want, Want::Open { slot: 0 }));
    let mut objects = vec![0; begins.len()];
    for at in times(&world, |want| matches!(want, Want::Fetch { .. })) {
        objects[begins.partition_point(|&begin| begin <= at) - 1] += 1;
    }
    objects.pop();
    assert!(objects.iter().all(|n| (30..=80).contains(n)), "{objects:?}");
    assert!(objects.iter().any(|&n| n < 36) && objects.iter().any(|&n| n > 74), "{objects:?}");
}

#[test]
fn a_page_has_at_most_six_connections_to_a_host_and_closes_them() {
    let (world, samples) =
        browse("hosts = 2\nthink = \"0s\"\nsession_gap = \"1s\"", 3, Rate::mbit(20), 300);
    assert!(samples.loads.len() > 30, "{}", samples.loads.len());
    let mut open = [false; 12];
    for (_, want) in &world.wants {
        match want {
            Want::Open { slot } => open[*slot as usize] = true,
            Want::Close { slot } => open[*slot as usize] = false,
            Want::Fetch { slot, .. } => assert!(open[*slot as usize]),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(open, [false; 12]);
    assert!(world.wants.iter().any(|(_, w)| *w == Want::Open { slot: 11 }), "all are used");
}

#[test]
fn short_downloads_arrive_as_a_poisson_process() {
    let keys = "rate_per_s = 20\nsize = \"20kB\"";
    let (world, outcome) = play("short", keys, 4, Rate::mbit(1_000), 1_000);
    let Outcome::Short(samples) = outcome else { panic!("{outcome:?}") };
    let mut per_second = vec![0.0; 1_000];
    for at in times(&world, |want| matches!(want, Want::Open { .. })) {
        per_second[(at.as_nanos() / 1_000_000_000) as usize] += 1.0;
    }
    let mean = per_second.iter().sum::<f64>() / 1e3;
    let variance = per_second.iter().map(|n| (n - mean) * (n - mean)).sum::<f64>() / 1e3;
    // The standard error is 0.14 for the mean and 0.045 for the dispersion.
    assert!((19.5..20.5).contains(&mean), "{mean}");
    assert!((0.85..1.15).contains(&(variance / mean)), "{}", variance / mean);
    // A completion consists of handshake, request and transmission.
    let near = Span::millis(80)..Span::millis(82);
    assert!(samples.completions.iter().all(|t| near.contains(t)));
    assert!(samples.unfinished < 10, "{}", samples.unfinished);
}

#[test]
fn a_number_of_short_downloads_arrives_and_no_more_the_first_at_once() {
    let keys = "rate_per_s = 2\nsize = \"20kB\"\narrivals = 3";
    let (world, outcome) = play("short", keys, 4, Rate::mbit(1_000), 100);
    let Outcome::Short(samples) = outcome else { panic!("{outcome:?}") };
    let opened = times(&world, |want| matches!(want, Want::Open { .. }));
    assert_eq!((opened.len(), samples.completions.len(), samples.unfinished), (3, 3, 0));
    assert_eq!(opened[0], Time::ZERO);
}

#[test]
fn more_short_downloads_than_slots_wait_and_none_is_forgotten() {
    let keys = "stop = \"60s\"\nrate_per_s = 200\nsize = \"20kB\"\nsigma = 1";
    let (world, outcome) = play("short", keys, 5, Rate::mbit(10), 60);
    let Outcome::Short(samples) = outcome else { panic!("{outcome:?}") };
    let arrived = samples.completions.len() as u64 + samples.unfinished;
    assert!((11_500..12_500).contains(&arrived), "{arrived}");
    let used = world.received_by_slot.iter().filter(|&&bytes| bytes > 0).count();
    assert!(used == 256 && samples.unfinished > 6_000, "{used} {}", samples.unfinished);
    assert!(samples.completions.iter().max() > Some(&Span::secs(10)));
}

// ------------------------------------------------------------------------------------------------
// All

const ALL: [(&str, &str); 7] = [
    ("bulk", "demand = \"5mbit\"\nconnections = 3"),
    ("on-off", ""),
    ("udp", "demand = \"5mbit\""),
    ("ping", ""),
    ("video", ""),
    ("web", "hosts = 3"),
    ("short", "rate_per_s = 5\nsize = \"50kB\"\nsigma = 1.5"),
];

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_another() {
    for (kind, keys) in ALL {
        let run = |seed| {
            let (world, outcome) = play(kind, keys, seed, Rate::mbit(10), 60);
            (world.wants, outcome)
        };
        assert_eq!(run(1), run(1), "{kind}");
        let is_random = matches!(kind, "on-off" | "web" | "short");
        assert_eq!(run(1) != run(2), is_random, "{kind}");
    }
}

#[test]
fn a_timeout_that_comes_too_early_changes_nothing() {
    for (kind, keys) in ALL {
        let mut app = App::new(&flow(kind, keys), 1, SEGMENT);
        app.handle_timeout(Time::ZERO);
        assert_eq!((app.poll_want(), app.next_timeout()), (None, None), "{kind}");
        app.handle_start(s(1));
        while app.poll_want().is_some() {}
        let due = app.next_timeout();
        app.handle_timeout(s(1));
        assert_eq!((app.poll_want(), app.next_timeout()), (None, due), "{kind}");
    }
}
