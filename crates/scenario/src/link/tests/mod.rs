use fairweir_core::units::Rate;
use proptest::prelude::*;

use super::*;

mod oracle;

fn spec(rate: Rate, buffer: Buffer, queue: Discipline, weights: &[u32]) -> LinkSpec {
    LinkSpec {
        queue,
        weights: weights.iter().map(|&w| Weight::new(w).unwrap()).collect(),
        ..LinkSpec::fifo(Capacity::constant(rate), buffer)
    }
}

/// 8 Mbit/s, and 4 Mbit/s from 1 ms on.
fn falling() -> Capacity {
    let steps = [(0, 8), (1, 4)];
    Capacity::Steps(steps.map(|(at, mbit)| RateStep { at: ms(at), rate: Rate::mbit(mbit) }).into())
}

fn packet<T>(class: usize, size: u64, body: T) -> Packet<T> {
    Packet { class, size: Bytes::new(size), body }
}

const FOR_EVER: Time = Time::from_nanos(u64::MAX);

fn ms(n: u64) -> Time {
    Time::ZERO + Span::millis(n)
}

#[test]
fn an_hour_at_30_mbit_is_exact() {
    let rate = Rate::mbit(30);
    let mut link = Link::new(spec(rate, Buffer::Packets(10), Discipline::Fifo, &[1]));
    let (mut sent, mut left, mut last) = (0u64, 0u64, Time::ZERO);
    let hour = Time::ZERO + Span::secs(3_600);
    while last < hour {
        link.enqueue(last, packet(0, 1_514, sent));
        sent += 1;
        if link.backlog() < Bytes::new(5 * 1_514) {
            continue;
        }
        let departure = link.poll_departure(FOR_EVER.min(link.next_departure().unwrap())).unwrap();
        left += 1_514;
        last = departure.at;
    }
    assert_eq!(link.poll_drop(), None);
    let ideal = rate.time_to_send(Bytes::new(left));
    assert_eq!(last.since(Time::ZERO), ideal);
}

#[test]
fn a_packet_in_transmission_is_finished_at_the_new_rate() {
    let mut link = Link::new(LinkSpec::fifo(falling(), Buffer::Packets(10)));
    // 2000 B take 2 ms at 8 Mbit/s: half is sent at the step, the rest takes 2 ms more.
    link.enqueue(Time::ZERO, packet(0, 2_000, ()));
    link.enqueue(Time::ZERO, packet(0, 1_000, ()));
    assert_eq!(link.poll_departure(FOR_EVER).unwrap().at, ms(3));
    let second = link.poll_departure(FOR_EVER).unwrap();
    assert_eq!((second.at, second.sojourn), (ms(5), Span::millis(3)));
    assert_eq!(link.poll_departure(FOR_EVER), None);
}

#[test]
fn a_buffer_in_time_follows_the_rate_and_keeps_what_waits() {
    let mut link = Link::new(LinkSpec::fifo(falling(), Buffer::Time(Span::millis(10))));
    // 10 ms at 8 Mbit/s are 10 packets of 1000 B, and one is in transmission.
    (0..15).for_each(|i| link.enqueue(Time::ZERO, packet(0, 1_000, i)));
    let dropped = |link: &mut Link<i32>| {
        std::iter::from_fn(|| link.poll_drop()).map(|d| d.packet.body).collect::<Vec<_>>()
    };
    assert_eq!(dropped(&mut link), [11, 12, 13, 14]);
    // At half the rate there is room for five: nine stay, and a new packet is dropped.
    link.enqueue(ms(2), packet(0, 1_000, 99));
    assert_eq!(dropped(&mut link), [99]);
    assert_eq!(link.backlog(), Bytes::kb(9));
}

#[test]
fn buffers_in_bytes_and_packets_hold_what_they_say() {
    for buffer in [Buffer::Bytes(Bytes::kb(3)), Buffer::Packets(3)] {
        let mut link = Link::new(spec(Rate::mbit(8), buffer, Discipline::Fifo, &[1]));
        (0..5).for_each(|i| link.enqueue(Time::ZERO, packet(0, 1_000, i)));
        let drops: Vec<_> = std::iter::from_fn(|| link.poll_drop()).collect();
        assert_eq!(drops.len(), 1);
        assert_eq!((drops[0].packet.body, drops[0].random), (4, false));
    }
}

#[test]
fn a_full_wfq_buffer_drops_the_last_of_the_largest_backlog_per_weight() {
    let mut link = Link::new(spec(Rate::mbit(8), Buffer::Packets(4), Discipline::Wfq, &[3, 1]));
    // The first packet goes into transmission; then class 0 has 2 waiting, and class 1 has 2.
    for (i, class) in [0, 0, 0, 1, 1].into_iter().enumerate() {
        link.enqueue(Time::ZERO, packet(class, 1_000, i));
    }
    link.enqueue(Time::ZERO, packet(0, 1_000, 5));
    // 3 packets of weight 3 against 2 of weight 1: the last packet of class 1 makes room.
    assert_eq!(link.poll_drop().unwrap().packet.body, 4);
    assert_eq!(link.poll_drop(), None);
}

#[test]
fn jitter_delays_but_never_reorders() {
    let mut spec = spec(Rate::mbit(100), Buffer::Packets(1_000), Discipline::Fifo, &[1]);
    spec.jitter = Jitter::uniform(Span::millis(5));
    let mut link = Link::new(spec);
    (0..500).for_each(|i| link.enqueue(Time::ZERO, packet(0, 1_250, i)));
    let out: Vec<_> = std::iter::from_fn(|| link.poll_departure(FOR_EVER)).collect();
    assert_eq!(out.iter().map(|d| d.packet.body).collect::<Vec<_>>(), (0..500).collect::<Vec<_>>());
    assert!(out.is_sorted_by_key(|d| d.at));
    let delay =
        |(i, d): (usize, &Departure<i32>)| d.at.since(ms(0)).as_nanos() - (i as u64 + 1) * 100_000;
    let most = out.iter().enumerate().map(delay).max().unwrap();
    assert!((3_000_000..=5_000_000).contains(&most), "{most}");
}

#[test]
fn random_loss_is_what_was_asked_for_and_the_same_each_time() {
    let mut spec = spec(Rate::mbit(1_000), Buffer::Packets(10), Discipline::Fifo, &[1]);
    spec.loss_ppm = 20_000;
    let lost = |seed: u64| {
        let mut link = Link::new(LinkSpec { seed, ..spec.clone() });
        for i in 0..50_000 {
            link.enqueue(ms(i), packet(0, 1_000, i));
        }
        std::iter::from_fn(|| link.poll_drop()).map(|d| d.packet.body).collect::<Vec<_>>()
    };
    assert_eq!(lost(7), lost(7));
    assert_ne!(lost(7), lost(8));
    assert!((850..1_150).contains(&lost(7).len()), "{}", lost(7).len());
}

#[test]
fn red_drops_before_the_buffer_is_full_and_forgets_while_it_rests() {
    let red = Discipline::Red(Red::default());
    let mut link = Link::new(spec(Rate::mbit(8), Buffer::Packets(100), red, &[1]));
    // Packets take 1 ms each, and a tenth more of them arrive than the link carries.
    let (mut drops, mut longest) = (0, Bytes::ZERO);
    for i in 0..20_000 {
        link.enqueue(Time::ZERO + Span::micros(900) * i, packet(0, 1_000, i));
        while link.poll_departure(Time::ZERO + Span::micros(900) * i).is_some() {}
        drops += std::iter::from_fn(|| link.poll_drop()).count();
        longest = longest.max(link.backlog());
    }
    assert!((1_900..2_100).contains(&drops), "{drops}");
    assert!(longest < Bytes::kb(80), "{longest}");
    // With half of the buffer full on average, one of ten packets would be dropped.
    (0..20).for_each(|i| link.enqueue(ms(60_000), packet(0, 1_000, i)));
    assert_eq!(link.poll_drop(), None);
}

/// The output of a link that was driven as a relay drives it, at irregular times.
struct Played {
    departures: Vec<Departure<usize>>,
    drops: Vec<Dropped<usize>>,
}

/// Arrivals are (gap in µs, class, size); the link is looked at every `look_every` arrivals.
fn play(spec: LinkSpec, arrivals: &[(u64, usize, u64)], look_every: usize) -> Played {
    let mut link = Link::new(spec);
    let mut played = Played { departures: Vec::new(), drops: Vec::new() };
    let mut now = Time::ZERO;
    for (i, &(gap, class, size)) in arrivals.iter().enumerate() {
        now = now + Span::micros(gap);
        link.enqueue(now, packet(class, size, i));
        if i % look_every == 0 {
            played.departures.extend(std::iter::from_fn(|| link.poll_departure(now)));
        }
    }
    played.departures.extend(std::iter::from_fn(|| link.poll_departure(FOR_EVER)));
    played.drops.extend(std::iter::from_fn(|| link.poll_drop()));
    assert_eq!(link.backlog(), Bytes::ZERO);
    played
}

fn arrivals() -> impl Strategy<Value = Vec<(u64, usize, u64)>> {
    proptest::collection::vec((0u64..2_000, 0usize..3, 60u64..1_515), 1..400)
}

fn queue() -> impl Strategy<Value = Discipline> {
    let red = Discipline::Red(Red { wq_ppm: 100_000, ..Red::default() });
    prop_oneof![
        Just(Discipline::Fifo),
        Just(Discipline::Wfq),
        Just(Discipline::Drr),
        Just(red),
        Just(Discipline::Codel),
        Just(Discipline::FqCodel),
        Just(Discipline::Pie),
    ]
}

/// A capacity that is plain with steps, shaped, or a trace.
fn capacity() -> impl Strategy<Value = Capacity> {
    let steps = (1u64..50, 1u64..50).prop_map(|(first, second)| {
        let step = |(at, mbit): (u64, u64)| RateStep { at: ms(at), rate: Rate::mbit(mbit) };
        vec![step((0, first)), step((50, second))]
    });
    let shaped = (steps.clone(), 1u64..20_000).prop_map(|(steps, burst)| Capacity::Shaped {
        steps,
        burst: Bytes::new(burst),
        line_rate: Rate::mbit(200),
    });
    let trace = Just(Capacity::Trace("0\n0\n1\n1\n5\n5\n5\n8\n40\n41\n".parse().unwrap()));
    prop_oneof![steps.prop_map(Capacity::Steps), shaped, trace]
}

proptest! {
    #[test]
    fn what_comes_in_leaves_once_or_is_dropped_once(
        arrivals in arrivals(), queue in queue(), capacity in capacity(), look_every in 1usize..20,
    ) {
        let mut spec = spec(Rate::ZERO, Buffer::Bytes(Bytes::kb(6)), queue, &[1, 2, 5]);
        spec.capacity = capacity;
        let played = play(spec, &arrivals, look_every);
        let left = played.departures.iter().map(|d| d.packet.body);
        let mut seen: Vec<usize> =
            left.chain(played.drops.iter().map(|d| d.packet.body)).collect();
        seen.sort();
        prop_assert_eq!(seen, (0..arrivals.len()).collect::<Vec<_>>());
    }

    #[test]
    fn when_it_is_looked_at_changes_nothing(
        arrivals in arrivals(), queue in queue(), capacity in capacity(), look_every in 2usize..50,
    ) {
        let mut spec = spec(Rate::ZERO, Buffer::Bytes(Bytes::kb(6)), queue, &[1, 2, 5]);
        spec.capacity = capacity;
        let often = play(spec.clone(), &arrivals, 1);
        let seldom = play(spec, &arrivals, look_every);
        prop_assert_eq!(often.departures, seldom.departures);
    }

    #[test]
    fn the_link_never_rests_while_something_waits(
        arrivals in arrivals(), queue in queue(), mbit in 1u64..50,
    ) {
        let rate = Rate::mbit(mbit);
        let spec = spec(rate, Buffer::Bytes(Bytes::kb(6)), queue, &[1, 2, 5]);
        let played = play(spec, &arrivals, 1);
        let mut free_at = Time::ZERO;
        for d in &played.departures {
            let takes = rate.time_to_send(d.packet.size);
            let arrived = arrivals[..=d.packet.body].iter().map(|a| a.0).sum::<u64>();
            let begin = free_at.max(Time::ZERO + Span::micros(arrived));
            // It begins when the link is free and the packet is there, except for two rounded ends.
            prop_assert!(d.at <= begin + takes + Span::nanos(1), "{:?} {:?}", d, begin);
            prop_assert!(d.at + Span::nanos(1) >= begin + takes);
            free_at = d.at;
        }
    }

    #[test]
    fn packets_of_a_class_keep_their_order(
        arrivals in arrivals(), queue in queue(), mbit in 1u64..50,
    ) {
        let spec = spec(Rate::mbit(mbit), Buffer::Packets(8), queue, &[1, 2, 5]);
        let played = play(spec, &arrivals, 3);
        for class in 0..3 {
            let of_class = played.departures.iter().filter(|d| d.packet.class == class);
            prop_assert!(of_class.map(|d| d.packet.body).is_sorted());
        }
    }

    #[test]
    fn backlogged_classes_share_by_weight_within_a_packet_each_or_a_quantum(
        queue in prop_oneof![Just(Discipline::Wfq), Just(Discipline::Drr)],
        weights in proptest::collection::vec(1u32..100, 2..6),
        sizes in proptest::collection::vec(60u64..1_515, 1..50),
        share_at in 1usize..500,
    ) {
        let classes = weights.len();
        let mut link =
            Link::new(spec(Rate::mbit(10), Buffer::Packets(100_000), queue, &weights));
        for i in 0..1_000 {
            for class in 0..classes {
                link.enqueue(Time::ZERO, packet(class, sizes[(i + class) % sizes.len()], ()));
            }
        }
        let mut served = vec![0u64; classes];
        for _ in 0..=share_at {
            let departure = link.poll_departure(FOR_EVER).unwrap();
            served[departure.packet.class] += departure.packet.size.as_u64();
        }
        // A quantum is a full packet for the lightest weight.
        let quantum_per_weight = match queue {
            Discipline::Drr => 1_514.0 / f64::from(*weights.iter().min().unwrap()),
            _ => 0.0,
        };
        let per_weight = |i: usize| served[i] as f64 / f64::from(weights[i]);
        for i in 0..classes {
            for j in 0..i {
                let packets = 1_514.0 / f64::from(weights[i]) + 1_514.0 / f64::from(weights[j]);
                let bound = packets + quantum_per_weight;
                // The very first packet was sent before the others were there.
                let first = sizes[0] as f64 / f64::from(weights[0]);
                let off = (per_weight(i) - per_weight(j)).abs();
                prop_assert!(off <= bound + first + 1e-3, "{served:?} {weights:?}");
            }
        }
    }
}

#[test]
fn a_step_up_is_announced_before_the_packet_that_it_hastens_leaves() {
    let steps = [(0, Rate::kbit(12)), (100, Rate::mbit(12))];
    let steps = steps.map(|(at, rate)| RateStep { at: ms(at), rate });
    let mut link = Link::new(LinkSpec::fifo(Capacity::Steps(steps.into()), Buffer::Packets(10)));
    link.enqueue(Time::ZERO, packet(0, 1_500, ()));
    // The packet would take a second, of which a tenth has passed; the rest takes a thousandth.
    let mut looked_at = Vec::new();
    while let Some(at) = link.next_departure() {
        looked_at.push(at);
        link.poll_departure(at);
    }
    assert_eq!(looked_at, [ms(100), ms(100) + Span::micros(900)]);
}
