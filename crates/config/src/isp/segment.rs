//! A segment of the operator: a capacity that subscribers share.

use fairweir_core::phantom::plan::{RATE_MAX, RATE_MIN};
use fairweir_core::units::Rate;

use super::plan::check_name;
use crate::{ConfigError, Placed, Table};

/// A valid segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// Unique.
    pub name: String,
    /// Its capacity for download and upload; `None` if that direction is not shared.
    pub capacity: [Option<Rate>; 2],
    /// The guarantee of each member, for download and upload, while there is no lease.
    pub guarantee: [Rate; 2],
    /// The patterns that select the members.
    pub members: Vec<MemberPattern>,
}

/// Selects members of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberPattern {
    /// The subscriber of this name.
    Name(String),
    /// All subscribers whose names begin with this.
    Prefix(String),
}

impl SegmentEntry {
    /// Reads a table `[[segment]]`.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn read(mut table: Table<'_>) -> Result<SegmentEntry, ConfigError> {
        let wanted = "a name, such as \"pon-3\"";
        let name = table.text("name")?.ok_or_else(|| table.missing("name", wanted))?;
        check_name(&name.value).map_err(|e| name.place.error(e))?;
        let capacity = [rate(&mut table, "download")?, rate(&mut table, "upload")?];
        if capacity == [None; 2] {
            let wanted = "a rate, such as \"1gbit\", here or as `upload`";
            return Err(table.missing("download", wanted));
        }
        let guarantee = ["guarantee_download", "guarantee_upload"]
            .map(|key| Ok(rate(&mut table, key)?.unwrap_or(Rate::ZERO)));
        let [download, upload] = guarantee;
        let wanted = "a list of subscribers, such as [\"alice\", \"pon-3/*\"]";
        let texts = table.texts("members")?.ok_or_else(|| table.missing("members", wanted))?;
        let pattern = |Placed { value, place }: Placed<'_, String>| {
            let (name, is_prefix) = match value.strip_suffix('*') {
                Some(prefix) => (prefix.to_owned(), true),
                None => (value, false),
            };
            if !is_prefix || !name.is_empty() {
                check_name(&name).map_err(|e| place.error(e))?;
            }
            Ok(if is_prefix { MemberPattern::Prefix(name) } else { MemberPattern::Name(name) })
        };
        let members = texts.value.into_iter().map(pattern).collect::<Result<_, ConfigError>>()?;
        table.finish()?;
        Ok(SegmentEntry { name: name.value, capacity, guarantee: [download?, upload?], members })
    }
}

fn rate(table: &mut Table<'_>, key: &str) -> Result<Option<Rate>, ConfigError> {
    let Some(Placed { value, place }) = table.parsed::<Rate>(key)? else { return Ok(None) };
    if value < RATE_MIN || value > RATE_MAX {
        let what = format!("rate {value} is out of range ({RATE_MIN} to {RATE_MAX})");
        return Err(place.error(what));
    }
    Ok(Some(value))
}
