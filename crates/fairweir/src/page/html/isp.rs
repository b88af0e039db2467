//! The parts of the document that an operator looks at: plans, segments, and one subscriber.

use super::{Html, rate, volume};
use crate::isp::Found;
use crate::page::operator::{IspView, PlanView, SegmentView};

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

const FOUND: [&str; 9] = [
    "Name",
    "Addresses",
    "Plan",
    "Queues",
    "Direction",
    "Rate of the plan",
    "Passed",
    "Packets dropped",
    "Packets marked",
];

impl Html {
    pub(super) fn isp(&mut self, daemon: &str, isp: &IspView) {
        self.search("");
        let plan = |plan: &PlanView| {
            [
                plan.name.clone(),
                plan.direction.to_owned(),
                rate(plan.rate_bps),
                plan.subscribers.to_string(),
                rate(plan.passed_bps),
                rate(plan.dropped_bps),
                plan.dropped_packets.to_string(),
                plan.marked_packets.to_string(),
                plan.policy.clone(),
            ]
        };
        let rows: Vec<_> = isp.plans.iter().map(plan).collect();
        self.table("Plans", daemon, "plans", &PLANS, &rows);
        if isp.segments.is_empty() {
            return;
        }
        let segment = |segment: &SegmentView| {
            [
                segment.name.clone(),
                segment.direction.to_owned(),
                rate(segment.capacity_bps),
                segment.members.to_string(),
                rate(segment.guaranteed_bps),
                rate(segment.passed_bps),
                segment.refused_packets.to_string(),
            ]
        };
        let rows: Vec<_> = isp.segments.iter().map(segment).collect();
        self.table("Segments", daemon, "segments", &SEGMENTS, &rows);
    }

    pub(super) fn search(&mut self, text: &str) {
        self.raw(
            "<form method=\"get\" action=\"/subscribers\" role=\"search\"><label>Find a subscriber, by \
             address or the beginning of the name <input name=\"find\" maxlength=\"255\" required \
             value=\"",
        );
        self.text(text).raw("\"></label> <button>Find</button></form>");
    }

    pub(super) fn found(&mut self, found: &Found) {
        let mut rows = Vec::new();
        for subscriber in &found.subscribers {
            let directions = [("download", subscriber.download), ("upload", subscriber.upload)];
            for (direction, counters) in directions {
                let [plan, passed, dropped, marked] = match counters {
                    None => ["not policed", "", "", ""].map(str::to_owned),
                    Some(counters) => [
                        rate(counters.plan_bps),
                        volume(counters.passed_bytes),
                        counters.dropped_packets.to_string(),
                        counters.marked_packets.to_string(),
                    ],
                };
                rows.push([
                    subscriber.name.clone(),
                    subscriber.addresses.join(" "),
                    subscriber.plan.clone(),
                    subscriber.policy.clone(),
                    direction.to_owned(),
                    plan,
                    passed,
                    dropped,
                    marked,
                ]);
            }
        }
        self.table("Subscribers", "the search", "found", &FOUND, &rows);
        if found.has_more {
            self.raw("<p>There are more. A longer text finds fewer.</p>");
        }
    }

    /// A table that scrolls by itself; the first cell of a row is its heading.
    fn table<const N: usize>(
        &mut self,
        caption: &str,
        of: &str,
        field: &str,
        headings: &[&str; N],
        rows: &[[String; N]],
    ) {
        self.raw("<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"");
        self.text(caption).raw(" of ").text(of).raw("\"><table><caption>").text(caption);
        self.raw("</caption><thead><tr>");
        for heading in headings {
            self.raw("<th scope=\"col\">").text(heading).raw("</th>");
        }
        self.raw("</tr></thead><tbody data-field=\"").text(field).raw("\">");
        for row in rows {
            let Some((first, rest)) = row.split_first() else { continue };
            self.raw("<tr><th scope=\"row\">").text(first).raw("</th>");
            for cell in rest {
                self.raw("<td>").text(cell).raw("</td>");
            }
            self.raw("</tr>");
        }
        self.raw("</tbody></table></div>");
    }
}
