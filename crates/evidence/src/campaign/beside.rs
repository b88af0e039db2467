//! How close to its weights a host can come while others fill the same queue.

use fairweir_core::units::{Rate, Time};
use fairweir_scenario::report::{Point, Report};
use fairweir_scenario::{Demand, Scenario};

/// The host keeps at least this part of its total without control.
const TOTAL_KEPT: f64 = 0.95;
/// A group is held back by its excess divided by this number, or by a multiple of that.
const STEPS: u32 = 200;

/// The least division error of a host that keeps [`TOTAL_KEPT`] of its total, as the mean over the
/// seconds between events; 0 without any. `none` is the run without control, with its rates over
/// time; `host` lists the groups of the host.
///
/// A receiver can only hold a group back. In a FIFO, the rate that this group leaves goes to all
/// senders that want more, also those of the neighbours. This code assumes that they take it in
/// proportion to their rates without control. Between two events it uses the mean rates. A group of
/// unknown demand, such as a video, is assumed to take no more, so the bound is rather too small.
pub(super) fn error_min(scenario: &Scenario, none: &Report, host: &[usize]) -> f64 {
    let series = none.series.as_deref().unwrap_or_default();
    let mut times: Vec<Time> = scenario.events().iter().map(|event| event.at).collect();
    times.push(scenario.end());
    let (mut seconds, mut sum) = (0.0, 0.0);
    for span in times.windows(2) {
        let rates = mean_rates(scenario, series, span[0], span[1]);
        if let Some(error) = error_at(scenario, span[0], &rates, host) {
            let lasts = span[1].since(span[0]).as_secs_f64();
            seconds += lasts;
            sum += error * lasts;
        }
    }
    if seconds > 0.0 { sum / seconds } else { 0.0 }
}

/// The mean rate of each group, in bit/s.
fn mean_rates(scenario: &Scenario, series: &[Point], from: Time, until: Time) -> Vec<f64> {
    let (from, until) =
        (from.since(Time::ZERO).as_secs_f64(), until.since(Time::ZERO).as_secs_f64());
    let of = |group: &fairweir_scenario::Group| {
        let points =
            series.iter().filter(|p| p.group == group.name && p.t_s >= from && p.t_s < until);
        let (count, sum) =
            points.fold((0u32, 0.0), |(n, sum), p| (n + 1, sum + p.rate.as_bps() as f64));
        sum / f64::from(count.max(1))
    };
    scenario.groups.iter().map(of).collect()
}

/// The least error at an instant; `None` if the host receives nothing, or one of its demands is unknown.
fn error_at(scenario: &Scenario, at: Time, rates: &[f64], host: &[usize]) -> Option<f64> {
    let takes_more = |group: &usize| scenario.demand_at(*group, at) == Demand::Endless;
    let others = (0..rates.len()).filter(|group| !host.contains(group) && takes_more(group));
    let others: f64 = others.map(|group| rates[group]).sum();
    let mine: Vec<f64> = host.iter().map(|&group| rates[group]).collect();
    let total: f64 = mine.iter().sum();
    if total <= 0.0 {
        return None;
    }
    let fair_of = |total: f64| -> Option<Vec<f64>> {
        let shares = scenario.division_at(host, Rate::bps(total as u64), at)?;
        Some(shares.iter().map(|share| share.as_bps() as f64).collect())
    };
    let fair = fair_of(total)?;
    let error = |rates: &[f64]| {
        let total: f64 = rates.iter().sum();
        let fair = fair_of(total).unwrap_or_default();
        let distance: f64 = rates.iter().zip(&fair).map(|(rate, fair)| (rate - fair).abs()).sum();
        distance / 2.0 / total
    };
    let grows: Vec<bool> =
        host.iter().zip(mine.iter().zip(&fair)).map(|(g, (r, f))| r < f && takes_more(g)).collect();
    let held = |part: f64| held_back(&mine, &fair, &grows, others, part);
    let kept = |rates: &Vec<f64>| rates.iter().sum::<f64>() >= total * TOTAL_KEPT;
    let all = (0..=STEPS).map(|step| held(f64::from(step) / f64::from(STEPS))).filter(kept);
    all.map(|rates| error(&rates)).reduce(f64::min)
}

/// The rates if groups above their share are held back by a part of their excess, and the groups
/// that grow share with `others` what is freed.
fn held_back(rates: &[f64], fair: &[f64], grows: &[bool], others: f64, part: f64) -> Vec<f64> {
    let left: f64 = rates.iter().zip(fair).map(|(rate, fair)| part * (rate - fair).max(0.0)).sum();
    let growing = rates.iter().zip(grows).filter(|(_, grows)| **grows).map(|(rate, _)| rate);
    let pool = others + growing.sum::<f64>();
    let new = |(i, &rate): (usize, &f64)| match grows[i] {
        true => rate + left * rate / pool,
        false => rate - part * (rate - fair[i]).max(0.0),
    };
    rates.iter().enumerate().map(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two groups of weights 2:1 with a connection each, next to connections of another host.
    fn scenario(others: u32) -> Scenario {
        let text = format!(
            "version = 1\nname = \"x\"\nduration = \"10s\"\n[link]\nrate = \"30mbit\"\n\
             [[device]]\nname = \"host\"\nweight = 1\n[[device]]\nname = \"other\"\nweight = 1\n\
             [[group]]\nname = \"a\"\nweight = 2\ndevice = \"host\"\n\
             [[group]]\nname = \"b\"\nweight = 1\ndevice = \"host\"\n\
             [[group]]\nname = \"c\"\nweight = 1\ndevice = \"other\"\n\
             [[flow]]\ngroup = \"a\"\nkind = \"bulk\"\n\
             [[flow]]\ngroup = \"b\"\nkind = \"bulk\"\n\
             [[flow]]\ngroup = \"c\"\nkind = \"bulk\"\nconnections = {others}\n"
        );
        Scenario::parse(&text, "x").unwrap()
    }

    #[test]
    fn what_a_group_leaves_is_shared_with_the_neighbours() {
        // One neighbour: if b gets x less, half of x goes to a, so x = 2 costs 5 % of the total.
        let error = |others: u32, rates: [f64; 3]| {
            error_at(&scenario(others), Time::ZERO, &rates, &[0, 1]).unwrap()
        };
        let wanted = 2.0 / 3.0 - 11.0 / 19.0;
        assert!((error(1, [10e6, 10e6, 10e6]) - wanted).abs() < 2e-3);
        // Four neighbours take four fifths of it: 5.125 of 9.5.
        let wanted = 2.0 / 3.0 - 5.125 / 9.5;
        assert!((error(4, [5e6, 5e6, 20e6]) - wanted).abs() < 2e-3);
    }

    #[test]
    fn without_neighbours_nothing_is_lost() {
        let alone = error_at(&scenario(1), Time::ZERO, &[15e6, 15e6, 0.0], &[0, 1]).unwrap();
        assert!(alone < 1e-6, "{alone}");
    }
}
