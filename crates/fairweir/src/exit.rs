//! Exit codes of the process: one table for all commands, and the mapping from error types to codes.
//!
//! systemd does not restart a daemon that exits with 2, because only an edit can help. See `RestartPreventExitStatus=`
//! in `dist/`. The other causes may disappear without an edit: an interface appears, another program ends.

use std::error::Error;
use std::io::ErrorKind;

use fairweir_config::ConfigError;
use nix::errno::Errno;

use crate::words::chained;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    /// The command failed, but may work later or on another machine.
    Failed = 1,
    /// The command line or a file must be edited first; clap uses the same code for wrong usage.
    Usage = 2,
    /// The same code as in `systemctl status`.
    NotRunning = 3,
    NotPermitted = 4,
    Occupied = 5,
}

/// Every code, with an explanation for people.
pub(crate) const TABLE: [(Exit, &str); 6] = [
    (Exit::Done, "done"),
    (Exit::Failed, "failed"),
    (Exit::Usage, "wrong command line or file"),
    (Exit::NotRunning, "the daemon does not run"),
    (Exit::NotPermitted, "not permitted"),
    (Exit::Occupied, "another program or daemon occupies the place"),
];

/// The table, as one sentence.
pub(crate) fn sentence() -> String {
    let codes = TABLE.map(|(exit, meaning)| format!("{} {meaning}", exit.code()));
    format!("Exit codes: {}.", codes.join(", "))
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// The exit code for `error`: the outermost cause that has a code decides.
    pub(crate) fn of(error: &anyhow::Error) -> Exit {
        error.chain().find_map(of_cause).unwrap_or(Exit::Failed)
    }
}

/// The command line or a configuration is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Marks an error as a mistake in the command line or in a configuration.
pub(crate) fn usage(error: anyhow::Error) -> anyhow::Error {
    match Exit::of(&error) {
        Exit::Usage => error,
        _ => Usage(chained(&error)).into(),
    }
}

/// An error with a text of its own instead of that of its causes, and with their exit code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Reworded {
    pub(crate) exit: Exit,
    pub(crate) what: String,
}

/// See [`Reworded`].
pub(crate) fn reworded(exit: Exit, what: impl Into<String>) -> anyhow::Error {
    Reworded { exit, what: what.into() }.into()
}

fn of_cause(cause: &(dyn Error + 'static)) -> Option<Exit> {
    if let Some(Reworded { exit, .. }) = cause.downcast_ref() {
        return Some(*exit);
    }
    if let Some(error) = cause.downcast_ref::<ConfigError>() {
        return Some(if error.is_refused() { Exit::NotPermitted } else { Exit::Usage });
    }
    if let Some(error) = cause.downcast_ref::<fairweir_daemon::Error>() {
        return of_daemon(error);
    }
    if let Some(fairweir_linux::Error::Occupied { .. }) = cause.downcast_ref() {
        return Some(Exit::Occupied);
    }
    if let Some(error) = cause.downcast_ref::<std::io::Error>() {
        return of_kernel(error.kind());
    }
    if let Some(&errno) = cause.downcast_ref::<Errno>() {
        return of_kernel(std::io::Error::from(errno).kind());
    }
    (cause.is::<Usage>() || is_of_runs(cause)).then_some(Exit::Usage)
}

fn of_daemon(error: &fairweir_daemon::Error) -> Option<Exit> {
    use fairweir_daemon::Error;
    match error {
        Error::NotRunning { .. } => Some(Exit::NotRunning),
        Error::NotPermitted { .. } => Some(Exit::NotPermitted),
        Error::AlreadyRunning { .. } | Error::StateInUse { .. } | Error::SocketInUse { .. } => {
            Some(Exit::Occupied)
        }
        // The cause of this error decides.
        Error::Io { .. } => None,
        // The file's error is shown in place of this one, and is therefore not in its chain of causes.
        Error::File(error) => of_cause(error),
        Error::UnsafeDirectory { .. }
        | Error::NoAnswer { .. }
        | Error::Broken { .. }
        | Error::NotUnderstood { .. }
        | Error::Refused(_) => Some(Exit::Failed),
    }
}

fn of_kernel(kind: ErrorKind) -> Option<Exit> {
    match kind {
        ErrorKind::PermissionDenied => Some(Exit::NotPermitted),
        ErrorKind::AddrInUse => Some(Exit::Occupied),
        _ => None,
    }
}

/// Whether the error says that the requested runs cannot be played.
#[cfg(feature = "lab")]
fn is_of_runs(cause: &(dyn Error + 'static)) -> bool {
    cause.is::<fairweir_scenario::play::BadRuns>()
}

#[cfg(not(feature = "lab"))]
fn is_of_runs(_: &(dyn Error + 'static)) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};
    use std::io;
    use std::path::Path;

    #[test]
    fn the_type_of_an_error_decides_the_exit_code_and_never_its_words() {
        let io = |kind| fairweir_daemon::Error::io("open it", io::Error::from(kind));
        let occupied = || fairweir_linux::Error::Occupied {
            dev: "eth0".into(),
            found: "a qdisc".into(),
            remedy: "tc".into(),
        };
        let not_running = || fairweir_daemon::Error::NotRunning {
            name: "isp".into(),
            run_dir: "/run/x".into(),
            source: ErrorKind::NotFound.into(),
        };
        let already = || fairweir_daemon::Error::AlreadyRunning { name: "isp".into(), pid: 7 };
        let wrong = || ConfigError::whole_file(Path::new("a.toml"), "is wrong");
        let rows: [(anyhow::Error, u8); 15] = [
            (anyhow!("the kernel refuses"), 1),
            (anyhow!("Operation not permitted: Permission denied, exit code 2"), 1),
            (usage(anyhow!("bad").context("fairweir.toml")), 2),
            (Err::<(), _>(Usage("bad".into())).context("while starting").unwrap_err(), 2),
            (wrong().into(), 2),
            (fairweir_daemon::Error::File(wrong()).into(), 2),
            (anyhow::Error::from(not_running()).context("start it"), 3),
            (reworded(Exit::NotRunning, "no daemon"), 3),
            (anyhow!(io(ErrorKind::PermissionDenied)).context("while starting"), 4),
            (io(ErrorKind::NotFound).into(), 1),
            (Errno::EPERM.into(), 4),
            (Errno::EACCES.into(), 4),
            (Errno::EADDRINUSE.into(), 5),
            (anyhow!(occupied()).context("while starting"), 5),
            (already().into(), 5),
        ];
        for (error, code) in rows {
            assert_eq!(Exit::of(&error).code(), code, "{error:#}");
        }
        assert_eq!(usage(anyhow!("cause").context("text")).to_string(), "text: cause");
    }

    #[test]
    fn the_table_has_every_code_once_in_order() {
        assert_eq!(TABLE.map(|(exit, _)| exit.code()), [0, 1, 2, 3, 4, 5]);
    }
}
