//! What subscribers used, written for billing: the table `[usage]`.

use fairweir_core::units::Span;

use crate::{ConfigError, Placed, Table};

/// Table `[usage]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageSection {
    /// How often rows are written.
    pub interval: Span,
    /// For how many days files are kept.
    pub days: u64,
}

/// Shorter ones fill the disk, and of longer ones a killed daemon loses more.
const INTERVAL_RANGE: (Span, Span) = (Span::secs(10), Span::secs(86_400));
const INTERVAL_DEFAULT: Span = Span::secs(3_600);
const DAYS_MAX: u64 = 3_650;
const DAYS_DEFAULT: u64 = 31;

impl UsageSection {
    /// Reads the table.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn read(mut table: Table<'_>) -> Result<UsageSection, ConfigError> {
        let interval = match table.parsed::<Span>("interval")? {
            None => INTERVAL_DEFAULT,
            Some(Placed { value, place }) => {
                let (least, most) = INTERVAL_RANGE;
                if value < least || value > most {
                    let what = format!("interval {value} is out of range ({least} to {most})");
                    return Err(place.error(what));
                }
                value
            }
        };
        let days = table.integer("days", 1, DAYS_MAX)?.map_or(DAYS_DEFAULT, |days| days.value);
        table.finish(&["interval", "days"])?;
        Ok(UsageSection { interval, days })
    }
}
