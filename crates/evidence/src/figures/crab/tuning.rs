//! The effect of crab's parameters on a film during two long downloads.

use fairweir_scenario::Control;
use fairweir_scenario::report::Report;

use super::super::claim::{Band, Claim, Measured, Unit};
use super::super::play::Played;
use super::super::read::{film, utilization};
use super::super::{Figure, File, Judged};
use super::film::{More, SLIGHTLY, all};
use super::{bars, bars_of, chart};

/// Ticks of crab and the number of ticks in a window, in the order of the window's length.
const WINDOWS: Variations = [
    ("5 × 0.1 s", &[("control.window_ticks", "5"), ("control.tick", "100ms")]),
    ("5 × 0.2 s", &[]),
    ("10 × 0.3 s", &[("control.window_ticks", "10"), ("control.tick", "300ms")]),
];

pub(super) const FIGURE_13: Figure = Figure {
    number: "13",
    title: "length of crab's observation window, n × t",
    series: false,
    points: || WINDOWS.iter().flat_map(|(_, more)| all(Control::Crab, (5, 1), more)).collect(),
    judge: |played| {
        let worse = ("slightly drops", Band::Within(0.9, 1.0 - SLIGHTLY));
        let better = ("very slightly better", Band::Within(1.0 + SLIGHTLY, 1.05));
        let (mut claims, [short, usual, long]) = varied(played, WINDOWS, [worse, better]);
        claims.push(Claim::new(
            "utilisation with 5 × 0.1 s, above the default by",
            "slightly better",
            (short.with(&usual, |of, usual| of - usual), Unit::Part),
            Band::Within(SLIGHTLY, 0.05),
        ));
        claims.push(Claim::new(
            "utilisation with 10 × 0.3 s, below the default by",
            "greater under-utilisation",
            (usual.with(&long, |usual, of| usual - of), Unit::Part),
            Band::AtLeast(SLIGHTLY),
        ));
        let title = "Figure 13: length of crab's observation window, n × t";
        Judged { claims, files: vec![chart_varied(played, "figure-13", title, "n × t", WINDOWS)] }
    },
};

/// Rate that a lender keeps at least in addition to what it uses.
const HEADROOMS: Variations = [
    ("0.05 Mbit/s", &[("control.headroom", "50kbit")]),
    ("0.25 Mbit/s", &[]),
    ("0.5 Mbit/s", &[("control.headroom", "500kbit")]),
];

pub(super) const FIGURE_17: Figure = Figure {
    number: "17",
    title: "lending headroom",
    series: false,
    points: || HEADROOMS.iter().flat_map(|(_, more)| all(Control::Crab, (5, 1), more)).collect(),
    judge: |played| {
        let worse = ("slightly worse", Band::Within(0.95, 1.0 - SLIGHTLY));
        let better = ("slightly better", Band::Within(1.0 + SLIGHTLY, 1.05));
        let (claims, [small, usual, large]) = varied(played, HEADROOMS, [worse, better]);
        let why = || {
            "a lender keeps at least 5 % of its rate (deviation 5), so a headroom acts only below 20 \
             times its value"
                .to_owned()
        };
        let mut claims: Vec<Claim> = claims.into_iter().map(|c| c.because(why)).collect();
        for (name, used, told, band) in [
            (HEADROOMS[0].0, small, "slightly worse", Band::Within(0.95, 1.0 - SLIGHTLY)),
            (HEADROOMS[2].0, large, "no significant change", Band::Within(0.95, 1.05)),
        ] {
            claims.push(
                Claim::new(
                    format!("utilisation with {name}, relative to the default"),
                    told,
                    (used.by(&usual), Unit::Part),
                    band,
                )
                .because(why),
            );
        }
        let title = "Figure 17: lending headroom";
        let file = chart_varied(played, "figure-17", title, "headroom", HEADROOMS);
        Judged { claims, files: vec![file] }
    },
};

type Variations = [(&'static str, More); 3];

/// Claims about the quality of the film with the smaller and the larger value, relative to the
/// default, and about the utilisations.
fn varied(
    played: &Played,
    variations: Variations,
    [smaller, larger]: [(&str, Band); 2],
) -> (Vec<Claim>, [Measured; 3]) {
    let mean = |of: fn(&Report) -> f64| {
        variations.map(|(_, more)| played.mean(&all(Control::Crab, (5, 1), more), of))
    };
    let [low, usual, high] = mean(film);
    let claim = |name: &str, quality: &Measured, (paper, band)| {
        Claim::new(
            format!("video with {name}, relative to the default"),
            paper,
            (quality.by(&usual), Unit::Part),
            band,
        )
    };
    let why = || {
        let each = variations.iter().zip([&low, &usual, &high]);
        let each = each.map(|((name, _), film)| format!("{name}: {}", film.text(Unit::Mbit)));
        each.collect::<Vec<_>>().join(", ")
    };
    let claims = vec![
        claim(variations[0].0, &low, smaller).because(why),
        claim(variations[2].0, &high, larger).because(why),
    ];
    (claims, mean(utilization))
}

fn chart_varied(
    played: &Played,
    name: &str,
    title: &str,
    what: &str,
    variations: Variations,
) -> File {
    let names = variations.map(|(name, _)| name);
    let crab = |of: fn(&Report) -> f64| {
        let mean = |(_, more)| Some(played.mean(&all(Control::Crab, (5, 1), more), of));
        vec![bars_of(Control::Crab, variations.map(mean))]
    };
    let panels = vec![
        bars(what, "video, Mbit/s", &names, crab(film)),
        bars(what, "utilisation", &names, crab(utilization)),
    ];
    chart(name, title, panels)
}
