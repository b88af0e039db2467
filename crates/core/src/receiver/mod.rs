//! Control loops of the receiving end: from what arrives to what each class may carry.
//!
//! The problem: the queue of a download builds up in the ISP, where the receiver has no say. The
//! method: throttle each flow group behind the queue, so that its senders slow down and leave room
//! in the ISP's queue to the others. A [`Controller`] is told every tick what arrived
//! ([`Observation`]) and answers with what each class may carry ([`Command`]) and why
//! ([`Decision`]). It is the same in the daemon, the lab and the simulator.
//!
//! | control | what it does |
//! |---|---|
//! | [`Control::None`] | counts, touches nothing: the status quo |
//! | [`Control::Static`] | weighted shares of a given capacity, for good |
//! | [`Control::Borrow`] | the same, but classes borrow from each other: what people try first, and what cannot work behind the queue |
//! | [`Control::Wfq`] | nothing here: the ideal, weighted fair queueing at the ISP, which only the lab and the simulator have |
//! | [`Control::Chokepoint`] | one bottleneck of its own below the capacity, weights or strict priority inside (CRAB §5.4) |
//! | [`Control::Crab`] | learns capacity and demand from what arrives (CRAB §3) |

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::share::Weight;
use crate::units::{Bytes, Rate, Span, Time};

mod class;
mod crab;
mod fixed;

pub use class::ClassSpec;
pub use crab::{Crab, CrabSpec, CrabTuning};
pub use fixed::Fixed;

/// How often a controller is told what arrived. Source: CRAB §3.1, `t`.
pub const TICK: Span = Span::millis(200);

/// The most connections that an observation carries; the busiest are kept.
pub const CONNECTIONS_MAX: usize = 4_096;

// ------------------------------------------------------------------------------------------------
// In

/// What was measured in one interval, before enforcement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Observation {
    /// End of the interval.
    pub at: Time,
    /// Its length; normally [`TICK`].
    pub interval: Span,
    /// One for each group of the policy, in its order.
    pub groups: Vec<GroupSample>,
    /// The busiest connections, at most [`CONNECTIONS_MAX`]; empty where nobody measures them.
    pub connections: Vec<ConnectionSample>,
    /// Queueing delay of the access link, where somebody measures it.
    pub delay: Option<DelaySample>,
}

/// What one group received in the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupSample {
    /// Volume that arrived at the interface, in L2 bytes as on the wire.
    pub received: Bytes,
    /// Packets that arrived at the interface, as on the wire.
    pub packets: u64,
    /// Packets that the group's class dropped.
    pub drops: u64,
    /// What waits in the group's class at the end of the interval.
    pub backlog: Bytes,
}

/// What one connection received in the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionSample {
    /// Unique among the connections that exist at one time.
    pub id: u64,
    /// Index of its group.
    pub group: usize,
    /// The receiver's own estimate of the round-trip time, if it has one.
    pub rtt: Option<Span>,
    /// Payload received in the interval.
    pub received: Bytes,
    /// Window that is advertised at the end of the interval.
    pub window: Bytes,
}

/// Queueing delay of the access link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DelaySample {
    /// Above the base delay.
    pub value: Span,
    /// Who measured it.
    pub source: DelaySource,
    /// On how many packets.
    pub samples: u32,
}

/// Who measured a queueing delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DelaySource {
    /// The receiver's own RTT estimates of TCP connections.
    ReceiverRtt,
    /// TCP timestamps of arriving packets.
    Timestamps,
    /// An active probe of a reflector.
    Probe,
}

// ------------------------------------------------------------------------------------------------
// Out

/// What the enforcer shall do; the last one drained wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Make it so, in one batch.
    SetRates(Allocation),
    /// Let everything pass unshaped until the next `SetRates`.
    Release,
}

/// What each class may carry: the desired state of the enforcer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// What all classes may carry together; `None` is no bound of their own.
    pub total: Option<Rate>,
    /// One for each group of the policy, in its order.
    pub classes: Vec<ClassRate>,
}

/// What one class may carry, in HTB's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClassRate {
    /// What it has of its own.
    pub rate: Rate,
    /// What it may reach by borrowing; equal to `rate` where nobody borrows.
    pub ceil: Rate,
    /// Who borrows first: 0 is the highest priority, 7 the lowest.
    pub priority: u8,
    /// Its part of what is borrowed among equal priorities.
    pub weight: Weight,
}

/// What was decided in a tick, and why: the record that status, metrics and dashboard show.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The tick.
    pub at: Time,
    /// What was done.
    pub act: Act,
    /// What the controller believes the link carries; `None` while it does not know.
    #[serde(rename = "capacity_bps")]
    pub capacity: Option<Rate>,
    /// What is enforced; `false` while everything passes unshaped.
    pub enforcing: bool,
    /// One for each group of the policy, in its order.
    pub groups: Vec<GroupDecision>,
}

impl Decision {
    /// What holds before the first tick.
    pub(crate) fn initial(groups: usize) -> Decision {
        let group = GroupDecision {
            rate: Rate::ZERO,
            demand: None,
            share: Rate::ZERO,
            ceil: None,
            state: GroupState::Unknown,
        };
        Decision {
            at: Time::ZERO,
            act: Act::Bootstrap,
            capacity: None,
            enforcing: false,
            groups: vec![group; groups],
        }
    }
}

/// What was decided for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupState {
    /// Nothing arrives, or never has.
    Idle,
    /// Not yet judged.
    Unknown,
    /// It had lent and wants it back.
    Growing,
    /// It is on its way to what it may: to lend from it now would stop it where it is.
    Rising,
    /// It uses all it may.
    Saturating,
    /// It uses less than it may.
    NonSaturating,
    /// It lends what it does not use, and uses as much as it said.
    Lending,
    /// It keeps to its rate although its packets are dropped.
    Unresponsive,
}

/// What a controller did in a tick, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Act {
    /// It only counts.
    Observe,
    /// It keeps to rates that were given.
    Hold,
    /// It does not know the capacity yet and lets everything pass.
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
    Probe {
        /// Index of the first of them.
        group: usize,
        /// How much more.
        #[serde(rename = "extra_bps")]
        extra: Rate,
    },
    /// More arrived after a probe: the capacity is higher than believed.
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
            Act::Hold => write!(f, "hold: the rates were given"),
            Act::Bootstrap => write!(f, "bootstrap: the capacity is not known yet"),
            Act::Measure => write!(f, "measure: the window is not over"),
            Act::Rest => write!(f, "rest: nothing to do, or nothing to conclude yet"),
            Act::Learn { to } => write!(f, "learn: the link carried {to}"),
            Act::Reclaim { .. } => write!(f, "reclaim: a group wants back what it lent"),
            Act::Lend { .. } => write!(f, "lend: a group does not use its share, another could"),
            Act::Decrease { from, to } => {
                write!(f, "decrease: only {to} of {from} arrived, and nothing else explains it")
            }
            Act::UndoLoan { from, to } => {
                write!(f, "undo loan: only {to} of {from} arrived and the lender lost by it")
            }
            Act::Probe { extra, .. } => write!(f, "probe: {extra} more, to see whether it arrives"),
            Act::Increase { from, to } => {
                write!(f, "increase: {to} arrived after a probe, {from} was believed")
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------
// The controls

/// A way of control, by the name that users give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// Counts, touches nothing.
    None,
    /// Weighted shares of a given capacity.
    Static,
    /// The same with borrowing.
    Borrow,
    /// Weighted fair queueing at the ISP.
    Wfq,
    /// One bottleneck below the capacity, weights or strict priority inside.
    Chokepoint,
    /// CRAB's loop.
    Crab,
}

impl Control {
    /// Every control, in the order in which tables show them.
    pub const ALL: [Control; 6] = [
        Control::None,
        Control::Static,
        Control::Borrow,
        Control::Wfq,
        Control::Chokepoint,
        Control::Crab,
    ];

    /// The name that users give it.
    pub const fn name(self) -> &'static str {
        match self {
            Control::None => "none",
            Control::Static => "static",
            Control::Borrow => "borrow",
            Control::Wfq => "wfq",
            Control::Chokepoint => "chokepoint",
            Control::Crab => "crab",
        }
    }

    /// Whether it must be told the capacity, since it does not learn it.
    pub const fn needs_capacity(self) -> bool {
        matches!(self, Control::Static | Control::Borrow | Control::Chokepoint)
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no control.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no control; there are none, static, borrow, wfq, chokepoint and crab")]
pub struct UnknownControl(String);

impl FromStr for Control {
    type Err = UnknownControl;
    fn from_str(name: &str) -> Result<Control, UnknownControl> {
        let found = Control::ALL.into_iter().find(|c| c.name() == name);
        found.ok_or_else(|| UnknownControl(name.to_owned()))
    }
}

/// What a controller is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerSpec {
    /// Which way of control.
    pub control: Control,
    /// Weights of the groups, in the policy's order; at least one.
    pub weights: Vec<Weight>,
    /// The capacity: given for the controls that do not learn it; for `crab` what it remembers of
    /// this network, if anything.
    pub capacity: Option<Rate>,
    /// Strict priority in the order of the groups, instead of weights (`chokepoint` alone).
    pub strict_priority: bool,
    /// How long it watches before it acts (`crab` alone).
    pub tuning: CrabTuning,
}

/// Why a controller cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControllerError {
    /// No group to divide among.
    #[error("a policy without groups cannot be controlled")]
    NoGroups,
    /// The control does not learn the capacity.
    #[error("the control `{0}` does not learn the capacity: give it one, such as `30mbit`")]
    NoCapacity(Control),
    /// A capacity at which no class can work.
    #[error("a capacity of {0} is too low: at least {min}", min = CAPACITY_MIN)]
    CapacityTooLow(Rate),
}

/// Below this no class can work. A class needs at least 0.1 Mbit/s; a modem
/// has less and is served by windows, not by classes.
pub const CAPACITY_MIN: Rate = Rate::kbit(100);

/// A control loop: [`Observation`]s in, [`Command`]s out.
///
/// Invariant: between two calls it holds the rates that its last `SetRates` told, so losing one
/// command and applying the next is harmless.
#[derive(Clone, Debug)]
pub enum Controller {
    /// Does not learn.
    Fixed(Fixed),
    /// CRAB.
    Crab(Box<Crab>),
}

impl Controller {
    /// Makes a controller.
    ///
    /// # Errors
    /// [`ControllerError`] if there are no groups, or the capacity is missing or too low.
    pub fn new(spec: &ControllerSpec) -> Result<Controller, ControllerError> {
        if spec.weights.is_empty() {
            return Err(ControllerError::NoGroups);
        }
        if let Some(low) = spec.capacity.filter(|&c| c < CAPACITY_MIN) {
            return Err(ControllerError::CapacityTooLow(low));
        }
        if spec.control.needs_capacity() && spec.capacity.is_none() {
            return Err(ControllerError::NoCapacity(spec.control));
        }
        Ok(match spec.control {
            Control::Crab => {
                let weights = spec.weights.clone();
                let crab = CrabSpec { weights, remembered: spec.capacity, tuning: spec.tuning };
                Controller::Crab(Box::new(Crab::new(crab)))
            }
            _ => Controller::Fixed(Fixed::new(spec)),
        })
    }

    /// Takes in what was measured in one interval; drain [`Controller::poll_command`] after it.
    ///
    /// # Panics
    /// If the observation has another number of groups than the spec.
    pub fn handle_observation(&mut self, observation: &Observation) {
        match self {
            Controller::Fixed(fixed) => fixed.handle_observation(observation),
            Controller::Crab(crab) => crab.handle_observation(observation),
        }
    }

    /// The next thing that the enforcer shall do.
    pub fn poll_command(&mut self) -> Option<Command> {
        match self {
            Controller::Fixed(fixed) => fixed.poll_command(),
            Controller::Crab(crab) => crab.poll_command(),
        }
    }

    /// What was decided in the last tick, and why.
    pub fn decision(&self) -> &Decision {
        match self {
            Controller::Fixed(fixed) => fixed.decision(),
            Controller::Crab(crab) => crab.decision(),
        }
    }

    /// A capacity that is worth remembering for this network: learned, and confirmed by traffic.
    pub fn learned_capacity(&self) -> Option<Rate> {
        match self {
            Controller::Fixed(_) => None,
            Controller::Crab(crab) => crab.learned_capacity(),
        }
    }

    /// Takes over new weights and keeps what was learned: group `i` of the new policy continues
    /// group `kept[i]` of the old one, `None` is new.
    ///
    /// # Panics
    /// If the two lists differ in length, or an index is out of range.
    pub fn handle_policy(&mut self, weights: Vec<Weight>, kept: &[Option<usize>]) {
        match self {
            Controller::Fixed(fixed) => fixed.handle_policy(weights, kept),
            Controller::Crab(crab) => crab.handle_policy(weights, kept),
        }
    }
}

#[cfg(test)]
mod tests;
