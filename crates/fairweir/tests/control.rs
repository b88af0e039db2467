//! What docs/control.md, "Measured in the lab", says of the default control with real TCP. All of it takes
//! longer than `make test` can spare:
//! `cargo test -p fairweir --features evidence --test control -- --ignored --nocapture --test-threads 1`
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_lab::browser::site;
use fairweir_scenario::{CongestionControl, Http};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

mod common;
use common::far::Far;
use common::stage::{LINK_MBIT, Stage, privileged};
use common::{fairweir, note};

/// Plays a scenario in the lab with the default control.
fn play(scenario: &str, set: &[String]) -> Value {
    let file = format!("../../scenarios/{scenario}.toml");
    let mut args = vec!["lab", "run", &file, "--control", "fairweir", "--json", "--series"];
    for change in set {
        args.extend(["--set", change]);
    }
    let output = fairweir(&args);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    if report["valid"] == false {
        note(&format!("LATE: {scenario} {set:?}: {}", report["lateness"]));
    }
    report
}

/// A number of the summary.
fn summary(report: &Value, name: &str) -> f64 {
    report["summary"][name].as_f64().unwrap()
}

/// What arrived in each slot of the series, Mbit/s, with the slot's begin in seconds.
fn totals(report: &Value) -> Vec<(f64, f64)> {
    let mut totals: Vec<(f64, f64)> = Vec::new();
    for point in report["series"].as_array().unwrap() {
        let (at, mbit) =
            (point["t_s"].as_f64().unwrap(), point["rate_bps"].as_f64().unwrap() * 1e-6);
        match totals.last_mut() {
            Some((begin, sum)) if *begin == at => *sum += mbit,
            _ => totals.push((at, mbit)),
        }
    }
    totals
}

/// The least mean over any span of `seconds` from `from_s` on, Mbit/s.
fn least(totals: &[(f64, f64)], from_s: f64, seconds: f64) -> f64 {
    let step = totals[1].0 - totals[0].0;
    let slots = (seconds / step).round() as usize;
    let rates: Vec<f64> = totals.iter().filter(|t| t.0 >= from_s).map(|t| t.1).collect();
    // The last slot may be cut short.
    let spans = rates[..rates.len() - 1].windows(slots);
    spans.map(|span| span.iter().sum::<f64>() / slots as f64).fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "18 min"]
fn fifty_cold_starts_lose_nothing() {
    if !privileged() {
        return;
    }
    const MBIT: f64 = 30.0;
    let mut leasts = Vec::new();
    for n in 0..50 {
        let (many, kind) = (1 + n % 9, ["cubic", "reno", "bbr"][n / 9 % 3]);
        let connections = format!("flow.0.connections={many}");
        let set = [connections, format!("flow.0.congestion_control={kind}")];
        let report = play("cold-start", &set);
        // Connections open in the first second.
        let least = least(&totals(&report), 4.0, 3.0) / MBIT;
        note(&format!("{kind}, {many} and 1: at least {least:.3} of the link over 3 s"));
        leasts.push(least);
    }
    leasts.sort_by(f64::total_cmp);
    note(&format!("50 cold starts: worst {:.3}, median {:.3}", leasts[0], leasts[25]));
    assert!(leasts[0] >= 0.8, "{leasts:.3?}");
}

#[test]
#[ignore = "5 min"]
fn neither_timestamps_nor_a_fast_reflector_are_needed() {
    if !privileged() {
        return;
    }
    let off = ["flow.0.timestamps=false", "flow.1.timestamps=false"].map(str::to_owned);
    let slow = "probe.answer_interval=1s".to_owned();
    let mut errors = Vec::new();
    for scenario in ["weights-5-1", "weights-1-5-mixed"] {
        for set in [off.to_vec(), [off.to_vec(), vec![slow.clone()]].concat()] {
            let report = play(scenario, &set);
            let [error, used] = ["allocation_error", "utilization"].map(|n| summary(&report, n));
            note(&format!("{scenario}, {set:?}: error {error:.4}, {:.1} % used", used * 100.0));
            errors.push(error);
        }
    }
    assert!(errors.iter().all(|&error| error <= 0.03), "{errors:.3?}");
}

#[test]
#[ignore = "5 min"]
fn the_demo_is_right_soon() {
    if !privileged() {
        return;
    }
    let mut seconds: Vec<f64> = (0..9)
        .map(|_| {
            let report = play("demo", &[]);
            let events = report["summary"]["right_after_s"].as_array().unwrap();
            let video = events.iter().find(|e| e["event"] == "video starts").unwrap();
            video["seconds"].as_f64().unwrap_or(f64::INFINITY)
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    note(&format!("right after the video starts, s: {seconds:.1?}"));
    assert!(seconds[4] <= 1.6, "{seconds:.1?}");
}

#[test]
#[ignore = "2 min"]
fn applications_have_their_weights() {
    if !privileged() {
        return;
    }
    let mut errors: Vec<f64> =
        (0..3).map(|_| summary(&play("by-app", &[]), "allocation_error")).collect();
    errors.sort_by(f64::total_cmp);
    note(&format!("allocation errors by application: {errors:.4?}"));
    assert!(errors[1] <= 0.006, "{errors:.4?}");
}

#[test]
#[ignore = "31 min"]
fn half_an_hour_has_no_spike_of_its_own() {
    if !privileged() {
        return;
    }
    let report = play("half-hour", &[]);
    let [error, used] = ["allocation_error", "utilization"].map(|n| summary(&report, n));
    let queue = &report["summary"]["isp_queue_ms"];
    note(&format!(
        "error {error:.4}, {:.1} % used, queue {queue}, {}",
        used * 100.0,
        report["lateness"]
    ));
    assert!(error <= 0.03 && used >= 0.95);
}

/// Of the web server, beside which another one has a long download.
const WEB: &str = "10.8.0.1";
const NAME: &str = "web.example.com";
/// One of the sizes that the server has.
const OBJECT: &str = "/object/86497";
const CLIENTS: usize = 8;

/// As `ab -c 8` over HTTPS: eight clients, each of which opens a new connection for each request.
#[test]
#[ignore = "3 min"]
fn short_https_connections_beside_a_download_leave_nothing_unused() {
    if !privileged() {
        return;
    }
    for weights in [[3, 1], [1, 1], [1, 3]] {
        let [without, with] =
            [false, true].map(|controlled| short_beside_bulk(weights, controlled));
        note(&format!("{weights:?}, requests and download: without {without}, with {with}"));
        assert!(with.used >= 0.95, "{weights:?}: {with}");
    }
}

/// What 20 s of it were like.
struct Beside {
    /// Of the link.
    used: f64,
    /// Per second.
    requests: f64,
    /// Of the download.
    bulk_mbit: f64,
}

impl std::fmt::Display for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self.used * 100.0;
        write!(f, "{used:.1} % used, {:.1}/s, {:.1} Mbit/s", self.requests, self.bulk_mbit)
    }
}

fn short_beside_bulk([web_weight, bulk_weight]: [u32; 2], controlled: bool) -> Beside {
    let stage = Stage::new();
    let (web, bulk) =
        (Far::new(&stage, "web", WEB, None), Far::new(&stage, "bulk", "10.8.1.1", None));
    let identity = site::identity(vec![NAME.to_owned()]).unwrap();
    let setup = site::Setup {
        netns: web.netns(),
        dir: &stage.path("nginx"),
        sites: Vec::new(),
        http: Http::One,
        ports: vec![443],
        congestion_control: CongestionControl::Cubic,
    };
    let _servers = site::Servers::start(&setup, &identity).unwrap();
    let daemon = controlled.then(|| {
        stage.configure(&format!(
            "version = 1\n[host]\n[[group]]\nname = \"web\"\nweight = {web_weight}\nmatch = [\"ip:{WEB}\"]\n\
             [[group]]\nname = \"bulk\"\nweight = {bulk_weight}\nmatch = [\"ip:10.8.1.1\"]\n"
        ));
        stage.start(&[])
    });
    let download = bulk.download(&stage);
    let mut roots = RootCertStore::empty();
    roots.add(identity.cert.der().clone()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let (config, ended, answered) =
        (Arc::new(config), Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let beside = thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let (config, ended, answered) = (&config, &ended, &answered);
            let stage = &stage;
            scope.spawn(move || {
                stage.at_home(|| {
                    while !ended.load(Ordering::Relaxed) {
                        fetch(config);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
        thread::sleep(Duration::from_secs(10));
        let count = || (stage.received(), answered.load(Ordering::Relaxed), download.received());
        let (begin, before) = (Instant::now(), count());
        thread::sleep(Duration::from_secs(20));
        let (seconds, after) = (begin.elapsed().as_secs_f64(), count());
        ended.store(true, Ordering::Relaxed);
        let mbit = |after: u64, before: u64| (after - before) as f64 * 8e-6 / seconds;
        Beside {
            used: mbit(after.0, before.0) / LINK_MBIT,
            requests: (after.1 - before.1) as f64 / seconds,
            bulk_mbit: mbit(after.2, before.2),
        }
    });
    drop(daemon);
    beside
}

/// One request on a connection of its own.
fn fetch(config: &Arc<ClientConfig>) {
    let stream = TcpStream::connect((WEB, 443)).unwrap();
    let session = ClientConnection::new(Arc::clone(config), NAME.try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, stream);
    write!(stream, "GET {OBJECT} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..200]));
}
