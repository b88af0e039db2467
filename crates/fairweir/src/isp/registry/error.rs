//! Errors of changes to the registry.

use ipnet::IpNet;

use super::{ADDRESSES_MAX, PLANS_MAX, SUBSCRIBERS_MAX};

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::isp) enum RegistryError {
    #[error("{0}")]
    BadName(String),
    #[error("plan `{0}` already exists")]
    PlanExists(String),
    #[error("no plan `{name}`{hint}")]
    NoPlan { name: String, hint: String },
    #[error("plan `{plan}` has subscribers ({users}, such as `{one}`); change their plan first")]
    PlanInUse { plan: String, users: usize, one: String },
    #[error("too many plans (at most {PLANS_MAX})")]
    TooManyPlans,
    #[error("subscriber `{0}` already exists")]
    SubscriberExists(String),
    #[error("no subscriber `{name}`{hint}")]
    NoSubscriber { name: String, hint: String },
    #[error("too many subscribers (at most {SUBSCRIBERS_MAX})")]
    TooManySubscribers,
    #[error("a subscriber has 1 to {ADDRESSES_MAX} addresses, not {0}")]
    AddressCount(usize),
    #[error("{0}")]
    BadAddress(String),
    #[error("duplicate address {address}")]
    AddressTwice { address: IpNet },
    #[error("{address} belongs to subscriber `{owner}`")]
    AddressTaken { address: IpNet, owner: String },
    #[error("`{0}` is said by a file or by commands, which sessions and leases do not change")]
    Configured(String),
    #[error("nothing to change: give a plan or addresses")]
    NothingToChange,
}

impl RegistryError {
    /// The wrong key of a plan or a subscriber.
    pub(in crate::isp) fn key(&self) -> &'static str {
        match self {
            RegistryError::BadName(_)
            | RegistryError::PlanExists(_)
            | RegistryError::PlanInUse { .. }
            | RegistryError::TooManyPlans
            | RegistryError::SubscriberExists(_)
            | RegistryError::NoSubscriber { .. }
            | RegistryError::TooManySubscribers
            | RegistryError::Configured(_) => "name",
            RegistryError::NoPlan { .. } | RegistryError::NothingToChange => "plan",
            RegistryError::AddressCount(_)
            | RegistryError::BadAddress(_)
            | RegistryError::AddressTwice { .. }
            | RegistryError::AddressTaken { .. } => "addresses",
        }
    }
}
