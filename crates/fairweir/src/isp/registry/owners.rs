//! The owner of each address, in 24 bytes per address: for a million subscribers, a map from
//! addresses to names took 170 MB.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use ipnet::IpNet;

use super::Record;

/// An index of the subscribers, which are passed to each call. Invariant: it has each address of
/// each subscriber, and no other.
#[derive(Clone, Debug, Default)]
pub(super) struct Owners {
    seeds: RandomState,
    table: HashTable<Entry>,
    /// The names by number; a vacant number has no name.
    names: Vec<Option<Arc<str>>>,
    vacant: Vec<u32>,
}

/// The hash of an address, and the number of its owner.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    owner: u32,
}

type Subscribers = BTreeMap<Arc<str>, Record>;

impl Owners {
    /// The number of addresses.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The one of `subscribers` that has this address.
    pub(super) fn of(&self, address: &IpNet, subscribers: &Subscribers) -> Option<&Arc<str>> {
        let hash = self.hash(address);
        let name = |entry: &Entry| self.names[entry.owner as usize].as_ref();
        let has_it = |entry: &Entry| {
            entry.hash == hash
                && name(entry)
                    .and_then(|name| subscribers.get(name))
                    .is_some_and(|record| record.addresses.contains(address))
        };
        self.table.find(spread(hash), has_it).and_then(name)
    }

    /// Adds all addresses of a subscriber that had none.
    pub(super) fn insert(&mut self, name: &Arc<str>, addresses: &[IpNet]) {
        let owner = self.vacant.pop().unwrap_or(self.names.len() as u32);
        if owner as usize == self.names.len() {
            self.names.push(None);
        }
        self.names[owner as usize] = Some(Arc::clone(name));
        for address in addresses {
            let hash = self.hash(address);
            let entry = Entry { hash, owner };
            self.table.insert_unique(spread(hash), entry, |entry| spread(entry.hash));
        }
    }

    /// Removes a subscriber that has these addresses.
    pub(super) fn remove(&mut self, name: &Arc<str>, addresses: &[IpNet]) {
        for address in addresses {
            let hash = self.hash(address);
            let names = &self.names;
            let is_its = |entry: &Entry| {
                entry.hash == hash && names[entry.owner as usize].as_ref() == Some(name)
            };
            let Ok(found) = self.table.find_entry(spread(hash), is_its) else { continue };
            let (Entry { owner, .. }, _) = found.remove();
            if address == &addresses[addresses.len() - 1] {
                self.names[owner as usize] = None;
                self.vacant.push(owner);
            }
        }
    }

    fn hash(&self, address: &IpNet) -> u32 {
        self.seeds.hash_one(address) as u32
    }
}

/// Spreads a 32-bit hash over all bits that the table uses.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Any two indexes are equal: the subscribers, which are compared too, determine the index.
impl PartialEq for Owners {
    fn eq(&self, other: &Owners) -> bool {
        self.len() == other.len()
    }
}
