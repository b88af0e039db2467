//! The connection over which commands send requests to the daemon.

use std::io;
use std::time::Duration;

use fairweir_daemon::{Access, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::NAME;
use crate::daemon_args::{RunDir, connect_patiently};
use crate::progress::Count;

/// How long a daemon may send nothing, not even a progress report.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// A connection to the daemon that reports the progress of a long request on stderr.
pub(super) struct Asker {
    pub(super) client: Client,
}

impl Asker {
    /// Connects for requests that need `access`.
    ///
    /// # Errors
    /// If no daemon listens there.
    pub(super) fn connect(run_dir: &RunDir, access: Access) -> anyhow::Result<Asker> {
        let client = connect_patiently(&run_dir.run_dir, NAME, access, PATIENCE)?;
        Ok(Asker { client })
    }

    /// Sends a request and reads the value in the reply.
    ///
    /// # Errors
    /// The daemon's error if it refuses.
    pub(super) fn ask<T: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
    ) -> anyhow::Result<T> {
        let count = Count::new("done:", "subscribers");
        let value = self.client.ask_slowly(request, &mut |done, of| count.show(done, of));
        count.end();
        Ok(value?)
    }

    /// Sends a request to change something; returns the daemon's message.
    ///
    /// # Errors
    /// The reason if it was not done.
    pub(super) fn tell(&mut self, request: &impl Serialize) -> anyhow::Result<String> {
        let count = Count::new("done:", "subscribers");
        let message = self.client.tell(request, &mut |done, of| count.show(done, of));
        count.end();
        Ok(message?)
    }
}

/// Whether the error means that no daemon is at the socket.
pub(super) fn is_absent(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}
