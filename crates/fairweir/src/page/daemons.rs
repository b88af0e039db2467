//! Sends the same request to all daemons of this machine, over connections that are kept open.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairweir_core::units::{Span, Time};
use fairweir_daemon::{Access, Client, Error, instances};
use fairweir_linux::monotonic_now;

/// How long to wait for a daemon's reply; the other daemons are not asked meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// A daemon that did not reply is asked again after this time.
const SILENCE: Span = Span::secs(5);

/// The most daemons that are asked.
const DAEMONS_MAX: usize = 32;

/// The daemons of a run directory.
pub(crate) struct Daemons {
    run_dir: PathBuf,
    clients: BTreeMap<String, Client>,
    /// Daemons that did not reply in time: when each is asked again, and the error.
    silent: BTreeMap<String, (Time, String)>,
}

impl Daemons {
    pub(crate) fn new(run_dir: &Path) -> Daemons {
        let run_dir = run_dir.to_owned();
        Daemons { run_dir, clients: BTreeMap::new(), silent: BTreeMap::new() }
    }

    /// Each daemon's reply or error, by instance. Leaves out a daemon that has ended but whose
    /// socket still exists.
    pub(crate) fn ask_all<T>(
        &mut self,
        ask: impl Fn(&str, &mut Client) -> Result<T, Error>,
    ) -> Vec<(String, Result<T, String>)> {
        let names = instances(&self.run_dir).unwrap_or_default();
        let now = monotonic_now();
        self.clients.retain(|name, _| names.contains(name));
        self.silent.retain(|name, (until, _)| names.contains(name) && now < *until);
        let names = names.into_iter().take(DAEMONS_MAX);
        names.filter_map(|name| Some((name.clone(), self.ask_one(name, &ask)?))).collect()
    }

    fn ask_one<T>(
        &mut self,
        name: String,
        ask: &impl Fn(&str, &mut Client) -> Result<T, Error>,
    ) -> Option<Result<T, String>> {
        if let Some((_, why)) = self.silent.get(&name) {
            return Some(Err(why.clone()));
        }
        let answer = match self.attempt(&name, ask) {
            // A daemon that has just restarted answers at its new socket.
            Err(Error::Broken { .. }) => self.attempt(&name, ask),
            answer => answer,
        };
        let error = match answer {
            Ok(answer) => return Some(Ok(answer)),
            Err(Error::NotRunning { source, .. })
                if source.kind() == std::io::ErrorKind::ConnectionRefused =>
            {
                return None;
            }
            Err(error) => error,
        };
        let why = fairweir_config::one_line(&error.to_string());
        if matches!(error, Error::NoAnswer { .. }) {
            self.silent.insert(name, (monotonic_now() + SILENCE, why.clone()));
        }
        Some(Err(why))
    }

    fn attempt<T>(
        &mut self,
        name: &str,
        ask: &impl Fn(&str, &mut Client) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut client = match self.clients.remove(name) {
            Some(client) => client,
            None => Client::connect(&self.run_dir, name, Access::Read, PATIENCE)?,
        };
        let answer = ask(name, &mut client)?;
        // Kept only after a success: after an error, a late reply may still arrive on it.
        self.clients.insert(name.to_owned(), client);
        Ok(answer)
    }
}
