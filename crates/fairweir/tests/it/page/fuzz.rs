//! Requests that schemathesis generates from the page's description.

use std::fs;
use std::process::Command;

use fairweir_testing::privileged;
use serde_json::{Value, json};
use tempfile::tempdir;

use super::{Browser, Scene};

const DESCRIPTION: &str = include_str!("../../../../../docs/reference/page.openapi.json");

impl Browser<'_> {
    /// Runs schemathesis with these checks, in a session whose second token it knows.
    fn schemathesis(&self, mode: &str, checks: &str) {
        let mut document: Value = serde_json::from_str(DESCRIPTION).unwrap();
        for path in ["/set", "/undo"] {
            let body = &mut document["paths"][path]["post"]["requestBody"]["content"]["application/x-www-form-urlencoded"]
                ["schema"]["properties"];
            body["csrf"]["enum"] = json!([self.csrf]);
            if path == "/set" {
                body["daemon"]["enum"] = json!(["host-wan", "isp", "../host-wan"]);
                body["key"]["enum"] =
                    json!(["weight.server", "weight.default", "latency", "paused"]);
            }
        }
        let dir = tempdir().unwrap();
        fs::write(dir.path().join("page.json"), document.to_string()).unwrap();
        let origin = format!("http://{}", self.scene.page.host);
        let mut command = Command::new("schemathesis");
        command.current_dir(dir.path()).args(["run", "page.json", "--url", &origin]);
        command.args(["--header", &format!("Cookie: {}", self.cookie)]);
        command.args(["--header", &format!("Origin: {origin}")]);
        command.args(["--header", "Accept: application/json"]);
        command.args(["--mode", mode, "--checks", checks, "--max-examples", "200", "--seed", "1"]);
        // The stream of events never ends, so it is excluded.
        command.args(["--exclude-operation-id", "events", "--phases", "examples,coverage,fuzzing"]);
        let done = self.scene.stage.at_home(|| command.status().unwrap());
        assert!(done.success(), "{mode}");
    }
}

/// `pip install schemathesis`, then
/// `cargo test -p fairweir --features evidence --test it schemathesis -- --ignored --nocapture`
#[test]
#[ignore = "long: 1 min; needs schemathesis"]
fn schemathesis_finds_no_error_of_the_server() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let _isp = scene.start_isp();
    let browser = scene.sign_in();
    browser.schemathesis("negative", "not_a_server_error");
    browser.schemathesis(
        "positive",
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
    );
    assert_eq!(browser.get("/").status, 200, "it still runs, and the session is as it was");
    let body = browser.body("weight.server", "7");
    assert_eq!(browser.post("/set", &body).status, 303);
    assert_eq!(scene.weight(), 7);
}
