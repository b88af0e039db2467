//! The promises of a segment, and of its division.

use proptest::prelude::*;

use super::*;
use crate::phantom::{PlanSpec, Share, Signal};

fn claims() -> impl Strategy<Value = (Rate, Vec<Claim>)> {
    let claim = (64_u64..100_000, 0_u64..60_000, prop::option::of(0_u64..120_000));
    let claim = claim.prop_map(|(plan, guarantee, demand)| Claim {
        plan: Rate::kbit(plan),
        guarantee: Rate::kbit(guarantee),
        demand: demand.map(Rate::kbit),
    });
    (0_u64..1_000_000, prop::collection::vec(claim, 1..40)).prop_map(|(more, claims)| {
        let sum: u64 = claims.iter().map(|claim: &Claim| claim.guarantee.as_bps()).sum();
        (Rate::bps(sum + 1_000 * more), claims)
    })
}

proptest! {
    #[test]
    fn guarantees_come_first_and_the_hungry_share_all_that_is_left((capacity, claims) in claims()) {
        let paces = divide(capacity, &claims);
        let uses = |(claim, pace): (&Claim, &Rate)| claim.demand.unwrap_or(*pace).min(*pace);
        let used: u64 = claims.iter().zip(&paces).map(|one| uses(one).as_bps()).sum();
        prop_assert!(used <= capacity.as_bps() + claims.len() as u64, "{used} of {capacity}");
        let hungry = || claims.iter().zip(&paces).filter(|(c, p)| c.demand.is_none() && **p < c.plan);
        let beyond: Vec<Rate> = hungry().map(|(c, p)| p.saturating_sub(c.guarantee)).collect();
        for (claim, pace) in claims.iter().zip(&paces) {
            prop_assert!(*pace >= claim.plan.min(claim.guarantee) && *pace <= claim.plan);
        }
        if let (Some(least), Some(most)) = (beyond.iter().min(), beyond.iter().max()) {
            prop_assert!(most.as_bps() - least.as_bps() <= 1, "{least} and {most}");
            prop_assert!(used + claims.len() as u64 >= capacity.as_bps(), "{used} of {capacity}");
        }
    }

    /// Random members flood, and the divisions stop at some time: never more than the capacity
    /// passes, and a member that floods never gets less than its guarantee.
    #[test]
    fn the_capacity_is_kept_and_so_are_guarantees(
        floods in prop::collection::vec((0_u64..4, 0_u64..40), 2..8),
        divided_s in 0_u64..4,
    ) {
        let capacity = Rate::mbit(40);
        let mut segment = Segment::new(capacity);
        let spec = PlanSpec {
            rate: Rate::mbit(40),
            rtt_max: Span::millis(100),
            signal: Signal::Soft,
            share: Share::Flows(1),
        };
        for &(guarantee, _) in &floods {
            let member = segment.join(Plan::new(&spec).unwrap(), spec.rate);
            segment.guarantee(member, Rate::mbit(guarantee));
        }
        let mut passed = vec![0_u64; floods.len()];
        let end_ms = 6_000;
        for ms in 0..end_ms {
            if ms % 100 == 0 && ms <= 1_000 * divided_s {
                segment.divide(Time::from_nanos(ms * 1_000_000));
            }
            for (member, &(_, rate)) in floods.iter().enumerate() {
                // One packet of 1,000 bytes a millisecond for each 8 Mbit/s.
                for nth in 0..rate / 8 {
                    let now = Time::from_nanos(ms * 1_000_000) + Span::micros(nth * 100 + member as u64);
                    let size = Bytes::new(1_000);
                    let arrival = Arrival { leaf: 0, flow: 0, size, can_be_marked: false };
                    if segment.handle_packet(now, member, arrival) != Verdict::Drop {
                        passed[member] += 1_000;
                    }
                }
            }
        }
        let carried = capacity.as_bps() / 8 * end_ms / 1_000;
        let bursts: u64 = floods.iter().map(|f| 15_000_u64.max(f.0 * 12_500) + 1_000).sum();
        let total: u64 = passed.iter().sum();
        prop_assert!(total <= carried + 500_000 + bursts + 1_000, "{total} of {carried}");
        for (&(guarantee, rate), passed) in floods.iter().zip(&passed) {
            let due = guarantee.min(rate / 8 * 8) * 125_000 * end_ms / 1_000;
            prop_assert!(passed * 100 >= due * 98, "{passed} of {due}, guaranteed {guarantee}");
        }
    }
}

#[test]
fn an_idle_segment_lets_anybody_start_with_all_of_it() {
    let claim = |guarantee, demand| Claim {
        plan: Rate::mbit(100),
        guarantee: Rate::mbit(guarantee),
        demand,
    };
    let idle = Some(Rate::ZERO);
    assert_eq!(divide(Rate::mbit(40), &[claim(5, idle), claim(0, idle)])[1], Rate::mbit(40));
    // The first member is hungry: the second may start at its guarantee and an equal share of the rest.
    let paces = divide(Rate::mbit(40), &[claim(5, None), claim(10, idle)]);
    assert_eq!(paces, [Rate::mbit(40), Rate::mbit(40)]);
    let paces = divide(Rate::mbit(40), &[claim(5, None), claim(10, None)]);
    assert_eq!(paces, [Rate::bps(17_500_000), Rate::bps(22_500_000)]);
}
