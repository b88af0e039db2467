//! Tells the daemons that shape at home the rate of the current slot, every second and at each change.
//!
//! It uses a thread of its own, so that a daemon that hangs delays nothing else. A guarantee expires by itself
//! (`fairweir_core::market::guarantee`), so it must be repeated; if the agent is killed, no guarantee remains.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fairweir_config::agent::Told;
use fairweir_config::host::Role;
use fairweir_core::market::guarantee::Guarantee;
use fairweir_core::units::{Span, Time};
use fairweir_daemon::{Access, Client, Error, instances};
use serde::Serialize;

use crate::instance::PROXY;
use crate::words::chained;

/// How long to wait for a daemon; it answers within a tick.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often an unchanged rate is repeated.
const AGAIN_AFTER: Span = Span::secs(1);

/// The result of the last attempt for a daemon.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Said {
    daemon: String,
    /// The daemon's reply, or the error.
    said: String,
    is_followed: bool,
}

/// Tells daemons; see the module.
pub(super) struct Teller {
    asks: SyncSender<(Vec<Told>, Guarantee)>,
    said: Arc<Mutex<Vec<Said>>>,
    /// The guarantee that was told last, and when.
    told: Option<(Guarantee, Time)>,
}

/// A request to `fairweir host`, `fairweir router` and `fairweir proxy`.
#[derive(Serialize)]
#[serde(tag = "request", rename_all = "snake_case")]
enum Request {
    Guarantee(Guarantee),
}

impl Teller {
    /// Starts a teller for the daemons whose sockets are in a directory.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(run_dir: &Path) -> io::Result<Teller> {
        let (asks, asked) = sync_channel(1);
        let said = Arc::default();
        let (run_dir, results) = (run_dir.to_owned(), Arc::clone(&said));
        let tell = move || tell_all(&run_dir, &asked, &results);
        thread::Builder::new().name("market-tell".to_owned()).spawn(tell)?;
        Ok(Teller { asks, said, told: None })
    }

    /// Tells the present guarantee, unless the same was told less than [`AGAIN_AFTER`] ago.
    pub(super) fn handle_tick(&mut self, told: &[Told], guarantee: Option<Guarantee>, now: Time) {
        let Some(guarantee) = guarantee.filter(|_| !told.is_empty()) else {
            self.told = None;
            return;
        };
        let is_known = |(told, at): (Guarantee, Time)| {
            let what = |told: Guarantee| (told.rate_bps, told.hold, told.importance);
            what(told) == what(guarantee) && now.since(at) < AGAIN_AFTER
        };
        if self.told.is_some_and(is_known) {
            return;
        }
        match self.asks.try_send((told.to_vec(), guarantee)) {
            Ok(()) => self.told = Some((guarantee, now)),
            // The thread still waits for a daemon. A later tick sends the guarantee of that time.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// Whether a daemon follows the guarantee that was told last.
    pub(super) fn is_followed(&self) -> bool {
        self.said().iter().any(|said| said.is_followed)
    }

    /// The last result for each daemon.
    pub(super) fn said(&self) -> Vec<Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn tell_all(run_dir: &Path, asked: &Receiver<(Vec<Told>, Guarantee)>, results: &Mutex<Vec<Said>>) {
    for (told, guarantee) in asked {
        let mut said = Vec::new();
        for told in told {
            match names(run_dir, told) {
                Ok(names) => {
                    said.extend(names.into_iter().map(|name| tell(run_dir, name, guarantee)))
                }
                Err(e) => said.push(Said {
                    daemon: format!("{told:?}").to_lowercase(),
                    said: chained(&e.into()),
                    is_followed: false,
                }),
            }
        }
        *results.lock().unwrap_or_else(PoisonError::into_inner) = said;
    }
}

/// The running instances of a kind.
fn names(run_dir: &Path, told: Told) -> Result<Vec<String>, Error> {
    let is_one = |name: &String| match told {
        Told::Host => name.starts_with(Role::Host.prefix()),
        Told::Router => name.starts_with(Role::Router.prefix()),
        Told::Proxy => name == PROXY,
    };
    Ok(instances(run_dir)?.into_iter().filter(is_one).collect())
}

fn tell(run_dir: &Path, daemon: String, guarantee: Guarantee) -> Said {
    let done = Client::connect(run_dir, &daemon, Access::Change, PATIENCE)
        .and_then(|mut client| client.tell(&Request::Guarantee(guarantee), &mut |_, _| ()));
    let is_followed = done.is_ok();
    Said { daemon, said: done.unwrap_or_else(|e| chained(&e.into())), is_followed }
}
