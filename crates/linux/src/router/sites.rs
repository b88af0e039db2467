//! Connections of devices that belong to sites: `bpf/router_site.h`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use fairweir_core::sites::{Command, Connection, Heard};
use fairweir_core::units::Time;

use super::Router;
use crate::Error;
use crate::classify::leaf;
use crate::classify::site::{self, Ear};

impl Router {
    /// Passes on what was heard of connections of devices since the last call, and when, in its order, as
    /// [`crate::Host::take_heard`] does.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_heard(
        &mut self,
        each: impl FnMut(Connection, Heard<'_>, Time),
    ) -> Result<(), Error> {
        self.sites_ear.as_ref().map_or(Ok(()), |ear| ear.read_heard(each))
    }

    /// What becomes readable when something was heard of connections.
    pub fn heard_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sites_ear.as_ref().map(Ear::fd)
    }

    /// Binds a connection to a label ([`fairweir_core::sites::InnerSites`]), or forgets it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn bind(&mut self, command: &Command) -> Result<(), Error> {
        if !site::bind(&self.programs.bound, leaf::label_rule, command)? {
            return Ok(());
        }
        self.config.recent.forget();
        self.configure()
    }

    /// Takes connections that were open before into the table, so that they can be bound.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn take_over<'c>(
        &mut self,
        mut connections: impl Iterator<Item = &'c Connection>,
    ) -> Result<(), Error> {
        let flows = &self.programs.bound;
        connections.try_for_each(|connection| site::take_over(flows, connection))?;
        self.config.recent.forget();
        self.configure()
    }

    /// By which evidence each of these connections has its class, by id, if a site decides.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn evidence_of(&self, ids: &BTreeSet<u64>) -> Result<BTreeMap<u64, u64>, Error> {
        if self.sites_ear.is_none() {
            return Ok(BTreeMap::new());
        }
        self.programs.evidence(ids)
    }

    /// Beginnings of connections that were lost because they were more than the ring holds, since the start,
    /// as of the last [`Router::take_samples`].
    pub fn unheard(&self) -> u64 {
        self.unheard
    }
}
