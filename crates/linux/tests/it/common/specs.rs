//! Policies, plans and policers for the tests and their agent.

use fairweir_core::phantom::{Plan, PlanSpec, Share, Signal};
use fairweir_core::policy::{Group, Policy};
use fairweir_core::receiver::{Allocation, ClassRate, Excess};
use fairweir_core::share::Weight;
use fairweir_core::units::{Rate, Span};
use fairweir_linux::police::{
    Algorithm, Direction, Hook, PlanId, Police, PoliceSpec, SubscriberSpec,
};

/// A policer in the calling thread's namespace that limits downloads to 192.0.2.1 and 2001:db8::1
/// together to 10 Mbit/s, at the ingress of `device`.
pub(crate) fn police(device: &str, hook: Hook) -> Police {
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    police.set_plan(PlanId(1), &Algorithm::Phantom(&plan(Rate::mbit(10)))).unwrap();
    let addresses =
        ["192.0.2.1/32", "2001:db8::1/128"].map(|net| net.parse().unwrap()).to_vec().into();
    police.add(&SubscriberSpec { addresses, download: Some(PlanId(1)), upload: None }).unwrap();
    police.attach(device, hook, Direction::Download, 0).unwrap();
    police
}

/// A plan for short round trips, fair between four flows.
pub(crate) fn plan(rate: Rate) -> Plan {
    flat(rate, 4, Signal::Soft)
}

/// A flat plan of phantom queues, for short round trips.
pub(crate) fn flat(rate: Rate, queues: u8, signal: Signal) -> Plan {
    let rtt_max = Span::millis(20);
    Plan::new(&PlanSpec { rate, rtt_max, signal, share: Share::Flows(queues) }).unwrap()
}

/// Groups with their matches, each of weight 1.
pub(crate) fn policy(groups: &[(&str, &[&str])]) -> Policy {
    let group = |&(name, matches): &(&str, &[&str])| {
        Group::new(
            name.to_owned(),
            Weight::ONE,
            matches.iter().map(|m| m.parse().unwrap()).collect(),
        )
    };
    Policy::new(groups.iter().map(group).collect()).unwrap()
}

/// Classes with these rates and no borrowing.
pub(crate) fn allocation(rates: &[Rate]) -> Allocation {
    let class = |&rate: &Rate| ClassRate {
        rate,
        ceil: rate,
        priority: 0,
        weight: Weight::ONE,
        excess: Excess::Drop,
    };
    Allocation { total: None, classes: rates.iter().map(class).collect() }
}
