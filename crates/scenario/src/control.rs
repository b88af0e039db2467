//! Controls with which a scenario is played: those of the product, and those it is compared with.

use std::fmt;
use std::str::FromStr;

use fairweir_core::receiver;
use serde::{Deserialize, Serialize};

/// A control with which scenarios are played, by the name that users give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// [`receiver::Control::None`].
    None,
    /// [`receiver::Control::Static`].
    Static,
    /// [`receiver::Control::Borrow`].
    Borrow,
    /// The ideal, for comparison: weighted fair queueing at the ISP, and no control at home.
    Wfq,
    /// [`receiver::Control::Chokepoint`].
    Chokepoint,
    /// [`receiver::Control::Rbm`].
    Rbm,
    /// [`receiver::Control::Crab`].
    Crab,
    /// CRAB's loop as its paper prints it, for comparison. Only the simulator plays it.
    #[serde(rename = "crab-printed")]
    CrabPrinted,
    /// [`receiver::Control::Fairweir`].
    Fairweir,
}

impl Control {
    /// Every control, in the order in which tables show them.
    pub const ALL: [Control; 9] = [
        Control::None,
        Control::Static,
        Control::Borrow,
        Control::Wfq,
        Control::Chokepoint,
        Control::Rbm,
        Control::Crab,
        Control::CrabPrinted,
        Control::Fairweir,
    ];

    /// What the daemon at home runs; `None` if no daemon has this control.
    pub const fn at_home(self) -> Option<receiver::Control> {
        Some(match self {
            Control::None | Control::Wfq => receiver::Control::None,
            Control::Static => receiver::Control::Static,
            Control::Borrow => receiver::Control::Borrow,
            Control::Chokepoint => receiver::Control::Chokepoint,
            Control::Rbm => receiver::Control::Rbm,
            Control::Crab => receiver::Control::Crab,
            Control::CrabPrinted => return None,
            Control::Fairweir => receiver::Control::Fairweir,
        })
    }

    /// The name that users give it.
    pub const fn name(self) -> &'static str {
        match (self, self.at_home()) {
            (Control::Wfq, _) => "wfq",
            (_, Some(control)) => control.name(),
            (_, None) => "crab-printed",
        }
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not one of a [`Control`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown control `{0}` (none, static, borrow, wfq, chokepoint, rbm, crab, crab-printed or fairweir)"
)]
pub struct UnknownControl(String);

impl FromStr for Control {
    type Err = UnknownControl;

    fn from_str(name: &str) -> Result<Control, UnknownControl> {
        let found = Control::ALL.into_iter().find(|c| c.name() == name);
        found.ok_or_else(|| UnknownControl(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_control_of_the_product_is_played_under_its_name() {
        for control in receiver::Control::ALL {
            let played: Control = control.name().parse().unwrap();
            assert_eq!(played.at_home(), Some(control));
        }
        for control in Control::ALL {
            assert_eq!(control.name().parse(), Ok(control));
            assert!(UnknownControl("x".into()).to_string().contains(control.name()));
        }
    }
}
