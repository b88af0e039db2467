//! An operator's commands while the server runs.

use super::*;

/// Runs a command; returns its exit code and output.
fn run(args: &[&str]) -> (i32, String) {
    let done = fairweir(&[&["market"], args].concat());
    let said = if done.status.success() { done.stdout } else { done.stderr };
    (done.status.code().unwrap(), String::from_utf8(said).unwrap())
}

#[test]
fn households_are_listed_shown_changed_and_removed_and_leave() {
    let mut market = Market::found_at(1, "40mbit");
    market.start();
    let socket = market.run.to_str().unwrap().to_owned();
    let tell = |args: &[&str]| run(&[args, &["--run-dir", &socket]].concat());
    let done = |args: &[&str]| {
        let (code, said) = tell(args);
        assert_eq!(code, 0, "{args:?}: {said}");
        said
    };
    let (one, _) = market.enrol("one");
    let (two, name) = market.enrol("two");
    two.ask("GET", &format!("/v1/gateways/{name}/statements"), None).unwrap();
    let mut home = agents::Home::new(&market, "three", "");
    let listed = done(&["households"]);
    let row = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(row("one").contains("gw-1") && row("one").contains("10.00"), "{listed}");
    assert!(row("one").ends_with('-') && row("two").ends_with("s ago"), "{listed}");
    let all: Vec<Value> = serde_json::from_str(&done(&["households", "--json"])).unwrap();
    assert_eq!(all.len(), 3);
    // A few slots later the account shows their effect.
    let begun = Instant::now();
    while market.status().unwrap()["open_slot"].as_u64() < Some(2) {
        assert!(begun.elapsed() < Duration::from_secs(30));
        thread::sleep(Duration::from_millis(100));
    }
    let shown = done(&["show", "two"]);
    assert!(
        shown.starts_with("two (gw-2): 10.00 credits") && shown.lines().count() >= 3,
        "{shown}"
    );
    assert!(done(&["show", "gw-2", "--json"]).contains("\"statements\":["));
    // Rules and plans change while the server runs.
    let said = done(&["change", "--capacity", "80mbit", "--floor", "20"]);
    assert!(said.contains("80.00 Mbit/s, floor 20 %, cap 32.00"), "{said}");
    let terms = one.ask("GET", "/v1/clock", None).unwrap()["rules"]["terms"].clone();
    assert_eq!((&terms["capacity"], &terms["floor_percent"]), (&json!(80_000_000), &json!(20)));
    assert!(done(&["change", "--household", "one", "--peak", "5mbit"]).contains("plan 5.00"));
    for (wrong, code) in [
        (&["change"][..], 2),
        (&["change", "--peak", "5mbit"], 2),
        (&["change", "--cap", "3", "--household", "one"], 2),
        (&["change", "--floor", "101"], 2),
        (&["change", "--cap", "10"], 1),
        (&["change", "--capacity", "0mbit"], 1),
        (&["change", "--household", "one", "--peak", "0mbit"], 1),
        (&["change", "--household", "none", "--peak", "5mbit"], 1),
        (&["show", "none"], 1),
        (&["remove", "none"], 1),
    ] {
        let (is, said) = tell(wrong);
        assert!(is == code && !said.is_empty(), "{wrong:?}: {is}, {said}");
    }
    // Its rate changes from the next slot on.
    let begun = Instant::now();
    while !done(&["show", "one"]).contains("credits, 5.00 Mbit/s") {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", done(&["show", "one"]));
        thread::sleep(Duration::from_millis(100));
    }
    assert!(done(&["remove", "two"]).starts_with("removed two (gw-2)"));
    let refused = two.ask("GET", "/v1/prices", None);
    assert!(matches!(refused, Err(ClientError::Refused { status: 403, .. })), "{refused:?}");
    // A household leaves while its agent is stopped; a second attempt finds no enrolment.
    let state = home.path("state");
    home.start_with("240");
    home.wait_for("answer", |s| s["heard_s_ago"].is_number());
    let (code, said) = run(&["leave", "--state-dir", &state]);
    assert!(code == 5 && said.contains("an agent is running"), "{code} {said}");
    home.kill();
    let (code, said) = run(&["leave", "--state-dir", &state]);
    assert!(code == 0 && said.starts_with("gw-3 left"), "{said}");
    assert_eq!(market.status().unwrap()["gateways"], 1);
    assert!(run(&["leave", "--state-dir", &state]).1.contains("has not enrolled"));
    market.kill();
    assert!(market.verify().contains("1 gateways, 10000000 micro-credits"));
}

/// No slot is closed and no bid is taken until the market resumes with the next slot; a restart does not change
/// that. Then old slots are removed while the server runs.
#[test]
fn a_market_is_paused_resumed_and_pruned() {
    let mut market = Market::found_at(1, "40mbit");
    market.start();
    let socket = market.run.to_str().unwrap().to_owned();
    let tell = |what: &str| {
        let (code, said) = run(&[what, "--run-dir", &socket, "--json"]);
        assert_eq!(code, 0, "{said}");
        serde_json::from_str::<Value>(&said).unwrap()
    };
    let (client, name) = market.enrol("one");
    let wait_for = |market: &Market, slot: u64| {
        let begun = Instant::now();
        while market.status().unwrap()["open_slot"].as_u64() < Some(slot) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", market.status());
            thread::sleep(Duration::from_millis(100));
        }
    };
    wait_for(&market, 3);
    let open = tell("pause")["open_slot"].as_u64().unwrap();
    assert_eq!(tell("pause")["changed"], false);
    bid(&client, &name, open + 1, 1).unwrap_err();
    assert_eq!(client.ask("GET", "/v1/clock", None).unwrap()["paused"], true);
    let said = run(&["status", "--run-dir", &socket]).1;
    assert!(said.contains("paused before slot"), "{said}");
    market.kill();
    market.start();
    thread::sleep(Duration::from_secs(3));
    let status = market.status().unwrap();
    assert_eq!((&status["open_slot"], &status["paused"]), (&json!(open), &json!(true)), "{status}");
    assert!(status["doubt"].is_null(), "{status}");
    let resumed = tell("resume")["open_slot"].as_u64().unwrap();
    assert!(resumed > open + 1, "{resumed}");
    bid(&client, &name, resumed + 5, 1).unwrap();
    wait_for(&market, resumed + 2);
    assert!(market.verify().contains("1 gateways, 10000000 micro-credits"));
    // Slots before the pause can be removed; slots during the pause never existed.
    let before = market.events().len();
    let (code, said) = run(&["prune", "--before", "0", "--state-dir", &market.path("state")]);
    assert!(code == 1 && said.contains("slot 0 is not"), "{code} {said}");
    let first = resumed.to_string();
    let pruned: Value =
        serde_json::from_str(&market.tell("prune", &["--before", &first, "--json"])).unwrap();
    assert!(pruned["events"].as_u64() > Some(5), "{pruned}");
    assert!(market.events().len() < before);
    wait_for(&market, resumed + 4);
    let backup = market.path("backup");
    market.tell("backup", &[&backup]);
    market.kill();
    market.verify();
    fs::remove_dir_all(market.path("state")).unwrap();
    market.tell("restore", &[&backup]);
    market.start();
    wait_for(&market, resumed + 6);
    market.kill();
    market.verify();
}

/// A backup is made while a gateway bids, and restored after the market was lost: its gateways continue, with
/// the bids in the backup.
#[test]
fn a_backup_of_a_running_market_takes_the_place_of_one_that_is_lost() {
    let mut market = Market::of_one_slot(None);
    market.start();
    let (client, name) = market.enrol("c");
    let backup = market.path("backup");
    let (state, stop) = (market.path("state"), AtomicBool::new(false));
    let (before, after) = thread::scope(|scope| {
        let bids = scope.spawn(|| {
            let mut sequence = 0;
            while !stop.load(Ordering::Relaxed) {
                sequence += 1;
                let slot = 1 + sequence % 40;
                bid(&client, &name, slot, sequence).unwrap();
                thread::sleep(Duration::from_millis(10));
            }
            sequence
        });
        thread::sleep(Duration::from_millis(300));
        let before = market.events().len();
        let said = market.tell("backup", &[&backup]);
        assert!(said.contains("0 slots closed, 1 gateways"), "{said}");
        stop.store(true, Ordering::Relaxed);
        (before, bids.join().unwrap())
    });
    let (code, said) = run(&["verify", "--state-dir", &backup]);
    assert_eq!(code, 0, "{said}");
    // Existing files are not overwritten.
    for args in [
        &["backup", &backup, "--state-dir", &state][..],
        &["restore", &backup, "--state-dir", &state],
        &["restore", &market.path("none"), "--state-dir", &market.path("new")],
        &["backup", &market.path("new"), "--state-dir", &market.path("none")],
    ] {
        let (code, said) = run(args);
        assert_eq!(code, 2, "{args:?}: {said}");
    }
    market.kill();
    fs::remove_dir_all(&state).unwrap();
    let said = market.tell("restore", &[&backup]);
    assert!(said.contains("later bids and slots are lost"), "{said}");
    let kept = market.events().len();
    assert!(kept >= before && kept <= 3 + after as usize, "{before} {kept} {after}");
    market.start();
    bid(&client, &name, 41, 1).unwrap();
    market.kill();
    market.verify();
    // A backup that was modified is not used.
    fs::remove_dir_all(&state).unwrap();
    let file = market.dir.path().join("backup/market.db");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let (code, said) = run(&["restore", &backup, "--state-dir", &state]);
    assert!(code == 1 && said.contains("the backup is not used"), "{code} {said}");
    assert!(!fs::exists(&state).unwrap(), "{said}");
}
