//! Numbers from reports; NaN where a report has none.

use fairweir_scenario::report::Report;

/// Mean quality of the film in Mbit/s.
pub(super) fn film(report: &Report) -> f64 {
    let quality = report.summary.videos.first().and_then(|v| v.quality);
    quality.map_or(f64::NAN, |rate| rate.as_mbit_f64())
}

/// Jain's index.
pub(super) fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    sum * sum / (values.len() as f64 * values.iter().map(|v| v * v).sum::<f64>())
}

/// Volume delivered divided by capacity, over the whole run.
pub(super) fn utilization(report: &Report) -> f64 {
    report.summary.link_utilization
}

/// The allocation error outside transients.
pub(super) fn error(report: &Report) -> f64 {
    report.summary.allocation_error.unwrap_or(f64::NAN)
}

/// Packets that the ISP's full buffer dropped.
pub(super) fn drops(report: &Report) -> f64 {
    report.summary.isp_drops as f64
}

/// The mean time in the ISP's queue in seconds.
pub(super) fn queue_mean(report: &Report) -> f64 {
    report.summary.isp_queue_ms.map_or(f64::NAN, |queue| queue.mean / 1e3)
}

/// Time in the ISP's queue that 99 of 100 packets do not exceed, in seconds.
pub(super) fn queue_p99(report: &Report) -> f64 {
    report.summary.isp_queue_ms.map_or(f64::NAN, |queue| queue.p99 / 1e3)
}

/// Volume delivered divided by capacity while the demand suffices, outside transients.
pub(super) fn scored_utilization(report: &Report) -> f64 {
    report.summary.utilization.unwrap_or(f64::NAN)
}

/// Median round-trip time of a ping in seconds.
pub(super) fn rtt_median(report: &Report) -> f64 {
    let ping = report.summary.pings.first().and_then(|p| p.rtt_ms_median);
    ping.map_or(f64::NAN, |ms| ms / 1e3)
}

/// Round-trip time of a ping that 19 of 20 do not exceed, in seconds.
pub(super) fn rtt_p95(report: &Report) -> f64 {
    let ping = report.summary.pings.first().and_then(|p| p.rtt_ms_p95);
    ping.map_or(f64::NAN, |ms| ms / 1e3)
}

/// The group's part of everything that was delivered.
pub(super) fn part(group: usize) -> impl Fn(&Report) -> f64 {
    move |report| {
        let delivered = |g: usize| report.summary.groups[g].delivered.as_u64() as f64;
        let all: f64 = (0..report.summary.groups.len()).map(delivered).sum();
        delivered(group) / all
    }
}

/// Median load time of pages in seconds.
pub(super) fn load_median(report: &Report) -> f64 {
    let pages = report.summary.pages.first().and_then(|p| p.load_ms_median);
    pages.map_or(f64::NAN, |ms| ms / 1e3)
}

/// The part of all pages that was loaded within a number of seconds, over all reports.
pub(super) fn loads(reports: &[Report]) -> Vec<(f64, f64)> {
    let pages = reports.iter().flat_map(|r| &r.summary.pages);
    let mut loads: Vec<_> = pages.flat_map(|p| &p.loads).copied().collect();
    loads.sort_unstable();
    let count = loads.len() as f64;
    loads.iter().zip(1..).map(|(load, n)| (load.as_secs_f64(), f64::from(n) / count)).collect()
}

/// Seconds from the `n`th event until all groups have their shares for good; the time to the next
/// event if they never do.
pub(super) fn right_after(n: usize, next_s: f64) -> impl Fn(&Report) -> f64 {
    move |report| {
        let event = report.summary.right_after_s.get(n);
        event.map_or(f64::NAN, |e| e.seconds.unwrap_or(next_s - e.at_s))
    }
}

/// A group's rate in Mbit/s from one second to another one.
pub(super) fn rate_between(group: usize, from_s: f64, to_s: f64) -> impl Fn(&Report) -> f64 {
    move |report| {
        let groups = report.summary.groups.len();
        let series = report.series.iter().flatten().skip(group).step_by(groups);
        let inside = series.filter(|p| from_s <= p.t_s && p.t_s < to_s);
        let rates: Vec<f64> = inside.map(|p| p.rate.as_mbit_f64()).collect();
        rates.iter().sum::<f64>() / rates.len() as f64
    }
}

/// Seconds from `from_s` until the link carried at least `mbit` for a whole second; the rest of the
/// run if it never does.
pub(super) fn carries_after(mbit: f64, from_s: f64) -> impl Fn(&Report) -> f64 {
    move |report| {
        let groups = report.summary.groups.len().max(1);
        let points: Vec<_> = report.series.iter().flatten().collect();
        let bins: Vec<(f64, f64)> = points
            .chunks(groups)
            .map(|bin| (bin[0].t_s, bin.iter().map(|p| p.rate.as_mbit_f64()).sum()))
            .filter(|(t, _)| *t >= from_s)
            .collect();
        let mean = |bins: &[(f64, f64)]| bins.iter().map(|b| b.1).sum::<f64>() / bins.len() as f64;
        let full = bins.windows(BINS_PER_S).find(|window| mean(window) >= mbit);
        let end = full.map(|window| window[0].0).or(bins.last().map(|bin| bin.0));
        end.map_or(f64::NAN, |t| t + 1.0 - from_s)
    }
}

/// Number of bins of the series in a second.
const BINS_PER_S: usize = 5;

/// Half the L1 distance between the groups' parts of their total and the parts that their `weights`
/// give, whatever the total is.
pub(super) fn misshared(weights: &'static [f64]) -> impl Fn(&Report) -> f64 {
    move |report| {
        let rates = report.summary.groups.iter().map(|g| g.rate.as_mbit_f64());
        let (got, wanted): (f64, f64) = (rates.clone().sum(), weights.iter().sum());
        rates.zip(weights).map(|(r, w)| (r / got - w / wanted).abs()).sum::<f64>() / 2.0
    }
}

/// The largest deviation of a group from its fair share, as a part of that share.
pub(super) fn worst_group(report: &Report) -> f64 {
    let miss = |group: &fairweir_scenario::report::GroupRate| {
        let fair = group.fair.map_or(f64::NAN, |fair| fair.as_mbit_f64());
        (group.rate.as_mbit_f64() / fair - 1.0).abs()
    };
    report.summary.groups.iter().map(miss).fold(f64::NAN, f64::max)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use fairweir_scenario::{Control, Scenario};
    use fairweir_sim::engine;

    use super::*;

    /// Two flows that share 12 Mbit/s by weights 2:1, the second from 4 s on.
    fn shared() -> Report {
        let text = "version = 1\nname = \"x\"\nduration = \"14s\"\nsettle = \"2s\"\n\
            group = [{ name = \"a\", weight = 2 }, { name = \"b\", weight = 1 }]\n\
            flow = [{ group = \"a\", kind = \"bulk\" }, \
            { group = \"b\", kind = \"bulk\", start = \"4s\" }]\n\
            [link]\nrate = \"12mbit\"\n";
        let scenario = Scenario::parse(text, "x").unwrap();
        engine::play(&scenario, Control::Wfq, 1, &|_| {}, &AtomicBool::new(false)).unwrap()
    }

    fn assert_near(value: f64, wanted: f64) {
        assert!((value / wanted - 1.0).abs() < 0.03, "{value}, wanted {wanted}");
    }

    #[test]
    fn rates_are_those_of_the_time_that_is_asked_for() {
        let report = shared();
        assert_near(rate_between(0, 2.0, 4.0)(&report), 12.0);
        assert_near(rate_between(0, 6.0, 14.0)(&report), 8.0);
        assert_near(rate_between(1, 6.0, 14.0)(&report), 4.0);
        assert!(rate_between(1, 6.0, 6.0)(&report).is_nan());
        assert!(misshared(&[2.0, 1.0])(&report) > 0.01, "the first had two seconds alone");
        assert!(worst_group(&report) < 0.03);
        assert_near(part(0)(&report), (4.0 * 12.0 + 10.0 * 8.0) / (14.0 * 12.0));
        assert!(carries_after(11.5, 6.0)(&report) <= 1.2, "it is full");
        assert!(carries_after(12.5, 6.0)(&report) >= 7.8, "it never is");
    }

    #[test]
    fn what_a_report_lacks_is_no_number() {
        let report = shared();
        assert!(film(&report).is_nan() && load_median(&report).is_nan());
        assert!(right_after(9, 14.0)(&report).is_nan());
        assert!(right_after(1, 14.0)(&report) < 3.0);
    }
}
