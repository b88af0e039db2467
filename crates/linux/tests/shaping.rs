//! Real TCP through the classes.

use std::time::{Duration, Instant};

use fairweir_core::units::{Bytes, Rate, Span};
use fairweir_linux::{Health, Mode};

use common::{Pair, allocation, policy, read_for};

mod common;

#[test]
fn a_class_limits_a_download_to_its_rate() {
    if !common::privileged() {
        return;
    }
    let pair = Pair::new(false);
    let policy = policy(&[("video", &["ip:192.0.2.2"])]);
    let mut host = pair.host(&policy, Mode::Shape);
    for mbit in [5, 40, 200] {
        host.apply(&allocation(&[Rate::mbit(mbit), Rate::mbit(1)])).unwrap();
        let mut stream = pair.download("192.0.2.2");
        read_for(&mut stream, Duration::from_millis(700));
        host.take_samples().unwrap();
        host.beat().unwrap();
        let (start, before) = (Instant::now(), common::sent_by(&pair.home, "ifb4wan"));
        read_for(&mut stream, Duration::from_millis(1_500));
        let after = common::sent_by(&pair.home, "ifb4wan");
        let span = Span::nanos(start.elapsed().as_nanos() as u64);
        let samples = host.take_samples().unwrap();
        let rate = Rate::from_volume(Bytes::new(after - before), span).as_mbit_f64();
        assert!((rate / mbit as f64 - 1.0).abs() < 0.05, "{rate} of {mbit} Mbit/s");
        let counted = Rate::from_volume(samples[0].received, span).as_mbit_f64();
        assert!((0.95..1.15).contains(&(counted / mbit as f64)), "counted {counted} of {mbit}");
        assert_eq!(host.health(), Health::Well);
    }
}
