//! What the page shows of `fairweir isp`: plans and segments, each direction on a row of its own.

use serde::Serialize;

use super::view::DaemonView;
use crate::isp::{self, Directions, SegmentUse, Status};
use crate::words::{count, mbit};

/// Plans and segments that are shown, each; the file allows 511 plans and 128 segments.
const ROWS_MAX: usize = 64;

/// An ISP's daemon. `page.ts` declares the same types.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct IspView {
    /// By name.
    pub(super) plans: Vec<PlanView>,
    /// In the order of the file.
    pub(super) segments: Vec<SegmentView>,
}

/// A plan in a direction that it polices. Rates are those of the last second, counters began with the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlanView {
    pub(super) name: String,
    /// How the rate of a subscriber is divided among its queues.
    pub(super) policy: String,
    pub(super) subscribers: usize,
    pub(super) direction: &'static str,
    /// Of each subscriber.
    pub(super) rate_bps: u64,
    pub(super) passed_bps: u64,
    pub(super) dropped_bps: u64,
    pub(super) dropped_packets: u64,
    pub(super) marked_packets: u64,
}

/// A segment in a direction that it shares.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SegmentView {
    pub(super) name: String,
    pub(super) members: usize,
    pub(super) direction: &'static str,
    pub(super) capacity_bps: u64,
    pub(super) guaranteed_bps: u64,
    /// In the last tenth of a second.
    pub(super) passed_bps: u64,
    pub(super) refused_packets: u64,
}

pub(super) fn daemon_view(status: &Status) -> DaemonView {
    let plans = status.plans.iter().flat_map(|plan| {
        let rows = both(plan.rate_bps, plan.totals).into_iter();
        rows.filter_map(move |(direction, rate, totals)| {
            Some(PlanView {
                name: plan.name.clone(),
                policy: plan.policy.clone(),
                subscribers: plan.subscribers,
                direction,
                rate_bps: rate?,
                passed_bps: totals.passed_bps,
                dropped_bps: totals.dropped_bps,
                dropped_packets: totals.dropped_packets,
                marked_packets: totals.marked_packets,
            })
        })
    });
    let segments = status.segments.iter().flat_map(|segment| {
        let rows = both(segment.used, Directions { download: (), upload: () }).into_iter();
        rows.filter_map(move |(direction, used, ())| {
            let SegmentUse { capacity_bps, guaranteed_bps, passed_bps, refused_packets } = used?;
            let (name, members) = (segment.name.clone(), segment.members);
            Some(SegmentView {
                name,
                members,
                direction,
                capacity_bps,
                guaranteed_bps,
                passed_bps,
                refused_packets,
            })
        })
    });
    let isp = IspView {
        plans: plans.take(ROWS_MAX).collect(),
        segments: segments.take(ROWS_MAX).collect(),
    };
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
    DaemonView {
        headline: isp::headline(status),
        isp: Some(isp),
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
        let isp = view.isp.unwrap();
        assert_eq!(isp.plans.len(), ROWS_MAX);
        let first = &isp.plans[0];
        assert_eq!(
            (first.direction, first.rate_bps, first.marked_packets),
            ("download", 20_000_000, 5)
        );
        let [segment] = &isp.segments[..] else { panic!("{:?}", isp.segments) };
        assert_eq!((segment.direction, segment.guaranteed_bps), ("upload", 4));
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
