//! Faults of a connection to a database, and deliberately broken stores.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::super::rows::{Dialect, Failed, Rows, Value};

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % most
    }

    pub(super) fn pause(&mut self, most_ms: u64) {
        thread::sleep(Duration::from_micros(self.below(most_ms * 1_000)));
    }
}

/// The faults of one server's successive connections.
pub(super) struct Fate {
    pub(super) is_on: AtomicBool,
    pub(super) dice: Mutex<Dice>,
    pub(super) broken: Option<Broken>,
}

/// A deliberate defect of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// Acknowledges before it commits: a server that ends in between loses what it has acknowledged.
    AcknowledgesBeforeCommit,
    /// Omits the last event of a batch.
    LosesEvents,
    /// Writes an event twice.
    RepeatsEvents,
    /// Closes a slot that is already closed.
    ClosesTwice,
    /// Gives a gateway an extra micro-credit.
    MakesCredits,
    /// Does not wait for other writers, and reuses their event numbers.
    OverwritesOthers,
}

impl Broken {
    pub(super) const ALL: [Broken; 6] = [
        Broken::AcknowledgesBeforeCommit,
        Broken::LosesEvents,
        Broken::RepeatsEvents,
        Broken::ClosesTwice,
        Broken::MakesCredits,
        Broken::OverwritesOthers,
    ];
}

/// A connection with faults: before or after any statement it may break, as if the server were killed there,
/// or be slow.
pub(super) struct Faulty {
    rows: Box<dyn Rows>,
    fate: Arc<Fate>,
    is_lost: bool,
}

impl Faulty {
    pub(super) fn new(rows: Box<dyn Rows>, fate: Arc<Fate>) -> Faulty {
        Faulty { rows, fate, is_lost: false }
    }

    fn dice(&self) -> u64 {
        let mut dice = self.fate.dice.lock().unwrap_or_else(PoisonError::into_inner);
        if self.fate.is_on.load(Ordering::Relaxed) { dice.below(250) } else { u64::MAX }
    }

    fn step<T>(
        &mut self,
        step: impl FnOnce(&mut dyn Rows) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let lost = || Failed::Refused("the connection is lost".into());
        let fate = self.dice();
        self.is_lost |= fate == 0;
        if self.is_lost {
            return Err(lost());
        }
        if (1..4).contains(&fate) {
            thread::sleep(Duration::from_millis(5 * fate));
        }
        let done = step(&mut *self.rows);
        if (4..7).contains(&fate) {
            thread::sleep(Duration::from_millis(5 * (fate - 3)));
        }
        self.is_lost = fate == 7;
        if self.is_lost { Err(lost()) } else { done }
    }

    fn is_broken(&self, how: Broken) -> bool {
        self.fate.broken == Some(how) && self.dice() < 25
    }
}

impl Rows for Faulty {
    fn dialect(&self) -> &'static Dialect {
        self.rows.dialect()
    }

    fn execute(&mut self, sql: &str) -> Result<(), Failed> {
        if sql == "commit" && self.is_broken(Broken::AcknowledgesBeforeCommit) {
            self.is_lost = true;
            return Ok(());
        }
        self.step(|rows| rows.execute(sql))
    }

    fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Vec<Value>>, Failed> {
        let mut values = values.to_vec();
        if sql == self.dialect().add_events
            && let [Value::Number(after), Value::Text(bodies)] = &mut values[..]
        {
            let mut events: Vec<String> = serde_json::from_str(bodies).expect("a list of texts");
            let last = events.last().expect("an event").clone();
            if self.is_broken(Broken::LosesEvents) {
                events.pop();
            }
            let is_close = last.contains("\"close\"");
            let again = if is_close { Broken::ClosesTwice } else { Broken::RepeatsEvents };
            if self.is_broken(again) {
                events.push(last);
            }
            if self.is_broken(Broken::OverwritesOthers) && *after > 0 {
                let remove = "delete from event where number = $1";
                self.step(|rows| rows.query(remove, &[Value::Number(*after)]))?;
                *after -= 1;
                events.push(events[0].clone());
            }
            *bodies = serde_json::to_string(&events).expect("texts are JSON");
        }
        if sql == self.dialect().add_statements && self.is_broken(Broken::MakesCredits) {
            let Some(Value::Text(rows)) = values.get_mut(2) else { unreachable!("three values") };
            let mut list: Vec<(String, i64, i64, i64, i64, i64)> =
                serde_json::from_str(rows).expect("a list of rows");
            list[0].3 += 1;
            list[0].5 += 1;
            *rows = serde_json::to_string(&list).expect("rows are JSON");
        }
        self.step(|rows| rows.query(sql, &values))
    }
}
