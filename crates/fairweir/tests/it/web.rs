//! `web:` rules with real packets: sites that share an address are distinguished by the names
//! that their connections contain.

use std::thread;
use std::time::Duration;

use fairweir_testing::{privileged, two_of_three};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::common::stage::{Daemon, SERVERS, Stage};
use crate::common::web::{Fetch, NameServer, Protocol, SERVER6, Web, assert_holds_in_flood};

const PATIENCE: Duration = Duration::from_secs(5);
/// Time until the control has found the capacity and the shares.
const SETTLE: Duration = Duration::from_secs(8);
const MEASURED: Duration = Duration::from_secs(8);

const VIDEO: &str = "cdn.video.example.com";
const BULK: &str = "bulk.example.net";

fn configuration(control: &str, video: &str, bulk: &str) -> String {
    format!(
        "version = 1\n[host]\ncontrol = \"{control}\"\ncapacity = \"36mbit\"\n\
         [[group]]\nname = \"video\"\nweight = 4\nmatch = [\"web:{video}\"]\n\
         [[group]]\nname = \"bulk\"\nweight = 1\nmatch = [\"web:{bulk}\"]\n"
    )
}

/// A daemon with rules for two sites.
fn start(control: &str) -> (Stage, Web, Daemon) {
    let stage = Stage::new();
    let web = Web::new(&stage, &[VIDEO, BULK, "other.example.org"]);
    stage.configure(&configuration(control, "video.example.com", BULK));
    let daemon = stage.start(&[]);
    (stage, web, daemon)
}

fn received(group: &str, status: &Value) -> u64 {
    let groups = status["groups"].as_array().unwrap();
    groups.iter().find(|g| g["name"] == group).unwrap()["received_bytes"].as_u64().unwrap()
}

/// The evidence for each receiving connection, with its group.
fn evidence(daemon: &Daemon) -> Vec<(String, Value)> {
    let told = daemon.ask_json(&json!({ "request": "connections", "limit": 100 })).unwrap();
    let of = |c: &Value| (c["group"].as_str().unwrap().to_owned(), c["evidence"].clone());
    told["connections"].as_array().unwrap().iter().map(of).collect()
}

/// Two downloads of each site at one address share by weight, and the daemon's count for each
/// group agrees with what its clients have received.
fn assert_shared(protocol: Protocol, server: &str, reason: &str) {
    let (stage, web, daemon) = start("static");
    let fetch = |name| [(); 2].map(|()| web.download(stage.home(), protocol, server, name));
    let (video, bulk) = (fetch(VIDEO), fetch(BULK));
    thread::sleep(SETTLE);
    let sum = |fetches: &[Fetch]| fetches.iter().map(Fetch::received).sum::<u64>();
    let before = (sum(&video), sum(&bulk), daemon.status());
    thread::sleep(MEASURED);
    let after = (sum(&video), sum(&bulk), daemon.status());
    let (fast, slow) = (after.0 - before.0, after.1 - before.1);
    let ratio = fast as f64 / slow as f64;
    let sites = &after.2["sites"];
    assert!((3.6..=4.4).contains(&ratio), "{ratio:.2} with {protocol:?}\n{:#}", after.2);
    for (group, clients) in [("video", fast), ("bulk", slow)] {
        let counted = received(group, &after.2) - received(group, &before.2);
        let part = counted as f64 / clients as f64;
        assert!((1.0..1.15).contains(&part), "{group}: {part:.3} of what clients received");
    }
    let stray = received("default", &after.2) as f64 / (after.0 + after.1) as f64;
    assert!(stray < 0.01, "{stray:.4} before the decision\n{sites}");
    assert_eq!(sites[format!("by_{reason}")], 4, "{sites}");
    assert!(["undecided", "mixed", "lost", "ech"].iter().all(|key| sites[*key] == 0), "{sites}");
}

#[test]
fn sites_of_one_address_share_by_weight_over_tls() {
    if privileged() {
        two_of_three(|| assert_shared(Protocol::Tls(50), SERVERS[0], "sni"));
    }
}

#[test]
fn sites_of_one_address_share_by_weight_over_http_and_ipv6() {
    if privileged() {
        two_of_three(|| assert_shared(Protocol::Http, SERVER6, "host"));
    }
}

#[test]
fn sites_of_one_address_share_by_weight_over_quic() {
    if privileged() {
        two_of_three(|| assert_shared(Protocol::Quic, SERVERS[0], "sni"));
    }
}

#[test]
fn every_protocol_and_family_is_decided_and_a_reload_moves_open_connections() {
    if !privileged() {
        return;
    }
    let (stage, web, daemon) = start("fairweir");
    let tls = Protocol::Tls(9_000);
    let fetches = [(tls, SERVER6), (Protocol::Quic, SERVER6), (Protocol::Http, SERVERS[1])]
        .map(|(protocol, server)| web.download(stage.home(), protocol, server, VIDEO));
    let _other = web.download(stage.home(), tls, SERVERS[0], "other.example.org");
    daemon.wait_for("three of one site", PATIENCE, |status| {
        status["groups"][0]["connections"] == 2 && status["sites"]["by_sni"] == 3
    });
    let status = daemon.status();
    assert_eq!(status["sites"]["by_host"], 1);
    assert_eq!(status["groups"][2]["connections"], 1, "other.example.org is nobody's");
    assert_eq!(received("bulk", &status), 0, "{status}");
    for reason in ["sni", "host"] {
        let told = ("video".to_owned(), json!({ "reason": reason, "name": VIDEO }));
        assert!(evidence(&daemon).contains(&told), "{told:?}");
    }
    stage.configure(&configuration("fairweir", "unused.example.com", "example.com"));
    assert!(stage.fairweir("reload --dev wan").status.success());
    daemon.wait_for("the moved connections", PATIENCE, |status| {
        status["groups"][1]["connections"] == 2 && status["groups"][0]["connections"] == 0
    });
    let told = evidence(&daemon);
    let moved = told.iter().filter(|(group, _)| group == "bulk").count();
    assert_eq!(moved, 2, "{told:?}");
    // Including QUIC, which has no receive window to set.
    let video = received("video", &daemon.status());
    thread::sleep(Duration::from_secs(1));
    assert_eq!(received("video", &daemon.status()), video);
    // The next daemon also knows the connections, for all protocols.
    let names = |daemon: &Daemon| {
        let mut names = evidence(daemon);
        names.sort_by_key(|(group, told)| (group.clone(), told.to_string()));
        names
    };
    let told = names(&daemon);
    daemon.signal(Signal::SIGTERM);
    daemon.end();
    let daemon = stage.start(&[]);
    daemon.wait_for("the same connections", PATIENCE, |_| names(&daemon) == told);
    let sum = || fetches.iter().map(Fetch::received).sum::<u64>();
    let before = (sum(), daemon.status());
    assert_eq!(before.1["sites"]["by_sni"], 0, "they were decided before");
    thread::sleep(Duration::from_secs(2));
    let (clients, status) = (sum() - before.0, daemon.status());
    let counted = received("bulk", &status) - received("bulk", &before.1);
    let part = counted as f64 / clients as f64;
    assert!((0.9..1.2).contains(&part), "{part:.3} of what clients received\n{status:#}");
    daemon.signal(Signal::SIGKILL);
    daemon.end();
    let daemon = stage.start(&[]);
    daemon.wait_for("connections", PATIENCE, |status| status["groups"][2]["connections"] == 3);
    assert!(names(&daemon).iter().all(|(_, told)| told.is_null()), "a killed one keeps nothing");
}

#[test]
fn a_flood_of_beginnings_does_not_hold_the_daemon() {
    if !privileged() {
        return;
    }
    let (stage, web, daemon) = start("static");
    assert_holds_in_flood(&daemon, stage.home(), Duration::from_secs(3));
    let _fetch = web.download(stage.home(), Protocol::Tls(9_000), SERVERS[0], VIDEO);
    daemon.wait_for("a decision", PATIENCE, |status| {
        status["sites"]["by_sni"] == 1 && status["groups"][0]["rate_bps"].as_u64() > Some(1_000_000)
    });
}

#[test]
fn the_dns_answer_decides_where_the_server_speaks_first() {
    if !privileged() {
        return;
    }
    let (stage, _web, daemon) = start("fairweir");
    let resolve = |name, address| {
        stage.at_internet(|| NameServer::new(SERVERS[0])).answer(stage.home(), name, address);
    };
    resolve(VIDEO, [10, 9, 0, 3]);
    resolve("shared.video.example.com", [10, 9, 0, 1]);
    resolve(BULK, [10, 9, 0, 1]);
    let _named = stage.download(SERVERS[1]);
    let _shared = stage.download(SERVERS[0]);
    daemon.wait_for("two connections", PATIENCE, |status| {
        status["groups"][0]["connections"] == 1 && status["groups"][2]["connections"] == 1
    });
    let told = evidence(&daemon);
    let video = told.iter().find(|(group, _)| group == "video").unwrap();
    assert_eq!(video.1, json!({ "reason": "dns", "name": VIDEO }));
    let default = told.iter().find(|(group, _)| group == "default").unwrap();
    assert_eq!(default.1, Value::Null, "an address of two groups is no evidence");
}
