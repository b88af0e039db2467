use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::super::GroupSample;
use super::*;

const DAY_S: u64 = 24 * 3_600;
const NOW: u64 = 1_800_000_000;
const BYTES_MAX: u64 = 64_000_000;

fn group(name: &str, received: u64) -> GroupSample {
    GroupSample { name: name.to_owned(), received, demand_bps: None, weight: 1 }
}

fn sample(at: u64, run: &str, groups: Vec<GroupSample>) -> Sample {
    let (daemon, run) = ("host-eth0".to_owned(), run.to_owned());
    let (span_ms, capacity_bps, queue_ms) = (Some(1_000), Some(10_000_000), Some(4.5));
    Sample { at, daemon, run, span_ms, capacity_bps, queue_ms, groups }
}

fn open(dir: &Path) -> Store {
    let (store, note) = Store::open(&dir.join("history.sqlite"), BYTES_MAX).unwrap();
    assert_eq!(note, None);
    store
}

/// All points of all time, from the rows per minute.
fn all(store: &Store) -> Vec<Point> {
    let mut query = Query { to: TIME_MAX, step_s: 60, ..Query::default() };
    let mut all = Vec::new();
    loop {
        let (points, next) = store.points(&query).unwrap();
        all.extend(points);
        match next {
            Some(next) => query.from = next,
            None => return all,
        }
    }
}

fn sum(store: &Store) -> u64 {
    all(store).iter().map(|point| point.received_bytes + point.late_bytes).sum()
}

#[test]
fn seconds_and_minutes_are_what_the_counters_say() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    for i in 0..120 {
        let groups = vec![group("video", (i + 1) * 1_000), group("rest", i / 60 * 7)];
        store.record(&[sample(NOW + i, "a", groups)]).unwrap();
    }
    let points = all(&store);
    let of = |name: &str| -> Vec<u64> {
        points.iter().filter(|p| p.group == name).map(|p| p.received_bytes).collect()
    };
    assert_eq!(of("video"), [60_000, 60_000]);
    assert_eq!(of("rest"), [7], "a minute in which nothing arrived has no row");
    assert_eq!((points[0].capacity_bps, points[0].queue_ms), (Some(10_000_000), Some(4.5)));
    let query = Query { group: Some("video".into()), ..Query::last(9, 5, NOW + 119) };
    let (points, next) = store.points(&query).unwrap();
    assert_eq!(next, None);
    assert_eq!(
        points.iter().map(|p| (p.at - NOW, p.received_bytes)).collect::<Vec<_>>(),
        [(110, 5_000), (115, 5_000)]
    );
    let other = Query { daemon: Some("host-x".into()), ..query };
    assert_eq!(store.points(&other).unwrap(), (Vec::new(), None));
    let seconds = store.seconds("host-eth0", NOW + 118).unwrap();
    assert_eq!(seconds.len(), 2);
    assert_eq!(store.groups("host-eth0"), [("rest".to_owned(), true), ("video".to_owned(), true)]);
    let newest = &seconds[0];
    assert_eq!((newest.at, newest.group, newest.rate_bps), (NOW + 119, 1, 8_000));
    assert_eq!((newest.weight, newest.capacity_bps), (1, Some(10_000_000)));
}

/// What can happen between two samples.
#[derive(Clone, Debug)]
enum Event {
    Grow {
        group: usize,
        by: u64,
    },
    Sample {
        is_late: bool,
    },
    RestartDaemon,
    ReopenFile,
    /// Adds the group to the configuration or removes it.
    Toggle {
        group: usize,
    },
    SetClock {
        by: i64,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..3_usize, 1..100_000_u64).prop_map(|(group, by)| Event::Grow { group, by }),
        4 => any::<bool>().prop_map(|is_late| Event::Sample { is_late }),
        1 => Just(Event::RestartDaemon),
        1 => Just(Event::ReopenFile),
        1 => (0..3_usize).prop_map(|group| Event::Toggle { group }),
        1 => (-100_000..100_000_i64).prop_map(|by| Event::SetClock { by }),
    ];
    prop::collection::vec(event, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn sums_equal_the_counters_whatever_is_restarted_removed_or_set(events in events()) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path());
        let (mut now, mut run, mut wanted) = (NOW, 0, 0);
        // The groups' counters, and the values that the last samples reported.
        let mut counters: [Option<u64>; 3] = [Some(0); 3];
        let mut said = [0_u64; 3];
        for event in events {
            now += 1;
            match event {
                Event::Grow { group, by } => {
                    if let Some(counter) = &mut counters[group] { *counter += by; }
                }
                Event::Sample { is_late } => {
                    let named = counters.iter().enumerate();
                    let groups = named.filter_map(|(i, c)| Some(group(["a", "b", "c"][i], (*c)?)));
                    let mut sample = sample(now, &run.to_string(), groups.collect());
                    if is_late { sample.span_ms = None; }
                    store.record(&[sample]).unwrap();
                    for (counter, said) in counters.iter().zip(&mut said) {
                        wanted += counter.unwrap_or(0) - *said;
                        *said = counter.unwrap_or(0);
                    }
                }
                Event::RestartDaemon => {
                    run += 1;
                    counters = counters.map(|counter| counter.map(|_| 0));
                    said = [0; 3];
                }
                Event::ReopenFile => {
                    drop(store);
                    store = open(dir.path());
                }
                Event::Toggle { group } => {
                    // A removed group returns only after the daemon was heard without it.
                    match counters[group] {
                        Some(_) => {
                            counters[group] = None;
                            said[group] = 0;
                            let named = counters.iter().zip(["a", "b", "c"]);
                            let groups = named.filter_map(|(c, name)| Some(super::tests::group(name, (*c)?)));
                            store.record(&[sample(now, &run.to_string(), groups.collect())]).unwrap();
                            for (counter, said) in counters.iter().zip(&mut said) {
                                wanted += counter.unwrap_or(0) - *said;
                                *said = counter.unwrap_or(0);
                            }
                        }
                        None => counters[group] = Some(0),
                    }
                }
                Event::SetClock { by } => now = now.saturating_add_signed(by),
            }
        }
        prop_assert_eq!(sum(&store), wanted);
    }
}

#[test]
fn what_is_not_recorded_is_not_lost_and_nothing_is_counted_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    store.record(&[sample(NOW, "a", vec![group("x", 10)])]).unwrap();
    // The process that took these samples is killed; the next process opens its file.
    drop(store);
    let mut store = open(dir.path());
    let late = Sample { span_ms: None, ..sample(NOW + 500, "a", vec![group("x", 1_000)]) };
    store.record(&[late.clone(), late]).unwrap();
    assert_eq!(sum(&store), 1_000);
    let points = all(&store);
    assert_eq!((points[1].received_bytes, points[1].late_bytes), (0, 990));
    // A run with another name starts a new counter: the same value means another thousand bytes.
    store.record(&[sample(NOW + 501, "b", vec![group("x", 1_000)])]).unwrap();
    assert_eq!(sum(&store), 2_000);
}

#[test]
fn old_rows_go_but_not_because_the_clock_was_set() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    store.record(&[sample(NOW, "a", vec![group("x", 10)])]).unwrap();
    let later = NOW + 40 * DAY_S;
    // The wall clock must agree with the monotonic clock for an hour.
    for monotonic in [0, 1_000, 3_599] {
        store.prune(later + monotonic, monotonic).unwrap();
        assert_eq!(sum(&store), 10, "{monotonic}");
    }
    store.prune(NOW + 4_000, 4_000).unwrap();
    store.prune(later + 7_599, 7_599).unwrap();
    assert_eq!(sum(&store), 10, "it was set back meanwhile");
    store.prune(later + 11_300, 11_300).unwrap();
    assert_eq!(sum(&store), 0);
    assert_eq!(store.seconds("host-eth0", 0).unwrap(), []);
}

#[test]
fn the_file_stays_within_its_size_and_keeps_what_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.sqlite");
    const MOST: u64 = 4_000_000;
    let (mut store, _) = Store::open(&path, MOST).unwrap();
    let mut largest = 0;
    // 400 minutes of 256 groups: 200,000 rows.
    for minute in 1..=400 {
        let groups = (0..256).map(|i| group(&format!("group-{i}"), minute * (i + 1))).collect();
        store.record(&[sample(NOW + minute * 60, "a", groups)]).unwrap();
        let size = |suffix: &str| {
            let file = dir.path().join(format!("history.sqlite{suffix}"));
            fs::metadata(file).map_or(0, |metadata| metadata.len())
        };
        largest = largest.max(size("") + size("-wal") + size("-shm"));
    }
    assert!(largest <= MOST, "{largest} bytes");
    let points = all(&store);
    assert_eq!(points.last().unwrap().at, (NOW + 400 * 60) / 60 * 60);
    // At least 100 of the 400 minutes remain, without a gap.
    let mut minutes: Vec<u64> = points.iter().map(|point| point.at / 60).collect();
    minutes.dedup();
    assert!(minutes.len() >= 100, "{} minutes", minutes.len());
    assert!(minutes.windows(2).all(|pair| pair[0] + 1 == pair[1]));
}

#[test]
fn a_damaged_file_is_set_aside_and_one_of_another_program_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.sqlite");
    let mut store = open(dir.path());
    for i in 0..2_000 {
        store.record(&[sample(NOW + i * 60, "a", vec![group("x", i)])]).unwrap();
    }
    drop(store);
    // Overwrites pages in the middle.
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle - 8_192..middle + 8_192].fill(0xaa);
    fs::write(&path, &bytes).unwrap();
    let (mut store, note) = Store::open(&path, BYTES_MAX).unwrap();
    assert!(note.unwrap().contains("it is now"));
    store.record(&[sample(NOW, "a", vec![group("x", 5)])]).unwrap();
    assert_eq!(sum(&store), 5);
    let aside = fs::metadata(path.with_extension("sqlite.damaged")).unwrap();
    assert_eq!(aside.len(), bytes.len() as u64);
    drop(store);
    // A file that is not a database.
    fs::write(&path, vec![b'x'; 10_000]).unwrap();
    let (store, note) = Store::open(&path, BYTES_MAX).unwrap();
    assert!(note.unwrap().contains("not a database") && sum(&store) == 0);
    drop(store);
    // A database of another program, or of a newer fairweir.
    for change in ["CREATE TABLE t (x); PRAGMA application_id = 7", "PRAGMA user_version = 2"] {
        Connection::open(&path).unwrap().execute_batch(change).unwrap();
        let before = fs::read(&path).unwrap();
        let refused = Store::open(&path, BYTES_MAX);
        assert!(matches!(refused, Err(StoreError::Foreign { .. })), "{change}");
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}

#[test]
fn links_and_directories_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.sqlite");
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, &path).unwrap();
    assert!(matches!(Store::open(&path, BYTES_MAX), Err(StoreError::Foreign { .. })));
    fs::remove_file(&path).unwrap();
    symlink(dir.path().join("nowhere"), &path).unwrap();
    assert!(Store::open(&path, BYTES_MAX).is_err());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(Store::open(&path, BYTES_MAX), Err(StoreError::Foreign { .. })));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    // A link at the path of the log is not followed either.
    fs::remove_dir(&path).unwrap();
    symlink(&victim, dir.path().join("history.sqlite-wal")).unwrap();
    let _ = Store::open(&path, BYTES_MAX);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}
