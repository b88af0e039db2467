use fairweir_core::delegate::{Algorithm, BundleSpec, Reverse};
use fairweir_core::share::Weight;
use fairweir_core::units::Rate;

use super::*;

const MTU: u16 = 1_000;

/// A bundle of one free connection, which delegates all its signals, and one stunt; and the instant at
/// which both were created.
fn two() -> (Bundles, [Delegated; 2], Instant) {
    let spec = BundleSpec { algorithm: Algorithm::OnOff, reverse: Reverse::Exact };
    let target = Part::Trace(vec![(Time::ZERO, Rate::mbit(900))]);
    let stunt = Part::Stunt { weight: Weight::ONE, min_rate: Rate::ZERO };
    let mut bundles = Bundles::default();
    let now = Instant::now();
    let mut controller = |part: Part| {
        let seat = Seat {
            bundle: 0,
            spec,
            free_group: matches!(part, Part::Trace(_)).then_some(0),
            part,
            free_groups: 1,
            duration: Span::secs(9),
        };
        let played = bundles.0.entry(0).or_insert_with(|| Arc::new(Played::new(&seat)));
        let played = Arc::clone(played);
        let factory = Arc::new(Factory { played, seat, packet: Bytes::new(1_042) });
        *factory.build(now, MTU).into_any().downcast::<Delegated>().unwrap()
    };
    let both = [controller(target), controller(stunt)];
    (bundles, both, now)
}

fn ms(from: Instant, ms: u64) -> Instant {
    from + Duration::from_millis(ms)
}

#[test]
fn a_stunt_gives_up_at_its_next_ack_what_the_free_connection_keeps() {
    let (bundles, [mut free, mut stunt], begin) = two();
    let rtt = Duration::from_millis(100);
    let ack = |controller: &mut Delegated, at: u64, bytes: u64| {
        let (now, sent) = (ms(begin, at), ms(begin, at - 100));
        controller.hear(now, sent, bytes, rtt);
        controller.on_end_acks(now, 0, false, None);
    };
    let lose = |controller: &mut Delegated, at: u64| {
        controller.on_congestion_event(ms(begin, at), ms(begin, at - 50), false, u64::from(MTU));
    };
    // Both leave slow start by losses that they handle themselves: no other connection may handle them yet.
    for (controller, bytes) in [(&mut free, 38_000), (&mut stunt, 1_990_000)] {
        ack(controller, 200, bytes);
        let before = controller.window();
        lose(controller, 250);
        assert_eq!(controller.window(), before / 2 / 1_000 * 1_000);
        lose(controller, 251);
        assert_eq!(controller.window(), before / 2 / 1_000 * 1_000, "once in a round-trip time");
    }
    // One interval later the controller delegates all signals.
    let later = Time::ZERO + Span::secs(1);
    for nth in 0..2 {
        ack(&mut free, 400 + nth, 1);
        ack(&mut stunt, 400 + nth, 1);
        let mut state = bundles.0[&0].lock();
        state.core.handle_tick(later + Span::millis(100) * nth);
    }
    let windows = [free.window(), stunt.window()];
    lose(&mut free, 500);
    assert_eq!(free.window(), windows[0] / 1_000 * 1_000, "it keeps its window");
    ack(&mut stunt, 600, 1);
    let half = free.window() / 1_000 - free.window() / 2_000;
    let given = windows[1] / 1_000 - stunt.window() / 1_000;
    assert_eq!(given, half, "the stunt gives up what it would have");
    // Packets lost over a long time: no other connection handles such a signal.
    free.on_congestion_event(ms(begin, 900), ms(begin, 800), true, 1_000);
    assert_eq!(free.window(), 2_000);
    let samples = bundles.samples();
    assert_eq!((samples[&0].stunts.signals, samples[&0].stunts.cuts), (1, 1));
    drop((free, stunt));
    assert_eq!(bundles.samples(), samples, "signals of those that are gone are not lost");
    assert!(bundles.0[&0].lock().members.is_empty(), "whoever is gone has left");
}
