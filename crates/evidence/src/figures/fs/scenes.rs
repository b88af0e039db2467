//! The connections at the bottleneck, where a figure needs others than those in a file of `scenarios/`.

use fairweir_scenario::Control;

use super::super::play::Point;

/// Groups and flows in the order in which they were added, as overrides of a scenario.
#[derive(Default)]
pub(super) struct Scene {
    groups: Vec<String>,
    flows: Vec<String>,
}

impl Scene {
    /// Adds a group of equal flows; `each` has the keys of one flow after `group`.
    pub(super) fn with(mut self, group: &str, flows: usize, each: &str) -> Scene {
        self.groups.push(format!("{{ name = \"{group}\", weight = 1 }}"));
        let flow = format!("{{ group = \"{group}\", {each} }}");
        self.flows.extend(std::iter::repeat_n(flow, flows));
        self
    }

    /// A point with these connections on the link of a file, with its bundle.
    pub(super) fn on(&self, scenario: &'static str) -> Point {
        Point::new(scenario, Control::None)
            .set("group", format!("[{}]", self.groups.join(", ")))
            .set("flow", format!("[{}]", self.flows.join(", ")))
    }
}

/// The keys of a download that always has more to send.
pub(super) fn bulk(congestion_control: &str, rtt: &str) -> String {
    format!("kind = \"bulk\", congestion_control = \"{congestion_control}\", rtt = \"{rtt}\"")
}
