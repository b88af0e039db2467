//! Baselines for BC-PQP: the policers and the shaper that an operator has today.
//!
//! | module | keeps the rate | shares it | stores packets |
//! |---|---|---|---|
//! | [`token_bucket`] | as its bucket's size allows | no | no |
//! | [`fair_policer`] | as its bucket's size allows | equally | no |
//! | [`pqp`] | with bursts of its queues' sizes | by weight | no |
//! | [`printed`] | with bursts of 3/2 of its queues' shares | by weight | no |
//! | [`shaper`] | exactly | by weight | yes |
//!
//! Each is as simple as its source says and as fast as that allows: a comparison with a slow
//! implementation would prove nothing. All arithmetic is integer.
//!
//! Source: BC-PQP §2, §3 and §6.1, and the sources that each module names.

use fairweir_core::phantom::UNIT_BITS;
use fairweir_core::units::{Bytes, Rate};

pub mod fair_policer;
mod fluid;
pub mod pqp;
pub mod printed;
pub mod shaper;
pub mod token_bucket;
mod wheel;

pub use fair_policer::FairPolicer;
pub use pqp::Pqp;
pub use printed::Printed;
pub use shaper::{Departure, ShaperSpec, Shapers};
pub use token_bucket::TokenBucket;

/// The most bytes of a packet or a bucket, so that there is room for the fraction.
const BYTES_MAX: u64 = (1 << (64 - UNIT_BITS)) - 1;

/// A rate in 2⁻²⁴ bytes per nanosecond, rounded down: 0.007 % at 1 Mbit/s.
fn per_nano(rate: Rate) -> u64 {
    let volume = (u128::from(rate.as_bps()) << UNIT_BITS) / 8_000_000_000;
    u64::try_from(volume).unwrap_or(u64::MAX)
}

/// A volume in 2⁻²⁴ bytes; volumes above [`BYTES_MAX`] are cut to that.
fn volume(bytes: Bytes) -> u64 {
    bytes.as_u64().min(BYTES_MAX) << UNIT_BITS
}

/// The indices of the bits that are set.
fn ones(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (set != 0).then_some(set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(index)
    })
}
