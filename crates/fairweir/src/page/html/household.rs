//! The part of the document in which a household states its preferences for the credit market.

use super::{Forms, Html};
use crate::page::shown::{HouseholdView, WantedView};

/// The highest importance that can be stated in advance. Source: docs/experiments/market.md.
const IMPORTANCE_MAX: u8 = fairweir_core::market::preferences::IMPORTANCE_MAX;

/// The durations, in minutes, for which a kind of use can be put first.
const BOOSTS_MIN: [u32; 5] = [30, 60, 120, 240, 480];
/// The lengths of a holiday that can be chosen, in days.
const HOLIDAYS: [u32; 6] = [1, 2, 3, 7, 14, 21];

impl Html {
    pub(super) fn household(
        &mut self,
        daemon: &str,
        household: &HouseholdView,
        forms: Option<Forms<'_>>,
    ) {
        self.raw("<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"Importance, ")
            .text(daemon);
        self.raw(
            "\"><table class=\"wanted\"><caption>Importance, from 0 (not at all) to 3</caption>\
             <thead><tr><th scope=\"col\">Time</th>",
        );
        for kind in &household.kinds {
            self.raw("<th scope=\"col\">").text(kind).raw("</th>");
        }
        self.raw("</tr></thead><tbody>");
        for row in &household.rows {
            self.raw("<tr data-wanted=\"")
                .text(&row.key)
                .raw("\"><th scope=\"row\">")
                .text(&row.name);
            self.raw("<small>").text(&row.when).raw("</small></th>");
            for (kind, importance) in household.kinds.iter().zip(&row.importance) {
                self.raw("<td>");
                self.importance(daemon, row, kind, *importance, forms);
                self.raw("</td>");
            }
            self.raw("</tr>");
        }
        self.raw("</tbody></table></div>");
        let Some(forms) = forms else { return };
        self.raw("<div class=\"controls\">");
        for kind in &household.kinds {
            let (key, label) = (format!("boost.{kind}"), format!("Boost {kind} now"));
            self.choice(daemon, &key, &label, &BOOSTS_MIN, "min", forms);
        }
        self.choice(daemon, "holiday", "Holiday", &HOLIDAYS, "days", forms);
        self.raw("</div>");
    }

    fn importance(
        &mut self,
        daemon: &str,
        row: &WantedView,
        kind: &str,
        importance: Option<u8>,
        forms: Option<Forms<'_>>,
    ) {
        let Some(forms) = forms else {
            self.text(importance.map_or("-".to_owned(), |n| n.to_string()));
            return;
        };
        self.form(daemon, &format!("{}.{kind}", row.key), forms);
        self.raw("<label><span class=\"hidden\">Importance of ")
            .text(kind)
            .raw(", ")
            .text(&row.name);
        self.raw("</span><select name=\"value\"><option value=\"\">as in the file</option>");
        for n in 0..=IMPORTANCE_MAX {
            self.raw("<option").raw(if importance == Some(n) { " selected>" } else { ">" });
            self.text(n).raw("</option>");
        }
        self.raw("</select></label> <button>Apply</button></form>");
    }

    /// A form that selects one of `numbers`, or `not`.
    fn choice(
        &mut self,
        daemon: &str,
        key: &str,
        label: &str,
        numbers: &[u32],
        unit: &str,
        forms: Forms<'_>,
    ) {
        self.form(daemon, key, forms);
        self.raw("<label>")
            .text(label)
            .raw(" <select name=\"value\"><option value=\"\">not</option>");
        for number in numbers {
            self.raw("<option value=\"").text(number).raw("\">").text(number).raw(" ").text(unit);
            self.raw("</option>");
        }
        self.raw("</select></label> <button>Apply</button></form>");
    }
}
