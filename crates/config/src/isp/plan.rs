//! A plan of the operator: rates for download and upload, and how both are shared, under one name.

use fairweir_core::phantom::{
    Bundle, BundleError, BundleSpec, Class, Criterion, Plan, PlanSpec, Share, Signal,
};
use fairweir_core::units::{Rate, Span};
use serde_json::{Value, json};

use crate::plan::{ByMatch, Sharing, sharing};
use crate::table::Placed;
use crate::{ConfigError, Source, Table};

/// A valid plan: [`Plan::new`] accepts what [`PlanEntry::specs`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanEntry {
    /// Unique.
    pub name: String,
    /// The most that a subscriber may receive; `None` if downloads are not policed.
    pub download: Option<Rate>,
    /// The most that a subscriber may send; `None` if uploads are not policed.
    pub upload: Option<Rate>,
    /// The longest round-trip time at which a connection can reach the rates.
    pub rtt_max: Span,
    /// How congestion is signalled to senders.
    pub signal: Signal,
    /// How the rate is shared; in a plan for clients, how it is shared without an agreement.
    pub share: Share,
    /// Whether a subscriber's client may divide the download.
    pub is_for_clients: bool,
    /// The bundle: a class that holds a rate, and a class that pays for it.
    pub bundle: Option<BundleEntry>,
}

/// A bundle of a plan: its subscribers agree that flows of one class yield to those of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleEntry {
    /// The class that has a target.
    pub free: String,
    /// The class whose flows pay.
    pub stunts: String,
    /// The rates that the free class holds in downloads and in uploads; `None` if there is no bundle.
    pub targets: [Option<Rate>; 2],
}

/// One direction of a plan, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The plan that is policed.
    pub plan: Plan,
    /// Its bundle.
    pub bundle: Option<Bundle>,
}

impl PlanEntry {
    /// Reads a table `[[plan]]`.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn read(table: &mut Table<'_>) -> Result<PlanEntry, ConfigError> {
        let wanted = "a name, such as \"home-50\"";
        let name = table.text("name")?.ok_or_else(|| table.missing("name", wanted))?;
        check_name(&name.value).map_err(|e| name.place.error(e))?;
        let download = table.parsed::<Rate>("download")?;
        let upload = table.parsed::<Rate>("upload")?;
        if download.is_none() && upload.is_none() {
            let wanted = "a rate, such as \"50mbit\", here or as `upload`";
            let [download, upload] = ["download", "upload"].map(|key| table.missing(key, wanted));
            // One of them may be there, but misspelt.
            return Err(if upload.key().ends_with(".upload") { download } else { upload });
        }
        let bundle = table.table("bundle")?;
        let sharing = sharing(table, &mut ByMatch)?;
        for rate in [&download, &upload].into_iter().flatten() {
            let made = Plan::new(&sharing.spec(rate.value));
            made.map_err(|e| sharing.error(&e, &rate.place))?;
        }
        if let Some(place) =
            sharing.clients.as_ref().filter(|_| download.is_none() || upload.is_none())
        {
            let what = "`share = \"client\"` of a plan that does not police both directions; set \
                        `download` and `upload`: downloads are divided by what uploads are marked with";
            return Err(place.error(what));
        }
        let rates = [&download, &upload].map(|rate| rate.as_ref().map(|p| p.value));
        let bundle = bundle.map(|table| BundleEntry::read(table, rates, &sharing)).transpose()?;
        Ok(PlanEntry {
            name: name.value,
            download: download.map(|p| p.value),
            upload: upload.map(|p| p.value),
            rtt_max: sharing.rtt_max,
            signal: sharing.signal,
            is_for_clients: sharing.clients.is_some(),
            share: sharing.share,
            bundle,
        })
    }

    /// Reads a plan from JSON, as it arrives at the socket.
    ///
    /// # Errors
    /// The first mistake, with its key.
    pub fn from_json(value: &Value) -> Result<PlanEntry, String> {
        if !value.is_object() {
            return Err("plan: wanted an object, as `fairweir isp plan list --json` prints".into());
        }
        let document = json!({ "plan": [without_nulls(value)] });
        let text = toml::to_string(&document).map_err(|e| format!("plan: {e}"))?;
        let read = || {
            let mut top = Source::new(&text, "request", &[]).top()?;
            let mut tables = top.tables("plan")?;
            let mut table = tables.remove(0);
            let plan = PlanEntry::read(&mut table)?;
            table.finish()?;
            Ok(plan)
        };
        read().map_err(|e: ConfigError| format!("{}: {}", e.key(), e.what()))
    }

    /// Writes a plan as JSON; [`PlanEntry::from_json`] reads it.
    pub fn to_json(&self) -> Value {
        let mut value = share_json(&self.share);
        value["name"] = json!(self.name);
        for (key, rate) in [("download", self.download), ("upload", self.upload)] {
            if let Some(rate) = rate {
                value[key] = json!(rate_text(rate));
            }
        }
        if self.is_for_clients {
            value["share"] = json!("client");
        }
        value["rtt_max"] = json!(span_text(self.rtt_max));
        value["signal"] = json!(self.signal.to_string());
        if let Some(BundleEntry { free, stunts, targets }) = &self.bundle {
            let [download, upload] = targets.map(|rate| rate.map(rate_text));
            value["bundle"] = without_nulls(
                &json!({ "free": free, "stunts": stunts, "download": download, "upload": upload }),
            );
        }
        value
    }

    /// The specifications of the kernel's plans for download and upload.
    pub fn specs(&self) -> [Option<PlanSpec>; 2] {
        [self.download, self.upload].map(|rate| {
            rate.map(|rate| PlanSpec {
                rate,
                rtt_max: self.rtt_max,
                signal: self.signal,
                share: self.share.clone(),
            })
        })
    }

    /// The compiled plans for download and upload.
    ///
    /// # Errors
    /// [`BundleError`] if the entry was not made by reading.
    pub fn compile(&self) -> Result<[Option<Compiled>; 2], BundleError> {
        let mut all = [None, None];
        for (at, spec) in self.specs().into_iter().enumerate() {
            let Some(spec) = spec else { continue };
            let mut plan = Plan::new(&spec)?;
            if self.is_for_clients {
                plan = plan.for_clients(spec.rate)?;
            }
            let bundle = self.bundle.as_ref().and_then(|bundle| bundle.spec(at));
            let bundle = bundle.map(|bundle| Bundle::new(&bundle, &spec, &plan)).transpose()?;
            all[at] = Some(Compiled { plan, bundle });
        }
        Ok(all)
    }

    /// The names of the classes, indexed by their numbers in the kernel, and the number of the
    /// class for traffic of no other class. If the plan has no classes, one class without a name.
    pub fn classes(&self) -> (Vec<String>, usize) {
        let plan = self.specs().iter().flatten().next().and_then(|spec| Plan::new(spec).ok());
        plan.map_or((vec![String::new()], 0), |plan| {
            let names = plan.choices.iter().map(|choice| choice.name.clone()).collect();
            (names, plan.choice_default)
        })
    }

    /// How the rate is shared, in a few words.
    pub fn policy(&self) -> String {
        let words = match self.is_for_clients {
            false => share_words(&self.share),
            true => format!("by subscribers' hosts, or {}", share_words(&self.share)),
        };
        match &self.bundle {
            Some(bundle) => format!("{words}; {}", bundle.words()),
            None => words,
        }
    }
}

impl BundleEntry {
    /// Reads the table `bundle` of a plan with these rates.
    fn read(
        mut table: Table<'_>,
        rates: [Option<Rate>; 2],
        sharing: &Sharing<'_>,
    ) -> Result<BundleEntry, ConfigError> {
        let class = "the name of a class of this plan";
        let free = table.text("free")?.ok_or_else(|| table.missing("free", class))?;
        let stunts = table.text("stunts")?.ok_or_else(|| table.missing("stunts", class))?;
        let targets = [table.parsed::<Rate>("download")?, table.parsed::<Rate>("upload")?];
        let (place, nothing) = (table.place(), table.missing("download", TARGET));
        table.finish()?;
        if targets.iter().all(Option::is_none) {
            return Err(nothing);
        }
        let mut entry =
            BundleEntry { free: free.value, stunts: stunts.value, targets: [None, None] };
        for (at, target) in targets.iter().enumerate() {
            let Some(Placed { value, place: target_place }) = target else { continue };
            let Some(rate) = rates[at] else {
                let direction = ["download", "upload"][at];
                return Err(target_place.error(format!("the plan does not police {direction}s")));
            };
            entry.targets[at] = Some(*value);
            let spec = sharing.spec(rate);
            let plan = Plan::new(&spec).map_err(|e| sharing.error(&e, &place))?;
            let made = entry.spec(at).map(|bundle| Bundle::new(&bundle, &spec, &plan)).transpose();
            made.map_err(|e| match &e {
                BundleError::Target(..) => target_place.error(e),
                BundleError::NoClass(name) if *name == entry.stunts => stunts.place.error(e),
                BundleError::Priority(name) if *name == entry.stunts => stunts.place.error(e),
                BundleError::NoClass(_)
                | BundleError::Priority(_)
                | BundleError::Same(_)
                | BundleError::Queues(..)
                | BundleError::Plan(_) => free.place.error(e),
            })?;
        }
        Ok(entry)
    }

    /// The bundle of a direction; 0 is the download.
    fn spec(&self, direction: usize) -> Option<BundleSpec> {
        let BundleEntry { free, stunts, targets } = self;
        let of = |target| BundleSpec { free: free.clone(), target, stunts: stunts.clone() };
        targets[direction].map(of)
    }

    /// The bundle in a few words.
    fn words(&self) -> String {
        let BundleEntry { free, stunts, targets } = self;
        let both = ["download", "upload"].into_iter().zip(targets);
        let rates = both.filter_map(|(direction, rate)| Some(format!("{direction} {}", (*rate)?)));
        format!("{free} holds {} at the cost of {stunts}", rates.collect::<Vec<_>>().join(", "))
    }
}

/// What a bundle without targets lacks.
const TARGET: &str = "what the free class is to have, such as \"4mbit\", here or as `upload`";

/// Checks that a name of a plan or of a subscriber can be typed, shown and stored.
///
/// # Errors
/// Says what is expected.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_alphanumeric() || "-_.@:/+%".contains(c);
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fits) {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_MAX).collect();
    Err(format!(
        "`{shown}` is not a valid name (1 to {NAME_MAX} bytes of letters, digits and -_.@:/+%)"
    ))
}

/// The longest name, in bytes.
pub const NAME_MAX: usize = 96;

/// Removes nulls, which TOML does not have; an absent key has the same meaning.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, v)| !v.is_null());
            Value::Object(kept.map(|(k, v)| (k.clone(), without_nulls(v))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

/// The rate in the usual units if that is exact.
fn rate_text(rate: Rate) -> String {
    let text = rate.to_string();
    if text.parse() == Ok(rate) { text } else { format!("{}bit", rate.as_bps()) }
}

fn span_text(span: Span) -> String {
    let text = span.to_string();
    if text.parse() == Ok(span) { text } else { format!("{}ns", span.as_nanos()) }
}

fn share_json(share: &Share) -> Value {
    match share {
        Share::Flows(queues) => json!({ "queues": queues }),
        Share::Weighted(classes) => {
            let classes: Vec<Value> = classes.iter().map(|c| class_json(c, true)).collect();
            json!({ "share": "weighted", "class": classes })
        }
        Share::Priority(classes) => {
            let classes: Vec<Value> = classes.iter().map(|c| class_json(c, false)).collect();
            json!({ "share": "priority", "class": classes })
        }
    }
}

fn class_json(class: &Class, has_weight: bool) -> Value {
    let mut value = share_json(&class.share);
    value["name"] = json!(class.name);
    if has_weight {
        value["weight"] = json!(class.weight);
    }
    if !class.matches.is_empty() {
        value["match"] = class.matches.iter().map(|one| json!(criterion_text(one))).collect();
    }
    value
}

/// A criterion as an operator writes it.
fn criterion_text(criterion: &Criterion) -> String {
    match criterion {
        Criterion::Dscp(dscp) => format!("dscp:{dscp}"),
        Criterion::Port(ports) => ports.to_string(),
        Criterion::Ip(net) => format!("ip:{net}"),
    }
}

fn share_words(share: &Share) -> String {
    let listed = |classes: &[Class], word: &str| {
        let names: Vec<String> = classes
            .iter()
            .map(|class| match &class.share {
                Share::Flows(1) => class.name.clone(),
                inner => format!("{} ({})", class.name, share_words(inner)),
            })
            .collect();
        format!("{word}: {}", names.join(", "))
    };
    match share {
        Share::Flows(1) => "one queue".to_owned(),
        Share::Flows(queues) => format!("{queues} queues"),
        Share::Weighted(classes) => {
            let weighted = classes.iter().map(|class| Class {
                name: format!("{} ×{}", class.name, class.weight),
                ..class.clone()
            });
            listed(&weighted.collect::<Vec<_>>(), "weighted")
        }
        Share::Priority(classes) => listed(classes, "priority"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Result<PlanEntry, String> {
        let text = format!("[[plan]]\n{text}");
        let read = || {
            let mut top = Source::new(&text, "isp.toml", &[]).top()?;
            let mut table = top.tables("plan")?.remove(0);
            let plan = PlanEntry::read(&mut table)?;
            table.finish()?;
            Ok(plan)
        };
        read().map_err(|e: ConfigError| e.to_string())
    }

    const NESTED: &str = r#"name = "family"
        download = "100mbit"
        share = "weighted"
        [[plan.class]]
        name = "voice"
        weight = 2
        match = ["dscp:ef", "port:udp/5060", "local-port:8000-8010", "ip:203.0.113.0/24"]
        [[plan.class]]
        name = "rest"
        share = "priority"
        [[plan.class.class]]
        name = "work"
        match = ["ip:2001:db8::/32"]
        queues = 4
        [[plan.class.class]]
        name = "play"
        queues = 8
    "#;

    const BUNDLED: &str = r#"name = "studio"
        download = "40mbit"
        upload = "8mbit"
        bundle = { free = "stream", stunts = "backup", download = "5mbit" }
        share = "weighted"
        [[plan.class]]
        name = "stream"
        match = ["dscp:ef"]
        [[plan.class]]
        name = "backup"
        match = ["port:873"]
        queues = 4
        [[plan.class]]
        name = "others"
        queues = 8
    "#;

    #[test]
    fn a_plan_is_the_same_by_toml_and_by_json() {
        for text in [
            "name = \"a\"\ndownload = \"50mbit\"\nupload = \"10mbit\"",
            "name = \"a\"\ndownload = \"123456789bit\"\nrtt_max = \"12345679ns\"",
            "name = \"a\"\nupload = \"1.5mbit\"\nsignal = \"hard\"\nrtt_max = \"50ms\"\nqueues = 1",
            NESTED,
            BUNDLED,
            &BUNDLED.replace("download = \"5mbit\" }", "upload = \"2mbit\" }"),
        ] {
            let read = plan(text).unwrap();
            assert_eq!(PlanEntry::from_json(&read.to_json()).unwrap(), read, "{text}");
        }
        let words = plan(NESTED).unwrap().policy();
        let wanted = "weighted: voice ×2, rest ×1 (priority: work (4 queues), play (8 queues))";
        assert_eq!(words, wanted);
        let [download, upload] = plan(BUNDLED).unwrap().compile().unwrap().map(Option::unwrap);
        assert!(download.bundle.is_some() && upload.bundle.is_none());
        let words = plan(BUNDLED).unwrap().policy();
        assert!(words.ends_with("; stream holds download 5mbit at the cost of backup"), "{words}");
    }

    #[test]
    fn a_bundle_that_cannot_be_is_told_with_line_and_key() {
        for (from, to, wanted) in [
            ("\"5mbit\" }", "\"41mbit\" }", "bundle.download: target 41mbit is out of range"),
            ("\"5mbit\" }", "\"0bit\" }", "bundle.download: target 0bit is out of range"),
            ("\"stream\", stunts", "\"movie\", stunts", "bundle.free: there is no class `movie`"),
            ("\"backup\", down", "\"backups\", down", "bundle.stunts: there is no class `backups`"),
            ("\"backup\", down", "\"stream\", down", "bundle.free: class `stream` cannot be"),
            (
                "\"stream\", stunts",
                "\"others\", stunts",
                "bundle.free: the free class `others` has 8",
            ),
            (", download = \"5mbit\"", "", "bundle.download: missing"),
            ("stunts = \"backup\", ", "", "bundle.stunts: missing"),
            ("\"5mbit\" }", "\"5mbit\", target = 1 }", "bundle.target: unknown key"),
            ("upload = \"8mbit\"\n", "", ""),
        ] {
            let changed = BUNDLED.replace(from, to);
            assert_ne!(changed, BUNDLED, "{from}");
            match plan(&changed) {
                Ok(_) => assert_eq!(wanted, "", "{changed}"),
                Err(error) => {
                    let wanted = format!("isp.toml:5: plan.{wanted}");
                    assert!(error.starts_with(&wanted), "{error} instead of {wanted}");
                }
            }
        }
        let up =
            BUNDLED.replace("upload = \"8mbit\"\n", "").replace("download = \"5", "upload = \"5");
        let error = plan(&up).unwrap_err();
        assert!(error.ends_with("bundle.upload: the plan does not police uploads"), "{error}");
        let ranked = BUNDLED.replace("weighted", "priority");
        let error = plan(&ranked).unwrap_err();
        assert!(error.contains("class `stream` is served by priority"), "{error}");
    }

    #[test]
    fn what_is_wrong_with_a_plan_is_told_with_line_and_key() {
        for (text, wanted) in [
            ("name = \"a\"", "isp.toml:1: plan.download: missing"),
            ("name = \"a\"\ndownload = \"0mbit\"", "isp.toml:3: plan.download: rate 0bit"),
            ("name = \"a\"\ndownload = \"5mbps\"", "isp.toml:3: plan.download: `5mbps` is ambig"),
            (
                "name = \"a b\"\nupload = \"5mbit\"",
                "isp.toml:2: plan.name: `a b` is not a valid name",
            ),
            ("name = \"a\"\ndownlaod = \"5mbit\"", "isp.toml:3: plan.downlaod: unknown key (did"),
            ("name = \"a\"\nupload = \"5mbit\"\nqueue = 4", "isp.toml:4: plan.queue: unknown key"),
            ("name = \"a\"\nupload = \"5mbit\"\nqueues = 0", "isp.toml:4: plan.queues: found"),
            (
                "name = \"a\"\nupload = \"5mbit\"\nshare = \"weighted\"",
                "isp.toml:4: plan.share: `share` without classes",
            ),
            (
                "name = \"a\"\nupload = \"5mbit\"\nshare = \"weighted\"\n[[plan.class]]\nname = \
                 \"b\"\nweight = -1",
                "isp.toml:7: plan.class.weight: found the number -1, expected a whole number",
            ),
        ] {
            let error = plan(text).unwrap_err();
            assert!(error.starts_with(wanted), "`{text}` gives: {error}");
        }
    }

    #[test]
    fn a_request_says_which_key_is_wrong() {
        let error = PlanEntry::from_json(&json!({ "name": "a", "download": "0bit" })).unwrap_err();
        assert!(error.starts_with("plan.download: rate 0bit"), "{error}");
        let error = PlanEntry::from_json(&json!({ "name": "a", "uplaod": "1mbit" })).unwrap_err();
        assert!(error.contains("uplaod"), "{error}");
        assert!(PlanEntry::from_json(&json!("a")).is_err());
        let nulls = json!({ "name": "a", "download": "1mbit", "upload": null });
        assert!(PlanEntry::from_json(&nulls).is_ok());
    }
}
