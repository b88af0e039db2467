//! The daemon's state: the bundles, and the kernel part that carries out their decisions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::bail;
use fairweir_config::sender::{BundleConfig, SenderFile};
use fairweir_core::policy::{Group, Policy};
use fairweir_core::share::Weight;
use fairweir_core::units::{Span, Time};
use fairweir_linux::sender::{Connection, Seat, Sender};
use tracing::{debug, info, warn};

use super::bundle::{Places, Rule, Running};
use crate::words::{chained, count};

/// How often rates are measured and gains decided.
const TICK: Span = Span::millis(100);
/// How often all connections of the host are listed, which takes some milliseconds.
const LOOK: Span = Span::millis(500);

/// The daemon; see the module.
pub(super) struct Daemon {
    path: PathBuf,
    pub(super) file: SenderFile,
    /// `None` once the daemon has ended.
    kernel: Option<Sender>,
    pub(super) bundles: Vec<Running>,
    /// For each group of the policy: the number of its bundle, and the rule in that bundle.
    rules: Vec<(usize, Rule)>,
    pub(super) started: Time,
    look_at: Time,
    pub(super) tick_at: Time,
    pub(super) config_error: Option<String>,
    /// The reason why the last listing or tick failed.
    pub(super) error: Option<String>,
}

impl Daemon {
    /// Loads the congestion controls and switches the existing connections.
    ///
    /// # Errors
    /// If the kernel lacks a feature, or a user does not exist; no connection is switched then.
    pub(super) fn start(file: &SenderFile, now: Time) -> anyhow::Result<Daemon> {
        let (policy, rules) = policy(&file.bundles)?;
        let kernel = Sender::attach(&policy)?;
        for limit in kernel.limits() {
            warn!("{limit}");
        }
        let running = |config: &BundleConfig| Running::new(config.clone(), now);
        let mut daemon = Daemon {
            path: file.path.clone(),
            file: file.clone(),
            kernel: Some(kernel),
            bundles: file.bundles.iter().map(running).collect(),
            rules,
            started: now,
            look_at: now,
            tick_at: now,
            config_error: None,
            error: None,
        };
        daemon.look()?;
        Ok(daemon)
    }

    pub(super) fn kernel(&self) -> Option<&Sender> {
        self.kernel.as_ref()
    }

    /// Called once per [`TICK`].
    pub(super) fn handle_tick(&mut self, now: Time) {
        let done = self.tick(now);
        let error = done.err().map(|e| chained(&e));
        if error != self.error
            && let Some(error) = &error
        {
            warn!("{error}");
        }
        self.error = error;
        self.tick_at = now + TICK;
    }

    fn tick(&mut self, now: Time) -> anyhow::Result<()> {
        let Some(kernel) = &self.kernel else { return Ok(()) };
        kernel.beat()?;
        if now >= self.look_at {
            self.look_at = now + LOOK;
            self.look()?;
        }
        let Some(kernel) = &self.kernel else { return Ok(()) };
        let places = self.bundles.iter().flat_map(|b| b.members.values()).map(|m| m.seat.index);
        let seen = kernel.members(places.max().map_or(0, |last| last + 1))?;
        for (nth, bundle) in self.bundles.iter_mut().enumerate() {
            let before = bundle.apart();
            bundle.handle_tick(now, &seen);
            if bundle.apart() != before {
                let pairs = count(bundle.apart(), "pair");
                info!(bundle = bundle.config.name, "{pairs} of connections share no bottleneck");
            }
            bundle.tell(|index, part| kernel.set_part(index, nth as u32, Some(part)))?;
        }
        Ok(())
    }

    /// Lists the connections of the host, and updates the bundles for new and ended ones.
    fn look(&mut self) -> anyhow::Result<()> {
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        let connections = kernel.connections()?;
        let before = self.seats();
        self.assign(connections);
        let seats = self.seats();
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        for (nth, bundle) in self.bundles.iter_mut().enumerate() {
            bundle.tell(|index, part| kernel.set_part(index, nth as u32, Some(part)))?;
            kernel.set_layout(nth as u32, &bundle.layout())?;
        }
        if before != seats {
            let switched = kernel.seat(&seats)?;
            debug!(switched, connections = seats.len(), "connections switched");
        }
        Ok(())
    }

    /// Assigns each connection to the bundle whose rule names it.
    fn assign(&mut self, connections: Vec<Connection>) {
        let mut named: Vec<Vec<(Connection, Rule)>> = vec![Vec::new(); self.bundles.len()];
        for connection in connections {
            if let Some((bundle, rule)) = self.rules.get(connection.group) {
                named[*bundle].push((connection, *rule));
            }
        }
        let mut places = Places::all();
        for member in self.bundles.iter().flat_map(|b| b.members.values()) {
            places.occupy(member.seat.index);
        }
        for (nth, (bundle, named)) in self.bundles.iter_mut().zip(&named).enumerate() {
            let problem = bundle.problem.clone();
            bundle.take_over(nth, named, &mut places);
            if bundle.problem != problem
                && let Some(problem) = &bundle.problem
            {
                warn!(bundle = bundle.config.name, "{problem}");
            }
        }
    }

    fn seats(&self) -> BTreeMap<u64, Seat> {
        let members = self.bundles.iter().flat_map(|bundle| bundle.members.values());
        members.map(|member| (member.connection.id, member.seat)).collect()
    }

    /// Reads the file again and applies the differences; a file with mistakes changes nothing.
    /// Connections of an unchanged bundle are not touched.
    ///
    /// # Errors
    /// The reason why the old file stays in force.
    pub(super) fn reload(&mut self, dry_run: bool, now: Time) -> anyhow::Result<String> {
        let done = self.take_over(dry_run, now);
        if !dry_run {
            self.config_error = done.as_ref().err().map(chained);
        }
        done
    }

    fn take_over(&mut self, dry_run: bool, now: Time) -> anyhow::Result<String> {
        let file = SenderFile::load(&self.path)?;
        if file.metrics != self.file.metrics {
            bail!("sender.metrics differs from what runs; that needs a restart");
        }
        let (policy, rules) = policy(&file.bundles)?;
        let same = |nth: usize, config: &BundleConfig| {
            self.bundles.get(nth).is_some_and(|running| running.config == *config)
        };
        let changed = (0..file.bundles.len()).filter(|n| !same(*n, &file.bundles[*n])).count();
        let removed = self.bundles.len().saturating_sub(file.bundles.len());
        let said = match changed + removed {
            0 => "nothing changed".to_owned(),
            _ => format!("{} changed, {removed} removed", count(changed, "bundle")),
        };
        if dry_run {
            return Ok(format!("dry run, nothing was changed: {said}"));
        }
        let Some(kernel) = &mut self.kernel else { bail!("the daemon is ending") };
        kernel.set_policy(&policy)?;
        let mut old: Vec<Option<Running>> = self.bundles.drain(..).map(Some).collect();
        for (nth, config) in file.bundles.iter().enumerate() {
            let kept = old.get_mut(nth).and_then(Option::take);
            let kept = kept.filter(|running| running.config == *config);
            self.bundles.push(kept.unwrap_or_else(|| Running::new(config.clone(), now)));
        }
        (self.file, self.rules) = (file, rules);
        // Returns connections of changed bundles first: these bundles may get other places.
        let seats = self.seats();
        if let Some(kernel) = &mut self.kernel {
            kernel.seat(&seats)?;
        }
        self.look()?;
        Ok(said)
    }

    /// Returns all connections to their own congestion control. Idempotent.
    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        let Some(kernel) = self.kernel.take() else { return Ok(()) };
        let given_back = kernel.detach()?;
        info!("{} as before", count(given_back, "connection"));
        Ok(())
    }
}

/// The rules of all bundles as a policy; for each of its groups, the bundle's number and the rule.
pub(super) fn policy(bundles: &[BundleConfig]) -> anyhow::Result<(Policy, Vec<(usize, Rule)>)> {
    let mut groups = Vec::new();
    let mut rules = Vec::new();
    for (nth, bundle) in bundles.iter().enumerate() {
        let free = bundle.free.iter().enumerate().map(|(i, f)| (Rule::Free(i), &f.matches));
        let stunts = bundle.stunts.iter().enumerate().map(|(i, s)| (Rule::Stunt(i), &s.matches));
        for (rule, matches) in free.chain(stunts) {
            let name = format!("{nth}-{}", rules.len());
            groups.push(Group::new(name, Weight::ONE, matches.clone()));
            rules.push((nth, rule));
        }
    }
    Ok((Policy::new(groups)?, rules))
}
