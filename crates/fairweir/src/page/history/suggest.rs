//! `fairweir suggest`: weights that would have helped in the last hour, in words. It changes nothing.

use std::collections::BTreeMap;
use std::io::Write;

use fairweir_config::text;
use fairweir_core::share::Weight;
use fairweir_core::suggest::{Moment, Outcome, Seen, Suggestion, suggest};
use fairweir_core::units::Rate;
use serde::{Deserialize, Serialize};

use super::Second;
use crate::cli::SuggestArgs;
use crate::host::client::device_of;
use crate::page::ask::{Request, ask};
use crate::words::{count, mbit};

/// The suggestions for a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct Suggested {
    /// The daemon's instance.
    pub(crate) daemon: String,
    /// A description of what was seen, in words.
    pub(crate) summary: String,
    /// The weight that would help most is first.
    pub(crate) weights: Vec<SuggestedWeight>,
}

/// A suggested weight for a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "evidence", derive(schemars::JsonSchema))]
pub(crate) struct SuggestedWeight {
    pub(crate) group: String,
    pub(crate) weight: Weight,
    /// The reason, in words.
    pub(crate) reason: String,
    /// How often the group received too little, and for how many seconds in all.
    pub(crate) episodes: usize,
    pub(crate) seconds: usize,
    /// The rate that the group took while the link was not full.
    pub(crate) wanted_bps: Rate,
    /// The group's mean rate in these `seconds`, and the mean rate it would have had with `weight`.
    pub(crate) received_bps: Rate,
    pub(crate) would_receive_bps: Rate,
}

pub(crate) fn run(args: &SuggestArgs) -> anyhow::Result<()> {
    let mut all: Vec<Suggested> = ask(&args.page_dir, &Request::Suggest)?;
    let is_meant =
        |one: &Suggested| args.dev.is_none() || device_of(&one.daemon) == args.dev.as_deref();
    all.retain(is_meant);
    let out = &mut text::stdout();
    if args.json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&all)?)?);
    }
    if all.is_empty() {
        return Ok(writeln!(out, "nothing was recorded in the last hour")?);
    }
    for one in &all {
        writeln!(out, "{}: {}", one.daemon, one.summary)?;
        let dev = device_of(&one.daemon).unwrap_or_default();
        for SuggestedWeight { group, weight, reason, .. } in &one.weights {
            writeln!(out, "\n{reason}")?;
            writeln!(out, "  sudo fairweir set --dev {dev} weight.{group}={weight}")?;
        }
    }
    Ok(())
}

/// Suggestions from the seconds of a daemon, the newest first. `groups` has the name of each group
/// and whether the current configuration has it.
pub(crate) fn suggested(
    daemon: String,
    groups: &[(String, bool)],
    seconds: &[Second],
) -> Suggested {
    let mut weights = vec![None; groups.len()];
    for second in seconds {
        if let Some(weight) = weights.get_mut(second.group) {
            weight.get_or_insert(second.weight);
        }
    }
    // Seconds with other weights say nothing about the current weights.
    let is_other =
        |second: &&Second| weights.get(second.group).is_none_or(|w| *w != Some(second.weight));
    let changed_at = seconds.iter().find(is_other).map_or(0, |second| second.at + 1);
    let mut moments: BTreeMap<u64, Moment> = BTreeMap::new();
    for second in seconds.iter().filter(|second| second.at >= changed_at) {
        let Some(capacity) = second.capacity_bps else { continue };
        let new = || Moment { at_s: second.at, capacity: Rate::bps(capacity), groups: Vec::new() };
        let seen =
            Seen { rate: Rate::bps(second.rate_bps), demand: second.demand_bps.map(Rate::bps) };
        moments.entry(second.at).or_insert_with(new).groups.push((second.group, seen));
    }
    let weights: Vec<Weight> =
        weights.into_iter().map(|w| w.and_then(Weight::new).unwrap_or_default()).collect();
    let moments: Vec<Moment> = moments.into_values().collect();
    let outcome = suggest(&weights, &moments);
    let names: Vec<&str> = groups.iter().map(|(name, _)| name.as_str()).collect();
    let list = match &outcome {
        Outcome::TooLittle { .. } => &[][..],
        Outcome::Seen { suggestions, .. } => suggestions.as_slice(),
    };
    let is_present = |s: &&Suggestion| groups[s.group].1;
    let in_words = |s: &Suggestion| in_words(s, &names, &weights);
    let list: Vec<_> = list.iter().filter(is_present).map(in_words).collect();
    let summary = summary(&outcome, list.len(), changed_at > 0);
    Suggested { daemon, summary, weights: list }
}

fn summary(outcome: &Outcome, suggestions: usize, is_changed: bool) -> String {
    let since = if is_changed { "since weights were last changed" } else { "in the last hour" };
    match outcome {
        Outcome::TooLittle { moments, needed } => format!(
            "nothing is suggested: {since} the link was in use for {moments} s with a known \
             capacity; {needed} s are needed"
        ),
        Outcome::Seen { moments, full, .. } => {
            let seen = format!("{since} the link was in use for {moments} s and full for {full} s");
            match suggestions {
                0 => format!("{seen}; no other weight would have helped"),
                n => format!("{seen}; {}, none is applied by itself", count(n, "suggestion")),
            }
        }
    }
}

fn in_words(s: &Suggestion, names: &[&str], weights: &[Weight]) -> SuggestedWeight {
    let group = names[s.group];
    let rate = |rate: Rate| mbit(rate.as_bps());
    let mut reason = format!(
        "{group} received too little {} in the last hour ({} s in all): {} on average, while it takes \
         up to {} when the link is not full. With weight {} instead of {} it would have received {}",
        if s.episodes == 1 { "once".to_owned() } else { format!("{} times", s.episodes) },
        s.moments,
        rate(s.received_bps),
        rate(s.wanted_bps),
        s.weight,
        weights[s.group],
        rate(s.would_receive_bps),
    );
    if let Some((loser, before, after)) = s.loser {
        let (loser, before, after) = (names[loser], rate(before), rate(after));
        reason.push_str(&format!(", and {loser} {after} instead of {before}"));
    }
    reason.push('.');
    SuggestedWeight {
        group: group.to_owned(),
        weight: s.weight,
        reason,
        episodes: s.episodes,
        seconds: s.moments,
        wanted_bps: s.wanted_bps,
        received_bps: s.received_bps,
        would_receive_bps: s.would_receive_bps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(at: u64, group: usize, weight: u32, kbit: u64) -> Second {
        let (capacity_bps, demand_bps) = (Some(24_000_000), None);
        Second { at, capacity_bps, group, weight, rate_bps: kbit * 1_000, demand_bps }
    }

    /// A call, first alone and then 5 times beside a backup with weight 20; the newest second first.
    fn evening(weight: u32) -> Vec<Second> {
        let mut all: Vec<Second> = (0..600).map(|s| second(s, 1, weight, 4_000)).collect();
        for s in (1..=5).flat_map(|i| i * 1_000..i * 1_000 + 20) {
            all.extend([second(s, 1, weight, 1_100), second(s, 0, 20, 21_900)]);
        }
        all.reverse();
        all
    }

    fn groups() -> Vec<(String, bool)> {
        vec![("backup".to_owned(), true), ("call".to_owned(), true)]
    }

    #[test]
    fn what_would_have_helped_is_said_in_words() {
        let all = suggested("host-eth0".to_owned(), &groups(), &evening(1));
        assert_eq!(
            all.summary,
            "in the last hour the link was in use for 700 s and full for 100 s; 1 suggestion, none \
             is applied by itself"
        );
        let [call] = all.weights.as_slice() else { panic!("{all:?}") };
        assert_eq!((call.group.as_str(), call.weight.as_u32()), ("call", 4));
        assert_eq!(
            call.reason,
            "call received too little 5 times in the last hour (100 s in all): 1.10 Mbit/s on \
             average, while it takes up to 4.00 Mbit/s when the link is not full. With weight 4 \
             instead of 1 it would have received 4.00 Mbit/s, and backup 20.00 Mbit/s instead of \
             21.90 Mbit/s."
        );
    }

    #[test]
    fn seconds_with_other_weights_and_removed_groups_count_for_nothing() {
        let mut seconds = evening(1);
        // The weight was changed a moment ago.
        seconds.insert(0, second(10_000, 1, 9, 4_000));
        let all = suggested("host-eth0".to_owned(), &groups(), &seconds);
        assert!(all.weights.is_empty(), "{all:?}");
        assert!(
            all.summary.contains("since weights were last changed the link was in use for 1 s")
        );
        let mut groups = groups();
        groups[1].1 = false;
        let all = suggested("host-eth0".to_owned(), &groups, &evening(1));
        assert!(all.weights.is_empty() && all.summary.contains("no other weight"), "{all:?}");
    }
}
