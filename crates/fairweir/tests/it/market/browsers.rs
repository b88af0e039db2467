//! A household's page in real browsers: the agent of the credit market beside a gateway's proxy.

use std::fs;
use std::time::Duration;

use fairweir_testing::{note, privileged};

use super::Market;
use super::agents::Home;
use crate::common::home::{devices, has_nat};
use crate::common::page::{GROUP, Kind, Page, picture};
use crate::common::stage::{SERVERS, Stage};

const PATIENCE: Duration = Duration::from_secs(10);

/// Changes of importance, a boost and a holiday by keyboard, with undo; what a device receives, live.
fn a_household(kind: Kind) {
    if !privileged() || !has_nat() || !kind.is_installed() {
        return;
    }
    let stage = Stage::with_link(40.0);
    let devices = devices(&stage, ["tv"]);
    let text = "version = 1\n[proxy]\nlan = [\"br-lan\"]\n[[class]]\nname = \"home\"\n\
                rate = \"10mbit\"\nmatch = [\"ip:192.168.7.0/24\"]\n";
    fs::write(stage.path("proxy.toml"), text).unwrap();
    let proxy = stage.start_proxy(None);
    // A slot ends within two seconds, while a person is still choosing.
    let mut market = Market::found_at(2, "28mbit");
    market.start();
    let film = "[[time]]\nname = \"film night\"\nfrom = \"00:00\"\nto = \"12:00\"\nstreaming = 3\n";
    let mut home = Home::new(&market, "home", film);
    home.run = stage.run_dir().into();
    home.admin_group = Some(GROUP);
    home.start_with("96");
    home.wait_for("plan", |s| s["plan"].as_array().is_some_and(|plan| !plan.is_empty()));
    let server = format!("{}:{}", SERVERS[0], stage.port()).parse().unwrap();
    let _download = devices[0].download(server);
    proxy.wait_for("traffic", PATIENCE, |s| s["classes"][0]["down_bytes"].as_u64() > Some(1 << 20));
    let page = Page::start(&stage, "0", &[]);
    let stored = || fs::read_to_string(home.path("agent.d/zz-set.toml")).ok();
    let pictures = ["page-proxy.png", "page-agent.png"].map(|name| picture(kind, &stage, name));
    let [proxy_png, agent_png] = pictures.each_ref().map(|path| path.display().to_string());
    kind.play(
        &stage,
        "household.mjs",
        &[&page.link(), &proxy_png, &agent_png],
        |line| match line {
            "importance" => assert!(stored().unwrap().contains("web = 3")),
            "undone" => assert_eq!(stored(), None),
            "boosted" => {
                let is_boosted = |s: &serde_json::Value| {
                    let left = s["preferences"]["boosted_for_s"].as_array();
                    left.is_some_and(|left| left.iter().any(|s| s.as_u64() > Some(1_700)))
                };
                home.wait_for("boost", is_boosted);
            }
            other => note(&format!("{kind:?}: {other}")),
        },
    );
    for picture in pictures {
        assert!(fs::metadata(picture).unwrap().len() > 10_000);
    }
}

#[test]
fn a_household_in_chromium_sees_its_devices_and_says_what_it_wants() {
    a_household(Kind::Chromium);
}

/// `cargo test -p fairweir --features evidence --test it a_household_in -- --include-ignored`
#[test]
#[ignore = "long: plays in Firefox what Chromium plays in `make test`"]
fn a_household_in_firefox_sees_its_devices_and_says_what_it_wants() {
    a_household(Kind::Firefox);
}
