//! The last table of subscribers that was in force. The daemon starts with it if the present table
//! has mistakes or seems to be truncated, just as a reload would keep the old table.

use std::path::Path;

use fairweir_config::isp::IspFile;
use fairweir_daemon::StateDir;
use tracing::warn;

use super::SHRINK_MAX;
use crate::words::chained;

/// The file name in the state directory.
const FILE: &str = "isp.subscribers";
/// The size limit in bytes, as for a table.
const SIZE_MAX: u64 = 256 << 20;

/// Reads the files. If their table cannot be used, takes the last good table instead, and returns the reason.
///
/// # Errors
/// The mistake in the files, if there is no last good table or it does not help.
pub(super) fn load(path: &Path, state: &StateDir) -> anyhow::Result<(IspFile, Option<String>)> {
    let file = match IspFile::load(path) {
        Ok(file) => file,
        Err(e) => {
            let e = anyhow::Error::new(e);
            return before(path, state).map(|file| (file, Some(chained(&e)))).ok_or(e);
        }
    };
    if file.table.is_none() {
        return Ok((file, None));
    }
    let Some(before) = before(path, state) else { return Ok((file, None)) };
    let all = before.subscribers.len();
    let missing = all.saturating_sub(file.subscribers.len());
    match cut_off(&file, before.has_end, missing, all) {
        Some(why) => Ok((before, Some(why))),
        None => Ok((file, None)),
    }
}

/// The files with the last good table in place of theirs, if there is one.
pub(super) fn before(path: &Path, state: &StateDir) -> Option<IspFile> {
    let kept = Some(state.path_of(FILE)).filter(|kept| kept.exists())?;
    IspFile::load_with(path, Some(&kept)).ok().filter(|file| file.table.is_some())
}

/// Stores the table that is in force now as the last good one.
pub(super) fn keep(file: &mut IspFile, state: &StateDir) {
    let Some(table) = file.table_source.take() else { return };
    let kept = state.read(FILE, SIZE_MAX).ok().flatten();
    if kept.is_some_and(|kept| kept == table.as_bytes()) {
        return;
    }
    if let Err(e) = state.write(FILE, table.as_bytes()) {
        warn!("the next start cannot fall back to this table of subscribers: {e}");
    }
}

/// The reason if files seem to be truncated, for example because the disk was full. Of `all`
/// subscribers that there were before, `missing` are no longer there.
pub(super) fn cut_off(file: &IspFile, had_end: bool, missing: usize, all: usize) -> Option<String> {
    if let Some(table) = file.table.as_ref().filter(|_| had_end && !file.has_end) {
        let table = table.display();
        return Some(format!(
            "{table} has no end mark any more; `fairweir isp reload --force` takes it over"
        ));
    }
    (missing > SHRINK_MAX.0.max(all / SHRINK_MAX.1)).then(|| {
        format!(
            "{missing} of {all} subscribers are missing; `fairweir isp reload --force` removes them"
        )
    })
}
