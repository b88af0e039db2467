//! The table of subscribers that was in force last: with it the daemon starts if the table is wrong or seems to be cut off,
//! as it would go on with it at a reload.

use std::path::Path;

use fairweir_config::isp::IspFile;
use fairweir_daemon::StateDir;
use tracing::warn;

use super::SHRINK_MAX;
use crate::words::chained;

/// In the state directory.
const FILE: &str = "isp.subscribers";
/// As large as a table may be.
const SIZE_MAX: u64 = 256 << 20;

/// Reads the files; with the table of before if theirs is not to be taken, and why it is not.
///
/// # Errors
/// What is wrong, if there is no table of before, or it does not help.
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

/// The same files with the table of before, if there is one.
pub(super) fn before(path: &Path, state: &StateDir) -> Option<IspFile> {
    let kept = Some(state.path_of(FILE)).filter(|kept| kept.exists())?;
    IspFile::load_with(path, Some(&kept)).ok().filter(|file| file.table.is_some())
}

/// Keeps the table that is in force now.
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

/// Says why files look as if they were cut off, as by a full disk, if they do: of `all` subscribers before, `missing` are
/// not there any more.
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
