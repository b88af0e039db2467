//! The receive buffer of a connection that is read at a limited rate.
//!
//! The kernel's autotuning fills any buffer with data: megabytes that the sender regards as delivered
//! and that are seconds old when the rate falls. A buffer of twice what the rate passes in a round trip
//! holds one round trip of data, which keeps the reader busy, and leaves room for one in flight.

use crate::units::{Bytes, Rate, Span};

/// The largest buffer of a connection: 1 Gbit/s at 64 ms.
pub const BUFFER_MAX: Bytes = Bytes::new(16 << 20);

/// Segments for which there is always room: with less, delayed acknowledgements stop the sender.
const SEGMENTS_MIN: u64 = 4;

/// Segments in addition to the two round trips: one that is being read, and one that waits for the next.
const SEGMENTS_MORE: u64 = 2;

/// The buffer for a connection that is read at `rate`: 2·R·RTT and two segments, at least four segments,
/// at most [`BUFFER_MAX`].
pub fn buffer_target(rate: Rate, rtt: Span, mss: Bytes) -> Bytes {
    let target = (rate * rtt) * 2 + mss * SEGMENTS_MORE;
    target.max(mss * SEGMENTS_MIN).min(BUFFER_MAX)
}

/// The size to set, if `target` differs from the buffer `now` by more than a tenth.
pub fn follow(now: Option<Bytes>, target: Bytes) -> Option<Bytes> {
    let Some(now) = now else { return Some(target) };
    let off = target.as_u64().abs_diff(now.as_u64());
    (off > now.as_u64() / 10).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: Bytes = Bytes::new(1_448);

    #[test]
    fn the_target_is_twice_the_bandwidth_delay_product_within_its_bounds() {
        let target = |rate, rtt| buffer_target(rate, Span::millis(rtt), MSS).as_u64();
        assert_eq!(target(Rate::mbit(30), 80), 600_000 + 2 * 1_448);
        assert_eq!(target(Rate::kbit(500), 10), 4 * 1_448);
        assert_eq!(target(Rate::bps(u64::MAX), 1_000), BUFFER_MAX.as_u64());
    }

    #[test]
    fn small_changes_are_not_followed() {
        let now = Some(Bytes::new(10_000));
        assert_eq!(follow(None, MSS), Some(MSS));
        assert_eq!(follow(now, Bytes::new(10_999)), None);
        assert_eq!(follow(now, Bytes::new(9_001)), None);
        assert_eq!(follow(now, Bytes::new(11_001)), Some(Bytes::new(11_001)));
        assert_eq!(follow(now, Bytes::new(8_999)), Some(Bytes::new(8_999)));
    }

    /// Appendix G as a fluid model in steps of 1 ms: a sender that always has data sends a window per
    /// round trip; the proxy drains at `rate`. Returns the window, the buffered bytes and the fill rate at the end.
    fn play(rate: Rate, rtt: Span, is_signed: bool) -> (f64, f64, f64) {
        let step = 1e-3;
        let rtt_s = rtt.as_secs_f64();
        let drain = rate.as_bps() as f64 / 8.0;
        let buffer = buffer_target(rate, rtt, MSS).as_u64() as f64;
        let mut windows = vec![buffer; (rtt_s / step) as usize];
        let (mut window, mut fill) = (buffer, 0.0);
        for t in 0..60_000 {
            let oldest = t % windows.len();
            fill = windows[oldest] / rtt_s;
            windows[oldest] = window;
            let parked = buffer - window;
            let drained = drain.min(parked / step + fill);
            let change = (drained - fill) * step;
            window = (window + if is_signed { change } else { change.max(0.0) }).min(buffer);
        }
        (window, buffer - window, fill)
    }

    #[test]
    fn the_senders_rate_becomes_the_rate_of_reading() {
        for (rate, rtt) in [(Rate::mbit(1), 100), (Rate::mbit(30), 80), (Rate::mbit(100), 20)] {
            let rtt = Span::millis(rtt);
            let (window, parked, fill) = play(rate, rtt, true);
            let wanted = (rate * rtt).as_u64() as f64;
            assert!((fill * 8.0 / rate.as_bps() as f64 - 1.0).abs() < 0.01, "{rate}: {fill}");
            assert!((window / wanted - 1.0).abs() < 0.01, "{rate}: window {window}");
            let parked = parked - 2.0 * 1_448.0;
            assert!((parked / wanted - 1.0).abs() < 0.01, "{rate}: parked {parked}");
            // With the printed formula the window never shrinks: the sender fills twice as fast for ever.
            let (_, _, printed) = play(rate, rtt, false);
            assert!(printed * 8.0 > 1.9 * rate.as_bps() as f64, "{rate}: {printed}");
        }
    }
}
