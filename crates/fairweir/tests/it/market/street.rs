//! A street without a policer: each household's gateway limits itself to what its slot has bought.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use fairweir_linux::{link, netns::Netns};
use fairweir_market::book::Book;
use fairweir_testing::{note, one_at_a_time, privileged, traffic, two_of_three};

use super::Market;
use super::agents::{Home, why};
use crate::common::access::Access;
use crate::common::daemon_binary;
use crate::common::home::ip;
use crate::common::stage::{Daemon, Download};

const HOMES: usize = 8;
const SLOT_S: u64 = 8;
/// Time from a slot's beginning until it is measured.
const SETTLE: Duration = Duration::from_secs(2);
const SLOTS: u64 = 2;
/// Below this rate, the minimum windows of two connections admit more than was leased.
const SMALL_MBIT: f64 = 5.0;
const BEYOND_MBIT: f64 = 0.5;

/// A household: its gateway, which runs `fairweir host` and the agent, and two downloads.
struct Gateway {
    netns: Netns,
    host: Daemon,
    agent: Home,
    downloads: Vec<Download>,
}

impl Gateway {
    /// Creates household `number`, on the bridge of `street`.
    fn new(network: &Access, street: &Netns, market: &Market, number: usize) -> Gateway {
        let netns = Netns::new().unwrap();
        let port = format!("port{number}");
        street.run(|| {
            link::create_veth(&port, &netns, "wan").unwrap();
            link::offloads(&port, false).unwrap();
            ip(&format!("link set {port} master lan0 up"));
        });
        netns.run(|| {
            link::offloads("wan", false).unwrap();
            ip(&format!("addr add 192.0.2.{}/24 dev wan", number + 1));
            ip("link set wan up");
            ip("route add default via 192.0.2.254");
        });
        let film = number * 24 / HOMES;
        let time = format!(
            "[[time]]\nname = \"film\"\nfrom = \"{film:02}:00\"\nto = \"{:02}:00\"\nstreaming = 3\n\
             [agent]\ntell = [\"host\"]\n",
            film + 24 / HOMES
        );
        let agent = Home::new(market, &format!("home-{}", number + 1), &time);
        let config = agent.path("fairweir.toml");
        let text = "version = 1\n[[group]]\nname = \"web\"\nweight = 2\nmatch = [\"port:443\"]\n";
        fs::write(&config, text).unwrap();
        let (run, log) = (agent.run.to_str().unwrap(), agent.path("host.log"));
        let mut command = Command::new(daemon_binary());
        command.args(["host", "--dev", "wan", "--config", &config, "--run-dir", run]);
        command.args(["--state-dir", &agent.path("state-host")]).env_remove("RUST_LOG");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        let child = netns.run(|| command.spawn().unwrap());
        let socket = agent.run.join("host-wan.sock");
        let host = Daemon::begun(child, socket, log.into(), |status| status["ready"] == true);
        let server = network.server();
        let download = |_| Download::new(netns.run(|| TcpStream::connect(server).unwrap()));
        let downloads = (0..2).map(download).collect();
        Gateway { netns, host, agent, downloads }
    }

    fn received(&self) -> u64 {
        traffic(&self.netns, "wan").received
    }
}

fn now() -> Duration {
    UNIX_EPOCH.elapsed().unwrap()
}

/// The homes' leases in each slot, in Mbit/s.
fn leases(market: &Market) -> BTreeMap<u64, Vec<f64>> {
    let (mut book, mut leases) = (Book::default(), BTreeMap::new());
    for event in market.events() {
        book.apply(&serde_json::from_value(event).unwrap()).unwrap();
        if let Some(closed) = book.leases().filter(|closed| closed.rates.len() == HOMES) {
            let rates = closed.rates.iter().map(|lease| lease.rate.as_mbit_f64()).collect();
            leases.insert(closed.generation, rates);
        }
    }
    leases
}

/// Eight homes take all they can for two slots in which one of them buys a film. There is no policer: each
/// home receives its lease within 3 %, or with a small lease up to [`BEYOND_MBIT`] more.
///
/// `cargo test -p fairweir --features evidence --test it -- --ignored --nocapture without_a_policer`
#[test]
#[ignore = "long: 3 min"]
fn without_a_policer_each_gateway_holds_itself_to_its_lease() {
    if privileged() {
        one_at_a_time(|| two_of_three(holds));
    }
}

fn holds() {
    let network = Access::new();
    network.unplug_homes();
    let street = Netns::new().unwrap();
    network.at_router(|| {
        link::create_veth("sub", &street, "in").unwrap();
        link::offloads("sub", false).unwrap();
        ip("addr add 192.0.2.254/24 dev sub");
        ip("link set sub up");
        // The market divides 5 % less than the wire carries, so that no queue builds up there.
        let wire = "qdisc add dev sub root tbf rate 42mbit burst 64k latency 50ms";
        let wire: Vec<&str> = wire.split(' ').collect();
        assert!(Command::new("tc").args(wire).status().unwrap().success());
    });
    street.run(|| {
        link::offloads("in", false).unwrap();
        ip("link add lan0 type bridge");
        ip("link set in master lan0 up");
        ip("link set lan0 up");
    });
    let mut market = Market::found_at(SLOT_S, "40mbit");
    market.start();
    let socket = market.run.to_str().unwrap().to_owned();
    let done = super::fairweir(&["market", "change", "--floor", "40", "--run-dir", &socket]);
    assert!(done.status.success(), "{done:?}");
    let mut homes: Vec<Gateway> =
        (0..HOMES).map(|number| Gateway::new(&network, &street, &market, number)).collect();
    let day_s = (SLOT_S * HOMES as u64).to_string();
    homes.iter_mut().for_each(|home| home.agent.start_with(&day_s));
    for home in &homes {
        home.agent.wait_for("bids", |s| s["placed"].as_u64() > Some(0));
    }
    let status = market.status().unwrap();
    let open = status["open_slot"].as_u64().unwrap();
    let epoch_s = status["rules"]["epoch_s"].as_u64().unwrap();
    let begins = |slot| Duration::from_secs(epoch_s + slot * SLOT_S);
    let received = || homes.iter().map(Gateway::received).collect::<Vec<u64>>();
    let mut passed = Vec::new();
    for slot in open..open + SLOTS {
        thread::sleep((begins(slot) + SETTLE).saturating_sub(now()));
        let (from, before) = (now(), received());
        thread::sleep(begins(slot + 1).saturating_sub(now()));
        let (until, after) = (now(), received());
        let mbit = |(after, before): (&u64, &u64)| {
            (after - before) as f64 * 8e-6 / (until - from).as_secs_f64()
        };
        passed.push(after.iter().zip(&before).map(mbit).collect::<Vec<f64>>());
    }
    let held = &homes[0].host.status();
    let words = why(&homes[0].agent.wait_for("a lease", |s| s["told"][0]["is_followed"] == true));
    let leases = leases(&market);
    let mut table = "slot  leased and passed, Mbit/s\n".to_owned();
    let (mut off, mut off_small) = (0.0f64, 0.0f64);
    for (slot, passed) in (open..).zip(&passed) {
        let leased = &leases[&slot];
        let _ = writeln!(table, "{slot:4}  {leased:5.2?}\n      {passed:5.2?}");
        for (passed, leased) in passed.iter().zip(leased) {
            assert!(passed / leased >= 0.97, "{passed} of {leased}: {table}");
            match *leased >= SMALL_MBIT {
                true => off = off.max((passed / leased - 1.0).abs()),
                false => off_small = off_small.max(passed - leased),
            }
        }
        let total: f64 = passed.iter().sum();
        assert!((38.8..=42.0).contains(&total), "{total}: {table}");
        assert!(leased.iter().any(|leased| *leased > 8.0), "nobody buys: {table}");
    }
    note(&format!(
        "{table}off by {off:.4}, small ones by {off_small:.2} Mbit/s; {}",
        held["reason"]
    ));
    assert!(off <= 0.03 && off_small <= BEYOND_MBIT, "{table}{off} {off_small}");
    assert!(held["reason"].as_str().unwrap().ends_with("by the market"), "{held:#}");
    assert_eq!(held["held_bps"], held["guaranteed_bps"]);
    assert!(words.contains("holds itself"), "{words}");
    // A dead agent leaves its home unlimited; the other homes stay limited by their agents.
    homes[0].agent.kill();
    let patience = Duration::from_secs(30);
    homes[0].host.wait_for("the end of the bound", patience, |s| s["held_bps"].is_null());
    assert!(homes.iter().flat_map(|home| &home.downloads).all(|download| !download.is_broken()));
}
