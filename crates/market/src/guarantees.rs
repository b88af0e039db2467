//! Where the rates of a slot go.

use fairweir_core::units::Rate;

/// The rates of a slot, all of one generation: they apply together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// The slot; a later one replaces an earlier one.
    pub generation: u64,
    /// When they begin, in seconds of Unix time.
    pub from: u64,
    /// When they end, as above.
    pub until: u64,
    /// By seat.
    pub rates: Vec<Lease>,
}

/// A gateway's rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its pseudonym.
    pub gateway: String,
    /// The operator's word for its contract.
    pub contract: String,
    /// What it may use.
    pub rate: Rate,
}

/// Something that guarantees rates, such as the policer of the access network.
pub trait Guarantees: Send {
    /// Replaces all rates of the market; the same ones once more change nothing.
    ///
    /// # Errors
    /// What failed; the rates in force then end when they were to end.
    fn set(&mut self, leases: &Leases) -> Result<(), String>;

    /// What status says of it.
    fn describe(&self) -> String;
}

/// Nothing guarantees rates: gateways read their leases and limit themselves.
#[derive(Clone, Copy, Debug)]
pub struct Unenforced;

impl Guarantees for Unenforced {
    fn set(&mut self, _: &Leases) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self) -> String {
        "not enforced: the gateways limit themselves".to_owned()
    }
}
