//! Cost of TCP per packet in virtual time, sender and receiver together: through a perfect pipe of
//! 1,000 packets, and with one packet in a hundred lost. Prints a Markdown table, also as a ratio
//! to the bare pipe: `cargo bench -p fairweir-sim --bench tcp`.

// A bench reads the clock.
#![allow(clippy::disallowed_methods)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use fairweir_core::units::{Bytes, Span, Time};
use fairweir_scenario::CongestionControl;
use fairweir_sim::tcp::{Receiver, ReceiverSpec, Segment, Sender, SenderSpec};

const SEGMENT: Bytes = Bytes::new(1_448);
const PIPE: u64 = 1_000;
const PACKETS: u64 = 1_000_000;
/// Time of a packet at 1 Gbit/s.
const PACKET_TIME: Span = Span::nanos(12_112);

fn main() {
    println!("\n### TCP: ns per packet, sender and receiver\n");
    println!("| congestion control | loss | ns/packet | ratio to a bare queue |");
    println!("|---|---:|---:|---:|");
    let bare = fastest_ns(bare_queue);
    for congestion_control in [
        CongestionControl::Reno,
        CongestionControl::Cubic,
        CongestionControl::Vegas,
        CongestionControl::Bbr,
    ] {
        for lose_every in [u64::MAX, 100] {
            let ns = fastest_ns(|| transfer(congestion_control, lose_every));
            let loss = if lose_every == u64::MAX { "0" } else { "1 %" };
            let name = congestion_control.name();
            println!("| {name} | {loss} | {ns:.1} | {:.1} |", ns / bare);
        }
    }
    println!("\nA sender has {} bytes, a receiver {}.", size_of::<Sender>(), size_of::<Receiver>());
}

/// Pushes the same number of packets through a queue of the same length.
fn bare_queue() {
    let segment = Segment { number: 0, payload: 0, resent: 0, copy: false, marked: false };
    let mut pipe: VecDeque<(Time, Segment)> = VecDeque::new();
    (0..PIPE).for_each(|_| pipe.push_back((Time::ZERO, segment)));
    for number in 0..PACKETS {
        black_box(pipe.pop_front());
        pipe.push_back((Time::from_nanos(number), black_box(segment)));
    }
}

/// A window of packets goes round; the delay of the path is the time of the packets in it.
fn transfer(congestion_control: CongestionControl, lose_every: u64) {
    let spec = SenderSpec { congestion_control, segment: SEGMENT, paced: false, seed: 1 };
    let window = SEGMENT * PIPE;
    let mut sender = Sender::new(&spec);
    let mut receiver = Receiver::new(&ReceiverSpec { window });
    let (mut now, rtt) = (Time::ZERO, PACKET_TIME * PIPE);
    sender.handle_established(now, rtt, window);
    sender.write(now, None);
    let mut pipe: VecDeque<(Time, Segment)> = VecDeque::new();
    for count in 0..PACKETS {
        while let Some(segment) = sender.poll_transmit(now) {
            let last = pipe.back().map_or(Time::ZERO, |x| x.0);
            pipe.push_back(((last + PACKET_TIME).max(now + rtt), segment));
        }
        let Some((at, segment)) = pipe.pop_front() else {
            let next = [sender.next_timeout(), sender.next_transmit(now)];
            now = next.into_iter().flatten().min().unwrap_or(now).max(now);
            sender.handle_timeout(now);
            continue;
        };
        now = now.max(at);
        if count % lose_every == lose_every - 1 {
            continue;
        }
        receiver.handle_segment(now, &segment);
        if let Some(ack) = receiver.poll_ack(now) {
            sender.handle_ack(now, black_box(&ack));
        }
    }
    black_box(sender.cwnd());
}

/// Nanoseconds per packet in the fastest of several runs.
fn fastest_ns(mut work: impl FnMut()) -> f64 {
    let run = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_nanos() as f64 / PACKETS as f64
    };
    (0..7).map(run).fold(f64::INFINITY, f64::min)
}
