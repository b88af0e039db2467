//! The parts of the document with which an operator finds a subscriber.

use super::{Html, rate, volume};
use crate::isp::Found;
use crate::page::shown::TableView;

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
    pub(super) fn search(&mut self, text: &str) {
        self.raw(
            "<form method=\"get\" action=\"/subscribers\" role=\"search\"><label>Find a subscriber, by \
             address or the beginning of the name <input name=\"find\" maxlength=\"255\" required \
             value=\"",
        );
        self.text(text).raw("\"></label> <button>Find</button></form>");
    }

    pub(super) fn found(&mut self, found: &Found) {
        let mut table = TableView::new("found", "Subscribers", &FOUND);
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
                table.rows.push(vec![
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
        self.table("the search", &table);
        if found.has_more {
            self.raw("<p>There are more. A longer text finds fewer.</p>");
        }
    }
}
