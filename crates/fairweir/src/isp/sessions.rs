//! What begins and ends sessions of subscribers: RADIUS and the leases of DHCP servers.

use super::registry::{Change, Registry, RegistryError};

/// The daemon, as a source of sessions sees it.
pub(super) trait Subscribers {
    /// Who is known.
    fn registry(&self) -> &Registry;

    /// Lets sessions or leases begin and end; returns which of them could not be.
    ///
    /// # Errors
    /// If the disk or the kernel refuses; then nothing has changed.
    fn change_sessions(
        &mut self,
        changes: &[Change],
    ) -> anyhow::Result<Vec<Result<(), RegistryError>>>;
}
