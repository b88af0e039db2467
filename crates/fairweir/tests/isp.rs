//! `fairweir isp`: real packets of real subscribers, and everything that its users do.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

mod common;
use common::access::{ALICE4, ALICE6, Access, BOB4, BOB6, NOBODY4, SPAN};
use common::stage::{Daemon, Download, privileged};
use common::{one_at_a_time, two_of_three};

/// What two veth pairs and a router carry for sure, in Mbit/s, if nobody polices.
const UNPOLICED_MBIT: f64 = 120.0;

const SETTLE: Duration = Duration::from_secs(2);

const FILE: &str = r#"version = 1

[isp]
device = "sub"

[[plan]]
name = "home-20"
download = "20mbit"
upload = "8mbit"

[[plan]]
name = "home-40"
download = "40mbit"

[[subscriber]]
name = "alice"
addresses = ["192.0.2.1", "2001:db8:1::/56"]
plan = "home-20"

[[subscriber]]
name = "bob"
addresses = ["192.0.2.2", "2001:db8:2::/56"]
plan = "home-40"
"#;

fn access(file: &str) -> Access {
    let access = Access::new();
    access.write("isp.toml", file);
    access
}

/// Payload may be so much less than L2 bytes, and TCP needs a little to find the rate.
fn assert_policed(mbit: f64, plan: f64, what: &str) {
    assert!((0.8 * plan..1.02 * plan).contains(&mbit), "{what}: {mbit:.1} of {plan} Mbit/s");
}

fn mean(download: &Download) -> f64 {
    std::thread::sleep(SETTLE);
    download.mbit_over(SPAN)
}

fn subscriber(daemon: &Daemon, name: &str) -> Value {
    daemon.ask_json(&json!({ "request": "counters", "name": name })).unwrap()
}

#[test]
fn each_subscriber_gets_its_plan_over_ipv4_and_ipv6_and_nobody_else_is_policed() {
    if !privileged() {
        return;
    }
    for hook in ["", "uplink = \"up\"\nhook = \"xdp\"\n"] {
        one_at_a_time(|| {
            two_of_three(|| {
                let access = access(&FILE.replace("device = ", &format!("{hook}device = ")));
                let daemon = access.start();
                let alice = access.download(ALICE4);
                assert_policed(mean(&alice), 20.0, "alice by IPv4");
                drop(alice);
                let alice = access.download(ALICE6);
                let bob = access.download(BOB4);
                assert_policed(mean(&alice), 20.0, "alice by IPv6 beside bob");
                assert_policed(bob.mbit_over(SPAN), 40.0, "bob");
                drop((alice, bob));
                let upload = access.upload(ALICE4);
                assert_policed(mean(&upload), 8.0, "alice's upload");
                drop(upload);
                // Bob's plan has no upload, and nobody's address is nobody's.
                for (free, what) in
                    [(access.upload(BOB6), "bob's upload"), (access.download(NOBODY4), "nobody")]
                {
                    let mbit = free.mbit_over(SPAN);
                    assert!(mbit > UNPOLICED_MBIT, "{what}: {mbit:.1} Mbit/s");
                }
                let counted = subscriber(&daemon, "alice");
                assert!(counted["download"]["dropped_packets"].as_u64().unwrap() > 0, "{counted}");
                assert!(counted["upload"]["passed_bytes"].as_u64().unwrap() > 3_000_000);
            });
        });
    }
}

#[test]
fn debug() {
    for signal in ["", "signal = \"hard\"\n"] {
        let access = access(&FILE.replace("download = \"20mbit\"", &format!("download = \"20mbit\"\n{signal}")));
        let daemon = access.start();
        let alice = access.download(ALICE4);
        for _ in 0..8 {
            let mbit = alice.mbit_over(Duration::from_secs(1));
            let c = subscriber(&daemon, "alice");
            println!("{signal} {mbit:.1} {}", c["download"]);
            let out = access.at_internet(|| std::process::Command::new("ss").args(["-ti", "state", "established"]).output().unwrap());
            println!("{}", String::from_utf8_lossy(&out.stdout).lines().filter(|l| l.contains("cwnd")).collect::<String>());
        }
        drop(daemon);
    }
}
