use proptest::prelude::*;

use super::super::NO_CORRECTION;
use super::super::tests::{LEARNED_TICKS, busy_tick, learned_by};
use super::*;
use crate::receiver::{Observation, TICK, TransitSample};
use crate::units::{Bytes, Rate};

const MS: Span = Span::millis(1);
const VIDEO: usize = 0;

/// What is seen of the video's connection: its missing packets and its own queue.
#[derive(Clone, Copy)]
struct Video {
    holes: u64,
    queue: Span,
}

const FEIGNED: Video = Video { holes: 2, queue: Span::millis(8) };

/// A control of three groups, the first of which has the largest share, on a link of 30 Mbit/s that it knows.
fn learned() -> Fairweir {
    learned_by(&[5, 1, 1], &[Rate::mbit(10); 3])
}

/// A tick in which the video gets 6 Mbit/s of a wide window, and the two other groups share the rest without
/// a queue. The total changes by 2 % from tick to tick.
fn tick(tick: u64, link: Rate, video: Video) -> Observation {
    let rest = (link.scale(98 + 2 * (tick % 2), 100).saturating_sub(Rate::mbit(6))) / 2;
    let mut seen = busy_tick(tick, &[Rate::mbit(6), rest, rest], Span::ZERO);
    let (least, mean) = (video.queue.as_nanos() as i64 / 2, video.queue.as_nanos() as i64);
    let connection = &mut seen.connections[VIDEO];
    connection.window = Bytes::kb(1_000);
    connection.holes = video.holes;
    connection.transit = Some(TransitSample { min_ns: least, mean_ns: mean, samples: 40 });
    seen
}

fn run(control: &mut Fairweir, seconds: u64, link: Rate, video: Video) -> Vec<Rate> {
    let begin = LEARNED_TICKS + 1;
    let ticks = begin..begin + Span::secs(seconds).as_nanos() / TICK.as_nanos();
    let capacity = |at| {
        control.handle_observation(&tick(at, link, video));
        control.decision().capacity.unwrap()
    };
    ticks.map(capacity).collect()
}

#[test]
fn who_loses_in_a_queue_of_its_own_is_not_squeezed_further() {
    let mut squeezed = learned();
    let capacities = run(&mut squeezed, 6, Rate::mbit(30), FEIGNED);
    assert_eq!(squeezed.squeezed(), Some(Lost::Own));
    assert!(squeezed.opening <= NO_CORRECTION, "{}", squeezed.opening);
    let most = capacities.iter().copied().max().unwrap();
    assert!(most < Rate::mbit(30).scale(107, 100), "{most}");
    // A video that loses no packets wants no more: the link has room, so the other groups' windows are opened.
    let mut lending = learned();
    run(&mut lending, 6, Rate::mbit(30), Video { holes: 0, ..FEIGNED });
    assert_eq!(lending.squeezed(), None);
    assert!(lending.opening > NO_CORRECTION, "{}", lending.opening);
}

#[test]
fn a_server_that_feigns_a_queue_of_its_own_does_not_keep_a_capacity_down() {
    // A rate above the capacity raises it at once.
    let mut control = learned();
    let capacities = run(&mut control, 1, Rate::mbit(60), FEIGNED);
    assert!(capacities[0] >= Rate::mbit(58), "{}", capacities[0]);
    // The capacity that windows hold back shows when the patience is over.
    let mut control = learned();
    let capacities = run(&mut control, 90, Rate::mbit(30), FEIGNED);
    let most = capacities.iter().copied().max().unwrap();
    assert!(most >= Rate::mbit(30).scale(109, 100), "{most}");
}

#[test]
fn losses_are_known_by_the_queue_in_which_the_packets_waited() {
    let lost = |queue: Span, video: Video| {
        let mut control = learned();
        control.queue_last = Span::ZERO;
        let seen = tick(LEARNED_TICKS + 1, Rate::mbit(30), video);
        control.handle_observation(&seen);
        let known = control.connections[&(VIDEO as u64)];
        let losses = control.see_losses_of(seen.at, &seen.connections[VIDEO], Some(&known), queue);
        losses.lost(seen.at)
    };
    assert_eq!(lost(Span::ZERO, FEIGNED), Some(Lost::Own));
    let none = Video { holes: 1, queue: Span::ZERO };
    assert_eq!(lost(MS * 4, none), Some(Lost::Shared));
    assert_eq!(lost(MS, none), None, "where no packet waits the path loses them");
    assert_eq!(lost(MS * 4, Video { holes: 0, ..FEIGNED }), None);
}

#[test]
fn a_loss_is_forgotten_and_one_in_a_queue_of_its_own_says_more() {
    let at = |seconds| Time::ZERO + Span::secs(seconds);
    let mut losses = LastLosses::default();
    assert!(!losses.is_recovering(at(1)));
    losses.handle_loss(at(1), Some(Lost::Own));
    losses.handle_loss(at(5), Some(Lost::Shared));
    losses.handle_loss(at(7), None);
    assert_eq!(losses.lost(at(8)), Some(Lost::Own));
    assert_eq!(losses.lost(at(12)), Some(Lost::Shared));
    assert_eq!((losses.lost(at(14)), losses.is_recovering(at(14))), (None, true));
    assert!(!losses.is_recovering(at(15)));
}

proptest! {
    #[test]
    fn the_capacity_is_held_for_half_of_the_ticks_beyond_the_patience_at_most(
        squeezed in prop::collection::vec(prop::option::of(prop::bool::ANY), 1..2_000),
    ) {
        let mut patience = Patience::new();
        let mut held = 0;
        for (tick, squeezed) in (1u32..).zip(squeezed) {
            let squeezed = squeezed.map(|own| if own { Lost::Own } else { Lost::Shared });
            let is_held = patience.handle_tick(squeezed);
            prop_assert!(!is_held || squeezed == Some(Lost::Own));
            held += u32::from(is_held);
            prop_assert!(held <= PATIENCE_TICKS + tick / 2 + 1, "{held} of {tick}");
        }
    }
}
