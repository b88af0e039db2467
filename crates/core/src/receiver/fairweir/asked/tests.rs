use proptest::prelude::*;

use super::super::tests::{busy_tick, control};
use super::*;
use crate::receiver::{Command, ConnectionWindow, Observation};
use crate::units::Span;

const SEGMENT: u64 = 1_448;

fn segments(count: u64) -> Option<Bytes> {
    Some(Bytes::new(SEGMENT * count))
}

fn numbers(weights: Option<Vec<Weight>>) -> Option<Vec<u32>> {
    weights.map(|all| all.into_iter().map(Weight::as_u32).collect())
}

#[test]
fn a_window_moves_if_it_goes_down_by_some_segments() {
    let moves = |before, now| moved(before, now, Bytes::new(SEGMENT));
    for (before, now, wanted) in [
        (60, 59, true),
        (60, 45, true),
        (60, 60, false),
        (60, 61, false),
        (60, 29, false),
        (60, 0, false),
        (0, 60, false),
    ] {
        assert_eq!(moves(segments(before), segments(now)), wanted, "{before} to {now}");
    }
    assert!(!moves(segments(60), Some(Bytes::new(60 * SEGMENT - 127))), "a scale of 7 rounds");
    assert!(!moves(None, segments(60)) && !moves(segments(60), None));
}

#[test]
fn a_division_is_there_after_three_moves_and_gone_after_64_ticks_without_any() {
    let mut division = Division::default();
    let mut ticks = |count: u32, moved| {
        (0..count).for_each(|_| division.handle_tick(moved));
        division.is_there()
    };
    assert!(!ticks(2, true) && !ticks(60, false));
    assert!(ticks(1, true), "the third within 64 ticks");
    assert!(ticks(63, false));
    assert!(!ticks(1, false));
    assert!(!ticks(2, true), "three again");
}

#[test]
fn windows_that_bind_nothing_say_nothing() {
    let m = Rate::mbit;
    assert_eq!(numbers(weights(m(15), &[m(10), m(5)])), Some(vec![1_333, 666]));
    assert_eq!(numbers(weights(m(15), &[m(30), m(15)])), Some(vec![1_333, 666]), "three times");
    assert_eq!(weights(m(15), &[m(110), m(15)]), None);
    assert_eq!(weights(m(15), &[Rate::bps(u64::MAX); 3]), None);
    assert_eq!(weights(m(15), &[Rate::ZERO; 3]), None);
    assert_eq!(weights(Rate::ZERO, &[m(1); 3]), None);
    assert_eq!(
        numbers(weights(m(15), &[m(15), m(0)])),
        Some(vec![2_000, 125]),
        "an eighth is left"
    );
}

/// A busy link with one device of three downloads and one device of a single download.
fn tick(number: u64, asked: [Option<u32>; 3]) -> Observation {
    let m = Rate::mbit;
    let mut seen = busy_tick(number, &[m(5), m(5), m(5), m(15)], Span::millis(4));
    for (connection, asked) in seen.connections.iter_mut().zip(asked) {
        connection.group = 0;
        connection.asked = asked.map(|asked| Bytes::new(asked.into()));
    }
    seen.connections[3].group = 1;
    let [a, b, c, other] = seen.groups[..] else { unreachable!("four connections") };
    let mut device = a;
    device.received += b.received + c.received;
    device.packets += b.packets + c.packets;
    seen.groups = vec![device, other];
    seen
}

/// The last windows of the four connections, in bytes, after the device asked for these windows.
fn windows_after(asked: &[[Option<u32>; 3]]) -> Vec<u64> {
    let mut control = control(&[1, 1], Some(Rate::mbit(30)));
    let mut windows = Vec::new();
    for (number, asked) in (1..).zip(asked) {
        control.handle_observation(&tick(number, *asked));
        while let Some(command) = control.poll_command() {
            if let Command::SetWindows(all) = command {
                windows = all.connections;
            }
        }
    }
    let bytes = |c: &ConnectionWindow| c.window.as_u64();
    windows.iter().map(bytes).collect()
}

#[test]
fn a_device_that_divides_by_itself_is_followed() {
    let asked = |tick: u32| {
        let segments = [60, 30, 30 - tick / 8 % 2];
        segments.map(|count| Some(count * SEGMENT as u32))
    };
    let windows = windows_after(&(0..80).map(asked).collect::<Vec<_>>());
    let ratio = windows[0] as f64 / windows[1] as f64;
    assert!((1.8..=2.2).contains(&ratio), "{windows:?}");
    // The same windows without any movement are those of a system without a control.
    let windows = windows_after(&vec![asked(0); 80]);
    assert!(windows[0].abs_diff(windows[1]) <= SEGMENT, "{windows:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_a_device_asks_for_it_has_its_own_part_and_the_others_theirs(
        asked in prop::collection::vec(
            prop::array::uniform3(prop::option::weighted(0.9, prop_oneof![0u32..200_000, any::<u32>()])),
            70..90,
        )
    ) {
        let honest = windows_after(&vec![[None; 3]; asked.len()]);
        let lying = windows_after(&asked);
        let device = |windows: &[u64]| windows[..3].iter().sum::<u64>();
        prop_assert_eq!(lying[3], honest[3]);
        prop_assert!(device(&lying).abs_diff(device(&honest)) <= 2 * SEGMENT, "{:?} {:?}", lying, honest);
        prop_assert!(lying.iter().all(|&window| window >= 2 * SEGMENT));
    }

    #[test]
    fn weights_are_in_proportion_and_leave_an_eighth(
        bps in 1u64..1_000_000_000, asked in prop::collection::vec(0u64..1_000_000_000, 2..60)
    ) {
        let rates: Vec<Rate> = asked.iter().map(|&bps| Rate::bps(bps)).collect();
        let all: u64 = asked.iter().sum();
        let Some(weights) = numbers(weights(Rate::bps(bps), &rates)) else {
            prop_assert!(all == 0 || u128::from(all) > u128::from(bps) * ASKED_MAX);
            return Ok(());
        };
        prop_assert!(u128::from(all) <= u128::from(bps) * ASKED_MAX);
        for (weight, asked) in weights.into_iter().zip(&asked) {
            let exact = *asked as f64 / all as f64 * rates.len() as f64 * f64::from(EVEN);
            let exact = exact.clamp(f64::from(EVEN / 8), f64::from(Weight::MAX));
            prop_assert!((f64::from(weight) - exact).abs() <= 1.0);
        }
    }
}
