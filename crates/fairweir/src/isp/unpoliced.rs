//! Sessions and leases that are not policed, and why.

use std::collections::BTreeMap;

use fairweir_config::isp::address::address_text;
use ipnet::IpNet;

use super::registry::RegistryError;
use super::wire::UnpolicedStatus;

/// The most entries; a further one replaces the entry that was noted least recently.
const UNPOLICED_MAX: usize = 4_096;

/// The entries by subscriber and session, with the Unix time when each was last noted; see the module.
#[derive(Default)]
pub(super) struct Unpoliced {
    all: BTreeMap<(String, String), (u64, UnpolicedStatus)>,
}

/// The session or lease whose traffic passes.
#[derive(Clone, Copy)]
pub(super) struct Who<'w> {
    pub(super) subscriber: &'w str,
    /// Empty for a lease.
    pub(super) session: &'w str,
    pub(super) nas: &'w str,
}

/// Why its traffic passes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reason {
    /// One of [`KINDS`]; or `silent`, for a session that is policed.
    pub(super) kind: &'static str,
    pub(super) text: String,
}

/// Kinds of reasons: no plan is known, no address, the address or the name is another's, a newer
/// session has taken its place, no packet came for too long, or something else.
pub(super) const KINDS: [&str; 7] =
    ["no_plan", "no_address", "address_taken", "configured", "over", "stale", "invalid"];

impl Reason {
    pub(super) fn of(error: &RegistryError) -> Reason {
        let kind = match error {
            RegistryError::NoPlan { .. } => "no_plan",
            RegistryError::AddressTaken { .. } => "address_taken",
            RegistryError::Configured(_) => "configured",
            _ => "invalid",
        };
        Reason { kind, text: error.to_string() }
    }
}

impl Unpoliced {
    /// Notes that a session or lease with these addresses is not policed.
    pub(super) fn note(&mut self, who: Who<'_>, addresses: &[IpNet], reason: &Reason, now_s: u64) {
        let key = (who.subscriber.to_owned(), who.session.to_owned());
        let before = self.all.get(&key).filter(|(_, before)| before.kind == reason.kind);
        let since_s = before.map_or(now_s, |(_, before)| before.since_s);
        if self.all.len() == UNPOLICED_MAX && !self.all.contains_key(&key) {
            let oldest = self.all.iter().min_by_key(|(_, (at, _))| *at).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.all.remove(&oldest));
        }
        let status = UnpolicedStatus {
            subscriber: key.0.clone(),
            session: key.1.clone(),
            nas: who.nas.to_owned(),
            addresses: addresses.iter().map(address_text).collect(),
            kind: reason.kind.to_owned(),
            reason: reason.text.clone(),
            since_s,
        };
        self.all.insert(key, (now_s, status));
    }

    /// Like [`Unpoliced::note`], but never replaces another entry.
    pub(super) fn note_if_room(
        &mut self,
        who: Who<'_>,
        addresses: &[IpNet],
        reason: &Reason,
        now_s: u64,
    ) {
        let key = (who.subscriber.to_owned(), who.session.to_owned());
        if self.all.len() < UNPOLICED_MAX || self.all.contains_key(&key) {
            self.note(who, addresses, reason, now_s);
        }
    }

    /// Removes an entry: the session is policed now, or over.
    pub(super) fn forget(&mut self, subscriber: &str, session: &str) {
        if !self.all.is_empty() {
            self.all.remove(&(subscriber.to_owned(), session.to_owned()));
        }
    }

    /// Removes entries that were not noted since `at_s`.
    pub(super) fn forget_before(&mut self, at_s: u64) {
        self.all.retain(|_, (at, _)| *at >= at_s);
    }

    pub(super) fn retain(&mut self, stays: impl Fn(&UnpolicedStatus) -> bool) {
        self.all.retain(|_, (_, one)| stays(one));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &UnpolicedStatus> {
        self.all.values().map(|(_, one)| one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_bounded_and_forgets_what_was_heard_of_least_recently() {
        let mut unpoliced = Unpoliced::default();
        let reason = |kind| Reason { kind, text: "why".to_owned() };
        let note = |unpoliced: &mut Unpoliced, n: usize, kind, now_s| {
            let name = format!("u{n}");
            let who = Who { subscriber: &name, session: "1", nas: "192.0.2.1" };
            unpoliced.note(who, &[], &reason(kind), now_s);
        };
        for n in 0..UNPOLICED_MAX {
            note(&mut unpoliced, n, "over", 10 + n as u64);
        }
        note(&mut unpoliced, 0, "over", 9_000);
        note(&mut unpoliced, UNPOLICED_MAX, "no_plan", 9_001);
        let has = |unpoliced: &Unpoliced, n: usize| {
            unpoliced.iter().find(|u| u.subscriber == format!("u{n}")).map(|u| u.since_s)
        };
        assert_eq!(unpoliced.iter().count(), UNPOLICED_MAX);
        assert_eq!((has(&unpoliced, 0), has(&unpoliced, 1)), (Some(10), None));
        note(&mut unpoliced, 0, "no_plan", 9_002);
        assert_eq!(has(&unpoliced, 0), Some(9_002), "for another reason it begins anew");
        let who = Who { subscriber: "another", session: "1", nas: "-" };
        unpoliced.note_if_room(who, &[], &reason("silent"), 9_003);
        assert!(unpoliced.iter().all(|one| one.subscriber != "another"));
        unpoliced.forget("u0", "2");
        unpoliced.forget("u0", "1");
        assert_eq!(has(&unpoliced, 0), None);
        unpoliced.forget_before(9_001);
        assert_eq!(unpoliced.iter().count(), 1);
    }
}
