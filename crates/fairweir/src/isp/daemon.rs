//! The daemon's state: the registry, its journal, and the kernel state that follows from them.
//!
//! Invariant: registry, journal and kernel agree. A change that one of them refuses is undone in
//! the others.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use fairweir_config::isp::{IspFile, IspSection, SegmentEntry, csv};
use fairweir_core::units::{Span, Time};
use fairweir_daemon::StateDir;
use fairweir_linux::monotonic_now;
use tracing::{info, warn};

use super::assemble::assemble;
use super::clients::Clients;
use super::journal::{self, Journal, Overlay};
use super::kernel::Kernel;
use super::last_good;
use super::leases::Leases;
use super::meter::Meter;
use super::nat::Nat;
use super::radius::Radius;
use super::registry::{Change, Effects, Origin, Record, Registry, RegistryError, Undo};
use super::segments::{self, Segments};
use super::sessions::Subscribers;
use super::usage::Usage;
use super::wire::Imported;
use crate::exit::usage;
use crate::words::{chained, count};

/// How often a missing link is attached again, and rates are measured.
pub(super) const TICK: Span = Span::secs(1);

/// The most bad rows that are reported.
const BAD_ROWS_MAX: usize = 1_000;

/// How the files are to be read again.
#[derive(Clone, Copy, Debug)]
struct Reload {
    dry_run: bool,
    force: bool,
}

/// Called with the number of subscribers that are done, and of all.
pub(super) type Progress<'p> = dyn FnMut(usize, usize) + 'p;

/// The daemon; see the module.
pub(super) struct Daemon {
    path: PathBuf,
    table: Option<PathBuf>,
    /// Whether the table had an end mark.
    has_end: bool,
    pub(super) isp: IspSection,
    pub(super) registry: Registry,
    journal: Journal,
    pub(super) kernel: Kernel,
    entries: Vec<SegmentEntry>,
    pub(super) segments: Segments,
    pub(super) radius: Option<Radius>,
    pub(super) leases: Option<Leases>,
    pub(super) usage: Option<Usage>,
    pub(super) clients: Clients,
    pub(super) nat: Nat,
    pub(super) meter: Meter,
    pub(super) started: Time,
    /// The reason if all traffic passes.
    pub(super) open_reason: Option<String>,
    pub(super) config_error: Option<String>,
    state: StateDir,
}

impl Daemon {
    /// Reads the files, loads the kernel part, and attaches it.
    ///
    /// # Errors
    /// The first error; nothing is attached then.
    pub(super) fn start(
        mut file: IspFile,
        mut config_error: Option<String>,
        state_dir: &Path,
        now: Time,
        progress: &mut Progress<'_>,
    ) -> anyhow::Result<Daemon> {
        let coa = file.coa.take();
        let radius = file.radius.take().map(|section| Radius::bind(section, coa));
        let mut radius = radius.transpose()?;
        let state = StateDir::new(state_dir);
        let (mut journal, overlay) = Journal::open(state.clone())?;
        let mut assembled = assemble(&mut file, &overlay, &mut |_, _| ());
        if let (Err(e), None) = (&assembled, &config_error)
            && let Some(before) = last_good::before(&file.path, &state)
        {
            (file, config_error) = (before, Some(chained(e)));
            assembled = assemble(&mut file, &overlay, &mut |_, _| ());
        }
        let registry = assembled.map_err(usage)?;
        file.subscribers = Vec::new();
        match &config_error {
            None => last_good::keep(&mut file, &state),
            Some(e) => warn!("starting with the table of subscribers that was in force last: {e}"),
        }
        if let Some(radius) = &mut radius {
            radius.restore(&registry, now);
        }
        let mut kernel = Kernel::load(&file.isp)?;
        let effects = Registry::default().effects_towards(&registry);
        kernel.apply(&effects, &registry, progress)?;
        let mut usage = file.usage.map(|section| Usage::new(section, state_dir, now));
        if let Some(usage) = &mut usage {
            usage.learn(&effects.plans);
        }
        drop(effects);
        journal.tidy(&registry);
        let mut daemon = Daemon {
            path: file.path,
            table: file.table,
            has_end: file.has_end,
            isp: file.isp,
            registry,
            journal,
            kernel,
            entries: file.segments,
            segments: Segments::default(),
            radius,
            leases: file.leases.map(Leases::new),
            usage,
            clients: Clients::new()?,
            nat: Nat::default(),
            meter: Meter::default(),
            started: now,
            open_reason: None,
            config_error,
            state,
        };
        daemon.refresh_segments();
        daemon.read_leases(now);
        // After all subscribers are known: until now the programs of an earlier daemon may still police.
        daemon.kernel.attach(&daemon.isp, monotonic_now())?;
        if let Some(usage) = &mut daemon.usage {
            usage.begin(&daemon.kernel)?;
        }
        daemon.follow_clients(now);
        daemon.measure(now);
        Ok(daemon)
    }

    /// The paths of the files that are in force.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        [Some(&self.path), self.table.as_ref()].into_iter().flatten().cloned().collect()
    }

    /// Called once per [`TICK`].
    pub(super) fn handle_tick(&mut self, now: Time) {
        self.kernel.beat(now);
        if !self.kernel.is_attached() {
            let attached = self.kernel.attach(&self.isp, now);
            let reason = attached.err().map(|e| chained(&e));
            if reason != self.open_reason {
                match &reason {
                    Some(reason) => warn!("all traffic passes: {reason}"),
                    None => info!("attached again"),
                }
            }
            self.open_reason = reason;
        }
        self.read_leases(now);
        if let Some(mut radius) = self.radius.take() {
            radius.handle_tick(self, now);
            self.radius = Some(radius);
        }
        self.follow_clients(now);
        if let Some(usage) = &mut self.usage {
            usage.handle_tick(&self.kernel, &self.registry, now);
        }
        self.measure(now);
        let is_suspicious = self.meter.unknown().download.passed_bps > 0;
        self.nat.handle_tick(&self.isp, &self.registry, is_suspicious, now);
    }

    /// Lets all traffic pass, and leaves nothing in the kernel.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub(super) fn open(&mut self) -> anyhow::Result<()> {
        if self.kernel.is_attached() {
            info!(device = self.isp.device, "policing stopped; all traffic passes");
        }
        self.kernel.give_up()
    }

    /// Writes the last usage rows. Traffic then passes, or is policed for some more time.
    ///
    /// # Errors
    /// If something cannot be removed from the kernel.
    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        let ended = match self.kernel.keeps {
            Some(watchdog) if self.kernel.is_attached() => {
                self.kernel.beat(monotonic_now());
                info!(
                    device = self.isp.device,
                    "policing goes on for {watchdog} without the daemon"
                );
                Ok(())
            }
            _ => self.open(),
        };
        if let Some(usage) = &mut self.usage {
            // An error was logged already.
            let _ = usage.write(&self.kernel, &self.registry);
            usage.end();
        }
        ended
    }

    /// Writes the usage until now; returns the path.
    ///
    /// # Errors
    /// If there is no table `[usage]`, or the disk refuses.
    pub(super) fn write_usage(&mut self) -> anyhow::Result<String> {
        let usage =
            self.usage.as_mut().context("there is no table [usage] in the configuration")?;
        usage.write(&self.kernel, &self.registry)?;
        Ok(format!("usage until now is in {}", usage.status().dir))
    }

    /// Updates the kernel, and records the usage of subscribers that are removed or get another plan.
    ///
    /// # Errors
    /// If the kernel refuses; nothing has changed then.
    fn apply(
        &mut self,
        effects: &Effects,
        target: Option<&Registry>,
        progress: &mut Progress<'_>,
    ) -> anyhow::Result<()> {
        if let Some(usage) = &mut self.usage {
            usage.handle_effects(effects, &self.kernel, &self.registry);
        }
        let applied = self.kernel.apply(effects, target.unwrap_or(&self.registry), progress);
        for gone in self.kernel.take_gone() {
            if let Some(usage) = &mut self.usage {
                usage.handle_gone(&gone);
            }
        }
        if let (Some(usage), Ok(())) = (&mut self.usage, &applied) {
            usage.learn(&effects.plans);
        }
        applied
    }

    fn read_leases(&mut self, now: Time) {
        if let Some(mut leases) = self.leases.take() {
            leases.handle_tick(self, now);
            self.leases = Some(leases);
        }
    }

    /// Ends old agreements of clients, and listens for clients if a plan is for them.
    fn follow_clients(&mut self, now: Time) {
        let Daemon { clients, isp, registry, kernel, .. } = self;
        clients.handle_tick(&isp.device, registry, kernel, now);
    }

    /// Handles waiting accounting packets and messages of clients.
    pub(super) fn handle_ready(&mut self, now: Time) {
        self.clients.handle_ready(&self.registry, &mut self.kernel, now);
        if let Some(mut radius) = self.radius.take() {
            radius.handle_ready(self, now);
            self.radius = Some(radius);
        }
    }

    fn measure(&mut self, now: Time) {
        if let Err(e) = self.meter.measure(&self.kernel, &self.registry, now) {
            warn!("the counters cannot be read: {}", chained(&e));
        }
    }

    /// Makes changes on behalf of the API, all of them or none; returns their effects.
    ///
    /// # Errors
    /// The key that is wrong, and why; or the error of the kernel or the disk.
    pub(super) fn change(
        &mut self,
        changes: &[Change],
        progress: &mut Progress<'_>,
    ) -> anyhow::Result<Effects> {
        let undo = self.registry.apply(changes).map_err(|(i, e)| {
            let section = changes.get(i).map_or("", section_of);
            anyhow!("{section}.{}: {e}", e.key())
        })?;
        self.commit(undo, progress)
    }

    /// Writes the registry's change to the journal and the kernel; if one of them refuses, undoes the change.
    fn commit(&mut self, undo: Undo, progress: &mut Progress<'_>) -> anyhow::Result<Effects> {
        let effects = self.registry.effects(&undo);
        let mark = match self.journal.append(&journal::edits(&self.registry, &undo)) {
            Ok(mark) => mark,
            Err(e) => {
                self.registry.take_back(undo);
                return Err(e);
            }
        };
        let applied = self.apply(&effects, None, progress);
        if applied.is_err() {
            self.journal.take_back(mark);
            self.registry.take_back(undo);
        }
        if applied.is_err() || segments::concern(&self.entries, &effects) {
            self.refresh_segments();
        }
        applied?;
        self.journal.tidy(&self.registry);
        Ok(effects)
    }

    /// Reads the file again and applies the differences. A file with mistakes changes nothing;
    /// neither does one that seems to be truncated, unless `force`.
    ///
    /// # Errors
    /// The reason why the old file stays in force; it is also kept for the status.
    pub(super) fn reload(
        &mut self,
        dry_run: bool,
        force: bool,
        progress: &mut Progress<'_>,
    ) -> anyhow::Result<Effects> {
        let how = Reload { dry_run, force };
        let done = self.take_over(Overlay::of(&self.registry), how, progress);
        if !dry_run {
            self.config_error = done.as_ref().err().map(chained);
        }
        if let Some(leases) = self.leases.as_mut().filter(|_| force && !dry_run) {
            leases.end_missing();
        }
        done
    }

    /// Drops the API's changes to `names`, or all of them, and uses the file's records.
    ///
    /// # Errors
    /// If there is nothing to drop, or the file does not fit the remaining records.
    pub(super) fn revert(
        &mut self,
        names: &[String],
        all: bool,
        progress: &mut Progress<'_>,
    ) -> anyhow::Result<Effects> {
        let mut overlay = Overlay::of(&self.registry);
        overlay.revert(names, all)?;
        self.take_over(overlay, Reload { dry_run: false, force: false }, progress)
    }

    fn take_over(
        &mut self,
        overlay: Overlay,
        how: Reload,
        progress: &mut Progress<'_>,
    ) -> anyhow::Result<Effects> {
        let mut file = IspFile::load(&self.path)?;
        let target = assemble(&mut file, &overlay, progress)?;
        file.subscribers = Vec::new();
        if let Some(key) = differing_key(&self.isp, &file.isp) {
            bail!("isp.{key} differs from what runs; that needs a restart");
        }
        let at =
            [file.radius.as_ref().map(|r| &r.endpoint), file.coa.as_ref().map(|c| &c.endpoint)];
        if at.map(|at| at.map(|at| at.listen))
            != self.radius.as_ref().map_or([None; 2], Radius::listens)
        {
            bail!("where [radius] or [coa] listens differs from what runs; that needs a restart");
        }
        if file.leases.as_ref() != self.leases.as_ref().map(Leases::section) {
            bail!("[leases] differs from what runs; that needs a restart");
        }
        if file.usage.as_ref() != self.usage.as_ref().map(Usage::section) {
            bail!("[usage] differs from what runs; that needs a restart");
        }
        let effects = self.registry.effects_towards(&target);
        if !how.force {
            self.check_whole(&file, &effects)?;
        }
        if how.dry_run {
            return Ok(effects);
        }
        self.apply(&effects, Some(&target), progress)?;
        (self.table, self.has_end) = (file.table.take(), file.has_end);
        let before = std::mem::replace(&mut self.registry, target);
        if Overlay::of(&before) != Overlay::of(&self.registry)
            && let Err(e) = self.journal.rewrite(&journal::all_edits(&self.registry))
        {
            let effects = self.registry.effects_towards(&before);
            self.registry = before;
            self.apply(&effects, None, progress)?;
            self.refresh_segments();
            bail!("the journal cannot be written: {e}");
        }
        last_good::keep(&mut file, &self.state);
        if let (Some(radius), Some(section)) = (&mut self.radius, file.radius) {
            radius.set(section, file.coa);
        }
        self.entries = file.segments;
        self.refresh_segments();
        Ok(effects)
    }

    /// Updates the segments after a change.
    fn refresh_segments(&mut self) {
        if let Err(e) = self.segments.refresh(&self.entries, &self.registry, &mut self.kernel) {
            warn!("segments are not as configured: {}", chained(&e));
        }
    }

    /// Refuses files that seem to be truncated, for example because the disk was full.
    fn check_whole(&self, file: &IspFile, effects: &Effects) -> anyhow::Result<()> {
        let is_of_file = |record: &Record| record.origin == Origin::File;
        let removed = effects.subscribers.iter().filter(|(_, before, after)| {
            after.is_none() && before.as_ref().is_some_and(is_of_file)
        });
        let removed = removed.count();
        let all = self.registry.subscribers().len();
        match last_good::cut_off(file, self.has_end, removed, all) {
            Some(why) => bail!(why),
            None => Ok(()),
        }
    }

    /// Adds or changes the subscribers of a table, row by row.
    pub(super) fn import(
        &mut self,
        text: &str,
        dry_run: bool,
        skip_bad: bool,
        progress: &mut Progress<'_>,
    ) -> Imported {
        let table = match csv::Table::read(text) {
            Ok(table) => table,
            Err(bad) => {
                let message = "nothing was imported: the table has no header".to_owned();
                return Imported { message, bad: 1, bad_rows: vec![bad], ..Imported::default() };
            }
        };
        let mut bad = table.bad;
        let mut undo = Undo::default();
        let mut good = 0;
        for row in table.rows {
            let set = Change::Set(row.subscriber.clone());
            match self.registry.make(&set, &mut undo) {
                Ok(()) => good += 1,
                Err(e) => bad.push(row.bad(e.key(), e.to_string())),
            }
        }
        bad.sort_by_key(|bad| bad.line);
        let [added, changed, _] = self.registry.effects(&undo).counts();
        let mut imported = Imported {
            ok: true,
            message: String::new(),
            added,
            changed,
            unchanged: good - added - changed,
            bad: bad.len(),
            bad_rows: bad.into_iter().take(BAD_ROWS_MAX).collect(),
        };
        let counts = format!("{added} added, {changed} changed, {} as before", imported.unchanged);
        if imported.bad > 0 && !skip_bad {
            self.registry.take_back(undo);
            imported.ok = false;
            imported.message = format!(
                "nothing was imported: {} (--skip-bad imports the others: {counts})",
                count(imported.bad, "bad row")
            );
            return imported;
        }
        if dry_run {
            self.registry.take_back(undo);
            imported.message = format!("dry run, nothing was imported: {counts}");
            return imported;
        }
        match self.commit(undo, progress) {
            Ok(_) => imported.message = counts,
            Err(e) => (imported.ok, imported.message) = (false, chained(&e)),
        }
        imported
    }

    /// The origin of a subscriber's record.
    pub(super) fn origin_of(&self, name: &str) -> Option<Origin> {
        self.registry.subscribers().get(name).map(|record| record.origin)
    }

    /// The name of the subscriber that has the address `text`; otherwise `text` itself.
    pub(super) fn name_of<'n>(&'n self, text: &'n str) -> &'n str {
        if self.registry.subscribers().contains_key(text) {
            return text;
        }
        self.registry.owner(text).map_or(text, |name| name)
    }

    /// The part of the journal that is not in force, if there is one.
    pub(super) fn journal_error(&self) -> Option<String> {
        self.journal.left().cloned()
    }

    /// The number of records that the API added, changed and removed.
    pub(super) fn api_counts(&self) -> [usize; 3] {
        let plans = self.registry.plans().values().map(|r| r.origin);
        let registry = &self.registry;
        let mut counts =
            [registry.count_of(Origin::Api), registry.count_of(Origin::ApiOverFile), 0];
        for origin in plans {
            match origin {
                Origin::File | Origin::Radius | Origin::Lease => {}
                Origin::Api => counts[0] += 1,
                Origin::ApiOverFile => counts[1] += 1,
            }
        }
        let hidden = registry.hidden();
        counts[2] = hidden.plans.len() + hidden.subscribers.len();
        counts
    }
}

impl Subscribers for Daemon {
    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn change_sessions(
        &mut self,
        changes: &[Change],
    ) -> anyhow::Result<Vec<Result<(), RegistryError>>> {
        let mut undo = Undo::default();
        let make = |change| self.registry.make(change, &mut undo);
        let results: Vec<_> = changes.iter().map(make).collect();
        // A session can change without an effect on the kernel, but must be stored.
        if self.registry.differs(&undo) {
            self.commit(undo, &mut |_, _| ())?;
        }
        Ok(results)
    }
}

fn section_of(change: &Change) -> &'static str {
    match change {
        Change::AddPlan(_) | Change::AlterPlan(_) | Change::RemovePlan(_) => "plan",
        Change::Add(_)
        | Change::Alter { .. }
        | Change::Set(_)
        | Change::Remove(_)
        | Change::Begin(..)
        | Change::BeginSession(..)
        | Change::End(..) => "subscriber",
    }
}

/// The first key of `[isp]` that differs and cannot be changed while the daemon runs.
fn differing_key(runs: &IspSection, wanted: &IspSection) -> Option<&'static str> {
    let differs = [
        ("device", runs.device != wanted.device),
        ("uplink", runs.uplink != wanted.uplink),
        ("hook", runs.hook != wanted.hook),
        ("overhead", runs.overhead != wanted.overhead),
        ("when_gone", runs.when_gone != wanted.when_gone),
        ("group", runs.group != wanted.group),
        ("metrics", runs.metrics != wanted.metrics),
    ];
    differs.iter().find(|(_, differs)| *differs).map(|(key, _)| *key)
}
