//! A token bucket that keeps its tokens as time.

use fairweir_core::receiver::ClassSpec;
use fairweir_core::units::{Rate, Time};

use super::turns::NEVER;

/// Tokens that arrive at a rate and are spent on packets.
///
/// As in the kernel, tokens are counted as time at the rate, not in bytes, so a change of the rate
/// keeps the duration of a debt. The bucket stores the instant at which there are neither tokens
/// nor debt: tokens are the time since then, up to `depth`, and a debt is the time until then. Thus
/// a bucket needs no refill.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// That instant in nanoseconds; it may lie before the epoch.
    ready: i64,
    /// The part of costs below a nanosecond, carried over so that it is never lost.
    fraction: u64,
    /// The most tokens that are saved up, in nanoseconds.
    depth: i64,
    /// Cost of a byte, in [`FRACTIONS`] of a nanosecond.
    byte_cost: u64,
}

impl Bucket {
    /// A full bucket, from which nothing is taken before it has a rate.
    pub(super) fn full() -> Bucket {
        Bucket { ready: FULL, fraction: 0, depth: 0, byte_cost: 0 }
    }

    /// Changes rate and burst, and keeps tokens and debt.
    pub(super) fn set_rate(&mut self, rate: Rate) {
        let bps = rate.as_bps().max(1);
        self.byte_cost = (8_000_000_000 * FRACTIONS + bps / 2) / bps;
        let depth = rate.time_to_send(ClassSpec::burst(rate)).as_nanos();
        self.depth = i64::try_from(depth).unwrap_or(i64::MAX);
    }

    /// The instant from which on there is no debt.
    pub(super) fn ready(&self) -> i64 {
        self.ready
    }

    /// Takes the tokens for a packet, even if that makes a debt.
    pub(super) fn charge(&mut self, now: i64, bytes: u64) {
        let cost = bytes.saturating_mul(self.byte_cost).saturating_add(self.fraction);
        self.fraction = cost % FRACTIONS;
        let saved = self.ready.max(now.saturating_sub(self.depth));
        // The quotient has 44 bits.
        let ready = saved.saturating_add((cost / FRACTIONS) as i64);
        self.ready = ready.min(now.saturating_add(DEBT_MAX));
    }
}

/// Nanoseconds since the epoch, with a sign.
pub(super) fn nanos(at: Time) -> i64 {
    at.as_nanos().min(NEVER as u64 - 1) as i64
}

/// Parts of a nanosecond in which costs are counted: exact to 10⁻⁵ up to 34 Gbit/s.
const FRACTIONS: u64 = 1 << 20;
/// The instant of a bucket that has been full since before every epoch.
const FULL: i64 = i64::MIN / 2;
/// The longest debt: HTB forgives a debt of more than a minute.
const DEBT_MAX: i64 = 60_000_000_000;
