//! Fuzz targets of this crate: properties of the page's requests and of the rows of its history.

use crate::page::fuzz::{history, requests};

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

/// The name of a target, and its function, which panics if a property does not hold for the input.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of this crate.
pub const TARGETS: &[Target] = &[("history", history), ("requests", requests)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_were_found_are_replayed() {
        corpus::replay("fairweir", TARGETS);
    }
}
