//! Turns the table `[link]` into a valid [`Access`].

use std::path::Path;

use fairweir_core::units::{Bytes, Rate, Span, Time};

use super::Access;
use super::value::{positive, step_time};
use crate::link::{Buffer, Capacity, Discipline, Jitter, JitterModel, RateStep, Red, Trace};
use fairweir_config::{ConfigError, Place, Placed, Table, Text};

/// Reads a file whose path is relative to the scenario.
pub(super) type Load<'l> = &'l dyn Fn(&Path) -> Result<Text, ConfigError>;

const BUFFER: Buffer = Buffer::Time(Span::millis(100));
const MTU: u64 = 1500;
/// The longest mean length of a burst of losses, in packets.
const LOSS_BURST_MAX: u64 = 10_000;
/// The longest jitter and the longest time between grants.
const DELAY_MAX: Span = Span::secs(60);
/// From the packet size that every host accepts (RFC 791) to the largest on Ethernet, in bytes.
const MTU_RANGE: (u64, u64) = (576, 9000);

pub(super) fn access(
    mut table: Table<'_>,
    end: Time,
    load: Load<'_>,
) -> Result<Access, ConfigError> {
    let capacity = match table.text("trace")? {
        Some(file) => trace(&mut table, file, load)?,
        None => rated(&mut table, end)?,
    };
    let buffer = table.parsed("buffer")?.map_or(BUFFER, |p| p.value);
    let mut access = Access {
        buffer,
        up_rate: table.parsed("up_rate")?.map_or(Ok(capacity.nominal()), positive)?,
        up_buffer: table.parsed("up_buffer")?.map_or(buffer, |p| p.value),
        mtu: table.integer("mtu", MTU_RANGE.0, MTU_RANGE.1)?.map_or(MTU, |p| p.value) as u32,
        loss_ppm: table.ratio_ppm("loss")?.unwrap_or(0),
        loss_burst: 1,
        jitter: jitter(&mut table)?,
        down_grant: bounded(&mut table, "down_grant")?,
        up_grant: bounded(&mut table, "up_grant")?,
        queue: discipline(&mut table)?,
        capacity,
    };
    if let Some(burst) = table.integer("loss_burst", 1, LOSS_BURST_MAX)? {
        access.loss_burst = burst.value as u32;
        // With more losses, bursts would follow each other without a gap and so be longer.
        let most = burst.value as f64 / (burst.value + 1) as f64;
        let loss = f64::from(access.loss_ppm) / 1e6;
        if burst.value > 1 && loss > most {
            let what = format!("bursts of {} allow a `loss` up to {most:.3}", burst.value);
            return Err(burst.place.error(format!("{what}; found {loss}")));
        }
    }
    table.finish()?;
    Ok(access)
}

/// The keys `jitter`, `jitter_part` and `jitter_model`.
fn jitter(table: &mut Table<'_>) -> Result<Jitter, ConfigError> {
    let models = [
        ("uniform", JitterModel::Uniform),
        ("exponential", JitterModel::Exponential),
        ("burst", JitterModel::Burst),
    ];
    let max = bounded(table, "jitter")?;
    let part_ppm = table.ratio_ppm("jitter_part")?;
    let model = table.word("jitter_model", &models)?;
    let none = Jitter::NONE;
    Ok(Jitter {
        max,
        part_ppm: part_ppm.unwrap_or(none.part_ppm),
        model: model.map_or(none.model, |p| p.value),
    })
}

/// A delay; zero by default.
fn bounded(table: &mut Table<'_>, key: &str) -> Result<Span, ConfigError> {
    let Some(delay) = table.parsed::<Span>(key)? else { return Ok(Span::ZERO) };
    if delay.value > DELAY_MAX {
        let what = format!("found {}, allowed is from 0ms to {DELAY_MAX}", delay.value);
        return Err(delay.place.error(what));
    }
    Ok(delay.value)
}

/// The keys `rate`, `steps`, `burst` and `line_rate`.
fn rated(table: &mut Table<'_>, end: Time) -> Result<Capacity, ConfigError> {
    let rate = table.parsed("rate")?;
    let rate = rate.ok_or_else(|| table.missing("rate", "a rate such as 30mbit, or a `trace`"))?;
    let mut steps = vec![RateStep { at: Time::ZERO, rate: positive(rate)? }];
    for mut step in table.tables("steps")? {
        let last = steps[steps.len() - 1].at;
        let at = step_time(&mut step, last, end)?;
        let rate = step.parsed("rate")?;
        let rate = rate.ok_or_else(|| step.missing("rate", "a rate such as 10mbit"))?;
        steps.push(RateStep { at, rate: positive(rate)? });
        step.finish()?;
    }
    match (table.parsed::<Bytes>("burst")?, table.parsed::<Rate>("line_rate")?) {
        (None, None) => Ok(Capacity::Steps(steps)),
        (Some(_), None) => {
            let wanted = "the rate of bursts, such as 1gbit, since there is a `burst`";
            Err(table.missing("line_rate", wanted))
        }
        (None, Some(_)) => {
            let wanted = "what leaves at `line_rate` after a rest, such as 150kB";
            Err(table.missing("burst", wanted))
        }
        (Some(burst), Some(line_rate)) => {
            if burst.value == Bytes::ZERO {
                return Err(burst.place.error("a burst must be greater than zero"));
            }
            let most = steps.iter().map(|step| step.rate).fold(Rate::ZERO, Rate::max);
            if line_rate.value < most {
                let what = format!("found {}, allowed is from {most}: the rate", line_rate.value);
                return Err(line_rate.place.error(what));
            }
            Ok(Capacity::Shaped { steps, burst: burst.value, line_rate: line_rate.value })
        }
    }
}

/// The key `trace`: a file's name relative to the scenario's file.
fn trace(
    table: &mut Table<'_>,
    Placed { value, place }: Placed<'_, String>,
    load: Load<'_>,
) -> Result<Capacity, ConfigError> {
    let without =
        |place: Place<'_>| Err(place.error("a link with a `trace` has no rate of its own"));
    for key in ["rate", "burst", "line_rate"] {
        if let Some(found) = table.text(key)? {
            return without(found.place);
        }
    }
    if let Some(step) = table.tables("steps")?.first() {
        return without(step.place());
    }
    let path = Path::new(place.file()).with_file_name(value);
    let text = load(&path).map_err(|e| place.error(e))?;
    let trace = text.as_str().parse::<Trace>();
    let trace = trace.map_err(|e| text.error(e.line, None, "", e.what))?;
    Ok(Capacity::Trace(trace))
}

/// The key `queue` and the table `red`.
fn discipline(table: &mut Table<'_>) -> Result<Discipline, ConfigError> {
    let words = [
        ("fifo", Discipline::Fifo),
        ("wfq", Discipline::Wfq),
        ("drr", Discipline::Drr),
        ("red", Discipline::Red(Red::default())),
        ("codel", Discipline::Codel),
        ("fq_codel", Discipline::FqCodel),
        ("pie", Discipline::Pie),
    ];
    let queue = table.word("queue", &words)?.map_or(Discipline::Fifo, |p| p.value);
    let Some(details) = table.table("red")? else { return Ok(queue) };
    match queue {
        Discipline::Red(defaults) => Ok(Discipline::Red(red(details, defaults)?)),
        _ => Err(details.place().error("only a link with `queue = \"red\"` has it")),
    }
}

fn red(mut table: Table<'_>, defaults: Red) -> Result<Red, ConfigError> {
    let place = table.place();
    let red = Red {
        min_ppm: table.ratio_ppm("min")?.unwrap_or(defaults.min_ppm),
        max_ppm: table.ratio_ppm("max")?.unwrap_or(defaults.max_ppm),
        max_p_ppm: table.ratio_ppm("max_p")?.unwrap_or(defaults.max_p_ppm),
        wq_ppm: table.ratio_ppm("wq")?.unwrap_or(defaults.wq_ppm),
    };
    table.finish()?;
    if red.min_ppm >= red.max_ppm {
        let ratio = |ppm: u32| f64::from(ppm) / 1e6;
        let (min, max) = (ratio(red.min_ppm), ratio(red.max_ppm));
        return Err(place.error(format!("`min` is {min}, allowed is below `max`, {max}")));
    }
    if red.wq_ppm == 0 {
        return Err(place.error("with a `wq` of 0 the average would never move; expected more"));
    }
    Ok(red)
}

impl std::str::FromStr for Buffer {
    type Err = String;

    /// Reads `100ms`, `150kB` or `10p`.
    fn from_str(text: &str) -> Result<Buffer, String> {
        let wanted = || {
            format!(
                "`{text}` is not a buffer size; expected a time (100ms), bytes (150kB) or packets (10p)"
            )
        };
        let packets = text.strip_suffix('p').map(str::parse::<u32>);
        let buffer = match packets {
            Some(packets) => Buffer::Packets(packets.map_err(|_| wanted())?),
            None => match (text.parse::<Span>(), text.parse::<Bytes>()) {
                (Ok(span), _) => Buffer::Time(span),
                (_, Ok(bytes)) => Buffer::Bytes(bytes),
                _ => return Err(wanted()),
            },
        };
        let empty = [Buffer::Packets(0), Buffer::Time(Span::ZERO), Buffer::Bytes(Bytes::ZERO)];
        if empty.contains(&buffer) {
            return Err(format!("`{text}` holds nothing; expected a buffer above zero"));
        }
        Ok(buffer)
    }
}
