//! The output of a controller: commands for the enforcer, the decision, and its reasons.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::DelaySample;
use crate::share::Weight;
use crate::units::{Bytes, Rate, Time};

/// A command for the enforcer; of each kind, the command that was drained last applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Set the classes to these rates, in one batch.
    SetRates(Allocation),
    /// Let everything pass unshaped until the next `SetRates`.
    Release,
    /// Set the receive windows to these bounds, in one batch.
    SetWindows(Windows),
}

/// How far each connection's receive window may open: the desired state of the window enforcer.
///
/// An advertised window is never withdrawn: it shrinks as packets arrive, and grows
/// by one packet for each packet that arrives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// The connections with a bound; every other connection that was observed is free.
    pub connections: Vec<ConnectionWindow>,
    /// The bound with which a connection begins that was not observed yet, for each group in the
    /// policy's order; `None` means that there is no bound.
    pub initial: Vec<Option<Bytes>>,
}

impl Windows {
    /// No bounds, in a policy of `groups` groups.
    pub fn free(groups: usize) -> Windows {
        Windows { connections: Vec::new(), initial: vec![None; groups] }
    }
}

/// The bound of one connection's receive window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionWindow {
    /// The connection's identity, as in the observation.
    pub id: u64,
    /// The bound, in payload bytes.
    pub window: Bytes,
}

/// The rates of all classes: the desired state of the enforcer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// What all classes may carry together; `None` means that there is no bound.
    pub total: Option<Rate>,
    /// One for each group of the policy, in its order.
    pub classes: Vec<ClassRate>,
}

/// What one class may carry, in HTB's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRate {
    /// The rate that the class is guaranteed.
    pub rate: Rate,
    /// The rate that the class may reach by borrowing; equal to `rate` without borrowing.
    pub ceil: Rate,
    /// Order of borrowing: 0 is the highest priority, 7 the lowest.
    pub priority: u8,
    /// The class's weight in dividing what is borrowed among equal priorities.
    pub weight: Weight,
    /// What happens to packets that the class may not carry.
    pub excess: Excess,
}

/// What a class does with packets that it may not carry. They have crossed the access link already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Excess {
    /// They soon overflow the class's queue: losses tell the senders to slow down.
    Drop,
    /// They wait in the class's queue: receive windows bound how many there are.
    Delay,
}

/// What was decided in a tick, and why: the record that status, metrics and dashboard show.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The tick.
    pub at: Time,
    /// What was done.
    pub act: Act,
    /// What the controller believes the link carries; `None` while it does not know.
    #[serde(rename = "capacity_bps")]
    pub capacity: Option<Rate>,
    /// Whether anything is enforced; `false` while everything passes unshaped.
    pub enforcing: bool,
    /// What the access link's queue adds to the delay, if the controller knows.
    pub delay: Option<DelaySample>,
    /// One for each group of the policy, in its order.
    pub groups: Vec<GroupDecision>,
}

impl Decision {
    /// The decision that holds before the first tick.
    pub fn initial(groups: usize) -> Decision {
        Decision {
            at: Time::ZERO,
            act: Act::default(),
            capacity: None,
            enforcing: false,
            delay: None,
            groups: vec![GroupDecision::default(); groups],
        }
    }
}

/// What was decided for a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GroupDecision {
    /// Its rate in the last interval.
    #[serde(rename = "rate_bps")]
    pub rate: Rate,
    /// What it is believed to want at most; `None` is without a known end.
    #[serde(rename = "demand_bps")]
    pub demand: Option<Rate>,
    /// Its max-min fair share of the capacity by weight and demand.
    #[serde(rename = "share_bps")]
    pub share: Rate,
    /// What its class may carry; `None` while it is not throttled.
    #[serde(rename = "ceil_bps")]
    pub ceil: Option<Rate>,
    /// How it stands to its share.
    pub state: GroupState,
}

/// How a group stands to its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum GroupState {
    /// Nothing arrives, or never has.
    Idle,
    /// Not yet judged.
    #[default]
    Unknown,
    /// It had lent and wants it back.
    Growing,
    /// It is on its way to what it may: to lend from it now would stop it where it is.
    Rising,
    /// It uses all it may.
    Saturating,
    /// It would use more than its cap, or that of what it is in.
    Capped,
    /// It uses less than it may.
    NonSaturating,
    /// It lends what it does not use, and uses as much as it said.
    Lending,
    /// It keeps to its rate although its packets are dropped.
    Unresponsive,
}

impl GroupState {
    /// What a group with this demand wants of the link; `None` means that the demand is unlimited.
    pub(crate) fn wants(self, demand: Option<Rate>) -> Option<Rate> {
        demand.filter(|_| self != GroupState::Saturating)
    }
}

/// A few words for people.
impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GroupState::Idle => "idle",
            GroupState::Unknown => "unknown",
            GroupState::Growing => "growing",
            GroupState::Rising => "rising",
            GroupState::Saturating => "saturating",
            GroupState::Capped => "capped",
            GroupState::NonSaturating => "non saturating",
            GroupState::Lending => "lending",
            GroupState::Unresponsive => "unresponsive",
        })
    }
}

/// What a controller did in a tick, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Act {
    /// It only counts.
    Observe,
    /// It keeps to rates that were given, or to a bound.
    Hold,
    /// It does not know the capacity yet and lets everything pass.
    #[default]
    Bootstrap,
    /// It measures on, before it judges.
    Measure,
    /// It judged, and there is nothing to do, or nothing to conclude yet.
    Rest,
    /// It learned a first capacity.
    Learn {
        /// The first capacity.
        #[serde(rename = "to_bps")]
        to: Rate,
    },
    /// A group wants back what it lent.
    Reclaim {
        /// Index of the first such group.
        group: usize,
    },
    /// A group does not use its share, another one could: the one lends to the other.
    Lend {
        /// Index of the first group that lends.
        group: usize,
    },
    /// Less arrives than the link should carry, and neither loans nor demands explain it: the
    /// capacity fell.
    Decrease {
        /// Before.
        #[serde(rename = "from_bps")]
        from: Rate,
        /// After.
        #[serde(rename = "to_bps")]
        to: Rate,
    },
    /// A loan that only moved rate from the lender to the borrower was none: the capacity is lower
    /// than believed.
    UndoLoan {
        /// Before.
        #[serde(rename = "from_bps")]
        from: Rate,
        /// After.
        #[serde(rename = "to_bps")]
        to: Rate,
    },
    /// Some saturating groups get more than their shares for one window, to see whether more
    /// arrives.
    Raise {
        /// Index of the first of them.
        group: usize,
        /// How much more.
        #[serde(rename = "extra_bps")]
        extra: Rate,
    },
    /// The link was busy throughout, so what it carried is its capacity.
    Measured {
        /// Before.
        #[serde(rename = "from_bps")]
        from: Rate,
        /// After.
        #[serde(rename = "to_bps")]
        to: Rate,
    },
    /// The windows are narrowed for a moment, so that the queue empties and shows the delay without
    /// it.
    Drain,
    /// Packets are lost although none waits, so less is let through, by classes: see whether that
    /// ends it, and stay below what is lost.
    Limit,
    /// Other hosts fill the queue, so everything passes for a while, to see what this host gets.
    Yield,
    /// The link has room although more is wanted, so everything passes for a moment, to see what
    /// control costs.
    Compare,
    /// More arrives without control than with it, so everything passes for a while.
    LetGo,
    /// A host before the queue divides by the weights.
    Delegate,
    /// More arrived than was believed to be possible: the capacity is higher.
    Increase {
        /// Before.
        #[serde(rename = "from_bps")]
        from: Rate,
        /// After.
        #[serde(rename = "to_bps")]
        to: Rate,
    },
}

/// One line for people.
impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Observe => write!(f, "observe: counting only"),
            Act::Hold => write!(f, "hold: the rates are given"),
            Act::Bootstrap => write!(f, "bootstrap: the capacity is unknown"),
            Act::Measure => write!(f, "measure: too few measurements to decide"),
            Act::Rest => write!(f, "rest: no change"),
            Act::Learn { to } => write!(f, "learn: the link carried {to}"),
            Act::Reclaim { .. } => write!(f, "reclaim: a group takes its lent share back"),
            Act::Lend { .. } => write!(f, "lend: a group does not use its share"),
            Act::Decrease { from, to } => {
                write!(f, "decrease: {to} of {from} arrived")
            }
            Act::UndoLoan { from, to } => {
                write!(f, "undo loan: {to} of {from} arrived, and the lender lost rate")
            }
            Act::Raise { extra, .. } => write!(f, "raise: {extra} added to test the capacity"),
            Act::Measured { from, to } => {
                write!(f, "measured: the busy link carried {to}, estimate was {from}")
            }
            Act::Drain => write!(f, "drain: windows reduced to measure the delay without queueing"),
            Act::Limit => write!(f, "limit: losses without queueing, classes limit the rate"),
            Act::Yield => write!(f, "yield: other hosts fill the queue, nothing is enforced"),
            Act::Compare => write!(f, "compare: nothing is enforced, to see what control costs"),
            Act::LetGo => {
                write!(f, "let go: more arrives without control, nothing is enforced for a while")
            }
            Act::Delegate => write!(f, "delegate: another divides by the weights"),
            Act::Increase { from, to } => {
                write!(f, "increase: {to} arrived, estimate was {from}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_str, json, to_string, to_value};

    use super::super::{Control, DelaySource, Enforce};
    use super::*;
    use crate::units::Span;

    #[test]
    fn decisions_and_commands_come_back_from_json_as_they_were() {
        let (from, to, extra, group) = (Rate::bps(u64::MAX), Rate::ZERO, Rate::bps(7), 3);
        let acts = [
            Act::Observe,
            Act::Hold,
            Act::Bootstrap,
            Act::Measure,
            Act::Rest,
            Act::Learn { to },
            Act::Reclaim { group },
            Act::Lend { group },
            Act::Decrease { from, to },
            Act::UndoLoan { from, to },
            Act::Raise { group, extra },
            Act::Measured { from, to },
            Act::Drain,
            Act::Limit,
            Act::Yield,
            Act::Compare,
            Act::LetGo,
            Act::Delegate,
            Act::Increase { from, to },
        ];
        let states = [
            GroupState::Idle,
            GroupState::Unknown,
            GroupState::Growing,
            GroupState::Rising,
            GroupState::Saturating,
            GroupState::Capped,
            GroupState::NonSaturating,
            GroupState::Lending,
            GroupState::Unresponsive,
        ];
        let sources = [DelaySource::Timestamps, DelaySource::ReceiverRtt, DelaySource::Probe];
        for (i, act) in acts.into_iter().enumerate() {
            let group = |state| GroupDecision {
                rate: to,
                demand: (i % 2 == 0).then_some(from),
                share: extra,
                ceil: (i % 3 == 0).then_some(to),
                state,
            };
            let source = sources[i % sources.len()];
            let delay = DelaySample {
                value: Span::MAX,
                least: Span::ZERO,
                noise: Span::ZERO,
                source,
                samples: 9,
                sources: 2,
            };
            let decision = Decision {
                at: Time::from_nanos(u64::MAX),
                act,
                capacity: (i % 2 == 1).then_some(from),
                enforcing: i % 2 == 0,
                delay: Some(delay),
                groups: states.into_iter().map(group).collect(),
            };
            let text = to_string(&decision).unwrap();
            assert_eq!(from_str::<Decision>(&text).unwrap(), decision, "{text}");
        }
        let class = ClassRate {
            rate: to,
            ceil: from,
            priority: 7,
            weight: Weight::new(10_000).unwrap(),
            excess: Excess::Delay,
        };
        let window = ConnectionWindow { id: u64::MAX, window: Bytes::new(1) };
        for command in [
            Command::SetRates(Allocation { total: Some(to), classes: vec![class] }),
            Command::SetRates(Allocation { total: None, classes: vec![] }),
            Command::SetWindows(Windows {
                connections: vec![window],
                initial: vec![None, Some(Bytes::ZERO)],
            }),
            Command::Release,
        ] {
            let text = to_string(&command).unwrap();
            assert_eq!(from_str::<Command>(&text).unwrap(), command, "{text}");
        }
    }

    #[test]
    fn names_in_json_are_those_that_users_write() {
        for control in Control::ALL {
            assert_eq!(to_value(control).unwrap(), json!(control.name()));
            assert_eq!(from_str::<Control>(&format!("\"{control}\"")).unwrap(), control);
        }
        for enforce in Enforce::ALL {
            assert_eq!(to_value(enforce).unwrap(), json!(enforce.name()));
            assert_eq!(
                to_value(enforce.name().parse::<Enforce>().unwrap()).unwrap(),
                json!(enforce)
            );
        }
        let act = Act::UndoLoan { from: Rate::mbit(2), to: Rate::mbit(1) };
        let documented = json!({"kind": "undo_loan", "from_bps": 2_000_000, "to_bps": 1_000_000});
        assert_eq!(to_value(act).unwrap(), documented);
    }
}
