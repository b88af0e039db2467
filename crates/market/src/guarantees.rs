//! Where the rates of a slot go.

use fairweir_core::units::Rate;

/// The rates of a slot, all of one generation: they apply together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leases {
    /// The slot; a later one replaces an earlier one.
    pub generation: u64,
    /// When they end, in seconds of Unix time.
    pub until: u64,
    /// By gateway.
    pub rates: Vec<(String, Rate)>,
}

/// Something that guarantees rates, such as the policer of the access network.
pub trait Guarantees: Send {
    /// Replaces all rates of the market.
    ///
    /// # Errors
    /// What failed; the rates in force then end when they were to end.
    fn set(&mut self, leases: &Leases) -> Result<(), String>;

    /// What status says of it.
    fn describe(&self) -> &'static str;
}

/// Nothing guarantees rates: gateways read their leases and limit themselves. `fairweir isp` has no
/// request for rates of a market yet.
#[derive(Clone, Copy, Debug)]
pub struct Unenforced;

impl Guarantees for Unenforced {
    fn set(&mut self, _: &Leases) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self) -> &'static str {
        "not enforced: the gateways limit themselves"
    }
}
