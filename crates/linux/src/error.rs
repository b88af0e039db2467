use std::io;
use std::path::PathBuf;

/// What was attempted, on what, and why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused.
    #[error("cannot {attempted}: {source}")]
    Refused {
        /// What was attempted, such as `set the link wan up`.
        attempted: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused the BPF programs.
    #[error("cannot {attempted}: {source}{}", separated(.log))]
    Bpf {
        /// What was attempted, such as `load the programs`.
        attempted: String,
        /// The kernel's answer.
        source: io::Error,
        /// What the loader and the kernel's verifier wrote, if anything.
        log: String,
    },
    /// There is no such device in this network namespace.
    #[error("no interface `{0}`")]
    NoDevice(String),
    /// Other software uses what fairweir needs; it is never replaced.
    #[error("{dev} is in use: {found}; to remove it: `{remedy}`")]
    Occupied {
        /// The device.
        dev: String,
        /// The object that is in the way.
        found: String,
        /// The command that removes it.
        remedy: String,
    },
    /// The pinned objects could be another user's.
    #[error(
        "{} has owner {owner} and mode {mode:o}; it must belong to this user, and others may not write there",
        dir.display()
    )]
    Untrusted {
        /// The directory.
        dir: PathBuf,
        /// The directory's owner.
        owner: u32,
        /// The directory's permissions.
        mode: u32,
    },
    /// Packets do not pass where fairweir counts and shapes them.
    #[error("packets are taken past the classifier: {found}; {remedy}")]
    Bypassed {
        /// What takes the packets past the classifier.
        found: String,
        /// How to end that.
        remedy: String,
    },
    /// Packets to the Internet use other interfaces than the named ones.
    #[error("{found}; set `wan = {right}`")]
    Elsewhere {
        /// Which packets use which interface.
        found: String,
        /// The right value of the setting.
        right: String,
    },
    /// There is no such user.
    #[error("no user `{0}`")]
    NoUser(String),
    /// Applications, units and users cannot be distinguished without it.
    #[error("no cgroup v2 hierarchy (mount of type cgroup2)")]
    NoCgroups,
    /// A subscriber was given a plan that was never made.
    #[error("no plan number {0}")]
    UnknownPlan(u16),
    /// A plan that subscribers have cannot be removed.
    #[error("plan number {plan} cannot be removed: {users} subscriber directions use it")]
    PlanInUse {
        /// The plan.
        plan: u16,
        /// Number of directions of subscribers that have it.
        users: u32,
    },
    /// The subscriber was removed.
    #[error("no such subscriber")]
    UnknownSubscriber,
    /// Only plans for clients can be divided by them.
    #[error("the subscriber's plan is not divided by clients")]
    NoClients,
    /// A subscriber without an address would have no packets.
    #[error("a subscriber needs an address")]
    NoAddress,
    /// An address can only lead to one subscriber.
    #[error("the address {0} belongs to another subscriber")]
    AddressTaken(ipnet::IpNet),
    /// The kernel's tables have a size.
    #[error("too many {what} (at most {max})")]
    TooMany {
        /// The kind of entries.
        what: String,
        /// The maximum number of entries.
        max: u32,
    },
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
            Error::Refused { source, .. } | Error::Bpf { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

fn separated(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\n{}", log.trim_end()) }
}
