//! What an attacker in the internet can do to the default control, with real TCP.
//!
//! Each test compares the download rate under attack with the rate of the same download before it,
//! and prints both.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

mod common;
use common::far::{Far, Lie};
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

/// Two honest downloads beside one whose server begins to lie.
fn a_liar_takes_nothing(name: &str, lie: Lie) {
    if !privileged() {
        return;
    }
    one_at_a_time(|| {
        two_of_three(|| {
            let scene = Scene::begin();
            let other = Far::new(&scene.stage, "other", "10.9.7.3", None);
            let liar = Far::new(&scene.stage, "liar", "10.9.7.5", Some(lie));
            let (second, third) = (other.download(&scene.stage), liar.download(&scene.stage));
            // A drain shows all of them an empty queue.
            thread::sleep(SETTLE * 3);
            let rates = || {
                let downloads = [&scene.download, &second, &third];
                let before = downloads.map(Download::received);
                thread::sleep(MEASURED);
                let per_mbit = 8e-6 / MEASURED.as_secs_f64();
                let rate = |i: usize| (downloads[i].received() - before[i]) as f64 * per_mbit;
                (rate(0) + rate(1), rate(2))
            };
            let (before, of_liar_before) = rates();
            liar.begin_to_lie();
            thread::sleep(SETTLE * 2);
            let (under, of_liar) = rates();
            let kept = under / before;
            println!(
                "{name}: two honest downloads {before:.1} Mbit/s before, {under:.1} beside the lie \
                 ({:.0} %); the liar {of_liar_before:.1}, {of_liar:.1}; capacity {}",
                kept * 100.0,
                scene.daemon.status()["capacity_bps"]
            );
            assert!(kept >= KEPT, "{name}: {kept:.2}; {:#}", scene.daemon.status());
        });
    });
}

#[test]
fn a_server_whose_clock_loses_time_hurts_nobody_else() {
    a_liar_takes_nothing("slow clock", Lie::Slow);
}

#[test]
fn a_server_whose_clock_gains_time_hurts_nobody_else() {
    a_liar_takes_nothing("fast clock", Lie::Fast);
}

#[test]
fn a_server_whose_clock_halts_hurts_nobody_else() {
    a_liar_takes_nothing("halting clock", Lie::Halting);
}

#[test]
fn a_flood_of_syns_takes_nothing() {
    if !privileged() {
        return;
    }
    one_at_a_time(|| {
        two_of_three(|| {
            let scene = Scene::begin();
            let listener = scene.stage.at_home(|| TcpListener::bind("10.9.0.2:0").unwrap());
            let to = v4(listener.local_addr().unwrap());
            let before = scene.download.mbit_over(MEASURED);
            let victim = Victim { client: to, ..scene.victim() };
            let forger = scene.stage.at_internet(|| Forger::start(victim, Forgery::Syn, 1_000));
            thread::sleep(SETTLE);
            let under = scene.download.mbit_over(MEASURED);
            report("1000 SYNs/s", before, under, forger.sent(), &scene.daemon);
        });
    });
}

#[test]
fn a_thousand_connections_that_hardly_receive_take_nothing() {
    if !privileged() {
        return;
    }
    one_at_a_time(|| {
        two_of_three(|| {
            let scene = Scene::begin();
            let listener = scene.stage.at_home(|| TcpListener::bind("10.9.0.2:0").unwrap());
            let to = listener.local_addr().unwrap();
            let before = scene.download.mbit_over(MEASURED);
            let mut pairs = Vec::new();
            for _ in 0..CONNECTIONS {
                let far = scene.stage.at_internet(|| TcpStream::connect(to).unwrap());
                pairs.push((far, listener.accept().unwrap().0));
            }
            let stop = AtomicBool::new(false);
            let under = thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        for (far, _) in &pairs {
                            let _ = (&*far).write(&[7]);
                        }
                        thread::sleep(Duration::from_secs(1));
                    }
                });
                thread::sleep(SETTLE);
                let under = scene.download.mbit_over(MEASURED);
                stop.store(true, Ordering::Relaxed);
                under
            });
            report("1000 connections", before, under, CONNECTIONS as u64, &scene.daemon);
        });
    });
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

const CONNECTIONS: usize = 1_000;
