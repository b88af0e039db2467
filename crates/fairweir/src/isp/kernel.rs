//! Applies the registry's effects to the kernel: all of them, or none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::Context;
use fairweir_config::isp::{Compiled, HookChoice, IspSection, PlanEntry, WhenGone};
use fairweir_core::units::{Bytes, Span, Time};
use fairweir_linux::police::{
    Algorithm, Counters, Direction, Hook, PLANS_MAX, PlanId, Police, PoliceSpec, SubscriberId,
    SubscriberSpec, Totals,
};
use fairweir_linux::{Error, open_kept};
use ipnet::IpNet;
use tracing::{info, warn};

use super::handles::Handles;
use super::registry::{Effects, Record, Registry};
use crate::words::chained;

/// The download and upload counters of every subscriber.
pub(super) type Snapshot = HashMap<Arc<str>, [Counters; 2]>;

/// The two directions, in the order of all pairs in this module.
pub(super) const DIRECTIONS: [Direction; 2] = [Direction::Download, Direction::Upload];

/// The direction's name in the status, the API and the files.
pub(super) fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Download => "download",
        Direction::Upload => "upload",
    }
}

/// The kernel's numbers of a plan's two directions; `None` for one that is not policed.
type Ids = [Option<PlanId>; 2];

/// The kernel's state, by the operator's names.
pub(super) struct Kernel {
    police: Police,
    ids: BTreeMap<Arc<str>, Ids>,
    ids_used: BTreeSet<u16>,
    handles: Handles,
    /// The places where packets are policed.
    pub(super) attached: Vec<Attachment>,
    gone: Vec<Gone>,
    /// How long the kernel continues to police without a daemon; `None` if it does not.
    pub(super) keeps: Option<Span>,
    /// The reason if it does not continue although the configuration asks for it.
    pub(super) keep_error: Option<String>,
}

/// Called with a subscriber's name, the index of a direction, and the counters of that direction by class.
pub(super) type Tell<'t> = dyn FnMut(&Arc<str>, usize, &[Counters]) + 't;

/// A subscriber that was removed.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    pub(super) name: Arc<str>,
    /// Its last plan.
    pub(super) plan: Arc<str>,
    /// The final counters by class, download and upload.
    pub(super) counters: [Vec<Counters>; 2],
}

/// A place where packets are policed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Attachment {
    pub(super) device: String,
    pub(super) hook: Hook,
    pub(super) direction: Direction,
}

/// A step that was done, with what is needed to undo it.
enum Done {
    NewPlan(PlanId),
    ChangedPlan(PlanId, Box<Compiled>),
    Ids(Arc<str>, Option<Ids>),
    Changed(Arc<str>, SubscriberSpec),
    Removed(Arc<str>, SubscriberSpec),
}

impl Kernel {
    /// Creates the tables, beside those that an earlier daemon left.
    ///
    /// # Errors
    /// If the kernel refuses, or others can write to the place where policing is kept.
    pub(super) fn load(isp: &IspSection) -> anyhow::Result<Kernel> {
        let spec = PoliceSpec::default();
        let (police, keeps, keep_error) = match isp.when_gone {
            WhenGone::Open => {
                // Otherwise the programs of an earlier daemon would police beside this one.
                open_kept(&isp.device)?;
                (Police::load(&spec)?, None, None)
            }
            WhenGone::Keep { watchdog } => match Police::load_kept(&spec, &isp.device) {
                Ok(police) => (police, Some(watchdog), None),
                Err(e @ Error::Untrusted { .. }) => {
                    let remedy = "remove it, or write `when_gone = \"open\"` in [isp]";
                    return Err(anyhow::Error::new(e).context(remedy));
                }
                Err(e) => {
                    warn!("all traffic will pass when the daemon ends: {e}");
                    (Police::load(&spec)?, None, Some(e.to_string()))
                }
            },
        };
        Ok(Kernel {
            police,
            ids: BTreeMap::new(),
            ids_used: BTreeSet::new(),
            handles: Handles::default(),
            attached: Vec::new(),
            gone: Vec::new(),
            keeps,
            keep_error,
        })
    }

    /// Tells the kernel that the daemon is alive.
    pub(super) fn beat(&self, now: Time) {
        if let Some(watchdog) = self.keeps {
            self.police.extend_deadline(now + watchdog);
        }
    }

    /// The kernel's number of a subscriber.
    pub(super) fn id(&self, name: &str) -> Option<SubscriberId> {
        self.handles.of(name)
    }

    /// The kernel part, for setting segments.
    pub(super) fn police(&self) -> &Police {
        &self.police
    }

    /// The kernel part, for adding and removing members.
    pub(super) fn police_mut(&mut self) -> &mut Police {
        &mut self.police
    }

    /// Attaches at all places that `isp` names: in the way that an earlier daemon used, or the first way that works.
    ///
    /// # Errors
    /// If no way works; then nothing is attached.
    pub(super) fn attach(&mut self, isp: &IspSection, now: Time) -> anyhow::Result<()> {
        self.beat(now);
        let mut ways = ways(isp);
        let police = &self.police;
        let is_kept = |one: &Attachment| police.is_kept(&one.device, one.hook, one.direction);
        ways.sort_by_key(|way| !way.iter().all(is_kept));
        for (i, way) in ways.iter().enumerate() {
            self.detach();
            let mut attached = self.attach_all(way, isp.overhead);
            let is_occupied = |e: &anyhow::Error| {
                e.downcast_ref().is_some_and(|e| matches!(e, Error::Occupied { .. }))
            };
            if attached.as_ref().is_err_and(is_occupied) && i + 1 == ways.len() {
                // The place may be occupied by what an earlier daemon left.
                self.detach();
                self.police.settle()?;
                attached = self.attach_all(way, isp.overhead);
            }
            match attached {
                Ok(()) => {
                    self.attached.clone_from(way);
                    if let Err(e) = self.police.settle() {
                        warn!("the state of subscribers will not be kept: {e}");
                    }
                    return Ok(());
                }
                Err(e) if i + 1 < ways.len() => {
                    info!("native XDP is not available, using tcx: {}", chained(&e));
                }
                Err(e) => {
                    self.detach();
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn attach_all(&mut self, way: &[Attachment], overhead: i32) -> anyhow::Result<()> {
        for one in way {
            let attached = self.police.attach(&one.device, one.hook, one.direction, overhead);
            attached.with_context(|| format!("cannot police at {}", one.device))?;
        }
        Ok(())
    }

    /// Detaches; all traffic passes from now on.
    pub(super) fn detach(&mut self) {
        self.police.detach_all();
        self.attached.clear();
    }

    /// Detaches, so that nothing is left in the kernel when this drops.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub(super) fn give_up(&mut self) -> anyhow::Result<()> {
        self.detach();
        self.keeps = None;
        Ok(self.police.give_up()?)
    }

    /// Whether programs are attached at all places where they should be.
    pub(super) fn is_attached(&self) -> bool {
        !self.attached.is_empty() && self.police.is_attached()
    }

    /// Applies `effects`, which lead to `registry`; `progress` is called with the number of
    /// subscribers that are done, and of all.
    ///
    /// # Errors
    /// If the kernel refuses something. All is then as before, except the internal state of
    /// subscribers that were removed and added again.
    pub(super) fn apply(
        &mut self,
        effects: &Effects,
        registry: &Registry,
        progress: &mut dyn FnMut(usize, usize),
    ) -> anyhow::Result<()> {
        let mut done = Vec::new();
        let obsolete = match self.attempt(effects, registry, &mut done, progress) {
            Ok(obsolete) => obsolete,
            Err(e) => {
                for step in done.into_iter().rev() {
                    if let Err(e) = self.take_back(step) {
                        warn!("cannot undo a failed change in the kernel: {}", chained(&e));
                    }
                }
                return Err(e);
            }
        };
        for id in obsolete {
            match self.police.remove_plan(id) {
                Ok(()) => drop(self.ids_used.remove(&id.0)),
                Err(e) => warn!("cannot remove an unused plan from the kernel: {e}"),
            }
        }
        Ok(())
    }

    /// The subscribers that were removed since the last call, including by a change that was undone.
    pub(super) fn take_gone(&mut self) -> Vec<Gone> {
        std::mem::take(&mut self.gone)
    }

    /// The counters of a subscriber's packets, for the directions that the plan polices.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn counters(&self, name: &str) -> anyhow::Result<[Counters; 2]> {
        let Some(handle) = self.handles.of(name) else { return Ok(Default::default()) };
        let [download, upload] = DIRECTIONS;
        Ok([self.police.counters(handle, download)?, self.police.counters(handle, upload)?])
    }

    /// Like [`Kernel::counters`], by class; see `Police::counters_by_class`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn counters_by_class(&self, name: &str) -> anyhow::Result<[Vec<Counters>; 2]> {
        let Some(handle) = self.handles.of(name) else { return Ok(Default::default()) };
        let of = |direction| self.police.counters_by_class(handle, direction);
        let [download, upload] = DIRECTIONS;
        Ok([of(download)?, of(upload)?])
    }

    /// Calls `tell` with the counters by class of every subscriber and direction.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn counters_by_class_all(&self, tell: &mut Tell<'_>) -> anyhow::Result<()> {
        for (at, direction) in DIRECTIONS.into_iter().enumerate() {
            self.police.counters_by_class_all(direction, &mut |handle, counters| {
                if let Some(name) = self.handles.name(handle) {
                    tell(name, at, counters);
                }
            })?;
        }
        Ok(())
    }

    /// The counters of all subscribers.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn counters_all(&self) -> anyhow::Result<Snapshot> {
        let mut all = Snapshot::with_capacity(self.police.subscriber_count());
        for (i, direction) in DIRECTIONS.into_iter().enumerate() {
            for (handle, counters) in self.police.counters_all(direction)? {
                if let Some(name) = self.handles.name(handle) {
                    all.entry(Arc::clone(name)).or_default()[i] = counters;
                }
            }
        }
        Ok(all)
    }

    /// The sum of the counters of all subscribers of a plan, since the start.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn totals(&self, plan: &str) -> anyhow::Result<[Totals; 2]> {
        let mut totals = <[Totals; 2]>::default();
        let ids = self.ids.get(plan).copied().unwrap_or_default();
        for (i, id) in ids.into_iter().enumerate() {
            if let Some(id) = id {
                totals[i] = self.police.totals(id, DIRECTIONS[i])?;
            }
        }
        Ok(totals)
    }

    /// The counters of traffic that belongs to no subscriber.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn unknown(&self) -> anyhow::Result<[Totals; 2]> {
        let [download, upload] = DIRECTIONS;
        Ok([self.police.unknown(download)?, self.police.unknown(upload)?])
    }

    /// The kernel memory that the tables use.
    pub(super) fn memory(&self) -> Bytes {
        self.police.memory().unwrap_or_else(|e| {
            warn!("cannot read the kernel's memory usage: {e}");
            Bytes::ZERO
        })
    }

    // --------------------------------------------------------------------------------------------
    // Changes

    /// Applies effects step by step, and notes each step in `done`. Returns the numbers of plans without users.
    fn attempt(
        &mut self,
        effects: &Effects,
        registry: &Registry,
        done: &mut Vec<Done>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> anyhow::Result<Vec<PlanId>> {
        let of = effects.subscribers.len();
        let ids_before = self.ids.clone();
        let (obsolete, other_users) = self.set_plans(effects, registry, done)?;
        let mut count = 0;
        let mut step = |by: usize| {
            count += by;
            progress(count, of);
        };
        let named = effects.subscribers.iter();
        for (name, before, after) in named.clone() {
            if let (Some(before), None) = (before, after) {
                self.remove(name, &before.plan)?;
                done.push(Done::Removed(Arc::clone(name), spec_of(before, &ids_before)));
                step(1);
            }
        }
        let changed = named.clone().filter_map(|(name, before, after)| match (before, after) {
            (Some(before), Some(after)) => Some((name, before, after)),
            _ => None,
        });
        let moving = moving_addresses(effects);
        for (name, before, after) in changed.clone() {
            let stays = |a: &&IpNet| after.addresses.contains(a) || !moving.contains(*a);
            let kept: Vec<IpNet> = before.addresses.iter().filter(stays).copied().collect();
            if kept.len() < before.addresses.len() {
                let spec = spec_of(before, &ids_before);
                let between = match kept.is_empty() {
                    false => SubscriberSpec { addresses: kept.into(), ..spec.clone() },
                    // The kernel's tables do not allow a subscriber without an address, but one without a plan.
                    true => SubscriberSpec { download: None, upload: None, ..spec.clone() },
                };
                self.change(name, between, spec, done)?;
            }
        }
        for (name, before, after) in changed {
            self.change(name, spec_of(after, &self.ids), spec_of(before, &ids_before), done)?;
            step(1);
        }
        for name in other_users {
            let record = &registry.subscribers()[&name];
            self.change(&name, spec_of(record, &self.ids), spec_of(record, &ids_before), done)?;
        }
        self.add_all(effects, &mut step)?;
        Ok(obsolete)
    }

    fn set_plan(&mut self, id: PlanId, name: &str, plan: &Compiled) -> anyhow::Result<()> {
        self.police.set_plan(id, &algorithm(plan)).with_context(|| format!("plan `{name}`"))
    }

    /// Sets new and changed plans. Returns the numbers that become vacant, and the subscribers that
    /// are not changed themselves but whose plan has gained or lost a direction.
    fn set_plans(
        &mut self,
        effects: &Effects,
        registry: &Registry,
        done: &mut Vec<Done>,
    ) -> anyhow::Result<(Vec<PlanId>, Vec<Arc<str>>)> {
        let mut obsolete = Vec::new();
        let mut turned = BTreeSet::new();
        for (name, before, after) in &effects.plans {
            let old = self.ids.get(name).copied();
            let mut ids = old.unwrap_or_default();
            let befores = compiled(before.as_ref())?;
            let afters = compiled(after.as_ref())?;
            for (id, (before, after)) in ids.iter_mut().zip(befores.into_iter().zip(afters)) {
                match (*id, after) {
                    (Some(known), Some(after)) => {
                        self.set_plan(known, name, &after)?;
                        let before = before.context("a plan's number was unused")?;
                        done.push(Done::ChangedPlan(known, Box::new(before)));
                    }
                    (None, Some(after)) => {
                        let new = self.vacant_id()?;
                        self.set_plan(new, name, &after)?;
                        done.push(Done::NewPlan(new));
                        *id = Some(new);
                    }
                    (Some(_), None) => obsolete.extend(id.take()),
                    (None, None) => {}
                }
            }
            let directions = |ids: Ids| ids.map(|id| id.is_some());
            if old.is_some_and(|old| directions(old) != directions(ids)) {
                turned.insert(Arc::clone(name));
            }
            done.push(Done::Ids(Arc::clone(name), old));
            match after {
                Some(_) => drop(self.ids.insert(Arc::clone(name), ids)),
                None => drop(self.ids.remove(name)),
            }
        }
        if turned.is_empty() {
            return Ok((obsolete, Vec::new()));
        }
        let changed: BTreeSet<&Arc<str>> = effects.subscribers.iter().map(|(n, ..)| n).collect();
        let has_turned = registry.subscribers().iter().filter(|(_, r)| turned.contains(&r.plan));
        let others = has_turned.filter(|(name, _)| !changed.contains(name));
        Ok((obsolete, others.map(|(name, _)| Arc::clone(name)).collect()))
    }

    fn vacant_id(&mut self) -> anyhow::Result<PlanId> {
        let vacant = (1..=PLANS_MAX).find(|id| !self.ids_used.contains(id));
        let id = vacant.context("there are too many plans")?;
        self.ids_used.insert(id);
        Ok(PlanId(id))
    }

    /// Adds new subscribers, all of them or none.
    fn add_all(&mut self, effects: &Effects, step: &mut dyn FnMut(usize)) -> anyhow::Result<()> {
        let added = effects.subscribers.iter().filter(|(_, before, _)| before.is_none());
        let added = added.filter_map(|(name, _, after)| Some((name, after.as_ref()?)));
        let ids = &self.ids;
        let specs = added.clone().map(|(_, record)| spec_of(record, ids));
        let mut told = 0;
        let handles = self.police.add_all(specs, &mut |done| {
            step(done - told);
            told = done;
        })?;
        for ((name, _), handle) in added.zip(handles) {
            self.handles.insert(Arc::clone(name), handle);
        }
        Ok(())
    }

    fn change(
        &mut self,
        name: &Arc<str>,
        spec: SubscriberSpec,
        before: SubscriberSpec,
        done: &mut Vec<Done>,
    ) -> anyhow::Result<()> {
        let handle = self.handles.known(name)?;
        let changed = self.police.change(handle, &spec);
        changed.with_context(|| format!("cannot change the subscriber `{name}`"))?;
        done.push(Done::Changed(Arc::clone(name), before));
        Ok(())
    }

    fn remove(&mut self, name: &Arc<str>, plan: &Arc<str>) -> anyhow::Result<()> {
        let handle = self.handles.known(name)?;
        let removed = self.police.remove(handle);
        let counters = removed.with_context(|| format!("cannot remove the subscriber `{name}`"))?;
        self.gone.push(Gone { name: Arc::clone(name), plan: Arc::clone(plan), counters });
        self.handles.remove(name, handle);
        Ok(())
    }

    fn take_back(&mut self, step: Done) -> anyhow::Result<()> {
        match step {
            Done::NewPlan(id) => {
                self.police.remove_plan(id)?;
                self.ids_used.remove(&id.0);
            }
            Done::ChangedPlan(id, plan) => {
                self.police.set_plan(id, &algorithm(&plan))?;
            }
            Done::Ids(name, Some(ids)) => drop(self.ids.insert(name, ids)),
            Done::Ids(name, None) => drop(self.ids.remove(&name)),
            Done::Changed(name, spec) => self.police.change(self.handles.known(&name)?, &spec)?,
            Done::Removed(name, spec) => {
                let handle = self.police.add(&spec)?;
                self.handles.insert(name, handle);
            }
        }
        Ok(())
    }
}

/// The possible ways to attach, the best first.
pub(super) fn ways(isp: &IspSection) -> Vec<Vec<Attachment>> {
    let at =
        |device: &str, hook, direction| Attachment { device: device.to_owned(), hook, direction };
    let arriving = |uplink: &str, hook| {
        vec![at(uplink, hook, Direction::Download), at(&isp.device, hook, Direction::Upload)]
    };
    match (&isp.uplink, isp.hook) {
        (Some(uplink), HookChoice::Auto) => {
            vec![arriving(uplink, Hook::XdpNative), arriving(uplink, Hook::TcxIngress)]
        }
        (Some(uplink), HookChoice::Xdp) => vec![arriving(uplink, Hook::Xdp)],
        (Some(uplink), HookChoice::Tcx) => vec![arriving(uplink, Hook::TcxIngress)],
        // Without an uplink, `hook = "xdp"` was refused when the file was read.
        (None, HookChoice::Auto | HookChoice::Xdp | HookChoice::Tcx) => vec![vec![
            at(&isp.device, Hook::TcxEgress, Direction::Download),
            at(&isp.device, Hook::TcxIngress, Direction::Upload),
        ]],
    }
}

fn spec_of(record: &Record, ids: &BTreeMap<Arc<str>, Ids>) -> SubscriberSpec {
    let [download, upload] = ids.get(&record.plan).copied().unwrap_or_default();
    SubscriberSpec { addresses: Arc::clone(&record.addresses), download, upload }
}

/// Addresses that move between changed subscribers. They are removed from the old one before any is added.
fn moving_addresses(effects: &Effects) -> BTreeSet<IpNet> {
    let changed = effects.subscribers.iter().filter_map(|(_, before, after)| {
        Some((before.as_ref()?.addresses.iter(), after.as_ref()?.addresses.to_vec()))
    });
    let lost: BTreeSet<IpNet> = changed
        .flat_map(|(before, after)| before.filter(move |a| !after.contains(a)).copied())
        .collect();
    if lost.is_empty() {
        return lost;
    }
    let afters = effects.subscribers.iter().filter_map(|(.., after)| after.as_ref());
    afters.flat_map(|record| &*record.addresses).filter(|a| lost.contains(a)).copied().collect()
}

fn compiled(entry: Option<&PlanEntry>) -> anyhow::Result<[Option<Compiled>; 2]> {
    Ok(entry.map(PlanEntry::compile).transpose()?.unwrap_or_default())
}

fn algorithm(of: &Compiled) -> Algorithm<'_> {
    match &of.bundle {
        Some(bundle) => Algorithm::Bundled(&of.plan, bundle),
        None => Algorithm::Phantom(&of.plan),
    }
}
