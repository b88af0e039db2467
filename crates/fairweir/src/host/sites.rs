//! The daemon's side of `web:` rules: what the kernel hears goes to the resolver, and the
//! resolver's decisions go to the kernel.
//!
//! Connections open between two ticks, so the daemon wakes when something was heard, but at most
//! once every [`PAUSE`]. So a process that opens connections as fast as it can costs one batch in
//! each pause.
//!
//! Browsers' extensions report for which sites their requests are made. They send these reports to
//! a daemon's socket for claims, to which every local user may send.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use fairweir_core::policy::Policy;
use fairweir_core::sites::{Attribution, CLAIMANT_SPAN, Command, Connection, Flow, Kept, Resolver};
use fairweir_core::units::{Span, Time};
use fairweir_linux::{Error, monotonic_now, random};

use super::claims::{Checks, Told};
use super::kept::{KeptConnections, patterns};
use super::point::Point;
use super::wire::{ClaimsConfig, ClaimsGroup, ClaimsRequest, EvidenceStatus, SitesStatus};

/// The site of each connection, as far as it is known.
#[derive(Debug)]
pub(super) struct SiteControl {
    resolver: Resolver,
    has_sites: bool,
    checks: Checks,
    /// The salt of the hashed names in claims.
    salt: String,
    /// Differs from the generation of every other policy, including those of earlier daemons.
    generation: u64,
    /// Nothing is read before this time, since there was a reading just before.
    pauses_until: Option<Time>,
}

/// Bits of a random number that a generation leaves out, so that JavaScript represents it exactly.
const GENERATION_SHIFT: u32 = 16;

/// The longest delay until a connection is assigned.
const PAUSE: Span = Span::millis(5);

impl SiteControl {
    /// Starts for a point that was just attached with `policy`, with what an earlier daemon has kept.
    ///
    /// # Errors
    /// If the kernel has no random bytes.
    pub(super) fn new(
        point: &mut Point,
        policy: &Policy,
        kept: Option<KeptConnections>,
    ) -> Result<SiteControl, Error> {
        let sites = point.sites(policy);
        let has_sites = !sites.is_empty();
        let salt = format!("{:016x}{:016x}", random()?, random()?);
        let resolver = Resolver::new(sites, salt.clone());
        let generation = random()? >> GENERATION_SHIFT;
        let checks = Checks::new();
        let mut control =
            SiteControl { resolver, has_sites, checks, salt, generation, pauses_until: None };
        let kept = kept.filter(|_| has_sites).map(|kept| kept.under(policy)).unwrap_or_default();
        if let Err(e) = control.take_over(point, kept) {
            tracing::warn!("connections that are open match no `web:` rule: {e}");
        }
        Ok(control)
    }

    fn take_over(&mut self, point: &mut Point, kept: Vec<Kept>) -> Result<(), Error> {
        if kept.is_empty() {
            return Ok(());
        }
        point.take_over(&mut kept.iter().map(|kept| &kept.connection))?;
        kept.into_iter().for_each(|kept| self.resolver.handle_kept(kept));
        self.bind(point)
    }

    /// What is known of connections under `policy`, for the next daemon.
    pub(super) fn kept(&self, policy: &Policy) -> KeptConnections {
        KeptConnections::new(policy, self.resolver.kept())
    }

    /// When to read again, during a pause.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.pauses_until
    }

    /// The descriptor to wait for, outside a pause.
    pub(super) fn waits_for<'p>(&self, point: &'p Point) -> Option<BorrowedFd<'p>> {
        point.heard_fd().filter(|_| self.pauses_until.is_none())
    }

    /// Reads what the kernel heard, and binds connections as the resolver decides.
    pub(super) fn listen(&mut self, point: &mut Point, now: Time) -> Result<(), Error> {
        if self.pauses_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        let mut has_heard = false;
        point.take_heard(&mut |connection, heard, at| {
            has_heard = true;
            self.resolver.handle_heard(connection, heard, at);
        })?;
        self.pauses_until = has_heard.then_some(now + PAUSE);
        self.resolver.handle_time(now);
        self.bind(point)
    }

    /// Adopts another policy, which the point already has.
    pub(super) fn handle_policy(
        &mut self,
        policy: &Policy,
        point: &mut Point,
        now: Time,
    ) -> Result<(), Error> {
        let sites = point.sites(policy);
        self.has_sites = !sites.is_empty();
        self.generation += 1;
        self.resolver.handle_sites(sites, now);
        self.bind(point)
    }

    /// Handles a message of a user's extension; returns the reply.
    pub(super) fn handle_claims(
        &mut self,
        user: u32,
        request: &ClaimsRequest,
        policy: &Policy,
        point: &mut Point,
    ) -> Result<(), Error> {
        let groups = (policy.groups().len(), policy.default_group());
        // Both clocks are read here, because the loop may have been busy since the request arrived.
        let (now, wall) = (monotonic_now(), SystemTime::now());
        let wall = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = (now, wall.as_secs_f64() * 1e3);
        let all = self.checks.pass(user, request, self.generation, groups, at);
        if self.has_sites {
            self.resolver.handle_claimant(user, now);
        }
        for told in &all {
            match told {
                Told::Departure(departure) => self.resolver.handle_departure(departure),
                Told::Claim(claim) if self.resolver.handle_claim(claim, now) => {
                    self.checks.counts.counted += 1;
                }
                Told::Claim(_) => self.checks.counts.unmatched += 1,
            }
        }
        self.bind(point)
    }

    /// Counts a message that is not a valid request.
    pub(super) fn handle_malformed(&mut self) {
        self.checks.counts.malformed += 1;
    }

    /// The generation of the configuration that extensions must know.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// What an extension must know of `policy`, which is in force.
    pub(super) fn claims_config(&self, policy: &Policy) -> ClaimsConfig {
        let groups = policy.groups().iter().map(|group| ClaimsGroup {
            name: group.name.clone(),
            weight: group.weight,
            sites: patterns(group),
        });
        ClaimsConfig { salt: self.salt.clone(), groups: groups.collect() }
    }

    /// For each of these connections, by id, how its host is known, if the host decides its group.
    pub(super) fn evidence(
        &self,
        point: &Point,
        ids: &BTreeSet<u64>,
    ) -> BTreeMap<u64, &Attribution> {
        let numbers = point.evidence_of(ids).unwrap_or_else(|e| {
            tracing::warn!("cannot tell by which names connections have their groups: {e}");
            BTreeMap::new()
        });
        let known = numbers.into_iter();
        known.filter_map(|(id, number)| Some((id, self.resolver.attribution(number)?))).collect()
    }

    /// How connections were assigned; `None` if there are no `web:` rules.
    pub(super) fn status(&self, point: Option<&Point>, now: Time) -> Option<SitesStatus> {
        let counts = self.resolver.counts();
        let mut claims = self.checks.counts;
        claims.users = self.checks.users(now, CLAIMANT_SPAN);
        self.has_sites.then(|| SitesStatus {
            claims,
            undecided: counts.undecided,
            by_extension: counts.by_extension,
            by_host: counts.by_host,
            by_sni: counts.by_sni,
            by_dns: counts.by_dns,
            unnamed: counts.unnamed,
            mixed: counts.mixed,
            ech: counts.ech,
            encrypted_dns: counts.encrypted_dns,
            lost: point.map_or(0, |point| point.unheard()),
        })
    }

    fn bind(&mut self, point: &mut Point) -> Result<(), Error> {
        while let Some(command) = self.resolver.poll_command() {
            point.bind(&command)?;
            if let Command::Bind { connection: Connection { flow, .. }, group, number, .. } =
                command
            {
                let reason =
                    self.resolver.attribution(number).map(|evidence| evidence.reason.name());
                let Flow { transport, local, remote } = flow;
                tracing::debug!(?transport, %local, %remote, ?group, reason, "bound a connection");
            }
        }
        Ok(())
    }
}

/// How a host is known. `with_name` includes its name, which not every user who may read the status may know.
pub(super) fn evidence_status(evidence: &Attribution, with_name: bool) -> EvidenceStatus {
    let name = evidence.name.as_ref().filter(|_| with_name);
    EvidenceStatus {
        reason: evidence.reason.name().to_owned(),
        name: name.map(ToString::to_string),
    }
}
