//! Rates, volumes and time as types, so that no number needs a comment about its unit.
//!
//! All are unsigned integers inside: [`Rate`] in bit/s, [`Bytes`] in bytes, [`Time`] and [`Span`]
//! in nanoseconds. Arithmetic saturates at both ends instead of wrapping: a difference that would
//! be negative is zero. Text is as in tc(8): `30mbit`, `500kbit`, `150kB`, `40ms`; it is read by
//! [`FromStr`] and written by [`Display`](fmt::Display), which rounds to three decimals.
//!
//! serde uses the integer, in both directions, so what is read is exactly what was written: bit/s,
//! bytes and nanoseconds. Field names say the unit (`capacity_bps`, `value_ns`).
//!
//! All rates that fairweir reports count L2 bytes (14 of Ethernet included).

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

mod part;

pub use part::Part;

/// A rate in bit/s. serde form: an integer in bit/s.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rate(u64);

/// A volume in bytes. serde form: an integer in bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bytes(u64);

/// An instant in nanoseconds since an epoch that the caller chose. serde form: an integer in ns.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(u64);

/// A length of time in nanoseconds. serde form: an integer in ns.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Span(u64);

impl Rate {
    /// No rate at all.
    pub const ZERO: Rate = Rate(0);
    /// More than any link carries.
    pub const MAX: Rate = Rate(u64::MAX);

    /// `n` bit/s.
    pub const fn bps(n: u64) -> Rate {
        Rate(n)
    }

    /// `n` kbit/s (thousands, as in tc).
    pub const fn kbit(n: u64) -> Rate {
        Rate(n.saturating_mul(1_000))
    }

    /// `n` Mbit/s (millions, as in tc).
    pub const fn mbit(n: u64) -> Rate {
        Rate(n.saturating_mul(1_000_000))
    }

    /// The rate in bit/s.
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// The rate in Mbit/s, for printing and estimators.
    pub fn as_mbit_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The rate in bytes/s, rounded down: what the kernel's interfaces want.
    pub const fn bytes_per_second_floor(self) -> u64 {
        self.0 / 8
    }

    /// `numerator / denominator` of this rate, rounded down.
    ///
    /// # Panics
    /// If `denominator` is zero.
    pub const fn scale(self, numerator: u64, denominator: u64) -> Rate {
        assert!(denominator > 0, "a rate is scaled by a fraction with a positive denominator");
        let scaled = self.0 as u128 * numerator as u128 / denominator as u128;
        Rate(if scaled > u64::MAX as u128 { u64::MAX } else { scaled as u64 })
    }

    /// The rate at which `volume` passes in `span`, rounded down; zero if the span is.
    pub const fn from_volume(volume: Bytes, span: Span) -> Rate {
        if span.0 == 0 {
            return Rate::ZERO;
        }
        let bps = volume.0 as u128 * 8_000_000_000 / span.0 as u128;
        Rate(if bps > u64::MAX as u128 { u64::MAX } else { bps as u64 })
    }

    /// How long `volume` takes at this rate, rounded up; [`Span::MAX`] if the rate is zero.
    pub const fn time_to_send(self, volume: Bytes) -> Span {
        if self.0 == 0 {
            return Span::MAX;
        }
        let ns = (volume.0 as u128 * 8_000_000_000).div_ceil(self.0 as u128);
        Span(if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 })
    }

    /// `self - other`, or zero if that would be negative.
    pub const fn saturating_sub(self, other: Rate) -> Rate {
        Rate(self.0.saturating_sub(other.0))
    }

    /// An exponentially weighted moving average with this as the last value: `newest` counts for one part in
    /// `parts`.
    ///
    /// # Panics
    /// If `parts` is 0.
    pub fn smoothed(self, newest: Rate, parts: u64) -> Rate {
        self.scale(parts - 1, parts) + newest / parts
    }
}

impl Bytes {
    /// Nothing.
    pub const ZERO: Bytes = Bytes(0);

    /// `n` bytes.
    pub const fn new(n: u64) -> Bytes {
        Bytes(n)
    }

    /// `n` kB (thousands).
    pub const fn kb(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1_000))
    }

    /// The volume in bytes.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// `self - other`, or zero if that would be negative.
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl Time {
    /// The caller's epoch.
    pub const ZERO: Time = Time(0);

    /// `ns` nanoseconds after the epoch.
    pub const fn from_nanos(ns: u64) -> Time {
        Time(ns)
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the epoch, for printing.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The time from `earlier` to `self`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);
    /// As good as for ever.
    pub const MAX: Span = Span(u64::MAX);

    /// `n` nanoseconds.
    pub const fn nanos(n: u64) -> Span {
        Span(n)
    }

    /// `n` microseconds.
    pub const fn micros(n: u64) -> Span {
        Span(n.saturating_mul(1_000))
    }

    /// `n` milliseconds.
    pub const fn millis(n: u64) -> Span {
        Span(n.saturating_mul(1_000_000))
    }

    /// `n` seconds.
    pub const fn secs(n: u64) -> Span {
        Span(n.saturating_mul(1_000_000_000))
    }

    /// The span in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `self - other`, or zero if that would be negative.
    pub const fn saturating_sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }

    /// The span in seconds, for printing and estimators.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The span in milliseconds, for printing.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl From<Span> for std::time::Duration {
    fn from(span: Span) -> Self {
        std::time::Duration::from_nanos(span.0)
    }
}

macro_rules! saturating_sum {
    ($($t:ident),*) => {$(
        impl Add for $t {
            type Output = $t;
            fn add(self, other: $t) -> $t { $t(self.0.saturating_add(other.0)) }
        }
        impl AddAssign for $t {
            fn add_assign(&mut self, other: $t) { *self = *self + other; }
        }
        impl Sum for $t {
            fn sum<I: Iterator<Item = $t>>(parts: I) -> $t { parts.fold($t(0), Add::add) }
        }
        impl Mul<u64> for $t {
            type Output = $t;
            fn mul(self, factor: u64) -> $t { $t(self.0.saturating_mul(factor)) }
        }
        impl Div<u64> for $t {
            type Output = $t;
            fn div(self, divisor: u64) -> $t { $t(self.0 / divisor) }
        }
    )*};
}
saturating_sum!(Rate, Bytes, Span);

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Time {
    type Output = Time;
    fn sub(self, span: Span) -> Time {
        Time(self.0.saturating_sub(span.0))
    }
}

/// The volume that passes in a span, rounded down to whole bytes.
impl Mul<Span> for Rate {
    type Output = Bytes;
    fn mul(self, span: Span) -> Bytes {
        let volume = self.0 as u128 * span.0 as u128 / 8_000_000_000;
        Bytes(volume.min(u64::MAX as u128) as u64)
    }
}

// ------------------------------------------------------------------------------------------------
// Text

/// Why a text is not a rate, a volume or a span; says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseUnitError(String);

impl FromStr for Rate {
    type Err = ParseUnitError;

    /// Reads `30mbit`, `2.5mbit`, `500kbit`, `1gbit`, `64000bit`; tc's `mbps` is refused, since it
    /// means megabytes there and megabits everywhere else.
    fn from_str(text: &str) -> Result<Rate, ParseUnitError> {
        let (number, unit) = split_number(text, "a rate such as 30mbit, 2.5mbit or 500kbit")?;
        let scale = match unit.to_ascii_lowercase().as_str() {
            "bit" => 1,
            "kbit" => 1_000,
            "mbit" => 1_000_000,
            "gbit" => 1_000_000_000,
            "bps" | "kbps" | "mbps" | "gbps" => {
                return Err(ParseUnitError(format!(
                    "`{text}` is ambiguous: tc reads `{unit}` as bytes per second, most people as \
                     bits; write bits as `{}bit`",
                    &text[..text.len() - 3].trim()
                )));
            }
            "" => {
                return Err(ParseUnitError(format!(
                    "`{text}` has no unit; write bits per second as `{text}bit`, `{text}kbit` or \
                     `{text}mbit`"
                )));
            }
            _ => return Err(unknown_unit(text, unit, "bit, kbit, mbit or gbit")),
        };
        scaled(text, number, scale).map(Rate)
    }
}

impl FromStr for Bytes {
    type Err = ParseUnitError;

    /// Reads `1500B`, `150kB`, `2MB` (thousands) and `64KiB`, `1MiB` (powers of two).
    fn from_str(text: &str) -> Result<Bytes, ParseUnitError> {
        let (number, unit) = split_number(text, "a volume such as 150kB or 1500B")?;
        let scale = match unit.to_ascii_lowercase().as_str() {
            "b" => 1,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            _ => return Err(unknown_unit(text, unit, "B, kB, MB, GB, TB, KiB, MiB or GiB")),
        };
        scaled(text, number, scale).map(Bytes)
    }
}

impl FromStr for Span {
    type Err = ParseUnitError;

    /// Reads `40ms`, `1.5s`, `200us`, `10min`, `2h`.
    fn from_str(text: &str) -> Result<Span, ParseUnitError> {
        let (number, unit) = split_number(text, "a time such as 40ms, 1.5s or 10min")?;
        let scale = match unit {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(unknown_unit(text, unit, "ns, us, ms, s, min or h")),
        };
        scaled(text, number, scale).map(Span)
    }
}

/// Prints so that it can be read back: whole `bit`s, or up to three decimals of a larger unit.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1_000, "kbit"), (1, "bit")];
        f.pad(&rounded(self.0, &units))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"), (1, "B")];
        f.pad(&rounded(self.0, &units))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
        f.pad(&rounded(self.0, &units))
    }
}

/// Splits `2.5mbit` into `2.5` and `mbit`; the number has digits and at most one point.
fn split_number<'t>(text: &'t str, wanted: &str) -> Result<(&'t str, &'t str), ParseUnitError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let points = number.matches('.').count();
    if number.len() == points || points > 1 {
        return Err(ParseUnitError(format!("`{text}` is not {wanted}")));
    }
    Ok((number, unit.trim()))
}

fn unknown_unit(text: &str, unit: &str, known: &str) -> ParseUnitError {
    if unit.is_empty() {
        return ParseUnitError(format!("`{text}` has no unit: {known}"));
    }
    ParseUnitError(format!("`{text}` has the unknown unit `{unit}`: it must be {known}"))
}

/// `number * scale`, exactly; decimals beyond the unit's resolution are cut off.
fn scaled(text: &str, number: &str, scale: u64) -> Result<u64, ParseUnitError> {
    let too_large = || ParseUnitError(format!("`{text}` is too large"));
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let mut value: u128 = 0;
    for digit in whole.bytes() {
        value = value.saturating_mul(10).saturating_add(u128::from(digit - b'0'));
    }
    value = value.saturating_mul(u128::from(scale));
    let mut place = u128::from(scale);
    let mut fraction: u128 = 0;
    let mut divisor: u128 = 1;
    for digit in decimals.bytes().take(18) {
        divisor *= 10;
        fraction = fraction * 10 + u128::from(digit - b'0');
    }
    place = place * fraction / divisor;
    u64::try_from(value.saturating_add(place)).map_err(|_| too_large())
}

/// Three decimals of the largest unit that is not above the value, without trailing zeros.
fn rounded(value: u64, units: &[(u64, &str)]) -> String {
    let &(scale, unit) = units
        .iter()
        .find(|&&(scale, _)| value >= scale)
        .or(units.last())
        .expect("invariant: every unit table has an entry");
    if scale == 1 {
        return format!("{value}{unit}");
    }
    let text = format!("{:.3}", value as f64 / scale as f64);
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_times_span_is_a_volume() {
        assert_eq!(Rate::mbit(20) * Span::millis(50), Bytes::kb(125));
        assert_eq!(Rate::from_volume(Bytes::kb(125), Span::millis(50)), Rate::mbit(20));
        assert_eq!(Rate::mbit(20).time_to_send(Bytes::kb(125)), Span::millis(50));
    }

    #[test]
    fn text_is_read_as_tc_reads_it() {
        for (text, rate) in [
            ("30mbit", Rate::mbit(30)),
            ("2.5Mbit", Rate::kbit(2_500)),
            ("28.8kbit", Rate::bps(28_800)),
            ("1gbit", Rate::mbit(1_000)),
            ("64000bit", Rate::kbit(64)),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
        assert_eq!("150kB".parse(), Ok(Bytes::kb(150)));
        assert_eq!("1.5s".parse(), Ok(Span::millis(1_500)));
    }

    #[test]
    fn bad_text_is_refused_with_what_would_be_right() {
        let why = |text: &str| text.parse::<Rate>().unwrap_err().to_string();
        assert!(why("30mbps").contains("`30mbit`"), "{}", why("30mbps"));
        assert!(why("30").contains("no unit"));
        assert!(why("fast").contains("not a rate"));
        assert!(why("-3mbit").contains("not a rate"));
        assert!(why("1.2.3mbit").contains("not a rate"));
        assert!(why(".mbit").contains("not a rate"));
        assert!(why("99999999999999999999gbit").contains("too large"));
        assert!("5 parsecs".parse::<Span>().unwrap_err().to_string().contains("parsecs"));
    }

    proptest::proptest! {
        #[test]
        fn printed_rates_read_back_within_a_thousandth(bps in 0u64..1_000_000_000_000) {
            let back: Rate = Rate::bps(bps).to_string().parse().unwrap();
            proptest::prop_assert!(back.as_bps().abs_diff(bps) <= bps / 1_000 + 1);
        }

        #[test]
        fn units_serialise_as_integers_and_come_back_exactly(n in proptest::prelude::any::<u64>()) {
            use serde_json::{from_value, json, to_value};
            proptest::prop_assert_eq!(to_value(Rate::bps(n)).unwrap(), json!(n));
            proptest::prop_assert_eq!(from_value::<Rate>(json!(n)).unwrap(), Rate::bps(n));
            proptest::prop_assert_eq!(to_value(Bytes::new(n)).unwrap(), json!(n));
            proptest::prop_assert_eq!(from_value::<Bytes>(json!(n)).unwrap(), Bytes::new(n));
            proptest::prop_assert_eq!(to_value(Span::nanos(n)).unwrap(), json!(n));
            proptest::prop_assert_eq!(from_value::<Span>(json!(n)).unwrap(), Span::nanos(n));
            proptest::prop_assert_eq!(to_value(Time::from_nanos(n)).unwrap(), json!(n));
            proptest::prop_assert_eq!(from_value::<Time>(json!(n)).unwrap(), Time::from_nanos(n));
        }

        #[test]
        fn any_text_gives_a_value_or_an_error(text in ".{0,20}") {
            let _ = (text.parse::<Rate>(), text.parse::<Bytes>(), text.parse::<Span>());
        }
    }
}
