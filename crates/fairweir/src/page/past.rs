//! The history on the page: what groups received in the last minutes, hour, day and month, as a chart
//! and as sums.

use std::collections::BTreeMap;

use serde::Serialize;

use super::shown::DaemonView;
use crate::page::history::Point;
use crate::page::history::suggest::Suggested;

/// A span of time that can be chosen.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PastSpan {
    /// The name of the span in links.
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    pub(super) span_s: u64,
    /// The length of a step of the chart.
    pub(super) step_s: u64,
}

/// The spans to choose from. Each chart has about 360 points.
pub(super) const SPANS: [PastSpan; 4] = [
    PastSpan { key: "10min", title: "last 10 minutes", span_s: 600, step_s: 2 },
    PastSpan { key: "hour", title: "last hour", span_s: 3_600, step_s: 10 },
    PastSpan { key: "day", title: "last day", span_s: 24 * 3_600, step_s: 240 },
    PastSpan { key: "month", title: "last 31 days", span_s: 31 * 24 * 3_600, step_s: 7_200 },
];

/// The most pairs of a device and an application that are shown.
const PAIRS_MAX: usize = 64;

/// The span with this key.
pub(super) fn span_of(key: Option<&str>) -> Option<&'static PastSpan> {
    SPANS.iter().find(|span| Some(span.key) == key)
}

/// What a document shows about the history.
#[derive(Default)]
pub(super) struct Recorded {
    /// Whether the history is recorded at all.
    pub(super) is_on: bool,
    /// The chosen span, and what each daemon's groups received in it.
    pub(super) past: Option<(&'static PastSpan, BTreeMap<String, PastView>)>,
    pub(super) suggestions: Vec<Suggested>,
    /// The reason if nothing is recorded now or nothing can be shown.
    pub(super) fault: Option<String>,
}

/// What the groups of a daemon received. `page.ts` declares the same types.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PastView {
    pub(super) span_s: u64,
    /// The begin of each step, in seconds since 1970.
    pub(super) times_s: Vec<u64>,
    /// Null where nothing was received.
    pub(super) capacity_bps: Vec<Option<u64>>,
    /// In the order in which the daemon lists them.
    pub(super) groups: Vec<PastGroup>,
}

/// What one group received.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PastGroup {
    pub(super) name: String,
    /// The rate in each step.
    pub(super) rates_bps: Vec<u64>,
    pub(super) received_bytes: u64,
    /// The bytes of it that arrived earlier, while nothing was recorded.
    pub(super) late_bytes: u64,
    pub(super) peak_bps: u64,
}

/// The view of a daemon's points, in steps of `span` from `from` to `to`.
pub(super) fn past_view(
    daemon: &DaemonView,
    span: &PastSpan,
    from: u64,
    to: u64,
    points: &[Point],
) -> PastView {
    let times_s: Vec<u64> = (from..to).step_by(span.step_s as usize).collect();
    let mut capacity_bps = vec![None; times_s.len()];
    let now = daemon.link.iter().flat_map(|link| &link.groups);
    let mut groups: Vec<PastGroup> =
        now.map(|group| PastGroup { name: group.name.clone(), ..PastGroup::default() }).collect();
    for point in points.iter().filter(|point| point.daemon == daemon.name) {
        let i = groups.iter().position(|group| group.name == point.group).unwrap_or_else(|| {
            // A group that the configuration no longer has.
            groups.push(PastGroup { name: point.group.clone(), ..PastGroup::default() });
            groups.len() - 1
        });
        let group = &mut groups[i];
        group.rates_bps.resize(times_s.len(), 0);
        // The file may contain any number.
        let bytes = point.received_bytes.saturating_add(point.late_bytes);
        group.received_bytes = group.received_bytes.saturating_add(bytes);
        group.late_bytes = group.late_bytes.saturating_add(point.late_bytes);
        let rate = point.received_bytes.saturating_mul(8) / span.step_s;
        group.peak_bps = group.peak_bps.max(rate);
        let at = (point.at.saturating_sub(from) / span.step_s) as usize;
        if let (Some(slot), Some(capacity)) =
            (group.rates_bps.get_mut(at), capacity_bps.get_mut(at))
        {
            *slot = rate;
            *capacity = point.capacity_bps.or(*capacity);
        }
    }
    if daemon.link.is_none() {
        // These are pairs of device and application; those with the most bytes are kept.
        groups.sort_by_key(|group| std::cmp::Reverse(group.received_bytes));
        groups.truncate(PAIRS_MAX);
    }
    groups.iter_mut().for_each(|group| group.rates_bps.resize(times_s.len(), 0));
    PastView { span_s: span.span_s, times_s, capacity_bps, groups }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::shown::{GroupView, LinkView};

    #[test]
    fn points_become_series_of_the_groups_in_their_order() {
        let group = |name: &str| GroupView { name: name.to_owned(), ..GroupView::default() };
        let link = LinkView { groups: vec![group("video"), group("rest")], ..LinkView::default() };
        let name = "host-eth0".to_owned();
        let daemon = DaemonView { name, link: Some(link), ..DaemonView::default() };
        let point = |at, daemon: &str, group: &str, received_bytes, late_bytes| Point {
            at,
            daemon: daemon.to_owned(),
            group: group.to_owned(),
            received_bytes,
            late_bytes,
            capacity_bps: Some(9),
            queue_ms: None,
        };
        let points = [
            point(1_000, "host-eth0", "gone", 20, 0),
            point(1_000, "host-x", "rest", 1, 0),
            point(1_020, "host-eth0", "rest", 50, 7),
            point(5_000, "host-eth0", "rest", 100, 0),
        ];
        let past = past_view(&daemon, &SPANS[1], 1_000, 1_025, &points);
        assert_eq!(past.times_s, [1_000, 1_010, 1_020]);
        assert_eq!(past.capacity_bps, [Some(9), None, Some(9)]);
        let of = |i: usize| {
            let group: &PastGroup = &past.groups[i];
            (group.name.as_str(), group.rates_bps.as_slice(), group.received_bytes)
        };
        assert_eq!(of(0), ("video", &[0, 0, 0][..], 0));
        assert_eq!(of(1), ("rest", &[0, 0, 40][..], 157));
        assert_eq!(of(2), ("gone", &[16, 0, 0][..], 20));
        assert_eq!((past.groups[1].late_bytes, past.groups[1].peak_bps), (7, 80));
    }

    #[test]
    fn only_known_spans_are_chosen() {
        assert_eq!(span_of(Some("day")).map(|span| span.span_s), Some(86_400));
        assert_eq!((span_of(None), span_of(Some("year"))), (None, None));
        assert!(SPANS.iter().all(|span| span.span_s / span.step_s <= 372));
    }
}
