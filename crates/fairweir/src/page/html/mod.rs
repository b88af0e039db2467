//! The page as a document of tables and forms that needs no script. `page.ts` keeps the cells up to
//! date, adds the chart and sends the forms without leaving the page.
//!
//! Every text that is not a literal in this program passes through [`Html::text`].

use std::fmt::Display;

use super::past::{PastSpan, PastView, Recorded, SPANS};
use super::sessions::Undo;
use super::shown::{ConnectionView, DaemonView, GroupView, LinkView, Members, TableView, View};
use crate::isp::Found;
use crate::page::history::suggest::{Suggested, SuggestedWeight};

mod household;
mod isp;

/// The largest weight. Source: docs/host/configuration.md.
const WEIGHT_MAX: u32 = 10_000;

/// The number of group colours in `page.css`; further groups start again with the first.
const COLOURS: usize = 8;

/// What a form needs; `None` where no change is allowed.
#[derive(Clone, Copy)]
pub(super) struct Forms<'f> {
    /// The session's token against cross-site request forgery.
    pub(super) csrf: &'f str,
    /// The last change of this session.
    pub(super) undo: Option<&'f Undo>,
}

/// The whole document.
pub(super) fn document(
    view: &View,
    recorded: &Recorded,
    forms: Option<Forms<'_>>,
    message: Option<&str>,
) -> String {
    let mut html = Html::begin("fairweir");
    html.raw(
        "<header><h1>fairweir</h1><p id=\"live\" role=\"status\">This is the state at the time of \
              loading.</p></header><div id=\"notice\" aria-live=\"polite\">",
    );
    html.notice(message, forms);
    html.raw("</div>");
    html.spans(recorded);
    html.raw("<main>");
    if view.daemons.is_empty() {
        html.raw(
            "<p>No daemon of fairweir runs here. Start one with \
                  <code>sudo systemctl start fairweir@eth0</code>.</p>",
        );
    }
    view.daemons.iter().for_each(|daemon| html.daemon(daemon, recorded, forms));
    html.raw("</main>");
    html.end(true)
}

/// The subscribers that a search found, or why there are none.
pub(super) fn subscribers(text: &str, found: &Result<Found, String>) -> String {
    let mut html = Html::begin("fairweir: subscribers");
    html.raw("<header><h1>fairweir</h1><p><a href=\"/\">All daemons</a></p></header><main>");
    html.search(text);
    match found {
        Err(why) => {
            html.raw("<p class=\"error\">").text(why).raw("</p>");
        }
        Ok(found) if found.subscribers.is_empty() => {
            html.raw("<p>No subscriber has this address or a name that begins so.</p>");
        }
        Ok(found) => html.found(found),
    }
    html.raw("</main>").end(false)
}

/// A document that consists of one sentence.
pub(super) fn sentence(text: &str, refresh: bool) -> String {
    let mut html = Html::begin(if refresh { "fairweir: signed in" } else { "fairweir" });
    html.raw("<header><h1>fairweir</h1></header><main><p>").text(text).raw("</p>");
    if refresh {
        html.raw("<p><a href=\"/\">Continue</a></p>");
    }
    html.raw("</main>").end(false)
}

struct Html(String);

impl Html {
    fn begin(title: &str) -> Html {
        let mut html = Html(String::new());
        html.raw("<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>")
            .text(title);
        html.raw(
            "</title><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <link rel=\"icon\" href=\"/assets/icon.svg\">\
             <link rel=\"stylesheet\" href=\"/assets/uplot.css\">\
             <link rel=\"stylesheet\" href=\"/assets/page.css\">",
        );
        if title.ends_with("signed in") {
            html.raw("<meta http-equiv=\"refresh\" content=\"0;url=/\">");
        }
        html.raw("</head><body>");
        html
    }

    fn end(&mut self, with_script: bool) -> String {
        if with_script {
            self.raw(
                "<script src=\"/assets/uplot.js\"></script><script src=\"/assets/page.js\"></script>",
            );
        }
        self.raw("</body></html>\n");
        std::mem::take(&mut self.0)
    }

    /// Appends HTML from this program's source; a text from elsewhere does not compile.
    fn raw(&mut self, html: &'static str) -> &mut Html {
        self.0.push_str(html);
        self
    }

    /// Appends an attribute within a tag.
    fn attribute(&mut self, name: &'static str, value: impl Display) -> &mut Html {
        self.raw(" ").raw(name).raw("=\"").text(value).raw("\"")
    }

    /// Appends a text, or the value of an attribute in double quotes, escaped.
    fn text(&mut self, text: impl Display) -> &mut Html {
        for c in text.to_string().chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(c),
            }
        }
        self
    }

    fn notice(&mut self, message: Option<&str>, forms: Option<Forms<'_>>) {
        if let Some(message) = message {
            self.raw("<p class=\"message error\">").text(message).raw("</p>");
        }
        let Some((undo, csrf)) = forms.and_then(|f| Some((f.undo?, f.csrf))) else { return };
        self.raw("<form class=\"undo\" method=\"post\" action=\"/undo\">");
        self.hidden("csrf", csrf).raw("<span>Last change: ").text(&undo.message);
        self.raw("</span> <button>Undo</button></form>");
    }

    /// Links to the live view and to each span of the history.
    fn spans(&mut self, recorded: &Recorded) {
        if let Some(fault) = &recorded.fault {
            self.raw("<p class=\"error\">The history is not recorded now: ")
                .text(fault)
                .raw("</p>");
        }
        if !recorded.is_on {
            return;
        }
        let chosen = recorded.past.as_ref().map(|(span, _)| span.key);
        self.raw("<nav aria-label=\"Time\">");
        let all = SPANS.iter().map(|span| (Some(span.key), span.title));
        for (key, title) in [(None, "live")].into_iter().chain(all) {
            let query = key.map_or(String::new(), |key| format!("?span={key}"));
            self.raw("<a href=\"/").text(query).raw("\"");
            self.raw(if key == chosen { " aria-current=\"page\">" } else { ">" });
            self.text(title).raw("</a> ");
        }
        self.raw("</nav>");
    }

    fn daemon(&mut self, daemon: &DaemonView, recorded: &Recorded, forms: Option<Forms<'_>>) {
        self.raw("<section data-daemon=\"").text(&daemon.name).raw("\"><h2>").text(&daemon.name);
        self.raw("</h2><p data-field=\"headline\">").text(&daemon.headline).raw("</p>");
        if let Some(error) = &daemon.error {
            self.raw("<p class=\"error\">").text(error).raw("</p>");
        }
        let past = recorded.past.as_ref();
        let past = past.and_then(|(span, all)| Some((*span, all.get(&daemon.name)?)));
        match (&daemon.link, past) {
            (Some(link), past) => self.link(&daemon.name, link, past, forms),
            (None, Some((span, past))) => self.past(&daemon.name, span, past),
            (None, None) => {}
        }
        if let Some(household) = &daemon.household {
            self.household(&daemon.name, household, forms);
        }
        let mut suggestions = recorded.suggestions.iter();
        if let Some(suggested) = suggestions.find(|suggested| suggested.daemon == daemon.name) {
            self.suggestions(suggested, forms);
        }
        if daemon.search {
            self.search("");
        }
        daemon.tables.iter().for_each(|table| self.table(&daemon.name, table));
        self.list("facts", &daemon.facts);
        self.list("notes", &daemon.notes);
        self.raw("</section>");
    }

    fn link(
        &mut self,
        daemon: &str,
        link: &LinkView,
        past: Option<(&PastSpan, &PastView)>,
        forms: Option<Forms<'_>>,
    ) {
        self.raw("<div class=\"chart\" data-field=\"chart\"");
        if let Some((span, _)) = past {
            self.raw(" data-span=\"").text(span.key).raw("\"");
        }
        self.raw("></div>");
        if let Some((span, past)) = past {
            self.past(daemon, span, past);
        }
        self.raw("<dl class=\"numbers\"><div><dt>Capacity</dt><dd data-field=\"capacity\">");
        self.text(link.capacity_bps.map_or("unknown".to_owned(), rate)).raw("</dd></div>");
        self.raw("<div><dt>Queue at the ISP</dt><dd data-field=\"queue\">");
        self.text(link.queue_ms.map_or("unknown".to_owned(), ms)).raw("</dd></div>");
        if let Some(latency) = link.latency_ms {
            self.raw("<div><dt>Target of the queue</dt><dd data-field=\"latency\">")
                .text(ms(latency));
            self.raw("</dd></div>");
        }
        self.raw("</dl>");
        if let Some(forms) = forms {
            self.controls(daemon, link, forms);
        }
        let (all, one) = headings(link.members);
        self.raw("<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"").raw(all);
        self.raw(" of ").text(daemon).raw("\"><table class=\"groups\"><caption>").raw(all);
        self.raw("</caption><thead><tr><th scope=\"col\">").raw(one).raw(
            "</th><th scope=\"col\">Weight</th><th scope=\"col\">Rate</th><th scope=\"col\">Share</th>\
             <th scope=\"col\">Demand</th><th scope=\"col\">Received</th><th scope=\"col\">State</th>\
             </tr></thead><tbody>",
        );
        for (i, group) in link.groups.iter().enumerate() {
            self.group(daemon, i, group, forms);
        }
        self.raw("</tbody></table></div>");
        self.connections(daemon, link);
        self.raw(
            "<details><summary>What the control did last</summary><ol data-field=\"changes\">",
        );
        for change in &link.changes {
            let ago = change.ago_s.round();
            self.raw("<li>").text(format!("{ago} s ago: {}", change.reason)).raw("</li>");
        }
        self.raw("</ol></details>");
    }

    fn past(&mut self, daemon: &str, span: &PastSpan, past: &PastView) {
        self.raw("<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"History of ");
        self.text(daemon)
            .raw("\"><table class=\"past\"><caption>Received in the ")
            .text(span.title);
        self.raw(
            "</caption><thead><tr><th scope=\"col\">Group</th><th scope=\"col\">Received</th>\
             <th scope=\"col\">While not recorded</th><th scope=\"col\">Mean</th>\
             <th scope=\"col\">Peak</th></tr></thead><tbody>",
        );
        for group in &past.groups {
            let recorded = group.received_bytes - group.late_bytes;
            let mean = recorded.saturating_mul(8) / past.span_s;
            self.raw("<tr data-past=\"").text(&group.name).raw("\"><th scope=\"row\">");
            self.text(&group.name).raw("</th>");
            let cells = [
                ("past-received", volume(group.received_bytes)),
                ("past-late", volume(group.late_bytes)),
                ("past-mean", rate(mean)),
                ("past-peak", rate(group.peak_bps)),
            ];
            for (name, value) in cells {
                self.raw("<td").attribute("data-field", name).raw(">").text(value).raw("</td>");
            }
            self.raw("</tr>");
        }
        self.raw("</tbody></table></div>");
    }

    fn suggestions(&mut self, suggested: &Suggested, forms: Option<Forms<'_>>) {
        self.raw("<details class=\"suggestions\"><summary>Suggested weights: ");
        self.text(suggested.weights.len()).raw("</summary><p>").text(&suggested.summary);
        self.raw(".</p>");
        for SuggestedWeight { group, weight, reason, .. } in &suggested.weights {
            self.raw("<p>").text(reason).raw("</p>");
            let Some(forms) = forms else { continue };
            self.form(&suggested.daemon, &format!("weight.{group}"), forms);
            self.hidden("value", &weight.to_string());
            self.raw("<button>Set weight of ").text(group).raw(" to ").text(weight);
            self.raw("</button></form>");
        }
        self.raw("</details>");
    }

    fn controls(&mut self, daemon: &str, link: &LinkView, forms: Forms<'_>) {
        self.raw("<div class=\"controls\">");
        if link.latency_ms.is_some() {
            self.form(daemon, "latency", forms);
            self.raw(
                "<label>New target of the queue <input name=\"value\" size=\"6\" \
                      placeholder=\"5ms\" required></label> <button>Apply</button></form>",
            );
        }
        self.timed(daemon, link, forms);
        if link.is_paused {
            self.form(daemon, "paused", forms);
            self.raw(
                "<input type=\"hidden\" name=\"value\" value=\"\">\
                      <button class=\"strong\">Resume</button></form>",
            );
        } else {
            self.raw("<details class=\"pause\"><summary>Pause</summary>");
            self.form(daemon, "paused", forms);
            self.raw(
                "<input type=\"hidden\" name=\"value\" value=\"true\"><p>All traffic passes \
                      unshaped until you resume, also after a restart.</p>\
                      <button class=\"strong\">Pause now</button></form></details>",
            );
        }
        self.raw("</div>");
    }

    /// A form that boosts or pauses a group for a time.
    fn timed(&mut self, daemon: &str, link: &LinkView, forms: Forms<'_>) {
        let (_, one) = headings(link.members);
        self.raw("<details><summary>For a time</summary><form method=\"post\" action=\"/timed\">");
        self.hidden("csrf", forms.csrf).hidden("daemon", daemon);
        self.raw("<label>").raw(one).raw(" <select name=\"group\">");
        for group in &link.groups {
            self.raw("<option>").text(&group.name).raw("</option>");
        }
        self.raw(
            "</select></label> <label>Change <select name=\"change\">\
             <option value=\"boost\">boost</option><option value=\"pause\">pause</option>\
             <option value=\"end\">end it now</option></select></label> \
             <label>Time <input name=\"span\" size=\"6\" value=\"30m\"></label> \
             <button>Change for a time</button></form></details>",
        );
    }

    fn group(&mut self, daemon: &str, i: usize, group: &GroupView, forms: Option<Forms<'_>>) {
        let colour = i % COLOURS;
        self.raw("<tr data-group=\"").text(&group.name).raw("\"><th scope=\"row\">");
        self.raw("<span").attribute("class", format_args!("colour c{colour}"));
        self.raw(" aria-hidden=\"true\"></span>");
        self.text(&group.name).raw("<small>").text(&group.matches).raw("</small></th><td>");
        match forms {
            None => {
                self.raw("<span data-field=\"weight\">").text(group.weight).raw("</span>");
            }
            Some(forms) => {
                self.form(daemon, &format!("weight.{}", group.name), forms);
                self.raw("<label><span class=\"hidden\">Weight of ").text(&group.name);
                self.raw("</span><input type=\"number\" name=\"value\" min=\"1\"");
                self.attribute("max", WEIGHT_MAX).raw(" required").attribute("value", group.weight);
                self.raw("></label> <button>Apply</button></form>");
            }
        }
        self.raw("</td>");
        let cells = [
            ("rate", rate(group.rate_bps)),
            ("share", rate(group.share_bps)),
            ("demand", group.demand_bps.map_or("unknown".to_owned(), rate)),
            ("received", volume(group.received_bytes)),
            ("state", group.state.clone()),
        ];
        for (name, value) in cells {
            self.raw("<td").attribute("data-field", name).raw(">").text(value).raw("</td>");
        }
        self.raw("</tr>");
    }

    fn connections(&mut self, daemon: &str, link: &LinkView) {
        self.raw("<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"Connections of ");
        self.text(daemon).raw(
            "\"><table class=\"connections\"><caption>Connections that receive most, of <span \
             data-field=\"connections-all\">",
        );
        self.text(link.connections_all).raw("</span></caption><thead><tr><th scope=\"col\">");
        self.raw(headings(link.members).1).raw(
            "</th><th scope=\"col\">Host</th><th scope=\"col\">Port</th>\
             <th scope=\"col\">Rate</th><th scope=\"col\">RTT</th>\
             <th scope=\"col\">Limited by</th></tr></thead><tbody data-field=\"connections\">",
        );
        for ConnectionView { group, host, port, rate_bps, rtt_ms, limited_by } in &link.connections
        {
            let rtt = rtt_ms.map_or(String::new(), ms);
            self.raw("<tr>");
            let (port, rate) = (port.to_string(), rate(*rate_bps));
            for cell in [group, host, &port, &rate, &rtt, limited_by] {
                self.raw("<td>").text(cell).raw("</td>");
            }
            self.raw("</tr>");
        }
        self.raw("</tbody></table></div>");
    }

    fn list(&mut self, name: &str, entries: &[(String, String)]) {
        if entries.is_empty() {
            return;
        }
        self.raw("<dl").attribute("class", name).attribute("data-field", name).raw(">");
        for (about, text) in entries {
            self.raw("<div><dt>").text(about).raw("</dt><dd>").text(text).raw("</dd></div>");
        }
        self.raw("</dl>");
    }

    /// A table that scrolls by itself; the first cell of a row is its heading.
    fn table(&mut self, of: &str, table: &TableView) {
        self.raw("<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"");
        self.text(table.caption).raw(" of ").text(of).raw("\"><table class=\"plain\"><caption>");
        self.text(table.caption).raw("</caption><thead><tr>");
        for heading in &table.headings {
            self.raw("<th scope=\"col\">").text(heading).raw("</th>");
        }
        self.raw("</tr></thead><tbody data-field=\"").text(table.key).raw("\">");
        for row in &table.rows {
            let Some((first, rest)) = row.split_first() else { continue };
            self.raw("<tr><th scope=\"row\">").text(first).raw("</th>");
            for cell in rest {
                self.raw("<td>").text(cell).raw("</td>");
            }
            self.raw("</tr>");
        }
        self.raw("</tbody></table></div>");
    }

    fn form(&mut self, daemon: &str, key: &str, forms: Forms<'_>) {
        self.raw("<form method=\"post\" action=\"/set\">").hidden("csrf", forms.csrf);
        self.hidden("daemon", daemon).hidden("key", key);
    }

    fn hidden(&mut self, name: &str, value: &str) -> &mut Html {
        self.raw("<input type=\"hidden\"")
            .attribute("name", name)
            .attribute("value", value)
            .raw(">")
    }
}

/// The headings for all members and for one member.
fn headings(members: Members) -> (&'static str, &'static str) {
    match members {
        Members::Groups => ("Groups", "Group"),
        Members::Devices => ("Devices", "Device"),
    }
}

// `page.ts` formats numbers in the same way.

fn rate(bps: u64) -> String {
    crate::words::mbit(bps)
}

fn ms(ms: f64) -> String {
    format!("{ms:.1} ms")
}

fn volume(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::past::PastGroup;
    use fairweir_core::share::Weight;
    use fairweir_core::units::Rate;

    fn view(name: &str) -> View {
        let group =
            GroupView { name: name.to_owned(), matches: name.to_owned(), ..Default::default() };
        let link = LinkView { groups: vec![group], latency_ms: Some(5.0), ..Default::default() };
        let (notes, facts) = (vec![(name.to_owned(), name.to_owned())], Vec::new());
        let (name, link) = (name.to_owned(), Some(link));
        let headline = name.clone();
        View {
            daemons: vec![DaemonView { name, headline, link, facts, notes, ..Default::default() }],
        }
    }

    fn recorded(name: &str) -> Recorded {
        let group = PastGroup { name: name.to_owned(), ..PastGroup::default() };
        let past = PastView { span_s: 600, groups: vec![group], ..PastView::default() };
        let weight = SuggestedWeight {
            group: name.to_owned(),
            weight: Weight::ONE,
            reason: name.to_owned(),
            episodes: 3,
            seconds: 10,
            wanted_bps: Rate::ZERO,
            received_bps: Rate::ZERO,
            would_receive_bps: Rate::ZERO,
        };
        let (daemon, summary) = (name.to_owned(), name.to_owned());
        Recorded {
            is_on: true,
            past: Some((&SPANS[0], [(name.to_owned(), past)].into())),
            suggestions: vec![Suggested { daemon, summary, weights: vec![weight] }],
            fault: Some(name.to_owned()),
        }
    }

    #[test]
    fn no_text_becomes_html() {
        let undo =
            Undo { daemon: String::new(), message: EVIL.into(), changes: Default::default() };
        let forms = Forms { csrf: EVIL, undo: Some(&undo) };
        let html = document(&view(EVIL), &recorded(EVIL), Some(forms), Some(EVIL));
        assert!(!html.contains("<script>") && !html.contains("\"'>"), "{html}");
        assert!(html.matches("&quot;&#39;&gt;&lt;script&gt;&amp;").count() > 24, "{html}");
    }

    const EVIL: &str = "\"'><script>&";

    #[test]
    fn nothing_can_be_changed_without_forms() {
        let (view, recorded) = (view("video"), recorded("video"));
        assert!(!document(&view, &recorded, None, None).contains("<form"));
        let forms = Some(Forms { csrf: "x", undo: None });
        assert_eq!(document(&view, &Recorded::default(), forms, None).matches("<form").count(), 4);
        assert_eq!(document(&view, &recorded, forms, None).matches("<form").count(), 5);
    }
}
