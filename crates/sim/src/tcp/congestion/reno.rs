//! NewReno: slow start, then a packet per round; half of it at a loss. Source: RFC 5681, 6582; what
//! counts is packets acknowledged, not ACKs (RFC 3465 without its limit, as in Linux).

use super::{WINDOW_AFTER_LOSS_MIN, Window};

/// Grows the window by what was acknowledged.
pub(super) fn grow(window: &mut Window, acked: u32) {
    let mut rest = acked;
    if window.is_in_slow_start() {
        rest = window.slow_start(acked);
    }
    if rest > 0 {
        window.increase(window.cwnd, rest);
    }
}

/// Half the window. Of the window, not of what is in flight as RFC 5681 (4) says: Linux's growth
/// stops while the window is not used, to the same end.
pub(super) fn ssthresh(cwnd: u32) -> u32 {
    (cwnd / 2).max(WINDOW_AFTER_LOSS_MIN)
}
