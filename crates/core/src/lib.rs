//! Every algorithm of fairweir, one module per job.
//!
//! Nothing here reads a clock, draws a random number or touches the outside world: time and
//! measurements are passed in, decisions come out as data, and the same input gives exactly the same
//! output.
//!
//! | module | its job |
//! |---|---|
//! | [`units`] | rates, volumes and time as types |
//! | [`backoff`], [`streak`], [`hash`] | pauses that grow, counts in a row, a hash that stays the same |
//! | [`share`] | weighted max-min fair division, the one allocation routine |
//! | [`suggest`] | weights that would have helped, from what was observed |
//! | [`packet`], [`host_name`] | words of packet headers and names of hosts, as types |
//! | [`policy`] | what the user asks for: flow groups, weights, matches |
//! | [`receiver`] | control loops that decide class rates from what arrives |
//! | [`probe`] | when a probe of the access link asks, and the fate of its requests |
//! | [`phantom`] | rate limits with rich policies at a policer's cost |
//! | [`window`] | receive windows that share a link and bound its queue |
//! | [`lease`] | which device has which name, from what DHCP says in the LAN |
//! | [`lease_file`] | which device has which address, from what a DHCP server writes |
//! | [`radius`] | which user has which address, from what access servers report |
//! | [`sites`] | to which site a connection goes, from what is seen on the wire |
//! | [`recognition`] | what a device is, from what passes the gateway |
//! | [`market`] | credits that households spend on guaranteed rates, and how they decide |
//! | [`relay`] | rates of connections held by reading slowly |
//! | [`upload`] | how much may leave, so that groups share an uplink whose queue stays empty |
//! | [`agreement`] | a divider before the queue divides by the weights of the hosts behind it |
//! | [`delegate`] | congestion signals of one connection that others answer, so that it holds a rate |
#![forbid(unsafe_code)]

pub mod agreement;
pub mod backoff;
pub mod calendar;
pub mod delegate;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod hash;
pub mod host_name;
pub mod lease;
pub mod lease_file;
pub mod market;
pub mod packet;
pub mod phantom;
pub mod policy;
pub mod probe;
pub mod radius;
pub mod receiver;
pub mod recognition;
pub mod relay;
pub mod share;
pub mod sites;
pub mod streak;
pub mod suggest;
pub mod units;
pub mod upload;
pub mod window;
