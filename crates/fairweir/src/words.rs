//! Formats values and errors for people.

use std::io;

use fairweir_config::plain;
use fairweir_core::units::Rate;

/// A rate to two decimals, always in Mbit/s, so that columns can be compared.
pub(crate) fn mbit(bps: u64) -> String {
    format!("{:.2} Mbit/s", Rate::bps(bps).as_mbit_f64())
}

/// The chain of causes on one line. A cause that the error above it already repeats is left out.
pub(crate) fn chained(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |text, cause| {
        let raw = cause.to_string();
        let shown = cause.downcast_ref::<io::Error>().map_or_else(|| raw.clone(), plain);
        match text.contains(&raw) || text.contains(&shown) {
            true => text,
            false => format!("{text}: {shown}"),
        }
    })
}

/// A number and its noun: `1 subscriber`, `2 subscribers`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A duration, rounded to minutes above an hour.
pub(crate) fn lasting(seconds: u64) -> String {
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, min, 0) => format!("{min} min"),
        (0, min, s) => format!("{min} min {s} s"),
        (h, 0, _) => format!("{h} h"),
        (h, min, _) => format!("{h} h {min} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|n| count(n, "group")), ["0 groups", "1 group", "2 groups"]);
    }
}
