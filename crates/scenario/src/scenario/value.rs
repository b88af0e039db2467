//! Readers of values that occur in several tables of a scenario.

use fairweir_config::{ConfigError, Placed, Table};
use fairweir_core::units::{Rate, Span, Time};

/// The key `at` of a step, which is after the last step and before the end.
pub(super) fn step_time(step: &mut Table<'_>, last: Time, end: Time) -> Result<Time, ConfigError> {
    let at = time(step, "at", last, end)?;
    let at = at.ok_or_else(|| step.missing("at", "a time such as 40s"))?;
    if at.value <= last {
        let last = last.since(Time::ZERO);
        return Err(at.place.error(format!("the steps are out of order: the last is at {last}")));
    }
    if at.value >= end {
        let end = end.since(Time::ZERO);
        return Err(at.place.error(format!("found a step after the end at {end}")));
    }
    Ok(at.value)
}

/// An instant that is not after `end`.
pub(super) fn time<'t>(
    table: &mut Table<'t>,
    key: &str,
    from: Time,
    end: Time,
) -> Result<Option<Placed<'t, Time>>, ConfigError> {
    let Some(Placed { value, place }) = table.parsed::<Span>(key)? else { return Ok(None) };
    if Time::ZERO + value > end {
        let (from, end) = (from.since(Time::ZERO), end.since(Time::ZERO));
        return Err(place.error(format!("found {value}, allowed is from {from} to {end}")));
    }
    Ok(Some(Placed { value: Time::ZERO + value, place }))
}

/// A rate above zero.
pub(super) fn positive(placed: Placed<'_, Rate>) -> Result<Rate, ConfigError> {
    match placed.value {
        Rate::ZERO => Err(placed.place.error("a rate of zero carries nothing; expected more")),
        rate => Ok(rate),
    }
}
