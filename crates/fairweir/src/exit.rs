//! Exit codes: 0 for success, 1 for a failure, 2 for a wrong command line or configuration.
//!
//! systemd does not restart a daemon that exits with 2: only an edit can help. See
//! `RestartPreventExitStatus=` in `dist/`.

use std::error::Error;

use fairweir_config::ConfigError;

use crate::words::chained;

/// Something failed that may work later, or elsewhere.
const FAILURE: u8 = 1;

/// The command line or a file must be edited first; clap's code for wrong usage too.
const USAGE: u8 = 2;

/// The command line or a configuration is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Marks an error as one of the command line or of a configuration.
pub(crate) fn usage(error: anyhow::Error) -> anyhow::Error {
    Usage(chained(&error)).into()
}

/// What the process exits with after `error`.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    let is_usage = error
        .chain()
        .any(|cause| cause.is::<Usage>() || cause.is::<ConfigError>() || is_of_runs(cause));
    if is_usage { USAGE } else { FAILURE }
}

/// Whether the runs that were asked for cannot be played.
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

    #[test]
    fn only_wrong_usage_exits_with_2() {
        assert_eq!(code_of(&anyhow!("the kernel refuses")), 1);
        assert_eq!(code_of(&usage(anyhow!("bad").context("fairweir.toml"))), 2);
        let deep = Err::<(), _>(Usage("bad".into())).context("while starting").unwrap_err();
        assert_eq!(code_of(&deep), 2);
        assert_eq!(usage(anyhow!("cause").context("text")).to_string(), "text: cause");
    }
}
