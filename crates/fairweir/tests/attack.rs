//! What an attacker in the internet can do to the default control, with real TCP.
//!
//! Each test compares the download rate under attack with the rate of the same download before it,
//! and prints both.
#![allow(clippy::unwrap_used)]

use std::net::{SocketAddr, SocketAddrV4};
use std::thread;
use std::time::Duration;

mod common;
use common::far::Far;
use common::forger::{Forger, Forgery, Victim};
use common::stage::{Daemon, Download, Stage, privileged};
use common::{one_at_a_time, two_of_three};

const MBIT: f64 = 30.0;
/// Until the control has learned the capacity, and until an attack has shown its effect.
const SETTLE: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(8);
/// The least rate under attack, as a part of the rate without.
const KEPT: f64 = 0.95;

/// A home with the default control, which has learned the capacity from a download.
struct Scene {
    download: Download,
    daemon: Daemon,
    server: Far,
    stage: Stage,
}

impl Scene {
    fn begin() -> Scene {
        let stage = Stage::with_link(MBIT);
        let server = Far::new(&stage, "far", "10.9.7.1", None);
        stage.configure("version = 1\n[host]\n");
        let daemon = stage.start(&[]);
        let download = server.download(&stage);
        daemon.wait_for("of a known capacity", Duration::from_secs(20), |s| {
            s["capacity_bps"].as_u64().is_some_and(|c| c > 0)
        });
        thread::sleep(SETTLE);
        Scene { download, daemon, server, stage }
    }

    fn victim(&self) -> Victim {
        Victim { server: v4(self.server.address()), client: v4(self.download.local_address()) }
    }

    /// Starts to forge segments of the download.
    fn forge(&self, forgery: Forgery, per_second: u32) -> Forger {
        let victim = self.victim();
        self.stage.at_internet(|| Forger::start(victim, forgery, per_second))
    }
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(v4) => v4,
        SocketAddr::V6(_) => panic!("an IPv4 connection"),
    }
}

/// Plays an attack against one download and compares its rate with the one before.
fn keeps_its_rate(name: &str, forgery: Forgery, per_second: u32) {
    if !privileged() {
        return;
    }
    one_at_a_time(|| {
        two_of_three(|| {
            let scene = Scene::begin();
            let before = scene.download.mbit_over(MEASURED);
            let forger = scene.forge(forgery, per_second);
            thread::sleep(SETTLE);
            let under = scene.download.mbit_over(MEASURED);
            report(name, before, under, forger.sent(), &scene.daemon);
        });
    });
}

#[test]
fn four_blind_segments_a_second_take_nothing() {
    keeps_its_rate("4 blind segments/s", Forgery::Blind, 4);
}

#[test]
fn a_thousand_blind_segments_a_second_take_nothing() {
    keeps_its_rate("1000 blind segments/s", Forgery::Blind, 1_000);
}

#[test]
fn segments_in_the_window_with_new_stamps_take_nothing() {
    keeps_its_rate("in window, new stamps", Forgery::NextWithNewStamp, 100);
}

#[test]
fn segments_in_the_window_with_late_stamps_take_nothing() {
    keeps_its_rate("in window, late stamps", Forgery::NextWithLateStamp, 100);
}

#[test]
fn segments_in_the_window_with_early_stamps_take_nothing() {
    keeps_its_rate("in window, early stamps", Forgery::NextWithEarlyStamp, 100);
}

fn report(name: &str, before: f64, under: f64, sent: u64, daemon: &Daemon) {
    let (kept, status) = (under / before, daemon.status());
    println!(
        "{name}: {before:.1} Mbit/s before, {under:.1} under {sent} of them ({:.0} %); capacity {}",
        kept * 100.0,
        status["capacity_bps"]
    );
    assert!(sent > 0 && kept >= KEPT, "{name}: {kept:.2}; {status:#}");
}
