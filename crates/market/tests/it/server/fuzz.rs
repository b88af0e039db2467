//! Requests generated from the API's description so that they violate it: each gets one clear error, and
//! nothing changes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use fairweir_market::book::Book;
use fairweir_market::identity::Enrolment;

use super::*;

fn description() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/market.openapi.json")
}

fn book(market: &Market) -> Book {
    market.keeper.ask(|session| session.book().clone()).unwrap()
}

/// Values that are invalid for every part of a request.
fn absurd() -> Vec<Value> {
    let deep = "[".repeat(500) + &"]".repeat(500);
    let mut all: Vec<Value> =
        ["null", "true", "-1", "1.5", "1e308", "18446744073709551616", "[]", "{}"]
            .iter()
            .chain([&deep.as_str()])
            .filter_map(|text| serde_json::from_str(text).ok())
            .collect();
    let texts = [
        "",
        "NaN",
        "-1",
        "+1",
        "1e3",
        "9223372036854775808",
        "1000000000001",
        "\u{0}",
        "\u{1f4b0}",
        "'; DROP TABLE event; --",
        "../../etc/passwd",
        "${jndi:ldap://x}",
    ];
    all.extend(texts.map(Value::from));
    all.push(Value::from("7".repeat(10_000)));
    all
}

/// A body that the schema allows.
fn example(schema: &Value, schemas: &Value) -> Value {
    if let Some(name) = schema["$ref"].as_str() {
        return example(&schemas[name.rsplit('/').next().unwrap()], schemas);
    }
    match schema["type"].as_str() {
        Some("object") => {
            let properties = schema["properties"].as_object().unwrap().iter();
            properties.map(|(key, of)| (key.clone(), example(of, schemas))).collect()
        }
        Some("array") => json!([example(&schema["items"], schemas)]),
        Some("integer") => json!(1),
        _ => json!("1"),
    }
}

/// Variants of the value, with each part replaced by an absurd value, removed, or joined by an extra part.
fn wrong(value: &Value) -> Vec<Value> {
    let mut all = absurd();
    if let Value::Object(map) = value {
        for (key, part) in map {
            let mut without = map.clone();
            without.remove(key);
            all.push(without.into());
            for other in wrong(part) {
                let mut changed = map.clone();
                changed.insert(key.clone(), other);
                all.push(changed.into());
            }
        }
        let mut more = map.clone();
        more.insert("more".to_owned(), json!(1));
        all.push(more.into());
    }
    if let Value::Array(list) = value {
        all.extend(list.iter().flat_map(wrong).map(|part| json!([part])));
        all.push(Value::from(vec![list[0].clone(); 49]));
    }
    all
}

#[test]
fn what_the_description_does_not_allow_is_one_clear_error_and_changes_nothing() {
    let market = Market::start();
    let (identity, name) = market.enrol_as("c");
    let before = book(&market);
    let document: Value = serde_json::from_slice(&fs::read(description()).unwrap()).unwrap();
    let mut count = 0;
    let mut check = |method: &str, path: &str, body: &[u8]| {
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: market\r\ncontent-length: {length}\r\n\r\n");
        let (status, answer) =
            market.connect(&identity).exchange(&[head.as_bytes(), body].concat());
        let said: Value = serde_json::from_slice(&answer).unwrap();
        let what = || format!("{method} {path} {}: {said}", String::from_utf8_lossy(body));
        assert!((400..500).contains(&status), "{status} {}", what());
        assert_eq!(said["status"], status, "{}", what());
        assert!(said["title"].as_str().is_some_and(|title| !title.is_empty()), "{}", what());
        count += 1;
    };
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let method = method.to_uppercase();
            let own = path.replace("{name}", &name);
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            if !schema.is_null() {
                let right = example(schema, &document["components"]["schemas"]);
                for body in wrong(&right) {
                    check(&method, &own.replace("{slot}", "1"), body.to_string().as_bytes());
                }
                let text = right.to_string();
                for body in [&b"\xff\xfe"[..], b"", b"{", &text.as_bytes()[..text.len() - 1]] {
                    check(&method, &own.replace("{slot}", "1"), body);
                }
            }
            for part in ["-1", "18446744073709551616", "1e3", "%00", "'--", "..", "%2e%2e", "gw-2"]
            {
                if path.contains("{slot}") {
                    check(&method, &own.replace("{slot}", part), br#"{"spend":"1","sequence":1}"#);
                }
                if path.contains("{name}") {
                    let path = path.replace("{name}", part).replace("{slot}", "1");
                    check(&method, &path, b"{\"spend\":\"1\",\"sequence\":1}");
                }
            }
        }
        check("DELETE", &path.replace("{name}", &name), b"");
    }
    eprintln!("{count} requests");
    assert_eq!(book(&market), before);
    assert!(count > 300, "{count}");
}

/// `pip install schemathesis`, then
/// `cargo test -p fairweir-market --test it -- --ignored --nocapture schemathesis`
///
/// First sends requests that the description forbids, which must change nothing; then requests that it allows,
/// which must never cause a server error.
#[test]
#[ignore = "long: some minutes; needs schemathesis"]
fn schemathesis_finds_nothing() {
    let market = Market::start();
    let (identity, name) = market.enrol_as("c");
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::new(dir.path());
    Enrolment::new("localhost", "localhost", &market.authority, &name, &identity)
        .store(&state)
        .unwrap();
    let text = fs::read(dir.path().join("enrolment.json")).unwrap();
    let enrolment: Value = serde_json::from_slice(&text).unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::write(path("key.pem"), enrolment["key"].as_str().unwrap()).unwrap();
    for name in ["certificate", "authority"] {
        fs::write(path(name), pem(enrolment[name].as_str().unwrap())).unwrap();
    }
    for (mode, checks) in [
        ("negative", "not_a_server_error,negative_data_rejection"),
        ("positive", "not_a_server_error"),
    ] {
        fs::write(path("schemathesis.toml"), format!("[parameters]\n\"path.name\" = \"{name}\"\n"))
            .unwrap();
        let before = book(&market);
        let mut command = Command::new("schemathesis");
        command.current_dir(dir.path()).arg("run").arg(description());
        command.args(["--url", &format!("https://localhost:{}", market.server.address().port())]);
        command.args([
            "--request-cert",
            &path("certificate"),
            "--request-cert-key",
            &path("key.pem"),
        ]);
        command.args(["--tls-verify", &path("authority"), "--mode", mode, "--checks", checks]);
        // A gateway that leaves cannot continue, so `leave` is excluded.
        command.args(["--exclude-operation-id", "leave", "--max-examples", "100", "--seed", "1"]);
        command.args(["--phases", "examples,coverage,fuzzing"]);
        let done = command.status().unwrap();
        assert!(done.success(), "{mode}");
        let after = book(&market);
        assert_eq!(after.credits(), before.credits());
        if mode == "negative" {
            assert_eq!(after, before);
        }
    }
}

/// Converts hexadecimal digits of DER to PEM.
fn pem(digits: &str) -> String {
    const WORDS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let byte = |i: usize| u32::from_str_radix(&digits[i..i + 2], 16).unwrap();
    let bytes: Vec<u32> = (0..digits.len()).step_by(2).map(byte).collect();
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for (i, part) in bytes.chunks(3).enumerate() {
        let sum = part.iter().chain([&0, &0]).take(3).fold(0, |sum, byte| sum << 8 | byte);
        for j in 0..4 {
            let word = char::from(WORDS[(sum >> (18 - 6 * j) & 63) as usize]);
            text.push(if j > part.len() { '=' } else { word });
        }
        if i % 16 == 15 {
            text.push('\n');
        }
    }
    text + "\n-----END CERTIFICATE-----\n"
}
