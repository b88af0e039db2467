//! What the page shows about `fairweir isp`: plans and segments, with a row for each direction.

use super::shown::{DaemonView, TableView};
use crate::isp::{self, Directions, SegmentUse, Status};
use crate::words::{count, mbit};

/// The most plans, and the most segments, that are shown; a file can have 511 plans and 128 segments.
const ROWS_MAX: usize = 64;

const PLANS: [&str; 9] = [
    "Plan",
    "Direction",
    "Rate of each",
    "Subscribers",
    "Passes",
    "Is dropped",
    "Packets dropped",
    "Packets marked",
    "Queues",
];

const SEGMENTS: [&str; 7] =
    ["Segment", "Direction", "Capacity", "Members", "Guaranteed", "Passes", "Packets refused"];

/// Plans' rates are of the last second, segments' rates of the last tenth of a second. Counters
/// start at zero when the daemon starts.
pub(super) fn daemon_view(status: &Status) -> DaemonView {
    let mut plans = TableView::new("plans", "Plans", &PLANS);
    for plan in &status.plans {
        // A direction that is not policed has no row.
        for (direction, rate, totals) in both(plan.rate_bps, plan.totals) {
            let Some(rate) = rate else { continue };
            plans.rows.push(vec![
                plan.name.clone(),
                direction.to_owned(),
                mbit(rate),
                plan.subscribers.to_string(),
                mbit(totals.passed_bps),
                mbit(totals.dropped_bps),
                totals.dropped_packets.to_string(),
                totals.marked_packets.to_string(),
                plan.policy.clone(),
            ]);
        }
    }
    let mut segments = TableView::new("segments", "Segments", &SEGMENTS);
    for segment in &status.segments {
        for (direction, used, ()) in both(segment.used, Directions { download: (), upload: () }) {
            let Some(used) = used else { continue };
            let SegmentUse { capacity_bps, guaranteed_bps, passed_bps, refused_packets } = used;
            segments.rows.push(vec![
                segment.name.clone(),
                direction.to_owned(),
                mbit(capacity_bps),
                segment.members.to_string(),
                mbit(guaranteed_bps),
                mbit(passed_bps),
                refused_packets.to_string(),
            ]);
        }
    }
    plans.rows.truncate(ROWS_MAX);
    segments.rows.truncate(ROWS_MAX);
    let unknown = status.unknown.download.passed_bps + status.unknown.upload.passed_bps;
    let facts = [
        ("subscribers", status.subscribers.to_string()),
        ("addresses", status.addresses.to_string()),
        ("traffic of no subscriber", mbit(unknown)),
    ];
    let hidden = status.plans.len().saturating_sub(ROWS_MAX);
    let mut notes: Vec<(String, String)> =
        isp::notes(status).into_iter().map(|note| ("note".to_owned(), note)).collect();
    if hidden > 0 {
        let text = format!("{} more; `fairweir isp status` lists all", count(hidden, "plan"));
        notes.push(("plans".to_owned(), text));
    }
    let tables = [plans, segments].into_iter().filter(|table| !table.rows.is_empty());
    DaemonView {
        headline: isp::headline(status),
        search: true,
        tables: tables.collect(),
        facts: facts.map(|(name, value)| (name.to_owned(), value)).into(),
        notes,
        ..DaemonView::default()
    }
}

fn both<A: Copy, B: Copy>(a: Directions<A>, b: Directions<B>) -> [(&'static str, A, B); 2] {
    [("download", a.download, b.download), ("upload", a.upload, b.upload)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_that_are_not_policed_or_shared_have_no_row() {
        let status: Status = serde_json::from_value(serde_json::json!({
            "version": "1", "device": "eth1", "uplink": null, "pid": 7, "enforcing": true,
            "open_reason": null, "hooks": [], "since_s": 1.0, "subscribers": 2, "addresses": 3,
            "plans": (0..70).map(|i| serde_json::json!({
                "name": format!("plan-{i}"), "origin": "file", "subscribers": 2, "policy": "16 queues",
                "rate_bps": { "download": 20_000_000, "upload": null },
                "totals": { "download": totals(5), "upload": totals(6) },
            })).collect::<Vec<_>>(),
            "segments": [{
                "name": "pon", "members": 2, "left_out": 0, "lease": null, "download": null,
                "upload": { "capacity_bps": 9, "guaranteed_bps": 4, "passed_bps": 3, "refused_packets": 2 },
            }],
            "unknown": { "download": totals(0), "upload": totals(0) },
            "api": { "added": 0, "changed": 0, "removed": 0 }, "memory_bytes": 1, "config_error": "bad",
        }))
        .unwrap();
        let view = daemon_view(&status);
        let [plans, segments] = &view.tables[..] else { panic!("{:?}", view.tables) };
        assert_eq!((plans.rows.len(), plans.rows[0].len()), (ROWS_MAX, PLANS.len()));
        assert_eq!(plans.rows[0][..3], ["plan-0", "download", "20.00 Mbit/s"]);
        assert_eq!((plans.rows[0][7].as_str(), plans.rows[1][0].as_str()), ("5", "plan-1"));
        let [segment] = &segments.rows[..] else { panic!("{segments:?}") };
        assert_eq!((segment[1].as_str(), segment[6].as_str()), ("upload", "2"));
        assert!(view.notes.iter().any(|(_, text)| text.contains("bad")), "{:?}", view.notes);
        assert!(
            view.notes.iter().any(|(_, text)| text.starts_with("6 plans more")),
            "{:?}",
            view.notes
        );
    }

    fn totals(n: u64) -> serde_json::Value {
        serde_json::json!({
            "passed_bps": n, "dropped_bps": n, "passed_bytes": n, "passed_packets": n,
            "dropped_bytes": n, "dropped_packets": n, "marked_packets": n,
        })
    }
}
