use super::*;

/// Two flows, the second from 5 s on, limited to 8 Mbit/s (50 kB in 50 ms); settling takes 2 s.
fn scenario() -> Scenario {
    let text = "version = 1\nname = \"x\"\nduration = \"10s\"\nsettle = \"2s\"\n[link]\n\
        rate = \"99mbit\"\n[[group]]\nname = \"a\"\nweight = 1\n[[flow]]\ngroup = \"a\"\n\
        kind = \"bulk\"\nstart = \"1s\"\n[[flow]]\ngroup = \"a\"\nkind = \"bulk\"\nstart = \"5s\"\n\
        [[police]]\nname = \"p\"\nrate = \"8mbit\"\n";
    Scenario::parse(text, "x").unwrap()
}

/// The results if the flows pass `bytes` in the bin that begins at a time in ms.
fn judged(bytes: impl Fn(u64) -> [u64; 2]) -> Policed {
    let scenario = scenario();
    let mut samples = PoliceSamples::new(&scenario, 0);
    for ms in (0..10_000).step_by(50) {
        let at = Time::ZERO + Span::millis(ms);
        for (member, bytes) in bytes(ms).into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
            samples.record_pass(at, member, Bytes::new(bytes));
        }
    }
    samples.judge(&scenario)
}

#[test]
fn what_passes_at_the_rate_is_one() {
    let even = judged(|ms| match ms {
        0..1_000 => [0, 0],
        1_000..5_000 => [50_000, 0],
        _ => [25_000, 25_000],
    });
    assert_eq!((even.rate_ratio, even.jain), (Some(1.0), Some(0.973)), "{even:?}");
    assert_eq!(even.steady, Some(Windows { p99: 1.0, max: 1.0 }));
    assert_eq!(even.start_up, Some(Windows { p99: 1.0, max: 1.0 }));
    let rates: Vec<_> = even.flows.iter().map(|flow| flow.rate).collect();
    // The first flow is alone for two of its five steady seconds.
    assert_eq!(rates, [Some(Rate::bps(5_600_000)), Some(Rate::mbit(4))]);
}

#[test]
fn windows_and_spans_are_there_for_drawing() {
    let even = judged(|ms| if ms % 100 == 0 { [75_000, 25_000] } else { [0, 0] });
    assert_eq!(even.over_time.len(), 40);
    // Of five bins two or three have 100 kB, and the rate carries 50 kB in each of the five.
    assert_eq!((even.over_time[0], even.over_time[1]), (1.2, 0.8));
    assert_eq!(even.is_steady.iter().filter(|steady| **steady).count(), 8 + 12);
    assert_eq!(even.jains.len(), 20);
    assert!(even.jains.iter().all(|jain| *jain == 0.8), "3:1 in every window");
    assert_eq!(even.envelope[0], (0.05, 0.0, 2.0));
    assert_eq!(even.envelope[1], (0.1, 1.0, 1.0));
}

#[test]
fn a_burst_counts_where_it_is() {
    let burst = |at: u64| {
        judged(move |ms| match ms {
            0..1_000 => [0, 0],
            ms if ms == at => [250_000, 0],
            _ => [50_000, 0],
        })
    };
    let (early, late) = (burst(1_500), burst(4_000));
    // Four bins of 50 kB and one of 250 kB are 1.8 times what the rate carries in 250 ms.
    assert_eq!(early.start_up.unwrap().max, 1.8);
    assert_eq!(early.steady.unwrap().max, 1.0);
    assert_eq!((late.start_up.unwrap().max, late.steady.unwrap().max), (1.0, 1.8));
}

#[test]
fn losses_are_told_for_the_whole_run_and_for_the_steady_time() {
    let scenario = scenario();
    let mut samples = PoliceSamples::new(&scenario, 0);
    let at = |ms| Time::ZERO + Span::millis(ms);
    for ms in (1_000..10_000).step_by(100) {
        samples.record_pass(at(ms), 0, Bytes::new(1_000));
    }
    samples.record_drop(at(1_100), 0, Bytes::new(1_000));
    samples.record_mark(at(8_000), 1, Bytes::new(1_000));
    samples.record_drop(at(8_000), 1, Bytes::new(1_000));
    samples.record_drop(at(20_000), 1, Bytes::new(1_000));
    let judged = samples.judge(&scenario);
    assert_eq!((judged.passed, judged.marked, judged.dropped), (91, 1, 2));
    assert_eq!(judged.loss, Some(0.021505));
    // Steady are 3 to 5 s and 7 to 10 s.
    assert_eq!(judged.loss_steady, Some(rounded(1.0 / 52.0, 6)));
    assert_eq!(judged.flows[1].loss, Some(0.5));
}
