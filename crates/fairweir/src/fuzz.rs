//! What is fuzzed: properties of the page's requests and of the rows of its history.

use crate::page::fuzz::{history, requests};

#[cfg(test)]
#[path = "../../../fuzz/corpus.rs"]
mod corpus;

/// A name, and what is done with an input: it panics if a property does not hold.
pub type Target = (&'static str, fn(&[u8]));

/// The readers of this crate.
pub const TARGETS: &[Target] = &[("history", history), ("requests", requests)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_were_found_are_replayed() {
        corpus::replay("fairweir", TARGETS);
    }
}
