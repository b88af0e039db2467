use super::super::super::TICK;
use super::super::PACKET_GUESS as PACKET;
use super::*;

const GOT: Rate = Rate::mbit(10);

/// The result for the total of each tick, and the time until it is known.
fn shown(release: Release, total: impl Fn(u64) -> Rate) -> (Shown, Span) {
    shown_beside(release, true, total)
}

fn shown_beside(
    mut release: Release,
    is_queue_long: bool,
    total: impl Fn(u64) -> Rate,
) -> (Shown, Span) {
    for tick in 1..=500 {
        let passed = TICK * tick;
        match release.handle_tick(Time::ZERO + passed, total(tick), is_queue_long) {
            Shown::Nothing => {}
            shown => return (shown, passed),
        }
    }
    panic!("it never ends");
}

fn to_compare() -> Release {
    Release::to_compare(Time::ZERO, GOT)
}

/// The given percentage of `rate`, plus two in every other tick: other hosts take varying parts.
fn rippled(rate: Rate, percent: u64, tick: u64) -> Rate {
    rate.scale(percent + 2 * (tick % 2), 100)
}

#[test]
fn senders_that_grow_slowly_are_waited_for() {
    // A twentieth more every two seconds: the tenth after four seconds shows no rivals yet.
    let growing = |tick: u64| rippled(GOT, 100 + tick / 2, tick);
    let (shown, after) = shown(to_compare(), growing);
    let Shown::Due(due) = shown else { panic!("{shown:?}") };
    assert!(due > GOT.scale(115, 100), "{due} after {after}");
    assert!(after > MEASURED);
}

#[test]
fn as_much_as_with_control_is_no_more() {
    let (shown, after) = shown(to_compare(), |tick| rippled(GOT, 105, tick));
    let Shown::NoMore(rate) = shown else { panic!("{shown:?}") };
    assert!(rate > GOT.scale(104, 100) && rate < GOT.scale(108, 100));
    assert!(after <= MEASURED + GROWN + TICK, "{after}");
}

#[test]
fn much_less_than_with_control_is_a_slower_link() {
    let (shown, after) = shown(to_compare(), |tick| rippled(GOT, 80 - tick, tick));
    assert!(matches!(shown, Shown::Less(_)), "{shown:?}");
    assert!(after <= EARLY + TICK, "{after}");
}

#[test]
fn a_rate_that_stays_the_same_to_a_packet_is_the_links_own() {
    let packets = |count: u64| Rate::from_volume(PACKET * count, TICK);
    for carried in [20, 200, 20_000] {
        let steady = |tick: u64| packets(carried + tick % 2);
        let others = Release::beside_others(Time::ZERO, packets(carried * 3));
        let compared = Release::to_compare(Time::ZERO, packets(carried));
        for release in [others, compared] {
            let (shown, after) = shown(release, steady);
            assert!(matches!(shown, Shown::Own(_)), "{carried}: {shown:?}");
            assert!(after <= EARLY + TICK, "{after}");
        }
        // A ripple of a hundredth plus three packets shows other hosts.
        let (shown, _) = shown(others, |tick| packets(carried + (carried / 100 + 3) * (tick % 2)));
        assert!(matches!(shown, Shown::Due(_)), "{carried}: {shown:?}");
    }
}

#[test]
fn what_grows_is_not_the_links_own_however_smoothly() {
    let (shown, _) = shown(to_compare(), |tick| GOT.scale(1_000 + 5 * tick, 1_000).min(GOT * 2));
    assert!(matches!(shown, Shown::Due(_)), "{shown:?}");
}

#[test]
fn a_host_that_wants_less_says_nothing_of_the_link() {
    // The host's download ends, or only a film of a constant rate is left.
    for total in [Rate::ZERO, GOT / 20] {
        let (shown, _) = shown(to_compare(), |_| total);
        assert_eq!(shown, Shown::Silence);
    }
    let (shown, _) = shown_beside(to_compare(), false, |_| GOT / 2);
    assert_eq!(shown, Shown::Silence);
    let others = Release::beside_others(Time::ZERO, GOT);
    let (shown, _) = shown_beside(others, false, |_| Rate::ZERO);
    assert_eq!(shown, Shown::Due(Rate::ZERO));
}
