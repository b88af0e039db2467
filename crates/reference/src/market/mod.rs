//! Optima and equilibria of the credit market, to compare with the results of agents.
//!
//! | module | contains |
//! |---|---|
//! | [`equilibrium`] | rounds of best responses until no household wants to change |
//! | [`optimum`] | the spends that maximise the sum of all utilities |
//! | [`even`] | the same for the rule that divides the rest evenly |
//! | [`scenario`] | the paper's estimate of what the others will spend (Algorithm 2) |
//!
//! Source: Mind Your Own Bandwidth, §III and §VI, appendices A to F (docs/research/papers/myob.md).

pub mod equilibrium;
pub mod even;
pub mod optimum;
pub mod scenario;

mod dense;

#[cfg(test)]
mod goldens;
