//! The server's clock, set by libfaketime while the server runs and before it starts.

use super::agents::Home;
use super::*;

/// The library of the package faketime.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// The clock that a market's server sees.
struct Faked {
    file: PathBuf,
}

impl Faked {
    fn of(market: &mut Market) -> Option<Faked> {
        let is_there =
            fairweir_testing::can_run(fs::exists(LIBRARY).unwrap(), "the package faketime");
        let faked = Faked { file: market.dir.path().join("faketime") };
        let file = faked.file.to_str().unwrap().to_owned();
        let one = || "1".to_owned();
        market.envs = vec![
            ("LD_PRELOAD", LIBRARY.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", file),
            ("FAKETIME_NO_CACHE", one()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", one()),
        ];
        faked.set("+0");
        is_there.then_some(faked)
    }

    fn set(&self, offset: &str) {
        let next = self.file.with_extension("next");
        fs::write(&next, offset).unwrap();
        fs::rename(&next, &self.file).unwrap();
    }
}

impl Market {
    fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.status().unwrap_or_default();
            if wanted(&status) {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}: {status}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for a doubt that begins with these words, and checks that no slot is closed meanwhile.
    fn is_doubted(&self, words: &str) {
        let said = |status: &Value| status["doubt"].as_str().is_some_and(|it| it.contains(words));
        self.wait_for(words, said);
    }

    fn is_believed(&self) -> u64 {
        let status = self.wait_for("no doubt", |s| s.is_object() && s["doubt"].is_null());
        status["open_slot"].as_u64().unwrap()
    }

    fn open_slot(&self) -> u64 {
        self.status().unwrap()["open_slot"].as_u64().unwrap()
    }
}

#[test]
fn a_clock_that_is_set_while_the_server_runs_closes_nothing_and_is_told() {
    let mut market = Market::of_one_slot(None);
    let Some(clock) = Faked::of(&mut market) else { return };
    market.start();
    let (client, name) = market.enrol("c");
    let mut home = Home::new(&market, "d", "");
    home.start_with("86400");
    home.wait_for("an answer", |status| status["heard_s_ago"].is_number());
    assert_eq!(market.is_believed(), 0);
    for (sequence, (offset, words)) in
        (1..).zip([("+30d", "30 days ahead"), ("-30d", "30 days behind"), ("+3h", "3 hours ahead")])
    {
        clock.set(offset);
        market.is_doubted(words);
        let refused = bid(&client, &name, 2, sequence);
        assert!(matches!(refused, Err(ClientError::Refused { status: 503, .. })), "{refused:?}");
        let answer = client.ask("GET", "/v1/clock", None).unwrap();
        assert!(answer["doubt"].as_str().unwrap().contains(words), "{answer}");
        let metrics: String = market.ask(&Request::Metrics { top: 0 }).unwrap();
        assert!(metrics.contains("fairweir_market_clock_doubted 1"), "{metrics}");
        let code = json!({ "request": "code", "contract": "e", "peak": null, "hours": 1 });
        assert_eq!(market.ask::<String>(&code), None);
        assert_eq!(market.open_slot(), 0);
        clock.set("+0");
        assert_eq!(market.is_believed(), 0);
        bid(&client, &name, 2, sequence).unwrap();
    }
    // An agent that asks the server meanwhile reports the doubt.
    clock.set("+30d");
    market.is_doubted("30 days ahead");
    home.kill();
    home.start_with("86400");
    home.wait_for("why", |status| status["why"].to_string().contains("closes no slot"));
    home.kill();
    market.kill();
    market.verify();
}

#[test]
fn a_server_that_starts_with_a_wrong_clock_closes_nothing_until_the_operator_accepts_it() {
    for offset in ["+30d", "-30d", "+1h", "-1h"] {
        let mut market = Market::found(60);
        let Some(clock) = Faked::of(&mut market) else { return };
        clock.set(offset);
        market.start();
        let words = if offset.starts_with('+') { "ahead of the end" } else { "behind the end" };
        market.is_doubted(words);
        thread::sleep(Duration::from_secs(2));
        assert!(market.open_slot() <= 1, "{offset}");
        // Recovery without a restart: the clock is corrected.
        clock.set("+0");
        assert!(market.is_believed() <= 2, "{offset}");
        market.kill();
        // The operator accepts a clock that is right: all slots that have ended by it are closed.
        clock.set(offset);
        market.options = vec!["--accept-clock"];
        market.start();
        if offset == "+1h" {
            market.wait_for("60 slots", |s| s["open_slot"].as_u64() > Some(58));
        }
        assert!(market.status().unwrap()["doubt"].is_null());
        market.kill();
        market.verify();
    }
}

#[test]
fn a_server_that_starts_with_another_clock_than_postgres_closes_nothing() {
    let Some(server) = Postgres::start() else { return };
    let mut market = Market::of_one_slot(Some(server.url()));
    let Some(clock) = Faked::of(&mut market) else { return };
    // Judged only by the slots, this could be an outage of three hours.
    clock.set("+3h");
    market.start();
    market.is_doubted("3 hours ahead of the clock of the database");
    assert_eq!(market.open_slot(), 0);
    clock.set("+0");
    assert_eq!(market.is_believed(), 0);
}
