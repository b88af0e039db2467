//! What `fairweir doctor --fix` can correct: kernel settings, modules that are not loaded, what a
//! killed daemon left behind, and directories that other users can write to.
//!
//! A setting is changed at once, and by a file for the next boot. The file also has the previous
//! value, so that `--undo` restores it. No configuration and nothing of other programs is changed.

use std::fmt::{self, Display};
use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use fairweir_daemon::{Lock, StateDir, control_socket, instances};
use fairweir_linux::doctor::Finding;
use fairweir_linux::leftovers;
use nix::libc;

use crate::cli::DoctorArgs;
use crate::off;

/// Settings that fairweir needs: the key, the value, and what does not work otherwise.
const SETTINGS: [(&str, u64, &str); 2] = [
    (
        "net.ipv4.tcp_timestamps",
        1,
        "the queueing delay of connections that receive; the probe alone measures the link",
    ),
    ("net.core.bpf_jit_enable", 1, "speed: BPF programs are interpreted"),
];

/// The name of the finding about these modules; see `fairweir_linux::doctor`.
const SHAPING: &str = "ifb, HTB and bfifo";

/// The modules and the parameters for loading them. Without `numifbs=0`, ifb creates two devices.
const MODULES: [&[&str]; 2] = [&["ifb", "numifbs=0"], &["sch_htb"]];

const SYSCTL_DIR: &str = "sysctl.d";
const SYSCTL_FILE: &str = "90-fairweir.conf";
const MODULES_DIR: &str = "modules-load.d";
const MODULES_FILE: &str = "fairweir.conf";

/// The prefix of a line with a value to restore.
const BEFORE: &str = "# before: ";

const FILE_MAX: u64 = 4_096;

/// A correction.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fix {
    Modules,
    Setting { key: &'static str, value: u64, before: u64 },
    Leftovers { dev: String },
    Socket { name: String },
    Mode { path: PathBuf, before: u32 },
}

impl Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fix::Modules => write!(f, "load the kernel modules ifb and sch_htb, now and at boot"),
            Fix::Setting { key, value, before } => {
                write!(f, "set {key} to {value} instead of {before}, now and at boot")
            }
            Fix::Leftovers { dev } => write!(f, "remove what a killed daemon left at {dev}"),
            Fix::Socket { name } => write!(f, "remove the socket of {name}, which does not run"),
            Fix::Mode { path, before } => {
                let (path, after) = (path.display(), before & !0o022);
                write!(f, "set the mode of {path} to {after:04o} instead of {before:04o}")
            }
        }
    }
}

/// The fix for a finding about the kernel.
pub(super) fn of_kernel(finding: &Finding) -> Option<Fix> {
    (!finding.found && finding.feature == SHAPING).then_some(Fix::Modules)
}

/// Findings about this machine other than the kernel's features.
pub(super) fn findings(args: &DoctorArgs) -> Vec<(Finding, Option<Fix>)> {
    let mut all: Vec<_> = SETTINGS.iter().filter_map(setting).collect();
    all.extend(left_behind(&args.run_dir.run_dir));
    all.extend(sockets(&args.run_dir.run_dir));
    all.extend(directories(args));
    all
}

fn setting(
    &(key, value, lost): &(&'static str, u64, &'static str),
) -> Option<(Finding, Option<Fix>)> {
    // The file does not exist in kernels without this setting, or in namespaces that may not set it.
    let before: u64 = fs::read_to_string(path_of(key)).ok()?.trim().parse().ok()?;
    let found = before != 0;
    let fix = (!found).then_some(Fix::Setting { key, value, before });
    Some((finding(format!("sysctl {key}"), found, before.to_string(), lost), fix))
}

fn left_behind(run_dir: &Path) -> Vec<(Finding, Option<Fix>)> {
    let devices = match leftovers() {
        Ok(devices) => devices,
        Err(e) => {
            tracing::debug!(error = %e, "nothing left behind is looked for");
            return Vec::new();
        }
    };
    // A running daemon holds the lock of its device.
    let stale = devices.into_iter().filter(|dev| Lock::device(run_dir, dev).is_ok());
    let stale = stale.map(|dev| {
        let detail = "a daemon left its classes, classifier or policer".to_owned();
        let lost = "this interface: the next daemon has to remove them first";
        (finding(format!("left-overs at {dev}"), false, detail, lost), Some(Fix::Leftovers { dev }))
    });
    stale.collect()
}

fn sockets(run_dir: &Path) -> Vec<(Finding, Option<Fix>)> {
    let names = instances(run_dir).unwrap_or_default();
    let stale = names.into_iter().filter(|name| {
        let connected = std::os::unix::net::UnixStream::connect(control_socket(run_dir, name));
        connected.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
            && Lock::acquire(run_dir, name).is_ok()
    });
    let stale = stale.map(|name| {
        let detail = "no daemon listens at it".to_owned();
        let lost = "nothing; the next start replaces it";
        (finding(format!("socket of {name}"), false, detail, lost), Some(Fix::Socket { name }))
    });
    stale.collect()
}

/// Checks the directories whose contents daemons trust.
fn directories(args: &DoctorArgs) -> Vec<(Finding, Option<Fix>)> {
    let below = fs::read_dir(&args.state).into_iter().flatten().flatten().map(|entry| entry.path());
    let all = [args.run_dir.run_dir.clone(), args.state.clone()].into_iter().chain(below);
    let wrong = all.take(DIRECTORIES_MAX).filter_map(|path| {
        let metadata = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_dir)?;
        let mode = metadata.mode() & 0o7777;
        let is_ours = metadata.uid() == 0 || metadata.uid() == nix::unistd::geteuid().as_raw();
        if is_ours && mode & 0o022 == 0 {
            return None;
        }
        let owner = metadata.uid();
        let detail = format!("belongs to uid {owner} with mode {mode:04o}; others may change it");
        let lost = "the daemon: it refuses to read or write there";
        let name = format!("directory {}", path.display());
        // If another user owns the directory, a new owner would not make its contents trustworthy.
        let fix = is_ours.then_some(Fix::Mode { path, before: mode });
        Some((finding(name, false, detail, lost), fix))
    });
    wrong.collect()
}

/// The most directories that are checked.
const DIRECTORIES_MAX: usize = 32;

fn finding(feature: String, found: bool, detail: String, lost_without: &'static str) -> Finding {
    Finding { feature, found, detail, since: "", lost_without, is_required: false }
}

impl Fix {
    /// Applies the fix, and describes what was done and how to undo it.
    ///
    /// # Errors
    /// If the fix cannot be applied.
    pub(super) fn apply(&self, args: &DoctorArgs) -> anyhow::Result<String> {
        match self {
            Fix::Modules => load_modules(&args.etc),
            Fix::Setting { key, value, before } => {
                fs::write(path_of(key), value.to_string())
                    .with_context(|| format!("cannot write {}", path_of(key).display()))?;
                let dir = store(&args.etc.join(SYSCTL_DIR))?;
                let old = dir.read(SYSCTL_FILE, FILE_MAX)?.unwrap_or_default();
                let mut text = String::from_utf8_lossy(&old).into_owned();
                text.push_str(&format!("{BEFORE}{key} = {before}\n{key} = {value}\n"));
                dir.write(SYSCTL_FILE, text.as_bytes())?;
                Ok(format!("{key} is {value}; `fairweir doctor --undo` restores {before}"))
            }
            Fix::Leftovers { dev } => Ok(off::clean(&args.run_dir.run_dir, dev)?.join("; ")),
            Fix::Socket { name } => {
                let run_dir = &args.run_dir.run_dir;
                // The lock keeps a daemon of this name from starting meanwhile.
                let _lock = Lock::acquire(run_dir, name)?;
                Ok(off::remove_socket(run_dir, name)?.unwrap_or_default())
            }
            Fix::Mode { path, before } => {
                let mut options = fs::OpenOptions::new();
                options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY);
                let opened = options.open(path);
                let opened = opened.with_context(|| format!("cannot open {}", path.display()))?;
                opened.set_permissions(fs::Permissions::from_mode(before & !0o022))?;
                let path = path.display();
                Ok(format!("changed the mode of {path}; `chmod {before:04o} {path}` restores it"))
            }
        }
    }
}

fn load_modules(etc: &Path) -> anyhow::Result<String> {
    for module in MODULES {
        let status = Command::new("modprobe").args(module).status();
        if !status.context("cannot run modprobe")?.success() {
            bail!("`modprobe {}` failed", module.join(" "));
        }
    }
    let names: Vec<&str> = MODULES.iter().map(|module| module[0]).collect();
    let text = names.join("\n") + "\n";
    store(&etc.join(MODULES_DIR))?.write(MODULES_FILE, text.as_bytes())?;
    Ok("loaded the modules; after `fairweir doctor --undo` they are not loaded at boot".to_owned())
}

/// A directory of settings that is read and written without following symbolic links.
fn store(path: &Path) -> anyhow::Result<StateDir> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(StateDir::new(path))
}

/// Restores the settings, removes the files, and describes what was done.
///
/// # Errors
/// If a setting cannot be restored; its file is then kept.
pub(super) fn undo(args: &DoctorArgs) -> anyhow::Result<Vec<String>> {
    let mut done = Vec::new();
    let dir = StateDir::new(&args.etc.join(SYSCTL_DIR));
    if let Some(text) = dir.read(SYSCTL_FILE, FILE_MAX)? {
        for (key, before) in values_before(&String::from_utf8_lossy(&text)) {
            fs::write(path_of(key), before.to_string())
                .with_context(|| format!("cannot write {}", path_of(key).display()))?;
            done.push(format!("{key} is {before} again"));
        }
        done.push(remove(&dir.path_of(SYSCTL_FILE))?);
    }
    let modules = args.etc.join(MODULES_DIR).join(MODULES_FILE);
    if modules.exists() {
        done.push(remove(&modules)?);
    }
    Ok(done)
}

fn remove(path: &Path) -> anyhow::Result<String> {
    fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(format!("removed {}", path.display()))
}

/// The oldest value of each known setting in a file that [`Fix::apply`] wrote.
fn values_before(text: &str) -> Vec<(&'static str, u64)> {
    let mut found: Vec<(&'static str, u64)> = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.strip_prefix(BEFORE).and_then(|l| l.split_once(" = ")) else {
            continue;
        };
        let known = SETTINGS.iter().map(|(known, ..)| *known).find(|known| *known == key);
        if let (Some(key), Ok(value)) = (known, value.parse())
            && !found.iter().any(|(seen, _)| *seen == key)
        {
            found.push((key, value));
        }
    }
    found
}

fn path_of(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key.replace('.', "/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_settings_are_restored_and_each_to_its_first_value() {
        let text = "# before: net.ipv4.tcp_timestamps = 0\nnet.ipv4.tcp_timestamps = 1\n\
                    # before: net.ipv4.tcp_timestamps = 2\n# before: kernel.core_pattern = 1\n\
                    # before: net.core.bpf_jit_enable = |sh\n";
        assert_eq!(values_before(text), [("net.ipv4.tcp_timestamps", 0)]);
    }
}
