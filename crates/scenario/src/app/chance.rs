//! What chance decides about each flow, drawn the same way by the simulator and the lab.

use fairweir_core::units::Span;

use crate::Scenario;
use crate::random::SplitMix64;

/// What chance decides about a flow.
#[derive(Clone, Copy, Debug)]
pub struct Chance {
    /// How much later it begins.
    pub jitter: Span,
    /// Seed of its application.
    pub app: u64,
    /// Seed of its connections.
    pub connections: u64,
}

impl Chance {
    /// Draws for a flow of the scenario; flows are drawn for in their order.
    pub fn draw(scenario: &Scenario, flow: usize, random: &mut SplitMix64) -> Chance {
        let jitter = scenario.start_jitter.max(&scenario.flows[flow]);
        let jitter = Span::nanos(random.below(jitter.as_nanos()));
        Chance { jitter, app: random.draw(), connections: random.draw() }
    }
}

/// The seed of each flow's application, as the simulator draws it without a control; the lab uses
/// the same, so that both play the same pages, downloads and pauses.
pub fn seeds(scenario: &Scenario, seed: u64) -> Vec<u64> {
    let mut random = SplitMix64::new(seed);
    // Those of the two links.
    random.draw();
    random.draw();
    (0..scenario.flows.len()).map(|flow| Chance::draw(scenario, flow, &mut random).app).collect()
}
