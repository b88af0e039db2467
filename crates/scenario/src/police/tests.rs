use super::*;
use crate::Scenario;

fn points(police: &str) -> (Scenario, Points<u32>) {
    let text = format!(
        "version = 1\nname = \"x\"\nduration = \"9s\"\n[link]\nrate = \"99mbit\"\n\
         [[group]]\nname = \"a\"\nweight = 1\n[[group]]\nname = \"b\"\nweight = 1\n\
         [[flow]]\ngroup = \"a\"\nkind = \"bulk\"\nconnections = 3\n\
         [[flow]]\ngroup = \"b\"\nkind = \"bulk\"\n[[flow]]\ngroup = \"a\"\nkind = \"ping\"\n\
         [[police]]\nname = \"p\"\nrate = \"8mbit\"\n{police}"
    );
    let scenario = Scenario::parse(&text, "x").unwrap();
    let points = Points::new(&scenario, false);
    (scenario, points)
}

#[test]
fn units_have_queues_of_their_own_while_there_are_enough() {
    let (_, points) = points("queues = 5");
    let leaf = |flow: usize, unit| points.seats[flow].unwrap().leaf(flow, unit);
    assert_eq!([leaf(0, 0), leaf(0, 1), leaf(0, 2), leaf(1, 0), leaf(2, 0)], [0, 1, 2, 3, 4]);
    assert_eq!(leaf(0, 5), 0, "and share them when not");
}

#[test]
fn flows_belong_to_the_classes_that_name_them() {
    let (scenario, points) = points(
        "share = \"priority\"\n[[police.class]]\nname = \"first\"\nflows = [1]\n\
         [[police.class]]\nname = \"rest\"\nqueues = 4\n",
    );
    assert_eq!(scenario.police[0].class_of, ["rest", "first", "rest"]);
    let first = points.seats[1].unwrap();
    let rest = points.seats[0].unwrap();
    assert_eq!((first.count, rest.count), (1, 4));
    assert_ne!(first.first, rest.first);
}

#[test]
fn what_no_point_names_passes() {
    let (_, mut points) = points("groups = [\"b\"]");
    let (now, size) = (Time::ZERO, Bytes::new(1514));
    assert!((0..999).all(|n| points.arrive(now, (0, 0), size, false, n) == Fate::Pass(n)));
    let passed = (0..999).filter(|&n| points.arrive(now, (1, 0), size, false, n) == Fate::Pass(n));
    assert!(passed.count() < 500, "and the others are policed");
}

#[test]
fn a_shaper_keeps_what_waits_and_gives_it_out_at_its_rate() {
    let (_, mut points) = points("algorithm = \"shaper\"\nqueue = \"100kB\"");
    let size = Bytes::new(1000);
    let fates = (0..200).map(|n| points.arrive(Time::ZERO, (1, 0), size, false, n));
    let dropped = fates.filter(|fate| *fate != Fate::Waits).count();
    assert_eq!((dropped, points.waiting()), (100, 100));
    let second = Time::from_nanos(50_000_000);
    let left = std::iter::from_fn(|| points.poll_departure(second)).count();
    assert!(left.abs_diff(50) < 2, "8 Mbit/s are a packet of 1000 bytes in a millisecond: {left}");
}
