//! Access servers: the number of sessions, the last packet, and the counts of packets of each.
//!
//! Only packets with the right secret count, so strangers make no entries. Beyond [`NAS_MAX`], all others share one.

use std::collections::BTreeMap;

use fairweir_core::radius::Nas;
use fairweir_core::units::{Span, Time};

use crate::isp::wire::NasStatus;

/// The most access servers with an entry of their own.
const NAS_MAX: usize = 256;

/// The table; see the module.
#[derive(Default)]
pub(super) struct NasTable {
    /// In the order in which they were first heard.
    all: Vec<(Nas, Entry)>,
    others: Entry,
}

#[derive(Default)]
struct Entry {
    heard: Option<Time>,
    interim: Option<Time>,
    /// The number at the last complete count, and in the present count.
    sessions: usize,
    counted: usize,
    packets: BTreeMap<&'static str, u64>,
    refused: BTreeMap<&'static str, u64>,
}

impl NasTable {
    fn entry(&mut self, nas: &Nas) -> &mut Entry {
        let known = self.all.iter().position(|(known, _)| known.is(nas));
        let i = known.unwrap_or(self.all.len());
        if known.is_none() && i < NAS_MAX {
            self.all.push((nas.clone(), Entry::default()));
        }
        self.all.get_mut(i).map_or(&mut self.others, |(_, entry)| entry)
    }

    /// Counts a request of a server for a session at this access server.
    pub(super) fn count_request(&mut self, nas: &Nas, kind: &'static str) {
        *self.entry(nas).packets.entry(kind).or_default() += 1;
    }

    /// Counts a packet of a kind from this access server.
    pub(super) fn count(&mut self, nas: &Nas, kind: &'static str, now: Time) {
        let entry = self.entry(nas);
        entry.heard = Some(now);
        if kind == "interim" {
            entry.interim = Some(now);
        }
        *entry.packets.entry(kind).or_default() += 1;
    }

    /// Counts a packet that had no effect, or not all of it.
    pub(super) fn refuse(&mut self, nas: &Nas, result: &'static str) {
        *self.entry(nas).refused.entry(result).or_default() += 1;
    }

    /// Whether this access server sent an Interim within `span`.
    pub(super) fn reports(&mut self, nas: &Nas, span: Span, now: Time) -> bool {
        self.entry(nas).interim.is_some_and(|at| now.since(at) <= span)
    }

    /// Adds a session to the present count.
    pub(super) fn count_session(&mut self, nas: &Nas) {
        self.entry(nas).counted += 1;
    }

    /// Ends the count: all sessions have been counted.
    pub(super) fn end_count(&mut self) {
        let all = self.all.iter_mut().map(|(_, entry)| entry);
        for entry in all.chain([&mut self.others]) {
            entry.sessions = std::mem::take(&mut entry.counted);
        }
    }

    pub(super) fn status(&self, now: Time) -> Vec<NasStatus> {
        let named = |map: &BTreeMap<&str, u64>| {
            map.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
        };
        let status = |name: String, entry: &Entry| NasStatus {
            nas: name,
            sessions: entry.sessions,
            silent_s: entry.heard.map(|at| now.since(at).as_secs_f64()),
            packets: named(&entry.packets),
            refused: named(&entry.refused),
        };
        let all = self.all.iter().map(|(nas, entry)| status(nas.to_string(), entry));
        let others = Some(&self.others).filter(|entry| entry.heard.is_some() || entry.sessions > 0);
        all.chain(others.map(|entry| status("others".to_owned(), entry))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_servers_are_told_apart_by_any_of_their_names_and_are_bounded() {
        let nas = |text: String| serde_json::from_str::<Nas>(&text).unwrap();
        let named = |n: usize| nas(format!("{{\"identifier\":\"bng-{n}\"}}"));
        let at = |second| Time::ZERO + Span::secs(second);
        let mut table = NasTable::default();
        for n in 0..NAS_MAX + 9 {
            table.count(&named(n), "start", at(1));
            table.count_session(&named(n));
        }
        table.end_count();
        table.count(
            &nas("{\"v4\":\"10.0.0.1\",\"identifier\":\"bng-0\"}".to_owned()),
            "interim",
            at(5),
        );
        table.refuse(&named(NAS_MAX), "over");
        let all = table.status(at(9));
        assert_eq!(all.len(), NAS_MAX + 1);
        assert_eq!((all[0].nas.as_str(), all[0].silent_s), ("bng-0", Some(4.0)));
        assert_eq!(all[0].packets, [("interim".to_owned(), 1), ("start".to_owned(), 1)].into());
        let others = all.last().unwrap();
        assert_eq!(
            (others.nas.as_str(), others.sessions, others.refused["over"]),
            ("others", 9, 1)
        );
        assert!(table.reports(&named(0), Span::secs(4), at(9)));
        assert!(!table.reports(&named(0), Span::secs(3), at(9)));
        assert!(!table.reports(&named(1), Span::secs(9), at(9)), "a Start is no Interim");
        table.end_count();
        assert_eq!(table.status(at(9))[1].sessions, 0);
    }
}
