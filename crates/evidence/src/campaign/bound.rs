//! How close to the fair shares a control by receive windows can come.

use fairweir_core::receiver::LATENCY;
use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_core::window::{Framing, floor_rate};
use fairweir_scenario::{Flow, Ip, Kind, Scenario};

/// Longest queue that is considered; beyond it even least windows need buffers that no link has.
const QUEUE_MAX: Span = Span::secs(10);
/// Number of halvings of an interval: to below a nanosecond, and below a bit/s.
const HALVINGS: u32 = 64;

/// A group for the computation of the bound, in bit/s.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    weight: f64,
    /// The least rate that it takes.
    floor: f64,
    /// The most rate that it takes.
    demand: f64,
}

/// The least allocation error of a control that limits TCP by receive windows and keeps the queue
/// at its default target: the mean over the seconds with known fair shares, 0 without any.
///
/// A sender with a window of fewer than two segments waits for the receiver's delayed ACK, so two
/// segments are the least window. A connection with RTT `r` behind a queue `q` then receives at
/// least 2 · packet / (r + q). A group of n connections cannot get less than the sum over its
/// connections, unless it demands less. A group whose share is above its floor can have it. So the
/// nearest allocation is the weighted max-min division in which each group gets at least its
/// floor. If the floors at the target exceed the capacity, the queue grows until they fit, and
/// every group has its floor.
///
/// The bound does not hold for classes that delay or drop packets behind the link: these can hold
/// a connection below two segments per RTT, at the price of retransmissions. Policers and
/// neighbours are not part of it: `scenario` is that of the reference `wfq`.
pub(super) fn error_min(scenario: &Scenario) -> f64 {
    let seconds = scenario.duration.as_nanos() / Span::secs(1).as_nanos();
    let errors = (0..seconds).filter_map(|s| error_at(scenario, Time::ZERO + Span::secs(s)));
    let (count, sum) = errors.fold((0u32, 0.0), |(count, sum), error| (count + 1, sum + error));
    sum / f64::from(count.max(1))
}

fn error_at(scenario: &Scenario, t: Time) -> Option<f64> {
    let capacity = scenario.capacity_at(t).as_bps() as f64;
    let fair: Vec<f64> = scenario.fair_shares_at(t)?.iter().map(|r| r.as_bps() as f64).collect();
    if capacity == 0.0 {
        return None;
    }
    let at = |queue: Span| parts(scenario, t, queue);
    let target = scenario.control.latency.unwrap_or(LATENCY);
    let nearest = nearest(&at(queue_min(capacity, target, at)), capacity);
    let distance: f64 = fair.iter().zip(&nearest).map(|(f, n)| (f - n).abs()).sum();
    Some(distance / 2.0 / capacity)
}

/// The target, or, if longer, the shortest queue with which the floors fit into the capacity.
fn queue_min(capacity: f64, target: Span, at: impl Fn(Span) -> Vec<Part>) -> Span {
    let fits = |queue: Span| at(queue).iter().map(|part| part.floor).sum::<f64>() <= capacity;
    if fits(target) {
        return target;
    }
    let (mut short, mut long) = (target, QUEUE_MAX);
    for _ in 0..HALVINGS {
        let middle = (short + long) / 2;
        if fits(middle) { long = middle } else { short = middle }
    }
    long
}

fn parts(scenario: &Scenario, t: Time, queue: Span) -> Vec<Part> {
    let part = |(i, group): (usize, &fairweir_scenario::Group)| {
        let flows = scenario.flows.iter().filter(|f| f.group == i && f.start <= t && t < f.stop);
        let (mut floor, mut demand) = (0.0, 0.0);
        for flow in flows {
            let (least, most) = range(scenario, flow, t, queue);
            floor += least;
            demand += most;
        }
        Part { weight: f64::from(group.weight.as_u32()), floor, demand }
    };
    scenario.groups.iter().enumerate().map(part).collect()
}

/// The least and the most rate that a flow takes.
fn range(scenario: &Scenario, flow: &Flow, t: Time, queue: Span) -> (f64, f64) {
    use fairweir_scenario::Demand;
    let demand = match flow.demand_at(t) {
        Demand::Known(rate) => rate.as_bps() as f64,
        Demand::Endless | Demand::Unknown => f64::INFINITY,
    };
    let connection = match flow.kind {
        Kind::Bulk | Kind::Quic => least(flow, scenario.link.mtu, queue).as_bps() as f64,
        // UDP does not yield to anything.
        Kind::Udp | Kind::Ping { .. } => return (demand, demand),
        // Their demand varies, so they may be idle.
        Kind::OnOff(_) | Kind::Video(_) | Kind::Web(_) | Kind::Short(_) | Kind::Browser(_) => {
            return (0.0, demand);
        }
    };
    ((connection * f64::from(flow.connections)).min(demand), demand)
}

fn least(flow: &Flow, mtu: u32, queue: Span) -> Rate {
    let segment: Bytes = flow.segment(mtu);
    let framing = match flow.ip {
        Ip::V4 => Framing::ipv4(segment),
        Ip::V6 => Framing::ipv6(segment),
    };
    floor_rate(flow.rtt, queue, framing)
}

/// Divides `capacity` by weighted max-min fairness among parts that get at least their floors.
fn nearest(parts: &[Part], capacity: f64) -> Vec<f64> {
    let at = |level: f64| {
        let of = |part: &Part| (level * part.weight).clamp(part.floor, part.demand);
        parts.iter().map(of).collect::<Vec<f64>>()
    };
    let (mut low, mut high) = (0.0, capacity);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if at(middle).iter().sum::<f64>() <= capacity { low = middle } else { high = middle }
    }
    at(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two groups of equal weight, the second with `connections`.
    fn scenario(rate: &str, connections: u32) -> Scenario {
        let text = format!(
            "version = 1\nname = \"x\"\nduration = \"10s\"\n[link]\nrate = \"{rate}\"\n\
             [[group]]\nname = \"a\"\nweight = 1\n[[group]]\nname = \"b\"\nweight = 1\n\
             [[flow]]\ngroup = \"a\"\nkind = \"bulk\"\n\
             [[flow]]\ngroup = \"b\"\nkind = \"bulk\"\nconnections = {connections}\n"
        );
        Scenario::parse(&text, "x").unwrap()
    }

    #[test]
    fn least_windows_bound_the_error_only_if_they_exceed_the_share() {
        // The floor of one connection: 2 · 1514 · 8 / 45 ms = 538 kbit/s.
        assert!(error_min(&scenario("2mbit", 1)) < 1e-3);
        let three = error_min(&scenario("3mbit", 3));
        assert!((three - (3.0 * 0.5383 - 1.5) / 3.0).abs() < 1e-3, "{three}");
        assert!(error_min(&scenario("20mbit", 3)) < 1e-3);
    }

    #[test]
    fn if_the_floors_exceed_the_link_connections_share_it() {
        // The group with one of the eight connections gets an eighth instead of a half.
        let error = error_min(&scenario("1mbit", 7));
        assert!((error - (0.5 - 0.125)).abs() < 1e-3, "{error}");
    }

    #[test]
    fn floors_and_demands_hold_and_the_rest_is_shared_by_weight() {
        let part = |weight, floor, demand| Part { weight, floor, demand };
        let endless = f64::INFINITY;
        let parts = [part(1.0, 6.0, endless), part(1.0, 0.0, 1.0), part(3.0, 0.0, endless)];
        let got = nearest(&parts, 10.0);
        for (got, wanted) in got.iter().zip([6.0, 1.0, 3.0]) {
            assert!((got - wanted).abs() < 1e-6, "{got} {wanted}");
        }
    }
}
