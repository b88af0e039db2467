//! Bundles in plans: what an operator configures, sees and changes, with real downloads.

use std::time::Duration;

use super::*;
use crate::common::access::{SERVER4, SERVER6};

const PATIENCE: Duration = Duration::from_secs(15);
const BUNDLE: &str = "bundle = { free = \"stream\", stunts = \"backup\", download = \"13mbit\" }\n";

/// Alice's IPv4 is the free connection, and her IPv6 pays; without a bundle each has 10 Mbit/s.
fn file(bundle: &str) -> String {
    format!(
        "version = 1\n[isp]\ndevice = \"sub\"\n[[plan]]\nname = \"studio\"\n\
         download = \"20mbit\"\nrtt_max = \"20ms\"\n{bundle}share = \"weighted\"\n\
         [[plan.class]]\nname = \"stream\"\nmatch = [\"ip:{SERVER4}\"]\n\
         [[plan.class]]\nname = \"backup\"\nmatch = [\"ip:{SERVER6}\"]\n\
         [[plan.class]]\nname = \"others\"\n\
         [[subscriber]]\nname = \"alice\"\naddresses = [\"192.0.2.1\", \"2001:db8:1::/56\"]\n\
         plan = \"studio\"\n"
    )
}

#[test]
fn a_bundle_is_set_seen_and_ended_live() {
    if privileged() {
        one_at_a_time(|| two_of_three(changes_a_bundle_live));
    }
}

fn changes_a_bundle_live() {
    let access = access(&file(""));
    let daemon = access.start();
    let (free, stunt) = (access.download(ALICE4), access.download(ALICE6));
    free.wait_for_rate(8.0..10.6, PATIENCE);
    access.write("isp.toml", &file(BUNDLE));
    access.isp("reload");
    free.wait_for_rate(11.4..13.2, PATIENCE);
    stunt.wait_for_rate(5.0..7.6, PATIENCE);
    let delegated = |s: &Value| s["plans"][0]["totals"]["download"]["delegated_bytes"].as_u64();
    daemon.wait_for("delegation", PATIENCE, |s| delegated(s).is_some_and(|n| n > 100_000));
    let shown = access.isp("status");
    assert!(shown.contains("BUNDLE OF") && shown.contains("DELEGATED"), "{shown}");
    let words = "stream holds download 13mbit at the cost of backup";
    assert!(access.isp("plan list").contains(words));
    let plans = daemon.ask_json(&json!({ "request": "plans" })).unwrap();
    let bundle = json!({ "free": "stream", "stunts": "backup", "download": "13mbit" });
    assert_eq!(plans["plans"][0]["bundle"], bundle);
    assert!(access.isp("metrics").contains("fairweir_delegated_bytes_total{"));
    // An impossible bundle is reported, and the existing one continues.
    access.write("isp.toml", &file(&BUNDLE.replace("13mbit", "21mbit")));
    let refused = access.isp_refuses("reload");
    let wanted =
        "isp.toml:8: plan.bundle.download: target 21mbit is out of range (64kbit to 20mbit";
    assert!(refused.contains(wanted), "{refused}");
    access.write("isp.toml", &file(""));
    access.isp("reload");
    free.wait_for_rate(8.0..10.6, PATIENCE);
}
