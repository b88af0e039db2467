//! The target of a connection: common keys of senders in scenarios and of `fairweir sender`.

use fairweir_core::delegate::{Point, Shape, Target, Trace, TraceError};
use fairweir_core::share::Weight;
use fairweir_core::units::{Rate, Span, Time};

use crate::{ConfigError, Table};

/// Reads one of the keys `target`, `trace`, `sine` and `connections`. A sine ends at `end`, and is
/// not accepted without one.
///
/// # Errors
/// The mistake in them, or that there is not exactly one of the four.
pub fn target(table: &mut Table<'_>, end: Option<Time>) -> Result<Target, ConfigError> {
    let place = table.place();
    let constant = table.parsed::<Rate>("target")?;
    let points = table.tables("trace")?;
    let shapes = [("linear", Shape::Linear), ("step", Shape::Step)];
    let shape = table.word("shape", &shapes)?;
    let sine = match end {
        Some(end) => table.table("sine")?.map(|sine| (sine, end)),
        None => None,
    };
    let connections = table.integer("connections", 1, Weight::MAX.into())?;
    let given = [constant.is_some(), !points.is_empty(), sine.is_some(), connections.is_some()];
    if given.iter().filter(|given| **given).count() != 1 {
        let sine = if end.is_some() { ", `sine`" } else { "" };
        let what = format!("expected one of `target`, `trace`{sine} and `connections`");
        return Err(place.error(what));
    }
    if let Some(shape) = shape.as_ref().filter(|_| points.is_empty()) {
        return Err(shape.place.error("`shape` belongs to `trace`"));
    }
    if let Some(connections) = connections {
        let count = Weight::new(connections.value as u32);
        return Ok(Target::Connections(count.expect("invariant: the range was checked")));
    }
    if let Some(constant) = constant {
        return Trace::constant(constant.value)
            .map(Target::Trace)
            .map_err(|e| constant.place.error(e));
    }
    if let Some((sine, end)) = sine {
        let place = sine.place();
        return self::sine(sine, end)?.map(Target::Trace).map_err(|e| place.error(e));
    }
    let mut all = Vec::new();
    for mut table in points {
        let time = table.parsed::<Span>("at")?;
        let time = time.ok_or_else(|| table.missing("at", "a time such as 40s"))?;
        let rate = table.parsed::<Rate>("rate")?;
        let rate = rate.ok_or_else(|| table.missing("rate", "a rate such as 8mbit"))?;
        table.finish()?;
        all.push(Point { at: Time::ZERO + time.value, rate: rate.value });
    }
    let shape = shape.map_or(Shape::Linear, |p| p.value);
    Trace::new(&all, shape).map(Target::Trace).map_err(|e| place.error(e))
}

fn sine(mut table: Table<'_>, end: Time) -> Result<Result<Trace, TraceError>, ConfigError> {
    let wanted = "a rate such as 8mbit";
    let mean = table.parsed("mean")?.ok_or_else(|| table.missing("mean", wanted))?;
    let amplitude = table.parsed("amplitude")?;
    let amplitude = amplitude.ok_or_else(|| table.missing("amplitude", wanted))?;
    let period = table.parsed("period")?;
    let period = period.ok_or_else(|| table.missing("period", "a time such as 40s"))?;
    let from = table.parsed("from")?.map_or(Span::ZERO, |p| p.value);
    table.finish()?;
    Ok(Trace::sine(mean.value, amplitude.value, period.value, Time::ZERO + from, end))
}
