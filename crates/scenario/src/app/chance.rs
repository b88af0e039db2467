//! What chance decides about each flow, drawn the same way by the simulator and the lab.

use fairweir_core::units::Span;

use crate::random::SplitMix64;
use crate::{Flow, Scenario};

/// Flows begin up to that much later than the scenario says, by chance, so that seeds differ in
/// what real processes differ in.
const START_JITTER: Span = Span::millis(5);

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
    /// Draws for the next flow.
    pub fn draw(flow: &Flow, random: &mut SplitMix64) -> Chance {
        // However late it begins, it begins before it stops.
        let jitter = START_JITTER.min(flow.stop.since(flow.start));
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
    scenario.flows.iter().map(|flow| Chance::draw(flow, &mut random).app).collect()
}
