//! `fairweir market agent` as a process, with a real server.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_daemon::{Access, Client, Request};
use fairweir_testing::note;
use serde_json::{Value, json};

use super::Market;
use crate::common::{FAIRWEIR, check, fairweir};

/// A slot takes a second, and a day is 24 slots.
const DAY: &str = "24";

/// A household's agent, which tests kill and restart.
pub(super) struct Home {
    dir: PathBuf,
    /// The directory of its socket, and of the sockets of other daemons.
    pub(super) run: PathBuf,
    /// The group that may send requests, in addition to root.
    pub(super) admin_group: Option<&'static str>,
    process: Option<Child>,
}

impl Home {
    /// Enrols a household, and writes a file with the given `[[time]]`.
    pub(super) fn new(market: &Market, name: &str, time: &str) -> Home {
        let dir = market.dir.path().join(name);
        let home = Home { run: dir.join("run"), dir, admin_group: None, process: None };
        fs::create_dir(&home.dir).unwrap();
        home.write(time);
        let done = home.enrol(market, &market.code(name), &[]);
        assert!(done.is_empty(), "{done}");
        home
    }

    pub(super) fn write(&self, time: &str) {
        let text =
            format!("version = 1\n[always]\nsocial = 0\ndownloads = 0\nstreaming = 0\n{time}");
        fs::write(self.path("agent.toml"), text).unwrap();
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    /// Enrols; returns the output on stderr.
    fn enrol(&self, market: &Market, code: &str, options: &[&str]) -> String {
        let (server, state) = (format!("localhost:{}", market.address.port()), self.path("state"));
        let authority = market.path("state/ca.der");
        let place = ["--server", &server, "--authority", &authority, "--state-dir", &state];
        let done = fairweir(&[&["market", "enrol", code], &place[..], options].concat());
        String::from_utf8(done.stderr).unwrap()
    }

    fn start(&mut self) {
        self.start_with(DAY);
    }

    /// Starts the agent with days of `day` seconds.
    pub(super) fn start_with(&mut self, day: &str) {
        let process = Command::new(FAIRWEIR)
            .args(["market", "agent", "--until-stdin-closes", "--day", day])
            .args(["--config", &self.path("agent.toml")])
            .args(["--state-dir", &self.path("state")])
            .args(["--run-dir", self.run.to_str().unwrap()])
            .args(self.admin_group.iter().flat_map(|group| ["--admin-group", *group]))
            .env("RUST_LOG", "error")
            .stdin(Stdio::piped())
            .spawn();
        self.process = Some(process.unwrap());
    }

    pub(super) fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, request: &impl serde::Serialize) -> Option<T> {
        let client =
            Client::connect(&self.run, "market-agent", Access::Change, Duration::from_secs(10));
        client.ok()?.ask(request).ok()
    }

    /// Waits until `wanted` accepts its status.
    pub(super) fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        let mut last = Value::Null;
        while begun.elapsed() < Duration::from_secs(30) {
            last = self.ask(&Request::Status).unwrap_or(last);
            if !last.is_null() && wanted(&last) {
                return last;
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("no {what} within 30 s: {last:#}");
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}

pub(super) fn why(status: &Value) -> String {
    let sentences = status["why"].as_array().unwrap().iter().map(|s| s.as_str().unwrap());
    sentences.collect::<Vec<_>>().join(" ")
}

/// Random numbers that are the same in each run.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) % end
    }
}

/// Each bid that the market stored, in order: `(gateway, slot, sequence, spend)`.
fn bids(events: &[Value]) -> impl Iterator<Item = (String, u64, u64, u64)> + '_ {
    events.iter().filter(|event| !event["bid"].is_null()).map(|event| {
        let bid = &event["bid"];
        let number = |key: &str| bid[key].as_u64().unwrap();
        let spend = bid["spend"].as_str().unwrap().parse().unwrap();
        (bid["gateway"].as_str().unwrap().to_owned(), number("slot"), number("sequence"), spend)
    })
}

/// Three agents bid for three different evenings; server and agents are killed at random moments. No credit is
/// lost, no bid is made twice, every slot is paid for by the last bid placed, and each household spends on its
/// own evening.
#[test]
fn agents_and_server_that_are_killed_bid_once_and_go_on() {
    const KILLS: usize = 15;
    let mut market = Market::found_at(1, "40mbit");
    market.start();
    let evening = |hour: u64| {
        format!(
            "[[time]]\nname = \"film\"\nfrom = \"{hour:02}:00\"\nto = \"{:02}:00\"\nstreaming = 3\n",
            hour + 4
        )
    };
    let hours = [2, 10, 18];
    let mut homes: Vec<Home> =
        (0..3).map(|i| Home::new(&market, &format!("home-{i}"), &evening(hours[i]))).collect();
    homes.iter_mut().for_each(Home::start);
    for home in &homes {
        home.wait_for("bid", |s| s["bids"].as_array().is_some_and(|bids| bids.len() >= 4));
    }
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut killed = [0; 4];
    for _ in 0..KILLS {
        thread::sleep(Duration::from_millis(100 + dice.below(900)));
        let victim = dice.below(4) as usize;
        killed[victim] += 1;
        let pause = Duration::from_millis(dice.below(400));
        match victim {
            3 => {
                market.kill();
                thread::sleep(pause);
                market.start();
            }
            i => {
                homes[i].kill();
                thread::sleep(pause);
                homes[i].start();
            }
        }
    }
    assert!(killed.iter().all(|&times| times > 0), "{killed:?}");
    let slot_of = |status: &Value| status["plan"][0]["slot"].as_u64().unwrap_or_default();
    let open =
        homes.iter().map(|home| slot_of(&home.wait_for("answer", |s| s["error"].is_null()))).max();
    let until = open.unwrap().max(30) + 2;
    for home in &homes {
        home.wait_for("later slot", |s| slot_of(s) > until && s["error"].is_null());
    }
    market.kill();
    let verified = market.verify();
    assert!(verified.contains("3 gateways, 30000000 micro-credits"), "{verified}");
    // By gateway and slot: sequence numbers rise, so no bid was accepted twice.
    let events = market.events();
    let mut last: BTreeMap<(String, u64), u64> = BTreeMap::new();
    let mut spends: BTreeMap<String, [Vec<u64>; 2]> = BTreeMap::new();
    for (gateway, slot, sequence, _) in bids(&events) {
        let before = last.insert((gateway, slot), sequence).unwrap_or_default();
        assert!(sequence > before, "{sequence} after {before}");
    }
    // The hours of the film, in the compressed day that follows Unix time.
    let epoch = events[0]["found"]["epoch_s"].as_u64().unwrap();
    for (home, evening) in hours.into_iter().enumerate() {
        let name = format!("gw-{}", home + 1);
        let of_home = bids(&events).filter(|(gateway, ..)| *gateway == name);
        let stood: BTreeMap<u64, u64> = of_home.map(|(_, slot, _, spend)| (slot, spend)).collect();
        for (slot, spend) in stood.range(..until) {
            let hour = (epoch + slot) % 24;
            let is_film = (evening..evening + 4).contains(&hour);
            spends.entry(name.clone()).or_default()[usize::from(is_film)].push(*spend);
        }
    }
    let mean = |list: &[u64]| list.iter().sum::<u64>() as f64 / 1e6 / list.len().max(1) as f64;
    for (name, [usual, film]) in &spends {
        note(&format!(
            "{name}: {:.2} credits for an hour of film, {:.2} for others",
            mean(film),
            mean(usual)
        ));
        assert!(film.len() >= 4 && mean(film) > 1.5 * mean(usual), "{film:?} {usual:?}");
    }
    note(&format!("kills of agents and server: {killed:?}, {} bids", last.len()));
    // Without the server each agent has the floor and says so, even after a restart.
    homes[0].kill();
    homes[0].start();
    for home in &homes {
        let status = home.wait_for("floor", |s| s["until_s"].is_null() && !s["error"].is_null());
        assert_eq!(status["rate_bps"], 1_333_333, "{status}");
        let said = why(&status);
        assert!(said.contains("the rate is the floor of 1.33 Mbit/s"), "{said}");
        assert!(said.contains("The market has not answered"), "{said}");
    }
}

#[test]
fn a_household_boosts_goes_on_holiday_and_changes_its_file() {
    let mut market = Market::found_at(60, "40mbit");
    market.start();
    let mut home = Home::new(&market, "home", "");
    // An enrolment is only given up on explicit request, and a code works once.
    let state = home.path("state");
    let (other, wrong) = (market.code("other"), "0".repeat(32));
    let again = home.enrol(&market, &other, &[]);
    assert!(again.contains("enrolled as gw-1") && again.contains("--replace"), "{again}");
    let again = home.enrol(&market, &wrong, &["--replace"]);
    assert!(again.contains("the code is unknown, used or expired"), "{again}");
    home.start();
    let bid = |status: &Value| -> u64 {
        let bids = status["bids"].as_array().cloned().unwrap_or_default();
        let next = bids.iter().find(|bid| bid["slot"] == status["plan"][0]["slot"]);
        next.map_or(0, |bid| bid["spend"].as_str().unwrap().parse().unwrap())
    };
    let usual = bid(&home.wait_for("bid", |s| bid(s) > 0));
    let tell = |what: &[&str]| {
        let run = home.path("run");
        let done = fairweir(&[&["market"], what, &["--run-dir", &run]].concat());
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    assert!(
        tell(&["boost", "downloads", "--minutes", "2"]).contains("next slot on, for 2 minutes")
    );
    let boosted = home.wait_for("boost", |s| bid(s) > usual);
    assert!(why(&boosted).contains("downloads now"), "{boosted}");
    tell(&["boost", "downloads", "--off"]);
    tell(&["holiday", "--days", "2"]);
    let holiday = home.wait_for("holiday", |s| bid(s) == 0);
    assert!(why(&holiday).contains("on holiday"), "{holiday}");
    // The setting is kept over a restart.
    home.kill();
    home.start();
    home.wait_for("holiday after a kill", |s| s["heard_s_ago"].is_number() && bid(s) == 0);
    let text = {
        let run = home.path("run");
        let done = fairweir(&["market", "why", "--run-dir", &run]);
        String::from_utf8(done.stdout).unwrap()
    };
    assert!(text.contains("on holiday") && text.lines().count() >= 4, "{text}");
    let run = home.path("run");
    // Checks the output against its schema.
    assert!(fairweir(&["market", "agent", "status", "--json", "--run-dir", &run]).status.success());
    assert!(fairweir(&["market", "why", "--json", "--run-dir", &run]).status.success());
    assert!(fairweir(&["market", "holiday", "--off", "--run-dir", &run]).status.success());
    home.wait_for("end of the holiday", |s| bid(s) > 0);
    // A changed file is read; a wrong file is not applied.
    home.write("[[time]]\nname = \"always\"\nfrom = \"00:00\"\nto = \"24:00\"\nstreaming = 3\n");
    home.wait_for("new file", |s| why(s).contains("streaming 3"));
    // Changes from the page are stored in a separate file, all or nothing, and can be undone.
    let set = |changes: Value| -> Option<Value> {
        home.ask(&json!({ "request": "set", "changes": changes }))
    };
    let stored = || fs::read_to_string(home.path("agent.d/zz-set.toml")).ok();
    let changes = json!({ "always.web": 2, "time.always.streaming": 2, "boost.web": 30 });
    let undo = set(changes).unwrap()["undo"].clone();
    assert_eq!(
        undo,
        json!({ "always.web": null, "time.always.streaming": null, "boost.web": null })
    );
    let text = stored().unwrap();
    assert!(text.contains("web = 2") && text.contains("streaming = 2"), "{text}");
    let wanted = home.ask::<Value>(&Request::Status).unwrap()["preferences"].clone();
    assert_eq!(
        (&wanted["always"][3], &wanted["times"][0]["importance"][0]),
        (&json!(2), &json!(2))
    );
    assert!(wanted["boosted_for_s"][3].as_u64().unwrap() > 1_700, "{wanted}");
    for wrong in [
        json!({ "always.web": 4 }),
        json!({ "time.none.web": 1 }),
        json!({ "always.web": 1, "boost.web": 1_441 }),
        json!({ "boost.games": 5 }),
        json!({ "holiday": 367 }),
        json!({ "weight.web": 1 }),
    ] {
        assert_eq!(set(wrong.clone()), None, "{wrong}");
        assert_eq!(stored().as_ref(), Some(&text), "{wrong}");
    }
    assert!(set(undo).is_some() && stored().is_none());
    let checked = check(&home.dir.join("agent.toml"));
    let printed = String::from_utf8(checked.stdout).unwrap();
    assert_eq!(printed.lines().nth(1), Some("always: streaming 3"), "{printed}");
    home.write("streaming = 4\n");
    assert!(!check(&home.dir.join("agent.toml")).status.success());
    let refused: Option<String> = home.ask(&json!({ "request": "reload" }));
    assert!(refused.is_none());
    home.wait_for("old file", |s| why(s).contains("streaming 3"));
    // A second agent with the same state directory is refused.
    let second = fairweir(&[
        "market",
        "agent",
        "--config",
        &home.path("agent.toml"),
        "--state-dir",
        &state,
        "--run-dir",
        &home.path("run2"),
    ]);
    assert!(!second.status.success());
}
