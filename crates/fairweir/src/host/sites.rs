//! The daemon's side of `web:` rules: what the kernel hears goes to the resolver, and what that
//! decides to the kernel.
//!
//! Connections open between two ticks, so the daemon wakes when something was heard, but not more
//! often than every [`PAUSE`]: a process that opens connections as fast as it can costs one batch in
//! each pause.

use std::os::fd::BorrowedFd;

use fairweir_core::evidence::{Evidence, Resolver, Sites};
use fairweir_core::policy::Policy;
use fairweir_core::units::{Span, Time};
use fairweir_linux::{Error, Host};

use crate::wire::{EvidenceStatus, SitesStatus};

/// Which connections belong to which site, as far as was heard.
#[derive(Debug)]
pub(super) struct SiteControl {
    resolver: Resolver,
    has_sites: bool,
    /// Until then nothing is read, since something just was.
    pauses_until: Option<Time>,
}

/// A connection is decided so much later at most.
const PAUSE: Span = Span::millis(5);

impl SiteControl {
    /// For a host that was just attached with `policy`.
    pub(super) fn new(policy: &Policy) -> SiteControl {
        let sites = Sites::of(policy);
        let has_sites = !sites.is_empty();
        SiteControl { resolver: Resolver::new(sites), has_sites, pauses_until: None }
    }

    /// When it wants to read again, if it pauses.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.pauses_until
    }

    /// What to wait for otherwise.
    pub(super) fn waits_for<'h>(&self, host: &'h Host) -> Option<BorrowedFd<'h>> {
        host.heard_fd().filter(|_| self.pauses_until.is_none())
    }

    /// Takes in what was heard, and binds what that decides.
    pub(super) fn listen(&mut self, host: &mut Host, now: Time) -> Result<(), Error> {
        if self.pauses_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        let mut has_heard = false;
        host.take_heard(|connection, heard| {
            has_heard = true;
            self.resolver.handle_heard(connection, heard, now);
        })?;
        self.pauses_until = has_heard.then_some(now + PAUSE);
        self.resolver.handle_time(now);
        self.bind(host)
    }

    /// Takes over another policy, which the host has already.
    pub(super) fn handle_policy(
        &mut self,
        policy: &Policy,
        host: &mut Host,
        now: Time,
    ) -> Result<(), Error> {
        let sites = Sites::of(policy);
        self.has_sites = !sites.is_empty();
        self.resolver.handle_sites(sites, now);
        self.bind(host)
    }

    /// Why the connection `id` belongs to its group, if its host decides.
    pub(super) fn evidence(&self, host: &Host, id: u64) -> Option<&Evidence> {
        self.resolver.evidence(host.evidence_of(id)?)
    }

    /// What was decided; `None` if there is nothing to decide.
    pub(super) fn status(&self, host: Option<&Host>) -> Option<SitesStatus> {
        let counts = self.resolver.counts();
        self.has_sites.then(|| SitesStatus {
            undecided: counts.undecided,
            by_host: counts.by_host,
            by_sni: counts.by_sni,
            by_dns: counts.by_dns,
            unnamed: counts.unnamed,
            mixed: counts.mixed,
            ech: counts.ech,
            encrypted_dns: counts.encrypted_dns,
            lost: host.map_or(0, Host::unheard),
        })
    }

    fn bind(&mut self, host: &mut Host) -> Result<(), Error> {
        while let Some(command) = self.resolver.poll_command() {
            host.bind(&command)?;
        }
        Ok(())
    }
}

/// `with_name` tells which host, which not everybody is to know who may read the status.
pub(super) fn evidence_status(evidence: &Evidence, with_name: bool) -> EvidenceStatus {
    let name = evidence.name.as_ref().filter(|_| with_name);
    EvidenceStatus {
        reason: evidence.reason.name().to_owned(),
        name: name.map(ToString::to_string),
    }
}
