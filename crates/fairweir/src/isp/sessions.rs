//! The interface for sources of sessions: RADIUS and the leases of DHCP servers.

use super::registry::{Change, Registry, RegistryError};

/// The daemon, as seen by a source of sessions.
pub(super) trait Subscribers {
    /// The present plans and subscribers.
    fn registry(&self) -> &Registry;

    /// Begins and ends sessions or leases; returns the result of each.
    ///
    /// # Errors
    /// If the disk or the kernel refuses; nothing has changed then.
    fn change_sessions(
        &mut self,
        changes: &[Change],
    ) -> anyhow::Result<Vec<Result<(), RegistryError>>>;
}
