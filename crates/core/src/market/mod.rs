//! Credits for the busy hour: households on a shared link spend virtual credits on guaranteed rates.
//!
//! Problem: at the busy hour an equal share serves no household well, and no household has a reason to wait.
//! Method: a fixed number of credits circulates among the households of a link, the *market*. In
//! each slot a household spends some of its balance, which the others receive, so saving now means a
//! higher rate later. The spends of a slot decide its rates.
//!
//! Terms: a *gateway* is a household's account; its *seat* is its index in the market. A *spend* is
//! what a gateway pays for a slot. The *price* of a slot is what one Mbit/s beyond the floor costs.
//!
//! | module | its job |
//! |---|---|
//! | [`ledger`] | credits in whole micro-credits: settlement, cap, joins and leaves, conserved to the unit |
//! | [`rates`] | the rates that the spends of a slot buy |
//! | [`utility`] | what a rate is worth to a household, by kind of use |
//! | [`division`] | a household's rate divided among kinds of use (level 2) |
//! | [`spending`] | a household's best response: what to spend in each slot to come (level 1) |
//! | [`agent`] | what a gateway learns from its past, and its bids |
//! | [`guarantee`] | the rate that an agent announces to the daemon that shapes at home; ends by itself |
//! | [`preferences`] | what a household wants, by kind of use and time of the week |
//!
//! Source: Mind Your Own Bandwidth, §II, §III, §VI, appendices A to F. Deviations, and which of the paper's
//! propositions hold: docs/research/papers/myob.md. Integers decide credits and rates; `f64` is only used for
//! the households' beliefs and plans.

pub mod agent;
pub mod division;
pub mod guarantee;
pub mod ledger;
pub mod preferences;
pub mod rates;
pub mod spending;
pub mod utility;

mod root;
