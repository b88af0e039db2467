//! Checks whether this host translates subscribers' addresses before their downloads are policed.
//! Such downloads arrive at the uplink under another address, belong to no subscriber, and pass.

use fairweir_config::isp::IspSection;
use fairweir_core::units::{Span, Time};
use fairweir_linux::{conntrack, monotonic_now};

use super::registry::Registry;

/// The most connections that are checked.
const CONNECTIONS_MAX: usize = 4_096;
/// How often to check, if a check takes less than a [`COST_PART`] of this time.
const PERIOD: Span = Span::secs(2);
const COST_PART: u64 = 100;

/// The result of the last check.
#[derive(Debug, Default)]
pub(super) struct Nat {
    next: Time,
    pub(super) error: Option<String>,
}

impl Nat {
    /// Called once a second; `is_suspicious` while downloads arrive that belong to no subscriber.
    pub(super) fn handle_tick(
        &mut self,
        isp: &IspSection,
        registry: &Registry,
        is_suspicious: bool,
        now: Time,
    ) {
        if now < self.next || !(is_suspicious || self.error.is_some()) {
            return;
        }
        let began = monotonic_now();
        self.error = look(isp, registry);
        let took = monotonic_now().since(began);
        self.next = now + PERIOD.max(took * COST_PART);
    }
}

/// Describes whose downloads pass and what to change, if a problem is found. Without permission to look, finds nothing.
pub(super) fn look(isp: &IspSection, registry: &Registry) -> Option<String> {
    let uplink = isp.uplink.as_ref()?;
    let device = &isp.device;
    let connections = conntrack::translated(CONNECTIONS_MAX).unwrap_or_default();
    let is_policed = |name: &&std::sync::Arc<str>| {
        let plan = registry.subscribers().get(*name).map(|record| &record.plan);
        plan.and_then(|plan| registry.plans().get(plan)).is_some_and(|p| p.entry.download.is_some())
    };
    let mut hidden = connections.iter().filter_map(|one| {
        let name = registry.owner_of(one.from.into()).filter(is_policed)?;
        (registry.owner_of(one.shown.into()) != Some(name)).then_some((name, one))
    });
    let (name, first) = hidden.next()?;
    let (number, of) = (1 + hidden.count(), connections.len());
    Some(format!(
        "this machine does NAT: {number} of {of} translated connections are of subscribers, such as `{name}` ({} as {}), \
         whose downloads arrive at {uplink} under that address and pass; remove `uplink` from [isp] and restart the daemon, \
         so that downloads are policed at egress of {device}",
        first.from, first.shown
    ))
}
