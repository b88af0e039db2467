//! The printed output of a campaign, and its section of a document.

use std::fmt::Write;

use fairweir_scenario::Control;
use fairweir_scenario::report::aligned;
use fairweir_scenario::report::chart::{Chart, Line, Marks, Panel, colour_of, label_of};

use super::CampaignArgs;
use super::class::Class;
use super::score::{Outcome, Score};
use super::summary::{self, Values, markdown};
use super::{Findings, REFERENCES};

/// The name of the picture.
pub(super) const PICTURE: &str = "campaign.svg";
/// The most clusters of a document; all of them are in the JSON form.
const CLUSTERS_MAX: usize = 40;

/// The printed text.
pub(super) fn text(controls: &[Control], findings: &Findings, worst: usize) -> String {
    let mut text = String::new();
    for &control in controls {
        let of = findings.of(control);
        let rows = aligned(&summary::distribution(&of));
        let _ = writeln!(
            text,
            "{control}: median, p90 (p10) and worst (seed) of {} scenarios\n{rows}",
            of.len()
        );
        let worst = summary::worst(&of, worst);
        if !worst.is_empty() {
            let rows = aligned(&summary::worst_rows(&worst));
            let _ = writeln!(text, "{control}: the worst\n{rows}");
        }
    }
    if !findings.clusters.is_empty() {
        let rows = aligned(&summary::cluster_rows(&findings.clusters));
        let _ = writeln!(text, "failures\n{rows}");
    }
    text.push_str(&aligned(&summary::target_rows(&findings.targets)));
    let _ = writeln!(text, "{}", count(findings));
    text
}

/// The number of targets that are met.
fn count(findings: &Findings) -> String {
    let met = findings.targets.iter().filter(|t| t.met == Some(true)).count();
    let of = findings.targets.iter().filter(|t| t.met.is_some()).count();
    format!("{met} of {of} targets met")
}

/// The section of a document; `exact` are the outcomes of `fairweir` with exact measurements.
pub(super) fn section(
    args: &CampaignArgs,
    controls: &[Control],
    findings: &Findings,
    exact: &[&Outcome],
) -> String {
    let mut text = format!("Made by `fairweir campaign --seed {}", args.seed);
    for control in controls {
        let _ = write!(text, " --control {control}");
    }
    for class in &args.class {
        let _ = write!(text, " --class {class}");
    }
    if let Some(document) = &args.write_docs {
        let _ = write!(text, " --write-docs {}", document.display());
    }
    let _ = writeln!(text, "`. {}.\n", count(findings));
    let _ = writeln!(text, "![distributions](pictures/{PICTURE})\n");
    let _ = writeln!(text, "### Targets\n\n{}", markdown(&summary::target_rows(&findings.targets)));
    for &control in controls {
        let of = findings.of(control);
        let rows = markdown(&summary::distribution(&of));
        let _ = writeln!(text, "### Scores of {control}\n\n{rows}");
        let worst = summary::worst(&of, args.worst);
        if !worst.is_empty() {
            let rows = markdown(&summary::worst_rows(&worst));
            let _ = writeln!(text, "### The worst of {control}\n\n{rows}");
        }
    }
    if !exact.is_empty() {
        let rows = markdown(&summary::distribution(exact));
        let _ = writeln!(text, "### Scores of fairweir with exact measurements\n\n{rows}");
    }
    let clusters = &findings.clusters[..findings.clusters.len().min(CLUSTERS_MAX)];
    if !clusters.is_empty() {
        let rows = markdown(&summary::cluster_rows(clusters));
        let _ = writeln!(text, "### Failures\n\n{rows}");
    }
    let mut rows = vec![["class", "scenarios", "what is drawn"].map(str::to_owned).to_vec()];
    for class in Class::ALL {
        let of = findings.of(controls[0]).iter().filter(|o| o.class == *class).count();
        rows.push(vec![class.to_string(), of.to_string(), class.what().to_owned()]);
    }
    let _ = write!(text, "### Classes\n\n{}", markdown(&rows));
    text
}

/// The distributions of all controls that were played.
pub(super) fn picture(findings: &Findings) -> String {
    let mut controls: Vec<Control> = Vec::new();
    for outcome in &findings.outcomes {
        if !controls.contains(&outcome.control) {
            controls.push(outcome.control);
        }
    }
    let panel = |x: &str, logarithmic: bool, value: &dyn Fn(&Score) -> Option<f64>| {
        let line = |&control: &Control| Line {
            name: label_of(control).to_owned(),
            colour: colour_of(control),
            dashed: REFERENCES.contains(&control),
            points: cumulative(&findings.of(control), value),
        };
        let lines = controls.iter().map(line).collect();
        Panel {
            x: x.to_owned(),
            y: "fraction of scenarios".to_owned(),
            marks: Marks::Lines { logarithmic, lines },
        }
    };
    let panels = vec![
        panel("allocation error", true, &|s| s.error.map(|error| error.max(1e-3))),
        panel("queue at the ISP, mean, ms", true, &|s| s.queue_mean_ms.map(|ms| ms.max(0.1))),
        panel("used, relative to wfq", false, &|s| s.used_by_wfq.map(|part| part.min(1.2))),
        panel("host total, relative to none", false, &|s| {
            s.total_by_none.map(|part| part.min(1.2))
        }),
    ];
    Chart { title: "Scores of random scenarios".to_owned(), panels }.svg()
}

fn cumulative(of: &[&Outcome], value: &dyn Fn(&Score) -> Option<f64>) -> Vec<(f64, f64)> {
    Values::of(of.iter().copied(), value).cumulative()
}
