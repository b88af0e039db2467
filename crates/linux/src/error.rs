use std::io;

/// What was attempted on what, and why the kernel refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel said no.
    #[error("cannot {attempted}: {source}")]
    Refused {
        /// What was attempted, such as `set the link wan up`.
        attempted: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is no such device in this network namespace.
    #[error("there is no network device `{0}`")]
    NoDevice(String),
}

impl Error {
    /// The system's last error, for what was `attempted`.
    pub(crate) fn last_os(attempted: impl Into<String>) -> Error {
        Error::refused(attempted, io::Error::last_os_error())
    }

    pub(crate) fn refused(attempted: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::Refused { attempted: attempted.into(), source: source.into() }
    }

    /// The kernel's error number, if the kernel refused with one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}
