//! Comparisons for fairweir's algorithms: algorithms as their papers print them, baselines and
//! optima. No daemon runs any of it.
//!
//! | module | contains |
//! |---|---|
//! | [`CrabPrinted`] | CRAB's control loop as printed |
//! | [`phantom`] | the policers and the shaper that BC-PQP is compared with |
//! | [`market`] | optima and equilibria of the credit market, with every future known |
//!
//! As in `fairweir_core`, time and measurements are passed in, and the same input gives the same
//! output to the bit.
#![forbid(unsafe_code)]

pub mod market;
pub mod phantom;

mod crab_printed;

pub use crab_printed::CrabPrinted;
