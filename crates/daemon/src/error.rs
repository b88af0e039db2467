//! Errors of daemons and their clients.

use std::io;
use std::path::PathBuf;

use fairweir_config::plain;

/// What was attempted, and why it failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error("cannot {attempted}: {}", plain(.source))]
    Io {
        /// The attempted action, as an infinitive.
        attempted: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file of the state directory cannot be read, or is not to be trusted.
    #[error(transparent)]
    File(#[from] fairweir_config::ConfigError),
    /// Another process holds the lock.
    #[error("`{name}` is controlled by another fairweir (pid {pid}); `fairweir off` stops it")]
    AlreadyRunning {
        /// The instance or the resource.
        name: String,
        /// The process id, as written by the holder; 0 if it has not written it yet.
        pid: i32,
    },
    /// A directory in which others could replace files.
    #[error(
        "{path} is owned by uid {uid} with mode {mode:04o}: it must be a directory of root (or of \
         the caller) that no other user may write to"
    )]
    UnsafeDirectory {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Another process keeps its state there.
    #[error(
        "{path} is the state directory of another fairweir, perhaps of another network namespace; \
         choose another --state-dir"
    )]
    StateInUse {
        /// The directory.
        path: PathBuf,
    },
    /// Another process listens at the socket.
    #[error(
        "another process listens at {path}, perhaps a daemon of another network namespace; choose \
         another --run-dir"
    )]
    SocketInUse {
        /// The socket.
        path: PathBuf,
    },
    /// No daemon listens.
    #[error("no daemon answers for `{name}` in {run_dir}: {}", plain(.source))]
    NotRunning {
        /// The instance.
        name: String,
        /// The directory of the sockets.
        run_dir: PathBuf,
        /// Why connecting failed.
        source: io::Error,
    },
    /// The caller may not use the socket.
    #[error(
        "not permitted to ask the daemon of `{name}` in {run_dir}: its socket is for root, and for the groups of \
         --user-group and --admin-group"
    )]
    NotPermitted {
        /// The instance.
        name: String,
        /// The directory of the sockets.
        run_dir: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The daemon did not answer in time.
    #[error("the daemon of `{name}` has not answered for {seconds} s; `fairweir off` stops it")]
    NoAnswer {
        /// The instance.
        name: String,
        /// How long the client waited.
        seconds: u64,
    },
    /// The connection ended early.
    #[error("the connection to the daemon of `{name}` broke: {why}")]
    Broken {
        /// The instance.
        name: String,
        /// What happened.
        why: String,
    },
    /// A reply of another version.
    #[error("the reply of the daemon of `{name}` is not understood: {why}; check its version")]
    NotUnderstood {
        /// The instance.
        name: String,
        /// The parser's message.
        why: String,
    },
    /// The daemon refused the request.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// Makes an [`Error::Io`]; `attempted` is an infinitive.
    pub fn io(attempted: impl Into<String>, source: io::Error) -> Error {
        Error::Io { attempted: attempted.into(), source }
    }
}
