//! The common interface of a host and a router, as a daemon uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use fairweir_core::policy::Policy;
use fairweir_core::receiver::{Allocation, ConnectionSample, GroupSample, Windows};
use fairweir_core::sites::{Command, Connection, Heard};
use fairweir_core::units::Time;

use crate::Error;
use crate::shape::uplink::Upload;

/// What to do with arriving packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Count them; only the classifier is attached.
    Count,
    /// Count and shape them, from the first [`Attached::apply`] on.
    Shape,
}

/// The state of the kernel objects that were created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Everything is as it was created.
    Well,
    /// Another process removed something; everything passes unshaped until [`Attached::repair`].
    Broken {
        /// What was removed, in words.
        what: String,
    },
    /// The device itself is gone; attach anew when it is back.
    DeviceGone,
}

/// The place where the download is counted and shaped: a host's device, or a router's two sides.
///
/// Everything that it creates in the kernel is removed when it drops.
pub trait Attached {
    /// Takes over a new policy, touching only what changed: a group that keeps its name keeps its
    /// class, its queue and its counters.
    ///
    /// # Errors
    /// If a user does not exist or the kernel refuses; then the old policy stays.
    fn set_policy(&mut self, policy: &Policy) -> Result<(), Error>;

    /// What each group received since the last call, in the policy's order.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn take_samples(&mut self) -> Result<Vec<GroupSample>, Error>;

    /// What each connection received since the last call, by id: the connections that received
    /// something or have a bound, at most [`fairweir_core::receiver::CONNECTIONS_MAX`]. Empty if
    /// the kernel cannot watch connections.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn take_connections(&mut self) -> Result<Vec<ConnectionSample>, Error>;

    /// Marks leaving flows with the DSCP of their group, in the policy's order, until the policy
    /// changes or the process stops beating; `None` stops marking.
    ///
    /// # Errors
    /// If marks were not asked for when this was attached, or the kernel is older than 6.6, or refuses.
    fn set_marks(&mut self, of_groups: Option<&[u8]>) -> Result<(), Error>;

    /// Changes the classes to those of `allocation`, in one batch and only where they differ, and
    /// lets packets through them.
    ///
    /// # Errors
    /// If the kernel refuses; then everything passes unshaped.
    ///
    /// # Panics
    /// If the allocation has another number of classes than the policy has groups.
    fn apply(&mut self, allocation: &Allocation) -> Result<(), Error>;

    /// Lets everything pass unshaped until the next [`Attached::apply`].
    ///
    /// # Errors
    /// If the kernel refuses.
    fn release(&mut self) -> Result<(), Error>;

    /// Bounds the windows of exactly these connections. A host keeps a bound that differs little
    /// from the new one.
    ///
    /// # Errors
    /// If the kernel refuses; then nothing is bounded.
    ///
    /// # Panics
    /// If there is another number of initial windows than the policy has groups.
    fn apply_windows(&mut self, windows: &Windows) -> Result<(), Error>;

    /// Lifts the bounds of all windows until the next [`Attached::apply_windows`].
    ///
    /// # Errors
    /// If the kernel refuses.
    fn release_windows(&mut self) -> Result<(), Error>;

    /// Whether the window of the connection `id` is bounded, as last applied.
    fn is_bounded(&self, id: u64) -> bool;

    /// The shaper of what leaves by the device that faces the Internet; `None` if the upload is not shared.
    fn upload(&mut self) -> Option<Upload<'_>>;

    /// Lets leaving packets pass unshaped.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn release_upload(&mut self) -> Result<(), Error> {
        self.upload().map_or(Ok(()), |mut upload| upload.release())
    }

    /// Passes on what was heard of connections since the last call, with times and in order: at
    /// most 1,024 pieces. Nothing if the policy has no sites, or the kernel cannot hear.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn take_heard(
        &mut self,
        each: &mut dyn FnMut(Connection, Heard<'_>, Time),
    ) -> Result<(), Error>;

    /// A descriptor that becomes readable when something was heard of connections.
    fn heard_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Binds a connection to a group, on a router to a label
    /// ([`fairweir_core::sites::InnerSites`]), or forgets it.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn bind(&mut self, command: &Command) -> Result<(), Error>;

    /// Adds connections that were open before to the table, so that they can be bound.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn take_over(
        &mut self,
        connections: &mut dyn Iterator<Item = &Connection>,
    ) -> Result<(), Error>;

    /// The number of the evidence that decided the class of each of these connections, by id: as
    /// last watched, and on a router only where a site decides.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn evidence_of(&self, ids: &BTreeSet<u64>) -> Result<BTreeMap<u64, u64>, Error>;

    /// Number of beginnings of connections that were lost since the start because the ring was
    /// full, as of the last [`Attached::take_samples`].
    fn unheard(&self) -> u64;

    /// Tells the BPF programs that this process is alive. After two seconds without a call
    /// everything passes unshaped, and windows have no bounds.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn beat(&mut self) -> Result<(), Error>;

    /// Checks whether everything is still there; if not, everything passes unshaped from now on.
    fn health(&mut self) -> Health;

    /// Restores what was removed ([`Health::Broken`]); packets have classes from the next
    /// [`Attached::apply`] on.
    ///
    /// # Errors
    /// If the kernel refuses, or another program uses the device now.
    fn repair(&mut self) -> Result<(), Error>;

    /// Removes everything, as dropping does, and reports what went wrong. Idempotent.
    ///
    /// # Errors
    /// If something could not be removed.
    fn detach(&mut self) -> Result<(), Error>;
}

impl Health {
    /// The health, from a check that found a fault, no fault, or [`Error::NoDevice`]. If something
    /// is broken, `release` lets everything pass.
    pub(crate) fn of(
        fault: Result<Option<String>, Error>,
        release: impl FnOnce() -> Result<(), Error>,
    ) -> Health {
        let broken = match fault {
            Ok(None) => return Health::Well,
            Err(Error::NoDevice(_)) => return Health::DeviceGone,
            Ok(Some(what)) => what,
            Err(e) => e.to_string(),
        };
        match release() {
            Ok(()) => Health::Broken { what: broken },
            Err(e) => Health::Broken { what: format!("{broken}; {e}") },
        }
    }
}
