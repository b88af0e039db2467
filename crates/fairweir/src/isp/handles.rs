//! Maps subscribers' names to the kernel's numbers and back, with 30 bytes for each subscriber.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use anyhow::Context;
use fairweir_linux::police::SubscriberId;
use hashbrown::HashTable;

/// The name of each number in use, and the number of each name.
#[derive(Debug, Default)]
pub(super) struct Handles {
    seeds: RandomState,
    table: HashTable<SubscriberId>,
    names: Vec<Option<Arc<str>>>,
}

impl Handles {
    pub(super) fn of(&self, name: &str) -> Option<SubscriberId> {
        let hash = self.seeds.hash_one(name);
        self.table.find(hash, |&handle| self.name(handle).is_some_and(|n| **n == *name)).copied()
    }

    /// # Errors
    /// If the kernel does not have it.
    pub(super) fn known(&self, name: &str) -> anyhow::Result<SubscriberId> {
        self.of(name).with_context(|| format!("the kernel has no subscriber `{name}`"))
    }

    pub(super) fn name(&self, handle: SubscriberId) -> Option<&Arc<str>> {
        self.names.get(handle.index()).and_then(Option::as_ref)
    }

    pub(super) fn insert(&mut self, name: Arc<str>, handle: SubscriberId) {
        let hash = self.seeds.hash_one(&*name);
        if self.names.len() <= handle.index() {
            self.names.resize(handle.index() + 1, None);
        }
        self.names[handle.index()] = Some(name);
        let names = &self.names;
        self.table.insert_unique(hash, handle, |handle: &SubscriberId| {
            self.seeds.hash_one(names[handle.index()].as_deref().unwrap_or_default())
        });
    }

    pub(super) fn remove(&mut self, name: &str, handle: SubscriberId) {
        let hash = self.seeds.hash_one(name);
        if let Ok(found) = self.table.find_entry(hash, |&known| known == handle) {
            found.remove();
        }
        self.names[handle.index()] = None;
    }
}
