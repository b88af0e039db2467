//! Control loops of the receiving end: from what arrives to the rate that each class may carry.
//!
//! The problem: the queue of a download builds up at the ISP, where the receiver has no control. The
//! method: throttle each flow group behind the queue, so that its senders slow down and leave room
//! in the ISP's queue to the others. In every tick a [`Controller`] takes in what arrived
//! ([`Observation`]) and answers with the rates of the classes ([`Command`]) and the reasons
//! ([`Decision`]). The daemon, the lab and the simulator use the same controllers.
//!
//! | control | what it does |
//! |---|---|
//! | [`Control::None`] | counts, touches nothing: the status quo |
//! | [`Control::Static`] | weighted shares of a given capacity, for good |
//! | [`Control::Borrow`] | the same, but classes borrow from each other: what people try first, and what cannot work behind the queue |
//! | [`Control::Chokepoint`] | one bottleneck of its own below the capacity, weights or strict priority inside (CRAB §5.4) |
//! | [`Control::Rbm`] | windows by what connections do, for a given capacity (Spring et al.) |
//! | [`Control::Crab`] | learns capacity and demand from what arrives (CRAB §3) |
//! | [`Control::Fairweir`] | capacity from a busy link, shares by receive windows: the default |

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::market::guarantee::Step;
use crate::share::Tree;
use crate::units::{Rate, Span, Time};

mod class;
mod control_loop;
mod crab;
mod decision;
mod delay;
mod delegated;
mod fairweir;
mod fixed;
mod observation;
mod rbm;
mod spec;
mod supervisor;

pub use class::ClassSpec;
pub use control_loop::{AtLink, ControlLoop, Decider, Enforcer, GroupTotals};
pub use crab::{Crab, CrabSpec, CrabTuning};
pub use decision::{
    Act, Allocation, ClassRate, Command, ConnectionWindow, Decision, Excess, GroupDecision,
    GroupState, Windows,
};
pub use fairweir::{Fairweir, FairweirSpec};
pub use fixed::Fixed;
pub(crate) use observation::divided;
pub use observation::{
    Beside, CONNECTIONS_MAX, ConnectionSample, DelaySample, DelaySource, GroupSample, Observation,
    Other, ProbeSample, Told, TransitSample,
};
pub use rbm::Rbm;
pub use spec::ControllerSpec;

/// How often a controller takes in what arrived. Source: CRAB §3.1, `t`.
pub const TICK: Span = Span::millis(200);

/// A way of control, by the name that users give it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Control {
    /// Counts, touches nothing.
    None,
    /// Weighted shares of a given capacity.
    Static,
    /// The same with borrowing.
    Borrow,
    /// One bottleneck below the capacity, weights or strict priority inside.
    Chokepoint,
    /// Windows by what connections do.
    Rbm,
    /// CRAB's loop.
    Crab,
    /// Capacity from a busy link, shares by receive windows.
    #[default]
    Fairweir,
}

impl Control {
    /// Every control, in the order in which tables show them.
    pub const ALL: [Control; 7] = [
        Control::None,
        Control::Static,
        Control::Borrow,
        Control::Chokepoint,
        Control::Rbm,
        Control::Crab,
        Control::Fairweir,
    ];

    /// The name that users give it.
    pub const fn name(self) -> &'static str {
        match self {
            Control::None => "none",
            Control::Static => "static",
            Control::Borrow => "borrow",
            Control::Chokepoint => "chokepoint",
            Control::Rbm => "rbm",
            Control::Crab => "crab",
            Control::Fairweir => "fairweir",
        }
    }

    /// Whether the control keeps to the limits (`max`, `min`) of groups; also true if it enforces nothing.
    pub const fn holds_limits(self) -> bool {
        match self {
            Control::None | Control::Static | Control::Fairweir => true,
            Control::Borrow | Control::Chokepoint | Control::Rbm | Control::Crab => false,
        }
    }

    /// Whether the user has to give the capacity, since the control does not learn it.
    pub const fn needs_capacity(self) -> bool {
        matches!(self, Control::Static | Control::Borrow | Control::Chokepoint | Control::Rbm)
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A limit of a group that counts beside its weight, by the key that users write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A cap.
    Max,
    /// A floor.
    Min,
}

impl Limit {
    /// Every limit.
    pub const ALL: [Limit; 2] = [Limit::Max, Limit::Min];

    /// Whether a group of `weights` has this limit.
    fn is_in(self, weights: &Tree) -> bool {
        match self {
            Limit::Max => weights.has_caps(),
            Limit::Min => weights.has_floors(),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Max => "`max`",
            Limit::Min => "`min`",
        })
    }
}

/// A name that is no control.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown control `{0}` (none, static, borrow, chokepoint, rbm, crab or fairweir)")]
pub struct UnknownControl(String);

impl FromStr for Control {
    type Err = UnknownControl;
    fn from_str(name: &str) -> Result<Control, UnknownControl> {
        let found = Control::ALL.into_iter().find(|c| c.name() == name);
        found.ok_or_else(|| UnknownControl(name.to_owned()))
    }
}

/// The means by which shares are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforce {
    /// By receive windows, with classes a little above the shares, or at the shares without windows.
    #[default]
    Auto,
    /// By receive windows alone.
    Window,
    /// By classes alone.
    Htb,
}

impl Enforce {
    /// Every way, in the order in which users see them.
    pub const ALL: [Enforce; 3] = [Enforce::Auto, Enforce::Window, Enforce::Htb];

    /// The name that users give it.
    pub const fn name(self) -> &'static str {
        match self {
            Enforce::Auto => "auto",
            Enforce::Window => "window",
            Enforce::Htb => "htb",
        }
    }
}

/// A name that is not a way of enforcing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown way to enforce shares `{0}` (auto, window or htb)")]
pub struct UnknownEnforce(String);

impl FromStr for Enforce {
    type Err = UnknownEnforce;
    fn from_str(name: &str) -> Result<Enforce, UnknownEnforce> {
        let found = Enforce::ALL.into_iter().find(|e| e.name() == name);
        found.ok_or_else(|| UnknownEnforce(name.to_owned()))
    }
}

/// Target of the queue at the ISP if the user does not set one. Source: docs/control.md.
pub const LATENCY: Span = Span::millis(5);

/// The queue targets that the user may set.
pub const LATENCY_RANGE: RangeInclusive<Span> = Span::millis(1)..=Span::secs(2);

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
    #[error("a capacity of {0} is too low: at least {1}")]
    CapacityTooLow(Rate, Rate),
    /// A limit that the control would not hold.
    #[error(
        "the control `{0}` does not hold {1} of a group; allowed with {1}: fairweir, static or none"
    )]
    NoLimit(Control, Limit),
}

/// Below this capacity no class can work: a class needs at least 0.1 Mbit/s. A modem
/// has less and is served by windows, not by classes.
pub const CAPACITY_MIN: Rate = Rate::kbit(100);

/// Below this capacity a full packet takes over a second, and windows cannot work either.
pub const CAPACITY_MIN_RBM: Rate = Rate::kbit(8);

/// A control loop: [`Observation`]s in, [`Command`]s out.
///
/// Invariant: between two calls a controller keeps the rates of its last `SetRates`, so losing one
/// command and applying the next is harmless.
#[derive(Clone, Debug)]
pub enum Controller {
    /// Does not learn.
    Fixed(Box<Fixed>),
    /// CRAB.
    Crab(Box<Crab>),
    /// Receiver Based Management.
    Rbm(Box<Rbm>),
    /// The default.
    Fairweir(Box<Fairweir>),
}

impl Controller {
    /// Makes a controller for groups that share by `weights`, in the policy's order. A control that learns
    /// the capacity starts from `remembered`.
    ///
    /// # Errors
    /// [`ControllerError`] if there are no groups, or a capacity is too low.
    pub fn new(
        spec: &ControllerSpec,
        weights: impl Into<Tree>,
        remembered: Option<Rate>,
    ) -> Result<Controller, ControllerError> {
        let weights = weights.into();
        if weights.is_empty() {
            return Err(ControllerError::NoGroups);
        }
        let refused = |limit: &Limit| limit.is_in(&weights) && !spec.control().holds_limits();
        if let Some(limit) = Limit::ALL.into_iter().find(refused) {
            return Err(ControllerError::NoLimit(spec.control(), limit));
        }
        spec.check_capacity(spec.capacity())?;
        spec.check_capacity(remembered)?;
        Ok(match *spec {
            ControllerSpec::Crab { tuning } => {
                Controller::Crab(Box::new(Crab::new(CrabSpec { weights, remembered, tuning })))
            }
            ControllerSpec::Fairweir { enforce, latency } => {
                let spec = FairweirSpec { weights, remembered, enforce, latency };
                Controller::Fairweir(Box::new(Fairweir::new(spec)))
            }
            ControllerSpec::Rbm { capacity, latency } => {
                Controller::Rbm(Box::new(Rbm::new(weights.len(), capacity, latency)))
            }
            ControllerSpec::None
            | ControllerSpec::Static { .. }
            | ControllerSpec::Borrow { .. }
            | ControllerSpec::Chokepoint { .. } => {
                Controller::Fixed(Box::new(Fixed::new(*spec, weights, remembered)))
            }
        })
    }

    /// Whether this controller can continue under `spec` with what it has learned; if not, the change needs
    /// a new controller.
    ///
    /// | control | what may differ |
    /// |---|---|
    /// | those that learn nothing | every parameter, and which of them it is |
    /// | `rbm` | `capacity`, `latency` |
    /// | `crab` | nothing: a window that has begun is judged as it began |
    /// | `fairweir` | `latency`, `enforce` |
    pub fn can_take_over(&self, spec: &ControllerSpec) -> bool {
        let is_same_kind = match self {
            Controller::Fixed(_) => matches!(
                spec,
                ControllerSpec::None
                    | ControllerSpec::Static { .. }
                    | ControllerSpec::Borrow { .. }
                    | ControllerSpec::Chokepoint { .. }
            ),
            Controller::Crab(control) => *spec == ControllerSpec::Crab { tuning: control.tuning() },
            Controller::Rbm(_) => matches!(spec, ControllerSpec::Rbm { .. }),
            Controller::Fairweir(_) => matches!(spec, ControllerSpec::Fairweir { .. }),
        };
        is_same_kind && spec.check_capacity(spec.capacity()).is_ok()
    }

    /// Continues under `spec` and keeps what was learned; drain [`Controller::poll_command`] after it.
    /// The commands assume that the enforcer was released before: they do not mention what the new
    /// specification does not enforce.
    ///
    /// # Panics
    /// If [`Controller::can_take_over`] says no.
    pub fn handle_spec(&mut self, spec: &ControllerSpec) {
        assert!(self.can_take_over(spec), "{spec:?} needs a new controller");
        match (self, *spec) {
            (Controller::Fairweir(control), ControllerSpec::Fairweir { enforce, latency }) => {
                control.handle_spec(enforce, latency);
            }
            (Controller::Rbm(control), ControllerSpec::Rbm { capacity, latency }) => {
                control.handle_spec(capacity, latency);
            }
            (Controller::Fixed(control), spec) => control.handle_spec(spec),
            // CRAB takes over no change.
            _ => {}
        }
    }

    /// The target of the queue at the ISP that is in force; `None` if the control has no target.
    pub fn queue_target(&self) -> Option<Span> {
        match self {
            Controller::Fixed(_) | Controller::Crab(_) => None,
            Controller::Rbm(rbm) => Some(rbm.queue_target()),
            Controller::Fairweir(fairweir) => Some(fairweir.queue_target()),
        }
    }

    /// Takes in what was measured in one interval; drain [`Controller::poll_command`] after it.
    ///
    /// # Panics
    /// If the observation has another number of groups than the spec.
    pub fn handle_observation(&mut self, observation: &Observation) {
        match self {
            Controller::Fixed(fixed) => fixed.handle_observation(observation),
            Controller::Crab(crab) => crab.handle_observation(observation),
            Controller::Rbm(rbm) => rbm.handle_observation(observation),
            Controller::Fairweir(fairweir) => fairweir.handle_observation(observation),
        }
    }

    /// The next command for the enforcer.
    pub fn poll_command(&mut self) -> Option<Command> {
        match self {
            Controller::Fixed(fixed) => fixed.poll_command(),
            Controller::Crab(crab) => crab.poll_command(),
            Controller::Rbm(rbm) => rbm.poll_command(),
            Controller::Fairweir(fairweir) => fairweir.poll_command(),
        }
    }

    /// What was decided in the last tick, and why.
    pub fn decision(&self) -> &Decision {
        match self {
            Controller::Fixed(fixed) => fixed.decision(),
            Controller::Crab(crab) => crab.decision(),
            Controller::Rbm(rbm) => rbm.decision(),
            Controller::Fairweir(fairweir) => fairweir.decision(),
        }
    }

    /// A capacity that is worth remembering for this network: learned, and confirmed by traffic.
    pub fn learned_capacity(&self) -> Option<Rate> {
        match self {
            Controller::Fixed(_) | Controller::Rbm(_) => None,
            Controller::Crab(crab) => crab.learned_capacity(),
            Controller::Fairweir(fairweir) => fairweir.learned_capacity(),
        }
    }

    /// The shaper ahead of this host guarantees another rate from now on; drain
    /// [`Controller::poll_command`] after it. Later measurements correct it as usual. Returns whether
    /// this control follows guarantees: only `fairweir` does.
    pub fn handle_guarantee(&mut self, step: &Step, now: Time) -> bool {
        match self {
            Controller::Fairweir(fairweir) => {
                fairweir.handle_guarantee(step, now);
                true
            }
            Controller::Fixed(_) | Controller::Crab(_) | Controller::Rbm(_) => false,
        }
    }

    /// Limits what passes to `bound` from `now` on, whatever the link carries; `None` removes the bound.
    /// Drain [`Controller::poll_command`] after it. Returns whether the bound changed; only `fairweir`
    /// supports bounds, as with guarantees.
    pub fn hold(&mut self, bound: Option<Rate>, now: Time) -> bool {
        match self {
            Controller::Fairweir(fairweir) => fairweir.hold(bound, now),
            Controller::Fixed(_) | Controller::Crab(_) | Controller::Rbm(_) => false,
        }
    }

    /// Takes over new weights and keeps what was learned: group `i` of the new policy continues
    /// group `kept[i]` of the old one; `None` means that the group is new.
    ///
    /// # Panics
    /// If the two lists differ in length, or an index is out of range.
    pub fn handle_policy(&mut self, weights: impl Into<Tree>, kept: &[Option<usize>]) {
        let weights = weights.into();
        assert_eq!(weights.len(), kept.len(), "every new group says which old one it continues");
        match self {
            Controller::Fixed(fixed) => fixed.handle_policy(weights),
            Controller::Crab(crab) => crab.handle_policy(weights, kept),
            Controller::Rbm(rbm) => rbm.handle_policy(kept),
            Controller::Fairweir(fairweir) => fairweir.handle_policy(weights, kept),
        }
    }
}

#[cfg(test)]
mod tests;
