//! Checks the `--json` output of commands against docs/reference/json.schema.json.

use std::fs;
use std::process::Output;
use std::sync::OnceLock;

use serde_json::Value;

/// Commands for developers; their reports have a separate schema.
pub const OTHERS: [&str; 6] = ["sim run", "lab run", "campaign", "compare", "figures", "validate"];

/// The published schemas.
pub fn schemas() -> &'static Value {
    static SCHEMAS: OnceLock<Value> = OnceLock::new();
    SCHEMAS.get_or_init(|| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/json.schema.json");
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    })
}

/// Checks a command's output against its schema, if `args` ask for JSON.
///
/// # Panics
/// If the output violates the schema.
pub fn check(args: &[impl AsRef<str>], output: &Output) {
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    if !args.contains(&"--json") || output.stdout.is_empty() {
        return;
    }
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    // A dry run and `top` print one value per line.
    let values: Vec<Value> = match serde_json::from_str(&printed) {
        Ok(value) => vec![value],
        Err(_) => printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
    };
    for value in values {
        let command = match value.get("exit_code") {
            Some(_) => "error".to_owned(),
            None => command(&args, &value),
        };
        if !OTHERS.iter().any(|other| command.starts_with(other)) {
            assert_valid(&command, &value);
        }
    }
}

/// The name under which the schemas list the command with these arguments.
fn command(args: &[&str], value: &Value) -> String {
    if args[0] == "check" {
        let kind = value["kind"].as_str().unwrap_or_default();
        return format!("check {}", kind.trim_start_matches("market "));
    }
    // The old spelling of the command.
    if args[0] == "status" {
        return "host status".to_owned();
    }
    let words: Vec<&str> = args.iter().take_while(|a| !a.starts_with('-')).copied().collect();
    let known = |n: usize| schemas()["commands"].get(words[..n].join(" ")).is_some();
    let n = (1..=words.len()).rev().find(|n| known(*n)).unwrap_or(words.len());
    words[..n].join(" ")
}

/// # Panics
/// If the value violates the command's schema.
pub fn assert_valid(command: &str, value: &Value) {
    let of = &schemas()["commands"][command];
    assert!(of["version"].is_u64(), "no schema of `{command}`");
    let wrong = contradiction(&of["schema"], value);
    assert_eq!(wrong, None, "`{command}` prints what its schema does not have: {value:#}");
}

/// Where a value violates a schema. Supports only the parts of JSON Schema that ours uses, and fails on others.
pub fn contradiction(schema: &Value, value: &Value) -> Option<String> {
    let Some(rules) = schema.as_object() else {
        return (schema != &Value::Bool(true)).then(|| format!("{schema} allows nothing"));
    };
    rules.iter().find_map(|(rule, what)| match rule.as_str() {
        "$ref" => {
            let name = what.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
            contradiction(&schemas()["$defs"][name], value).map(|wrong| format!("{name}: {wrong}"))
        }
        "type" => {
            let is = |kind: &Value| match (kind.as_str().unwrap(), value) {
                ("integer", Value::Number(n)) => n.is_u64() || n.is_i64(),
                ("null", Value::Null)
                | ("boolean", Value::Bool(_))
                | ("number", Value::Number(_))
                | ("string", Value::String(_))
                | ("array", Value::Array(_))
                | ("object", Value::Object(_)) => true,
                _ => false,
            };
            let fits = what.as_array().map_or_else(|| is(what), |all| all.iter().any(is));
            (!fits).then(|| format!("{value} is not of type {what}"))
        }
        "enum" => (!what.as_array().unwrap().contains(value)).then(|| format!("{value}: {what}")),
        "const" => (what != value).then(|| format!("{value} is not {what}")),
        "anyOf" | "oneOf" => {
            let wrong: Vec<_> =
                what.as_array().unwrap().iter().map(|s| contradiction(s, value)).collect();
            let fits = wrong.iter().any(Option::is_none);
            (!fits).then(|| wrong.into_iter().flatten().collect::<Vec<_>>().join(" | "))
        }
        "properties" | "additionalProperties" => {
            let known = |key: &str| rules["properties"].get(key);
            value.as_object().into_iter().flatten().find_map(|(key, inner)| {
                let wrong = match (rule.as_str(), known(key)) {
                    ("properties", Some(schema)) => contradiction(schema, inner),
                    ("additionalProperties", None) => contradiction(what, inner),
                    _ => None,
                };
                wrong.map(|wrong| format!("{key}: {wrong}"))
            })
        }
        "required" => {
            let all = what.as_array().unwrap().iter().map(|key| key.as_str().unwrap());
            let object = value.as_object()?;
            all.filter(|key| !object.contains_key(*key))
                .map(|key| format!("{key} is missing"))
                .next()
        }
        "items" => value.as_array()?.iter().find_map(|one| contradiction(what, one)),
        "minItems" | "maxItems" => {
            let (n, bound) = (value.as_array()?.len() as u64, what.as_u64().unwrap());
            let fits = if rule == "minItems" { n >= bound } else { n <= bound };
            (!fits).then(|| format!("{n} items: {rule} {bound}"))
        }
        "minimum" => {
            (value.as_f64()? < what.as_f64().unwrap()).then(|| format!("{value} < {what}"))
        }
        "maximum" => {
            (value.as_f64()? > what.as_f64().unwrap()).then(|| format!("{value} > {what}"))
        }
        "title" | "description" | "format" | "default" => None,
        other => panic!("the schema has a rule that is not checked: {other}"),
    })
}
