//! The page in real Chromium and Firefox: hosts, routers, an ISP, 24 groups, and no daemon.

use std::fmt::Write as _;
use std::fs;
use std::thread;
use std::time::Duration;

use fairweir_testing::{note, one_at_a_time, privileged};

use super::{SECONDS_3, Scene};
use crate::common::home::{devices, has_nat};
use crate::common::page::{GROUP, Kind, Page, keeps_pictures, picture, start_isp};
use crate::common::stage::{Download, SERVERS, Stage};

/// Two groups behind half of the link's capacity, so that a weight shows in the rates; the group `default`,
/// without any traffic, also has its fixed share.
fn two_groups(backup: &str) -> String {
    format!(
        "version = 1\n[host]\ncontrol = \"static\"\ncapacity = \"20mbit\"\n\
         [[group]]\nname = \"video\"\nweight = 1\nmatch = [\"ip:{}\"]\n\
         [[group]]\nname = \"{backup}\"\nweight = 1\nmatch = [\"ip:{}\"]\n",
        SERVERS[0], SERVERS[1]
    )
}

fn a_slider_moves_the_shares(kind: Kind) {
    if !privileged() || !kind.is_installed() {
        return;
    }
    one_at_a_time(|| {
        let mut scene = Scene::of(Stage::new(), &two_groups("bulk"), &[]);
        let (video, bulk) = (scene.stage.download(SERVERS[0]), scene.stage.download(SERVERS[1]));
        video.wait_for_rate(5.5..7.2, Duration::from_secs(5));
        let picture = picture(kind, &scene.stage, "page.png");
        let args = [scene.page.link(), picture.display().to_string()];
        let args = args.each_ref().map(String::as_str);
        let stage = scene.stage;
        kind.play(&stage, "page.mjs", &args, |line| match line {
            "weight 4" => {
                // Within 3 s of the click: this includes the daemon, the file and real TCP.
                scene.daemon.wait_for("weight 4", SECONDS_3, |s| s["groups"][0]["weight"] == 4);
                assert!(stage.set_file().unwrap().contains("video = 4"));
                video.wait_for_rate(11.5..13.7, SECONDS_3);
            }
            // The chart shows the rates under both weights.
            "watch" => {
                thread::sleep(Duration::from_secs(if keeps_pictures() { 40 } else { 2 }));
                bulk.wait_for_rate(2.4..4.0, SECONDS_3);
            }
            "undone" => {
                assert_eq!(scene.daemon.status()["groups"][0]["weight"], 1);
                assert_eq!(stage.set_file(), None);
                video.wait_for_rate(5.5..7.2, SECONDS_3);
            }
            "paused" => {
                assert!(stage.set_file().unwrap().contains("paused = true"));
                assert_eq!(scene.daemon.status()["enforcing"], false);
            }
            "resumed" => {
                assert_eq!(stage.set_file(), None);
                scene.daemon.wait_for("enforcing", SECONDS_3, |s| s["enforcing"] == true);
            }
            "another group" => stage.configure(&two_groups("backup")),
            "stop" => assert!(stage.fairweir("off").status.success()),
            "start" => scene.daemon = stage.start(&["--admin-group", GROUP]),
            "weight 6" => assert_eq!(scene.daemon.status()["groups"][0]["weight"], 6),
            other => note(&format!("{kind:?}: {other}")),
        });
        assert!(fs::metadata(picture).unwrap().len() > 10_000);
    });
}

#[test]
fn a_slider_moved_in_chromium_moves_the_shares_and_undo_returns_them() {
    a_slider_moves_the_shares(Kind::Chromium);
}

/// `cargo test -p fairweir --features evidence --test it page::browsers::a_slider_moved_in_firefox page::browsers::every_view_works_in_firefox -- --include-ignored`
#[test]
#[ignore = "long: plays in Firefox what Chromium plays in `make test`"]
fn a_slider_moved_in_firefox_moves_the_shares_and_undo_returns_them() {
    a_slider_moves_the_shares(Kind::Firefox);
}

const ROUTER: &str = "version = 1\n[router]\nlan = \"br-lan\"\nwan = \"wan\"\ncapacity = \"28mbit\"\nupload = true\n";

/// The household is one subscriber, beside others without traffic.
fn isp(subscribers: usize) -> String {
    let mut file = "version = 1\n[isp]\ndevice = \"isp\"\nwhen_gone = \"open\"\n\
         [[plan]]\nname = \"home-20\"\ndownload = \"20mbit\"\n\
         [[plan]]\nname = \"home-50\"\ndownload = \"50mbit\"\nupload = \"10mbit\"\nqueues = 8\n\
         [[segment]]\nname = \"pon-3\"\ndownload = \"100mbit\"\nguarantee_download = \"2mbit\"\n\
         members = [\"household\", \"customer-*\"]\n\
         [[subscriber]]\nname = \"household\"\nplan = \"home-20\"\naddresses = [\"10.9.0.2\"]\n"
        .to_owned();
    for i in 1..subscribers {
        let _ = write!(
            file,
            "[[subscriber]]\nname = \"customer-{i}\"\nplan = \"home-50\"\naddresses = [\"192.0.2.{i}\"]\n"
        );
    }
    file
}

fn groups_24() -> String {
    let group = |i| {
        format!("[[group]]\nname = \"group-{i}\"\nweight = 1\nmatch = [\"ip:203.0.113.{i}\"]\n")
    };
    let groups: String = (1..25).map(group).collect();
    format!("version = 1\n[host]\ncontrol = \"fairweir\"\ncapacity = \"20mbit\"\n{groups}")
}

/// No daemon, then a router and an ISP, then 24 groups, and a restart of the page.
fn every_view(kind: Kind) {
    if !privileged() || !has_nat() || !kind.is_installed() {
        return;
    }
    let stage = Stage::with_link(28.0);
    let devices = devices(&stage, ["tv", "desk", "phone"]);
    let mut configuration = ROUTER.to_owned();
    for (device, weight) in devices.iter().zip([4, 2, 1]) {
        let (name, mac) = (device.name, &device.mac);
        let _ = write!(
            configuration,
            "[[device]]\nname = \"{name}\"\nweight = {weight}\nmatch = [\"mac:{mac}\"]\n"
        );
    }
    let mut page = Some(Page::start(&stage, "0", &[]));
    let pictures = ["page-router.png", "page-isp.png"].map(|name| picture(kind, &stage, name));
    let [router_png, isp_png] = pictures.each_ref().map(|path| path.display().to_string());
    let link = page.as_ref().unwrap().link();
    let (mut daemons, mut downloads): (Vec<_>, Vec<Download>) = Default::default();
    kind.play(&stage, "views.mjs", &[&link, &router_png, &isp_png], |line| match line {
        "router" => {
            stage.configure(&configuration);
            daemons.push(stage.start_router(&["--admin-group", GROUP]));
            let server = format!("{}:{}", SERVERS[0], stage.port()).parse().unwrap();
            downloads.extend(devices.iter().map(|device| device.download(server)));
        }
        "isp" => daemons.push(start_isp(&stage, &isp(9), true, 9)),
        "watch" if keeps_pictures() => thread::sleep(Duration::from_secs(45)),
        "watch" => {}
        "weight 6" => {
            let is_6 = |s: &serde_json::Value| s["groups"][2]["weight"] == 6;
            daemons[0].wait_for("weight 6", SECONDS_3, is_6);
            assert!(
                fs::read_to_string(stage.path("router.d/zz-set.toml"))
                    .unwrap()
                    .contains("phone = 6")
            );
        }
        "24 groups" => {
            downloads.clear();
            daemons.clear();
            assert!(stage.fairweir("off").status.success());
            stage.configure(&groups_24());
            daemons.push(stage.start(&["--admin-group", GROUP]));
        }
        "restart" => {
            let port = page.as_ref().unwrap().port().to_owned();
            drop(page.take());
            page = Some(Page::start(&stage, &port, &[]));
        }
        "link" => fs::write(stage.path("link"), page.as_ref().unwrap().link()).unwrap(),
        other => note(&format!("{kind:?}: {other}")),
    });
    for picture in pictures {
        assert!(fs::metadata(picture).unwrap().len() > 10_000);
    }
}

#[test]
fn every_view_works_in_chromium() {
    every_view(Kind::Chromium);
}

#[test]
fn every_view_works_in_firefox() {
    every_view(Kind::Firefox);
}

/// `cargo test -p fairweir --features evidence --test it a_million -- --ignored --nocapture`
#[test]
#[ignore = "long: a table of a million subscribers"]
fn a_million_subscribers_are_searched_in_a_browser_within_200_ms() {
    if !privileged() || !Kind::Chromium.is_installed() {
        return;
    }
    let stage = Stage::new();
    let mut table = "name,addresses,plan\n".to_owned();
    for i in 0..1_000_000_u32 {
        let [_, b, c, d] = i.to_be_bytes();
        let _ = writeln!(
            table,
            "customer-{i},11.{b}.{c}.{d} 2001:db8:{:x}:{:x}::/64,home",
            i >> 16,
            i & 0xffff
        );
    }
    fs::write(stage.path("table.csv"), table).unwrap();
    let file = "version = 1\nsubscribers = \"table.csv\"\n[isp]\ndevice = \"isp\"\nwhen_gone = \"open\"\n\
                [[plan]]\nname = \"home\"\ndownload = \"50mbit\"\n";
    let _isp = start_isp(&stage, file, true, 1_000_000);
    let page = Page::start(&stage, "0", &[]);
    for kind in [Kind::Chromium, Kind::Firefox] {
        if kind.is_installed() {
            kind.play(&stage, "search.mjs", &[&page.link()], |line| {
                note(&format!("{kind:?}: {line}"))
            });
        }
    }
}

/// `cargo test -p fairweir --features evidence --test it what_a_page_costs -- --ignored --nocapture`;
/// FAIRWEIR_BINARY names the binary whose page is measured; the default is that of the test.
#[test]
#[ignore = "long: 2 min; prints what the page costs"]
fn what_a_page_costs_with_its_recorder_and_one_browser() {
    if !privileged() || !Kind::Chromium.is_installed() {
        return;
    }
    let scene = Scene::of(Stage::new(), &groups_24(), &[]);
    let _downloads = SERVERS.map(|server| scene.stage.download(server));
    let measure = |what: &str| {
        let before = [scene.page.cpu_time(), scene.daemon.cpu_time()];
        thread::sleep(MEASURED);
        let after = [scene.page.cpu_time(), scene.daemon.cpu_time()];
        let parts = [0, 1].map(|i| (after[i] - before[i]).as_secs_f64() / MEASURED.as_secs_f64());
        let memory = scene.page.memory_bytes() as f64 / 1e6;
        let [page, daemon] = parts.map(|part| 100.0 * part);
        note(&format!("{what}: page {page:.2} % of a core, {memory:.1} MB; daemon {daemon:.2} %"));
        (page, memory)
    };
    measure("recorder alone");
    let mut with_browser = None;
    Kind::Chromium.play(&scene.stage, "stay.mjs", &[&scene.page.link()], |line| match line {
        "open" => with_browser = Some(measure("recorder and one browser")),
        other => note(other),
    });
    let (page, memory) = with_browser.unwrap();
    assert!(page <= 0.5 && memory <= 30.0, "{page} %, {memory} MB");
}

const MEASURED: Duration = Duration::from_secs(60);
