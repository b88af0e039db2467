//! Constants that the environment changes: FAIRWEIR_MUTANT=NAME=PERCENT.

use std::env;

use crate::units::{Bytes, Rate, Span};

/// A value that can be changed by a percentage of itself.
pub trait Change: Copy {
    /// The value changed by `percent` %, or by one where that rounds to nothing.
    fn changed(self, percent: i128) -> Self;
}

fn integer(value: i128, percent: i128) -> i128 {
    let change = value * percent / 100;
    value + if change == 0 { percent.signum() } else { change }
}

macro_rules! integers {
    ($($t:ty)*) => {
        $(impl Change for $t {
            fn changed(self, percent: i128) -> $t {
                integer(self as i128, percent) as $t
            }
        })*
    };
}

integers!(u32 u64 u128 usize i64);

impl Change for Rate {
    fn changed(self, percent: i128) -> Rate {
        Rate::bps(self.as_bps().changed(percent))
    }
}

impl Change for Bytes {
    fn changed(self, percent: i128) -> Bytes {
        Bytes::new(self.as_u64().changed(percent))
    }
}

impl Change for Span {
    fn changed(self, percent: i128) -> Span {
        Span::nanos(self.as_nanos().changed(percent))
    }
}

/// The value of a constant in this process.
pub fn value<T: Change>(name: &str, value: T) -> T {
    let mutant = env::var("FAIRWEIR_MUTANT").unwrap_or_default();
    match mutant.split_once('=') {
        Some((of, percent)) if of == name => {
            value.changed(percent.parse().expect("a whole number of percent"))
        }
        _ => value,
    }
}
