//! Combines the file with the changes that were made by the API since.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use anyhow::anyhow;
use fairweir_config::ConfigError;
use fairweir_config::isp::IspFile;
use fairweir_config::mistakes::MISTAKES_MAX;
use tracing::warn;

use super::journal::Overlay;
use super::registry::{Hidden, Origin, Registry, RegistryError, Reported};

/// The registry of a file with an overlay on top. The file's subscribers are moved out of `file`,
/// so that a million of them are not in memory twice. `progress` gets the number of subscribers
/// that were processed, and of all. Where both have a name, the overlay's record wins; but if both
/// records are equal, the file's is used. Sessions and leases give way to records of both.
///
/// # Errors
/// The records that are not valid, with their places. If two records exclude each other, the file's
/// counts as the first.
pub(super) fn assemble(
    file: &mut IspFile,
    overlay: &Overlay,
    progress: &mut dyn FnMut(usize, usize),
) -> anyhow::Result<Registry> {
    let mut registry = Registry::default();
    registry.hide(hidden(file, overlay));
    let (mut names, mut wrong) = (BTreeSet::new(), Vec::new());
    for (origin, plan) in &file.plans {
        let over = overlay.plans.get(&plan.name);
        let loaded = match names.insert(&plan.name) {
            false => Err(RegistryError::PlanExists(plan.name.clone())),
            true if over.is_none_or(|over| over.as_ref() == Some(plan)) => {
                registry.load_plan(plan, Origin::File)
            }
            true => Ok(()),
        };
        wrong.extend(loaded.err().map(|e| file.error(*origin, "plan", e.key(), &e.to_string())));
    }
    refuse(wrong)?;
    for (name, plan) in &overlay.plans {
        let Some(plan) = plan.as_ref().filter(|_| !registry.plans().contains_key(name.as_str()))
        else {
            continue;
        };
        let origin = if names.contains(name) { Origin::ApiOverFile } else { Origin::Api };
        let loaded = registry.load_plan(plan, origin);
        fits(overlay, loaded.map_err(|e| in_overlay("plan", name, &e)))?;
    }
    subscribers(file, overlay, &mut registry, progress)?;
    Ok(registry)
}

fn refuse(wrong: Vec<ConfigError>) -> anyhow::Result<()> {
    ConfigError::of_all(wrong).map_or(Ok(()), |error| Err(error.into()))
}

fn subscribers(
    file: &mut IspFile,
    overlay: &Overlay,
    registry: &mut Registry,
    progress: &mut dyn FnMut(usize, usize),
) -> anyhow::Result<()> {
    let (mut overlaid, mut wrong, again) = (BTreeSet::new(), Vec::new(), OnceCell::new());
    for i in 0..file.subscribers.len() {
        if wrong.len() == MISTAKES_MAX {
            break;
        }
        if i % SAY_EVERY == 0 {
            progress(i, file.subscribers.len());
        }
        let (origin, spec) = &mut file.subscribers[i];
        let origin = *origin;
        let over = overlay.subscribers.get_key_value(&spec.name);
        if let Some((name, _)) = over
            && !overlaid.insert(name)
        {
            let e = RegistryError::SubscriberExists(name.clone());
            wrong.push(file.error(origin, "subscriber", e.key(), &e.to_string()));
        } else if over.is_none_or(|(_, over)| over.as_ref() == Some(spec))
            && let Err(e) = registry.load(&std::mem::take(spec), Origin::File)
        {
            let what = with_first_place(file, &again, &e);
            wrong.push(file.error(origin, "subscriber", e.key(), &what));
        }
    }
    refuse(wrong)?;
    for (name, spec) in &overlay.subscribers {
        let Some(spec) =
            spec.as_ref().filter(|_| !registry.subscribers().contains_key(name.as_str()))
        else {
            continue;
        };
        let origin = if overlaid.contains(name) { Origin::ApiOverFile } else { Origin::Api };
        let loaded = registry.load(spec, origin);
        fits(overlay, loaded.map_err(|e| in_overlay("subscriber", name, &e)))?;
    }
    let is_new =
        |stored: &&Reported| !registry.subscribers().contains_key(stored.subscriber.name.as_str());
    let sessions: Vec<_> = overlay.sessions.values().filter(is_new).collect();
    for stored in sessions {
        // Sessions and leases change all the time, so one that does not fit is no reason to refuse a file.
        if let Err(e) = registry.load_report(stored) {
            let subscriber = &stored.subscriber.name;
            warn!(subscriber, "a session does not fit the file and is forgotten: {e}");
        }
    }
    Ok(())
}

/// The names that the file has and the API removed.
fn hidden(file: &IspFile, overlay: &Overlay) -> Hidden {
    let plans = file.plans.iter().filter(|(_, p)| {
        let over = overlay.plans.get(&p.name);
        over.is_some_and(Option::is_none)
    });
    let subscribers = file.subscribers.iter().filter(|(_, s)| {
        let over = overlay.subscribers.get(&s.name);
        over.is_some_and(Option::is_none)
    });
    Hidden {
        plans: plans.map(|(_, p)| p.name.as_str().into()).collect(),
        subscribers: subscribers.map(|(_, s)| s.name.as_str().into()).collect(),
    }
}

/// The text of an error; in a conflict it includes the place of the other record.
fn with_first_place(
    file: &IspFile,
    again: &OnceCell<Option<IspFile>>,
    error: &RegistryError,
) -> String {
    let other = match error {
        RegistryError::SubscriberExists(name) => name,
        RegistryError::AddressTaken { owner, .. } => owner,
        _ => return error.to_string(),
    };
    // The subscribers were moved out of `file`, so the file is read again.
    let again = again.get_or_init(|| IspFile::load(&file.path).ok());
    let first = again.as_ref().and_then(|file| {
        let (origin, _) = file.subscribers.iter().find(|(_, spec)| spec.name == *other)?;
        Some(file.place(*origin))
    });
    match first {
        Some(place) => format!("{error} (at {place})"),
        None => error.to_string(),
    }
}

/// The result of loading a record of the overlay. If a part of the journal was not understood, its
/// records can be outdated, so those that do not fit are left out.
fn fits(overlay: &Overlay, loaded: anyhow::Result<()>) -> anyhow::Result<()> {
    match loaded {
        Err(e) if overlay.is_partial => {
            warn!("left out: {e}");
            Ok(())
        }
        loaded => loaded,
    }
}

fn in_overlay(section: &str, name: &str, error: &RegistryError) -> anyhow::Error {
    let key = error.key();
    anyhow!(
        "the {section} `{name}` of the API does not fit the file: {section}.{key}: {error}; change \
         the file, or drop what the API said by `fairweir isp revert {name}`"
    )
}

/// Progress is reported once for this many subscribers.
const SAY_EVERY: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use fairweir_config::isp::address::parse_address;
    use fairweir_config::isp::{PlanEntry, SubscriberSpec};
    use serde_json::json;

    const FILE: &str = "version = 1
[isp]
device = \"eth1\"
[[plan]]
name = \"slow\"
download = \"10mbit\"
[[plan]]
name = \"fast\"
download = \"100mbit\"
[[subscriber]]
name = \"alice\"
addresses = [\"192.0.2.1\"]
plan = \"slow\"
[[subscriber]]
name = \"bob\"
addresses = [\"192.0.2.2\"]
plan = \"slow\"
";

    fn file(text: &str) -> IspFile {
        load(&tempfile::tempdir().unwrap(), text)
    }

    fn load(dir: &tempfile::TempDir, text: &str) -> IspFile {
        let path = dir.path().join("isp.toml");
        fs::write(&path, text).unwrap();
        IspFile::load(&path).unwrap()
    }

    fn spec(name: &str, address: &str, plan: &str) -> Option<SubscriberSpec> {
        let addresses = vec![parse_address(address).unwrap()];
        Some(SubscriberSpec { name: name.to_owned(), addresses, plan: plan.to_owned() })
    }

    #[test]
    fn what_the_api_said_stands_over_the_file_by_name() {
        let mut overlay = Overlay::default();
        overlay.subscribers.insert("alice".into(), spec("alice", "192.0.2.9", "fast"));
        overlay.subscribers.insert("bob".into(), None);
        overlay.subscribers.insert("carol".into(), spec("carol", "192.0.2.2", "gold"));
        overlay.subscribers.insert("dave".into(), None);
        let gold = json!({ "name": "gold", "download": "1gbit" });
        overlay.plans.insert("gold".into(), Some(PlanEntry::from_json(&gold).unwrap()));
        let registry = assemble(&mut file(FILE), &overlay, &mut |_, _| ()).unwrap();
        let origins: Vec<_> =
            registry.subscribers().iter().map(|(name, r)| (&**name, r.origin)).collect();
        assert_eq!(origins, [("alice", Origin::ApiOverFile), ("carol", Origin::Api)]);
        assert!(registry.hidden().subscribers.contains("bob"));
        // A name that the file does not have is not kept as removed.
        overlay.subscribers.remove("dave");
        assert_eq!(Overlay::of(&registry), overlay);
    }

    #[test]
    fn what_the_file_has_taken_over_is_the_files() {
        let mut overlay = Overlay::default();
        overlay.subscribers.insert("alice".into(), spec("alice", "192.0.2.1", "slow"));
        let registry = assemble(&mut file(FILE), &overlay, &mut |_, _| ()).unwrap();
        assert_eq!(registry.subscribers()["alice"].origin, Origin::File);
        assert_eq!(Overlay::of(&registry), Overlay::default());
    }

    #[test]
    fn records_that_exclude_each_other_are_told_with_both_places() {
        let error = |text: &str, overlay: &Overlay| {
            let dir = tempfile::tempdir().unwrap();
            let error =
                assemble(&mut load(&dir, text), overlay, &mut |_, _| ()).unwrap_err().to_string();
            error.split_once("isp.toml").map_or(error.clone(), |(_, e)| e.to_owned())
        };
        let none = Overlay::default();
        let twice = error(&FILE.replace("192.0.2.2", "192.0.2.1"), &none);
        assert!(twice.starts_with(":14: subscriber.addresses: 192.0.2.1/32 belongs to"), "{twice}");
        assert!(twice.ends_with("isp.toml:10)"), "{twice}");
        let twice = error(&FILE.replace("bob", "alice"), &none);
        assert!(
            twice.starts_with(":14: subscriber.name: subscriber `alice` already exists"),
            "{twice}"
        );
        let unknown = error(&FILE.replacen("plan = \"slow\"", "plan = \"slwo\"", 1), &none);
        assert!(unknown.contains(":10: subscriber.plan: no plan `slwo`"), "{unknown}");
        let plan = error(&FILE.replace("fast", "slow"), &none);
        assert!(plan.starts_with(":7: plan.name: plan `slow` already exists"), "{plan}");
        let mut overlay = Overlay::default();
        overlay.subscribers.insert("carol".into(), spec("carol", "192.0.2.1", "slow"));
        let taken = error(FILE, &overlay);
        assert!(taken.contains("`carol` of the API") && taken.contains("`alice`"), "{taken}");
        assert!(taken.ends_with("`fairweir isp revert carol`"), "{taken}");
        // With a damaged journal, the records that fit are in force.
        overlay.subscribers.insert("dave".into(), spec("dave", "192.0.2.4", "slow"));
        overlay.subscribers.insert("erin".into(), spec("erin", "192.0.2.5", "lost"));
        overlay.is_partial = true;
        let registry = assemble(&mut file(FILE), &overlay, &mut |_, _| ()).unwrap();
        let names: Vec<_> = registry.subscribers().keys().map(|name| &**name).collect();
        assert_eq!(names, ["alice", "bob", "dave"]);
    }
}
