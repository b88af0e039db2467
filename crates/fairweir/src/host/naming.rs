//! `fairweir router devices name`: writes the name of a device into the configuration file that a person edits.
//!
//! The command writes the files, not the daemon, which may not change them under systemd. The daemon then reads them
//! again; if it refuses them, the command restores the old text.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use fairweir_config::host::naming::{renamed, with_device};
use fairweir_config::host::set::Changes;
use fairweir_config::host::{Role, set};
use fairweir_config::{output, text};
use fairweir_core::packet::Mac;
use fairweir_core::policy::{DEFAULT_GROUP, Match, NAME_MAX, is_name};
use fairweir_daemon::{Access, Client, Request};

use super::cli::{NameArgs, Target};
use super::client::find;
use super::wire::{Changed, HostRequest, Neighbours, Status};
use crate::exit::Usage;

pub(super) fn run(args: &NameArgs) -> anyhow::Result<()> {
    let role = Some(Role::Router);
    let mut client = find(&args.run_dir.run_dir, role, args.dev.as_deref(), Access::Change)?;
    let status: Status = client.ask(&Request::Status)?;
    let there: Neighbours = client.ask(&HostRequest::Neighbours)?;
    let edit = edit(&status, &there, args.target, &args.name).map_err(Usage)?;
    let (path, old, new) = changed(&there.files, &edit, &args.name)?;
    write(&path, &new)?;
    if let Err(e) = client.tell(&Request::Reload { dry_run: false, force: false }, &mut |_, _| ()) {
        write(&path, &old)?;
        return Err(e.into());
    }
    let (name, path) = (&args.name, path.display());
    let said = match &edit {
        Edit::Rename { old } => {
            move_weights(&mut client, &status, old, name)?;
            format!("{old} is {name} now ({path})")
        }
        Edit::Add { mac } => {
            let may_change =
                if mac.is_made_up() { "; its MAC address is made up and may change" } else { "" };
            format!("{mac} is {name} now, with a share of its own of weight 1 ({path}){may_change}")
        }
    };
    Ok(writeln!(text::stdout(), "{said}")?)
}

/// The change to make.
#[derive(Debug, PartialEq, Eq)]
enum Edit {
    /// Renames a device that the configuration lists.
    Rename { old: String },
    /// Adds a device to the configuration.
    Add { mac: Mac },
}

/// The change that gives the device its name.
///
/// # Errors
/// The reason why it cannot have this name.
fn edit(status: &Status, there: &Neighbours, target: Target, name: &str) -> Result<Edit, String> {
    if !is_name(name) || name == DEFAULT_GROUP {
        return Err(format!(
            "`{name}` cannot be the name of a device; use letters, digits, `-`, `_` and `.`, at most {NAME_MAX} \
             bytes, and not `{DEFAULT_GROUP}`"
        ));
    }
    let found = there.neighbours.iter().find(|neighbour| match target {
        Target::Mac(mac) => neighbour.mac == mac,
        Target::Address(address) => neighbour.addresses.contains(&address),
    });
    let mac = match (target, found) {
        (Target::Mac(mac), _) => mac,
        (_, Some(neighbour)) => neighbour.mac,
        (Target::Address(address), None) => {
            return Err(format!(
                "no device has the address {address} now; `fairweir router devices` lists those that are there"
            ));
        }
    };
    let listed = status.groups.iter().find(|group| group.matches.contains(&Match::Mac(mac)));
    let device = found.and_then(|found| found.device.clone());
    let device = device.or_else(|| listed.map(|group| group.top().to_owned()));
    if device.as_deref() == Some(name) {
        return Err(format!("{target} is `{name}` already"));
    }
    if status.groups.iter().any(|group| group.top() == name) {
        return Err(format!("another device is `{name}`; names must differ"));
    }
    let Some(old) = device else { return Ok(Edit::Add { mac }) };
    let others = there.neighbours.iter().filter(|n| n.device.as_ref() == Some(&old)).count();
    if others > 1 {
        let file = there.files.first().map(|file| file.display().to_string()).unwrap_or_default();
        return Err(format!(
            "{target} is one of {others} of device `{old}`; list it by `mac:{mac}` above `{old}` in {file}"
        ));
    }
    Ok(Edit::Rename { old })
}

/// The file to change, its present text, and its new text.
fn changed(
    files: &[PathBuf],
    edit: &Edit,
    name: &str,
) -> anyhow::Result<(PathBuf, String, String)> {
    let read = |path: &Path| {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        if text.starts_with(MADE) {
            bail!(
                "{} is made from /etc/config/fairweir; name the device there, as `config device`",
                path.display()
            );
        }
        Ok(text)
    };
    for path in files {
        let text = read(path)?;
        let new = match edit {
            Edit::Rename { old } => renamed(&text, old, name),
            Edit::Add { mac } => Some(with_device(&text, name, *mac)),
        };
        if let Some(new) = new {
            return Ok((path.clone(), text, new));
        }
    }
    let old = if let Edit::Rename { old } = edit { old } else { name };
    bail!("no file of the configuration lists the device `{old}` any more")
}

/// The first words of a file that `fairweir generate uci` has written.
const MADE: &str = "# Written from UCI";

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    output::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Moves the settings that `fairweir set` has stored from the old name to the new one.
fn move_weights(client: &mut Client, status: &Status, old: &str, new: &str) -> anyhow::Result<()> {
    let its = status.groups.iter().filter(|group| group.top() == old);
    let paths = its.flat_map(|group| group.within.iter().map(|w| &w.name).chain([&group.name]));
    let keys: Changes = paths.map(|path| (format!("weight.{path}"), None)).collect();
    let gone: Changed = client.ask(&HostRequest::Set { changes: keys })?;
    let from = format!("weight.{old}");
    let moved = gone.undo.into_iter().filter(|(_, value)| value.is_some());
    let moved = moved.map(|(key, value)| (key.replacen(&from, &format!("weight.{new}"), 1), value));
    let moved: Changes = moved.collect();
    if !moved.is_empty() {
        set::check(&moved).map_err(Usage)?;
        client.ask::<Changed>(&HostRequest::Set { changes: moved })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::wire::{GroupStatus, NeighbourStatus};
    use super::*;

    fn mac(last: u8) -> Mac {
        Mac([0, 0, 0x5e, 0, 0x53, last])
    }

    fn home() -> (Status, Neighbours) {
        let group = |name: &str, matches: Vec<Match>| GroupStatus {
            name: name.to_owned(),
            matches,
            ..GroupStatus::default()
        };
        let groups = vec![
            group("tv/video", Vec::new()),
            group("tv/default", Vec::new()),
            group("office", vec!["ip:192.168.7.64/26".parse().unwrap()]),
            group("desk", vec![Match::Mac(mac(9))]),
            group("default", Vec::new()),
        ];
        let neighbour = |last: u8, device: Option<&str>| NeighbourStatus {
            mac: mac(last),
            addresses: vec![[192, 168, 7, last].into()],
            device: device.map(str::to_owned),
            dhcp_name: None,
            since_s: 1,
            silent_s: 1,
        };
        let neighbours = vec![
            neighbour(1, Some("tv")),
            neighbour(2, None),
            neighbour(65, Some("office")),
            neighbour(66, Some("office")),
        ];
        let there = Neighbours { files: vec!["router.toml".into()], neighbours };
        (Status { groups, ..Status::default() }, there)
    }

    #[test]
    fn a_listed_device_is_renamed_and_another_is_added() {
        let (status, there) = home();
        let edit = |target, name| edit(&status, &there, target, name);
        let rename = |old: &str| Ok(Edit::Rename { old: old.to_owned() });
        let by_address = |last: u8| Target::Address([192, 168, 7, last].into());
        assert_eq!(edit(Target::Mac(mac(1)), "tele"), rename("tv"));
        assert_eq!(edit(by_address(1), "tele"), rename("tv"));
        assert_eq!(edit(Target::Mac(mac(9)), "pc"), rename("desk"), "it is not there now");
        assert_eq!(edit(by_address(2), "phone"), Ok(Edit::Add { mac: mac(2) }));
        assert_eq!(edit(Target::Mac(mac(7)), "phone"), Ok(Edit::Add { mac: mac(7) }));
        for (target, name, says) in [
            (by_address(3), "phone", "no device has the address 192.168.7.3"),
            (by_address(1), "tv", "is `tv` already"),
            (by_address(2), "tv", "another device is `tv`"),
            (by_address(2), "default", "cannot be the name"),
            (by_address(2), "my tv", "cannot be the name"),
            (by_address(2), "tv/video", "cannot be the name"),
            (by_address(65), "pc", "one of 2 of device `office`"),
        ] {
            let error = edit(target, name).unwrap_err();
            assert!(error.contains(says) && error.lines().count() == 1, "{error}");
        }
    }
}
