//! The file of `[set]`: daemons write it for `fairweir set` and for the page.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;

use fairweir_config::host::set::{self, Changes, PathOf, Setting};
use fairweir_daemon::StateDir;

use super::wire::Changed;

/// Writes values to the file of `[set]` in this directory, and calls `reload` to apply them; on an
/// error the old file is restored.
///
/// # Errors
/// The reason why nothing was changed.
pub(crate) fn put(
    dir: &StateDir,
    changes: &Changes,
    path_of: PathOf,
    mut reload: impl FnMut() -> Result<(), String>,
) -> Result<Changed, String> {
    let old = dir.read(set::FILE, set::FILE_BYTES_MAX).map_err(|e| e.to_string())?;
    let old = old.map(String::from_utf8).transpose();
    let old = old.map_err(|_| format!("{} is not UTF-8", set::FILE))?;
    let (new, undo) = set::changed(old.as_deref().unwrap_or_default(), changes, path_of)?;
    put_file(dir, Some(&new).filter(|new| !new.is_empty()))?;
    if let Err(error) = reload() {
        put_file(dir, old.as_ref())?;
        // Applies the old configuration, which is on disk again, and restores its earlier error.
        let _ = reload();
        return Err(error);
    }
    let words: Vec<String> = changes.iter().map(|(key, value)| in_words(key, value)).collect();
    Ok(Changed { message: words.join(", "), undo })
}

/// Writes the file of `[set]`, or removes it.
fn put_file(dir: &StateDir, text: Option<&String>) -> Result<(), String> {
    match text {
        Some(text) => {
            dir.write(set::FILE, text.as_bytes()).map_err(|e| e.to_string())?;
            // Readable for all, like the other files, since any user may run `fairweir check`.
            let readable = fs::Permissions::from_mode(0o644);
            let set = fs::set_permissions(dir.path_of(set::FILE), readable);
            set.map_err(|e| format!("make {} readable: {e}", set::FILE))
        }
        None => match fs::remove_file(dir.path_of(set::FILE)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(format!("remove {}: {e}", set::FILE))
            }
            _ => Ok(()),
        },
    }
}

fn in_words(key: &str, value: &Option<Setting>) -> String {
    match value {
        None => format!("{key} as configured"),
        Some(Setting::Truth(truth)) => format!("{key} = {truth}"),
        Some(Setting::Number(number)) => format!("{key} = {number}"),
        Some(Setting::Text(text)) => format!("{key} = {text}"),
    }
}
