//! The host in the internet that answers a control's probe, as reliably as the scenario says.
//!
//! The kernel in the internet's namespace sends the answers; this module decides the fate of each.

use std::net::IpAddr;

use fairweir_core::units::{Span, Time};
use fairweir_scenario::random::SplitMix64;
use fairweir_scenario::{LIE_SLOW_MAX, Lie, Scenario};

use super::End;
use crate::layout::REFLECTORS;

/// The fate of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is dropped.
    Lost,
    /// It goes to the queue of the downlink, delayed by this additional span.
    Queues(Span),
    /// It bypasses that queue.
    Passes,
}

/// The reflector; see the module.
pub(super) struct Reflector {
    loss_ppm: u32,
    answer_interval: Span,
    answered_at: Option<Time>,
    lie: Lie,
    random: SplitMix64,
}

impl Reflector {
    pub(super) fn new(scenario: &Scenario) -> Reflector {
        let random = SplitMix64::new(scenario.seed ^ STREAM);
        let fairweir_scenario::Reflector { loss_ppm, answer_interval, lie, .. } = scenario.probe;
        Reflector { loss_ppm, answer_interval, answered_at: None, lie, random }
    }

    /// Decides the fate of the next answer.
    pub(super) fn answer(&mut self, now: Time) -> Fate {
        if self.loss_ppm > 0 && self.random.below(1_000_000) < self.loss_ppm.into()
            || self.answered_at.is_some_and(|at| now.since(at) < self.answer_interval)
        {
            return Fate::Lost;
        }
        self.answered_at = Some(now);
        match self.lie {
            Lie::None => Fate::Queues(Span::ZERO),
            Lie::Fast => Fate::Passes,
            Lie::Slow => Fate::Queues(Span::nanos(self.random.below(LIE_SLOW_MAX.as_nanos() + 1))),
        }
    }
}

/// Whether the given end of a packet is a reflector.
pub(super) fn is_at(ip: &[u8], end: End) -> bool {
    let (length, from) = match ip.first().map(|first| first >> 4) {
        Some(4) => (4, 12),
        Some(6) => (16, 8),
        _ => return false,
    };
    let at = match end {
        End::Source => from,
        End::Destination => from + length,
    };
    let Some(found) = ip.get(at..at + length) else { return false };
    REFLECTORS.iter().any(|address| match address {
        IpAddr::V4(v4) => found == v4.octets(),
        IpAddr::V6(v6) => found == v6.octets(),
    })
}

/// Separates the reflector's random numbers from those of the links, which have the same seed.
const STREAM: u64 = 0x7265_666c_6563_746f;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn fates(probe: &str) -> Vec<Fate> {
        let text = format!(
            "version = 1\nname = \"x\"\nduration = \"9s\"\n[link]\nrate = \"9mbit\"\n\
             [probe]\n{probe}\n[[group]]\nname = \"a\"\nweight = 1\n[[flow]]\ngroup = \"a\"\n\
             kind = \"bulk\""
        );
        let mut reflector = Reflector::new(&Scenario::parse(&text, "x").unwrap());
        (0..1_000).map(|i| reflector.answer(Time::ZERO + Span::millis(i))).collect()
    }

    #[test]
    fn it_lies_and_loses_as_the_scenario_says() {
        assert!(fates("").iter().all(|f| *f == Fate::Queues(Span::ZERO)));
        assert!(fates("lie = \"fast\"").iter().all(|f| *f == Fate::Passes));
        let lost = fates("loss = 0.3").iter().filter(|f| **f == Fate::Lost).count();
        assert!((240..360).contains(&lost), "{lost}");
        let answered =
            fates("answer_interval = \"100ms\"").iter().filter(|f| **f != Fate::Lost).count();
        assert_eq!(answered, 10);
        let slow = fates("lie = \"slow\"").into_iter().map(|fate| match fate {
            Fate::Queues(span) => span,
            other => panic!("{other:?}"),
        });
        let slow: Vec<Span> = slow.collect();
        let mean = slow.iter().copied().sum::<Span>() / 1_000;
        assert!((Span::millis(18)..Span::millis(22)).contains(&mean), "{mean}");
        assert!(slow.iter().all(|s| *s <= LIE_SLOW_MAX));
    }

    #[test]
    fn it_is_known_by_its_addresses_alone() {
        let mut ip = vec![0x45; 20];
        assert!(!is_at(&ip, End::Source));
        ip[16..20].copy_from_slice(&[198, 18, 255, 254]);
        assert!(is_at(&ip, End::Destination) && !is_at(&ip, End::Source));
        assert!(!is_at(&ip[..19], End::Destination) && !is_at(&[], End::Source));
        let mut ip = vec![0x60; 40];
        ip[8..24].copy_from_slice(&[0xfd, 0x77, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert!(is_at(&ip, End::Source) && !is_at(&ip, End::Destination));
    }
}
