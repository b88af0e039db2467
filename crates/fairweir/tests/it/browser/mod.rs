//! Two sites that load from the same servers, in real Chromium and Firefox.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fairweir_testing::{note, one_at_a_time, privileged, two_of_three};
use nix::sys::signal::Signal;
use serde_json::Value;

mod beside;
use crate::common::browser::{Browser, are_installed, extension, listening_only, made};
use crate::common::far::Far;
use crate::common::oracle::{Capture, Judged, judge};
use crate::common::page::Kind;
use crate::common::played;
use crate::common::sites::{ADDRESSES, Http, PORT_AGAIN, Page, Request, SITES, Servers};
use crate::common::stage::{Daemon, SERVERS, Stage};

/// Time until both pages load and the control has found the shares.
const SETTLE: Duration = Duration::from_secs(12);
const MEASURED: Duration = Duration::from_secs(15);
/// Time until the link has its self-assigned address, whose arrival aborts a browser's requests.
const LINK_SETTLES: Duration = Duration::from_secs(3);
/// A page that reports nothing for this time is opened again, and given up after several attempts.
const OPENED_AGAIN: Duration = Duration::from_secs(15);
const GIVEN_UP: Duration = Duration::from_secs(50);
/// Time until connections that existed before are decided.
const SOON: Duration = Duration::from_secs(5);
/// Time until the extension has found the next daemon, and a page with three requests per second has reported one.
const FOUND: Duration = Duration::from_secs(25);

fn configuration(control: &str, video: &str, bulk: &str) -> String {
    format!(
        "version = 1\n[host]\ncontrol = \"{control}\"\ncapacity = \"36mbit\"\n\
         [[group]]\nname = \"video\"\nweight = 4\nmatch = [\"{video}\"]\n\
         [[group]]\nname = \"bulk\"\nweight = 1\nmatch = [\"{bulk}\"]\n"
    )
}

/// The shares of two sites over the same time.
struct Shared {
    /// Bytes of the first site divided by bytes of the second, as counted by their pages.
    ratio: f64,
    /// The fraction of all bytes that each flow group received, by name, as counted by the daemon.
    parts: BTreeMap<String, f64>,
}

/// A server at all addresses of the CDN, at this distance in each direction.
fn far(stage: &Stage, delay: Duration) -> Far {
    let server = Far::with_delay(stage, "far", ADDRESSES[0], None, delay);
    ADDRESSES[1..].iter().for_each(|address| server.add_address(stage, "far", address));
    server
}

/// Waits until everything that was opened has loaded; a page that did not load is opened again.
fn wait_for(stage: &Stage, browser: &Browser, has_loaded: impl Fn(&str) -> bool) {
    let begun = Instant::now();
    let mut opened_at = begun;
    loop {
        let silent: Vec<_> = SITES.iter().filter(|site| !has_loaded(site)).collect();
        if silent.is_empty() {
            return;
        }
        assert!(begun.elapsed() < GIVEN_UP, "pages load nothing: {silent:?}");
        if opened_at.elapsed() > OPENED_AGAIN {
            opened_at = Instant::now();
            silent.iter().for_each(|site| browser.open(stage, site));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn share(kind: Kind, http: Http, has_extension: bool, configuration: &str) -> Shared {
    let stage = Stage::new();
    stage.configure(configuration);
    let daemon: Daemon =
        stage.start_as(&["env", "RUST_LOG=tick=trace,fairweir::host::sites=debug"], &[]);
    // Not a short RTT: with only 3 ms to send the next packet, a server sometimes gets less than its share.
    let server = far(&stage, Duration::from_millis(10));
    let servers = Servers::start(&stage, &server, http);
    let browser = Browser::start(kind, &stage, &servers, has_extension);
    let has_sites = configuration.contains("web:");
    browser.open_sites(&stage, Some(&daemon).filter(|_| has_extension && has_sites));
    wait_for(&stage, &browser, |site| servers.reported().get(site).is_some_and(|n| *n > 0));
    thread::sleep(SETTLE);
    let (before, groups_before) = (servers.reported(), received(&daemon.status()));
    thread::sleep(MEASURED);
    let (after, groups_after) = (servers.reported(), received(&daemon.status()));
    let [video, bulk] = SITES.map(|site| (after[site] - before[site]) as f64);
    let status = daemon.status();
    let mbit = (video + bulk) * 8e-6 / MEASURED.as_secs_f64();
    let ratio = video / bulk;
    note(&format!(
        "{kind:?}, HTTP/{http:?}, extension {has_extension}: {ratio:.2}, {mbit:.1} Mbit/s, {}",
        status["sites"]
    ));
    if has_extension {
        leaves_nothing(&stage, kind);
    }
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

/// Checks the output of `fairweir extension` while the browser uses the program, and after `uninstall`.
fn leaves_nothing(stage: &Stage, kind: Kind) {
    let installed = || {
        let said = extension(stage, "status", kind).stdout;
        String::from_utf8(said).unwrap().matches("installed, starts").count()
    };
    let before = installed();
    extension(stage, "uninstall", kind);
    assert_eq!((before, installed()), (1, 0));
}

fn sites_share_by_weight(kind: Kind, http: Http) {
    if !privileged() || !are_installed() {
        return;
    }
    let configuration = configuration("fairweir", "web:video.example.com", "web:bulk.example.net");
    // QUIC traffic shows no delays, and a stage has private addresses, at which no other hosts are looked for.
    let probed = format!("capacity = \"36mbit\"\nprobe = \"{}\"", SERVERS[0]);
    let configuration = match http {
        Http::Three => configuration.replace("capacity = \"36mbit\"", &probed),
        Http::One | Http::Two => configuration,
    };
    let judged = || {
        let Shared { ratio, parts } = share(kind, http, true, &configuration);
        let share = ratio / (1.0 + ratio);
        assert!((share - 0.8).abs() <= 0.03, "{ratio:.2}, {parts:.3?}");
    };
    one_at_a_time(|| two_of_three(judged));
}

/// The same scenario as in the simulator: both pages open at once. Bytes are counted as they leave the link.
#[test]
fn sites_of_a_scenario_share_by_weight_in_chromium_over_http_2() {
    if !privileged() || !are_installed() {
        return;
    }
    made();
    let file = played::file("sites-4-1");
    let args = ["lab", "run", &file, "--set", "duration=22s", "--set", "settle=9s"];
    let judged = || {
        let report = played::report(&args);
        let groups = &report["summary"]["groups"];
        let rate = |i: usize| groups[i]["rate_bps"].as_f64().unwrap();
        let (share, all) = (rate(0) / (rate(0) + rate(1)), rate(0) + rate(1) + rate(2));
        note(&format!("{share:.3} of {:.1} Mbit/s", all * 1e-6));
        assert!((share - 0.8).abs() <= 0.03 && rate(2) <= 0.02 * all && all >= 17e6, "{groups}");
    };
    one_at_a_time(|| two_of_three(judged));
}

#[test]
fn sites_that_load_from_one_server_share_by_weight_in_firefox_over_http_2() {
    sites_share_by_weight(Kind::Firefox, Http::Two);
}

/// `cargo test -p fairweir --features evidence --test it every_browser -- --ignored --nocapture --test-threads 1`
mod every_browser_shares_by_weight {
    use super::{Http, Kind, sites_share_by_weight};

    macro_rules! over {
        ($($name:ident: $kind:ident, $http:ident;)*) => {
            $(#[test]
            #[ignore = "long: half a minute each"]
            fn $name() {
                sites_share_by_weight(Kind::$kind, Http::$http);
            })*
        };
    }

    over! {
        chromium_over_http_1: Chromium, One;
        chromium_over_http_2: Chromium, Two;
        chromium_over_http_3: Chromium, Three;
        firefox_over_http_1: Firefox, One;
        firefox_over_http_3: Firefox, Three;
    }
}

/// Both sites' objects come from the same hosts and addresses, so both are put into one group; how they share it
/// is left to TCP.
#[test]
fn neither_names_on_the_wire_nor_addresses_tell_such_sites_apart() {
    if !privileged() || !are_installed() {
        return;
    }
    for (has_extension, configuration, lands_in) in [
        (
            false,
            configuration("fairweir", "web:video.example.com", "web:bulk.example.net"),
            "default",
        ),
        (true, configuration("fairweir", "ip:10.8.0.0/24", "ip:10.9.0.1"), "video"),
    ] {
        let played = || share(Kind::Chromium, Http::Two, has_extension, &configuration);
        let parts = one_at_a_time(played).parts;
        assert!(parts[lands_in] >= 0.98, "{parts:?}");
    }
}

/// How well connections are attributed for two sites that repeatedly load pages with images for some 20 s.
/// A seed gives the same pages in each browser.
fn decisions(kind: Kind, http: Http, one_way: Duration, seed: u64) -> Judged {
    let stage = Stage::new();
    stage.configure(&configuration("fairweir", "web:video.example.com", "web:bulk.example.net"));
    let daemon = stage.start_as(&["env", "RUST_LOG=fairweir::host::sites=debug"], &[]);
    let server = far(&stage, one_way);
    let capture = Capture::start(&stage);
    let page = |seed| Page::Images { seed, pause_ms: 300 };
    let servers = Servers::with_pages(&stage, &server, http, [page(2 * seed), page(2 * seed + 1)]);
    let browser = Browser::start(kind, &stage, &servers, true);
    browser.open_sites(&stage, Some(&daemon));
    wait_for(&stage, &browser, |site| !servers.loads_ms(site).is_empty());
    thread::sleep(Duration::from_secs(16));
    drop(browser);
    judge(&stage, &servers, capture, one_way)
}

/// Plays a row of the table; returns the sum over all its plays.
fn row(kind: Kind, http: Http, rtt_ms: u64, seeds: std::ops::Range<u64>) -> Judged {
    let one_way = Duration::from_millis(rtt_ms) / 2;
    let mut all = Judged::default();
    let (mut least, mut most_wrong, plays) = (1.0_f64, 0.0_f64, seeds.end - seeds.start);
    for seed in seeds {
        let judged = one_at_a_time(|| decisions(kind, http, one_way, seed));
        let (right, wrong) = judged.parts();
        (least, most_wrong) = (least.min(right), most_wrong.max(wrong));
        note(&format!(
            "seed {seed}: right {right:.4}, wrong {wrong:.4}, of {} connections, median {:.0} ms, unknown {} B",
            judged.delays_s.len(),
            judged.delay_median_ms(),
            judged.unknown
        ));
        all.add(&judged);
    }
    let (right, wrong) = all.parts();
    note(&format!(
        "| {kind:?}, HTTP/{http:?} | {rtt_ms} ms | {plays} | {} | {:.2} % | {:.2} % | {:.3} % | {:.3} % | {:.0} ms |",
        all.delays_s.len(),
        100.0 * right,
        100.0 * least,
        100.0 * wrong,
        100.0 * most_wrong,
        all.delay_median_ms(),
    ));
    all
}

/// Plays the rows of the table, and checks at the end whether all of them meet the requirements.
fn table(plays: &[(Kind, Http, u64)]) {
    if !privileged() || !are_installed() {
        return;
    }
    let mut missed = Vec::new();
    for &(kind, http, seeds) in plays {
        for rtt_ms in [10, 40, 100] {
            let judged = row(kind, http, rtt_ms, 1..seeds + 1);
            let ((right, wrong), delay_ms) = (judged.parts(), judged.delay_median_ms());
            if right < 0.98 || wrong > 0.005 || delay_ms > 400.0 {
                missed.push(format!(
                    "{kind:?} {http:?} {rtt_ms} ms: {right:.4} {wrong:.4} {delay_ms:.0}"
                ));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// `cargo test -p fairweir --features evidence --test it connections_are_decided -- --ignored --nocapture`
#[test]
#[ignore = "long: 15 min"]
fn connections_are_decided_soon_and_right_in_chromium_over_http_2() {
    table(&[(Kind::Chromium, Http::Two, 10)]);
}

#[test]
#[ignore = "long: 11 min"]
fn connections_are_decided_soon_and_right_otherwise() {
    table(&[
        (Kind::Chromium, Http::One, 4),
        (Kind::Chromium, Http::Three, 1),
        (Kind::Firefox, Http::Two, 1),
        (Kind::Firefox, Http::Three, 1),
    ]);
}

/// A browser aborts everything that it loads when an address is added or removed.
#[test]
fn a_daemon_that_starts_and_ends_breaks_off_nothing_that_a_browser_loads() {
    if !privileged() || !are_installed() {
        return;
    }
    let stage = Stage::new();
    stage.configure(&configuration("fairweir", "web:video.example.com", "web:bulk.example.net"));
    let server = far(&stage, Duration::from_millis(10));
    let servers = Servers::start(&stage, &server, Http::Two);
    std::fs::create_dir(stage.run_dir()).unwrap();
    thread::sleep(LINK_SETTLES);
    let browser = Browser::start(Kind::Chromium, &stage, &servers, false);
    browser.open_sites(&stage, None);
    wait_for(&stage, &browser, |site| servers.reported().contains_key(site));
    thread::sleep(Duration::from_secs(1));
    let begun_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let daemon = stage.start(&[]);
    daemon.wait_for("enforcing", Duration::from_secs(10), |status| status["enforcing"] == true);
    thread::sleep(Duration::from_secs(3));
    daemon.signal(Signal::SIGTERM);
    daemon.end();
    thread::sleep(Duration::from_secs(2));
    let (old, new): (Vec<_>, Vec<_>) =
        servers.requests().into_iter().partition(|request| request.at_s < begun_s);
    let ports = |requests: &[Request]| requests.iter().map(|r| r.port).collect::<BTreeSet<_>>();
    let (old, new) = (ports(&old), ports(&new));
    assert!(new.is_subset(&old), "new connections: {new:?} after {old:?}");
}

/// The setup that loads pages when the cost of the extension is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    /// Chromium without an extension.
    Alone,
    /// With an extension that only listens for page events.
    HearingPages,
    /// As above, also for responses.
    HearingResponses,
    /// As above, also for outgoing requests.
    HearingAll,
    /// With fairweir's extension.
    Whole,
}

/// CPU use, in parts of a core, of the browser's first process, the extension's process and its program at 100
/// pages a minute, and of the daemon.
fn costs(loaded: Loaded) -> [f64; 4] {
    let stage = Stage::with_link(200.0);
    stage.configure(&configuration("fairweir", "web:video.example.com", "web:bulk.example.net"));
    let daemon = stage.start(&[]);
    let server = far(&stage, Duration::from_millis(5));
    let pages = [1, 2].map(|seed| Page::Images { seed, pause_ms: 600 });
    let servers = Servers::with_pages(&stage, &server, Http::Two, pages);
    let extension = match loaded {
        Loaded::Alone => None,
        Loaded::HearingPages => Some(listening_only(&stage, &[])),
        Loaded::HearingResponses => Some(listening_only(&stage, &["onResponseStarted"])),
        Loaded::HearingAll => Some(listening_only(&stage, &["onResponseStarted", "onSendHeaders"])),
        Loaded::Whole => Some(made()),
    };
    let browser = Browser::start_with(Kind::Chromium, &stage, &servers, extension);
    browser.open_sites(&stage, Some(&daemon).filter(|_| loaded == Loaded::Whole));
    wait_for(&stage, &browser, |site| !servers.loads_ms(site).is_empty());
    let loads = || SITES.iter().map(|site| servers.loads_ms(site).len()).sum::<usize>();
    let (begun, loads_before) = (Instant::now(), loads());
    let used = || {
        let [first, process, program] = browser.cpu_times();
        [first, process, program, daemon.cpu_time()]
    };
    let before = used();
    thread::sleep(Duration::from_secs(40));
    let (after, loaded_pages) = (used(), (loads() - loads_before) as f64);
    let per_minute = loaded_pages * 60.0 / begun.elapsed().as_secs_f64();
    let of_100 = [0, 1, 2, 3].map(|i| {
        let of_core = (after[i] - before[i]).as_secs_f64() / begun.elapsed().as_secs_f64();
        of_core * 100.0 / per_minute
    });
    let [first, process, program, daemon] = of_100;
    note(&format!(
        "| {loaded:?} | {per_minute:.0} | {first:.4} | {process:.4} | {program:.4} | {daemon:.4} |"
    ));
    of_100
}

/// `cargo test -p fairweir --features evidence --test it the_extension_costs -- --ignored --nocapture`
#[test]
#[ignore = "long: 5 min"]
fn the_extension_costs_a_hundredth_of_a_core_at_100_pages_a_minute() {
    if !privileged() || !are_installed() {
        return;
    }
    note("| Chromium | pages a minute | its first process | extension | program | daemon |");
    let played = |loaded| one_at_a_time(|| costs(loaded));
    [Loaded::Alone, Loaded::HearingPages, Loaded::HearingResponses].into_iter().for_each(
        |loaded| {
            played(loaded);
        },
    );
    let [listening, whole] = [Loaded::HearingAll, Loaded::Whole].map(played);
    assert!(listening[1] > 0.0 && whole[1] > 0.0 && whole[2] > 0.0, "processes were found");
    let extension = whole[1] + whole[2];
    assert!(extension <= 0.01, "{extension:.4}, of which Chromium itself {:.4}", listening[1]);
}

/// The browser keeps its connections during a restart of the daemon, and the new daemon knows them.
///
/// `cargo test -p fairweir --features evidence --test it browser::extension_and_daemon_outlive -- --ignored --nocapture`
#[test]
#[ignore = "long: 2 min"]
fn extension_and_daemon_outlive_each_other() {
    if !privileged() || !are_installed() {
        return;
    }
    for kind in [Kind::Chromium, Kind::Firefox] {
        one_at_a_time(|| {
            let stage = Stage::new();
            stage.configure(&configuration(
                "fairweir",
                "web:video.example.com",
                "web:bulk.example.net",
            ));
            let server = far(&stage, Duration::from_millis(10));
            let page = |seed| Page::Images { seed, pause_ms: 300 };
            let servers = Servers::with_pages(&stage, &server, Http::Two, [page(1), page(2)]);
            let decides = |daemon: &Daemon, more_than: u64| {
                daemon.wait_for("the extension", GIVEN_UP, |status| {
                    status["sites"]["claims"]["users"] == 1
                });
                daemon.wait_for("claims that count", FOUND, |status| {
                    status["sites"]["claims"]["counted"].as_u64() > Some(more_than)
                });
                daemon.status()["sites"]["claims"]["counted"].as_u64().unwrap()
            };
            // A spare connection of the browser, on which no request was sent, stays in the default group.
            let wait_until_all_decided = |daemon: &Daemon, what: &str, patience: Duration| {
                let deadline = Instant::now() + patience;
                let both = |status: &Value| {
                    let connections =
                        |group: usize| status["groups"][group]["connections"].as_u64();
                    connections(0) > Some(0) && connections(1) > Some(0)
                };
                daemon.wait_for(what, patience, both);
                let default = || received(&daemon.status())["default"];
                let mut before = default();
                loop {
                    thread::sleep(Duration::from_secs(2));
                    let now = default();
                    if now == before {
                        return;
                    }
                    assert!(Instant::now() < deadline, "{what}: {} bytes in 2 s", now - before);
                    before = now;
                }
            };
            let mut daemon = stage.start(&[]);
            let browser = Browser::start(kind, &stage, &servers, true);
            browser.open_sites(&stage, Some(&daemon));
            for _ in 0..2 {
                decides(&daemon, 0);
                // No connection is opened while no daemon would notice it.
                thread::sleep(SOON);
                wait_until_all_decided(&daemon, "all connections decided", FOUND);
                daemon.signal(Signal::SIGTERM);
                daemon.end();
                daemon = stage.start(&[]);
                wait_until_all_decided(&daemon, "the same connections", SOON);
            }
            thread::sleep(FOUND);
            wait_until_all_decided(&daemon, "the same connections, by new claims", SOON);
            let counted = decides(&daemon, 0);
            drop(browser);
            let browser = Browser::start(kind, &stage, &servers, true);
            SITES.iter().for_each(|site| browser.open(&stage, site));
            note(&format!(
                "{kind:?}: {counted} claims counted, then {}",
                decides(&daemon, counted)
            ));
            drop(browser);
            leaves_nothing(&stage, kind);
        });
    }
}
