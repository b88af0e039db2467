use proptest::prelude::*;

use super::*;
use crate::phantom::{BcPqp, Class, Criterion, Signal};
use crate::units::Span;

/// A stream, seven stunts and eight other flows share 16 Mbit/s: each flow has 1 Mbit/s.
fn spec(signal: Signal) -> PlanSpec {
    let class = |name: &str, weight, queues, matches| Class {
        name: name.into(),
        weight,
        matches,
        share: Share::Flows(queues),
    };
    let classes = vec![
        class("stream", 1, 1, vec![Criterion::Dscp(1)]),
        class("backup", 7, 7, vec![Criterion::Dscp(2)]),
        class("others", 8, 8, Vec::new()),
    ];
    let (rate, rtt_max) = (Rate::mbit(16), Span::millis(100));
    PlanSpec { rate, rtt_max, signal, share: Share::Weighted(classes) }
}

fn bundle(target_kbit: u64) -> BundleSpec {
    let target = Rate::kbit(target_kbit);
    BundleSpec { free: "stream".into(), target, stunts: "backup".into() }
}

fn bundled(spec: &PlanSpec, target_kbit: u64) -> Bundled {
    let plan = Plan::new(spec).unwrap();
    let bundle = Bundle::new(&bundle(target_kbit), spec, &plan).unwrap();
    Bundled::new(plan, bundle)
}

/// A sender that does not react to anything: it sends packets at its own pace from time 0 on.
#[derive(Clone, Debug)]
struct Sender {
    leaf: usize,
    flow: u32,
    kbit: u64,
    size: u64,
}

/// Bytes of a packet of the free class.
const FREE_SIZE: u64 = 1_400;

/// Leaf of the stream, the stunts' first and the others' first.
fn firsts(plan: &Plan) -> [usize; 3] {
    [0, 1, 2].map(|nth| plan.choices()[nth].first.into())
}

fn senders(plan: &Plan, free: u64, stunts: &[u64], others: &[u64]) -> Vec<Sender> {
    let [first_free, first_stunt, first_other] = firsts(plan);
    let sender = |leaf: usize, kbit: u64, size| Sender { leaf, flow: leaf as u32 + 1, kbit, size };
    let stunt = |(i, kbit): (usize, &u64)| sender(first_stunt + i, *kbit, 1_500);
    let other = |(i, kbit): (usize, &u64)| sender(first_other + i, *kbit, 1_000 + 50 * i as u64);
    std::iter::once(sender(first_free, free, FREE_SIZE))
        .chain(stunts.iter().enumerate().map(stunt))
        .chain(others.iter().enumerate().map(other))
        .filter(|sender| sender.kbit > 0)
        .collect()
}

/// Bytes of each sender that passed in `seconds`; `look` sees the policer before each packet.
fn pass<P: Police>(
    police: &mut P,
    senders: &[Sender],
    seconds: u64,
    mut look: impl FnMut(&P, Time),
) -> Vec<u64> {
    let mut passed = vec![0; senders.len()];
    let mut sent = vec![0u64; senders.len()];
    loop {
        let at = |nth: usize| {
            let Sender { kbit, size, .. } = senders[nth];
            (sent[nth] * size * 8_000_000 / kbit + nth as u64, nth)
        };
        let (at, nth) = (0..senders.len()).map(at).min().unwrap();
        if at > seconds * 1_000_000_000 {
            return passed;
        }
        let now = Time::from_nanos(at);
        look(police, now);
        sent[nth] += 1;
        let Sender { leaf, flow, size, .. } = senders[nth];
        let arrival = Arrival { leaf, flow, size: Bytes::new(size), can_be_marked: false };
        if police.handle_packet(now, arrival) != Verdict::Drop {
            passed[nth] += size;
        }
    }
}

#[test]
fn what_the_free_class_has_above_its_share_the_stunts_have_less() {
    let spec = spec(Signal::Soft);
    let plan = Plan::new(&spec).unwrap();
    let all = senders(&plan, 2_500, &[3_000; 7], &[3_000; 8]);
    let mut with = bundled(&spec, 2_500);
    let passed = pass(&mut with, &all, 40, |_, _| ());
    let before = pass(&mut BcPqp::new(plan), &all, 40, |_, _| ());
    let sum = |part: &[u64]| part.iter().sum::<u64>() as f64;
    let free = passed[0] as f64 * 8.0 / 40.0 / 2.5e6;
    assert!((0.97..=1.03).contains(&free), "{free}");
    let (gained, lost) = (passed[0] - before[0], sum(&before[1..8]) - sum(&passed[1..8]));
    let equal = gained as f64 / lost;
    assert!((0.97..=1.03).contains(&equal), "{equal}");
    // All stunts lost about the same amount.
    let least = passed[1..8].iter().min().unwrap();
    let most = passed[1..8].iter().max().unwrap();
    assert!((*most as f64) < 1.02 * *least as f64, "{passed:?}");
    assert!(with.counts().delegated_bytes.as_u64() >= 9 * gained / 10);
}

#[test]
fn what_stunts_cannot_pay_the_free_class_does_not_get() {
    let spec = spec(Signal::Soft);
    let plan = Plan::new(&spec).unwrap();
    // No stunt sends; the others would take all.
    let all = senders(&plan, 6_000, &[], &[4_000; 8]);
    let passed = pass(&mut bundled(&spec, 5_000), &all, 40, |_, _| ());
    let before = pass(&mut BcPqp::new(plan.clone()), &all, 40, |_, _| ());
    assert!(passed[0] as f64 <= 1.03 * before[0] as f64, "{} of {}", passed[0], before[0]);
    // Two stunts pay half of their shares, a third one uses less than its own.
    let all = senders(&plan, 8_000, &[4_000, 4_000, 300], &[4_000; 8]);
    let mut with = bundled(&spec, 8_000);
    let passed = pass(&mut with, &all, 40, |_, _| ());
    let before = pass(&mut BcPqp::new(plan), &all, 40, |_, _| ());
    for stunt in [1, 2] {
        let kept = passed[stunt] as f64 / before[stunt] as f64;
        assert!((0.45..0.6).contains(&kept), "{kept}");
    }
    // Except for what the gate refuses at the start.
    let paid = before[3].abs_diff(passed[3]);
    assert!(paid <= 10 * 1_500, "who has less than its share pays nothing: {paid} bytes");
    assert!(with.counts().refused > 0);
}

#[test]
fn a_bundle_that_cannot_be_is_refused() {
    let spec = spec(Signal::Soft);
    let plan = Plan::new(&spec).unwrap();
    let refused = |change: fn(&mut BundleSpec)| {
        let mut one = bundle(2_000);
        change(&mut one);
        Bundle::new(&one, &spec, &plan).unwrap_err().to_string()
    };
    assert_eq!(
        refused(|b| b.stunts = "x".into()),
        "there is no class `x` with queues in this plan"
    );
    assert_eq!(
        refused(|b| b.free = "backup".into()),
        "class `backup` cannot be `free` and `stunts`"
    );
    let queues = "the free class `others` has 8 queues; it must have one";
    assert_eq!(refused(|b| b.free = "others".into()), queues);
    for target in [Rate::ZERO, Rate::mbit(17), Rate::MAX] {
        let mut one = bundle(2_000);
        one.target = target;
        let refused = Bundle::new(&one, &spec, &plan).unwrap_err();
        assert_eq!(refused, BundleError::Target(target, spec.rate));
    }
    let Share::Weighted(classes) = spec.share.clone() else { unreachable!() };
    let ranked = PlanSpec { share: Share::Priority(classes), ..spec };
    let plan = Plan::new(&ranked).unwrap();
    let refused = Bundle::new(&bundle(2_000), &ranked, &plan).unwrap_err();
    assert_eq!(refused, BundleError::Priority("stream".into()));
}

fn rates(count: usize) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![Just(0u64), 100u64..800, 1_500u64..6_000], count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Senders that flood, trickle or are silent, with a free class of any demand and target.
    #[test]
    fn nobody_but_the_bundle_pays_and_nobody_has_too_much(
        free in 100u64..16_000,
        target in 64u64..16_000,
        stunts in rates(7),
        others in rates(8),
        is_soft in any::<bool>(),
    ) {
        const SECONDS: u64 = 12;
        let signal = if is_soft { Signal::Soft } else { Signal::Hard };
        let spec = spec(signal);
        let plan = Plan::new(&spec).unwrap();
        let all = senders(&plan, free, &stunts, &others);
        let mut most = 0;
        let mut with = bundled(&spec, target);
        let passed = pass(&mut with, &all, SECONDS, |police, _| {
            let lent = police.state.lent.iter().map(|bytes| u64::from(*bytes)).max();
            // Half the whole rate's bytes in the longest window are at least half of any share.
            let window = plan.pace.window_bytes.max(police.aggregate.head.window_bytes.into());
            most = most.max(1_000 * lent.unwrap_or(0) / window);
        });
        // The free class and a stunt have an eighth of the rate at most if all stunts are asked.
        prop_assert!(most <= 500, "{most} thousandths of a window");
        let before = pass(&mut BcPqp::new(plan.clone()), &all, SECONDS, |_, _| ());
        let limit = u64::from(plan.pace.limit) + plan.pace.window_bytes;
        // The rate: what the policer alone may let through, in any case.
        let carried = 16_000_000 / 8 * SECONDS;
        let backlogs = all.len() as u64 * limit;
        prop_assert!(passed.iter().sum::<u64>() <= carried + backlogs);
        let gate = carried * 3 / 2 + plan.pace.gate_slack / 500 + 3 * plan.pace.window_bytes;
        prop_assert!(passed.iter().sum::<u64>() <= gate);
        // The target. The last packet may make a queue longer than its limit.
        let pace = &with.bundle.aim.pace;
        let aim = u64::from(pace.limit) + FREE_SIZE + pace.window_bytes;
        let at_target = target * 1_000 / 8 * SECONDS + aim;
        prop_assert!(passed[0] <= at_target, "{} > {at_target}", passed[0]);
        // Others get what they get without a bundle, except for what queues hold.
        for (sender, (with, without)) in all.iter().zip(passed.iter().zip(&before)) {
            if sender.leaf >= firsts(&plan)[2] {
                let share = 1_000_000 / 8 * SECONDS;
                let slack = without / 20 + 30_000;
                prop_assert!(
                    *with + slack >= (*without).min(share),
                    "{with} instead of {without} bytes of {sender:?}"
                );
            }
        }
    }
}
