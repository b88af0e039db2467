//! Who has which plan: plans, subscribers and their addresses, with all rules that they must satisfy.
//!
//! Pure: no file, no socket, no kernel. A list of changes is applied completely or not at all. Its effects are returned
//! as [`Effects`], from which the kernel's tables are updated. It can be undone with its [`Undo`].
//!
//! Every record has an [`Origin`]: the file, or the API. A record of the API stays in force until the API changes it,
//! whatever the file has under the same name. So a record of the API hides the file's, and a record of the file that
//! the API removed stays hidden.
//!
//! Invariants: each address belongs to one subscriber; each subscriber has an existing plan; a plan's `users` counts
//! its subscribers, and `counts` those of each origin.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::{Bound, Deref};
use std::sync::{Arc, LazyLock};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use fairweir_config::isp::address::check_address;
use fairweir_config::isp::{PlanEntry, SubscriberSpec, check_name};
use fairweir_config::nearest;
use fairweir_core::radius::Session;

mod error;
mod owners;

use owners::Owners;

pub(super) use error::RegistryError;

/// The most subscribers.
pub(super) const SUBSCRIBERS_MAX: usize = 4_000_000;
/// The most plans. Source: the kernel's table has 1,023 entries, and a plan needs two.
pub(super) const PLANS_MAX: usize = 511;
/// The most addresses of a subscriber.
pub(super) const ADDRESSES_MAX: usize = 64;
/// The most names among which the nearest is searched for.
const NEAREST_AMONG: usize = 20_000;

/// Plans and subscribers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Registry {
    plans: BTreeMap<Arc<str>, PlanRecord>,
    subscribers: BTreeMap<Arc<str>, Record>,
    owners: Owners,
    /// Names of the file that the API removed.
    hidden: Hidden,
    /// The number of subscribers of each [`Origin`], and the number of leases that have a plan from a command.
    counts: [usize; ORIGINS],
    pinned_leases: usize,
}

/// Names in the file that the API removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Hidden {
    pub(super) plans: BTreeSet<Arc<str>>,
    pub(super) subscribers: BTreeSet<Arc<str>>,
}

/// A plan, and who uses it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlanRecord {
    pub(super) entry: PlanEntry,
    pub(super) origin: Origin,
    /// The number of subscribers that have the plan.
    pub(super) users: usize,
}

/// What is known about a subscriber, except its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Shared with the kernel's state.
    pub(super) addresses: Arc<[IpNet]>,
    pub(super) plan: Arc<str>,
    /// Shared by all records of the file. A single pointer, because each record has one.
    said: Arc<Said>,
}

impl Deref for Record {
    type Target = Said;

    fn deref(&self) -> &Said {
        &self.said
    }
}

/// What is additionally known about a session or a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<Session>,
    /// The plan that was reported, if a command has set another one. The command's plan ends with the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) own_plan: Option<String>,
}

/// A session or a lease, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reported {
    pub(super) subscriber: SubscriberSpec,
    pub(super) origin: Origin,
    #[serde(default)]
    pub(super) report: Report,
}

/// The origin of a record, and what is additionally known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) origin: Origin,
    /// Only for sessions and leases.
    pub(super) report: Option<Report>,
}

impl From<Origin> for Said {
    fn from(origin: Origin) -> Said {
        Said { origin, report: None }
    }
}

impl Said {
    fn shared(self) -> Arc<Said> {
        static FILE: LazyLock<Arc<Said>> = LazyLock::new(|| Arc::new(Origin::File.into()));
        if self == **FILE { Arc::clone(&FILE) } else { Arc::new(self) }
    }
}

/// Where a record comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Origin {
    /// The file.
    File,
    /// The API; the file has no record of this name.
    Api,
    /// The API, overriding the file's record.
    ApiOverFile,
    /// A session that an access server reported.
    Radius,
    /// A lease of a DHCP server.
    Lease,
}

/// The number of origins.
const ORIGINS: usize = Origin::Lease as usize + 1;

/// A change to the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    AddPlan(PlanEntry),
    AlterPlan(PlanEntry),
    RemovePlan(String),
    Add(SubscriberSpec),
    /// Members that are `None` stay as they are.
    Alter {
        name: String,
        addresses: Option<Vec<IpNet>>,
        plan: Option<String>,
    },
    /// Adds the subscriber, or changes it if it exists.
    Set(SubscriberSpec),
    Remove(String),
    /// A session or a lease begins or continues.
    Begin(SubscriberSpec, Origin),
    /// Like `Begin`, for a session whose id is known.
    BeginSession(SubscriberSpec, Session),
    /// A session or a lease ends. Changes nothing if the name has another origin.
    End(String, Origin),
}

/// The previous state of all that some changes touched.
#[derive(Debug, Default)]
pub(super) struct Undo {
    plans: BTreeMap<Arc<str>, Option<PlanRecord>>,
    subscribers: BTreeMap<Arc<str>, Option<Record>>,
    hidden_plans: BTreeMap<Arc<str>, bool>,
    hidden_subscribers: BTreeMap<Arc<str>, bool>,
}

impl Undo {
    /// The names of the plans that were touched.
    pub(super) fn plan_names(&self) -> impl Iterator<Item = &str> {
        self.plans.keys().map(|name| &**name)
    }

    /// The subscribers that were touched, and their previous records.
    pub(super) fn subscribers(&self) -> impl Iterator<Item = (&str, Option<&Record>)> {
        self.subscribers.iter().map(|(name, before)| (&**name, before.as_ref()))
    }
}

/// A plan's name, its previous entry and its present entry.
pub(super) type PlanEffect = (Arc<str>, Option<PlanEntry>, Option<PlanEntry>);

/// The total effect of changes: previous and present state, where these differ.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Effects {
    pub(super) plans: Vec<PlanEffect>,
    pub(super) subscribers: Vec<(Arc<str>, Option<Record>, Option<Record>)>,
}

impl Effects {
    pub(super) fn is_empty(&self) -> bool {
        self.plans.is_empty() && self.subscribers.is_empty()
    }

    /// The number of subscribers that were added, changed and removed.
    pub(super) fn counts(&self) -> [usize; 3] {
        let of = |(_, before, after): &(Arc<str>, Option<Record>, Option<Record>)| {
            (before.is_some(), after.is_some())
        };
        [(false, true), (true, true), (true, false)]
            .map(|wanted| self.subscribers.iter().filter(|one| of(one) == wanted).count())
    }
}

impl Registry {
    pub(super) fn plans(&self) -> &BTreeMap<Arc<str>, PlanRecord> {
        &self.plans
    }

    pub(super) fn subscribers(&self) -> &BTreeMap<Arc<str>, Record> {
        &self.subscribers
    }

    /// The owner of the address `text`, or of the most specific prefix around it; then names that
    /// begin with `text`; at most `max` in all. Also returns whether there are more.
    pub(super) fn find(&self, text: &str, max: usize) -> (Vec<Arc<str>>, bool) {
        if text.is_empty() {
            return (Vec::new(), false);
        }
        let mut found: Vec<Arc<str>> = self.owner(text).cloned().into_iter().collect();
        let from = self.subscribers.range::<str, _>((Bound::Included(text), Bound::Unbounded));
        for name in from.map(|(name, _)| name).take_while(|name| name.starts_with(text)) {
            if found.len() == max {
                return (found, true);
            }
            if !found.contains(name) {
                found.push(Arc::clone(name));
            }
        }
        (found, false)
    }

    /// The owner of the address `text`, or of the most specific prefix around it.
    pub(super) fn owner(&self, text: &str) -> Option<&Arc<str>> {
        let address = text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse::<IpNet>());
        self.owner_of(address.ok()?)
    }

    /// The owner of an address, or of the most specific prefix around it.
    pub(super) fn owner_of(&self, address: IpNet) -> Option<&Arc<str>> {
        let lengths = (0..=address.prefix_len()).rev();
        let mut around = lengths.filter_map(|length| IpNet::new(address.addr(), length).ok());
        around.find_map(|net| self.owners.of(&net.trunc(), &self.subscribers))
    }

    pub(super) fn hidden(&self) -> &Hidden {
        &self.hidden
    }

    /// The number of sessions and leases in the journal.
    pub(super) fn stored_reports(&self) -> usize {
        self.count_of(Origin::Radius) + self.pinned_leases
    }

    /// Whether anything differs from the state before `undo`.
    pub(super) fn differs(&self, undo: &Undo) -> bool {
        let plan = |(name, before): (&Arc<str>, &Option<PlanRecord>)| {
            self.plans.get(name) != before.as_ref()
        };
        let subscriber = |(name, before): (&Arc<str>, &Option<Record>)| {
            self.subscribers.get(name) != before.as_ref()
        };
        undo.plans.iter().any(plan) || undo.subscribers.iter().any(subscriber)
    }

    /// The number of subscribers with this origin.
    pub(super) fn count_of(&self, origin: Origin) -> usize {
        self.counts[origin as usize]
    }

    /// The number of addresses of all subscribers.
    pub(super) fn address_count(&self) -> usize {
        self.owners.len()
    }

    /// Makes changes on behalf of the API, all of them or none.
    ///
    /// # Errors
    /// The index of the change that is refused, and why; nothing has changed then.
    pub(super) fn apply(&mut self, changes: &[Change]) -> Result<Undo, (usize, RegistryError)> {
        let mut undo = Undo::default();
        for (i, change) in changes.iter().enumerate() {
            if let Err(e) = self.make(change, &mut undo) {
                self.take_back(undo);
                return Err((i, e));
            }
        }
        Ok(undo)
    }

    /// Makes one more change, and adds what is needed to undo it to `undo`.
    ///
    /// # Errors
    /// The reason why it is refused; it has changed nothing then.
    pub(super) fn make(&mut self, change: &Change, undo: &mut Undo) -> Result<(), RegistryError> {
        match change {
            Change::AddPlan(entry) => self.add_plan(entry, Origin::Api, undo),
            Change::AlterPlan(entry) => {
                let name: Arc<str> = self.known_plan(&entry.name)?;
                self.note_plan(&name, undo);
                if let Some(record) = self.plans.get_mut(&name) {
                    record.entry = entry.clone();
                    record.origin = record.origin.as_changed();
                }
                Ok(())
            }
            Change::RemovePlan(name) => self.remove_plan(name, undo),
            Change::Add(spec) => {
                if self.subscribers.contains_key(spec.name.as_str()) {
                    return Err(RegistryError::SubscriberExists(spec.name.clone()));
                }
                self.put(spec, Origin::Api, undo)
            }
            Change::Alter { name, addresses, plan } => self.change(name, addresses, plan, undo),
            Change::Set(spec) => match self.subscribers.get(spec.name.as_str()) {
                Some(old) if old.says(spec) => Ok(()),
                Some(old) => self.put(spec, old.origin.as_changed(), undo),
                None => self.put(spec, Origin::Api, undo),
            },
            Change::Remove(name) => self.remove(name, undo),
            Change::Begin(spec, origin) => self.begin(spec, *origin, None, undo),
            Change::BeginSession(spec, session) => {
                self.begin(spec, Origin::Radius, Some(session), undo)
            }
            Change::End(name, origin) => {
                let known = self.subscribers.get_key_value(name.as_str());
                let known = known.filter(|(_, record)| record.origin == *origin);
                if let Some(name) = known.map(|(name, _)| Arc::clone(name)) {
                    self.note(&name, undo);
                    self.forget(&name);
                }
                Ok(())
            }
        }
    }

    /// Adds a plan while everything is read, at the start or at a reload.
    pub(super) fn load_plan(
        &mut self,
        entry: &PlanEntry,
        origin: Origin,
    ) -> Result<(), RegistryError> {
        self.add_plan(entry, origin, &mut Undo::default())
    }

    /// Adds a subscriber while everything is read, at the start or at a reload.
    pub(super) fn load(
        &mut self,
        spec: &SubscriberSpec,
        origin: Origin,
    ) -> Result<(), RegistryError> {
        self.load_said(spec, origin)
    }

    /// Adds a session or a lease from the journal.
    pub(super) fn load_report(&mut self, stored: &Reported) -> Result<(), RegistryError> {
        let Reported { subscriber, origin, report } = stored;
        let report = (*report != Report::default()).then(|| report.clone());
        self.load_said(subscriber, Said { origin: *origin, report })
    }

    fn load_said(
        &mut self,
        spec: &SubscriberSpec,
        said: impl Into<Said>,
    ) -> Result<(), RegistryError> {
        if self.subscribers.contains_key(spec.name.as_str()) {
            return Err(RegistryError::SubscriberExists(spec.name.clone()));
        }
        self.put(spec, said, &mut Undo::default())
    }

    /// Sets the names whose records in the file are hidden.
    pub(super) fn hide(&mut self, hidden: Hidden) {
        self.hidden = hidden;
    }

    /// Undoes changes.
    pub(super) fn take_back(&mut self, undo: Undo) {
        for name in undo.subscribers.keys() {
            self.forget(name);
        }
        for (name, before) in undo.plans {
            match before {
                // The present number of users is kept; it is updated with the subscribers below.
                Some(record) => {
                    let users = self.plans.get(&name).map_or(0, |now| now.users);
                    self.plans.insert(name, PlanRecord { users, ..record });
                }
                None => drop(self.plans.remove(&name)),
            }
        }
        for (name, before) in undo.subscribers {
            if let Some(record) = before {
                self.insert(name, record);
            }
        }
        restore(&mut self.hidden.plans, undo.hidden_plans);
        restore(&mut self.hidden.subscribers, undo.hidden_subscribers);
    }

    /// The effects of the changes that `undo` would undo.
    pub(super) fn effects(&self, undo: &Undo) -> Effects {
        let mut effects = Effects::default();
        for (name, before) in &undo.plans {
            let before = before.as_ref().map(|record| &record.entry);
            let after = self.plans.get(name).map(|record| &record.entry);
            if before != after {
                effects.plans.push((Arc::clone(name), before.cloned(), after.cloned()));
            }
        }
        for (name, before) in &undo.subscribers {
            let after = self.subscribers.get(name);
            if !is_alike(before.as_ref(), after) {
                effects.subscribers.push((Arc::clone(name), before.clone(), after.cloned()));
            }
        }
        effects
    }

    /// The effects that lead from this registry to `target`.
    pub(super) fn effects_towards(&self, target: &Registry) -> Effects {
        let mut effects = Effects::default();
        let names: BTreeSet<&Arc<str>> = self.plans.keys().chain(target.plans.keys()).collect();
        for name in names {
            let entry = |of: &Registry| of.plans.get(name).map(|record| record.entry.clone());
            let (before, after) = (entry(self), entry(target));
            if before != after {
                effects.plans.push((Arc::clone(name), before, after));
            }
        }
        for (name, before) in &self.subscribers {
            let after = target.subscribers.get(name);
            if !is_alike(Some(before), after) {
                effects.subscribers.push((Arc::clone(name), Some(before.clone()), after.cloned()));
            }
        }
        for (name, after) in &target.subscribers {
            if !self.subscribers.contains_key(name) {
                effects.subscribers.push((Arc::clone(name), None, Some(after.clone())));
            }
        }
        effects.subscribers.sort_by(|a, b| a.0.cmp(&b.0));
        effects
    }

    // --------------------------------------------------------------------------------------------
    // Plans

    fn add_plan(
        &mut self,
        entry: &PlanEntry,
        origin: Origin,
        undo: &mut Undo,
    ) -> Result<(), RegistryError> {
        check_name(&entry.name).map_err(RegistryError::BadName)?;
        if self.plans.contains_key(entry.name.as_str()) {
            return Err(RegistryError::PlanExists(entry.name.clone()));
        }
        if self.plans.len() >= PLANS_MAX {
            return Err(RegistryError::TooManyPlans);
        }
        let name: Arc<str> = entry.name.as_str().into();
        self.note_plan(&name, undo);
        let is_hidden = self.hidden.plans.contains(&name);
        if is_hidden && origin == Origin::Api {
            set(&mut self.hidden.plans, &mut undo.hidden_plans, &name, false);
        }
        let origin = if is_hidden { Origin::ApiOverFile } else { origin };
        self.plans.insert(name, PlanRecord { entry: entry.clone(), origin, users: 0 });
        Ok(())
    }

    fn remove_plan(&mut self, name: &str, undo: &mut Undo) -> Result<(), RegistryError> {
        let name = self.known_plan(name)?;
        let record = &self.plans[&name];
        if record.users > 0 {
            let mut users = self.subscribers.iter().filter(|(_, record)| record.plan == name);
            let one = users.next().map(|(name, _)| name.to_string()).unwrap_or_default();
            let (plan, users) = (name.to_string(), record.users);
            return Err(RegistryError::PlanInUse { plan, users, one });
        }
        let hides = record.origin != Origin::Api;
        self.note_plan(&name, undo);
        self.plans.remove(&name);
        if hides {
            set(&mut self.hidden.plans, &mut undo.hidden_plans, &name, true);
        }
        Ok(())
    }

    /// The name as the registry stores it.
    fn known_plan(&self, name: &str) -> Result<Arc<str>, RegistryError> {
        if let Some((known, _)) = self.plans.get_key_value(name) {
            return Ok(Arc::clone(known));
        }
        let near = nearest(name, self.plans.keys().map(|k| &**k));
        let hint = match (near, self.plans.is_empty()) {
            (Some(near), _) => format!("; did you mean `{near}`?"),
            (None, true) => "; there are no plans".to_owned(),
            (None, false) => String::new(),
        };
        Err(RegistryError::NoPlan { name: name.to_owned(), hint })
    }

    fn note_plan(&self, name: &Arc<str>, undo: &mut Undo) {
        let before = || self.plans.get(name).cloned();
        undo.plans.entry(Arc::clone(name)).or_insert_with(before);
    }

    // --------------------------------------------------------------------------------------------
    // Subscribers

    fn change(
        &mut self,
        name: &str,
        addresses: &Option<Vec<IpNet>>,
        plan: &Option<String>,
        undo: &mut Undo,
    ) -> Result<(), RegistryError> {
        let (_, old) = self.known(name)?;
        if addresses.is_none() && plan.is_none() {
            return Err(RegistryError::NothingToChange);
        }
        let spec = SubscriberSpec {
            name: name.to_owned(),
            addresses: addresses.clone().unwrap_or_else(|| old.addresses.to_vec()),
            plan: plan.clone().unwrap_or_else(|| old.plan.to_string()),
        };
        if old.says(&spec) {
            return Ok(());
        }
        let said = match old.origin {
            // The command's plan ends with the session: the addresses will later be another customer's.
            origin @ (Origin::Radius | Origin::Lease) if addresses.is_none() => {
                let mut report = old.report.clone().unwrap_or_default();
                report.own_plan.get_or_insert_with(|| old.plan.to_string());
                Said { origin, report: Some(report) }
            }
            origin => origin.as_changed().into(),
        };
        self.put(&spec, said, undo)
    }

    fn remove(&mut self, name: &str, undo: &mut Undo) -> Result<(), RegistryError> {
        let (name, record) = self.known(name)?;
        let hides = matches!(record.origin, Origin::File | Origin::ApiOverFile);
        self.note(&name, undo);
        self.forget(&name);
        if hides {
            set(&mut self.hidden.subscribers, &mut undo.hidden_subscribers, &name, true);
        }
        Ok(())
    }

    fn known(&self, name: &str) -> Result<(Arc<str>, &Record), RegistryError> {
        if let Some((name, record)) = self.subscribers.get_key_value(name) {
            return Ok((Arc::clone(name), record));
        }
        let near = match self.subscribers.len() {
            0..NEAREST_AMONG => nearest(name, self.subscribers.keys().map(|k| &**k)),
            _ => None,
        };
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        Err(RegistryError::NoSubscriber { name: name.to_owned(), hint })
    }

    /// Adds or replaces a subscriber.
    fn put(
        &mut self,
        spec: &SubscriberSpec,
        said: impl Into<Said>,
        undo: &mut Undo,
    ) -> Result<(), RegistryError> {
        let Said { origin, report } = said.into();
        let plan = self.checked(spec)?;
        let known = self.subscribers.get_key_value(spec.name.as_str());
        let known = known.map(|(name, _)| Arc::clone(name));
        let name: Arc<str> = known.unwrap_or_else(|| spec.name.as_str().into());
        self.note(&name, undo);
        self.forget(&name);
        let is_hidden = self.hidden.subscribers.contains(&name);
        if is_hidden && origin == Origin::Api {
            set(&mut self.hidden.subscribers, &mut undo.hidden_subscribers, &name, false);
        }
        let origin = if is_hidden { Origin::ApiOverFile } else { origin };
        let said = Said { origin, report }.shared();
        self.insert(name, Record { addresses: spec.addresses.as_slice().into(), plan, said });
        Ok(())
    }

    /// Begins a session or a lease. It gives way to records of files and commands. It takes its
    /// addresses from older ones of its kind, whose end was not reported.
    fn begin(
        &mut self,
        spec: &SubscriberSpec,
        origin: Origin,
        session: Option<&Session>,
        undo: &mut Undo,
    ) -> Result<(), RegistryError> {
        let known = self.subscribers.get(spec.name.as_str());
        if self.hidden.subscribers.contains(spec.name.as_str())
            || known.is_some_and(|record| record.origin != origin)
        {
            return Err(RegistryError::Configured(spec.name.clone()));
        }
        let before = known.and_then(|record| record.report.as_ref());
        let goes_on = before.is_some_and(|before| before.session.as_ref() == session);
        let pinned = known.filter(|_| goes_on && before.is_some_and(|b| b.own_plan.is_some()));
        let pinned = pinned.map(|record| record.plan.to_string());
        let report = Report {
            session: session.cloned(),
            own_plan: pinned.is_some().then(|| spec.plan.clone()),
        };
        let spec =
            &SubscriberSpec { plan: pinned.unwrap_or_else(|| spec.plan.clone()), ..spec.clone() };
        let is_same = before.map_or(report == Report::default(), |before| *before == report);
        if is_same && known.is_some_and(|record| record.says(spec)) {
            return Ok(());
        }
        self.check(spec)?;
        let mut losers = BTreeSet::new();
        for &address in &spec.addresses {
            let Some(owner) = self.owners.of(&address, &self.subscribers) else { continue };
            if self.subscribers[owner].origin == origin {
                losers.insert(Arc::clone(owner));
            } else if **owner != *spec.name {
                let owner = owner.to_string();
                return Err(RegistryError::AddressTaken { address, owner });
            }
        }
        for loser in losers.into_iter().filter(|loser| **loser != *spec.name) {
            let before = self.subscribers[&loser].clone();
            self.note(&loser, undo);
            self.forget(&loser);
            let left = before.addresses.iter().filter(|address| !spec.addresses.contains(address));
            let addresses: Arc<[IpNet]> = left.copied().collect();
            if !addresses.is_empty() {
                self.insert(loser, Record { addresses, ..before });
            }
        }
        let report = (report != Report::default()).then_some(report);
        self.put(spec, Said { origin, report }, undo)
    }

    /// Checks everything that `put` requires; returns the plan's name as the registry stores it.
    fn checked(&self, spec: &SubscriberSpec) -> Result<Arc<str>, RegistryError> {
        let plan = self.check(spec)?;
        for &address in &spec.addresses {
            let owner = self.owners.of(&address, &self.subscribers);
            if let Some(owner) = owner.filter(|o| ***o != *spec.name) {
                let owner = owner.to_string();
                return Err(RegistryError::AddressTaken { address, owner });
            }
        }
        Ok(plan)
    }

    /// Like [`Registry::checked`], without checking who has the addresses.
    fn check(&self, spec: &SubscriberSpec) -> Result<Arc<str>, RegistryError> {
        check_name(&spec.name).map_err(RegistryError::BadName)?;
        let is_new = !self.subscribers.contains_key(spec.name.as_str());
        if is_new && self.subscribers.len() >= SUBSCRIBERS_MAX {
            return Err(RegistryError::TooManySubscribers);
        }
        if !(1..=ADDRESSES_MAX).contains(&spec.addresses.len()) {
            return Err(RegistryError::AddressCount(spec.addresses.len()));
        }
        for (i, &address) in spec.addresses.iter().enumerate() {
            check_address(address).map_err(RegistryError::BadAddress)?;
            if spec.addresses[..i].contains(&address) {
                return Err(RegistryError::AddressTwice { address });
            }
        }
        self.known_plan(&spec.plan)
    }

    fn note(&self, name: &Arc<str>, undo: &mut Undo) {
        let before = || self.subscribers.get(name).cloned();
        undo.subscribers.entry(Arc::clone(name)).or_insert_with(before);
    }

    fn insert(&mut self, name: Arc<str>, record: Record) {
        self.owners.insert(&name, &record.addresses);
        if let Some(plan) = self.plans.get_mut(&record.plan) {
            plan.users += 1;
        }
        self.counts[record.origin as usize] += 1;
        self.pinned_leases += usize::from(record.is_pinned_lease());
        self.subscribers.insert(name, record);
    }

    fn forget(&mut self, name: &Arc<str>) {
        let Some(record) = self.subscribers.remove(name) else { return };
        self.owners.remove(name, &record.addresses);
        self.counts[record.origin as usize] -= 1;
        self.pinned_leases -= usize::from(record.is_pinned_lease());
        if let Some(plan) = self.plans.get_mut(&record.plan) {
            plan.users -= 1;
        }
    }
}

impl Origin {
    /// The origin after a change by the API.
    fn as_changed(self) -> Origin {
        match self {
            Origin::File | Origin::ApiOverFile => Origin::ApiOverFile,
            Origin::Api | Origin::Radius | Origin::Lease => Origin::Api,
        }
    }

    /// Whether the record comes from a command.
    pub(super) fn is_of_api(self) -> bool {
        matches!(self, Origin::Api | Origin::ApiOverFile)
    }
}

impl Record {
    fn says(&self, spec: &SubscriberSpec) -> bool {
        *self.addresses == *spec.addresses && *self.plan == *spec.plan
    }

    /// The reported plan of a session or a lease, if a command has set another one.
    pub(super) fn own_plan(&self) -> Option<&String> {
        self.report.as_ref().and_then(|report| report.own_plan.as_ref())
    }

    /// The id of the session, if the record is one.
    pub(super) fn session(&self) -> Option<&Session> {
        self.report.as_ref().and_then(|report| report.session.as_ref())
    }

    fn is_pinned_lease(&self) -> bool {
        self.origin == Origin::Lease && self.own_plan().is_some()
    }

    /// Whether the record is a session or a lease that is in the journal.
    pub(super) fn is_stored_report(&self) -> bool {
        self.origin == Origin::Radius || self.is_pinned_lease()
    }

    /// The session or lease as stored in the journal.
    pub(super) fn reported(&self, name: &str) -> Reported {
        let report = self.report.clone().unwrap_or_default();
        Reported { subscriber: self.spec(name), origin: self.origin, report }
    }

    /// The record as a file or a request would contain it.
    pub(super) fn spec(&self, name: &str) -> SubscriberSpec {
        SubscriberSpec {
            name: name.to_owned(),
            addresses: self.addresses.to_vec(),
            plan: self.plan.to_string(),
        }
    }
}

/// Whether both records mean the same for the kernel.
fn is_alike(before: Option<&Record>, after: Option<&Record>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => {
            before.addresses == after.addresses && before.plan == after.plan
        }
        (before, after) => before.is_none() && after.is_none(),
    }
}

/// Adds a name to a set or removes it, and notes its first state in `undo`.
fn set(
    names: &mut BTreeSet<Arc<str>>,
    undo: &mut BTreeMap<Arc<str>, bool>,
    name: &Arc<str>,
    in_it: bool,
) {
    undo.entry(Arc::clone(name)).or_insert_with(|| names.contains(name));
    if in_it {
        names.insert(Arc::clone(name));
    } else {
        names.remove(name);
    }
}

fn restore(names: &mut BTreeSet<Arc<str>>, undo: BTreeMap<Arc<str>, bool>) {
    for (name, was_in_it) in undo {
        if was_in_it {
            names.insert(name);
        } else {
            names.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests;
