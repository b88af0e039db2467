//! Applies at home what a slot has bought: the agent tells `fairweir proxy`, `host` and `router`.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_daemon::{Access, Client};
use fairweir_testing::{note, privileged, two_of_three};
use serde_json::{Value, json};

use super::Market;
use super::agents::Home;
use crate::common::home::{Device, devices, has_nat};
use crate::common::stage::{Daemon, SERVERS, Stage};

const PATIENCE: Duration = Duration::from_secs(10);

fn told(mbit: u64, for_ms: u64) -> Value {
    json!({
        "request": "guarantee",
        "rate_bps": mbit * 1_000_000,
        "equal_bps": 10_000_000,
        "for_ms": for_ms,
    })
}

/// A market of two households on 28 Mbit/s, and the agent of the household that bids. Slots are long enough for a
/// measurement within one slot.
fn market_with_agent(stage: &Stage, tell: &str) -> (Market, Home) {
    let mut market = Market::found_at(5, "28mbit");
    market.options = vec!["--absent", "floor"];
    market.start();
    market.enrol("other");
    let mut home = Home::new(&market, "home", &format!("[agent]\ntell = [{tell}]\n"));
    home.run = stage.run_dir().into();
    home.start_with("96");
    (market, home)
}

/// The class has the rate that its slot bought while the agent reports it, and otherwise its own rate: after the
/// agent was killed, and from the end of the slot when the server was killed.
#[test]
fn a_class_of_the_proxy_has_what_its_slot_has_bought() {
    if !privileged() || !has_nat() {
        return;
    }
    two_of_three(proxy_follows);
}

fn proxy_follows() {
    let stage = Stage::with_link(40.0);
    let devices = devices(&stage, ["tv"]);
    let text = "version = 1\n[proxy]\nlan = [\"br-lan\"]\n[[class]]\nname = \"home\"\n\
                rate = \"10mbit\"\nlease = true\nmatch = [\"ip:192.168.7.0/24\"]\n[priority]\nhousehold = true\n";
    std::fs::write(stage.path("proxy.toml"), text).unwrap();
    let proxy = stage.start_proxy(None);
    let (mut market, mut home) = market_with_agent(&stage, "\"proxy\", \"router\"");
    let server = format!("{}:{}", SERVERS[0], stage.port()).parse().unwrap();
    let download = devices[0].download(server);
    let rate = |s: &Value| s["classes"][0]["rate_bps"].as_u64().unwrap();
    // Spending everything on one slot buys 26.6 of 28 Mbit/s; the agent plans to buy some rate in each slot.
    proxy.wait_for("a lease", PATIENCE * 2, |s| rate(s) > 10_000_000);
    let leased = home.wait_for("what is told", |s| s["told"][0]["is_followed"] == true);
    assert_eq!(leased["told"].as_array().unwrap().len(), 1, "no router runs: {leased}");
    // The importances that the household chose on its page become the proxy's priorities of kinds of use.
    let priority = proxy.status()["priority"].clone();
    note(&format!("priorities by the household: {priority}"));
    assert_ne!(priority, serde_json::json!([1.0, 1.0, 1.0, 1.0]));
    let (bps, begun) = (rate(&proxy.status()), Instant::now());
    // The sender speeds up, and the receive buffers adapt within a second.
    thread::sleep(Duration::from_millis(1_500));
    let passed = download.mbit_over(Duration::from_secs(2));
    assert_eq!(rate(&proxy.status()), bps, "the slot is over");
    let wanted = bps as f64 / 1e6 * 1_448.0 / 1_514.0;
    note(&format!("a lease of {:.1} Mbit/s: {passed:.2} of {wanted:.2} passed", bps as f64 / 1e6));
    assert!((0.95..1.05).contains(&(passed / wanted)), "{passed} of {wanted}");
    // There is no gap between the rates of two slots. A busy machine may delay the agent.
    let gap = longest(&proxy, Duration::from_secs(6), |s| s["guaranteed_bps"].is_null());
    note(&format!("between two slots: {:.0} ms without a lease", gap.as_secs_f64() * 1e3));
    assert!(gap < Duration::from_secs(1), "{gap:?}");
    // The agent dies: the rate that it reported expires by itself.
    home.kill();
    proxy.wait_for("the rate of the class", Duration::from_secs(4), |s| rate(s) == 10_000_000);
    note(&format!("the agent died: as configured after {:.1} s", begun.elapsed().as_secs_f64()));
    // The agent is restarted: the proxy gets the lease of this slot or the next one.
    home.start_with("96");
    proxy.wait_for("a lease again", PATIENCE * 2, |s| rate(s) > 10_000_000);
    // The server dies: the lease ends with its slot.
    market.kill();
    proxy.wait_for("the rate of the class", Duration::from_secs(8), |s| rate(s) == 10_000_000);
    download.wait_for_rate(8.5..10.5, PATIENCE);
    assert!(!download.is_broken());
    for (wrong, says) in [
        (told(0, 1_000), "rate_bps: 0 is out of range"),
        (told(20, 3_600_000), "for_ms: 3600000 is out of range"),
    ] {
        let error = refusal(&stage, "proxy", &wrong);
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(rate(&proxy.status()), 10_000_000);
}

/// The longest uninterrupted time within `span` in which `is_so` accepts a daemon's status.
fn longest(daemon: &Daemon, span: Duration, is_so: impl Fn(&Value) -> bool) -> Duration {
    let (begun, mut since, mut longest) = (Instant::now(), None, Duration::ZERO);
    while begun.elapsed() < span {
        match is_so(&daemon.status()) {
            true => longest = longest.max(since.get_or_insert_with(Instant::now).elapsed()),
            false => since = None,
        }
        thread::sleep(Duration::from_millis(5));
    }
    longest
}

fn refusal(stage: &Stage, name: &str, request: &Value) -> String {
    let run = stage.run_dir();
    let mut client = Client::connect(run.as_ref(), name, Access::Change, PATIENCE).unwrap();
    client.tell(request, &mut |_, _| ()).unwrap_err().to_string()
}

/// An agent tells the router what its slot has bought, and the link in front of the home gets that rate: the
/// devices receive it within 2 %, even after slots that bought less.
#[test]
fn devices_of_a_router_have_what_their_slot_has_bought() {
    if !privileged() || !has_nat() {
        return;
    }
    two_of_three(router_follows);
}

fn router_follows() {
    let stage = Stage::with_link(10.0);
    let devices = devices(&stage, ["tv", "desk"]);
    stage.configure("version = 1\n[router]\nlan = \"br-lan\"\nwan = \"wan\"\n");
    let router = stage.start_router(&[]);
    let server = format!("{}:{}", SERVERS[0], stage.port()).parse().unwrap();
    let downloads = devices.each_ref().map(|device| device.download(server));
    router.wait_for("the capacity", PATIENCE, |s| s["enforcing"] == true);
    let (_market, home) = market_with_agent(&stage, "\"router\"");
    let told = home.wait_for("what is told", |s| {
        s["told"][0]["is_followed"] == true && s["rate_bps"].as_u64() > Some(14_000_000)
    });
    let mbit = told["rate_bps"].as_u64().unwrap() / 1_000_000;
    // Here this token bucket is the ISP's policer.
    set_link(&stage, told["rate_bps"].as_u64().unwrap());
    thread::sleep(Duration::from_secs(2));
    let received = || devices.iter().map(Device::received).sum::<u64>();
    let (before, begun) = (received(), Instant::now());
    thread::sleep(Duration::from_secs(5));
    let passed = (received() - before) as f64 * 8.0 / begun.elapsed().as_secs_f64();
    let part = passed / told["rate_bps"].as_f64().unwrap();
    note(&format!("a lease of {mbit} Mbit/s: {part:.4} of it arrived at the devices"));
    assert!((0.98..1.02).contains(&part), "{part}");
    assert!(downloads.iter().all(|download| !download.is_broken()));
}

/// Sets the rate of the link in front of the home.
fn set_link(stage: &Stage, bps: u64) {
    let args = format!("qdisc change dev isp root tbf burst 64k latency 50ms rate {bps}bit");
    let args: Vec<&str> = args.split(' ').collect();
    stage.at_internet(|| assert!(Command::new("tc").args(&args).status().unwrap().success()));
}

/// The link's rate rises and falls as with slots. A download uses a reported rate at once, and falls back to the
/// equal share when the report is not repeated.
#[test]
fn a_host_that_is_told_uses_a_guarantee_at_once_and_gives_it_back() {
    if !privileged() {
        return;
    }
    two_of_three(host_follows);
}

fn host_follows() {
    let stage = Stage::with_link(10.0);
    stage.configure("version = 1\n[[group]]\nname = \"web\"\nweight = 2\nmatch = [\"port:443\"]\n");
    let host = stage.start(&[]);
    let download = stage.download(SERVERS[0]);
    host.wait_for("the capacity", PATIENCE, |s| s["enforcing"] == true);
    thread::sleep(Duration::from_secs(3));
    let link = |mbit: u64| set_link(&stage, mbit * 1_000_000);
    let capacity = || host.status()["capacity_bps"].as_u64().unwrap_or_default() as f64 / 1e6;
    let before = capacity();
    link(28);
    assert!(host.ask_json(&told(28, 4_000)).is_some());
    assert_eq!(host.status()["guaranteed_bps"], 28_000_000);
    thread::sleep(Duration::from_secs(1));
    let first = download.mbit_over(Duration::from_secs(1));
    note(&format!(
        "{before:.1} Mbit/s were known; told of 28, {first:.1} passed in the second second"
    ));
    assert!(first > 22.0, "{first}");
    // The report is not repeated, and the slot is over.
    host.wait_for("the end", Duration::from_secs(5), |s| s["guaranteed_bps"].is_null());
    link(10);
    let ended = Instant::now();
    host.wait_for("the equal share", PATIENCE, |s| s["capacity_bps"].as_u64() < Some(11_000_000));
    note(&format!("the slot ended: the equal share {:.1} s later", ended.elapsed().as_secs_f64()));
    download.wait_for_rate(8.0..10.5, PATIENCE);
    let error = refusal(&stage, "host-wan", &told(u64::MAX / 1_000_000, 1_000));
    assert!(error.contains("rate_bps"), "{error}");
    assert!(!download.is_broken());
}
