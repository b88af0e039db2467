//! What a controller is made from, and which changes a running controller takes over.

use serde::{Deserialize, Serialize};

use super::{
    CAPACITY_MIN, CAPACITY_MIN_RBM, Control, ControllerError, CrabTuning, Enforce, LATENCY,
};
use crate::units::{Rate, Span};

/// A control with its own parameters only.
///
/// Weights and a remembered capacity are not part of it: weights change with the policy, and a
/// remembered capacity is only the start value of a control that learns. Two configurations with
/// equal specifications therefore need the same controller. If the specifications differ,
/// [`Controller::can_take_over`](super::Controller::can_take_over) says whether the running one
/// can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "control")]
pub enum ControllerSpec {
    /// [`Control::None`].
    None,
    /// [`Control::Static`].
    Static {
        /// The capacity that is divided.
        capacity: Rate,
    },
    /// [`Control::Borrow`].
    Borrow {
        /// The capacity that is divided, and the rate that a class may reach.
        capacity: Rate,
    },
    /// [`Control::Chokepoint`].
    Chokepoint {
        /// The capacity of the link; the bottleneck is below it.
        capacity: Rate,
        /// Strict priority in the order of the groups, instead of weights.
        strict_priority: bool,
    },
    /// [`Control::Rbm`].
    Rbm {
        /// The capacity of the link.
        capacity: Rate,
        /// Target of the queue at the ISP while a connection is interactive.
        latency: Span,
    },
    /// [`Control::Crab`].
    Crab {
        /// How long the control watches before it acts.
        tuning: CrabTuning,
    },
    /// [`Control::Fairweir`].
    Fairweir {
        /// The means by which shares are enforced.
        enforce: Enforce,
        /// Target of the queue at the ISP.
        latency: Span,
    },
}

impl ControllerSpec {
    /// `control` with its default parameters. `capacity` is for the controls that do not learn it;
    /// the others ignore it.
    ///
    /// # Errors
    /// [`ControllerError::NoCapacity`] if the control needs a capacity and there is none.
    pub fn new(
        control: Control,
        capacity: Option<Rate>,
    ) -> Result<ControllerSpec, ControllerError> {
        let capacity = || capacity.ok_or(ControllerError::NoCapacity(control));
        Ok(match control {
            Control::None => ControllerSpec::None,
            Control::Static => ControllerSpec::Static { capacity: capacity()? },
            Control::Borrow => ControllerSpec::Borrow { capacity: capacity()? },
            Control::Chokepoint => {
                ControllerSpec::Chokepoint { capacity: capacity()?, strict_priority: false }
            }
            Control::Rbm => ControllerSpec::Rbm { capacity: capacity()?, latency: LATENCY },
            Control::Crab => ControllerSpec::Crab { tuning: CrabTuning::HOST },
            Control::Fairweir => {
                ControllerSpec::Fairweir { enforce: Enforce::Auto, latency: LATENCY }
            }
        })
    }

    /// The same specification with another queue target, if the control has one.
    #[must_use]
    pub fn with_latency(mut self, new: Span) -> ControllerSpec {
        if let ControllerSpec::Rbm { latency, .. } | ControllerSpec::Fairweir { latency, .. } =
            &mut self
        {
            *latency = new;
        }
        self
    }

    /// The same specification with another way to enforce, if the control has a choice.
    #[must_use]
    pub fn with_enforce(mut self, new: Enforce) -> ControllerSpec {
        if let ControllerSpec::Fairweir { enforce, .. } = &mut self {
            *enforce = new;
        }
        self
    }

    /// The same specification with or without strict priority, if the control has a choice.
    #[must_use]
    pub fn with_strict_priority(mut self, new: bool) -> ControllerSpec {
        if let ControllerSpec::Chokepoint { strict_priority, .. } = &mut self {
            *strict_priority = new;
        }
        self
    }

    /// The same specification with another tuning, if the control has one.
    #[must_use]
    pub fn with_tuning(mut self, new: CrabTuning) -> ControllerSpec {
        if let ControllerSpec::Crab { tuning } = &mut self {
            *tuning = new;
        }
        self
    }

    /// Which control this is.
    pub const fn control(&self) -> Control {
        match self {
            ControllerSpec::None => Control::None,
            ControllerSpec::Static { .. } => Control::Static,
            ControllerSpec::Borrow { .. } => Control::Borrow,
            ControllerSpec::Chokepoint { .. } => Control::Chokepoint,
            ControllerSpec::Rbm { .. } => Control::Rbm,
            ControllerSpec::Crab { .. } => Control::Crab,
            ControllerSpec::Fairweir { .. } => Control::Fairweir,
        }
    }

    /// The capacity that the specification gives.
    pub const fn capacity(&self) -> Option<Rate> {
        match *self {
            ControllerSpec::Static { capacity }
            | ControllerSpec::Borrow { capacity }
            | ControllerSpec::Chokepoint { capacity, .. }
            | ControllerSpec::Rbm { capacity, .. } => Some(capacity),
            ControllerSpec::None
            | ControllerSpec::Crab { .. }
            | ControllerSpec::Fairweir { .. } => None,
        }
    }

    /// Checks that the control works with `capacity`, which was given or remembered.
    pub(super) fn check_capacity(&self, capacity: Option<Rate>) -> Result<(), ControllerError> {
        let least = match self {
            ControllerSpec::Rbm { .. } => CAPACITY_MIN_RBM,
            _ => CAPACITY_MIN,
        };
        match capacity {
            Some(low) if low < least => Err(ControllerError::CapacityTooLow(low, least)),
            _ => Ok(()),
        }
    }
}
