//! Why a change of the registry cannot be.

use ipnet::IpNet;

use super::{ADDRESSES_MAX, PLANS_MAX, SUBSCRIBERS_MAX};

/// Why a change cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::isp) enum RegistryError {
    #[error("{0}")]
    BadName(String),
    #[error("there is a plan `{0}` already; change it, or choose another name")]
    PlanExists(String),
    #[error("there is no plan `{name}`{hint}")]
    NoPlan { name: String, hint: String },
    #[error("{users} subscribers have the plan `{plan}`, `{one}` for example; move them first")]
    PlanInUse { plan: String, users: usize, one: String },
    #[error("{PLANS_MAX} plans are there already; there cannot be more")]
    TooManyPlans,
    #[error("there is a subscriber `{0}` already; change it, or choose another name")]
    SubscriberExists(String),
    #[error("there is no subscriber `{name}`{hint}")]
    NoSubscriber { name: String, hint: String },
    #[error("{SUBSCRIBERS_MAX} subscribers are there already; there cannot be more")]
    TooManySubscribers,
    #[error("a subscriber has 1 to {ADDRESSES_MAX} addresses, not {0}")]
    AddressCount(usize),
    #[error("{0}")]
    BadAddress(String),
    #[error("{address} stands there twice")]
    AddressTwice { address: IpNet },
    #[error("{address} belongs to the subscriber `{owner}` already")]
    AddressTaken { address: IpNet, owner: String },
    #[error("nothing to change; say which plan or addresses it shall have")]
    NothingToChange,
}

impl RegistryError {
    /// Which key of a plan or of a subscriber is wrong.
    pub(in crate::isp) fn key(&self) -> &'static str {
        match self {
            RegistryError::BadName(_)
            | RegistryError::PlanExists(_)
            | RegistryError::PlanInUse { .. }
            | RegistryError::TooManyPlans
            | RegistryError::SubscriberExists(_)
            | RegistryError::NoSubscriber { .. }
            | RegistryError::TooManySubscribers => "name",
            RegistryError::NoPlan { .. } | RegistryError::NothingToChange => "plan",
            RegistryError::AddressCount(_)
            | RegistryError::BadAddress(_)
            | RegistryError::AddressTwice { .. }
            | RegistryError::AddressTaken { .. } => "addresses",
        }
    }
}
