//! Enforces the rates of slots as guarantees of a segment of `fairweir isp`, in which the
//! subscribers are named by contract.

use std::path::PathBuf;
use std::time::Duration;

use fairweir_market::guarantees::{Guarantees, Leases};

use crate::words::chained;

/// How long the policer may take to answer. The market only serves gateways meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// A segment of the policer on this host.
pub(super) struct IspSegment {
    pub(super) run_dir: PathBuf,
    pub(super) segment: String,
    /// The result of the last attempt.
    pub(super) last: String,
}

impl Guarantees for IspSegment {
    fn set(&mut self, leases: &Leases) -> Result<(), String> {
        let term = (leases.generation, leases.until);
        let rates = leases.rates.iter().map(|lease| (lease.contract.clone(), lease.rate));
        let done = crate::isp::lease(&self.run_dir, PATIENCE, &self.segment, term, rates);
        let done = done.map_err(|e| chained(&e));
        self.last = match &done {
            Ok(message) => message.clone(),
            Err(e) => format!("not in force: {e}"),
        };
        done.map(drop)
    }

    fn describe(&self) -> String {
        format!("by the segment `{}` of fairweir isp: {}", self.segment, self.last)
    }
}
