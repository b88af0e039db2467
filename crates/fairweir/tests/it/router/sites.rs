//! Groups of sites within devices: `web:` rules for real packets that pass the router.

use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::{note, privileged, two_of_three};
use serde_json::{Value, json};

use super::{Home, LINK_MBIT, PATIENCE};
use crate::common::home::has_nat;
use crate::common::stage::SERVERS;
use crate::common::web::{Fetch, NameServer, Protocol, SERVER6, Web, assert_holds_in_flood};

const VIDEO: &str = "cdn.video.example.com";
const BULK: &str = "bulk.example.net";
const TLS: Protocol = Protocol::Tls(9_000);

/// The tv has a group for each of two sites; the desk has one site's names in a group of another pattern.
fn configuration(home: &Home, video: &str) -> String {
    let [tv, desk, _] = &home.devices;
    format!(
        "version = 1\n[router]\nlan = \"br-lan\"\nwan = \"wan\"\nupload = true\n\
         [[device]]\nname = \"tv\"\nweight = 2\nmatch = [\"mac:{}\"]\n\
         [[device.group]]\nname = \"video\"\nweight = 3\nmatch = [\"web:{video}\"]\n\
         [[device.group]]\nname = \"bulk\"\nweight = 1\nmatch = [\"web:{BULK}\"]\n\
         [[device]]\nname = \"desk\"\nweight = 1\nmatch = [\"mac:{}\"]\n\
         [[device.group]]\nname = \"films\"\nweight = 1\nmatch = [\"web:*.example.com\"]\n",
        tv.mac, desk.mac
    )
}

fn group<'s>(status: &'s Value, name: &str) -> &'s Value {
    status["groups"].as_array().unwrap().iter().find(|group| group["name"] == name).unwrap()
}

fn received(status: &Value, name: &str) -> u64 {
    group(status, name)["received_bytes"].as_u64().unwrap()
}

fn reload(home: &Home, text: &str) {
    home.stage.configure(text);
    let output = home.stage.fairweir("reload --dev wan");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn each_device_tells_sites_apart_as_it_wants() {
    if !privileged() || !has_nat() {
        return;
    }
    let home = Home::new();
    let web = Web::new(&home.stage, &[VIDEO, BULK]);
    // The first `web:` rules are added by a reload.
    let text = home.configuration().replace("[router]\n", "[router]\nupload = true\n");
    home.stage.configure(&text);
    let daemon = home.stage.start_router(&[]);
    reload(&home, &configuration(&home, "video.example.com"));
    let [tv, desk, _] = &home.devices;
    let get = |device: &super::Device, protocol, server, name| {
        web.download(device.netns(), protocol, server, name)
    };
    let _fetches = [
        get(tv, Protocol::Tls(50), SERVERS[0], VIDEO),
        get(tv, Protocol::Http, SERVER6, VIDEO),
        get(tv, TLS, SERVERS[0], BULK),
        get(tv, Protocol::Quic, SERVERS[0], BULK),
        get(desk, Protocol::Quic, SERVER6, VIDEO),
        get(desk, TLS, SERVERS[0], BULK),
    ];
    // The server sends first; the tv has asked the router for the server's address.
    let names = home.stage.at_home(|| NameServer::new("192.168.7.254"));
    names.answer(tv.netns(), VIDEO, [198, 51, 100, 1]);
    let _named = tv.download(home.far.address());
    let connections = |status: &Value, name: &str| group(status, name)["connections"].clone();
    daemon.wait_for("decisions", PATIENCE, |status| {
        let sites = &status["sites"];
        sites["by_sni"] == 5
            && sites["by_host"] == 1
            // Undecided until the tv sends.
            && sites["undecided"] == 1
            && connections(status, "tv/video") == 3
            && connections(status, "tv/bulk") == 1
            && connections(status, "desk/default") == 1
    });
    let told = daemon.ask_json(&json!({ "request": "connections", "limit": 100 })).unwrap();
    let told = told["connections"].as_array().unwrap();
    for reason in ["sni", "host", "dns"] {
        let is_told = |c: &Value| c["group"] == "tv/video" && c["evidence"]["reason"] == reason;
        assert!(told.iter().any(is_told), "{reason}: {told:#?}");
    }
    daemon.wait_for("QUIC", PATIENCE, |s| received(s, "desk/films") > 200_000);
    let before = daemon.status();
    thread::sleep(Duration::from_secs(1));
    let status = daemon.status();
    for name in ["tv/default", "default"] {
        assert_eq!(received(&before, name), received(&status, name), "{name}: {status:#}");
    }
    let lost = ["mixed", "lost", "ech"].iter().all(|key| status["sites"][*key] == 0);
    assert!(lost, "{:#}", status["sites"]);
    let sent = |name: &str| {
        let groups = status["upload"]["groups"].as_array().unwrap();
        let group = groups.iter().find(|group| group["name"] == name).unwrap();
        group["offered_bytes"].as_u64().unwrap()
    };
    assert!(sent("tv/video") > 10_000 && sent("desk/films") > 1_000, "{:#}", status["upload"]);
    reload(&home, &configuration(&home, "unused.example.com"));
    daemon.wait_for("the moved connections", PATIENCE, |status| {
        connections(status, "tv/video") == 0
            && connections(status, "tv/default") == 3
            && connections(status, "tv/bulk") == 1
    });
    assert_holds_in_flood(&daemon, home.devices[2].netns(), Duration::from_secs(1));
}

/// As `groups_share_within_their_device`, with groups of sites.
fn sites_share() {
    let home = Home::new();
    let web = Web::new(&home.stage, &[VIDEO, BULK]);
    home.stage.configure(&configuration(&home, "video.example.com"));
    let daemon = home.stage.start_router(&[]);
    let [tv, desk, _] = &home.devices;
    let three = |device: &super::Device, server, name| {
        [0; 3].map(|_| web.download(device.netns(), TLS, server, name))
    };
    let all =
        [three(tv, SERVERS[0], VIDEO), three(tv, SERVER6, BULK), three(desk, SERVERS[0], VIDEO)];
    daemon.wait_for("enforcing", PATIENCE, |s| s["enforcing"] == true);
    thread::sleep(Duration::from_secs(8));
    let sum = || all.each_ref().map(|three| three.iter().map(Fetch::received).sum::<u64>());
    let (begin, before) = (Instant::now(), sum());
    thread::sleep(Duration::from_secs(10));
    let after = sum();
    let mbit = |i: usize| (after[i] - before[i]) as f64 * 8e-6 / begin.elapsed().as_secs_f64();
    let rates = [0, 1, 2].map(mbit);
    let used: f64 = rates.iter().sum();
    let shares = [0, 1, 2].map(|i| rates[i] / used / [0.5, 1.0 / 6.0, 1.0 / 3.0][i]);
    note(&format!("sites within devices {shares:.3?} of {used:.1} Mbit/s"));
    let status = daemon.status();
    for share in shares {
        assert!((share - 1.0).abs() <= 0.05, "{shares:?}\n{status:#}");
    }
    assert!(used > 0.9 * LINK_MBIT, "{used} Mbit/s");
    assert_eq!(status["sites"]["by_sni"], 9, "{:#}", status["sites"]);
}

#[test]
#[ignore = "long: 20 s"]
fn sites_within_a_device_share_what_the_device_has() {
    if privileged() && has_nat() {
        two_of_three(sites_share);
    }
}
