//! A plan of the operator: rates for download and upload, shared alike, under one name.

use fairweir_core::phantom::{Class, Criterion, Plan, PlanError, PlanSpec, Share, Signal};
use fairweir_core::units::{Rate, Span};
use serde_json::{Value, json};

use crate::plan::{ByMatch, KEYS, sharing};
use crate::{ConfigError, Source, Table};

/// A plan, valid: [`Plan::new`] takes what [`PlanEntry::specs`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanEntry {
    /// Unique.
    pub name: String,
    /// What subscribers may receive; `None` is not policed.
    pub download: Option<Rate>,
    /// What they may send; `None` is not policed.
    pub upload: Option<Rate>,
    /// The longest round-trip time whose connections can reach the rates.
    pub rtt_max: Span,
    /// How senders are told.
    pub signal: Signal,
    /// Who gets what.
    pub share: Share,
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
        let sharing = sharing(table, &mut ByMatch)?;
        for rate in [&download, &upload].into_iter().flatten() {
            let made = Plan::new(&sharing.spec(rate.value));
            made.map_err(|e| sharing.error(&e, &rate.place))?;
        }
        Ok(PlanEntry {
            name: name.value,
            download: download.map(|p| p.value),
            upload: upload.map(|p| p.value),
            rtt_max: sharing.rtt_max,
            signal: sharing.signal,
            share: sharing.share,
        })
    }

    /// The keys of the table.
    pub fn keys() -> Vec<&'static str> {
        ["name", "download", "upload"].into_iter().chain(KEYS).collect()
    }

    /// Reads the same as JSON, as it comes over the socket.
    ///
    /// # Errors
    /// The first thing that is wrong, with its key.
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
            table.finish(&PlanEntry::keys())?;
            Ok(plan)
        };
        read().map_err(|e: ConfigError| format!("{}: {}", e.key(), e.what()))
    }

    /// What [`PlanEntry::from_json`] reads.
    pub fn to_json(&self) -> Value {
        let mut value = share_json(&self.share);
        value["name"] = json!(self.name);
        for (key, rate) in [("download", self.download), ("upload", self.upload)] {
            if let Some(rate) = rate {
                value[key] = json!(rate_text(rate));
            }
        }
        value["rtt_max"] = json!(span_text(self.rtt_max));
        value["signal"] = json!(self.signal.to_string());
        value
    }

    /// What the kernel is to do for download and upload.
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

    /// The same, worked out.
    ///
    /// # Errors
    /// [`PlanError`] if it was made otherwise than by reading.
    pub fn compile(&self) -> Result<[Option<Plan>; 2], PlanError> {
        let [download, upload] = self.specs();
        let made = |spec: Option<PlanSpec>| spec.map(|s| Plan::new(&s)).transpose();
        Ok([made(download)?, made(upload)?])
    }

    /// How the rate is shared, in a few words.
    pub fn policy(&self) -> String {
        share_words(&self.share)
    }
}

/// A name of a plan or of a subscriber that can be typed, shown and stored.
///
/// # Errors
/// Says what would be right.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = |c: char| c.is_alphanumeric() || "-_.@:/+".contains(c);
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fits) {
        return Ok(());
    }
    let shown: String = name.chars().take(NAME_MAX).collect();
    Err(format!(
        "`{shown}` is not a valid name (1 to {NAME_MAX} bytes of letters, digits and -_.@:/+)"
    ))
}

/// The longest name, in bytes.
pub const NAME_MAX: usize = 96;

/// TOML has no nulls; an absent key is the same.
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

/// As people write it if that is exact.
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

/// As the operator writes it.
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
            table.finish(&PlanEntry::keys())?;
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

    #[test]
    fn a_plan_is_the_same_by_toml_and_by_json() {
        for text in [
            "name = \"a\"\ndownload = \"50mbit\"\nupload = \"10mbit\"",
            "name = \"a\"\ndownload = \"123456789bit\"\nrtt_max = \"12345679ns\"",
            "name = \"a\"\nupload = \"1.5mbit\"\nsignal = \"hard\"\nrtt_max = \"50ms\"\nqueues = 1",
            NESTED,
        ] {
            let read = plan(text).unwrap();
            assert_eq!(PlanEntry::from_json(&read.to_json()).unwrap(), read, "{text}");
        }
        let words = plan(NESTED).unwrap().policy();
        let wanted = "weighted: voice ×2, rest ×1 (priority: work (4 queues), play (8 queues))";
        assert_eq!(words, wanted);
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
