use fairweir_core::delegate::Answer;
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_scenario::CongestionControl::{self, Bbr, Cubic, Reno, Vegas};
use fairweir_scenario::link::Buffer;
use proptest::prelude::*;

use super::{Ack, Receiver, ReceiverSpec, Segment, Sender, SenderSpec, Signal};

mod world;

use world::{HEADERS, SEGMENT, World, WorldSpec};

const ALL: [CongestionControl; 4] = [Reno, Cubic, Vegas, Bbr];
const RATE: Rate = Rate::mbit(30);
const RTT: Span = Span::millis(30);
/// Number of packets in 30 Mbit/s times 30 ms.
const BDP: f64 = 30e6 * 0.03 / 8.0 / (SEGMENT + HEADERS) as f64;
const NO_WINDOW: Bytes = Bytes::new(1 << 40);

fn ms(n: u64) -> Time {
    Time::ZERO + Span::millis(n)
}

fn sender_spec(congestion_control: CongestionControl) -> SenderSpec {
    SenderSpec { congestion_control, segment: Bytes::new(SEGMENT), paced: false, seed: 1 }
}

/// A world with one connection that always has more to send.
fn lone(spec: &WorldSpec, congestion_control: CongestionControl) -> World {
    let mut world = World::new(spec);
    world.connect(congestion_control, RTT, None);
    world
}

/// The part of the link that is used over some time.
fn utilisation(world: &mut World, span: Span) -> f64 {
    let before = world.left;
    world.run_for(span);
    Rate::from_volume(Bytes::new(world.left - before), span).as_mbit_f64() / RATE.as_mbit_f64()
}

// ------------------------------------------------------------------------------------------------
// Congestion control

#[test]
fn a_lone_flow_fills_a_fifo_of_one_bdp() {
    for congestion_control in ALL {
        let mut world = lone(&WorldSpec::new(RATE, RTT, 100), congestion_control);
        world.run_for(Span::secs(5));
        let used = utilisation(&mut world, Span::secs(40));
        assert!(used >= 0.97, "{congestion_control:?}: {used:.3}");
        // Each dropped packet was sent again exactly once.
        let resent = world.flows[0].sender.retransmitted();
        assert_eq!(resent, world.dropped, "{congestion_control:?}");
    }
}

/// Windows before and after each cut from 5 s on, and the mean window.
fn sawtooth(congestion_control: CongestionControl) -> (Vec<(u32, u32)>, f64) {
    let mut world = lone(&WorldSpec::new(RATE, RTT, 100), congestion_control);
    world.run_for(Span::secs(5));
    let (mut cuts, mut area) = (Vec::new(), 0.0);
    let (mut last, mut cut_at) = ((world.now, 0), Time::ZERO);
    world.run_until(world.now + Span::secs(60), |world| {
        let sender = &world.flows[0].sender;
        area += world.now.since(last.0).as_secs_f64() * f64::from(last.1);
        // A reduction takes an RTT with a full queue.
        if sender.cwnd() < last.1 && world.now.since(cut_at) > RTT * 4 {
            cuts.push((last.1, sender.ssthresh().unwrap()));
            cut_at = world.now;
        }
        last = (world.now, sender.cwnd());
    });
    (cuts, area / 60.0)
}

#[test]
fn reno_halves_and_lives_at_three_quarters() {
    let (cuts, mean) = sawtooth(Reno);
    assert!((4..40).contains(&cuts.len()), "{cuts:?}");
    for &(before, after) in &cuts {
        assert_eq!(after, before / 2, "{cuts:?}");
        // The pipe and the buffer hold two BDP.
        assert!((f64::from(before) / (2.0 * BDP) - 1.0).abs() < 0.1, "{cuts:?}");
    }
    assert!((mean / (1.5 * BDP) - 1.0).abs() < 0.05, "{mean:.1} of {:.1}", 2.0 * BDP);
}

#[test]
fn cubic_keeps_seven_tenths() {
    let (cuts, mean) = sawtooth(Cubic);
    assert!(cuts.len() >= 4, "{cuts:?}");
    for &(before, after) in &cuts {
        assert!((f64::from(after) / f64::from(before) - 0.7).abs() < 0.01, "{cuts:?}");
    }
    assert!((0.85..0.97).contains(&(mean / (2.0 * BDP))), "{mean:.1} of {:.1}", 2.0 * BDP);
}

#[test]
fn vegas_keeps_two_to_four_packets_in_the_queue() {
    let mut world = lone(&WorldSpec::new(RATE, RTT, 100), Vegas);
    world.run_for(Span::secs(20));
    let dropped = world.dropped;
    let queued = |world: &World| f64::from(world.flows[0].sender.cwnd()) - BDP;
    world.run_until(world.now + Span::secs(20), |world| {
        assert!((0.0..6.0).contains(&queued(world)), "{}", queued(world));
    });
    assert_eq!(world.dropped, dropped);
}

#[test]
fn what_waited_below_a_new_hole_lets_the_window_grow_and_what_comes_above_does_not() {
    let window_after = |last, received| {
        let mut sender = Sender::new(&sender_spec(Reno));
        sender.handle_established(Time::ZERO, RTT, NO_WINDOW);
        sender.write(Time::ZERO, None);
        for (last, received, at) in [(1, 2, ms(30)), (last, received, ms(31))] {
            while sender.poll_transmit(at - Span::millis(1)).is_some() {}
            let payload = Bytes::new(received * SEGMENT);
            sender.handle_ack(at, &Ack { last, received, marked: 0, payload, window: NO_WINDOW });
        }
        sender.cwnd()
    };
    // The window is ten at first, and two more for the first ACK.
    assert_eq!(window_after(3, 3), 12, "packet 2 is missing, 3 above it has arrived");
    assert_eq!(window_after(4, 4), 14, "one of 2 and 3 is missing, the other has arrived");
}

#[test]
fn hystart_leaves_slow_start_before_much_is_lost() {
    let dropped = |congestion_control| {
        let mut world = lone(&WorldSpec::new(RATE, RTT, 100), congestion_control);
        world.run_for(Span::millis(400));
        (world.dropped, world.flows[0].sender.ssthresh())
    };
    assert!(dropped(Reno).0 > 100, "{:?}", dropped(Reno));
    let (dropped, ssthresh) = dropped(Cubic);
    assert!(dropped == 0 && ssthresh.is_some_and(|s| s < 150), "{dropped} {ssthresh:?}");
}

#[test]
fn bbr_keeps_two_bdp_in_flight_at_most_and_probes_the_rtt_with_four_packets() {
    let mut world = lone(&WorldSpec::new(RATE, RTT, 400), Bbr);
    world.run_for(Span::secs(5));
    let (mut most, mut least, mut small_for, mut last) = (0, u32::MAX, 0.0, world.now);
    world.run_until(ms(35_000), |world| {
        let in_flight = world.flows[0].sender.in_flight();
        if most > 0 && in_flight <= 4 {
            small_for += world.now.since(last).as_secs_f64();
        }
        last = world.now;
        most = most.max(in_flight);
        least = least.min(in_flight);
    });
    // Three bursts, two packets, rounding and the excess of delayed ACKs come on top.
    let most = f64::from(most);
    assert!((1.2 * BDP..2.0 * BDP + 20.0).contains(&most), "{most} of {BDP:.0}");
    assert!((2..=4).contains(&least), "{least}");
    // The window is small every ten seconds, for 200 ms and the time to get there.
    assert!((0.55..1.0).contains(&small_for), "{small_for}");
    assert_eq!(world.dropped, 0);
}

#[test]
fn bbr_does_not_take_a_slow_application_for_a_slow_path() {
    let mut world = World::new(&WorldSpec::new(RATE, RTT, 100));
    let flow = world.connect(Bbr, RTT, Some(20_000_000));
    world.run_for(Span::secs(8));
    let before = world.flows[flow].sender.pacing_rate().unwrap();
    for _ in 0..1_000 {
        world.flows[flow].sender.write(world.now, Some(Bytes::new(2 * SEGMENT)));
        world.run_for(Span::millis(10));
    }
    let after = world.flows[flow].sender.pacing_rate().unwrap();
    let ratio = after.as_mbit_f64() / before.as_mbit_f64();
    assert!((0.7..1.3).contains(&ratio), "{before} {after}");
}

#[test]
fn bbr_finds_the_policer() {
    let mut spec = WorldSpec::new(Rate::mbit(200), RTT, 100);
    spec.policer = Some((Rate::mbit(20), Bytes::kb(30)));
    let mut world = lone(&spec, Bbr);
    world.run_for(Span::secs(10));
    let (before, sent) = (world.policed, world.flows[0].sender.transmitted());
    let used = utilisation(&mut world, Span::secs(40));
    let sent = world.flows[0].sender.transmitted() - sent;
    let loss = (world.policed - before) as f64 / sent as f64;
    assert!((0.6..20.0 / 30.0).contains(&used), "{used:.3}");
    assert!(loss < 0.05, "{loss:.3}");
}

#[test]
fn reno_under_random_loss_is_as_fast_as_mathis_says() {
    // rate = MSS/RTT · √(3/(2p)) with an ACK per packet, √(3/(4p)) with delayed ACKs. Counting
    // packets, as here, matches the former (Mathis et al., CCR 27(3), 1997).
    for (loss_ppm, from, to) in [(1_000, 0.85, 1.1), (5_000, 0.8, 1.1), (10_000, 0.75, 1.1)] {
        let mut spec = WorldSpec::new(Rate::mbit(1_000), RTT, 100);
        spec.loss_ppm = loss_ppm;
        let mut world = lone(&spec, Reno);
        world.run_for(Span::secs(10));
        let before = world.flows[0].receiver.received();
        world.run_for(Span::secs(300));
        let volume = world.flows[0].receiver.received().saturating_sub(before);
        let achieved = volume.as_u64() as f64 / 300.0 / SEGMENT as f64;
        let p = f64::from(loss_ppm) / 1e6;
        let theory = (1.5 / p).sqrt() / RTT.as_secs_f64();
        let ratio = achieved / theory;
        assert!((from..to).contains(&ratio), "{loss_ppm} ppm: {ratio:.3}");
    }
}

#[test]
fn equal_flows_share_equally_in_the_long_run() {
    for congestion_control in [Reno, Cubic, Bbr] {
        let mut world = World::new(&WorldSpec::new(RATE, RTT, 100));
        for i in 0..4 {
            world.connect(congestion_control, RTT, None);
            world.run_for(Span::millis(100 * i));
        }
        world.run_for(Span::secs(10));
        let received = |world: &World| -> Vec<u64> {
            world.flows.iter().map(|flow| flow.receiver.received().as_u64()).collect()
        };
        let before = received(&world);
        world.run_for(Span::secs(120));
        let after = received(&world);
        let parts: Vec<f64> = after.iter().zip(before).map(|(a, b)| (a - b) as f64).collect();
        let sum: f64 = parts.iter().sum();
        let squares: f64 = parts.iter().map(|p| p * p).sum();
        let jain = sum * sum / (4.0 * squares);
        assert!(jain > 0.9, "{congestion_control:?}: {jain:.3} {parts:?}");
    }
}

// ------------------------------------------------------------------------------------------------
// Loss recovery

/// A sender with packets in flight that were sent last, with the first and the end of their numbers.
fn sender_in_flight(congestion_control: CongestionControl, rounds: u32) -> (Sender, u64, u64) {
    let mut sender = Sender::new(&sender_spec(congestion_control));
    sender.handle_established(ms(0), Span::millis(100), NO_WINDOW);
    sender.write(ms(0), None);
    let (mut from, mut end) = (0, drain(&mut sender, ms(0)));
    for round in 1..=rounds {
        let now = ms(u64::from(round) * 100);
        sender.handle_ack(now, &ack(end, end));
        (from, end) = (end, drain(&mut sender, now));
    }
    (sender, from, end)
}

/// Sends all packets that may go; returns the next number.
fn drain(sender: &mut Sender, now: Time) -> u64 {
    while sender.poll_transmit(now).is_some() {}
    sender.transmitted()
}

/// The ACK when `received` of the packets below `end` have arrived.
fn ack(end: u64, received: u64) -> Ack {
    Ack {
        last: end - 1,
        received,
        marked: 0,
        payload: Bytes::new(received * SEGMENT),
        window: NO_WINDOW,
    }
}

#[test]
fn the_window_is_cut_once_per_round_whatever_is_lost() {
    for lost in [1, 2, 20, 60] {
        let (mut sender, from, end) = sender_in_flight(Reno, 3);
        assert_eq!((end - from, sender.cwnd()), (80, 80));
        // The first `lost` packets are lost; each other packet brings an ACK, and resent packets arrive.
        for number in from + lost..end {
            sender.handle_ack(ms(400), &ack(number + 1, number + 1 - lost));
            drain(&mut sender, ms(400));
        }
        assert_eq!(sender.ssthresh(), Some(40), "{lost}");
        let resent_end = sender.transmitted();
        assert!(sender.cwnd() <= 40.max(80 - lost as u32), "{lost}: {}", sender.cwnd());
        for number in end..resent_end {
            sender.handle_ack(ms(500), &ack(number + 1, number + 1 - lost));
            drain(&mut sender, ms(500));
        }
        assert_eq!(sender.ssthresh(), Some(40), "{lost}");
        assert_eq!(sender.retransmitted(), lost, "{lost}");
        for number in resent_end..sender.transmitted() {
            sender.handle_ack(ms(600), &ack(number + 1, number + 1 - lost));
        }
        assert!((40..=42).contains(&sender.cwnd()), "{lost}: {}", sender.cwnd());
    }
}

#[test]
fn the_window_is_cut_once_per_round_whatever_is_marked_and_nothing_is_sent_again() {
    for (congestion_control, cut) in [(Reno, 40), (Cubic, 56), (Bbr, 80)] {
        let (mut sender, from, end) = sender_in_flight(congestion_control, 3);
        let before = sender.cwnd();
        for number in from..end {
            let marked = (number - from + 1).min(20);
            sender.handle_ack(ms(400), &Ack { marked, ..ack(number + 1, number + 1) });
            drain(&mut sender, ms(400));
        }
        if congestion_control == Bbr {
            assert!(sender.cwnd() >= before, "{} of {before}", sender.cwnd());
            continue;
        }
        assert_eq!(sender.ssthresh(), Some(cut), "{congestion_control:?}");
        assert!((cut..=cut + 1).contains(&sender.cwnd()), "{}", sender.cwnd());
        assert_eq!(sender.retransmitted(), 0);
        // A mark of the next round is another signal.
        let number = sender.transmitted();
        sender.handle_ack(ms(500), &Ack { marked: 21, ..ack(number, number) });
        assert!(sender.ssthresh().unwrap() < cut, "{congestion_control:?}");
    }
}

#[test]
fn a_marked_packet_is_acknowledged_at_once() {
    let (mut receiver, number) = receiver();
    receiver.handle_segment(ms(1), &Segment { marked: true, ..segment(number, 0) });
    let ack = receiver.poll_ack(ms(1)).expect("an ACK is due");
    assert_eq!((ack.last, ack.marked), (number, 1));
}

#[test]
fn a_lost_retransmission_is_resent_without_a_timeout_and_without_a_cut() {
    let (mut sender, from, end) = sender_in_flight(Reno, 3);
    for number in from + 1..end {
        sender.handle_ack(ms(400), &ack(number + 1, number));
        drain(&mut sender, ms(400));
    }
    assert_eq!(sender.retransmitted(), 1);
    // The retransmission was sent first; the next packet that arrives shows that it is lost.
    sender.handle_ack(ms(500), &ack(end + 2, end));
    drain(&mut sender, ms(500));
    assert_eq!(sender.retransmitted(), 2);
    assert_eq!(sender.ssthresh(), Some(40));
}

#[test]
fn fewer_than_three_packets_above_a_hole_give_it_a_quarter_rtt() {
    let (mut sender, _, end) = sender_in_flight(Reno, 0);
    // The last packet but one is missing, and no more packets follow.
    sender.handle_ack(ms(100), &ack(end - 2, end - 2));
    sender.handle_ack(ms(100), &ack(end, end - 1));
    sender.handle_timeout(ms(111));
    assert_eq!(sender.poll_transmit(ms(111)).map(|s| s.resent), Some(0), "there is room");
    drain(&mut sender, ms(111));
    sender.handle_timeout(ms(113));
    drain(&mut sender, ms(113));
    assert_eq!(sender.retransmitted(), 1);
    assert_eq!(sender.ssthresh(), Some(9));
}

#[test]
fn a_lost_tail_is_probed_for_before_the_timeout() {
    let mut world = World::new(&WorldSpec::new(RATE, RTT, 100));
    world.connect(Cubic, RTT, Some(20 * SEGMENT));
    world.run_for(Span::millis(63));
    // Half of the second window is under way; the rest of it is lost.
    world.is_dark = true;
    world.run_for(Span::millis(7));
    world.is_dark = false;
    let lost_at = world.now;
    world.run_until(ms(2_000), |_| {});
    let flow = &world.flows[0];
    assert!(flow.sender.all_delivered());
    assert_eq!(flow.receiver.received().as_u64(), 20 * SEGMENT);
    assert_eq!(flow.sender.retransmitted(), 4);
    let done = world.flows[0].completed_at.unwrap().since(lost_at);
    assert!(done < Span::millis(200), "{done}");
}

#[test]
fn a_blackout_ends_in_a_timeout_and_slow_start() {
    for congestion_control in ALL {
        let mut world = lone(&WorldSpec::new(RATE, RTT, 100), congestion_control);
        world.run_for(Span::secs(5));
        world.is_dark = true;
        world.run_for(Span::secs(2));
        assert_eq!(world.flows[0].sender.cwnd(), 1, "{congestion_control:?}");
        world.is_dark = false;
        // The next packet goes 200 + 400 + 800 + 1600 ms after the outage began.
        world.run_for(Span::secs(3));
        let used = utilisation(&mut world, Span::secs(5));
        assert!(used > 0.9, "{congestion_control:?}: {used:.3}");
    }
}

#[test]
fn a_timeout_that_was_only_a_delay_is_taken_back() {
    let (mut sender, from, end) = sender_in_flight(Reno, 3);
    sender.handle_timeout(ms(520)); // the probe
    drain(&mut sender, ms(520));
    sender.handle_timeout(ms(900));
    drain(&mut sender, ms(900));
    assert_eq!((sender.cwnd(), sender.ssthresh()), (1, Some(40)));
    sender.handle_ack(ms(910), &ack(from + 2, from + 2));
    drain(&mut sender, ms(910));
    assert_eq!(sender.ssthresh(), None);
    assert!(sender.cwnd() >= 80, "{}", sender.cwnd());
    assert!(sender.in_flight() >= 80);
    assert!(sender.transmitted() < end + 10, "what was given up is not resent");
}

#[test]
fn an_rtt_is_not_measured_over_a_timeout() {
    let (mut sender, ..) = sender_in_flight(Reno, 0);
    for at in [202, 502, 1_102] {
        sender.handle_timeout(ms(at));
        drain(&mut sender, ms(at));
    }
    // The first packets had arrived, but their ACKs had not.
    let end = sender.transmitted();
    sender.handle_ack(ms(1_202), &ack(end, 5));
    assert_eq!(sender.srtt(), Some(Span::millis(100)));
}

#[test]
fn timeouts_back_off() {
    let (mut sender, ..) = sender_in_flight(Reno, 0);
    let mut at = Vec::new();
    while at.len() < 6 {
        let now = sender.next_timeout().unwrap();
        sender.handle_timeout(now);
        drain(&mut sender, now);
        at.push(now.since(ms(0)).as_nanos() / 1_000_000);
    }
    // A probe goes after 2·SRTT + 2 ms, a timeout after SRTT + max(4·deviation, 200 ms), then doubled each time.
    assert_eq!(at, [202, 502, 1_102, 2_302, 4_702, 9_502]);
}

// ------------------------------------------------------------------------------------------------
// Sending

#[test]
fn an_application_that_sends_little_does_not_grow_the_window() {
    for congestion_control in [Reno, Cubic, Vegas] {
        let mut world = World::new(&WorldSpec::new(RATE, RTT, 100));
        let flow = world.connect(congestion_control, RTT, Some(0));
        for _ in 0..400 {
            world.flows[flow].sender.write(world.now, Some(Bytes::new(4 * SEGMENT)));
            world.run_for(RTT * 2);
        }
        let sender = &world.flows[flow].sender;
        assert!(sender.cwnd() <= 10, "{congestion_control:?}: {}", sender.cwnd());
        assert!(sender.all_delivered());
    }
}

#[test]
fn a_silence_costs_the_window_half_per_timeout() {
    let mut world = World::new(&WorldSpec::new(RATE, RTT, 100));
    let flow = world.connect(Reno, RTT, Some(3_000_000));
    world.run_for(Span::secs(5));
    let before = world.flows[flow].sender.cwnd();
    assert!(before > 40, "{before}");
    world.flows[flow].sender.write(world.now, Some(Bytes::new(1)));
    world.run_for(Span::millis(1));
    assert_eq!(world.flows[flow].sender.cwnd(), 10);
}

#[test]
fn the_receivers_window_limits_what_is_in_flight() {
    for congestion_control in ALL {
        let mut world = World::new(&WorldSpec::new(RATE, RTT, 100));
        let window = Bytes::new(30 * SEGMENT);
        world.connect_as(&sender_spec(congestion_control), RTT, None, window);
        let mut most = 0;
        world.run_until(ms(5_000), |world| most = most.max(world.flows[0].sender.in_flight()));
        assert_eq!(most, 30, "{congestion_control:?}");
        // So the rate equals the window per RTT.
        let used = utilisation(&mut world, Span::secs(5));
        assert!((used / (30.0 / BDP) - 1.0).abs() < 0.05, "{congestion_control:?}: {used:.3}");
        // The rate follows the window.
        world.flows[0].receiver.set_window(Bytes::new(16 * SEGMENT));
        world.run_for(Span::secs(1));
        let used = utilisation(&mut world, Span::secs(5));
        assert!((used / (16.0 / BDP) - 1.0).abs() < 0.05, "{congestion_control:?}: {used:.3}");
    }
}

#[test]
fn a_closed_window_lets_one_packet_through_at_a_time() {
    let mut world = World::new(&WorldSpec::new(RATE, RTT, 100));
    world.connect_as(&sender_spec(Cubic), RTT, None, Bytes::ZERO);
    world.run_until(ms(2_000), |world| assert!(world.flows[0].sender.in_flight() <= 1));
    assert!(world.flows[0].sender.transmitted() > 20);
}

#[test]
fn small_writes_are_gathered_while_a_small_packet_is_under_way() {
    let mut sender = Sender::new(&sender_spec(Cubic));
    sender.handle_established(ms(0), RTT, NO_WINDOW);
    let sizes = |sender: &mut Sender| -> Vec<u32> {
        std::iter::from_fn(|| sender.poll_transmit(ms(0))).map(|s| s.payload).collect()
    };
    sender.write(ms(0), Some(Bytes::new(SEGMENT + 100)));
    assert_eq!(sizes(&mut sender), [SEGMENT as u32, 100]);
    sender.write(ms(0), Some(Bytes::new(200)));
    assert_eq!(sizes(&mut sender), [0; 0]);
    sender.write(ms(0), Some(Bytes::new(SEGMENT)));
    assert_eq!(sizes(&mut sender), [SEGMENT as u32]);
    let payload = Bytes::new(SEGMENT + 100);
    sender.handle_ack(ms(30), &Ack { last: 1, received: 2, marked: 0, payload, window: NO_WINDOW });
    assert_eq!(sizes(&mut sender), [200]);
}

#[test]
fn paced_packets_go_in_bursts_of_a_millisecond() {
    let spec = SenderSpec { paced: true, ..sender_spec(Reno) };
    let mut sender = Sender::new(&spec);
    sender.handle_established(ms(0), Span::millis(100), NO_WINDOW);
    sender.write(ms(0), None);
    // The initial window goes at once.
    assert_eq!(drain(&mut sender, ms(0)), 10);
    sender.handle_ack(ms(100), &ack(10, 10));
    // 20 packets per 100 ms, twice as fast: 2 per 5 ms.
    let (mut now, mut bursts) = (ms(100), Vec::new());
    for _ in 0..5 {
        let before = sender.transmitted();
        bursts.push((now, drain(&mut sender, now) - before));
        now = sender.next_transmit(now).unwrap();
    }
    assert!(bursts.iter().all(|b| b.1 == 2), "{bursts:?}");
    for pair in bursts[1..].windows(2) {
        assert_eq!(pair[1].0.since(pair[0].0), Span::millis(5));
    }
}

#[test]
fn pacing_costs_no_rate() {
    for congestion_control in [Reno, Cubic] {
        let mut world = World::new(&WorldSpec::new(RATE, RTT, 100));
        let spec = SenderSpec { paced: true, ..sender_spec(congestion_control) };
        world.connect_as(&spec, RTT, None, NO_WINDOW);
        world.run_for(Span::secs(5));
        let used = utilisation(&mut world, Span::secs(20));
        assert!(used > 0.99, "{congestion_control:?}: {used:.3}");
    }
}

// ------------------------------------------------------------------------------------------------
// The receiver's window

/// A receiver that has advertised `window`, and the number of packets that it has.
fn advertised(window: u64) -> Receiver {
    let mut receiver = Receiver::new(&ReceiverSpec { window: Bytes::new(window) });
    assert_eq!(receiver.advertise(), Bytes::new(window));
    receiver
}

fn advertised_after(receiver: &mut Receiver, number: u64) -> u64 {
    receiver.handle_segment(ms(1), &segment(number, 0));
    receiver.advertise().as_u64() / SEGMENT
}

#[test]
fn a_smaller_window_takes_effect_as_packets_arrive() {
    let mut receiver = advertised(20 * SEGMENT);
    receiver.set_window(Bytes::new(16 * SEGMENT));
    let windows: Vec<u64> = (0..6).map(|number| advertised_after(&mut receiver, number)).collect();
    assert_eq!(windows, [19, 18, 17, 16, 16, 16]);
}

#[test]
fn a_larger_window_opens_by_a_segment_for_each_packet() {
    let mut receiver = advertised(4 * SEGMENT);
    receiver.set_window(Bytes::new(7 * SEGMENT));
    assert_eq!(receiver.advertise(), Bytes::new(4 * SEGMENT));
    let windows: Vec<u64> = (0..5).map(|number| advertised_after(&mut receiver, number)).collect();
    assert_eq!(windows, [5, 6, 7, 7, 7]);
}

#[test]
fn before_anything_was_advertised_a_window_takes_effect_at_once() {
    let mut receiver = Receiver::new(&ReceiverSpec { window: NO_WINDOW });
    receiver.set_window(Bytes::new(3 * SEGMENT));
    assert_eq!(receiver.advertise(), Bytes::new(3 * SEGMENT));
    receiver.set_window(Bytes::new(9 * SEGMENT));
    assert_eq!(receiver.advertise(), Bytes::new(3 * SEGMENT));
}

proptest! {
    #[test]
    fn a_window_never_moves_its_right_edge_left(
        steps in prop::collection::vec((0u64..100_000, 0u32..6, 1u32..3_000), 1..200)
    ) {
        let mut receiver = advertised(50_000);
        let (mut edge, mut number) = (50_000, 0);
        for (window, packets, payload) in steps {
            let before = receiver.window();
            receiver.set_window(Bytes::new(window));
            // It does not open at once either.
            prop_assert!(receiver.window() <= before);
            for _ in 0..packets {
                receiver.handle_segment(ms(1), &Segment { number, payload, resent: 0, copy: false, marked: false });
                number += 1;
                let advertised = receiver.advertise().as_u64();
                let next = receiver.received().as_u64() + advertised;
                prop_assert!(next >= edge, "{} after {}", next, edge);
                // It is never more than what was advertised before, or than the wanted window.
                prop_assert!(advertised <= window.max(edge - (edge.min(receiver.received().as_u64()))));
                edge = next;
            }
        }
    }
}

#[test]
fn windows_by_the_law_leave_the_queue_as_long_as_it_shall_be_and_lose_nothing() {
    // The queue is about 20 packets; the buffer is the BDP of 100 ms, 247 packets.
    let link = RATE;
    let rtts = [Span::millis(20), Span::millis(100)];
    let mut world = World::new(&WorldSpec::new(link, rtts[1], 100));
    let queue = link.time_to_send(Bytes::new(20 * (SEGMENT + HEADERS)));
    for rtt in rtts {
        let window = fairweir_core::window::wire_window(link / 2, rtt, queue);
        let window = Bytes::new(window.as_u64() * SEGMENT / (SEGMENT + HEADERS));
        world.connect_as(&sender_spec(Cubic), rtt, None, window);
    }
    world.run_for(Span::secs(5));
    let before: Vec<u64> =
        world.flows.iter().map(|f| f.receiver.received().as_u64() / SEGMENT).collect();
    let used = utilisation(&mut world, Span::secs(10));
    assert!(used > 0.99, "{used:.3}");
    let after = world.flows.iter().map(|f| f.receiver.received().as_u64() / SEGMENT);
    let parts: Vec<f64> = after.zip(&before).map(|(after, b)| (after - b) as f64).collect();
    assert!((parts[0] / parts[1] - 1.0).abs() < 0.1, "{parts:?}");
    assert_eq!(world.dropped, 0);
    let srtt = world.flows[0].sender.srtt().unwrap().as_millis_f64();
    let expected = (rtts[0] + queue).as_millis_f64();
    assert!((srtt / expected - 1.0).abs() < 0.1, "{srtt} ms, not {expected} ms");
}

// ------------------------------------------------------------------------------------------------
// Receiving

fn segment(number: u64, resent: u32) -> Segment {
    Segment { number, payload: SEGMENT as u32, resent, copy: false, marked: false }
}

/// A receiver whose quick ACKs are used up.
fn receiver() -> (Receiver, u64) {
    let mut receiver = Receiver::new(&ReceiverSpec { window: NO_WINDOW });
    for number in 0..16 {
        receiver.handle_segment(ms(0), &segment(number, 0));
        assert!(receiver.poll_ack(ms(0)).is_some(), "{number}");
    }
    (receiver, 16)
}

#[test]
fn every_second_packet_is_acknowledged_or_one_after_40_ms() {
    let (mut receiver, from) = receiver();
    for number in from..from + 10 {
        receiver.handle_segment(ms(1), &segment(number, 0));
        assert_eq!(receiver.poll_ack(ms(1)).is_some(), number % 2 == 1, "{number}");
    }
    receiver.handle_segment(ms(2), &segment(from + 10, 0));
    assert_eq!(receiver.poll_ack(ms(41)), None);
    assert_eq!(receiver.next_timeout(), Some(ms(42)));
    assert_eq!(receiver.poll_ack(ms(42)).map(|ack| ack.last), Some(from + 10));
    assert_eq!(receiver.next_timeout(), None);
}

#[test]
fn every_packet_is_acknowledged_while_a_hole_is_open() {
    let (mut receiver, from) = receiver();
    let is_acked = |receiver: &mut Receiver, number, resent| {
        receiver.handle_segment(ms(1), &segment(number, resent));
        receiver.poll_ack(ms(1)).is_some()
    };
    // `from` is lost, and so is `from + 5`, which carries it again; `from + 8` carries it again, too.
    for (number, resent) in [(1, 0), (2, 0), (3, 0), (4, 0), (6, 1), (7, 1)] {
        assert!(is_acked(&mut receiver, from + number, resent), "{number}");
    }
    assert!(is_acked(&mut receiver, from + 8, 2), "the repair");
    assert!(!is_acked(&mut receiver, from + 9, 2), "back to every second");
    assert!(is_acked(&mut receiver, from + 10, 2));
}

#[test]
fn a_copy_of_what_has_arrived_does_not_count() {
    let (mut receiver, from) = receiver();
    let before = receiver.received();
    receiver.handle_segment(ms(1), &Segment { copy: true, ..segment(from, 1) });
    assert_eq!(receiver.received(), before);
    assert!(receiver.poll_ack(ms(1)).is_some());
    // The next packet is lost, but its copy arrives.
    receiver.handle_segment(ms(2), &Segment { copy: true, ..segment(from + 2, 2) });
    assert_eq!(receiver.received(), before + Bytes::new(SEGMENT));
    assert!(receiver.poll_ack(ms(2)).is_none(), "no hole is left");
}

// ------------------------------------------------------------------------------------------------
// Properties

fn congestion_control() -> impl Strategy<Value = CongestionControl> {
    prop::sample::select(ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_transfer_completes_under_any_loss(
        congestion_control in congestion_control(),
        loss_percent in 0u32..=30,
        ack_loss_percent in prop_oneof![Just(0u32), 1..=30u32],
        volume in 1u64..200_000,
        rtt_ms in 1u64..200,
        is_paced: bool,
        seed: u64,
    ) {
        let mut spec = WorldSpec::new(Rate::mbit(5), Span::millis(rtt_ms), 100);
        spec.buffer = Buffer::Packets(20);
        spec.loss_ppm = loss_percent * 10_000;
        spec.ack_loss_ppm = ack_loss_percent * 10_000;
        spec.seed = seed >> 1;
        let mut world = World::new(&spec);
        let sender = SenderSpec { paced: is_paced, seed, ..sender_spec(congestion_control) };
        world.connect_as(&sender, Span::millis(rtt_ms), Some(volume), NO_WINDOW);
        while world.now < ms(3_600_000) && !world.flows[0].sender.all_delivered() {
            world.run_for(Span::secs(1));
        }
        let flow = &world.flows[0];
        prop_assert!(flow.sender.all_delivered(), "{} of {volume}", flow.receiver.received());
        prop_assert!(flow.receiver.received() >= Bytes::new(volume));
        // No payload is left to send.
        prop_assert!(!flow.sender.has_unsent());
        // Only packets given up because their ACKs were lost arrive twice.
        if ack_loss_percent == 0 {
            prop_assert_eq!(flow.receiver.received(), Bytes::new(volume));
        }
    }

    #[test]
    fn the_same_input_gives_the_same_output(
        congestion_control in congestion_control(), loss_ppm in 0u32..50_000, seed in 0u64..1_000,
    ) {
        let play = || {
            let mut spec = WorldSpec::new(RATE, RTT, 50);
            (spec.loss_ppm, spec.seed) = (loss_ppm, seed);
            let mut world = World::new(&spec);
            for i in 1..4 {
                world.connect(congestion_control, RTT * i, None);
            }
            let mut trace = Vec::new();
            world.run_until(ms(1_000), |world| {
                let flows = world.flows.iter();
                trace.push((world.now, flows.map(|f| f.sender.cwnd()).collect::<Vec<_>>()));
            });
            trace
        };
        prop_assert_eq!(play(), play());
    }
}

/// A Reno sender with ten packets in flight.
fn ten_in_flight() -> Sender {
    let spec = SenderSpec {
        congestion_control: CongestionControl::Reno,
        segment: Bytes::new(1_000),
        paced: false,
        seed: 1,
    };
    let mut sender = Sender::new(&spec);
    sender.handle_established(Time::ZERO, Span::millis(100), Bytes::kb(1_000));
    sender.write(Time::ZERO, None);
    while sender.poll_transmit(Time::ZERO).is_some() {}
    assert_eq!(sender.in_flight(), 10);
    sender
}

#[test]
fn a_loss_that_others_answer_leaves_the_window_and_one_in_part_what_is_said() {
    let ack =
        Ack { last: 9, received: 7, marked: 0, payload: Bytes::kb(7), window: Bytes::kb(1_000) };
    let now = Time::ZERO + Span::millis(100);
    for (answer, ssthresh) in [(Answer::Own, 5), (Answer::Delegated, 10), (Answer::Shared(8), 8)] {
        let mut sender = ten_in_flight();
        let mut asked = 0;
        sender.handle_ack_in_bundle(now, &ack, &mut |_| {
            asked += 1;
            answer
        });
        assert_eq!((asked, sender.ssthresh()), (1, Some(ssthresh)), "{answer:?}");
    }
}

#[test]
fn after_a_timeout_that_others_answer_the_window_grows_back_by_slow_start() {
    for (answer, ssthresh) in [(Answer::Own, 5), (Answer::Delegated, 10)] {
        let mut sender = ten_in_flight();
        let mut asked = 0;
        while sender.ssthresh().is_none() {
            let now = sender.next_timeout().expect("packets are in flight");
            sender.handle_timeout_in_bundle(now, &mut |signal| {
                assert_eq!(signal, Signal::Timeout);
                asked += 1;
                answer
            });
            while sender.poll_transmit(now).is_some() {}
        }
        assert_eq!((asked, sender.ssthresh()), (1, Some(ssthresh)), "{answer:?}");
        assert!(sender.cwnd() <= 2, "it starts again: {}", sender.cwnd());
        // The bundle does not answer the next timeout if nothing was acknowledged in between.
        let now = sender.next_timeout().unwrap();
        sender.handle_timeout_in_bundle(now, &mut |_| panic!("it is asked once"));
    }
}
