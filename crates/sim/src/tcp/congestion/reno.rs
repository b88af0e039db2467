//! NewReno: slow start, then a packet per round; a loss halves the window. Source: RFC 5681, 6582.
//! It counts packets acknowledged, not ACKs (RFC 3465 without its limit, as in Linux).

use super::{WINDOW_AFTER_LOSS_MIN, Window};

/// Grows the window for `acked` acknowledged packets.
pub(super) fn grow(window: &mut Window, acked: u32) {
    let mut rest = acked;
    if window.is_in_slow_start() {
        rest = window.slow_start(acked);
    }
    if rest > 0 {
        window.increase(window.cwnd, rest);
    }
}

/// Half the window, and not half the packets in flight as in RFC 5681 (4): Linux's growth stops
/// while the window is not used, with the same effect.
pub(super) fn ssthresh(cwnd: u32) -> u32 {
    (cwnd / 2).max(WINDOW_AFTER_LOSS_MIN)
}
