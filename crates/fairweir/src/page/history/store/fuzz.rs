//! Properties of the history for arbitrary rows and samples.

use super::super::GroupSample;
use super::super::suggest::suggested;
use super::*;

/// Takes numbers from the bytes; returns 0 once they are used up.
struct Script<'b>(&'b [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// A number that is small, near a power of two, or near a present-day time; of either sign.
    fn number(&mut self) -> i64 {
        let (shape, near) = (self.byte(), i64::from(self.byte() as i8));
        match shape {
            0..=99 => shape.into(),
            100..=163 => (1_i64 << (shape - 100)).wrapping_add(near),
            164..=227 => (1_i64 << (shape - 164)).wrapping_neg().wrapping_add(near),
            _ => NOW as i64 + 60 * i64::from(shape - 240) + near,
        }
    }

    fn name(&mut self) -> String {
        ["host-eth0", "router", "x", ""][usize::from(self.byte() % 4)].to_owned()
    }

    /// A number, or null.
    fn value(&mut self) -> Value {
        match self.byte() % 4 {
            0 => Value::Null,
            _ => Value::Integer(self.number()),
        }
    }
}

pub(crate) const NOW: u64 = 1_800_000_000;

/// The bytes are a script of rows written by someone else, samples, and queries. Properties: nothing panics; points lie
/// in the requested time, in order; paging ends. `look` receives the points.
pub(crate) fn history(data: &[u8], look: &dyn Fn(&[Point])) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("history.sqlite");
    let (mut script, mut store) = (Script(data), opened(&path));
    for _ in 0..24 {
        if script.0.is_empty() {
            break;
        }
        match script.byte() % 8 {
            0 | 1 => insert(&mut script, &store.connection),
            2 | 3 => record(&mut script, &mut store),
            4 => store = opened(&path),
            5 => {
                let _ = store.prune(script.number() as u64, script.number() as u64);
            }
            6 => ask(&mut script, &store, look),
            _ => suggest(&mut script, &store),
        }
    }
    ask(&mut Script(&[]), &store, look);
    suggest(&mut Script(&[]), &store);
}

fn opened(path: &Path) -> Store {
    let (store, note) = Store::open(path, 64_000_000).expect("it is a history");
    assert_eq!(note, None, "no row damages the file");
    store
}

/// Inserts a row that a file might contain. SQLite refuses rows that the tables do not allow.
fn insert(script: &mut Script<'_>, connection: &Connection) {
    let series = ["second", "minute"][usize::from(script.byte() % 2)];
    let _ = match script.byte() % 4 {
        0 => connection.execute(
            "INSERT OR REPLACE INTO daemon VALUES (?1, ?2, ?3)",
            params![script.number() % 8, script.name(), script.name()],
        ),
        1 => connection.execute(
            "INSERT OR REPLACE INTO series VALUES (?1, ?2, ?3, ?4)",
            params![script.number() % 8, script.number() % 8, script.name(), script.value()],
        ),
        2 => connection.execute(
            &format!("INSERT OR REPLACE INTO {series} VALUES (?1, ?2, ?3, ?4, ?5, ?6)"),
            params![
                script.number(),
                script.number() % 8,
                script.value(),
                script.value(),
                script.value(),
                script.value()
            ],
        ),
        _ => connection.execute(
            &format!("INSERT OR REPLACE INTO link_{series} VALUES (?1, ?2, ?3, ?4, ?5)"),
            params![
                script.number(),
                script.number() % 8,
                script.value(),
                script.value(),
                script.value()
            ],
        ),
    };
}

fn record(script: &mut Script<'_>, store: &mut Store) {
    let mut sample = Sample {
        at: NOW + u64::from(script.byte()),
        daemon: script.name(),
        run: script.name(),
        span_ms: (script.byte().is_multiple_of(2)).then_some(1_000),
        capacity_bps: (script.byte().is_multiple_of(2)).then(|| script.number() as u64),
        queue_ms: (script.byte().is_multiple_of(2)).then(|| f64::from_bits(script.number() as u64)),
        groups: Vec::new(),
    };
    for _ in 0..script.byte() % 4 {
        sample.groups.push(GroupSample {
            name: script.name(),
            received: script.number() as u64,
            demand_bps: (script.byte().is_multiple_of(2)).then(|| script.number() as u64),
            weight: script.number() as u32,
        });
    }
    let _ = store.record(&[sample]);
}

fn ask(script: &mut Script<'_>, store: &Store, look: &dyn Fn(&[Point])) {
    let mut query = match script.byte() % 2 {
        0 => Query::last(3_600, 60, NOW + 60),
        _ => Query {
            from: script.number() as u64,
            to: script.number() as u64,
            step_s: script.number() as u64,
            ..Query::default()
        },
    };
    let step = query.step_s.clamp(1, MINUTES_KEPT_S);
    let mut all = Vec::new();
    for _ in 0..50 {
        let Ok((points, next)) = store.points(&query) else { break };
        assert!(points.is_sorted_by_key(|point| point.at));
        let begins = query.from / step * step;
        for point in &points {
            assert!(point.at.is_multiple_of(step) && (begins..query.to).contains(&point.at));
        }
        all.extend(points);
        let Some(next) = next else { break };
        assert!(next > query.from && next < query.to, "the pieces do not end");
        query.from = next;
    }
    look(&all);
}

fn suggest(script: &mut Script<'_>, store: &Store) {
    let from = match script.byte() % 2 {
        0 => NOW - 3_600,
        _ => script.number().max(0) as u64,
    };
    for daemon in store.daemons() {
        let groups = store.groups(&daemon);
        let Ok(seconds) = store.seconds(&daemon, from) else { continue };
        assert!(seconds.is_sorted_by(|a, b| a.at >= b.at));
        let suggested = suggested(daemon, &groups, &seconds);
        assert!(suggested.weights.len() <= groups.len() && !suggested.summary.is_empty());
    }
}
