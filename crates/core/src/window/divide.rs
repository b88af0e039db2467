//! How a group's share is divided among its connections.

use super::Class;
use crate::share::{Entry, Weight, fair};
use crate::units::Rate;

/// A connection that takes part in the division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its weight relative to the others.
    pub weight: Weight,
    /// Its class.
    pub class: Class,
    /// The rate that it would use; `None` if that is unlimited or unknown.
    pub demand: Option<Rate>,
    /// The rate that it gets with the smallest window ([`super::floor_rate`]).
    pub floor: Rate,
}

/// Splits a group's `share` among its connections, in input order.
///
/// Interactive and short connections, and if there are no short ones also the long ones, share max-min
/// fairly by weight and demand. Beside a short one the long ones get what their smallest windows let
/// through, plus what the others leave. Idle ones get nothing; their smallest windows do no harm, since
/// they stay empty. The parts sum to min(share, Σ demands of connections that are not idle).
///
/// Source: Spring et al. §IV-C, where each of N connections gets 1/N of the link, whatever it needs.
pub fn divide(share: Rate, members: &[Member]) -> Vec<Rate> {
    let has_short = members.iter().any(|m| m.class == Class::Short);
    let first = entries(members, |member| match member.class {
        Class::Idle => Some(Rate::ZERO),
        Class::Long if has_short => Some(least(member)),
        Class::Interactive | Class::Short | Class::Long => member.demand,
    });
    let parts = fair(share, &first);
    if !has_short || parts.iter().copied().sum::<Rate>() == share {
        return parts;
    }
    // All others have what they want, so the rest goes to the long connections.
    let is_long = |at: usize| members[at].class == Class::Long;
    let taken: Rate = (0..parts.len()).filter(|&at| !is_long(at)).map(|at| parts[at]).sum();
    let second = entries(members, |member| match member.class {
        Class::Long => member.demand,
        Class::Interactive | Class::Short | Class::Idle => Some(Rate::ZERO),
    });
    let of_long = fair(share.saturating_sub(taken), &second);
    (0..parts.len()).map(|at| if is_long(at) { of_long[at] } else { parts[at] }).collect()
}

/// The part of its floor that a connection would use while it is held back.
fn least(member: &Member) -> Rate {
    member.demand.map_or(member.floor, |demand| demand.min(member.floor))
}

fn entries(members: &[Member], demand: impl Fn(&Member) -> Option<Rate>) -> Vec<Entry> {
    members.iter().map(|m| Entry { weight: m.weight, demand: demand(m) }).collect()
}
