//! The policers and shapers that BC-PQP is compared with.

use fairweir_core::phantom::{Plan, Police};
use fairweir_core::units::{Bytes, Time};
use fairweir_reference::phantom::{
    Departure, FairPolicer, Pqp, Printed, ShaperSpec, Shapers, TokenBucket,
};

use crate::{Algorithm, Scenario};

/// The policer of a point; `None` if packets wait at the point ([`Queues`]).
pub(super) fn policer(police: &crate::Police, plan: &Plan) -> Option<Box<dyn Police + Send>> {
    let (rate, size, weights) = (police.rate(), police.size(), plan.leaf_weights());
    Some(match police.algorithm {
        Algorithm::BcPqpPrinted => Box::new(Printed::new(rate, size, &weights)),
        Algorithm::Pqp => Box::new(Pqp::new(rate, size, &weights)),
        Algorithm::FairPolicer => Box::new(FairPolicer::new(rate, size, &weights)),
        Algorithm::TokenBucket => Box::new(TokenBucket::new(rate, size)),
        Algorithm::BcPqp | Algorithm::Shaper => return None,
    })
}

/// The shapers of a scenario, with the packets that wait in them.
#[derive(Debug)]
pub(super) struct Queues<T> {
    /// Each packet is stored with its flow's index among those of the point.
    shapers: Shapers<(usize, T)>,
    /// The point of each shaper.
    points: Vec<usize>,
    /// Number of packets that wait.
    waiting: usize,
}

impl<T> Queues<T> {
    /// A shaper for each of these points.
    pub(super) fn new(scenario: &Scenario, points: Vec<usize>) -> Queues<T> {
        let spec = |&point: &usize| {
            let police = &scenario.police[point];
            let weights = police.plan().leaf_weights();
            ShaperSpec { rate: police.rate(), queue: police.size(), weights }
        };
        let specs: Vec<ShaperSpec> = points.iter().map(spec).collect();
        Queues { shapers: Shapers::new(&specs), points, waiting: 0 }
    }

    /// Keeps a packet of flow `member` (the flow's index at the point); gives it back if it is dropped.
    pub(super) fn enqueue(
        &mut self,
        now: Time,
        (shaper, leaf): (usize, usize),
        size: Bytes,
        (member, body): (usize, T),
    ) -> Option<T> {
        let dropped = self.shapers.enqueue(now, shaper, leaf, size, (member, body));
        self.waiting += usize::from(dropped.is_none());
        dropped.map(|(_, body)| body)
    }

    pub(super) fn next_departure(&self) -> Option<Time> {
        self.shapers.next_departure()
    }

    /// The next packet that has left up to now: when, its point and flow, its size and body.
    pub(super) fn poll_departure(&mut self, now: Time) -> Option<(Time, (usize, usize), Bytes, T)> {
        let Departure { at, aggregate, size, packet: (member, body), .. } =
            self.shapers.poll_departure(now)?;
        self.waiting -= 1;
        Some((at, (self.points[aggregate], member), size, body))
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }
}
