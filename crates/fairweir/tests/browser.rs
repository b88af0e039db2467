//! Two sites that load from the same servers, in real Chromium.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

mod common;
use common::browser::{Chromium, Nginx, SITES, are_installed};
use common::far::Far;
use common::stage::{Daemon, Stage, privileged};
use common::{note, one_at_a_time, two_of_three};

/// Of both sites.
const ADDRESS: &str = "10.8.0.1";
/// Until both pages load and the control has found the shares.
const SETTLE: Duration = Duration::from_secs(12);
const MEASURED: Duration = Duration::from_secs(15);
/// A page that says nothing for so long is opened again, and given up in the end.
const OPENED_AGAIN: Duration = Duration::from_secs(15);
const GIVEN_UP: Duration = Duration::from_secs(50);

fn configuration(video: &str, bulk: &str) -> String {
    format!(
        "version = 1\n[host]\ncontrol = \"fairweir\"\ncapacity = \"36mbit\"\n\
         [[group]]\nname = \"video\"\nweight = 4\nmatch = [\"{video}\"]\n\
         [[group]]\nname = \"bulk\"\nweight = 1\nmatch = [\"{bulk}\"]\n"
    )
}

/// What two sites had at the same time.
struct Shared {
    /// Bytes of the first site for each of the second, as their pages count them.
    ratio: f64,
    /// The part of all bytes that each flow group received, by name, as the daemon counts them.
    parts: BTreeMap<String, f64>,
}

fn share(is_h2: bool, has_extension: bool, configuration: &str) -> Shared {
    let stage = Stage::new();
    stage.configure(configuration);
    let daemon: Daemon = stage.start(&[]);
    // Some round trip: a server that has 3 ms to send the next packet has less than its share at times.
    let server = Far::new(&stage, "far", ADDRESS, None);
    let nginx = Nginx::start(&stage, &server, is_h2);
    let chromium = Chromium::start(&stage, &server, has_extension);
    let begun = Instant::now();
    let mut opened_at = begun;
    loop {
        let is_silent = |site: &&&str| nginx.reported().get(**site).is_none_or(|n| *n == 0);
        let silent: Vec<_> = SITES.iter().filter(is_silent).collect();
        if silent.is_empty() {
            break;
        }
        assert!(begun.elapsed() < GIVEN_UP, "pages load nothing: {:?}", nginx.reported());
        if opened_at.elapsed() > OPENED_AGAIN {
            opened_at = Instant::now();
            silent.iter().for_each(|site| chromium.open(&stage, site));
        }
        thread::sleep(Duration::from_millis(100));
    }
    thread::sleep(SETTLE);
    let (before, groups_before) = (nginx.reported(), received(&daemon.status()));
    thread::sleep(MEASURED);
    let (after, groups_after) = (nginx.reported(), received(&daemon.status()));
    let [video, bulk] = SITES.map(|site| (after[site] - before[site]) as f64);
    let status = daemon.status();
    let mbit = (video + bulk) * 8e-6 / MEASURED.as_secs_f64();
    let ratio = video / bulk;
    let way = if is_h2 { "h2" } else { "h1" };
    note(&format!(
        "{way}, extension {has_extension}: {ratio:.2}, {mbit:.1} Mbit/s, {}",
        status["sites"]
    ));
    let gained = |(name, n): (&String, &u64)| (name.clone(), (n - groups_before[name]) as f64);
    let mut parts: BTreeMap<_, _> = groups_after.iter().map(gained).collect();
    let sum: f64 = parts.values().sum();
    parts.values_mut().for_each(|part| *part /= sum);
    Shared { ratio, parts }
}

/// Bytes that each flow group has received, by name.
fn received(status: &Value) -> BTreeMap<String, u64> {
    let groups = status["groups"].as_array().unwrap().iter();
    let of = |group: &Value| {
        (group["name"].as_str().unwrap().to_owned(), group["received_bytes"].as_u64().unwrap())
    };
    groups.map(of).collect()
}

#[test]
fn sites_that_load_from_one_server_share_by_weight_in_chromium() {
    if !privileged() || !are_installed() {
        return;
    }
    let configuration = configuration("web:video.example.com", "web:bulk.example.net");
    for is_h2 in [false, true] {
        two_of_three(|| {
            let Shared { ratio, parts } = one_at_a_time(|| share(is_h2, true, &configuration));
            assert!((3.6..=4.4).contains(&ratio), "{ratio:.2}, {parts:.3?}");
        });
    }
}

/// Both sites' objects come from one host and one address, so both land in one group, however TCP then
/// shares it between them.
#[test]
fn neither_names_on_the_wire_nor_addresses_tell_such_sites_apart() {
    if !privileged() || !are_installed() {
        return;
    }
    for (has_extension, configuration, lands_in) in [
        (false, configuration("web:video.example.com", "web:bulk.example.net"), "default"),
        (true, configuration("ip:10.8.0.1", "ip:10.8.0.2"), "video"),
    ] {
        let parts = one_at_a_time(|| share(true, has_extension, &configuration)).parts;
        assert!(parts[lands_in] >= 0.98, "{parts:?}");
    }
}
