//! The random values of each flow, drawn the same way by the simulator and the lab.

use fairweir_core::units::Span;

use crate::Scenario;
use crate::random::SplitMix64;

/// The random values of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Chance {
    /// Delay of its start.
    pub jitter: Span,
    /// Seed of its application.
    pub app: u64,
    /// Seed of its connections.
    pub connections: u64,
}

impl Chance {
    /// Draws the values of a flow of the scenario; call this for the flows in their order.
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
    // Skips the seeds of the two links.
    random.draw();
    random.draw();
    (0..scenario.flows.len()).map(|flow| Chance::draw(scenario, flow, &mut random).app).collect()
}
