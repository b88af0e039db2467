//! Knowledge about open connections that is kept while the daemon restarts.
//!
//! Problem: a connection names its host in its first bytes. A daemon that starts later does not see them. A browser
//! keeps its connections as long as a page uses them.
//!
//! Method: at its end the daemon writes the names to a file of its own in the run directory, which is empty after a
//! reboot. The next daemon reads the file if it starts soon, and removes it. A daemon that was killed leaves no file.
//! Names from packets hold under any policy; names from an extension only while the
//! groups have the same names and patterns.
//!
//! A user who could write the file could move connections between groups: it is in a directory that only the
//! daemon's user may change, and its content is bounded and checked in the same way as packets.

use std::path::Path;

use fairweir_core::policy::{Group, Match, Policy};
use fairweir_core::sites::{KEPT_MAX, Kept};
use fairweir_daemon::{StateDir, unix_now};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// The name of the directory below the run directory.
const DIR: &str = "connections";
/// The longest silence of a UDP flow, in seconds; afterwards it counts as a new flow (`bpf/heard.h`).
const AGE_MAX_S: u64 = 120;
/// The largest file, in bytes: ports and names of [`KEPT_MAX`] connections.
const FILE_SIZE_MAX: u64 = 16 << 20;

/// The connections that were open when a daemon ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct KeptConnections {
    version: u32,
    /// Seconds since 1970.
    at: u64,
    groups: Vec<GroupPatterns>,
    connections: Vec<Kept>,
}

/// The part of the policy on which an extension's claims depend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct GroupPatterns {
    name: String,
    sites: Vec<String>,
}

/// The `web:` patterns of a group.
pub(super) fn patterns(group: &Group) -> Vec<String> {
    let sites = group.matches.iter().filter_map(|matched| match matched {
        Match::Web(site) => Some(site.to_string()),
        _ => None,
    });
    sites.collect()
}

fn all_patterns(policy: &Policy) -> Vec<GroupPatterns> {
    let groups = policy.groups().iter();
    groups.map(|group| GroupPatterns { name: group.name.clone(), sites: patterns(group) }).collect()
}

impl KeptConnections {
    pub(super) fn new(policy: &Policy, connections: Vec<Kept>) -> KeptConnections {
        KeptConnections { version: 1, at: unix_now(), groups: all_patterns(policy), connections }
    }

    /// The connections that are still valid under `policy`.
    pub(super) fn under(self, policy: &Policy) -> Vec<Kept> {
        let is_same = self.groups == all_patterns(policy);
        let connections = self.connections.into_iter().take(KEPT_MAX);
        let kept = connections.map(|kept| {
            let count = policy.groups().len();
            let is_group = |group: Option<usize>| group.is_none_or(|group| group < count);
            let claimed = kept.claimed.filter(|claimed| is_same && is_group(claimed.group));
            Kept { claimed, ..kept }
        });
        kept.collect()
    }
}

/// The file of the daemon called `name`.
#[derive(Clone, Debug)]
pub(super) struct KeptFile {
    dir: StateDir,
    name: String,
}

impl KeptFile {
    pub(super) fn new(run_dir: &Path, name: &str) -> KeptFile {
        KeptFile { dir: StateDir::new(&run_dir.join(DIR)), name: format!("{name}.json") }
    }

    /// Writes the file; an error is logged and has no other effect.
    pub(super) fn write(&self, kept: &KeptConnections) {
        if kept.connections.is_empty() {
            return;
        }
        let text = serde_json::to_vec(kept).expect("invariant: the contents have string keys");
        if let Err(e) = self.dir.write(&self.name, &text) {
            warn!("the next daemon will not know the names of open connections: {e}");
        }
    }

    /// Reads and removes the file. `None` if it does not exist, is too old or is broken.
    pub(super) fn take(&self) -> Option<KeptConnections> {
        let read = self.dir.read(&self.name, FILE_SIZE_MAX).and_then(|text| {
            self.dir.remove(&self.name)?;
            Ok(text)
        });
        let text = read.unwrap_or_else(|e| {
            warn!("kept connections are ignored: {e}");
            None
        })?;
        let kept = serde_json::from_slice::<KeptConnections>(&text).inspect_err(|e| {
            let path = self.dir.path_of(&self.name);
            warn!("kept connections are ignored: {}: {e}", path.display());
        });
        kept.ok().filter(|kept| kept.version == 1 && unix_now().abs_diff(kept.at) <= AGE_MAX_S)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fairweir_core::host_name::HostName;
    use fairweir_core::packet::Transport;
    use fairweir_core::policy::Group;
    use fairweir_core::share::Weight;
    use fairweir_core::sites::{Claimed, Connection, Flow, Reason};

    use super::*;

    fn policy(groups: &[&str]) -> Policy {
        let group = |site: &&str| {
            Group::new(
                (*site).to_owned(),
                Weight::ONE,
                vec![format!("web:{site}").parse().unwrap()],
            )
        };
        Policy::new(groups.iter().map(group).collect()).unwrap()
    }

    fn kept() -> Vec<Kept> {
        let kept = |port: u16| Kept {
            connection: Connection {
                flow: Flow {
                    transport: if port == 1 { Transport::Tcp } else { Transport::Udp },
                    remote: "[2001:db8::7]:443".parse().unwrap(),
                    local: ([192, 0, 2, 1], port).into(),
                },
                opened: 7,
            },
            user: Some(1_000),
            reason: Reason::Sni,
            name: HostName::from_wire(b"cdn.example.com"),
            claimed: [None, Some(1), Some(9)][usize::from(port - 1)]
                .map(|group| Claimed { group: Some(group) })
                .or(Some(Claimed { group: None })),
        };
        (1..=3).map(kept).collect()
    }

    #[test]
    fn the_next_daemon_takes_over_what_its_policy_allows_and_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeptFile::new(dir.path(), "eth0");
        let policy_then = policy(&["a.com", "b.com"]);
        let write = || file.write(&KeptConnections::new(&policy_then, kept()));
        assert!(file.take().is_none());
        write();
        let [first, second, third] = file.take().unwrap().under(&policy_then).try_into().unwrap();
        assert_eq!([&first, &second], [&kept()[0], &kept()[1]]);
        assert_eq!(third, Kept { claimed: None, ..kept()[2].clone() }, "there is no such group");
        assert!(file.take().is_none(), "it was removed");
        assert!(KeptFile::new(dir.path(), "eth1").take().is_none());
        write();
        let under = file.take().unwrap().under(&policy(&["a.com", "c.com"]));
        assert!(under.iter().all(|kept| kept.claimed.is_none() && kept.name.is_some()));
    }

    #[test]
    fn what_is_old_broken_or_anothers_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let file = KeptFile::new(dir.path(), "eth0");
        let new = || KeptConnections::new(&policy(&["a.com"]), kept());
        for wrong in [
            KeptConnections { at: unix_now() - AGE_MAX_S - 10, ..new() },
            KeptConnections { at: unix_now() + AGE_MAX_S + 10, ..new() },
            KeptConnections { version: 2, ..new() },
        ] {
            file.write(&wrong);
            assert!(file.take().is_none());
        }
        file.write(&new());
        let path = file.dir.path_of(&file.name);
        let text = fs::read_to_string(&path).unwrap();
        for (from, to) in [
            ("cdn.example.com", "cdn..com"),
            ("192.0.2.1:1", "nowhere"),
            ("\"sni\"", "\"magic\""),
            ("{", ""),
        ] {
            fs::write(&path, text.replace(from, to)).unwrap();
            assert!(file.take().is_none(), "{from} → {to}");
            assert!(!path.exists());
        }
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, &text).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(file.take().is_none(), "a symbolic link");
    }
}
